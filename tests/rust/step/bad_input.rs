//! Wrong use: each is an error that says what is wrong, and changes nothing.

use super::children::apart;
use crate::astray::Bound;
use crate::common::Random;
use crate::model::{
    By, Op, Rig, play, random_step, record, step_alloc, step_alloc_within, step_free,
};
use crate::recorded::plan_of;
use forebay::driver::Code;
use forebay::driver::faulty::{CallSet, Fault};
use forebay::error::{Error, Status};
use forebay::plan::recording::{Fence, LANES_MAX, Recorded, Recording};
use forebay::plan::{Buffer, Options, handles, solve};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::registry;
use forebay::step::binding::{self, Setup};
use forebay::step::{record as recordings, slow};

fn says(error: &Error, status: Status, text: &str) {
    assert_eq!(error.status(), status, "{error:?}");
    assert!(error.message().contains(text), "{error:?} does not say {text:?}");
}

/// This thread's last error, of a hot function.
fn last() -> String {
    forebay::error::with_last(|text| text.to_string_lossy().into_owned())
}

const OPS: [Op; 4] = [Op::Alloc(0, 4096, 0), Op::Alloc(1, 1000, 0), Op::Free(0, 0), Op::Free(1, 0)];

#[test]
fn recordings() {
    let rig = Rig::new(64 << 20, 1);
    let open = recordings::begin(rig.pool.handle(), None).expect("begun");
    let inside = recordings::begin(rig.pool.handle(), None).expect_err("record inside record");
    says(&inside, Status::Busy, "a recording is open on this pool");
    says(&recordings::get(open).expect_err("open"), Status::Busy, "end it first");
    recordings::end(open).expect("open");
    says(&recordings::end(open).expect_err("ended"), Status::InvalidArgument, "ended already");
    let fence = recordings::fence(open, rig.streams[0], 0).expect_err("ended");
    says(&fence, Status::InvalidArgument, "has ended");
    recordings::let_go(open).expect("held");
    let gone = recordings::end(open).expect_err("gone");
    says(&gone, Status::InvalidArgument, "no recording has the handle");
    // One that is let go while it is open ends.
    let open = recordings::begin(rig.pool.handle(), None).expect("begun");
    recordings::let_go(open).expect("held");
    let open = recordings::begin(rig.pool.handle(), None).expect("begun");
    let stray = recordings::fence(open, 0xdead_0000, 0).expect_err("no stream");
    says(&stray, Status::InvalidStream, "0xdead0000");
    let sync = recordings::fence(open, SYNC_STREAM, 0).expect_err("no stream");
    assert_eq!(sync.status(), Status::InvalidStream);
    // A pool that ends takes its recording with it.
    let handle = rig.pool.handle();
    rig.end();
    says(&recordings::end(open).expect_err("gone"), Status::InvalidPool, "names no pool");
    recordings::let_go(open).expect("held");
    let none = recordings::begin(handle, None).expect_err("gone");
    assert_eq!(none.status(), Status::InvalidPool);
}

