/*
 * Rows of two pinned threads: each with its own pairs, or one handing blocks to the other.
 *
 * Promises: a repetition of run_pair counts only where it is certified: the two threads ran side
 * by side for more than 80 % of the time and neither waited for its CPU (wall < 1.1 x CPU time).
 * A row without one certified repetition ends with EXIT_UNCERTIFIED, never with a figure.
 * The handover row is wall time, its 10th percentile is reported in the place of the minimum.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Short passes: on a busy machine two threads run side by side for a millisecond at a time. */
#define PASS_OPS ((size_t)1 << 13)
#define LOAD_PASSES ((size_t)8)
#define LOAD_OPS (PASS_OPS * LOAD_PASSES)
#define CERTIFIED_ENOUGH 100
#define ATTEMPTS_MAX 2000
#define PAIR_BUDGET_NS 700e6
#define RING_SLOTS ((size_t)1024)
#define RING_BATCH ((size_t)32)
#define RING_ITEMS ((size_t)1 << 14)
#define RING_REPETITIONS 201
#define RING_BUDGET_NS 1200e6
#define HANDOVER_QUANTILE 0.1
#define LINE 128

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() atomic_signal_fence(memory_order_seq_cst)
#endif

/* Both threads leave within one cache miss of each other; the futex of a real barrier would not
 * let them. */
struct gate {
    _Alignas(LINE) atomic_uint arrived;
    _Alignas(LINE) atomic_uint opened;
};

/* Spins, and yields now and then in case both threads share a CPU after all. */
static void relax(unsigned *spins)
{
    PAUSE();
    if (++*spins % 1024 == 0)
        sched_yield();
}

static void gate_pass(struct gate *gate)
{
    unsigned spins = 0;
    unsigned opened = atomic_load(&gate->opened);
    if (atomic_fetch_add(&gate->arrived, 1) % 2 == 1) {
        atomic_store(&gate->opened, opened + 1);
        return;
    }
    while (atomic_load_explicit(&gate->opened, memory_order_acquire) == opened)
        relax(&spins);
}

struct contest;

struct side {
    _Alignas(LINE) struct contest *contest;
    int cpu;
    uint64_t seed;
    struct door door; /* a copy, whose first stream is this side's */
    double began_ns, ended_ns, spent_ns;
};

struct contest {
    const struct row *row;
    struct gate gate;
    atomic_bool ended;
    struct side sides[2];
    double samples[ATTEMPTS_MAX];
    size_t certified;
};

ALWAYS_INLINE void side_hot(const struct door *door, enum shape shape, size_t bytes)
{
    volatile size_t opaque = bytes;
    for (size_t i = 0; i < PASS_OPS; i++)
        give(door, shape, take(door, shape, opaque, door->streams[0]), door->streams[0]);
}

ALWAYS_INLINE void side_mixed(const struct door *door, enum shape shape, const struct op *ops,
                              void **table)
{
    for (size_t i = 0; i < PASS_OPS; i++) {
        struct op op = ops[i];
        give(door, shape, table[op.slot], door->streams[0]);
        table[op.slot] = take(door, shape, op.bytes, door->streams[0]);
    }
}

/* One timed pass over the part of the load that is its turn. */
static void side_pass(struct side *side, const struct op *ops, void **table)
{
    const struct row *row = side->contest->row;
    const struct door *door = &side->door;
    side->began_ns = wall_ns();
    double began = cpu_ns();
    if (row->bytes_max == 0)
        WITH_SHAPE(side_hot, door, row->bytes_min);
    else
        WITH_SHAPE(side_mixed, door, ops, table);
    side->spent_ns = cpu_ns() - began;
    side->ended_ns = wall_ns();
}

static bool certify(const struct side *a, const struct side *b)
{
    double a_ns = a->ended_ns - a->began_ns;
    double b_ns = b->ended_ns - b->began_ns;
    double from = a->began_ns > b->began_ns ? a->began_ns : b->began_ns;
    double to = a->ended_ns < b->ended_ns ? a->ended_ns : b->ended_ns;
    double longer = a_ns > b_ns ? a_ns : b_ns;
    return to - from > 0.8 * longer && a_ns < 1.1 * a->spent_ns && b_ns < 1.1 * b->spent_ns;
}

/* The first side keeps the score while the second waits at the gate. The first time through the
 * load is a warm-up. */
static void judge(struct contest *contest, int attempt, double began_ns)
{
    const struct side *sides = contest->sides;
    if (attempt >= (int)LOAD_PASSES && certify(&sides[0], &sides[1])) {
        double spent = sides[0].spent_ns + sides[1].spent_ns;
        contest->samples[contest->certified++] = spent / 2 / (double)PASS_OPS;
    }
    if (attempt + 1 >= ATTEMPTS_MAX || contest->certified >= CERTIFIED_ENOUGH ||
        wall_ns() - began_ns > PAIR_BUDGET_NS)
        atomic_store(&contest->ended, true);
}

static void *side_main(void *argument)
{
    struct side *side = argument;
    struct contest *contest = side->contest;
    const struct row *row = contest->row;
    bool mixed = row->bytes_max != 0;
    struct load load = load_new(side->seed, mixed ? row->live : 1, LOAD_OPS,
                                row->bytes_min, mixed ? row->bytes_max : row->bytes_min);
    void **table = table_fill(&side->door, &load, side->door.streams[0]);
    pin(side->cpu);
    double began_ns = wall_ns();
    for (int attempt = 0; !atomic_load(&contest->ended); attempt++) {
        gate_pass(&contest->gate);
        side_pass(side, load.ops + (size_t)attempt % LOAD_PASSES * PASS_OPS, table);
        gate_pass(&contest->gate);
        if (side == &contest->sides[0])
            judge(contest, attempt, began_ns);
        gate_pass(&contest->gate);
    }
    table_drop(&side->door, table, load.live, side->door.streams[0]);
    load_drop(&load);
    return NULL;
}

