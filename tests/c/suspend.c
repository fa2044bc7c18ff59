/* Suspend and resume: memory of a tag goes back to the device and comes back at the same addresses
 * with its contents; blocks freed meanwhile; what is refused; reports of other sizes. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <string.h>

static forebay_pool_t pool;
static uint32_t kv;

static forebay_suspend_report empty(void) {
  forebay_suspend_report report;
  memset(&report, 0xff, sizeof report);
  report.struct_size = sizeof report;
  return report;
}

static bool suspended(void) {
  bool answer = false;
  CHECK_OK(forebay_tag_is_suspended(pool, kv, &answer));
  return answer;
}

static void there_and_back(void) {
  void *kept = NULL;
  void *small = NULL;
  void *gone = NULL;
  void *other = NULL;
  CHECK_OK(forebay_alloc(pool, &other, MIB(2), NULL));
  CHECK_OK(forebay_tag_set(kv, NULL));
  CHECK_OK(forebay_alloc(pool, &kept, MIB(20), NULL));
  CHECK_OK(forebay_alloc(pool, &gone, MIB(6), NULL));
  CHECK_OK(forebay_alloc(pool, &small, 1024, NULL));
  CHECK_OK(forebay_tag_set(1, NULL));
  pattern_fill(kept, MIB(20), 1);
  pattern_fill(small, 1024, 2);
  pattern_fill(other, MIB(2), 3);
  const forebay_stats before = accounts(pool);

  forebay_suspend_report report = empty();
  CHECK_OK(forebay_suspend(pool, &kv, 1, FOREBAY_SUSPEND_OFFLOAD, &report));
  CHECK(report.struct_size == sizeof report && suspended());
  CHECK(report.device_bytes == MIB(28) && report.blocks == 3);
  CHECK(report.host_bytes >= MIB(26) && report.kept_bytes == 0 && report.stuck_bytes == 0);
  forebay_stats asleep = accounts(pool);
  check_sum(&asleep);
  CHECK(asleep.suspended_bytes == MIB(26) + 1024 && asleep.live_bytes == MIB(2));
  CHECK(asleep.suspended_host_bytes == report.host_bytes);
  CHECK(before.mapped_bytes - asleep.mapped_bytes == MIB(28));
  CHECK(pattern_holds(other, MIB(2), 3));

  CHECK_OK(forebay_dealloc(pool, gone, NULL));
  CHECK_STATUS(forebay_dealloc(pool, gone, NULL), FOREBAY_ERROR_DOUBLE_FREE);
  CHECK_STATUS(forebay_pin(kept), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_tag_set(kv, NULL));
  CHECK_STATUS(forebay_alloc(pool, &gone, 100, NULL), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_tag_set(1, NULL));

  /* Others have the memory meanwhile, so that it cannot come back. */
  void *hoard = NULL;
  CHECK_OK(forebay_alloc(pool, &hoard, MIB(56), NULL));
  report = empty();
  CHECK_STATUS(forebay_resume(pool, &kv, 1, &report), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(strstr(forebay_last_error(), "missing") != NULL);
  CHECK(suspended() && report.missing_bytes == MIB(16) && report.host_bytes >= MIB(20));
  CHECK_OK(forebay_dealloc(pool, hoard, NULL));
  CHECK_OK(forebay_resume(pool, &kv, 1, &report));
  CHECK(!suspended() && report.device_bytes == MIB(22) && report.blocks == 2);
  CHECK(report.missing_bytes == 0 && report.host_bytes == 0);
  CHECK(pattern_holds(kept, MIB(20), 1) && pattern_holds(small, 1024, 2));

  CHECK_OK(forebay_suspend(pool, &kv, 1, FOREBAY_SUSPEND_DISCARD, NULL));
  CHECK(accounts(pool).suspended_host_bytes == 0);
  CHECK_OK(forebay_resume(pool, &kv, 1, NULL));
  CHECK_OK(forebay_dealloc(pool, kept, NULL));
  CHECK_OK(forebay_dealloc(pool, small, NULL));
  CHECK_OK(forebay_dealloc(pool, other, NULL));
}

static void refused(void) {
  uint32_t plain = 0;
  bool answer = false;
  CHECK_OK(forebay_tag_create("not suspendable", &plain));
  CHECK_STATUS(forebay_suspend(pool, &plain, 1, 0, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(forebay_last_error(), "not suspendable") != NULL);
  CHECK_STATUS(forebay_resume(pool, &plain, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_tag_suspendable(pool, 1), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_tag_suspendable(pool, 4000), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_suspend(pool, NULL, 1, 0, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_suspend(pool, &kv, 1, 2, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_suspend(pool, &kv, SIZE_MAX, 0, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_tag_is_suspended(pool, kv, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_tag_is_suspended(pool, 99, &answer), FOREBAY_ERROR_INVALID_ARGUMENT);
  forebay_suspend_report small = empty();
  small.struct_size = sizeof small - 1;
  CHECK_STATUS(forebay_suspend(pool, &kv, 1, 0, &small), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(!suspended());
  struct {
    forebay_suspend_report known;
    uint64_t beyond;
  } longer;
  memset(&longer, 0xff, sizeof longer);
  longer.known.struct_size = sizeof longer;
  CHECK_OK(forebay_suspend(pool, NULL, 0, 0, &longer.known));
  CHECK(longer.known.struct_size == sizeof longer && longer.beyond == 0);
  CHECK(longer.known.device_bytes == 0);
}

int main(void) {
  pool = new_pool(MIB(64));
  CHECK_OK(forebay_tag_create("kv", &kv));
  CHECK_OK(forebay_tag_suspendable(pool, kv));
  CHECK_OK(forebay_tag_suspendable(pool, kv));
  there_and_back();
  refused();
  /* A pool ends with what is suspended in it. */
  void *last = NULL;
  CHECK_OK(forebay_tag_set(kv, NULL));
  CHECK_OK(forebay_alloc(pool, &last, MIB(3), NULL));
  CHECK_OK(forebay_suspend(pool, &kv, 1, FOREBAY_SUSPEND_OFFLOAD, NULL));
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("a tag's memory goes and comes back");
}
