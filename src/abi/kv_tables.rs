//! The paged KV cache's tables, copies, blocks without sequences, and figures.

use super::kv::asked;
use super::kv_types::*;
use super::{list, list_mut, null, put, write_sized};
use crate::error::{Error, Result, Status};
use crate::kv::{
    Copies, CopyJob, Counts, Delta, Digest, Event, KvCache, Result as KvResult, Seq, handles,
};
use crate::pool::slow::guarded;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// Runs a call on a cache.
fn with(kv: KvT, f: impl FnOnce(&KvCache) -> Result<()>) -> Status {
    guarded(|| handles::with(kv as u64, f))
}

fn handles_of(seqs: &[KvSeq]) -> Vec<Seq> {
    seqs.iter().map(|&seq| Seq::from_raw(seq)).collect()
}

/// Where a group's elements lie. Constant over the cache's life.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when there is no such group.
///
/// # Safety
/// `layout` is NULL or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_get_layout(
    kv: KvT,
    group: u32,
    layout: *mut KvLayout,
) -> Status {
    with(kv, |cache| {
        let found = cache.layout(group).ok_or_else(|| {
            Error::new(Status::InvalidArgument, format!("the cache has no group {group}"))
        })?;
        let value = KvLayout {
            struct_size: 0,
            block_bytes: found.block_bytes,
            block_stride: found.block_stride,
            layer_stride: found.layer_stride,
            value_offset: found.value_offset,
            key_token_stride: found.key_token_stride,
            key_head_stride: found.key_head_stride,
            value_token_stride: found.value_token_stride,
            value_head_stride: found.value_head_stride,
            total_bytes: found.total_bytes,
        };
        // SAFETY: as the caller promised.
        unsafe { write_sized(layout, value, "forebay_kv_layout") }
    })
}

/// The copies that the device has to make, in the order in which they must be queued: before the
/// work that reads or writes their targets; of states, before the work that writes their sources.
/// Both ends are held until forebay_kv_copied().
///
/// @param count receives how many were written to jobs, at most capacity; call again while it is
/// capacity.
/// @param batch receives the number to give to forebay_kv_copied(); 0 when none were written.
///
/// Thread-safe.
///
/// # Safety
/// `jobs` is valid for writes of `capacity` elements; `count` and `batch` are NULL or valid for the
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_take_copies(
    kv: KvT,
    jobs: *mut KvCopy,
    capacity: usize,
    count: *mut usize,
    batch: *mut u64,
) -> Status {
    with(kv, |cache| {
        if count.is_null() || batch.is_null() || (jobs.is_null() && capacity > 0) {
            return Err(null("the jobs, their count, or the batch"));
        }
        let mut taken = Vec::new();
        let number = cache.take_first_copies(capacity, &mut taken);
        for (at, job) in taken.iter().enumerate() {
            let CopyJob { group, from, to, tokens } = *job;
            // SAFETY: there is room for `capacity` jobs, as the caller promised.
            unsafe { jobs.add(at).write(KvCopy { group, from, to, tokens }) };
        }
        // SAFETY: as the caller promised.
        unsafe {
            put(count, taken.len(), "the count")?;
            put(batch, number.map_or(0, |copies| copies.raw()), "the batch")
        }
    })
}

/// The copies of a batch are queued, and are made when `after` has passed (0: they are made).
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a batch that is not outstanding.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_copied(kv: KvT, batch: u64, after: KvFence) -> Status {
    with(kv, |cache| Ok(cache.copied(Copies::from_raw(batch), after)?))
}

/// Writes what changed in a sequence's row since the last call to the same row. Numbers are those
/// of the group's blocks; 0, the null block, behind the end and where tokens were trimmed. A change
/// is told once: not for a group with a bound table (forebay_kv_memory_table_bind()).
///
/// @param row receives entries; entries of it that did not change are left alone.
/// @param whole 1: the row held another sequence's, or nothing: all of it is written.
/// @param delta NULL, or receives which entries were written: those to be sent.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when the row is too short, or there is no such group.
///
/// # Safety
/// `row` is valid for writes of `entries` numbers; `delta` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_row(
    kv: KvT,
    group: u32,
    seq: KvSeq,
    row: *mut i32,
    entries: usize,
    whole: u32,
    delta: *mut KvDelta,
) -> Status {
    with(kv, |cache| {
        // SAFETY: as the caller promised.
        let row = unsafe { list_mut(row, entries, "the row")? };
        let Delta { from, to } = cache.row(group, Seq::from_raw(seq), row, whole != 0)?;
        if delta.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(delta, KvDelta { from, to }, "the delta") }
    })
}

