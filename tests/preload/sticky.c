/* A free in a context that has failed, with FOREBAY_FREE=sync: as without the library, the error
 * that sticks; before the pool has met it, and after. For a driver whose first cuCtxSynchronize
 * loses the context. */
#include "cu.h"

#define BLOCKS 6

int main(void) {
  CUdeviceptr p[BLOCKS] = {0}, more = 0;
  begin();
  for (int i = 0; i < BLOCKS; i++) {
    OK(cuMemAlloc_v2(&p[i], 1000 << (3 * i)));
  }
  IS(cuCtxSynchronize(), 700);
  for (int i = 0; i < BLOCKS; i++) {
    if (i == BLOCKS / 2) {
      CUresult result = SUCCESS;
      for (int n = 0; n < 64 && result == SUCCESS; n++) {
        result = cuMemAlloc_v2(&more, 20 << 20);
      }
      IS(result, 700);
    }
    IS(cuMemFree_v2(p[i]), 700);
  }
  puts("well");
  return 0;
}
