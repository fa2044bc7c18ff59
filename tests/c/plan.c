/* Static plans: from buffers, from a file, from bytes; figures, offsets, budgets, and what is
 * said of wrong input. No device is touched. */
#include "check.h"

#include <inttypes.h>
#include <string.h>

static forebay_plan_buffer buffer(uint64_t id, uint64_t birth, uint64_t death, uint64_t size) {
  const forebay_plan_buffer made = {id, birth, death, size, 0, FOREBAY_PLAN_ANYWHERE};
  return made;
}

static forebay_plan_options defaults(void) {
  forebay_plan_options options;
  memset(&options, 0xee, sizeof options);
  CHECK_OK(forebay_plan_options_init(&options));
  CHECK(options.struct_size == sizeof options);
  CHECK(options.capacity == 0 && options.searchers == 1 && options.progress == NULL);
  return options;
}

static forebay_plan_info info_of(forebay_plan_t plan) {
  forebay_plan_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  CHECK_OK(forebay_plan_get_info(plan, &info));
  CHECK(info.height - info.bound == info.gap);
  return info;
}

/* Five buffers that come to 12 at most, as in MiniMalloc's first example. */
static void five(forebay_plan_buffer *all) {
  all[0] = buffer(101, 0, 3, 4);
  all[1] = buffer(102, 3, 9, 4);
  all[2] = buffer(103, 0, 9, 4);
  all[3] = buffer(104, 9, 21, 4);
  all[4] = buffer(105, 0, 21, 4);
}

