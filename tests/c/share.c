/* Memory that others use: an export of a block's pages and its import, by this process and by a
 * child; peers of a device that has none. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static forebay_export described(void) {
  forebay_export export;
  memset(&export, 0, sizeof export);
  export.struct_size = sizeof export;
  return export;
}

/* The child's whole program: descriptors 10 and 11 are pages of its parent's. */
static int importing(const char *bytes) {
  const int fds[2] = {10, 11};
  forebay_export export = described();
  export.bytes = strtoull(bytes, NULL, 10);
  export.count = 2;
  export.page_bytes = export.bytes / 2;
  void *memory = NULL;
  CHECK_OK(forebay_import_fd(NULL, fds, &export, &memory));
  CHECK(pattern_holds(memory, export.bytes, 5));
  pattern_fill(memory, export.bytes, 6);
  CHECK_OK(forebay_free(memory));
  return 0;
}

static void by_a_child(const char *program, const int *fds, const forebay_export *export) {
  char bytes[32];
  snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)export->bytes);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (dup2(fds[0], 10) != 10 || dup2(fds[1], 11) != 11) _exit(2);
    execl(program, program, bytes, (char *)NULL);
    _exit(3);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
  if (argc > 1) return importing(argv[1]);
  forebay_pool_t pool = new_pool(MIB(32));
  void *block = NULL;
  void *small = NULL;
  CHECK_OK(forebay_alloc_aligned(pool, &block, MIB(4), MIB(2), NULL));
  CHECK_OK(forebay_alloc(pool, &small, 4096, NULL));
  forebay_export export = described();
  int fds[2] = {-1, -1};
  CHECK_STATUS(forebay_export_fd(small, fds, 2, &export), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(forebay_last_error(), "allocate a multiple of") != NULL);
  CHECK_OK(forebay_export_fd(block, NULL, 0, &export));
  CHECK(export.count == 2 && export.id == 0 && export.offset == 0);
  CHECK_STATUS(forebay_export_fd(block, fds, 1, &export), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(fds[0] == -1 && fds[1] == -1);
  CHECK_OK(forebay_export_fd(block, fds, 2, &export));
  CHECK(fds[0] >= 0 && fds[1] >= 0 && export.id != 0 && export.bytes == MIB(4));

  void *twin = NULL;
  CHECK_OK(forebay_import_fd(pool, fds, &export, &twin));
  CHECK(twin != block);
  pattern_fill(block, MIB(4), 5);
  CHECK(pattern_holds(twin, MIB(4), 5));
  by_a_child(argv[0], fds, &export);
  CHECK(pattern_holds(twin, MIB(4), 6));
  const forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.other_bytes >= MIB(4));

  const int wrong[2] = {fds[0], STDERR_FILENO};
  void *none = block;
  CHECK_STATUS(forebay_import_fd(pool, wrong, &export, &none), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(none == NULL);
  CHECK_OK(forebay_free(twin));
  CHECK_STATUS(forebay_free(twin), FOREBAY_ERROR_DOUBLE_FREE);
  CHECK_OK(forebay_free(block)); /* held until the export is closed */
  CHECK_STATUS(forebay_free(block), FOREBAY_ERROR_DOUBLE_FREE);
  CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
  CHECK_OK(forebay_export_close(export.id));
  CHECK_STATUS(forebay_export_close(export.id), FOREBAY_ERROR_INVALID_ARGUMENT);

  CHECK_STATUS(forebay_pool_enable_peer(pool, 1), FOREBAY_ERROR_UNSUPPORTED);
  CHECK_STATUS(forebay_pool_enable_peer(pool, -1), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_pool_disable_peer(pool, 1), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_free(small));
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("exported pages are the same memory here and in a child");
}
