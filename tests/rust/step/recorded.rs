//! A step as recorded: what a recording holds, and that a plan serves all of it without calls.

use crate::common::Random;
use crate::common::seed;
use crate::model::{By, Op, Rig, play, random_step, record};
use forebay::driver::faulty::CallSet;
use forebay::plan::recording::{NEVER, Recorded};
use forebay::plan::{Options, Plan, handles};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::registry;
use forebay::pool::report::tag_create;
use forebay::step::Totals;
use forebay::step::binding;
use forebay::step::record as recordings;

/// The plan of an ended recording, and its number among plans.
pub fn plan_of(recording: u64) -> (Plan, u64) {
    let log = recordings::get(recording).expect("ended");
    let plan = log.step.clone().plan(&Options::default()).expect("a plan");
    let number = handles::keep(plan.clone()).expect("kept");
    (plan, number)
}

#[test]
fn a_recording_holds_births_deaths_sizes_tags_and_order() {
    let rig = Rig::new(64 << 20, 2);
    let (one, two) = (rig.streams[0], rig.streams[1]);
    let older = rig.pool.alloc(1000, one).expect("fits");
    let tag = tag_create("recorded").expect("a tag");
    let recording = recordings::begin(rig.pool.handle(), None).expect("none is open");
    let a = rig.pool.alloc(1000, one).expect("fits");
    registry::set_tag(u32::from(tag)).expect("a tag");
    let b = rig.pool.alloc_aligned(3 << 20, 4096, two).expect("fits");
    registry::set_tag(1).expect("a tag");
    rig.pool.dealloc(a, one).expect("live");
    rig.pool.dealloc(older, one).expect("live");
    let sync = rig.pool.alloc(500, SYNC_STREAM).expect("fits");
    let outlives = rig.pool.alloc(700, one).expect("fits");
    let freed_late = rig.pool.alloc(800, one).expect("fits");
    rig.pool.dealloc(freed_late, SYNC_STREAM).expect("live");
    rig.pool.record_use(b, one).expect("live");
    recordings::fence(recording, two, one).expect("streams");
    rig.pool.dealloc(b, two).expect("live");
    rig.pool.dealloc(sync, SYNC_STREAM).expect("live");
    recordings::end(recording).expect("open");
    let log = recordings::get(recording).expect("ended");
    let recorded = |birth, death, size, alignment, tag, lane| Recorded {
        birth,
        death,
        size,
        alignment,
        tag,
        lane,
        end_lane: lane,
    };
    let tag = u32::from(tag);
    // Event numbers: the free of what is older is one, and so is an allocation of the sync lane.
    let wanted = [
        recorded(0, 2, 1000, 512, 1, 0),
        recorded(1, 10, 3 << 20, 4096, tag, 1),
        recorded(5, NEVER, 700, 512, 1, 0),
        recorded(6, NEVER, 800, 512, 1, 0),
    ];
    assert_eq!(log.step.births, wanted);
    assert_eq!(log.streams, [one, two]);
    assert_eq!((log.step.lanes, log.older, log.outliving), (2, 1, 2));
    assert_eq!(log.step.uses, [(1, 0)]);
    let fences: Vec<_> = log.step.fences.iter().map(|f| (f.time, f.from, f.to)).collect();
    assert_eq!(fences, [(9, 1, 0)]);
    rig.pool.dealloc(outlives, one).expect("live");
    recordings::let_go(recording).expect("held");
    rig.end();
}

#[test]
fn one_stream_alone_is_recorded_if_asked() {
    let rig = Rig::new(64 << 20, 2);
    let recording = recordings::begin(rig.pool.handle(), Some(rig.streams[1])).expect("begun");
    for lane in [0, 1, 0, 1, 1] {
        let block = rig.pool.alloc(5000, rig.streams[lane]).expect("fits");
        rig.pool.dealloc(block, rig.streams[lane]).expect("live");
    }
    recordings::end(recording).expect("open");
    let log = recordings::get(recording).expect("ended");
    assert_eq!((log.step.births.len(), log.streams.as_slice()), (3, &rig.streams[1..]));
    assert!(log.step.births.iter().all(|b| b.death != NEVER));
    recordings::let_go(recording).expect("held");
    rig.end();
}

/// After a recording slots are cached again: allocations of the same size make no misses.
#[test]
fn a_recording_leaves_the_pool_as_fast_as_it_was() {
    let rig = Rig::new(64 << 20, 1);
    let stream = rig.streams[0];
    let pair = || {
        let block = rig.pool.alloc(4096, stream).expect("fits");
        rig.pool.dealloc(block, stream).expect("live");
    };
    let misses = || rig.pool.with_core(|core| core.misses()).expect("alive");
    (0..100).for_each(|_| pair());
    let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
    let before = misses();
    (0..100).for_each(|_| pair());
    assert_eq!(misses() - before, 100, "each comes by the lock");
    recordings::end(recording).expect("open");
    (0..100).for_each(|_| pair());
    let before = misses();
    (0..100).for_each(|_| pair());
    assert_eq!(misses() - before, 0, "none does");
    recordings::let_go(recording).expect("held");
    rig.end();
}

