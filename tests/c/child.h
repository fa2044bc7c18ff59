/* Child processes: run this program again in a given mode, or a function in a fork, and read
 * what the child wrote to stderr. A child that hangs is ended by its alarm. Include after
 * check.h. */
#ifndef FOREBAY_TESTS_CHILD_H
#define FOREBAY_TESTS_CHILD_H

#include "check.h"

#include <stdbool.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_SECONDS = 60, CHILD_TEXT = 16384 };

/* What a child did: its exit code (-1: ended by a signal) and its stderr. */
typedef struct child_result {
  int code;
  char text[CHILD_TEXT];
} child_result;

/* Starts a child whose stderr comes back through *from; 0 in the child. */
static inline pid_t child_start(int *from) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    if (dup2(ends[1], STDERR_FILENO) < 0) _exit(120);
    close(ends[0]);
    close(ends[1]);
    alarm(CHILD_SECONDS);
    return 0;
  }
  close(ends[1]);
  *from = ends[0];
  return pid;
}

static inline void child_finish(pid_t pid, int from, child_result *result) {
  size_t length = 0;
  for (;;) {
    char spill[512];
    const bool room = length < CHILD_TEXT - 1;
    const ssize_t got = room ? read(from, result->text + length, CHILD_TEXT - 1 - length)
                             : read(from, spill, sizeof spill);
    if (got <= 0) break;
    if (room) length += (size_t)got;
  }
  result->text[length] = '\0';
  close(from);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  result->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs `body` in a fork of this process; the child ends through exit(), as programs do. */
static inline void child_fork(int (*body)(void), child_result *result) {
  int from = -1;
  const pid_t pid = child_start(&from);
  if (pid == 0) exit(body());
  child_finish(pid, from, result);
}

/* Runs this program again with one argument, and with `name`=`value` set (value NULL: unset). */
static inline void child_run(const char *mode, const char *name, const char *value,
                             child_result *result) {
  int from = -1;
  const pid_t pid = child_start(&from);
  if (pid == 0) {
    if (name != NULL && value != NULL && setenv(name, value, 1) != 0) _exit(121);
    if (name != NULL && value == NULL) unsetenv(name);
    execl("/proc/self/exe", "child", mode, (char *)NULL);
    _exit(122);
  }
  child_finish(pid, from, result);
}

/* How often `part` occurs in `text`. */
static inline unsigned child_count(const char *text, const char *part) {
  unsigned count = 0;
  for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) count++;
  return count;
}

#endif
