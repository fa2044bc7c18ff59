//! The nodes: every block, free piece and gap, in one array, linked by address.
//!
//! Owns the links; knows nothing of bins or gaps' index. A node is 64 bytes; freed
//! numbers are reused, so after warm-up nothing is allocated on the host heap.

use super::bins::Bins;
use crate::base::raw::prefetch;
use crate::stream::{LaneId, Lanes, Stamp};
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// A node's number.
pub type NodeId = u32;

/// No node.
pub const NIL: NodeId = u32::MAX;

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The end of a space; length 0, merges with nothing.
    Wall,
    /// Where granules of different grounds meet inside a space; length 0, merges with nothing.
    Border,
    /// Free, no memory behind it.
    Gap,
    /// Free, backed.
    Free,
    /// A block.
    Live,
    /// A granule kept without memory behind a block, to catch what runs over its end.
    Guard,
    /// Another's memory, mapped here: no block of the heap's, and merges with nothing.
    Foreign,
    /// Memory that could not be unmapped: in nobody's use until it can.
    Stranded,
}

/// One node; a cache line, so that looking at a neighbour costs one miss at most.
#[repr(align(64))]
#[derive(Clone, Debug)]
pub struct Node {
    /// First quantum.
    pub off: u32,
    /// Length in quanta.
    pub len: u32,
    /// The node below.
    pub prev: NodeId,
    /// The node above.
    pub next: NodeId,
    /// What it is.
    pub kind: Kind,
    /// Live, free: the ground that its granules belong to; 0 is everyone's.
    pub ground: u8,
    /// Free: the stamp's lane.
    pub lane: LaneId,
    /// Free: the stamp's sequence. Live: the caller's word.
    pub seq: u64,
    /// Free and first of its run: the run's length.
    pub run: u32,
    /// Pairing heap: first child, next sibling, parent or previous sibling.
    pub child: NodeId,
    /// See `child`.
    pub sibling: NodeId,
    /// See `child`.
    pub up: NodeId,
}

/// All nodes of a heap.
#[derive(Debug)]
pub struct Nodes {
    array: Vec<Node>,
    spare: Vec<NodeId>,
    /// The lowest and highest node.
    pub first: NodeId,
    /// See `first`.
    pub last: NodeId,
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes { array: Vec::new(), spare: Vec::new(), first: NIL, last: NIL }
    }
}

impl Index<NodeId> for Nodes {
    type Output = Node;
    #[inline(always)]
    fn index(&self, node: NodeId) -> &Node {
        &self.array[node as usize]
    }
}

impl IndexMut<NodeId> for Nodes {
    #[inline(always)]
    fn index_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.array[node as usize]
    }
}

impl Nodes {
    /// A new node above `prev` ([`NIL`]: the lowest of all).
    pub fn insert_after(&mut self, prev: NodeId, off: u32, len: u32, kind: Kind) -> NodeId {
        let next = if prev == NIL { self.first } else { self[prev].next };
        let node = Node {
            off,
            len,
            prev,
            next,
            kind,
            ground: 0,
            lane: 0,
            seq: 0,
            run: 0,
            child: NIL,
            sibling: NIL,
            up: NIL,
        };
        let id = match self.spare.pop() {
            Some(id) => {
                self[id] = node;
                id
            }
            None => {
                self.array.push(node);
                (self.array.len() - 1) as NodeId
            }
        };
        match prev {
            NIL => self.first = id,
            _ => self[prev].next = id,
        }
        match next {
            NIL => self.last = id,
            _ => self[next].prev = id,
        }
        id
    }

    /// Asks for the neighbours' lines ahead of the looks at them.
    #[inline(always)]
    pub fn prefetch_beside(&self, node: NodeId) {
        let n = &self[node];
        for beside in [n.prev, n.next] {
            if let Some(beside) = self.array.get(beside as usize) {
                prefetch(beside);
            }
        }
    }

    /// Unlinks a node and keeps its number for later.
    pub fn remove(&mut self, node: NodeId) {
        let (prev, next) = (self[node].prev, self[node].next);
        match prev {
            NIL => self.first = next,
            _ => self[prev].next = next,
        }
        match next {
            NIL => self.last = prev,
            _ => self[next].prev = prev,
        }
        self.spare.push(node);
    }

    /// The stamp of a free piece.
    pub fn stamp(&self, node: NodeId) -> Stamp {
        Stamp { lane: self[node].lane, seq: self[node].seq }
    }

    /// The first piece of `piece`'s run.
    pub fn head(&self, piece: NodeId) -> NodeId {
        debug_assert_eq!(self[piece].kind, Kind::Free);
        let mut head = piece;
        loop {
            let prev = self[head].prev;
            if prev == NIL || self[prev].kind != Kind::Free {
                return head;
            }
            head = prev;
        }
    }

