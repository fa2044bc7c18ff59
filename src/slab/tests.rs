//! Tests of slabs, marks and depots.

#[cfg(loom)]
mod exchange;
mod model;

use super::class::{class_of, slot_bytes};
use super::depot::{Budget, Depot, Full, ROUNDS_MAX};
use super::marks::{Descriptor, Marks};
use super::slabs::{SlabId, Slabs};
use super::*;
use crate::base::sync::atomic::Ordering;
use crate::base::units::{KIB, MIB, QUANTUM};
use crate::stream::LaneId;

/// Slabs and their marks.
struct Bench {
    slabs: Slabs,
    marks: Marks,
}

impl Bench {
    fn new(quanta: usize) -> Bench {
        Bench { slabs: Slabs::default(), marks: Marks::new(quanta).expect("address space") }
    }

    /// A slab at `off`, of as many quanta; its node is 1000 + `off`.
    fn open(&mut self, off: u32, quanta: u32, lane: LaneId, class: usize) -> SlabId {
        let opened = self.slabs.open(&mut self.marks, 1000 + off, (off, quanta), lane, class);
        opened.expect("marks are left")
    }

    /// Takes up to `want`; marks them live.
    fn take(&mut self, lane: LaneId, class: usize, want: usize) -> Vec<Round> {
        let mut rounds = Vec::new();
        let taken = self.slabs.take(lane, class, want, |round| rounds.push(round));
        assert_eq!(taken, rounds.len());
        for round in &rounds {
            let before = self.marks.mark(round.mark()).swap(1, Ordering::Relaxed);
            assert_eq!(before, 0, "a free slot's mark says not live");
        }
        rounds
    }

    fn give(&mut self, round: Round) -> Option<SlabId> {
        assert_eq!(self.marks.mark(round.mark()).swap(0, Ordering::Relaxed), 1);
        self.slabs.give(round)
    }
}

fn units(rounds: &[Round]) -> Vec<u32> {
    rounds.iter().map(|round| round.unit()).collect()
}

const A: LaneId = 1;
const B: LaneId = 2;

#[test]
fn rounds_hold_a_place_and_a_mark() {
    let round = Round::new(u32::MAX - 1, 7);
    assert_eq!((round.unit(), round.mark()), (u32::MAX - 1, 7));
    assert_eq!(Round::new(64 * 5 + 63, 0).quantum(), 5);
}

#[test]
fn new_slabs_are_a_sixteenth_of_what_their_class_has_out() {
    let mut bench = Bench::new(4096);
    let wanted = |bench: &Bench, lane, bytes| bench.slabs.wanted(lane, class_of(bytes));
    // Nothing out: 64 KiB, or one slot. The second number is one slot.
    assert_eq!(wanted(&bench, A, 256), (4, 1));
    assert_eq!(wanted(&bench, A, 64 * KIB), (4, 4));
    assert_eq!(wanted(&bench, A, 40 * KIB), (3, 3), "whole slots, rounded up to a quantum");
    assert_eq!(wanted(&bench, A, 256 * KIB), (16, 16));
    // 64 slots of 64 KiB out: 4 MiB, so 256 KiB.
    let class = class_of(64 * KIB);
    for i in 0..20 {
        bench.open(i * 128, 128, A, class);
    }
    let take = |bench: &mut Bench, slots| {
        let taken: usize = (0..slots / 32).map(|_| bench.take(A, class, 32).len()).sum();
        assert_eq!(taken, slots);
    };
    take(&mut bench, 64);
    assert_eq!(wanted(&bench, A, 64 * KIB), (16, 4));
    assert_eq!(wanted(&bench, B, 64 * KIB), (4, 4), "a lane's own bytes count");
    assert_eq!(wanted(&bench, A, 256), (4, 1), "a class's own bytes count");
    take(&mut bench, 544);
    assert_eq!(wanted(&bench, A, 64 * KIB), (128, 4), "38 MiB out: 2 MiB at most");
}

#[test]
fn the_lowest_slab_and_its_lowest_slots_come_first() {
    let mut bench = Bench::new(64);
    let class = class_of(1024);
    bench.open(8, 4, A, class);
    bench.open(32, 4, A, class);
    bench.open(0, 4, B, class);
    assert_eq!(bench.slabs.first_partial(A, class), Some(8));
    assert_eq!(units(&bench.take(A, class, 3)), [8 * 64, 8 * 64 + 4, 8 * 64 + 8]);
    let rounds = bench.take(A, class, 1);
    assert_eq!(units(&rounds), [8 * 64 + 12]);
    bench.give(rounds[0]);
    let rounds = bench.take(A, class, 100);
    assert_eq!(rounds.len(), 61, "the rest of the slab, the slot given back first");
    assert_eq!(rounds[0].unit(), 8 * 64 + 12);
    assert_eq!(bench.slabs.first_partial(A, class), Some(32), "the first is full");
    assert_eq!(units(&bench.take(A, class, 1)), [32 * 64]);
    bench.give(rounds[5]);
    assert_eq!(bench.take(A, class, 9), [rounds[5]], "the lower slab again");
    assert_eq!(bench.take(A, class_of(256), 1), []);
    assert_eq!(bench.take(7, class, 1), []);
}

