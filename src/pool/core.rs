//! The locked heart of a pool: everything that the hot path does not need.
//!
//! Owns the rooms below and composes them: refill and spill of magazines, slabs opened and
//! closed, frees that wait for fences, the side table of special blocks. All methods run under
//! the core's lock. None calls back into user code, none waits for the device.
//!
//! Promises: a failing driver call leaves every live block as it was; a slot or piece is
//! handed to a lane only when its stamp allows it (room `stream`).

use super::Settings;
use super::cache::{BATCH_MAX, LaneCache, View};
use super::hot::SYNC_STREAM;
use super::ladder::Refusal;
use crate::base::sync::atomic::Ordering;
use crate::base::units::{QUANTUM, QUANTUM_SHIFT, UNIT_SHIFT};
use crate::driver::{Driver, DriverResult};
use crate::error::{Error, Result, Status};
use crate::heap::{Heap, NodeId};
use crate::slab::Round;
use crate::slab::class::{CLASS_END, SLOT_MAX, slot_bytes};
use crate::slab::depot::{Depot, Full, ROUNDS_MAX};
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
    pub(super) settings: Settings,
    pub(super) vmem: Vmem,
    pub(super) heap: Heap,
    pub(super) slabs: Slabs,
    pub(super) marks: Marks,
    pub(super) lanes: Lanes,
    pub(super) depots: Vec<Option<Box<Depot>>>,
    pub(super) depot_bytes: u64,
    pub(super) pending: Vec<Batch>,
    pub(super) pending_bytes: u64,
    pub(super) caches: Vec<CacheRef>,
    pub(super) sync: LaneId,
    pub(super) orphans: LaneId,
    pub(super) retired: Vec<LaneId>,
    pub(super) side: HashMap<usize, Side>,
    pub(super) granted: u64,
    pub(super) totals: Totals,
    pub(super) captures: HashMap<u64, super::control::Capture>,
    pub(super) idle_since: Option<Instant>,
    /// Test hook: stamps count as passed. Never set outside tests.
    pub(super) ignore_stamps: bool,
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
    /// The driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver.0
    }

    /// What a lane cache copies from this pool.
    pub fn view(&self, lane: LaneId) -> View {
        let (descriptors, marks) = self.marks.pointers();
        let first = self.vmem.spaces()[0];
        View { base: first.base, len: first.bytes, descriptors, marks, lane }
    }

    /// The address of a quantum.
    pub fn address(&self, quantum: u32) -> usize {
        let per = self.heap.per_granule();
        self.vmem.address(quantum / per) + (quantum % per) as usize * QUANTUM
    }

    /// The quantum of an address and the offset inside it, if the pool covers it.
    pub fn quantum(&self, address: usize) -> Option<(u32, usize)> {
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
    fn cacheable(&self, quantum: u32) -> bool {
        u64::from(quantum) << QUANTUM_SHIFT < self.vmem.spaces()[0].bytes as u64
    }

    /// The lane for a key, opened if need be. `stream` is what the key stands for.
    pub fn lane(&mut self, key: u64, stream: u64) -> Result<LaneId> {
        if stream == SYNC_STREAM {
            return Ok(self.sync);
        }
        if let Some(lane) = self.lanes.find(key) {
            return Ok(lane);
        }
        // 1 is the legacy default stream by another name.
        let handle = crate::driver::StreamHandle(if stream == 1 { 0 } else { stream });
        if stream >> super::HANDLE_SHIFT != 0 || self.driver.0.stream_check(handle).is_err() {
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

    // ---- slots out -------------------------------------------------------------------

    /// One slot of `class` for `cache`'s lane, refilling its magazine on the way.
    pub fn take_slot(
        &mut self,
        cache: &mut LaneCache,
        class: usize,
    ) -> std::result::Result<Round, Refusal> {
        if let Some(round) = cache.pop(class) {
            return Ok(round);
        }
        if cache.prev[class].len > 0 {
            cache.swap(class);
            return Ok(cache.pop(class).expect("the magazine behind was not empty"));
        }
        self.grow_cap(cache, class);
        if let Some(full) = self.depot(cache.id as LaneId).and_then(|d| d.pop(class)) {
            let bytes = (full.rounds().len() * slot_bytes(class)) as u64;
            self.depot_bytes -= bytes;
            if let Some(round) = self.load(cache, class, full) {
                return Ok(round);
            }
        }
        if cache.id as LaneId == self.sync && cache.since_look >= (cache.open_max / 4).max(16) {
            self.turn(cache, false);
            if let Some(round) = cache.pop(class) {
                return Ok(round);
            }
        }
        self.slot_from_slabs(cache, class)
    }

    /// Puts a full magazine's rounds into the cache's, as many as its capacity holds; the
    /// rest goes back. Answers one of them.
    fn load(&mut self, cache: &mut LaneCache, class: usize, full: Full) -> Option<Round> {
        let (&first, rest) = full.rounds().split_first()?;
        let room = cache.mags[class].cap as usize;
        let (keep, back) = rest.split_at(rest.len().min(room));
        for &round in keep {
            cache.push(class, round);
        }
        if !back.is_empty() {
            let back = back.to_vec();
            self.give_back(cache.id as LaneId, &back);
        }
        Some(first)
    }

    fn slot_from_slabs(
        &mut self,
        cache: &mut LaneCache,
        class: usize,
    ) -> std::result::Result<Round, Refusal> {
        let lane = cache.id as LaneId;
        if let Some(round) = self.take_from_partial(cache, class) {
            return Ok(round);
        }
        if self.lanes.is_capture(lane) {
            // A capture keeps its memory to itself: no orphans.
        } else if self.slabs.adopt(&self.marks, self.orphans, lane, class)
            && let Some(round) = self.take_from_partial(cache, class)
        {
            return Ok(round);
        }
        let (wanted, least) = self.slabs.wanted(lane, class);
        let placed = match self.place(wanted, 1, cache) {
            Err(Refusal::Short { .. }) if wanted > least => self.place(least, 1, cache),
            other => other,
        };
        // Placement may have flushed caches into slabs; those come first.
        if let Some(round) = self.take_from_partial(cache, class) {
            if let Ok(node) = placed {
                self.heap.free(node, Stamp::CLEAN, &self.lanes);
            }
            return Ok(round);
        }
        let node = placed?;
        self.open_slab(node, lane, class)?;
        Ok(self.take_from_partial(cache, class).expect("a new slab has slots"))
    }

    fn open_slab(
        &mut self,
        node: NodeId,
        lane: LaneId,
        class: usize,
    ) -> std::result::Result<(), Refusal> {
        let (off, len, _) = self.heap.block(node);
        match self.slabs.open(&mut self.marks, node, (off, len), lane, class) {
            Some(_) => Ok(()),
            None => {
                self.heap.free(node, Stamp::CLEAN, &self.lanes);
                Err(Refusal::AddressSpace)
            }
        }
    }

    /// A slot of the lowest partial slab, with more for the magazine while at it.
    fn take_from_partial(&mut self, cache: &mut LaneCache, class: usize) -> Option<Round> {
        let lane = cache.id as LaneId;
        let cap = cache.mags[class].cap as usize;
        let cacheable = self.slabs.first_partial(lane, class).is_some_and(|q| self.cacheable(q));
        let want = if cacheable { cap.max(1) } else { 1 };
        let mut first = None;
        self.slabs.take(lane, class, want, |round| match first {
            None => first = Some(round),
            Some(_) => cache.push(class, round),
        });
        first
    }

    /// Raises a magazine's capacity, slowly at first, while the pool's budget allows.
    fn grow_cap(&mut self, cache: &mut LaneCache, class: usize) {
        if self.settings.watches_blocks() {
            return;
        }
        const MAGAZINE_BYTES: usize = 256 << 10;
        let slot = slot_bytes(class);
        let most = (MAGAZINE_BYTES / slot).clamp(2, ROUNDS_MAX) as u32;
        let cap = cache.mags[class].cap;
        if cap >= most {
            return;
        }
        let next = (cap * 2).clamp(4.min(most), most);
        // Two magazines a class.
        let more = u64::from(next - cap) * slot as u64 * 2;
        if self.granted + more > self.settings.cache / 4 * 3 {
            return;
        }
        self.granted += more;
        cache.granted += more;
        cache.set_cap(class, next);
    }

    // ---- slots back ------------------------------------------------------------------

    /// Keeps a slot that `cache`'s lane freed: in its magazine, the depot, or its slab.
    pub fn keep_slot(&mut self, cache: &mut LaneCache, class: usize, round: Round) {
        if !self.cacheable(round.quantum()) {
            self.give_back(cache.id as LaneId, &[round]);
            return;
        }
        if cache.mags[class].len >= cache.mags[class].cap {
            self.grow_cap(cache, class);
        }
        if cache.mags[class].len >= cache.mags[class].cap {
            if cache.mags[class].cap == 0 {
                self.give_back(cache.id as LaneId, &[round]);
                return;
            }
            if cache.prev[class].len > 0 {
                let rounds = cache.take_prev(class);
                self.spill(cache.id as LaneId, class, &rounds);
            }
            cache.swap(class);
        }
        cache.push(class, round);
    }

    /// Keeps a full magazine in the depot, or gives its slots back when that is full.
    fn spill(&mut self, lane: LaneId, class: usize, rounds: &[Round]) {
        const DEPOT_CLASS_BYTES: u64 = 4 << 20;
        let bytes = (rounds.len() * slot_bytes(class)) as u64;
        let budget = self.settings.cache / 8;
        let depot = self.depot_mut(lane);
        if depot.class_bytes(class) + bytes <= DEPOT_CLASS_BYTES
            && self.depot_bytes + bytes <= budget
        {
            let array = Box::new([Round(0); ROUNDS_MAX]);
            self.depot_mut(lane).push(class, Full::new(rounds, array));
            self.depot_bytes += bytes;
            return;
        }
        self.give_back(lane, rounds);
    }

    fn depot(&mut self, lane: LaneId) -> Option<&mut Depot> {
        self.depots.get_mut(lane as usize)?.as_deref_mut()
    }

    fn depot_mut(&mut self, lane: LaneId) -> &mut Depot {
        let index = lane as usize;
        if self.depots.len() <= index {
            self.depots.resize_with(index + 1, || None);
        }
        self.depots[index].get_or_insert_with(Box::default)
    }

    /// Puts slots that are free in `lane`'s order back into their slabs; those of other
    /// lanes' slabs wait for a fence of `lane`. The sync lane's slots are clean.
    pub fn give_back(&mut self, lane: LaneId, rounds: &[Round]) {
        for &round in rounds {
            let slab = self.slabs.at(round.quantum()).expect("a slot lies in a slab");
            let owner = self.slabs.slab(slab).lane;
            let bytes = slot_bytes(usize::from(self.slabs.slab(slab).class)) as u64;
            if lane == self.sync || owner == lane {
                self.give(round);
            } else {
                let stamp = self.lanes.stamp(lane, bytes);
                self.wait_for(stamp, round, bytes);
            }
        }
    }

    /// Puts a slot aside until `stamp` has passed.
    pub fn wait_for(&mut self, stamp: Stamp, round: Round, bytes: u64) {
        self.pending_bytes += bytes;
        if let Some(batch) = self.pending.last_mut()
            && batch.stamp == stamp
        {
            batch.rounds.push(round);
            batch.bytes += bytes;
        } else {
            self.pending.push(Batch { stamp, rounds: vec![round], bytes });
        }
        const FENCE_BYTES: u64 = 1 << 20;
        const FENCE_COUNT: u64 = 256;
        let (dirty, count) = match stamp.lane {
            crate::stream::JOIN => (0, 0),
            lane => self.lanes.dirty(lane),
        };
        if dirty >= FENCE_BYTES || count >= FENCE_COUNT {
            let recorded = self.lanes.record(&*self.driver.0, stamp.lane);
            note(recorded.map(|_| ()), "a fence could not be recorded");
            self.settle();
        }
    }

    /// Puts a slot that is free for its slab's lane into its slab; closes an empty slab.
    fn give(&mut self, round: Round) {
        let Some(empty) = self.slabs.give(round) else { return };
        let bytes = u64::from(self.slabs.slab(empty).quanta) << QUANTUM_SHIFT;
        let (node, lane) = self.slabs.close(&mut self.marks, empty);
        let stamp = if lane == self.sync || lane == self.orphans {
            Stamp::CLEAN
        } else {
            self.lanes.stamp(lane, bytes)
        };
        self.heap.free(node, stamp, &self.lanes);
    }

    // ---- fences ----------------------------------------------------------------------

    /// Looks which fences have passed, and gives back what waited for them. Answers whether
    /// anything became free.
    pub fn settle(&mut self) -> bool {
        let settled = self.lanes.settle(&*self.driver.0);
        let any = settled.unwrap_or_else(|error| {
            tracing::warn!(%error, "a fence could not be queried");
            false
        });
        self.release_passed() | any
    }

    /// Gives back pending slots whose stamps have passed.
    pub fn release_passed(&mut self) -> bool {
        let mut any = false;
        let mut i = 0;
        while i < self.pending.len() {
            if !self.lanes.passed(self.pending[i].stamp) {
                i += 1;
                continue;
            }
            let batch = self.pending.remove(i);
            self.pending_bytes -= batch.bytes;
            for round in batch.rounds {
                self.give(round);
            }
            any = true;
        }
        self.reassign_retired();
        any
    }

    /// Slabs of ended lanes become orphans: any lane may adopt them.
    fn reassign_retired(&mut self) {
        let mut i = 0;
        while i < self.retired.len() {
            let lane = self.retired[i];
            if self.lanes.settled(lane) {
                self.retired.swap_remove(i);
                self.slabs.reassign(&self.marks, lane, self.orphans);
                self.lanes.reuse(lane);
            } else {
                i += 1;
            }
        }
    }

    /// Closes the sync lane's open batch when it is due (or `force`d) behind a fence, and puts
    /// slots of passed batches into the magazines. The batch's length follows the measured
    /// cost of a fence: 8 ns a free at most, 32 to 4,096 frees.
    pub fn turn(&mut self, cache: &mut LaneCache, force: bool) {
        const TAX_NS: f64 = 8.0;
        cache.since_look = 0;
        let open_bytes = cache.open_bytes.load(Ordering::Relaxed);
        let due = cache.open >= cache.open_max || open_bytes >= cache.open_bytes_max;
        if cache.open > 0 && (due || force) {
            let start = Instant::now();
            self.close_batch(cache);
            let settled = self.lanes.settle_lane(&*self.driver.0, self.sync);
            note(settled.map(|_| ()), "a fence could not be queried");
            let spent = start.elapsed().as_nanos() as f64;
            let waiting = cache.waiting();
            waiting.cost_ns += (spent - waiting.cost_ns) / 8.0;
            cache.open_max = ((waiting.cost_ns / TAX_NS) as u32).clamp(32, BATCH_MAX as u32);
        } else {
            let settled = self.lanes.settle_lane(&*self.driver.0, self.sync);
            note(settled.map(|_| ()), "a fence could not be queried");
        }
        self.drain_waiting(cache);
    }

    fn close_batch(&mut self, cache: &mut LaneCache) {
        let bytes = cache.open_bytes.load(Ordering::Relaxed);
        let rounds = cache.take_open();
        let stamp = self.lanes.stamp(self.sync, bytes);
        let waiting = cache.waiting();
        waiting.batches.push_back((rounds.len() as u32, stamp.seq));
        waiting.bytes += bytes;
        waiting.rounds.extend(rounds);
        let recorded = self.lanes.record(&*self.driver.0, self.sync);
        note(recorded.map(|_| ()), "a fence could not be recorded");
    }

    /// Moves slots of passed batches into the cache's magazines.
    fn drain_waiting(&mut self, cache: &mut LaneCache) {
        if cache.waiting.is_null() {
            return;
        }
        while let Some(&(count, seq)) = cache.waiting().batches.front() {
            if !self.lanes.passed(Stamp { lane: self.sync, seq }) {
                return;
            }
            cache.waiting().batches.pop_front();
            for _ in 0..count {
                let round = cache.waiting().rounds.pop_front().expect("batches count rounds");
                let class = self.class_at(round);
                cache.waiting().bytes -= slot_bytes(class) as u64;
                self.keep_slot(cache, class, round);
            }
        }
    }

    /// The class of a slot.
    pub fn class_at(&self, round: Round) -> usize {
        match self.marks.get(round.quantum()) {
            Descriptor::Slab { class, .. } => class,
            _ => unreachable!("a round names a slot of an open slab"),
        }
    }

    // ---- emptying caches -------------------------------------------------------------

    /// Gives back every slot of a cache; its open and closed batches of frees become the
    /// pool's to wait for. Answers whether there was anything.
    pub fn flush_cache(&mut self, cache: &mut LaneCache) -> bool {
        let lane = cache.id as LaneId;
        let mut any = false;
        for class in 1..CLASS_END {
            let rounds = cache.take_all(class);
            any |= !rounds.is_empty();
            self.give_back(lane, &rounds);
        }
        if lane != self.sync {
            return any;
        }
        if cache.open > 0 {
            self.close_batch(cache);
        }
        if cache.waiting.is_null() {
            return any;
        }
        while let Some((count, seq)) = cache.waiting().batches.pop_front() {
            any = true;
            let stamp = Stamp { lane, seq };
            for _ in 0..count {
                let round = cache.waiting().rounds.pop_front().expect("batches count rounds");
                let bytes = slot_bytes(self.class_at(round)) as u64;
                cache.waiting().bytes -= bytes;
                self.pending_bytes += bytes;
                match self.pending.last_mut() {
                    Some(batch) if batch.stamp == stamp => {
                        batch.rounds.push(round);
                        batch.bytes += bytes;
                    }
                    _ => self.pending.push(Batch { stamp, rounds: vec![round], bytes }),
                }
            }
        }
        any
    }

    /// Takes a cache's grants away; its capacities are 0 until they grow again.
    pub fn revoke_grants(&mut self, cache: &mut LaneCache) {
        self.granted -= cache.granted;
        cache.granted = 0;
        for class in 1..CLASS_END {
            cache.set_cap(class, 0);
        }
    }

    /// Gives back every slot of every depot. Answers whether there was anything.
    pub fn flush_depots(&mut self) -> bool {
        let mut any = false;
        for lane in 0..self.depots.len() {
            let Some(depot) = self.depots[lane].as_deref_mut() else { continue };
            let full = depot.drain();
            any |= !full.is_empty();
            for magazine in full {
                self.give_back(lane as LaneId, magazine.rounds());
            }
        }
        self.depot_bytes = 0;
        any
    }

    /// Ends a cache's membership: flushed, its counters kept by the pool.
    pub fn remove_cache(&mut self, cache: &mut LaneCache) {
        use Ordering::Relaxed;
        self.flush_cache(cache);
        self.revoke_grants(cache);
        for class in 1..CLASS_END {
            let mag = &cache.mags[class];
            let (allocs, frees) = (mag.allocs.load(Relaxed), mag.frees.load(Relaxed));
            self.totals.slot_allocs += allocs;
            self.totals.slot_frees += frees;
            let net = allocs.wrapping_sub(frees) as i64;
            self.totals.slot_live_bytes += net * slot_bytes(class) as i64;
        }
        self.totals.slot_requested += cache.requested.load(Relaxed);
        let me: *mut LaneCache = cache;
        self.caches.retain(|c| c.0 != me);
    }

    // ---- extents ---------------------------------------------------------------------

    /// Takes an extent for `cache`'s lane. Answers its address.
    pub fn take_extent(
        &mut self,
        cache: &mut LaneCache,
        bytes: usize,
        align: usize,
        tag: u8,
    ) -> std::result::Result<usize, Refusal> {
        let quanta = bytes.div_ceil(QUANTUM);
        let align = (align / QUANTUM).max(1) as u32;
        let Ok(quanta) = u32::try_from(quanta) else { return Err(Refusal::AddressSpace) };
        let node = self.place(quanta, align, cache)?;
        let (off, _, _) = self.heap.block(node);
        self.heap.set_word(node, Extent { tag, lane: cache.id as u16, bytes }.word());
        self.marks.set(off, Descriptor::Extent { node });
        let rounded = u64::from(quanta) << QUANTUM_SHIFT;
        self.totals.extent_allocs += 1;
        self.totals.extent_live += 1;
        self.totals.extent_live_bytes += rounded;
        self.totals.extent_requested += bytes as u64;
        self.totals.extent_requested_total += bytes as u64;
        Ok(self.address(off))
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
        self.heap.free(node, stamp, &self.lanes);
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
        if uses.is_empty() && (owner == lane || !self.lanes.is_capture(owner)) {
            return self.lanes.stamp(lane, bytes);
        }
        let mut stamps = vec![self.lanes.stamp(lane, bytes)];
        if owner != lane && self.lanes.is_capture(owner) {
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
    /// Requested bytes (below 2^40).
    pub bytes: usize,
}

impl Extent {
    /// Packs it.
    pub fn word(self) -> u64 {
        debug_assert!((self.bytes as u64) < 1 << 40);
        u64::from(self.tag) | u64::from(self.lane) << 8 | (self.bytes as u64) << 24
    }

    /// Unpacks it.
    pub fn from_word(word: u64) -> Extent {
        Extent { tag: word as u8, lane: (word >> 8) as LaneId, bytes: (word >> 24) as usize }
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

/// The error for a stream that the device does not know.
#[cold]
pub fn unknown_stream(stream: u64) -> Error {
    Error::new(
        Status::InvalidStream,
        format!("stream {stream:#x} is not a stream of this pool's device, or was destroyed"),
    )
}
