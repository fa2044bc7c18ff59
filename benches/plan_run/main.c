/*
 * What an allocation of a step costs by its plan, beside the pool, through the shared library.
 *
 * `harness LIBRARY NAME FILE...`: for each step (a table id,lower,upper,size of `forebay plan
 * --out`) lines `NAME WHAT LEAST MEDIAN`, ns of thread CPU time an allocation: `plan`, `pool` and
 * `empty` are the whole step, frees included; `hot` is the pool's pair of 4 KiB. Without a file a
 * step of 1,000 buffers that are all allocated and then all freed, whose allocations are timed
 * alone as well: `plan-alloc`, `empty-alloc`. `plan-bytes` and `pool-bytes` are the step's
 * footprint: the plan block, and the most that a pool of its own had mapped.
 *
 * Promises: all doors run in the same loop, told apart at compile time. Must not touch the memory.
 * Figures are over the repetitions of one process; who runs it takes the least of several.
 */
#define _GNU_SOURCE
#include "../clock.h"
#include "forebay.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define REPETITIONS 201
#define BUDGET_NS 400e6
#define BATCH 1000

enum door { PLAN, POOL, EMPTY };

/* One thing that a step does: bytes are 0 for a free. */
struct op {
    uint32_t id;
    uint64_t bytes;
};

struct step {
    struct op *ops;
    size_t count, buffers;
    void **table;
};

static struct {
    __typeof__(forebay_alloc) *alloc;
    __typeof__(forebay_dealloc) *dealloc;
    __typeof__(forebay_step_alloc) *step_alloc;
    __typeof__(forebay_step_free) *step_free;
    __typeof__(forebay_abi_version) *empty;
    __typeof__(forebay_last_error) *last_error;
    __typeof__(forebay_plan_step) *plan_step;
    __typeof__(forebay_step_end) *step_end;
    __typeof__(forebay_record_begin) *record_begin;
    __typeof__(forebay_record_end) *record_end;
    __typeof__(forebay_plan_create_from_recording) *plan_create;
    __typeof__(forebay_plan_bind) *plan_bind;
    __typeof__(forebay_plan_unbind) *plan_unbind;
    __typeof__(forebay_binding_get_stats) *stats;
    __typeof__(forebay_pool_create) *pool_create;
    __typeof__(forebay_pool_destroy) *pool_destroy;
    __typeof__(forebay_pool_options_init) *pool_options;
    __typeof__(forebay_pool_stats) *pool_stats;
} lib;

static _Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

static _Noreturn void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("harness: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(NULL);
    _Exit(1);
}

static void check(int status, const char *call)
{
    if (status != 0)
        die("%s answered %d: %s", call, status, lib.last_error());
}

static double cpu_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* ---- the timed loops ------------------------------------------------------------------- */

INLINE void *take(enum door door, void *handle, size_t bytes)
{
    void *ptr = NULL;
    int status = 0;
    switch (door) {
    case PLAN:
        status = lib.step_alloc(handle, &ptr, bytes, NULL);
        break;
    case POOL:
        status = lib.alloc(handle, &ptr, bytes, NULL);
        break;
    case EMPTY:
        ptr = (void *)(uintptr_t)lib.empty();
        break;
    }
    if (__builtin_expect(status != 0, 0))
        check(status, "an allocation");
    return ptr;
}

INLINE void give(enum door door, void *handle, void *ptr)
{
    int status = 0;
    switch (door) {
    case PLAN:
        status = lib.step_free(handle, ptr, NULL);
        break;
    case POOL:
        status = lib.dealloc(handle, ptr, NULL);
        break;
    case EMPTY:
        (void)lib.empty();
        break;
    }
    if (__builtin_expect(status != 0, 0))
        check(status, "a free");
}

INLINE void play(enum door door, void *handle, const struct op *ops, size_t count, void **table)
{
    for (size_t i = 0; i < count; i++) {
        if (ops[i].bytes != 0)
            table[ops[i].id] = take(door, handle, ops[i].bytes);
        else
            give(door, handle, table[ops[i].id]);
    }
}