/// As forebay_kv_row() for several sequences' rows in one array: the first sequence's is the first.
/// The rows held these sequences' before.
///
/// @param stride entries from a row to the next.
/// @param deltas NULL, or receives one for each sequence.
/// @param done NULL, or receives how many rows were written, also on failure: those before the one
/// that was refused.
/// @return as there.
///
/// # Safety
/// `seqs` is valid for reads of `count` handles, `array` for writes of `count` times `stride`
/// numbers, `deltas` is NULL or valid for writes of `count` elements, `done` is NULL or
/// valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_rows(
    kv: KvT,
    group: u32,
    seqs: *const KvSeq,
    count: usize,
    array: *mut i32,
    stride: usize,
    deltas: *mut KvDelta,
    done: *mut usize,
) -> Status {
    with(kv, |cache| {
        if !done.is_null() {
            // SAFETY: as the caller promised.
            unsafe { done.write(0) };
        }
        // SAFETY: as the caller promised.
        let seqs = unsafe { list(seqs, count, "the sequences")? };
        let entries = count.checked_mul(stride).ok_or_else(|| {
            Error::new(Status::InvalidArgument, "the array is larger than memory")
        })?;
        // SAFETY: as the caller promised.
        let array = unsafe { list_mut(array, entries, "the array")? };
        let mut told = Vec::new();
        let result = cache.rows(group, &handles_of(seqs), array, stride, &mut told);
        if !done.is_null() {
            // SAFETY: as the caller promised.
            unsafe { done.write(told.len()) };
        }
        if !deltas.is_null() {
            for (at, delta) in told.iter().enumerate() {
                let delta = KvDelta { from: delta.from, to: delta.to };
                // SAFETY: there is room for `count` elements, as the caller promised.
                unsafe { deltas.add(at).write(delta) };
            }
        }
        Ok(result?)
    })
}

/// The slots of a sequence's tokens `from` to `from + count`: the block's number times its tokens,
/// and the place in it.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for tokens that are not there or were trimmed;
/// FOREBAY_ERROR_UNSUPPORTED in a group of states.
///
/// # Safety
/// `slots` is valid for writes of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_slots(
    kv: KvT,
    group: u32,
    seq: KvSeq,
    from: u32,
    slots: *mut i64,
    count: usize,
) -> Status {
    with(kv, |cache| {
        if count > u32::MAX as usize {
            return Err(Error::new(Status::InvalidArgument, "so many tokens no sequence has"));
        }
        // SAFETY: as the caller promised.
        let slots = unsafe { list_mut(slots, count, "the slots")? };
        Ok(cache.slots(group, Seq::from_raw(seq), from, slots)?)
    })
}

/// Compressed rows of sequences, as FlashInfer reads them: `indptr` says where each one's blocks
/// begin in `indices`, `last_page_len` how many tokens its last block has, 1 to block_tokens.
/// Trimmed blocks are left out.
///
/// @param indptr receives count + 1 entries, last_page_len count.
/// @param needed NULL, or receives how many entries indices needs.
/// @return FOREBAY_ERROR_LIMIT when capacity is smaller than that: indices holds nothing of use
/// then; FOREBAY_ERROR_INVALID_ARGUMENT for a sequence without tokens; FOREBAY_ERROR_UNSUPPORTED in
/// a group of states.
///
/// # Safety
/// `seqs` is valid for reads of `count` handles; `indptr`, `indices` and `last_page_len` are valid
/// for writes of `count + 1`, `capacity` and `count` numbers and do not overlap; `needed`
/// is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_csr(
    kv: KvT,
    group: u32,
    seqs: *const KvSeq,
    count: usize,
    indptr: *mut i32,
    indices: *mut i32,
    capacity: usize,
    last_page_len: *mut i32,
    needed: *mut usize,
) -> Status {
    with(kv, |cache| {
        // SAFETY: as the caller promised; the three arrays are the caller's and distinct.
        let (seqs, into) = unsafe {
            let seqs = list(seqs, count, "the sequences")?;
            let indptr = list_mut(indptr, count.saturating_add(1), "indptr")?;
            let indices = list_mut(indices, capacity, "the indices")?;
            (seqs, (indptr, indices, list_mut(last_page_len, count, "last_page_len")?))
        };
        let entries = cache.csr_into(group, &handles_of(seqs), into)?;
        if !needed.is_null() {
            // SAFETY: as the caller promised.
            unsafe { needed.write(entries) };
        }
        if entries > capacity {
            let text = format!("the rows take {entries} indices; there is room for {capacity}");
            return Err(Error::new(Status::Limit, text));
        }
        Ok(())
    })
}

/// Forgets all prefixes; blocks that nobody holds become free, sequences keep theirs.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_reset_prefixes(kv: KvT) -> Status {
    with(kv, |cache| {
        cache.reset_prefixes();
        Ok(())
    })
}

