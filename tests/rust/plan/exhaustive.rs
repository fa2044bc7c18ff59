//! Tiny instances: every answer of the planner against all offsets there are.

use crate::oracle::{self, Look};
use crate::random::{Random, seed};
use forebay::error::Status;
use forebay::plan::{Buffer, Options, solve};

/// How many instances each test tries.
const ROUNDS: u64 = 1500;

/// An oracle: whether anything fits under a capacity.
type Fits = fn(&[Buffer], u64) -> bool;

fn tiny(rng: &mut Random, align_power: usize, fixed_one_in: usize) -> Vec<Buffer> {
    let count = 2 + rng.below(5);
    let (times, size_max) = (2 + rng.below(5), 2 + rng.below(4));
    let look = Look { count, times, size_max, align_power, fixed_one_in, fixed_max: 8 };
    oracle::buffers(rng, look)
}

/// The lowest capacity at which anything fits, by trying all.
fn least(buffers: &[Buffer], fits: Fits) -> u64 {
    (1..).find(|capacity| fits(buffers, *capacity)).expect("something fits")
}

/// Under every capacity up to one above the least: the right word, and a sound plan.
fn capacities_agree(buffers: &[Buffer], least: u64, seed: u64) {
    for capacity in 1..=least + 1 {
        let options = Options { capacity: Some(capacity), seed, ..Options::default() };
        match solve(buffers, &options) {
            Ok(plan) => {
                assert!(capacity >= least, "{capacity} is too little for {buffers:?}");
                assert!(oracle::is_plan(buffers, plan.offsets()), "{buffers:?}");
                assert!(oracle::height(buffers, plan.offsets()) <= capacity);
                assert_eq!(plan.height(), oracle::height(buffers, plan.offsets()));
                assert!(plan.bound() <= least, "bound {} of {least}", plan.bound());
            }
            Err(error) => {
                assert_eq!(error.status(), Status::Infeasible, "{error} for {buffers:?}");
                assert!(capacity < least, "{error}, but {capacity} will do for {buffers:?}");
            }
        }
    }
}

/// Without a capacity: the least height, and the proof of it.
fn minimum_agrees(buffers: &[Buffer], least: u64, seed: u64) {
    let plan = solve(buffers, &Options { seed, ..Options::default() }).expect("always a plan");
    assert!(oracle::is_plan(buffers, plan.offsets()), "{buffers:?}");
    assert_eq!(plan.height(), oracle::height(buffers, plan.offsets()));
    assert!(plan.bound() <= least, "bound {} of {least} for {buffers:?}", plan.bound());
    assert_eq!((plan.height(), plan.gap()), (least, 0), "{buffers:?}");
}

fn agree(seed: u64, buffers: &[Buffer], fits: Fits) {
    let least = least(buffers, fits);
    let checked = std::panic::catch_unwind(|| {
        capacities_agree(buffers, least, seed);
        minimum_agrees(buffers, least, seed);
    });
    if checked.is_err() {
        panic!("at seed {seed} (set FOREBAY_TEST_SEED to run it again)");
    }
}

fn run(first: u64, align_power: usize, fixed_one_in: usize) {
    let first = seed(first);
    for seed in first..first + ROUNDS {
        let buffers = tiny(&mut Random(seed), align_power, fixed_one_in);
        let (a, b) = (least(&buffers, oracle::fits), least(&buffers, oracle::fits_in_some_order));
        assert_eq!(a, b, "the two oracles differ at seed {seed}");
        agree(seed, &buffers, oracle::fits);
    }
}

#[test]
fn plain_buffers() {
    run(1000, 0, 0);
}

#[test]
fn mixed_alignments() {
    run(20_000, 2, 0);
}

#[test]
fn fixed_offsets() {
    run(40_000, 0, 3);
}

#[test]
fn alignments_and_fixed_offsets() {
    run(60_000, 2, 3);
}

/// Instances whose least height is above the largest clique: bounds alone do not answer.
#[test]
fn instances_that_need_the_search() {
    let first = seed(80_000);
    let mut hard = 0;
    for seed in first..first + 1000 {
        let mut rng = Random(seed);
        let look = Look {
            count: 7 + rng.below(3),
            times: 4 + rng.below(5),
            size_max: 2 + rng.below(4),
            align_power: if rng.one_in(4) { 1 } else { 0 },
            fixed_one_in: if rng.one_in(4) { 4 } else { 0 },
            fixed_max: 8,
        };
        let buffers = oracle::buffers(&mut rng, look);
        let load = (0..20).map(|time| {
            let live = buffers.iter().filter(|b| b.birth <= time && time < b.death);
            live.map(|b| b.size).sum::<u64>()
        });
        if oracle::fits_in_some_order(&buffers, load.max().unwrap_or(0)) {
            continue;
        }
        hard += 1;
        agree(seed, &buffers, oracle::fits_in_some_order);
    }
    println!("{hard} hard instances");
    assert!(hard >= 50 || std::env::var_os("FOREBAY_TEST_SEED").is_some(), "only {hard} are hard");
}
