/* Threads that allocate and free in every way at once, on streams of their own that run late: each
 * block keeps what its owner wrote. The first argument is the seed. */
#include "cu.h"

#include <pthread.h>

#define THREADS 4
#define LIVE 24
#define STEPS 1500

static CUcontext context;
static uint64_t first_seed;

struct block {
  CUdeviceptr p;
  unsigned words;
  unsigned value;
};

static uint64_t draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void check(struct block *block, CUstream stream) {
  unsigned first = 0, last = 0;
  OK(cuStreamSynchronize(stream));
  OK(cuMemcpyDtoH_v2(&first, block->p, 4));
  OK(cuMemcpyDtoH_v2(&last, block->p + 4 * (block->words - 1), 4));
  IS(first, block->value);
  IS(last, block->value);
}

static void *worker(void *number) {
  uint64_t state = first_seed * 1000 + (uint64_t)(uintptr_t)number;
  struct block live[LIVE] = {{0, 0, 0}};
  CUstream stream;
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, 1));
  for (unsigned step = 0; step < STEPS; step++) {
    struct block *block = &live[draw(&state) % LIVE];
    if (block->p != 0) {
      if (draw(&state) % 8 == 0) {
        check(block, stream);
      }
      OK(draw(&state) % 2 ? cuMemFree_v2(block->p) : cuMemFreeAsync(block->p, stream));
      block->p = 0;
      continue;
    }
    unsigned shift = (unsigned)(draw(&state) % 14);
    block->words = 16 + (unsigned)(draw(&state) % (64u << shift));
    block->value = (unsigned)draw(&state);
    size_t bytes = (size_t)block->words * 4;
    OK(draw(&state) % 2 ? cuMemAlloc_v2(&block->p, bytes)
                        : cuMemAllocAsync(&block->p, bytes, stream));
    OK(cuMemsetD32Async(block->p, block->value, block->words, stream));
    if (step % 500 == 499) {
      for (int i = 0; i < LIVE; i++) {
        if (live[i].p != 0) {
          check(&live[i], stream);
          OK(cuMemFree_v2(live[i].p));
          live[i].p = 0;
        }
      }
      OK(cuStreamDestroy_v2(stream));
      OK(cuStreamCreate(&stream, 1));
    }
  }
  for (int i = 0; i < LIVE; i++) {
    if (live[i].p != 0) {
      check(&live[i], stream);
      OK(cuMemFree_v2(live[i].p));
    }
  }
  OK(cuStreamDestroy_v2(stream));
  return NULL;
}

int main(int count, char **arguments) {
  pthread_t threads[THREADS];
  first_seed = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
  fprintf(stdout, "seed %llu\n", (unsigned long long)first_seed);
  context = begin();
  for (uintptr_t i = 0; i < THREADS; i++) {
    IS(pthread_create(&threads[i], NULL, worker, (void *)i), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    IS(pthread_join(threads[i], NULL), 0);
  }
  IS(passed("cuMemAlloc_v2"), 0);
  IS(passed("cuMemAllocAsync"), 0);
  puts("well");
  return 0;
}
