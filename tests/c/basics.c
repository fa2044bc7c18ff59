/* malloc and free: sizes from 1 byte to 64 MiB, alignment, contents written and read back,
 * usable sizes, ownership, memory information, and the library's names and versions. */
#include "check.h"
#include "pattern.h"

#include <string.h>

static const size_t SIZES[] = {1,          255,        256,         257,         4096,
                               KIB(16),    KIB(64) + 1, KIB(256),   KIB(256) + 1, MIB(1),
                               MIB(2),     MIB(2) + 1, MIB(16),     MIB(64)};
enum { SIZE_COUNT = sizeof SIZES / sizeof SIZES[0], MANY = 2000 };

static void names_and_versions(void) {
  CHECK(forebay_abi_version() >= 1);
  CHECK(strcmp(forebay_version(), "0.1.0") == 0);
  CHECK(strcmp(forebay_status_name(FOREBAY_OK), "FOREBAY_OK") == 0);
  CHECK(strcmp(forebay_status_name(FOREBAY_ERROR_STALE_POINTER),
               "FOREBAY_ERROR_STALE_POINTER") == 0);
  CHECK(forebay_status_name(12345) != NULL);
  CHECK(forebay_status_name(-1) != NULL);
  CHECK(forebay_last_error() != NULL);
}

static void one_at_a_time(void) {
  for (size_t i = 0; i < SIZE_COUNT; i++) {
    void *block = NULL;
    CHECK_OK(forebay_malloc(&block, SIZES[i]));
    CHECK(block != NULL);
    CHECK((uintptr_t)block % 256 == 0);
    pattern_fill(block, SIZES[i], i);
    CHECK(pattern_holds(block, SIZES[i], i));
    size_t usable = 0;
    CHECK_OK(forebay_usable_size(block, &usable));
    CHECK(usable >= SIZES[i]);
    CHECK(forebay_owns(block));
    CHECK_OK(forebay_free(block));
  }
}

static void all_at_once(void) {
  void *blocks[SIZE_COUNT];
  for (size_t i = 0; i < SIZE_COUNT; i++) {
    CHECK_OK(forebay_malloc(&blocks[i], SIZES[i]));
    pattern_fill(blocks[i], SIZES[i], 1000 * i);
  }
  for (size_t i = 0; i < SIZE_COUNT; i++) CHECK(pattern_holds(blocks[i], SIZES[i], 1000 * i));
  for (size_t i = 0; i < SIZE_COUNT; i++) CHECK_OK(forebay_free(blocks[i]));
}

static void many_small(void) {
  static void *blocks[MANY];
  for (size_t i = 0; i < MANY; i++) {
    CHECK_OK(forebay_malloc(&blocks[i], 64 + i));
    pattern_fill(blocks[i], 64 + i, i << 32);
  }
  for (size_t i = 0; i < MANY; i++) {
    CHECK(pattern_holds(blocks[i], 64 + i, (uint64_t)i << 32));
    CHECK_OK(forebay_free(blocks[i]));
  }
}

static void memory_information(void) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CHECK_OK(forebay_mem_info(&free_bytes, &total_bytes));
  CHECK(total_bytes > 0);
  CHECK(free_bytes <= total_bytes);
  CHECK_OK(forebay_mem_info(NULL, NULL));
  CHECK_OK(forebay_mem_info(&free_bytes, NULL));
}

int main(void) {
  names_and_versions();
  one_at_a_time();
  all_at_once();
  many_small();
  memory_information();
  CHECK_OK(forebay_free(NULL));
  return shown("sizes 1 B to 64 MiB hold what was written, at 256-byte alignment");
}
