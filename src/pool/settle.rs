//! Fences seen passed, quarantine turned, caches emptied.
//!
//! Owns what waits for fences outside the heap: batches of `cudaFree`'s meaning in the caches,
//! slots freed on foreign lanes, slabs of ended lanes. Runs under the core's lock; never waits.

#[cfg(test)]
mod tests;

use super::cache::{BATCH_MAX, BATCH_MIN, LaneCache, READY_SOME};
use super::core::{Batch, Core, note};
use crate::base::sync::atomic::Ordering;
use crate::slab::Round;
use crate::slab::class::{CLASS_END, slot_bytes};
use crate::slab::marks::Descriptor;
use crate::stream::{LaneId, Stamp};
use std::time::Instant;

impl Core {
    /// Looks which fences have passed, and gives back what waited for them. Answers whether
    /// anything became free.
    pub fn settle(&mut self) -> bool {
        if self.fuse.is_blown() {
            return false;
        }
        let settled = self.lanes.settle(&*self.driver.0);
        let any = settled.unwrap_or_else(|error| {
            tracing::warn!(%error, "a fence could not be queried");
            false
        });
        self.wipe_held();
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
        any |= self.unmap_left();
        any
    }

    /// Slabs of ended lanes become orphans: any lane may adopt them.
    pub(super) fn reassign_retired(&mut self) {
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
    /// slots of passed batches into the magazines, some at a time. The batch's length follows the
    /// measured cost of a fence: 2 ns a free at most, 128 to 4,096 frees.
    pub fn turn(&mut self, cache: &mut LaneCache, force: bool) {
        const TAX_NS: f64 = 2.0;
        cache.since_look = 0;
        let open_bytes = cache.open_bytes.load(Ordering::Relaxed);
        let due = cache.open >= cache.open_due || open_bytes >= cache.open_bytes_max;
        if cache.open == 0 || !(due || force) {
            self.settle_sync();
            self.drain_waiting(cache);
            return;
        }
        self.recycle_ready(cache, u32::MAX);
        // One fence in eight is timed: a look at the clock costs as much as a short fence.
        let turn = cache.waiting().turns;
        cache.waiting().turns = turn.wrapping_add(1);
        let start = turn.is_multiple_of(8).then(Instant::now);
        let stamp = self.lanes.stamp(self.sync, open_bytes);
        let (driver, lanes, sync) = (&*self.driver.0, &mut self.lanes, self.sync);
        driver.together(&mut || {
            let recorded = lanes.record(driver, sync);
            note(recorded.map(|_| ()), "a fence could not be recorded");
            let settled = lanes.settle_lane(driver, sync);
            note(settled.map(|_| ()), "a fence could not be queried");
        });
        let waiting = cache.waiting();
        if let Some(start) = start {
            let spent = start.elapsed().as_nanos() as u64 as f64;
            waiting.cost_ns += (spent - waiting.cost_ns) / 4.0;
        }
        cache.open_due = ((waiting.cost_ns / TAX_NS) as u32).clamp(BATCH_MIN, BATCH_MAX as u32);
        self.drain_waiting(cache);
        if cache.waiting().batches.is_empty() && self.lanes.passed(stamp) {
            cache.ready_open();
            self.recycle_ready(cache, READY_SOME);
        } else {
            cache.close_batch(stamp.seq);
        }
        cache.set_open_max();
    }

    /// What a free on the sync lane does that finds no room in the open batch: some ready slots go
    /// to the magazines, or the batch is closed. Afterwards there is room.
    pub fn make_room(&mut self, cache: &mut LaneCache) {
        let open_bytes = cache.open_bytes.load(Ordering::Relaxed);
        if cache.open >= cache.open_due || open_bytes >= cache.open_bytes_max {
            self.turn(cache, true);
        } else if cache.open >= cache.open_max {
            self.recycle_ready(cache, READY_SOME);
            cache.set_open_max();
        }
    }

    fn settle_sync(&mut self) {
        let settled = self.lanes.settle_lane(&*self.driver.0, self.sync);
        note(settled.map(|_| ()), "a fence could not be queried");
    }

    /// Puts a fence behind `bytes` freed with `cudaFree`'s meaning. Where none can be recorded
    /// now, the next one covers them.
    fn fence_batch(&mut self, bytes: u64) -> Stamp {
        let stamp = self.lanes.stamp(self.sync, bytes);
        let recorded = self.lanes.record(&*self.driver.0, self.sync);
        note(recorded.map(|_| ()), "a fence could not be recorded");
        stamp
    }

    /// Puts up to `most` slots of the batch whose fence has passed into the magazines.
    pub(super) fn recycle_ready(&mut self, cache: &mut LaneCache, most: u32) {
        for _ in 0..most {
            let Some((round, class)) = cache.next_ready() else { return };
            if cache.mags[class].len < cache.mags[class].cap && self.cacheable(round.quantum()) {
                cache.push(class, round);
            } else {
                self.keep_slot(cache, class, round);
            }
        }
    }

    /// Moves slots of passed batches into the cache's magazines.
    pub(super) fn drain_waiting(&mut self, cache: &mut LaneCache) {
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
        while let Some((round, _)) = cache.next_ready() {
            any = true;
            self.give(round);
        }
        if cache.open > 0 {
            let stamp = self.fence_batch(cache.open_bytes.load(Ordering::Relaxed));
            cache.close_batch(stamp.seq);
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
        self.budget.give(cache.granted);
        cache.granted = 0;
        for class in 1..CLASS_END {
            cache.set_cap(class, 0);
            cache.prev[class].misses = 0;
        }
    }

    /// Gives back every slot of every depot. Answers whether there was anything.
    pub fn flush_depots(&mut self) -> bool {
        (0..self.depots.len()).fold(false, |any, lane| self.flush_depot(lane as LaneId) | any)
    }

    /// Gives back every slot of a lane's depot.
    pub fn flush_depot(&mut self, lane: LaneId) -> bool {
        let Some(Some(depot)) = self.depots.get(lane as usize) else { return false };
        let mut depot = depot.lock();
        self.budget.give(depot.bytes());
        let full = depot.drain();
        drop(depot);
        for magazine in &full {
            self.give_back(lane, magazine.rounds());
        }
        !full.is_empty()
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
        // Whoever found this cache before the lock was taken must not use it after.
        cache.owner = std::ptr::null_mut();
        let me: *mut LaneCache = cache;
        self.caches.retain(|c| c.0 != me);
    }
}
