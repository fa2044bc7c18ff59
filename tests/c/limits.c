/* Limits: a pool of N bytes hands out N bytes in blocks of any power of two from 2 MiB, also
 * after a checkerboard of frees, and its limits change while it is in use. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

enum { LIMIT_MIB = 64, MOST = LIMIT_MIB / 2 };

static forebay_pool_t pool;

/* Fills the pool with blocks of one size, to the last byte, and empties it again. */
static void fill(size_t bytes) {
  void *blocks[MOST];
  const size_t count = MIB(LIMIT_MIB) / bytes;
  for (size_t i = 0; i < count; i++) {
    CHECK_OK(forebay_alloc(pool, &blocks[i], bytes, NULL));
    pattern_fill(blocks[i], bytes, i << 40);
  }
  void *over = &pool;
  CHECK_STATUS(forebay_alloc(pool, &over, bytes, NULL), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(over == NULL);
  CHECK(accounts(pool).live_bytes == MIB(LIMIT_MIB));
  CHECK(accounts(pool).mapped_bytes <= MIB(LIMIT_MIB));
  for (size_t i = 0; i < count; i++) {
    CHECK(pattern_holds(blocks[i], bytes, (uint64_t)i << 40));
    CHECK_OK(forebay_dealloc(pool, blocks[i], NULL));
  }
}

/* Every second 2 MiB block freed: half the memory, in no run longer than a page. */
static void checkerboard(size_t wanted) {
  void *blocks[MOST];
  for (size_t i = 0; i < MOST; i++) {
    CHECK_OK(forebay_alloc(pool, &blocks[i], MIB(2), NULL));
    pattern_fill(blocks[i], MIB(2), i << 40);
  }
  for (size_t i = 0; i < MOST; i += 2) CHECK_OK(forebay_dealloc(pool, blocks[i], NULL));
  void *run = NULL;
  CHECK_OK(forebay_alloc(pool, &run, wanted, NULL));
  pattern_fill(run, wanted, 99);
  for (size_t i = 1; i < MOST; i += 2) {
    CHECK(pattern_holds(blocks[i], MIB(2), (uint64_t)i << 40));
  }
  CHECK(pattern_holds(run, wanted, 99));
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.mapped_bytes <= MIB(LIMIT_MIB));
  CHECK_OK(forebay_dealloc(pool, run, NULL));
  for (size_t i = 1; i < MOST; i += 2) CHECK_OK(forebay_dealloc(pool, blocks[i], NULL));
}

static void changed_in_use(void) {
  void *first = NULL;
  void *second = NULL;
  CHECK_OK(forebay_alloc(pool, &first, MIB(LIMIT_MIB), NULL));
  CHECK_STATUS(forebay_alloc(pool, &second, MIB(32), NULL), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK_OK(forebay_pool_set_limits(pool, MIB(LIMIT_MIB + 32), 0));
  CHECK(accounts(pool).limit_bytes == MIB(LIMIT_MIB + 32));
  CHECK_OK(forebay_alloc(pool, &second, MIB(32), NULL));
  CHECK_OK(forebay_dealloc(pool, second, NULL));
  if (on_device()) {
    /* What is freed may be above a lower limit until the device is done with it. */
    for (int i = 0; i < 100 && accounts(pool).mapped_bytes > MIB(LIMIT_MIB); i++) {
      CHECK_OK(forebay_pool_trim(pool, MIB(LIMIT_MIB), NULL));
      CHECK_OK(forebay_stream_synchronize(NULL, NULL));
    }
  }
  CHECK_OK(forebay_pool_set_limits(pool, MIB(LIMIT_MIB), MIB(48)));
  CHECK(accounts(pool).limit_bytes == MIB(LIMIT_MIB));
  CHECK(accounts(pool).soft_limit_bytes == MIB(48));
  CHECK_STATUS(forebay_alloc(pool, &second, MIB(32), NULL), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK_OK(forebay_pool_set_limits(pool, 0, 0));
  CHECK(accounts(pool).limit_bytes == MIB(LIMIT_MIB));
  CHECK_OK(forebay_dealloc(pool, first, NULL));
}

int main(void) {
  pool = new_pool(MIB(LIMIT_MIB));
  for (size_t bytes = MIB(2); bytes <= MIB(LIMIT_MIB); bytes *= 2) fill(bytes);
  checkerboard(MIB(4));
  checkerboard(MIB(16));
  checkerboard(MIB(LIMIT_MIB / 2));
  for (size_t bytes = MIB(LIMIT_MIB); bytes >= MIB(2); bytes /= 2) fill(bytes);
  changed_in_use();
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("a pool of N bytes hands out N bytes, whatever went before");
}
