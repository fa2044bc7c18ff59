//! Growing into holes, and giving granules up: what needs memory mapped or unmapped.
//!
//! Promises to change nothing by itself: [`Heap::plan`] proposes, the pool maps, then
//! [`Heap::back`] and [`Heap::take_at`] make it so. Cost: a scan of all gaps and their holes;
//! happens hundreds of times in a program's warm-up, each time beside driver calls that
//! cost more.

use super::nodes::{Kind, NIL, Node, NodeId};
use super::{Heap, Stamp};
use crate::stream::{LaneId, Lanes};

/// Where a block that no run can hold would go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// First quantum.
    pub start: u32,
    /// Granules to back first.
    pub missing: u32,
}

/// A row of granules that nothing occupies and nothing waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdleRun {
    /// First granule.
    pub granule: u32,
    /// How many.
    pub len: u32,
}

/// A hole that one lane may use, as seen by [`Heap::plan`].
struct Hole {
    start: u32,
    end: u32,
    /// Its gaps: first granule, granules, granules of all gaps before it.
    gaps: Vec<(u32, u32, u32)>,
    /// Its runs: first and one past the last quantum.
    runs: Vec<(u32, u32)>,
}

impl Heap {
    /// The best place for `quanta` over all holes, counting what must be backed first:
    /// fewest missing granules, then shortest hole, then lowest address. `None` when no hole
    /// is long enough: address space is short.
    pub fn plan(&self, quanta: u32, align: u32, lane: LaneId, lanes: &Lanes) -> Option<Plan> {
        let mut best: Option<(u32, u32, u32)> = None;
        let mut done = 0;
        for (&off, &gap) in &self.gaps {
            if off < done {
                continue;
            }
            done = self.each_hole(gap, lane, lanes, |hole| {
                self.best_in_hole(hole, quanta, align, &mut best);
            });
        }
        best.map(|(missing, _, start)| Plan { start, missing })
    }

    /// Calls `f` with each hole that `lane` may use around `gap`; pieces it may not take
    /// divide. Answers the quantum where the whole hole ends.
    fn each_hole(&self, gap: NodeId, lane: LaneId, lanes: &Lanes, mut f: impl FnMut(&Hole)) -> u32 {
        let mut node = gap;
        loop {
            let prev = self.nodes[node].prev;
            if !matches!(self.nodes[prev].kind, Kind::Free | Kind::Gap) {
                break;
            }
            node = prev;
        }
        let mut hole: Option<Hole> = None;
        let mut end = self.nodes[node].off;
        while node != NIL && matches!(self.nodes[node].kind, Kind::Free | Kind::Gap) {
            let n = &self.nodes[node];
            end = n.off + n.len;
            if n.kind == Kind::Free && !lanes.takeable(self.nodes.stamp(node), lane) {
                if let Some(hole) = hole.take() {
                    f(&hole);
                }
            } else {
                let hole = hole.get_or_insert_with(|| Hole::at(n.off));
                hole.extend(n.kind, n.off, n.len, self.per_granule);
            }
            node = n.next;
        }
        if let Some(hole) = hole {
            f(&hole);
        }
        end
    }

    fn best_in_hole(
        &self,
        hole: &Hole,
        quanta: u32,
        align: u32,
        best: &mut Option<(u32, u32, u32)>,
    ) {
        let length = hole.end - hole.start;
        if length < quanta {
            return;
        }
        let granule = self.per_granule;
        let mut consider = |at: u32| {
            let at = at.next_multiple_of(align);
            if at < hole.start || at + quanta > hole.end {
                return;
            }
            let key = (hole.missing(at, quanta, granule), length, at);
            if best.is_none_or(|b| key < b) {
                *best = Some(key);
            }
        };
        let last = hole.end - quanta;
        consider(hole.start);
        consider(last);
        consider(hole.start.next_multiple_of(granule));
        consider((hole.end / granule * granule).saturating_sub(quanta));
        for &(start, end) in &hole.runs {
            consider(start);
            consider(end.saturating_sub(quanta));
        }
        if align > 1 {
            consider(last / align * align);
        }
        if align > granule {
            // Few places are aligned: those beside each end of a gap, on both sides.
            for edge in hole.runs.iter().flat_map(|&(start, end)| [start, end]) {
                for at in [edge, edge.saturating_sub(quanta)] {
                    consider(at);
                    consider(at / align * align);
                }
            }
        }
    }