#[test]
fn one_take_stays_in_one_word() {
    let mut bench = Bench::new(16);
    let class = class_of(256);
    bench.open(4, 4, A, class);
    let first = bench.take(A, class, 100);
    assert_eq!(units(&first), (256..320).collect::<Vec<u32>>());
    let second = bench.take(A, class, 10);
    assert_eq!(units(&second), (320..330).collect::<Vec<u32>>());
    bench.give(first[63]);
    bench.give(first[9]);
    assert_eq!(bench.take(A, class, 100), [first[9], first[63]], "what the lowest word has");
    assert_eq!(bench.take(A, class, 100).len(), 54, "then the rest of the second");
    let marks: Vec<u32> = first.iter().map(|round| round.mark()).collect();
    assert!(marks[0].is_multiple_of(128) && marks[63] == marks[0] + 63);
}

#[test]
fn an_empty_slab_is_told_and_closed() {
    let mut bench = Bench::new(64);
    let class = class_of(32 * KIB);
    let id = bench.open(10, 4, A, class);
    assert_eq!(bench.slabs.at(9), None);
    assert_eq!((bench.slabs.at(10), bench.slabs.at(13)), (Some(id), Some(id)));
    assert_eq!(bench.slabs.at(14), None);
    let slab = bench.slabs.slab(id);
    assert_eq!((slab.node, slab.slots, slab.free), (1010, 2, 2));
    let marks = slab.marks;
    for index in 0..4 {
        let descriptor = Descriptor::Slab { marks, lane: A, index, class };
        assert_eq!(bench.marks.get(10 + index), descriptor);
    }
    let rounds = bench.take(A, class, 5);
    assert_eq!(rounds.len(), 2);
    assert!(bench.slabs.lane_in_use(A) && !bench.slabs.lane_in_use(B));
    assert_eq!(bench.give(rounds[1]), None);
    assert_eq!(bench.give(rounds[0]), Some(id));
    assert_eq!(bench.slabs.close(&mut bench.marks, id), (1010, A));
    assert!((10..14).all(|q| bench.marks.get(q) == Descriptor::None));
    assert_eq!(bench.slabs.at(10), None);
    assert!(!bench.slabs.lane_in_use(A));
    assert_eq!((bench.slabs.free_bytes(), bench.slabs.iter().count()), (0, 0));
    let next = bench.open(20, 4, B, class);
    assert_eq!(next, id, "numbers are used again");
    assert_eq!(bench.slabs.slab(next).marks, marks, "and marks");
}

#[test]
fn free_bytes_count_slots_and_what_is_left_over() {
    let mut bench = Bench::new(64);
    let class = class_of(40 * KIB);
    let id = bench.open(0, 3, A, class);
    let slab = 3 * QUANTUM as u64;
    assert_eq!(bench.slabs.free_bytes(), slab);
    let rounds = bench.take(A, class, 1);
    assert_eq!(bench.slabs.free_bytes(), 8 << 10, "one slot fits; 8 KiB are left over");
    bench.open(10, 5, A, class);
    let more = bench.take(A, class, 1);
    assert_eq!(bench.slabs.free_bytes(), (8 << 10) + (40 << 10));
    bench.give(more[0]);
    assert_eq!(bench.give(rounds[0]), Some(id));
    assert_eq!(bench.slabs.free_bytes(), slab + 5 * QUANTUM as u64);
    bench.slabs.close(&mut bench.marks, id);
    assert_eq!(bench.slabs.free_bytes(), 5 * QUANTUM as u64);
}

#[test]
fn a_lane_adopts_the_lowest_partial_slab_of_a_class() {
    let mut bench = Bench::new(64);
    let class = class_of(32 * KIB);
    let full = bench.open(0, 4, A, class);
    let partial = bench.open(8, 4, A, class);
    let free = bench.open(16, 4, A, class);
    let out = bench.take(A, class, 2);
    let one = bench.take(A, class, 1);
    assert!(bench.slabs.adopt(&bench.marks, A, B, class));
    assert_eq!(bench.slabs.slab(partial).lane, B);
    assert_eq!((bench.slabs.slab(full).lane, bench.slabs.slab(free).lane), (A, A));
    let Descriptor::Slab { lane, .. } = bench.marks.get(11) else { panic!("a slab lies there") };
    assert_eq!(lane, B);
    assert_eq!(bench.slabs.first_partial(B, class), Some(8));
    assert_eq!(bench.slabs.first_partial(A, class), Some(16));
    assert!(!bench.slabs.adopt(&bench.marks, A, B, class_of(256)));
    // What was out of it comes back to its new lane.
    let rest = bench.take(B, class, 9);
    assert_eq!(rest.len(), 1);
    assert_eq!(bench.give(one[0]), None);
    assert_eq!(bench.give(rest[0]), Some(partial));
    assert_eq!(bench.slabs.close(&mut bench.marks, partial), (1008, B));
    assert!(!bench.slabs.lane_in_use(B));
    assert_eq!(bench.give(out[0]), None);
    assert!(bench.slabs.adopt(&bench.marks, A, B, class), "0 has a free slot now");
    assert_eq!(bench.slabs.slab(full).lane, B);
}

