#define _POSIX_C_SOURCE 200809L
/* Trim: unused pages go back to the device, live contents stay, the answer says how many
 * bytes went, and the on_unmap callback names what was unmapped before it went. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <time.h>

typedef struct unmapped {
  uint64_t bytes;
  bool aligned;
} unmapped;

static void on_unmap(void *ctx, void *address, size_t bytes) {
  unmapped *seen = ctx;
  seen->bytes += bytes;
  if ((uintptr_t)address % 4096 != 0 || bytes % 4096 != 0 || bytes == 0) seen->aligned = false;
}

/* A device may say a moment later that a fence has passed: trims until something goes. */
static size_t trim_until_some(forebay_pool_t pool, size_t keep) {
  size_t released = 0;
  for (int i = 0; i < 5000 && released == 0; i++) {
    CHECK_OK(forebay_pool_trim(pool, keep, &released));
    if (released == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return released;
}

int main(void) {
  forebay_pool_t pool = new_pool(MIB(256));
  unmapped seen = {.bytes = 0, .aligned = true};
  CHECK_OK(forebay_set_on_unmap(pool, on_unmap, &seen));
  void *kept = NULL;
  void *gone = NULL;
  CHECK_OK(forebay_alloc(pool, &kept, MIB(8), NULL));
  CHECK_OK(forebay_alloc(pool, &gone, MIB(64), NULL));
  pattern_fill(kept, MIB(8), 5);
  CHECK_OK(forebay_dealloc(pool, gone, NULL));
  CHECK_OK(forebay_stream_synchronize(pool, NULL));

  const forebay_stats before = accounts(pool);
  CHECK(before.mapped_bytes >= MIB(72));
  const size_t released_first = trim_until_some(pool, MIB(40));
  const forebay_stats partly = accounts(pool);
  check_sum(&partly);
  CHECK(released_first > 0);
  CHECK(partly.mapped_bytes + partly.unmapped_stock_bytes >= MIB(38));
  CHECK(partly.mapped_bytes + partly.unmapped_stock_bytes <= MIB(40));

  size_t released = 0;
  CHECK_OK(forebay_pool_trim(pool, 0, &released));
  const forebay_stats after = accounts(pool);
  check_sum(&after);
  CHECK(after.unmapped_stock_bytes == 0);
  CHECK(after.mapped_bytes >= MIB(8) && after.mapped_bytes <= MIB(12));
  CHECK(after.live_bytes == before.live_bytes);
  CHECK(after.pages_released > before.pages_released);
  CHECK(seen.aligned);
  CHECK(seen.bytes == before.mapped_bytes - after.mapped_bytes);
  CHECK(pattern_holds(kept, MIB(8), 5));

  /* Nothing left to give: not an error. */
  CHECK_OK(forebay_pool_trim(pool, 0, &released));
  CHECK(released == 0);
  CHECK_OK(forebay_set_on_unmap(pool, NULL, NULL));
  CHECK_OK(forebay_dealloc(pool, kept, NULL));
  CHECK_OK(forebay_alloc(pool, &kept, MIB(64), NULL));
  pattern_fill(kept, MIB(64), 6);
  CHECK(pattern_holds(kept, MIB(64), 6));
  CHECK_OK(forebay_dealloc(pool, kept, NULL));
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("trim gives unused pages back and keeps what is live");
}
