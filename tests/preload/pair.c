/* What a hot pair costs, through the driver's names and through the pool's own, in ns: the least of
 * several goes. The first argument is libforebay.so.0's path. */
#include "cu.h"

#include <dlfcn.h>
#include <time.h>

#define PAIRS 1000000
#define GOES 7

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

typedef int (*alloc_fn)(CUdeviceptr *, size_t);
typedef int (*free_fn)(CUdeviceptr);

static double pair(alloc_fn allocate, free_fn release) {
  double best = 1e9;
  for (int go = 0; go < GOES; go++) {
    double start = now();
    for (int i = 0; i < PAIRS; i++) {
      CUdeviceptr p = 0;
      OK(allocate(&p, 4096));
      OK(release(p));
    }
    double each = (now() - start) / PAIRS;
    best = each < best ? each : best;
  }
  return best;
}

int main(int count, char **arguments) {
  IS(count, 2);
  begin();
  void *pool = dlopen(arguments[1], RTLD_NOW);
  IS(pool != NULL, 1);
  alloc_fn own_alloc = (alloc_fn)dlsym(pool, "forebay_malloc");
  free_fn own_free = (free_fn)dlsym(pool, "forebay_free");
  IS(own_alloc != NULL && own_free != NULL, 1);
  CUdeviceptr p = 0;
  OK(cuMemAlloc_v2(&p, 4096));
  OK(cuMemFree_v2(p));
  double direct = pair(own_alloc, own_free);
  double through = pair(cuMemAlloc_v2, cuMemFree_v2);
  printf("direct %.1f through %.1f more %.1f ns a pair\n", direct, through, through - direct);
  puts("well");
  return 0;
}
