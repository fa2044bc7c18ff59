/* Pools: options and their defaults, the default pool, two pools side by side, sizes of the
 * options struct, destruction with blocks still live, and a handle's end. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <string.h>

static void options(void) {
  forebay_pool_options defaults;
  memset(&defaults, 0xee, sizeof defaults);
  CHECK_OK(forebay_pool_options_init(&defaults));
  CHECK(defaults.struct_size == sizeof defaults);

  forebay_pool_t pool = NULL;
  CHECK_OK(forebay_pool_create(&pool, NULL));
  CHECK(pool != NULL);
  CHECK_OK(forebay_pool_destroy(pool));

  forebay_pool_options wrong = defaults;
  wrong.struct_size = 1;
  pool = (forebay_pool_t)(void *)&wrong;
  CHECK_STATUS(forebay_pool_create(&pool, &wrong), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(pool == NULL);
  wrong = defaults;
  wrong.device = 99;
  CHECK_STATUS(forebay_pool_create(&pool, &wrong), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(pool == NULL);
  wrong = defaults;
  wrong.flags = UINT32_C(1) << 31;
  CHECK_STATUS(forebay_pool_create(&pool, &wrong), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(pool == NULL);
}

static void default_pool(void) {
  forebay_pool_t first = NULL;
  forebay_pool_t again = NULL;
  CHECK_OK(forebay_pool_default(0, &first));
  CHECK_OK(forebay_pool_default(0, &again));
  CHECK(first == again);
  CHECK_STATUS(forebay_pool_default(99, &again), FOREBAY_ERROR_INVALID_ARGUMENT);

  const forebay_stats before = accounts(NULL);
  void *block = NULL;
  CHECK_OK(forebay_alloc(NULL, &block, MIB(1), NULL));
  CHECK(accounts(NULL).live_bytes == before.live_bytes + MIB(1));
  if (first != NULL) CHECK(accounts(first).live_bytes == before.live_bytes + MIB(1));
  CHECK_OK(forebay_free(block));
  CHECK(accounts(NULL).live_bytes == before.live_bytes);
  CHECK(forebay_pool_destroy(NULL) != FOREBAY_OK);
  CHECK_OK(forebay_malloc(&block, 100));
  CHECK_OK(forebay_free(block));
}

static void two_pools(void) {
  forebay_pool_t a = new_pool(MIB(64));
  forebay_pool_t b = new_pool(MIB(32));
  CHECK(a != b);
  CHECK(accounts(a).limit_bytes == MIB(64));
  CHECK(accounts(b).limit_bytes == MIB(32));
  void *in_a = NULL;
  void *in_b = NULL;
  CHECK_OK(forebay_alloc(a, &in_a, MIB(20), NULL));
  CHECK_OK(forebay_alloc(b, &in_b, MIB(20), NULL));
  pattern_fill(in_a, MIB(20), 1);
  pattern_fill(in_b, MIB(20), 2);
  CHECK(pattern_holds(in_a, MIB(20), 1));
  CHECK(pattern_holds(in_b, MIB(20), 2));
  CHECK(accounts(a).live_blocks == 1);
  CHECK(accounts(b).live_blocks == 1);

  /* A block belongs to the pool it came from. */
  CHECK_STATUS(forebay_dealloc(b, in_a, NULL), FOREBAY_ERROR_NOT_OWNED);
  CHECK(accounts(a).live_blocks == 1);
  CHECK(pattern_holds(in_a, MIB(20), 1));

  CHECK_OK(forebay_dealloc(a, in_a, NULL));
  CHECK(accounts(a).live_bytes == 0);
  CHECK(accounts(b).live_bytes == MIB(20));
  CHECK_OK(forebay_pool_destroy(a));
  CHECK(pattern_holds(in_b, MIB(20), 2));
  CHECK_OK(forebay_dealloc(b, in_b, NULL));
  CHECK_OK(forebay_pool_destroy(b));
}

static void destroyed_with_live_blocks(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  void *small = NULL;
  void *large = NULL;
  CHECK_OK(forebay_alloc(pool, &small, 5000, NULL));
  CHECK_OK(forebay_alloc(pool, &large, MIB(5), NULL));
  CHECK_OK(forebay_pool_destroy(pool));
  CHECK_STATUS(forebay_free(small), FOREBAY_ERROR_STALE_POINTER);
  CHECK_STATUS(forebay_free(large), FOREBAY_ERROR_STALE_POINTER);
  CHECK_STATUS(forebay_free_async(large, NULL), FOREBAY_ERROR_STALE_POINTER);
}

static void made_and_destroyed_often(void) {
  for (int round = 0; round < 100; round++) {
    forebay_pool_t pool = new_pool(MIB(16));
    void *block = NULL;
    CHECK_OK(forebay_alloc(pool, &block, MIB(1) + (size_t)round, NULL));
    pattern_fill(block, MIB(1), (uint64_t)round);
    CHECK(pattern_holds(block, MIB(1), (uint64_t)round));
    CHECK_OK(forebay_dealloc(pool, block, NULL));
    CHECK_OK(forebay_pool_destroy(pool));
  }
}

int main(void) {
  options();
  default_pool();
  two_pools();
  destroyed_with_live_blocks();
  made_and_destroyed_often();
  return shown("pools keep their limits and blocks apart, and end cleanly");
}
