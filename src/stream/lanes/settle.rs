//! Which fences have passed.
//!
//! Owns how few questions tell it. Fences of a lane pass in order, where each covers all that
//! those before it cover: then the newest that has passed tells of all before it. Cost: one
//! query where the oldest has not passed, two where all have, else a few more.

use super::Lanes;
use crate::driver::{Driver, DriverResult};
use crate::stream::{JOIN, LaneId, Stamp};

impl Lanes {
    /// Looks which fences have passed. Answers whether any did. A query that fails is
    /// returned after the others were asked; its fence stays.
    pub fn settle(&mut self, driver: &dyn Driver) -> DriverResult<bool> {
        let mut any = false;
        let mut failed = None;
        if self.in_flight() {
            driver.together(&mut || {
                for id in 1..self.lanes.len() {
                    match self.settle_lane(driver, id as LaneId) {
                        Ok(progress) => any |= progress,
                        Err(error) => failed = Some(error),
                    }
                }
            });
        }
        if any {
            self.forget_passed();
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(any),
        }
    }

    /// [`Lanes::settle`] for one lane.
    pub fn settle_lane(&mut self, driver: &dyn Driver, lane: LaneId) -> DriverResult<bool> {
        let in_order = self.in_order(lane);
        let mut any = false;
        while !self.lanes[lane as usize].fences.is_empty() && self.has_passed(driver, lane, 0)? {
            any = true;
            if !in_order {
                self.pass_front(lane);
                continue;
            }
            // `low` has passed; `high` has not, or is one past the newest.
            let (mut low, mut high) = (0, self.lanes[lane as usize].fences.len());
            let (mut probe, mut failed) = (high - 1, None);
            while high - low > 1 {
                match self.has_passed(driver, lane, probe) {
                    Ok(true) => low = probe,
                    Ok(false) => high = probe,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
                probe = low + (high - low) / 2;
            }
            (0..=low).for_each(|_| self.pass_front(lane));
            return failed.map_or(Ok(any), Err);
        }
        Ok(any)
    }

    /// Whether the fence at `index` of those in flight has passed.
    fn has_passed(&self, driver: &dyn Driver, lane: LaneId, index: usize) -> DriverResult<bool> {
        let fence = &self.lanes[lane as usize].fences[index];
        if !fence.after.iter().all(|&stamp| self.passed(stamp)) {
            return Ok(false);
        }
        for &event in &fence.events {
            if !driver.event_query(event)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether some work behind `stamp` that has not passed is a stream's own; else it has passed,
    /// or graphs alone stand behind it, which pass when they are gone.
    pub fn awaits_stream(&self, stamp: Stamp) -> bool {
        let own = |part: Stamp| !self.passed(part) && !self.is_capture(part.lane);
        match stamp.lane {
            _ if self.passed(stamp) => false,
            JOIN => self.joins.get(&stamp.seq).is_some_and(|parts| parts.iter().any(|&p| own(p))),
            _ => own(stamp),
        }
    }

    /// Whether a graph stands behind `stamp` that is not gone.
    pub fn awaits_graph(&self, stamp: Stamp) -> bool {
        let own = |part: Stamp| !self.passed(part) && self.is_capture(part.lane);
        match stamp.lane {
            _ if self.passed(stamp) => false,
            JOIN => self.joins.get(&stamp.seq).is_some_and(|parts| parts.iter().any(|&p| own(p))),
            _ => own(stamp),
        }
    }

    fn pass_front(&mut self, lane: LaneId) {
        let l = &mut self.lanes[lane as usize];
        if let Some(mut fence) = l.fences.pop_front() {
            debug_assert!(fence.seq > l.passed, "fences pass in order");
            l.passed = fence.seq;
            self.events.append(&mut fence.events);
            self.lists.push(fence.events);
        }
    }

    /// Drops passed joins.
    fn forget_passed(&mut self) {
        if self.joins.is_empty() {
            return;
        }
        let mut joins = std::mem::take(&mut self.joins);
        joins.retain(|_, parts| !parts.iter().all(|&p| self.passed(p)));
        self.joins = joins;
    }
}
