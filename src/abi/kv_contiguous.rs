//! A KV cache with contiguous addresses: a range of them for each sequence.

use super::kv::{group, unused};
use super::kv_types::{KvFence, KvGroup, KvSeq, KvSeqTokens};
use super::{PoolT, StreamT, list, null, put, read_sized, write_sized};
use crate::error::{Result, Status};
use crate::kv::Seq;
use crate::paged::contiguous::{ContiguousConfig, Side};
use crate::paged::{ContiguousKv, handles::CONTIGUOUS};
use crate::pool::Pool;
use crate::pool::slow::guarded;
use std::ffi::c_void;

/// A KV cache with contiguous addresses. Opaque; use [`KvContiguousT`].
pub struct KvContiguous {
    _private: (),
}

/// The handle of a KV cache with contiguous addresses. NULL names none.
pub type KvContiguousT = *mut KvContiguous;

/// What a cache with contiguous addresses is made with. Set what is unused to 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvContiguousOptions {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// The groups; block_tokens, blocks and window are not looked at. With FOREBAY_KV_BLOCK_OUTER
    /// the layers of a token lie together, with FOREBAY_KV_LAYER_OUTER each layer has a range of
    /// its own. Read during the call only.
    pub groups: *const KvGroup,
    /// How many, one at least.
    pub group_count: usize,
    /// Sequences at a time, those included whose fences have not passed; one at least.
    pub max_sequences: u32,
    /// Tokens of a sequence at most, one at least.
    pub max_tokens: u32,
    /// For so many tokens to come pages are mapped ahead, by the pool's keeper or by
    /// forebay_kv_contiguous_poll(); 0: none.
    pub ahead_tokens: u32,
    /// 0.
    pub reserved: u32,
    /// Pages that ended sequences' ranges may keep for the next.
    pub keep_pages: u64,
}

/// Where a sequence's keys or values lie: those of token t, layer l and head h begin
/// t * token_stride + l * layer_stride + h * head_stride bytes from address.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvSide {
    /// The first element; NULL: there are none.
    pub address: *mut c_void,
    /// Bytes from a token to the next; 0 for states.
    pub token_stride: u64,
    /// Bytes from a layer to the next.
    pub layer_stride: u64,
    /// Bytes from a head to the next; 0 for states.
    pub head_stride: u64,
}

/// Where a sequence's elements of a group lie.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvSeqView {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// Keys; a latent vector; or a state.
    pub keys: KvSide,
    /// Values; all 0 where a group has none.
    pub values: KvSide,
}

/// What a sequence's memory is used for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvUsage {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// Bytes of pages behind its ranges, those mapped ahead included.
    pub mapped: u64,
    /// Bytes of its tokens' elements.
    pub used: u64,
    /// Its tokens.
    pub tokens: u32,
    /// 0.
    pub reserved: u32,
}

/// All sequences' memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvContiguousStats {
    /// sizeof of this structure, set by the caller.
    pub struct_size: usize,
    /// Open sequences.
    pub open: u32,
    /// Ended sequences whose fences have not passed.
    pub leaving: u32,
    /// Pages behind open sequences.
    pub open_pages: u64,
    /// Pages behind sequences that leave.
    pub leaving_pages: u64,
    /// Pages that ended sequences' ranges keep.
    pub kept_pages: u64,
    /// Pages mapped ahead so far.
    pub mapped_ahead: u64,
}

fn with(cache: KvContiguousT, f: impl FnOnce(&ContiguousKv) -> Result<()>) -> Status {
    guarded(|| f(&*CONTIGUOUS.get(cache as u64)?))
}

