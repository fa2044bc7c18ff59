//! What a program may do at the edges of a recorded step: 0 bytes, fences of its own, uses by other
//! lanes, alignments, captures that begin or end inside a step, memory that is short meanwhile.

use super::children::apart;
use crate::astray::Bound;
use crate::common::Random;
use crate::model::{By, Op, Rig, play, step_alloc, step_free};
use crate::recorded::plan_of;
use forebay::abi::step::{BindingOptions, forebay_binding_create, forebay_plan_unbind};
use forebay::driver::{Call, StreamHandle};
use forebay::error::Status;
use forebay::plan::handles;
use forebay::pool::capture;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::record::Event;
use forebay::pool::registry;
use forebay::pool::report::tag_create;
use forebay::pool::suspend::{Level, Report};
use forebay::step::binding::{self, Binding, Setup};
use forebay::step::{record as recordings, slow};
use std::sync::Arc;

const MIB: usize = 1 << 20;
const ONE: [Op; 2] = [Op::Alloc(0, 8192, 0), Op::Free(0, 0)];

/// The plan of an open recording, bound; the binding and its number.
fn bound_of(rig: &Rig, recording: u64) -> (Arc<Binding>, u64) {
    recordings::end(recording).expect("open");
    let (plan, number) = plan_of(recording);
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    recordings::let_go(recording).expect("held");
    handles::let_go(number).expect("held");
    (binding::get(made).expect("there"), made)
}

fn finish(rig: Rig, bound: Arc<Binding>, made: u64) {
    drop(bound);
    rig.finish();
    binding::unbind(made).expect("idle");
    rig.end();
}

/// Queues some work on a lane.
fn queue(rig: &Rig, lane: usize) {
    let stream = StreamHandle(rig.streams[lane]);
    rig.driver.inner().launch(stream, |_| (), [0; 4]).expect("a live stream");
}

fn pair(step: u64, bytes: usize, stream: u64) -> usize {
    let address = step_alloc(step, bytes, stream).expect("fits");
    assert_eq!(step_free(step, address, stream), Status::Ok);
    address
}

/// 0 bytes are no buffer, wherever the step is: also where the pool's is expected.
#[test]
fn zero_bytes_are_no_birth_of_the_pools() {
    let rig = Rig::new(64 * MIB, 1);
    let stream = rig.streams[0];
    let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
    let kept = rig.pool.alloc(4096, stream).expect("fits");
    let other = rig.pool.alloc(4096, stream).expect("fits");
    rig.pool.dealloc(other, stream).expect("live");
    let (bound, made) = bound_of(&rig, recording);
    let step = bound.begin(0, &rig.streams).expect("none is open");
    assert_eq!(step_alloc(step, 0, stream), Ok(0));
    let by_pool = step_alloc(step, 4096, stream).expect("the pool's");
    let planned = step_alloc(step, 4096, stream).expect("planned");
    assert_eq!(step_alloc(step, 0, stream), Ok(0));
    assert_eq!(step_free(step, planned, stream), Status::Ok);
    slow::end(step, false).expect("all are free");
    let totals = bound.totals();
    assert_eq!((totals.served, totals.by_pool, totals.fallbacks), (1, 1, 0));
    [kept, by_pool].iter().for_each(|&block| rig.pool.dealloc(block, stream).expect("live"));
    finish(rig, bound, made);
}

