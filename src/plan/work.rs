//! When which lanes may work on a buffer: its own, and those that told fences bind to its life.
//!
//! A buffer's memory may be used on another lane without a word, as long as that work comes before
//! the free: by a fence into the freeing lane between birth and death, or by an event that nobody
//! told. So a lane's work is taken to **begin** with the first fence that puts it behind the birth,
//! and to **end** with the last that puts it before the death; either may be the only one that was
//! told. Whether there is such work nobody knows: all that can be is taken to be.
//!
//! Owns, for each buffer, where the work of each lane begins and ends. Pure. Cost: O((n + fences)
//! times lanes), and 16 bytes for each lane that a fence binds to a buffer's life.

use super::fences::Seen;
use super::recording::{Fence, NEVER, Recording};

/// For each buffer lanes and times, the buffer's own lane first.
type Bounds = Vec<Vec<(u16, u64)>>;

/// Where work on each buffer begins and ends, lane by lane; empty for one that has no death.
#[derive(Debug)]
pub(super) struct Work {
    /// From when on a lane may work on it: the birth, or the fence that tells of it.
    pub(super) begins: Bounds,
    /// Up to when a lane may have worked on it: the death, or the fence that tells of it.
    pub(super) ends: Bounds,
}

impl Work {
    /// The work in a recording that was checked.
    pub(super) fn new(step: &Recording) -> Work {
        let of = |bound: fn(&super::recording::Recorded) -> (u16, u64)| -> Bounds {
            let list = |b| if let (_, NEVER) = bound(b) { vec![] } else { vec![bound(b)] };
            step.births.iter().map(list).collect()
        };
        let begins = of(|b| (b.lane, if b.death == NEVER { NEVER } else { b.birth }));
        let mut work = Work { begins, ends: of(|b| (b.end_lane, b.death)) };
        for &(at, lane) in &step.uses {
            let (death, list) = (step.births[at as usize].death, &mut work.ends[at as usize]);
            if death != NEVER && list.iter().all(|(known, _)| *known != lane) {
                list.push((lane, death));
            }
        }
        if step.lanes > 1 && !step.fences.is_empty() {
            work.follow(step);
        }
        work
    }

    /// Whether another lane may work on a buffer: by a told use, or without a word.
    pub(super) fn is_untold(&self, at: usize) -> bool {
        self.begins[at].len() > 1 || self.ends[at].len() > 1
    }

    /// Walks deaths and fences. At one time deaths come first.
    fn follow(&mut self, step: &Recording) {
        let mut dying: Vec<usize> =
            (0..step.births.len()).filter(|&i| step.births[i].death != NEVER).collect();
        let mut waits = Waits::new(step, &dying);
        dying.sort_by_key(|&i| step.births[i].death);
        let mut fences = step.fences.iter().peekable();
        for i in dying {
            let b = &step.births[i];
            while let Some(fence) = fences.next_if(|f| f.time < b.death) {
                waits.wait(step, fence, &mut self.begins);
            }
            for lane in (0..step.lanes).filter(|lane| *lane != b.end_lane) {
                let until = waits.seen.up_to(b.end_lane, lane);
                let list = &mut self.ends[i];
                // What was told of by a use lasts to the death.
                if until > b.birth && list.iter().all(|(known, _)| *known != lane) {
                    list.push((lane, until));
                }
            }
        }
    }
}

/// How far each lane is behind the births of each other one.
struct Waits {
    seen: Seen,
    /// Each lane's births, in their order.
    births: Vec<Vec<usize>>,
    /// For each two lanes: how many births of the one the other is behind.
    behind: Vec<Vec<usize>>,
}

impl Waits {
    fn new(step: &Recording, dying: &[usize]) -> Waits {
        let lanes = usize::from(step.lanes);
        let mut births = vec![Vec::new(); lanes];
        dying.iter().for_each(|&i| births[usize::from(step.births[i].lane)].push(i));
        Waits { seen: Seen::new(step.lanes), births, behind: vec![vec![0; lanes]; lanes] }
    }

    /// The lane that waits may work from here on on what it is behind the birth of.
    fn wait(&mut self, step: &Recording, fence: &Fence, begins: &mut Bounds) {
        self.seen.wait(fence);
        let to = usize::from(fence.to);
        for home in (0..step.lanes).filter(|home| *home != fence.to) {
            let seen = self.seen.up_to(fence.to, home);
            let behind = &mut self.behind[to][usize::from(home)];
            for &i in &self.births[usize::from(home)][*behind..] {
                let b = &step.births[i];
                if b.birth >= seen {
                    break;
                }
                *behind += 1;
                if fence.time < b.death {
                    begins[i].push((fence.to, fence.time));
                }
            }
        }
    }
}