/* Each side on a stream of its own where the row has two or more, else both on the same. */
void run_pair(const struct row *row, const struct door *door)
{
    int cpus[2];
    pthread_t threads[2];
    if (!pick_cpus(cpus))
        die("%s needs two CPUs", row->name);
    struct contest *contest = aligned_alloc(LINE, sizeof *contest);
    if (contest == NULL)
        die("no memory for two threads");
    *contest = (struct contest){.row = row};
    for (int i = 0; i < 2; i++) {
        struct side *side = &contest->sides[i];
        *side = (struct side){.contest = contest, .cpu = cpus[i], .door = *door};
        side->seed = seed(1000 + (unsigned)i);
        if (row->streams > 1)
            side->door.streams[0] = door->streams[i];
        if (pthread_create(&threads[i], NULL, side_main, side) != 0)
            die("no second thread");
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    if (contest->certified == 0)
        uncertified(row, "no repetition in which both threads really ran side by side");
    emit(row, "", contest->samples, contest->certified);
    free(contest);
}

/*
 * A ring of one producer and one consumer. Each keeps a private copy of the other's index and
 * publishes its own once in RING_BATCH items, so that the ring is cheap beside what is measured.
 */
struct ring {
    _Alignas(LINE) atomic_size_t head; /* items taken out */
    _Alignas(LINE) atomic_size_t tail; /* items put in */
    _Alignas(LINE) void *items[RING_SLOTS];
    struct gate gate;
    atomic_bool ended;
    const struct door *door;
    size_t bytes;
    int consumer_cpu;
    double ended_ns;
};

ALWAYS_INLINE void produce(const struct door *door, enum shape shape, struct ring *ring)
{
    size_t head = atomic_load(&ring->head);
    size_t tail = atomic_load(&ring->tail);
    size_t end = tail + RING_ITEMS;
    volatile size_t opaque = ring->bytes;
    unsigned spins = 0;
    while (tail < end) {
        while (tail - head == RING_SLOTS) {
            relax(&spins);
            head = atomic_load_explicit(&ring->head, memory_order_acquire);
        }
        ring->items[tail % RING_SLOTS] = take(door, shape, opaque, door->streams[0]);
        if (++tail % RING_BATCH == 0)
            atomic_store_explicit(&ring->tail, tail, memory_order_release);
    }
}

ALWAYS_INLINE void consume(const struct door *door, enum shape shape, struct ring *ring)
{
    size_t head = atomic_load(&ring->head);
    size_t tail = head;
    size_t end = head + RING_ITEMS;
    unsigned spins = 0;
    while (head < end) {
        while (tail == head) {
            tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
            if (tail == head)
                relax(&spins);
        }
        give(door, shape, ring->items[head % RING_SLOTS], door->streams[0]);
        if (++head % RING_BATCH == 0)
            atomic_store_explicit(&ring->head, head, memory_order_release);
    }
}

static void *consumer_main(void *argument)
{
    struct ring *ring = argument;
    pin(ring->consumer_cpu);
    for (;;) {
        gate_pass(&ring->gate);
        if (atomic_load(&ring->ended))
            return NULL;
        WITH_SHAPE(consume, ring->door, ring);
        ring->ended_ns = wall_ns();
        gate_pass(&ring->gate);
    }
}

#define ONE_PAIR(door, shape, bytes) \
    give((door), (shape), take((door), (shape), (bytes), (door)->streams[0]), (door)->streams[0])

/* One thread allocates, the other frees, on one stream; wall time an item. */
void run_handover(const struct row *row, const struct door *door)
{
    double samples[RING_REPETITIONS];
    size_t count = 0;
    int cpus[2];
    pthread_t consumer;
    if (!pick_cpus(cpus))
        die("%s needs two CPUs", row->name);
    struct ring *ring = aligned_alloc(LINE, sizeof *ring);
    if (ring == NULL)
        die("no memory for a ring");
    *ring = (struct ring){.door = door, .bytes = row->bytes_min, .consumer_cpu = cpus[1]};
    /* The library's own threads must not inherit the pin. */
    WITH_SHAPE(ONE_PAIR, door, row->bytes_min);
    if (pthread_create(&consumer, NULL, consumer_main, ring) != 0)
        die("no second thread");
    pin(cpus[0]);
    double first_ns = wall_ns();
    for (int i = -1; i < RING_REPETITIONS && wall_ns() - first_ns < RING_BUDGET_NS; i++) {
        gate_pass(&ring->gate);
        double began_ns = wall_ns();
        WITH_SHAPE(produce, door, ring);
        gate_pass(&ring->gate);
        if (i >= 0)
            samples[count++] = (ring->ended_ns - began_ns) / (double)RING_ITEMS;
    }
    atomic_store(&ring->ended, true);
    gate_pass(&ring->gate);
    pthread_join(consumer, NULL);
    double low = quantile(samples, count, HANDOVER_QUANTILE);
    emit_pair(row, "", low, quantile(samples, count, 0.5));
    free(ring);
}
