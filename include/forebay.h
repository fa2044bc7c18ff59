/* Forebay: a device memory pool. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Sizes are in bytes. Functions may be called from any thread unless they say otherwise.
 * Each answers FOREBAY_OK or an error; forebay_last_error() then has the sentence. */

#ifndef FOREBAY_H
#define FOREBAY_H

/* Generated from src/abi by `cargo xtask header`: change it there. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * What a Forebay function answers. `FOREBAY_OK` is 0; every other value is an error.
 */
typedef int32_t forebay_status;

/**
 * Success.
 */
#define FOREBAY_OK 0

/**
 * An argument is outside what the function accepts; the message says which.
 */
#define FOREBAY_ERROR_INVALID_ARGUMENT 1

/**
 * The request does not fit; the message is the out-of-memory report.
 */
#define FOREBAY_ERROR_OUT_OF_MEMORY 2

/**
 * The pointer lies in no memory of Forebay's.
 */
#define FOREBAY_ERROR_NOT_OWNED 3

/**
 * The block at this address is not live: it was freed before.
 */
#define FOREBAY_ERROR_DOUBLE_FREE 4

/**
 * The pointer lies inside a block, not at its start.
 */
#define FOREBAY_ERROR_INTERIOR_POINTER 5

/**
 * The process was forked after first use: device memory belongs to the parent.
 */
#define FOREBAY_ERROR_FORKED 6

/**
 * The library or the driver has been shut down.
 */
#define FOREBAY_ERROR_SHUT_DOWN 7

/**
 * The pool handle names no pool: never created, or destroyed.
 */
#define FOREBAY_ERROR_INVALID_POOL 8

/**
 * No usable driver for the backend asked for; the message names the variable.
 */
#define FOREBAY_ERROR_NO_DRIVER 9

/**
 * A driver call failed; the message names the call and its code.
 */
#define FOREBAY_ERROR_DRIVER 10

/**
 * A configuration value is unknown or malformed (`FOREBAY_STRICT=1` only).
 */
#define FOREBAY_ERROR_CONFIG 11

/**
 * A defect in Forebay: a panic was caught at the boundary.
 */
#define FOREBAY_ERROR_INTERNAL 12

/**
 * The stream is unknown to this pool's device.
 */
#define FOREBAY_ERROR_INVALID_STREAM 13

/**
 * The backend or the platform cannot do this.
 */
#define FOREBAY_ERROR_UNSUPPORTED 14

/**
 * The object is in use and cannot be changed or destroyed now.
 */
#define FOREBAY_ERROR_BUSY 15

/**
 * The platform's limit on memory mappings is reached.
 */
#define FOREBAY_ERROR_MAPPING_LIMIT 16

/**
 * The address belonged to a pool that was reset or destroyed.
 */
#define FOREBAY_ERROR_STALE_POINTER 17

/**
 * The memory is open to as many other devices as a mapping can be.
 */
#define FOREBAY_ERROR_TOO_MANY_PEERS 18

/**
 * The device's context is gone, and its memory with it: destroy the pool.
 */
#define FOREBAY_ERROR_CONTEXT_LOST 19

/**
 * No plan fits under the capacity: proven.
 */
#define FOREBAY_ERROR_INFEASIBLE 20

/**
 * No plan under the capacity was found within the budget; one may exist.
 */
#define FOREBAY_ERROR_NOT_FOUND 21

/**
 * The KV cache has not enough blocks now: ordinary flow control.
 */
#define FOREBAY_ERROR_NO_BLOCKS 22

/**
 * The sequence has ended, or the handle never was one.
 */
#define FOREBAY_ERROR_STALE_SEQUENCE 23

/**
 * A limit of the configuration is reached; the message names it.
 */
#define FOREBAY_ERROR_LIMIT 24


/**
 * The ABI's version: structures and meanings of this header.
 */
#define ABI_VERSION 1

/**
 * Elements of 4 bytes, IEEE binary32.
 */
#define FOREBAY_KV_F32 0

/**
 * Elements of 2 bytes, IEEE binary16.
 */
#define FOREBAY_KV_F16 1

/**
 * Elements of 2 bytes, the upper half of a binary32.
 */
#define FOREBAY_KV_BF16 2

/**
 * Elements of 1 byte whose scales lie elsewhere: fp8, int8.
 */
#define FOREBAY_KV_BYTE 3

/**
 * Blocks hold keys and values of attention.
 */
#define FOREBAY_KV_ATTENTION 0

/**
 * Blocks hold one vector a token (multi-head latent attention): value_size is 0.
 */
#define FOREBAY_KV_LATENT 1

/**
 * One block a sequence holds a state of state_bytes a layer (Mamba and its like).
 */
#define FOREBAY_KV_STATE 2

/**
 * All layers of a block lie together.
 */
#define FOREBAY_KV_BLOCK_OUTER 0

/**
 * All blocks of a layer lie together.
 */
#define FOREBAY_KV_LAYER_OUTER 1

/**
 * Prefixes are given up by their last use.
 */
#define FOREBAY_KV_LRU 0

/**
 * Prefixes are given up by their sequences' priority, then by their last use.
 */
#define FOREBAY_KV_PRIORITY_LRU 1

/**
 * Prefixes that were never hit are given up before those that were.
 */
#define FOREBAY_KV_SEGMENTED_LRU 2

/**
 * XXH3 of 64 bits; tokens are compared besides.
 */
#define FOREBAY_KV_XXH3 0

/**
 * SHA-256, which other processes can compute; tokens are compared besides.
 */
#define FOREBAY_KV_SHA256 1

/**
 * BLAKE3 under hash_key; tokens are compared besides.
 */
#define FOREBAY_KV_BLAKE3 2

/**
 * Of forebay_kv_trim(): what the groups' windows no longer see.
 */
#define FOREBAY_KV_WINDOWS UINT32_MAX

/**
 * A block can be hit from now on.
 */
#define FOREBAY_KV_STORED 0

/**
 * A block can be hit no more.
 */
#define FOREBAY_KV_REMOVED 1

/**
 * No block of the group can be hit any more.
 */
#define FOREBAY_KV_CLEARED 2

/**
 * The fixed_offset of a buffer that may lie anywhere.
 */
#define FOREBAY_PLAN_ANYWHERE UINT64_MAX

/**
 * In the place of a stream: all streams of the pool.
 */
#define FOREBAY_ALL_STREAMS 140737488355314

/**
 * The death of a recorded buffer that outlived the recording, or was freed by forebay_free().
 */
#define FOREBAY_RECORD_NEVER UINT64_MAX

/**
 * Contents are kept in host memory.
 */
#define FOREBAY_SUSPEND_OFFLOAD 0

/**
 * Contents are dropped: undefined after the resume.
 */
#define FOREBAY_SUSPEND_DISCARD 1

/**
 * A block of a pool, and the plans that share it. Opaque; use `BindingT`.
 */
typedef struct forebay_binding forebay_binding;

/**
 * A set of device buffers of one size. Opaque; use `BuffersT`.
 */
typedef struct forebay_buffers forebay_buffers;

/**
 * A paged KV cache. Opaque; use `KvT`.
 */
typedef struct forebay_kv forebay_kv;

/**
 * A KV cache with contiguous addresses. Opaque; use `KvContiguousT`.
 */
typedef struct forebay_kv_contiguous forebay_kv_contiguous;

/**
 * Memory behind a KV cache. Opaque; use `KvMemoryT`.
 */
typedef struct forebay_kv_memory forebay_kv_memory;

/**
 * A plan: an offset for each of some buffers. Opaque; use `PlanT`.
 */
typedef struct forebay_plan forebay_plan;

/**
 * A pool of one device's memory. Opaque; use `PoolT`.
 */
typedef struct forebay_pool forebay_pool;

/**
 * What a program asked of a pool between two calls. Opaque; use `RecordingT`.
 */
typedef struct forebay_recording forebay_recording;

/**
 * A step that is open. Opaque; use `StepT`.
 */
typedef struct forebay_step forebay_step;

/**
 * A stream of the pool's device: a cudaStream_t fits. NULL is the default stream.
 */
typedef void *forebay_stream_t;

/**
 * A pool's handle. NULL names the default pool of the default device.
 */
typedef struct forebay_pool *forebay_pool_t;

/**
 * A buffer set's handle.
 */
typedef struct forebay_buffers *forebay_buffers_t;

/**
 * Where every byte of a pool is. live, cached, pending, trapped, idle and other are disjoint;
 * their
 * sum is mapped_bytes, exactly while no other thread allocates or frees.
 */
typedef struct forebay_stats {
  /**
   * sizeof of this structure as the caller knows it; set before the call.
   */
  size_t struct_size;
  /**
   * Live blocks, rounded up to their slots and quanta.
   */
  uint64_t live_bytes;
  /**
   * What live blocks were asked for (slots: the mean of all requests scaled).
   */
  uint64_t requested_bytes;
  /**
   * Free slots in slabs, depots and magazines.
   */
  uint64_t cached_bytes;
  /**
   * Freed; the fence has not been seen passed.
   */
  uint64_t pending_bytes;
  /**
   * Free, in granules that live blocks hold.
   */
  uint64_t trapped_bytes;
  /**
   * Free whole granules.
   */
  uint64_t idle_bytes;
  /**
   * Pages in stock or stranded, imported memory, and what is freed while an export of it is
   * open.
   */
  uint64_t other_bytes;
  /**
   * All that the pool holds of the device, and what it has imported.
   */
  uint64_t mapped_bytes;
  /**
   * The highest live_bytes seen by a reader or a slow path.
   */
  uint64_t peak_live_bytes;
  /**
   * The highest mapped_bytes; exact.
   */
  uint64_t peak_mapped_bytes;
  /**
   * The hard limit.
   */
  uint64_t limit_bytes;
  /**
   * The soft limit; 0: none.
   */
  uint64_t soft_limit_bytes;
  /**
   * Address space reserved.
   */
  uint64_t reserved_address_bytes;
  /**
   * Live blocks.
   */
  uint64_t live_blocks;
  /**
   * Allocations so far.
   */
  uint64_t allocs;
  /**
   * Frees so far.
   */
  uint64_t frees;
  /**
   * Driver calls that changed memory, and fences recorded.
   */
  uint64_t driver_calls;
  /**
   * Pages created so far.
   */
  uint64_t pages_created;
  /**
   * Pages given back so far.
   */
  uint64_t pages_released;
  /**
   * Pages moved so far.
   */
  uint64_t pages_moved;
  /**
   * Calls that mapped a page.
   */
  uint64_t map_calls;
  /**
   * Calls that unmapped a run.
   */
  uint64_t unmap_calls;
  /**
   * Calls that opened access to a run.
   */
  uint64_t set_access_calls;
  /**
   * Times that idle pages were gathered.
   */
  uint64_t gathers;
  /**
   * Fences recorded.
   */
  uint64_t fences_recorded;
  /**
   * Allocations that failed for memory.
   */
  uint64_t oom_count;
  /**
   * Pages that the driver would not unmap or take back, until it does.
   */
  uint64_t stranded_pages;
  /**
   * Created pages that are mapped nowhere.
   */
  uint64_t unmapped_stock_bytes;
  /**
   * Live pinned host memory (of the process).
   */
  uint64_t host_live_bytes;
  /**
   * Pinned host memory held (of the process).
   */
  uint64_t host_mapped_bytes;
  /**
   * Live blocks of suspended tags: no part of live_bytes, nor of the sum.
   */
  uint64_t suspended_bytes;
  /**
   * Their contents in host memory.
   */
  uint64_t suspended_host_bytes;
  /**
   * Pages behind regions: a KV cache's blocks. One of the states that sum to mapped_bytes.
   */
  uint64_t region_bytes;
} forebay_stats;

/**
 * One live block.
 */
typedef struct forebay_leak {
  /**
   * sizeof of this structure.
   */
  size_t struct_size;
  /**
   * Its address.
   */
  const void *address;
  /**
   * Requested bytes; the slot's length where the request is not known.
   */
  uint64_t bytes;
  /**
   * Its age in ms; 0 unless FOREBAY_LEAKS=full or FOREBAY_BACKTRACE=1.
   */
  uint64_t age_ms;
  /**
   * Its tag.
   */
  uint32_t tag;
  /**
   * Where it was allocated; empty unless FOREBAY_BACKTRACE=1. Valid during the visit.
   */
  const char *call_site;
} forebay_leak;

/**
 * A group: layers that share a block table. Set what is unused to 0.
 */
typedef struct forebay_kv_group {
  /**
   * Layers, at least 1.
   */
  uint32_t layers;
  /**
   * Key and value heads a layer.
   */
  uint32_t heads;
  /**
   * Elements of a key head.
   */
  uint32_t key_size;
  /**
   * Elements of a value head; may differ from the key's.
   */
  uint32_t value_size;
  /**
   * Tokens a block, at least 1.
   */
  uint32_t block_tokens;
  /**
   * FOREBAY_KV_F32 and so on.
   */
  uint32_t element;
  /**
   * FOREBAY_KV_ATTENTION and so on.
   */
  uint32_t content;
  /**
   * Tokens that a query sees, itself included; 0: all. A hit gives the group the last blocks
   * alone that the next token sees, with the null block before.
   */
  uint32_t window;
  /**
   * FOREBAY_KV_BLOCK_OUTER or FOREBAY_KV_LAYER_OUTER.
   */
  uint32_t order;
  /**
   * Blocks, the null block included: 2 to 2^31 - 1.
   */
  uint32_t blocks;
  /**
   * Bytes of a state, a layer.
   */
  uint64_t state_bytes;
  /**
   * 0, for versions to come.
   */
  uint64_t reserved[4];
} forebay_kv_group;

/**
 * What a cache is made with. Fill it with forebay_kv_options_init(), then set the groups.
 */
typedef struct forebay_kv_options {
  /**
   * sizeof of this structure, as set by forebay_kv_options_init().
   */
  size_t struct_size;
  /**
   * The groups. Read during the call only.
   */
  const struct forebay_kv_group *groups;
  /**
   * How many.
   */
  size_t group_count;
  /**
   * Sequences that may be open at a time.
   */
  uint32_t max_sequences;
  /**
   * Blocks that one sequence may have in a group.
   */
  uint32_t max_blocks;
  /**
   * 1: prefixes are kept and hit; 0: not. With 1 one group at least is of full attention (a
   * window of 0, or latent); groups with a window may be beside it, states not; all have as many
   * tokens a block.
   */
  uint32_t prefixes;
  /**
   * FOREBAY_KV_LRU and so on.
   */
  uint32_t policy;
  /**
   * FOREBAY_KV_XXH3 and so on.
   */
  uint32_t hashing;
  /**
   * 1: a full block that equals a known one is given back for that one when it is committed.
   */
  uint32_t dedupe;
  /**
   * 1: the first tokens of a block that differs later are reused, by a copy.
   */
  uint32_t partial;
  /**
   * Blocks of each group that a sequence's first append must leave to the others.
   */
  uint32_t watermark;
  /**
   * Events that are kept until they are taken; 0: none.
   */
  size_t events;
  /**
   * The key of FOREBAY_KV_BLAKE3.
   */
  uint8_t hash_key[32];
  /**
   * 0.
   */
  uint64_t flags;
} forebay_kv_options;

/**
 * A KV cache's handle. NULL names none.
 */
typedef struct forebay_kv *forebay_kv_t;

/**
 * A sequence of a KV cache. 0 names none; after its end all copies are stale.
 */
typedef uint64_t forebay_kv_seq;

/**
 * A sequence and a number of its tokens: of forebay_kv_commit_all() those that are computed, of
 * forebay_kv_leaks and forebay_kv_contiguous_ensure() all.
 */
typedef struct forebay_kv_seq_tokens {
  /**
   * The sequence.
   */
  forebay_kv_seq seq;
  /**
   * Tokens, from its front.
   */
  uint32_t tokens;
  /**
   * 0.
   */
  uint32_t reserved;
} forebay_kv_seq_tokens;

/**
 * What was still held when a cache was destroyed.
 */
typedef struct forebay_kv_leaks {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * Receives open sequences, as many as there is room for; may be NULL with capacity 0.
   */
  struct forebay_kv_seq_tokens *list;
  /**
   * Room in list; set by the caller.
   */
  size_t capacity;
  /**
   * Sequences that were open.
   */
  uint64_t sequences;
  /**
   * Copies that were never said to be made.
   */
  uint64_t copies;
  /**
   * References that were taken by forebay_kv_blocks_take() and its like.
   */
  uint64_t block_references;
} forebay_kv_leaks;

