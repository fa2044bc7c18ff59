/* A program whose allocations are traced: of every kind, by the driver's names, on two threads.
 * Prints how many events there were, and the peak of live bytes by its count. The first argument
 * says what: "all", "wait" (allocates, says so, and waits to be killed), or "many" and a number. */
#include "cu.h"

#include <pthread.h>
#include <unistd.h>

static CUcontext context;
static CUstream shared;

#define THREADS 8
#define SHARED 1500
static long long events, live, peak;

static void took(size_t bytes) {
  events++;
  live += (long long)bytes;
  peak = live > peak ? live : peak;
}

static void gave(size_t bytes) {
  events++;
  live -= (long long)bytes;
}

static void *worker(void *unused) {
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < 500; i++) {
    CUdeviceptr p = 0;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemFree_v2(p));
  }
  return unused;
}

/* On one stream: what one thread frees the next may have at once. */
static void *sharer(void *unused) {
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < SHARED; i++) {
    CUdeviceptr p = 0;
    OK(cuMemAllocAsync(&p, 300 << 10, shared));
    OK(cuMemFreeAsync(p, shared));
  }
  return unused;
}

static void all(void) {
  CUdeviceptr p[100] = {0}, other = 0;
  CUmemoryPool pool = NULL;
  CUstream stream;
  size_t pitch = 0;
  OK(cuStreamCreate(&stream, 1));
  for (size_t i = 0; i < 100; i++) {
    size_t bytes = (i + 1) * 1000;
    OK(i % 2 ? cuMemAlloc_v2(&p[i], bytes) : cuMemAllocAsync(&p[i], bytes, stream));
    took(bytes);
  }
  /* Refused, and so no event. */
  IS(cuMemAlloc_v2(&other, (size_t)1 << 40), OUT_OF_MEMORY);
  IS(cuMemFree_v2(p[0] + 256), INVALID_VALUE);
  for (size_t i = 0; i < 100; i++) {
    OK(i % 3 ? cuMemFree_v2(p[i]) : cuMemFreeAsync(p[i], stream));
    gave((i + 1) * 1000);
  }
  OK(cuMemAllocPitch_v2(&other, &pitch, 100, 7, 4));
  took(pitch * 7);
  OK(cuMemFree_v2(other));
  gave(pitch * 7);
  OK(cuMemAllocManaged(&other, 70000, 1));
  took(70000);
  OK(cuMemFree_v2(other));
  gave(70000);
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuMemAllocFromPoolAsync(&other, 80000, pool, stream));
  took(80000);
  OK(cuMemFreeAsync(other, stream));
  gave(80000);
  pthread_t threads[THREADS];
  shared = stream;
  for (int i = 0; i < THREADS; i++) {
    IS(pthread_create(&threads[i], NULL, i < 2 ? worker : sharer, NULL), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    IS(pthread_join(threads[i], NULL), 0);
  }
  events += 2 * 2 * 500 + (THREADS - 2) * 2 * SHARED;
}

/* Freed by a handler that runs after the trace's own. */
static CUdeviceptr late;
static void free_late(void) {
  if (cuMemFree_v2(late) != SUCCESS) {
    _exit(9);
  }
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "all";
  context = begin();
  IS(atexit(free_late), 0);
  OK(cuMemAlloc_v2(&late, 3000));
  took(3000);
  if (strcmp(what, "many") == 0) {
    for (long i = strtol(arguments[2], NULL, 10); i > 0; i--) {
      CUdeviceptr p = 0;
      OK(cuMemAlloc_v2(&p, 4096));
      took(4096);
      OK(cuMemFree_v2(p));
      gave(4096);
    }
  } else {
    all();
  }
  gave(3000);
  printf("%lld %lld\n", events, peak);
  if (strcmp(what, "wait") == 0) {
    fflush(stdout);
    pause();
  }
  puts("well");
  fflush(stdout);
  return 0;
}
