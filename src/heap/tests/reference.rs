//! Plans against every position there is, over random heaps.
//!
//! The rule: fewest missing granules, then the shortest hole. A plan looks at few positions (the
//! ends of holes, and of runs inside them); this says that no other would be better.

use super::*;

/// Granules of a random heap.
const GRANULES: u32 = 24;

/// A small generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % u64::from(end)) as u32
    }
}

/// A heap with some granules backed, and blocks in some of them.
fn random_heap(random: &mut Random) -> Bench {
    let mut bench = Bench::space(GRANULES);
    let backed = 1 + random.below(8);
    let mut g = 0;
    while g < GRANULES {
        let len = (1 + random.below(4)).min(GRANULES - g);
        if random.below(10) < backed {
            bench.heap.back(g, len);
            let (mut at, end) = (g * PER, (g + len) * PER);
            while at < end {
                let quanta = (1 + random.below(2 * PER)).min(end - at);
                if random.below(3) == 0 {
                    bench.heap.take_at(at, quanta);
                }
                at += quanta;
            }
        }
        g += len;
    }
    bench.heap.check();
    bench
}

/// Every hole: its first and one past its last quantum.
fn holes(bench: &Bench) -> Vec<(u32, u32)> {
    let mut holes: Vec<(u32, u32)> = Vec::new();
    for (kind, off, len, _) in bench.layout() {
        match (kind, holes.last_mut()) {
            (Kind::Free | Kind::Gap, Some(hole)) if hole.1 == off => hole.1 = off + len,
            (Kind::Free | Kind::Gap, _) => holes.push((off, off + len)),
            _ => {}
        }
    }
    holes
}

/// The least (missing granules, length of the hole) over all positions.
fn best(bench: &Bench, quanta: u32, align: u32) -> Option<(u32, u32)> {
    let missing = |at| bench.heap.missing(at, quanta).iter().map(|row| row.len).sum();
    let keys = holes(bench).into_iter().flat_map(|(start, end)| {
        let positions = (start..end).filter(move |at| at.is_multiple_of(align));
        let inside = positions.filter(move |at| at + quanta <= end);
        inside.map(move |at| (missing(at), end - start))
    });
    keys.min()
}

#[test]
fn no_position_is_better_than_the_planned_one() {
    let given = std::env::var("FOREBAY_TEST_SEED").ok();
    let first: u64 = given.map_or(1, |text| text.parse().expect("a number as the seed"));
    let heaps = if cfg!(miri) { 2 } else { 400 };
    let (mut plans, mut worse) = (0, 0);
    for seed in first..first + heaps {
        let mut random = Random(seed);
        let mut bench = random_heap(&mut random);
        let lane = bench.lane(1);
        for _ in 0..20 {
            let (quanta, align) = (1 + random.below(6 * PER), 1 << random.below(6));
            let plan = bench.heap.plan(quanta, align, lane, &bench.lanes);
            let best = best(&bench, quanta, align);
            if best.is_some_and(|(missing, _)| missing == 0) {
                // A run suffices: nobody asks for a plan.
                continue;
            }
            assert_eq!(plan.is_some(), best.is_some(), "seed {seed}: {quanta} at {align}");
            let (Some(plan), Some(best)) = (plan, best) else { continue };
            let inside =
                |&&(start, end): &&(u32, u32)| start <= plan.start && plan.start + quanta <= end;
            let all = holes(&bench);
            let hole = all.iter().find(inside).expect("a plan lies in a hole");
            assert!(plan.start.is_multiple_of(align));
            plans += 1;
            if (plan.missing, hole.1 - hole.0) != best {
                worse += 1;
                println!(
                    "seed {seed}: {quanta} quanta at {align}: {plan:?} of {hole:?}, not {best:?}"
                );
            }
        }
    }
    assert!(plans > heaps, "{plans} plans: too few to say anything");
    assert_eq!(worse, 0, "of {plans} plans");
}
