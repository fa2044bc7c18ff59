//! Bindings: plan blocks given up and taken again, several plans by signature, plans learnt,
//! captures, plans kept in bytes.

use super::children::apart;
use crate::astray::Bound;
use crate::common::Random;
use crate::model::{By, Op, Rig, play, random_step, record, step_alloc, step_free};
use crate::recorded::plan_of;
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::plan::Plan;
use forebay::pool::capture;
use forebay::step::binding::{self, Setup};
use forebay::step::{record as recordings, slow};

const MIB: usize = 1 << 20;

fn setup(bytes: u64, plans_max: usize) -> Setup {
    Setup { bytes, alignment: 512, plans_max, replan_percent: 0 }
}

/// A chain of buffers of one size, of which two live at a time.
fn chain(count: u32, bytes: usize) -> Vec<Op> {
    let mut ops = vec![Op::Alloc(0, bytes, 0)];
    for id in 1..count {
        ops.extend([Op::Alloc(id, bytes, 0), Op::Free(id - 1, 0)]);
    }
    ops.push(Op::Free(count - 1, 0));
    ops
}

#[test]
fn an_idle_plan_block_is_given_up_for_memory_and_taken_again() {
    let ops = chain(10, 64 * MIB);
    let mut random = Random(1);
    let bound = Bound::new(&ops, 1, &mut random);
    let stream = bound.rig.streams[0];
    bound.run(&ops, &mut random);
    assert_eq!(bound.totals().plan_block_bytes, 128 << 20);
    // While a step is open the plan block stays, and the request fails.
    let step = bound.begin();
    let refused = bound.rig.pool.alloc(200 * MIB, stream).expect_err("256 MiB in all");
    assert_eq!(refused.status(), Status::OutOfMemory);
    slow::end(step, false).expect("open");
    bound.rig.finish();
    let large = bound.rig.pool.alloc(200 * MIB, stream).expect("the idle plan block makes room");
    assert_eq!((bound.totals().given_up, bound.totals().plan_block_bytes), (1, 0));
    // It cannot be had again while that lives; afterwards it can.
    let refused = bound.binding.begin(0, &bound.rig.streams).expect_err("no memory");
    assert_eq!(refused.status(), Status::OutOfMemory);
    bound.rig.pool.dealloc(large, stream).expect("live");
    bound.rig.finish();
    bound.run(&ops, &mut random);
    assert_eq!((bound.totals().plan_block_bytes, bound.totals().served), (128 << 20, 20));
    bound.end();
}

#[test]
fn plans_of_several_shapes_share_one_plan_block() {
    let rig = Rig::new(256 * MIB, 1);
    let mut random = Random(2);
    let shapes: Vec<Vec<Op>> = (1..=4).map(|n| chain(20 * n, 10_000 * n as usize)).collect();
    let made = binding::create(rig.pool.handle(), setup(0, 3), 0).expect("made");
    let bound = binding::get(made).expect("there");
    let mut recordings_held = Vec::new();
    for (signature, ops) in (1u64..).zip(&shapes) {
        let recording = record(&rig, ops, &mut random);
        let (plan, _) = plan_of(recording);
        bound.add(signature, &plan).expect("it grows");
        recordings_held.push(recording);
    }
    // Three are kept: the first, run longest ago, has gone.
    assert_eq!(bound.totals().plans, 3);
    let gone = bound.begin(1, &rig.streams).expect_err("gone");
    assert_eq!(gone.status(), Status::NotFound);
    for round in 0..30u64 {
        let signature = 2 + round % 3;
        let step = bound.begin(signature, &rig.streams).expect("there");
        play(&rig, &shapes[signature as usize - 1], By::Step(step), &mut random);
        slow::end(step, false).expect("open");
    }
    let totals = bound.totals();
    assert_eq!((totals.served, totals.fallbacks, totals.missing), (10 * (40 + 60 + 80), 0, 0));
    // As long as the highest of them: two buffers of 40,000 bytes.
    assert_eq!(totals.plan_block_bytes, 40_448 + 40_000);
    assert_eq!(rig.finish().1, 0);
    // The second was run longest ago of the three.
    let (plan, _) = plan_of(recordings_held[0]);
    bound.add(1, &plan).expect("added");
    let gone = bound.begin(2, &rig.streams).expect_err("gone");
    assert_eq!(gone.status(), Status::NotFound);
    drop(bound);
    binding::unbind(made).expect("idle");
    recordings_held.iter().for_each(|&held| recordings::let_go(held).expect("held"));
    rig.end();
}

#[test]
fn a_shape_that_is_new_is_learnt_and_one_that_changed_is_learnt_again() {
    let rig = Rig::new(256 * MIB, 2);
    let mut random = Random(3);
    let mut setup = setup(0, 8);
    setup.replan_percent = 5;
    let made = binding::create(rig.pool.handle(), setup, 0).expect("made");
    let bound = binding::get(made).expect("there");
    let first = random_step(&mut random, 80, 2);
    let run = |ops: &[Op], random: &mut Random| {
        let step = bound.begin(7, &rig.streams).expect("none is open");
        let fenced = By::Learnt(step);
        play(&rig, ops, fenced, random);
        slow::end(step, false).expect("open");
    };
    bound.learn(7).expect("no step is open");
    run(&first, &mut random);
    let totals = bound.totals();
    assert_eq!((totals.served, totals.fallbacks, totals.replanned), (0, 80, 1));
    run(&first, &mut random);
    assert_eq!((bound.totals().served, bound.totals().fallbacks), (80, 80));
    // Another step: most of it falls back, the next is recorded, the one after goes as planned.
    let second = random_step(&mut random, 60, 2);
    run(&second, &mut random);
    let astray = bound.totals();
    assert!(astray.fallbacks > 80 + 30 && astray.replanned == 1, "{astray:?}");
    run(&second, &mut random);
    assert_eq!(bound.totals().replanned, 2);
    let before = bound.totals();
    run(&second, &mut random);
    let after = bound.totals();
    assert_eq!((after.served - before.served, after.fallbacks), (60, before.fallbacks));
    assert_eq!(rig.finish().1, 0, "marks");
    drop(bound);
    binding::unbind(made).expect("idle");
    rig.end();
}

