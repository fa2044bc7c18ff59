/* A program that would use CUDA where it is, on a machine without: it finds nothing. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *name = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  puts(driver == NULL && name == NULL ? "well" : "found");
  return 0;
}
