/* Memory behind a KV cache through C: grown and shrunk under addresses that stay, fences, copies,
 * a table that follows the cache, and what is said of wrong input. */
#include "accounts.h"
#include "pattern.h"

#include <string.h>

/* Llama-3-8B in bf16: a block is a page of 2 MiB. */
static forebay_kv_t make(uint32_t blocks) {
  forebay_kv_group group;
  memset(&group, 0, sizeof group);
  group.layers = 32;
  group.heads = 8;
  group.key_size = group.value_size = 128;
  group.block_tokens = 16;
  group.element = FOREBAY_KV_BF16;
  group.blocks = blocks;
  forebay_kv_options options;
  CHECK_OK(forebay_kv_options_init(&options));
  options.groups = &group;
  options.group_count = 1;
  options.prefixes = 0;
  forebay_kv_t kv = NULL;
  CHECK_OK(forebay_kv_create(&options, &kv));
  return kv;
}

static forebay_kv_memory_t behind(forebay_kv_t kv, forebay_pool_t pool, uint32_t initial) {
  forebay_kv_memory_t memory = NULL;
  CHECK_OK(forebay_kv_memory_create(kv, pool, &initial, 1, &memory));
  CHECK(memory != NULL);
  return memory;
}

static forebay_kv_seq sequence(forebay_kv_t kv, uint32_t tokens) {
  forebay_kv_seq seq = 0;
  CHECK_OK(forebay_kv_open(kv, 0, 0, &seq));
  CHECK_OK(forebay_kv_append(kv, seq, NULL, tokens, NULL));
  return seq;
}

static forebay_kv_backed backed(forebay_kv_memory_t memory) {
  forebay_kv_backed now;
  now.struct_size = sizeof now;
  CHECK_OK(forebay_kv_memory_backed(memory, 0, &now));
  return now;
}

static void grown_and_shrunk(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_t kv = make(1000);
  forebay_kv_memory_t memory = behind(kv, pool, 4);
  void *base = NULL;
  void *again = NULL;
  uint64_t offset = 1;
  CHECK_OK(forebay_kv_memory_view(memory, 0, &base, &offset));
  CHECK(base != NULL && offset == 0);
  forebay_stats stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.region_bytes == MIB(8) && stats.live_bytes == 0);
  bytes_fill((char *)base + MIB(2), MIB(2), 0x5a);

  forebay_kv_backed now;
  now.struct_size = sizeof now;
  CHECK_OK(forebay_kv_memory_resize(memory, 0, 20, &now));
  CHECK(now.open == 20 && now.backed == 20 && now.bytes == MIB(40));
  CHECK_OK(forebay_kv_memory_view(memory, 0, &again, NULL));
  CHECK(again == base && bytes_are((char *)base + MIB(2), MIB(2), 0x5a));
  bytes_fill((char *)base + MIB(38), MIB(2), 1);

  /* Past the pool's limit: nothing changes. */
  CHECK_STATUS(forebay_kv_memory_resize(memory, 0, 33, NULL), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK(backed(memory).open == 20);

  /* Blocks that a fence holds keep their memory. */
  const forebay_kv_seq seq = sequence(kv, 16 * 19);
  forebay_kv_fence fence = 0;
  CHECK_OK(forebay_kv_memory_fence_at(memory, 7, &fence));
  CHECK(fence == 1);
  CHECK_OK(forebay_kv_free(kv, &seq, 1, fence));
  CHECK_OK(forebay_kv_memory_resize(memory, 0, 2, &now));
  CHECK(now.open == 2 && now.backed == 20);
  CHECK_OK(forebay_kv_memory_reach(memory, 7));
  CHECK_OK(forebay_kv_memory_poll(memory, &fence));
  CHECK(fence == 1 && backed(memory).backed == 2);
  stats = accounts(pool);
  check_sum(&stats);
  CHECK(stats.region_bytes == MIB(4) && stats.unmapped_stock_bytes == MIB(36));

  CHECK_STATUS(forebay_kv_destroy(kv, NULL), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_kv_memory_destroy(memory));
  CHECK(accounts(pool).region_bytes == 0);
  CHECK_OK(forebay_kv_destroy(kv, NULL));
  CHECK_OK(forebay_pool_destroy(pool));
}

