/* dlopen: the library loads at run time (path: the first argument), works, and keeps its
 * memory over dlclose and a second dlopen. Not linked with the library. */
#define _GNU_SOURCE
#include <forebay.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define CHECK(cond)                                                          \
  do {                                                                       \
    if (!(cond)) {                                                           \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond);   \
      return 1;                                                              \
    }                                                                        \
  } while (0)

typedef forebay_status (*malloc_fn)(void **, size_t);
typedef forebay_status (*free_fn)(void *);
typedef forebay_status (*copy_fn)(forebay_pool_t, void *, const void *, size_t, forebay_stream_t);
typedef forebay_status (*synchronize_fn)(forebay_pool_t, forebay_stream_t);

static malloc_fn find_malloc(void *library) {
  malloc_fn found = NULL;
  void *symbol = dlsym(library, "forebay_malloc");
  memcpy(&found, &symbol, sizeof found); /* ISO C has no cast from object to function */
  return found;
}

static free_fn find_free(void *library) {
  free_fn found = NULL;
  void *symbol = dlsym(library, "forebay_free");
  memcpy(&found, &symbol, sizeof found);
  return found;
}

/* A copy that is waited for: the CPU may not be able to touch the blocks. */
static bool copied(void *library, void *to, const void *from, size_t bytes) {
  copy_fn copy = NULL;
  synchronize_fn synchronize = NULL;
  void *symbol = dlsym(library, "forebay_stream_copy");
  memcpy(&copy, &symbol, sizeof copy);
  symbol = dlsym(library, "forebay_stream_synchronize");
  memcpy(&synchronize, &symbol, sizeof synchronize);
  return copy(NULL, to, from, bytes, NULL) == FOREBAY_OK &&
         synchronize(NULL, NULL) == FOREBAY_OK;
}

/* Uses the library, then exits after it was closed: its thread exit code must still be there. */
static void *use(void *library) {
  void *block = NULL;
  if (find_malloc(library)(&block, 4096) != FOREBAY_OK) return NULL;
  if (find_free(library)(block) != FOREBAY_OK) return NULL;
  return dlclose(library) == 0 ? library : NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  void *first = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (first == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(first != NULL);
  CHECK(dlsym(first, "cudaMalloc") == NULL);
  void *block = NULL;
  CHECK(find_malloc(first)(&block, 1 << 20) == FOREBAY_OK);
  static unsigned char contents[1 << 20];
  memset(contents, 0x42, sizeof contents);
  CHECK(copied(first, block, contents, sizeof contents));

  void *for_thread = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  pthread_t thread;
  void *result = NULL;
  CHECK(dlclose(first) == 0);
  CHECK(pthread_create(&thread, NULL, use, for_thread) == 0);
  CHECK(pthread_join(thread, &result) == 0 && result != NULL);

  void *second = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(second != NULL);
  memset(contents, 0, sizeof contents);
  CHECK(copied(second, contents, block, sizeof contents));
  for (size_t i = 0; i < sizeof contents; i++) CHECK(contents[i] == 0x42);
  CHECK(find_free(second)(block) == FOREBAY_OK);
  CHECK(find_free(second)(block) == FOREBAY_ERROR_DOUBLE_FREE);
  CHECK(find_malloc(second)(&block, 100) == FOREBAY_OK);
  CHECK(find_free(second)(block) == FOREBAY_OK);
  CHECK(dlclose(second) == 0);
  puts("ok: loaded, closed and loaded again, with its memory kept");
  return 0;
}
