/* Memory allocated in either way and freed in each, while the streams' work runs late: whoever
 * gets it next never finds the old owner's writes. */
#include "cu.h"

#define WORDS (4 * 1024)
#define ROUNDS 40

enum how_freed { SYNC, ASYNC, ASYNC_OTHER, ASYNC_PER_THREAD, WAYS };

static CUstream streams[2];

static void fill(CUdeviceptr p, unsigned value, CUstream stream) {
  OK(cuMemsetD32Async(p, value, WORDS, stream));
}

static void check(CUdeviceptr p, unsigned value) {
  static unsigned words[WORDS];
  OK(cuMemcpyDtoH_v2(words, p, sizeof words));
  for (int i = 0; i < WORDS; i++) {
    IS(words[i], value);
  }
}

static void free_as(enum how_freed how, CUdeviceptr p, CUevent event) {
  switch (how) {
    case SYNC:
      OK(cuMemFree_v2(p));
      return;
    case ASYNC:
      OK(cuMemFreeAsync(p, streams[0]));
      return;
    case ASYNC_OTHER:
      OK(cuEventRecord(event, streams[0]));
      OK(cuStreamWaitEvent(streams[1], event, 0));
      OK(cuMemFreeAsync(p, streams[1]));
      return;
    default:
      OK(cuEventRecord(event, streams[0]));
      OK(cuStreamWaitEvent((CUstream)2, event, 0));
      OK(cuMemFreeAsync_ptsz(p, NULL));
  }
}

/* With an argument: FOREBAY_FREE=stream, by which cuMemFree promises the default stream's order
 * alone: the next owner works there, and streams are ordered with it. */
int main(int count, char **arguments) {
  (void)arguments;
  unsigned flags = count > 1 ? 0 : 1;
  begin();
  CUevent event;
  OK(cuEventCreate(&event, 2));
  for (int i = 0; i < 2; i++) {
    OK(cuStreamCreate(&streams[i], flags));
  }
  for (int by_async = 0; by_async < 2; by_async++) {
    for (int how = 0; how < WAYS; how++) {
      for (unsigned round = 0; round < ROUNDS; round++) {
        CUdeviceptr p = 0, q = 0;
        if (by_async) {
          OK(cuMemAllocAsync(&p, WORDS * 4, streams[0]));
        } else {
          OK(cuMemAlloc_v2(&p, WORDS * 4));
        }
        for (int i = 0; i < 4; i++) {
          fill(p, 1000 + round, streams[0]);
        }
        free_as((enum how_freed)how, p, event);
        /* The next owner, whichever way it asks, writes on another stream at once. */
        CUstream next = flags && round % 2 ? streams[1] : NULL;
        if (round % 4 < 2) {
          OK(cuMemAlloc_v2(&q, WORDS * 4));
        } else {
          OK(cuMemAllocAsync(&q, WORDS * 4, next));
        }
        fill(q, round, next);
        OK(cuStreamSynchronize(next));
        OK(cuStreamSynchronize(streams[0]));
        check(q, round);
        OK(cuMemFree_v2(q));
      }
    }
  }
  IS(served("cuMemAllocAsync"), 2 * WAYS * ROUNDS);
  IS(served("cuMemFreeAsync"), 2 * 2 * ROUNDS);
  IS(served("cuMemFreeAsync_ptsz"), 2 * ROUNDS);
  IS(passed("cuMemFree_v2"), 0);
  for (int i = 0; i < 2; i++) {
    OK(cuStreamDestroy_v2(streams[i]));
  }
  puts("well");
  return 0;
}
