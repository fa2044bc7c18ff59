/* A pool's accounts: read them, check that the disjoint states sum to what is mapped, and
 * compare what must not have changed. Pools of tests have no keeper, so that nothing moves
 * while they are read. Include after check.h. */
#ifndef FOREBAY_TESTS_ACCOUNTS_H
#define FOREBAY_TESTS_ACCOUNTS_H

#include "check.h"

static inline forebay_stats accounts(forebay_pool_t pool) {
  forebay_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_OK(forebay_pool_stats(pool, &stats));
  return stats;
}

static inline void check_sum(const forebay_stats *s) {
  CHECK(s->live_bytes + s->cached_bytes + s->pending_bytes + s->trapped_bytes + s->idle_bytes +
            s->other_bytes + s->region_bytes ==
        s->mapped_bytes);
  CHECK(s->requested_bytes <= s->live_bytes);
  CHECK(s->peak_live_bytes >= s->live_bytes);
  CHECK(s->peak_mapped_bytes >= s->mapped_bytes);
  CHECK(s->allocs - s->frees == s->live_blocks);
}

/* What a refused call must leave as it was. */
static inline void check_same_live(const forebay_stats *before, const forebay_stats *after) {
  CHECK(before->live_bytes == after->live_bytes);
  CHECK(before->requested_bytes == after->requested_bytes);
  CHECK(before->live_blocks == after->live_blocks);
  CHECK(before->other_bytes == after->other_bytes);
}

/* A pool with a hard limit in bytes (0: the default) and no keeper. */
static inline forebay_pool_t new_pool(uint64_t limit) {
  forebay_pool_options options;
  CHECK_OK(forebay_pool_options_init(&options));
  if (limit != 0) options.limit = limit;
  options.keeper = 0;
  forebay_pool_t pool = NULL;
  CHECK_OK(forebay_pool_create(&pool, &options));
  CHECK(pool != NULL);
  return pool;
}

#endif
