//! Memory mapped before it is asked for, so that growth meets no driver call.
//!
//! Owns the measure of demand: granules a second by which what is in use grew, averaged so that a
//! second ago counts a third. The keeper holds free whole granules for what [`HORIZON`] of such
//! growth needs, at most `FOREBAY_AHEAD` bytes (0: it maps nothing), below the limits, some pages a
//! look and within its budget of driver time. Promises to take nothing while a capture is open,
//! and to stop when the pool stops growing. What was mapped in vain is idle memory like any other:
//! trim, the soft limit and decay give it back.
//!
//! Cost to whoever grows the pool: a compare, and the keeper's wake-up.

use super::core::{Core, note};
use super::keeper;
use crate::heap::IdleRun;
use std::time::{Duration, Instant};

/// Growth is provided for so long ahead.
const HORIZON: Duration = Duration::from_millis(100);
/// How fast the average follows.
const WINDOW_S: f64 = 1.0;
/// The keeper looks so often while the pool grows.
const LOOK: Duration = Duration::from_millis(5);
/// And so often once it has stopped, until the average is nothing.
const LOOK_AFTER: Duration = Duration::from_millis(50);
/// Below so many granules a second a pool does not grow.
const RATE_MIN: f64 = 0.5;
/// Pages mapped in one look: the pool's lock is held for so long.
const PAGES_A_LOOK: usize = 8;

/// How fast a pool grows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// When the keeper looked last, and how many granules were in use; `None`: it does not watch.
    looked: Option<(Instant, u64)>,
    /// Granules a second, averaged.
    rate: f64,
}

impl Demand {
    /// The average after growth by `granules` in `seconds`.
    fn follow(&mut self, granules: u64, seconds: f64) -> f64 {
        let weight = (-seconds / WINDOW_S).exp();
        self.rate = self.rate * weight + granules as f64 / seconds.max(1e-6) * (1.0 - weight);
        self.rate
    }
}

impl Core {
    /// An allocation found no free run and maps `pages`: the keeper watches from now on.
    pub(super) fn note_demand(&mut self, pages: usize) {
        if self.settings.ahead > 0 && pages > 0 && self.demand.looked.is_none() {
            self.demand.looked = Some((Instant::now(), self.granules_in_use()));
            keeper::poke(self.id);
        }
    }

    fn granules_in_use(&self) -> u64 {
        let counts = self.heap.counts();
        counts.backed_granules - counts.idle_granules
    }

    /// The keeper's look: maps what growth is expected to need. Answers when to look again.
    pub(super) fn map_ahead(&mut self) -> Option<Duration> {
        let (then, before) = self.demand.looked?;
        let (since, in_use) = (then.elapsed(), self.granules_in_use());
        if since < LOOK / 2 {
            return Some(LOOK);
        }
        let grown = in_use.saturating_sub(before);
        let rate = self.demand.follow(grown, since.as_secs_f64());
        self.demand.looked = Some((Instant::now(), in_use));
        if rate < RATE_MIN {
            self.demand = Demand::default();
            return None;
        }
        let expected = (rate * HORIZON.as_secs_f64()).ceil() as usize;
        let most = (self.settings.ahead / self.vmem.granule() as u64) as usize;
        let idle = self.heap.counts().idle_granules as usize;
        let short = expected.min(most).saturating_sub(idle).min(self.room_ahead());
        let mapped = short > 0 && self.lanes.open_captures() == 0;
        if mapped && !self.map_some(short.min(PAGES_A_LOOK)) {
            // Whoever needs memory next finds out why.
            self.demand = Demand::default();
            return None;
        }
        Some(if grown > 0 || mapped { LOOK } else { LOOK_AFTER })
    }

    /// Pages that may be held beside the present ones below both limits.
    fn room_ahead(&self) -> usize {
        let soft = self.settings.soft_limit.map_or(usize::MAX, |soft| {
            let most = (soft / self.vmem.granule() as u64) as usize;
            most.saturating_sub(self.vmem.pages())
        });
        // Stock is held already.
        self.vmem.stock() + self.room().min(soft)
    }

    /// Backs the low end of the lowest gap. False: the driver refused.
    fn map_some(&mut self, pages: usize) -> bool {
        let Some(granule) = self.heap.lowest_gap(1) else { return false };
        let len = (1..=pages as u32).rev().find(|&n| self.heap.is_gap(granule, n)).unwrap_or(1);
        let created = self.create((len as usize).saturating_sub(self.vmem.stock()));
        let failed = created.is_err();
        note(created, "memory could not be created ahead of demand");
        if failed {
            return false;
        }
        match self.back(IdleRun { granule, len }) {
            Ok(()) => true,
            Err(refusal) => {
                tracing::warn!(?refusal, "memory could not be mapped ahead of demand");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_and_forgets() {
        let mut demand = Demand::default();
        for _ in 0..1000 {
            demand.follow(2, 0.01);
        }
        assert!((demand.rate - 200.0).abs() < 1.0, "2 each 10 ms: {}", demand.rate);
        demand.follow(0, 1.0);
        assert!((demand.rate - 73.6).abs() < 1.0, "a third after a second: {}", demand.rate);
        demand.follow(0, 20.0);
        assert!(demand.rate < 0.001);
    }
}