#[test]
fn bindings() {
    let mut random = Random(1);
    let bound = Bound::new(&OPS, 1, &mut random);
    let (rig, plan) = (&bound.rig, handles::get(bound.plan_number()).expect("kept"));
    let twice = binding::bind(bound.plan_number(), &plan, rig.pool.handle()).expect_err("twice");
    says(&twice, Status::Busy, "bound to this pool already");
    let higher = solve(&[Buffer::new(0, 0, 1, 1 << 20)], &Options::default()).expect("a plan");
    let other = bound.binding.add(0, &higher).expect_err("a plan of another height");
    says(&other, Status::InvalidArgument, "the plan takes 1048576 bytes");
    let aligned = Buffer { alignment: 4096, ..Buffer::new(0, 0, 1, 64) };
    let aligned = solve(&[aligned], &Options::default()).expect("a plan");
    let other = bound.binding.add(0, &aligned).expect_err("a larger alignment");
    says(&other, Status::InvalidArgument, "at a multiple of 4096");
    let huge = Buffer { alignment: 4 << 20, ..Buffer::new(0, 0, 1, 64) };
    let huge = solve(&[huge], &Options::default()).expect("a plan");
    let number = handles::keep(huge.clone()).expect("kept");
    let refused = binding::bind(number, &huge, rig.pool.handle()).expect_err("4 MiB");
    says(&refused, Status::InvalidArgument, "2 MiB");
    let good = Setup { bytes: 0, alignment: 512, plans_max: 1, replan_percent: 0 };
    for (wrong, text) in [
        (Setup { plans_max: 0, ..good }, "0 plans"),
        (Setup { plans_max: 5000, ..good }, "5000 plans"),
        (Setup { replan_percent: 101, ..good }, "101 %"),
        (Setup { alignment: 3, ..good }, "alignment 3"),
        (Setup { alignment: 0, ..good }, "alignment 0"),
    ] {
        let error = binding::create(rig.pool.handle(), wrong, 0).expect_err(text);
        says(&error, Status::InvalidArgument, text);
    }
    let large = Setup { bytes: 1 << 40, ..good };
    let error = binding::create(rig.pool.handle(), large, 0).expect_err("larger than the device");
    assert_eq!(error.status(), Status::OutOfMemory);
    let none = binding::get(0xdead).expect_err("none");
    says(&none, Status::InvalidArgument, "no binding has the handle");
    bound.end();
}

#[test]
fn steps_begin_and_end_once() {
    let mut random = Random(2);
    let bound = Bound::new(&OPS, 1, &mut random);
    let (rig, number) = (&bound.rig, bound.number());
    let step = bound.begin();
    let beside = bound.binding.begin(0, &rig.streams).expect_err("a step beside an open step");
    says(&beside, Status::Busy, "a step of this binding is open");
    let plan = handles::get(bound.plan_number()).expect("kept");
    says(&bound.binding.add(1, &plan).expect_err("open"), Status::Busy, "a step");
    says(&bound.binding.learn(0).expect_err("open"), Status::Busy, "a step");
    says(&binding::unbind(number).expect_err("open"), Status::Busy, "a step");
    // Another thread's calls.
    let stream = rig.streams[0];
    std::thread::scope(|scope| {
        let strange = scope.spawn(|| {
            assert_eq!(step_alloc(step, 4096, stream), Err(Status::InvalidArgument));
            assert!(last().contains("begun by another thread"), "{}", last());
            says(&slow::end(step, true).expect_err("not its"), Status::InvalidArgument, "another");
        });
        strange.join().expect("no panic");
    });
    let live = step_alloc(step, 4096, stream).expect("planned");
    says(
        &slow::end(step, false).expect_err("live"),
        Status::Busy,
        "1 buffers of the step are live",
    );
    assert_eq!(step_free(step, live, stream), Status::Ok);
    slow::end(step, false).expect("all are free");
    says(&slow::end(step, false).expect_err("ended"), Status::InvalidArgument, "it has ended");
    assert_eq!(step_alloc(step, 4096, stream), Err(Status::InvalidArgument));
    assert_eq!(step_free(step, live, stream), Status::InvalidArgument);
    // Abandoned with a live buffer; the next step has its bytes.
    let step = bound.begin();
    assert_eq!(step_alloc(step, 4096, stream), Ok(live));
    slow::end(step, true).expect("abandoned");
    for (streams, text) in [
        (vec![], "0 streams; the plan has 1 lanes"),
        (vec![stream, 0], "2 streams; the plan has 1 lanes"),
    ] {
        let error = bound.binding.begin(0, &streams).expect_err(text);
        says(&error, Status::InvalidArgument, text);
    }
    let strange = bound.binding.begin(0, &[0xdead_0000]).expect_err("no stream");
    assert_eq!(strange.status(), Status::InvalidStream);
    let sync = bound.binding.begin(0, &[SYNC_STREAM]).expect_err("no stream");
    assert_eq!(sync.status(), Status::InvalidStream);
    let unknown = bound.binding.begin(9, &rig.streams).expect_err("no such shape");
    says(&unknown, Status::NotFound, "signature 0x9");
    bound.run(&OPS, &mut random);
    bound.end();
}