/**
 * What was found of a prompt.
 */
typedef struct forebay_kv_match {
  /**
   * Tokens that the sequence now holds, all committed.
   */
  uint32_t tokens;
  /**
   * Of these, tokens in whole blocks shared with others; the rest is copied by a job of
   * forebay_kv_take_copies().
   */
  uint32_t shared;
} forebay_kv_match;

/**
 * How many blocks a call needed, and what there was of the group that lacked them.
 */
typedef struct forebay_kv_shortage {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * The group.
   */
  uint32_t group;
  /**
   * Blocks that the call needed.
   */
  uint32_t need;
  /**
   * Blocks that hold nothing.
   */
  uint32_t free;
  /**
   * Blocks of prefixes that nobody uses, and that can be given up.
   */
  uint32_t evictable;
  /**
   * Blocks that wait for a fence.
   */
  uint32_t quarantined;
  /**
   * 0.
   */
  uint32_t reserved;
} forebay_kv_shortage;

/**
 * One item of forebay_kv_append_all().
 */
typedef struct forebay_kv_append_item {
  /**
   * The sequence that grows.
   */
  forebay_kv_seq seq;
  /**
   * Its new tokens; NULL: only their number is known.
   */
  const int32_t *tokens;
  /**
   * How many.
   */
  uint32_t count;
  /**
   * 0.
   */
  uint32_t reserved;
} forebay_kv_append_item;

/**
 * A fence: a number of the caller's that grows. What is freed behind a fence is handed out again
 * when forebay_kv_pass() was called with that number or more; 0 waits for nothing.
 */
typedef uint64_t forebay_kv_fence;

/**
 * What a cache with contiguous addresses is made with. Set what is unused to 0.
 */
typedef struct forebay_kv_contiguous_options {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * The groups; block_tokens, blocks and window are not looked at. With FOREBAY_KV_BLOCK_OUTER
   * the layers of a token lie together, with FOREBAY_KV_LAYER_OUTER each layer has a range of
   * its own. Read during the call only.
   */
  const struct forebay_kv_group *groups;
  /**
   * How many, one at least.
   */
  size_t group_count;
  /**
   * Sequences at a time, those included whose fences have not passed; one at least.
   */
  uint32_t max_sequences;
  /**
   * Tokens of a sequence at most, one at least.
   */
  uint32_t max_tokens;
  /**
   * For so many tokens to come pages are mapped ahead, by the pool's keeper or by
   * forebay_kv_contiguous_poll(); 0: none.
   */
  uint32_t ahead_tokens;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Pages that ended sequences' ranges may keep for the next.
   */
  uint64_t keep_pages;
} forebay_kv_contiguous_options;

/**
 * The handle of a KV cache with contiguous addresses. NULL names none.
 */
typedef struct forebay_kv_contiguous *forebay_kv_contiguous_t;

/**
 * Where a sequence's keys or values lie: those of token t, layer l and head h begin
 * t * token_stride + l * layer_stride + h * head_stride bytes from address.
 */
typedef struct forebay_kv_side {
  /**
   * The first element; NULL: there are none.
   */
  void *address;
  /**
   * Bytes from a token to the next; 0 for states.
   */
  uint64_t token_stride;
  /**
   * Bytes from a layer to the next.
   */
  uint64_t layer_stride;
  /**
   * Bytes from a head to the next; 0 for states.
   */
  uint64_t head_stride;
} forebay_kv_side;

/**
 * Where a sequence's elements of a group lie.
 */
typedef struct forebay_kv_seq_view {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * Keys; a latent vector; or a state.
   */
  struct forebay_kv_side keys;
  /**
   * Values; all 0 where a group has none.
   */
  struct forebay_kv_side values;
} forebay_kv_seq_view;

/**
 * What a sequence's memory is used for.
 */
typedef struct forebay_kv_usage {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * Bytes of pages behind its ranges, those mapped ahead included.
   */
  uint64_t mapped;
  /**
   * Bytes of its tokens' elements.
   */
  uint64_t used;
  /**
   * Its tokens.
   */
  uint32_t tokens;
  /**
   * 0.
   */
  uint32_t reserved;
} forebay_kv_usage;

/**
 * All sequences' memory.
 */
typedef struct forebay_kv_contiguous_stats {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * Open sequences.
   */
  uint32_t open;
  /**
   * Ended sequences whose fences have not passed.
   */
  uint32_t leaving;
  /**
   * Pages behind open sequences.
   */
  uint64_t open_pages;
  /**
   * Pages behind sequences that leave.
   */
  uint64_t leaving_pages;
  /**
   * Pages that ended sequences' ranges keep.
   */
  uint64_t kept_pages;
  /**
   * Pages mapped ahead so far.
   */
  uint64_t mapped_ahead;
} forebay_kv_contiguous_stats;

/**
 * The handle of memory behind a KV cache. NULL names none.
 */
typedef struct forebay_kv_memory *forebay_kv_memory_t;

/**
 * A group's memory.
 */
typedef struct forebay_kv_backed {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * Bytes of its pages.
   */
  uint64_t bytes;
  /**
   * Blocks that may be given out.
   */
  uint32_t open;
  /**
   * Blocks that have memory: more than open while a group drains.
   */
  uint32_t backed;
} forebay_kv_backed;

/**
 * A table to be bound. Set what is unused to 0.
 */
typedef struct forebay_kv_table {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * The array of int32: device memory, or pinned host memory. It stays the caller's.
   */
  void *array;
  /**
   * The group whose blocks it holds.
   */
  uint32_t group;
  /**
   * Its rows.
   */
  uint32_t rows;
  /**
   * Entries from a row to the next.
   */
  uint32_t stride;
  /**
   * Bytes of a staging buffer, a multiple of 4; 0: 64 KiB.
   */
  uint32_t staging_bytes;
  /**
   * Staging buffers at most; 0: enough for the array three times, 4 at least.
   */
  uint32_t staging_buffers;
  /**
   * 0.
   */
  uint32_t reserved;
} forebay_kv_table;

/**
 * Where a group's elements lie, in bytes. Token t and head h of the keys of layer l in block b
 * begin at l * layer_stride + b * block_stride + t * key_token_stride + h * key_head_stride;
 * those of the values at value_offset more, with the values' own strides.
 */
typedef struct forebay_kv_layout {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * Bytes of a block over all layers.
   */
  uint64_t block_bytes;
  /**
   * From a block to the next, within a layer.
   */
  uint64_t block_stride;
  /**
   * From a layer to the next, within a block.
   */
  uint64_t layer_stride;
  /**
   * From a layer's keys to its values, within a block.
   */
  uint64_t value_offset;
  /**
   * From a token's keys to the next token's.
   */
  uint64_t key_token_stride;
  /**
   * From a key head to the next.
   */
  uint64_t key_head_stride;
  /**
   * From a token's values to the next token's.
   */
  uint64_t value_token_stride;
  /**
   * From a value head to the next.
   */
  uint64_t value_head_stride;
  /**
   * Bytes of the whole group.
   */
  uint64_t total_bytes;
} forebay_kv_layout;

/**
 * A copy to make: the first tokens, all layers, of a block to another; of a state all of it.
 */
typedef struct forebay_kv_copy {
  /**
   * The group.
   */
  uint32_t group;
  /**
   * The block to read.
   */
  uint32_t from;
  /**
   * The block to write.
   */
  uint32_t to;
  /**
   * Tokens that count; 0 for a state.
   */
  uint32_t tokens;
} forebay_kv_copy;

/**
 * What changed in a row: entries from .. to are to be sent; those behind are null.
 */
typedef struct forebay_kv_delta {
  /**
   * The first entry that changed.
   */
  uint32_t from;
  /**
   * Behind the last one.
   */
  uint32_t to;
} forebay_kv_delta;

/**
 * A block's identity over all tokens up to its end. Under FOREBAY_KV_XXH3 the first 8 bytes
 * count, the rest are 0.
 */
typedef struct forebay_kv_digest {
  /**
   * The digest.
   */
  uint8_t bytes[32];
} forebay_kv_digest;

/**
 * A cache's figures at one moment.
 */
typedef struct forebay_kv_stats {
  /**
   * sizeof of this structure, set by the caller.
   */
  size_t struct_size;
  /**
   * Tokens that were looked for and found, since the cache was made.
   */
  uint64_t hit_tokens;
  /**
   * Tokens that were looked for and not found.
   */
  uint64_t missed_tokens;
  /**
   * Open sequences.
   */
  uint32_t sequences;
  /**
   * Copies that are not made yet.
   */
  uint32_t copies;
  /**
   * Groups.
   */
  uint32_t groups;
  /**
   * 0.
   */
  uint32_t reserved;
} forebay_kv_stats;

/**
 * A group's blocks by state.
 */
typedef struct forebay_kv_counts {
  /**
   * Blocks that there are, the null block included: where memory behind the cache has fewer than
   * were configured, those below the group's end, and those above it that still drain.
   */
  uint32_t total;
  /**
   * Blocks that somebody holds.
   */
  uint32_t used;
  /**
   * Blocks that hold nothing.
   */
  uint32_t free;
  /**
   * Blocks of prefixes that nobody uses.
   */
  uint32_t cached;
  /**
   * Blocks that wait for a fence.
   */
  uint32_t quarantined;
} forebay_kv_counts;

/**
 * What became of a prefix.
 */
typedef struct forebay_kv_event {
  /**
   * FOREBAY_KV_STORED and so on.
   */
  uint32_t kind;
  /**
   * The group.
   */
  uint32_t group;
  /**
   * The block; 0 where all are meant.
   */
  uint32_t block;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * What it is, or was, known by: in a group with a window what the block of full attention with
   * the same tokens is.
   */
  struct forebay_kv_digest digest;
} forebay_kv_event;

/**
 * How far a search has come.
 */
typedef struct forebay_plan_progress {
  /**
   * sizeof of this structure.
   */
  size_t struct_size;
  /**
   * The lowest height so far; 0 before the first.
   */
  uint64_t height;
  /**
   * No plan is lower.
   */
  uint64_t bound;
  /**
   * Effort so far.
   */
  uint64_t effort;
  /**
   * Time since the call began, in ms.
   */
  uint64_t elapsed_ms;
} forebay_plan_progress;

/**
 * What is asked of the planner. Fill it with forebay_plan_options_init(), then change fields.
 */
typedef struct forebay_plan_options {
  /**
   * sizeof of this structure, as set by forebay_plan_options_init().
   */
  size_t struct_size;
  /**
   * The most bytes that the plan may take; 0: as few as possible.
   */
  uint64_t capacity;
  /**
   * Where random choices begin: the same seed gives the same plan.
   */
  uint64_t seed;
  /**
   * Effort that each searcher may take, about a microsecond's work each; UINT64_MAX: no limit.
   */
  uint64_t effort;
  /**
   * Time that all may take, in ms, besides the effort; 0: no limit. With one, the plan depends
   * on the machine's speed.
   */
  uint64_t time_ms;
  /**
   * Searchers with random choices of their own, 1 to 256. The plan depends on it.
   */
  uint32_t searchers;
  /**
   * Threads that they are spread over, 0 for one a core. The plan does not depend on it.
   */
  uint32_t threads;
  /**
   * 1: the searcher that is done first in time is taken; the plan then differs from call to
   * call.
   */
  uint32_t racing;
  /**
   * 0.
   */
  uint32_t flags;
  /**
   * Called on the calling thread, every 50 ms or so, later while one packing of very many
   * buffers is made; 0 ends the search as a spent budget does, and nothing is called any more.
   * NULL: nothing is called.
   */
  int32_t (*progress)(void *ctx, const struct forebay_plan_progress *progress);
  /**
   * Handed to progress.
   */
  void *progress_ctx;
} forebay_plan_options;

/**
 * A buffer to be placed.
 */
typedef struct forebay_plan_buffer {
  /**
   * The caller's own number; no other buffer of the plan has it.
   */
  uint64_t id;
  /**
   * The time from which it is wanted.
   */
  uint64_t birth;
  /**
   * The first time from which it is not wanted any more; above birth. UINT64_MAX: at a step's
   * end.
   */
  uint64_t death;
  /**
   * Bytes, not 0.
   */
  uint64_t size;
  /**
   * Its offset is a multiple of this power of two; 0 means 1.
   */
  uint64_t alignment;
  /**
   * Where it must lie; FOREBAY_PLAN_ANYWHERE for anywhere.
   */
  uint64_t fixed_offset;
} forebay_plan_buffer;

/**
 * A plan's handle. NULL names none.
 */
typedef struct forebay_plan *forebay_plan_t;

/**
 * A plan's figures.
 */
typedef struct forebay_plan_info {
  /**
   * sizeof of this structure as the caller knows it; set before the call.
   */
  size_t struct_size;
  /**
   * How many buffers it places.
   */
  uint64_t buffers;
  /**
   * Bytes that it takes: the highest end.
   */
  uint64_t height;
  /**
   * No plan for these buffers takes fewer bytes.
   */
  uint64_t bound;
  /**
   * height less bound: 0 means that no plan is lower.
   */
  uint64_t gap;
  /**
   * Its memory must begin at a multiple of this.
   */
  uint64_t alignment;
} forebay_plan_info;

/**
 * What a pool is to be like. Fill it with forebay_pool_options_init(), then change fields.
 * In each field but device, flags, oom_wait_ms and keeper, 0 means: as the environment says.
 */
typedef struct forebay_pool_options {
  /**
   * sizeof of this structure, as set by forebay_pool_options_init().
   */
  size_t struct_size;
  /**
   * The device's number.
   */
  int32_t device;
  /**
   * No flags yet: 0.
   */
  uint32_t flags;
  /**
   * Hard limit in bytes.
   */
  uint64_t limit;
  /**
   * Soft limit in bytes: above it idle memory is given back.
   */
  uint64_t soft_limit;
  /**
   * Bytes mapped at start.
   */
  uint64_t reserve;
  /**
   * Bytes left to other users of the device.
   */
  uint64_t headroom;
  /**
   * Idle bytes that automatic trimming leaves in place.
   */
  uint64_t release_threshold;
  /**
   * Idle memory goes back after so many ms.
   */
  uint64_t decay;
  /**
   * Budget of caches and quarantine in bytes.
   */
  uint64_t cache;
  /**
   * How long an allocation may wait for pending fences before it fails, in ms.
   */
  uint32_t oom_wait_ms;
  /**
   * 0: no keeper thread for this pool.
   */
  uint32_t keeper;
  /**
   * Driver time that the keeper may take, in ms a second.
   */
  uint32_t keeper_budget_ms;
  /**
   * What is printed of live blocks: 1 nothing, 2 a summary, 3 every block.
   */
  uint32_t leaks;
  /**
   * Whether call sites are kept: 1 no, 2 yes.
   */
  uint32_t backtrace;
  /**
   * Costly checks, added up: 1 none, 2 poison, 4 guard, 8 streams.
   */
  uint32_t debug;
  /**
   * Whether freed memory is zeroed: 1 no, 2 yes.
   */
  uint32_t scrub;
  /**
   * When pages may move: 1 always, 2 while the device is idle, 3 never.
   */
  uint32_t move;
  /**
   * What forebay_free() means: 1 deferred, 2 sync, 3 stream.
   */
  uint32_t free;
  /**
   * Reuse between streams, added up: 1 none, 2 follow_event_dependencies, 4 opportunistic,
   * 8 internal_dependencies.
   */
  uint32_t reuse;
  /**
   * Most idle bytes that the keeper maps ahead of demand.
   */
  uint64_t ahead;
} forebay_pool_options;

/**
 * A recording's handle. NULL names none.
 */
typedef struct forebay_recording *forebay_recording_t;

/**
 * A buffer of a recorded step.
 */
typedef struct forebay_recorded_buffer {
  /**
   * Its number, from 0, in the order of births: its id in the step's plan.
   */
  uint64_t id;
  /**
   * When it was allocated, as a number of the recording's order.
   */
  uint64_t birth;
  /**
   * When it was freed, in the same order; FOREBAY_RECORD_NEVER for a buffer that is not planned.
   */
  uint64_t death;
  /**
   * Requested bytes.
   */
  uint64_t size;
  /**
   * Its address is a multiple of this.
   */
  uint64_t alignment;
  /**
   * The tag it carried.
   */
  uint32_t tag;
  /**
   * The lane it was allocated on: a place in the recording's streams.
   */
  uint32_t lane;
  /**
   * The lane it was freed on.
   */
  uint32_t end_lane;
  /**
   * 0.
   */
  uint32_t reserved;
} forebay_recorded_buffer;

