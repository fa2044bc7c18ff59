/* cudaSetDevice makes the device's primary context and makes it current, as CUDA has it from
 * version 12 on: the preload library learns of a device that way. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>

typedef struct CUctx_st *CUcontext;
int cuCtxGetCurrent(CUcontext *context);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
/* Of libforebay_preload.so; absent without it. */
extern int forebay_preload_count(const char *name, uint64_t *served, uint64_t *passed)
    __attribute__((weak));

#define HOLDS(what)                                                                  \
  do {                                                                               \
    if (!(what)) {                                                                   \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);             \
      return 1;                                                                      \
    }                                                                                \
  } while (0)

int main(void) {
  CUcontext current = NULL, primary = NULL;
  int count = 0;
  HOLDS(cudaGetDeviceCount(&count) == cudaSuccess && count > 0);
  HOLDS(cuCtxGetCurrent(&current) == 0 && current == NULL);
  for (int device = count - 1; device >= 0; device--) {
    void *block = NULL;
    uint64_t driver = 0, early = 0;
    HOLDS(cudaSetDevice(device) == cudaSuccess);
    HOLDS(cuCtxGetCurrent(&current) == 0 && current != NULL);
    HOLDS(cuDevicePrimaryCtxRetain(&primary, device) == 0 && primary == current);
    HOLDS(cuDevicePrimaryCtxRelease_v2(device) == 0);
    HOLDS(cudaMalloc(&block, 1 << 20) == cudaSuccess && cudaFree(block) == cudaSuccess);
    if (forebay_preload_count != NULL) {
      HOLDS(forebay_preload_count("cuMemAlloc_v2", &driver, NULL) == 0);
      HOLDS(forebay_preload_count("cudaMalloc", &early, NULL) == 0);
      HOLDS(driver + early == (uint64_t)(count - device));
    }
  }
  puts("set well");
  return 0;
}
