/* Starts a CUDA runtime and says what it answers: the library that the first argument names, or,
 * built with -DLINKED, the one that this program is linked with. Nothing more is asked of it. */
#include <dlfcn.h>
#include <stdio.h>

int cudaFree(void *memory);

int main(int count, char **words) {
#ifdef LINKED
  (void)count;
  (void)words;
  int code = cudaFree(NULL);
#else
  void *runtime = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (runtime == NULL) {
    fprintf(stderr, "%s\n", count > 1 ? dlerror() : "runtime_open LIBRARY");
    return 2;
  }
  int (*start)(void *) = (int (*)(void *))dlsym(runtime, "cudaFree");
  int code = start(NULL);
#endif
  printf("cudaFree(0) is %d\n", code);
  return 0;
}
