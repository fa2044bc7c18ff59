//! Tests of the heap: what they share. Rules of placement, of growing, and a naive model.

mod ground;
mod grow;
mod model;
mod place;
mod reference;

use super::*;
use crate::stream::LaneKind;
use crate::stream::tests::fake::FakeDriver;

/// Quanta a granule in most tests: small, so that cases are small.
const PER: u32 = 8;

/// A heap, its lanes, and the driver that passes fences by hand.
struct Bench {
    heap: Heap,
    lanes: Lanes,
    fake: FakeDriver,
}

impl Bench {
    /// One space of `granules`, all of them backed.
    fn backed(granules: u32) -> Bench {
        let mut bench = Bench::space(granules);
        bench.heap.back(0, granules);
        bench
    }

    /// One space of `granules` without memory.
    fn space(granules: u32) -> Bench {
        let mut bench = Bench::new(PER);
        assert_eq!(bench.heap.add_space(granules), 0);
        bench
    }

    fn new(per_granule: u32) -> Bench {
        Bench { heap: Heap::new(per_granule), lanes: Lanes::new(true), fake: FakeDriver::new() }
    }

    fn lane(&mut self, number: u64) -> LaneId {
        let kind = LaneKind::Stream(crate::driver::StreamHandle(number));
        self.lanes.open(number, kind).expect("a free number")
    }

    fn take(&mut self, quanta: u32, lane: LaneId) -> Option<NodeId> {
        let node = self.heap.take(quanta, 1, lane, &self.lanes, Effort::Full);
        self.check();
        node
    }

    /// Checks the heap's invariants; under Miri, which is slow, those of small heaps.
    fn check(&self) {
        if !cfg!(miri) || self.heap.live.len() <= 8 {
            self.heap.check();
        }
    }

    /// Takes and answers the first quantum.
    fn take_off(&mut self, quanta: u32, lane: LaneId) -> Option<u32> {
        self.take(quanta, lane).map(|node| self.heap.block(node).0)
    }

    fn free(&mut self, node: NodeId, stamp: Stamp) {
        self.heap.free(node, stamp, &self.lanes);
        self.check();
    }

    /// Frees in `lane`'s order; answers the stamp.
    fn free_on(&mut self, node: NodeId, lane: LaneId) -> Stamp {
        let stamp = self.lanes.stamp(lane, 1);
        self.free(node, stamp);
        stamp
    }

    /// Fences what `lane` freed and lets it pass.
    fn finish(&mut self, lane: LaneId) {
        assert!(self.lanes.record(&self.fake, lane).expect("no fault"));
        self.fake.pass_all();
        self.lanes.settle(&self.fake).expect("no fault");
    }

    /// Everything between the walls, by address: kind, first quantum, length, stamp of a piece.
    fn layout(&self) -> Vec<(Kind, u32, u32, Option<Stamp>)> {
        let nodes = &self.heap.nodes;
        let mut all = Vec::new();
        let mut node = nodes.first;
        while node != NIL {
            let n = &nodes[node];
            if !matches!(n.kind, Kind::Wall | Kind::Border) {
                let stamp = (n.kind == Kind::Free).then(|| nodes.stamp(node));
                all.push((n.kind, n.off, n.len, stamp));
            }
            node = n.next;
        }
        all
    }

    /// Makes a row of blocks of these lengths from quantum 0 on, the rest one run; frees those
    /// at even places, clean. The blocks between keep the runs apart.
    fn runs(&mut self, lengths: &[u32], lane: LaneId) -> Vec<NodeId> {
        let nodes: Vec<NodeId> =
            lengths.iter().map(|&len| self.take(len, lane).expect("room")).collect();
        let (mut freed, mut kept) = (Vec::new(), Vec::new());
        for (i, node) in nodes.into_iter().enumerate() {
            if i % 2 == 0 { freed.push(node) } else { kept.push(node) }
        }
        for node in freed {
            self.free(node, Stamp::CLEAN);
        }
        kept
    }
}
