/* Memory freed by cudaFree, or in a stream's order, while work on a non-blocking stream is in flight
 * on it: whoever gets it next, on whichever stream, never finds the old owner's writes. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (64 * 1024)
#define ROUNDS 64

#define HOLDS(what)                                                                  \
  do {                                                                               \
    if (!(what)) {                                                                   \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);             \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

#define OK(call) HOLDS((call) == cudaSuccess)

/* Of libforebay_preload.so; absent without it. */
extern int forebay_preload_count(const char *name, uint64_t *served, uint64_t *passed)
    __attribute__((weak));

static uint64_t served(const char *name) {
  uint64_t count = 0;
  HOLDS(forebay_preload_count(name, &count, NULL) == 0);
  return count;
}

int main(void) {
  static unsigned char bytes[BYTES];
  cudaStream_t busy, other;
  void *p = NULL, *q = NULL;
  OK(cudaMalloc(&p, BYTES));
  OK(cudaFree(p));
  OK(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  for (int round = 0; round < ROUNDS; round++) {
    cudaStream_t next = round % 2 ? NULL : other;
    OK(round % 4 < 2 ? cudaMalloc(&p, BYTES) : cudaMallocAsync(&p, BYTES, busy));
    for (int i = 0; i < 6; i++) {
      OK(cudaMemsetAsync(p, 0xee, BYTES, busy));
    }
    OK(round % 4 < 2 || round % 3 ? cudaFree(p) : cudaFreeAsync(p, busy));
    OK(round % 8 < 4 ? cudaMallocAsync(&q, BYTES, next) : cudaMalloc(&q, BYTES));
    OK(cudaMemsetAsync(q, round, BYTES, next));
    OK(cudaStreamSynchronize(next));
    OK(cudaStreamSynchronize(busy));
    OK(cudaMemcpy(bytes, q, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < BYTES; i++) {
      HOLDS(bytes[i] == round);
    }
    OK(round % 8 >= 4 || round % 2 ? cudaFree(q) : cudaFreeAsync(q, next));
  }
  if (forebay_preload_count != NULL) {
    /* All but the runtime's own first calls were answered before it. */
    HOLDS(served("cudaMalloc") + served("cudaMallocAsync") >= 2 * ROUNDS);
    HOLDS(served("cudaFree") + served("cudaFreeAsync") >= 2 * ROUNDS);
  }
  OK(cudaStreamDestroy(busy));
  OK(cudaStreamDestroy(other));
  puts("well");
  return 0;
}
