/* Threads: eight of them allocate, fill, check, hand over and free blocks at random, own ones
 * and each other's; no block is ever seen with another's contents. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, OPERATIONS = 20000, ON_DEVICE = 1000, OWN = 64, SHARED = 256 };

/* A block, kept in the CPU's own memory. */
typedef struct held {
  void *block;
  size_t bytes;
  uint64_t seed;
} held;

static forebay_pool_t pool;
static _Atomic(held *) mailbox[SHARED];

static held *make(uint64_t *state) {
  held *made = malloc(sizeof *made);
  CHECK(made != NULL);
  made->bytes = random_size(state, 24, KIB(512));
  made->seed = random_next(state);
  if (made->seed % 4 == 0) {
    CHECK_OK(forebay_malloc(&made->block, made->bytes));
  } else {
    CHECK_OK(forebay_alloc(pool, &made->block, made->bytes, NULL));
  }
  CHECK(made->block != NULL);
  pattern_fill(made->block, made->bytes, made->seed);
  return made;
}

static void check_and_free(held *done) {
  CHECK(pattern_holds(done->block, done->bytes, done->seed));
  if (done->seed % 4 == 0) {
    CHECK_OK(forebay_free(done->block));
  } else {
    CHECK_OK(forebay_dealloc(pool, done->block, NULL));
  }
  free(done);
}

static void *work(void *number) {
  uint64_t state = 1000 + (uintptr_t)number;
  held *own[OWN] = {NULL};
  const int operations = on_device() ? ON_DEVICE : OPERATIONS;
  for (int i = 0; i < operations; i++) {
    held **at = &own[random_next(&state) % OWN];
    if (*at == NULL) {
      *at = make(&state);
    } else if (random_next(&state) % 3 == 0) {
      /* Into a mailbox; what was there is some thread's, and ours to free now. */
      held *other = atomic_exchange(&mailbox[random_next(&state) % SHARED], *at);
      if (other != NULL) check_and_free(other);
      *at = NULL;
    } else {
      check_and_free(*at);
      *at = NULL;
    }
  }
  for (int i = 0; i < OWN; i++) {
    if (own[i] != NULL) check_and_free(own[i]);
  }
  return NULL;
}

int main(void) {
  pool = new_pool(MIB(512));
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
  }
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < SHARED; i++) {
    held *left = atomic_exchange(&mailbox[i], NULL);
    if (left != NULL) check_and_free(left);
  }
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.live_blocks == 0 && stats.live_bytes == 0);
  CHECK(accounts(NULL).live_blocks == 0);
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("eight threads share a pool, and no block shows another's contents");
}