/**
 * What an export consists of. The exporting process sends it, with the descriptors, to the
 * importing one.
 */
typedef struct forebay_export {
  /**
   * sizeof of this structure as the caller knows it; set before the call.
   */
  size_t struct_size;
  /**
   * The export's number, for forebay_export_close() in the exporting process.
   */
  uint64_t id;
  /**
   * The memory's length in bytes: count pages.
   */
  uint64_t bytes;
  /**
   * Bytes of the page behind each descriptor.
   */
  uint64_t page_bytes;
  /**
   * Where in the first page the memory starts; 0 from forebay_export_fd().
   */
  uint64_t offset;
  /**
   * How many pages, and descriptors.
   */
  uint64_t count;
} forebay_export;

/**
 * What a binding is made with. Fill it with forebay_binding_options_init(), then change fields.
 */
typedef struct forebay_binding_options {
  /**
   * sizeof of this structure, as set by forebay_binding_options_init().
   */
  size_t struct_size;
  /**
   * Bytes of the plan block: no plan may take more. 0: it grows with the plans.
   */
  uint64_t bytes;
  /**
   * The plan block begins at a multiple of this power of two, up to 2 MiB.
   */
  uint64_t alignment;
  /**
   * The most plans kept, 1 to 4096: the one run longest ago goes for one more.
   */
  uint32_t plans_max;
  /**
   * When more than so many % of a step's allocations were not as recorded, the next step of its
   * signature is recorded and planned anew; 0: never.
   */
  uint32_t replan_percent;
} forebay_binding_options;

/**
 * A binding's handle. NULL names none.
 */
typedef struct forebay_binding *forebay_binding_t;

/**
 * What a binding has done so far.
 */
typedef struct forebay_binding_stats {
  /**
   * sizeof of this structure as the caller knows it; set before the call.
   */
  size_t struct_size;
  /**
   * Steps that have ended.
   */
  uint64_t steps;
  /**
   * Allocations that a plan served.
   */
  uint64_t served;
  /**
   * Allocations of buffers that outlive the step, served by the pool as recorded.
   */
  uint64_t by_pool;
  /**
   * Allocations that the pool served because they were not as recorded, or their bytes in use.
   */
  uint64_t fallbacks;
  /**
   * Recorded allocations that did not come.
   */
  uint64_t missing;
  /**
   * Frees of planned buffers later than recorded, or on another lane.
   */
  uint64_t late;
  /**
   * Allocations by forebay_step_alloc_within() out of bytes that the plan leaves free.
   */
  uint64_t gaps_served;
  /**
   * Those that the pool served.
   */
  uint64_t gaps_missed;
  /**
   * Recorded fences issued again: those that the reuse of bytes needs. All, where a buffer was
   * freed on another lane than its own, was told to be used by another one, or outlives the
   * step; where a block that is older than the step was freed in it; where the step was learnt
   * over a plan, or the plan's file does not tell; where the choice would take too long; and in
   * a step that goes another way, from there on.
   */
  uint64_t fences;
  /**
   * Times that the plan block was given up because the pool was short of memory.
   */
  uint64_t given_up;
  /**
   * Plans made of steps that were recorded again.
   */
  uint64_t replanned;
  /**
   * Bytes of the plan block; 0 while it is given up.
   */
  uint64_t plan_block_bytes;
  /**
   * Plans kept.
   */
  uint64_t plans;
  /**
   * Recorded fences left out: other fences say as much, or no bytes are shared by them.
   */
  uint64_t fences_left_out;
} forebay_binding_stats;

/**
 * A step's handle. NULL names none.
 */
typedef struct forebay_step *forebay_step_t;

/**
 * What forebay_suspend() or forebay_resume() did.
 */
typedef struct forebay_suspend_report {
  /**
   * sizeof of this structure as the caller knows it; set before the call.
   */
  size_t struct_size;
  /**
   * Bytes that went back to the device, or were taken from it again.
   */
  uint64_t device_bytes;
  /**
   * Bytes of the tags' contents in host memory afterwards.
   */
  uint64_t host_bytes;
  /**
   * Bytes of live blocks of the tags that stay on the device: allocated before
   * forebay_tag_suspendable().
   */
  uint64_t kept_bytes;
  /**
   * Bytes of pages that the driver did not unmap, for now; tried again by itself.
   */
  uint64_t stuck_bytes;
  /**
   * Bytes of device memory that a failed resume lacks.
   */
  uint64_t missing_bytes;
  /**
   * Blocks of the tags that are suspended afterwards, or were before.
   */
  uint64_t blocks;
} forebay_suspend_report;

/**
 * PyTorch's name for a private pool of memory (`c10::cuda::MempoolId_t`).
 */
typedef struct forebay_torch_pool_id {
  /**
   * A number of the process's graphs, or 0.
   */
  uint64_t first;
  /**
   * A number of the program's own pools, or 0.
   */
  uint64_t second;
} forebay_torch_pool_id;

/**
 * A number over time, as PyTorch's statistics have it.
 */
typedef struct forebay_torch_stat {
  /**
   * Now.
   */
  uint64_t current;
  /**
   * The highest since the last reset.
   */
  uint64_t peak;
  /**
   * All that was ever added.
   */
  uint64_t allocated;
  /**
   * All that was ever taken away.
   */
  uint64_t freed;
} forebay_torch_stat;

/**
 * What PyTorch's statistics of a device count, each for all blocks, for those of at most 1 MiB,
 * and for larger ones.
 */
typedef struct forebay_torch_stats {
  /**
   * sizeof of this structure; set before the call.
   */
  size_t struct_size;
  /**
   * Blocks.
   */
  struct forebay_torch_stat blocks[3];
  /**
   * Their bytes, rounded up to what they take.
   */
  struct forebay_torch_stat bytes[3];
  /**
   * Their bytes as they were asked for.
   */
  struct forebay_torch_stat requested[3];
  /**
   * Requests that failed for memory.
   */
  uint64_t out_of_memory;
  /**
   * Bytes of a page of the device's pool; 0 before its first use.
   */
  uint64_t page_bytes;
} forebay_torch_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the ABI that the loaded library speaks. Compare it with the version the
 * program was built for: they must be equal until 1.0. Never fails.
 */
uint32_t forebay_abi_version(void);

/**
 * The library's version as text, e.g. "0.1.0". Static; never fails.
 */
const char *forebay_version(void);

/**
 * The name of a status, e.g. "FOREBAY_ERROR_OUT_OF_MEMORY"; "FOREBAY_ERROR_UNKNOWN" for a number
 * that is none. Static; never fails.
 */
const char *forebay_status_name(int32_t status);

/**
 * The sentence behind this thread's last error: what was wrong and what to do. Empty before
 * the first. Valid until the thread's next failing call. Never fails.
 */
const char *forebay_last_error(void);

/**
 * Allocates device memory from the default pool, as cudaMalloc does.
 *
 * @param ptr receives the address, a multiple of 256; NULL on failure and for 0 bytes.
 * @param bytes 0 is fine: FOREBAY_OK and a NULL address, which may be freed.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT (ptr is NULL), FOREBAY_ERROR_OUT_OF_MEMORY (with a report
 * as
 * the last error), FOREBAY_ERROR_NO_DRIVER, FOREBAY_ERROR_FORKED, FOREBAY_ERROR_SHUT_DOWN,
 * FOREBAY_ERROR_CONTEXT_LOST (the device's context is gone, and the pool's memory with it: a
 * kernel failed, or the program destroyed the context or reset the device, as cudaDeviceReset
 * does. Call forebay_device_reset() before; called afterwards it ends what is lost).
 *
 * Thread-safe. Free with forebay_free(). Costs some ten ns when a cached block is at hand.
 *
 * # Safety
 * `ptr` is NULL or valid for the write of a pointer.
 */
forebay_status forebay_malloc(void **ptr, size_t bytes);

/**
 * Frees memory with cudaFree's meaning: nothing still queued or running can see it reused.
 * Does not wait for the device by default (see FOREBAY_FREE).
 *
 * Memory of forebay_malloc() and of forebay_alloc() may be freed in either way, as in CUDA. By
 * this function: any stream gets it again after all work queued before the free. By
 * forebay_free_async() or forebay_dealloc() on a stream: that stream gets it again at once, others
 * after the stream's work queued before the free; the caller has ordered the stream after all
 * other use. With FOREBAY_FREE=sync this function waits for the device itself; with
 * FOREBAY_FREE=stream it is forebay_free_async() on the default stream.
 *
 * @param ptr the start of a live block of any pool; NULL is fine.
 * @return FOREBAY_ERROR_NOT_OWNED, FOREBAY_ERROR_DOUBLE_FREE, FOREBAY_ERROR_INTERIOR_POINTER,
 * FOREBAY_ERROR_STALE_POINTER, FOREBAY_ERROR_FORKED; nothing changes then. After
 * forebay_shutdown(), and once the device's context is lost, always FOREBAY_OK.
 *
 * Waits for work of the context that the pool works in. A device may have several contexts, all of
 * which reach the memory, and CUDA lists none of them: work queued in another one is to be ordered
 * before the free, by an event or a wait.
 *
 * Thread-safe.
 *
 * # Safety
 * The caller gives the block up. Any other address is answered with an error.
 */
forebay_status forebay_free(void *ptr);

/**
 * forebay_alloc() from the default pool.
 *
 * # Safety
 * As forebay_alloc().
 */
forebay_status forebay_malloc_async(void **ptr, size_t bytes, forebay_stream_t stream);

/**
 * forebay_dealloc() into whichever pool the block belongs to.
 *
 * # Safety
 * As forebay_dealloc().
 */
forebay_status forebay_free_async(void *ptr, forebay_stream_t stream);

/**
 * Allocates from a pool for work on a stream. The memory may be used by work queued on that
 * stream from now on; for other streams, order them after it first.
 *
 * @param pool NULL: the default pool.
 * @param ptr receives the address, a multiple of 256; NULL on failure and for 0 bytes.
 * @return as forebay_malloc(), and FOREBAY_ERROR_INVALID_POOL, FOREBAY_ERROR_INVALID_STREAM;
 * FOREBAY_ERROR_BUSY while the thread's tag is suspended in the pool.
 *
 * Thread-safe.
 *
 * # Safety
 * `ptr` is NULL or valid for the write of a pointer.
 */
forebay_status forebay_alloc(forebay_pool_t pool,
                             void **ptr,
                             size_t bytes,
                             forebay_stream_t stream);

/**
 * forebay_alloc() at a multiple of `alignment`, a power of two up to 2 MiB (0 is refused).
 *
 * # Safety
 * As forebay_alloc().
 */
forebay_status forebay_alloc_aligned(forebay_pool_t pool,
                                     void **ptr,
                                     size_t bytes,
                                     size_t alignment,
                                     forebay_stream_t stream);

/**
 * Frees a block in a stream's order: later allocations on that stream may get the memory at
 * once; others only after the work queued on the stream so far. All work that uses the block
 * is on this stream, ordered before it, or noted by forebay_record_use().
 *
 * @param pool the block's pool; NULL: found by the address.
 * @param ptr NULL is fine.
 * @return as forebay_free(), and FOREBAY_ERROR_INVALID_POOL, FOREBAY_ERROR_INVALID_STREAM.
 *
 * Thread-safe.
 *
 * # Safety
 * As forebay_free().
 */
forebay_status forebay_dealloc(forebay_pool_t pool, void *ptr, forebay_stream_t stream);

/**
 * Free and total bytes of the default device, as cudaMemGetInfo answers them: what the pool
 * could still hand out counts as free.
 *
 * @param free_bytes, total_bytes each may be NULL.
 *
 * Thread-safe.
 *
 * # Safety
 * Each pointer is NULL or valid for the write.
 */
forebay_status forebay_mem_info(size_t *free_bytes, size_t *total_bytes);

/**
 * The bytes usable at the start of a live block: the request rounded up.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULLs; else as forebay_free().
 *
 * Thread-safe.
 *
 * # Safety
 * `bytes` is NULL or valid for the write. `ptr` is only compared.
 */
forebay_status forebay_usable_size(const void *ptr, size_t *bytes);

/**
 * Whether an address lies in memory that some pool manages, live or not. Never fails.
 */
bool forebay_owns(const void *ptr);

/**
 * Allocates page-locked host memory, as cudaMallocHost does, from slabs.
 *
 * @param ptr receives the address; NULL on failure and for 0 bytes.
 * @return as forebay_malloc().
 *
 * Thread-safe. Free with forebay_host_free().
 *
 * # Safety
 * `ptr` is NULL or valid for the write.
 */
forebay_status forebay_host_alloc(void **ptr, size_t bytes);

/**
 * Frees page-locked host memory. The caller knows that no queued copy uses it any more.
 *
 * @param ptr NULL is fine.
 * @return as forebay_free().
 *
 * # Safety
 * As forebay_free().
 */
forebay_status forebay_host_free(void *ptr);

/**
 * Makes a set of `count` buffers of `bytes` each, all allocated now: acquiring one never waits for
 * the device and never maps memory.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for 0, FOREBAY_ERROR_OUT_OF_MEMORY (nothing is kept
 * then).
 *
 * Thread-safe.
 *
 * # Safety
 * `buffers` is NULL or valid for the write.
 */
forebay_status forebay_buffers_create(forebay_pool_t pool,
                                      size_t bytes,
                                      size_t count,
                                      forebay_buffers_t *buffers);

/**
 * Takes a buffer for work on a stream; it may be used by work queued on that stream from now on.
 * Prefers one that the same stream released; another's is taken behind that stream's event.
 *
 * @return FOREBAY_ERROR_OUT_OF_MEMORY when all are out; FOREBAY_ERROR_BUSY while the stream
 * captures a graph.
 *
 * Thread-safe.
 *
 * # Safety
 * `ptr` is NULL or valid for the write.
 */
forebay_status forebay_buffers_acquire(forebay_buffers_t buffers,
                                       forebay_stream_t stream,
                                       void **ptr);

/**
 * Puts a buffer back, in a stream's order.
 *
 * @return FOREBAY_ERROR_DOUBLE_FREE when it is in already, FOREBAY_ERROR_NOT_OWNED for another
 * address; FOREBAY_ERROR_BUSY while the stream captures a graph: the buffer stays out then.
 *
 * Thread-safe.
 */
forebay_status forebay_buffers_release(forebay_buffers_t buffers,
                                       void *ptr,
                                       forebay_stream_t stream);

/**
 * Ends a buffer set. One whose pool has ended may be ended with buffers out: they went with it.
 *
 * @return FOREBAY_ERROR_BUSY while buffers are out.
 */
forebay_status forebay_buffers_destroy(forebay_buffers_t buffers);

/**
 * Reads a pool's accounts. Fences are looked at first.
 *
 * @param stats its struct_size is set by the caller; longer structures are zero-filled.
 *
 * Thread-safe; exact while no other thread allocates or frees.
 *
 * # Safety
 * `stats` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_pool_stats(forebay_pool_t pool, struct forebay_stats *stats);

/**
 * Writes a pool's accounts, limits and tags as one JSON object, ended by a NUL.
 *
 * @param buffer receives as much as fits; may be NULL when capacity is 0.
 * @param needed receives the bytes that the whole text needs, NUL included; may be NULL.
 *
 * Thread-safe.
 *
 * # Safety
 * `buffer` is valid for writes of `capacity` bytes; `needed` is NULL or valid for the write.
 */
forebay_status forebay_pool_report_json(forebay_pool_t pool,
                                        char *buffer,
                                        size_t capacity,
                                        size_t *needed);

/**
 * Calls `visit` with each live block of a pool, by address. `visit` holds no lock of ours and may
 * free.
 *
 * Thread-safe; blocks freed meanwhile may still be shown.
 *
 * # Safety
 * `visit` is NULL (an error) or callable with `ctx`.
 */
forebay_status forebay_pool_leaks(forebay_pool_t pool,
                                  void (*visit)(void *ctx, const struct forebay_leak *leak),
                                  void *ctx);

