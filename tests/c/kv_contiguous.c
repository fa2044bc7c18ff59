/* Contiguous addresses through C: a kernel of constant strides reads what was written while the
 * sequences grew, what leaves waits for its fence, kept and early pages, and what is said of wrong
 * input, which changes nothing. */
#include "accounts.h"
#include "pattern.h"

#include <string.h>

#define PAGE MIB(2)

/* Llama-3-8B in bf16: a token is 64 KiB of keys and as much of values, 32 tokens a page. */
static forebay_kv_group llama(uint32_t order) {
  forebay_kv_group group;
  memset(&group, 0, sizeof group);
  group.layers = 32;
  group.heads = 8;
  group.key_size = group.value_size = 128;
  group.element = FOREBAY_KV_BF16;
  group.order = order;
  return group;
}

static forebay_kv_contiguous_options options(const forebay_kv_group *groups, size_t count) {
  forebay_kv_contiguous_options made;
  memset(&made, 0, sizeof made);
  made.struct_size = sizeof made;
  made.groups = groups;
  made.group_count = count;
  made.max_sequences = 3;
  made.max_tokens = 4096;
  return made;
}

static forebay_kv_contiguous_t make(forebay_pool_t pool, uint32_t ahead, uint64_t keep) {
  const forebay_kv_group group = llama(FOREBAY_KV_BLOCK_OUTER);
  forebay_kv_contiguous_options o = options(&group, 1);
  o.ahead_tokens = ahead;
  o.keep_pages = keep;
  forebay_kv_contiguous_t cache = NULL;
  CHECK_OK(forebay_kv_contiguous_create(pool, &o, &cache));
  CHECK(cache != NULL);
  return cache;
}

static forebay_kv_seq open_one(forebay_kv_contiguous_t cache) {
  forebay_kv_seq seq = 0;
  CHECK_OK(forebay_kv_contiguous_open(cache, &seq));
  CHECK(seq != 0);
  return seq;
}

static forebay_status grow(forebay_kv_contiguous_t cache, forebay_kv_seq seq, uint32_t tokens) {
  const forebay_kv_seq_tokens item = {seq, tokens, 0};
  return forebay_kv_contiguous_ensure(cache, &item, 1, NULL);
}

static forebay_kv_usage usage_of(forebay_kv_contiguous_t cache, forebay_kv_seq seq) {
  forebay_kv_usage usage;
  usage.struct_size = sizeof usage;
  CHECK_OK(forebay_kv_contiguous_get_usage(cache, seq, &usage));
  return usage;
}

static forebay_kv_contiguous_stats stats_of(forebay_kv_contiguous_t cache) {
  forebay_kv_contiguous_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_OK(forebay_kv_contiguous_get_stats(cache, &stats));
  return stats;
}

static forebay_kv_seq_view view_of(forebay_kv_contiguous_t cache, forebay_kv_seq seq) {
  forebay_kv_seq_view view;
  view.struct_size = sizeof view;
  CHECK_OK(forebay_kv_contiguous_view(cache, seq, 0, &view));
  return view;
}

/* As a kernel that knows no blocks reads it: one pointer, constant strides. */
static void *at(const forebay_kv_side *side, uint32_t token, uint32_t layer, uint32_t head) {
  return (char *)side->address + token * side->token_stride + layer * side->layer_stride +
         head * side->head_stride;
}

/* Writes to the tokens from `from` on, or looks at all before them. */
static void touch(const forebay_kv_seq_view *view, uint32_t id, uint32_t from, uint32_t to,
                  int write) {
  for (uint32_t token = from; token < to; token++)
    for (uint32_t layer = 0; layer < 32; layer++)
      for (uint32_t head = 0; head < 8; head++) {
        const uint32_t key = id + token * 256 + layer * 8 + head;
        const uint32_t value = ~key;
        void *const key_at = at(&view->keys, token, layer, head);
        void *const value_at = at(&view->values, token, layer, head);
        if (write) {
          write_part(key_at, &key, sizeof key);
          write_part(value_at, &value, sizeof value);
        } else {
          uint32_t found[2];
          read_part(&found[0], key_at, sizeof found[0]);
          read_part(&found[1], value_at, sizeof found[1]);
          CHECK(found[0] == key && found[1] == value);
        }
      }
}