/* Nanoseconds of ops[from, to). */
static double part(enum door door, void *handle, const struct step *step, size_t from, size_t to)
{
    double began = cpu_ns();
    switch (door) {
    case PLAN:
        play(PLAN, handle, step->ops + from, to - from, step->table);
        break;
    case POOL:
        play(POOL, handle, step->ops + from, to - from, step->table);
        break;
    case EMPTY:
        play(EMPTY, handle, step->ops + from, to - from, step->table);
        break;
    }
    return cpu_ns() - began;
}

/* ---- figures --------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void emit(const char *name, const char *what, double *samples, size_t count, double each)
{
    qsort(samples, count, sizeof *samples, by_value);
    printf("%s %s %.3f %.3f\n", name, what, samples[0] / each, samples[count / 2] / each);
}

/* One door over and over; the begin and the end of a planned step are in its time. */
static void measure(const char *name, enum door door, void *handle, const struct step *step)
{
    static double whole[REPETITIONS], head[REPETITIONS];
    static const char *const names[] = {"plan", "pool", "empty"};
    size_t done = 0;
    double spent = 0;
    bool batch = step->count == 2 * BATCH && step->ops[BATCH - 1].bytes != 0;
    for (int warm = 0; done < REPETITIONS && (done < 9 || spent < BUDGET_NS); warm++) {
        forebay_stream_t stream = NULL;
        forebay_step_t open = NULL;
        double began = cpu_ns();
        if (door == PLAN)
            check(lib.plan_step(handle, 0, &stream, 1, &open), "forebay_plan_step");
        void *to = door == PLAN ? (void *)open : handle;
        double first = batch ? part(door, to, step, 0, BATCH) : 0;
        (void)part(door, to, step, batch ? BATCH : 0, step->count);
        if (door == PLAN)
            check(lib.step_end(open), "forebay_step_end");
        double now = cpu_ns() - began;
        spent += now;
        if (warm < 3)
            continue;
        head[done] = first;
        whole[done++] = now;
    }
    emit(name, names[door], whole, done, (double)step->buffers);
    if (batch && door != POOL) {
        char what[32];
        snprintf(what, sizeof what, "%s-alloc", names[door]);
        emit(name, what, head, done, BATCH);
    }
}

/* The pool's hot pair, in the same process. */
static void measure_hot(const char *name, void *pool)
{
    static double samples[REPETITIONS];
    struct op pair[2] = {{0, 4096}, {0, 0}};
    struct op ops[2 * BATCH];
    void *table[1];
    for (size_t i = 0; i < BATCH; i++)
        memcpy(ops + 2 * i, pair, sizeof pair);
    struct step step = {ops, 2 * BATCH, BATCH, table};
    for (size_t i = 0; i < REPETITIONS; i++)
        samples[i] = part(POOL, pool, &step, 0, step.count);
    emit(name, "hot", samples, REPETITIONS, BATCH);
}

/* ---- steps ----------------------------------------------------------------------------- */

struct event {
    uint64_t time;
    bool birth;
    struct op op;
};

static int by_time(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return (int)x->birth - (int)y->birth;
}

static struct step read_step(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[256];
    size_t room = 0, count = 0;
    struct event *events = NULL;
    if (file == NULL || fgets(line, sizeof line, file) == NULL)
        die("%s cannot be read", path);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long long id, lower, upper, size;
        if (sscanf(line, "%llu,%llu,%llu,%llu", &id, &lower, &upper, &size) != 4)
            die("%s: not a table of buffers: %s", path, line);
        if (count + 2 > room) {
            room = 2 * room + 1024;
            events = realloc(events, room * sizeof *events);
            if (events == NULL)
                die("no memory");
        }
        uint32_t place = (uint32_t)(count / 2);
        events[count++] = (struct event){lower, true, {place, size}};
        events[count++] = (struct event){upper, false, {place, 0}};
    }
    fclose(file);
    if (count == 0)
        die("%s: an empty step", path);
    qsort(events, count, sizeof *events, by_time);
    struct step step = {calloc(count, sizeof(struct op)), count, count / 2, NULL};
    step.table = calloc(count, sizeof(void *));
    if (step.ops == NULL || step.table == NULL)
        die("no memory");
    for (size_t i = 0; i < count; i++)
        step.ops[i] = events[i].op;
    free(events);
    return step;
}

