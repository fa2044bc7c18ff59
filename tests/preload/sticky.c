/* A free in a context that has failed, with FOREBAY_FREE=sync: as without the library, the error
 * that sticks. For a driver whose first cuCtxSynchronize loses the context. */
#include "cu.h"

int main(void) {
  CUdeviceptr p[3] = {0};
  begin();
  for (int i = 0; i < 3; i++) {
    OK(cuMemAlloc_v2(&p[i], 1000 << (5 * i)));
  }
  IS(cuCtxSynchronize(), 700);
  for (int i = 0; i < 3; i++) {
    IS(cuMemFree_v2(p[i]), 700);
  }
  puts("well");
  return 0;
}
