//! The last word on plans of several lanes: bytes are shared only where an order is recorded.
//!
//! A later buffer may have bytes of an earlier one once its lane is ready for them (room `order`).
//! Lane by lane the births are walked in their order, and a tree over the bytes keeps from when on
//! the lane is ready for each: a birth asks for the latest such time among its bytes, which must
//! not be after itself. Owns nothing. Must not use how the offsets were found. Cost: O(lanes times
//! n log n), and 40 bytes a buffer.

use super::Plan;
use super::order::Deaths;
use super::recording::{NEVER, Recording, bad};
use crate::error::Result;

impl Plan {
    /// Checks that no two buffers share bytes which a lane could still use: with several lanes,
    /// not to meet is not enough.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`](crate::error::Status::InvalidArgument) names the two, or the
    /// buffer that is not the recording's.
    pub fn check_lanes(&self) -> Result<()> {
        let Some(recording) = self.recording() else { return Ok(()) };
        recording.check()?;
        let mut offsets = vec![None; recording.births.len()];
        for (b, &offset) in self.buffers().iter().zip(self.offsets()) {
            let found = recording.births.get(b.id as usize);
            let same = found.is_some_and(|r| {
                r.death != NEVER
                    && (r.birth, r.death, r.size, r.alignment)
                        == (b.birth, b.death, b.size, b.alignment)
            });
            if !same {
                return Err(bad(format!("buffer {} is not as it was recorded", b.id)));
            }
            offsets[b.id as usize] = Some(offset);
        }
        let planned = recording.births.iter().filter(|b| b.death != NEVER).count();
        let placed = offsets.iter().flatten().count();
        if planned != placed {
            return Err(bad(format!("{placed} of {planned} recorded buffers are placed")));
        }
        if recording.lanes <= 1 && recording.uses.is_empty() {
            return Ok(());
        }
        match unordered(recording, &offsets) {
            None => Ok(()),
            Some((a, b)) => Err(bad(format!(
                "buffers {a} and {b} share bytes, and no fence orders their lanes"
            ))),
        }
    }
}

/// Two buffers that share bytes and are in conflict, the earlier first.
fn unordered(recording: &Recording, offsets: &[Option<u64>]) -> Option<(usize, usize)> {
    let placed: Vec<(usize, u64, u64)> = (offsets.iter().enumerate())
        .filter_map(|(i, offset)| offset.map(|at| (i, at, at + recording.births[i].size)))
        .collect();
    let mut edges: Vec<u64> = placed.iter().flat_map(|&(_, from, to)| [from, to]).collect();
    edges.sort_unstable();
    edges.dedup();
    let place = |edge: u64| edges.partition_point(|known| *known < edge);
    let ranges: Vec<(usize, usize)> =
        placed.iter().map(|&(_, from, to)| (place(from), place(to))).collect();
    let deaths = Deaths::new(recording);
    for lane in 0..recording.lanes {
        let on_lane = |i: usize| recording.births[i].lane == lane;
        if !placed.iter().any(|&(i, ..)| on_lane(i)) {
            continue;
        }
        let ready = deaths.ready_on(lane);
        let mut taken = Latest::new(edges.len());
        for (&(i, from, to), &range) in placed.iter().zip(&ranges) {
            let birth = recording.births[i].birth;
            if on_lane(i) && taken.of(range) > birth {
                let clash = |&&(a, low, high): &&(usize, u64, u64)| {
                    a < i && low < to && from < high && ready[a] > birth
                };
                return placed.iter().find(clash).map(|&(a, ..)| (a, i));
            }
            taken.raise(range, ready[i]);
        }
    }
    None
}

/// A time for each place, raised range by range, asked for as the latest of a range: a tree whose
/// leaves are the places.
struct Latest {
    leaves: usize,
    /// What all places below a node have at least.
    all: Vec<u64>,
    /// The latest of the places below a node, as far as raised there.
    any: Vec<u64>,
}

impl Latest {
    fn new(places: usize) -> Latest {
        let leaves = places.next_power_of_two();
        Latest { leaves, all: vec![0; 2 * leaves], any: vec![0; 2 * leaves] }
    }

