/* The paged KV cache's books through C: sequences, prefixes, forks, tables, blocks without
 * sequences, figures, and what is said of wrong input. No device is touched. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Llama-3-8B in bf16: 16 tokens of all layers are exactly 2 MiB. */
static forebay_kv_group llama(uint32_t blocks) {
  forebay_kv_group group;
  memset(&group, 0, sizeof group);
  group.layers = 32;
  group.heads = 8;
  group.key_size = group.value_size = 128;
  group.block_tokens = 16;
  group.element = FOREBAY_KV_BF16;
  group.blocks = blocks;
  return group;
}

static forebay_kv_options defaults(const forebay_kv_group *groups, size_t count) {
  forebay_kv_options options;
  memset(&options, 0xee, sizeof options);
  CHECK_OK(forebay_kv_options_init(&options));
  CHECK(options.struct_size == sizeof options && options.prefixes == 1);
  CHECK(options.max_sequences == 1024 && options.events == 0 && options.groups == NULL);
  options.groups = groups;
  options.group_count = count;
  return options;
}

static forebay_kv_t make(uint32_t blocks) {
  const forebay_kv_group group = llama(blocks);
  forebay_kv_options options = defaults(&group, 1);
  options.events = 64;
  forebay_kv_t kv = NULL;
  CHECK_OK(forebay_kv_create(&options, &kv));
  CHECK(kv != NULL);
  return kv;
}

static forebay_kv_seq opened(forebay_kv_t kv) {
  forebay_kv_seq seq = 0;
  CHECK_OK(forebay_kv_open(kv, 0, 0, &seq));
  CHECK(seq != 0);
  return seq;
}

static forebay_kv_counts counts(forebay_kv_t kv) {
  forebay_kv_stats stats;
  forebay_kv_counts group;
  memset(&stats, 0xee, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_OK(forebay_kv_get_stats(kv, &stats, &group, 1));
  CHECK(stats.struct_size == sizeof stats && stats.groups == 1);
  CHECK(group.used + group.free + group.cached + group.quarantined + 1 == group.total);
  return group;
}

static void prompt(int32_t *tokens, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) tokens[i] = (int32_t)(1000 + i);
}

static void layout(void) {
  forebay_kv_t kv = make(100);
  forebay_kv_layout layout;
  layout.struct_size = sizeof layout;
  CHECK_OK(forebay_kv_get_layout(kv, 0, &layout));
  CHECK(layout.block_bytes == MIB(2) && layout.block_stride == MIB(2));
  CHECK(layout.layer_stride == MIB(2) / 32 && layout.value_offset == MIB(2) / 64);
  CHECK(layout.key_token_stride == 8 * 128 * 2 && layout.key_head_stride == 256);
  CHECK(layout.total_bytes == MIB(200));
  CHECK_STATUS(forebay_kv_get_layout(kv, 1, &layout), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_kv_destroy(kv, NULL));
}

