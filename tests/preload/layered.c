/* A program under two layers: the first argument says whether the other one (layer.c) comes first
 * and sees all calls, or last and sees none, neither what the pool serves nor what goes on to the
 * driver. The second argument is the least size that is the pool's. */
#include "cu.h"

#include <dlfcn.h>

extern int layer_allocations __attribute__((weak)), layer_frees __attribute__((weak)),
    layer_pages __attribute__((weak));

int main(int count, char **arguments) {
  IS(count, 3);
  int first = strcmp(arguments[1], "first") == 0;
  int all = strcmp(arguments[2], "0") == 0;
  CUdeviceptr p = 0;
  CUstream stream;
  unsigned word = 0;
  int kind = 0;
  begin();
  OK(cuStreamCreate(&stream, 1));
  for (unsigned i = 0; i < 20; i++) {
    OK(i % 2 ? cuMemAlloc_v2(&p, 3 << 20) : cuMemAllocAsync(&p, 5000, stream));
    OK(cuPointerGetAttribute(&kind, 2, p));
    IS(kind, 2);
    OK(cuMemsetD32Async(p, i, 1000, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&word, p + 3996, 4));
    IS(word, i);
    OK(i % 4 < 2 ? cuMemFree_v2(p) : cuMemFreeAsync(p, stream));
  }
  /* What is looked up is the first layer's as well. */
  Dl_info info;
  void *found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  IS(dladdr(found, &info) != 0, 1);
  IS(strstr(info.dli_fname, first ? "liblayer.so" : "libforebay_preload.so") != NULL, 1);
  IS(served("cuMemAlloc_v2"), 10);
  IS(served("cuMemAllocAsync"), all ? 10 : 0);
  IS(passed("cuMemAllocAsync"), all ? 0 : 10);
  IS(layer_allocations, first ? 20 : 0);
  IS(layer_frees, first ? 20 : 0);
  /* The pool asks the driver itself for its pages. */
  IS(layer_pages, 0);
  OK(cuStreamDestroy_v2(stream));
  puts("well");
  return 0;
}
