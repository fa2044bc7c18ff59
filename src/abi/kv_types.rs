//! The paged KV cache: what crosses the ABI.

/// A paged KV cache. Opaque; use [`KvT`].
pub struct Kv {
    _private: (),
}

/// A KV cache's handle. NULL names none.
pub type KvT = *mut Kv;

/// A sequence of a KV cache. 0 names none; after its end all copies are stale.
pub type KvSeq = u64;

/// A fence: a number of the caller's that grows. What is freed behind a fence is handed out again
/// when forebay_kv_pass() was called with that number or more; 0 waits for nothing.
pub type KvFence = u64;

/// Elements of 4 bytes, IEEE binary32.
pub const FOREBAY_KV_F32: u32 = 0;
/// Elements of 2 bytes, IEEE binary16.
pub const FOREBAY_KV_F16: u32 = 1;
/// Elements of 2 bytes, the upper half of a binary32.
pub const FOREBAY_KV_BF16: u32 = 2;
/// Elements of 1 byte whose scales lie elsewhere: fp8, int8.
pub const FOREBAY_KV_BYTE: u32 = 3;

/// Blocks hold keys and values of attention.
pub const FOREBAY_KV_ATTENTION: u32 = 0;
/// Blocks hold one vector a token (multi-head latent attention): value_size is 0.
pub const FOREBAY_KV_LATENT: u32 = 1;
/// One block a sequence holds a state of state_bytes a layer (Mamba and its like).
pub const FOREBAY_KV_STATE: u32 = 2;

/// All layers of a block lie together.
pub const FOREBAY_KV_BLOCK_OUTER: u32 = 0;
/// All blocks of a layer lie together.
pub const FOREBAY_KV_LAYER_OUTER: u32 = 1;

/// Prefixes are given up by their last use.
pub const FOREBAY_KV_LRU: u32 = 0;
/// Prefixes are given up by their sequences' priority, then by their last use.
pub const FOREBAY_KV_PRIORITY_LRU: u32 = 1;
/// Prefixes that were never hit are given up before those that were.
pub const FOREBAY_KV_SEGMENTED_LRU: u32 = 2;

/// XXH3 of 64 bits; tokens are compared besides.
pub const FOREBAY_KV_XXH3: u32 = 0;
/// SHA-256, which other processes can compute; tokens are compared besides.
pub const FOREBAY_KV_SHA256: u32 = 1;
/// BLAKE3 under hash_key; tokens are compared besides.
pub const FOREBAY_KV_BLAKE3: u32 = 2;

/// Of forebay_kv_trim(): what the groups' windows no longer see.
pub const FOREBAY_KV_WINDOWS: u32 = u32::MAX;

/// A group: layers that share a block table. Set what is unused to 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvGroup {
    /// Layers, at least 1.
    pub layers: u32,
    /// Key and value heads a layer.
    pub heads: u32,
    /// Elements of a key head.
    pub key_size: u32,
    /// Elements of a value head; may differ from the key's.
    pub value_size: u32,
    /// Tokens a block, at least 1.
    pub block_tokens: u32,
    /// FOREBAY_KV_F32 and so on.
    pub element: u32,
    /// FOREBAY_KV_ATTENTION and so on.
    pub content: u32,
    /// Tokens that a query sees, itself included; 0: all. A hit gives the group the last blocks
    /// alone that the next token sees, with the null block before.
    pub window: u32,
    /// FOREBAY_KV_BLOCK_OUTER or FOREBAY_KV_LAYER_OUTER.
    pub order: u32,
    /// Blocks, the null block included: 2 to 2^31 - 1.
    pub blocks: u32,
    /// Bytes of a state, a layer.
    pub state_bytes: u64,
    /// 0, for versions to come.
    pub reserved: [u64; 4],
}

/// What a cache is made with. Fill it with forebay_kv_options_init(), then set the groups.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvOptions {
    /// sizeof of this structure, as set by forebay_kv_options_init().
    pub struct_size: usize,
    /// The groups. Read during the call only.
    pub groups: *const KvGroup,
    /// How many.
    pub group_count: usize,
    /// Sequences that may be open at a time.
    pub max_sequences: u32,
    /// Blocks that one sequence may have in a group.
    pub max_blocks: u32,
    /// 1: prefixes are kept and hit; 0: not. With 1 one group at least is of full attention (a
    /// window of 0, or latent); groups with a window may be beside it, states not; all have as many
    /// tokens a block.
    pub prefixes: u32,
    /// FOREBAY_KV_LRU and so on.
    pub policy: u32,
    /// FOREBAY_KV_XXH3 and so on.
    pub hashing: u32,
    /// 1: a full block that equals a known one is given back for that one when it is committed.
    pub dedupe: u32,
    /// 1: the first tokens of a block that differs later are reused, by a copy.
    pub partial: u32,
    /// Blocks of each group that a sequence's first append must leave to the others.
    pub watermark: u32,
    /// Events that are kept until they are taken; 0: none.
    pub events: usize,
    /// The key of FOREBAY_KV_BLAKE3.
    pub hash_key: [u8; 32],
    /// 0.
    pub flags: u64,
}

