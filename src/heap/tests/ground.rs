//! Grounds: whose granules are whose, what sleeping does to the counts, and a random model.

use super::*;

/// A block of `quanta` in `tag`'s ground: there, or in granules that it gets for itself.
fn take(bench: &mut Bench, quanta: u32, tag: u8, lane: LaneId) -> Option<NodeId> {
    bench.heap.open_ground(tag);
    let found = bench.heap.take_in(tag, quanta, 1, lane, &bench.lanes);
    let node = found.or_else(|| {
        let whole = quanta.next_multiple_of(PER);
        let node = bench.heap.take(whole, PER, lane, &bench.lanes, Effort::Full)?;
        bench.heap.dedicate(node, quanta, tag, Stamp::CLEAN);
        Some(node)
    });
    bench.check();
    node
}

fn granules(bench: &Bench, tag: u8) -> Vec<(u32, u32)> {
    bench.heap.ground_rows(tag).iter().map(|row| (row.granule, row.len)).collect()
}

#[test]
fn blocks_of_a_tag_share_granules_with_nobody_else() {
    let mut bench = Bench::backed(8);
    let a = bench.lane(1);
    let plain = bench.take(3, a).expect("room");
    let own = take(&mut bench, 2, 5, a).expect("room");
    let more = take(&mut bench, 4, 5, a).expect("room");
    assert_eq!(bench.heap.block(own).0, 8, "not beside the plain block");
    assert_eq!(bench.heap.block(more).0, 10, "beside its own kind");
    assert_eq!((bench.heap.ground_of(own), bench.heap.ground_of(plain)), (5, 0));
    assert_eq!(granules(&bench, 5), [(1, 1)]);
    let other = take(&mut bench, 1, 6, a).expect("room");
    assert_eq!((bench.heap.block(other).0, granules(&bench, 6)), (16, vec![(2, 1)]));
    // What is left in a tag's granule is no other request's.
    assert_eq!(bench.take_off(6, a), Some(24));
    bench.free(own, Stamp::CLEAN);
    assert_eq!(granules(&bench, 5), [(1, 1)]);
    bench.free(more, Stamp::CLEAN);
    assert_eq!(granules(&bench, 5), []);
    assert_eq!(bench.take_off(10, a), Some(3), "everyone's again, one run with what is beside");
}

#[test]
fn a_long_block_has_its_last_granule_to_share_with_its_tag() {
    let mut bench = Bench::backed(8);
    let a = bench.lane(1);
    let long = take(&mut bench, 2 * PER + 3, 5, a).expect("room");
    let tail = take(&mut bench, 5, 5, a).expect("room");
    assert_eq!(bench.heap.block(tail).0, 2 * PER + 3);
    bench.free(long, Stamp::CLEAN);
    assert_eq!(granules(&bench, 5), [(2, 1)], "the other two went back");
    let idle = bench.heap.idle_runs(&bench.lanes, |_| true);
    assert_eq!(idle, [IdleRun { granule: 0, len: 2 }, IdleRun { granule: 3, len: 5 }]);
}

#[test]
fn what_is_freed_asleep_becomes_a_gap_once_its_stamp_has_passed() {
    let mut bench = Bench::backed(8);
    let a = bench.lane(1);
    let (low, high) = (take(&mut bench, PER, 5, a), take(&mut bench, 2 * PER, 5, a));
    let (low, high) = (low.expect("room"), high.expect("room"));
    bench.heap.set_asleep(5, true);
    bench.check();
    let counts = bench.heap.counts();
    assert_eq!((counts.backed_granules, counts.asleep_quanta), (5, 3 * u64::from(PER)));
    assert_eq!(bench.heap.trapped_quanta(), 0);
    bench.free(low, Stamp::CLEAN);
    assert!(bench.heap.is_gap(0, 1));
    bench.free_on(high, a);
    assert!(!bench.heap.is_gap(1, 1), "something may still use it when it is back");
    bench.finish(a);
    bench.heap.sweep(5, &bench.lanes);
    bench.check();
    assert!(bench.heap.is_gap(0, 3));
    assert_eq!((granules(&bench, 5), bench.heap.counts().asleep_quanta), (vec![], 0));
}

