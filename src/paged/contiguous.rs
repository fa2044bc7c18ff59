//! A range of addresses for each sequence: caches for kernels that know no blocks.
//!
//! Each sequence has, in each group, one range for keys and one for values (groups whose layers
//! lie together, the form to choose with large pages), or one of each a layer. A range is as long
//! as the longest sequence may get and never moves; pages stand behind the tokens that there are.
//! Owns a region of the pool for each sequence that was ever open at a time. Promises:
//!
//! - When [`ContiguousKv::ensure`] has answered, the tokens have memory. Pages for tokens to come
//!   are mapped ahead by the pool's keeper, where that is on, or by [`ContiguousKv::poll`]; only as
//!   far as the pool has room when they are mapped. They stay when room is short later.
//! - What a sequence leaves is reused or unmapped only when its fence has passed. Ranges that ended
//!   keep their pages for the next sequences, up to a number of pages; more goes back to the pool's
//!   stock, and all of it before a request of this cache fails. What an open sequence has beyond
//!   its tokens, kept or mapped ahead, stays with it.
//! - A failing driver call changes nothing that is in use.
//!
//! The price of contiguous addresses is the tail: a range's last page is partly empty
//! ([`Usage::waste`]), with 2 MiB pages and Llama-3-8B in bf16 4 MiB a sequence at worst where
//! layers lie together, 128 MiB where each has a range of its own. Nothing is shared between
//! sequences. In the pool's callbacks, a cache whose own call runs there refuses calls, and so does
//! one that another thread's call holds. The idea is
//! vAttention's (arXiv 2405.04437). Cost: the driver's calls, one map a page
//! and one access call a range and growth; a call that maps nothing costs a lock.

mod tend;

use super::error::{MemoryError, Result};
use super::fences::Fences;
use super::lock::Turns;
use super::places::{difference, pages, union};
use super::{is_short, locked};
use crate::error::Status;
use crate::kv::{Content, Fence, Geometry, KvError, Layout, Order, Seq};
use crate::pool::Pool;
use crate::pool::keeper::{self, Tended};
use crate::pool::regions::{Region, Row};
use crate::pool::world;
use std::sync::{Arc, Mutex};

/// What a cache of contiguous addresses is made with.
#[derive(Clone, Debug)]
pub struct ContiguousConfig {
    /// What the groups store, one at least. [`Order::BlockOuter`]: the layers of a token lie
    /// together; [`Order::LayerOuter`]: each layer has a range. Blocks' lengths and windows are not
    /// looked at.
    pub groups: Vec<Geometry>,
    /// Sequences at a time, those included whose fences have not passed.
    pub max_sequences: u32,
    /// Tokens of a sequence at most.
    pub max_tokens: u32,
    /// For so many tokens to come pages are mapped ahead.
    pub ahead_tokens: u32,
    /// Pages that ended sequences' ranges may keep.
    pub keep_pages: u64,
}

/// Where a sequence's keys or values lie: token `t`, layer `l`, head `h` at `address +
/// t * token_stride + l * layer_stride + h * head_stride`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// The first element.
    pub address: usize,
    /// Bytes from a token to the next.
    pub token_stride: u64,
    /// Bytes from a layer to the next.
    pub layer_stride: u64,
    /// Bytes from a head to the next.
    pub head_stride: u64,
}

/// Where a sequence's elements of a group lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqView {
    /// Keys; a latent vector; or a state, whose strides but the layers' are 0.
    pub keys: Side,
    /// Values, where there are any.
    pub values: Option<Side>,
}

/// What a sequence's memory is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens.
    pub tokens: u32,
    /// Bytes of pages behind its ranges, those mapped ahead included.
    pub mapped: u64,
    /// Bytes of its tokens' elements.
    pub used: u64,
}

impl Usage {
    /// Bytes that hold no token: tails of the ranges' last pages, and what is mapped ahead.
    pub fn waste(&self) -> u64 {
        self.mapped - self.used
    }
}

/// All sequences' memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContiguousStats {
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
    /// Pages mapped ahead so far, by the keeper or [`ContiguousKv::poll`].
    pub mapped_ahead: u64,
}

/// A KV cache with contiguous addresses. See the room's page. Dropping it gives its memory back:
/// the caller knows that no work uses it any more.
#[derive(Debug)]
pub struct ContiguousKv(Arc<Inner>);

