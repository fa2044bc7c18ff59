//! One coalescing heap over address space, for slabs and extents alike.
//!
//! Owns the division of a pool's address space into blocks, in quanta of 16 KiB:
//!
//! ```text
//!  wall | block | free piece, free piece | gap ........ | free piece | block | ... | wall
//!         live    `---- one run -----'     no memory      one run
//!               `------------------- one hole -----------------'
//! ```
//!
//! - a **block** is live: a slab or an extent;
//! - a **free piece** is backed by memory and carries a stamp; neighbours whose stamps name
//!   the same lane are one piece;
//! - a **run** is a maximal row of free pieces; runs are what placement searches;
//! - a **gap** is free and has no memory behind it; gaps begin and end at granules;
//! - a **hole** is a maximal row of pieces and gaps;
//! - a **ground** is a set of granules that blocks of one tag have to themselves ([`ground`]),
//!   with runs of its own; a border keeps it apart from its neighbours.
//!
//! Invariants: nodes cover each space without overlap, in address order; no two neighbours
//! could be merged and are not, save pieces whose stamps passed since; a granule is backed
//! whole or not at all; `live[g]` counts the quanta of granule `g` that belong to blocks.
//!
//! Policy: exact best fit by length, then address, at the low end of the run. The
//! room calls no driver; who backs and unbacks granules tells it.
//!
//! Cost: [`Heap::take`] and [`Heap::free`] are O(1) in the number of blocks (bins of exact lengths
//! under a two-level bitmap, a pairing heap by address in each bin) while stamps do not
//! stand in the way.

mod account;
mod bins;
mod ground;
mod grow;
mod nodes;
#[cfg(test)]
mod tests;

pub use account::Account;
pub use ground::Part;
pub use grow::{IdleRun, Plan};
pub use nodes::{Kind, NIL, NodeId};

use crate::stream::{LaneId, Lanes, Stamp};
use bins::Bins;
use ground::Ground;
use nodes::Nodes;
use std::collections::BTreeMap;

/// The heap. See the room's page.
#[derive(Debug)]
pub struct Heap {
    nodes: Nodes,
    bins: Bins,
    /// Granules that are one tag's, by tag.
    grounds: Vec<Option<Box<Ground>>>,
    /// Gaps by first quantum.
    gaps: BTreeMap<u32, NodeId>,
    /// Live quanta of each granule.
    live: Vec<u16>,
    /// Quanta a granule, a power of two, and its logarithm: a division would cost more than
    /// all else that a block's granules need.
    per_granule: u32,
    shift: u32,
    counts: Counts,
}

/// Running totals, in quanta and granules.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Quanta of blocks.
    pub live_quanta: u64,
    /// Granules with memory, stranded ones not included.
    pub backed_granules: u64,
    /// Backed granules without a quantum of any block.
    pub idle_granules: u64,
    /// Granules whose memory could not be unmapped.
    pub stranded_granules: u64,
    /// Quanta of blocks in granules whose memory is taken away for a while.
    pub asleep_quanta: u64,
}

/// How many runs [`Heap::take`] may look at when stamps stand in the way.
#[derive(Clone, Copy, Debug)]
pub enum Effort {
    /// A bounded look, for the usual path.
    Quick,
    /// Every run, before giving up.
    Full,
}

impl Heap {
    /// An empty heap over granules of `per_granule` quanta.
    pub fn new(per_granule: u32) -> Heap {
        assert!(per_granule.is_power_of_two() && per_granule <= u32::from(u16::MAX));
        Heap {
            nodes: Nodes::default(),
            bins: Bins::new(),
            grounds: Vec::new(),
            gaps: BTreeMap::new(),
            live: Vec::new(),
            per_granule,
            shift: per_granule.trailing_zeros(),
            counts: Counts::default(),
        }
    }

    /// Adds `granules` of address space, above all earlier ones, as one gap. Walls keep its
    /// blocks apart from the neighbours'. Answers the first granule's number.
    pub fn add_space(&mut self, granules: u32) -> u32 {
        let first = self.live.len() as u32;
        let off = first * self.per_granule;
        self.live.resize((first + granules) as usize, 0);
        let last = self.nodes.last;
        let left = self.nodes.insert_after(last, off, 0, Kind::Wall);
        let gap = self.nodes.insert_after(left, off, granules * self.per_granule, Kind::Gap);
        self.nodes.insert_after(gap, off + granules * self.per_granule, 0, Kind::Wall);
        self.gaps.insert(off, gap);
        first
    }

