/*
 * Rows of one thread: hot pairs, mixed replacement, the ordered walk, streams in turn, the tail.
 *
 * A repetition is one timed pass over a fixed number of pairs; the first is thrown away. A row
 * reports the least and the median repetition, in nanoseconds of thread CPU time a pair, the
 * loop and its calls included. Must not: touch the blocks.
 */
#include "bench.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define REPETITIONS 9
#define HOT_PAIRS ((size_t)1 << 18)
#define MIXED_PAIRS ((size_t)1 << 17)
#define PLAIN_PAIRS ((size_t)1 << 15)
#define TAIL_PAIRS ((size_t)1 << 17)
#define ATTEMPTS_MAX 64
#define CYCLE_SIZES 32
#define CYCLE_BESIDE 1000
#define READS_MIN 4

/* Opaque to the optimiser, as a size is that a program computes at run time. */
static volatile size_t opaque_bytes;

#define FILL(door, shape, load, table, stream)                                   \
    do {                                                                         \
        for (size_t i_ = 0; i_ < (load)->live; i_++)                             \
            (table)[i_] = take((door), (shape), (load)->first[i_], (stream));    \
    } while (0)
#define DROP(door, shape, table, count, stream)                                  \
    do {                                                                         \
        for (size_t i_ = 0; i_ < (count); i_++)                                  \
            give((door), (shape), (table)[i_], (stream));                        \
    } while (0)

void **table_fill(const struct door *door, const struct load *load, forebay_stream_t stream)
{
    void **table = calloc(load->live + 1, sizeof *table);
    if (table == NULL)
        die("no memory for a table of %zu", load->live);
    WITH_SHAPE(FILL, door, load, table, stream);
    return table;
}

void table_drop(const struct door *door, void **table, size_t count, forebay_stream_t stream)
{
    WITH_SHAPE(DROP, door, table, count, stream);
    free(table);
}

/* Objects that stay live while something else is timed: sizes of a mixed load. */
static void **ballast_new(const struct row *row, const struct door *door)
{
    struct load load = load_new(seed(7), row->live, 1, 256, 256 * KIB);
    void **table = table_fill(door, &load, door->streams[0]);
    load_drop(&load);
    return table;
}

/* One timed pass of a row that keeps nothing between its pairs. */
typedef double pass(const struct row *row, const struct door *door);

/* Fills the ballast, warms up, repeats the pass, reports. */
static void repeat(const struct row *row, const struct door *door, pass *once)
{
    double samples[REPETITIONS];
    void **ballast = ballast_new(row, door);
    once(row, door);
    for (int i = 0; i < REPETITIONS; i++)
        samples[i] = once(row, door);
    emit(row, "", samples, REPETITIONS);
    table_drop(door, ballast, row->live, door->streams[0]);
}

ALWAYS_INLINE void hot_loop(const struct door *door, enum shape shape, size_t pairs)
{
    forebay_stream_t stream = door->streams[0];
    for (size_t i = 0; i < pairs; i++)
        give(door, shape, take(door, shape, opaque_bytes, stream), stream);
}

static double hot_once(const struct row *row, const struct door *door)
{
    opaque_bytes = row->bytes_min;
    double began = cpu_ns();
    WITH_SHAPE(hot_loop, door, HOT_PAIRS);
    return (cpu_ns() - began) / (double)HOT_PAIRS;
}

void run_hot(const struct row *row, const struct door *door)
{
    repeat(row, door, hot_once);
}

ALWAYS_INLINE void turn_loop(const struct door *door, enum shape shape, size_t pairs)
{
    for (size_t i = 0; i < pairs; i++) {
        forebay_stream_t stream = door->streams[i % STREAMS_MAX];
        give(door, shape, take(door, shape, opaque_bytes, stream), stream);
    }
}

static double turn_once(const struct row *row, const struct door *door)
{
    opaque_bytes = row->bytes_min;
    double began = cpu_ns();
    WITH_SHAPE(turn_loop, door, HOT_PAIRS);
    return (cpu_ns() - began) / (double)HOT_PAIRS;
}

/* Every pair on the next stream. */
void run_turn(const struct row *row, const struct door *door)
{
    repeat(row, door, turn_once);
}

ALWAYS_INLINE void cross_loop(const struct door *door, enum shape shape, size_t pairs)
{
    forebay_stream_t from = door->streams[0];
    forebay_stream_t to = door->streams[1];
    for (size_t i = 0; i < pairs; i++)
        give(door, shape, take(door, shape, opaque_bytes, from), to);
}

static double cross_once(const struct row *row, const struct door *door)
{
    opaque_bytes = row->bytes_min;
    double began = cpu_ns();
    WITH_SHAPE(cross_loop, door, HOT_PAIRS);
    return (cpu_ns() - began) / (double)HOT_PAIRS;
}

/* Every block is allocated on one stream and freed on another. */
void run_cross(const struct row *row, const struct door *door)
{
    repeat(row, door, cross_once);
}

