/* Look-ups that interposers have got wrong. The first argument says which; then come a library of
 * other names (names_library.c), and the same under a name of the driver's. */
#include "cu.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

static const char *object_of(void *address) {
  Dl_info info;
  IS(dladdr(address, &info) != 0, 1);
  const char *slash = strrchr(info.dli_fname, '/');
  return slash ? slash + 1 : info.dli_fname;
}

static void lies_in(void *address, const char *object) {
  if (address == NULL || strcmp(object_of(address), object) != 0) {
    fprintf(stderr, "%p lies in %s, not %s\n", address, address ? object_of(address) : "-",
            object);
    exit(1);
  }
}

/* HAMi-core#215, vgpu-manager#89: other libraries' names begin with cu as well; a handle of NULL
 * is the global scope, and no look-up comes back into the hook. */
static void others(const char *library) {
  const char *const names[] = {"cudnnCreate", "cublasCreate_v2", "curl_easy_init", "cuteName",
                               "cuMemAllocation", "cudaGraphicsOther", "cu", "c"};
  IS(dlsym(NULL, "cudnnCreate") == NULL, 1);
  IS(dlerror() != NULL, 1);
  void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  IS(handle != NULL, 1);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
      void *found = dlsym(handle, names[i]);
      IS(dlerror() == NULL, 1);
      lies_in(found, "libnames.so");
      IS(dlsym(NULL, names[i]) == found, 1);
      IS(((int (*)(void))(uintptr_t)found)(), i + 1);
    }
  }
  IS(dlsym(handle, "cudnnDestroy") == NULL, 1);
  IS(strstr(dlerror(), "cudnnDestroy") != NULL, 1);
  /* A driver's name where no driver is: not found, and an error says so. */
  IS(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL, 1);
  const char *why = dlerror();
  IS(why != NULL && strstr(why, "cuMemAlloc_v2") != NULL, 1);
}

/* HAMi-core#326: the driver's own look-ups find the driver's functions. */
static void from_driver(const char *library) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void *handle = dlopen(library, RTLD_NOW);
  IS(driver != NULL && handle != NULL, 1);
  void *(*look)(void *, const char *) = (void *(*)(void *, const char *))dlsym(handle, "look");
  const char *const names[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuGetProcAddress_v2",
                               "cuMemAllocAsync", "cuCtxSetCurrent", "cuMemCreate"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    lies_in(look(driver, names[i]), "libcuda.so.1");
    lies_in(look(RTLD_DEFAULT, names[i]), "libcuda.so.1");
    lies_in(dlsym(driver, names[i]),
            forebay_preload_count == NULL ? "libcuda.so.1" : "libforebay_preload.so");
  }
}

/* HAMi#2903: look-ups on all threads at once, while the loader lists what is loaded, and in
 * constructors. */
static const char *library;
static pthread_barrier_t begin_at_once;

static int in_list(struct dl_phdr_info *info, size_t bytes, void *data) {
  (void)info;
  (void)bytes;
  *(int *)data += dlsym(RTLD_DEFAULT, "malloc") != NULL && dlsym(RTLD_DEFAULT, "cuInit_") == NULL;
  return 0;
}

static void *looks(void *driver) {
  pthread_barrier_wait(&begin_at_once);
  void *first = dlsym(driver, "cuMemAlloc_v2");
  for (int i = 0; i < 4000; i++) {
    int listed = 0;
    IS(dlsym(driver, "cuMemAlloc_v2") == first, 1);
    IS(dlsym(RTLD_NEXT, "pthread_create") != NULL, 1);
    IS(dlsym(RTLD_DEFAULT, "cublasCreate_v2") == NULL, 1);
    IS(dlsym(RTLD_DEFAULT, "cudaMallocAsync") == NULL, 1);
    if (i % 100 == 0) {
      void *handle = dlopen(library, RTLD_NOW);
      dl_iterate_phdr(in_list, &listed);
      IS(listed > 3, 1);
      IS(*(int *)dlsym(handle, "constructed"), 1);
      dlclose(handle);
    }
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[12];
  alarm(100);
  IS(pthread_barrier_init(&begin_at_once, NULL, 12), 0);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  for (int i = 0; i < 12; i++) {
    IS(pthread_create(&all[i], NULL, looks, driver), 0);
  }
  for (int i = 0; i < 12; i++) {
    IS(pthread_join(all[i], NULL), 0);
  }
}

static int lines_with(const char *file, const char *text) {
  char line[1024];
  int count = 0;
  FILE *lines = fopen(file, "r");
  while (lines != NULL && fgets(line, sizeof line, lines) != NULL) {
    count += strstr(line, text) != NULL;
  }
  fclose(lines);
  return count;
}

/* HAMi-core#52, HAMi#1834: a runtime asks for much before cuInit. That starts nothing, and what is
 * not this library's is the driver's. */
static void early(void) {
  typedef CUresult (*get2)(const char *, void **, int, uint64_t, int *);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
  int status = 0;
  CUdeviceptr p = 0;
  size_t bytes = 0;
  get2 get = (get2)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2");
  lies_in(dlsym(driver, "cuGetExportTable"), "libcuda.so.1");
  OK(get("cuGetExportTable", &found, 3000, 0, &status));
  lies_in(found, "libcuda.so.1");
  OK(get("cuMemAlloc", &found, 3020, 0, &status));
  IS(((CUresult(*)(CUdeviceptr *, size_t))(uintptr_t)found)(&p, 4096), NOT_INITIALIZED);
  OK(get("cuMemFree", &found, 3020, 0, &status));
  IS(((CUresult(*)(CUdeviceptr))(uintptr_t)found)(4096), NOT_INITIALIZED);
  OK(get("cuMemAllocAsync", &found, 11020, 2, &status));
  IS(((CUresult(*)(CUdeviceptr *, size_t, CUstream))(uintptr_t)found)(&p, 4096, NULL),
     NOT_INITIALIZED);
  OK(get("cuMemGetInfo", &found, 3020, 0, &status));
  IS(((CUresult(*)(size_t *, size_t *))(uintptr_t)found)(&bytes, &bytes), NOT_INITIALIZED);
  OK(get("cuPointerGetAttribute", &found, 4000, 0, &status));
  IS(((CUresult(*)(void *, int, CUdeviceptr))(uintptr_t)found)(&bytes, 1, 4096), NOT_INITIALIZED);
  IS(lines_with("/proc/self/status", "Threads:\t1\n"), 1);
  IS(lines_with("/proc/self/maps", "libforebay.so"), 0);
}

int main(int count, char **arguments) {
  IS(count, 4);
  library = arguments[2];
  if (strcmp(arguments[1], "others") == 0) {
    others(library);
  } else if (strcmp(arguments[1], "driver") == 0) {
    from_driver(arguments[3]);
  } else if (strcmp(arguments[1], "threads") == 0) {
    threads();
  } else {
    early();
  }
  puts("well");
  return 0;
}
