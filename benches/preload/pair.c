/* What a pair of one allocation and one free costs under the preload library, by each door,
 * and what the same pair costs by the pool's own functions: lines of "door least median", ns of
 * thread CPU time. The first argument is libforebay.so.0's path. The doors take turns. */
#include "cu.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <time.h>

#define PAIRS 200000
#define GOES 15
#define BYTES 4096

typedef int (*alloc_fn)(void **, size_t);
typedef int (*free_fn)(void *);
typedef int (*alloc_on_fn)(void **, size_t, void *);
typedef int (*free_on_fn)(void *, void *);
typedef int (*own_alloc_on_fn)(void *, void **, size_t, void *);
typedef int (*own_free_on_fn)(void *, void *, void *);

static own_alloc_on_fn own_alloc_on;
static own_free_on_fn own_free_on;
static cudaStream_t stream;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double pair(alloc_fn allocate, free_fn release) {
  double start = now();
  for (int i = 0; i < PAIRS; i++) {
    void *p = NULL;
    OK(allocate(&p, BYTES));
    OK(release(p));
  }
  return (now() - start) / PAIRS;
}

static double pair_on(alloc_on_fn allocate, free_on_fn release) {
  double start = now();
  for (int i = 0; i < PAIRS; i++) {
    void *p = NULL;
    OK(allocate(&p, BYTES, stream));
    OK(release(p, stream));
  }
  return (now() - start) / PAIRS;
}

static double own_pair_on(void) {
  double start = now();
  for (int i = 0; i < PAIRS; i++) {
    void *p = NULL;
    OK(own_alloc_on(NULL, &p, BYTES, stream));
    OK(own_free_on(NULL, p, stream));
  }
  return (now() - start) / PAIRS;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static const char *doors[] = {"direct",       "driver",       "runtime",
                              "direct-async", "driver-async", "runtime-async"};
#define DOORS 6

int main(int count, char **arguments) {
  IS(count, 2);
  void *pool = dlopen(arguments[1], RTLD_NOW);
  IS(pool != NULL, 1);
  alloc_fn own_alloc = (alloc_fn)dlsym(pool, "forebay_malloc");
  free_fn own_free = (free_fn)dlsym(pool, "forebay_free");
  own_alloc_on = (own_alloc_on_fn)dlsym(pool, "forebay_alloc");
  own_free_on = (own_free_on_fn)dlsym(pool, "forebay_dealloc");
  IS(own_alloc && own_free && own_alloc_on && own_free_on, 1);
  void *p = NULL;
  OK(cudaMalloc(&p, BYTES));
  OK(cudaFree(p));
  OK(cudaStreamCreate(&stream));
  static double ns[DOORS][GOES];
  for (int go = 0; go < GOES; go++) {
    ns[0][go] = pair(own_alloc, own_free);
    ns[1][go] = pair((alloc_fn)(void (*)(void))cuMemAlloc_v2,
                     (free_fn)(void (*)(void))cuMemFree_v2);
    ns[2][go] = pair((alloc_fn)cudaMalloc, (free_fn)cudaFree);
    ns[3][go] = own_pair_on();
    ns[4][go] = pair_on((alloc_on_fn)(void (*)(void))cuMemAllocAsync,
                        (free_on_fn)(void (*)(void))cuMemFreeAsync);
    ns[5][go] = pair_on((alloc_on_fn)cudaMallocAsync, (free_on_fn)cudaFreeAsync);
  }
  /* Each door was what its name says. */
  IS(served("cuMemAlloc_v2"), PAIRS * GOES + 1);
  IS(served("cudaMalloc"), PAIRS * GOES);
  IS(served("cudaFree"), PAIRS * GOES + 1);
  IS(served("cuMemAllocAsync"), PAIRS * GOES);
  IS(served("cudaFreeAsync"), PAIRS * GOES);
  for (int door = 0; door < DOORS; door++) {
    qsort(ns[door], GOES, sizeof(double), compare);
    printf("%s %.3f %.3f\n", doors[door], ns[door][0], ns[door][GOES / 2]);
  }
  return 0;
}
