//! Plans, granules that gain and lose memory, idle rows, accounts.

use super::*;

fn plan(bench: &Bench, quanta: u32, lane: LaneId) -> Option<(u32, u32)> {
    bench.heap.plan(quanta, 1, lane, &bench.lanes).map(|p| (p.start, p.missing))
}

fn rows(list: &[(u32, u32)]) -> Vec<IdleRun> {
    list.iter().map(|&(granule, len)| IdleRun { granule, len }).collect()
}

/// A block at `[start, start + quanta)`; the granules there are backed.
fn live(bench: &mut Bench, start: u32, quanta: u32) -> NodeId {
    let node = bench.heap.take_at(start, quanta);
    bench.heap.check();
    node
}

#[test]
fn a_plan_wants_the_fewest_missing_granules() {
    let mut bench = Bench::space(8);
    let a = bench.lane(1);
    assert_eq!(plan(&bench, 20, a), Some((0, 3)));
    // A backed granule in the middle saves one; its low end is the lowest such place.
    bench.heap.back(3, 1);
    assert_eq!(plan(&bench, 20, a), Some((12, 2)), "12 to 32 touches granules 1 to 3");
    bench.heap.back(7, 1);
    bench.heap.back(6, 1);
    assert_eq!(plan(&bench, 20, a), Some((44, 1)), "two backed at the end of the hole");
    assert_eq!(plan(&bench, 64, a), Some((0, 5)));
    assert_eq!(plan(&bench, 65, a), None, "address space is short");
}

#[test]
fn equal_plans_prefer_the_shortest_hole_then_the_lowest() {
    let mut bench = Bench::space(12);
    let a = bench.lane(1);
    // Blocks in granules 4, 7 and 10 divide it into holes of 4, 2, 2 and 1 granules.
    for granule in [4, 7, 10] {
        bench.heap.back(granule, 1);
        live(&mut bench, granule * PER, PER);
    }
    assert_eq!(plan(&bench, 1, a), Some((88, 1)), "the hole of one granule");
    assert_eq!(plan(&bench, 9, a), Some((40, 2)), "the lower of the two holes of two");
    assert_eq!(plan(&bench, 17, a), Some((0, 3)));
    // A hole that needs less goes before a shorter one.
    bench.heap.back(3, 1);
    assert_eq!(plan(&bench, 9, a), Some((23, 1)), "the end of granule 2 and granule 3");
}

#[test]
fn plans_use_the_ends_of_runs_beside_a_gap() {
    let mut bench = Bench::space(4);
    let a = bench.lane(1);
    bench.heap.back(0, 1);
    bench.heap.back(3, 1);
    live(&mut bench, 0, 5);
    live(&mut bench, 28, 4);
    // The hole is 5 to 28: 3 quanta of run, two granules of gap, 4 quanta of run.
    assert_eq!(plan(&bench, 11, a), Some((5, 1)));
    assert_eq!(plan(&bench, 12, a), Some((16, 1)), "only the high run is long enough");
    assert_eq!(plan(&bench, 13, a), Some((5, 2)));
    assert_eq!(plan(&bench, 23, a), Some((5, 2)));
    assert_eq!(plan(&bench, 24, a), None);
}

#[test]
fn a_foreign_piece_divides_a_hole() {
    let mut bench = Bench::space(4);
    let (a, b) = (bench.lane(1), bench.lane(2));
    bench.heap.back(1, 1);
    let node = live(&mut bench, 12, 2);
    bench.free_on(node, b);
    assert_eq!(plan(&bench, 12, a), Some((0, 1)), "0 to 12, below the piece");
    assert_eq!(plan(&bench, 13, a), Some((14, 2)), "14 to 32, above it");
    assert_eq!(plan(&bench, 19, a), None);
    assert_eq!(plan(&bench, 19, b), Some((0, 2)), "b's own piece does not divide");
    bench.finish(b);
    assert_eq!(plan(&bench, 19, a), Some((0, 2)));
}

#[test]
fn plans_respect_alignment() {
    let mut bench = Bench::space(6);
    let a = bench.lane(1);
    bench.heap.back(0, 1);
    live(&mut bench, 0, 3);
    let aligned = |bench: &Bench, quanta, align| {
        bench.heap.plan(quanta, align, a, &bench.lanes).map(|p| (p.start, p.missing))
    };
    assert_eq!(aligned(&bench, 6, 4), Some((4, 1)));
    assert_eq!(aligned(&bench, 6, 16), Some((16, 1)));
    assert_eq!(aligned(&bench, 32, 16), Some((16, 4)));
    assert_eq!(aligned(&bench, 33, 16), None);
}

