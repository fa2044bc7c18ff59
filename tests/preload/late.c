/* Frees while work is in flight, in the ways that a fence may miss. The first argument says
 * which. */
#include "cu.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

CUresult cuStreamQuery(CUstream stream);
CUresult cuMemsetD32Async_ptsz(CUdeviceptr p, unsigned value, size_t count, CUstream stream);

#define NOT_READY 600
#define WORDS (4 * 1024)

static void check(CUdeviceptr p, unsigned value) {
  static unsigned words[WORDS];
  OK(cuMemcpyDtoH_v2(words, p, sizeof words));
  for (int i = 0; i < WORDS; i++) {
    IS(words[i], value);
  }
}

/* Streams that no allocation names, made before the first: on a device of 32 MiB, most of it is
 * freed behind their work and asked for again. */
static void early(void) {
  CUstream blocking, other, streams[3];
  CUcontext context = begin();
  OK(cuStreamCreate(&blocking, 0));
  OK(cuStreamCreate(&other, 1));
  OK(cuStreamCreate(&streams[0], 1));
  OK(cuStreamDestroy_v2(other));
  streams[1] = blocking;
  streams[2] = (CUstream)2;
  for (unsigned round = 0; round < 24; round++) {
    CUdeviceptr p = 0, q = 0;
    CUstream stream = streams[round % 3];
    OK(cuMemAlloc_v2(&p, 20 << 20));
    for (int i = 0; i < 4; i++) {
      OK(cuMemsetD32Async(p, 1000 + round, WORDS, stream));
    }
    if (round % 3 == 2 && round % 2 == 0) {
      OK(cuMemFreeAsync_ptsz(p, NULL));
    } else {
      OK(cuMemFree_v2(p));
    }
    /* The legacy stream would wait for the blocking ones. */
    CUstream next = stream == streams[0] ? NULL : streams[0];
    OK(cuMemAlloc_v2(&q, 20 << 20));
    OK(cuMemsetD32Async(q, round, WORDS, next));
    OK(cuStreamSynchronize(next));
    OK(cuStreamSynchronize(stream));
    check(q, round);
    OK(cuMemFree_v2(q));
  }
  IS(served("cuMemAlloc_v2"), 48);
  IS(served("cuMemFreeAsync_ptsz"), 4);
  /* Streams that ended with their context are not asked about by the next pool. */
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  CUdeviceptr p = 0;
  OK(cuMemAlloc_v2(&p, 4096));
  OK(cuMemFree_v2(p));
}

/* Device 0's streams work on device 1's memory and free it: the next owner there is on the other
 * device's default stream, which is not ordered with them. Fills need access to the peer, which
 * fences see; copies do not. */
static void peers(void) {
  CUcontext contexts[2];
  OK(cuInit(0));
  for (int i = 0; i < 2; i++) {
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
  }
  CUdeviceptr warm = 0;
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemAlloc_v2(&warm, WORDS * 4));
  OK(cuMemsetD32_v2(warm, 99999, WORDS));
  CUstream own;
  OK(cuStreamCreate(&own, 1));
  for (unsigned round = 0; round < 40; round++) {
    CUdeviceptr p = 0, q = 0;
    CUstream streams[] = {NULL, (CUstream)1, own, (CUstream)2}, stream = streams[round % 4];
    if (round == 20) {
      OK(cuCtxSetCurrent(contexts[0]));
      OK(cuCtxEnablePeerAccess(contexts[1], 0));
    }
    OK(cuCtxSetCurrent(contexts[1]));
    OK(cuMemAlloc_v2(&p, 20 << 20));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(contexts[0]));
    for (int i = 0; i < 4; i++) {
      if (round < 20) {
        OK(cuMemcpyDtoDAsync_v2(p, warm, WORDS * 4, stream));
      } else {
        OK(cuMemsetD32Async(p, 1000 + round, WORDS, stream));
      }
    }
    OK(cuMemFreeAsync(p, stream));
    OK(cuCtxSetCurrent(contexts[1]));
    OK(cuMemAllocAsync(&q, 20 << 20, NULL));
    OK(cuMemsetD32Async(q, round, WORDS, NULL));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(contexts[0]));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(contexts[1]));
    check(q, round);
    OK(cuMemFreeAsync(q, NULL));
  }
  IS(served("cuMemFreeAsync"), 80);
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemFree_v2(warm));
}

/* Small blocks, many behind one fence, while their stream is busy. */
#define BLOCKS 300

static void batches(void) {
  CUdeviceptr blocks[BLOCKS];
  CUstream streams[2];
  begin();
  for (int i = 0; i < 2; i++) {
    OK(cuStreamCreate(&streams[i], 1));
  }
  for (unsigned round = 0; round < 8; round++) {
    for (unsigned turn = 0; turn < 2; turn++) {
      for (int i = 0; i < BLOCKS; i++) {
        OK(cuMemAlloc_v2(&blocks[i], WORDS * 4));
        OK(cuMemsetD32Async(blocks[i], turn, WORDS, streams[turn]));
      }
      /* The first owner's work may still be queued, the second's is done. */
      if (turn) {
        OK(cuStreamSynchronize(streams[1]));
        OK(cuStreamSynchronize(streams[0]));
        for (int i = 0; i < BLOCKS; i++) {
          check(blocks[i], turn);
        }
      }
      /* What is worked on last is freed first. */
      for (int i = BLOCKS; i > 0; i--) {
        OK(cuMemFree_v2(blocks[i - 1]));
      }
    }
  }
  IS(served("cuMemFree_v2"), 2 * 8 * BLOCKS);
}

