/* Steps by plans, through the C functions: recorded, planned, bound, run, asked; and what is said
 * of wrong input. */
#include "check.h"
#include "pattern.h"

#include <inttypes.h>
#include <string.h>

#define K ((size_t)1024)

static forebay_stream_t all_streams(void) {
  return (forebay_stream_t)(uintptr_t)FOREBAY_ALL_STREAMS;
}

static forebay_binding_stats stats_of(forebay_binding_t binding) {
  forebay_binding_stats stats;
  memset(&stats, 0xee, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_OK(forebay_binding_get_stats(binding, &stats));
  return stats;
}

/* Three buffers, of which the third may have the first's bytes. */
static void the_step(forebay_pool_t pool) {
  void *a = NULL;
  void *b = NULL;
  void *c = NULL;
  CHECK_OK(forebay_alloc(pool, &a, 8 * K, NULL));
  CHECK_OK(forebay_alloc(pool, &b, 4 * K, NULL));
  CHECK_OK(forebay_dealloc(pool, a, NULL));
  CHECK_OK(forebay_alloc(pool, &c, 8 * K, NULL));
  CHECK_OK(forebay_dealloc(pool, b, NULL));
  CHECK_OK(forebay_dealloc(pool, c, NULL));
}

static forebay_recording_t recorded(forebay_pool_t pool) {
  forebay_recording_t recording = NULL;
  CHECK_OK(forebay_record_begin(pool, all_streams(), &recording));
  forebay_recording_t inside = recording;
  CHECK_STATUS(forebay_record_begin(pool, all_streams(), &inside), FOREBAY_ERROR_BUSY);
  CHECK(inside == NULL);
  the_step(pool);
  size_t count = 7;
  CHECK_STATUS(forebay_recording_buffers(recording, NULL, 0, &count), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_record_end(recording));
  CHECK_STATUS(forebay_record_end(recording), FOREBAY_ERROR_INVALID_ARGUMENT);

  CHECK_OK(forebay_recording_buffers(recording, NULL, 0, &count));
  CHECK(count == 3);
  forebay_recorded_buffer buffers[3];
  CHECK_STATUS(forebay_recording_buffers(recording, buffers, 2, NULL),
               FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_recording_buffers(recording, NULL, 3, NULL),
               FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_recording_buffers(recording, buffers, 3, &count));
  CHECK(buffers[0].id == 0 && buffers[0].birth == 0 && buffers[0].death == 2);
  CHECK(buffers[1].size == 4 * K && buffers[1].birth == 1 && buffers[1].death == 4);
  CHECK(buffers[2].size == 8 * K && buffers[2].birth == 3 && buffers[2].death == 5);
  CHECK(buffers[2].tag == 1 && buffers[2].lane == 0 && buffers[2].alignment == 512);
  forebay_stream_t stream = all_streams();
  CHECK_OK(forebay_recording_streams(recording, &stream, 1, &count));
  CHECK(count == 1 && stream == NULL);
  return recording;
}

static void run_steps(forebay_binding_t binding, forebay_pool_t pool) {
  forebay_stream_t stream = NULL;
  uint64_t allocs = 0;
  for (int i = 0; i < 100; i++) {
    forebay_step_t step = NULL;
    CHECK_OK(forebay_plan_step(binding, 0, &stream, 1, &step));
    unsigned char *a = NULL;
    unsigned char *b = NULL;
    unsigned char *c = NULL;
    CHECK_OK(forebay_step_alloc(step, (void **)&a, 8 * K, stream));
    CHECK_OK(forebay_step_alloc(step, (void **)&b, 4 * K, stream));
    bytes_fill(a, 8 * K, 1);
    bytes_fill(b, 4 * K, 2);
    CHECK(bytes_are(a, 8 * K, 1));
    CHECK_OK(forebay_step_free(step, a, stream));
    CHECK_OK(forebay_step_alloc(step, (void **)&c, 8 * K, stream));
    CHECK(c == a);
    bytes_fill(c, 8 * K, 3);
    CHECK(bytes_are(b, 4 * K, 2));
    CHECK_STATUS(forebay_step_end(step), FOREBAY_ERROR_BUSY);
    CHECK_OK(forebay_step_free(step, b, stream));
    CHECK_OK(forebay_step_free(step, c, stream));
    CHECK_OK(forebay_step_free(step, NULL, stream));
    CHECK_OK(forebay_step_end(step));
    CHECK_STATUS(forebay_step_end(step), FOREBAY_ERROR_INVALID_ARGUMENT);
    forebay_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(forebay_pool_stats(pool, &stats));
    CHECK(i == 0 || stats.allocs == allocs);
    allocs = stats.allocs;
  }
  const forebay_binding_stats stats = stats_of(binding);
  CHECK(stats.steps == 100 && stats.served == 300 && stats.fallbacks == 0 && stats.late == 0);
  CHECK(stats.plan_block_bytes == 12 * K && stats.plans == 1);
}

static void run_astray(forebay_binding_t binding) {
  forebay_stream_t stream = NULL;
  forebay_step_t step = NULL;
  void *planned = NULL;
  void *other = NULL;
  void *gap = NULL;
  CHECK_OK(forebay_plan_step(binding, 0, &stream, 1, &step));
  CHECK_OK(forebay_step_alloc(step, &planned, 8 * K, stream));
  CHECK_OK(forebay_step_alloc(step, &other, 5 * K, stream));
  CHECK_OK(forebay_step_alloc_within(step, &gap, 64, 0, stream));
  CHECK_STATUS(forebay_step_fence(step, stream, all_streams()), FOREBAY_ERROR_INVALID_STREAM);
  CHECK_STATUS(forebay_step_free(step, (char *)planned + 1, stream),
               FOREBAY_ERROR_INTERIOR_POINTER);
  CHECK_STATUS(forebay_step_free(step, &stream, stream), FOREBAY_ERROR_NOT_OWNED);
  CHECK(forebay_dealloc(NULL, planned, NULL) != FOREBAY_OK);
  CHECK_OK(forebay_step_free(step, planned, stream));
  CHECK_STATUS(forebay_step_free(step, planned, stream), FOREBAY_ERROR_DOUBLE_FREE);
  CHECK_OK(forebay_step_free(step, other, stream));
  CHECK_OK(forebay_step_free(step, gap, stream));
  CHECK_STATUS(forebay_plan_unbind(binding), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_step_abandon(step));
  CHECK_STATUS(forebay_step_alloc(step, &other, 64, stream), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(other == NULL);
  const forebay_binding_stats stats = stats_of(binding);
  CHECK(stats.fallbacks == 1 && stats.missing == 1 && stats.gaps_missed == 1);
}

static void several_plans(forebay_pool_t pool, forebay_plan_t plan) {
  forebay_binding_options options;
  memset(&options, 0xee, sizeof options);
  CHECK_OK(forebay_binding_options_init(&options));
  CHECK(options.struct_size == sizeof options && options.bytes == 0 && options.plans_max == 64);
  forebay_binding_t binding = NULL;
  options.bytes = 4 * K;
  CHECK_OK(forebay_binding_create(pool, &options, &binding));
  CHECK_STATUS(forebay_binding_add(binding, 1, plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(forebay_last_error(), "the plan takes 12288 bytes") != NULL);
  CHECK_OK(forebay_plan_unbind(binding));
  options.bytes = 0;
  CHECK_OK(forebay_binding_create(pool, &options, &binding));
  CHECK_OK(forebay_binding_add(binding, 1, plan));
  CHECK_OK(forebay_binding_learn(binding, 2));
  /* A shape that is still to be learnt has no plan. */
  CHECK(stats_of(binding).plans == 1);
  forebay_stream_t stream = NULL;
  forebay_step_t step = NULL;
  CHECK_STATUS(forebay_plan_step(binding, 3, &stream, 1, &step), FOREBAY_ERROR_NOT_FOUND);
  CHECK_STATUS(forebay_plan_step(binding, 1, NULL, 1, &step), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_step(binding, 1, &stream, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_plan_step(binding, 1, &stream, 1, &step));
  CHECK_OK(forebay_step_end(step));
  CHECK(stats_of(binding).missing == 3);
  CHECK_OK(forebay_plan_unbind(binding));
  options.struct_size = 3;
  CHECK_STATUS(forebay_binding_create(pool, &options, &binding), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(binding == NULL);
}

static void wrong_input(void) {
  CHECK_STATUS(forebay_record_begin(NULL, NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_record_end(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_record_fence(NULL, NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_recording_destroy(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_bind(NULL, NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_unbind(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_binding_options_init(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_binding_get_stats(NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_step_end(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_step_abandon(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_step_alloc(NULL, NULL, 64, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  void *address = &address;
  CHECK_STATUS(forebay_step_alloc(NULL, &address, 64, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(address == NULL);
  CHECK_STATUS(forebay_step_free(NULL, &address, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
}

int main(void) {
  wrong_input();
  forebay_pool_options options;
  CHECK_OK(forebay_pool_options_init(&options));
  options.limit = 64 << 20;
  forebay_pool_t pool = NULL;
  CHECK_OK(forebay_pool_create(&pool, &options));
  forebay_recording_t recording = recorded(pool);
  forebay_plan_t plan = NULL;
  CHECK_OK(forebay_plan_create_from_recording(recording, NULL, &plan));
  CHECK_OK(forebay_recording_destroy(recording));
  forebay_binding_t binding = NULL;
  CHECK_OK(forebay_plan_bind(plan, pool, &binding));
  forebay_binding_t twice = binding;
  CHECK_STATUS(forebay_plan_bind(plan, pool, &twice), FOREBAY_ERROR_BUSY);
  CHECK(twice == NULL);
  run_steps(binding, pool);
  run_astray(binding);
  several_plans(pool, plan);
  CHECK_OK(forebay_plan_unbind(binding));
  CHECK_OK(forebay_plan_destroy(plan));
  CHECK_STATUS(forebay_plan_bind(plan, pool, &binding), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("steps are recorded, planned, bound and run as the header says");
}
