/* A thread's caches: what a thread that ended had ready goes back to the pool, and what a
 * sleeping thread has ready is taken from it when memory runs out. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <pthread.h>
#include <semaphore.h>

enum { THREADS = 4, BLOCKS = 200 };

static forebay_pool_t pool;
static sem_t full;
static sem_t leave;

/* Leaves this thread's magazines full of small slots of several classes. */
static void fill_caches(void) {
  void *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) {
    CHECK_OK(forebay_alloc(pool, &blocks[i], (size_t)256 << (i % 9), NULL));
  }
  for (int i = 0; i < BLOCKS; i++) CHECK_OK(forebay_dealloc(pool, blocks[i], NULL));
}

static void *ends(void *unused) {
  (void)unused;
  fill_caches();
  return NULL;
}

static void *sleeps(void *unused) {
  (void)unused;
  fill_caches();
  CHECK(sem_post(&full) == 0);
  CHECK(sem_wait(&leave) == 0);
  fill_caches(); /* the revoked caches serve again */
  return NULL;
}

/* The whole pool as one block: nothing may be held anywhere. */
static void take_all(void) {
  void *whole = NULL;
  CHECK_OK(forebay_alloc(pool, &whole, MIB(64), NULL));
  CHECK_OK(forebay_dealloc(pool, whole, NULL));
}

int main(void) {
  pool = new_pool(MIB(64));
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, ends, NULL) == 0);
  }
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  take_all();

  CHECK(sem_init(&full, 0, 0) == 0 && sem_init(&leave, 0, 0) == 0);
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, sleeps, NULL) == 0);
  }
  for (int i = 0; i < THREADS; i++) CHECK(sem_wait(&full) == 0);
  take_all();
  for (int i = 0; i < THREADS; i++) CHECK(sem_post(&leave) == 0);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  take_all();
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.live_blocks == 0);
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("no memory is held back by threads that ended or sleep");
}
