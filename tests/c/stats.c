/* The accounts: disjoint states that sum to what is mapped at every quiet step, counters that
 * agree, a struct that may be shorter than the library's, and the report as JSON. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <string.h>

enum { ROUNDS = 2000, SLOTS = 200 };

static void sums_hold(void) {
  forebay_pool_t pool = new_pool(MIB(256));
  forebay_stream_t streams[2];
  CHECK_OK(forebay_stream_create(pool, &streams[0]));
  CHECK_OK(forebay_stream_create(pool, &streams[1]));
  void *blocks[SLOTS] = {NULL};
  size_t sizes[SLOTS] = {0};
  uint64_t seed = 7;
  uint64_t count = 0;
  for (int round = 0; round < ROUNDS; round++) {
    const size_t i = (size_t)(random_next(&seed) % SLOTS);
    const forebay_stream_t stream = streams[random_next(&seed) % 2];
    if (blocks[i] != NULL) {
      CHECK_OK(forebay_dealloc(pool, blocks[i], stream));
      blocks[i] = NULL;
      count--;
    } else {
      sizes[i] = random_size(&seed, 1, MIB(1));
      CHECK_OK(forebay_alloc(pool, &blocks[i], sizes[i], stream));
      count++;
    }
    const forebay_stats now = accounts(pool);
    check_sum(&now);
    /* Slots keep no exact request: the mean of all requests stands for the live ones. */
    CHECK(now.requested_bytes <= now.live_bytes);
    CHECK(count == 0 || now.requested_bytes >= now.live_bytes / 4);
    CHECK(now.live_blocks == count);
  }
  for (size_t i = 0; i < SLOTS; i++) {
    if (blocks[i] != NULL) CHECK_OK(forebay_dealloc(pool, blocks[i], streams[0]));
  }
  const forebay_stats end = accounts(pool);
  check_sum(&end);
  CHECK(end.live_bytes == 0 && end.requested_bytes == 0 && end.live_blocks == 0);
  CHECK(end.peak_live_bytes > 0);
  CHECK(end.pages_created >= end.pages_released);
  CHECK(end.stranded_pages == 0 && end.oom_count == 0);
  CHECK(end.driver_calls >= end.map_calls + end.unmap_calls + end.set_access_calls);
  CHECK_OK(forebay_stream_destroy(pool, streams[0]));
  CHECK_OK(forebay_stream_destroy(pool, streams[1]));
  CHECK_OK(forebay_pool_destroy(pool));
}

static void steady_state_makes_no_driver_calls(void) {
  forebay_pool_t pool = new_pool(MIB(256));
  void *block = NULL;
  uint64_t calls = 0;
  for (int round = 0; round < 200; round++) {
    if (round == 100) calls = accounts(pool).driver_calls;
    for (size_t bytes = 256; bytes <= MIB(16); bytes *= 4) {
      CHECK_OK(forebay_alloc(pool, &block, bytes, NULL));
      CHECK_OK(forebay_dealloc(pool, block, NULL));
    }
  }
  CHECK(accounts(pool).driver_calls == calls);
  CHECK_OK(forebay_pool_destroy(pool));
}

static void shorter_structs(void) {
  forebay_stats stats;
  memset(&stats, 0xab, sizeof stats);
  stats.struct_size = offsetof(forebay_stats, pending_bytes);
  CHECK_OK(forebay_pool_stats(NULL, &stats));
  CHECK(stats.live_bytes != UINT64_C(0xabababababababab));
  CHECK(bytes_are(&stats.pending_bytes, sizeof stats - offsetof(forebay_stats, pending_bytes),
                  0xab));
  stats.struct_size = 0;
  CHECK_STATUS(forebay_pool_stats(NULL, &stats), FOREBAY_ERROR_INVALID_ARGUMENT);

  /* A caller built against a later, longer struct: what the library lacks reads as 0. */
  struct {
    forebay_stats known;
    uint64_t later[4];
  } longer;
  memset(&longer, 0xab, sizeof longer);
  longer.known.struct_size = sizeof longer;
  CHECK_OK(forebay_pool_stats(NULL, &longer.known));
  CHECK(bytes_are(longer.later, sizeof longer.later, 0));
}

static void report_json(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  size_t needed = 0;
  CHECK_OK(forebay_pool_report_json(pool, NULL, 0, &needed));
  CHECK(needed > 2);
  char *text = malloc(needed);
  CHECK(text != NULL);
  size_t again = 0;
  CHECK_OK(forebay_pool_report_json(pool, text, needed, &again));
  CHECK(again == needed);
  CHECK(strlen(text) + 1 == needed);
  CHECK(text[0] == '{' && text[needed - 2] == '}');
  CHECK(strstr(text, "\"live_bytes\"") != NULL && strstr(text, "\"mapped_bytes\"") != NULL);
  /* Too short: cut, ended by NUL, and the length it needs. */
  char cut[8];
  memset(cut, 0x7f, sizeof cut);
  CHECK_OK(forebay_pool_report_json(pool, cut, 4, &again));
  CHECK(again == needed && strlen(cut) == 3 && cut[4] == 0x7f);
  free(text);
  CHECK_OK(forebay_pool_destroy(pool));
}

int main(void) {
  sums_hold();
  steady_state_makes_no_driver_calls();
  shorter_structs();
  report_json();
  return shown("live + cached + pending + trapped + idle + other = mapped, at every step");
}
