/* Another library that stands before dlsym, as memory trackers do: it counts look-ups of cu names
 * and passes all on. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

int second_seen;

void *dlsym(void *handle, const char *name) {
  static void *(*real)(void *, const char *);
  if (real == NULL) {
    real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (real == NULL) {
      real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
  }
  second_seen += strncmp(name, "cu", 2) == 0;
  return real(handle, name);
}
