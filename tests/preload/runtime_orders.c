/* Memory freed by cudaFree, or in a stream's order, while work on a non-blocking stream is in flight
 * on it: whoever gets it next, on whichever stream, never finds the old owner's writes. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (64 * 1024)
/* Most of the device that the test asks for: the next owner has to be given the same memory. */
#define LARGE (20 << 20)
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
    size_t size = round % 8 < 4 ? LARGE : BYTES;
    int ordered = round % 4 == 3;
    OK(ordered ? cudaMallocAsync(&p, size, busy) : cudaMalloc(&p, size));
    for (int i = 0; i < 6; i++) {
      OK(cudaMemsetAsync(p, 0xee, BYTES, busy));
    }
    OK(ordered ? cudaFreeAsync(p, busy) : cudaFree(p));
    OK(round % 16 < 8 ? cudaMalloc(&q, size) : cudaMallocAsync(&q, size, next));
    OK(cudaMemsetAsync(q, round, BYTES, next));
    OK(cudaStreamSynchronize(next));
    OK(cudaStreamSynchronize(busy));
    OK(cudaMemcpy(bytes, q, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < BYTES; i++) {
      HOLDS(bytes[i] == round);
    }
    OK(round % 16 < 8 || round % 2 ? cudaFree(q) : cudaFreeAsync(q, next));
  }
  if (forebay_preload_count != NULL) {
    /* Most calls were answered before the runtime. */
    HOLDS(served("cudaMalloc") + served("cudaMallocAsync") >= ROUNDS);
    HOLDS(served("cudaFree") + served("cudaFreeAsync") >= ROUNDS);
  }
  OK(cudaStreamDestroy(busy));
  OK(cudaStreamDestroy(other));
  puts("well");
  return 0;
}
