//! Which run a block goes to, where in it, and how free pieces join.

use super::*;

#[test]
fn best_fit_is_the_shortest_run_that_suffices() {
    let mut bench = Bench::backed(8);
    let a = bench.lane(1);
    // Runs of 5 at 0, 3 at 6, 4 at 10, then a block, then the rest.
    bench.runs(&[5, 1, 3, 1, 4, 1], a);
    assert_eq!(bench.take_off(4, a), Some(10));
    assert_eq!(bench.take_off(3, a), Some(6));
    assert_eq!(bench.take_off(3, a), Some(0), "5 is the shortest that is left");
    assert_eq!(bench.take_off(6, a), Some(15));
    assert_eq!(bench.take_off(60, a), None);
}

#[test]
fn the_lowest_of_equal_runs_comes_first_whatever_the_order_of_frees() {
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [1, 4, 0, 3, 2]] {
        let mut bench = Bench::backed(8);
        let a = bench.lane(1);
        let nodes: Vec<NodeId> = (0..10).map(|_| bench.take(3, a).expect("room")).collect();
        for i in order {
            bench.free(nodes[2 * i], Stamp::CLEAN);
        }
        let taken: Vec<_> = (0..5).map(|_| bench.take_off(3, a)).collect();
        assert_eq!(taken, [0, 6, 12, 18, 24].map(Some));
    }
}

#[test]
fn a_block_lies_at_the_low_end_of_its_run() {
    let mut bench = Bench::backed(2);
    let a = bench.lane(1);
    assert_eq!(bench.take_off(3, a), Some(0));
    assert_eq!(bench.take_off(2, a), Some(3));
    let clean = Some(Stamp::CLEAN);
    assert_eq!(
        bench.layout(),
        [(Kind::Live, 0, 3, None), (Kind::Live, 3, 2, None), (Kind::Free, 5, 11, clean)]
    );
    assert_eq!(bench.take_off(11, a), Some(5), "exactly the rest");
    assert_eq!(bench.take_off(1, a), None);
}

#[test]
fn alignment_rounds_up_inside_a_run_that_still_suffices() {
    let mut bench = Bench::backed(4);
    let a = bench.lane(1);
    // Runs of 5 at 0, 5 at 6, and the rest from 12 on.
    bench.runs(&[5, 1, 5, 1], a);
    let take = |bench: &mut Bench, quanta, align| {
        let node = bench.heap.take(quanta, align, a, &bench.lanes, Effort::Full);
        bench.heap.check();
        node.map(|node| bench.heap.block(node).0)
    };
    assert_eq!(take(&mut bench, 4, 8), Some(0));
    assert_eq!(take(&mut bench, 3, 8), Some(8), "not the run of 1, not at 6");
    assert_eq!(take(&mut bench, 4, 4), Some(12));
    assert_eq!(take(&mut bench, 2, 2), Some(6), "what was left below the aligned block");
    assert_eq!(take(&mut bench, 8, 16), Some(16));
    assert_eq!(take(&mut bench, 1, 16), None);
}

#[test]
fn pieces_of_one_lane_merge_and_keep_the_larger_sequence() {
    let mut bench = Bench::backed(1);
    let a = bench.lane(1);
    let nodes: Vec<NodeId> = (0..4).map(|_| bench.take(2, a).expect("room")).collect();
    bench.free_on(nodes[0], a);
    bench.lanes.record(&bench.fake, a).expect("no fault");
    let late = bench.free_on(nodes[1], a);
    assert_eq!(late.seq, 2);
    assert_eq!(bench.layout()[0], (Kind::Free, 0, 4, Some(late)));
    let early = Stamp { lane: a, seq: 1 };
    bench.free(nodes[3], early);
    bench.free(nodes[2], early);
    assert_eq!(bench.layout(), [(Kind::Free, 0, 8, Some(late))], "one piece of both sides");
}

#[test]
fn pieces_of_two_lanes_are_one_run_and_two_pieces() {
    let mut bench = Bench::backed(1);
    let (a, b) = (bench.lane(1), bench.lane(2));
    let nodes: Vec<NodeId> = (0..2).map(|_| bench.take(4, a).expect("room")).collect();
    let by_a = bench.free_on(nodes[0], a);
    let by_b = bench.free_on(nodes[1], b);
    assert_eq!(bench.layout(), [(Kind::Free, 0, 4, Some(by_a)), (Kind::Free, 4, 4, Some(by_b))]);
    assert_eq!(bench.take_off(8, a), None, "half of it waits for b");
    assert_eq!(bench.take_off(4, b), Some(4));
}