/**
 * The number for a tag's name (1 to 64 bytes of UTF-8); the same name has one number. There are
 * 126 besides 1, "untagged".
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULLs, bad names, and when all are taken.
 *
 * Thread-safe.
 *
 * # Safety
 * `name` is NULL or NUL-ended; `tag` is NULL or valid for the write.
 */
forebay_status forebay_tag_create(const char *name, uint32_t *tag);

/**
 * Sets the tag that this thread's allocations carry from now on.
 *
 * @param previous receives the old one; may be NULL.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a number that forebay_tag_create() never gave (1 is
 * fine).
 *
 * # Safety
 * `previous` is NULL or valid for the write.
 */
forebay_status forebay_tag_set(uint32_t tag, uint32_t *previous);

/**
 * Live bytes (rounded) of a pool that carry a tag. Walks all marks: for readers, not hot paths.
 *
 * Thread-safe.
 *
 * # Safety
 * `live_bytes` is NULL or valid for the write.
 */
forebay_status forebay_tag_bytes(forebay_pool_t pool, uint32_t tag, uint64_t *live_bytes);

/**
 * forebay_malloc() from a given pool: memory for work on any stream.
 *
 * @param pool NULL: the default pool.
 * @return as forebay_malloc(), and FOREBAY_ERROR_INVALID_POOL.
 *
 * Thread-safe. Free with forebay_free(), which takes the pool's lock unless the pool is the
 * default one. Costs what forebay_malloc() does.
 *
 * # Safety
 * `ptr` is NULL or valid for the write of a pointer.
 */
forebay_status forebay_pool_malloc(forebay_pool_t pool, void **ptr, size_t bytes);

/**
 * forebay_pool_malloc() at a multiple of `alignment`, a power of two up to 2 MiB (0 is refused).
 *
 * Thread-safe. Takes the pool's lock.
 *
 * # Safety
 * As forebay_pool_malloc().
 */
forebay_status forebay_pool_malloc_aligned(forebay_pool_t pool,
                                           void **ptr,
                                           size_t bytes,
                                           size_t alignment);

/**
 * forebay_mem_info() for a given pool and its device.
 *
 * @param pool NULL: the default pool.
 * @param free_bytes, total_bytes each may be NULL.
 * @return FOREBAY_ERROR_INVALID_POOL, FOREBAY_ERROR_DRIVER.
 *
 * Thread-safe. One driver call.
 *
 * # Safety
 * Each pointer is NULL or valid for the write.
 */
forebay_status forebay_pool_mem_info(forebay_pool_t pool, size_t *free_bytes, size_t *total_bytes);

/**
 * The live block that an address lies in, at its start or inside.
 *
 * @param base receives its first address.
 * @param bytes receives its usable length: the request rounded up.
 * @return FOREBAY_ERROR_NOT_OWNED, FOREBAY_ERROR_STALE_POINTER, FOREBAY_ERROR_DOUBLE_FREE when no
 * live block is there, FOREBAY_ERROR_INVALID_ARGUMENT for NULLs.
 *
 * Thread-safe. Takes the pool's lock; no driver call.
 *
 * # Safety
 * `base` and `bytes` are NULL or valid for the write. `ptr` is only compared.
 */
forebay_status forebay_block_range(const void *ptr, void **base, size_t *bytes);

/**
 * The pool whose memory an address lies in, live or not.
 *
 * @param pool receives the handle: NULL for the default pool, which serves fastest under that
 * name.
 * @return FOREBAY_ERROR_NOT_OWNED, FOREBAY_ERROR_STALE_POINTER.
 *
 * Thread-safe. Takes the registry's lock.
 *
 * # Safety
 * `pool` is NULL or valid for the write. `ptr` is only compared.
 */
forebay_status forebay_pool_of(const void *ptr, forebay_pool_t *pool);

/**
 * Makes a stream known to a pool before it is used there. Only where the device has no events
 * over a whole context (before CUDA 12.5) does it matter: forebay_free() then waits for the
 * streams that are known.
 *
 * @param pool NULL: the default pool.
 * @return FOREBAY_ERROR_INVALID_STREAM for a stream of another context.
 *
 * Thread-safe. forebay_stream_retire() ends it.
 */
forebay_status forebay_stream_note(forebay_pool_t pool, forebay_stream_t stream);

/**
 * Ends every pool of a device, its default pool too, before the device's context is reset or
 * destroyed. Live blocks are reported as FOREBAY_LEAKS says, and their addresses are stale from
 * then on: freeing them answers FOREBAY_ERROR_STALE_POINTER. The next use of the device makes a
 * new default pool, in the context that is there then.
 *
 * @param device the device's number.
 * @return FOREBAY_ERROR_BUSY while a graph capture is open on it, FOREBAY_ERROR_DRIVER when memory
 * could not be given back: the call may be repeated.
 *
 * Thread-safe. The caller has waited for the device, and no other call on its pools is under way.
 */
forebay_status forebay_device_reset(int32_t device);

/**
 * Fills `options` with the defaults: prefixes by XXH3 and LRU, 1024 sequences, no limit on
 * their blocks, no events. The groups are to be set.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL.
 *
 * # Safety
 * `options` is NULL or valid for the write.
 */
forebay_status forebay_kv_options_init(struct forebay_kv_options *options);

/**
 * Makes a cache: books of blocks, touching no device.
 *
 * @param kv receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT says what makes no sense; FOREBAY_ERROR_OUT_OF_MEMORY: no
 * memory of the machine for the tables; FOREBAY_ERROR_LIMIT: 256 caches are there.
 *
 * Thread-safe. End it with forebay_kv_destroy().
 *
 * # Safety
 * `options` is NULL or valid for reads, with its groups; `kv` is NULL or valid for the write.
 */
forebay_status forebay_kv_create(const struct forebay_kv_options *options, forebay_kv_t *kv);

/**
 * Ends a cache, once calls of other threads on it have ended. Its handle and its sequences are
 * errors from now on.
 *
 * @param leaks NULL, or receives what was still held; how much is logged too, where the log is on
 * (FOREBAY_LOG, forebay_set_log_callback()).
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none, or leaks without
 * struct_size; FOREBAY_ERROR_BUSY, which is logged, while memory stands behind the cache
 * (forebay_kv_memory_create()), or a call on that memory has not ended: the cache is then
 * untouched.
 *
 * Thread-safe; works after forebay_shutdown() too.
 *
 * # Safety
 * `leaks` is NULL or valid for reads and writes, with its list.
 */
forebay_status forebay_kv_destroy(forebay_kv_t kv, struct forebay_kv_leaks *leaks);

/**
 * Opens a sequence without tokens.
 *
 * @param salt prefixes are shared only between sequences of one salt: one a tenant.
 * @param priority 0 to 7: how long its prefixes are kept under FOREBAY_KV_PRIORITY_LRU.
 * @return FOREBAY_ERROR_LIMIT when max_sequences are open.
 *
 * Thread-safe.
 *
 * # Safety
 * `seq` is NULL or valid for the write.
 */
forebay_status forebay_kv_open(forebay_kv_t kv,
                               uint64_t salt,
                               uint32_t priority,
                               forebay_kv_seq *seq);

/**
 * The tokens that a sequence holds.
 *
 * @return FOREBAY_ERROR_STALE_SEQUENCE for one that has ended.
 *
 * # Safety
 * `tokens` is NULL or valid for the write.
 */
forebay_status forebay_kv_len(forebay_kv_t kv, forebay_kv_seq seq, uint32_t *tokens);

/**
 * Gives an empty sequence the longest prefix of `tokens` that is there. A model needs at least
 * one token to compute: leave the prompt's last one out. Nothing found is no error. In a group
 * with a window the null block stands before what the next token sees, as after
 * forebay_kv_trim(); what that gave back can be hit until it is given up.
 *
 * @return FOREBAY_ERROR_UNSUPPORTED when the sequence holds tokens; FOREBAY_ERROR_STALE_SEQUENCE.
 *
 * Thread-safe. About 50 ns a block.
 *
 * # Safety
 * `tokens` is valid for reads of `count` numbers; `found` is NULL or valid for the write.
 */
forebay_status forebay_kv_find_prefix(forebay_kv_t kv,
                                      forebay_kv_seq seq,
                                      const int32_t *tokens,
                                      size_t count,
                                      struct forebay_kv_match *found);

/**
 * Appends tokens to a sequence: they have blocks when this returns.
 *
 * @param tokens NULL: only their number is known; what follows is then never reused by others.
 * @param shortage NULL, or receives what lacked with FOREBAY_ERROR_NO_BLOCKS.
 * @return FOREBAY_ERROR_NO_BLOCKS, which is ordinary flow control, FOREBAY_ERROR_LIMIT past
 * max_blocks, FOREBAY_ERROR_STALE_SEQUENCE: nothing has changed then, in any group.
 *
 * Thread-safe; one sequence is used by one thread at a time.
 *
 * # Safety
 * `tokens` is NULL or valid for reads of `count` numbers; `shortage` is NULL or valid for reads
 * and writes.
 */
forebay_status forebay_kv_append(forebay_kv_t kv,
                                 forebay_kv_seq seq,
                                 const int32_t *tokens,
                                 uint32_t count,
                                 struct forebay_kv_shortage *shortage);

/**
 * Appends to several sequences, in order, under one lock.
 *
 * @param done NULL, or receives how many were done, also on failure: those before the one that was
 * refused stand,
 * it and those after it are unchanged.
 * @return as forebay_kv_append() for the one that was refused.
 *
 * # Safety
 * `items` is valid for reads of `count` elements, each with its tokens; the others as in
 * forebay_kv_append().
 */
forebay_status forebay_kv_append_all(forebay_kv_t kv,
                                     const struct forebay_kv_append_item *items,
                                     size_t count,
                                     size_t *done,
                                     struct forebay_kv_shortage *shortage);

/**
 * Takes the blocks for `tokens` more tokens without using them, and a copy of a shared tail:
 * unless the sequence is forked before, the appends that follow cannot be refused for want of
 * blocks up to there.
 *
 * @return as forebay_kv_append().
 *
 * # Safety
 * `shortage` is NULL or valid for reads and writes.
 */
forebay_status forebay_kv_reserve(forebay_kv_t kv,
                                  forebay_kv_seq seq,
                                  uint32_t tokens,
                                  struct forebay_kv_shortage *shortage);

/**
 * The first `tokens` tokens of a sequence are computed, or will be by work that runs before any
 * that is given the blocks by a hit: full blocks can be hit from now on. With dedupe a block that
 * equals a known one is freed behind `after` for that one: the table changes.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for fewer tokens than were committed, or more than there
 * are; FOREBAY_ERROR_STALE_SEQUENCE.
 */
forebay_status forebay_kv_commit(forebay_kv_t kv,
                                 forebay_kv_seq seq,
                                 uint32_t tokens,
                                 forebay_kv_fence after);

/**
 * As forebay_kv_commit() for several sequences under one lock, all or none.
 *
 * @return as there; FOREBAY_ERROR_INVALID_ARGUMENT also when one is named twice.
 *
 * # Safety
 * `items` is valid for reads of `count` elements.
 */
forebay_status forebay_kv_commit_all(forebay_kv_t kv,
                                     const struct forebay_kv_seq_tokens *items,
                                     size_t count,
                                     forebay_kv_fence after);

/**
 * Takes the last `tokens` tokens back (rejected drafts), and room that was reserved behind them.
 * Blocks that hold none of the rest are freed behind `after`.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for more tokens than there are;
 * FOREBAY_ERROR_UNSUPPORTED in a cache with states, or past what was trimmed.
 */
forebay_status forebay_kv_rollback(forebay_kv_t kv,
                                   forebay_kv_seq seq,
                                   uint32_t tokens,
                                   forebay_kv_fence after);

/**
 * Makes `count` sequences that begin with the first `tokens` tokens of `seq` and share its
 * blocks; who writes into a shared tail first gets a copy of it. All or none.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a token that does not exist; FOREBAY_ERROR_LIMIT;
 * FOREBAY_ERROR_NO_BLOCKS for states, of which each gets a copy.
 *
 * # Safety
 * `out` is valid for writes of `count` handles; `shortage` is NULL or valid for reads and writes.
 */
forebay_status forebay_kv_fork(forebay_kv_t kv,
                               forebay_kv_seq seq,
                               uint32_t tokens,
                               forebay_kv_seq *out,
                               size_t count,
                               struct forebay_kv_shortage *shortage);

/**
 * Gives blocks back, behind `after`, whose tokens the next one no longer sees.
 *
 * @param keep_last FOREBAY_KV_WINDOWS: in groups with a window, what that no longer sees. Else
 * all before the last so many tokens, in all groups but states, where no prefixes are kept.
 * @return FOREBAY_ERROR_UNSUPPORTED with keep_last where prefixes are kept;
 * FOREBAY_ERROR_STALE_SEQUENCE.
 */
forebay_status forebay_kv_trim(forebay_kv_t kv,
                               forebay_kv_seq seq,
                               uint32_t keep_last,
                               forebay_kv_fence after);

/**
 * Ends sequences; their blocks are freed behind `after`.
 *
 * @return FOREBAY_ERROR_STALE_SEQUENCE, or FOREBAY_ERROR_INVALID_ARGUMENT when one is named twice:
 * none has ended then.
 *
 * # Safety
 * `seqs` is valid for reads of `count` handles.
 */
forebay_status forebay_kv_free(forebay_kv_t kv,
                               const forebay_kv_seq *seqs,
                               size_t count,
                               forebay_kv_fence after);

/**
 * All work up to this fence has ended: what was freed behind it can be had again.
 *
 * @return FOREBAY_ERROR_UNSUPPORTED while memory stands behind the cache: forebay_kv_memory_poll()
 * tells which fences have passed.
 */
forebay_status forebay_kv_pass(forebay_kv_t kv, forebay_kv_fence fence);

/**
 * Makes a cache with contiguous addresses over pages of a pool. No address space and no memory is
 * taken yet.
 *
 * @param cache receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT says what makes no sense; FOREBAY_ERROR_UNSUPPORTED: the
 * device has no virtual memory.
 *
 * Thread-safe. End it with forebay_kv_contiguous_destroy(), before the pool.
 *
 * # Safety
 * `options` is NULL or valid for reads of its struct_size, with its groups; `cache` is NULL or
 * valid for the write.
 */
forebay_status forebay_kv_contiguous_create(forebay_pool_t pool,
                                            const struct forebay_kv_contiguous_options *options,
                                            forebay_kv_contiguous_t *cache);

/**
 * Ends a cache and all its sequences, and gives their memory back; the caller knows that no work
 * uses it any more. While other threads' calls of it run, the memory goes when these have ended.
 * Also after forebay_shutdown().
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
 *
 * Thread-safe.
 */
forebay_status forebay_kv_contiguous_destroy(forebay_kv_contiguous_t cache);

/**
 * Opens a sequence without tokens.
 *
 * @param seq receives the sequence; 0 on failure.
 * @return FOREBAY_ERROR_BUSY when all sequences are open or wait for their fences, or in a
 * callback as forebay_kv_contiguous_ensure(); FOREBAY_ERROR_OUT_OF_MEMORY: no address range.
 *
 * Thread-safe. Reserves a range of addresses unless an ended sequence has left one.
 *
 * # Safety
 * `seq` is NULL or valid for the write.
 */
forebay_status forebay_kv_contiguous_open(forebay_kv_contiguous_t cache, forebay_kv_seq *seq);

/**
 * The sequences hold so many tokens from now on, and these have memory when this returns.
 *
 * @param items sequences, each with all the tokens that it holds from now on.
 * @param done NULL, or receives how many were done, also on failure: those before the one that was
 * refused stand, it and those after it are unchanged.
 * @return FOREBAY_ERROR_OUT_OF_MEMORY: no memory below the pool's limit;
 * FOREBAY_ERROR_INVALID_ARGUMENT: fewer tokens than it holds, or more than max_tokens;
 * FOREBAY_ERROR_STALE_SEQUENCE; FOREBAY_ERROR_BUSY in a callback of the pool that runs inside a
 * call of this cache, or inside a call of another one while another thread's call has this
 * cache's lock.
 *
 * Thread-safe. Costs a lock where nothing is to be mapped, the driver's calls else.
 *
 * # Safety
 * `items` is valid for reads of `count` elements; `done` is NULL or valid for the write.
 */
forebay_status forebay_kv_contiguous_ensure(forebay_kv_contiguous_t cache,
                                            const struct forebay_kv_seq_tokens *items,
                                            size_t count,
                                            size_t *done);

