//! Grounds: granules that the blocks of one tag have to themselves.
//!
//! Owns which granules are whose. A ground's granules hold blocks and free pieces of its tag and of
//! nobody else, so that their memory can be taken away as a whole and come back later: the ground
//! is then **asleep**. Promises:
//!
//! - a granule belongs to a ground from the first block of its tag there to the last one's end,
//!   then it is everyone's again; what a graph's capture has freed stays the tag's until the graph
//!   is gone, which uses it whenever it is launched;
//! - runs of a ground are in bins of its own: no other request, and no look for idle granules, sees
//!   them;
//! - what is freed while the ground is asleep becomes a gap where it was whole granules, once its
//!   stamp has passed.
//!
//! Calls no driver. Cost: as for other blocks, and a step in an ordered set for each granule that
//! comes or goes; what looks at all parts of a ground walks all nodes.

use super::bins::Bins;
use super::grow::IdleRun;
use super::nodes::{Kind, NIL, NodeId};
use super::{Heap, Stamp};
use crate::stream::{LaneId, Lanes};
use std::collections::BTreeSet;

/// The granules of one tag.
#[derive(Debug)]
pub struct Ground {
    bins: Bins,
    granules: BTreeSet<u32>,
    asleep: bool,
}

/// What quanta of a ground are in use for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A block.
    Block(NodeId),
    /// Freed; something may still use it.
    Piece(Stamp),
}

impl Heap {
    /// Gives `tag` (1 to 127) a ground, without granules yet. Again is fine.
    pub fn open_ground(&mut self, tag: u8) {
        debug_assert!(tag > 0, "0 is everyone's ground");
        let index = usize::from(tag);
        if self.grounds.len() <= index {
            self.grounds.resize_with(index + 1, || None);
        }
        let fresh =
            || Box::new(Ground { bins: Bins::new(), granules: BTreeSet::new(), asleep: false });
        self.grounds[index].get_or_insert_with(fresh);
    }

    fn ground(&self, tag: u8) -> Option<&Ground> {
        self.grounds.get(usize::from(tag))?.as_deref()
    }

    fn ground_mut(&mut self, tag: u8) -> &mut Ground {
        self.grounds[usize::from(tag)].as_mut().expect("the tag has a ground")
    }

    /// The tag whose ground a block lies in; 0: none's.
    pub fn ground_of(&self, node: NodeId) -> u8 {
        self.nodes[node].ground
    }

    /// Whether a tag's memory is taken away now.
    pub fn is_asleep(&self, tag: u8) -> bool {
        self.ground(tag).is_some_and(|ground| ground.asleep)
    }

    /// Whether a granule is a tag's own.
    pub fn is_ground(&self, tag: u8, granule: u32) -> bool {
        self.ground(tag).is_some_and(|ground| ground.granules.contains(&granule))
    }

    #[cold]
    pub(super) fn bin_in(&mut self, tag: u8, head: NodeId) {
        let ground = self.grounds[usize::from(tag)].as_mut().expect("the tag has a ground");
        ground.bins.insert(&mut self.nodes, head);
    }

    #[cold]
    pub(super) fn unbin_in(&mut self, tag: u8, head: NodeId) {
        let ground = self.grounds[usize::from(tag)].as_mut().expect("the tag has a ground");
        ground.bins.remove(&mut self.nodes, head);
    }

    /// As [`Heap::take`], out of a tag's own granules.
    pub fn take_in(
        &mut self,
        tag: u8,
        quanta: u32,
        align: u32,
        lane: LaneId,
        lanes: &Lanes,
    ) -> Option<NodeId> {
        let (nodes, ground) = (&self.nodes, self.ground(tag)?);
        debug_assert!(!ground.asleep, "nothing is taken from a ground that is asleep");
        let (head, start) = ground.bins.visit(nodes, quanta, usize::MAX, |head| {
            nodes.window(head, quanta, align, lane, lanes).map(|start| (head, start))
        })?;
        Some(self.carve(head, start, quanta))
    }

