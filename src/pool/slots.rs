//! Slots between slabs, magazines and depots: refill and spill.
//!
//! Owns the policy of what a magazine may hold: capacities grow slowly within the pool's
//! budget, a refill takes slots of one word of free bits, a full magazine goes to the depot whole.
//! Runs under the core's lock. Cost: some ten ns a slot, less with the rest of its refill.

use super::cache::LaneCache;
use super::core::{Batch, Core, note};
use super::ladder::Refusal;
use crate::base::units::QUANTUM_SHIFT;
use crate::heap::NodeId;
use crate::slab::Round;
use crate::slab::class::slot_bytes;
use crate::slab::depot::{Depot, Full, ROUNDS_MAX};
use crate::stream::{LaneId, Stamp};

impl Core {
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
    pub(super) fn load(
        &mut self,
        cache: &mut LaneCache,
        class: usize,
        full: Full,
    ) -> Option<Round> {
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

    pub(super) fn slot_from_slabs(
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

    pub(super) fn open_slab(
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
    pub(super) fn take_from_partial(
        &mut self,
        cache: &mut LaneCache,
        class: usize,
    ) -> Option<Round> {
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

    /// Raises a magazine's capacity, slowly at first, while its share and the pool's budget
    /// allow.
    pub(super) fn grow_cap(&mut self, cache: &mut LaneCache, class: usize) {
        if self.settings.watches_blocks() {
            return;
        }
        let slot = slot_bytes(class);
        let most = self.most_rounds(cache.id as LaneId, class);
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

    /// The most rounds for a magazine of `class`: 256 KiB of them, and of slots above 4 KiB a
    /// share of those that `lane` has in use. A cached slot keeps its slab in the way of
    /// larger blocks: a class of few slots costs more memory so than its misses cost time.
    fn most_rounds(&self, lane: LaneId, class: usize) -> u32 {
        const MAGAZINE_BYTES: usize = 256 << 10;
        const SMALL: usize = 4 << 10;
        const SHARE: u64 = 32;
        let slot = slot_bytes(class);
        let most = (MAGAZINE_BYTES / slot).clamp(2, ROUNDS_MAX) as u32;
        if slot <= SMALL {
            return most;
        }
        let share = self.slabs.out(lane, class) / SHARE;
        most.min(u32::try_from(share).unwrap_or(most))
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
    pub(super) fn spill(&mut self, lane: LaneId, class: usize, rounds: &[Round]) {
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

    pub(super) fn depot(&mut self, lane: LaneId) -> Option<&mut Depot> {
        self.depots.get_mut(lane as usize)?.as_deref_mut()
    }

    pub(super) fn depot_mut(&mut self, lane: LaneId) -> &mut Depot {
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
    pub(super) fn give(&mut self, round: Round) {
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
}