    /// Splits a node at quantum `at`; the upper part is a new node of the same kind, ground and
    /// stamp.
    pub fn split(&mut self, node: NodeId, at: u32) -> NodeId {
        let n = &self[node];
        debug_assert!(n.off < at && at < n.off + n.len);
        let (kind, ground, lane, seq) = (n.kind, n.ground, n.lane, n.seq);
        let upper_len = n.off + n.len - at;
        let upper = self.insert_after(node, at, upper_len, kind);
        self[upper].ground = ground;
        self[upper].lane = lane;
        self[upper].seq = seq;
        self[node].len -= upper_len;
        upper
    }

    /// Makes the pieces of `[start, start + len)`, in the run that begins at `head`, one node.
    /// Its kind stays free; the caller says what it becomes.
    pub fn cut_out(&mut self, head: NodeId, start: u32, len: u32) -> NodeId {
        let end = start + len;
        let mut piece = head;
        while self[piece].off + self[piece].len <= start {
            piece = self[piece].next;
        }
        if self[piece].off < start {
            piece = self.split(piece, start);
        }
        while self[piece].off + self[piece].len < end {
            let next = self[piece].next;
            debug_assert_eq!(self[next].kind, Kind::Free);
            if self[next].off + self[next].len > end {
                self.split(next, end);
            }
            self[piece].len += self[next].len;
            self.remove(next);
        }
        if self[piece].off + self[piece].len > end {
            self.split(piece, end);
        }
        debug_assert!(self[piece].off == start && self[piece].len == len);
        piece
    }

    /// Merges `upper` into `lower` when their stamps name the same lane. With `lanes`, stamps
    /// that have passed count as clean.
    pub fn merge_if_same(&mut self, lower: NodeId, upper: NodeId, lanes: Option<&Lanes>) -> bool {
        let (mut a, mut b) = (self.stamp(lower), self.stamp(upper));
        if a.lane != b.lane
            && let Some(lanes) = lanes
        {
            a = self.cleaned(lower, a, lanes);
            b = self.cleaned(upper, b, lanes);
        }
        let Some(stamp) = a.merged(b) else { return false };
        let upper_len = self[upper].len;
        self.remove(upper);
        let n = &mut self[lower];
        n.len += upper_len;
        n.lane = stamp.lane;
        n.seq = stamp.seq;
        true
    }

    fn cleaned(&mut self, node: NodeId, stamp: Stamp, lanes: &Lanes) -> Stamp {
        if !lanes.cleans(stamp) {
            return stamp;
        }
        self[node].lane = Stamp::CLEAN.lane;
        self[node].seq = Stamp::CLEAN.seq;
        Stamp::CLEAN
    }

    /// The lowest aligned place of `quanta` in the run at `head` that `lane` may take.
    #[inline]
    pub fn window(
        &self,
        head: NodeId,
        quanta: u32,
        align: u32,
        lane: LaneId,
        lanes: &Lanes,
    ) -> Option<u32> {
        let run_end = self[head].off + self[head].run;
        let mut start = self[head].off;
        let mut piece = head;
        loop {
            let n = &self[piece];
            let end = n.off + n.len;
            if lanes.takeable(self.stamp(piece), lane) {
                let aligned = start.next_multiple_of(align);
                if aligned + quanta <= end {
                    return Some(aligned);
                }
            } else {
                start = end;
            }
            if end == run_end || start + quanta > run_end {
                return None;
            }
            piece = n.next;
        }
    }

    /// The free piece that holds quantum `at`. Looks among gaps' neighbours and runs.
    pub fn find_free(&self, at: u32, gaps: &BTreeMap<u32, NodeId>, bins: &Bins) -> NodeId {
        let holds = |id: NodeId| {
            let n = &self[id];
            n.kind == Kind::Free && n.off <= at && at < n.off + n.len
        };
        if let Some((_, &gap)) = gaps.range(..=at).next_back() {
            let next = self[gap].next;
            if next != NIL && holds(next) {
                return next;
            }
        }
        if let Some((_, &gap)) = gaps.range(at..).next() {
            let prev = self[gap].prev;
            if prev != NIL && holds(prev) {
                return prev;
            }
        }
        bins.visit(self, 1, usize::MAX, |head| {
            let mut piece = head;
            let end = self[head].off + self[head].run;
            if at < self[head].off || at >= end {
                return None;
            }
            while !holds(piece) {
                piece = self[piece].next;
            }
            Some(piece)
        })
        .expect("the quantum lies in a free piece: the caller just backed or checked it")
    }
}