static void copies_and_tables(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_stream_t stream = NULL;
  CHECK_OK(forebay_stream_create(pool, &stream));
  forebay_kv_t kv = make(100);
  forebay_kv_memory_t memory = behind(kv, pool, 10);
  void *base = NULL;
  CHECK_OK(forebay_kv_memory_view(memory, 0, &base, NULL));

  void *array = NULL;
  CHECK_OK(forebay_alloc(pool, &array, 2 * 8 * sizeof(int32_t), stream));
  forebay_kv_table table;
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.array = array;
  table.rows = 2;
  table.stride = 8;
  CHECK_OK(forebay_kv_memory_table_bind(memory, &table));
  CHECK_STATUS(forebay_kv_memory_table_bind(memory, &table), FOREBAY_ERROR_INVALID_ARGUMENT);

  forebay_kv_seq seqs[2] = {sequence(kv, 8), 0};
  bytes_fill((char *)base + MIB(2), MIB(2), 0x77);
  CHECK_OK(forebay_kv_fork(kv, seqs[0], 8, &seqs[1], 1, NULL));
  CHECK_OK(forebay_kv_append(kv, seqs[1], NULL, 30, NULL));
  size_t count = 0;
  CHECK_OK(forebay_kv_memory_run_copies(memory, stream, &count));
  CHECK(count == 1);
  size_t entries = 0;
  CHECK_OK(forebay_kv_memory_table_sync(memory, 0, seqs, 2, stream, &entries));
  CHECK(entries == 16);
  forebay_kv_fence fence = 0;
  CHECK_OK(forebay_kv_memory_fence(memory, &stream, 1, &fence));
  CHECK_OK(forebay_stream_synchronize(pool, stream));
  forebay_kv_fence passed = 0;
  CHECK_OK(forebay_kv_memory_poll(memory, &passed));
  CHECK(passed == fence);
  int32_t rows[16];
  read_part(rows, array, sizeof rows);
  CHECK(rows[0] == 1 && rows[1] == 0 && rows[8] == 2 && rows[9] == 3 && rows[10] == 4);
  CHECK(rows[11] == 0);
  CHECK(bytes_are((char *)base + MIB(4), 1, 0x77));

  CHECK_OK(forebay_kv_memory_table_unbind(memory, 0));
  CHECK_STATUS(forebay_kv_memory_table_unbind(memory, 0), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_kv_memory_destroy(memory));
  CHECK_OK(forebay_kv_destroy(kv, NULL));
  CHECK_OK(forebay_dealloc(pool, array, stream));
  CHECK_OK(forebay_stream_destroy(pool, stream));
  CHECK_OK(forebay_pool_destroy(pool));
}

