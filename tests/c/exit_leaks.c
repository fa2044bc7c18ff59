/* Exit with live allocations: with FOREBAY_LEAKS=summary one leak report on stderr, with its
 * count and bytes; none when nothing is live, and none unless asked for. */
#include "check.h"
#include "child.h"
#include "pattern.h"

enum { LEFT = 3 };

/* What the child does: leaves blocks behind, in caches of a thread that still exists. */
static int leave_blocks(int count) {
  for (int i = 0; i < count; i++) {
    void *block = NULL;
    CHECK_OK(forebay_malloc(&block, MIB(1)));
  }
  void *freed = NULL;
  CHECK_OK(forebay_malloc(&freed, 5000));
  CHECK_OK(forebay_free(freed));
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "leak") == 0) return leave_blocks(LEFT);
  if (argc > 1 && strcmp(argv[1], "clean") == 0) return leave_blocks(0);

  child_result result;
  child_run("leak", "FOREBAY_LEAKS", "summary", &result);
  CHECK(result.code == 0);
  CHECK(child_count(result.text, "leak report") == 1);
  CHECK(strstr(result.text, "3 block") != NULL);
  CHECK(names_bytes(result.text, MIB(LEFT)));

  child_run("leak", "FOREBAY_LEAKS", "full", &result);
  CHECK(result.code == 0);
  CHECK(child_count(result.text, "leak report") == 1);

  child_run("clean", "FOREBAY_LEAKS", "summary", &result);
  CHECK(result.code == 0);
  CHECK(child_count(result.text, "leak report") == 0);

  child_run("leak", "FOREBAY_LEAKS", NULL, &result);
  CHECK(result.code == 0);
  CHECK(result.text[0] == '\0');
  return shown("one leak report at exit, when asked for and when something is live");
}