/* Two threads' own default streams, which nothing orders with each other. */
static CUdeviceptr theirs;

static void *next_owner(void *context) {
  OK(cuCtxSetCurrent((CUcontext)context));
  OK(cuMemAllocAsync_ptsz(&theirs, WORDS * 4, NULL));
  OK(cuMemsetD32Async_ptsz(theirs, 7, WORDS, NULL));
  OK(cuStreamSynchronize((CUstream)2));
  return NULL;
}

static void threads(void) {
  CUcontext context = begin();
  for (unsigned round = 0; round < 40; round++) {
    CUdeviceptr p = 0;
    pthread_t thread;
    OK(cuMemAllocAsync_ptsz(&p, WORDS * 4, NULL));
    for (int i = 0; i < 4; i++) {
      OK(cuMemsetD32Async_ptsz(p, 1000, WORDS, NULL));
    }
    OK(cuMemFreeAsync_ptsz(p, NULL));
    IS(pthread_create(&thread, NULL, next_owner, context), 0);
    IS(pthread_join(thread, NULL), 0);
    OK(cuStreamSynchronize((CUstream)2));
    check(theirs, 7);
    OK(cuMemFreeAsync_ptsz(theirs, NULL));
  }
  IS(served("cuMemAllocAsync_ptsz"), 80);
}

/* A free on the thread's own default stream does not wait for it: the work may wait for what this
 * thread does next. For a device whose work runs when it is waited for. */
static void unheld(void) {
  CUdeviceptr p = 0;
  begin();
  OK(cuMemAllocAsync_ptsz(&p, WORDS * 4, NULL));
  OK(cuMemsetD32Async_ptsz(p, 7, WORDS, NULL));
  IS(cuStreamQuery((CUstream)2), NOT_READY);
  OK(cuMemFreeAsync_ptsz(p, NULL));
  IS(cuStreamQuery((CUstream)2), NOT_READY);
  IS(served("cuMemFreeAsync_ptsz"), 1);
  OK(cuCtxSynchronize());
}

/* FOREBAY_FREE=sync: a free waits for the device, as programs that use it as a barrier expect. For
 * a device whose work runs when it is waited for. */
static void barrier(void) {
  CUstream streams[4] = {NULL, (CUstream)2};
  begin();
  OK(cuStreamCreate(&streams[2], 0));
  OK(cuStreamCreate(&streams[3], 1));
  for (size_t bytes = 4096; bytes <= 16 << 20; bytes *= 64) {
    for (int i = 0; i < 4; i++) {
      CUdeviceptr p = 0, q = 0;
      OK(cuMemAlloc_v2(&p, WORDS * 4));
      OK(cuMemAlloc_v2(&q, bytes));
      OK(cuMemsetD32Async(p, 7, WORDS, streams[i]));
      IS(cuStreamQuery(streams[i]), NOT_READY);
      OK(cuMemFree_v2(q));
      OK(cuStreamQuery(streams[i]));
      check(p, 7);
      OK(cuMemFree_v2(p));
    }
  }
}

/* More streams than a pool has lanes for. */
static void many(void) {
  begin();
  for (int i = 0; i < 4200; i++) {
    CUdeviceptr p = 0;
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemFreeAsync(p, stream));
  }
  IS(served("cuMemFreeAsync"), 4200);
}

/* A child that is forked while another thread makes the first pool is told 3 like any other, and
 * hangs nowhere. For a driver that takes long over that. */
static CUcontext primary;

static void *first_use(void *unused) {
  CUdeviceptr p = 0;
  OK(cuCtxSetCurrent(primary));
  OK(cuMemAlloc_v2(&p, 4096));
  OK(cuMemFree_v2(p));
  return unused;
}

static void forked(void) {
  pthread_t thread;
  primary = begin();
  IS(pthread_create(&thread, NULL, first_use, NULL), 0);
  usleep(300 * 1000);
  pid_t child = fork();
  if (child == 0) {
    CUdeviceptr p = 0;
    alarm(20);
    IS(cuMemAlloc_v2(&p, 4096), NOT_INITIALIZED);
    IS(cuDevicePrimaryCtxRelease_v2(0), NOT_INITIALIZED);
    IS(cuCtxDestroy_v2(primary), NOT_INITIALIZED);
    exit(0);
  }
  int status = 0;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
  IS(pthread_join(thread, NULL), 0);
  IS(served("cuMemAlloc_v2"), 1);
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (strcmp(what, "early") == 0) {
    early();
  } else if (strcmp(what, "peers") == 0) {
    peers();
  } else if (strcmp(what, "batches") == 0) {
    batches();
  } else if (strcmp(what, "threads") == 0) {
    threads();
  } else if (strcmp(what, "unheld") == 0) {
    unheld();
  } else if (strcmp(what, "barrier") == 0) {
    barrier();
  } else if (strcmp(what, "many") == 0) {
    many();
  } else if (strcmp(what, "forked") == 0) {
    forked();
  }
  puts("well");
  return 0;
}
