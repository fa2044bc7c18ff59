/*
 * A clock as nanoseconds, for the C harnesses.
 *
 * Promises: a clock that cannot be read ends the program with a word. Cost: one clock_gettime.
 */
#ifndef FOREBAY_BENCH_CLOCK_H
#define FOREBAY_BENCH_CLOCK_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double clock_ns(clockid_t clock)
{
    struct timespec now;
    if (clock_gettime(clock, &now) != 0) {
        fprintf(stderr, "harness: clock %d cannot be read\n", (int)clock);
        fflush(NULL);
        _Exit(1);
    }
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

#endif