static void read_as_it_was_written(void) {
  for (uint32_t order = 0; order < 2; order++) {
    forebay_pool_t pool = new_pool(MIB(512));
    const forebay_kv_group group = llama(order);
    const forebay_kv_contiguous_options o = options(&group, 1);
    forebay_kv_contiguous_t cache = NULL;
    CHECK_OK(forebay_kv_contiguous_create(pool, &o, &cache));
    uint64_t per_page = 0;
    CHECK_OK(forebay_kv_contiguous_tokens_per_page(cache, 0, &per_page));
    CHECK(per_page == (order == FOREBAY_KV_BLOCK_OUTER ? 32 : 1024));
    const forebay_kv_seq seqs[2] = {open_one(cache), open_one(cache)};
    const forebay_kv_seq_view first = view_of(cache, seqs[0]);
    CHECK(first.struct_size == sizeof first && first.keys.head_stride == 256);
    CHECK(first.keys.token_stride == (order == FOREBAY_KV_BLOCK_OUTER ? KIB(64) : KIB(2)));
    CHECK(first.keys.layer_stride == (order == FOREBAY_KV_BLOCK_OUTER ? KIB(2) : MIB(8)));
    uint32_t tokens = 0;
    const uint32_t lens[] = {1, 33, 64, 90};
    for (size_t i = 0; i < 4; tokens = lens[i++]) {
      const forebay_kv_seq_tokens items[2] = {{seqs[0], lens[i], 0}, {seqs[1], lens[i], 0}};
      size_t done = 0;
      CHECK_OK(forebay_kv_contiguous_ensure(cache, items, 2, &done));
      CHECK(done == 2);
      for (uint32_t which = 0; which < 2; which++) {
        const forebay_kv_seq_view view = view_of(cache, seqs[which]);
        touch(&view, which << 24, tokens, lens[i], 1);
      }
    }
    const forebay_kv_seq_view again = view_of(cache, seqs[0]);
    CHECK(again.keys.address == first.keys.address);
    CHECK(again.values.address == first.values.address);
    for (uint32_t which = 0; which < 2; which++) {
      const forebay_kv_seq_view view = view_of(cache, seqs[which]);
      touch(&view, which << 24, 0, tokens, 0);
    }
    const forebay_kv_usage usage = usage_of(cache, seqs[1]);
    CHECK(usage.tokens == 90 && usage.used == 90 * KIB(128) && usage.reserved == 0);
    CHECK(usage.mapped == (order == FOREBAY_KV_BLOCK_OUTER ? 6 : 64) * PAGE);
    const forebay_stats stats = accounts(pool);
    check_sum(&stats);
    CHECK(stats.region_bytes == 2 * usage.mapped);
    CHECK_OK(forebay_kv_contiguous_destroy(cache));
    CHECK(accounts(pool).region_bytes == 0);
    CHECK_OK(forebay_pool_destroy(pool));
  }
}

static void what_leaves_waits_for_its_fence(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_stream_t stream = NULL;
  CHECK_OK(forebay_stream_create(pool, &stream));
  forebay_kv_contiguous_t cache = make(pool, 0, 0);
  const forebay_kv_seq seq = open_one(cache);
  CHECK_OK(grow(cache, seq, 100));
  forebay_kv_fence fence = 0;
  forebay_kv_fence passed = 9;
  CHECK_OK(forebay_kv_contiguous_fence_at(cache, 5, &fence));
  CHECK(fence == 1);
  CHECK_OK(forebay_kv_contiguous_truncate(cache, seq, 33, fence));
  CHECK_OK(forebay_kv_contiguous_poll(cache, &passed));
  CHECK(passed == 0 && usage_of(cache, seq).tokens == 33);
  CHECK(usage_of(cache, seq).mapped == 8 * PAGE);
  CHECK_OK(forebay_kv_contiguous_reach(cache, 5));
  CHECK_OK(forebay_kv_contiguous_poll(cache, &passed));
  CHECK(passed == 1 && usage_of(cache, seq).mapped == 4 * PAGE);

  const void *keys = view_of(cache, seq).keys.address;
  CHECK_OK(forebay_kv_contiguous_fence_at(cache, 6, &fence));
  CHECK_OK(forebay_kv_contiguous_free(cache, &seq, 1, fence));
  forebay_kv_contiguous_stats stats = stats_of(cache);
  CHECK(stats.open == 0 && stats.leaving == 1 && stats.leaving_pages == 4);
  const forebay_kv_seq other = open_one(cache);
  CHECK(view_of(cache, other).keys.address != keys);
  CHECK_OK(forebay_kv_contiguous_reach(cache, 6));
  CHECK_OK(forebay_kv_contiguous_fence(cache, &stream, 1, &fence));
  CHECK(fence == 3);
  CHECK_OK(forebay_stream_synchronize(pool, stream));
  CHECK_OK(forebay_kv_contiguous_poll(cache, &passed));
  CHECK(passed == 3);
  stats = stats_of(cache);
  CHECK(stats.open == 1 && stats.leaving == 0 && stats.leaving_pages == 0);
  CHECK(accounts(pool).region_bytes == 0);
  CHECK(view_of(cache, open_one(cache)).keys.address == keys);
  CHECK_OK(forebay_kv_contiguous_destroy(cache));
  CHECK_OK(forebay_stream_destroy(pool, stream));
  CHECK_OK(forebay_pool_destroy(pool));
}