/**
 * Takes the last tokens of a sequence back until it holds `tokens`. Pages that only these needed
 * go once `after` has passed, save those that are mapped ahead.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT: it holds fewer tokens, or the fence was not made here;
 * FOREBAY_ERROR_UNSUPPORTED in a cache with states; FOREBAY_ERROR_STALE_SEQUENCE;
 * FOREBAY_ERROR_BUSY in a callback as forebay_kv_contiguous_ensure().
 *
 * Thread-safe.
 */
forebay_status forebay_kv_contiguous_truncate(forebay_kv_contiguous_t cache,
                                              forebay_kv_seq seq,
                                              uint32_t tokens,
                                              forebay_kv_fence after);

/**
 * Ends sequences; their memory waits for `after` (0: for nothing).
 *
 * @return FOREBAY_ERROR_STALE_SEQUENCE, or FOREBAY_ERROR_INVALID_ARGUMENT when one is named twice
 * or the fence was not made here, or FOREBAY_ERROR_BUSY in a callback as
 * forebay_kv_contiguous_ensure(): none has ended then.
 *
 * Thread-safe.
 *
 * # Safety
 * `seqs` is valid for reads of `count` handles.
 */
forebay_status forebay_kv_contiguous_free(forebay_kv_contiguous_t cache,
                                          const forebay_kv_seq *seqs,
                                          size_t count,
                                          forebay_kv_fence after);

/**
 * Where a sequence's elements of a group lie; it does not change as long as the sequence is open.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when there is no such group;
 * FOREBAY_ERROR_STALE_SEQUENCE; FOREBAY_ERROR_BUSY in a callback as
 * forebay_kv_contiguous_ensure().
 *
 * Thread-safe.
 *
 * # Safety
 * `view` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_kv_contiguous_view(forebay_kv_contiguous_t cache,
                                          forebay_kv_seq seq,
                                          uint32_t group,
                                          struct forebay_kv_seq_view *view);

/**
 * What a sequence's memory is used for.
 *
 * @return FOREBAY_ERROR_STALE_SEQUENCE; FOREBAY_ERROR_BUSY in a callback as
 * forebay_kv_contiguous_ensure().
 *
 * Thread-safe.
 *
 * # Safety
 * `usage` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_kv_contiguous_get_usage(forebay_kv_contiguous_t cache,
                                               forebay_kv_seq seq,
                                               struct forebay_kv_usage *usage);

/**
 * Tokens of a group that a page of its first range holds; 0 for states, and where a token is
 * longer than a page.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when there is no such group.
 *
 * Thread-safe.
 *
 * # Safety
 * `tokens` is NULL or valid for the write.
 */
forebay_status forebay_kv_contiguous_tokens_per_page(forebay_kv_contiguous_t cache,
                                                     uint32_t group,
                                                     uint64_t *tokens);

/**
 * All sequences' memory.
 *
 * @return FOREBAY_ERROR_BUSY in a callback as forebay_kv_contiguous_ensure().
 *
 * Thread-safe. Cost: a look at each sequence.
 *
 * # Safety
 * `stats` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_kv_contiguous_get_stats(forebay_kv_contiguous_t cache,
                                               struct forebay_kv_contiguous_stats *stats);

/**
 * Makes a fence behind all work queued so far on some streams, as forebay_kv_memory_fence().
 *
 * @param count 1 to 64.
 * @return FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_BUSY for a stream that captures a graph.
 *
 * Thread-safe. Records an event a stream.
 *
 * # Safety
 * `streams` is valid for reads of `count` handles; `fence` is NULL or valid for the write.
 */
forebay_status forebay_kv_contiguous_fence(forebay_kv_contiguous_t cache,
                                           const forebay_stream_t *streams,
                                           size_t count,
                                           forebay_kv_fence *fence);

/**
 * Makes a fence that passes when the caller's counter is at `value` or above: see
 * forebay_kv_contiguous_reach().
 *
 * Thread-safe.
 *
 * # Safety
 * `fence` is NULL or valid for the write.
 */
forebay_status forebay_kv_contiguous_fence_at(forebay_kv_contiguous_t cache,
                                              uint64_t value,
                                              forebay_kv_fence *fence);

/**
 * The caller's counter is at `value`: the work that it stands for has ended.
 *
 * Thread-safe.
 */
forebay_status forebay_kv_contiguous_reach(forebay_kv_contiguous_t cache, uint64_t value);

/**
 * Looks which fences have passed, gives back what waited for them, and maps ahead. Waits neither
 * for the device nor for another call that maps. To be called once a step where the pool has no
 * keeper.
 *
 * @param fence NULL, or receives the highest fence that has passed.
 *
 * Thread-safe. A query a fence in flight, and the driver's calls for what is given back or mapped.
 *
 * # Safety
 * `fence` is NULL or valid for the write.
 */
forebay_status forebay_kv_contiguous_poll(forebay_kv_contiguous_t cache, forebay_kv_fence *fence);

/**
 * Gives back the pages that ended sequences' ranges keep.
 *
 * @param pages NULL, or receives how many.
 * @return FOREBAY_ERROR_BUSY in a callback as forebay_kv_contiguous_ensure().
 *
 * Thread-safe. Costs the driver's calls.
 *
 * # Safety
 * `pages` is NULL or valid for the write.
 */
forebay_status forebay_kv_contiguous_release_kept(forebay_kv_contiguous_t cache, uint64_t *pages);

/**
 * Puts memory of a pool behind the first blocks of a cache that nobody has used. All addresses
 * are fixed from now on, for as many blocks as the cache's groups were made with; the calls of
 * forebay_kv_* go on working on the cache, save forebay_kv_pass(), whose work is
 * forebay_kv_memory_poll()'s now.
 *
 * @param initial blocks of each group that have memory at first, 2 at least.
 * @param count the cache's groups.
 * @param memory receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_OUT_OF_MEMORY: no address range, or no memory below the pool's limit;
 * FOREBAY_ERROR_UNSUPPORTED: the cache is in use, or the device has no virtual memory.
 *
 * Thread-safe. End it with forebay_kv_memory_destroy(), before the cache and the pool.
 *
 * # Safety
 * `initial` is valid for reads of `count` numbers; `memory` is NULL or valid for the write.
 */
forebay_status forebay_kv_memory_create(forebay_kv_t kv,
                                        forebay_pool_t pool,
                                        const uint32_t *initial,
                                        size_t count,
                                        forebay_kv_memory_t *memory);

/**
 * Gives the memory back; the caller knows that no work uses it any more. Waits for copies of
 * tables in flight. The cache stays; its blocks have no memory.
 *
 * The handle is an error from now on; the memory goes once other calls on it have ended, those of
 * other threads and a look of the pool's keeper, which may be after the answer: until then its
 * pages stay mapped and forebay_kv_destroy() answers FOREBAY_ERROR_BUSY.
 *
 * Copies that a failed call had queued are waited for. Also after forebay_shutdown().
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none; FOREBAY_ERROR_BUSY, with
 * nothing changed, while a graph capture is open and a copy that has no event is to be waited for,
 * or in a callback of the pool as forebay_kv_memory_resize() says.
 *
 * Thread-safe.
 */
forebay_status forebay_kv_memory_destroy(forebay_kv_memory_t memory);

/**
 * Makes the first `blocks` blocks of a group those that there are. A group that grows has its
 * memory when this returns. One that shrinks gives out nothing above from now on, and gives memory
 * back as far as blocks are nobody's and their fences have passed, the rest in
 * forebay_kv_memory_poll() or by the pool's keeper.
 *
 * @param backed NULL, or receives how far that is.
 * @return FOREBAY_ERROR_OUT_OF_MEMORY, with nothing changed; FOREBAY_ERROR_INVALID_ARGUMENT for a
 * number of blocks that the group cannot have.
 *
 * Thread-safe. Costs the driver's calls. The pool's out-of-memory callback may run inside;
 * calls of this memory that need its lock answer FOREBAY_ERROR_BUSY there, and so do those of
 * another memory while another thread's call has its lock.
 *
 * # Safety
 * `backed` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_kv_memory_resize(forebay_kv_memory_t memory,
                                        uint32_t group,
                                        uint32_t blocks,
                                        struct forebay_kv_backed *backed);

/**
 * A group's memory now.
 *
 * Thread-safe.
 *
 * # Safety
 * `backed` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_kv_memory_backed(forebay_kv_memory_t memory,
                                        uint32_t group,
                                        struct forebay_kv_backed *backed);

/**
 * Where a group's elements lie: `offset` bytes from `base` on, with the strides of
 * forebay_kv_get_layout(). Neither ever changes.
 *
 * @param base NULL, or receives the first address of the memory of all groups.
 * @param offset NULL, or receives the bytes from there to the group's first element.
 *
 * Thread-safe.
 *
 * # Safety
 * `base` and `offset` are NULL or valid for the write.
 */
forebay_status forebay_kv_memory_view(forebay_kv_memory_t memory,
                                      uint32_t group,
                                      void **base,
                                      uint64_t *offset);

/**
 * Makes a fence behind all work queued so far on some streams. What is freed behind it by
 * forebay_kv_free() and its like is handed out again when a poll has seen it passed. Fences pass
 * in their order.
 *
 * @param count 1 to 64.
 * @return FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_BUSY for a stream that captures a graph.
 *
 * Thread-safe. Records an event a stream.
 *
 * # Safety
 * `streams` is valid for reads of `count` handles; `fence` is NULL or valid for the write.
 */
forebay_status forebay_kv_memory_fence(forebay_kv_memory_t memory,
                                       const forebay_stream_t *streams,
                                       size_t count,
                                       forebay_kv_fence *fence);

/**
 * Makes a fence that passes when the caller's counter is at `value` or above: see
 * forebay_kv_memory_reach().
 *
 * Thread-safe.
 *
 * # Safety
 * `fence` is NULL or valid for the write.
 */
forebay_status forebay_kv_memory_fence_at(forebay_kv_memory_t memory,
                                          uint64_t value,
                                          forebay_kv_fence *fence);

/**
 * The caller's counter is at `value`: the work that it stands for has ended.
 *
 * Thread-safe.
 */
forebay_status forebay_kv_memory_reach(forebay_kv_memory_t memory, uint64_t value);

/**
 * Looks which fences have passed and goes on with what waits for that. Waits neither for the
 * device nor for a resize under way. To be called once a step.
 *
 * @param fence NULL, or receives the highest fence that has passed.
 *
 * Thread-safe. A query a fence in flight.
 *
 * # Safety
 * `fence` is NULL or valid for the write.
 */
forebay_status forebay_kv_memory_poll(forebay_kv_memory_t memory, forebay_kv_fence *fence);

/**
 * Queues the copies that the cache asks for on a stream, instead of forebay_kv_take_copies() and
 * forebay_kv_copied(): before the work that reads or writes their targets. After a failure the
 * next call queues all of them; the work that needs them must not be queued until then.
 *
 * @param count NULL, or receives how many.
 * @return FOREBAY_ERROR_BUSY for a stream that captures a graph, or while any capture is open
 * where a failed call's copies have no event and their stream is gone.
 *
 * Thread-safe; one thread should call it.
 *
 * # Safety
 * `count` is NULL or valid for the write.
 */
forebay_status forebay_kv_memory_run_copies(forebay_kv_memory_t memory,
                                            forebay_stream_t stream,
                                            size_t *count);

/**
 * Binds a group's table: an array of int32 that follows the cache by deltas.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT: a table that makes no sense, or the group has one.
 *
 * Thread-safe. Undo with forebay_kv_memory_table_unbind().
 *
 * # Safety
 * `table` is NULL or valid for reads of its struct_size. Its array is writable by copies of the
 * pool's device until it is unbound.
 */
forebay_status forebay_kv_memory_table_bind(forebay_kv_memory_t memory,
                                            const struct forebay_kv_table *table);

/**
 * Unbinds a group's table; waits for copies in flight.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when it has none; FOREBAY_ERROR_BUSY as of
 * forebay_kv_memory_destroy().
 *
 * Thread-safe.
 */
forebay_status forebay_kv_memory_table_unbind(forebay_kv_memory_t memory, uint32_t group);

/**
 * Row i of the group's table becomes the i-th sequence's; rows behind are null blocks. Queues
 * copies of what has changed, out of pinned buffers that are not written while in flight.
 *
 * @param entries NULL, or receives how many entries were sent.
 * @return FOREBAY_ERROR_BUSY when all staging buffers are in flight, or the stream captures a
 * graph, or in a callback of the pool as forebay_kv_memory_resize() says: call again, nothing is
 * lost.
 *
 * Thread-safe; a table's syncs belong on one stream.
 *
 * # Safety
 * `seqs` is valid for reads of `count` sequences; `entries` is NULL or valid for the write.
 */
forebay_status forebay_kv_memory_table_sync(forebay_kv_memory_t memory,
                                            uint32_t group,
                                            const forebay_kv_seq *seqs,
                                            size_t count,
                                            forebay_stream_t stream,
                                            size_t *entries);

/**
 * Where a group's elements lie. Constant over the cache's life.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when there is no such group.
 *
 * # Safety
 * `layout` is NULL or valid for reads and writes.
 */
forebay_status forebay_kv_get_layout(forebay_kv_t kv,
                                     uint32_t group,
                                     struct forebay_kv_layout *layout);

/**
 * The copies that the device has to make, in the order in which they must be queued: before the
 * work that reads or writes their targets; of states, before the work that writes their sources.
 * Both ends are held until forebay_kv_copied().
 *
 * @param count receives how many were written to jobs, at most capacity; call again while it is
 * capacity.
 * @param batch receives the number to give to forebay_kv_copied(); 0 when none were written.
 *
 * Thread-safe.
 *
 * # Safety
 * `jobs` is valid for writes of `capacity` elements; `count` and `batch` are NULL or valid for the
 * write.
 */
forebay_status forebay_kv_take_copies(forebay_kv_t kv,
                                      struct forebay_kv_copy *jobs,
                                      size_t capacity,
                                      size_t *count,
                                      uint64_t *batch);

/**
 * The copies of a batch are queued, and are made when `after` has passed (0: they are made).
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a batch that is not outstanding.
 */
forebay_status forebay_kv_copied(forebay_kv_t kv, uint64_t batch, forebay_kv_fence after);

/**
 * Writes what changed in a sequence's row since the last call to the same row. Numbers are those
 * of the group's blocks; 0, the null block, behind the end and where tokens were trimmed. A change
 * is told once: not for a group with a bound table (forebay_kv_memory_table_bind()).
 *
 * @param row receives entries; entries of it that did not change are left alone.
 * @param whole 1: the row held another sequence's, or nothing: all of it is written.
 * @param delta NULL, or receives which entries were written: those to be sent.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when the row is too short, or there is no such group.
 *
 * # Safety
 * `row` is valid for writes of `entries` numbers; `delta` is NULL or valid for the write.
 */
forebay_status forebay_kv_row(forebay_kv_t kv,
                              uint32_t group,
                              forebay_kv_seq seq,
                              int32_t *row,
                              size_t entries,
                              uint32_t whole,
                              struct forebay_kv_delta *delta);

/**
 * As forebay_kv_row() for several sequences' rows in one array: the first sequence's is the first.
 * The rows held these sequences' before.
 *
 * @param stride entries from a row to the next.
 * @param deltas NULL, or receives one for each sequence.
 * @param done NULL, or receives how many rows were written, also on failure: those before the one
 * that was refused.
 * @return as there.
 *
 * # Safety
 * `seqs` is valid for reads of `count` handles, `array` for writes of `count` times `stride`
 * numbers, `deltas` is NULL or valid for writes of `count` elements, `done` is NULL or
 * valid for the write.
 */
forebay_status forebay_kv_rows(forebay_kv_t kv,
                               uint32_t group,
                               const forebay_kv_seq *seqs,
                               size_t count,
                               int32_t *array,
                               size_t stride,
                               struct forebay_kv_delta *deltas,
                               size_t *done);

/**
 * The slots of a sequence's tokens `from` to `from + count`: the block's number times its tokens,
 * and the place in it.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for tokens that are not there or were trimmed;
 * FOREBAY_ERROR_UNSUPPORTED in a group of states.
 *
 * # Safety
 * `slots` is valid for writes of `count` numbers.
 */
forebay_status forebay_kv_slots(forebay_kv_t kv,
                                uint32_t group,
                                forebay_kv_seq seq,
                                uint32_t from,
                                int64_t *slots,
                                size_t count);

