/* Two devices: each has its pool, whichever is current when memory is freed; peers reach it. */
#include "cu.h"

int main(void) {
  CUcontext contexts[2];
  CUdeviceptr p[2] = {0, 0};
  CUstream stream;
  OK(cuInit(0));
  for (int i = 0; i < 2; i++) {
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
  }
  /* Device 1 first: its pool is not the default one. */
  for (int i = 1; i >= 0; i--) {
    OK(cuCtxSetCurrent(contexts[i]));
    OK(cuMemAlloc_v2(&p[i], 1 << 20));
    int device = -1;
    OK(cuPointerGetAttribute(&device, 9, p[i]));
    IS(device, i);
  }
  IS(served("cuMemAlloc_v2"), 2);
  /* With device 0 current, device 1's memory is freed and asked about. */
  CUdeviceptr base = 0;
  OK(cuMemGetAddressRange_v2(&base, NULL, p[1] + 5));
  IS(base, p[1]);
  OK(cuMemFree_v2(p[1]));
  IS(cuMemFree_v2(p[1]), INVALID_VALUE);
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuStreamCreate(&stream, 1));
  OK(cuMemAllocAsync(&p[1], 1 << 20, stream));
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemFreeAsync(p[1], stream));
  IS(served("cuMemFreeAsync"), 1);
  /* Device 0 may read device 1's memory from now on, the pool's too. */
  OK(cuCtxEnablePeerAccess(contexts[1], 0));
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuMemAlloc_v2(&p[1], 32 << 20));
  OK(cuMemsetD32_v2(p[1], 9, 1024));
  OK(cuCtxSynchronize());
  OK(cuCtxSetCurrent(contexts[0]));
  CUstream own;
  OK(cuStreamCreate(&own, 1));
  OK(cuMemcpyDtoDAsync_v2(p[0], p[1], 4096, own));
  OK(cuStreamSynchronize(own));
  unsigned word = 0;
  OK(cuMemcpyDtoH_v2(&word, p[0] + 4092, 4));
  IS(word, 9);
  /* A copy may go through the host; a fill needs access. */
  OK(cuMemsetD32Async(p[1], 11, 1024, own));
  OK(cuStreamSynchronize(own));
  OK(cuMemcpyDtoH_v2(&word, p[1] + 4092, 4));
  IS(word, 11);
  OK(cuMemFree_v2(p[0]));
  OK(cuMemFree_v2(p[1]));
  puts("well");
  return 0;
}