/// A stretch of a sequence's region that grows with its tokens.
#[derive(Clone, Copy, Debug)]
struct Tensor {
    offset: u64,
    token_bytes: u64,
    /// Bytes that do not grow: a state.
    fixed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Leaving,
    Free,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    region: Region,
    tokens: u32,
    mapped: Vec<Row>,
    /// Behind which fence its last tokens were taken back, or itself was freed.
    after: Fence,
    /// Whether more is mapped than its tokens need, and may go once `after` has passed.
    excess: bool,
}

#[derive(Debug, Default)]
struct Slots {
    all: Vec<Slot>,
    /// Those that are free, the one that ended last at the end.
    free: Vec<usize>,
    mapped_ahead: u64,
}

#[derive(Debug)]
struct Inner {
    pool: Pool,
    config: ContiguousConfig,
    /// Each group's tensors: first and count, in `tensors`.
    groups: Vec<(usize, usize)>,
    tensors: Vec<Tensor>,
    bytes: u64,
    granule: u64,
    slots: Turns<Slots>,
    fences: Mutex<Fences>,
}

fn wrong<T>(what: &'static str) -> Result<T> {
    Err(MemoryError::Invalid(what))
}

const TOO_LONG: MemoryError = MemoryError::Invalid("a sequence's bytes do not fit in its range");

/// The strides of one token: here are no blocks.
fn strides(geometry: &Geometry) -> Result<Layout> {
    Ok(Geometry { block_tokens: 1, ..*geometry }.layout(1)?)
}

/// The tensors of one group: bytes a token of each, or of a state.
fn sides(geometry: &Geometry) -> Result<Vec<(u64, u64)>> {
    let layout = strides(geometry)?;
    let layers = u64::from(geometry.layers);
    let (count, layers) = match geometry.order {
        Order::BlockOuter => (1, layers),
        Order::LayerOuter => (geometry.layers as usize, 1),
    };
    let times = |bytes: u64| bytes.checked_mul(layers).ok_or(TOO_LONG);
    let mut sides = Vec::new();
    if let Content::State { bytes } = geometry.content {
        sides.push((0, times(bytes)?));
    } else {
        sides.push((times(layout.key_token_stride)?, 0));
        if layout.value_token_stride > 0 {
            sides.push((times(layout.value_token_stride)?, 0));
        }
    }
    // All layers' keys, then all layers' values.
    let mut all = Vec::new();
    let len = sides.len().checked_mul(count).ok_or(TOO_LONG)?;
    all.try_reserve_exact(len).map_err(|_| KvError::NoMemory)?;
    all.extend(sides.into_iter().flat_map(|side| std::iter::repeat_n(side, count)));
    Ok(all)
}

impl ContiguousKv {
    /// A cache over pages of `pool`, which must live as long. No address space is taken yet.
    ///
    /// # Errors
    /// A configuration that makes no sense, or whose bytes overflow.
    pub fn new(pool: &Pool, config: ContiguousConfig) -> Result<ContiguousKv> {
        if config.groups.is_empty() || config.max_sequences == 0 || config.max_tokens == 0 {
            return wrong("groups, sequences and tokens must not be 0");
        }
        let pool = Pool::from_number(pool.id())?;
        let granule = pool.page_bytes()? as u64;
        let (mut tensors, mut groups, mut end) = (Vec::<Tensor>::new(), Vec::new(), 0u64);
        for geometry in &config.groups {
            let first = tensors.len();
            let sides = sides(geometry)?;
            tensors.try_reserve(sides.len()).map_err(|_| KvError::NoMemory)?;
            for (token_bytes, fixed) in sides {
                let tokens = u64::from(config.max_tokens).checked_mul(token_bytes);
                let bytes = tokens.and_then(|bytes| bytes.checked_add(fixed));
                let bytes = bytes.and_then(|bytes| bytes.checked_next_multiple_of(granule));
                tensors.push(Tensor { offset: end, token_bytes, fixed });
                let next = bytes.and_then(|bytes| end.checked_add(bytes));
                end = next.filter(|&end| end <= i64::MAX as u64).ok_or(TOO_LONG)?;
            }
            groups.push((first, tensors.len() - first));
        }
        let inner = Arc::new(Inner {
            pool,
            config,
            groups,
            tensors,
            bytes: end,
            granule,
            slots: Turns::default(),
            fences: Mutex::default(),
        });
        let tended: Arc<dyn Tended> = Arc::clone(&inner) as Arc<dyn Tended>;
        keeper::tend_too(inner.pool.id(), &tended);
        Ok(ContiguousKv(inner))
    }

