/* Pins: a pinned block's pages stay where they are through trims and gathers, pins count, and
 * taking off more than were put on is refused. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

int main(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  void *pinned = NULL;
  void *around[8];
  CHECK_OK(forebay_alloc(pool, &pinned, MIB(2), NULL));
  pattern_fill(pinned, MIB(2), 1);
  CHECK_OK(forebay_pin(pinned));
  CHECK_OK(forebay_pin(pinned));

  for (int i = 0; i < 8; i++) CHECK_OK(forebay_alloc(pool, &around[i], MIB(4), NULL));
  for (int i = 0; i < 8; i += 2) CHECK_OK(forebay_dealloc(pool, around[i], NULL));
  void *run = NULL;
  CHECK_OK(forebay_alloc(pool, &run, MIB(40), NULL)); /* needs pages moved */
  pattern_fill(run, MIB(40), 2);
  size_t released = 0;
  CHECK_OK(forebay_pool_trim(pool, 0, &released));
  CHECK(pattern_holds(pinned, MIB(2), 1));
  CHECK(pattern_holds(run, MIB(40), 2));
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);

  CHECK_OK(forebay_unpin(pinned));
  CHECK_OK(forebay_unpin(pinned));
  CHECK_STATUS(forebay_unpin(pinned), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_pin((char *)pinned + 512), FOREBAY_ERROR_INTERIOR_POINTER);
  CHECK_STATUS(forebay_pin(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_dealloc(pool, run, NULL));
  CHECK_OK(forebay_dealloc(pool, pinned, NULL));
  CHECK_STATUS(forebay_pin(pinned), FOREBAY_ERROR_DOUBLE_FREE);
  for (int i = 1; i < 8; i += 2) CHECK_OK(forebay_dealloc(pool, around[i], NULL));

  void *whole = NULL;
  CHECK_OK(forebay_alloc(pool, &whole, MIB(64), NULL));
  CHECK_OK(forebay_dealloc(pool, whole, NULL));
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("pinned pages stay, and an unpinned pool gathers everything again");
}
