/* A CUDA program that knows nothing of Forebay: three blocks, filled, and given back. */
#include <stddef.h>
#include <stdio.h>

extern int cudaMalloc(void **to, size_t bytes);
extern int cudaMemset(void *at, int value, size_t bytes);
extern int cudaFree(void *at);

int main(void) {
  void *blocks[3];
  for (int i = 0; i < 3; i++) {
    if (cudaMalloc(&blocks[i], (size_t)1 << (20 + i)) != 0) return 1;
    if (cudaMemset(blocks[i], i, (size_t)1 << (20 + i)) != 0) return 2;
  }
  for (int i = 0; i < 3; i++) {
    if (cudaFree(blocks[i]) != 0) return 3;
  }
  puts("a CUDA program");
  return 0;
}