    /// Opens a sequence without tokens; states have their memory at the first `ensure`.
    ///
    /// # Errors
    /// [`MemoryError::Again`] when all sequences are open or leave; no address space.
    pub fn open(&self) -> Result<Seq> {
        self.0.open()
    }

    /// The sequences hold so many tokens from now on, and these have memory. Answers how many of
    /// the list were done, and why not all: those before stand, that one and those after it are
    /// unchanged.
    ///
    /// # Errors
    /// Stale; fewer tokens than it holds, or more than a sequence may; no memory below the pool's
    /// limit; a driver call's failure.
    pub fn ensure(&self, batch: &[(Seq, u32)]) -> (usize, Result<()>) {
        self.0.ensure(batch)
    }

    /// Takes the last tokens of a sequence back until it holds `tokens`. Pages that only these
    /// needed go once `after` has passed, save those that are mapped ahead.
    pub fn truncate(&self, seq: Seq, tokens: u32, after: Fence) -> Result<()> {
        self.0.truncate(seq, tokens, after)
    }

    /// Ends sequences; their memory waits for `after`. Refused, with none ended, when one is stale
    /// or named twice, or no such fence was made.
    pub fn free(&self, seqs: &[Seq], after: Fence) -> Result<()> {
        self.0.free(seqs, after)
    }

    /// Where a sequence's elements of a group lie, as long as it is open.
    pub fn view(&self, seq: Seq, group: u32) -> Result<SeqView> {
        self.0.view(seq, group)
    }

    /// What a sequence's memory is used for.
    pub fn usage(&self, seq: Seq) -> Result<Usage> {
        world::check_world()?;
        let slots = self.0.slots.lock()?;
        let slot = &slots.all[slots.find(seq)?];
        let used = self.0.tensors.iter().map(|tensor| tensor.bytes(slot.tokens)).sum();
        Ok(Usage { tokens: slot.tokens, mapped: pages(&slot.mapped) * self.0.granule, used })
    }

    /// Tokens of a group that a page of its first range holds; 0 for states.
    pub fn tokens_per_page(&self, group: u32) -> Result<u64> {
        let &(first, _) = self.0.groups.get(group as usize).ok_or(super::NO_GROUP)?;
        Ok(self.0.granule.checked_div(self.0.tensors[first].token_bytes).unwrap_or(0))
    }

    /// All sequences' memory. All figures are 0 in a forked child, and in a callback of the pool
    /// that runs inside a call of this cache, or of another one while some thread's call holds
    /// this.
    pub fn stats(&self) -> ContiguousStats {
        self.try_stats().unwrap_or_default()
    }

    /// As [`ContiguousKv::stats`], and says why there are none.
    pub fn try_stats(&self) -> Result<ContiguousStats> {
        world::check_world()?;
        let slots = self.0.slots.lock()?;
        let mut stats = ContiguousStats { mapped_ahead: slots.mapped_ahead, ..Default::default() };
        for slot in &slots.all {
            let mapped = pages(&slot.mapped);
            match slot.state {
                State::Open => {
                    (stats.open, stats.open_pages) = (stats.open + 1, stats.open_pages + mapped)
                }
                State::Leaving => {
                    (stats.leaving, stats.leaving_pages) =
                        (stats.leaving + 1, stats.leaving_pages + mapped)
                }
                State::Free => stats.kept_pages += mapped,
            }
        }
        Ok(stats)
    }

    /// As [`super::KvMemory::fence`].
    pub fn fence(&self, streams: &[u64]) -> Result<Fence> {
        world::check_world()?;
        locked(&self.0.fences).behind(&self.0.pool, streams)
    }

    /// As [`super::KvMemory::fence_at`].
    pub fn fence_at(&self, value: u64) -> Result<Fence> {
        world::check_world()?;
        Ok(locked(&self.0.fences).at_counter(value))
    }

    /// As [`super::KvMemory::reach`].
    pub fn reach(&self, value: u64) -> Result<()> {
        world::check_world()?;
        locked(&self.0.fences).reach(value);
        Ok(())
    }

    /// Looks which fences have passed, gives back what waited for them, and maps ahead. Answers the
    /// highest fence that has passed. Waits neither for the device nor for another call that maps.
    ///
    /// # Errors
    /// A driver call's failure; the next call goes on.
    pub fn poll(&self) -> Result<Fence> {
        self.0.poll()
    }

