//! Instances of special shape, and larger random ones.

use crate::oracle::{self, Look};
use crate::random::{Random, seed};
use forebay::error::Status;
use forebay::plan::{Buffer, Options, solve, solve_with};
use std::time::Duration;

fn quick(seed: u64) -> Options {
    Options { seed, effort: 30_000, ..Options::default() }
}

#[test]
fn larger_random_instances_give_sound_plans() {
    let first = seed(5);
    for seed in first..first + 60 {
        let mut rng = Random(seed);
        let look = Look {
            count: 20 + rng.below(200),
            times: 5 + rng.below(80),
            size_max: 1000,
            align_power: if rng.one_in(2) { 6 } else { 0 },
            fixed_one_in: if rng.one_in(2) { 10 } else { 0 },
            fixed_max: 20_000,
        };
        let buffers = oracle::buffers(&mut rng, look);
        let plan = solve(&buffers, &quick(seed)).expect("always a plan");
        assert!(oracle::is_plan(&buffers, plan.offsets()), "seed {seed}");
        assert_eq!(plan.height(), oracle::height(&buffers, plan.offsets()), "seed {seed}");
        assert!(plan.bound() <= plan.height());
        let options = Options { capacity: Some(plan.height() * 9 / 8), ..quick(seed) };
        let again = solve(&buffers, &options).expect("room enough");
        assert!(oracle::is_plan(&buffers, again.offsets()), "seed {seed}");
        assert!(again.height() <= plan.height() * 9 / 8, "seed {seed}");
    }
}

#[test]
fn nothing_to_plan() {
    let plan = solve(&[], &Options::default()).expect("an empty plan");
    assert_eq!((plan.height(), plan.bound(), plan.gap(), plan.alignment()), (0, 0, 0, 1));
    let options = Options { capacity: Some(0), ..Options::default() };
    assert!(solve(&[], &options).is_ok());
}

#[test]
fn buffers_that_never_meet_share_their_bytes() {
    let chain: Vec<Buffer> = (0..5000).map(|i| Buffer::new(i, i, i + 1, 64 + i % 7)).collect();
    let plan = solve(&chain, &Options::default()).expect("a plan");
    assert_eq!((plan.height(), plan.gap()), (70, 0));
    assert!(plan.offsets().iter().all(|at| *at == 0));
}

#[test]
fn a_million_buffers_of_one_lifetime() {
    let all: Vec<Buffer> = (0..1_000_000).map(|id| Buffer::new(id, 3, 4, 1 + id % 5)).collect();
    let plan = solve(&all, &Options::default()).expect("a plan");
    assert_eq!((plan.height(), plan.gap()), (3_000_000, 0));
    let less = Options { capacity: Some(2_999_999), ..Options::default() };
    let error = solve(&all, &less).expect_err("too little");
    assert_eq!(error.status(), Status::Infeasible);
    assert!(error.message().contains("that live at 3 come to 3000000"), "{error}");
}

#[test]
fn an_offset_is_found_by_its_id() {
    let b = |id, birth, death, size| Buffer::new(id, birth, death, size);
    let buffers = [b(40, 0, 3, 8), b(7, 1, 4, 16), b(1 << 60, 2, 5, 4)];
    let plan = solve(&buffers, &Options::default()).expect("a plan");
    assert_eq!((plan.height(), plan.bound()), (28, 28));
    for (buffer, offset) in buffers.iter().zip(plan.offsets()) {
        assert_eq!(plan.offset_of(buffer.id), Some(*offset));
    }
    assert_eq!(plan.offset_of(8), None);
}

#[test]
fn a_fixed_buffer_above_everything_is_the_height() {
    let fixed = Buffer { alignment: 256, fixed: Some(4096), ..Buffer::new(1, 0, 9, 100) };
    let buffers = [Buffer::new(0, 0, 5, 64), fixed, Buffer::new(2, 3, 9, 4000)];
    let plan = solve(&buffers, &Options::default()).expect("a plan");
    assert_eq!((plan.height(), plan.gap(), plan.alignment()), (4196, 0, 256));
    assert_eq!(plan.offset_of(1), Some(4096));
}

#[test]
fn alignment_is_paid_once_for_what_shares_it() {
    // Both sizes round up to 512; the topmost keeps its own.
    let b = |id, size| Buffer { alignment: 512, ..Buffer::new(id, 0, 1, size) };
    let plan = solve(&[b(0, 100), b(1, 300)], &Options::default()).expect("a plan");
    assert_eq!((plan.height(), plan.gap()), (612, 0));
    let options = Options { capacity: Some(612), ..Options::default() };
    let tight = solve(&[b(0, 100), b(1, 300)], &options).expect("300 below, 100 on top");
    assert_eq!((tight.height(), tight.offset_of(1)), (612, Some(0)));
    let options = Options { capacity: Some(611), ..Options::default() };
    let error = solve(&[b(0, 100), b(1, 300)], &options).expect_err("too little");
    assert_eq!(error.status(), Status::Infeasible);
}

/// Sizes that are no multiples of the shared alignment, and heights of more units than the exact
/// search takes: what it finds of rounded sizes proves nothing between multiples.
#[test]
fn a_bound_is_never_above_a_plan_that_is_there() {
    let shapes = [
        (5, 6, 392167423),
        (3, 6, 288358399),
        (5, 8, 268435455),
        (4, 6, 268435455),
        (3, 4, 29360127),
    ];
    let buffers: Vec<Buffer> = (0..)
        .zip(shapes)
        .map(|(id, (birth, death, size))| Buffer {
            alignment: 64 << 20,
            ..Buffer::new(id, birth, death, size)
        })
        .collect();
    let offsets = [0, 939524096, 671088640, 402653184, 0];
    assert!(oracle::is_plan(&buffers, &offsets));
    let plan = solve(&buffers, &Options::default()).expect("a plan");
    assert!(plan.bound() <= oracle::height(&buffers, &offsets), "{}", plan.bound());
}

#[test]
fn who_says_stop_is_asked_no_more() {
    let mut rng = Random(3);
    let look = Look {
        count: 60,
        times: 40,
        size_max: 1 << 20,
        align_power: 0,
        fixed_one_in: 0,
        fixed_max: 0,
    };
    // Twenty parts that have nothing to do with each other, each worth a long search.
    let mut buffers = Vec::new();
    for part in 0..20 {
        for (at, buffer) in oracle::buffers(&mut rng, look).into_iter().enumerate() {
            let (birth, death) = (buffer.birth + part * 1000, buffer.death + part * 1000);
            buffers.push(Buffer { id: part * 1000 + at as u64, birth, death, ..buffer });
        }
    }
    let options = Options { effort: u64::MAX, time: Some(Duration::from_secs(60)), ..quick(1) };
    let mut asked = 0;
    let plan = solve_with(&buffers, &options, &mut |_| {
        asked += 1;
        false
    });
    assert!(oracle::is_plan(&buffers, plan.expect("an answer all the same").offsets()));
    assert!(asked <= 1, "asked {asked} times");
}
