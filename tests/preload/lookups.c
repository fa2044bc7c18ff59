/* Every way to a function leads to the same place, and none of them to the wrong form.
 * Only look-ups: nothing here is linked with the driver. */
#include "cu.h"

#include <dlfcn.h>

typedef CUresult (*get1)(const char *, void **, int, uint64_t);
typedef CUresult (*get2)(const char *, void **, int, uint64_t, int *);

static const char *object_of(void *address) {
  Dl_info info;
  IS(dladdr(address, &info) != 0, 1);
  const char *slash = strrchr(info.dli_fname, '/');
  return slash ? slash + 1 : info.dli_fname;
}

static void is_ours(void *address, int ours) {
  const char *name = ours ? "libforebay_preload.so" : "libcuda.so.1";
  if (address == NULL || strcmp(object_of(address), name) != 0) {
    fprintf(stderr, "%p lies in %s, not %s\n", address, address ? object_of(address) : "-", name);
    exit(1);
  }
}

int main(void) {
  int preloaded = forebay_preload_count != NULL;
  /* Before the driver is loaded its names are not there (weak tests of programs for CUDA). */
  IS(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL, 1);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  IS(driver != NULL, 1);
  void *direct = dlsym(driver, "cuMemAlloc_v2");
  is_ours(direct, preloaded);
  /* Exact names only: other libraries' begin with cu as well. */
  IS(dlsym(driver, "cudnnCreate") == NULL, 1);
  is_ours(dlsym(driver, "cuInit"), 0);
  is_ours(dlsym(driver, "cuMemAllocHost_v2"), preloaded);

  /* HAMi-core read neither version nor flags; vcuda crashed on the look-up of the look-up. */
  get2 second = (get2)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2");
  is_ours((void *)(uintptr_t)second, preloaded);
  void *plain = NULL, *per_thread = NULL, *self1 = NULL, *self2 = NULL, *found = NULL;
  int status = -1;
  OK(second("cuMemAlloc", &found, 3020, 0, &status));
  IS(found == direct, 1);
  OK(second("cuMemAlloc", &found, 12080, 0, &status));
  is_ours(found, preloaded);
  OK(second("cuMemAllocAsync", &plain, 11020, 0, &status));
  OK(second("cuMemAllocAsync", &per_thread, 11020, 2, &status));
  is_ours(plain, preloaded);
  is_ours(per_thread, preloaded);
  IS(plain != per_thread, 1);
  IS(plain == dlsym(driver, "cuMemAllocAsync"), 1);
  IS(per_thread == dlsym(driver, "cuMemAllocAsync_ptsz"), 1);
  OK(second("cuGetProcAddress", &self1, 11030, 0, &status));
  OK(second("cuGetProcAddress", &self2, 12000, 0, &status));
  IS(self1 != self2, 1);
  IS(self1 == dlsym(driver, "cuGetProcAddress"), 1);
  IS(self2 == (void *)(uintptr_t)second, 1);
  found = NULL;
  OK(((get1)(uintptr_t)self1)("cuMemFree", &found, 12000, 0));
  is_ours(found, preloaded);
  /* A name that the driver lacks stays so. */
  IS(second("cuNoSuchThing", &found, 12000, 0, &status) == SUCCESS && found != NULL, 0);
  puts("well");
  return 0;
}