#[test]
fn missing_names_the_rows_to_back() {
    let mut bench = Bench::space(8);
    for granule in [1, 4] {
        bench.heap.back(granule, 1);
    }
    let missing = |bench: &Bench, start, quanta| bench.heap.missing(start, quanta);
    assert_eq!(missing(&bench, 0, 64), rows(&[(0, 1), (2, 2), (5, 3)]));
    assert_eq!(missing(&bench, 8, 8), rows(&[]));
    assert_eq!(missing(&bench, 7, 2), rows(&[(0, 1)]));
    assert_eq!(missing(&bench, 15, 2), rows(&[(2, 1)]));
    assert_eq!(missing(&bench, 24, 1), rows(&[(3, 1)]), "inside a gap that begins below");
    assert_eq!(missing(&bench, 31, 10), rows(&[(3, 1), (5, 1)]));
}

#[test]
fn a_plan_comes_true() {
    let mut bench = Bench::space(6);
    let a = bench.lane(1);
    bench.heap.back(1, 1);
    bench.heap.back(4, 1);
    let plan = bench.heap.plan(30, 1, a, &bench.lanes).expect("room");
    assert_eq!(plan, Plan { start: 8, missing: 2 });
    for row in bench.heap.missing(plan.start, 30) {
        bench.heap.back(row.granule, row.len);
        bench.heap.check();
    }
    let node = bench.heap.take_at(plan.start, 30);
    assert_eq!(bench.heap.block(node), (8, 30, Kind::Live));
    let counts = bench.heap.counts();
    assert_eq!((counts.backed_granules, counts.idle_granules, counts.live_quanta), (4, 0, 30));
    assert_eq!(bench.heap.trapped_quanta(), 2);
    bench.heap.check();
}

#[test]
fn take_at_cuts_the_middle_of_a_run() {
    let mut bench = Bench::backed(2);
    let a = bench.lane(1);
    let node = live(&mut bench, 5, 4);
    assert_eq!((bench.heap.live_in(0), bench.heap.live_in(1)), (3, 1));
    assert_eq!(bench.take_off(6, a), Some(9));
    assert_eq!(bench.take_off(5, a), Some(0));
    bench.free(node, Stamp::CLEAN);
    assert_eq!(bench.take_off(4, a), Some(5));
}

#[test]
fn granules_gain_and_lose_memory() {
    let mut bench = Bench::space(4);
    let a = bench.lane(1);
    bench.heap.back(1, 2);
    bench.heap.check();
    let clean = Some(Stamp::CLEAN);
    let gap = |off, len| (Kind::Gap, off, len, None);
    assert_eq!(bench.layout(), [gap(0, 8), (Kind::Free, 8, 16, clean), gap(24, 8)]);
    let counts = bench.heap.counts();
    assert_eq!((counts.backed_granules, counts.idle_granules), (2, 2));
    // Neighbours backed later are one piece with it.
    bench.heap.back(0, 1);
    bench.heap.back(3, 1);
    bench.heap.check();
    assert_eq!(bench.layout(), [(Kind::Free, 0, 32, clean)]);
    // The middle of a run of two pieces loses its memory.
    let nodes: Vec<NodeId> = (0..2).map(|_| bench.take(16, a).expect("room")).collect();
    let by_a = bench.free_on(nodes[0], a);
    bench.free(nodes[1], Stamp::CLEAN);
    bench.finish(a);
    bench.heap.unback(1, 2);
    bench.heap.check();
    assert_eq!(
        bench.layout(),
        [(Kind::Free, 0, 8, Some(by_a)), gap(8, 16), (Kind::Free, 24, 8, clean)]
    );
    bench.heap.unback(3, 1);
    bench.heap.unback(0, 1);
    bench.heap.check();
    assert_eq!(bench.layout(), [gap(0, 32)], "gaps are merged");
    assert_eq!(bench.heap.counts(), Counts::default());
}