static struct step batch_step(void)
{
    struct step step = {calloc(2 * BATCH, sizeof(struct op)), 2 * BATCH, BATCH, NULL};
    step.table = calloc(BATCH, sizeof(void *));
    if (step.ops == NULL || step.table == NULL)
        die("no memory");
    for (uint32_t i = 0; i < BATCH; i++) {
        step.ops[i] = (struct op){i, 256u << i % 11};
        step.ops[BATCH + i] = (struct op){i, 0};
    }
    return step;
}

static forebay_pool_t new_pool(void)
{
    forebay_pool_options options;
    forebay_pool_t pool = NULL;
    check(lib.pool_options(&options), "forebay_pool_options_init");
    options.keeper = 0;
    check(lib.pool_create(&pool, &options), "forebay_pool_create");
    return pool;
}

static void run(const char *name, const struct step *step)
{
    forebay_recording_t recording = NULL;
    forebay_plan_t plan = NULL;
    forebay_binding_t binding = NULL;
    forebay_pool_t pool = new_pool();
    measure(name, POOL, pool, step);
    measure_hot(name, pool);
    forebay_stats accounts = {.struct_size = sizeof accounts};
    check(lib.pool_stats(pool, &accounts), "forebay_pool_stats");
    void *all = (void *)(uintptr_t)FOREBAY_ALL_STREAMS;
    check(lib.record_begin(pool, all, &recording), "forebay_record_begin");
    (void)part(POOL, pool, step, 0, step->count);
    check(lib.record_end(recording), "forebay_record_end");
    check(lib.plan_create(recording, NULL, &plan), "forebay_plan_create_from_recording");
    check(lib.plan_bind(plan, pool, &binding), "forebay_plan_bind");
    measure(name, PLAN, binding, step);
    measure(name, EMPTY, NULL, step);
    forebay_binding_stats stats = {.struct_size = sizeof stats};
    check(lib.stats(binding, &stats), "forebay_binding_get_stats");
    if (stats.served != stats.steps * step->buffers)
        die("%s: %llu of %llu allocations by plan", name, (unsigned long long)stats.served,
            (unsigned long long)(stats.steps * step->buffers));
    double plan_bytes = (double)stats.plan_block_bytes;
    double pool_bytes = (double)accounts.peak_mapped_bytes;
    emit(name, "plan-bytes", &plan_bytes, 1, 1);
    emit(name, "pool-bytes", &pool_bytes, 1, 1);
    check(lib.plan_unbind(binding), "forebay_plan_unbind");
    check(lib.pool_destroy(pool), "forebay_pool_destroy");
}

/* POSIX lets a data pointer hold a function; ISO C has no such cast, hence the copy. */
static void find(void *library, const char *name, void *target, size_t bytes)
{
    void *found = dlsym(library, name);
    if (found == NULL || bytes != sizeof found)
        die("no symbol %s", name);
    memcpy(target, &found, bytes);
}

#define FIND(field, name) find(library, name, &lib.field, sizeof lib.field)

static void open_library(const char *path)
{
    setenv("FOREBAY_BACKEND", "host", 1);
    setenv("FOREBAY_LIMIT", "256GiB", 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        die("%s", dlerror());
    FIND(alloc, "forebay_alloc");
    FIND(dealloc, "forebay_dealloc");
    FIND(step_alloc, "forebay_step_alloc");
    FIND(step_free, "forebay_step_free");
    FIND(empty, "forebay_abi_version");
    FIND(last_error, "forebay_last_error");
    FIND(plan_step, "forebay_plan_step");
    FIND(step_end, "forebay_step_end");
    FIND(record_begin, "forebay_record_begin");
    FIND(record_end, "forebay_record_end");
    FIND(plan_create, "forebay_plan_create_from_recording");
    FIND(plan_bind, "forebay_plan_bind");
    FIND(plan_unbind, "forebay_plan_unbind");
    FIND(stats, "forebay_binding_get_stats");
    FIND(pool_create, "forebay_pool_create");
    FIND(pool_destroy, "forebay_pool_destroy");
    FIND(pool_options, "forebay_pool_options_init");
    FIND(pool_stats, "forebay_pool_stats");
}

int main(int count, char **arguments)
{
    if (count != 3 && count != 4) {
        fprintf(stderr, "usage: harness LIBRARY NAME [FILE]\n");
        return 2;
    }
    open_library(arguments[1]);
    struct step step = count == 4 ? read_step(arguments[3]) : batch_step();
    run(arguments[2], &step);
    fflush(NULL);
    _Exit(0);
}
