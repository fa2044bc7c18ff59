/* A driver that lacks the functions which the arguments name. Prints what each way to look them up
 * answers, which must be what it answers without the preload library; what it has is served. */
#include "cu.h"

#include <dlfcn.h>

static void look_up(void *driver, const char *name) {
  void *by_version = NULL;
  int status = -1;
  CUresult answer = cuGetProcAddress_v2(name, &by_version, 12000, 0, &status);
  printf("%s: handle %d, global %d, asked %d %d %d\n", name, dlsym(driver, name) != NULL,
         dlsym(RTLD_DEFAULT, name) != NULL, answer, status, by_version != NULL);
}

int main(int count, char **arguments) {
  CUdeviceptr p = 0;
  unsigned word = 0;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  IS(driver != NULL, 1);
  begin();
  for (int i = 1; i < count; i++) {
    look_up(driver, arguments[i]);
  }
  look_up(driver, "cuMemAllocManaged");
  for (unsigned i = 0; i < 8; i++) {
    OK(cuMemAlloc_v2(&p, 3 << 20));
    OK(cuMemsetD32_v2(p, i, 1000));
    OK(cuMemcpyDtoH_v2(&word, p + 3996, 4));
    IS(word, i);
    OK(cuMemFree_v2(p));
  }
  if (forebay_preload_count != NULL) {
    IS(served("cuMemAlloc_v2"), 8);
    IS(served("cuMemFree_v2"), 8);
  }
  puts("well");
  return 0;
}