    /// Unmaps what ended sequences' ranges keep; their fences have passed. Answers the pages.
    pub fn release_kept(&self) -> Result<u64> {
        world::check_world()?;
        let mut slots = self.0.slots.lock()?;
        slots.shed(0)
    }
}

impl Drop for ContiguousKv {
    fn drop(&mut self) {
        super::leave_keeper(&self.0);
    }
}

impl Tensor {
    fn bytes(&self, tokens: u32) -> u64 {
        if tokens == 0 { 0 } else { u64::from(tokens) * self.token_bytes + self.fixed }
    }
}

impl Slots {
    fn find(&self, seq: Seq) -> Result<usize> {
        let (at, generation) = (seq.raw() as u32 as usize, (seq.raw() >> 32) as u32);
        match self.all.get(at) {
            Some(slot) if slot.state == State::Open && slot.generation == generation => Ok(at),
            _ => Err(KvError::Stale.into()),
        }
    }

    fn kept(&self) -> u64 {
        self.free.iter().map(|&at| pages(&self.all[at].mapped)).sum()
    }

    /// Unmaps pages of free ranges, the one that ended first before others, until they keep at most
    /// `keep`. Answers how many went.
    fn shed(&mut self, keep: u64) -> Result<u64> {
        let mut kept = self.kept();
        let before = kept;
        for &at in &self.free {
            if kept <= keep {
                break;
            }
            kept -= self.all[at].unmap(&[])?;
        }
        Ok(before - kept)
    }
}

impl Slot {
    /// Unmaps all but `keep`. Answers the pages that went.
    fn unmap(&mut self, keep: &[Row]) -> Result<u64> {
        let rows = difference(&self.mapped, keep);
        let (done, unmapped) = self.region.unmap(&rows);
        self.mapped = difference(&self.mapped, &rows[..done]);
        match unmapped {
            // A capture, or work where pages must not go meanwhile: they wait as fences do.
            Err(error) if error.status() != Status::Busy => Err(error.into()),
            _ => Ok(pages(&rows[..done])),
        }
    }
}

impl Inner {
    /// The rows behind the first `tokens` tokens.
    fn rows(&self, tokens: u32) -> Vec<Row> {
        let row = |tensor: &Tensor| {
            let (start, end) = (tensor.offset, tensor.offset + tensor.bytes(tokens));
            let first = (start / self.granule) as u32;
            Row { first, len: end.div_ceil(self.granule) as u32 - first }
        };
        let rows: Vec<Row> = self.tensors.iter().map(row).filter(|row| row.len > 0).collect();
        union(&rows, &[])
    }

    fn ahead_of(&self, tokens: u32) -> u32 {
        tokens.saturating_add(self.config.ahead_tokens).min(self.config.max_tokens)
    }

    fn open(&self) -> Result<Seq> {
        world::check_world()?;
        let mut slots = self.slots.lock()?;
        let at = match slots.free.pop() {
            Some(at) => at,
            None if slots.all.len() < self.config.max_sequences as usize => {
                let bytes = usize::try_from(self.bytes).map_err(|_| TOO_LONG)?;
                let region = self.pool.region(bytes)?;
                slots.all.push(Slot {
                    generation: 0,
                    state: State::Free,
                    region,
                    tokens: 0,
                    mapped: Vec::new(),
                    after: 0,
                    excess: false,
                });
                slots.all.len() - 1
            }
            None => {
                return Err(MemoryError::Again("all sequences are open, or wait for their fences"));
            }
        };
        let slot = &mut slots.all[at];
        // Odd while open, so that 0 is no handle.
        slot.generation = slot.generation.wrapping_add(1) | 1;
        (slot.state, slot.tokens, slot.after, slot.excess) = (State::Open, 0, 0, false);
        Ok(Seq::from_raw(u64::from(slot.generation) << 32 | at as u64))
    }

    fn ensure(&self, batch: &[(Seq, u32)]) -> (usize, Result<()>) {
        if let Err(error) = world::check_world() {
            return (0, Err(error.into()));
        }
        let mut slots = match self.slots.lock() {
            Ok(slots) => slots,
            Err(error) => return (0, Err(error)),
        };
        let mut wants_ahead = false;
        for (done, &(seq, tokens)) in batch.iter().enumerate() {
            match self.ensure_one(&mut slots, seq, tokens) {
                Ok(ahead) => wants_ahead |= ahead,
                Err(error) => return (done, Err(error)),
            }
        }
        drop(slots);
        if wants_ahead {
            keeper::poke(self.pool.id());
        }
        (batch.len(), Ok(()))
    }

