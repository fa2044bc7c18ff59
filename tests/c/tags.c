/* Tags: names become numbers, a thread's current tag stamps what it allocates, live bytes are
 * counted by tag and pool, and a tag belongs to its thread alone. */
#include "accounts.h"
#include "check.h"

#include <pthread.h>
#include <string.h>

enum { UNTAGGED = 1, LAST_TAG = 127 };

static forebay_pool_t pool;
static uint32_t weights;
static uint32_t cache;

static uint64_t tagged(uint32_t tag) {
  uint64_t live = 0;
  CHECK_OK(forebay_tag_bytes(pool, tag, &live));
  return live;
}

static void counted_by_tag(void) {
  CHECK_OK(forebay_tag_create("weights", &weights));
  CHECK_OK(forebay_tag_create("cache", &cache));
  CHECK(weights > UNTAGGED && weights <= LAST_TAG);
  CHECK(cache > UNTAGGED && cache <= LAST_TAG && cache != weights);
  uint32_t same = 0;
  CHECK_OK(forebay_tag_create("weights", &same));
  CHECK(same == weights);

  void *plain = NULL;
  void *small = NULL;
  void *large = NULL;
  uint32_t previous = 0;
  CHECK_OK(forebay_alloc(pool, &plain, MIB(1), NULL));
  CHECK_OK(forebay_tag_set(weights, &previous));
  CHECK(previous == UNTAGGED);
  CHECK_OK(forebay_alloc(pool, &large, MIB(4), NULL));
  CHECK_OK(forebay_tag_set(cache, &previous));
  CHECK(previous == weights);
  CHECK_OK(forebay_alloc(pool, &small, 1024, NULL));
  CHECK_OK(forebay_tag_set(UNTAGGED, NULL));

  CHECK(tagged(UNTAGGED) == MIB(1));
  CHECK(tagged(weights) == MIB(4));
  CHECK(tagged(cache) == 1024);
  CHECK(tagged(UNTAGGED) + tagged(weights) + tagged(cache) == accounts(pool).live_bytes);

  /* The tag is the block's, whatever is current when it is freed. */
  CHECK_OK(forebay_dealloc(pool, large, NULL));
  CHECK_OK(forebay_dealloc(pool, small, NULL));
  CHECK(tagged(weights) == 0 && tagged(cache) == 0 && tagged(UNTAGGED) == MIB(1));
  CHECK_OK(forebay_dealloc(pool, plain, NULL));
  CHECK(tagged(UNTAGGED) == 0);
}

static void *other_thread(void *unused) {
  (void)unused;
  uint32_t previous = 0;
  CHECK_OK(forebay_tag_set(cache, &previous));
  CHECK(previous == UNTAGGED);
  return NULL;
}

static void per_thread(void) {
  CHECK_OK(forebay_tag_set(weights, NULL));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  uint32_t previous = 0;
  CHECK_OK(forebay_tag_set(UNTAGGED, &previous));
  CHECK(previous == weights);
}

static void refused(void) {
  uint32_t previous = 77;
  CHECK_STATUS(forebay_tag_set(0, &previous), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_tag_set(LAST_TAG + 1, &previous), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(previous == 77);
  uint64_t live = 0;
  CHECK_STATUS(forebay_tag_bytes(pool, 0, &live), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_tag_bytes(pool, LAST_TAG + 1, &live), FOREBAY_ERROR_INVALID_ARGUMENT);
}

/* Names run out at 127; the ones there stay. */
static void run_out(void) {
  unsigned made = 0;
  for (unsigned i = 0; i < 200; i++) {
    char name[32];
    snprintf(name, sizeof name, "tag %u", i);
    uint32_t tag = 0;
    const forebay_status status = forebay_tag_create(name, &tag);
    if (status != FOREBAY_OK) {
      CHECK_STATUS(status, FOREBAY_ERROR_INVALID_ARGUMENT);
      break;
    }
    CHECK(tag > UNTAGGED && tag <= LAST_TAG);
    made++;
  }
  CHECK(made == LAST_TAG - UNTAGGED - 2);
  uint32_t same = 0;
  CHECK_OK(forebay_tag_create("cache", &same));
  CHECK(same == cache);
}

int main(void) {
  pool = new_pool(MIB(64));
  counted_by_tag();
  per_thread();
  refused();
  run_out();
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("live bytes are counted by tag, and a tag is its thread's own");
}