/// Takes `count` blocks of a group with one reference each, for an engine with a scheduler of its
/// own; all or none. They are never a sequence's.
///
/// @param shortage NULL, or receives what lacked with FOREBAY_ERROR_NO_BLOCKS.
///
/// # Safety
/// `blocks` is valid for writes of `count` numbers; `shortage` is NULL or valid for reads
/// and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_blocks_take(
    kv: KvT,
    group: u32,
    blocks: *mut u32,
    count: usize,
    shortage: *mut KvShortage,
) -> Status {
    // SAFETY: as the caller promised.
    with(kv, |cache| unsafe {
        let (asked, blocks) = (asked(shortage)?, list_mut(blocks, count, "the blocks")?);
        asked.tell(cache.take_blocks(group, blocks))
    })
}

/// Takes one reference more to each block, also to registered ones that nobody holds. Null blocks
/// are passed over.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT, with nothing changed, for a block that is not this
/// level's, or is held by nobody and not registered.
///
/// # Safety
/// `blocks` is valid for reads of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_blocks_hold(
    kv: KvT,
    group: u32,
    blocks: *const u32,
    count: usize,
) -> Status {
    // SAFETY: as the caller promised.
    with(kv, |cache| unsafe { Ok(cache.hold_blocks(group, list(blocks, count, "the blocks")?)?) })
}

/// Gives one reference to each block back, in this order, behind `after`: of registered blocks
/// those named first are given up first. Null blocks are passed over.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT, with nothing changed, for a block that is not held so
/// often by this level.
///
/// # Safety
/// `blocks` is valid for reads of `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_blocks_release(
    kv: KvT,
    group: u32,
    blocks: *const u32,
    count: usize,
    after: KvFence,
) -> Status {
    // SAFETY: as the caller promised.
    with(kv, |cache| unsafe {
        Ok(cache.release_blocks(group, list(blocks, count, "the blocks")?, after)?)
    })
}

/// Registers blocks under hashes of the caller's; they can be found from then on, and stay when
/// nobody holds them until they are given up.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT, with nothing changed, for a block that is not held by
/// this level, is registered, or is null.
///
/// # Safety
/// `blocks` and `digests` are valid for reads of `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_blocks_register(
    kv: KvT,
    group: u32,
    blocks: *const u32,
    digests: *const KvDigest,
    count: usize,
) -> Status {
    with(kv, |cache| {
        // SAFETY: as the caller promised.
        let (blocks, digests) =
            unsafe { (list(blocks, count, "the blocks")?, list(digests, count, "the digests")?) };
        let pairs = blocks.iter().zip(digests).map(|(&block, digest)| (block, digest.bytes));
        let pairs: Vec<(u32, Digest)> = pairs.collect();
        Ok(cache.register_blocks(group, &pairs)?)
    })
}

/// Takes a reference to a block of each hash, up to the first hash that is not there.
///
/// @param found receives how many; their numbers are at the front of blocks.
///
/// # Safety
/// `digests` is valid for reads and `blocks` for writes of `count` elements; `found` is
/// NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_blocks_find(
    kv: KvT,
    group: u32,
    digests: *const KvDigest,
    blocks: *mut u32,
    count: usize,
    found: *mut usize,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { look_up(kv, (group, digests, blocks, count), found, KvCache::find_blocks) }
}

/// Writes the blocks that have these hashes, and answers how many.
type LookUp = fn(&KvCache, u32, &[Digest], &mut [MaybeUninit<u32>]) -> KvResult<usize>;

/// Looks blocks up in one of two ways.
///
/// # Safety
/// As of forebay_kv_blocks_find().
unsafe fn look_up(
    kv: KvT,
    (group, digests, blocks, count): (u32, *const KvDigest, *mut u32, usize),
    found: *mut usize,
    way: LookUp,
) -> Status {
    with(kv, |cache| {
        if found.is_null() {
            return Err(null("the count"));
        }
        // SAFETY: as the caller promised.
        let (digests, blocks) = unsafe {
            (list(digests, count, "the digests")?, list_mut(blocks, count, "the blocks")?)
        };
        let digests: Vec<Digest> = digests.iter().map(|digest| digest.bytes).collect();
        let hits = way(cache, group, &digests, blocks)?;
        // SAFETY: as the caller promised.
        unsafe { put(found, hits, "the count") }
    })
}

/// A block of each hash, up to the first hash that is not there, without a reference: the numbers
/// hold until the next call that gives blocks out. Of several with one hash the one that was
/// registered first.
///
/// @param found receives how many; their numbers are at the front of blocks.
///
/// # Safety
/// As of forebay_kv_blocks_find().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_blocks_peek(
    kv: KvT,
    group: u32,
    digests: *const KvDigest,
    blocks: *mut u32,
    count: usize,
    found: *mut usize,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { look_up(kv, (group, digests, blocks, count), found, KvCache::peek_blocks) }
}

/// Makes blocks unknown, so that they are found no more; those that nobody holds become free.
///
/// @param evicted NULL, or receives how many were known before and are not now.
///
/// # Safety
/// `blocks` is valid for reads of `count` numbers; `evicted` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_blocks_evict(
    kv: KvT,
    group: u32,
    blocks: *const u32,
    count: usize,
    evicted: *mut usize,
) -> Status {
    with(kv, |cache| {
        // SAFETY: as the caller promised.
        let gone = cache.evict_blocks(group, unsafe { list(blocks, count, "the blocks")? })?;
        if evicted.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(evicted, gone, "the count") }
    })
}

/// The figures of one moment, without the cache's lock. In each group used + free + cached +
/// quarantined + 1 are total.
///
/// @param groups NULL, or receives the first `count` groups' figures.
///
/// # Safety
/// `stats` is NULL or valid for reads and writes; `groups` is NULL or valid for writes of `count`
/// elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_get_stats(
    kv: KvT,
    stats: *mut KvStats,
    groups: *mut KvCounts,
    count: usize,
) -> Status {
    with(kv, |cache| {
        let found = cache.stats();
        let value = KvStats {
            struct_size: 0,
            hit_tokens: found.hit_tokens,
            missed_tokens: found.missed_tokens,
            sequences: found.sequences,
            copies: found.copies,
            groups: found.groups.len() as u32,
            reserved: 0,
        };
        // SAFETY: as the caller promised.
        unsafe { write_sized(stats, value, "forebay_kv_stats")? };
        if groups.is_null() {
            return Ok(());
        }
        for (at, group) in found.groups.iter().enumerate().take(count) {
            let Counts { total, used, free, cached, quarantined } = group.counts;
            let counts = KvCounts { total, used, free, cached, quarantined };
            // SAFETY: there is room for `count` elements, as the caller promised.
            unsafe { groups.add(at).write(counts) };
        }
        Ok(())
    })
}

/// Takes events, oldest first.
///
/// @param count receives how many were written, at most capacity.
/// @param dropped NULL, or receives how many were lost since the last call, as nobody took them.
///
/// # Safety
/// `events` is valid for writes of `capacity` elements; `count` and `dropped` are NULL or valid for
/// the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_take_events(
    kv: KvT,
    events: *mut KvEvent,
    capacity: usize,
    count: *mut usize,
    dropped: *mut u64,
) -> Status {
    with(kv, |cache| {
        if count.is_null() || (events.is_null() && capacity > 0) {
            return Err(null("the events, or their count"));
        }
        let mut taken = Vec::new();
        let lost = cache.take_events(capacity, &mut taken);
        for (at, event) in taken.iter().enumerate() {
            let (kind, group, block, digest) = match *event {
                Event::Stored { group, block, digest } => (FOREBAY_KV_STORED, group, block, digest),
                Event::Removed { group, block, digest } => {
                    (FOREBAY_KV_REMOVED, group, block, digest)
                }
                Event::Cleared { group } => (FOREBAY_KV_CLEARED, group, 0, [0; 32]),
            };
            let event =
                KvEvent { kind, group, block, reserved: 0, digest: KvDigest { bytes: digest } };
            // SAFETY: there is room for `capacity` events, as the caller promised.
            unsafe { events.add(at).write(event) };
        }
        if !dropped.is_null() {
            // SAFETY: as the caller promised.
            unsafe { dropped.write(lost) };
        }
        // SAFETY: as the caller promised.
        unsafe { put(count, taken.len(), "the count") }
    })
}

/// Holds everything against everything, under the cache's lock: for tests and doubts.
///
/// @param text NULL, or receives what is wrong first, cut to capacity and ended by a NUL.
/// @return FOREBAY_ERROR_INTERNAL when something is wrong: a defect in Forebay.
///
/// # Safety
/// `text` is NULL or valid for writes of `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_check(kv: KvT, text: *mut c_char, capacity: usize) -> Status {
    with(kv, |cache| {
        let found = cache.check();
        let said = found.as_ref().err().map_or("", String::as_str).as_bytes();
        if !text.is_null() && capacity > 0 {
            let kept = said.len().min(capacity - 1);
            // SAFETY: there is room for `capacity` bytes, as the caller promised.
            unsafe {
                std::ptr::copy_nonoverlapping(said.as_ptr(), text.cast::<u8>(), kept);
                text.add(kept).write(0);
            }
        }
        found.map_err(|text| Error::new(Status::Internal, text))
    })
}
