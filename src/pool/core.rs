//! The locked heart of a pool: everything that the hot path does not need.
//!
//! Owns the rooms below and composes them: refill and spill of magazines, slabs opened and
//! closed, frees that wait for fences, the side table of special blocks. All methods run under
//! the core's lock. None calls back into user code, none waits for the device.
//!
//! Promises: a failing driver call leaves every live block as it was; a slot or piece is
//! handed to a lane only when its stamp allows it (room `stream`).

use super::Settings;
use super::cache::{LaneCache, View};
use super::hot::SYNC_STREAM;
use super::ladder::{Fit, Refusal};
use crate::base::sync::SpinLock;
use crate::base::units::{QUANTUM, QUANTUM_SHIFT, UNIT_SHIFT};
use crate::driver::fuse::Fuse;
use crate::driver::{Driver, DriverResult};
use crate::error::{Error, Result, Status};
use crate::heap::{Heap, NodeId};
use crate::slab::Round;
use crate::slab::class::SLOT_MAX;
use crate::slab::depot::{Budget, Depot};
use crate::slab::marks::{Descriptor, Marks};
use crate::slab::slabs::Slabs;
use crate::stream::{LaneId, LaneKind, Lanes, Stamp};
use crate::vmem::Vmem;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Slots freed on a lane that their slab does not belong to, behind that lane's fence.
#[derive(Debug)]
pub struct Batch {
    /// What they wait for.
    pub stamp: Stamp,
    /// The slots.
    pub rounds: Vec<Round>,
    /// Their bytes.
    pub bytes: u64,
}

/// What is known of a special block beyond its mark.
#[derive(Debug, Default)]
pub struct Side {
    /// Lanes whose work uses the block too.
    pub uses: Vec<LaneId>,
    /// Pins that hold its granules: count.
    pub pins: u32,
    /// Debug record.
    pub record: Option<super::report::Record>,
    /// The block is a plan block, which hands out addresses of its own: a free of it is refused.
    pub plan_block: bool,
}

/// A lane cache of this pool, wherever its thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRef(pub *mut LaneCache);
// SAFETY: a name only; touching the cache follows the rules of room `cache`.
unsafe impl Send for CacheRef {}

/// Counters of what ended threads and extents did.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "plain counters, named for what they count")]
pub struct Totals {
    pub slot_allocs: u64,
    pub slot_frees: u64,
    pub slot_live_bytes: i64,
    pub slot_requested: u64,
    pub extent_allocs: u64,
    pub extent_frees: u64,
    pub extent_live: u64,
    pub extent_live_bytes: u64,
    pub extent_requested: u64,
    pub extent_requested_total: u64,
    pub gathers: u64,
    pub pages_moved: u64,
    pub out_of_memory: u64,
    pub peak_pages: usize,
    pub peak_live_bytes: u64,
}

/// The heart of a pool.
#[derive(Debug)]
pub struct Core {
    /// The pool's number.
    pub id: u64,
    pub(super) driver: DriverRef,
    /// The same driver, as what tells that its context is gone.
    pub(super) fuse: Arc<Fuse>,
    pub(super) settings: Settings,
    pub(super) vmem: Vmem,
    pub(super) heap: Heap,
    pub(super) slabs: Slabs,
    pub(super) marks: Marks,
    pub(super) lanes: Lanes,
    pub(super) depots: Vec<Option<Arc<SpinLock<Depot>>>>,
    pub(super) budget: Arc<Budget>,
    pub(super) pending: Vec<Batch>,
    pub(super) pending_bytes: u64,
    pub(super) caches: Vec<CacheRef>,
    pub(super) sync: LaneId,
    pub(super) orphans: LaneId,
    pub(super) retired: Vec<LaneId>,
    pub(super) side: HashMap<usize, Side>,
    /// What the driver calls the stream of a lane, to know it from a later one with its handle;
    /// kept with `FOREBAY_DEBUG=streams` only.
    pub(super) stream_ids: HashMap<LaneId, u64>,
    pub(super) totals: Totals,
    pub(super) captures: HashMap<u64, super::capture::Capture>,
    /// Open captures on other devices that fences would disturb.
    pub(super) foreign_captures: Vec<u64>,
    pub(super) shares: super::share::Shares,
    pub(super) unwiped: Vec<super::wipes::Unwiped>,
    pub(super) demand: super::ahead::Demand,
    pub(super) tagged: super::tagged::Tagged,
    /// Allocations that took the lock, and how many there were when caches were last emptied.
    pub(super) misses: u64,
    pub(super) flushed_at: u64,
    /// And when the pool was last at its limit with no run that fits.
    pub(super) pressed_at: u64,
    pub(super) idle_since: Option<Instant>,
    /// Who writes down what is asked, while a recording is open.
    pub(super) recorder: Option<Box<super::record::Recorder>>,
    /// Part of the memory has gone back to the driver: no call but the end's repetition.
    pub(super) ending: bool,
}

