/* FOREBAY_FREE=sync keeps cudaFree's habit: the call waits for the device. The fill queued
 * before the free is done when the free returns, for slots on the fast path too. */
#include "check.h"
#include "pattern.h"

int main(void) {
  CHECK(setenv("FOREBAY_FREE", "sync", 1) == 0);
  const size_t large = MIB(128);
  void *filled = NULL;
  void *small = NULL;
  forebay_stream_t stream = NULL;
  CHECK_OK(forebay_stream_create(NULL, &stream));
  CHECK_OK(forebay_malloc(&filled, large));
  bytes_fill(filled, large, 0);
  /* The thread's caches are warm: the next free could take the fast path. */
  for (int i = 0; i < 100; i++) {
    CHECK_OK(forebay_malloc(&small, 4096));
    CHECK_OK(forebay_free(small));
  }
  for (int round = 1; round <= 3; round++) {
    CHECK_OK(forebay_malloc(&small, 4096));
    CHECK_OK(forebay_stream_fill(NULL, filled, (uint8_t)round, large, stream));
    CHECK_OK(forebay_free(small));
    const size_t looks[] = {0, large / 2, large - 1};
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
      CHECK(bytes_are((char *)filled + looks[i], 1, (unsigned char)round));
    }
  }
  CHECK_OK(forebay_free(filled));
  CHECK_OK(forebay_stream_destroy(NULL, stream));
  printf("a free waits for queued work\n");
  return 0;
}