#[test]
fn addresses_and_streams_in_a_step() {
    let mut random = Random(3);
    let bound = Bound::new(&OPS, 1, &mut random);
    let (rig, stream) = (&bound.rig, bound.rig.streams[0]);
    let step = bound.begin();
    let live = step_alloc(step, 4096, stream).expect("planned");
    let second = step_alloc(step, 1000, stream).expect("planned");
    let local = 0u64;
    let foreign = std::ptr::from_ref(&local) as usize;
    assert_eq!(step_free(step, foreign, stream), Status::NotOwned);
    assert_eq!(step_free(step, live + 512, stream), Status::InteriorPointer);
    assert!(last().contains("no buffer of the step begins there"), "{}", last());
    assert_eq!(step_free(step, 0, stream), Status::Ok, "NULL is fine");
    assert_eq!(step_alloc(step, 0, stream), Ok(0));
    let out = std::ptr::null_mut();
    // SAFETY: NULL is answered with an error.
    let null = unsafe { forebay::step::hot::alloc(step, out, 64, stream) };
    assert_eq!(null, Status::InvalidArgument);
    assert_eq!(step_alloc(step, 64, 0), Err(Status::InvalidStream));
    assert!(last().contains("no lane of this step"), "{}", last());
    assert_eq!(step_alloc_within(step, 64, 1, 0), Err(Status::InvalidStream));
    assert_eq!(step_free(step, live, 0), Status::InvalidStream);
    let fence = slow::fence(step, 0, stream).expect_err("no lane");
    assert_eq!(fence.status(), Status::InvalidStream);
    // The pool's own functions do not free what is in a plan block, not even its first buffer.
    let base = live.min(second);
    for wrong in [base, base + 512] {
        let refused = rig.pool.dealloc(wrong, stream).expect_err("a plan block's");
        assert!(matches!(refused.status(), Status::InvalidArgument | Status::InteriorPointer));
    }
    let refused = rig.pool.dealloc(base, SYNC_STREAM).expect_err("a plan block's");
    says(&refused, Status::InvalidArgument, "belongs to a plan block");
    assert_eq!(step_free(step, live, stream), Status::Ok);
    assert_eq!(step_free(step, live, stream), Status::DoubleFree);
    assert!(last().contains("no live buffer of the step begins there"), "{}", last());
    assert_eq!(step_alloc(step, 1 << 41, stream), Err(Status::OutOfMemory));
    // A block of the pool's may be freed in a step.
    let block = rig.pool.alloc(5000, stream).expect("fits");
    assert_eq!(step_free(step, block, stream), Status::Ok);
    assert_eq!(step_free(step, block, stream), Status::DoubleFree);
    assert_eq!(step_free(step, second, stream), Status::Ok);
    slow::end(step, false).expect("all are free");
    bound.end();
}

#[test]
fn two_lanes_name_two_streams_and_no_capture_is_open() {
    // An open capture is the whole process's.
    if apart("bad_input::two_lanes_name_two_streams_and_no_capture_is_open") {
        return;
    }
    let mut random = Random(4);
    let ops = random_step(&mut random, 20, 2);
    let bound = Bound::new(&ops, 2, &mut random);
    let stream = bound.rig.streams[0];
    let error = bound.binding.begin(0, &[stream, stream]).expect_err("one twice");
    says(&error, Status::InvalidArgument, "named for two lanes");
    let error = bound.binding.begin(0, &[0, 1]).expect_err("two names of one");
    says(&error, Status::InvalidArgument, "named for two lanes");
    bound.rig.finish();
    let capture = forebay::pool::capture::begin(stream).expect("a stream");
    let error = bound.binding.begin(0, &bound.rig.streams).expect_err("captures");
    says(&error, Status::Busy, "several lanes");
    forebay::pool::capture::end(capture).expect("open");
    forebay::pool::capture::release(capture).expect("ended");
    bound.run(&ops, &mut random);
    bound.end();
}

