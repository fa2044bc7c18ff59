/* Fork: a child made after first use gets FOREBAY_ERROR_FORKED, without a hang even while
 * other threads allocate, and prints no leak report; a child made before first use works. */
#include "accounts.h"
#include "check.h"
#include "child.h"
#include "pattern.h"

#include <pthread.h>
#include <stdatomic.h>

enum { FORKS = 20 };

static void *small;
static void *large;
static atomic_bool stop;

static int works(void) {
  void *block = NULL;
  CHECK_OK(forebay_malloc(&block, MIB(1)));
  pattern_fill(block, MIB(1), 1);
  CHECK(pattern_holds(block, MIB(1), 1));
  CHECK_OK(forebay_free(block));
  return 0;
}

static int refused(void) {
  int mark = 0;
  void *block = &mark;
  CHECK_STATUS(forebay_malloc(&block, 100), FOREBAY_ERROR_FORKED);
  CHECK(block == NULL);
  block = &mark;
  CHECK_STATUS(forebay_malloc_async(&block, MIB(3), NULL), FOREBAY_ERROR_FORKED);
  CHECK(block == NULL);
  CHECK_STATUS(forebay_free(small), FOREBAY_ERROR_FORKED);
  CHECK_STATUS(forebay_free_async(large, NULL), FOREBAY_ERROR_FORKED);
  CHECK_OK(forebay_free(NULL));
  forebay_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_STATUS(forebay_pool_stats(NULL, &stats), FOREBAY_ERROR_FORKED);
  forebay_pool_t pool = NULL;
  CHECK_STATUS(forebay_pool_create(&pool, NULL), FOREBAY_ERROR_FORKED);
  CHECK(pool == NULL);
  CHECK_STATUS(forebay_host_alloc(&block, 100), FOREBAY_ERROR_FORKED);
  CHECK(block == NULL);
  return 0;
}

static void expect_quiet_success(int (*body)(void)) {
  child_result result;
  child_fork(body, &result);
  if (result.code != 0) fprintf(stderr, "the child wrote: %s\n", result.text);
  CHECK(result.code == 0);
  CHECK(result.text[0] == '\0');
}

static void *churn(void *unused) {
  (void)unused;
  uint64_t seed = 5;
  while (!atomic_load(&stop)) {
    void *block = NULL;
    CHECK_OK(forebay_malloc(&block, random_size(&seed, 256, MIB(1))));
    CHECK_OK(forebay_free(block));
  }
  return NULL;
}

int main(void) {
  CHECK(setenv("FOREBAY_LEAKS", "summary", 1) == 0);
  expect_quiet_success(works);

  CHECK_OK(forebay_malloc(&small, 1000));
  CHECK_OK(forebay_malloc(&large, MIB(4)));
  pattern_fill(small, 1000, 2);
  pattern_fill(large, MIB(4), 3);
  expect_quiet_success(refused);

  pthread_t threads[2];
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
  for (int i = 0; i < FORKS; i++) expect_quiet_success(refused);
  atomic_store(&stop, true);
  for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);

  /* The parent is as it was. */
  CHECK(pattern_holds(small, 1000, 2));
  CHECK(pattern_holds(large, MIB(4), 3));
  CHECK_OK(forebay_free(small));
  CHECK_OK(forebay_free(large));
  CHECK(works() == 0);
  return shown("a forked child gets an error and no report; before first use it works");
}
