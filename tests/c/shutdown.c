/* After forebay_shutdown: allocations and queries answer FOREBAY_ERROR_SHUT_DOWN, frees
 * succeed silently whatever they are given, and shutting down again is fine. */
#include "check.h"

#include <pthread.h>

static void *block;

static void *another_thread(void *unused) {
  (void)unused;
  void *late = &block;
  CHECK_STATUS(forebay_malloc(&late, 100), FOREBAY_ERROR_SHUT_DOWN);
  CHECK(late == NULL);
  CHECK_OK(forebay_free(block));
  return NULL;
}

int main(void) {
  forebay_pool_t pool = NULL;
  forebay_stream_t stream = NULL;
  void *other = NULL;
  void *pinned = NULL;
  CHECK_OK(forebay_pool_create(&pool, NULL));
  CHECK_OK(forebay_stream_create(pool, &stream));
  CHECK_OK(forebay_malloc(&block, MIB(1)));
  CHECK_OK(forebay_alloc(pool, &other, 4096, stream));
  CHECK_OK(forebay_host_alloc(&pinned, 4096));
  CHECK_OK(forebay_shutdown());

  void *late = &block;
  CHECK_STATUS(forebay_malloc(&late, 100), FOREBAY_ERROR_SHUT_DOWN);
  CHECK(late == NULL);
  late = &block;
  CHECK_STATUS(forebay_alloc(pool, &late, MIB(1), stream), FOREBAY_ERROR_SHUT_DOWN);
  CHECK(late == NULL);
  late = &block;
  CHECK_STATUS(forebay_host_alloc(&late, 100), FOREBAY_ERROR_SHUT_DOWN);
  CHECK(late == NULL);
  forebay_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_STATUS(forebay_pool_stats(NULL, &stats), FOREBAY_ERROR_SHUT_DOWN);
  size_t free_bytes = 0;
  CHECK_STATUS(forebay_mem_info(&free_bytes, NULL), FOREBAY_ERROR_SHUT_DOWN);
  forebay_pool_t fresh = NULL;
  CHECK_STATUS(forebay_pool_create(&fresh, NULL), FOREBAY_ERROR_SHUT_DOWN);
  CHECK(fresh == NULL);

  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, another_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(forebay_free_async(block, NULL));
  CHECK_OK(forebay_dealloc(pool, other, stream));
  CHECK_OK(forebay_host_free(pinned));
  CHECK_OK(forebay_free(NULL));
  CHECK_OK(forebay_shutdown());
  return shown("after shutdown allocations are refused and frees are silent");
}
