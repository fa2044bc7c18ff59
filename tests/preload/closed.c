/* The library opened by hand, used on a thread, and closed before that thread ends: its code stays
 * (rust-lang/rust#91979, hegel-rust#387). */
#include "cu.h"

#include <dlfcn.h>
#include <pthread.h>

static void *library;
static CUcontext context;
static pthread_barrier_t closed;

static void *worker(void *unused) {
  CUresult (*allocate)(CUdeviceptr *, size_t) =
      (CUresult(*)(CUdeviceptr *, size_t))dlsym(library, "cuMemAlloc_v2");
  CUresult (*release)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(library, "cuMemFree_v2");
  CUdeviceptr p = 0;
  OK(cuCtxSetCurrent(context));
  OK(allocate(&p, 5000));
  OK(release(p));
  pthread_barrier_wait(&closed);
  pthread_barrier_wait(&closed);
  return unused;
}

int main(int count, char **arguments) {
  pthread_t thread;
  IS(count, 2);
  context = begin();
  library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  IS(library != NULL, 1);
  IS(pthread_barrier_init(&closed, NULL, 2), 0);
  IS(pthread_create(&thread, NULL, worker, NULL), 0);
  pthread_barrier_wait(&closed);
  IS(dlclose(library), 0);
  pthread_barrier_wait(&closed);
  IS(pthread_join(thread, NULL), 0);
  puts("well");
  return 0;
}