/**
 * Compressed rows of sequences, as FlashInfer reads them: `indptr` says where each one's blocks
 * begin in `indices`, `last_page_len` how many tokens its last block has, 1 to block_tokens.
 * Trimmed blocks are left out.
 *
 * @param indptr receives count + 1 entries, last_page_len count.
 * @param needed NULL, or receives how many entries indices needs.
 * @return FOREBAY_ERROR_LIMIT when capacity is smaller than that: indices holds nothing of use
 * then; FOREBAY_ERROR_INVALID_ARGUMENT for a sequence without tokens; FOREBAY_ERROR_UNSUPPORTED in
 * a group of states.
 *
 * # Safety
 * `seqs` is valid for reads of `count` handles; `indptr`, `indices` and `last_page_len` are valid
 * for writes of `count + 1`, `capacity` and `count` numbers and do not overlap; `needed`
 * is NULL or valid for the write.
 */
forebay_status forebay_kv_csr(forebay_kv_t kv,
                              uint32_t group,
                              const forebay_kv_seq *seqs,
                              size_t count,
                              int32_t *indptr,
                              int32_t *indices,
                              size_t capacity,
                              int32_t *last_page_len,
                              size_t *needed);

/**
 * Forgets all prefixes; blocks that nobody holds become free, sequences keep theirs.
 */
forebay_status forebay_kv_reset_prefixes(forebay_kv_t kv);

/**
 * Takes `count` blocks of a group with one reference each, for an engine with a scheduler of its
 * own; all or none. They are never a sequence's.
 *
 * @param shortage NULL, or receives what lacked with FOREBAY_ERROR_NO_BLOCKS.
 *
 * # Safety
 * `blocks` is valid for writes of `count` numbers; `shortage` is NULL or valid for reads
 * and writes.
 */
forebay_status forebay_kv_blocks_take(forebay_kv_t kv,
                                      uint32_t group,
                                      uint32_t *blocks,
                                      size_t count,
                                      struct forebay_kv_shortage *shortage);

/**
 * Takes one reference more to each block, also to registered ones that nobody holds. Null blocks
 * are passed over.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT, with nothing changed, for a block that is not this
 * level's, or is held by nobody and not registered.
 *
 * # Safety
 * `blocks` is valid for reads of `count` numbers.
 */
forebay_status forebay_kv_blocks_hold(forebay_kv_t kv,
                                      uint32_t group,
                                      const uint32_t *blocks,
                                      size_t count);

/**
 * Gives one reference to each block back, in this order, behind `after`: of registered blocks
 * those named first are given up first. Null blocks are passed over.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT, with nothing changed, for a block that is not held so
 * often by this level.
 *
 * # Safety
 * `blocks` is valid for reads of `count` numbers.
 */
forebay_status forebay_kv_blocks_release(forebay_kv_t kv,
                                         uint32_t group,
                                         const uint32_t *blocks,
                                         size_t count,
                                         forebay_kv_fence after);

/**
 * Registers blocks under hashes of the caller's; they can be found from then on, and stay when
 * nobody holds them until they are given up.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT, with nothing changed, for a block that is not held by
 * this level, is registered, or is null.
 *
 * # Safety
 * `blocks` and `digests` are valid for reads of `count` elements.
 */
forebay_status forebay_kv_blocks_register(forebay_kv_t kv,
                                          uint32_t group,
                                          const uint32_t *blocks,
                                          const struct forebay_kv_digest *digests,
                                          size_t count);

/**
 * Takes a reference to a block of each hash, up to the first hash that is not there.
 *
 * @param found receives how many; their numbers are at the front of blocks.
 *
 * # Safety
 * `digests` is valid for reads and `blocks` for writes of `count` elements; `found` is
 * NULL or valid for the write.
 */
forebay_status forebay_kv_blocks_find(forebay_kv_t kv,
                                      uint32_t group,
                                      const struct forebay_kv_digest *digests,
                                      uint32_t *blocks,
                                      size_t count,
                                      size_t *found);

/**
 * A block of each hash, up to the first hash that is not there, without a reference: the numbers
 * hold until the next call that gives blocks out. Of several with one hash the one that was
 * registered first.
 *
 * @param found receives how many; their numbers are at the front of blocks.
 *
 * # Safety
 * As of forebay_kv_blocks_find().
 */
forebay_status forebay_kv_blocks_peek(forebay_kv_t kv,
                                      uint32_t group,
                                      const struct forebay_kv_digest *digests,
                                      uint32_t *blocks,
                                      size_t count,
                                      size_t *found);

/**
 * Makes blocks unknown, so that they are found no more; those that nobody holds become free.
 *
 * @param evicted NULL, or receives how many were known before and are not now.
 *
 * # Safety
 * `blocks` is valid for reads of `count` numbers; `evicted` is NULL or valid for the write.
 */
forebay_status forebay_kv_blocks_evict(forebay_kv_t kv,
                                       uint32_t group,
                                       const uint32_t *blocks,
                                       size_t count,
                                       size_t *evicted);

/**
 * The figures of one moment, without the cache's lock. In each group used + free + cached +
 * quarantined + 1 are total.
 *
 * @param groups NULL, or receives the first `count` groups' figures.
 *
 * # Safety
 * `stats` is NULL or valid for reads and writes; `groups` is NULL or valid for writes of `count`
 * elements.
 */
forebay_status forebay_kv_get_stats(forebay_kv_t kv,
                                    struct forebay_kv_stats *stats,
                                    struct forebay_kv_counts *groups,
                                    size_t count);

/**
 * Takes events, oldest first.
 *
 * @param count receives how many were written, at most capacity.
 * @param dropped NULL, or receives how many were lost since the last call, as nobody took them.
 *
 * # Safety
 * `events` is valid for writes of `capacity` elements; `count` and `dropped` are NULL or valid for
 * the write.
 */
forebay_status forebay_kv_take_events(forebay_kv_t kv,
                                      struct forebay_kv_event *events,
                                      size_t capacity,
                                      size_t *count,
                                      uint64_t *dropped);

/**
 * Holds everything against everything, under the cache's lock: for tests and doubts.
 *
 * @param text NULL, or receives what is wrong first, cut to capacity and ended by a NUL.
 * @return FOREBAY_ERROR_INTERNAL when something is wrong: a defect in Forebay.
 *
 * # Safety
 * `text` is NULL or valid for writes of `capacity` bytes.
 */
forebay_status forebay_kv_check(forebay_kv_t kv, char *text, size_t capacity);

/**
 * Fills `options` with the defaults: as few bytes as possible, seed 1, one searcher, an effort of
 * 5000000.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL.
 *
 * # Safety
 * `options` is NULL or valid for the write.
 */
forebay_status forebay_plan_options_init(struct forebay_plan_options *options);

/**
 * Makes a plan for `count` buffers. It is verified before it is given.
 *
 * @param options NULL: the defaults.
 * @param plan receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT names the buffer or option that is wrong;
 * FOREBAY_ERROR_INFEASIBLE: no plan fits under the capacity, which is proven;
 * FOREBAY_ERROR_NOT_FOUND: none was found within the budget, and one may exist.
 *
 * Thread-safe; needs no device. End the plan with forebay_plan_destroy().
 *
 * # Safety
 * `buffers` is valid for reads of `count` elements; `options` is NULL or valid for reads; `plan`
 * is NULL or valid for the write.
 */
forebay_status forebay_plan_create(const struct forebay_plan_buffer *buffers,
                                   size_t count,
                                   const struct forebay_plan_options *options,
                                   forebay_plan_t *plan);

/**
 * Makes a plan for the buffers in a text file: lines under a header such as id,lower,upper,size
 * (more columns: alignment, offset for a fixed one, and tag, which changes nothing). Where ids are
 * words, buffers are numbered by their rows, from 0. Rows of size 0 are left out.
 *
 * @param path ended by a NUL.
 * @return as forebay_plan_create(); FOREBAY_ERROR_INVALID_ARGUMENT names the line that is wrong,
 * or says why the file cannot be read.
 *
 * Thread-safe. End the plan with forebay_plan_destroy().
 *
 * # Safety
 * `path` is NULL or a text; the others as in forebay_plan_create().
 */
forebay_status forebay_plan_create_from_file(const char *path,
                                             const struct forebay_plan_options *options,
                                             forebay_plan_t *plan);

/**
 * Ends a plan. Its handle is an error from now on.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
 *
 * Thread-safe.
 */
forebay_status forebay_plan_destroy(forebay_plan_t plan);

/**
 * Reads a plan's figures.
 *
 * @param info its struct_size is set by the caller; longer structures are zero-filled.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, no struct_size, or a handle that names none.
 *
 * Thread-safe.
 *
 * # Safety
 * `info` is NULL or valid for reads and writes.
 */
forebay_status forebay_plan_get_info(forebay_plan_t plan, struct forebay_plan_info *info);

/**
 * The offset of the buffer with this id, in bytes. O(log n).
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when the plan has no such buffer.
 *
 * Thread-safe.
 *
 * # Safety
 * `offset` is NULL or valid for the write.
 */
forebay_status forebay_plan_offset(forebay_plan_t plan, uint64_t id, uint64_t *offset);

/**
 * All offsets, in the order in which the buffers were given.
 *
 * @param count the plan's number of buffers: see forebay_plan_get_info().
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for another count: nothing is written then.
 *
 * Thread-safe.
 *
 * # Safety
 * `offsets` is valid for writes of `count` numbers.
 */
forebay_status forebay_plan_offsets(forebay_plan_t plan, uint64_t *offsets, size_t count);

/**
 * Writes a plan as bytes, for forebay_plan_load() in any later process. The same plan gives the
 * same bytes.
 *
 * @param bytes receives them if capacity suffices; may be NULL when capacity is 0.
 * @param needed receives how many they are; may be NULL.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when there is some capacity and it does not suffice:
 * nothing is written to bytes then.
 *
 * Thread-safe.
 *
 * # Safety
 * `bytes` is valid for writes of `capacity` bytes; `needed` is NULL or valid for the write.
 */
forebay_status forebay_plan_save(forebay_plan_t plan, void *bytes, size_t capacity, size_t *needed);

/**
 * Loads a plan that forebay_plan_save() or `forebay plan --out` wrote, and verifies it.
 *
 * @param plan receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT says what is wrong: no plan, another version, cut short,
 * altered, or offsets that are no plan.
 *
 * Thread-safe. End the plan with forebay_plan_destroy().
 *
 * # Safety
 * `bytes` is valid for reads of `count` bytes; `plan` is NULL or valid for the write.
 */
forebay_status forebay_plan_load(const void *bytes, size_t count, forebay_plan_t *plan);

/**
 * Fills `options` with the defaults that the environment gives.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, FOREBAY_ERROR_CONFIG under FOREBAY_STRICT=1.
 *
 * # Safety
 * `options` is NULL or valid for the write.
 */
forebay_status forebay_pool_options_init(struct forebay_pool_options *options);

/**
 * Creates a pool: reserves address space and fills the reservoir.
 *
 * @param pool receives the handle; NULL on failure.
 * @param options NULL: as the environment says.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT names the field; FOREBAY_ERROR_OUT_OF_MEMORY,
 * FOREBAY_ERROR_NO_DRIVER, FOREBAY_ERROR_DRIVER.
 *
 * Thread-safe. End it with forebay_pool_destroy().
 *
 * # Safety
 * `pool` is NULL or valid for the write; `options` is NULL or valid for reads of its struct_size.
 */
forebay_status forebay_pool_create(forebay_pool_t *pool,
                                   const struct forebay_pool_options *options);

/**
 * Ends a pool. Its live blocks are reported as FOREBAY_LEAKS says, and their addresses are stale
 * from now on. The caller knows that nothing on the device uses its memory any more.
 *
 * @return FOREBAY_ERROR_INVALID_POOL; FOREBAY_ERROR_DRIVER when memory could not be given back:
 * the pool
 * takes no other call then, and this one may be repeated; FOREBAY_ERROR_BUSY while a graph capture
 * is open on its device. The default pool cannot be destroyed.
 *
 * Thread-safe; no other call on the pool may be under way.
 */
forebay_status forebay_pool_destroy(forebay_pool_t pool);

/**
 * The default pool of a device, made at first use as the environment says.
 *
 * @param device the number that FOREBAY_DEVICE gives, or 0.
 *
 * Thread-safe. Not to be destroyed.
 *
 * # Safety
 * `pool` is NULL or valid for the write.
 */
forebay_status forebay_pool_default(int32_t device, forebay_pool_t *pool);

/**
 * Gives idle memory back to the device until the pool holds at most `keep_bytes`. All threads'
 * caches are emptied first. Does not wait: what was freed a moment ago may need another call once
 * the device has said that its fence has passed.
 *
 * @param released_bytes receives what went back; may be NULL.
 *
 * Thread-safe; stops other threads' fast paths for a moment.
 *
 * # Safety
 * `released_bytes` is NULL or valid for the write.
 */
forebay_status forebay_pool_trim(forebay_pool_t pool, size_t keep_bytes, size_t *released_bytes);

/**
 * Changes a pool's limits in bytes; 0 leaves one as it is. A hard limit below what is held
 * trims what is idle at once and binds all that is asked from now on.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when a limit is above the device or soft above hard.
 *
 * Thread-safe.
 */
forebay_status forebay_pool_set_limits(forebay_pool_t pool, uint64_t hard, uint64_t soft);

/**
 * Sets the function called before memory loses its place (its pages move or go back to the
 * device), with the address and length. It runs inside the pool: it must not call Forebay.
 *
 * @param callback NULL: none.
 *
 * # Safety
 * `callback` stays callable with `ctx` until replaced, from any thread.
 */
forebay_status forebay_set_on_unmap(forebay_pool_t pool, void (*callback)(void *ctx,
                                                                          void *address,
                                                                          size_t bytes), void *ctx);

/**
 * Sets the function called before an allocation of `bytes` fails. It holds no lock of a pool's
 * and may free; true means: try again. Inside a call that maps pages behind a KV cache, calls of
 * that memory which need its lock answer FOREBAY_ERROR_BUSY.
 *
 * @param callback NULL: none.
 *
 * # Safety
 * `callback` stays callable with `ctx` until replaced, from any thread.
 */
forebay_status forebay_set_oom_callback(forebay_pool_t pool,
                                        bool (*callback)(void *ctx, size_t bytes),
                                        void *ctx);

/**
 * Sets the function that receives log lines: level 1 (error) to 5 (trace) and the text. It may
 * run inside the pool: it must not call Forebay.
 *
 * @param callback NULL: none.
 * @return FOREBAY_ERROR_BUSY when called from inside a callback.
 *
 * # Safety
 * `callback` stays callable with `ctx` until replaced, from any thread.
 */
forebay_status forebay_set_log_callback(void (*callback)(void *ctx,
                                                         int32_t level,
                                                         const char *message), void *ctx);

/**
 * Ends all use of the library in this process: allocations answer FOREBAY_ERROR_SHUT_DOWN, frees
 * succeed silently. Calling it again is fine.
 *
 * Thread-safe.
 */
forebay_status forebay_shutdown(void);

/**
 * Begins to record what is allocated from a pool and freed to it by stream-ordered calls, until
 * forebay_record_end(). Meanwhile every operation takes the slow path. Memory of forebay_malloc()
 * is left out.
 *
 * @param pool NULL: the default pool.
 * @param stream a stream, whose allocations are recorded, or FOREBAY_ALL_STREAMS as a pointer:
 * those of all.
 * @param recording receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_BUSY while a recording is open on the pool; FOREBAY_ERROR_INVALID_POOL;
 * FOREBAY_ERROR_UNSUPPORTED where the kernel has no membarrier.
 *
 * Thread-safe. End it with forebay_recording_destroy().
 *
 * # Safety
 * `recording` is NULL or valid for the write.
 */
forebay_status forebay_record_begin(forebay_pool_t pool,
                                    forebay_stream_t stream,
                                    forebay_recording_t *recording);

/**
 * Makes later work of stream `to` wait for the work queued on `from` so far, as an event recorded
 * on the one and awaited by the other does, and records it: a buffer that died on `from` may then
 * give its bytes to one that is born on `to`. A step that runs by the plan issues it again by
 * itself before the next allocation, if reuse of memory needs it. That orders reuse alone: between
 * its recorded place and that allocation work is unordered; a fence behind the last allocation is
 * never issued, and one that others imply, or that no reuse of bytes needs, only where all are:
 * see the fences of forebay_binding_stats. Where work of one stream reads what another has
 * written, the program's own fence stays.
 *
 * @return FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_BUSY while a graph capture is open;
 * FOREBAY_ERROR_INVALID_ARGUMENT when the recording has ended.
 *
 * Thread-safe.
 */