    /// Makes a block of whole granules, just taken from everyone's ground, the tag's own: the block
    /// keeps its first `quanta`, which reach into its last granule; what is left is free with
    /// `stamp`.
    pub fn dedicate(&mut self, node: NodeId, quanta: u32, tag: u8, stamp: Stamp) {
        let n = &mut self.nodes[node];
        let (off, len) = (n.off, n.len);
        debug_assert!(n.kind == Kind::Live && n.ground == 0);
        debug_assert!((off | len).is_multiple_of(self.per_granule));
        debug_assert!(quanta <= len && len - quanta < self.per_granule);
        n.ground = tag;
        let mut last = node;
        if quanta < len {
            last = self.nodes.split(node, off + quanta);
            let tail = &mut self.nodes[last];
            tail.kind = Kind::Free;
            (tail.lane, tail.seq) = (stamp.lane, stamp.seq);
            self.live[((off + len - 1) >> self.shift) as usize] -= (len - quanta) as u16;
            self.counts.live_quanta -= u64::from(len - quanta);
        }
        let (first, end) = (off >> self.shift, (off + len) >> self.shift);
        self.ground_mut(tag).granules.extend(first..end);
        let below = self.below(node);
        self.mend_border(below);
        self.mend_border(last);
        if last != node {
            self.join_run(last, None);
        }
    }

    /// The node below that is no border.
    fn below(&self, node: NodeId) -> NodeId {
        let below = self.nodes[node].prev;
        if self.nodes[below].kind == Kind::Border { self.nodes[below].prev } else { below }
    }

    /// Puts a border above `left` where the node above is of another ground; else takes one away.
    fn mend_border(&mut self, left: NodeId) {
        let next = self.nodes[left].next;
        if next == NIL {
            return;
        }
        let border = self.nodes[next].kind == Kind::Border;
        let right = if border { self.nodes[next].next } else { next };
        let walled = [left, right].iter().any(|&n| self.nodes[n].kind == Kind::Wall);
        let wanted = !walled && self.nodes[left].ground != self.nodes[right].ground;
        match (border, wanted) {
            (true, false) => self.nodes.remove(next),
            (false, true) => {
                let off = self.nodes[right].off;
                self.nodes.insert_after(left, off, 0, Kind::Border);
            }
            _ => {}
        }
    }

    /// A block of a ground was freed at `[off, off + len)`, in the run that begins at `head`: the
    /// granules that nothing holds any more are everyone's again.
    pub(super) fn leave_ground(&mut self, head: NodeId, (off, len): (u32, u32), lanes: &Lanes) {
        let tag = self.nodes[head].ground;
        let (low, high) = (off >> self.shift, (off + len - 1) >> self.shift);
        let held = |granule: u32| u32::from(self.live[granule as usize] > 0);
        let (first, end) = (low + held(low), (high + 1).saturating_sub(held(high)));
        let asleep = self.is_asleep(tag);
        if asleep {
            self.counts.asleep_quanta -= u64::from(len);
            self.counts.idle_granules -= u64::from(end.saturating_sub(first));
        }
        if first < end && self.is_everyones(head, (first, end), asleep, lanes) {
            self.give_back(head, (first, end), lanes);
        }
    }

    /// Whether idle granules of the run at `head` may go to others: no graph uses the pieces there;
    /// asleep, nothing may use them, since they lose their memory.
    fn is_everyones(
        &self,
        head: NodeId,
        (first, end): (u32, u32),
        asleep: bool,
        lanes: &Lanes,
    ) -> bool {
        let kept = |stamp| match asleep {
            true => !lanes.passed(stamp),
            false => lanes.awaits_graph(stamp),
        };
        let (start, stop) = (first << self.shift, end << self.shift);
        let mut piece = head;
        while piece != NIL && self.nodes[piece].kind == Kind::Free && self.nodes[piece].off < stop {
            let n = &self.nodes[piece];
            if n.off + n.len > start && kept(self.nodes.stamp(piece)) {
                return false;
            }
            piece = n.next;
        }
        true
    }