    /// The granules of `[start, start + quanta)` that have no memory, as rows.
    pub fn missing(&self, start: u32, quanta: u32) -> Vec<IdleRun> {
        let first = start / self.per_granule;
        let end = (start + quanta).div_ceil(self.per_granule);
        let mut rows = Vec::new();
        let from = self.gaps.range(..=first * self.per_granule).next_back();
        let from = from.map_or(0, |(&off, _)| off);
        for (&off, &gap) in self.gaps.range(from..end * self.per_granule) {
            let gap_first = off / self.per_granule;
            let gap_end = gap_first + self.nodes[gap].len / self.per_granule;
            let (lo, hi) = (gap_first.max(first), gap_end.min(end));
            if lo < hi {
                rows.push(IdleRun { granule: lo, len: hi - lo });
            }
        }
        rows
    }

    /// Tells that granules of a gap now have memory: they become a clean piece.
    pub fn back(&mut self, granule: u32, len: u32) {
        let piece = self.cut_gap(granule, len);
        let n = &mut self.nodes[piece];
        n.kind = Kind::Free;
        n.lane = Stamp::CLEAN.lane;
        n.seq = Stamp::CLEAN.seq;
        self.counts.backed_granules += u64::from(len);
        self.counts.idle_granules += u64::from(len);
        self.join_run(piece, None);
    }

    /// Tells that idle granules lost their memory: they become a gap.
    pub fn unback(&mut self, granule: u32, len: u32) {
        let (start, quanta) = (granule * self.per_granule, len * self.per_granule);
        debug_assert!(
            (granule..granule + len).all(|g| self.live[g as usize] == 0),
            "only idle granules lose their memory"
        );
        let piece = self.nodes.find_free(start, &self.gaps, &self.bins);
        let head = self.nodes.head(piece);
        let run = self.nodes[head].run;
        self.unbin(head);
        let node = self.carve_pieces(head, start, quanta, run);
        self.nodes[node].kind = Kind::Gap;
        self.counts.backed_granules -= u64::from(len);
        self.counts.idle_granules -= u64::from(len);
        self.join_gap(node);
    }

    /// The first granule of the lowest gap of at least `len` granules.
    pub fn lowest_gap(&self, len: u32) -> Option<u32> {
        let long = |&(_, &gap): &(&u32, &NodeId)| self.nodes[gap].len >= len * self.per_granule;
        self.gaps.iter().find(long).map(|(&off, _)| off / self.per_granule)
    }

    /// Whether so many granules from `granule` on are one gap, or part of one.
    pub fn is_gap(&self, granule: u32, len: u32) -> bool {
        let start = granule * self.per_granule;
        let below = self.gaps.range(..=start).next_back();
        below
            .is_some_and(|(&off, &gap)| start + len * self.per_granule <= off + self.nodes[gap].len)
    }

    /// The first of `len` granules at the high end of the highest gap that has so many: out of
    /// the way of what grows at the low end.
    pub fn highest_gap(&self, len: u32) -> Option<u32> {
        let long = |&(_, &gap): &(&u32, &NodeId)| self.nodes[gap].len >= len * self.per_granule;
        let (&off, &gap) = self.gaps.iter().rev().find(long)?;
        Some((off + self.nodes[gap].len) / self.per_granule - len)
    }

    /// Sets granules of a gap aside for memory that is not the heap's. Answers their node.
    pub fn set_foreign(&mut self, granule: u32, len: u32) -> NodeId {
        let node = self.cut_gap(granule, len);
        self.nodes[node].kind = Kind::Foreign;
        node
    }

    /// Gives such granules back as a gap.
    pub fn drop_foreign(&mut self, node: NodeId) {
        debug_assert_eq!(self.nodes[node].kind, Kind::Foreign);
        self.nodes[node].kind = Kind::Gap;
        self.join_gap(node);
    }

    /// Keeps a granule of a gap without memory, as a guard.
    pub fn guard(&mut self, granule: u32) {
        let node = self.cut_gap(granule, 1);
        self.nodes[node].kind = Kind::Guard;
    }

    /// Gives the guard above `node`, if there is one, back as a gap.
    pub fn drop_guard_above(&mut self, node: NodeId) {
        let above = self.nodes[node].next;
        if above != NIL && self.nodes[above].kind == Kind::Guard {
            self.nodes[above].kind = Kind::Gap;
            self.join_gap(above);
        }
    }

    /// Sets granules of a gap aside whose memory could not be unmapped: a node each, since
    /// they come back one by one.
    pub fn strand(&mut self, granule: u32, len: u32) {
        for g in granule..granule + len {
            let node = self.cut_gap(g, 1);
            self.nodes[node].kind = Kind::Stranded;
        }
        self.counts.stranded_granules += u64::from(len);
    }