#[test]
fn a_passed_neighbour_becomes_clean_when_something_joins_it() {
    let mut bench = Bench::backed(1);
    let (a, b) = (bench.lane(1), bench.lane(2));
    let nodes: Vec<NodeId> = (0..4).map(|_| bench.take(2, a).expect("room")).collect();
    bench.free_on(nodes[0], a);
    bench.finish(a);
    let by_b = bench.free_on(nodes[1], b);
    let clean = Some(Stamp::CLEAN);
    assert_eq!(bench.layout()[..2], [(Kind::Free, 0, 2, clean), (Kind::Free, 2, 2, Some(by_b))]);
    bench.finish(b);
    bench.free(nodes[2], Stamp::CLEAN);
    assert_eq!(bench.layout()[1], (Kind::Free, 2, 4, clean), "the newly freed joins b's");
    // Its own stamp may have passed as well by the time it is freed.
    let old = bench.lanes.stamp(a, 1);
    bench.finish(a);
    bench.free(nodes[3], old);
    assert_eq!(bench.layout().last(), Some(&(Kind::Free, 2, 6, clean)));
    assert_eq!(bench.take_off(8, a), Some(0), "one run all the same");
}

#[test]
fn joins_merge_with_themselves_only() {
    let mut bench = Bench::backed(1);
    let (a, b) = (bench.lane(1), bench.lane(2));
    let nodes: Vec<NodeId> = (0..4).map(|_| bench.take(2, a).expect("room")).collect();
    let parts = [bench.lanes.stamp(a, 1), bench.lanes.stamp(b, 1)];
    let (one, two) = (bench.lanes.join(&parts), bench.lanes.join(&parts));
    bench.free(nodes[0], one);
    bench.free(nodes[1], one);
    bench.free(nodes[2], two);
    bench.free(nodes[3], parts[0]);
    let free = |off, len, stamp| (Kind::Free, off, len, Some(stamp));
    assert_eq!(bench.layout(), [free(0, 4, one), free(4, 2, two), free(6, 2, parts[0])]);
    assert_eq!(bench.take_off(1, b), None);
    bench.finish(a);
    assert_eq!(bench.take_off(6, b), Some(0), "a's part has passed, the other is b's own");
}

#[test]
fn a_block_may_span_pieces_and_cuts_the_last() {
    let mut bench = Bench::backed(2);
    let (a, b) = (bench.lane(1), bench.lane(2));
    let nodes: Vec<NodeId> = (0..4).map(|_| bench.take(4, a).expect("room")).collect();
    bench.free(nodes[0], Stamp::CLEAN);
    let by_a = bench.free_on(nodes[1], a);
    let by_b = bench.free_on(nodes[2], b);
    assert_eq!(bench.take_off(6, b), None, "b may take 0 to 4 and 8 to 12 only");
    let node = bench.take(6, a).expect("0 to 8 are a's");
    assert_eq!(bench.heap.block(node), (0, 6, Kind::Live));
    let free = |off, len, stamp| (Kind::Free, off, len, Some(stamp));
    assert_eq!(bench.layout()[..3], [(Kind::Live, 0, 6, None), free(6, 2, by_a), free(8, 4, by_b)]);
    let node = bench.take(4, b).expect("8 to 12 are b's");
    assert_eq!(bench.heap.block(node).0, 8, "above the foreign piece");
    bench.free(node, Stamp::CLEAN);
    assert_eq!(bench.take_off(3, a), Some(6), "the end of its own piece and a clean one");
}

#[test]
fn effort_bounds_the_look_at_runs_of_others() {
    let mut bench = Bench::backed(32);
    let (a, b) = (bench.lane(1), bench.lane(2));
    // 40 runs of length 2 that b freed, then one of length 3 that is clean.
    let pairs: Vec<(NodeId, NodeId)> = (0..40)
        .map(|_| (bench.take(2, a).expect("room"), bench.take(1, a).expect("room")))
        .collect();
    let (last, _) = (bench.take(3, a).expect("room"), bench.take(1, a).expect("room"));
    while bench.take(1, a).is_some() {}
    for (node, _) in pairs {
        bench.free_on(node, b);
    }
    bench.free(last, Stamp::CLEAN);
    let quick = bench.heap.take(2, 1, a, &bench.lanes, Effort::Quick);
    assert_eq!(quick, None, "32 runs were seen, none was a's");
    assert_eq!(bench.take_off(2, a), Some(120));
    bench.finish(b);
    let quick = bench.heap.take(2, 1, a, &bench.lanes, Effort::Quick).expect("passed");
    assert_eq!(bench.heap.block(quick).0, 0);
}