    /// Running totals.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Quanta a granule.
    pub fn per_granule(&self) -> u32 {
        self.per_granule
    }

    /// First quantum, length and kind of a node.
    pub fn block(&self, node: NodeId) -> (u32, u32, Kind) {
        let n = &self.nodes[node];
        (n.off, n.len, n.kind)
    }

    /// The caller's word kept with a live block.
    pub fn word(&self, node: NodeId) -> u64 {
        debug_assert_eq!(self.nodes[node].kind, Kind::Live);
        self.nodes[node].seq
    }

    /// Sets the caller's word of a live block.
    pub fn set_word(&mut self, node: NodeId, word: u64) {
        debug_assert_eq!(self.nodes[node].kind, Kind::Live);
        self.nodes[node].seq = word;
    }

    /// Takes `quanta` for a block out of the best run that lane `lane` may use: the
    /// shortest that suffices, lowest address among equals, at its low end, rounded up to
    /// `align` quanta. `None` when no backed run fits. No memory is moved or mapped.
    pub fn take(
        &mut self,
        quanta: u32,
        align: u32,
        lane: LaneId,
        lanes: &Lanes,
        effort: Effort,
    ) -> Option<NodeId> {
        debug_assert!(quanta > 0 && align.is_power_of_two());
        // The usual case: the best run has one piece, and it is this lane's.
        if align == 1
            && let Some(head) = self.bins.best(quanta)
            && self.nodes[head].len >= quanta
            && lanes.takeable(self.nodes.stamp(head), lane)
        {
            self.nodes.prefetch_beside(head);
            let start = self.nodes[head].off;
            return Some(self.carve(head, start, quanta));
        }
        let limit = match effort {
            Effort::Quick => 32,
            Effort::Full => usize::MAX,
        };
        let nodes = &self.nodes;
        let found = self.bins.visit(nodes, quanta, limit, |head| {
            nodes.window(head, quanta, align, lane, lanes).map(|start| (head, start))
        });
        let (head, start) = found?;
        Some(self.carve(head, start, quanta))
    }

    /// The best run whatever its stamps: its first aligned place and the stamps of the pieces
    /// there. For a lane that will wait for them in its own stream.
    pub fn find_any(&self, quanta: u32, align: u32) -> Option<(u32, Vec<Stamp>)> {
        let nodes = &self.nodes;
        self.bins.visit(nodes, quanta, usize::MAX, |head| {
            let start = nodes[head].off.next_multiple_of(align);
            let end = start + quanta;
            if end > nodes[head].off + nodes[head].run {
                return None;
            }
            let mut stamps = Vec::new();
            let mut piece = head;
            while nodes[piece].off < end {
                if nodes[piece].off + nodes[piece].len > start {
                    stamps.push(nodes.stamp(piece));
                }
                piece = nodes[piece].next;
            }
            Some((start, stamps))
        })
    }

    /// Takes exactly `[start, start + quanta)`, which must lie in one run.
    pub fn take_at(&mut self, start: u32, quanta: u32) -> NodeId {
        let piece = self.nodes.find_free(start, &self.gaps, &self.bins);
        let head = self.nodes.head(piece);
        self.carve(head, start, quanta)
    }

    /// Cuts `[start, start + quanta)` out of the run that begins at `head`.
    fn carve(&mut self, head: NodeId, start: u32, quanta: u32) -> NodeId {
        let run = self.nodes[head].run;
        self.unbin(head);
        let h = &self.nodes[head];
        let (off, len) = (h.off, h.len);
        debug_assert!(start >= off && start + quanta <= off + run);
        let block = if start == off && len == run && len > quanta {
            // The usual case: the low end of a run of one piece.
            let (prev, ground) = (h.prev, h.ground);
            let block = self.nodes.insert_after(prev, off, quanta, Kind::Live);
            self.nodes[block].ground = ground;
            let rest = &mut self.nodes[head];
            rest.off += quanta;
            rest.len -= quanta;
            rest.run = run - quanta;
            self.bin(head);
            block
        } else {
            self.carve_pieces(head, start, quanta, run)
        };
        let n = &mut self.nodes[block];
        n.kind = Kind::Live;
        n.seq = 0;
        self.add_live(start, quanta);
        block
    }