/// A fence by the program that comes before a free which the recorded one follows is another fence.
#[test]
fn a_fence_too_early_does_not_stand_for_the_recorded_one() {
    let ops = [ONE[0], ONE[1], Op::Fence(0, 1), Op::Alloc(1, 8192, 1), Op::Free(1, 1)];
    for early in [true, false] {
        let mut random = Random(2);
        let bound = Bound::new(&ops, 2, &mut random);
        assert_eq!(bound.totals().plan_block_bytes, 8192, "they share");
        let streams = bound.streams();
        let fence = |step| slow::fence(step, streams[0], streams[1]).expect("lanes");
        bound.rig.finish();
        let step = bound.begin();
        let waits = bound.rig.driver.count(Call::StreamWait);
        let first = step_alloc(step, 8192, streams[0]).expect("planned");
        queue(&bound.rig, 0);
        if early {
            fence(step);
        }
        queue(&bound.rig, 0);
        assert_eq!(step_free(step, first, streams[0]), Status::Ok);
        if !early {
            fence(step);
        }
        assert_eq!(pair(step, 8192, streams[1]), first);
        slow::end(step, false).expect("all are free");
        // One fence is issued behind the free: by the step, or by the program.
        assert_eq!((bound.totals().fences, bound.totals().served), (1, 2), "early: {early}");
        let waits = bound.rig.driver.count(Call::StreamWait) - waits;
        assert_eq!(waits, if early { 2 } else { 1 }, "early: {early}");
        bound.end();
    }
}

/// The lane of the recorded end may use a buffer without a word; when another lane frees it,
/// nothing orders that use before the others.
#[test]
fn a_use_by_the_lane_of_the_recorded_end_holds_the_bytes_when_another_frees() {
    let again = [Op::Alloc(1, 8192, 1), Op::Free(1, 1), Op::Alloc(2, 8192, 1), Op::Free(2, 1)];
    let ops: Vec<Op> = [ONE[0], ONE[1], Op::Fence(0, 1)].into_iter().chain(again).collect();
    let bound = Bound::new(&ops, 2, &mut Random(3));
    assert_eq!(bound.totals().plan_block_bytes, 8192, "all share");
    let streams = bound.streams();
    let step = bound.begin();
    let first = step_alloc(step, 8192, streams[0]).expect("planned");
    let second = step_alloc(step, 8192, streams[1]).expect("the pool's: the first is live");
    slow::record_use(step, first, streams[0]).expect("live");
    assert_eq!(step_free(step, first, streams[1]), Status::Ok);
    let third = step_alloc(step, 8192, streams[1]).expect("fits");
    assert_ne!(third, first, "the first lane uses it yet");
    [second, third].iter().for_each(|&b| assert_eq!(step_free(step, b, streams[1]), Status::Ok));
    slow::end(step, false).expect("all are free");
    assert_eq!((bound.totals().served, bound.totals().fallbacks), (1, 2));
    bound.end();
}

/// A graph may have the plan block's addresses although its capture was over before the step was.
#[test]
fn a_capture_that_ends_inside_a_step_keeps_the_plan_block() {
    // An open capture is the whole process's.
    if apart("edges::a_capture_that_ends_inside_a_step_keeps_the_plan_block") {
        return;
    }
    for begun_inside in [false, true] {
        let bound = Bound::new(&ONE, 1, &mut Random(4));
        let stream = bound.rig.streams[0];
        bound.rig.finish();
        let before = (!begun_inside).then(|| capture::begin(stream).expect("a stream"));
        let step = bound.begin();
        let number = before.unwrap_or_else(|| capture::begin(stream).expect("a stream"));
        pair(step, 8192, stream);
        capture::end(number).expect("open");
        slow::end(step, false).expect("all are free");
        bound.rig.finish();
        let busy = binding::unbind(bound.number()).expect_err("the graph's");
        assert_eq!(busy.status(), Status::Busy, "begun inside: {begun_inside}");
        let busy = bound.binding.begin(0, &bound.rig.streams).expect_err("the graph's");
        assert_eq!(busy.status(), Status::Busy);
        bound.rig.pool.alloc(256 * MIB, stream).expect_err("the plan block stays");
        assert_eq!(bound.totals().given_up, 0);
        capture::release(number).expect("ended");
        bound.rig.finish();
        bound.run(&ONE, &mut Random(5));
        bound.end();
    }
}

/// One that was over before the step began has nothing of it.
#[test]
fn a_capture_of_before_does_not_keep_the_plan_block() {
    // An open capture is the whole process's.
    if apart("edges::a_capture_of_before_does_not_keep_the_plan_block") {
        return;
    }
    let bound = Bound::new(&ONE, 1, &mut Random(6));
    bound.rig.finish();
    let number = capture::begin(bound.rig.streams[0]).expect("a stream");
    capture::end(number).expect("open");
    (0..3).for_each(|_| bound.run(&ONE, &mut Random(7)));
    let rig = bound.rig.finish();
    assert_eq!(rig.1, 0);
    capture::release(number).expect("ended");
    bound.end();
}

