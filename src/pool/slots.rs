//! Slots between slabs, magazines and depots: refill and spill.
//!
//! Owns the policy of what a magazine may hold: capacities grow slowly within the pool's
//! budget, a refill takes slots of one word of free bits, a full magazine goes to the depot whole.
//! Runs under the core's lock. Cost: some ten ns a slot, less with the rest of its refill.

#[cfg(test)]
mod tests;

use super::cache::{LaneCache, READY_SOME, SOME, capacity_max, capacity_min};
use super::core::{Batch, Core, note};
use super::ladder::Refusal;
use crate::base::units::QUANTUM_SHIFT;
use crate::heap::NodeId;
use crate::slab::Round;
use crate::slab::class::slot_bytes;
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
        if cache.refill(class)
            && let Some(round) = cache.pop(class)
        {
            return Ok(round);
        }
        if cache.id as LaneId == self.sync {
            if cache.ready.0 < cache.ready.1 {
                self.recycle_ready(cache, READY_SOME);
            } else if cache.since_look >= (cache.open_due / 4).max(16) {
                self.turn(cache, false);
            }
            if let Some(round) = cache.pop(class) {
                return Ok(round);
            }
        }
        self.slot_from_slabs(cache, class)
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
        let (mut quanta, least) = self.slabs.wanted(lane, class);
        loop {
            let placed = self.place(quanta, 1, cache);
            // Placement may have flushed caches into slabs; those come first.
            if let Some(round) = self.take_from_partial(cache, class) {
                if let Ok(node) = placed {
                    self.unplace(node, lane);
                }
                return Ok(round);
            }
            let refusal = match placed.and_then(|node| self.open_slab(node, lane, class)) {
                Ok(()) => {
                    let round = self.take_from_partial(cache, class);
                    return Ok(round.expect("a new slab has slots"));
                }
                Err(refusal) => refusal,
            };
            quanta = match refusal {
                Refusal::Short { .. } if quanta > least => least,
                // A shorter slab needs a shorter range of the tables.
                Refusal::AddressSpace if quanta > least => (quanta / 2).max(least),
                _ => return Err(refusal),
            };
        }
    }

    pub(super) fn open_slab(
        &mut self,
        node: NodeId,
        lane: LaneId,
        class: usize,
    ) -> std::result::Result<(), Refusal> {
        let (off, len, _) = self.heap.block(node);
        match self.slabs.open(&mut self.marks, node, (off, len), lane, class) {
            Some(_) => {
                if self.lanes.is_capture(lane) || self.tagged.is_lane(lane) {
                    (off..off + len).for_each(|quantum| self.marks.hold(quantum));
                }
                Ok(())
            }
            None => {
                self.unplace(node, lane);
                Err(Refusal::AddressSpace)
            }
        }
    }

    /// Gives up a block just placed for `lane` and not used. It may hold pieces that `lane`'s
    /// own work was still to finish with, so for others it is not clean.
    fn unplace(&mut self, node: NodeId, lane: LaneId) {
        let (_, len, _) = self.heap.block(node);
        let stamp = match lane {
            // It was given passed pieces only.
            lane if lane == self.sync || self.tagged.is_lane(lane) => Stamp::CLEAN,
            lane => self.lanes.stamp(lane, u64::from(len) << QUANTUM_SHIFT),
        };
        self.heap.free(node, stamp, &self.lanes);
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

    /// Raises a magazine's capacity, slowly at first, while the pool's budget allows and it
    /// is not short of memory.
    pub(super) fn grow_cap(&mut self, cache: &mut LaneCache, class: usize) {
        let full_grown = cache.mags[class].cap >= capacity_max(class);
        if full_grown || self.caches_nothing() || self.pressed() {
            return;
        }
        let most = self.most_rounds(cache, class);
        let cap = cache.mags[class].cap;
        if cap >= most {
            return;
        }
        let next = (cap * 2).clamp(capacity_min(class).min(most), most);
        // Of a class's two magazines one is full on average; that is what counts.
        let more = u64::from(next - cap) * slot_bytes(class) as u64;
        if self.budget.take(more) {
            cache.granted += more;
            cache.set_cap(class, next);
        }
    }

    /// The most rounds for a magazine of `class` after one more miss: what it may hold at all;
    /// of slots above 4 KiB, a share of those that the lane has in use, or what the class's
    /// misses have earned. A cached slot keeps its slab in the way of larger blocks, so a
    /// class that is seldom asked for costs more memory than its misses cost time.
    fn most_rounds(&self, cache: &mut LaneCache, class: usize) -> u32 {
        const SMALL: usize = 4 << 10;
        const SHARE: u64 = 4;
        const MISSES_A_ROUND: u32 = 1024;
        let most = capacity_max(class);
        if slot_bytes(class) <= SMALL {
            return most;
        }
        let misses = &mut cache.prev[class].misses;
        *misses = misses.saturating_add(1);
        let earned = *misses / MISSES_A_ROUND;
        let share = self.slabs.out(cache.id as LaneId, class) / SHARE;
        most.min(u32::try_from(share).unwrap_or(most).max(earned))
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
                if cache.spill(class) {
                    cache.push(class, round);
                    return;
                }
                // A magazine from the depot may hold more than this thread's may.
                while cache.prev[class].len >= cache.mags[class].cap {
                    let (rounds, count) = cache.take_behind(class, SOME);
                    self.give_back(cache.id as LaneId, &rounds[..count]);
                }
            }
            cache.swap(class);
        }
        cache.push(class, round);
    }

    /// Puts slots that are free in `lane`'s order back into their slabs; those of other
    /// lanes' slabs wait for a fence of `lane`. The sync lane's slots are clean.
    pub fn give_back(&mut self, lane: LaneId, rounds: &[Round]) {
        let mut foreign = (0, 0);
        self.slabs.expect(rounds);
        for &round in rounds {
            let slab = self.slabs.slab(self.slabs.of(round));
            if lane == self.sync || slab.lane == lane {
                self.give(round);
                continue;
            }
            let bytes = slot_bytes(usize::from(slab.class)) as u64;
            let stamp = self.lanes.stamp(lane, bytes);
            self.put_aside(stamp, round, bytes);
            foreign = (foreign.0 + bytes, foreign.1 + 1);
        }
        if foreign.1 > 0 {
            self.fence_foreign(lane);
        }
    }

    /// Puts a slot aside until `stamp` has passed.
    pub fn wait_for(&mut self, stamp: Stamp, round: Round, bytes: u64) {
        self.put_aside(stamp, round, bytes);
        if stamp.lane != crate::stream::JOIN {
            self.fence_foreign(stamp.lane);
        }
    }

    fn put_aside(&mut self, stamp: Stamp, round: Round, bytes: u64) {
        self.pending_bytes += bytes;
        match self.pending.last_mut() {
            Some(batch) if batch.stamp == stamp => {
                batch.rounds.push(round);
                batch.bytes += bytes;
            }
            _ => self.pending.push(Batch { stamp, rounds: vec![round], bytes }),
        }
    }

    /// The streams that used a block of `lane`'s: a fence on each as soon as enough has gathered.
    /// Recorded when somebody wants the memory it has not passed then, and the pool grows instead.
    pub(super) fn fence_uses(&mut self, lane: LaneId, uses: &[LaneId]) {
        for &used in uses.iter().filter(|used| **used != lane) {
            self.fence_foreign(used);
        }
    }

    /// The same for a slot, which also waits for the lane that freed it: an extent's lane may take
    /// what its own work alone is behind, a slot goes back to its slab once all has passed.
    pub(super) fn fence_slot(&mut self, lane: LaneId, uses: &[LaneId]) {
        self.fence_foreign(lane);
        self.fence_uses(lane, uses);
    }

    /// Records a fence on a lane whose frees others wait for, when enough has gathered.
    fn fence_foreign(&mut self, lane: LaneId) {
        const FENCE_BYTES: u64 = 1 << 20;
        const FENCE_COUNT: u64 = 256;
        let (dirty, count) = self.lanes.dirty(lane);
        if dirty < FENCE_BYTES && count < FENCE_COUNT {
            return;
        }
        let recorded = self.lanes.record(&*self.driver.0, lane);
        note(recorded.map(|_| ()), "a fence could not be recorded");
        self.settle();
        if !self.pending.is_empty() && self.settings.keeper {
            super::keeper::poke(self.id);
        }
    }

    /// Puts a slot that is free for its slab's lane into its slab; closes an empty slab.
    pub(super) fn give(&mut self, round: Round) {
        if self.tagged.in_transit() && self.give_later(round) {
            return;
        }
        let Some(empty) = self.slabs.give(round) else { return };
        let bytes = u64::from(self.slabs.slab(empty).quanta) << QUANTUM_SHIFT;
        let (node, lane) = self.slabs.close(&mut self.marks, empty);
        let clean = [self.sync, self.orphans].contains(&lane) || self.tagged.is_lane(lane);
        let stamp = if clean { Stamp::CLEAN } else { self.lanes.stamp(lane, bytes) };
        self.return_block(node, stamp);
    }
}
