//! Placement with its driver calls: runs first, then caches emptied, then pages.
//!
//! Owns the order in which memory is looked for while the core is locked: a backed run; what
//! settled fences free; what this thread's magazines and the depots hold; pages created
//! below the limit; idle pages moved from where they are (*gather*). Promises that a driver
//! call that fails leaves live blocks as they were and loses no page: what was created or
//! unmapped stays in the stock.

use super::cache::LaneCache;
use super::core::{Core, note};
use super::keeper;
use super::ladder::Refusal;
use crate::config::Move;
use crate::driver::{Code, DriverError, DriverResult, Scope};
use crate::heap::{Effort, IdleRun, NodeId};
use crate::stream::{LaneId, LaneKind};
use std::time::{Duration, Instant};

/// Caches are emptied before the pool grows, but not again within so many misses.
const FLUSH_EVERY: u64 = 1024;

/// How long, and how often at least, a mark on the device is looked at before the device counts as
/// at work: an event on an idle GPU is done within microseconds.
const MARK_TAKES: Duration = Duration::from_micros(10);
const MARK_LOOKS: u32 = 16;

/// For so many misses after a shortage no magazine grows.
const PRESSED_FOR: u64 = 4096;

impl Core {
    /// Takes `quanta` from the heap for `cache`'s lane, mapping memory if need be.
    pub fn place(
        &mut self,
        quanta: u32,
        align: u32,
        cache: &mut LaneCache,
    ) -> std::result::Result<NodeId, Refusal> {
        self.place_for(quanta, align, cache, cache.id as LaneId)
    }

    /// [`Core::place`] for a lane that need not be `cache`'s.
    pub(super) fn place_for(
        &mut self,
        quanta: u32,
        align: u32,
        cache: &mut LaneCache,
        lane: LaneId,
    ) -> std::result::Result<NodeId, Refusal> {
        if let Some(node) = self.heap.take(quanta, align, lane, &self.lanes, Effort::Quick) {
            return Ok(node);
        }
        if self.lanes.unsettled() || !self.pending.is_empty() {
            // What is behind a fence already costs a query at most.
            if self.lanes.in_flight()
                && self.settle()
                && let Some(node) = self.heap.take(quanta, align, lane, &self.lanes, Effort::Full)
            {
                return Ok(node);
            }
            self.look_for_foreign(lane);
            if let Some(node) = self.heap.take(quanta, align, lane, &self.lanes, Effort::Full) {
                return Ok(node);
            }
        }
        if let Some(node) = self.take_behind(quanta, align, lane) {
            return Ok(node);
        }
        // Emptying caches costs; where the last time was a moment ago, a steady load wants the
        // memory for good, and caches are bounded by their budget.
        if self.misses - self.flushed_at >= FLUSH_EVERY {
            if let Some(node) = self.take_flushed(quanta, align, cache, lane) {
                return Ok(node);
            }
            if self.room() == 0 {
                self.press(cache);
            }
            return self.grow(quanta, align, lane);
        }
        if self.room() == 0 {
            self.press(cache);
        }
        match self.grow(quanta, align, lane) {
            Err(Refusal::Short { .. } | Refusal::AddressSpace) => {}
            other => return other,
        }
        match self.take_flushed(quanta, align, cache, lane) {
            Some(node) => Ok(node),
            None => self.grow(quanta, align, lane),
        }
    }

    /// The pool is at its limit and no run fits: what magazines hold stands in the way of
    /// blocks that have nowhere else to go. Their capacities start from 0 again, after a while.
    fn press(&mut self, cache: &mut LaneCache) {
        self.pressed_at = self.misses;
        self.flush_cache(cache);
        self.revoke_grants(cache);
    }

    /// Whether the pool was short a moment ago: magazines hold nothing more then.
    pub(super) fn pressed(&self) -> bool {
        self.misses - self.pressed_at < PRESSED_FOR
    }