/// A lane number that serves another capture by now says nothing of a graph that is gone.
#[test]
fn a_strangers_capture_on_a_lane_of_before_keeps_nothing() {
    // An open capture is the whole process's.
    if apart("edges::a_strangers_capture_on_a_lane_of_before_keeps_nothing") {
        return;
    }
    let bound = Bound::new(&ONE, 1, &mut Random(8));
    let (rig, stream) = (&bound.rig, bound.rig.streams[0]);
    let stranger = rig.add_stream();
    rig.finish();
    let number = capture::begin(stream).expect("a stream");
    let step = bound.begin();
    pair(step, 8192, stream);
    slow::end(step, false).expect("all are free");
    capture::end(number).expect("open");
    capture::release(number).expect("ended");
    for _ in 0..20 {
        let block = rig.pool.alloc(8 * MIB, stream).expect("fits");
        rig.pool.dealloc(block, stream).expect("live");
        rig.finish();
        rig.pool.trim(0).expect("alive");
    }
    let other = capture::begin(stranger).expect("a stream");
    capture::end(other).expect("open");
    binding::unbind(bound.number()).expect("its own graph is gone");
    capture::release(other).expect("ended");
    bound.rig.finish();
}

/// A plan block that is given up while a capture is open makes no room: it stays.
#[test]
fn no_plan_block_is_given_up_while_a_capture_is_open() {
    // An open capture is the whole process's.
    if apart("edges::no_plan_block_is_given_up_while_a_capture_is_open") {
        return;
    }
    let ops = [Op::Alloc(0, 128 * MIB, 0), Op::Free(0, 0)];
    let mut bound = Bound::new(&ops, 1, &mut Random(9));
    let (stream, other) = (bound.rig.streams[0], bound.rig.add_stream());
    bound.rig.finish();
    let number = capture::begin(other).expect("a stream");
    let refused = bound.rig.pool.alloc(200 * MIB, stream).expect_err("256 MiB in all");
    assert_eq!(refused.status(), Status::OutOfMemory);
    assert_eq!((bound.totals().given_up, bound.totals().plan_block_bytes), (0, 128 << 20));
    let step = bound.begin();
    pair(step, 128 * MIB, stream);
    slow::end(step, false).expect("all are free");
    capture::end(number).expect("open");
    capture::release(number).expect("ended");
    bound.rig.finish();
    let large = bound.rig.pool.alloc(200 * MIB, stream).expect("the idle plan block makes room");
    assert_eq!(bound.totals().given_up, 1);
    bound.rig.pool.dealloc(large, stream).expect("live");
    bound.rig.streams.push(other);
    bound.end();
}

/// The plan block has no tag, whatever tag its binder's thread has.
#[test]
fn a_suspended_tag_does_not_take_a_plan_block_away() {
    let rig = Rig::new(64 * MIB, 1);
    let stream = rig.streams[0];
    let tag = tag_create("of the binder").expect("a tag");
    rig.pool.declare_suspendable(tag).expect("a tag");
    let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
    let block = rig.pool.alloc(4 * MIB, stream).expect("fits");
    rig.pool.dealloc(block, stream).expect("live");
    registry::set_tag(u32::from(tag)).expect("a tag");
    let (bound, made) = bound_of(&rig, recording);
    assert_eq!(registry::set_tag(1).expect("a tag"), u32::from(tag), "the thread's is as before");
    assert_eq!(rig.pool.tag_bytes().expect("alive")[usize::from(tag)].0, 0);
    rig.finish();
    rig.pool.suspend(&[tag], Level::Discard).expect("nothing in the way");
    let step = bound.begin(0, &rig.streams).expect("none is open");
    let planned = step_alloc(step, 4 * MIB, stream).expect("planned");
    // SAFETY: a live block of the host backend's, whose memory is there.
    unsafe { (planned as *mut u8).write_bytes(7, 4 * MIB) };
    assert_eq!(step_free(step, planned, stream), Status::Ok);
    slow::end(step, false).expect("all are free");
    rig.pool.resume(&[tag], &mut Report::default()).expect("room");
    finish(rig, bound, made);
}

