/* record_use: a block used on a second stream and freed on its first is not reused before the
 * second stream's work is done. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

enum { ROUNDS = 200 };

int main(void) {
  forebay_pool_t pool = new_pool(MIB(256));
  forebay_stream_t owner = NULL;
  forebay_stream_t guest = NULL;
  CHECK_OK(forebay_stream_create(pool, &owner));
  CHECK_OK(forebay_stream_create(pool, &guest));
  uint64_t seed = 3;
  for (int round = 0; round < ROUNDS; round++) {
    const size_t bytes = random_size(&seed, 256, MIB(2));
    void *first = NULL;
    void *second = NULL;
    CHECK_OK(forebay_alloc(pool, &first, bytes, owner));
    CHECK_OK(forebay_stream_fill(pool, first, 0x11, bytes, guest));
    CHECK_OK(forebay_record_use(pool, first, guest));
    CHECK_OK(forebay_record_use(pool, first, guest)); /* saying it twice changes nothing */
    CHECK_OK(forebay_dealloc(pool, first, owner));
    CHECK_OK(forebay_alloc(pool, &second, bytes, owner));
    CHECK_OK(forebay_stream_fill(pool, second, 0x22, bytes, owner));
    CHECK_OK(forebay_stream_synchronize(pool, owner));
    CHECK_OK(forebay_stream_synchronize(pool, guest));
    CHECK(bytes_are(second, bytes, 0x22));
    CHECK_OK(forebay_dealloc(pool, second, owner));
  }
  void *block = NULL;
  CHECK_OK(forebay_alloc(pool, &block, MIB(1), owner));
  CHECK_STATUS(forebay_record_use(pool, (char *)block + 256, guest),
               FOREBAY_ERROR_INTERIOR_POINTER);
  CHECK_OK(forebay_dealloc(pool, block, owner));
  CHECK_STATUS(forebay_record_use(pool, block, guest), FOREBAY_ERROR_DOUBLE_FREE);
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.live_blocks == 0);
  CHECK_OK(forebay_stream_destroy(pool, owner));
  CHECK_OK(forebay_stream_destroy(pool, guest));
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("a block used elsewhere waits for that work before it is reused");
}
