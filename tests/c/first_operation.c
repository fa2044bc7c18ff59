/* First operations: each kind of call works as the first one of a process, and as the first
 * one of a thread. Each runs in a process of its own. */
#include "check.h"
#include "child.h"

#include <pthread.h>

static const uintptr_t FOREIGN = 0x10000;

static void op_version(void) { CHECK(forebay_abi_version() >= 1 && forebay_version() != NULL); }
static void op_status_name(void) { CHECK(forebay_status_name(FOREBAY_ERROR_BUSY) != NULL); }
static void op_last_error(void) { CHECK(forebay_last_error()[0] == '\0'); }
static void op_free_null(void) { CHECK_OK(forebay_free(NULL)); }
static void op_free_async_null(void) { CHECK_OK(forebay_free_async(NULL, NULL)); }
static void op_free_foreign(void) {
  CHECK_STATUS(forebay_free((void *)FOREIGN), FOREBAY_ERROR_NOT_OWNED);
}
static void op_dealloc(void) {
  CHECK_STATUS(forebay_dealloc(NULL, (void *)FOREIGN, NULL), FOREBAY_ERROR_NOT_OWNED);
}
static void op_owns(void) { CHECK(!forebay_owns((void *)FOREIGN)); }
static void op_usable_size(void) {
  size_t bytes = 0;
  CHECK_STATUS(forebay_usable_size((void *)FOREIGN, &bytes), FOREBAY_ERROR_NOT_OWNED);
}
static void op_malloc(void) {
  void *block = NULL;
  CHECK_OK(forebay_malloc(&block, 100));
  CHECK_OK(forebay_free(block));
}
static void op_malloc_zero(void) {
  void *block = &block;
  CHECK_OK(forebay_malloc(&block, 0));
  CHECK(block == NULL);
}
static void op_malloc_large(void) {
  void *block = NULL;
  CHECK_OK(forebay_malloc(&block, MIB(5)));
  CHECK_OK(forebay_free(block));
}
static void op_malloc_async(void) {
  void *block = NULL;
  CHECK_OK(forebay_malloc_async(&block, 100, NULL));
  CHECK_OK(forebay_free_async(block, NULL));
}
static void op_alloc_aligned(void) {
  void *block = NULL;
  CHECK_OK(forebay_alloc_aligned(NULL, &block, 100, MIB(2), NULL));
  CHECK_OK(forebay_dealloc(NULL, block, NULL));
}
static void op_mem_info(void) {
  size_t total = 0;
  CHECK_OK(forebay_mem_info(NULL, &total));
  CHECK(total > 0);
}
static void op_pool_options(void) {
  forebay_pool_options options;
  CHECK_OK(forebay_pool_options_init(&options));
}
static void op_pool_create(void) {
  forebay_pool_t pool = NULL;
  CHECK_OK(forebay_pool_create(&pool, NULL));
  CHECK_OK(forebay_pool_destroy(pool));
}
static void op_pool_default(void) {
  forebay_pool_t pool = NULL;
  CHECK_OK(forebay_pool_default(0, &pool));
}
static void op_pool_destroy(void) {
  CHECK_STATUS(forebay_pool_destroy((forebay_pool_t)FOREIGN), FOREBAY_ERROR_INVALID_POOL);
}
static void op_stats(void) {
  forebay_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_OK(forebay_pool_stats(NULL, &stats));
  CHECK(stats.live_bytes == 0);
}
static void op_trim(void) {
  size_t released = 0;
  CHECK_OK(forebay_pool_trim(NULL, 0, &released));
}
static void op_set_limits(void) { CHECK_OK(forebay_pool_set_limits(NULL, 0, 0)); }
static void op_report(void) {
  size_t needed = 0;
  CHECK_OK(forebay_pool_report_json(NULL, NULL, 0, &needed));
}
static void op_record_use(void) {
  CHECK_STATUS(forebay_record_use(NULL, (void *)FOREIGN, NULL), FOREBAY_ERROR_NOT_OWNED);
}
static void op_retire(void) { CHECK_OK(forebay_stream_retire(NULL)); }
static void op_stream(void) {
  forebay_stream_t stream = NULL;
  CHECK_OK(forebay_stream_create(NULL, &stream));
  CHECK_OK(forebay_stream_destroy(NULL, stream));
}
static void op_synchronize(void) { CHECK_OK(forebay_stream_synchronize(NULL, NULL)); }
static void op_capture_end(void) {
  CHECK_STATUS(forebay_capture_end(7), FOREBAY_ERROR_INVALID_ARGUMENT);
}
static void op_pin(void) {
  CHECK_STATUS(forebay_pin((void *)FOREIGN), FOREBAY_ERROR_NOT_OWNED);
}
static void op_tag_create(void) {
  uint32_t tag = 0;
  CHECK_OK(forebay_tag_create("first", &tag));
}
static void op_tag_set(void) { CHECK_OK(forebay_tag_set(1, NULL)); }
static void op_host_alloc(void) {
  void *block = NULL;
  CHECK_OK(forebay_host_alloc(&block, 100));
  CHECK_OK(forebay_host_free(block));
}
static void op_host_free(void) { CHECK_OK(forebay_host_free(NULL)); }
static void op_buffers(void) {
  forebay_buffers_t set = NULL;
  CHECK_OK(forebay_buffers_create(NULL, 4096, 2, &set));
  CHECK_OK(forebay_buffers_destroy(set));
}
static void op_callbacks(void) {
  CHECK_OK(forebay_set_log_callback(NULL, NULL));
  CHECK_OK(forebay_set_oom_callback(NULL, NULL, NULL));
  CHECK_OK(forebay_set_on_unmap(NULL, NULL, NULL));
}
static void op_shutdown(void) { CHECK_OK(forebay_shutdown()); }