    /// Empties this thread's cache for the lane and all depots, then looks again.
    fn take_flushed(
        &mut self,
        quanta: u32,
        align: u32,
        cache: &mut LaneCache,
        lane: LaneId,
    ) -> Option<NodeId> {
        self.flushed_at = self.misses;
        let flushed = self.flush_cache(cache) | self.flush_depots();
        if !flushed {
            return None;
        }
        self.settle();
        self.heap.take(quanta, align, lane, &self.lanes, Effort::Full)
    }

    /// With internal dependencies on: takes a run that other lanes freed, and makes this lane's
    /// stream wait for them.
    fn take_behind(&mut self, quanta: u32, align: u32, lane: LaneId) -> Option<NodeId> {
        if !self.settings.reuse.internal_dependencies || self.lanes.open_captures() > 0 {
            return None;
        }
        let LaneKind::Stream(stream) = self.lanes.kind(lane) else { return None };
        let (start, stamps) = self.heap.find_any(quanta, align)?;
        for stamp in stamps {
            if self.lanes.takeable(stamp, lane) {
                continue;
            }
            match self.lanes.wait_in(&*self.driver.0, (lane, stream), stamp) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(%error, "a stream could not be made to wait");
                    return None;
                }
            }
        }
        Some(self.heap.take_at(start, quanta))
    }

    /// Records fences on lanes other than `lane` that have freed something, so that what they
    /// freed can be had at all, and looks which have passed.
    fn look_for_foreign(&mut self, lane: LaneId) {
        let driver = std::sync::Arc::clone(&self.driver.0);
        driver.together(&mut || {
            for other in self.lanes.ids() {
                if other != lane || other == self.sync {
                    let recorded = self.lanes.record(&*driver, other);
                    note(recorded.map(|_| ()), "a fence could not be recorded");
                }
            }
            self.settle();
        });
    }

    /// Records and looks at fences until none passes any more: what passes may empty slabs,
    /// and their memory waits for a fence of its own.
    fn pass_all(&mut self) {
        while self.lanes.unsettled() || !self.pending.is_empty() {
            note(self.lanes.record_all(&*self.driver.0), "a fence could not be recorded");
            if !self.settle() {
                break;
            }
        }
    }

    /// Backs the best place and takes it; looks again where fences seen passed on the way may
    /// have made a better place than the planned one.
    fn grow(
        &mut self,
        quanta: u32,
        align: u32,
        lane: LaneId,
    ) -> std::result::Result<NodeId, Refusal> {
        let unsettled = self.lanes.unsettled() || !self.pending.is_empty();
        match self.grow_once(quanta, align, lane) {
            // Granules counted as the place's own could now be moved there.
            Err(Refusal::Short { .. }) if unsettled => {
                self.pass_all();
                match self.heap.take(quanta, align, lane, &self.lanes, Effort::Full) {
                    Some(node) => Ok(node),
                    None => self.grow_once(quanta, align, lane),
                }
            }
            other => other,
        }
    }

    fn grow_once(
        &mut self,
        quanta: u32,
        align: u32,
        lane: LaneId,
    ) -> std::result::Result<NodeId, Refusal> {
        let plan = match self.heap.plan(quanta, align, lane, &self.lanes) {
            Some(plan) => plan,
            None => {
                self.more_space(quanta, align)?;
                self.heap.plan(quanta, align, lane, &self.lanes).ok_or(Refusal::AddressSpace)?
            }
        };
        let rows = self.heap.missing(plan.start, quanta);
        let need: usize = rows.iter().map(|r| r.len as usize).sum();
        let first = plan.start / self.heap.per_granule();
        let end = (plan.start + quanta).div_ceil(self.heap.per_granule());
        self.ready(need, (first, end))?;
        self.note_demand(need);
        for row in rows {
            self.back(row)?;
        }
        Ok(self.heap.take_at(plan.start, quanta))
    }

    /// Takes an extent that ends at the end of a granule, with a granule without memory behind
    /// it: what runs over its end faults (`FOREBAY_DEBUG=guard`).
    pub fn place_guarded(&mut self, quanta: u32) -> std::result::Result<NodeId, Refusal> {
        let per = self.heap.per_granule();
        let granules = quanta.div_ceil(per);
        let first = match self.heap.lowest_gap(granules + 1) {
            Some(first) => first,
            None => {
                for row in self.idle_rows((0, 0), true) {
                    self.unback(row).map_err(Refusal::Driver)?;
                }
                if self.heap.lowest_gap(granules + 1).is_none() {
                    self.more_space(quanta + per, 1)?;
                }
                self.heap.lowest_gap(granules + 1).ok_or(Refusal::AddressSpace)?
            }
        };
        self.ready(granules as usize, (first, first + granules + 1))?;
        self.back(IdleRun { granule: first, len: granules })?;
        self.heap.guard(first + granules);
        Ok(self.heap.take_at((first + granules) * per - quanta, quanta))
    }

    /// Maps pages of the stock at a row of granules.
    pub fn back(&mut self, row: IdleRun) -> std::result::Result<(), Refusal> {
        match self.vmem.map(row.granule, row.len) {
            Ok(()) => {
                let per = self.heap.per_granule();
                self.marks.expect((row.granule * per) as usize, (row.len * per) as usize);
                self.heap.back(row.granule, row.len);
                Ok(())
            }
            Err(failure) => {
                if let Some((first, len)) = failure.stranded {
                    self.heap.strand(first, len);
                    keeper::poke(self.id);
                }
                Err(Refusal::Driver(failure.error))
            }
        }
    }

    /// Brings the stock to `need` pages: creates below the limit, then takes idle pages from
    /// outside the granules `target`.
    pub(super) fn ready(
        &mut self,
        need: usize,
        target: (u32, u32),
    ) -> std::result::Result<(), Refusal> {
        let mut short = need.saturating_sub(self.vmem.stock());
        if short > 0 && self.troubled() {
            self.recover();
            short = need.saturating_sub(self.vmem.stock());
        }
        if short == 0 {
            return Ok(());
        }
        let mut room = self.room();
        let above_soft = self.settings.soft_limit.is_some_and(|soft| {
            (self.vmem.pages() + short) as u64 * self.vmem.granule() as u64 > soft
        });
        if room < short || above_soft {
            // Look before creating what would be created in vain.
            let idle = self.idle_rows(target, true);
            let movable: usize = idle.iter().map(|r| r.len as usize).sum();
            if movable + room < short {
                let granule = self.vmem.granule() as u64;
                return Err(Refusal::Short { missing: (short - movable - room) as u64 * granule });
            }
            if above_soft {
                self.steal(short.min(movable), idle)?;
                short = need.saturating_sub(self.vmem.stock());
                room = self.room();
            }
        }
        if let Err(error) = self.create(short.min(room)) {
            if error.code != Code::OutOfMemory {
                return Err(Refusal::Driver(error));
            }
            tracing::debug!("the device has no memory left; moving idle pages");
        }
        let short = need.saturating_sub(self.vmem.stock());
        if short == 0 {
            return Ok(());
        }
        let idle = self.idle_rows(target, true);
        let movable: usize = idle.iter().map(|r| r.len as usize).sum();
        if movable < short {
            let granule = self.vmem.granule() as u64;
            return Err(Refusal::Short { missing: (short - movable) as u64 * granule });
        }
        self.steal(short, idle)
    }

    /// Pages that may still be created below the hard limit.
    pub(super) fn room(&self) -> usize {
        let most = (self.settings.limit / self.vmem.granule() as u64) as usize;
        most.saturating_sub(self.vmem.pages())
    }

    /// Creates `count` pages into the stock.
    pub(super) fn create(&mut self, count: usize) -> DriverResult<()> {
        let result = self.vmem.fill_stock(self.vmem.stock() + count);
        self.totals.peak_pages = self.totals.peak_pages.max(self.vmem.pages());
        self.note_peak_live();
        self.poke_above_soft();
        result
    }

    /// Above the soft limit the keeper is to trim.
    pub(super) fn poke_above_soft(&self) {
        let held = self.vmem.pages() as u64 * self.vmem.granule() as u64;
        if self.settings.soft_limit.is_some_and(|soft| held > soft) {
            keeper::poke(self.id);
        }
    }

    /// Rows of granules whose pages may go elsewhere: idle, passed, unpinned, outside
    /// `target`. None while a capture is open, or where moving is off. With `fences`, records
    /// what is missing first.
    pub fn idle_rows(&mut self, target: (u32, u32), fences: bool) -> Vec<IdleRun> {
        // A copy that could not be awaited may read of a page whose block was freed since.
        if self.lanes.open_captures() > 0 || self.tagged.is_copying() || !self.may_move() {
            return Vec::new();
        }
        if fences && self.lanes.unsettled() {
            note(self.lanes.record_all(&*self.driver.0), "a fence could not be recorded");
            self.settle();
        }
        let vmem = &self.vmem;
        self.heap
            .idle_runs(&self.lanes, |g| !(target.0..target.1).contains(&g) && !vmem.is_pinned(g))
    }

    fn may_move(&mut self) -> bool {
        match self.settings.moves {
            Move::Always => true,
            Move::Never => false,
            Move::Idle => self.device_idle().unwrap_or(false),
        }
    }

    /// Whether all work is done that was queued before the look. The mark that tells is work too,
    /// which an idle device takes some microseconds for: it is looked at until then, for
    /// [`MARK_TAKES`] and [`MARK_LOOKS`] times at least.
    pub(super) fn device_idle(&mut self) -> DriverResult<bool> {
        let driver = &*self.driver.0;
        if !driver.device().context_events {
            return Ok(false);
        }
        let event = self.lanes.event(driver)?;
        let recorded = driver.event_record(event, Scope::Context);
        let answer = recorded.and_then(|()| {
            let (start, mut looks) = (Instant::now(), 0);
            loop {
                looks += 1;
                let passed = driver.event_query(event)?;
                if passed || looks >= MARK_LOOKS && start.elapsed() >= MARK_TAKES {
                    return Ok(passed);
                }
                std::hint::spin_loop();
            }
        });
        self.lanes.give_event(event);
        answer
    }

    /// Unmaps `count` pages from idle rows: the shortest row that suffices, else the longest,
    /// from its low end, one call a row.
    fn steal(&mut self, count: usize, mut idle: Vec<IdleRun>) -> std::result::Result<(), Refusal> {
        self.totals.gathers += 1;
        tracing::debug!(pages = count, rows = idle.len(), "gathering idle pages");
        let mut short = count as u32;
        while short > 0 {
            let fits = idle.iter().enumerate().filter(|(_, r)| r.len >= short);
            let best = fits.min_by_key(|(_, r)| (r.len, r.granule)).map(|(i, _)| i);
            let longest = || {
                let rows = idle.iter().enumerate();
                rows.max_by_key(|(_, r)| (r.len, std::cmp::Reverse(r.granule))).map(|(i, _)| i)
            };
            let Some(i) = best.or_else(longest) else {
                let granule = self.vmem.granule() as u64;
                return Err(Refusal::Short { missing: u64::from(short) * granule });
            };
            let take = idle[i].len.min(short);
            self.unback(IdleRun { granule: idle[i].granule, len: take })
                .map_err(Refusal::Driver)?;
            self.totals.pages_moved += u64::from(take);
            short -= take;
            idle[i].granule += take;
            idle[i].len -= take;
            if idle[i].len == 0 {
                idle.swap_remove(i);
            }
        }
        Ok(())
    }

    /// Unmaps a row of idle granules; their pages go to the stock.
    pub fn unback(&mut self, row: IdleRun) -> Result<(), DriverError> {
        let bytes = row.len as usize * self.vmem.granule();
        super::control::tell_unmapped(self.id, self.vmem.address(row.granule), bytes);
        self.vmem.unmap(row.granule, row.len)?;
        self.heap.unback(row.granule, row.len);
        Ok(())
    }

    /// Adds a reservation that can hold the request.
    pub(super) fn more_space(
        &mut self,
        quanta: u32,
        align: u32,
    ) -> std::result::Result<(), Refusal> {
        let per = self.heap.per_granule();
        let granules = (quanta + align).div_ceil(per) as usize + 1;
        let backed = self.driver.0.backed_reservations();
        let granules = match backed {
            // A segment begins at a granule, and each granule costs memory below the limit.
            Some(_) if align <= per => quanta.div_ceil(per) as usize,
            _ => granules,
        };
        let covered = match backed {
            Some(_) => (self.settings.limit / self.vmem.granule() as u64) as usize,
            None => self.marks.quanta() / per as usize,
        };
        let used: usize = self.vmem.spaces().iter().map(|s| s.bytes / self.vmem.granule()).sum();
        let left = covered.min(self.marks.quanta() / per as usize).saturating_sub(used);
        if granules > left {
            return Err(Refusal::AddressSpace);
        }
        let least = granules * self.vmem.granule();
        let first = self.vmem.spaces()[0].bytes;
        let wanted = backed.unwrap_or(first / 2).max(least).min(left * self.vmem.granule());
        let space = match self.vmem.add_space(wanted, least) {
            Ok(space) => space,
            Err(e) if e.code == Code::NoAddressSpace => return Err(Refusal::AddressSpace),
            Err(e) => return Err(Refusal::Driver(e)),
        };
        super::registry::add_range(self.id, space.base, space.bytes);
        let first = self.heap.add_space((space.bytes / self.vmem.granule()) as u32);
        debug_assert_eq!(first, space.first);
        tracing::info!(bytes = space.bytes, "another reservation");
        Ok(())
    }

    /// Fills the reservoir: maps up to `bytes` at the low end of the address space.
    pub fn prefill(&mut self, bytes: u64) -> std::result::Result<(), Refusal> {
        let granule = self.vmem.granule() as u64;
        let pages = (bytes.div_ceil(granule)).min(self.room() as u64) as u32;
        if pages == 0 {
            return Ok(());
        }
        self.create(pages as usize).map_err(Refusal::Driver)?;
        self.back(IdleRun { granule: 0, len: pages })
    }

    /// Gives idle pages back to the device until the pool holds at most `keep` bytes.
    /// Answers the bytes released.
    pub fn trim(&mut self, keep: u64) -> Result<u64, DriverError> {
        let granule = self.vmem.granule() as u64;
        let keep = keep.div_ceil(granule) as usize;
        let before = self.vmem.pages();
        if before <= keep {
            return Ok(0);
        }
        // What no fence covers yet never counts as passed, however long it has been done.
        let recorded = self.lanes.record_all(&*self.driver.0);
        note(recorded, "a fence could not be recorded");
        self.settle();
        let stock = self.vmem.stock().min(before - keep);
        self.release(stock)?;
        let mut rows = self.idle_rows((0, 0), true);
        rows.sort_by_key(|r| std::cmp::Reverse(r.len));
        for row in rows {
            let over = self.vmem.pages().saturating_sub(keep) as u32;
            if over == 0 {
                break;
            }
            // From the high end: low addresses are used first.
            let len = row.len.min(over);
            self.unback(IdleRun { granule: row.granule + row.len - len, len })?;
            self.release(len as usize)?;
        }
        Ok((before - self.vmem.pages()) as u64 * granule)
    }

    /// Gives pages of the stock back; one that the driver refuses is the keeper's to retry.
    pub(super) fn release(&mut self, count: usize) -> DriverResult<()> {
        let released = self.vmem.release(count);
        if released.is_err() {
            keeper::poke(self.id);
        }
        released.map(|_| ())
    }
}