/* A prompt is computed, a second sequence hits it, writes behind it, and both end. */
static void prefixes(void) {
  forebay_kv_t kv = make(100);
  int32_t tokens[48];
  prompt(tokens, 48);
  const forebay_kv_seq first = opened(kv);
  forebay_kv_match found = {9, 9};
  CHECK_OK(forebay_kv_find_prefix(kv, first, tokens, 47, &found));
  CHECK(found.tokens == 0 && found.shared == 0);
  CHECK_OK(forebay_kv_append(kv, first, tokens, 48, NULL));
  CHECK_OK(forebay_kv_commit(kv, first, 48, 0));

  const forebay_kv_seq second = opened(kv);
  CHECK_OK(forebay_kv_find_prefix(kv, second, tokens, 39, &found));
  CHECK(found.tokens == 39 && found.shared == 32);
  forebay_kv_copy jobs[4];
  size_t count = 9;
  uint64_t batch = 0, none = 7;
  CHECK_OK(forebay_kv_take_copies(kv, jobs, 4, &count, &batch));
  CHECK(count == 1 && batch != 0);
  CHECK(jobs[0].group == 0 && jobs[0].tokens == 7 && jobs[0].from != jobs[0].to);
  CHECK_OK(forebay_kv_take_copies(kv, jobs + 1, 3, &count, &none));
  CHECK(count == 0 && none == 0);
  CHECK_OK(forebay_kv_copied(kv, batch, 0));
  CHECK_STATUS(forebay_kv_copied(kv, batch, 0), FOREBAY_ERROR_INVALID_ARGUMENT);

  int32_t rows[2][8];
  memset(rows, 0xee, sizeof rows);
  forebay_kv_delta delta = {9, 9};
  CHECK_OK(forebay_kv_row(kv, 0, first, rows[0], 8, 1, &delta));
  CHECK(delta.from == 0 && delta.to == 8 && rows[0][3] == 0 && rows[0][7] == 0);
  CHECK_OK(forebay_kv_row(kv, 0, second, rows[1], 8, 1, NULL));
  CHECK(rows[0][0] == rows[1][0] && rows[0][1] == rows[1][1] && rows[0][2] != rows[1][2]);
  CHECK((uint32_t)rows[0][2] == jobs[0].from && (uint32_t)rows[1][2] == jobs[0].to);

  int64_t slots[2];
  CHECK_OK(forebay_kv_slots(kv, 0, second, 37, slots, 2));
  CHECK(slots[0] == rows[1][2] * INT64_C(16) + 5 && slots[1] == slots[0] + 1);
  CHECK_STATUS(forebay_kv_slots(kv, 0, second, 38, slots, 2), FOREBAY_ERROR_INVALID_ARGUMENT);

  const forebay_kv_seq both[2] = {first, second};
  int32_t indptr[3], indices[6], last[2];
  size_t needed = 0;
  CHECK_STATUS(forebay_kv_csr(kv, 0, both, 2, indptr, indices, 5, last, &needed),
               FOREBAY_ERROR_LIMIT);
  CHECK(needed == 6);
  CHECK_OK(forebay_kv_csr(kv, 0, both, 2, indptr, indices, 6, last, NULL));
  CHECK(indptr[0] == 0 && indptr[1] == 3 && indptr[2] == 6 && last[0] == 16 && last[1] == 7);
  CHECK(memcmp(indices, rows[0], 12) == 0 && memcmp(indices + 3, rows[1], 12) == 0);

  forebay_kv_event events[8];
  uint64_t dropped = 9;
  CHECK_OK(forebay_kv_take_events(kv, events, 8, &count, &dropped));
  CHECK(count == 3 && dropped == 0);
  for (size_t i = 0; i < count; i++) {
    CHECK(events[i].kind == FOREBAY_KV_STORED && events[i].block == (uint32_t)rows[0][i]);
  }
  CHECK(counts(kv).used == 4);
  CHECK_OK(forebay_kv_free(kv, both, 2, 0));
  CHECK(counts(kv).used == 0 && counts(kv).cached == 3);
  CHECK_OK(forebay_kv_reset_prefixes(kv));
  CHECK(counts(kv).cached == 0 && counts(kv).free == 99);
  CHECK_OK(forebay_kv_check(kv, NULL, 0));
  CHECK_OK(forebay_kv_destroy(kv, NULL));
}

