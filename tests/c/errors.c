/* Wrong use: each gets its own status, an answer of NULL, and leaves the accounts as they
 * were. Covers sizes, alignments, NULL arguments, foreign, interior and repeated frees,
 * pools after their end, and unknown streams. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

static forebay_pool_t pool;
static const uintptr_t NO_STREAM = 0x1230;

/* Runs a refused call between two readings of the accounts. */
#define REFUSED(call, want)                              \
  do {                                                   \
    const forebay_stats before = accounts(pool);         \
    CHECK_STATUS(call, want);                            \
    CHECK(forebay_last_error()[0] != '\0');              \
    const forebay_stats after = accounts(pool);          \
    check_same_live(&before, &after);                    \
    check_sum(&after);                                   \
  } while (0)

static void sizes(void) {
  int mark = 0;
  void *block = &mark;
  CHECK_OK(forebay_malloc(&block, 0));
  CHECK(block == NULL);
  block = &mark;
  CHECK_OK(forebay_alloc(pool, &block, 0, NULL));
  CHECK(block == NULL);

  const size_t huge[] = {(size_t)1 << 63, SIZE_MAX, SIZE_MAX - 4095, (size_t)1 << 46};
  for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
    const forebay_stats before = accounts(pool);
    block = &mark;
    const forebay_status status = forebay_alloc(pool, &block, huge[i], NULL);
    CHECK(status == FOREBAY_ERROR_INVALID_ARGUMENT || status == FOREBAY_ERROR_OUT_OF_MEMORY);
    CHECK(block == NULL);
    block = &mark;
    const forebay_status plain = forebay_malloc(&block, huge[i]);
    CHECK(plain == FOREBAY_ERROR_INVALID_ARGUMENT || plain == FOREBAY_ERROR_OUT_OF_MEMORY);
    CHECK(block == NULL);
    const forebay_stats after = accounts(pool);
    check_same_live(&before, &after);
    check_sum(&after);
  }
}

static void alignments(void) {
  int mark = 0;
  const size_t refused[] = {0, 3, 257, (size_t)1 << 30, (size_t)1 << 22, (size_t)1 << 63};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    void *block = &mark;
    REFUSED(forebay_alloc_aligned(pool, &block, 4096, refused[i], NULL),
            FOREBAY_ERROR_INVALID_ARGUMENT);
    CHECK(block == NULL);
  }
  for (size_t alignment = 1; alignment <= MIB(2); alignment *= 2) {
    void *block = NULL;
    CHECK_OK(forebay_alloc_aligned(pool, &block, 1000, alignment, NULL));
    CHECK(block != NULL && (uintptr_t)block % alignment == 0);
    CHECK((uintptr_t)block % 256 == 0);
    bytes_fill(block, 1000, 1);
    CHECK_OK(forebay_dealloc(pool, block, NULL));
  }
}