#[test]
fn a_plan_serves_a_hundred_steps_of_one_lane_without_a_call() {
    let seed = seed(11);
    let mut random = Random(seed);
    for _ in 0..5 {
        let rig = Rig::new(256 << 20, 1);
        let ops = random_step(&mut random, 300, 1);
        let recording = record(&rig, &ops, &mut random);
        let (plan, number) = plan_of(recording);
        assert_eq!(plan.buffers().len(), 300);
        let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
        let bound = binding::get(made).expect("there");
        assert_eq!(bound.totals().plan_block_bytes, plan.height());
        for round in 0..100 {
            if round == 1 {
                rig.driver.reset_counts();
            }
            let step = bound.begin(0, &rig.streams).expect("none is open");
            play(&rig, &ops, By::Step(step), &mut random);
            forebay::step::slow::end(step, false).expect("open");
        }
        assert_eq!(rig.driver.total(), 0, "driver calls after the first step");
        let (checked, wrong) = rig.finish();
        assert_eq!((checked, wrong), (101 * 300, 0), "marks");
        let totals = Totals {
            steps: 100,
            served: 100 * 300,
            plan_block_bytes: plan.height(),
            plans: 1,
            ..Totals::default()
        };
        assert_eq!(bound.totals(), totals);
        drop(bound);
        binding::unbind(made).expect("idle");
        handles::let_go(number).expect("held");
        recordings::let_go(recording).expect("held");
        assert_eq!(rig.pool.stats().expect("alive").live_blocks, 0);
        rig.end();
    }
    assert!(CallSet::ALL.contains(forebay::driver::Call::Copy));
}

/// What outlives the step keeps its place in the order and is the pool's.
#[test]
fn buffers_that_outlive_the_step_are_the_pools_as_recorded() {
    let rig = Rig::new(64 << 20, 1);
    let stream = rig.streams[0];
    let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
    let a = rig.pool.alloc(4000, stream).expect("fits");
    let kept = rig.pool.alloc(4000, stream).expect("fits");
    let b = rig.pool.alloc(4000, stream).expect("fits");
    for block in [a, b] {
        rig.pool.dealloc(block, stream).expect("live");
    }
    recordings::end(recording).expect("open");
    rig.pool.dealloc(kept, stream).expect("live");
    let (plan, number) = plan_of(recording);
    assert_eq!((plan.buffers().len(), plan.height()), (2, 4096 + 4000));
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    for _ in 0..3 {
        let step = bound.begin(0, &rig.streams).expect("none is open");
        let by = By::Step(step);
        let a = by.alloc(&rig, 4000, 0);
        let kept = by.alloc(&rig, 4000, 0);
        let b = by.alloc(&rig, 4000, 0);
        assert_eq!(rig.pool.usable_size(kept).expect("a block of the pool's"), 4096);
        [a, b].iter().for_each(|&block| by.free(&rig, block, 0));
        forebay::step::slow::end(step, false).expect("what is the pool's may live on");
        rig.pool.dealloc(kept, stream).expect("live");
    }
    let totals = bound.totals();
    assert_eq!((totals.served, totals.by_pool, totals.fallbacks, totals.missing), (6, 3, 0, 0));
    drop(bound);
    binding::unbind(made).expect("idle");
    recordings::let_go(recording).expect("held");
    rig.end();
}

/// A plan of a table of lifetimes runs too: its buffers come in the order of their births.
#[test]
fn a_plan_without_a_recording_runs_on_one_lane() {
    let rig = Rig::new(64 << 20, 1);
    let b = |id, birth, death, size| forebay::plan::Buffer {
        alignment: 512,
        ..forebay::plan::Buffer::new(id, birth, death, size)
    };
    let buffers = [b(9, 5, 7, 3000), b(4, 0, 5, 1000), b(7, 3, 9, 2000)];
    let plan = forebay::plan::solve(&buffers, &Options::default()).expect("a plan");
    let number = handles::keep(plan.clone()).expect("kept");
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    let ops = [
        Op::Alloc(4, 1000, 0),
        Op::Alloc(7, 2000, 0),
        Op::Free(4, 0),
        Op::Alloc(9, 3000, 0),
        Op::Free(9, 0),
        Op::Free(7, 0),
    ];
    for _ in 0..4 {
        let step = bound.begin(0, &rig.streams).expect("none is open");
        play(&rig, &ops, By::Step(step), &mut Random(1));
        forebay::step::slow::end(step, false).expect("open");
    }
    assert_eq!((bound.totals().served, bound.totals().fallbacks), (12, 0));
    assert_eq!(rig.finish(), (12, 0));
    drop(bound);
    binding::unbind(made).expect("idle");
    rig.end();
}

/// A buffer of a table that never dies is planned as any other; it is free at the step's end.
#[test]
fn a_buffer_without_an_end_is_freed_when_the_step_ends() {
    let rig = Rig::new(64 << 20, 1);
    let b = |id, death, size| forebay::plan::Buffer {
        alignment: 512,
        ..forebay::plan::Buffer::new(id, id, death, size)
    };
    let buffers = [b(0, u64::MAX, 4096), b(1, 5, 512), b(6, u64::MAX, 512)];
    let plan = forebay::plan::solve(&buffers, &Options::default()).expect("a plan");
    let number = handles::keep(plan.clone()).expect("kept");
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    let stream = rig.streams[0];
    for _ in 0..3 {
        let step = bound.begin(0, &rig.streams).expect("none is open");
        let by = By::Step(step);
        let (long, short) = (by.alloc(&rig, 4096, 0), by.alloc(&rig, 512, 0));
        by.free(&rig, short, 0);
        let last = by.alloc(&rig, 512, 0);
        assert_eq!(last, short, "the bytes are free again");
        let open = forebay::step::slow::end(step, false).expect_err("two are live");
        assert_eq!(open.status(), forebay::error::Status::Busy);
        [last, long].iter().for_each(|&block| by.free(&rig, block, 0));
        let twice = crate::model::step_free(step, long, stream);
        assert_eq!(twice, forebay::error::Status::DoubleFree);
        forebay::step::slow::end(step, false).expect("all are free");
    }
    let totals = bound.totals();
    assert_eq!((totals.served, totals.by_pool, totals.fallbacks, totals.late), (9, 0, 0, 0));
    drop(bound);
    binding::unbind(made).expect("idle");
    rig.end();
}