forebay_status forebay_record_fence(forebay_recording_t recording,
                                    forebay_stream_t from,
                                    forebay_stream_t to);

/**
 * Ends a recording. What it holds can be asked and planned from now on.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when it has ended already; FOREBAY_ERROR_INVALID_POOL
 * when its pool has been destroyed; FOREBAY_ERROR_UNSUPPORTED: more than 64 streams, or 2^24
 * events.
 *
 * Thread-safe.
 */
forebay_status forebay_record_end(forebay_recording_t recording);

/**
 * The buffers of an ended recording, in the order of their births.
 *
 * @param buffers receives them if capacity suffices; may be NULL when capacity is 0.
 * @param count receives how many they are; may be NULL.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when there is some capacity and it does not suffice;
 * FOREBAY_ERROR_BUSY while the recording is open.
 *
 * Thread-safe.
 *
 * # Safety
 * `buffers` is valid for writes of `capacity` elements; `count` is NULL or valid for the write.
 */
forebay_status forebay_recording_buffers(forebay_recording_t recording,
                                         struct forebay_recorded_buffer *buffers,
                                         size_t capacity,
                                         size_t *count);

/**
 * The streams of an ended recording: the first is lane 0. A step by its plan names one stream for
 * each, in this order.
 *
 * @param streams receives them if capacity suffices; may be NULL when capacity is 0.
 * @param count receives how many they are; may be NULL.
 * @return as forebay_recording_buffers().
 *
 * Thread-safe.
 *
 * # Safety
 * `streams` is valid for writes of `capacity` elements; `count` is NULL or valid for the write.
 */
forebay_status forebay_recording_streams(forebay_recording_t recording,
                                         forebay_stream_t *streams,
                                         size_t capacity,
                                         size_t *count);

/**
 * Lets a recording go; one that is open ends. Plans made of it stay.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
 *
 * Thread-safe.
 */
forebay_status forebay_recording_destroy(forebay_recording_t recording);

/**
 * Makes a plan for a recorded step: for its buffers that were born and died in it, whose ids
 * are their numbers. Those of several lanes share bytes only where recorded fences allow it.
 *
 * @param options NULL: the defaults.
 * @param plan receives the handle; NULL on failure.
 * @return as forebay_plan_create(); FOREBAY_ERROR_INVALID_ARGUMENT for more than 2^24 buffers,
 * uses and fences, divided by the lanes; FOREBAY_ERROR_BUSY while the recording is open.
 *
 * Thread-safe; needs no device. End the plan with forebay_plan_destroy().
 *
 * # Safety
 * `options` is NULL or valid for reads; `plan` is NULL or valid for the write.
 */
forebay_status forebay_plan_create_from_recording(forebay_recording_t recording,
                                                  const struct forebay_plan_options *options,
                                                  forebay_plan_t *plan);

/**
 * Gives another device access to all memory of a pool, what is mapped later included. Again for
 * a device that has it is fine.
 *
 * @param device the other device's number; up to 8 may have access.
 * @return FOREBAY_ERROR_TOO_MANY_PEERS for a ninth, FOREBAY_ERROR_UNSUPPORTED when it does not
 * exist or cannot reach this device's memory, FOREBAY_ERROR_BUSY while a graph capture is open,
 * FOREBAY_ERROR_DRIVER, FOREBAY_ERROR_MAPPING_LIMIT. Nothing changes then.
 *
 * forebay_free() waits for what the device does with the memory in its primary context; other
 * work of its (and all of it before CUDA 12.5) is to be ordered before the free by an event.
 *
 * Thread-safe; allocations that need the driver wait meanwhile. Costs a driver call for each row
 * of mapped memory. (cudaDeviceEnablePeerAccess has no effect on a pool's memory.)
 */
forebay_status forebay_pool_enable_peer(forebay_pool_t pool, int32_t device);

/**
 * Takes another device's access away. The caller knows that no work of its uses the memory.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when it has none; else as forebay_pool_enable_peer().
 *
 * Thread-safe.
 */
forebay_status forebay_pool_disable_peer(forebay_pool_t pool, int32_t device);

/**
 * Makes file descriptors of a block's pages, for other processes to import. The block consists
 * of whole pages: allocate a multiple of page_bytes with forebay_alloc_aligned() at an alignment
 * of page_bytes. Its pages stay where they are until forebay_export_close(); when the block is
 * freed before, its memory is kept as it is until then.
 *
 * @param ptr the start of a live block.
 * @param fds receives count descriptors, in address order. They are the caller's: to send to
 * other processes, and to close (they are not needed to keep the memory). NULL with a capacity of
 * 0: nothing is exported, and description, with id 0, says what would be.
 * @param capacity how many descriptors fit.
 * @param description its struct_size is set by the caller; receives the description.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when the block is not of whole pages or capacity is too
 * small, FOREBAY_ERROR_UNSUPPORTED where the device exports nothing; else as forebay_free(). No
 * descriptor is left open then.
 *
 * Thread-safe. One descriptor a page: mind the process's limit on them.
 *
 * # Safety
 * `fds` is NULL or valid for writes of `capacity` descriptors; `description` is NULL or valid for
 * reads and writes of its struct_size.
 */
forebay_status forebay_export_fd(const void *ptr,
                                 int32_t *fds,
                                 size_t capacity,
                                 struct forebay_export *description);

/**
 * Opens an export of a block of any size, whose descriptors forebay_export_pages() makes a few at
 * a time. The block's pages stay where they are until forebay_export_close(); when the block is
 * freed before, its memory is kept as it is until then. The pages hold other blocks too, which
 * the importing process can then reach: allocate whole pages where that matters.
 *
 * This stands in for CUDA's legacy IPC. cuIpcGetMemHandle() and cudaIpcGetMemHandle() refuse a
 * pool's memory as an invalid value, as they refuse all memory that is mapped; only under
 * libforebay_preload.so do they take it. Send the description, and what forebay_export_pages()
 * makes, over a Unix socket instead; the other process calls forebay_import_open(),
 * forebay_import_pages() and forebay_import_map().
 *
 * @param ptr the start of a live block.
 * @param description its struct_size is set by the caller; receives the description: bytes are
 * those of all pages, offset is where in the first one the block begins.
 * @return as forebay_free(); FOREBAY_ERROR_INVALID_ARGUMENT for imported memory;
 * FOREBAY_ERROR_BUSY while the block's tag is suspended.
 *
 * Thread-safe. Costs no driver call; from then on the block's free takes the slow path.
 *
 * # Safety
 * `description` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_export_open(const void *ptr, struct forebay_export *description);

/**
 * Makes descriptors of some pages of an open export.
 *
 * @param id the export's number.
 * @param first the first page wanted, from 0.
 * @param fds receives `count` descriptors, in address order: the caller's, to send and to close.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when the export is not open or has not so many pages,
 * FOREBAY_ERROR_UNSUPPORTED where the device exports nothing, FOREBAY_ERROR_DRIVER (the process's
 * limit on descriptors, for one). No descriptor is left open then.
 *
 * Thread-safe. A driver call a page.
 *
 * # Safety
 * `fds` is NULL or valid for writes of `count` descriptors.
 */
forebay_status forebay_export_pages(uint64_t id, size_t first, int32_t *fds, size_t count);

/**
 * Ends an export: the caller knows that other processes use the memory no more. The descriptors
 * are closed apart.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when it is not open.
 *
 * Thread-safe.
 */
forebay_status forebay_export_close(uint64_t id);

/**
 * Maps memory that another process exported into a pool's address space. It counts in the
 * accounts as other, and not against the pool's limit.
 *
 * @param pool NULL: the default pool; its device is the exporting pool's, or one that reaches that
 * device's memory. In that case the memory is open to these two devices and to no peer of the
 * pool's, and a free does not wait for what the exporting pool's device does with it.
 * @param fds description->count descriptors as this process received them; not needed afterwards.
 * @param description as the exporting process sent it, struct_size included.
 * @param ptr receives the address; NULL on failure. Free it with forebay_free() or
 * forebay_dealloc(); the exporting process closes its export after that.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for descriptors that name no pages, or pages of several
 * devices, FOREBAY_ERROR_UNSUPPORTED for pages of a device that is out of reach and where none can
 * be imported, FOREBAY_ERROR_OUT_OF_MEMORY (address space), FOREBAY_ERROR_DRIVER. Nothing is kept
 * then.
 *
 * Thread-safe.
 *
 * # Safety
 * `fds` is valid for reads of description->count descriptors, which are open; `description` is
 * NULL or valid for reads of its struct_size; `ptr` is NULL or valid for the write.
 */
forebay_status forebay_import_fd(forebay_pool_t pool,
                                 const int32_t *fds,
                                 const struct forebay_export *description,
                                 void **ptr);

/**
 * Begins an import whose descriptors come in parts, for exports of more pages than a process may
 * have descriptors.
 *
 * @param pool NULL: the default pool; of which device, as of forebay_import_fd().
 * @param description as the exporting process sent it, struct_size included.
 * @param id receives the import's number, for forebay_import_pages(), then forebay_import_map()
 * or forebay_import_cancel().
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a description that contradicts itself or this pool's
 * pages.
 *
 * Thread-safe.
 *
 * # Safety
 * `description` is NULL or valid for reads of its struct_size; `id` is NULL or valid for the
 * write.
 */
forebay_status forebay_import_open(forebay_pool_t pool,
                                   const struct forebay_export *description,
                                   uint64_t *id);

/**
 * Gives the next pages to an import, in order.
 *
 * @param fds descriptors as this process received them; not needed afterwards.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when the import is not open, for more pages than it
 * awaits, and for descriptors that name no pages of this device. None of them is taken then.
 *
 * Thread-safe. A driver call a page.
 *
 * # Safety
 * `fds` is NULL or valid for reads of `count` descriptors, which are open.
 */
forebay_status forebay_import_pages(uint64_t id, const int32_t *fds, size_t count);

/**
 * Maps an import whose pages have all come. Its number ends.
 *
 * @param ptr receives the address of the first page: the block begins at the description's
 * offset. NULL on failure. Free it (this address) with forebay_free() or forebay_dealloc(); the
 * exporting process closes its export after that.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT while pages are missing (the import stays open then);
 * FOREBAY_ERROR_OUT_OF_MEMORY (address space), FOREBAY_ERROR_DRIVER.
 *
 * Thread-safe. A driver call a page, and one.
 *
 * # Safety
 * `ptr` is NULL or valid for the write.
 */
forebay_status forebay_import_map(uint64_t id, void **ptr);

/**
 * Ends an import that is not mapped; its pages are let go.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when it is not open.
 *
 * Thread-safe.
 */
forebay_status forebay_import_cancel(uint64_t id);

/**
 * Fills `options` with the defaults: a plan block that grows, 64 plans, no step recorded again.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL.
 *
 * # Safety
 * `options` is NULL or valid for the write.
 */
forebay_status forebay_binding_options_init(struct forebay_binding_options *options);

/**
 * Binds a plan to a pool, under signature 0: one block of exactly the plan's height is allocated
 * and backed. It is given up when the pool is short of memory and no step is open; the next step
 * allocates it again. The plan may be destroyed afterwards.
 *
 * @param pool NULL: the default pool.
 * @param binding receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_BUSY when the plan is bound to this pool already;
 * FOREBAY_ERROR_INVALID_ARGUMENT: no such plan, or an alignment above 2 MiB; as forebay_alloc().
 *
 * Thread-safe. End it with forebay_plan_unbind().
 *
 * # Safety
 * `binding` is NULL or valid for the write.
 */
forebay_status forebay_plan_bind(forebay_plan_t plan,
                                 forebay_pool_t pool,
                                 forebay_binding_t *binding);

/**
 * Makes a binding without plans, for several that share one plan block: add them by
 * forebay_binding_add(), or have them learnt by forebay_binding_learn().
 *
 * @param options NULL: the defaults.
 * @param binding receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for options out of range; as forebay_alloc().
 *
 * Thread-safe. End it with forebay_plan_unbind().
 *
 * # Safety
 * `options` is NULL or valid for reads of its struct_size; `binding` is NULL or valid for the
 * write.
 */
forebay_status forebay_binding_create(forebay_pool_t pool,
                                      const struct forebay_binding_options *options,
                                      forebay_binding_t *binding);

/**
 * Adds a plan under a signature, in the place of one that is there. A signature is any number that
 * tells for what shapes the plan is.
 *
 * @return FOREBAY_ERROR_BUSY while a step is open; FOREBAY_ERROR_INVALID_ARGUMENT when the plan
 * takes more bytes than a plan block that does not grow, or another alignment.
 *
 * Thread-safe.
 */
forebay_status forebay_binding_add(forebay_binding_t binding,
                                   uint64_t signature,
                                   forebay_plan_t plan);

/**
 * Has the next step of this signature recorded, and planned at its end. Where there is no plan yet
 * the pool serves that step, on as many streams as it names; where there is one, all of its
 * recorded fences are issued and recorded again, besides those that the program asks for. A plan
 * that is kept goes only once the new one is made, if there are too many then; of shapes without
 * a plan as many may be awaited as plans are kept.
 *
 * @return FOREBAY_ERROR_BUSY while a step is open.
 *
 * Thread-safe.
 */
forebay_status forebay_binding_learn(forebay_binding_t binding, uint64_t signature);

/**
 * Reads what a binding has done. Exact while no step is open.
 *
 * @param stats its struct_size is set by the caller; longer structures are zero-filled.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, no struct_size, or a handle that names none.
 *
 * Thread-safe.
 *
 * # Safety
 * `stats` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_binding_get_stats(forebay_binding_t binding,
                                         struct forebay_binding_stats *stats);

/**
 * Ends a binding. Its plan block is freed behind all work queued so far.
 *
 * @return FOREBAY_ERROR_BUSY while a step is open, or while a graph captured from a step has not
 * been released; FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
 *
 * Thread-safe.
 */
forebay_status forebay_plan_unbind(forebay_binding_t binding);

/**
 * Begins a step by the plan of a signature. Each of its streams waits for all streams of the
 * binding's step before; for one stream that goes on no driver call is made. The step belongs to
 * the calling thread. Where a capture begins or ends inside it, launch its graph only when the
 * step has ended: the rest of it may get bytes that buffers had while the capture was open.
 *
 * @param streams one for each lane of the plan, each once: see forebay_recording_streams().
 * @param step receives the handle; NULL on failure.
 * @return FOREBAY_ERROR_BUSY: a step of the binding is open, or a wait is needed while a graph
 * capture is open; FOREBAY_ERROR_NOT_FOUND: no plan has the signature;
 * FOREBAY_ERROR_INVALID_ARGUMENT: another number of streams, or one twice;
 * FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_INVALID_POOL when the pool has been destroyed;
 * FOREBAY_ERROR_OUT_OF_MEMORY when the plan block was given up and cannot be had again.
 *
 * # Safety
 * `streams` is valid for reads of `count` elements; `step` is NULL or valid for the write.
 */
forebay_status forebay_plan_step(forebay_binding_t binding,
                                 uint64_t signature,
                                 const forebay_stream_t *streams,
                                 size_t count,
                                 forebay_step_t *step);

/**
 * Allocates the step's next buffer for work on one of its streams: at its planned address if it is
 * as recorded, else from the pool. Some ns where it is as recorded.
 *
 * @param ptr receives the address; NULL on failure and for 0 bytes.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT: the step has ended, or is another thread's;
 * FOREBAY_ERROR_INVALID_STREAM: no stream of the step; as forebay_alloc().
 *
 * # Safety
 * `ptr` is NULL or valid for the write of a pointer.
 */
forebay_status forebay_step_alloc(forebay_step_t step,
                                  void **ptr,
                                  size_t bytes,
                                  forebay_stream_t stream);

/**
 * Allocates a buffer that is not planned and is freed before `births` more planned ones have been
 * allocated: out of bytes that the plan leaves free until then if there are some, else from the
 * pool.
 *
 * @param births UINT64_MAX: freed by the step's end; 0: not known, and the pool serves it.
 * @return as forebay_step_alloc().
 *
 * # Safety
 * `ptr` is NULL or valid for the write of a pointer.
 */
