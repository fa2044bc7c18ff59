/*
 * Timing harness: `harness LIBRARY ROW@DOOR...` prints `row@door least median` for each row.
 *
 * Each row runs in a process of its own, so that no row finds the heap another one left behind
 * and each may set the library's environment. Exit status: 0, or that of the first row that
 * failed (EXIT_UNCERTIFIED: the machine was too busy for a row of two threads).
 * `harness list` names the rows; BENCH_ROUND=N draws other loads; a row that hangs is killed.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROW_SECONDS_MAX 60
#define NAME_BYTES_MAX 64

#define HOT(count) .run = run_hot, .bytes_min = 4 * KIB, .live = (count)
#define MIXED(count, most) \
    .run = run_mixed, .bytes_min = 256, .bytes_max = (most), .live = (count)
#define PAIR .run = run_pair, .live = 5000

static const struct row rows[] = {
    {.name = "hot-100", HOT(100)},
    {.name = "hot-10k", HOT(10000)},
    {.name = "hot-100k", HOT(100000)},
    {.name = "hot-1m", HOT(1000000)},
    {.name = "mixed-10k", MIXED(10000, 256 * KIB)},
    {.name = "mixed-100k", MIXED(100000, 256 * KIB)},
    {.name = "to-1mib-10k", MIXED(10000, MIB)},
    {.name = "extents-10k", .run = run_mixed, .live = 10000, .bytes_min = 256 * KIB + 1,
     .bytes_max = 16 * MIB},
    {.name = "repeat-1mib", .run = run_hot, .bytes_min = MIB, .live = 10000},
    {.name = "repeat-32", .run = run_cycle, .live = 16, .bytes_min = 300 * KIB,
     .bytes_max = 8 * MIB},
    {.name = "ordered-1m", .run = run_ordered, .live = 1000000, .bytes_min = 256,
     .bytes_max = 256 * KIB},
    {.name = "turn-4", .run = run_turn, .live = 10000, .bytes_min = 4 * KIB, .streams = 4},
    {.name = "cross", .run = run_cross, .live = 10000, .bytes_min = 4 * KIB, .streams = 2},
    {.name = "tail", .run = run_tail, .live = 10000, .bytes_min = 256, .bytes_max = 256 * KIB},
    {.name = "watched-hot", .run = run_watched, .live = 10000, .bytes_min = 4 * KIB},
    {.name = "watched-mixed", .run = run_watched, .live = 10000, .bytes_min = 256,
     .bytes_max = 256 * KIB},
    {.name = "own-hot", PAIR, .bytes_min = 4 * KIB, .streams = 2},
    {.name = "own-mixed", PAIR, .bytes_min = 256, .bytes_max = 256 * KIB, .streams = 2},
    {.name = "shared-hot", PAIR, .bytes_min = 4 * KIB, .streams = 1},
    {.name = "shared-mixed", PAIR, .bytes_min = 256, .bytes_max = 256 * KIB, .streams = 1},
    {.name = "handover", .run = run_handover, .bytes_min = 4 * KIB},
    {.name = "sync-4k-1", HOT(0), .streams = 1, .event_model = true},
    {.name = "sync-4k-4", HOT(0), .streams = 4, .event_model = true},
    {.name = "sync-64k-1", .run = run_hot, .bytes_min = 64 * KIB, .streams = 1,
     .event_model = true},
    {.name = "sync-64k-4", .run = run_hot, .bytes_min = 64 * KIB, .streams = 4,
     .event_model = true},
    {.name = "sync-mixed-1", MIXED(10000, 256 * KIB), .streams = 1, .event_model = true},
    {.name = "sync-mixed-4", MIXED(10000, 256 * KIB), .streams = 4, .event_model = true},
};

#define ROW_COUNT (sizeof rows / sizeof rows[0])

static const struct row *row_named(const char *name, size_t bytes)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (strlen(rows[i].name) == bytes && memcmp(rows[i].name, name, bytes) == 0)
            return &rows[i];
    }
    die("no row is called %.*s; `harness list` names them", (int)bytes, name);
}

/* The child's part: open, run, end without unloading (what is timed is not its exit). */
static _Noreturn void run_child(const char *library, const char *request)
{
    static struct door door;
    const char *at = strchr(request, '@');
    if (at == NULL || strlen(at + 1) >= NAME_BYTES_MAX)
        die("a row is asked for as ROW@DOOR, not %s", request);
    const struct row *row = row_named(request, (size_t)(at - request));
    alarm(ROW_SECONDS_MAX);
    emit_door(at + 1);
    door_open(&door, library, at + 1, row);
    row->run(row, &door);
    fflush(NULL);
    _Exit(0);
}

static int run_row(const char *library, const char *request)
{
    int status = 0;
    pid_t child = fork();
    if (child < 0)
        die("no process for %s", request);
    if (child == 0)
        run_child(library, request);
    if (waitpid(child, &status, 0) != child)
        die("the process of %s was lost", request);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status))
        fprintf(stderr, "harness: %s: killed by signal %d (%s)\n", request, WTERMSIG(status),
                WTERMSIG(status) == SIGALRM ? "took too long" : strsignal(WTERMSIG(status)));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int count, char **arguments)
{
    int first_failure = 0;
    if (count == 2 && strcmp(arguments[1], "list") == 0) {
        for (size_t i = 0; i < ROW_COUNT; i++)
            puts(rows[i].name);
        return 0;
    }
    if (count < 3) {
        fprintf(stderr, "usage: harness LIBRARY ROW@DOOR...\n       harness list\n");
        return 2;
    }
    for (int i = 2; i < count; i++) {
        int status = run_row(arguments[1], arguments[i]);
        if (first_failure == 0)
            first_failure = status;
    }
    return first_failure;
}
