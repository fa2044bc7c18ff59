/* A plugin's own runtime, as a framework's extension module brings it: opened without RTLD_GLOBAL,
 * under a program that has none, or, built with -DLINKED, is linked with another. Built as the host,
 * and with -DPLUGIN against each runtime. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if defined(PLUGIN) || defined(LINKED)
#include <cuda_runtime_api.h>
#endif

#ifdef PLUGIN

/* Allocates and frees; whether that worked. */
int plug_pair(void) {
  void *p = NULL, *q = NULL;
  return cudaMalloc(&p, 4000) == cudaSuccess && cudaMalloc(&q, 4000) == cudaSuccess &&
         cudaMemset(q, 1, 4000) == cudaSuccess && cudaFree(p) == cudaSuccess &&
         cudaFree(q) == cudaSuccess;
}

int plug_version(void) {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

/* An allocation that fails: its error is this runtime's. */
int plug_fail(void) {
  void *p = NULL;
  return (int)cudaMalloc(&p, (size_t)1 << 40);
}

int plug_last_error(void) { return (int)cudaGetLastError(); }
#else

static int call(void *plugin, const char *name) {
  int (*run)(void) = NULL;
  void *found = dlsym(plugin, name);
  memcpy(&run, &found, sizeof run);
  return run == NULL ? -1 : run();
}

#define IS(what, expected)                                                                   \
  do {                                                                                       \
    int is_ = (what);                                                                        \
    if (is_ != (expected)) {                                                                 \
      fprintf(stderr, "line %d: %s is %d\n", __LINE__, #what, is_);                          \
      return 1;                                                                              \
    }                                                                                        \
  } while (0)

#ifdef LINKED
/* The program's runtime is in the global scope; a call of the plugin's is its own runtime's. */
int main(int count, char **arguments) {
  void *plugin = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  void *p = NULL;
  IS(plugin != NULL, 1);
  for (int round = 0; round < 2; round++) {
    IS(call(plugin, "plug_pair"), 1);
    IS(cudaMalloc(&p, 4000), 0);
    IS(cudaFree(p), 0);
    IS(call(plugin, "plug_fail"), 2);
    IS(cudaGetLastError(), 0);
    IS(call(plugin, "plug_last_error"), 2);
    IS(cudaMalloc(&p, (size_t)1 << 40), 2);
    IS(call(plugin, "plug_last_error"), 0);
    IS(cudaGetLastError(), 2);
  }
  IS(call(plugin, "plug_version") / 1000, 13);
  puts("well");
  return 0;
}
#else
/* Each argument is a plugin. */
int main(int count, char **arguments) {
  void *plugins[2] = {NULL, NULL};
  /* Nobody has a runtime yet: its names are not there, though a preloaded library has them. */
  IS(dlsym(RTLD_DEFAULT, "cudaMalloc") == NULL, 1);
  for (int i = 1; i < count && i < 3; i++) {
    plugins[i - 1] = dlopen(arguments[i], RTLD_NOW | RTLD_LOCAL);
    if (plugins[i - 1] == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    IS(call(plugins[i - 1], "plug_pair"), 1);
  }
  IS(dlsym(RTLD_DEFAULT, "cudaMalloc") == NULL, 1);
  if (count > 2) {
    IS(call(plugins[0], "plug_version") / 1000, 12);
    IS(call(plugins[1], "plug_version") / 1000, 13);
    for (int i = 0; i < 2; i++) {
      IS(call(plugins[i], "plug_fail"), 2);
      IS(call(plugins[1 - i], "plug_last_error"), 0);
      IS(call(plugins[i], "plug_last_error"), 2);
    }
  }
  puts("well");
  return 0;
}
#endif
#endif