#[test]
fn parts_are_blocks_and_what_may_still_be_used() {
    let mut bench = Bench::backed(8);
    let a = bench.lane(1);
    let kept = take(&mut bench, 2, 5, a).expect("room");
    let freed = take(&mut bench, 3, 5, a).expect("room");
    take(&mut bench, 4, 6, a).expect("room");
    let stamp = bench.free_on(freed, a);
    let mut parts = Vec::new();
    bench.heap.each_part(5, &bench.lanes, |off, len, part| parts.push((off, len, part)));
    assert_eq!(parts, [(0, 2, Part::Block(kept)), (2, 3, Part::Piece(stamp))]);
}

/// A small generator (splitmix64's step with a weaker finish).
fn next(seed: &mut u64) -> u32 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ *seed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 33) as u32
}

#[test]
fn random_blocks_overlap_nobody_and_keep_to_their_ground() {
    let steps = if cfg!(miri) { 200 } else { 20_000 };
    for seed in 1..4u64 {
        println!("seed {seed}");
        let mut bench = Bench::backed(if cfg!(miri) { 8 } else { 24 });
        let mut random = seed;
        let a = bench.lane(1);
        let mut live: Vec<(NodeId, u8)> = Vec::new();
        for _ in 0..steps {
            let roll = next(&mut random);
            let tag = (roll >> 4 & 3) as u8;
            if roll.is_multiple_of(16) {
                bench.heap.open_ground(3);
                let asleep = bench.heap.is_asleep(3);
                bench.heap.set_asleep(3, !asleep);
                if asleep {
                    bench.heap.sweep(3, &bench.lanes);
                }
            } else if roll & 1 == 0 && !live.is_empty() {
                let (node, _) = live.swap_remove(next(&mut random) as usize % live.len());
                let stamp = match roll & 2 {
                    0 => Stamp::CLEAN,
                    _ => bench.lanes.stamp(a, 1),
                };
                bench.heap.free(node, stamp, &bench.lanes);
            } else {
                let quanta = 1 + next(&mut random) % (2 * PER + 4);
                let node = match tag {
                    0 => bench.heap.take(quanta, 1, a, &bench.lanes, Effort::Full),
                    3 if bench.heap.is_asleep(3) => None,
                    tag => take(&mut bench, quanta, tag, a),
                };
                live.extend(node.map(|node| (node, tag)));
                back_lowest_gap(&mut bench, next(&mut random));
            }
            bench.check();
            check_owners(&bench, &live);
        }
        bench.heap.set_asleep(3, false);
        for (node, _) in live {
            bench.heap.free(node, Stamp::CLEAN, &bench.lanes);
        }
        bench.finish(a);
        (1..4).for_each(|tag| bench.heap.sweep(tag, &bench.lanes));
        bench.check();
        assert!((1..4).all(|tag| granules(&bench, tag).is_empty()), "seed {seed}");
        let counts = bench.heap.counts();
        assert_eq!(counts.idle_granules, counts.backed_granules, "seed {seed}");
    }
}

/// Gaps come of what is freed asleep; now and then one is filled again.
fn back_lowest_gap(bench: &mut Bench, roll: u32) {
    if roll.is_multiple_of(8)
        && let Some(granule) = bench.heap.lowest_gap(1)
    {
        bench.heap.back(granule, 1);
    }
}

/// No granule that a tag's block touches is touched by another's.
fn check_owners(bench: &Bench, live: &[(NodeId, u8)]) {
    let mut owner = std::collections::HashMap::new();
    let mut taken = std::collections::HashSet::new();
    for &(node, tag) in live {
        let (off, len, kind) = bench.heap.block(node);
        assert_eq!((kind, bench.heap.ground_of(node)), (Kind::Live, tag));
        for quantum in off..off + len {
            assert!(taken.insert(quantum), "two blocks at {quantum}");
            assert_eq!(
                *owner.entry(quantum / PER).or_insert(tag),
                tag,
                "granule {}",
                quantum / PER
            );
        }
    }
}
