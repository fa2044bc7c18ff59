//! A step of each of the repository's traces: recorded, planned, and run a hundred times by its
//! plan, on one lane and on two late ones; as recorded, and with sizes changed at random.
//!
//! Prints its seed and runs again from it (`FOREBAY_TEST_SEED`). Cost: some seconds.

#[path = "../../tests/rust/common/device.rs"]
mod common;
#[allow(dead_code, reason = "each program uses its part")]
#[path = "../../tests/rust/step/model.rs"]
mod model;

use common::{Random, seed};
use forebay::driver::faulty::CallSet;
use forebay::plan::{Options, handles};
use forebay::step::{binding, record as recordings, slow};
use forebay_cli::instance;
use model::{By, Op, Rig, play, record};
use std::path::Path;

const TRACES: [&str; 2] = ["llama3_70b_tp8_contbatch_chunk256.csv.gz", "vision_dynbatch.csv.gz"];
/// In the middle of both.
const STEP: u64 = 200;

/// The step's buffers as operations; with two lanes, every second buffer is the other's, and now
/// and then each lane waits for the other.
fn step_of(trace: &str, lanes: usize) -> Vec<Op> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces").join(trace);
    let read = instance::read_file(&path, Some(STEP)).expect("a step of the trace");
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (at, b) in read.buffers.iter().enumerate() {
        events.push((b.birth, true, at));
        events.push((b.death, false, at));
    }
    events.sort_unstable();
    let mut ops = Vec::new();
    for (i, &(_, born, at)) in events.iter().enumerate() {
        let lane = at % lanes;
        ops.push(match born {
            true => Op::Alloc(at as u32, read.buffers[at].size as usize, lane),
            false => Op::Free(at as u32, lane),
        });
        if lanes == 2 && i % 8 == 7 {
            ops.push(Op::Fence(i / 8 % 2, 1 - i / 8 % 2));
        }
    }
    ops
}

fn run(trace: &str, lanes: usize, seed: u64) {
    let mut random = Random(seed);
    let ops = step_of(trace, lanes);
    let buffers = ops.iter().filter(|op| matches!(op, Op::Alloc(..))).count() as u64;
    assert!(buffers > 100, "{trace}: {buffers} buffers");
    let rig = Rig::new(8 << 30, lanes);
    let recording = record(&rig, &ops, &mut random);
    let log = recordings::get(recording).expect("ended");
    let plan = log.step.clone().plan(&Options::default()).expect("a plan");
    println!("{trace}, {lanes} lanes: {buffers} buffers in {} bytes", plan.height());
    if lanes == 1 {
        assert_eq!(plan.gap(), 0, "no plan is lower");
    }
    let number = handles::keep(plan.clone()).expect("kept");
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    for step in 0..100 {
        if step == 1 {
            rig.driver.reset_counts();
        }
        let step = bound.begin(0, &log.streams).expect("none is open");
        play(&rig, &ops, By::Step(step), &mut random);
        slow::end(step, false).expect("all are free");
    }
    assert_eq!(rig.driver.count_of(CallSet::MEMORY), 0, "{trace}: memory calls");
    if lanes == 1 {
        assert_eq!(rig.driver.total(), 0, "{trace}: driver calls");
    }
    let totals = bound.totals();
    assert_eq!((totals.served, totals.fallbacks), (100 * buffers, 0), "{trace}");
    let mut changed = 0;
    for _ in 0..100 {
        let mut other = ops.clone();
        for op in &mut other {
            if let Op::Alloc(_, bytes, _) = op
                && random.one_in(100)
            {
                // No size of a step is odd and above a megabyte.
                *bytes += (1 << 20) + 1 + 2 * random.below(5000) - *bytes % 2;
                changed += 1;
            }
        }
        let step = bound.begin(0, &log.streams).expect("none is open");
        play(&rig, &other, By::Step(step), &mut random);
        slow::end(step, false).expect("all are free");
    }
    assert!(changed > 50, "{changed}");
    let totals = bound.totals();
    assert_eq!((totals.served, totals.fallbacks), (200 * buffers - changed, changed), "{trace}");
    assert_eq!((totals.missing, totals.late), (0, 0), "{trace}");
    assert_eq!(rig.finish(), (201 * buffers, 0), "{trace}: marks");
    drop(bound);
    binding::unbind(made).expect("idle");
    recordings::let_go(recording).expect("held");
    rig.end();
}

#[test]
fn a_step_of_each_trace_runs_by_its_plan_on_one_lane() {
    let seed = seed(71);
    TRACES.iter().for_each(|trace| run(trace, 1, seed));
}

#[test]
fn a_step_of_each_trace_runs_by_its_plan_on_two_late_lanes() {
    let seed = seed(72);
    TRACES.iter().for_each(|trace| run(trace, 2, seed));
}