static const struct {
  const char *name;
  void (*run)(void);
} OPERATIONS[] = {
    {"version", op_version},           {"status_name", op_status_name},
    {"last_error", op_last_error},     {"free_null", op_free_null},
    {"free_async_null", op_free_async_null}, {"free_foreign", op_free_foreign},
    {"dealloc", op_dealloc},           {"owns", op_owns},
    {"usable_size", op_usable_size},   {"malloc", op_malloc},
    {"malloc_zero", op_malloc_zero},   {"malloc_large", op_malloc_large},
    {"malloc_async", op_malloc_async}, {"alloc_aligned", op_alloc_aligned},
    {"mem_info", op_mem_info},         {"pool_options", op_pool_options},
    {"pool_create", op_pool_create},   {"pool_default", op_pool_default},
    {"pool_destroy", op_pool_destroy}, {"stats", op_stats},
    {"trim", op_trim},                 {"set_limits", op_set_limits},
    {"report", op_report},             {"record_use", op_record_use},
    {"retire", op_retire},             {"stream", op_stream},
    {"synchronize", op_synchronize},   {"capture_end", op_capture_end},
    {"pin", op_pin},                   {"tag_create", op_tag_create},
    {"tag_set", op_tag_set},           {"host_alloc", op_host_alloc},
    {"host_free", op_host_free},       {"buffers", op_buffers},
    {"callbacks", op_callbacks},       {"shutdown", op_shutdown},
};
enum { OPERATION_COUNT = sizeof OPERATIONS / sizeof OPERATIONS[0] };

static void *in_thread(void *number) {
  OPERATIONS[(uintptr_t)number].run();
  return NULL;
}

int main(int argc, char **argv) {
  if (argc > 1) {
    const unsigned long which = strtoul(argv[1], NULL, 10);
    CHECK(which < OPERATION_COUNT);
    OPERATIONS[which].run();
    return 0;
  }
  for (unsigned i = 0; i < OPERATION_COUNT; i++) {
    char number[16];
    snprintf(number, sizeof number, "%u", i);
    child_result result;
    child_run(number, NULL, NULL, &result);
    if (result.code != 0 || result.text[0] != '\0') {
      fprintf(stderr, "first call %s: code %d, wrote: %s\n", OPERATIONS[i].name, result.code,
              result.text);
      return 1;
    }
  }
  /* Each again as a thread's first call; shutdown is the last one of the table. */
  for (uintptr_t i = 0; i < OPERATION_COUNT; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_thread, (void *)i) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  return shown("every kind of call works as a process's and as a thread's first");
}
