//! The search alone, without the packings that mostly come before it.

use super::super::Buffer;
use super::super::prepare::prepare;
use super::super::random::Random;
use super::{Ended, Exact, Jobs};

/// Cuts a piece (birth, death, low, high) into buffers, some % of them fixed.
fn cut(rng: &mut Random, piece: [u64; 4], depth: u32, fixed: u64, all: &mut Vec<Buffer>) {
    let [birth, death, low, high] = piece;
    let (time, bytes) = (death - birth, high - low);
    let across = (rng.bits().is_multiple_of(2) || bytes < 2) && time >= 2;
    if depth == 0 || rng.bits().is_multiple_of(12) || (!across && bytes < 2) {
        let mut b = Buffer::new(all.len() as u64, birth, death, bytes);
        if rng.bits() % 100 < fixed {
            b.fixed = Some(low);
        }
        all.push(b);
        return;
    }
    let (mut one, mut two) = (piece, piece);
    if across {
        let at = birth + 1 + rng.bits() % (time - 1);
        (one[1], two[0]) = (at, at);
    } else {
        let at = low + 1 + rng.bits() % (bytes - 1);
        (one[3], two[2]) = (at, at);
    }
    cut(rng, one, depth - 1, fixed, all);
    cut(rng, two, depth - 1, fixed, all);
}

/// A rectangle that was cut fits together again: no start may exclude that. Nor may one where a
/// contradiction passes a fixed piece on its way back; in these few rounds it matters thrice that
/// the reasons go along which keep its rivals from going below it.
#[test]
fn no_start_excludes_what_was_cut() {
    let mut found = 0;
    for seed in 0..9000 {
        let mut rng = Random::new(seed, 7);
        let height = 4 + rng.bits() % 20;
        let times = 3 + rng.bits() % 12;
        let depth = 3 + (rng.bits() % 3) as u32;
        let fixed = rng.pick([5, 15, 30, 50]);
        let mut all = Vec::new();
        cut(&mut rng, [0, times, 0, height], depth, fixed, &mut all);
        if rng.bits().is_multiple_of(2) {
            all.retain(|_| !rng.bits().is_multiple_of(8));
        }
        for part in prepare(&all) {
            let Some(jobs) = Jobs::new(&part, height, false) else { continue };
            for start in 100..106 {
                let (mut search, mut draws) = (Exact::new(&jobs), Random::new(seed, start));
                let ended = search.start(height, u64::MAX, &mut draws, &mut |done| done < 20_000);
                assert!(ended != Ended::Exhausted, "seed {seed}, start {start}: {all:?}");
                found += u64::from(ended == Ended::Found);
            }
        }
    }
    assert!(found > 50_000, "{found} found");
}