#[test]
fn all_slabs_of_a_lane_are_reassigned_full_ones_too() {
    let mut bench = Bench::new(256);
    let (small, large) = (class_of(256), class_of(64 * KIB));
    let ids = [bench.open(0, 4, A, small), bench.open(8, 4, A, large)];
    let other = bench.open(16, 4, 3, small);
    let out = bench.take(A, large, 1);
    bench.take(A, small, 1);
    let before = bench.slabs.free_bytes();
    bench.slabs.reassign(&bench.marks, A, B);
    assert!(ids.iter().all(|&id| bench.slabs.slab(id).lane == B));
    assert_eq!(bench.slabs.slab(other).lane, 3);
    assert!(!bench.slabs.lane_in_use(A) && bench.slabs.lane_in_use(B));
    assert_eq!(bench.slabs.free_bytes(), before);
    assert_eq!(bench.slabs.first_partial(B, small), Some(0));
    assert_eq!(bench.slabs.first_partial(B, large), None);
    assert_eq!(bench.give(out[0]), Some(ids[1]));
    bench.slabs.reassign(&bench.marks, 9, B);
}

#[test]
fn a_slab_without_marks_is_not_opened() {
    let mut bench = Bench::new(4);
    let class = class_of(256);
    bench.open(0, 4, A, class);
    let opened = bench.slabs.open(&mut bench.marks, 7, (0, 4), A, class);
    assert_eq!(opened, None, "its 512 marks were all");
    assert_eq!(bench.slabs.iter().count(), 1);
    assert_eq!(bench.slabs.free_bytes(), 64 << 10);
}

#[test]
fn mark_ranges_have_a_spare_and_are_used_again() {
    // 2048 marks.
    let mut marks = Marks::new(16).expect("address space");
    assert_eq!(marks.quanta(), 16);
    assert_eq!(marks.take_range(1), Some(0));
    assert_eq!(marks.take_range(127), Some(128), "127 and a spare are 128");
    assert_eq!(marks.take_range(128), Some(256), "128 and a spare are more");
    assert_eq!(marks.take_range(100), Some(512));
    marks.give_range(128, 127);
    marks.give_range(256, 128);
    assert_eq!(marks.take_range(255), Some(256), "of the same length only");
    assert_eq!(marks.take_range(2), Some(128));
    assert_eq!(marks.take_range(1024), None, "2048 more are not there");
    assert_eq!(marks.take_range(1023), Some(640));
    assert_eq!(marks.take_range(255), Some(1664));
    assert_eq!(marks.take_range(1), Some(1920));
    assert_eq!(marks.take_range(1), None);
    // A longer spare range is cut: 512 marks at 640 into 128, 128 and 256.
    marks.give_range(640, 511);
    assert_eq!(marks.take_range(1), Some(640));
    assert_eq!(marks.take_range(200), Some(896));
    assert_eq!(marks.take_range(1), Some(768));
    assert_eq!(marks.take_range(1), None);
}

#[test]
fn depots_hand_magazines_on_whole() {
    let full = |first: u32, len: u32| {
        let mut rounds = Box::new([Round::new(0, 0); ROUNDS_MAX]);
        for (at, n) in (first..first + len).enumerate() {
            rounds[at] = Round::new(n, n);
        }
        Full::new(rounds, len)
    };
    let mut depot = Depot::default();
    let (small, large) = (class_of(256), class_of(MIB / 8));
    assert!(depot.pop(small).is_none());
    depot.push(small, full(0, 64));
    depot.push(small, full(100, 3));
    depot.push(large, full(200, 2));
    assert_eq!(depot.class_bytes(small), 67 * 256);
    assert_eq!(depot.class_bytes(large), 2 * slot_bytes(large) as u64);
    assert_eq!(depot.bytes(), depot.class_bytes(small) + depot.class_bytes(large));
    let top = depot.pop(small).expect("two are there");
    assert_eq!(units(top.rounds()), [100, 101, 102], "the last in is the first out");
    let (rounds, len) = top.into_parts();
    assert_eq!((rounds[2], len), (Round::new(102, 102), 3));
    assert_eq!(depot.bytes(), 64 * 256 + 2 * slot_bytes(large) as u64);
    let rest = depot.drain();
    assert_eq!(rest.iter().map(|f| f.rounds().len()).sum::<usize>(), 66);
    assert_eq!((depot.bytes(), depot.class_bytes(small)), (0, 0));
    assert!(depot.pop(small).is_none() && depot.pop(large).is_none());
}

#[test]
fn a_budget_is_never_passed() {
    let budget = Budget::new(1000);
    assert!(budget.take(600));
    assert!(!budget.take(401), "one byte too many takes nothing");
    assert!(budget.take(400));
    assert_eq!((budget.held(), budget.most()), (1000, 1000));
    budget.give(600);
    assert!(budget.take(1) && budget.held() == 401);
}
