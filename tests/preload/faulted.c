/* Calls of the driver fail under the pool: an allocation answers an error of CUDA's or succeeds,
 * and afterwards nothing is missing (HAMi-core#306: an allocation leaked when a call after it
 * failed). */
#include "cu.h"

#define BLOCKS 24

int main(void) {
  CUdeviceptr p[BLOCKS] = {0};
  CUstream stream;
  size_t before = 0, after = 0, total = 0;
  int failed = 0;
  CUcontext context = begin();
  OK(cuStreamCreate(&stream, 1));
  OK(cuMemGetInfo_v2(&before, &total));
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < BLOCKS; i++) {
      size_t bytes = (size_t)1000 << (i % 12), pitch = 0;
      CUresult result = i % 3 == 0   ? cuMemAlloc_v2(&p[i], bytes)
                        : i % 3 == 1 ? cuMemAllocAsync(&p[i], bytes, stream)
                                     : cuMemAllocPitch_v2(&p[i], &pitch, 1000, bytes / 1000, 4);
      failed += result != SUCCESS;
      if (result != SUCCESS) {
        IS(result == OUT_OF_MEMORY || result == 999, 1);
        p[i] = 0;
        continue;
      }
      OK(cuMemsetD32Async(p[i], (unsigned)i, bytes / 8, stream));
    }
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < BLOCKS; i++) {
      unsigned word = 0;
      if (p[i] != 0) {
        OK(cuMemcpyDtoH_v2(&word, p[i], 4));
        IS(word, i);
        OK(i % 3 != 1 ? cuMemFree_v2(p[i]) : cuMemFreeAsync(p[i], stream));
      }
    }
    OK(cuStreamSynchronize(stream));
  }
  /* The whole device can be had, in one piece, and all of it is there once the context ended. */
  CUdeviceptr whole = 0;
  OK(cuMemAlloc_v2(&whole, 200 << 20));
  OK(cuMemsetD32_v2(whole + (199 << 20), 3, 1 << 18));
  OK(cuMemFree_v2(whole));
  OK(cuStreamDestroy_v2(stream));
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuMemGetInfo_v2(&after, &total));
  IS(after, before);
  printf("%d failed\nwell\n", failed);
  return 0;
}
