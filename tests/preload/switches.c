/* What the environment says: the first argument is how many of the two allocations, of 100 and of
 * 100,000 bytes, the pool is to serve. */
#include "cu.h"

int main(int count, char **arguments) {
  CUdeviceptr small = 0, large = 0;
  begin();
  OK(cuMemAlloc_v2(&small, 100));
  OK(cuMemAlloc_v2(&large, 100000));
  IS(served("cuMemAlloc_v2"), count > 1 ? atoi(arguments[1]) : 2);
  OK(cuMemFree_v2(small));
  OK(cuMemFree_v2(large));
  puts("well");
  return 0;
}
