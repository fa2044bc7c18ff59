/* Streams: work runs in its stream's order, blocks are allocated and freed on streams, and a
 * retired or destroyed stream leaves nothing behind. Contents are checked on the host. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

enum { ROUNDS = 50 };

static forebay_pool_t pool;

static forebay_stream_t new_stream(void) {
  forebay_stream_t stream = NULL;
  CHECK_OK(forebay_stream_create(pool, &stream));
  CHECK(stream != NULL);
  return stream;
}

/* fill, copy, copy: the last one sees the first. */
static void in_order(void) {
  const size_t bytes = MIB(1);
  forebay_stream_t stream = new_stream();
  void *a = NULL;
  void *b = NULL;
  void *c = NULL;
  CHECK_OK(forebay_alloc(pool, &a, bytes, stream));
  CHECK_OK(forebay_alloc(pool, &b, bytes, stream));
  CHECK_OK(forebay_alloc(pool, &c, bytes, stream));
  for (int round = 0; round < ROUNDS; round++) {
    const unsigned char value = (unsigned char)(round + 1);
    CHECK_OK(forebay_stream_fill(pool, a, value, bytes, stream));
    CHECK_OK(forebay_stream_copy(pool, b, a, bytes, stream));
    CHECK_OK(forebay_stream_fill(pool, a, 0, bytes, stream));
    CHECK_OK(forebay_stream_copy(pool, c, b, bytes, stream));
    CHECK_OK(forebay_stream_synchronize(pool, stream));
    CHECK(bytes_are(a, bytes, 0));
    CHECK(bytes_are(b, bytes, value));
    CHECK(bytes_are(c, bytes, value));
  }
  CHECK_OK(forebay_dealloc(pool, a, stream));
  CHECK_OK(forebay_dealloc(pool, b, stream));
  CHECK_OK(forebay_dealloc(pool, c, stream));
  CHECK_OK(forebay_stream_destroy(pool, stream));
}

/* Freed while its stream still works on it; what that stream gets next comes after. */
static void freed_with_work_queued(void) {
  const size_t bytes = KIB(200);
  forebay_stream_t stream = new_stream();
  for (int round = 0; round < ROUNDS; round++) {
    void *first = NULL;
    void *second = NULL;
    CHECK_OK(forebay_malloc_async(&first, bytes, stream));
    CHECK_OK(forebay_stream_fill(NULL, first, 0x11, bytes, stream));
    CHECK_OK(forebay_free_async(first, stream));
    CHECK_OK(forebay_malloc_async(&second, bytes, stream));
    CHECK_OK(forebay_stream_fill(NULL, second, 0x22, bytes, stream));
    CHECK_OK(forebay_stream_synchronize(NULL, stream));
    CHECK(bytes_are(second, bytes, 0x22));
    CHECK_OK(forebay_free_async(second, stream));
  }
  CHECK_OK(forebay_stream_destroy(pool, stream));
}

/* Freed on one stream with work queued, asked for by another: the second never sees the
 * first one's late writes. */
static void handed_to_another_stream(void) {
  forebay_stream_t late = new_stream();
  forebay_stream_t next = new_stream();
  uint64_t seed = 11;
  for (int round = 0; round < 4 * ROUNDS; round++) {
    const size_t bytes = random_size(&seed, 256, MIB(2));
    void *first = NULL;
    void *second = NULL;
    CHECK_OK(forebay_alloc(pool, &first, bytes, late));
    CHECK_OK(forebay_stream_fill(pool, first, 0x11, bytes, late));
    CHECK_OK(forebay_dealloc(pool, first, late));
    CHECK_OK(forebay_alloc(pool, &second, bytes, next));
    CHECK_OK(forebay_stream_fill(pool, second, 0x22, bytes, next));
    CHECK_OK(forebay_stream_synchronize(pool, next));
    CHECK_OK(forebay_stream_synchronize(pool, late));
    CHECK(bytes_are(second, bytes, 0x22));
    CHECK_OK(forebay_dealloc(pool, second, next));
  }
  CHECK_OK(forebay_stream_destroy(pool, late));
  CHECK_OK(forebay_stream_destroy(pool, next));
}

/* forebay_free keeps cudaFree's promise: no work still queued sees the block reused. */
static void freed_without_a_stream(void) {
  const size_t bytes = KIB(100);
  forebay_stream_t late = new_stream();
  for (int round = 0; round < ROUNDS; round++) {
    void *first = NULL;
    void *second = NULL;
    CHECK_OK(forebay_malloc(&first, bytes));
    CHECK_OK(forebay_stream_fill(NULL, first, 0x11, bytes, late));
    CHECK_OK(forebay_free(first));
    CHECK_OK(forebay_malloc(&second, bytes));
    pattern_fill(second, bytes, (uint64_t)round);
    CHECK_OK(forebay_stream_synchronize(NULL, late));
    CHECK(pattern_holds(second, bytes, (uint64_t)round));
    CHECK_OK(forebay_free(second));
  }
  CHECK_OK(forebay_stream_destroy(NULL, late));
}

/* Streams come and go with memory freed on them. */
static void retired(void) {
  for (int round = 0; round < ROUNDS; round++) {
    forebay_stream_t stream = new_stream();
    void *block = NULL;
    CHECK_OK(forebay_alloc(pool, &block, MIB(1), stream));
    CHECK_OK(forebay_stream_fill(pool, block, 1, MIB(1), stream));
    CHECK_OK(forebay_dealloc(pool, block, stream));
    if (round % 2 == 0) CHECK_OK(forebay_stream_retire(stream));
    CHECK_OK(forebay_stream_destroy(pool, stream));
  }
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.live_blocks == 0);
  void *whole = NULL;
  CHECK_OK(forebay_alloc(pool, &whole, MIB(256), NULL));
  CHECK_OK(forebay_dealloc(pool, whole, NULL));
}

int main(void) {
  pool = new_pool(MIB(256));
  in_order();
  freed_with_work_queued();
  handed_to_another_stream();
  freed_without_a_stream();
  retired();
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("memory passes from stream to stream without a late write");
}
