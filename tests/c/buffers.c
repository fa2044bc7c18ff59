/* Fixed-size buffers: a set number of one size, acquired and released, each its holder's own
 * while it is out, and refused when all are. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

enum { COUNT = 4 };

int main(void) {
  const size_t bytes = MIB(1);
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_buffers_t set = NULL;
  CHECK_STATUS(forebay_buffers_create(pool, 0, COUNT, &set), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(set == NULL);
  CHECK_STATUS(forebay_buffers_create(pool, bytes, 0, &set), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_buffers_create(pool, bytes, 1000, &set), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(set == NULL);
  CHECK(accounts(pool).live_bytes == 0);
  CHECK_OK(forebay_buffers_create(pool, bytes, COUNT, &set));
  CHECK(set != NULL);

  void *out[COUNT];
  for (uint64_t i = 0; i < COUNT; i++) {
    CHECK_OK(forebay_buffers_acquire(set, NULL, &out[i]));
    CHECK((uintptr_t)out[i] % 256 == 0);
    pattern_fill(out[i], bytes, i << 32);
  }
  for (uint64_t i = 0; i < COUNT; i++) CHECK(pattern_holds(out[i], bytes, i << 32));
  void *over = &pool;
  CHECK_STATUS(forebay_buffers_acquire(set, NULL, &over), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(over == NULL);
  CHECK_STATUS(forebay_buffers_acquire(set, NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);

  int foreign = 0;
  CHECK_STATUS(forebay_buffers_release(set, &foreign, NULL), FOREBAY_ERROR_NOT_OWNED);
  CHECK_STATUS(forebay_buffers_release(set, (char *)out[0] + 256, NULL),
               FOREBAY_ERROR_INTERIOR_POINTER);
  CHECK_STATUS(forebay_buffers_destroy(set), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_buffers_release(set, out[2], NULL));
  CHECK_STATUS(forebay_buffers_release(set, out[2], NULL), FOREBAY_ERROR_DOUBLE_FREE);
  CHECK_OK(forebay_buffers_acquire(set, NULL, &over));
  CHECK(over == out[2]);
  CHECK(pattern_holds(out[1], bytes, UINT64_C(1) << 32));

  for (int i = 0; i < COUNT; i++) CHECK_OK(forebay_buffers_release(set, out[i], NULL));
  CHECK_OK(forebay_buffers_destroy(set));
  CHECK(accounts(pool).live_bytes == 0);
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("a set of buffers lends each to one holder at a time");
}