ALWAYS_INLINE void mixed_loop(const struct door *door, enum shape shape, const struct load *load,
                              void **table)
{
    forebay_stream_t stream = door->streams[0];
    const struct op *end = load->ops + load->op_count;
    for (const struct op *op = load->ops; op < end; op++) {
        give(door, shape, table[op->slot], stream);
        table[op->slot] = take(door, shape, op->bytes, stream);
    }
}

static double mixed_once(const struct door *door, const struct load *load, void **table)
{
    double began = cpu_ns();
    WITH_SHAPE(mixed_loop, door, load, table);
    return (cpu_ns() - began) / (double)load->op_count;
}

/* Peers take up to microseconds a pair here; fewer pairs keep their rows short. */
static size_t mixed_pairs(const struct door *door)
{
    return door->shape == SHAPE_PLAIN ? PLAIN_PAIRS : MIXED_PAIRS;
}

void run_mixed(const struct row *row, const struct door *door)
{
    double samples[REPETITIONS];
    struct load load =
        load_new(seed(42), row->live, mixed_pairs(door), row->bytes_min, row->bytes_max);
    void **table = table_fill(door, &load, door->streams[0]);
    mixed_once(door, &load, table);
    for (int i = 0; i < REPETITIONS; i++)
        samples[i] = mixed_once(door, &load, table);
    emit(row, "", samples, REPETITIONS);
    table_drop(door, table, load.live, door->streams[0]);
    load_drop(&load);
}

/* Sizes that come round in one order, and the block of each that is live. */
struct cycle {
    size_t live;
    size_t sizes[CYCLE_SIZES];
    void *blocks[CYCLE_SIZES];
};

ALWAYS_INLINE void cycle_fill(const struct door *door, enum shape shape, struct cycle *cycle)
{
    for (size_t i = 0; i < cycle->live; i++)
        cycle->blocks[i] = take(door, shape, cycle->sizes[i], door->streams[0]);
}

/* Whole rounds: afterwards the same sizes are live as before. */
ALWAYS_INLINE void cycle_loop(const struct door *door, enum shape shape, struct cycle *cycle,
                              size_t pairs)
{
    for (size_t i = 0; i < pairs; i++) {
        size_t next = (i + cycle->live) % CYCLE_SIZES;
        give(door, shape, cycle->blocks[i % CYCLE_SIZES], door->streams[0]);
        cycle->blocks[next] = take(door, shape, cycle->sizes[next], door->streams[0]);
    }
}

static double cycle_once(const struct door *door, struct cycle *cycle)
{
    _Static_assert(MIXED_PAIRS % CYCLE_SIZES == 0 && PLAIN_PAIRS % CYCLE_SIZES == 0, "rounds");
    double began = cpu_ns();
    WITH_SHAPE(cycle_loop, door, cycle, mixed_pairs(door));
    return (cpu_ns() - began) / (double)mixed_pairs(door);
}

/* The same sizes again and again in one order, as a program's repeated steps ask for them: each
 * block is freed a few requests before its size is asked for again. */
void run_cycle(const struct row *row, const struct door *door)
{
    double samples[REPETITIONS];
    struct cycle cycle = {.live = row->live};
    double ratio = (double)row->bytes_max / (double)row->bytes_min;
    for (size_t i = 0; i < CYCLE_SIZES; i++) {
        double part = (double)i / (CYCLE_SIZES - 1);
        cycle.sizes[i] = (size_t)((double)row->bytes_min * pow(ratio, part));
    }
    struct load beside = load_new(seed(7), CYCLE_BESIDE, 1, 256, MIB);
    void **ballast = table_fill(door, &beside, door->streams[0]);
    WITH_SHAPE(cycle_fill, door, &cycle);
    cycle_once(door, &cycle);
    for (int i = 0; i < REPETITIONS; i++)
        samples[i] = cycle_once(door, &cycle);
    emit(row, "", samples, REPETITIONS);
    table_drop(door, ballast, beside.live, door->streams[0]);
    load_drop(&beside);
}

ALWAYS_INLINE void ordered_loop(const struct door *door, enum shape shape,
                                const struct load *load, void **table)
{
    forebay_stream_t stream = door->streams[0];
    for (size_t i = 0; i < load->live; i++) {
        give(door, shape, table[i], stream);
        table[i] = take(door, shape, load->ops[i].bytes, stream);
    }
}

/* The table is walked in order, its pointers shuffled: the misses left are the allocator's. */
void run_ordered(const struct row *row, const struct door *door)
{
    double samples[REPETITIONS];
    struct load load = load_new(seed(42), row->live, row->live, row->bytes_min, row->bytes_max);
    void **table = table_fill(door, &load, door->streams[0]);
    uint64_t state = seed(3);
    for (size_t i = load.live - 1; i > 0; i--) {
        size_t other = (size_t)(random_next(&state) % (i + 1));
        void *held = table[i];
        table[i] = table[other];
        table[other] = held;
    }
    for (int i = -1; i < REPETITIONS; i++) {
        double began = cpu_ns();
        WITH_SHAPE(ordered_loop, door, &load, table);
        if (i >= 0)
            samples[i] = (cpu_ns() - began) / (double)load.live;
    }
    emit(row, "", samples, REPETITIONS);
    table_drop(door, table, load.live, door->streams[0]);
    load_drop(&load);
}