/// The driver, printable.
#[derive(Clone)]
pub struct DriverRef(pub Arc<dyn Driver>);
impl std::fmt::Debug for DriverRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.backend())
    }
}

impl Core {
    /// See [`Lanes::ignore_stamps`]. For tests.
    pub fn ignore_stamps(&mut self) {
        self.lanes.ignore_stamps();
    }

    /// Checks the heap's invariants. For tests; panics with what is wrong.
    pub fn check(&self) {
        self.heap.check();
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver.0
    }

    /// What a lane cache copies from this pool.
    pub fn view(&mut self, lane: LaneId) -> View {
        let (descriptors, marks) = self.marks.pointers();
        let first = self.vmem.spaces()[0];
        let depot: *const SpinLock<Depot> = self.depot(lane);
        let budget: *const Budget = &*self.budget;
        let captive = self.lanes.is_capture(lane);
        let (base, len) = (first.base, first.bytes);
        View { base, len, descriptors, marks, lane, captive, depot, budget }
    }

    fn depot(&mut self, lane: LaneId) -> &SpinLock<Depot> {
        let index = lane as usize;
        if self.depots.len() <= index {
            self.depots.resize_with(index + 1, || None);
        }
        self.depots[index].get_or_insert_with(|| Arc::new(SpinLock::new(Depot::default())))
    }

    /// The address of a quantum.
    #[inline]
    pub fn address(&self, quantum: u32) -> usize {
        let offset = (quantum as usize) << QUANTUM_SHIFT;
        let first = &self.vmem.spaces()[0];
        if offset < first.bytes {
            return first.base + offset;
        }
        let per = self.heap.per_granule();
        self.vmem.address(quantum / per) + (quantum % per) as usize * QUANTUM
    }

    /// The quantum of an address and the offset inside it, if the pool covers it.
    #[inline]
    pub fn quantum(&self, address: usize) -> Option<(u32, usize)> {
        let first = &self.vmem.spaces()[0];
        let offset = address.wrapping_sub(first.base);
        if offset < first.bytes {
            return Some(((offset >> QUANTUM_SHIFT) as u32, offset & (QUANTUM - 1)));
        }
        let space = self.vmem.find(address)?;
        let offset = address - space.base;
        let first = space.first * self.heap.per_granule();
        Some((first + (offset >> QUANTUM_SHIFT) as u32, offset & (QUANTUM - 1)))
    }

    /// The address of a slot.
    pub fn slot_address(&self, round: Round) -> usize {
        let in_quantum = ((round.unit() & 63) as usize) << UNIT_SHIFT;
        self.address(round.quantum()) + in_quantum
    }

    /// Whether magazines may hold slots of this quantum: only the first reservation's, whose
    /// addresses the hot path can form.
    pub(super) fn cacheable(&self, quantum: u32) -> bool {
        u64::from(quantum) << QUANTUM_SHIFT < self.vmem.spaces()[0].bytes as u64
    }

    /// The lane for a key, opened if need be. `stream` is what the key stands for.
    pub fn lane(&mut self, key: u64, stream: u64) -> Result<LaneId> {
        if stream == SYNC_STREAM {
            return Ok(self.sync);
        }
        // First: with such a value the key may be that of another lane.
        check_stream(stream)?;
        if let Some(lane) = self.lanes.find(key) {
            return Ok(lane);
        }
        // 1 is the legacy default stream by another name.
        let handle = crate::driver::StreamHandle(if stream == 1 { 0 } else { stream });
        self.check_context()?;
        if self.driver.0.stream_check(handle).is_err() {
            return Err(unknown_stream(stream));
        }
        self.lanes.open(key, LaneKind::Stream(handle)).ok_or_else(|| {
            Error::new(
                Status::Busy,
                "4,094 streams have a lane in this pool; call forebay_stream_retire for \
                 streams that are destroyed",
            )
        })
    }
    // ---- extents ---------------------------------------------------------------------

    /// Takes an extent for `cache`'s lane. Answers its address.
    pub fn take_extent(
        &mut self,
        cache: &mut LaneCache,
        bytes: usize,
        align: usize,
        tag: u8,
        fit: Fit,
    ) -> std::result::Result<usize, Refusal> {
        let quanta = bytes.div_ceil(QUANTUM);
        let granule = self.vmem.granule();
        let guarded = self.settings.debug.guard && align <= QUANTUM;
        let whole = fit == Fit::Granules && (quanta * QUANTUM).is_multiple_of(granule);
        let align = if whole { align.max(granule) } else { align };
        let align = (align / QUANTUM).max(1) as u32;
        let Ok(quanta) = u32::try_from(quanta) else { return Err(Refusal::AddressSpace) };
        let node =
            if guarded { self.place_guarded(quanta)? } else { self.place(quanta, align, cache)? };
        Ok(self.begin_extent(node, cache.id as LaneId, bytes, tag))
    }