static void null_arguments(void) {
  REFUSED(forebay_malloc(NULL, 100), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_malloc_async(NULL, 100, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_alloc(pool, NULL, 100, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_alloc_aligned(pool, NULL, 100, 256, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_pool_create(NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_pool_options_init(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_pool_default(0, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_pool_stats(pool, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_pool_leaks(pool, NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_tag_create(NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_tag_bytes(pool, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_host_alloc(NULL, 100), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_buffers_create(pool, 4096, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_stream_create(pool, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  REFUSED(forebay_capture_begin(NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  size_t usable = 0;
  REFUSED(forebay_usable_size(NULL, &usable), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(!forebay_owns(NULL));
}

/* One block of `bytes` through every wrong way to free it. */
static void frees(size_t bytes) {
  void *block = NULL;
  CHECK_OK(forebay_alloc(pool, &block, bytes, NULL));
  bytes_fill(block, bytes, 0x5a);
  const size_t inside[] = {1, 8, 256, bytes / 2, bytes - 1};
  for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) {
    char *at = (char *)block + inside[i];
    REFUSED(forebay_dealloc(pool, at, NULL), FOREBAY_ERROR_INTERIOR_POINTER);
    REFUSED(forebay_free(at), FOREBAY_ERROR_INTERIOR_POINTER);
  }
  CHECK(bytes_are(block, bytes, 0x5a));
  CHECK_OK(forebay_dealloc(pool, block, NULL));
  REFUSED(forebay_dealloc(pool, block, NULL), FOREBAY_ERROR_DOUBLE_FREE);
  REFUSED(forebay_free(block), FOREBAY_ERROR_DOUBLE_FREE);
  REFUSED(forebay_free_async(block, NULL), FOREBAY_ERROR_DOUBLE_FREE);

  void *sync = NULL;
  CHECK_OK(forebay_malloc(&sync, bytes));
  CHECK_STATUS(forebay_free((char *)sync + 1), FOREBAY_ERROR_INTERIOR_POINTER);
  CHECK_OK(forebay_free(sync));
  CHECK_STATUS(forebay_free(sync), FOREBAY_ERROR_DOUBLE_FREE);
}

static void foreign(void) {
  int on_stack = 0;
  void *heap = malloc(100);
  const void *const foreign[] = {&on_stack, heap, (void *)&pool, (void *)16, (void *)~(uintptr_t)0};
  for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
    void *at = (void *)(uintptr_t)foreign[i];
    size_t usable = 7;
    REFUSED(forebay_free(at), FOREBAY_ERROR_NOT_OWNED);
    REFUSED(forebay_free_async(at, NULL), FOREBAY_ERROR_NOT_OWNED);
    REFUSED(forebay_dealloc(pool, at, NULL), FOREBAY_ERROR_NOT_OWNED);
    REFUSED(forebay_record_use(pool, at, NULL), FOREBAY_ERROR_NOT_OWNED);
    REFUSED(forebay_usable_size(at, &usable), FOREBAY_ERROR_NOT_OWNED);
    REFUSED(forebay_pin(at), FOREBAY_ERROR_NOT_OWNED);
    CHECK(!forebay_owns(at));
  }
  free(heap);
}

static void unknown_streams(void) {
  const forebay_stream_t stranger = (forebay_stream_t)NO_STREAM;
  int mark = 0;
  void *block = &mark;
  REFUSED(forebay_alloc(pool, &block, 4096, stranger), FOREBAY_ERROR_INVALID_STREAM);
  CHECK(block == NULL);
  block = &mark;
  REFUSED(forebay_malloc_async(&block, 4096, stranger), FOREBAY_ERROR_INVALID_STREAM);
  CHECK(block == NULL);
  CHECK_OK(forebay_alloc(pool, &block, 4096, NULL));
  REFUSED(forebay_dealloc(pool, block, stranger), FOREBAY_ERROR_INVALID_STREAM);
  REFUSED(forebay_free_async(block, stranger), FOREBAY_ERROR_INVALID_STREAM);
  REFUSED(forebay_record_use(pool, block, stranger), FOREBAY_ERROR_INVALID_STREAM);
  REFUSED(forebay_stream_fill(pool, block, 0, 4096, stranger), FOREBAY_ERROR_INVALID_STREAM);
  REFUSED(forebay_stream_synchronize(pool, stranger), FOREBAY_ERROR_INVALID_STREAM);
  CHECK_OK(forebay_dealloc(pool, block, NULL));

  forebay_stream_t gone = NULL;
  CHECK_OK(forebay_stream_create(pool, &gone));
  CHECK_OK(forebay_stream_destroy(pool, gone));
  REFUSED(forebay_alloc(pool, &block, 4096, gone), FOREBAY_ERROR_INVALID_STREAM);
  REFUSED(forebay_stream_destroy(pool, gone), FOREBAY_ERROR_INVALID_STREAM);
}

static void pools_after_their_end(void) {
  forebay_pool_t gone = new_pool(MIB(64));
  CHECK_OK(forebay_pool_destroy(gone));
  int mark = 0;
  void *block = &mark;
  size_t released = 0;
  forebay_stats stats;
  stats.struct_size = sizeof stats;
  REFUSED(forebay_alloc(gone, &block, 100, NULL), FOREBAY_ERROR_INVALID_POOL);
  CHECK(block == NULL);
  REFUSED(forebay_pool_stats(gone, &stats), FOREBAY_ERROR_INVALID_POOL);
  REFUSED(forebay_pool_trim(gone, 0, &released), FOREBAY_ERROR_INVALID_POOL);
  REFUSED(forebay_pool_set_limits(gone, MIB(1), 0), FOREBAY_ERROR_INVALID_POOL);
  REFUSED(forebay_pool_destroy(gone), FOREBAY_ERROR_INVALID_POOL);
  const forebay_pool_t never = (forebay_pool_t)(void *)&mark;
  REFUSED(forebay_alloc(never, &block, 100, NULL), FOREBAY_ERROR_INVALID_POOL);
}

int main(void) {
  pool = new_pool(0);
  sizes();
  alignments();
  null_arguments();
  frees(4096);
  frees(KIB(100));
  frees(MIB(3));
  foreign();
  /* CUDA follows a stream's handle wherever it points. */
  if (!on_device()) unknown_streams();
  pools_after_their_end();
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("each wrong use has its own status and leaves the accounts as they were");
}