#[test]
fn stranded_granules_are_nobodys_until_they_come_back() {
    let mut bench = Bench::space(6);
    let a = bench.lane(1);
    bench.heap.strand(1, 3);
    bench.heap.check();
    assert_eq!(bench.heap.counts(), Counts { stranded_granules: 3, ..Counts::default() });
    assert_eq!(plan(&bench, 17, a), None, "the stranded granules divide the space");
    assert_eq!(plan(&bench, 16, a), Some((32, 2)));
    assert_eq!(bench.heap.missing(0, 48), rows(&[(0, 1), (4, 2)]));
    assert_eq!(bench.take_off(1, a), None);
    // They come back one by one, in any order.
    for (granule, left) in [(2, 2), (1, 1), (3, 0)] {
        bench.heap.unstrand(granule);
        bench.heap.check();
        assert_eq!(bench.heap.counts().stranded_granules, left);
    }
    assert_eq!(bench.layout(), [(Kind::Gap, 0, 48, None)]);
    assert_eq!(plan(&bench, 48, a), Some((0, 6)));
}

#[test]
fn a_stranded_granule_comes_back_between_live_ones() {
    let mut bench = Bench::space(3);
    bench.heap.strand(1, 1);
    bench.heap.back(0, 1);
    bench.heap.back(2, 1);
    live(&mut bench, 7, 1);
    live(&mut bench, 16, 1);
    bench.heap.unstrand(1);
    bench.heap.check();
    assert_eq!(bench.heap.missing(0, 24), rows(&[(1, 1)]));
    bench.heap.back(1, 1);
    bench.heap.check();
    assert_eq!(bench.heap.counts().backed_granules, 3);
}

#[test]
fn idle_rows_are_whole_passed_and_movable() {
    let mut bench = Bench::backed(6);
    let (a, b) = (bench.lane(1), bench.lane(2));
    let all = |bench: &Bench| bench.heap.idle_runs(&bench.lanes, |_| true);
    assert_eq!(all(&bench), rows(&[(0, 6)]));
    // A block across granules 1 and 2, and a piece in granule 4 that will be pending.
    live(&mut bench, 15, 2);
    let node = live(&mut bench, 35, 2);
    let sorted = |mut list: Vec<IdleRun>| {
        list.sort_unstable_by_key(|row| row.granule);
        list
    };
    assert_eq!(sorted(all(&bench)), rows(&[(0, 1), (3, 1), (5, 1)]));
    bench.free_on(node, b);
    assert_eq!(bench.heap.counts().idle_granules, 4, "granule 4 has no block any more");
    assert_eq!(sorted(all(&bench)), rows(&[(0, 1), (3, 1), (5, 1)]), "its work may still run");
    bench.finish(b);
    assert_eq!(sorted(all(&bench)), rows(&[(0, 1), (3, 3)]));
    let not = |granule| sorted(bench.heap.idle_runs(&bench.lanes, |g| g != granule));
    assert_eq!(not(4), rows(&[(0, 1), (3, 1), (5, 1)]));
    assert_eq!(not(3), rows(&[(0, 1), (4, 2)]));
    assert_eq!(not(0), rows(&[(3, 3)]));
    assert_eq!(bench.take_off(32, a), None);
}

#[test]
fn accounts_are_disjoint_and_whole() {
    let mut bench = Bench::backed(5);
    let (a, b) = (bench.lane(1), bench.lane(2));
    let account = |bench: &Bench, lane| bench.heap.account(&bench.lanes, lane);
    let idle = Account { idle: 40, largest: 40, ..Account::default() };
    assert_eq!(account(&bench, a), idle);
    // Three quanta of granule 0, and 12 to 20 in granules 1 and 2, which b frees later.
    live(&mut bench, 0, 3);
    let node = live(&mut bench, 12, 8);
    let held = Account { pending: 0, trapped: 5 + 4 + 4, idle: 16, largest: 20 };
    assert_eq!(account(&bench, a), held);
    bench.free_on(node, b);
    // 3 to 8 and 8 to 12 and 20 to 24 are clean, in granules that are not clean as a whole.
    let pending = Account { pending: 8, trapped: 13, idle: 16, largest: 20 };
    assert_eq!(account(&bench, a), pending);
    assert_eq!(account(&bench, b), Account { largest: 37, ..pending });
    assert_eq!(bench.heap.trapped_quanta(), 5, "what fragmentation costs: granule 0's rest");
    bench.finish(b);
    let passed = Account { pending: 0, trapped: 5, idle: 32, largest: 37 };
    assert_eq!(account(&bench, a), passed);
    let counts = bench.heap.counts();
    let sum = counts.live_quanta + passed.trapped + passed.idle;
    assert_eq!(sum, counts.backed_granules * u64::from(PER));
}
