/*
 * Timing harness for the pool: the doors, the clocks and the load that every row shares.
 *
 * Owns: the two hot inline functions `take` and `give`, through which each row reaches each
 * allocator, so that all of them run in the same loops. Must not: touch the memory it is handed
 * (it need not be readable), or print anything but result lines on stdout.
 * Cost: one indirect call for `take` and one for `give`; a loop fixes the shape of its door at
 * compile time, so no test remains inside it.
 */
#ifndef FOREBAY_BENCH_H
#define FOREBAY_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "forebay.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define STREAMS_MAX 4
#define EXIT_UNCERTIFIED 3

/* How an allocator is called. */
enum shape {
    SHAPE_POOL,   /* forebay_alloc / forebay_dealloc, with a pool and a stream */
    SHAPE_MALLOC, /* forebay_malloc / forebay_free */
    SHAPE_PLAIN,  /* void *(size_t) and void (void *): the peers' own form */
    SHAPE_EMPTY,  /* two calls of a trivial exported function: what the loop itself costs */
};

/* One allocator, ready to be called. Filled once by door_open, then only read. */
struct door {
    enum shape shape;
    forebay_pool_t pool;
    forebay_stream_t streams[STREAMS_MAX];
    __typeof__(forebay_alloc) *pool_alloc;
    __typeof__(forebay_dealloc) *pool_dealloc;
    __typeof__(forebay_malloc) *sync_malloc;
    __typeof__(forebay_free) *sync_free;
    __typeof__(forebay_abi_version) *empty;
    void *(*plain_alloc)(size_t bytes);
    void (*plain_free)(void *ptr);
    /* Slow calls, present on Forebay's doors only. */
    __typeof__(forebay_pool_stats) *stats;
    __typeof__(forebay_tag_create) *tag_create;
    __typeof__(forebay_tag_set) *tag_set;
    __typeof__(forebay_last_error) *last_error;
};

/* One replacement: free what the slot of the table holds, then allocate `bytes` into it. */
struct op {
    uint32_t slot;
    uint32_t bytes;
};

/* A load drawn once from a fixed seed; `first` are the sizes that fill the table. */
struct load {
    size_t live;
    size_t op_count;
    uint32_t *first;
    struct op *ops;
};

/* A row of the table in main.c. */
struct row {
    const char *name;
    void (*run)(const struct row *row, const struct door *door);
    size_t live;       /* objects that are live beside the timed pair */
    size_t bytes_min;  /* smallest size drawn; the only one where bytes_max is 0 */
    size_t bytes_max;  /* largest size drawn */
    int streams;       /* streams made before the row runs */
    bool event_model;  /* host events cost 0.7 us each, streams are fenced one by one */
};

/* util.c */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Ends the row where the machine never gave it what it needs; the caller may try again. */
_Noreturn void uncertified(const struct row *row, const char *reason);
double cpu_ns(void);   /* CPU time of this thread */
double wall_ns(void);  /* monotonic time */
uint64_t ticks(void);  /* cheapest clock there is */
double ticks_per_ns(void);
uint64_t seed(unsigned use); /* of this round of processes, for this use of it */
uint64_t random_next(uint64_t *state);
size_t random_size(uint64_t *state, size_t bytes_min, size_t bytes_max);
struct load load_new(uint64_t seed, size_t live, size_t op_count, size_t lo, size_t hi);
void load_drop(struct load *load);
double quantile(double *samples, size_t count, double q); /* sorts */
void emit(const struct row *row, const char *suffix, double *samples, size_t count);
void emit_pair(const struct row *row, const char *suffix, double least, double median);
void emit_door(const char *door_name); /* named in every line that follows */
bool pick_cpus(int cpus[2]);           /* two that share no core where there is a choice */
void pin(int cpu);

/* door.c */
void door_open(struct door *door, const char *library, const char *name, const struct row *row);
_Noreturn void door_failed(const struct door *door, const char *call, size_t bytes, int status);

/* single.c */
void run_hot(const struct row *row, const struct door *door);
void run_mixed(const struct row *row, const struct door *door);
void run_cycle(const struct row *row, const struct door *door);
void run_ordered(const struct row *row, const struct door *door);
void run_turn(const struct row *row, const struct door *door);
void run_cross(const struct row *row, const struct door *door);
void run_tail(const struct row *row, const struct door *door);
void run_watched(const struct row *row, const struct door *door);
void **table_fill(const struct door *door, const struct load *load, forebay_stream_t stream);
void table_drop(const struct door *door, void **table, size_t count, forebay_stream_t stream);

/* pair.c */
void run_pair(const struct row *row, const struct door *door);
void run_handover(const struct row *row, const struct door *door);

/* Allocates through the door. `shape` is the door's, known to the compiler. */
ALWAYS_INLINE void *take(const struct door *door, enum shape shape, size_t bytes,
                         forebay_stream_t stream)
{
    void *ptr = NULL;
    int status = 0;
    switch (shape) {
    case SHAPE_POOL:
        status = door->pool_alloc(door->pool, &ptr, bytes, stream);
        break;
    case SHAPE_MALLOC:
        status = door->sync_malloc(&ptr, bytes);
        break;
    case SHAPE_PLAIN:
        ptr = door->plain_alloc(bytes);
        status = ptr == NULL;
        break;
    case SHAPE_EMPTY:
        ptr = (void *)(uintptr_t)door->empty();
        break;
    }
    if (UNLIKELY(status != 0))
        door_failed(door, "alloc", bytes, status);
    return ptr;
}

/* Frees through the door. */
ALWAYS_INLINE void give(const struct door *door, enum shape shape, void *ptr,
                        forebay_stream_t stream)
{
    int status = 0;
    switch (shape) {
    case SHAPE_POOL:
        status = door->pool_dealloc(door->pool, ptr, stream);
        break;
    case SHAPE_MALLOC:
        status = door->sync_free(ptr);
        break;
    case SHAPE_PLAIN:
        door->plain_free(ptr);
        break;
    case SHAPE_EMPTY:
        (void)door->empty();
        break;
    }
    if (UNLIKELY(status != 0))
        door_failed(door, "free", 0, status);
}

/* Calls `loop(door, shape, ...)` with the shape as a constant, so that take and give fold. */
#define WITH_SHAPE(loop, door, ...)                          \
    do {                                                     \
        switch ((door)->shape) {                             \
        case SHAPE_POOL:                                     \
            loop((door), SHAPE_POOL, __VA_ARGS__);           \
            break;                                           \
        case SHAPE_MALLOC:                                   \
            loop((door), SHAPE_MALLOC, __VA_ARGS__);         \
            break;                                           \
        case SHAPE_PLAIN:                                    \
            loop((door), SHAPE_PLAIN, __VA_ARGS__);          \
            break;                                           \
        case SHAPE_EMPTY:                                    \
            loop((door), SHAPE_EMPTY, __VA_ARGS__);          \
            break;                                           \
        }                                                    \
    } while (0)

#endif