    /// Answers whether pages are to be mapped ahead.
    fn ensure_one(&self, slots: &mut Slots, seq: Seq, tokens: u32) -> Result<bool> {
        let at = slots.find(seq)?;
        if tokens < slots.all[at].tokens || tokens > self.config.max_tokens {
            return Err(KvError::OutOfRange(
                "a sequence holds no fewer tokens than before and no more than configured",
            )
            .into());
        }
        let lack = difference(&self.rows(tokens), &slots.all[at].mapped);
        if !lack.is_empty() {
            let mut mapped = slots.all[at].region.map(&lack);
            // What ended sequences keep comes before a refusal.
            if mapped.as_ref().is_err_and(is_short) && slots.shed(0)? > 0 {
                mapped = slots.all[at].region.map(&lack);
            }
            mapped?;
            slots.all[at].mapped = union(&slots.all[at].mapped, &lack);
        }
        let slot = &mut slots.all[at];
        slot.tokens = tokens;
        let ahead = self.rows(self.ahead_of(tokens));
        Ok(!difference(&ahead, &slot.mapped).is_empty())
    }

    fn truncate(&self, seq: Seq, tokens: u32, after: Fence) -> Result<()> {
        world::check_world()?;
        self.check_fence(after)?;
        let mut slots = self.slots.lock()?;
        let at = slots.find(seq)?;
        let slot = &mut slots.all[at];
        if tokens > slot.tokens {
            return Err(KvError::OutOfRange("the sequence does not have so many tokens").into());
        }
        if tokens < slot.tokens && self.tensors.iter().any(|tensor| tensor.fixed > 0) {
            return Err(KvError::Unsupported("a state cannot be taken back").into());
        }
        (slot.tokens, slot.after, slot.excess) = (tokens, slot.after.max(after), true);
        drop(slots);
        keeper::poke(self.pool.id());
        Ok(())
    }

    fn free(&self, seqs: &[Seq], after: Fence) -> Result<()> {
        world::check_world()?;
        self.check_fence(after)?;
        let mut slots = self.slots.lock()?;
        let mut found = Vec::with_capacity(seqs.len());
        for &seq in seqs {
            found.push(slots.find(seq)?);
        }
        found.sort_unstable();
        if found.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(KvError::OutOfRange("a sequence is named twice").into());
        }
        for at in found {
            let slot = &mut slots.all[at];
            (slot.state, slot.after) = (State::Leaving, slot.after.max(after));
            slot.generation = slot.generation.wrapping_add(1);
        }
        drop(slots);
        keeper::poke(self.pool.id());
        Ok(())
    }

    fn check_fence(&self, after: Fence) -> Result<()> {
        if locked(&self.fences).is_known(after) {
            return Ok(());
        }
        Err(KvError::OutOfRange("no such fence was made").into())
    }

    fn view(&self, seq: Seq, group: u32) -> Result<SeqView> {
        world::check_world()?;
        let slots = self.slots.lock()?;
        let base = slots.all[slots.find(seq)?].region.base();
        let &(first, count) = self.groups.get(group as usize).ok_or(super::NO_GROUP)?;
        let geometry = &self.config.groups[group as usize];
        let layout = strides(geometry)?;
        let layers = geometry.layers as usize;
        let apart = geometry.order == Order::LayerOuter;
        let side = |nth: usize, token: u64, head: u64| {
            let tensor = first + nth * if apart { layers } else { 1 };
            let Tensor { offset, token_bytes, fixed } = self.tensors[tensor];
            let layer_stride = match (apart, token) {
                (true, _) if layers > 1 => self.tensors[tensor + 1].offset - offset,
                (true, _) => 0,
                (false, 0) => fixed / layers as u64,
                (false, token) => token,
            };
            let address = base + offset as usize;
            Side { address, token_stride: token_bytes, layer_stride, head_stride: head }
        };
        let values = count == 2 * if apart { layers } else { 1 };
        Ok(SeqView {
            keys: side(0, layout.key_token_stride, layout.key_head_stride),
            values: values.then(|| side(1, layout.value_token_stride, layout.value_head_stride)),
        })
    }
}
