/* Threads: eight of them allocate, fill, check, hand over and free blocks at random, own ones
 * and each other's; no block is ever seen with another's contents. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, OPERATIONS = 20000, OWN = 64, SHARED = 256 };

/* A block with its size and seed in front, in its own first words. */
typedef struct header {
  uint64_t bytes;
  uint64_t seed;
} header;

static forebay_pool_t pool;
static _Atomic(void *) mailbox[SHARED];

static void *make(uint64_t *state) {
  const size_t bytes = random_size(state, sizeof(header) + 8, KIB(512));
  const uint64_t seed = random_next(state);
  void *block = NULL;
  if (seed % 4 == 0) {
    CHECK_OK(forebay_malloc(&block, bytes));
  } else {
    CHECK_OK(forebay_alloc(pool, &block, bytes, NULL));
  }
  CHECK(block != NULL);
  header *head = block;
  head->bytes = bytes;
  head->seed = seed;
  pattern_fill(head + 1, bytes - sizeof *head, seed);
  return block;
}

static void check_and_free(void *block) {
  const header head = *(header *)block;
  CHECK(pattern_holds((header *)block + 1, head.bytes - sizeof head, head.seed));
  if (head.seed % 4 == 0) {
    CHECK_OK(forebay_free(block));
  } else {
    CHECK_OK(forebay_dealloc(pool, block, NULL));
  }
}

static void *work(void *number) {
  uint64_t state = 1000 + (uintptr_t)number;
  void *own[OWN] = {NULL};
  for (int i = 0; i < OPERATIONS; i++) {
    void **at = &own[random_next(&state) % OWN];
    if (*at == NULL) {
      *at = make(&state);
    } else if (random_next(&state) % 3 == 0) {
      /* Into a mailbox; what was there is some thread's, and ours to free now. */
      void *other = atomic_exchange(&mailbox[random_next(&state) % SHARED], *at);
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
    void *block = atomic_exchange(&mailbox[i], NULL);
    if (block != NULL) check_and_free(block);
  }
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.live_blocks == 0 && stats.live_bytes == 0);
  CHECK(accounts(NULL).live_blocks == 0);
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("eight threads share a pool, and no block shows another's contents");
}
