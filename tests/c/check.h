/* Checks for the C harness: CHECK(cond), CHECK_OK(call), CHECK_STATUS(call, want). A failed
 * check prints file, line, what was wanted, and the thread's last error, then ends the
 * process with 1. Asserts values, never times. Include it before any system header. */
#ifndef FOREBAY_TESTS_CHECK_H
#define FOREBAY_TESTS_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <forebay.h>

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                     \
  do {                                                                                  \
    if (!(cond)) {                                                                      \
      fprintf(stderr, "%s:%d: not true: %s\n  last error: %s\n", __FILE__, __LINE__,    \
              #cond, forebay_last_error());                                             \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

#define CHECK_STATUS(call, want)                                                        \
  do {                                                                                  \
    const forebay_status check_got = (call);                                            \
    const forebay_status check_want = (want);                                           \
    if (check_got != check_want) {                                                      \
      fprintf(stderr, "%s:%d: %s\n  answered %s, wanted %s\n  last error: %s\n",        \
              __FILE__, __LINE__, #call, forebay_status_name(check_got),                \
              forebay_status_name(check_want), forebay_last_error());                   \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

#define CHECK_OK(call) CHECK_STATUS(call, FOREBAY_OK)

#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)

/* Ends a test: says what was shown. */
static inline int shown(const char *what) {
  printf("ok: %s\n", what);
  return 0;
}

#endif
