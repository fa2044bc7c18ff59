/* Contexts come and go: old addresses are freed into nothing that came after. */
#include "cu.h"

#define BYTES (1 << 20)

static CUdeviceptr take(int is_served) {
  CUdeviceptr p = 0;
  long long before = served("cuMemAlloc_v2");
  OK(cuMemAlloc_v2(&p, BYTES));
  IS(served("cuMemAlloc_v2") - before, is_served);
  OK(cuMemsetD32_v2(p, 5, BYTES / 4));
  return p;
}

static void is_stale(CUdeviceptr old) { IS(cuMemFree_v2(old), INVALID_VALUE); }

int main(void) {
  CUcontext primary = begin(), other = NULL, popped = NULL;
  CUdeviceptr old = take(1);

  /* A second context on the device is the driver's. */
  OK(cuCtxCreate_v2(&other, 0, 0));
  CUdeviceptr theirs = take(0);
  OK(cuMemFree_v2(theirs));
  OK(cuCtxPopCurrent_v2(&popped));
  OK(cuCtxSetCurrent(primary));
  CUdeviceptr again = take(1);
  OK(cuMemFree_v2(again));
  OK(cuCtxDestroy_v2(other));
  again = take(1);
  OK(cuMemFree_v2(again));

  OK(cuDevicePrimaryCtxReset_v2(0));
  is_stale(old);
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  CUdeviceptr fresh = take(1);
  is_stale(old == fresh ? fresh + 256 : old);
  OK(cuMemFree_v2(fresh));
  fresh = take(1);

  /* The program's last reference ends the context, the pool's own does not keep it. */
  for (int i = 0; i < 8; i++) {
    if (cuDevicePrimaryCtxRelease_v2(0) != SUCCESS) {
      break;
    }
  }
  is_stale(fresh);
  CUdeviceptr nothing = 0;
  IS(cuMemAlloc_v2(&nothing, BYTES) != SUCCESS, 1);

  /* The pool follows a context of the program's own. */
  OK(cuCtxCreate_v2(&other, 0, 0));
  CUdeviceptr last = take(1);
  OK(cuCtxDestroy_v2(other));
  is_stale(last);
  /* It ends with its last use, as programs of before CUDA 4.0 count them. */
  CUcontext again_it = NULL;
  OK(cuCtxCreate_v2(&other, 0, 0));
  last = take(1);
  OK(cuCtxAttach(&again_it, 0));
  IS(again_it == other, 1);
  OK(cuCtxDetach(other));
  OK(cuMemsetD32_v2(last, 6, 16));
  CUdeviceptr beside = take(1);
  OK(cuMemFree_v2(beside));
  IS(cuCtxDetach(primary), INVALID_CONTEXT);
  beside = take(1);
  OK(cuCtxDetach(other));
  is_stale(last);
  is_stale(beside);
  IS(cuMemAlloc_v2(&nothing, BYTES) != SUCCESS, 1);
  primary = begin();
  fresh = take(1);
  /* A primary context has no such uses: nothing ends. */
  IS(cuCtxDetach(primary), INVALID_CONTEXT);
  OK(cuMemsetD32_v2(fresh, 6, 16));
  OK(cuMemFree_v2(fresh));
  puts("well");
  return 0;
}
