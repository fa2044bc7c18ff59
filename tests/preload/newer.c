/* A driver that has a newer form of a function than this library knows: what asks for it gets the
 * driver's (HAMi-core#233). Built as that driver with -DDRIVER; nothing in it is called. */
#include <stdint.h>
#include <string.h>

#ifdef DRIVER
int cuMemAlloc_v2(void) { return 2; }
int cuMemAlloc_v9(void) { return 9; }

int cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status) {
  (void)flags;
  int known = strcmp(name, "cuMemAlloc") == 0;
  *to = !known ? NULL : version < 14000 ? (void *)cuMemAlloc_v2 : (void *)cuMemAlloc_v9;
  *status = !known;
  return 0;
}
#else
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*get2)(const char *, void **, int, uint64_t, int *);

static void lies_in(void *address, const char *object) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || strstr(info.dli_fname, object) == NULL) {
    fprintf(stderr, "%p does not lie in %s\n", address, object);
    exit(1);
  }
}

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
  int status = 9;
  get2 get = driver == NULL ? NULL : (get2)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2");
  if (get == NULL) {
    return 1;
  }
  for (int version = 3020; version < 16000; version += 20) {
    if (get("cuMemAlloc", &found, version, 0, &status) != 0) {
      return 2;
    }
    lies_in(found, version < 14000 ? "libforebay_preload.so" : "libcuda.so.1");
  }
  lies_in(dlsym(driver, "cuMemAlloc_v9"), "libcuda.so.1");
  puts("well");
  return 0;
}
#endif