    /// The nodes that make up a range of places, which is not empty.
    fn nodes(&self, (from, to): (usize, usize)) -> impl Iterator<Item = usize> + use<> {
        debug_assert!(from < to && to <= self.leaves);
        let (mut low, mut high) = (from + self.leaves, to + self.leaves);
        std::iter::from_fn(move || {
            while low < high {
                // A left end that is a right child, a right end behind a left child.
                if low & 1 == 1 {
                    low += 1;
                    return Some(low - 1);
                }
                if high & 1 == 1 {
                    high -= 1;
                    return Some(high);
                }
                (low, high) = (low >> 1, high >> 1);
            }
            None
        })
    }

    /// The nodes above the ends of a range.
    fn above(&self, (from, to): (usize, usize)) -> impl Iterator<Item = usize> + use<> {
        let up = |leaf: usize| {
            std::iter::successors(Some(leaf >> 1), |node| Some(node >> 1)).take_while(|n| *n > 0)
        };
        up(from + self.leaves).chain(up(to - 1 + self.leaves))
    }

    fn raise(&mut self, range: (usize, usize), time: u64) {
        for node in self.nodes(range) {
            self.all[node] = time.max(self.all[node]);
            self.any[node] = time.max(self.any[node]);
        }
        for node in self.above(range) {
            let below = self.any[2 * node].max(self.any[2 * node + 1]);
            self.any[node] = below.max(self.all[node]);
        }
    }

    fn of(&self, range: (usize, usize)) -> u64 {
        let inside = self.nodes(range).map(|node| self.any[node]).max();
        let above = self.above(range).map(|node| self.all[node]).max();
        inside.max(above).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::Order;
    use super::super::random::Random;
    use super::super::recording::{Fence, Recorded};
    use super::*;

    /// Against every pair, for offsets of all kinds.
    #[test]
    fn the_walk_finds_what_a_look_at_every_pair_finds() {
        let (mut sound, mut wrong) = (0, 0);
        for seed in 0..2000 {
            let mut rng = Random::new(seed, 7);
            let mut below = |most: u64| rng.bits() % most;
            let lanes = 1 + (seed % 4) as u16;
            let mut step = Recording { lanes, ..Recording::default() };
            for time in 0..8 + below(24) {
                let (lane, other) = (below(lanes.into()) as u16, below(lanes.into()) as u16);
                if below(2) == 0 {
                    step.fences.push(Fence { time, from: lane, to: other });
                    continue;
                }
                let death = if below(9) == 0 { NEVER } else { time + 1 + below(5) };
                let (size, end_lane) = (1 + below(4), if below(5) == 0 { other } else { lane });
                if below(5) == 0 {
                    step.uses.push((step.births.len() as u32, other));
                }
                let (birth, alignment, tag) = (time, 1, 0);
                step.births.push(Recorded { birth, death, size, alignment, tag, lane, end_lane });
            }
            let room = 4 + below(40);
            let place = |b: &Recorded| (b.death != NEVER).then(|| below(room));
            let offsets: Vec<Option<u64>> = step.births.iter().map(place).collect();
            let order = Order::new(&step);
            let shares = |a: usize, b: usize| {
                let (Some(low), Some(high)) = (offsets[a], offsets[b]) else { return false };
                low < high + step.births[b].size && high < low + step.births[a].size
            };
            let clash =
                |a: usize, b: usize| a < b && shares(a, b) && order.conflict(a as u32, b as u32);
            let n = offsets.len();
            let any = (0..n).any(|b| (0..b).any(|a| clash(a, b)));
            let found = unordered(&step, &offsets);
            assert_eq!(found.is_some(), any, "seed {seed}: {found:?}");
            assert!(found.is_none_or(|(a, b)| clash(a, b)), "seed {seed}: {found:?}");
            sound += u32::from(!any);
            wrong += u32::from(any);
        }
        assert!(sound > 200 && wrong > 200, "{sound} sound, {wrong} wrong");
    }
}