    fn carve_pieces(&mut self, head: NodeId, start: u32, quanta: u32, run: u32) -> NodeId {
        let run_start = self.nodes[head].off;
        let run_end = run_start + run;
        let block = self.nodes.cut_out(head, start, quanta);
        if start > run_start {
            self.nodes[head].run = start - run_start;
            self.bin(head);
        }
        let end = start + quanta;
        if end < run_end {
            let rest = self.nodes[block].next;
            self.nodes[rest].run = run_end - end;
            self.bin(rest);
        }
        block
    }

    /// Says that the block at `node` is about to be freed, so that its neighbours are at hand by
    /// then. Changes nothing.
    #[inline(always)]
    pub fn expect_free(&self, node: NodeId) {
        self.nodes.prefetch_beside(node);
    }

    /// Frees a block: it becomes a piece with `stamp` and joins its neighbours.
    pub fn free(&mut self, node: NodeId, stamp: Stamp, lanes: &Lanes) {
        self.nodes.prefetch_beside(node);
        let n = &mut self.nodes[node];
        debug_assert_eq!(n.kind, Kind::Live);
        n.kind = Kind::Free;
        n.lane = stamp.lane;
        n.seq = stamp.seq;
        let (off, len, ground) = (n.off, n.len, n.ground);
        self.sub_live(off, len);
        let head = self.join_run(node, Some(lanes));
        if ground != 0 {
            self.leave_ground(head, (off, len), lanes);
        }
    }

    /// Adds the run at `head` to its ground's bins.
    #[inline(always)]
    fn bin(&mut self, head: NodeId) {
        match self.nodes[head].ground {
            0 => self.bins.insert(&mut self.nodes, head),
            ground => self.bin_in(ground, head),
        }
    }

    /// Takes the run at `head` out of its ground's bins.
    #[inline(always)]
    fn unbin(&mut self, head: NodeId) {
        match self.nodes[head].ground {
            0 => self.bins.remove(&mut self.nodes, head),
            ground => self.unbin_in(ground, head),
        }
    }

    /// Makes a free piece part of the runs beside it and puts the run in its bin; answers its
    /// first piece. With `lanes`, pieces whose stamps passed become clean first.
    fn join_run(&mut self, node: NodeId, lanes: Option<&Lanes>) -> NodeId {
        let mut piece = node;
        let mut head = node;
        let mut run = self.nodes[node].len;
        let prev = self.nodes[node].prev;
        if prev != NIL && self.nodes[prev].kind == Kind::Free {
            head = self.nodes.head(prev);
            self.unbin(head);
            run += self.nodes[head].run;
            if self.nodes.merge_if_same(prev, piece, lanes) {
                piece = prev;
            }
        }
        let next = self.nodes[piece].next;
        if next != NIL && self.nodes[next].kind == Kind::Free {
            self.unbin(next);
            run += self.nodes[next].run;
            self.nodes.merge_if_same(piece, next, lanes);
        }
        self.nodes[head].run = run;
        self.bin(head);
        head
    }

    /// The part of `[off, end)` that lies in a granule.
    #[inline(always)]
    fn part(&self, granule: u32, off: u32, end: u32) -> u16 {
        let start = granule << self.shift;
        (end.min(start + self.per_granule) - off.max(start)) as u16
    }

    fn add_live(&mut self, off: u32, len: u32) {
        self.counts.live_quanta += u64::from(len);
        let end = off + len;
        for granule in off >> self.shift..=(end - 1) >> self.shift {
            let part = self.part(granule, off, end);
            let live = &mut self.live[granule as usize];
            self.counts.idle_granules -= u64::from(*live == 0);
            *live += part;
            debug_assert!(u32::from(*live) <= self.per_granule);
        }
    }

    fn sub_live(&mut self, off: u32, len: u32) {
        self.counts.live_quanta -= u64::from(len);
        let end = off + len;
        for granule in off >> self.shift..=(end - 1) >> self.shift {
            let part = self.part(granule, off, end);
            let live = &mut self.live[granule as usize];
            debug_assert!(*live >= part);
            *live -= part;
            self.counts.idle_granules += u64::from(*live == 0);
        }
    }
}
