/* Out of memory: the report names the request and the limit, the owner's callback may free
 * memory and have the request tried again, and the pool works on afterwards. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <string.h>

typedef struct owner {
  forebay_pool_t pool;
  void *spare;
  size_t bytes;
  unsigned calls;
} owner;

/* Gives up the spare block, once. */
static bool give_up_spare(void *ctx, size_t bytes) {
  owner *self = ctx;
  self->calls++;
  self->bytes = bytes;
  if (self->spare == NULL) return false;
  CHECK_OK(forebay_dealloc(self->pool, self->spare, NULL));
  self->spare = NULL;
  return true;
}

static void report(forebay_pool_t pool) {
  const forebay_stats before = accounts(pool);
  void *block = &pool;
  CHECK_STATUS(forebay_alloc(pool, &block, MIB(100), NULL), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(block == NULL);
  const char *text = forebay_last_error();
  CHECK(names_bytes(text, MIB(100)));
  CHECK(names_bytes(text, MIB(64)));
  const forebay_stats after = accounts(pool);
  check_same_live(&before, &after);
  check_sum(&after);
  CHECK(after.oom_count == before.oom_count + 1);
}

static void callback(forebay_pool_t pool) {
  owner self = {.pool = pool};
  CHECK_OK(forebay_alloc(pool, &self.spare, MIB(48), NULL));
  CHECK_OK(forebay_set_oom_callback(pool, give_up_spare, &self));
  void *block = NULL;
  CHECK_OK(forebay_alloc(pool, &block, MIB(40), NULL));
  CHECK(block != NULL && self.calls == 1 && self.bytes >= MIB(40));
  pattern_fill(block, MIB(40), 3);
  CHECK(pattern_holds(block, MIB(40), 3));

  /* Nothing left to give up: one more call, then the error. */
  void *over = &self;
  CHECK_STATUS(forebay_alloc(pool, &over, MIB(40), NULL), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(over == NULL && self.calls == 2);
  CHECK_OK(forebay_set_oom_callback(pool, NULL, NULL));
  CHECK_STATUS(forebay_alloc(pool, &over, MIB(40), NULL), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(self.calls == 2);
  CHECK_OK(forebay_dealloc(pool, block, NULL));
}

static void small_blocks_run_out_too(forebay_pool_t pool) {
  enum { MOST = 20000 };
  static void *blocks[MOST];
  size_t count = 0;
  forebay_status status = FOREBAY_OK;
  while (count < MOST) {
    status = forebay_alloc(pool, &blocks[count], 4096, NULL);
    if (status != FOREBAY_OK) break;
    count++;
  }
  CHECK_STATUS(status, FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(count == MIB(64) / 4096);
  for (size_t i = 0; i < count; i++) CHECK_OK(forebay_dealloc(pool, blocks[i], NULL));
  void *whole = NULL;
  CHECK_OK(forebay_alloc(pool, &whole, MIB(64), NULL));
  CHECK_OK(forebay_dealloc(pool, whole, NULL));
}

int main(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  report(pool);
  callback(pool);
  small_blocks_run_out_too(pool);
  report(pool);
  CHECK(accounts(pool).live_bytes == 0);
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("running out is reported with its numbers, and the owner may make room");
}