static void kept_and_ahead(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_contiguous_t cache = make(pool, 32, 100);
  const forebay_kv_seq seq = open_one(cache);
  CHECK_OK(grow(cache, seq, 32));
  CHECK(stats_of(cache).mapped_ahead == 0 && stats_of(cache).open_pages == 2);
  CHECK_OK(forebay_kv_contiguous_poll(cache, NULL));
  CHECK(stats_of(cache).mapped_ahead == 2 && stats_of(cache).open_pages == 4);
  CHECK_OK(forebay_kv_contiguous_free(cache, &seq, 1, 0));
  CHECK_OK(forebay_kv_contiguous_poll(cache, NULL));
  CHECK(stats_of(cache).kept_pages == 4);
  uint64_t pages = 0;
  CHECK_OK(forebay_kv_contiguous_release_kept(cache, &pages));
  CHECK(pages == 4 && stats_of(cache).kept_pages == 0);
  CHECK_OK(forebay_kv_contiguous_release_kept(cache, NULL));

  /* Past the pool's limit: those before it stand, it and those behind it are as before. */
  const forebay_kv_seq seqs[3] = {open_one(cache), open_one(cache), open_one(cache)};
  const forebay_kv_seq_tokens items[3] = {
      {seqs[0], 32, 0}, {seqs[1], 4096, 0}, {seqs[2], 1, 0}};
  size_t done = 7;
  CHECK_STATUS(forebay_kv_contiguous_ensure(cache, items, 3, &done), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(done == 1 && usage_of(cache, seqs[0]).tokens == 32);
  CHECK(usage_of(cache, seqs[1]).tokens == 0 && usage_of(cache, seqs[1]).mapped == 0);
  CHECK(usage_of(cache, seqs[2]).tokens == 0);
  CHECK_OK(grow(cache, seqs[2], 1));
  CHECK_OK(forebay_kv_contiguous_destroy(cache));
  CHECK_OK(forebay_pool_destroy(pool));
}

static void latent_and_state(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_group groups[2] = {llama(FOREBAY_KV_BLOCK_OUTER), llama(FOREBAY_KV_LAYER_OUTER)};
  groups[0].content = FOREBAY_KV_LATENT;
  groups[0].value_size = 0;
  groups[1].content = FOREBAY_KV_STATE;
  groups[1].layers = 2;
  groups[1].state_bytes = MIB(1);
  const forebay_kv_contiguous_options o = options(groups, 2);
  forebay_kv_contiguous_t cache = NULL;
  CHECK_OK(forebay_kv_contiguous_create(pool, &o, &cache));
  const forebay_kv_seq seq = open_one(cache);
  CHECK_OK(grow(cache, seq, 1));
  forebay_kv_seq_view view = view_of(cache, seq);
  CHECK(view.values.address == NULL && view.values.token_stride == 0);
  CHECK_OK(forebay_kv_contiguous_view(cache, seq, 1, &view));
  CHECK(view.keys.token_stride == 0 && view.keys.layer_stride == PAGE);
  CHECK(view.values.address == NULL);
  uint64_t per_page = 9;
  CHECK_OK(forebay_kv_contiguous_tokens_per_page(cache, 1, &per_page));
  CHECK(per_page == 0 && usage_of(cache, seq).mapped == 3 * PAGE);
  CHECK_STATUS(forebay_kv_contiguous_truncate(cache, seq, 0, 0), FOREBAY_ERROR_UNSUPPORTED);
  CHECK_OK(forebay_kv_contiguous_destroy(cache));
  CHECK_OK(forebay_pool_destroy(pool));
}

static forebay_status made_with(forebay_pool_t pool, const forebay_kv_contiguous_options *o) {
  forebay_kv_contiguous_t cache = (forebay_kv_contiguous_t)1;
  const forebay_status status = forebay_kv_contiguous_create(pool, o, &cache);
  CHECK((cache != NULL) == (status == FOREBAY_OK));
  if (cache != NULL) CHECK_OK(forebay_kv_contiguous_destroy(cache));
  return status;
}

static void bad_options(void) {
  const forebay_status wrong = FOREBAY_ERROR_INVALID_ARGUMENT;
  forebay_pool_t pool = new_pool(MIB(16));
  forebay_kv_group group = llama(FOREBAY_KV_BLOCK_OUTER);
  const forebay_kv_contiguous_options good = options(&group, 1);
  CHECK_OK(made_with(pool, &good));
  CHECK_STATUS(made_with(pool, NULL), wrong);
  CHECK_STATUS(forebay_kv_contiguous_create(pool, &good, NULL), wrong);
  CHECK_STATUS(made_with((forebay_pool_t)0x123, &good), FOREBAY_ERROR_INVALID_POOL);
  forebay_kv_contiguous_options o = good;
#define REFUSED(field, value)             \
  do {                                    \
    o = good;                             \
    o.field = (value);                    \
    CHECK_STATUS(made_with(pool, &o), wrong); \
  } while (0)
  REFUSED(struct_size, 1);
  REFUSED(groups, NULL);
  REFUSED(group_count, 0);
  REFUSED(group_count, SIZE_MAX);
  REFUSED(max_sequences, 0);
  REFUSED(max_tokens, 0);
  REFUSED(reserved, 1);
#undef REFUSED
#define REFUSED(field, value)                \
  do {                                       \
    group = llama(FOREBAY_KV_BLOCK_OUTER);   \
    group.field = (value);                   \
    CHECK_STATUS(made_with(pool, &good), wrong); \
  } while (0)
  REFUSED(layers, 0);
  REFUSED(heads, 0);
  REFUSED(value_size, 0);
  REFUSED(element, 9);
  REFUSED(content, 9);
  REFUSED(order, 9);
  REFUSED(state_bytes, 1);
  REFUSED(reserved[3], 1);
  REFUSED(content, FOREBAY_KV_STATE);
#undef REFUSED
  group = llama(FOREBAY_KV_BLOCK_OUTER);
  group.heads = group.key_size = 1 << 20;
  o = good;
  o.max_tokens = UINT32_MAX;
  CHECK_STATUS(made_with(pool, &o), wrong);
  /* What is not looked at may be anything. */
  group = llama(FOREBAY_KV_BLOCK_OUTER);
  group.block_tokens = group.blocks = group.window = UINT32_MAX;
  CHECK_OK(made_with(pool, &good));
  CHECK_OK(forebay_pool_destroy(pool));
}

static void bad_sequences(void) {
  const forebay_status wrong = FOREBAY_ERROR_INVALID_ARGUMENT;
  const forebay_status stale = FOREBAY_ERROR_STALE_SEQUENCE;
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_contiguous_t cache = make(pool, 0, 0);
  const forebay_kv_seq seqs[3] = {open_one(cache), open_one(cache), open_one(cache)};
  forebay_kv_seq none = 7;
  CHECK_STATUS(forebay_kv_contiguous_open(cache, &none), FOREBAY_ERROR_BUSY);
  CHECK(none == 0);
  CHECK_STATUS(forebay_kv_contiguous_open(cache, NULL), wrong);
  CHECK_OK(grow(cache, seqs[0], 40));
  CHECK_STATUS(grow(cache, seqs[0], 39), wrong);
  CHECK_STATUS(grow(cache, seqs[0], 4097), wrong);
  const forebay_kv_seq_tokens reserved = {seqs[0], 50, 1};
  size_t done = 9;
  CHECK_STATUS(forebay_kv_contiguous_ensure(cache, &reserved, 1, &done), wrong);
  CHECK(done == 0);
  CHECK_STATUS(forebay_kv_contiguous_ensure(cache, NULL, 1, NULL), wrong);
  CHECK_OK(forebay_kv_contiguous_ensure(cache, NULL, 0, &done));
  CHECK_STATUS(forebay_kv_contiguous_truncate(cache, seqs[0], 41, 0), wrong);
  CHECK_STATUS(forebay_kv_contiguous_truncate(cache, seqs[0], 1, 1), wrong);
  const forebay_kv_seq twice[2] = {seqs[0], seqs[0]};
  CHECK_STATUS(forebay_kv_contiguous_free(cache, twice, 2, 0), wrong);
  CHECK_STATUS(forebay_kv_contiguous_free(cache, seqs, 3, 99), wrong);
  CHECK_STATUS(forebay_kv_contiguous_free(cache, NULL, 1, 0), wrong);
  const forebay_kv_seq with_stale[2] = {seqs[0], seqs[1] ^ 0xffff};
  CHECK_STATUS(forebay_kv_contiguous_free(cache, with_stale, 2, 0), stale);
  CHECK(stats_of(cache).open == 3 && usage_of(cache, seqs[0]).tokens == 40);

  forebay_kv_seq_view view;
  view.struct_size = sizeof view;
  CHECK_STATUS(forebay_kv_contiguous_view(cache, seqs[0], 1, &view), wrong);
  CHECK_STATUS(forebay_kv_contiguous_view(cache, 0, 0, &view), stale);
  CHECK_STATUS(forebay_kv_contiguous_view(cache, seqs[0], 0, NULL), wrong);
  view.struct_size = 3;
  CHECK_STATUS(forebay_kv_contiguous_view(cache, seqs[0], 0, &view), wrong);
  forebay_kv_usage usage;
  usage.struct_size = 0;
  CHECK_STATUS(forebay_kv_contiguous_get_usage(cache, seqs[0], &usage), wrong);
  CHECK_STATUS(forebay_kv_contiguous_get_usage(cache, seqs[0], NULL), wrong);
  CHECK_STATUS(forebay_kv_contiguous_get_stats(cache, NULL), wrong);
  uint64_t tokens = 0;
  CHECK_STATUS(forebay_kv_contiguous_tokens_per_page(cache, 1, &tokens), wrong);
  CHECK_STATUS(forebay_kv_contiguous_tokens_per_page(cache, 0, NULL), wrong);

  CHECK_OK(forebay_kv_contiguous_free(cache, seqs, 3, 0));
  usage.struct_size = sizeof usage;
  CHECK_STATUS(grow(cache, seqs[0], 50), stale);
  CHECK_STATUS(forebay_kv_contiguous_truncate(cache, seqs[0], 0, 0), stale);
  CHECK_STATUS(forebay_kv_contiguous_free(cache, seqs, 1, 0), stale);
  CHECK_STATUS(forebay_kv_contiguous_get_usage(cache, seqs[0], &usage), stale);
  CHECK_OK(forebay_kv_contiguous_destroy(cache));
  CHECK_OK(forebay_pool_destroy(pool));
}

static void bad_fences_and_handles(void) {
  const forebay_status wrong = FOREBAY_ERROR_INVALID_ARGUMENT;
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_contiguous_t cache = make(pool, 0, 0);
  forebay_stream_t streams[65];
  memset(streams, 0, sizeof streams);
  forebay_kv_fence fence = 0;
  CHECK_STATUS(forebay_kv_contiguous_fence(cache, streams, 0, &fence), wrong);
  CHECK_STATUS(forebay_kv_contiguous_fence(cache, streams, 65, &fence), wrong);
  CHECK_STATUS(forebay_kv_contiguous_fence(cache, NULL, 1, &fence), wrong);
  CHECK_STATUS(forebay_kv_contiguous_fence(cache, streams, 1, NULL), wrong);
  streams[0] = (forebay_stream_t)0x777;
  CHECK_STATUS(forebay_kv_contiguous_fence(cache, streams, 1, &fence),
               FOREBAY_ERROR_INVALID_STREAM);
  CHECK_STATUS(forebay_kv_contiguous_fence_at(cache, 1, NULL), wrong);
  CHECK_OK(forebay_kv_contiguous_fence_at(cache, 1, &fence));
  CHECK(fence == 1);

  const forebay_kv_contiguous_t others[2] = {NULL, (forebay_kv_contiguous_t)0x777};
  for (size_t i = 0; i < 2; i++) {
    const forebay_kv_contiguous_t none = others[i];
    forebay_kv_seq seq = 1;
    size_t done = 7;
    CHECK_STATUS(forebay_kv_contiguous_ensure(none, NULL, 0, &done), wrong);
    CHECK(done == 0);
    CHECK_STATUS(forebay_kv_contiguous_open(none, &seq), wrong);
    CHECK(seq == 0);
    CHECK_STATUS(grow(none, seq, 1), wrong);
    CHECK_STATUS(forebay_kv_contiguous_truncate(none, seq, 0, 0), wrong);
    CHECK_STATUS(forebay_kv_contiguous_free(none, &seq, 1, 0), wrong);
    CHECK_STATUS(forebay_kv_contiguous_reach(none, 1), wrong);
    CHECK_STATUS(forebay_kv_contiguous_fence_at(none, 1, &fence), wrong);
    CHECK_STATUS(forebay_kv_contiguous_poll(none, NULL), wrong);
    CHECK_STATUS(forebay_kv_contiguous_release_kept(none, NULL), wrong);
    CHECK_STATUS(forebay_kv_contiguous_destroy(none), wrong);
  }
  /* Another kind's handle is none of this kind. */
  CHECK_STATUS(forebay_kv_memory_poll((forebay_kv_memory_t)cache, NULL), wrong);
  CHECK_OK(forebay_kv_contiguous_destroy(cache));
  CHECK_STATUS(forebay_kv_contiguous_destroy(cache), wrong);
  CHECK_STATUS(forebay_kv_contiguous_poll(cache, NULL), wrong);
  CHECK_OK(forebay_pool_destroy(pool));
}

/* The pool's callback runs inside a call of the cache: the cache refuses, and then serves. */
static forebay_kv_contiguous_t asked;
static int refused;

static bool when_short(void *ctx, size_t bytes) {
  (void)ctx, (void)bytes;
  forebay_kv_contiguous_stats stats;
  stats.struct_size = sizeof stats;
  forebay_kv_seq seq = 1;
  CHECK_STATUS(forebay_kv_contiguous_get_stats(asked, &stats), FOREBAY_ERROR_BUSY);
  CHECK_STATUS(forebay_kv_contiguous_open(asked, &seq), FOREBAY_ERROR_BUSY);
  refused++;
  return false;
}

static void refused_in_callbacks(void) {
  forebay_pool_t pool = new_pool(MIB(16));
  asked = make(pool, 0, 0);
  const forebay_kv_seq seq = open_one(asked);
  CHECK_OK(forebay_set_oom_callback(pool, when_short, NULL));
  CHECK_STATUS(grow(asked, seq, 1000), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(refused >= 1);
  CHECK_OK(grow(asked, seq, 100));
  CHECK_OK(forebay_kv_contiguous_destroy(asked));
  CHECK_OK(forebay_pool_destroy(pool));
}

/* What is left when the library ends can still be let go. */
static void let_go_after_the_end(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_contiguous_t cache = make(pool, 0, 0);
  const forebay_kv_seq seq = open_one(cache);
  CHECK_OK(grow(cache, seq, 40));
  CHECK_OK(forebay_shutdown());
  CHECK_STATUS(grow(cache, seq, 41), FOREBAY_ERROR_SHUT_DOWN);
  CHECK_OK(forebay_kv_contiguous_destroy(cache));
  CHECK_STATUS(forebay_kv_contiguous_destroy(cache), FOREBAY_ERROR_INVALID_ARGUMENT);
}

int main(void) {
  read_as_it_was_written();
  what_leaves_waits_for_its_fence();
  kept_and_ahead();
  latent_and_state();
  bad_options();
  bad_sequences();
  bad_fences_and_handles();
  refused_in_callbacks();
  let_go_after_the_end();
  return shown("contiguous addresses of a KV cache through C");
}
