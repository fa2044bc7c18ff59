/* A plugin loaded with RTLD_DEEPBIND sees its own libraries' names first (mimalloc#627): calls of
 * the driver that it looks up are the driver's, or served where that is asked for. Built twice: the
 * plugin with -DPLUGIN. */
#ifdef PLUGIN
#include <dlfcn.h>
#include <stdint.h>

int plug(uint64_t *p) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*allocate)(uint64_t *, unsigned long) =
      (int (*)(uint64_t *, unsigned long))dlsym(driver, "cuMemAlloc_v2");
  return allocate(p, 777);
}
#else
#include "cu.h"

#include <dlfcn.h>

int main(int count, char **arguments) {
  IS(count, 2);
  begin();
  void *plugin = dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
  IS(plugin != NULL, 1);
  int (*plug)(uint64_t *) = (int (*)(uint64_t *))dlsym(plugin, "plug");
  CUdeviceptr p = 0;
  OK(plug(&p));
  /* DEEPBIND sends the plugin's dlsym to the C library's own: then the driver serves, and the free
   * of its memory is passed on. */
  long long by_pool = served("cuMemAlloc_v2");
  OK(cuMemFree_v2(p));
  IS(served("cuMemFree_v2") == by_pool, 1);
  printf("served %lld\nwell\n", by_pool);
  return 0;
}
#endif