static void bad_input(void) {
  const forebay_status wrong = FOREBAY_ERROR_INVALID_ARGUMENT;
  forebay_pool_t pool = new_pool(MIB(16));
  forebay_kv_t kv = make(100);
  forebay_kv_memory_t memory = (forebay_kv_memory_t)1;
  const uint32_t initial[2] = {4, 4};
  CHECK_STATUS(forebay_kv_memory_create(NULL, pool, initial, 1, &memory), wrong);
  CHECK(memory == NULL);
  CHECK_STATUS(forebay_kv_memory_create(kv, pool, initial, 1, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_create(kv, pool, NULL, 1, &memory), wrong);
  CHECK_STATUS(forebay_kv_memory_create(kv, pool, initial, 2, &memory), wrong);
  const uint32_t many = 9;
  CHECK_STATUS(forebay_kv_memory_create(kv, pool, &many, 1, &memory), FOREBAY_ERROR_OUT_OF_MEMORY);
  CHECK_STATUS(forebay_kv_memory_create(kv, (forebay_pool_t)0x123, initial, 1, &memory),
               FOREBAY_ERROR_INVALID_POOL);
  memory = behind(kv, pool, 4);
  forebay_kv_memory_t second = NULL;
  CHECK_STATUS(forebay_kv_memory_create(kv, pool, initial, 1, &second), FOREBAY_ERROR_UNSUPPORTED);

  forebay_kv_fence fence = 0;
  forebay_stream_t stream = (forebay_stream_t)0x1234;
  CHECK_STATUS(forebay_kv_memory_resize(memory, 0, 101, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_resize(memory, 1, 4, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_backed(memory, 0, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_view(memory, 1, NULL, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_fence(memory, NULL, 0, &fence), wrong);
  CHECK_STATUS(forebay_kv_memory_fence(memory, NULL, 1, &fence), wrong);
  CHECK_STATUS(forebay_kv_memory_fence(memory, &stream, 1, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_fence(memory, &stream, 1, &fence), FOREBAY_ERROR_INVALID_STREAM);
  CHECK_STATUS(forebay_kv_memory_fence_at(memory, 1, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_table_bind(memory, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_table_sync(memory, 0, NULL, 0, NULL, NULL), wrong);
  const forebay_kv_memory_t none = (forebay_kv_memory_t)0x777;
  CHECK_STATUS(forebay_kv_memory_resize(none, 0, 4, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_poll(NULL, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_run_copies(none, NULL, NULL), wrong);
  CHECK_STATUS(forebay_kv_memory_reach(none, 1), wrong);
  CHECK_STATUS(forebay_kv_memory_destroy(none), wrong);
  CHECK_OK(forebay_kv_memory_poll(memory, NULL));
  CHECK_OK(forebay_kv_memory_destroy(memory));
  CHECK_STATUS(forebay_kv_memory_destroy(memory), wrong);
  CHECK_OK(forebay_kv_destroy(kv, NULL));
  CHECK_OK(forebay_pool_destroy(pool));
}

/* A refused call has changed nothing, and what is not the caller's to say is refused. */
static void refused(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_t kv = make(30);
  forebay_kv_memory_t memory = behind(kv, pool, 10);
  forebay_kv_backed now;
  now.struct_size = 1;
  CHECK_STATUS(forebay_kv_memory_resize(memory, 0, 20, &now), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK(backed(memory).open == 10);
  CHECK_STATUS(forebay_kv_pass(kv, 1), FOREBAY_ERROR_UNSUPPORTED);
  forebay_kv_seq seq = sequence(kv, 20);
  CHECK_STATUS(forebay_kv_free(kv, &seq, 1, 7), FOREBAY_ERROR_INVALID_ARGUMENT);
  CHECK_OK(forebay_kv_free(kv, &seq, 1, 0));
  CHECK_OK(forebay_kv_memory_destroy(memory));
  CHECK_OK(forebay_kv_pass(kv, 1));
  CHECK_OK(forebay_kv_destroy(kv, NULL));
  CHECK_OK(forebay_pool_destroy(pool));
}

/* What is left when the library ends can still be let go. */
static void let_go_after_the_end(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  forebay_kv_t kv = make(30);
  forebay_kv_memory_t memory = behind(kv, pool, 10);
  CHECK_OK(forebay_shutdown());
  CHECK_STATUS(forebay_kv_destroy(kv, NULL), FOREBAY_ERROR_BUSY);
  CHECK_OK(forebay_kv_memory_destroy(memory));
  CHECK_OK(forebay_kv_destroy(kv, NULL));
}

int main(void) {
  grown_and_shrunk();
  copies_and_tables();
  bad_input();
  refused();
  let_go_after_the_end();
  return shown("memory behind a KV cache through C");
}
