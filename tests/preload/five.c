/* Five allocations by the runtime's name, then "well" by a write that no buffer keeps. */
#include <cuda_runtime_api.h>
#include <unistd.h>

int main(void) {
  void *p[5];
  for (int i = 0; i < 5; i++) {
    if (cudaMalloc(&p[i], 5000) != cudaSuccess) {
      return 1;
    }
  }
  for (int i = 0; i < 5; i++) {
    if (cudaFree(p[i]) != cudaSuccess) {
      return 1;
    }
  }
  return write(1, "well\n", 5) == 5 ? 0 : 1;
}