/// What falls back, and what is planned anew, keeps the alignment that was recorded.
#[test]
fn recorded_alignments_are_kept() {
    const ALIGN: usize = 64 << 10;
    let rig = Rig::new(64 * MIB, 1);
    let stream = rig.streams[0];
    let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
    for _ in 0..2 {
        let block = rig.pool.alloc_aligned(5000, ALIGN, stream).expect("fits");
        rig.pool.dealloc(block, stream).expect("live");
    }
    recordings::end(recording).expect("open");
    let (plan, _) = plan_of(recording);
    let setup = Setup { bytes: 0, alignment: 512, plans_max: 4, replan_percent: 0 };
    let made = binding::create(rig.pool.handle(), setup, 0).expect("made");
    let bound = binding::get(made).expect("there");
    bound.add(0, &plan).expect("it grows");
    // Both live at once: the second falls back. Planned anew, with one block of the pool's between.
    for round in 0..3 {
        let step = bound.begin(0, &rig.streams).expect("none is open");
        let shift = rig.pool.alloc(5000, stream).expect("fits");
        let both = [0, 1].map(|_| step_alloc(step, 5000, stream).expect("fits"));
        for block in both {
            assert_eq!(block % ALIGN, 0, "round {round}: {both:x?}");
            assert_eq!(step_free(step, block, stream), Status::Ok);
        }
        rig.pool.dealloc(shift, stream).expect("live");
        slow::end(step, false).expect("all are free");
        if round == 0 {
            assert_eq!((bound.totals().served, bound.totals().fallbacks), (1, 1));
            bound.learn(0).expect("no step is open");
        }
    }
    assert_eq!((bound.totals().replanned, bound.totals().fallbacks), (1, 2));
    recordings::let_go(recording).expect("held");
    finish(rig, bound, made);
}

/// Options of an older and of a newer version of the structure.
#[test]
fn options_of_other_lengths_are_read_as_far_as_they_go() {
    let rig = Rig::new(64 * MIB, 1);
    let full = size_of::<BindingOptions>();
    for (size, wanted) in [
        (0, Status::InvalidArgument),
        (8, Status::InvalidArgument),
        (16, Status::Ok),
        (24, Status::Ok),
        (full, Status::InvalidArgument),
        (2 * full, Status::InvalidArgument),
        ((1 << 16) + 8, Status::InvalidArgument),
    ] {
        // Struct size, bytes, alignment; then 0 plans, which is refused where it is read.
        let words = [size, 4096, 1024, 0, 0, 0, 0, 0, 0, 0];
        let mut made = std::ptr::null_mut();
        let (pool, options) = (rig.pool.handle() as _, words.as_ptr().cast());
        // SAFETY: as many bytes as are read, and a local to write.
        let status = unsafe { forebay_binding_create(pool, options, &raw mut made) };
        assert_eq!((status, made.is_null()), (wanted, wanted != Status::Ok), "{size} bytes");
        if status == Status::Ok {
            let bound = binding::get(made as u64).expect("there");
            assert_eq!(bound.totals().plan_block_bytes, 4096);
            drop(bound);
            assert_eq!(forebay_plan_unbind(made), Status::Ok);
        }
    }
    rig.end();
}

