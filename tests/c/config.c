/* Configuration from the environment: a malformed value is named once, on stderr, and the
 * default holds; with FOREBAY_STRICT=1 first use fails. A backend that is not there says
 * which variable chooses it. */
#include "check.h"
#include "child.h"

/* The child: first use, twice, with the status that its mode expects. */
static int child(const char *mode) {
  const bool strict = strcmp(mode, "strict") == 0;
  if (strict) CHECK(setenv("FOREBAY_STRICT", "1", 1) == 0);
  for (int i = 0; i < 2; i++) {
    void *block = &block;
    const forebay_status status = forebay_malloc(&block, 1000);
    if (strict) {
      CHECK_STATUS(status, FOREBAY_ERROR_CONFIG);
      CHECK(block == NULL);
      CHECK(strstr(forebay_last_error(), "FOREBAY_LIMIT") != NULL);
    } else if (strcmp(mode, "auto") == 0 && status != FOREBAY_OK) {
      /* With a GPU `auto` works; without one the message points to the way out. */
      CHECK_STATUS(status, FOREBAY_ERROR_NO_DRIVER);
      CHECK(block == NULL);
      CHECK(strstr(forebay_last_error(), "FOREBAY_BACKEND") != NULL);
    } else {
      CHECK_OK(status);
      CHECK_OK(forebay_free(block));
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1) return child(argv[1]);
  const char *const malformed[] = {"12 apples", "", "-5", "GiB", "99999999999999999999G", "101%"};
  child_result result;
  for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
    child_run("lenient", "FOREBAY_LIMIT", malformed[i], &result);
    if (result.code != 0) fprintf(stderr, "%s: %s\n", malformed[i], result.text);
    CHECK(result.code == 0);
    if (malformed[i][0] == '\0') continue; /* an empty value counts as none */
    CHECK(child_count(result.text, "FOREBAY_LIMIT") == 1);
    child_run("strict", "FOREBAY_LIMIT", malformed[i], &result);
    CHECK(result.code == 0);
  }
  const char *const accepted[] = {"512M", "1GiB", "80%", "1073741824"};
  for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
    child_run("lenient", "FOREBAY_LIMIT", accepted[i], &result);
    CHECK(result.code == 0);
    CHECK(result.text[0] == '\0');
  }
  child_run("lenient", "FOREBAY_NO_SUCH_SETTING", "1", &result);
  CHECK(result.code == 0);
  CHECK(child_count(result.text, "FOREBAY_NO_SUCH_SETTING") == 1);
  child_run("auto", "FOREBAY_BACKEND", NULL, &result);
  CHECK(result.code == 0);
  return shown("malformed settings are named once, and refused when strict");
}