    /// Makes a block just placed an extent; answers its address.
    pub(super) fn begin_extent(
        &mut self,
        node: NodeId,
        lane: LaneId,
        bytes: usize,
        tag: u8,
    ) -> usize {
        let (off, quanta, _) = self.heap.block(node);
        let captive = self.lanes.is_capture(lane);
        self.heap.set_word(node, Extent { tag, lane, captive, bytes }.word());
        self.marks.set(off, Descriptor::Extent { node });
        let rounded = u64::from(quanta) << QUANTUM_SHIFT;
        self.totals.extent_allocs += 1;
        self.totals.extent_live += 1;
        self.totals.extent_live_bytes += rounded;
        self.totals.extent_requested += bytes as u64;
        self.totals.extent_requested_total += bytes as u64;
        self.address(off)
    }

    /// Frees the extent at `node` with `stamp`.
    pub fn free_extent(&mut self, node: NodeId, stamp: Stamp) {
        let (off, len, _) = self.heap.block(node);
        let extent = Extent::from_word(self.heap.word(node));
        self.marks.set(off, Descriptor::None);
        self.totals.extent_frees += 1;
        self.totals.extent_live -= 1;
        self.totals.extent_live_bytes -= u64::from(len) << QUANTUM_SHIFT;
        self.totals.extent_requested -= extent.bytes as u64;
        if !self.hold_exported(self.address(off), u64::from(len) << QUANTUM_SHIFT, stamp) {
            self.return_extent(node, stamp);
        }
    }

    /// Gives an extent that is freed and in nobody's use back to the heap.
    pub(super) fn return_extent(&mut self, node: NodeId, stamp: Stamp) {
        if self.settings.debug.guard {
            self.heap.drop_guard_above(node);
        }
        self.return_block(node, stamp);
    }

    /// Whether a block of `owner`'s freed on `lane` enters or leaves a capture: then it waits for
    /// both.
    pub fn crosses_capture(&self, lane: LaneId, owner: LaneId) -> bool {
        owner != lane && (self.lanes.is_capture(owner) || self.lanes.is_capture(lane))
    }

    /// The stamp for a block of `owner`'s freed on `lane`, used on `uses` too. A capture's
    /// memory stays its own until the capture is released.
    pub fn free_stamp(
        &mut self,
        lane: LaneId,
        owner: LaneId,
        uses: &[LaneId],
        bytes: u64,
    ) -> Stamp {
        let captive = self.crosses_capture(lane, owner);
        if uses.is_empty() && !captive {
            return self.lanes.stamp(lane, bytes);
        }
        let mut stamps = vec![self.lanes.stamp(lane, bytes)];
        if captive {
            stamps.push(self.lanes.stamp(owner, bytes));
        }
        for &used in uses {
            stamps.push(self.lanes.stamp(used, bytes));
        }
        self.lanes.join(&stamps)
    }
}

/// What an extent's word in the heap says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Tag, [`crate::slab::marks::SPECIAL`] included.
    pub tag: u8,
    /// The lane it was allocated on.
    pub lane: LaneId,
    /// Whether that was a capture's. The number alone does not tell: it may serve one later.
    pub captive: bool,
    /// Requested bytes (below 2^40).
    pub bytes: usize,
}

impl Extent {
    /// Packs it.
    pub fn word(self) -> u64 {
        debug_assert!((self.bytes as u64) < 1 << 40 && self.lane < 1 << 12);
        let lane = u64::from(self.lane) << 8 | u64::from(self.captive) << 23;
        u64::from(self.tag) | lane | (self.bytes as u64) << 24
    }

    /// Unpacks it.
    pub fn from_word(word: u64) -> Extent {
        Extent {
            tag: word as u8,
            lane: (word >> 8 & 0xfff) as LaneId,
            captive: word >> 23 & 1 != 0,
            bytes: (word >> 24) as usize,
        }
    }
}

/// The largest request that can be served at all: a word of an extent has 40 bits for it.
pub const REQUEST_MAX: usize = (1 << 40) - 1;
const _: () = assert!(SLOT_MAX < REQUEST_MAX);

/// Logs a driver call that failed where the operation goes on without it.
pub fn note(result: DriverResult<()>, what: &'static str) {
    if let Err(error) = result {
        tracing::warn!(%error, what);
    }
}

/// Fails for a value that no stream can have. A lane's key is the pool's number above 48 bits and
/// the stream below, so that one with higher bits would name other lanes.
pub fn check_stream(stream: u64) -> Result<()> {
    if stream >> super::HANDLE_SHIFT == 0 { Ok(()) } else { Err(unknown_stream(stream)) }
}

/// The error for a stream that the device does not know.
#[cold]
pub fn unknown_stream(stream: u64) -> Error {
    Error::new(
        Status::InvalidStream,
        format!("stream {stream:#x} is not a stream of this pool's device, or was destroyed"),
    )
}

/// The error for a stream whose handle is another stream's by now.
#[cold]
pub fn reused_stream(stream: u64) -> Error {
    Error::new(
        Status::InvalidStream,
        format!(
            "stream {stream:#x} was destroyed without the pool's knowledge, and its handle is \
             another stream's now: call forebay_stream_retire before a stream is destroyed"
        ),
    )
}
