/* The thin path: allocations of a program that links the driver are the pool's. */
#include "cu.h"

int main(void) {
  begin();
  CUdeviceptr p = 0, base = 0;
  size_t bytes = 0;
  OK(cuMemAlloc_v2(&p, 1000));
  IS(p % 256, 0);
  IS(served("cuMemAlloc_v2"), 1);
  OK(cuMemsetD32_v2(p, 7, 250));
  unsigned word = 0;
  OK(cuMemcpyDtoH_v2(&word, p + 996, 4));
  IS(word, 7);
  OK(cuMemGetAddressRange_v2(&base, &bytes, p + 999));
  IS(base == p, 1);
  IS(bytes, 1000);
  OK(cuMemFree_v2(p));
  IS(cuMemFree_v2(p), INVALID_VALUE);
  IS(served("cuMemFree_v2"), 1);
  IS(cuMemAlloc_v2(&p, 0), INVALID_VALUE);
  IS(cuMemAlloc_v2(NULL, 4), INVALID_VALUE);
  puts("well");
  return 0;
}