/// Makes a cache with contiguous addresses over pages of a pool. No address space and no memory is
/// taken yet.
///
/// @param cache receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT says what makes no sense; FOREBAY_ERROR_UNSUPPORTED: the
/// device has no virtual memory.
///
/// Thread-safe. End it with forebay_kv_contiguous_destroy(), before the pool.
///
/// # Safety
/// `options` is NULL or valid for reads of its struct_size, with its groups; `cache` is NULL or
/// valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_create(
    pool: PoolT,
    options: *const KvContiguousOptions,
    cache: *mut KvContiguousT,
) -> Status {
    guarded(|| {
        let none = KvContiguousOptions {
            struct_size: 0,
            groups: std::ptr::null(),
            group_count: 0,
            max_sequences: 0,
            max_tokens: 0,
            ahead_tokens: 0,
            reserved: 0,
            keep_pages: 0,
        };
        // SAFETY: as the caller promised; any bytes are numbers, or a list that can be read.
        let (o, groups) = unsafe {
            put(cache, std::ptr::null_mut(), "the cache")?;
            let o = read_sized(options, none, "forebay_kv_contiguous_options")?;
            (o, list(o.groups, o.group_count, "the groups")?)
        };
        unused(o.reserved)?;
        let geometry = |(at, g)| group(at, g).map(|group| group.geometry);
        let config = ContiguousConfig {
            groups: groups.iter().enumerate().map(geometry).collect::<Result<_>>()?,
            max_sequences: o.max_sequences,
            max_tokens: o.max_tokens,
            ahead_tokens: o.ahead_tokens,
            keep_pages: o.keep_pages,
        };
        let made = ContiguousKv::new(&Pool::from_handle(pool as u64)?, config)?;
        let number = CONTIGUOUS.keep(made)?;
        // SAFETY: as above.
        unsafe { put(cache, number as KvContiguousT, "the cache") }
    })
}

/// Ends a cache and all its sequences, and gives their memory back; the caller knows that no work
/// uses it any more. While other threads' calls of it run, the memory goes when these have ended.
/// Also after forebay_shutdown().
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_contiguous_destroy(cache: KvContiguousT) -> Status {
    guarded(|| CONTIGUOUS.take(cache as u64).map(drop))
}

/// Opens a sequence without tokens.
///
/// @param seq receives the sequence; 0 on failure.
/// @return FOREBAY_ERROR_BUSY when all sequences are open or wait for their fences, or in a
/// callback as forebay_kv_contiguous_ensure(); FOREBAY_ERROR_OUT_OF_MEMORY: no address range.
///
/// Thread-safe. Reserves a range of addresses unless an ended sequence has left one.
///
/// # Safety
/// `seq` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_open(
    cache: KvContiguousT,
    seq: *mut KvSeq,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(seq, 0, "the sequence")? };
        let opened = CONTIGUOUS.get(cache as u64)?.open()?;
        // SAFETY: as above.
        unsafe { put(seq, opened.raw(), "the sequence") }
    })
}

/// The sequences hold so many tokens from now on, and these have memory when this returns.
///
/// @param items sequences, each with all the tokens that it holds from now on.
/// @param done NULL, or receives how many were done, also on failure: those before the one that was
/// refused stand, it and those after it are unchanged.
/// @return FOREBAY_ERROR_OUT_OF_MEMORY: no memory below the pool's limit;
/// FOREBAY_ERROR_INVALID_ARGUMENT: fewer tokens than it holds, or more than max_tokens;
/// FOREBAY_ERROR_STALE_SEQUENCE; FOREBAY_ERROR_BUSY in a callback of the pool that runs inside a
/// call of this cache, or inside a call of another one while another thread's call has this
/// cache's lock.
///
/// Thread-safe. Costs a lock where nothing is to be mapped, the driver's calls else.
///
/// # Safety
/// `items` is valid for reads of `count` elements; `done` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_ensure(
    cache: KvContiguousT,
    items: *const KvSeqTokens,
    count: usize,
    done: *mut usize,
) -> Status {
    guarded(|| {
        if !done.is_null() {
            // SAFETY: as the caller promised.
            unsafe { done.write(0) };
        }
        let cache = CONTIGUOUS.get(cache as u64)?;
        // SAFETY: as the caller promised.
        let items = unsafe { list(items, count, "the items")? };
        let item = |item: &KvSeqTokens| {
            unused(item.reserved).map(|()| (Seq::from_raw(item.seq), item.tokens))
        };
        let batch: Vec<(Seq, u32)> = items.iter().map(item).collect::<Result<_>>()?;
        let (count, result) = cache.ensure(&batch);
        if !done.is_null() {
            // SAFETY: as the caller promised.
            unsafe { done.write(count) };
        }
        Ok(result?)
    })
}