#[test]
fn find_any_answers_the_best_run_and_the_stamps_in_the_way() {
    let mut bench = Bench::backed(1);
    let (a, b) = (bench.lane(1), bench.lane(2));
    let nodes: Vec<NodeId> = (0..4).map(|_| bench.take(2, a).expect("room")).collect();
    let by_a = bench.free_on(nodes[1], a);
    let by_b = bench.free_on(nodes[2], b);
    assert_eq!(bench.heap.find_any(2, 1), Some((2, vec![by_a])));
    assert_eq!(bench.heap.find_any(3, 1), Some((2, vec![by_a, by_b])));
    assert_eq!(bench.heap.find_any(2, 4), Some((4, vec![by_b])), "below the aligned place");
    assert_eq!(bench.heap.find_any(3, 4), None);
    bench.heap.check();
}

#[test]
fn spaces_are_kept_apart_by_walls() {
    let mut bench = Bench::space(1);
    let a = bench.lane(1);
    assert_eq!(bench.heap.add_space(2), 1);
    bench.heap.back(0, 1);
    bench.heap.back(1, 1);
    bench.heap.check();
    assert_eq!(bench.take_off(9, a), None, "8 and 8 are not 16");
    assert_eq!(bench.heap.plan(9, 1, a, &bench.lanes), Some(Plan { start: 8, missing: 1 }));
    let (low, high) = (bench.take(8, a).expect("room"), bench.take(8, a).expect("room"));
    assert_eq!((bench.heap.block(low).0, bench.heap.block(high).0), (0, 8));
    bench.free(low, Stamp::CLEAN);
    bench.free(high, Stamp::CLEAN);
    assert_eq!(bench.take_off(9, a), None);
    bench.heap.unback(0, 1);
    bench.heap.unback(1, 1);
    bench.heap.check();
    assert_eq!(bench.layout(), [(Kind::Gap, 0, 8, None), (Kind::Gap, 8, 16, None)]);
}

#[test]
fn runs_beyond_the_bins_are_found_by_length_and_address() {
    // 128 quanta a granule as on a device; bins end at 16384 quanta (256 MiB).
    let mut bench = Bench::new(128);
    let a = bench.lane(1);
    bench.heap.add_space(700);
    bench.heap.back(0, 700);
    let lengths = [30_000, 1, 17_000, 1, 16_384, 1, 17_000, 1];
    let kept = bench.runs(&lengths, a);
    // The rest behind the last block is 700 * 128 - 80388 = 9212.
    assert_eq!(bench.take_off(16_385, a), Some(30_001), "the lower of the two 17000s");
    assert_eq!(bench.take_off(16_384, a), Some(47_002), "the exact bin");
    assert_eq!(bench.take_off(17_000, a), Some(63_387));
    assert_eq!(bench.take_off(16_000, a), Some(0), "cut down from 30000 to 14000");
    assert_eq!(bench.take_off(13_000, a), Some(16_000));
    // Joining across a block gives a longer run again.
    let low = bench.heap.take(1_000, 1, a, &bench.lanes, Effort::Quick).expect("room");
    assert_eq!(bench.heap.block(low).0, 29_000);
    bench.free(low, Stamp::CLEAN);
    bench.free(kept[0], Stamp::CLEAN);
    assert_eq!(bench.take_off(1_001, a), Some(29_000));
}

#[test]
fn a_block_keeps_its_word_and_tells_where_it_is() {
    let mut bench = Bench::backed(2);
    let a = bench.lane(1);
    let (low, high) = (bench.take(3, a).expect("room"), bench.take(5, a).expect("room"));
    assert_eq!(bench.heap.word(high), 0);
    bench.heap.set_word(high, u64::MAX);
    bench.free_on(low, a);
    assert_eq!(bench.heap.word(high), u64::MAX);
    assert!(!bench.heap.live_at(2) && bench.heap.live_at(3) && bench.heap.live_at(7));
    assert!(!bench.heap.live_at(8) && !bench.heap.live_at(999));
    let mut seen = Vec::new();
    bench.heap.each_live(|node, off, len| seen.push((node, off, len)));
    assert_eq!(seen, [(high, 3, 5)]);
    let again = bench.take(3, a).expect("room");
    assert_eq!(bench.heap.word(again), 0, "a new block has no word");
}
