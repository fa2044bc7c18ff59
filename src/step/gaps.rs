//! What was not planned, served out of bytes that the plan leaves free.
//!
//! An allocation says how many planned births it lives through at most. What is free in the plan
//! block from now until then is what no live buffer has, and none that is born meanwhile; the
//! shortest such gap that is long enough is taken. With several lanes, bytes that another lane had
//! in this step, or will have later, count as taken too: nothing would order the two. One that
//! outlives what it said keeps its bytes: births that would have them go to the pool. Must not move
//! what is planned. Cost: O(n log n) an allocation, for n buffers of the plan.

use super::binding::Entry;
use super::follow::{ANY_LANE, Run, Taint};
use super::record::ALIGNMENT;
use super::runner::{Hot, LIVE};

/// A buffer that is not planned and lies in the plan block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// First and past byte, from the plan block's start.
    pub(super) bytes: (u64, u64),
    /// The birth from which on it may be in the way.
    pub(super) due: usize,
}

impl Run {
    /// Serves an allocation that is not planned, in a plan block of `room` bytes: its address;
    /// `None`: the pool is to serve it. `births`: through how many births it lives; 0: not known.
    pub(super) fn serve_gap(
        &mut self,
        (hot, entry): (&mut Hot, &mut Entry),
        room: u64,
        (bytes, lane): (u64, u16),
        births: u64,
    ) -> Option<usize> {
        if self.lanes > 1 {
            // Nothing says which lanes work on it: fences that the plan can do without may matter.
            self.issue_all(hot, entry);
            self.refresh(hot, entry);
        }
        let all = entry.script.len();
        let due = all.min(hot.cursor.saturating_add(usize::try_from(births).unwrap_or(all)));
        let fits = if births == 0 || hot.base == 0 {
            None
        } else {
            find(&self.taken(hot, entry, due, lane), room, bytes)
        };
        let Some(at) = fits else {
            self.tally.gaps_missed += 1;
            return None;
        };
        self.tally.gaps_served += 1;
        // One that lives to the end is in nobody's way.
        let due = if due == all { usize::MAX } else { due };
        self.gaps.push(Gap { bytes: (at, at + bytes), due });
        self.refresh(hot, entry);
        Some(hot.base + at as usize)
    }

    /// Whether all fences that bind other lanes' work to a birth's life have been issued, or will
    /// be before such work.
    fn covers(&self, hot: &Hot, entry: &Entry, at: usize) -> bool {
        let due = entry.script.free(at).due as usize;
        let past = self.waits(entry).get(self.waits_at).is_none_or(|w| w.before >= hot.cursor);
        at >= hot.cursor || past && at + 1 >= self.all_from && due < hot.cursor
    }

    /// Bytes that are not free from now to birth `due` on this lane, lowest first.
    fn taken(&self, hot: &Hot, entry: &Entry, due: usize, lane: u16) -> Vec<(u64, u64)> {
        let script = &entry.script;
        let (now, alone) = (hot.cursor, self.lanes <= 1);
        let in_the_way = |&at: &u32| {
            let at = at as usize;
            let free = script.free(at);
            let own = script.births[at].lane == lane && free.lane == lane && !free.shared;
            let others = !own || free.untold && !self.covers(hot, entry, at);
            entry.states[at] == LIVE || (now..due).contains(&at) || !alone && others
        };
        let planned = script.by_offset.iter().filter(|at| in_the_way(at));
        let mut taken: Vec<(u64, u64)> = planned.map(|&at| script.bytes(at as usize)).collect();
        taken.extend(self.gaps.iter().map(|gap| gap.bytes));
        let tainted = self.taints.iter().filter(|t| t.lane != lane);
        taken.extend(tainted.map(|t| t.bytes));
        taken.sort_unstable();
        taken
    }

    /// Ends a buffer in a gap. False: none begins there.
    pub(super) fn end_gap(
        &mut self,
        (hot, entry): (&mut Hot, &mut Entry),
        offset: u64,
        lane: u16,
    ) -> bool {
        let Some(at) = self.gaps.iter().position(|gap| gap.bytes.0 == offset) else {
            return false;
        };
        let gap = self.gaps.swap_remove(at);
        let used = self.end_use(offset);
        if self.lanes > 1 {
            let lane = if used { ANY_LANE } else { lane };
            self.taints.push(Taint { bytes: gap.bytes, lane });
        }
        self.refresh(hot, entry);
        true
    }
}

/// The lowest byte of the shortest gap of at least `bytes` below `room`.
fn find(taken: &[(u64, u64)], room: u64, bytes: u64) -> Option<u64> {
    let mut best: Option<(u64, u64)> = None;
    let mut low = 0u64;
    for &(from, to) in taken.iter().chain([&(room, room)]) {
        let start = low.next_multiple_of(ALIGNMENT);
        let length = from.min(room).saturating_sub(start);
        if length >= bytes && best.is_none_or(|(least, _)| length < least) {
            best = Some((length, start));
        }
        low = low.max(to);
    }
    best.map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn the_shortest_gap_that_suffices() {
        let taken = [(0, 512), (2048, 2560), (2100, 4096), (5120, 8192)];
        assert_eq!(find(&taken, 8192, 1024), Some(4096));
        assert_eq!(find(&taken, 8192, 1025), Some(512));
        assert_eq!(find(&taken, 8192, 1537), None);
        assert_eq!(find(&taken, 16384, 1537), Some(8192));
        assert_eq!(find(&[], 100, 100), Some(0));
        assert_eq!(find(&[], 100, 101), None);
        // Gaps begin at multiples of 512.
        assert_eq!(find(&[(0, 100)], 1024, 512), Some(512));
        assert_eq!(find(&[(0, 100)], 1023, 512), None);
    }
}