static void from_buffers(void) {
  forebay_plan_buffer all[5];
  five(all);
  forebay_plan_t plan = NULL;
  CHECK_OK(forebay_plan_create(all, 5, NULL, &plan));
  const forebay_plan_info info = info_of(plan);
  CHECK(info.buffers == 5 && info.height == 12 && info.bound == 12 && info.alignment == 1);

  uint64_t offsets[5];
  CHECK_OK(forebay_plan_offsets(plan, offsets, 5));
  for (int i = 0; i < 5; i++) {
    uint64_t one = 99;
    CHECK_OK(forebay_plan_offset(plan, all[i].id, &one));
    CHECK(one == offsets[i] && one + all[i].size <= 12);
    for (int j = 0; j < i; j++) {
      const int meet = all[i].birth < all[j].death && all[j].birth < all[i].death;
      CHECK(!meet || offsets[i] + 4 <= offsets[j] || offsets[j] + 4 <= offsets[i]);
    }
  }
  uint64_t none = 7;
  CHECK_STATUS(forebay_plan_offset(plan, 1, &none), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(none == 7 && strstr(forebay_last_error(), "no buffer 1") != NULL);
  CHECK_STATUS(forebay_plan_offsets(plan, offsets, 4), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_offset(plan, 101, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_plan_destroy(plan));
  CHECK_STATUS(forebay_plan_destroy(plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_offset(plan, 101, &none), FOREBAY_ERROR_INVALID_ARGUMENT);

  CHECK_OK(forebay_plan_create(NULL, 0, NULL, &plan));
  CHECK(info_of(plan).height == 0);
  CHECK_OK(forebay_plan_offsets(plan, NULL, 0));
  CHECK_OK(forebay_plan_destroy(plan));
}

static void capacities(void) {
  forebay_plan_buffer all[5];
  five(all);
  forebay_plan_options options = defaults();
  options.capacity = 11;
  forebay_plan_t plan = (forebay_plan_t)(void *)all;
  CHECK_STATUS(forebay_plan_create(all, 5, &options, &plan), FOREBAY_ERROR_INFEASIBLE);
  CHECK(plan == NULL && strstr(forebay_last_error(), "come to 12") != NULL);
  options.capacity = 12;
  CHECK_OK(forebay_plan_create(all, 5, &options, &plan));
  CHECK_OK(forebay_plan_destroy(plan));
  all[1].fixed_offset = 8;
  all[1].alignment = 8;
  CHECK_OK(forebay_plan_create(all, 5, &options, &plan));
  uint64_t at = 0;
  CHECK_OK(forebay_plan_offset(plan, 102, &at));
  CHECK(at == 8 && info_of(plan).alignment == 8);
  CHECK_OK(forebay_plan_destroy(plan));
}

static void wrong_input(void) {
  forebay_plan_buffer all[2] = {buffer(1, 0, 5, 64), buffer(2, 3, 3, 64)};
  forebay_plan_t plan = NULL;
  CHECK_STATUS(forebay_plan_create(all, 2, NULL, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(forebay_last_error(), "buffer 2 has an empty lifetime") != NULL);
  all[1] = buffer(1, 3, 4, 64);
  CHECK_STATUS(forebay_plan_create(all, 2, NULL, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(forebay_last_error(), "id 1") != NULL);
  CHECK_STATUS(forebay_plan_create(NULL, 2, NULL, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_create(all, SIZE_MAX, NULL, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_create(all, 1, NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  forebay_plan_options options = defaults();
  options.struct_size = 8;
  CHECK_STATUS(forebay_plan_create(all, 1, &options, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  options = defaults();
  options.flags = 1;
  CHECK_STATUS(forebay_plan_create(all, 1, &options, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  options = defaults();
  options.searchers = 0;
  CHECK_STATUS(forebay_plan_create(all, 1, &options, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(plan == NULL);
  forebay_plan_info info;
  info.struct_size = 4;
  CHECK_STATUS(forebay_plan_get_info(NULL, &info), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_get_info(NULL, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_destroy(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_options_init(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
}

static void kept_in_bytes(void) {
  forebay_plan_buffer all[5];
  five(all);
  forebay_plan_t plan = NULL;
  CHECK_OK(forebay_plan_create(all, 5, NULL, &plan));
  size_t needed = 0;
  CHECK_OK(forebay_plan_save(plan, NULL, 0, &needed));
  CHECK(needed == 40 + 5 * 56 + 8);
  unsigned char bytes[512];
  memset(bytes, 0xee, sizeof bytes);
  CHECK_STATUS(forebay_plan_save(plan, bytes, needed - 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(bytes[0] == 0xee);
  CHECK_STATUS(forebay_plan_save(plan, NULL, needed, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_plan_save(plan, bytes, sizeof bytes, &needed));
  CHECK(bytes[needed] == 0xee);

  forebay_plan_t loaded = NULL;
  CHECK_OK(forebay_plan_load(bytes, needed, &loaded));
  CHECK(loaded != plan && info_of(loaded).height == 12);
  uint64_t first[5];
  uint64_t second[5];
  CHECK_OK(forebay_plan_offsets(plan, first, 5));
  CHECK_OK(forebay_plan_offsets(loaded, second, 5));
  CHECK(memcmp(first, second, sizeof first) == 0);
  CHECK_OK(forebay_plan_destroy(loaded));
  CHECK_OK(forebay_plan_destroy(plan));

  loaded = plan;
  CHECK_STATUS(forebay_plan_load(bytes, needed - 1, &loaded), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(loaded == NULL && strstr(forebay_last_error(), "cut short") != NULL);
  bytes[60] ^= 1;
  CHECK_STATUS(forebay_plan_load(bytes, needed, &loaded), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(forebay_last_error(), "checksum") != NULL);
  CHECK_STATUS(forebay_plan_load(NULL, needed, &loaded), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_load(NULL, 0, &loaded), FOREBAY_ERROR_INVALID_ARGUMENT);
}

static void from_a_file(void) {
  char path[64];
  snprintf(path, sizeof path, "plan-%p.csv", (void *)path);
  FILE *file = fopen(path, "w");
  CHECK(file != NULL);
  fputs("id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n", file);
  CHECK(fclose(file) == 0);
  forebay_plan_t plan = NULL;
  CHECK_OK(forebay_plan_create_from_file(path, NULL, &plan));
  CHECK(info_of(plan).height == 12 && info_of(plan).buffers == 5);
  CHECK_OK(forebay_plan_destroy(plan));
  file = fopen(path, "w");
  CHECK(file != NULL);
  fputs("id,lower,upper,size\n1,0,3,oops\n", file);
  CHECK(fclose(file) == 0);
  CHECK_STATUS(forebay_plan_create_from_file(path, NULL, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(plan == NULL && strstr(forebay_last_error(), "line 2") != NULL);
  CHECK(remove(path) == 0);
  CHECK_STATUS(forebay_plan_create_from_file(path, NULL, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_plan_create_from_file(NULL, NULL, &plan), FOREBAY_ERROR_INVALID_ARGUMENT);
}

static int reports;

static int32_t give_up(void *ctx, const forebay_plan_progress *progress) {
  CHECK(ctx == (void *)&reports && progress->struct_size == sizeof *progress);
  CHECK(progress->height >= progress->bound && progress->bound > 0);
  reports += 1;
  return 0;
}

/* Buffers that no plan can be proven best for quickly: the search ends when it is told. */
static void cancelled(void) {
  enum { COUNT = 300 };
  static forebay_plan_buffer all[COUNT];
  uint64_t random = 12345;
  for (uint64_t i = 0; i < COUNT; i++) {
    random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const uint64_t birth = (random >> 33) % 100;
    const uint64_t life = 1 + (random >> 43) % 40;
    all[i] = buffer(i, birth, birth + life, 1 + (random >> 20) % 997);
  }
  forebay_plan_options options = defaults();
  options.effort = UINT64_MAX;
  options.time_ms = 60000;
  options.progress = give_up;
  options.progress_ctx = &reports;
  forebay_plan_t plan = NULL;
  CHECK_OK(forebay_plan_create(all, COUNT, &options, &plan));
  CHECK(reports == 1 || info_of(plan).gap == 0);
  CHECK_OK(forebay_plan_destroy(plan));
}

int main(void) {
  from_buffers();
  capacities();
  wrong_input();
  kept_in_bytes();
  from_a_file();
  cancelled();
  return shown("plans are made, asked, kept and refused as the header says");
}
