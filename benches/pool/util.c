/*
 * Clocks, random loads, quantiles and result lines: what every row needs and none should repeat.
 *
 * Promises: the same round draws the same loads on every machine; a result line is written whole.
 * Must not: run inside a timed loop (except the clocks).
 */
#define _GNU_SOURCE
#include "../clock.h"
#include "bench.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

static const char *current_door = "";

_Noreturn void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("harness: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    /* Not exit(): a library that is being measured in a bad state need not unwind. */
    fflush(NULL);
    _Exit(1);
}

_Noreturn void uncertified(const struct row *row, const char *reason)
{
    fprintf(stderr, "harness: %s@%s: %s\n", row->name, current_door, reason);
    fflush(NULL);
    _Exit(EXIT_UNCERTIFIED);
}

double cpu_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

double wall_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#else
    return (uint64_t)wall_ns();
#endif
}

double ticks_per_ns(void)
{
    const double wait_ns = 20e6;
    double began = wall_ns();
    uint64_t from = ticks();
    double now = began;
    while (now - began < wait_ns)
        now = wall_ns();
    return (double)(ticks() - from) / (now - began);
}

uint64_t seed(unsigned use)
{
    const char *round = getenv("BENCH_ROUND");
    return (round != NULL ? strtoull(round, NULL, 10) << 32 : 0) + use;
}

/* SplitMix64: any seed will do, and neighbouring seeds give unrelated streams. */
uint64_t random_next(uint64_t *state)
{
    uint64_t word = *state += 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    word = (word ^ word >> 27) * 0x94d049bb133111ebu;
    return word ^ word >> 31;
}

/* Log-uniform between the two sizes: each doubling is equally likely. */
size_t random_size(uint64_t *state, size_t bytes_min, size_t bytes_max)
{
    if (bytes_max <= bytes_min)
        return bytes_min;
    double unit = (double)(random_next(state) >> 11) * 0x1p-53;
    double low = log((double)bytes_min);
    return (size_t)exp(low + (log((double)bytes_max) - low) * unit);
}

static void *array_new(size_t count, size_t size)
{
    void *array = calloc(count + 1, size); /* never of no bytes at all */
    if (array == NULL)
        die("no memory for %zu x %zu bytes", count, size);
    return array;
}

struct load load_new(uint64_t seed, size_t live, size_t op_count, size_t lo, size_t hi)
{
    struct load load = {.live = live, .op_count = op_count};
    load.first = array_new(live, sizeof *load.first);
    load.ops = array_new(op_count, sizeof *load.ops);
    uint64_t state = seed;
    for (size_t i = 0; i < live; i++)
        load.first[i] = (uint32_t)random_size(&state, lo, hi);
    for (size_t i = 0; i < op_count; i++) {
        load.ops[i].bytes = (uint32_t)random_size(&state, lo, hi);
        load.ops[i].slot = (uint32_t)((random_next(&state) >> 32) * live >> 32);
    }
    return load;
}

void load_drop(struct load *load)
{
    free(load->first);
    free(load->ops);
    *load = (struct load){0};
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

double quantile(double *samples, size_t count, double q)
{
    if (count == 0)
        die("no sample to take a quantile of");
    qsort(samples, count, sizeof *samples, compare);
    size_t index = (size_t)(q * (double)count);
    return samples[index < count ? index : count - 1];
}

void emit_door(const char *door_name)
{
    current_door = door_name;
}

void emit_pair(const struct row *row, const char *suffix, double least, double median)
{
    printf("%s%s@%s %.3f %.3f\n", row->name, suffix, current_door, least, median);
    fflush(stdout);
}

void emit(const struct row *row, const char *suffix, double *samples, size_t count)
{
    double median = quantile(samples, count, 0.5);
    emit_pair(row, suffix, samples[0], median);
}

/* The core a CPU belongs to, or -1 where the kernel does not say. */
static long core_of(int cpu)
{
    char path[96];
    long package = 0;
    long core = -1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%ld", &core) != 1)
            core = -1;
        fclose(file);
    }
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
    file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%ld", &package) != 1)
            package = 0;
        fclose(file);
    }
    return core < 0 ? -1 : package * 65536 + core;
}

bool pick_cpus(int cpus[2])
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    int found = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        if (found < 2)
            cpus[found++] = cpu;
        if (found == 2 && core_of(cpu) != core_of(cpus[0])) {
            cpus[1] = cpu;
            break;
        }
    }
    return found == 2;
}

void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        die("cannot pin a thread to CPU %d", cpu);
}