/// Takes the last tokens of a sequence back until it holds `tokens`. Pages that only these needed
/// go once `after` has passed, save those that are mapped ahead.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT: it holds fewer tokens, or the fence was not made here;
/// FOREBAY_ERROR_UNSUPPORTED in a cache with states; FOREBAY_ERROR_STALE_SEQUENCE;
/// FOREBAY_ERROR_BUSY in a callback as forebay_kv_contiguous_ensure().
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_contiguous_truncate(
    cache: KvContiguousT,
    seq: KvSeq,
    tokens: u32,
    after: KvFence,
) -> Status {
    with(cache, |cache| Ok(cache.truncate(Seq::from_raw(seq), tokens, after)?))
}

/// Ends sequences; their memory waits for `after` (0: for nothing).
///
/// @return FOREBAY_ERROR_STALE_SEQUENCE, or FOREBAY_ERROR_INVALID_ARGUMENT when one is named twice
/// or the fence was not made here, or FOREBAY_ERROR_BUSY in a callback as
/// forebay_kv_contiguous_ensure(): none has ended then.
///
/// Thread-safe.
///
/// # Safety
/// `seqs` is valid for reads of `count` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_free(
    cache: KvContiguousT,
    seqs: *const KvSeq,
    count: usize,
    after: KvFence,
) -> Status {
    with(cache, |cache| {
        // SAFETY: as the caller promised.
        let seqs = unsafe { list(seqs, count, "the sequences")? };
        let seqs: Vec<Seq> = seqs.iter().map(|&seq| Seq::from_raw(seq)).collect();
        Ok(cache.free(&seqs, after)?)
    })
}

/// Where a sequence's elements of a group lie; it does not change as long as the sequence is open.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when there is no such group;
/// FOREBAY_ERROR_STALE_SEQUENCE; FOREBAY_ERROR_BUSY in a callback as
/// forebay_kv_contiguous_ensure().
///
/// Thread-safe.
///
/// # Safety
/// `view` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_view(
    cache: KvContiguousT,
    seq: KvSeq,
    group: u32,
    view: *mut KvSeqView,
) -> Status {
    with(cache, |cache| {
        let found = cache.view(Seq::from_raw(seq), group)?;
        let (keys, values) = (side(found.keys), side(found.values.unwrap_or_default()));
        let value = KvSeqView { struct_size: 0, keys, values };
        // SAFETY: as the caller promised.
        unsafe { write_sized(view, value, "forebay_kv_seq_view") }
    })
}

fn side(side: Side) -> KvSide {
    let Side { address, token_stride, layer_stride, head_stride } = side;
    KvSide { address: address as *mut c_void, token_stride, layer_stride, head_stride }
}

/// What a sequence's memory is used for.
///
/// @return FOREBAY_ERROR_STALE_SEQUENCE; FOREBAY_ERROR_BUSY in a callback as
/// forebay_kv_contiguous_ensure().
///
/// Thread-safe.
///
/// # Safety
/// `usage` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_get_usage(
    cache: KvContiguousT,
    seq: KvSeq,
    usage: *mut KvUsage,
) -> Status {
    with(cache, |cache| {
        let found = cache.usage(Seq::from_raw(seq))?;
        let (mapped, used, tokens) = (found.mapped, found.used, found.tokens);
        let value = KvUsage { struct_size: 0, mapped, used, tokens, reserved: 0 };
        // SAFETY: as the caller promised.
        unsafe { write_sized(usage, value, "forebay_kv_usage") }
    })
}