    /// Gives one stranded granule back as a gap, once it could be unmapped; those stranded with
    /// it stay. A walk over all nodes: rare.
    pub fn unstrand(&mut self, granule: u32) {
        let (start, end) = (granule * self.per_granule, (granule + 1) * self.per_granule);
        let mut node = self.nodes.first;
        let holds = |n: &Node| n.kind == Kind::Stranded && n.off <= start && end <= n.off + n.len;
        while !holds(&self.nodes[node]) {
            node = self.nodes[node].next;
            assert!(node != NIL, "granule {granule} is stranded");
        }
        if self.nodes[node].off < start {
            node = self.nodes.split(node, start);
        }
        if self.nodes[node].off + self.nodes[node].len > end {
            self.nodes.split(node, end);
        }
        self.counts.stranded_granules -= 1;
        self.nodes[node].kind = Kind::Gap;
        self.join_gap(node);
    }

    /// The node for exactly these granules of one gap, taken out of the gaps' index.
    fn cut_gap(&mut self, granule: u32, len: u32) -> NodeId {
        let (start, quanta) = (granule * self.per_granule, len * self.per_granule);
        let (&off, &gap) = self.gaps.range(..=start).next_back().expect("a gap lies there");
        debug_assert!(start + quanta <= off + self.nodes[gap].len);
        self.gaps.remove(&off);
        let mut node = gap;
        if off < start {
            node = self.nodes.split(gap, start);
            self.gaps.insert(off, gap);
        }
        if self.nodes[node].len > quanta {
            let rest = self.nodes.split(node, start + quanta);
            self.gaps.insert(start + quanta, rest);
        }
        node
    }

    /// Merges a gap with the gaps beside it and indexes it.
    pub(super) fn join_gap(&mut self, node: NodeId) {
        let mut gap = node;
        let prev = self.nodes[gap].prev;
        if self.nodes[prev].kind == Kind::Gap {
            self.nodes[prev].len += self.nodes[gap].len;
            self.nodes.remove(gap);
            gap = prev;
        }
        let next = self.nodes[gap].next;
        if self.nodes[next].kind == Kind::Gap {
            let off = self.nodes[next].off;
            self.gaps.remove(&off);
            self.nodes[gap].len += self.nodes[next].len;
            self.nodes.remove(next);
        }
        self.gaps.insert(self.nodes[gap].off, gap);
    }

    /// All rows of granules that are idle, whose stamps have passed, and for which `movable`
    /// says yes (not pinned, not the target of the move).
    pub fn idle_runs(&self, lanes: &Lanes, movable: impl Fn(u32) -> bool) -> Vec<IdleRun> {
        let mut rows = Vec::new();
        let granule = self.per_granule;
        self.bins.visit(&self.nodes, granule, usize::MAX, |head| -> Option<()> {
            let run_end = self.nodes[head].off + self.nodes[head].run;
            let mut piece = head;
            let mut start = self.nodes[head].off;
            loop {
                let n = &self.nodes[piece];
                let end = n.off + n.len;
                let passed = lanes.passed(self.nodes.stamp(piece));
                if !passed {
                    push_rows(&mut rows, start, n.off, granule, &movable);
                    start = end;
                }
                if end == run_end {
                    push_rows(&mut rows, start, end, granule, &movable);
                    return None;
                }
                piece = n.next;
            }
        });
        rows
    }

    /// Live quanta of a granule.
    pub fn live_in(&self, granule: u32) -> u32 {
        u32::from(self.live[granule as usize])
    }
}

fn push_rows(
    rows: &mut Vec<IdleRun>,
    start: u32,
    end: u32,
    granule: u32,
    movable: &impl Fn(u32) -> bool,
) {
    let (first, last) = (start.div_ceil(granule), end / granule);
    let mut row: Option<IdleRun> = None;
    for g in first..last {
        if movable(g) {
            row.get_or_insert(IdleRun { granule: g, len: 0 }).len += 1;
        } else {
            rows.extend(row.take());
        }
    }
    rows.extend(row);
}

impl Hole {
    fn at(start: u32) -> Hole {
        Hole { start, end: start, gaps: Vec::new(), runs: Vec::new() }
    }

    fn extend(&mut self, kind: Kind, off: u32, len: u32, granule: u32) {
        self.end = off + len;
        if kind == Kind::Gap {
            let before = self.gaps.last().map_or(0, |&(_, len, before)| len + before);
            self.gaps.push((off / granule, len / granule, before));
            return;
        }
        match self.runs.last_mut() {
            Some(run) if run.1 == off => run.1 = off + len,
            _ => self.runs.push((off, off + len)),
        }
    }

    /// Granules without memory that `[at, at + quanta)` touches.
    fn missing(&self, at: u32, quanta: u32, granule: u32) -> u32 {
        self.gaps_below((at + quanta).div_ceil(granule)) - self.gaps_below(at / granule)
    }

    /// Granules of this hole's gaps below `g`.
    fn gaps_below(&self, g: u32) -> u32 {
        let after = self.gaps.partition_point(|&(first, _, _)| first < g);
        match after.checked_sub(1) {
            None => 0,
            Some(i) => {
                let (first, len, before) = self.gaps[i];
                before + (g - first).min(len)
            }
        }
    }
}