    /// Makes idle granules of the run at `head` everyone's: pieces as they are, or a gap if their
    /// memory is taken away.
    fn give_back(&mut self, head: NodeId, (first, end): (u32, u32), lanes: &Lanes) {
        let (start, stop) = (first << self.shift, end << self.shift);
        let (tag, run_start) = (self.nodes[head].ground, self.nodes[head].off);
        let run_end = run_start + self.nodes[head].run;
        debug_assert!(run_start <= start && stop <= run_end, "idle granules lie in one run");
        self.unbin(head);
        let mut low = head;
        while self.nodes[low].off + self.nodes[low].len <= start {
            low = self.nodes[low].next;
        }
        if self.nodes[low].off < start {
            low = self.nodes.split(low, start);
        }
        let mut high = low;
        while self.nodes[high].off + self.nodes[high].len < stop {
            high = self.nodes[high].next;
        }
        if self.nodes[high].off + self.nodes[high].len > stop {
            self.nodes.split(high, stop);
        }
        let mut piece = low;
        self.nodes[piece].ground = 0;
        while piece != high {
            piece = self.nodes[piece].next;
            self.nodes[piece].ground = 0;
        }
        if run_start < start {
            self.nodes[head].run = start - run_start;
            self.bin(head);
        }
        if stop < run_end {
            let rest = self.nodes[high].next;
            self.nodes[rest].run = run_end - stop;
            self.bin(rest);
        }
        let ground = self.ground_mut(tag);
        (first..end).for_each(|granule| _ = ground.granules.remove(&granule));
        let asleep = ground.asleep;
        let below = self.below(low);
        self.mend_border(below);
        self.mend_border(high);
        if asleep { self.make_gap(low, high) } else { self.join_pieces((low, high), lanes) }
    }

    /// Makes a row of pieces without memory a gap.
    fn make_gap(&mut self, low: NodeId, high: NodeId) {
        let mut more = low != high;
        while more {
            let next = self.nodes[low].next;
            more = next != high;
            self.nodes[low].len += self.nodes[next].len;
            self.nodes.remove(next);
        }
        self.nodes[low].kind = Kind::Gap;
        self.join_gap(low);
    }

    /// Makes a row of pieces that are in no bin part of the runs beside it.
    fn join_pieces(&mut self, (mut low, mut high): (NodeId, NodeId), lanes: &Lanes) {
        let mut head = low;
        let mut run = self.nodes[high].off + self.nodes[high].len - self.nodes[low].off;
        let prev = self.nodes[low].prev;
        if self.nodes[prev].kind == Kind::Free {
            head = self.nodes.head(prev);
            self.unbin(head);
            run += self.nodes[head].run;
            if self.nodes.merge_if_same(prev, low, Some(lanes)) {
                high = if high == low { prev } else { high };
                low = prev;
            }
        }
        debug_assert!(self.nodes[low].off <= self.nodes[high].off);
        let next = self.nodes[high].next;
        if self.nodes[next].kind == Kind::Free {
            self.unbin(next);
            run += self.nodes[next].run;
            self.nodes.merge_if_same(high, next, Some(lanes));
        }
        self.nodes[head].run = run;
        self.bin(head);
    }

    /// Gives back what a ground holds for nothing: idle granules that stamps kept when their blocks
    /// were freed, and keep no more.
    pub fn sweep(&mut self, tag: u8, lanes: &Lanes) {
        let Some(ground) = self.ground(tag) else { return };
        let asleep = ground.asleep;
        let idle = |granule: &u32| self.live[*granule as usize] == 0;
        let granules: Vec<u32> = ground.granules.iter().copied().filter(idle).collect();
        for granule in granules {
            let at = granule << self.shift;
            let bins = &self.ground(tag).expect("seen above").bins;
            let piece = self.nodes.find_free(at, &self.gaps, bins);
            let head = self.nodes.head(piece);
            if self.is_everyones(head, (granule, granule + 1), asleep, lanes) {
                self.give_back(head, (granule, granule + 1), lanes);
            }
        }
    }

    /// A ground's granules, as rows of adjacent ones.
    pub fn ground_rows(&self, tag: u8) -> Vec<IdleRun> {
        let mut rows: Vec<IdleRun> = Vec::new();
        for &granule in self.ground(tag).iter().flat_map(|ground| &ground.granules) {
            match rows.last_mut() {
                Some(row) if row.granule + row.len == granule => row.len += 1,
                _ => rows.push(IdleRun { granule, len: 1 }),
            }
        }
        rows
    }