/// A thread that comes later is not the one that is gone, even where it has the same cache.
#[test]
fn a_step_of_a_thread_that_is_gone_is_nobodys() {
    let rig = Rig::new(64 * MIB, 1);
    let stream = rig.streams[0];
    let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
    play(&rig, &ONE, By::Pool(recording), &mut Random(10));
    let (bound, _made) = bound_of(&rig, recording);
    let begin = || bound.begin(0, &rig.streams).expect("none is open");
    let step = std::thread::scope(|scope| scope.spawn(begin).join().expect("no panic"));
    for _ in 0..4 {
        let strange = || {
            assert_eq!(step_alloc(step, 8192, stream), Err(Status::InvalidArgument));
            let error = slow::end(step, true).expect_err("not its own");
            assert!(error.message().contains("begun by another thread"), "{error:?}");
        };
        std::thread::scope(|scope| scope.spawn(strange).join().expect("no panic"));
    }
    drop(bound);
    rig.finish();
    registry::destroy(rig.pool.id()).expect("alive");
    let _ = rig.pool.into_handle();
}

/// A plan goes when there is another in its place, not before.
#[test]
fn learning_a_shape_does_not_cost_the_plan_that_is_bound() {
    let bound = Bound::new(&ONE, 1, &mut Random(11));
    let run = |signature| {
        let step = bound.binding.begin(signature, &bound.rig.streams)?;
        play(&bound.rig, &ONE, By::Step(step), &mut Random(12));
        slow::end(step, false)
    };
    bound.binding.learn(1).expect("no step is open");
    bound.binding.learn(2).expect("no step is open");
    run(0).expect("the bound plan is there");
    assert_eq!((bound.totals().plans, bound.totals().served), (1, 1));
    assert_eq!(run(1).expect_err("one shape may be awaited").status(), Status::NotFound);
    run(2).expect("learnt");
    assert_eq!((bound.totals().plans, bound.totals().replanned), (1, 1));
    run(2).expect("planned");
    assert_eq!(bound.totals().served, 2);
    assert_eq!(run(0).expect_err("one plan is kept").status(), Status::NotFound);
    bound.end();
}

/// A recording that cannot be read has ended, and says why whenever it is asked.
#[test]
fn recordings_that_cannot_be_read_tell_why() {
    let rig = Rig::new(64 * MIB, 65);
    let each = |streams: &[u64]| {
        for &stream in streams {
            let block = rig.pool.alloc(4096, stream).expect("fits");
            rig.pool.dealloc(block, stream).expect("live");
        }
    };
    for (events, streams, text) in [(5, 3, "longer than"), (1000, 65, "more than 64 streams")] {
        let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
        rig.pool.with_core(|core| core.limit_recording(events)).expect("alive");
        each(&rig.streams[..streams]);
        let failed = recordings::end(recording).expect_err(text);
        for error in [failed, recordings::get(recording).expect_err(text)] {
            assert_eq!(error.status(), Status::Unsupported);
            assert!(error.message().contains(text), "{error:?}");
        }
        let ended = recordings::end(recording).expect_err("ended");
        assert!(ended.message().contains("ended already"), "{ended:?}");
        recordings::let_go(recording).expect("held");
    }
    let recording = recordings::begin(rig.pool.handle(), None).expect("none is open");
    recordings::let_go(recording).expect("held");
    rig.end();
}

/// A block that was freed unseen has no end: not that of another at its address.
#[test]
fn an_address_that_serves_another_ends_no_buffer_of_before() {
    let alloc = |stream| Event::Alloc { address: 4096, bytes: 64, align: 0, stream, tag: 1 };
    for between in [alloc(SYNC_STREAM), Event::Gone { address: 4096 }] {
        let events = [alloc(7), between, Event::Free { address: 4096, stream: 8 }];
        let log = recordings::read(&events, Vec::new()).expect("a step");
        assert_eq!((log.step.births.len(), log.outliving), (1, 1), "{between:?}");
        assert_eq!(log.streams, [7], "{between:?}");
    }
    // A recording of one stream notes the addresses that others have.
    let rig = Rig::new(64 * MIB, 2);
    rig.pool.begin_recording(1 << 40, Some(rig.streams[0])).expect("none is open");
    let block = rig.pool.alloc(64, rig.streams[1]).expect("fits");
    rig.pool.dealloc(block, rig.streams[1]).expect("live");
    let events = rig.pool.end_recording(1 << 40).expect("open");
    let free = Event::Free { address: block, stream: rig.streams[1] };
    assert_eq!(events, [Event::Gone { address: block }, free]);
    rig.end();
}
