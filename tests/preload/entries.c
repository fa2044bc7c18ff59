/* Each entry's duty with pool memory behind it. */
#include "cu.h"

static void queries(void) {
  CUdeviceptr p = 0, q = 0, base = 0;
  size_t bytes = 0, free_bytes = 0, total = 0;
  OK(cuMemAlloc_v2(&p, 3 << 20));
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  IS(free_bytes < total, 1);
  /* OptiX asks for one of the two only. */
  OK(cuMemGetInfo_v2(NULL, &total));
  OK(cuMemGetInfo_v2(&free_bytes, NULL));
  OK(cuMemGetAddressRange_v2(&base, NULL, p + (2 << 20) + 5));
  IS(base, p);
  OK(cuMemGetAddressRange_v2(NULL, &bytes, p));
  IS(bytes, 3 << 20);
  /* Two ways to ask must agree. */
  CUcontext context = NULL, current = NULL;
  int attributes[4] = {11, 12, 1, 10};
  CUdeviceptr start = 0;
  size_t size = 0;
  unsigned char legacy = 9;
  void *data[4] = {&start, &size, &context, &legacy};
  OK(cuPointerGetAttributes(4, attributes, data, p + 77));
  OK(cuCtxGetCurrent(&current));
  IS(start, p);
  IS(size, 3 << 20);
  IS(legacy, 1);
  IS(context == current, 1);
  start = 0;
  OK(cuPointerGetAttribute(&start, 11, p + 77));
  IS(start, p);
  OK(cuPointerGetAttribute(&size, 12, p + 77));
  IS(size, 3 << 20);
  unsigned yes = 1;
  CUresult set = cuPointerSetAttribute(&yes, 6, p);
  IS(set == SUCCESS || set == NOT_SUPPORTED, 1);
  IS(cuMemFree_v2(p + 256), INVALID_VALUE);
  OK(cuMemFree_v2(p));
  IS(cuMemGetAddressRange_v2(&base, &bytes, p), NOT_FOUND);
  /* Requests of all residues are told exactly. */
  for (size_t n = 1; n < 200000; n = n * 3 / 2 + 1) {
    OK(cuMemAlloc_v2(&q, n));
    OK(cuMemGetAddressRange_v2(&base, &bytes, q + n - 1));
    IS(base, q);
    IS(bytes, n);
    OK(cuMemFree_v2(q));
  }
}

static void kinds(void) {
  CUdeviceptr p = 0;
  void *host = NULL;
  size_t pitch = 0, bytes = 0;
  CUmemoryPool pool = NULL;
  OK(cuMemAllocPitch_v2(&p, &pitch, 100, 7, 4));
  IS(pitch >= 100 && pitch % 256 == 0, 1);
  OK(cuMemGetAddressRange_v2(NULL, &bytes, p));
  IS(bytes, pitch * 7);
  OK(cuMemFree_v2(p));
  IS(served("cuMemAllocPitch_v2"), 1);
  IS(cuMemAllocPitch_v2(&p, &pitch, 100, 7, 5), INVALID_VALUE);
  IS(cuMemAllocPitch_v2(&p, &pitch, 0, 7, 4), INVALID_VALUE);
  OK(cuMemAllocManaged(&p, 4096, 1));
  IS(passed("cuMemAllocManaged"), 1);
  long long foreign = passed("cuMemFree_v2");
  OK(cuMemFree_v2(p));
  IS(passed("cuMemFree_v2"), foreign + 1);
  OK(cuMemAllocHost_v2(&host, 4096));
  OK(cuMemFreeHost(host));
  /* The default memory pool by name is what cuMemAllocAsync takes; another is the driver's. */
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
  IS(served("cuMemAllocFromPoolAsync"), 1);
  OK(cuMemFreeAsync(p, NULL));
  IS(passed("cuMemFreeAsync"), 0);
  CUmemoryPool own = own_pool();
  OK(cuMemAllocFromPoolAsync(&p, 4096, own, NULL));
  IS(passed("cuMemAllocFromPoolAsync"), 1);
  OK(cuMemFreeAsync(p, NULL));
  IS(passed("cuMemFreeAsync"), 1);
  /* While another is the device's, the default one is the driver's too. */
  OK(cuDeviceSetMemPool(0, own));
  OK(cuMemAllocFromPoolAsync(&p, 4096, pool, NULL));
  IS(passed("cuMemAllocFromPoolAsync"), 2);
  OK(cuMemFreeAsync(p, NULL));
  OK(cuDeviceSetMemPool(0, pool));
  OK(cuMemPoolDestroy(own));
}

static void memory_ends(void) {
  CUdeviceptr all[64] = {0};
  int n = 0;
  CUresult result = SUCCESS;
  while (n < 64 && (result = cuMemAlloc_v2(&all[n], 16 << 20)) == SUCCESS) {
    n++;
  }
  IS(result, OUT_OF_MEMORY);
  IS(n >= 14, 1);
  /* All is the pool's; another kind of memory gets what it gives back. */
  for (int i = 0; i < n; i++) {
    OK(cuMemFree_v2(all[i]));
  }
  OK(cuCtxSynchronize());
  CUdeviceptr other = 0;
  CUmemoryPool pool = own_pool();
  OK(cuMemAllocFromPoolAsync(&other, 128 << 20, pool, NULL));
  OK(cuMemFreeAsync(other, NULL));
  OK(cuMemPoolDestroy(pool));
}

int main(void) {
  CUdeviceptr p = 0;
  OK(cuInit(0));
  IS(cuMemAlloc_v2(&p, 100), INVALID_CONTEXT);
  begin();
  queries();
  kinds();
  memory_ends();
  puts("well");
  return 0;
}