ALWAYS_INLINE void tail_loop(const struct door *door, enum shape shape, const struct load *load,
                             void **table, double *spans)
{
    forebay_stream_t stream = door->streams[0];
    for (size_t i = 0; i < load->op_count; i++) {
        struct op op = load->ops[i];
        uint64_t began = ticks();
        give(door, shape, table[op.slot], stream);
        table[op.slot] = take(door, shape, op.bytes, stream);
        spans[i] = (double)(ticks() - began);
    }
}

/* Times each pair by itself, the two clock reads included; a repetition gives its quantiles. */
void run_tail(const struct row *row, const struct door *door)
{
    double high[REPETITIONS];
    double middle[REPETITIONS];
    double rate = ticks_per_ns();
    struct load load = load_new(seed(42), row->live, TAIL_PAIRS, row->bytes_min, row->bytes_max);
    void **table = table_fill(door, &load, door->streams[0]);
    double *spans = calloc(TAIL_PAIRS, sizeof *spans);
    if (spans == NULL)
        die("no memory for %zu spans", TAIL_PAIRS);
    for (int i = -1; i < REPETITIONS; i++) {
        WITH_SHAPE(tail_loop, door, &load, table, spans);
        if (i < 0)
            continue;
        high[i] = quantile(spans, TAIL_PAIRS, 0.999) / rate;
        middle[i] = quantile(spans, TAIL_PAIRS, 0.5) / rate;
    }
    emit(row, "-p999", high, REPETITIONS);
    emit(row, "-p50", middle, REPETITIONS);
    free(spans);
    table_drop(door, table, load.live, door->streams[0]);
    load_drop(&load);
}

/* A thread that reads the statistics about 6,000 times a second while it is told to. */
struct watcher {
    const struct door *door;
    int cpu;
    atomic_bool reading;
    atomic_bool ended;
    atomic_ulong reads;
};

static void *watch(void *argument)
{
    struct watcher *watcher = argument;
    pin(watcher->cpu);
    while (!atomic_load(&watcher->ended)) {
        if (atomic_load(&watcher->reading)) {
            forebay_stats stats = {.struct_size = sizeof stats};
            int status = watcher->door->stats(watcher->door->pool, &stats);
            if (status != 0)
                door_failed(watcher->door, "forebay_pool_stats", 0, status);
            atomic_fetch_add(&watcher->reads, 1);
        }
        usleep(100);
    }
    return NULL;
}

/* One pass, hot where the row has one size and mixed otherwise, with the reader and tag or not. */
static double watched_once(const struct row *row, const struct door *door, bool on, uint32_t tag,
                           struct load *load, void **table, struct watcher *watcher)
{
    uint32_t previous = 0;
    if (on && door->tag_set(tag, &previous) != 0)
        die("the tag could not be set");
    atomic_store(&watcher->reading, on);
    double ns = row->bytes_max == 0 ? hot_once(row, door) : mixed_once(door, load, table);
    atomic_store(&watcher->reading, false);
    if (on && door->tag_set(previous, NULL) != 0)
        die("the tag could not be taken back");
    return ns;
}

/*
 * The same pass without and with, by turns, so that both see the same machine. A pass "with"
 * counts only where the reader really read during it.
 */
static void watched_pairs(const struct row *row, const struct door *door, struct watcher *watcher)
{
    double without[REPETITIONS];
    double with[REPETITIONS];
    int done = 0;
    uint32_t tag = 0;
    size_t hi = row->bytes_max != 0 ? row->bytes_max : row->bytes_min;
    struct load load = load_new(seed(42), row->live, MIXED_PAIRS, row->bytes_min, hi);
    void **table = table_fill(door, &load, door->streams[0]);
    if (door->tag_create("bench", &tag) != 0)
        die("the tag could not be made");
    watched_once(row, door, false, tag, &load, table, watcher);
    for (int i = 0; i < ATTEMPTS_MAX && done < REPETITIONS; i++) {
        without[done] = watched_once(row, door, false, tag, &load, table, watcher);
        unsigned long before = atomic_load(&watcher->reads);
        with[done] = watched_once(row, door, true, tag, &load, table, watcher);
        done += atomic_load(&watcher->reads) - before >= READS_MIN;
    }
    if (done == 0)
        uncertified(row, "the reader never read often enough");
    emit(row, "-off", without, (size_t)done);
    emit(row, "-on", with, (size_t)done);
    table_drop(door, table, load.live, door->streams[0]);
    load_drop(&load);
}

void run_watched(const struct row *row, const struct door *door)
{
    int cpus[2];
    if (!pick_cpus(cpus))
        die("%s needs two CPUs", row->name);
    struct watcher watcher = {.door = door, .cpu = cpus[1]};
    pthread_t thread;
    hot_once(row, door); /* the library's own threads must not inherit the pin */
    pin(cpus[0]);
    if (pthread_create(&thread, NULL, watch, &watcher) != 0)
        die("no thread for the reader");
    watched_pairs(row, door, &watcher);
    atomic_store(&watcher.ended, true);
    pthread_join(thread, NULL);
}