#[test]
fn a_plan_of_several_lanes_is_kept_in_bytes() {
    let mut random = Random(4);
    let rig = Rig::new(256 * MIB, 2);
    let ops = random_step(&mut random, 100, 2);
    let recording = record(&rig, &ops, &mut random);
    let (plan, _) = plan_of(recording);
    let bytes = plan.to_bytes();
    let loaded = Plan::from_bytes(&bytes).expect("sound");
    assert_eq!(loaded, plan);
    assert_eq!(loaded.recording(), plan.recording());
    for cut in [1, 8, 100, bytes.len() / 2] {
        assert!(Plan::from_bytes(&bytes[..bytes.len() - cut]).is_err(), "{cut} bytes less");
    }
    let made = binding::create(rig.pool.handle(), setup(0, 1), 0).expect("made");
    let bound = binding::get(made).expect("there");
    bound.add(0, &loaded).expect("it grows");
    let streams = recordings::get(recording).expect("ended").streams.clone();
    for _ in 0..10 {
        let step = bound.begin(0, &streams).expect("none is open");
        play(&rig, &ops, By::Step(step), &mut random);
        slow::end(step, false).expect("open");
    }
    assert_eq!((bound.totals().served, rig.finish().1), (1000, 0));
    drop(bound);
    binding::unbind(made).expect("idle");
    recordings::let_go(recording).expect("held");
    rig.end();
}

/// A stream that was destroyed untold, before the step's end or behind it, is waited for by the
/// next.
#[test]
fn a_stream_that_went_untold_costs_a_wait_for_the_device() {
    let ops = chain(6, 9000);
    for early in [false, true] {
        let mut random = Random(7);
        let mut bound = Bound::new(&ops, 1, &mut random);
        bound.rig.finish();
        let gone = bound.rig.streams[0];
        let destroy = || bound.rig.driver.stream_destroy(StreamHandle(gone)).expect("a stream");
        let step = bound.begin();
        play(&bound.rig, &ops, By::Step(step), &mut random);
        if early {
            destroy();
        }
        slow::end(step, false).expect("open");
        if !early {
            destroy();
        }
        let left = bound.rig.driver.inner().outstanding();
        assert!(left > 0, "its work is queued");
        // A stream that is none waits for nothing.
        let refused = bound.binding.begin(0, &[0xdead_0000]).expect_err("no stream");
        assert_eq!(refused.status(), Status::InvalidStream, "{refused}");
        assert_eq!(bound.rig.driver.inner().outstanding(), left);
        bound.rig.streams[0] = bound.rig.add_stream();
        let step = bound.begin();
        assert_eq!(bound.rig.driver.inner().outstanding(), 0, "it was waited for");
        play(&bound.rig, &ops, By::Step(step), &mut random);
        slow::end(step, false).expect("open");
        bound.rig.finish();
        // And once alone.
        bound.rig.driver.reset_counts();
        let step = bound.begin();
        assert_eq!(bound.rig.driver.total(), 0);
        slow::end(step, false).expect("open");
        bound.end();
    }
}

/// The first step of a binding may be captured; the plan block is the graph's until the release.
#[test]
fn a_captured_step_keeps_its_plan_block_until_the_release() {
    // An open capture is the whole process's.
    if apart("bindings::a_captured_step_keeps_its_plan_block_until_the_release") {
        return;
    }
    let ops = chain(6, 9000);
    let mut random = Random(5);
    let bound = Bound::new(&ops, 1, &mut random);
    let stream = bound.rig.streams[0];
    bound.rig.finish();
    let number = capture::begin(stream).expect("a stream of the device");
    bound.rig.driver.reset_counts();
    for _ in 0..2 {
        let step = bound.begin();
        let mut last = 0;
        for op in &ops {
            if let Op::Alloc(_, bytes, _) = *op {
                let next = step_alloc(step, bytes, stream).expect("planned");
                if last != 0 {
                    assert_eq!(step_free(step, last, stream), Status::Ok);
                }
                last = next;
            }
        }
        assert_eq!(step_free(step, last, stream), Status::Ok);
        slow::end(step, false).expect("open");
    }
    assert_eq!(bound.rig.driver.total(), 0, "nothing is recorded in a capture");
    assert_eq!(bound.totals().served, 12);
    capture::end(number).expect("open");
    // The graph may be launched: no eager step, no end, no giving up.
    let busy = bound.binding.begin(0, &bound.rig.streams).expect_err("the graph's");
    assert_eq!(busy.status(), Status::Busy);
    let refused = bound.rig.pool.alloc(256 * MIB, stream).expect_err("the plan block stays");
    assert_eq!((refused.status(), bound.totals().given_up), (Status::OutOfMemory, 0));
    assert_eq!(binding::unbind(bound.number()).expect_err("busy").status(), Status::Busy);
    capture::release(number).expect("ended");
    bound.run(&ops, &mut random);
    assert_eq!(bound.totals().served, 18);
    bound.end();
}