    /// Tells that the memory of all of a ground's granules is gone, or is there again.
    pub fn set_asleep(&mut self, tag: u8, asleep: bool) {
        let Some(ground) = self.grounds.get_mut(usize::from(tag)).and_then(Option::as_mut) else {
            return;
        };
        if std::mem::replace(&mut ground.asleep, asleep) == asleep {
            return;
        }
        let granules = ground.granules.len() as u64;
        let live = |granule: &u32| u64::from(self.live[*granule as usize]);
        let quanta: u64 = ground.granules.iter().map(live).sum();
        let idle = ground.granules.iter().filter(|granule| live(granule) == 0).count() as u64;
        let counts = &mut self.counts;
        if asleep {
            counts.backed_granules -= granules;
            counts.idle_granules -= idle;
            counts.asleep_quanta += quanta;
        } else {
            counts.backed_granules += granules;
            counts.idle_granules += idle;
            counts.asleep_quanta -= quanta;
        }
    }

    /// Calls `f` with each part of a ground that is in use, or may be, by address: first quantum,
    /// length, and what it is.
    pub fn each_part(&self, tag: u8, lanes: &Lanes, mut f: impl FnMut(u32, u32, Part)) {
        let mut node = self.nodes.first;
        while node != NIL {
            let n = &self.nodes[node];
            if n.ground == tag && n.kind == Kind::Live {
                f(n.off, n.len, Part::Block(node));
            } else if n.ground == tag && n.kind == Kind::Free {
                let stamp = self.nodes.stamp(node);
                if !lanes.passed(stamp) {
                    f(n.off, n.len, Part::Piece(stamp));
                }
            }
            node = n.next;
        }
    }

    /// The bins whose runs have memory, everyone's first.
    pub(super) fn awake_bins(&self) -> impl Iterator<Item = &Bins> {
        let own = self.grounds.iter().flatten().filter(|ground| !ground.asleep);
        std::iter::once(&self.bins).chain(own.map(|ground| &ground.bins))
    }

    /// The bins of the ground of a free piece.
    pub(super) fn bins_of(&self, piece: NodeId) -> &Bins {
        let own = self.ground(self.nodes[piece].ground);
        own.map_or(&self.bins, |ground| &ground.bins)
    }

    /// Checks the invariants of this file's page. For tests; panics with what is wrong.
    pub(super) fn check_grounds(&self) {
        let mut covered = vec![0u64; 128];
        let (mut node, mut before) = (self.nodes.first, None);
        while node != NIL {
            let n = &self.nodes[node];
            match n.kind {
                Kind::Wall => before = None,
                Kind::Border => {
                    let above = self.nodes[n.next].ground;
                    assert_ne!(before, Some(above), "a border parts two grounds");
                    before = None;
                }
                _ => {
                    assert!(before.is_none_or(|ground| ground == n.ground), "a border is missing");
                    before = Some(n.ground);
                    covered[usize::from(n.ground)] += u64::from(n.len);
                }
            }
            if n.ground != 0 {
                assert!(matches!(n.kind, Kind::Live | Kind::Free), "{n:?}");
                let ground = self.ground(n.ground).expect("it has a ground");
                let granules = n.off >> self.shift..=(n.off + n.len - 1) >> self.shift;
                granules.for_each(|granule| assert!(ground.granules.contains(&granule)));
            }
            node = n.next;
        }
        let mut asleep_quanta = 0;
        for (tag, ground) in self.grounds.iter().enumerate() {
            let Some(ground) = ground else { continue };
            let quanta = ground.granules.len() as u64 * u64::from(self.per_granule);
            assert_eq!(covered[tag], quanta, "granules are wholly one ground's");
            for &granule in &ground.granules {
                let live = self.live[granule as usize];
                asleep_quanta += u64::from(live) * u64::from(ground.asleep);
            }
        }
        assert_eq!(asleep_quanta, self.counts.asleep_quanta);
    }
}
