/* Captures beside pools that are being made, and streams that end while a capture is open. The
 * first argument says which. */
#include "cu.h"

#include <pthread.h>
#include <unistd.h>

#define WORDS (16 * 1024)

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuStreamIsCapturing(CUstream stream, int *status);

static CUcontext context;
static pthread_barrier_t captured, freed;

/* Begins a capture, which takes the driver long, and ends it after the other thread's frees. */
static void *captures(void *unused) {
  CUstream stream;
  CUgraph graph = NULL;
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, 1));
  pthread_barrier_wait(&captured);
  OK(cuStreamBeginCapture_v2(stream, 2));
  pthread_barrier_wait(&captured);
  pthread_barrier_wait(&freed);
  OK(cuStreamEndCapture(stream, &graph));
  IS(graph != NULL, 1);
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy_v2(stream));
  return unused;
}

/* The first pool is made while the driver begins the capture: it records no fence until that is
 * over, which would make the capture invalid. For a driver whose cuStreamBeginCapture takes long. */
static void made(void) {
  pthread_t thread;
  CUdeviceptr p = 0;
  context = begin();
  IS(pthread_barrier_init(&captured, NULL, 2), 0);
  IS(pthread_barrier_init(&freed, NULL, 2), 0);
  IS(pthread_create(&thread, NULL, captures, NULL), 0);
  pthread_barrier_wait(&captured);
  usleep(100 * 1000);
  OK(cuMemAlloc_v2(&p, 4096));
  pthread_barrier_wait(&captured);
  for (int i = 0; i < 400; i++) {
    OK(cuMemAlloc_v2(&p, i % 2 ? 1 << 20 : 64 * 1024));
    OK(cuMemFree_v2(p));
  }
  pthread_barrier_wait(&freed);
  IS(pthread_join(thread, NULL), 0);
  IS(served("cuMemAlloc_v2"), 401);
}

/* A capture makes no pool, and no context: that of device 0 is gone, and stays so. */
static void unmade(void) {
  CUdeviceptr p = 0;
  CUstream stream;
  CUgraph graph;
  unsigned flags = 0;
  int active = 1;
  begin();
  OK(cuMemAlloc_v2(&p, 4096));
  OK(cuMemFree_v2(p));
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRelease_v2(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  IS(active, 0);
  OK(cuDevicePrimaryCtxRetain(&context, 1));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  IS(active, 0);
}

static void check(CUdeviceptr p, unsigned value) {
  static unsigned words[WORDS];
  OK(cuMemcpyDtoH_v2(words, p, sizeof words));
  for (int i = 0; i < WORDS; i++) {
    IS(words[i], value);
  }
}

/* Work on `stream` that is in flight when its memory is freed in the stream's order. */
static CUdeviceptr busy(CUstream stream, unsigned value) {
  CUdeviceptr p = 0;
  OK(cuMemAllocAsync(&p, WORDS * 4, stream));
  for (int i = 0; i < 6; i++) {
    OK(cuMemsetD32Async(p, value, WORDS, stream));
  }
  OK(cuMemFreeAsync(p, stream));
  return p;
}

/* The next stream, perhaps of the same handle, and its memory. */
static int next(CUstream old, CUdeviceptr before, unsigned value, CUstream *stream) {
  CUdeviceptr q = 0;
  OK(cuStreamCreate(stream, 1));
  OK(cuMemAllocAsync(&q, WORDS * 4, *stream));
  OK(cuMemsetD32Async(q, value, WORDS, *stream));
  OK(cuStreamSynchronize(*stream));
  usleep(2000);
  check(q, value);
  OK(cuMemFreeAsync(q, *stream));
  return *stream == old && q == before;
}

/* Another thread than the capture's destroys its stream: the capture is over then, and the pool
 * waits for nothing any more. */
static void *destroys(void *stream) {
  OK(cuCtxSetCurrent(context));
  OK(cuStreamDestroy_v2((CUstream)stream));
  return NULL;
}

static void taken_away(void) {
  pthread_t thread;
  CUstream stream;
  CUdeviceptr p = 0;
  context = begin();
  OK(cuMemAlloc_v2(&p, 4096));
  OK(cuMemFree_v2(p));
  OK(cuStreamCreate(&stream, 1));
  OK(cuMemAllocAsync(&p, 4096, stream));
  OK(cuMemFreeAsync(p, stream));
  OK(cuStreamBeginCapture_v2(stream, 0));
  IS(pthread_create(&thread, NULL, destroys, stream), 0);
  IS(pthread_join(thread, NULL), 0);
  for (int i = 0; i < 40; i++) {
    OK(cuMemAlloc_v2(&p, 30 << 20));
    OK(cuMemsetD32Async(p, 1, 1000, NULL));
    OK(cuMemFree_v2(p));
  }
  IS(served("cuMemAlloc_v2"), 41);
}

/* A stream is destroyed while it captures, from its own thread, where it joined another's capture,
 * and while another captures: what it freed before is nobody's until its work is done. */
static void destroyed(void) {
  CUstream stream, other, fresh;
  CUgraph graph = NULL;
  CUevent event;
  int status = 9;
  begin();
  OK(cuEventCreate(&event, 2));
  for (unsigned round = 0; round < 20; round++) {
    OK(cuStreamCreate(&stream, 1));
    CUdeviceptr p = busy(stream, 1000 + round);
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuStreamDestroy_v2(stream));
    next(stream, p, round, &fresh);
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(fresh));
  }
  for (unsigned round = 0; round < 20; round++) {
    int joins = round % 2;
    OK(cuStreamCreate(&other, 1));
    OK(cuStreamCreate(&stream, 1));
    CUdeviceptr p = busy(stream, 2000 + round);
    OK(cuStreamBeginCapture_v2(other, 2));
    if (joins) {
      OK(cuEventRecord(event, other));
      OK(cuStreamWaitEvent(stream, event, 0));
      OK(cuStreamIsCapturing(stream, &status));
      IS(status, 1);
    }
    OK(cuStreamDestroy_v2(stream));
    IS(cuStreamDestroy_v2(stream), 400);
    CUdeviceptr q = 0;
    OK(cuStreamCreate(&fresh, 1));
    IS(fresh != stream, 1);
    OK(cuMemAllocAsync(&q, WORDS * 4, fresh));
    OK(cuMemsetD32Async(q, round, WORDS, fresh));
    CUresult ended = cuStreamEndCapture(other, &graph);
    IS(ended == SUCCESS || (joins && ended != SUCCESS), 1);
    if (graph != NULL) {
      OK(cuGraphDestroy(graph));
      graph = NULL;
    }
    OK(cuStreamSynchronize(fresh));
    OK(cuCtxSynchronize());
    check(q, round);
    OK(cuMemFreeAsync(q, fresh));
    OK(cuStreamDestroy_v2(fresh));
    OK(cuStreamDestroy_v2(other));
    /* The stream has gone by now: its handle comes back. */
    CUstream all[500];
    int made = 0, back = 0;
    while (made < 500 && !back) {
      OK(cuStreamCreate(&all[made], 1));
      back = all[made++] == stream;
    }
    IS(back, 1);
    while (made > 0) {
      OK(cuStreamDestroy_v2(all[--made]));
    }
    (void)p;
  }
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (strcmp(what, "made") == 0) {
    made();
  } else if (strcmp(what, "unmade") == 0) {
    unmade();
  } else if (strcmp(what, "taken") == 0) {
    taken_away();
  } else {
    destroyed();
  }
  puts("well");
  return 0;
}
