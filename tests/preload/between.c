/* A library of LD_PRELOAD with its own cudaMalloc (torch_memory_saver#64): it sees each call of
 * the program's, whichever of the two is first, and the next one's answers. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

static int calls;

static void tell(void) {
  char line[] = "between 0\n";
  line[8] = (char)('0' + calls);
  if (write(1, line, sizeof line - 1) < 0) {
    _exit(9);
  }
}

int cudaMalloc(void **p, size_t bytes) {
  int (*next)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc");
  if (calls++ == 0) {
    atexit(tell);
  }
  return next(p, bytes);
}