forebay_status forebay_step_alloc_within(forebay_step_t step,
                                         void **ptr,
                                         size_t bytes,
                                         uint64_t births,
                                         forebay_stream_t stream);

/**
 * Frees a buffer of the step, or any other block of its pool, in a stream's order: as
 * forebay_dealloc().
 *
 * @param ptr NULL is fine.
 * @return as forebay_step_alloc(); FOREBAY_ERROR_DOUBLE_FREE, FOREBAY_ERROR_INTERIOR_POINTER,
 * FOREBAY_ERROR_NOT_OWNED; nothing changes then.
 *
 * # Safety
 * The caller gives the buffer up. Any other address is answered with an error.
 */
forebay_status forebay_step_free(forebay_step_t step, void *ptr, forebay_stream_t stream);

/**
 * Notes that work on another stream of the step uses a buffer: as forebay_record_use(). Tell every
 * use in every step, also one that was recorded: buffers are known by size and stream alone, so
 * that in a step which goes another way a recorded use may be another buffer's. In one that goes
 * as recorded it costs a lock, and changes nothing.
 *
 * @return as forebay_step_free().
 */
forebay_status forebay_step_record_use(forebay_step_t step, void *ptr, forebay_stream_t stream);

/**
 * Makes later work of stream `to` wait for the work queued on `from` so far; both are streams of
 * the step. A recorded fence is issued again by itself only before the next allocation and where
 * reuse of memory needs it, and orders that alone: where work of one stream reads what another has
 * written, the program's own fence stays. So does one before the free of a buffer that is not
 * planned, or that is freed later than it was recorded, if other streams use it without a word.
 *
 * @return as forebay_step_alloc(); FOREBAY_ERROR_BUSY while a graph capture is open.
 */
forebay_status forebay_step_fence(forebay_step_t step, forebay_stream_t from, forebay_stream_t to);

/**
 * Ends a step whose buffers in the plan block are all freed. Blocks that the pool served may live
 * on.
 *
 * @return FOREBAY_ERROR_BUSY when some are live: the step stays open then;
 * FOREBAY_ERROR_INVALID_ARGUMENT: it has ended, or is another thread's. Another error is that of
 * planning a learnt step: it has ended.
 */
forebay_status forebay_step_end(forebay_step_t step);

/**
 * Ends a step in any case: its buffers in the plan block are given up, as if freed now.
 *
 * @return as forebay_step_end(), but never FOREBAY_ERROR_BUSY.
 */
forebay_status forebay_step_abandon(forebay_step_t step);

/**
 * Notes that work on `stream` uses the block too: after its free, the memory is reused only
 * after the work queued on that stream by then.
 *
 * @param pool NULL: found by the address.
 * @return as forebay_free(); FOREBAY_ERROR_INVALID_STREAM.
 *
 * Thread-safe.
 */
forebay_status forebay_record_use(forebay_pool_t pool, void *ptr, forebay_stream_t stream);

/**
 * Tells that a stream is about to be destroyed: its handle may come back for another stream
 * that is not ordered after its work. Call it before destroying the stream.
 *
 * @return FOREBAY_ERROR_BUSY while a graph capture is open; FOREBAY_ERROR_INVALID_STREAM.
 *
 * Thread-safe; the stream is not in use by other threads.
 */
forebay_status forebay_stream_retire(forebay_stream_t stream);

/**
 * Tells that a graph capture begins on a stream: what is allocated on it belongs to the graph
 * until forebay_capture_release(). While any capture is open no page moves.
 *
 * @param capture receives the capture's number.
 * @return FOREBAY_ERROR_BUSY when one is open on the stream; FOREBAY_ERROR_INVALID_STREAM.
 *
 * Thread-safe.
 *
 * # Safety
 * `capture` is NULL or valid for the write.
 */
forebay_status forebay_capture_begin(forebay_stream_t stream, uint64_t *capture);

/**
 * Tells that a capture has ended. Its memory stays the graph's.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when it has ended already, or never began.
 */
forebay_status forebay_capture_end(uint64_t capture);

/**
 * Tells that a capture's graph is gone: what it freed is everyone's after the work queued so far.
 *
 * @return FOREBAY_ERROR_BUSY while it, or another capture, is open.
 */
forebay_status forebay_capture_release(uint64_t capture);

/**
 * Tells which graph a capture became: once the graph and all that is instantiated from it are
 * gone, the capture is released by itself, as by forebay_capture_release().
 *
 * @param graph a cudaGraph_t of the capture's device. A user object is retained on it.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when the capture never began or is released;
 * FOREBAY_ERROR_UNSUPPORTED where the driver cannot watch graphs: use
 * forebay_capture_graph_gone() with a user object of your own, or forebay_capture_release().
 *
 * Thread-safe.
 */
forebay_status forebay_capture_graph(uint64_t capture, void *graph);

/**
 * Tells from a callback that a capture's graph is gone. Makes no driver call, so that it can be
 * the destructor of a CUDA user object: cudaUserObjectCreate(&object, (void *)(uintptr_t)capture,
 * forebay_capture_graph_gone, 1, cudaUserObjectNoDestructorSync). The release follows soon, at
 * the latest when the pool is asked for memory that it has not got.
 *
 * @param capture the capture's number.
 *
 * Thread-safe. Never fails.
 */
void forebay_capture_graph_gone(void *capture);

/**
 * Promises that the block's pages do not move until forebay_unpin() or its free: for memory
 * registered elsewhere. Pins count.
 *
 * @return FOREBAY_ERROR_BUSY while the block's tag is suspended.
 *
 * Thread-safe.
 */
forebay_status forebay_pin(void *ptr);

/**
 * Takes one pin back.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT when the block is not pinned.
 *
 * Thread-safe.
 */
forebay_status forebay_unpin(void *ptr);

/**
 * Creates a stream of the pool's device.
 *
 * # Safety
 * `stream` is NULL or valid for the write.
 */
forebay_status forebay_stream_create(forebay_pool_t pool, forebay_stream_t *stream);

/**
 * Retires and destroys a stream; its queued work finishes.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for the default stream, FOREBAY_ERROR_INVALID_STREAM,
 * FOREBAY_ERROR_BUSY while a graph capture is open. Nothing changes then.
 */
forebay_status forebay_stream_destroy(forebay_pool_t pool, forebay_stream_t stream);

/**
 * Waits for all work queued on a stream.
 */
forebay_status forebay_stream_synchronize(forebay_pool_t pool, forebay_stream_t stream);

/**
 * Queues a copy between device addresses.
 *
 * # Safety
 * Both ranges are live device memory until the copy is done.
 */
forebay_status forebay_stream_copy(forebay_pool_t pool,
                                   void *to,
                                   const void *from,
                                   size_t bytes,
                                   forebay_stream_t stream);

/**
 * Queues a fill with one byte value.
 *
 * # Safety
 * The range is live device memory until the fill is done.
 */
forebay_status forebay_stream_fill(forebay_pool_t pool,
                                   void *to,
                                   uint8_t value,
                                   size_t bytes,
                                   forebay_stream_t stream);

/**
 * Makes a tag suspendable in a pool, for the pool's life: what is allocated under it from now on
 * has pages of its own, shared with no other tag. Again is fine. Allocations under such a tag, and
 * frees of its blocks, take the pool's lock; its first small block takes a whole page, and a block
 * above 256 KiB begins a page of its own unless what is free in the tag's pages holds it: blocks
 * of a little more than one page take two each, for the suspend and the resume too.
 *
 * @param tag from forebay_tag_create(); not 1.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for what is no such tag; FOREBAY_ERROR_UNSUPPORTED where
 * the device has no virtual memory management.
 *
 * Thread-safe.
 */
forebay_status forebay_tag_suspendable(forebay_pool_t pool, uint32_t tag);

/**
 * Gives the memory of tags back to the device. Blocks keep their addresses, and nothing may use
 * them, on the device or elsewhere, from this call until forebay_resume(): no kernel, no copy, no
 * launch of a graph that does. They may be freed. All work of the device queued before is awaited;
 * other tags are in use all the while. All of the tags or none; one that is suspended already
 * stays so, and FOREBAY_SUSPEND_DISCARD drops the contents that were kept of it.
 *
 * @param tags tags, each made suspendable by forebay_tag_suspendable().
 * @param level FOREBAY_SUSPEND_OFFLOAD or FOREBAY_SUSPEND_DISCARD.
 * @param report receives what was done; may be NULL. Its struct_size is set by the caller.
 * @return FOREBAY_ERROR_BUSY where a block is exported or pinned (the message names it), while a
 * graph capture is open, while another thread suspends or resumes one of the tags;
 * FOREBAY_ERROR_OUT_OF_MEMORY where the host has no memory for the contents;
 * FOREBAY_ERROR_INVALID_ARGUMENT; FOREBAY_ERROR_DRIVER. Nothing has changed then.
 *
 * Thread-safe. Costs the copy of all live bytes, and a call a page.
 *
 * # Safety
 * `tags` is valid for reads of `count` numbers; `report` is NULL or valid for reads and writes of
 * its struct_size.
 */
forebay_status forebay_suspend(forebay_pool_t pool,
                               const uint32_t *tags,
                               size_t count,
                               uint32_t level,
                               struct forebay_suspend_report *report);

/**
 * Brings the memory of tags back at the same addresses, with the contents that were kept. All of
 * the tags or none; one that is not suspended stays as it is. On return the blocks may be used.
 *
 * @param report receives what was done, on failure too; may be NULL. Its struct_size is set by the
 * caller.
 * @return FOREBAY_ERROR_OUT_OF_MEMORY: everything is suspended still, contents kept; the message
 * and missing_bytes say how much was missing. Others as forebay_suspend().
 *
 * Thread-safe. Costs the copy of all bytes kept, and some calls a page.
 *
 * # Safety
 * As forebay_suspend().
 */
forebay_status forebay_resume(forebay_pool_t pool,
                              const uint32_t *tags,
                              size_t count,
                              struct forebay_suspend_report *report);

/**
 * Whether a tag is suspended in a pool now.
 *
 * @param suspended receives the answer.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL and for what is no tag.
 *
 * Thread-safe.
 *
 * # Safety
 * `suspended` is NULL or valid for the write.
 */
forebay_status forebay_tag_is_suspended(forebay_pool_t pool, uint32_t tag, bool *suspended);

/**
 * Allocates for PyTorch: at a multiple of 512, for work on a stream of a device. The device's
 * pool is made at first use, the default pool for the default device.
 *
 * @param ptr receives the address; NULL on failure and for 0 bytes.
 * @return as forebay_alloc().
 *
 * Thread-safe. Costs what forebay_alloc() does and a lock.
 *
 * # Safety
 * `ptr` is NULL or valid for the write of a pointer.
 */
forebay_status forebay_torch_allocate(void **ptr,
                                      size_t bytes,
                                      int32_t device,
                                      forebay_stream_t stream);

/**
 * `alloc_fn`: forebay_torch_allocate() with PyTorch's type. NULL on failure, which PyTorch takes
 * for an error in a `MemPool` only.
 *
 * Thread-safe.
 */
void *forebay_torch_alloc(size_t bytes, int32_t device, forebay_stream_t stream);

/**
 * `free_fn`: gives a block back in a stream's order. Never fails: a block that cannot be freed is
 * told in the log, once.
 *
 * Thread-safe.
 */
void forebay_torch_free(void *ptr, size_t bytes, int32_t device, forebay_stream_t stream);

/**
 * `alloc_fn` of a `torch.cuda.MemPool`: a segment, for work on any stream.
 *
 * Thread-safe. NULL on failure.
 */
void *forebay_torch_segment_alloc(size_t bytes, int32_t device, forebay_stream_t _stream);

/**
 * `free_fn` of a `torch.cuda.MemPool`: waits for the device, as cudaFree does, and gives idle
 * memory back to it. What fails is the thread's last error.
 *
 * Thread-safe.
 */
void forebay_torch_segment_free(void *ptr, size_t _bytes, int32_t device, forebay_stream_t _stream);

/**
 * `init_fn`: how many devices PyTorch has. Nothing is made yet.
 */
void forebay_torch_init(int32_t device_count);

/**
 * `reset_fn`, which is `torch.cuda.empty_cache()`: waits for the devices, unless a capture is
 * open, and gives idle memory back to them. What fails is the thread's last error.
 *
 * Thread-safe.
 */
void forebay_torch_reset(void);

/**
 * `memory_fraction_fn`: limits a device's pool to a share of its memory, above 0 and at most 1.
 * Another one changes nothing and is the thread's last error.
 *
 * Thread-safe.
 */
void forebay_torch_memory_fraction(double fraction, int32_t device);

/**
 * `base_alloc_fn`: the start of the block that an address lies in.
 *
 * @param bytes receives the block's usable length; may be NULL.
 * @return the address itself, and 0 bytes, when no live block holds it.
 *
 * Thread-safe. Takes the pool's lock.
 *
 * # Safety
 * `bytes` is NULL or valid for the write.
 */
void *forebay_torch_base_alloc(void *ptr, size_t *bytes);

/**
 * `record_stream_fn`: work on `stream` uses the block too. What fails is the thread's last error.
 *
 * Thread-safe.
 */
void forebay_torch_record_stream(void *ptr, forebay_stream_t stream);

/**
 * `begin_allocate_to_pool`: from now on allocations on streams that the filter takes belong to a
 * private pool, whose memory serves nothing else until it is released as often as it was begun.
 * No fence is recorded until it ends.
 *
 * @param filter called with `ctx` and the stream of a block that comes or goes: once for a stream
 * that it takes, each time for one that it refuses. It must not call Forebay.
 * @return FOREBAY_ERROR_INVALID_ARGUMENT without a filter; else as forebay_capture_begin().
 *
 * Thread-safe. Until the private pool ends each block of the process costs a lock, and on a stream
 * of the device that is not taken the call of the filter under it.
 *
 * # Safety
 * `filter` stays callable with `ctx`, from any thread, until the private pool has ended.
 */
forebay_status forebay_torch_begin_allocate_to_pool(int32_t device,
                                                    struct forebay_torch_pool_id id,
                                                    bool (*filter)(void *ctx,
                                                                   forebay_stream_t stream),
                                                    void *ctx);

/**
 * `end_allocate_to_pool_fn`: no more allocations belong to the private pool.
 *
 * Thread-safe.
 */
void forebay_torch_end_allocate_to_pool(int32_t device, struct forebay_torch_pool_id id);

/**
 * `release_pool`: the private pool is needed once less.
 *
 * Thread-safe.
 */
void forebay_torch_release_pool(int32_t device, struct forebay_torch_pool_id id);

/**
 * The pool that serves a device of PyTorch's, made at first use.
 *
 * @param pool receives the handle; not to be destroyed.
 * @return as forebay_pool_default(); FOREBAY_ERROR_INVALID_ARGUMENT for a device that cannot be.
 *
 * Thread-safe.
 *
 * # Safety
 * `pool` is NULL or valid for the write.
 */
forebay_status forebay_torch_pool(int32_t device, forebay_pool_t *pool);

/**
 * Reads what PyTorch's statistics of a device count.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL, a size that is too small, a device that cannot
 * be.
 *
 * Thread-safe.
 *
 * # Safety
 * `stats` is NULL or valid for reads and writes of its struct_size.
 */
forebay_status forebay_torch_device_stats(int32_t device, struct forebay_torch_stats *stats);

/**
 * Begins the peaks of PyTorch's statistics, and of the device's pool, anew.
 *
 * @return FOREBAY_ERROR_INVALID_ARGUMENT for a device that cannot be.
 *
 * Thread-safe.
 */
forebay_status forebay_torch_reset_peaks(int32_t device);

/**
 * Sets the function that is told of each block of forebay_torch_allocate(): with `ctx`, what
 * happened (0 it has come, 1 it is about to go, 2 there was no memory), its address, the bytes
 * asked for, its device and stream. No lock of ours is held.
 *
 * @param watcher NULL: none. A call that is under way may still reach the one before.
 *
 * Thread-safe.
 *
 * # Safety
 * `watcher` stays callable with `ctx`, from any thread, until replaced and no call is under way.
 */
void forebay_torch_watch(void (*watcher)(void *ctx,
                                         int32_t what,
                                         void *ptr,
                                         size_t bytes,
                                         int32_t device,
                                         forebay_stream_t stream), void *ctx);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */
