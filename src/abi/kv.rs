//! The paged KV cache's books: made, its sequences opened, grown, shared and ended.

use super::kv_types::*;
use super::{check_size, list, null, put, read_sized, write_sized};
use crate::error::{Error, Result, Status};
use crate::kv::{
    Append, Config, Content, Element, Geometry, Group, Hashing, KvCache, KvError, Open, Order,
    Policy, Seq, Shortage, Tokens, handles,
};
use crate::pool::slow::guarded;

/// Runs a call on a cache.
fn with(kv: KvT, f: impl FnOnce(&KvCache) -> Result<()>) -> Status {
    guarded(|| handles::with(kv as u64, f))
}

/// Where a caller wants to be told what lacked; checked before anything is done.
pub(super) struct Asked(*mut KvShortage);

/// The place for what lacks.
///
/// # Safety
/// `to` is NULL or valid for reads and writes of its struct_size while the answer is in use.
pub(super) unsafe fn asked(to: *mut KvShortage) -> Result<Asked> {
    if !to.is_null() {
        // SAFETY: not null; the size is the first word.
        check_size("forebay_kv_shortage", unsafe { to.cast::<usize>().read() })?;
    }
    Ok(Asked(to))
}

impl Asked {
    /// Tells what lacked, if that was the reason.
    pub(super) fn tell<T>(self, result: std::result::Result<T, KvError>) -> Result<T> {
        if let (Err(KvError::NoBlocks(shortage)), false) = (&result, self.0.is_null()) {
            let Shortage { group, need, free, evictable, quarantined } = *shortage;
            let (struct_size, reserved) = (0, 0);
            let value =
                KvShortage { struct_size, group, need, free, evictable, quarantined, reserved };
            // SAFETY: as the caller of `asked` promised.
            unsafe { write_sized(self.0, value, "forebay_kv_shortage")? };
        }
        Ok(result?)
    }
}

/// Fills `options` with the defaults: prefixes by XXH3 and LRU, 1024 sequences, no limit on
/// their blocks, no events. The groups are to be set.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULL.
///
/// # Safety
/// `options` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_options_init(options: *mut KvOptions) -> Status {
    // SAFETY: as the caller promised.
    guarded(|| unsafe { put(options, default_options(), "the options") })
}

fn default_options() -> KvOptions {
    KvOptions {
        struct_size: size_of::<KvOptions>(),
        groups: std::ptr::null(),
        group_count: 0,
        max_sequences: 1024,
        max_blocks: u32::MAX,
        prefixes: 1,
        policy: FOREBAY_KV_LRU,
        hashing: FOREBAY_KV_XXH3,
        dedupe: 1,
        partial: 1,
        watermark: 0,
        events: 0,
        hash_key: [0; 32],
        flags: 0,
    }
}

/// Makes a cache: books of blocks, touching no device.
///
/// @param kv receives the handle; NULL on failure.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT says what makes no sense; FOREBAY_ERROR_OUT_OF_MEMORY: no
/// memory of the machine for the tables; FOREBAY_ERROR_LIMIT: 256 caches are there.
///
/// Thread-safe. End it with forebay_kv_destroy().
///
/// # Safety
/// `options` is NULL or valid for reads, with its groups; `kv` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_create(options: *const KvOptions, kv: *mut KvT) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised; any bytes are numbers, or a list that can be read.
        unsafe {
            put(kv, std::ptr::null_mut(), "the cache")?;
            crate::logging::init(&crate::config::Config::from_env()?);
            let options = read_sized(options, default_options(), "forebay_kv_options")?;
            let groups = list(options.groups, options.group_count, "the groups")?;
            let cache = KvCache::new(config(&options, groups)?).map_err(Error::from)?;
            put(kv, handles::keep(cache)? as KvT, "the cache")
        }
    })
}

fn wrong(text: String) -> Error {
    Error::new(Status::InvalidArgument, text)
}

/// Refuses what versions to come may give a meaning.
pub(super) fn unused(reserved: u32) -> Result<()> {
    if reserved == 0 { Ok(()) } else { Err(wrong("an item's reserved field must be 0".to_owned())) }
}

fn switch(name: &str, value: u32) -> Result<bool> {
    match value {
        0 | 1 => Ok(value == 1),
        _ => Err(wrong(format!("{name} is {value}: use 0 or 1"))),
    }
}

fn config(o: &KvOptions, groups: &[KvGroup]) -> Result<Config> {
    if o.flags != 0 {
        return Err(wrong(format!("flags {:#x} are unknown; use 0", o.flags)));
    }
    let policy = match o.policy {
        FOREBAY_KV_LRU => Policy::Lru,
        FOREBAY_KV_PRIORITY_LRU => Policy::PriorityLru,
        FOREBAY_KV_SEGMENTED_LRU => Policy::SegmentedLru,
        other => return Err(wrong(format!("policy {other} is unknown: see FOREBAY_KV_LRU"))),
    };
    let hashing = match o.hashing {
        FOREBAY_KV_XXH3 => Hashing::Xxh3,
        FOREBAY_KV_SHA256 => Hashing::Sha256,
        FOREBAY_KV_BLAKE3 => Hashing::Blake3(o.hash_key),
        other => return Err(wrong(format!("hashing {other} is unknown: see FOREBAY_KV_XXH3"))),
    };
    Ok(Config {
        groups: groups.iter().enumerate().map(|(at, g)| group(at, g)).collect::<Result<_>>()?,
        max_sequences: o.max_sequences,
        max_blocks: o.max_blocks,
        prefixes: switch("prefixes", o.prefixes)?,
        policy,
        hashing,
        dedupe: switch("dedupe", o.dedupe)?,
        partial: switch("partial", o.partial)?,
        watermark: o.watermark,
        events: o.events,
    })
}

/// A group as C gives it; `at` is its place in the list.
pub(super) fn group(at: usize, g: &KvGroup) -> Result<Group> {
    if g.reserved != [0; 4] {
        return Err(wrong(format!("group {at}: the reserved fields must be 0")));
    }
    let unknown = |what, value: u32| {
        Err(wrong(format!("group {at}: {what} {value} is unknown: see the header")))
    };
    let element = match g.element {
        FOREBAY_KV_F32 => Element::F32,
        FOREBAY_KV_F16 => Element::F16,
        FOREBAY_KV_BF16 => Element::Bf16,
        FOREBAY_KV_BYTE => Element::Byte,
        other => return unknown("element", other),
    };
    let content = match g.content {
        FOREBAY_KV_ATTENTION => Content::Attention { window: g.window },
        FOREBAY_KV_LATENT => Content::Latent,
        FOREBAY_KV_STATE => Content::State { bytes: g.state_bytes },
        other => return unknown("content", other),
    };
    if g.window > 0 && g.content != FOREBAY_KV_ATTENTION {
        return Err(wrong(format!("group {at}: only attention has a window; use 0")));
    }
    if g.state_bytes > 0 && g.content != FOREBAY_KV_STATE {
        return Err(wrong(format!("group {at}: state_bytes without a state; use 0")));
    }
    let order = match g.order {
        FOREBAY_KV_BLOCK_OUTER => Order::BlockOuter,
        FOREBAY_KV_LAYER_OUTER => Order::LayerOuter,
        other => return unknown("order", other),
    };
    let geometry = Geometry {
        layers: g.layers,
        heads: g.heads,
        key_size: g.key_size,
        value_size: g.value_size,
        block_tokens: g.block_tokens,
        element,
        content,
        order,
    };
    Ok(Group { geometry, blocks: g.blocks })
}

/// Ends a cache, once calls of other threads on it have ended. Its handle and its sequences are
/// errors from now on.
///
/// @param leaks NULL, or receives what was still held; how much is logged too, where the log is on
/// (FOREBAY_LOG, forebay_set_log_callback()).
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a handle that names none, or leaks without
/// struct_size; FOREBAY_ERROR_BUSY, which is logged, while memory stands behind the cache
/// (forebay_kv_memory_create()), or a call on that memory has not ended: the cache is then
/// untouched.
///
/// Thread-safe; works after forebay_shutdown() too.
///
/// # Safety
/// `leaks` is NULL or valid for reads and writes, with its list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_destroy(kv: KvT, leaks: *mut KvLeaks) -> Status {
    guarded(|| {
        let empty = KvLeaks {
            struct_size: 0,
            list: std::ptr::null_mut(),
            capacity: 0,
            sequences: 0,
            copies: 0,
            block_references: 0,
        };
        let mut value = empty;
        if !leaks.is_null() {
            // SAFETY: as the caller promised; any bytes are numbers or a list that can be written.
            value = unsafe { read_sized(leaks, empty, "forebay_kv_leaks")? };
        }
        if value.list.is_null() && value.capacity > 0 {
            return Err(null("the list"));
        }
        let taken = handles::take(kv as u64).inspect_err(|error| {
            if error.status() == Status::Busy {
                tracing::warn!(%error, "a KV cache was not destroyed");
            }
        });
        let found = taken?.into_leaks();
        if !found.is_empty() {
            tracing::warn!(
                sequences = found.sequences.len(),
                copies = found.copies,
                block_references = found.raw_references,
                "a KV cache was destroyed in use"
            );
        }
        value.sequences = found.sequences.len() as u64;
        value.copies = u64::from(found.copies);
        value.block_references = found.raw_references;
        for (at, &(seq, tokens)) in found.sequences.iter().enumerate().take(value.capacity) {
            let entry = KvSeqTokens { seq: seq.raw(), tokens, reserved: 0 };
            // SAFETY: there is room for `capacity` entries, as the caller promised.
            unsafe { value.list.add(at).write(entry) };
        }
        if leaks.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { write_sized(leaks, value, "forebay_kv_leaks") }
    })
}

/// Opens a sequence without tokens.
///
/// @param salt prefixes are shared only between sequences of one salt: one a tenant.
/// @param priority 0 to 7: how long its prefixes are kept under FOREBAY_KV_PRIORITY_LRU.
/// @return FOREBAY_ERROR_LIMIT when max_sequences are open.
///
/// Thread-safe.
///
/// # Safety
/// `seq` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_open(
    kv: KvT,
    salt: u64,
    priority: u32,
    seq: *mut KvSeq,
) -> Status {
    with(kv, |cache| {
        if seq.is_null() {
            return Err(null("the sequence"));
        }
        let open = Open { salt, priority: u8::try_from(priority).unwrap_or(u8::MAX) };
        let opened = cache.open(open)?;
        // SAFETY: as the caller promised.
        unsafe { put(seq, opened.raw(), "the sequence") }
    })
}

/// The tokens that a sequence holds.
///
/// @return FOREBAY_ERROR_STALE_SEQUENCE for one that has ended.
///
/// # Safety
/// `tokens` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_len(kv: KvT, seq: KvSeq, tokens: *mut u32) -> Status {
    // SAFETY: as the caller promised.
    with(kv, |cache| unsafe { put(tokens, cache.len(Seq::from_raw(seq))?, "the tokens") })
}

/// Gives an empty sequence the longest prefix of `tokens` that is there. A model needs at least
/// one token to compute: leave the prompt's last one out. Nothing found is no error. In a group
/// with a window the null block stands before what the next token sees, as after
/// forebay_kv_trim(); what that gave back can be hit until it is given up.
///
/// @return FOREBAY_ERROR_UNSUPPORTED when the sequence holds tokens; FOREBAY_ERROR_STALE_SEQUENCE.
///
/// Thread-safe. About 50 ns a block.
///
/// # Safety
/// `tokens` is valid for reads of `count` numbers; `found` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_find_prefix(
    kv: KvT,
    seq: KvSeq,
    tokens: *const i32,
    count: usize,
    found: *mut KvMatch,
) -> Status {
    with(kv, |cache| {
        // SAFETY: as the caller promised.
        let tokens = unsafe { list(tokens, count, "the tokens")? };
        let hit = cache.find_prefix(Seq::from_raw(seq), tokens)?;
        if found.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller promised.
        unsafe { put(found, KvMatch { tokens: hit.tokens, shared: hit.shared }, "the match") }
    })
}

/// New tokens as C gives them.
///
/// # Safety
/// `tokens` is NULL or valid for reads of `count` numbers while the answer is in use.
unsafe fn new_tokens<'a>(tokens: *const i32, count: u32) -> Result<Tokens<'a>> {
    if tokens.is_null() {
        return Ok(Tokens::Count(count));
    }
    // SAFETY: as the caller promised.
    Ok(Tokens::Known(unsafe { list(tokens, count as usize, "the tokens")? }))
}

/// Appends tokens to a sequence: they have blocks when this returns.
///
/// @param tokens NULL: only their number is known; what follows is then never reused by others.
/// @param shortage NULL, or receives what lacked with FOREBAY_ERROR_NO_BLOCKS.
/// @return FOREBAY_ERROR_NO_BLOCKS, which is ordinary flow control, FOREBAY_ERROR_LIMIT past
/// max_blocks, FOREBAY_ERROR_STALE_SEQUENCE: nothing has changed then, in any group.
///
/// Thread-safe; one sequence is used by one thread at a time.
///
/// # Safety
/// `tokens` is NULL or valid for reads of `count` numbers; `shortage` is NULL or valid for reads
/// and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_append(
    kv: KvT,
    seq: KvSeq,
    tokens: *const i32,
    count: u32,
    shortage: *mut KvShortage,
) -> Status {
    // SAFETY: as the caller promised.
    with(kv, |cache| unsafe {
        let (asked, tokens) = (asked(shortage)?, new_tokens(tokens, count)?);
        asked.tell(cache.append(Seq::from_raw(seq), tokens))
    })
}

/// Appends to several sequences, in order, under one lock.
///
/// @param done NULL, or receives how many were done, also on failure: those before the one that was
/// refused stand,
/// it and those after it are unchanged.
/// @return as forebay_kv_append() for the one that was refused.
///
/// # Safety
/// `items` is valid for reads of `count` elements, each with its tokens; the others as in
/// forebay_kv_append().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_append_all(
    kv: KvT,
    items: *const KvAppendItem,
    count: usize,
    done: *mut usize,
    shortage: *mut KvShortage,
) -> Status {
    with(kv, |cache| {
        if !done.is_null() {
            // SAFETY: as the caller promised.
            unsafe { done.write(0) };
        }
        // SAFETY: as the caller promised.
        let (asked, items) = unsafe { (asked(shortage)?, list(items, count, "the items")?) };
        let item = |item: &KvAppendItem| {
            unused(item.reserved)?;
            // SAFETY: as the caller promised.
            let tokens = unsafe { new_tokens(item.tokens, item.count)? };
            Ok(Append { seq: Seq::from_raw(item.seq), tokens })
        };
        let batch: Vec<Append<'_>> = items.iter().map(item).collect::<Result<_>>()?;
        let (count, result) = cache.append_all(&batch);
        if !done.is_null() {
            // SAFETY: as the caller promised.
            unsafe { done.write(count) };
        }
        asked.tell(result)
    })
}

/// Takes the blocks for `tokens` more tokens without using them, and a copy of a shared tail:
/// unless the sequence is forked before, the appends that follow cannot be refused for want of
/// blocks up to there.
///
/// @return as forebay_kv_append().
///
/// # Safety
/// `shortage` is NULL or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_reserve(
    kv: KvT,
    seq: KvSeq,
    tokens: u32,
    shortage: *mut KvShortage,
) -> Status {
    // SAFETY: as the caller promised.
    with(kv, |cache| unsafe { asked(shortage)?.tell(cache.reserve(Seq::from_raw(seq), tokens)) })
}

/// The first `tokens` tokens of a sequence are computed, or will be by work that runs before any
/// that is given the blocks by a hit: full blocks can be hit from now on. With dedupe a block that
/// equals a known one is freed behind `after` for that one: the table changes.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for fewer tokens than were committed, or more than there
/// are; FOREBAY_ERROR_STALE_SEQUENCE.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_commit(kv: KvT, seq: KvSeq, tokens: u32, after: KvFence) -> Status {
    with(kv, |cache| Ok(cache.commit(Seq::from_raw(seq), tokens, after)?))
}

/// As forebay_kv_commit() for several sequences under one lock, all or none.
///
/// @return as there; FOREBAY_ERROR_INVALID_ARGUMENT also when one is named twice.
///
/// # Safety
/// `items` is valid for reads of `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_commit_all(
    kv: KvT,
    items: *const KvSeqTokens,
    count: usize,
    after: KvFence,
) -> Status {
    with(kv, |cache| {
        // SAFETY: as the caller promised.
        let items = unsafe { list(items, count, "the items")? };
        let item = |item: &KvSeqTokens| {
            unused(item.reserved).map(|()| (Seq::from_raw(item.seq), item.tokens))
        };
        let batch: Vec<(Seq, u32)> = items.iter().map(item).collect::<Result<_>>()?;
        Ok(cache.commit_all(&batch, after)?)
    })
}

/// Takes the last `tokens` tokens back (rejected drafts), and room that was reserved behind them.
/// Blocks that hold none of the rest are freed behind `after`.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for more tokens than there are;
/// FOREBAY_ERROR_UNSUPPORTED in a cache with states, or past what was trimmed.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_rollback(kv: KvT, seq: KvSeq, tokens: u32, after: KvFence) -> Status {
    with(kv, |cache| Ok(cache.rollback(Seq::from_raw(seq), tokens, after)?))
}

/// Makes `count` sequences that begin with the first `tokens` tokens of `seq` and share its
/// blocks; who writes into a shared tail first gets a copy of it. All or none.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a token that does not exist; FOREBAY_ERROR_LIMIT;
/// FOREBAY_ERROR_NO_BLOCKS for states, of which each gets a copy.
///
/// # Safety
/// `out` is valid for writes of `count` handles; `shortage` is NULL or valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_fork(
    kv: KvT,
    seq: KvSeq,
    tokens: u32,
    out: *mut KvSeq,
    count: usize,
    shortage: *mut KvShortage,
) -> Status {
    with(kv, |cache| {
        if out.is_null() && count > 0 {
            return Err(null("the sequences"));
        }
        // SAFETY: as the caller promised.
        let asked = unsafe { asked(shortage)? };
        if count > cache.max_sequences() as usize {
            return Err(KvError::TooManySequences.into());
        }
        let mut made = vec![Seq::from_raw(0); count];
        asked.tell(cache.fork(Seq::from_raw(seq), tokens, &mut made))?;
        for (at, seq) in made.iter().enumerate() {
            // SAFETY: there is room for `count` handles, as the caller promised.
            unsafe { out.add(at).write(seq.raw()) };
        }
        Ok(())
    })
}

/// Gives blocks back, behind `after`, whose tokens the next one no longer sees.
///
/// @param keep_last FOREBAY_KV_WINDOWS: in groups with a window, what that no longer sees. Else
/// all before the last so many tokens, in all groups but states, where no prefixes are kept.
/// @return FOREBAY_ERROR_UNSUPPORTED with keep_last where prefixes are kept;
/// FOREBAY_ERROR_STALE_SEQUENCE.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_trim(kv: KvT, seq: KvSeq, keep_last: u32, after: KvFence) -> Status {
    let keep = Some(keep_last).filter(|&keep| keep != FOREBAY_KV_WINDOWS);
    with(kv, |cache| Ok(cache.trim(Seq::from_raw(seq), keep, after)?))
}

/// Ends sequences; their blocks are freed behind `after`.
///
/// @return FOREBAY_ERROR_STALE_SEQUENCE, or FOREBAY_ERROR_INVALID_ARGUMENT when one is named twice:
/// none has ended then.
///
/// # Safety
/// `seqs` is valid for reads of `count` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kv_free(
    kv: KvT,
    seqs: *const KvSeq,
    count: usize,
    after: KvFence,
) -> Status {
    with(kv, |cache| {
        // SAFETY: as the caller promised.
        let seqs = unsafe { list(seqs, count, "the sequences")? };
        let seqs: Vec<Seq> = seqs.iter().map(|&seq| Seq::from_raw(seq)).collect();
        Ok(cache.free(&seqs, after)?)
    })
}

/// All work up to this fence has ended: what was freed behind it can be had again.
///
/// @return FOREBAY_ERROR_UNSUPPORTED while memory stands behind the cache: forebay_kv_memory_poll()
/// tells which fences have passed.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_kv_pass(kv: KvT, fence: KvFence) -> Status {
    with(kv, |cache| {
        if cache.has_memory() {
            return Err(Error::new(
                Status::Unsupported,
                "memory stands behind the KV cache: poll that",
            ));
        }
        cache.pass(fence);
        Ok(())
    })
}