/* Decode steps of a batch; blocks run out; a fence holds freed ones back. */
static void steps(void) {
  forebay_kv_t kv = make(9);
  forebay_kv_seq seqs[2] = {opened(kv), opened(kv)};
  forebay_kv_append_item items[2] = {{seqs[0], NULL, 64, 0}, {seqs[1], NULL, 65, 0}};
  size_t done = 9;
  forebay_kv_shortage shortage;
  memset(&shortage, 0xee, sizeof shortage);
  shortage.struct_size = sizeof shortage;
  CHECK_STATUS(forebay_kv_append_all(kv, items, 2, &done, &shortage), FOREBAY_ERROR_NO_BLOCKS);
  CHECK(done == 1 && shortage.struct_size == sizeof shortage && shortage.group == 0);
  CHECK(shortage.need == 5 && shortage.free == 4 && shortage.evictable == 0);
  uint32_t tokens = 9;
  CHECK_OK(forebay_kv_len(kv, seqs[1], &tokens));
  CHECK(tokens == 0);
  CHECK_OK(forebay_kv_append(kv, seqs[1], NULL, 64, &shortage));
  CHECK_OK(forebay_kv_rollback(kv, seqs[1], 33, 5));
  CHECK(counts(kv).quarantined == 2 && counts(kv).free == 0);
  CHECK_STATUS(forebay_kv_reserve(kv, seqs[0], 1, &shortage), FOREBAY_ERROR_NO_BLOCKS);
  CHECK(shortage.need == 1 && shortage.free == 0 && shortage.quarantined == 2);
  CHECK_OK(forebay_kv_pass(kv, 4));
  CHECK(counts(kv).free == 0);
  CHECK_OK(forebay_kv_pass(kv, 5));
  CHECK(counts(kv).free == 2);
  CHECK_OK(forebay_kv_reserve(kv, seqs[0], 1, &shortage));
  CHECK(counts(kv).free == 1);

  int32_t table[2][8];
  forebay_kv_delta deltas[2];
  memset(table, 0, sizeof table);
  CHECK_OK(forebay_kv_rows(kv, 0, seqs, 2, table[0], 8, deltas, NULL));
  CHECK(deltas[0].from == 0 && deltas[0].to == 5 && deltas[1].from == 0 && deltas[1].to == 2);
  CHECK_OK(forebay_kv_append(kv, seqs[1], NULL, 2, NULL));
  CHECK_OK(forebay_kv_rows(kv, 0, seqs, 2, table[0], 8, deltas, NULL));
  CHECK(deltas[0].from == deltas[0].to && deltas[1].from == 2 && deltas[1].to == 3);

  /* The second row is too short: the first one was written and counts as told. */
  size_t written = 9;
  CHECK_STATUS(forebay_kv_rows(kv, 0, seqs, 2, table[0], 4, NULL, &written),
               FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(written == 0);
  const forebay_kv_seq turned[2] = {seqs[1], seqs[0]};
  CHECK_STATUS(forebay_kv_rows(kv, 0, turned, 2, table[0], 4, NULL, &written),
               FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(written == 1);
  CHECK_OK(forebay_kv_free(kv, seqs, 2, 6));
  CHECK_STATUS(forebay_kv_free(kv, seqs, 1, 6), FOREBAY_ERROR_STALE_SEQUENCE);
  CHECK_OK(forebay_kv_pass(kv, 6));
  CHECK(counts(kv).free == 8);
  CHECK_OK(forebay_kv_destroy(kv, NULL));
}

static void forks(void) {
  forebay_kv_t kv = make(30);
  int32_t tokens[20];
  prompt(tokens, 20);
  const forebay_kv_seq parent = opened(kv);
  CHECK_OK(forebay_kv_append(kv, parent, tokens, 20, NULL));
  const forebay_kv_seq items[1] = {parent};
  const forebay_kv_seq_tokens ready[1] = {{parent, 20, 0}};
  CHECK_OK(forebay_kv_commit_all(kv, ready, 1, 0));
  forebay_kv_seq children[3] = {0, 0, 0};
  CHECK_STATUS(forebay_kv_fork(kv, parent, 21, children, 3, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(children[0] == 0);
  CHECK_STATUS(forebay_kv_fork(kv, parent, 20, children, SIZE_MAX / 16, NULL),
               FOREBAY_ERROR_LIMIT);
  CHECK_OK(forebay_kv_fork(kv, parent, 20, children, 3, NULL));
  CHECK(counts(kv).used == 2);
  CHECK_OK(forebay_kv_append(kv, children[1], NULL, 1, NULL));
  forebay_kv_copy job;
  size_t count = 0;
  uint64_t batch = 0;
  CHECK_OK(forebay_kv_take_copies(kv, &job, 1, &count, &batch));
  CHECK(count == 1 && job.tokens == 4 && counts(kv).used == 3);
  CHECK_OK(forebay_kv_copied(kv, batch, 0));
  CHECK_STATUS(forebay_kv_trim(kv, parent, 4, 0), FOREBAY_ERROR_UNSUPPORTED);
  CHECK_OK(forebay_kv_trim(kv, parent, FOREBAY_KV_WINDOWS, 0));
  CHECK_OK(forebay_kv_free(kv, items, 1, 0));

  /* What is left is told, as far as there is room. */
  forebay_kv_seq_tokens left[2];
  forebay_kv_leaks leaks;
  memset(&leaks, 0, sizeof leaks);
  CHECK_STATUS(forebay_kv_destroy(kv, &leaks), FOREBAY_ERROR_INVALID_ARGUMENT);
  leaks.struct_size = sizeof leaks;
  leaks.capacity = 2;
  CHECK_STATUS(forebay_kv_destroy(kv, &leaks), FOREBAY_ERROR_INVALID_ARGUMENT);
  leaks.list = left;
  CHECK_OK(forebay_kv_destroy(kv, &leaks));
  CHECK(leaks.sequences == 3 && leaks.copies == 0 && leaks.block_references == 0);
  CHECK(left[0].tokens == 20 && left[1].tokens == 21);
  CHECK(left[0].seq == children[0] && left[1].seq == children[1]);
}

/* Blocks without sequences, by the engine's own hashes. */
static void raw(void) {
  forebay_kv_t kv = make(6);
  uint32_t blocks[4] = {0, 0, 0, 0}, again[4] = {0, 0, 0, 0};
  CHECK_OK(forebay_kv_blocks_take(kv, 0, blocks, 3, NULL));
  forebay_kv_shortage shortage;
  shortage.struct_size = sizeof shortage;
  CHECK_STATUS(forebay_kv_blocks_take(kv, 0, again, 3, &shortage), FOREBAY_ERROR_NO_BLOCKS);
  CHECK(shortage.need == 3 && shortage.free == 2);
  forebay_kv_digest digests[3];
  memset(digests, 0, sizeof digests);
  for (int i = 0; i < 3; i++) digests[i].bytes[31] = (uint8_t)(i + 1);
  CHECK_OK(forebay_kv_blocks_register(kv, 0, blocks, digests, 2));
  CHECK_STATUS(forebay_kv_blocks_register(kv, 0, blocks, digests, 1),
               FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_kv_blocks_hold(kv, 0, blocks, 1));
  CHECK_OK(forebay_kv_blocks_release(kv, 0, blocks, 3, 0));
  CHECK(counts(kv).used == 1 && counts(kv).cached == 1 && counts(kv).free == 3);
  size_t found = 9;
  CHECK_OK(forebay_kv_blocks_find(kv, 0, digests, again, 3, &found));
  CHECK(found == 2 && again[0] == blocks[0] && again[1] == blocks[1]);
  CHECK_OK(forebay_kv_blocks_release(kv, 0, again, 2, 0));
  again[0] = again[1] = 0;
  CHECK_OK(forebay_kv_blocks_peek(kv, 0, digests, again, 3, &found));
  CHECK(found == 2 && again[0] == blocks[0] && again[1] == blocks[1] && counts(kv).cached == 1);
  CHECK_OK(forebay_kv_blocks_hold(kv, 0, again + 1, 1));
  CHECK(counts(kv).cached == 0 && counts(kv).used == 2);
  CHECK_OK(forebay_kv_blocks_release(kv, 0, again + 1, 1, 0));
  size_t evicted = 9;
  CHECK_OK(forebay_kv_blocks_evict(kv, 0, blocks, 3, &evicted));
  CHECK(evicted == 2 && counts(kv).cached == 0);
  CHECK_STATUS(forebay_kv_blocks_release(kv, 0, blocks + 1, 1, 0), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_blocks_hold(kv, 1, blocks, 1), FOREBAY_ERROR_INVALID_ARGUMENT);
  forebay_kv_leaks leaks;
  memset(&leaks, 0, sizeof leaks);
  leaks.struct_size = sizeof leaks;
  CHECK_OK(forebay_kv_destroy(kv, &leaks));
  CHECK(leaks.block_references == 1 && leaks.sequences == 0);
}

static void refused(forebay_kv_options options, const char *word) {
  forebay_kv_t kv = (forebay_kv_t)&options;
  CHECK_STATUS(forebay_kv_create(&options, &kv), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(kv == NULL && strstr(forebay_last_error(), word) != NULL);
}

static void bad_input(void) {
  forebay_kv_group group = llama(10);
  forebay_kv_options options = defaults(&group, 1);
  forebay_kv_t kv = NULL;
  CHECK_STATUS(forebay_kv_options_init(NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_create(NULL, &kv), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_create(&options, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  options.struct_size = 0;
  refused(options, "struct_size");
  options = defaults(&group, 0);
  refused(options, "group");
  options = defaults(NULL, 1);
  refused(options, "NULL");
#define WITH(field, value, word)       \
  do {                                 \
    options = defaults(&group, 1);     \
    options.field = value;             \
    refused(options, word);            \
  } while (0)
  WITH(policy, 9, "policy 9");
  WITH(hashing, 9, "hashing 9");
  WITH(prefixes, 2, "prefixes");
  WITH(dedupe, 2, "dedupe");
  WITH(partial, 2, "partial");
  WITH(flags, 1, "flags");
  WITH(max_sequences, 0, "sequences");
#define GROUP(field, value, word)      \
  do {                                 \
    group = llama(10);                 \
    group.field = value;               \
    options = defaults(&group, 1);     \
    refused(options, word);            \
  } while (0)
  GROUP(element, 9, "element 9");
  GROUP(content, 9, "content 9");
  GROUP(order, 9, "order 9");
  GROUP(reserved[3], 1, "reserved");
  GROUP(layers, 0, "layer");
  GROUP(blocks, 1, "blocks");
  GROUP(value_size, 0, "head size");
  GROUP(window, 8, "prefixes");
  GROUP(state_bytes, 8, "state_bytes");
  group = llama(10);
  group.content = FOREBAY_KV_LATENT;
  group.value_size = 0;
  group.window = 8;
  options = defaults(&group, 1);
  refused(options, "window");
  group = llama(INT32_MAX);
  group.layers = group.heads = group.key_size = UINT32_MAX;
  options = defaults(&group, 1);
  refused(options, "63 bits");

  kv = make(10);
  const forebay_kv_t other = make(10);
  forebay_kv_seq seq = opened(kv);
  CHECK_STATUS(forebay_kv_open(kv, 0, 8, &seq), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_open(kv, 0, 0, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_append(kv, 0, NULL, 1, NULL), FOREBAY_ERROR_STALE_SEQUENCE);
  CHECK_STATUS(forebay_kv_append(other, seq, NULL, 1, NULL), FOREBAY_ERROR_STALE_SEQUENCE);
  CHECK_STATUS(forebay_kv_append(NULL, seq, NULL, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_find_prefix(kv, seq, NULL, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_commit(kv, seq, 1, 0), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_rollback(kv, seq, 1, 0), FOREBAY_ERROR_INVALID_ARGUMENT);
  const forebay_kv_seq twice[2] = {seq, seq};
  CHECK_STATUS(forebay_kv_free(kv, twice, 2, 0), FOREBAY_ERROR_INVALID_ARGUMENT);
  /* A place that is too small is refused before anything is done. */
  forebay_kv_shortage small;
  small.struct_size = 0;
  CHECK_STATUS(forebay_kv_append(kv, seq, NULL, 1, &small), FOREBAY_ERROR_INVALID_ARGUMENT);
  forebay_kv_append_item item = {seq, NULL, 1, 1};
  size_t done = 77;
  CHECK_STATUS(forebay_kv_append_all(kv, &item, 1, &done, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(done == 0);
  item.reserved = 0;
  done = 77;
  CHECK_STATUS(forebay_kv_append_all(kv, &item, 1, &done, &small), FOREBAY_ERROR_INVALID_ARGUMENT);
  uint32_t held = 77;
  CHECK_OK(forebay_kv_len(kv, seq, &held));
  CHECK(done == 0 && held == 0);
  forebay_kv_stats stats;
  stats.struct_size = 3;
  CHECK_STATUS(forebay_kv_get_stats(kv, &stats, NULL, 0), FOREBAY_ERROR_INVALID_ARGUMENT);
  int32_t row[1];
  CHECK_OK(forebay_kv_append(kv, seq, NULL, 17, NULL));
  CHECK_STATUS(forebay_kv_row(kv, 0, seq, row, 1, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_row(kv, 0, seq, NULL, 1, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_kv_destroy(kv, NULL));
  CHECK_STATUS(forebay_kv_destroy(kv, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_STATUS(forebay_kv_append(kv, seq, NULL, 1, NULL), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(counts(other).used == 0);
  CHECK_OK(forebay_kv_destroy(other, NULL));
}

/* A process has 256 caches at most; calls with stale handles do not take places away. */
static atomic_int stopped;

static void *ask_in_vain(void *stale) {
  uint32_t tokens = 0;
  while (!atomic_load(&stopped)) {
    CHECK_STATUS(forebay_kv_len(stale, 1, &tokens), FOREBAY_ERROR_INVALID_ARGUMENT);
  }
  return NULL;
}

static void as_many_as_there_may_be(void) {
  forebay_kv_t all[256];
  for (int i = 0; i < 256; i++) all[i] = make(3);
  const forebay_kv_group group = llama(3);
  const forebay_kv_options options = defaults(&group, 1);
  forebay_kv_t one_more = NULL;
  CHECK_STATUS(forebay_kv_create(&options, &one_more), FOREBAY_ERROR_LIMIT);
  pthread_t thread;
  const forebay_kv_t stale = all[7];
  CHECK_OK(forebay_kv_destroy(stale, NULL));
  CHECK(pthread_create(&thread, NULL, ask_in_vain, stale) == 0);
  for (int i = 0; i < 200; i++) {
    all[7] = make(3);
    CHECK(all[7] != stale);
    CHECK_OK(forebay_kv_destroy(all[7], NULL));
  }
  atomic_store(&stopped, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  for (int i = 0; i < 256; i++) {
    if (i != 7) CHECK_OK(forebay_kv_destroy(all[i], NULL));
  }
}

/* A forked child is told; its parent's cache stays as it was. */
static void forked(void) {
  forebay_kv_t kv = make(3);
  const pid_t child = fork();
  if (child == 0) {
    forebay_kv_seq seq = 0;
    _exit(forebay_kv_open(kv, 0, 0, &seq) == FOREBAY_ERROR_FORKED &&
                  forebay_kv_destroy(kv, NULL) == FOREBAY_ERROR_FORKED
              ? 0
              : 1);
  }
  int status = 1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  CHECK(counts(kv).free == 2);
  CHECK_OK(forebay_kv_destroy(kv, NULL));
}

/* Threads with sequences of their own on one cache. */
static void *serve(void *argument) {
  forebay_kv_t kv = argument;
  for (int round = 0; round < 2000; round++) {
    const forebay_kv_seq seq = opened(kv);
    CHECK_OK(forebay_kv_append(kv, seq, NULL, 40, NULL));
    CHECK_OK(forebay_kv_append(kv, seq, NULL, 40, NULL));
    CHECK_OK(forebay_kv_free(kv, &seq, 1, 0));
  }
  return NULL;
}

static void many_threads(void) {
  forebay_kv_t kv = make(100);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, serve, kv) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK_OK(forebay_kv_check(kv, NULL, 0));
  CHECK(counts(kv).free == 99);
  CHECK_OK(forebay_kv_destroy(kv, NULL));
}

/* Layers with a window beside layers of full attention: a hit brings what the window shows. */
static void hybrids(void) {
  forebay_kv_group groups[2] = {llama(20), llama(20)};
  groups[1].window = 20;
  const forebay_kv_options options = defaults(groups, 2);
  forebay_kv_t kv = NULL;
  CHECK_OK(forebay_kv_create(&options, &kv));
  int32_t tokens[64], rows[2][4], hit[4];
  forebay_kv_delta delta;
  prompt(tokens, 64);
  const forebay_kv_seq first = opened(kv), second = opened(kv);
  CHECK_OK(forebay_kv_append(kv, first, tokens, 64, NULL));
  CHECK_OK(forebay_kv_commit(kv, first, 64, 0));
  for (uint32_t g = 0; g < 2; g++) {
    CHECK_OK(forebay_kv_row(kv, g, first, rows[g], 4, 1, &delta));
  }
  CHECK_OK(forebay_kv_trim(kv, first, FOREBAY_KV_WINDOWS, 0));
  forebay_kv_match found;
  CHECK_OK(forebay_kv_find_prefix(kv, second, tokens, 63, &found));
  CHECK(found.shared == 48 && found.tokens == 63);
  CHECK_OK(forebay_kv_row(kv, 0, second, hit, 4, 1, &delta));
  CHECK(memcmp(hit, rows[0], 3 * sizeof *hit) == 0 && hit[3] != rows[0][3]);
  CHECK_OK(forebay_kv_row(kv, 1, second, hit, 4, 1, &delta));
  CHECK(hit[0] == 0 && memcmp(hit + 1, rows[1] + 1, 2 * sizeof *hit) == 0);
  CHECK(hit[3] != 0 && hit[3] != rows[1][3]);
  CHECK_OK(forebay_kv_check(kv, NULL, 0));
  CHECK_OK(forebay_kv_destroy(kv, NULL));
  groups[0].window = 8;
  refused(options, "full attention");
  groups[0].window = 0;
  groups[1] = llama(20);
  groups[1].content = FOREBAY_KV_STATE;
  groups[1].state_bytes = 64;
  groups[1].heads = groups[1].key_size = groups[1].value_size = 0;
  refused(options, "prefixes");
}

int main(void) {
  layout();
  prefixes();
  hybrids();
  steps();
  forks();
  raw();
  bad_input();
  many_threads();
  as_many_as_there_may_be();
  forked();
  return shown("paged KV caches, their tables and blocks through C");
}
