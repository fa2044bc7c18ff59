/* Captures beside what ends while they are open: contexts, other devices' pools, streams of other
 * contexts. The first argument says which. */
#include "cu.h"

#include <pthread.h>

#define MIB ((size_t)1 << 20)

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);

static CUcontext contexts[2];

static void both(void) {
  OK(cuInit(0));
  for (int i = 0; i < 2; i++) {
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
  }
  OK(cuCtxSetCurrent(contexts[0]));
}

static void take(int times, size_t bytes) {
  CUdeviceptr p = 0;
  for (int i = 0; i < times; i++) {
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemFree_v2(p));
  }
}

static void ends(CUstream stream) {
  CUgraph graph = NULL;
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
}

/* A device's pool is made while a capture is open there that another device's pool was told of. */
static void later(void) {
  CUstream stream;
  both();
  take(1, 4096);
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 2));
  take(400, 128 * 1024);
  ends(stream);
  take(40, 30 * MIB);
  IS(served("cuMemAlloc_v2"), 441);
}

/* A context ends with a capture open: the pool of the next one waits for nothing. */
static void reset(void) {
  CUstream stream;
  CUdeviceptr p = 0;
  both();
  take(1, 4096);
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
  OK(cuCtxSetCurrent(contexts[0]));
  for (int i = 0; i < 40; i++) {
    OK(cuMemAlloc_v2(&p, 30 * MIB));
    OK(cuMemsetD32Async(p, 1, 1000, NULL));
    OK(cuMemFree_v2(p));
  }
  /* No capture is open: a stream's end is not put off. */
  OK(cuStreamCreate(&stream, 1));
  OK(cuMemAllocAsync(&p, 4096, stream));
  OK(cuMemFreeAsync(p, stream));
  OK(cuStreamDestroy_v2(stream));
  CUcontext of = NULL;
  IS(cuStreamGetCtx(stream, &of) != SUCCESS, 1);
}

/* A device's context ends while another's stream captures: that goes on, whoever was told of it,
 * and pools made since know. `before`: whether the other device has a pool when it begins. */
static void beside(int before) {
  CUstream stream;
  both();
  take(1, 4096);
  OK(cuCtxSetCurrent(contexts[1]));
  if (before) {
    take(1, 4096);
  }
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuDevicePrimaryCtxReset_v2(0));
  take(400, 128 * 1024);
  OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
  OK(cuCtxSetCurrent(contexts[0]));
  take(40, 128 * 1024);
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuCtxSetCurrent(contexts[1]));
  take(400, 128 * 1024);
  ends(stream);
  take(40, 30 * MIB);
}

/* A stream is destroyed while a capture is open and another context is current, which goes before
 * the capture ends: the stream ends all the same. */
static void other_context(void) {
  CUstream stream, captures;
  CUdeviceptr p = 0;
  CUcontext other = NULL, of = NULL;
  both();
  take(1, 4096);
  OK(cuStreamCreate(&captures, 1));
  OK(cuStreamCreate(&stream, 1));
  OK(cuMemAllocAsync(&p, 4096, stream));
  OK(cuMemFreeAsync(p, stream));
  OK(cuStreamBeginCapture_v2(captures, 2));
  OK(cuCtxCreate_v2(&other, 0, 1));
  OK(cuStreamDestroy_v2(stream));
  IS(cuStreamDestroy_v2(stream), 400);
  OK(cuCtxDestroy_v2(other));
  OK(cuCtxSetCurrent(contexts[0]));
  ends(captures);
  IS(cuStreamGetCtx(stream, &of) != SUCCESS, 1);
}

static pthread_barrier_t both_captures;

static void *captures(void *unused) {
  CUstream stream;
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 2));
  pthread_barrier_wait(&both_captures);
  pthread_barrier_wait(&both_captures);
  ends(stream);
  pthread_barrier_wait(&both_captures);
  OK(cuStreamDestroy_v2(stream));
  return unused;
}

/* Two captures end at once: the streams whose end was put off go with the later one. */
static void at_once(void) {
  CUstream streams[8];
  both();
  take(1, 4096);
  IS(pthread_barrier_init(&both_captures, NULL, 3), 0);
  for (int round = 0; round < 100; round++) {
    pthread_t threads[2];
    CUdeviceptr p = 0;
    CUcontext of = NULL;
    for (int i = 0; i < 8; i++) {
      OK(cuStreamCreate(&streams[i], 1));
      OK(cuMemAllocAsync(&p, 4096, streams[i]));
      OK(cuMemFreeAsync(p, streams[i]));
    }
    for (int i = 0; i < 2; i++) {
      IS(pthread_create(&threads[i], NULL, captures, NULL), 0);
    }
    pthread_barrier_wait(&both_captures);
    for (int i = 0; i < 8; i++) {
      OK(cuStreamDestroy_v2(streams[i]));
    }
    pthread_barrier_wait(&both_captures);
    pthread_barrier_wait(&both_captures);
    for (int i = 0; i < 8; i++) {
      IS(cuStreamGetCtx(streams[i], &of) != SUCCESS, 1);
    }
    for (int i = 0; i < 2; i++) {
      IS(pthread_join(threads[i], NULL), 0);
    }
  }
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (strcmp(what, "later") == 0) {
    later();
  } else if (strcmp(what, "reset") == 0) {
    reset();
  } else if (strcmp(what, "beside") == 0) {
    beside(0);
  } else if (strcmp(what, "told") == 0) {
    beside(1);
  } else if (strcmp(what, "context") == 0) {
    other_context();
  } else {
    at_once();
  }
  puts("well");
  return 0;
}