#[test]
fn a_pool_that_is_destroyed_ends_its_steps() {
    let mut random = Random(5);
    let rig = Rig::new(64 << 20, 1);
    let recording = record(&rig, &OPS, &mut random);
    let (plan, number) = plan_of(recording);
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    let stream = rig.streams[0];
    let step = bound.begin(0, &rig.streams).expect("none is open");
    let live = step_alloc(step, 4096, stream).expect("planned");
    rig.finish();
    registry::destroy(rig.pool.id()).expect("alive");
    assert_eq!(step_alloc(step, 1000, stream), Err(Status::InvalidPool));
    assert_eq!(step_free(step, live, stream), Status::InvalidPool);
    slow::end(step, false).expect("a step ends without its pool");
    let gone = bound.begin(0, &rig.streams).expect_err("gone");
    assert_eq!(gone.status(), Status::InvalidPool);
    drop(bound);
    binding::unbind(made).expect("its pool took the memory");
    let none = binding::bind(number, &plan, rig.pool.handle()).expect_err("gone");
    assert_eq!(none.status(), Status::InvalidPool);
    recordings::let_go(recording).expect("held");
    let _ = rig.pool.into_handle();
    // And a plan's pool made anew works.
    let rig = Rig::new(64 << 20, 1);
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    let step = bound.begin(0, &rig.streams).expect("none is open");
    play(&rig, &OPS, By::Step(step), &mut random);
    slow::end(step, false).expect("all are free");
    drop(bound);
    binding::unbind(made).expect("idle");
    rig.end();
}

#[test]
fn a_lost_context_ends_planned_addresses_too() {
    let mut random = Random(6);
    let rig = Rig::new(64 << 20, 1);
    let recording = record(&rig, &OPS, &mut random);
    let (plan, number) = plan_of(recording);
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    let (step, stream) = (bound.begin(0, &rig.streams).expect("none is open"), rig.streams[0]);
    let live = step_alloc(step, 4096, stream).expect("planned");
    rig.driver.fail(Fault::once(CallSet::ALL, 1).with_code(Code::ContextLost));
    let lost = rig.pool.alloc(16 << 20, stream).expect_err("lost");
    assert_eq!(lost.status(), Status::ContextLost);
    for _ in 0..2 {
        assert_eq!(step_alloc(step, 1000, stream), Err(Status::ContextLost));
        assert_eq!(step_free(step, live, stream), Status::Ok, "gone with the context");
    }
    slow::end(step, false).expect("a step ends without its context");
    let gone = bound.begin(0, &rig.streams).expect_err("lost");
    assert_eq!(gone.status(), Status::ContextLost);
    rig.driver.clear_faults();
    drop(bound);
    binding::unbind(made).expect("nothing is given back");
    recordings::let_go(recording).expect("held");
    registry::destroy(rig.pool.id()).expect("nothing is given back");
    let _ = rig.pool.into_handle();
}

#[test]
fn recorded_steps_that_are_none() {
    let b = Recorded { birth: 0, death: 4, size: 64, alignment: 512, tag: 0, lane: 0, end_lane: 0 };
    let good = Recording { lanes: 1, births: vec![b], ..Recording::default() };
    let wrong = |change: fn(&mut Recording)| {
        let mut step = good.clone();
        change(&mut step);
        step.plan(&Options::default()).expect_err("wrong")
    };
    type Change = fn(&mut Recording);
    let cases: [(Change, &str); 8] = [
        (|r| r.lanes = LANES_MAX as u16 + 1, "65 lanes"),
        (|r| r.births[0].lane = 1, "buffer 0 is on a lane"),
        (|r| r.births[0].end_lane = 9, "buffer 0 is on a lane"),
        (|r| r.births[0].size = 0, "size 0"),
        (|r| r.births.push(Recorded { birth: 9, ..r.births[0] }), "dies at 4, before"),
        (|r| r.fences.push(Fence { time: 0, from: 0, to: 3 }), "lanes 0 and 3"),
        (|r| r.uses.push((1, 0)), "a use of no buffer"),
        (
            |r| {
                r.births[0].birth = 3;
                r.births.push(Recorded { birth: 1, ..r.births[0] });
            },
            "order of their births",
        ),
    ];
    for (change, text) in cases {
        says(&wrong(change), Status::InvalidArgument, text);
    }
    let plan = good.plan(&Options::default()).expect("sound");
    assert_eq!((plan.height(), plan.recording().map(|r| r.births.len())), (64, Some(1)));
}
