/* Captures: allocation and free inside a capture, no page unmapped while one is open, and the
 * order begin, end, release enforced. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

static void unmap_forbidden(void *ctx, void *address, size_t bytes) {
  (void)address;
  (void)bytes;
  ++*(unsigned *)ctx;
}

int main(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_stream_t stream = NULL;
  CHECK_OK(forebay_stream_create(pool, &stream));
  unsigned unmapped = 0;
  CHECK_OK(forebay_set_on_unmap(pool, unmap_forbidden, &unmapped));
  void *idle = NULL;
  CHECK_OK(forebay_alloc(pool, &idle, MIB(16), stream));
  CHECK_OK(forebay_dealloc(pool, idle, stream));
  CHECK_OK(forebay_stream_synchronize(pool, stream));

  uint64_t capture = 0;
  CHECK_STATUS(forebay_capture_begin(stream, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_capture_begin(stream, &capture));
  CHECK(capture != 0);
  uint64_t twice = 0;
  CHECK_STATUS(forebay_capture_begin(stream, &twice), FOREBAY_ERROR_BUSY);
  void *inside = NULL;
  void *scratch = NULL;
  CHECK_OK(forebay_alloc(pool, &inside, MIB(4), stream));
  CHECK_OK(forebay_alloc(pool, &scratch, KIB(40), stream));
  pattern_fill(inside, MIB(4), 1);
  CHECK_OK(forebay_dealloc(pool, scratch, stream));
  size_t released = 0;
  const forebay_status trimmed = forebay_pool_trim(pool, 0, &released);
  CHECK(trimmed == FOREBAY_OK || trimmed == FOREBAY_ERROR_BUSY);
  CHECK(unmapped == 0);
  CHECK_STATUS(forebay_capture_release(capture), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_capture_end(capture));
  CHECK_STATUS(forebay_capture_end(capture), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(pattern_holds(inside, MIB(4), 1));
  CHECK_OK(forebay_dealloc(pool, inside, stream));
  CHECK_OK(forebay_capture_release(capture));
  CHECK_STATUS(forebay_capture_release(capture), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_capture_end(UINT64_C(999999)), FOREBAY_ERROR_INVALID_ARGUMENT);

  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.live_blocks == 0);
  CHECK_OK(forebay_stream_synchronize(pool, stream));
  void *whole = NULL;
  CHECK_OK(forebay_alloc(pool, &whole, MIB(64), stream));
  CHECK_OK(forebay_dealloc(pool, whole, stream));
  CHECK_OK(forebay_set_on_unmap(pool, NULL, NULL));
  CHECK_OK(forebay_stream_destroy(pool, stream));
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("no page is unmapped while a capture is open, and all is free after it");
}
