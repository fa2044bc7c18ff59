/* A library whose malloc asks for the next one (jemalloc#329, torch_memory_saver): RTLD_NEXT is
 * relative to its caller, also through the hook. HAMi-core#279 answered NULL the second time. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

const char *who(void) { return "program"; }

int main(void) {
  for (int i = 0; i < 2; i++) {
    Dl_info info;
    void *next = dlsym(RTLD_NEXT, "malloc");
    if (next == NULL || dladdr(next, &info) == 0 || strstr(info.dli_fname, "libc.so") == NULL) {
      fprintf(stderr, "malloc after the program is not the C library's\n");
      return 1;
    }
    /* The hook's own library must not be what comes next after the program for its names. */
    if (dlsym(RTLD_NEXT, "who") != NULL) {
      fprintf(stderr, "who was found after the program\n");
      return 1;
    }
  }
  if (dlsym(RTLD_DEFAULT, "cudnnCreate") != NULL) {
    return 1;
  }
  puts("well");
  return 0;
}
