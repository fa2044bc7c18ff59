//! Instances with a known plan: a rectangle of time and bytes, cut into buffers.
//!
//! What was cut fits together again, so a search that calls it impossible is wrong, however deep
//! the mistake lies. Larger than what can be tried out in full.

use crate::oracle;
use crate::random::{Random, seed};
use forebay::error::Status;
use forebay::plan::{Buffer, Options, solve};

/// How many instances are tried.
const ROUNDS: u64 = 6000;

/// A piece: times and bytes.
#[derive(Clone, Copy)]
struct Piece {
    birth: u64,
    death: u64,
    low: u64,
    high: u64,
}

/// Cuts a rectangle into pieces, across or along, at random; those that are small stay.
fn cut(rng: &mut Random, piece: Piece, depth: u32, all: &mut Vec<Piece>) {
    let (time, bytes) = (piece.death - piece.birth, piece.high - piece.low);
    let across = (rng.one_in(2) || bytes < 2) && time >= 2;
    if depth == 0 || rng.one_in(12) || (!across && bytes < 2) {
        all.push(piece);
        return;
    }
    let (mut a, mut b) = (piece, piece);
    if across {
        a.death = piece.birth + 1 + rng.below(time as usize - 1) as u64;
        b.birth = a.death;
    } else {
        a.high = piece.low + 1 + rng.below(bytes as usize - 1) as u64;
        b.low = a.high;
    }
    cut(rng, a, depth - 1, all);
    cut(rng, b, depth - 1, all);
}

/// Buffers that fit under `height`: pieces, of which some are left out, aligned as their places
/// allow, and fixed there now and then.
fn instance(rng: &mut Random, height: u64) -> Vec<Buffer> {
    let mut pieces = Vec::new();
    let times = 6 + rng.below(20) as u64;
    let whole = Piece { birth: 0, death: times, low: 0, high: height };
    let depth = 4 + rng.below(3) as u32;
    cut(rng, whole, depth, &mut pieces);
    let (left_out, aligned, fixed) = (rng.one_in(2), rng.one_in(3), rng.one_in(2));
    let mut buffers: Vec<Buffer> = Vec::new();
    for (id, piece) in (0..).zip(pieces) {
        if left_out && rng.one_in(8) {
            continue;
        }
        let mut b = Buffer::new(id, piece.birth, piece.death, piece.high - piece.low);
        if aligned && rng.one_in(2) {
            b.alignment = 1 << piece.low.trailing_zeros().min(3);
        }
        if fixed && rng.one_in(3) {
            b.fixed = Some(piece.low);
        }
        buffers.push(b);
    }
    buffers
}

#[test]
fn what_was_cut_is_never_called_impossible() {
    let first = seed(5000);
    let (mut found, mut searched) = (0u64, 0u64);
    for seed in first..first + ROUNDS {
        let mut rng = Random(seed);
        let height = 8 + rng.below(40) as u64;
        let buffers = instance(&mut rng, height);
        // A height of one packing by the first key tells whether there is anything to search.
        let first = solve(&buffers, &Options { seed, effort: 1, ..Options::default() });
        searched += u64::from(first.expect("always a plan").height() > height);
        let options =
            Options { capacity: Some(height), seed, effort: 30_000, ..Options::default() };
        match solve(&buffers, &options) {
            Ok(plan) => {
                assert!(oracle::is_plan(&buffers, plan.offsets()), "seed {seed}");
                assert!(plan.height() <= height, "seed {seed}");
                found += 1;
            }
            Err(error) => {
                assert_eq!(error.status(), Status::NotFound, "seed {seed}: {error} {buffers:?}");
            }
        }
    }
    println!("{found} of {ROUNDS} found, {searched} with a search");
    assert!(
        found >= ROUNDS / 2 && searched >= ROUNDS / 8,
        "{found} found, {searched} with a search"
    );
}

/// The bound that a search proves lies at or below what is known to fit.
#[test]
fn no_bound_is_above_what_was_cut() {
    let first = seed(9000);
    for seed in first..first + 400 {
        let mut rng = Random(seed);
        let height = 8 + rng.below(40) as u64;
        let buffers = instance(&mut rng, height);
        let options = Options { seed, effort: 20_000, ..Options::default() };
        let plan = solve(&buffers, &options).expect("always a plan");
        assert!(oracle::is_plan(&buffers, plan.offsets()), "seed {seed}");
        assert!(plan.bound() <= height, "seed {seed}: bound {} of {height}", plan.bound());
    }
}