/// How many blocks a call needed, and what there was of the group that lacked them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KvShortage {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// The group.
    pub group: u32,
    /// Blocks that the call needed.
    pub need: u32,
    /// Blocks that hold nothing.
    pub free: u32,
    /// Blocks of prefixes that nobody uses, and that can be given up.
    pub evictable: u32,
    /// Blocks that wait for a fence.
    pub quarantined: u32,
    /// 0.
    pub reserved: u32,
}

/// One item of forebay_kv_append_all().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvAppendItem {
    /// The sequence that grows.
    pub seq: KvSeq,
    /// Its new tokens; NULL: only their number is known.
    pub tokens: *const i32,
    /// How many.
    pub count: u32,
    /// 0.
    pub reserved: u32,
}

/// A sequence and a number of its tokens: of forebay_kv_commit_all() those that are computed, of
/// forebay_kv_leaks and forebay_kv_contiguous_ensure() all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvSeqTokens {
    /// The sequence.
    pub seq: KvSeq,
    /// Tokens, from its front.
    pub tokens: u32,
    /// 0.
    pub reserved: u32,
}

/// What was found of a prompt.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KvMatch {
    /// Tokens that the sequence now holds, all committed.
    pub tokens: u32,
    /// Of these, tokens in whole blocks shared with others; the rest is copied by a job of
    /// forebay_kv_take_copies().
    pub shared: u32,
}

/// What was still held when a cache was destroyed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvLeaks {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// Receives open sequences, as many as there is room for; may be NULL with capacity 0.
    pub list: *mut KvSeqTokens,
    /// Room in list; set by the caller.
    pub capacity: usize,
    /// Sequences that were open.
    pub sequences: u64,
    /// Copies that were never said to be made.
    pub copies: u64,
    /// References that were taken by forebay_kv_blocks_take() and its like.
    pub block_references: u64,
}

/// Where a group's elements lie, in bytes. Token t and head h of the keys of layer l in block b
/// begin at l * layer_stride + b * block_stride + t * key_token_stride + h * key_head_stride;
/// those of the values at value_offset more, with the values' own strides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvLayout {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// Bytes of a block over all layers.
    pub block_bytes: u64,
    /// From a block to the next, within a layer.
    pub block_stride: u64,
    /// From a layer to the next, within a block.
    pub layer_stride: u64,
    /// From a layer's keys to its values, within a block.
    pub value_offset: u64,
    /// From a token's keys to the next token's.
    pub key_token_stride: u64,
    /// From a key head to the next.
    pub key_head_stride: u64,
    /// From a token's values to the next token's.
    pub value_token_stride: u64,
    /// From a value head to the next.
    pub value_head_stride: u64,
    /// Bytes of the whole group.
    pub total_bytes: u64,
}

/// A copy to make: the first tokens, all layers, of a block to another; of a state all of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvCopy {
    /// The group.
    pub group: u32,
    /// The block to read.
    pub from: u32,
    /// The block to write.
    pub to: u32,
    /// Tokens that count; 0 for a state.
    pub tokens: u32,
}

/// What changed in a row: entries from .. to are to be sent; those behind are null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvDelta {
    /// The first entry that changed.
    pub from: u32,
    /// Behind the last one.
    pub to: u32,
}

/// A block's identity over all tokens up to its end. Under FOREBAY_KV_XXH3 the first 8 bytes
/// count, the rest are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvDigest {
    /// The digest.
    pub bytes: [u8; 32],
}

/// A block can be hit from now on.
pub const FOREBAY_KV_STORED: u32 = 0;
/// A block can be hit no more.
pub const FOREBAY_KV_REMOVED: u32 = 1;
/// No block of the group can be hit any more.
pub const FOREBAY_KV_CLEARED: u32 = 2;

/// What became of a prefix.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvEvent {
    /// FOREBAY_KV_STORED and so on.
    pub kind: u32,
    /// The group.
    pub group: u32,
    /// The block; 0 where all are meant.
    pub block: u32,
    /// 0.
    pub reserved: u32,
    /// What it is, or was, known by: in a group with a window what the block of full attention with
    /// the same tokens is.
    pub digest: KvDigest,
}

/// A group's blocks by state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvCounts {
    /// Blocks that there are, the null block included: where memory behind the cache has fewer than
    /// were configured, those below the group's end, and those above it that still drain.
    pub total: u32,
    /// Blocks that somebody holds.
    pub used: u32,
    /// Blocks that hold nothing.
    pub free: u32,
    /// Blocks of prefixes that nobody uses.
    pub cached: u32,
    /// Blocks that wait for a fence.
    pub quarantined: u32,
}

/// A cache's figures at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvStats {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// Tokens that were looked for and found, since the cache was made.
    pub hit_tokens: u64,
    /// Tokens that were looked for and not found.
    pub missed_tokens: u64,
    /// Open sequences.
    pub sequences: u32,
    /// Copies that are not made yet.
    pub copies: u32,
    /// Groups.
    pub groups: u32,
    /// 0.
    pub reserved: u32,
}
