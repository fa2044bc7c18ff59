//! The same input and seed: the same bytes, on any number of threads. Budgets and cancelling.

use crate::oracle::{self, Look};
use crate::random::{Random, seed};
use forebay::error::Status;
use forebay::plan::{Buffer, Options, solve, solve_with};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Too large to be done with the fixed keys; hardly ever tight.
fn hard(seed: u64) -> Vec<Buffer> {
    let look = Look {
        count: 70,
        times: 25,
        size_max: 1000,
        align_power: 0,
        fixed_one_in: 0,
        fixed_max: 1,
    };
    oracle::buffers(&mut Random(seed), look)
}

#[test]
fn threads_do_not_change_the_plan() {
    let first = seed(900);
    let mut plans = Vec::new();
    for seed in first..first + 6 {
        let buffers = hard(seed);
        let with = |threads| {
            let options =
                Options { seed, threads, searchers: 4, effort: 20_000, ..Options::default() };
            solve(&buffers, &options).expect("a plan").to_bytes()
        };
        let one = with(1);
        for threads in [1, 2, 3, 4, 0] {
            assert_eq!(with(threads), one, "seed {seed}, {threads} threads");
        }
        plans.push(one);
    }
}

#[test]
fn under_a_capacity_too() {
    let first = seed(950);
    let mut found = 0;
    for seed in first..first + 6 {
        let buffers = hard(seed);
        let lowest = solve(&buffers, &Options { seed, effort: 30_000, ..Options::default() });
        let lowest = lowest.expect("a plan");
        let capacity = Some(lowest.height() - lowest.gap() / 2);
        let with = |threads| {
            let options = Options {
                capacity,
                seed,
                threads,
                searchers: 3,
                effort: 9000,
                ..Options::default()
            };
            solve(&buffers, &options).map(|plan| plan.to_bytes())
        };
        let one = with(1);
        found += usize::from(one.is_ok());
        for threads in [2, 3] {
            assert_eq!(with(threads), one, "seed {seed}, {threads} threads");
        }
    }
    assert!(found > 0, "no search found anything: the test shows little");
}

#[test]
fn seeds_and_searchers_matter() {
    let buffers = hard(1);
    let with = |seed, searchers| {
        let options = Options { seed, searchers, effort: 20_000, ..Options::default() };
        solve(&buffers, &options).expect("a plan").to_bytes()
    };
    assert_eq!(with(1, 1), with(1, 1));
    let different = (2..9).any(|seed| with(seed, 1) != with(1, 1));
    assert!(different, "the seed changes nothing");
}

#[test]
fn racing_gives_a_sound_plan() {
    let buffers = hard(3);
    let options = Options { searchers: 4, racing: true, effort: 20_000, ..Options::default() };
    let plan = solve(&buffers, &options).expect("a plan");
    assert!(oracle::is_plan(&buffers, plan.offsets()));
}

#[test]
fn a_spent_budget_is_not_a_proof() {
    let buffers = hard(4);
    let lowest = solve(&buffers, &Options::default()).expect("a plan");
    if lowest.gap() == 0 {
        return;
    }
    let options = Options { capacity: Some(lowest.bound()), effort: 600, ..Options::default() };
    let error = solve(&buffers, &options).expect_err("hardly any effort");
    assert_eq!(error.status(), Status::NotFound);
    assert!(error.message().contains("one may exist"), "{error}");
    assert!(error.message().contains(&format!("bound is {}", lowest.bound())), "{error}");
}

#[test]
fn a_search_ends_when_told() {
    let buffers = hard(5);
    let forever = Options { effort: u64::MAX, ..Options::default() };
    let mut told = 0;
    let plan = solve_with(&buffers, &forever, &mut |progress| {
        assert!(progress.height >= Some(progress.bound));
        told += 1;
        told < 3
    });
    let plan = plan.expect("the best so far");
    assert!(oracle::is_plan(&buffers, plan.offsets()));
    assert!(told == 3 || plan.gap() == 0, "told {told} times");

    let stop = Arc::new(AtomicBool::new(true));
    let options = Options { stop: Some(stop.clone()), searchers: 2, ..forever.clone() };
    let plan = solve(&buffers, &options).expect("one packing is made in any case");
    assert!(oracle::is_plan(&buffers, plan.offsets()));
    assert!(stop.load(Ordering::Relaxed), "the flag is the caller's");

    let options = Options { time: Some(Duration::ZERO), ..forever };
    let plan = solve(&buffers, &options).expect("one packing is made in any case");
    assert!(oracle::is_plan(&buffers, plan.offsets()));
}