/// Tokens of a group that a page of its first range holds; 0 for states, and where a token is
/// longer than a page.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when there is no such group.
///
/// Thread-safe.
///
/// # Safety
/// `tokens` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_tokens_per_page(
    cache: KvContiguousT,
    group: u32,
    tokens: *mut u64,
) -> Status {
    // SAFETY: as the caller promised.
    with(cache, |cache| unsafe { put(tokens, cache.tokens_per_page(group)?, "the tokens") })
}

/// All sequences' memory.
///
/// @return FOREBAY_ERROR_BUSY in a callback as forebay_kv_contiguous_ensure().
///
/// Thread-safe. Cost: a look at each sequence.
///
/// # Safety
/// `stats` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_get_stats(
    cache: KvContiguousT,
    stats: *mut KvContiguousStats,
) -> Status {
    with(cache, |cache| {
        let found = cache.try_stats()?;
        let value = KvContiguousStats {
            struct_size: 0,
            open: found.open,
            leaving: found.leaving,
            open_pages: found.open_pages,
            leaving_pages: found.leaving_pages,
            kept_pages: found.kept_pages,
            mapped_ahead: found.mapped_ahead,
        };
        // SAFETY: as the caller promised.
        unsafe { write_sized(stats, value, "forebay_kv_contiguous_stats") }
    })
}

/// Makes a fence behind all work queued so far on some streams, as forebay_kv_memory_fence().
///
/// @param count 1 to 64.
/// @return FOREBAY_ERROR_INVALID_STREAM; FOREBAY_ERROR_BUSY for a stream that captures a graph.
///
/// Thread-safe. Records an event a stream.
///
/// # Safety
/// `streams` is valid for reads of `count` handles; `fence` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_fence(
    cache: KvContiguousT,
    streams: *const StreamT,
    count: usize,
    fence: *mut KvFence,
) -> Status {
    with(cache, |cache| {
        if fence.is_null() {
            return Err(null("the fence"));
        }
        // SAFETY: as the caller promised.
        let streams = unsafe { list(streams, count, "the streams")? };
        let streams: Vec<u64> = streams.iter().take(65).map(|&stream| stream as u64).collect();
        let made = cache.fence(&streams)?;
        // SAFETY: as the caller promised.
        unsafe { put(fence, made, "the fence") }
    })
}

/// Makes a fence that passes when the caller's counter is at `value` or above: see
/// forebay_kv_contiguous_reach().
///
/// Thread-safe.
///
/// # Safety
/// `fence` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_fence_at(
    cache: KvContiguousT,
    value: u64,
    fence: *mut KvFence,
) -> Status {
    with(cache, |cache| {
        if fence.is_null() {
            return Err(null("the fence"));
        }
        // SAFETY: as the caller promised.
        unsafe { put(fence, cache.fence_at(value)?, "the fence") }
    })
}

/// The caller's counter is at `value`: the work that it stands for has ended.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_contiguous_reach(cache: KvContiguousT, value: u64) -> Status {
    with(cache, |cache| Ok(cache.reach(value)?))
}

/// Looks which fences have passed, gives back what waited for them, and maps ahead. Waits neither
/// for the device nor for another call that maps. To be called once a step where the pool has no
/// keeper.
///
/// @param fence NULL, or receives the highest fence that has passed.
///
/// Thread-safe. A query a fence in flight, and the driver's calls for what is given back or mapped.
///
/// # Safety
/// `fence` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_poll(
    cache: KvContiguousT,
    fence: *mut KvFence,
) -> Status {
    with(cache, |cache| {
        let passed = cache.poll()?;
        if fence.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(fence, passed, "the fence") }
    })
}

/// Gives back the pages that ended sequences' ranges keep.
///
/// @param pages NULL, or receives how many.
/// @return FOREBAY_ERROR_BUSY in a callback as forebay_kv_contiguous_ensure().
///
/// Thread-safe. Costs the driver's calls.
///
/// # Safety
/// `pages` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_contiguous_release_kept(
    cache: KvContiguousT,
    pages: *mut u64,
) -> Status {
    with(cache, |cache| {
        let released = cache.release_kept()?;
        if pages.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(pages, released, "the pages") }
    })
}
