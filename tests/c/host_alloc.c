/* Pinned host memory: contents, alignment, many sizes at once, and wrong frees. */
#include "check.h"
#include "pattern.h"

static const size_t SIZES[] = {1, 300, 4096, KIB(64), KIB(300), MIB(1), MIB(3)};
enum { SIZE_COUNT = sizeof SIZES / sizeof SIZES[0] };

int main(void) {
  void *blocks[SIZE_COUNT];
  for (size_t i = 0; i < SIZE_COUNT; i++) {
    CHECK_OK(forebay_host_alloc(&blocks[i], SIZES[i]));
    CHECK(blocks[i] != NULL && (uintptr_t)blocks[i] % 256 == 0);
    words_fill(blocks[i], 0, SIZES[i], i << 20);
  }
  void *device = NULL;
  CHECK_OK(forebay_malloc(&device, MIB(1)));
  pattern_fill(device, MIB(1), 77);
  for (size_t i = 0; i < SIZE_COUNT; i++) {
    CHECK(words_hold(blocks[i], 0, SIZES[i], (uint64_t)i << 20));
  }
  CHECK(pattern_holds(device, MIB(1), 77));
  CHECK_OK(forebay_free(device));

  CHECK_STATUS(forebay_host_free((char *)blocks[2] + 8), FOREBAY_ERROR_INTERIOR_POINTER);
  for (size_t i = 0; i < SIZE_COUNT; i++) CHECK_OK(forebay_host_free(blocks[i]));
  CHECK_STATUS(forebay_host_free(blocks[2]), FOREBAY_ERROR_DOUBLE_FREE);
  CHECK_STATUS(forebay_host_free(&device), FOREBAY_ERROR_NOT_OWNED);
  CHECK_OK(forebay_host_free(NULL));

  void *block = &device;
  CHECK_OK(forebay_host_alloc(&block, 0));
  CHECK(block == NULL);
  block = &device;
  const forebay_status status = forebay_host_alloc(&block, (size_t)1 << 63);
  CHECK(status == FOREBAY_ERROR_INVALID_ARGUMENT || status == FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(block == NULL);
  return shown("pinned host memory holds what was written and knows wrong frees");
}
