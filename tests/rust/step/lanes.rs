//! Several lanes on late streams: no byte is reused before the lane that had it is done, within a
//! step and from step to step; a canary that forgets the fences is caught.

use crate::astray::Bound;
use crate::common::{Random, seed};
use crate::model::{Op, Rig, random_step, step_alloc, step_free};
use crate::recorded::plan_of;
use forebay::driver::Call;
use forebay::driver::faulty::CallSet;
use forebay::error::Status;
use forebay::step::{binding, record as recordings, slow};

#[test]
fn two_and_three_late_lanes_keep_all_marks() {
    let seed = seed(51);
    let (mut issued, mut left_out) = (0, 0);
    for round in 0..12 {
        let mut random = Random(seed + round);
        let lanes = 2 + (round as usize) % 2;
        let ops = random_step(&mut random, 150, lanes);
        let fences = ops.iter().filter(|op| matches!(op, Op::Fence(..))).count() as u64;
        let bound = Bound::new(&ops, lanes, &mut random);
        for step in 0..100 {
            if step == 1 {
                bound.rig.driver.reset_counts();
            }
            bound.run(&ops, &mut random);
        }
        let driver = &bound.rig.driver;
        assert_eq!(driver.count_of(CallSet::MEMORY), 0, "memory calls after the first step");
        let others = [Call::EventRecord, Call::EventQuery, Call::StreamWait, Call::EventCreate];
        let known = driver.count_of(CallSet::of(&others)) + driver.count(Call::StreamCheck);
        assert_eq!(driver.total(), known, "fences alone");
        let totals = bound.totals();
        assert_eq!((totals.served, totals.fallbacks), (15_000, 0), "seed {}", seed + round);
        // Each is issued, or was found not to be needed.
        assert_eq!(totals.fences + totals.fences_left_out, 100 * fences, "seed {}", seed + round);
        issued += totals.fences;
        left_out += totals.fences_left_out;
        let (checked, wrong) = bound.rig.finish();
        assert_eq!((checked, wrong), (101 * 150, 0), "seed {}", seed + round);
        bound.end();
    }
    println!("{issued} fences issued, {left_out} left out");
    assert!(issued > 1000 && left_out > issued, "{issued} fences issued, {left_out} left out");
}

/// Lanes that are ordered behind each other share bytes: else plans of several lanes would be no
/// better than a part of the plan block for each.
#[test]
fn a_fence_lets_lanes_share_bytes() {
    let step = |fenced: bool| {
        let mut ops = vec![Op::Alloc(0, 4096, 0), Op::Free(0, 0)];
        ops.extend(fenced.then_some(Op::Fence(0, 1)));
        ops.extend([Op::Alloc(1, 4096, 1), Op::Free(1, 1)]);
        ops
    };
    for (fenced, height) in [(true, 4096), (false, 8192)] {
        let mut random = Random(6);
        let bound = Bound::new(&step(fenced), 2, &mut random);
        assert_eq!(bound.totals().plan_block_bytes, height, "fenced: {fenced}");
        (0..50).for_each(|_| bound.run(&step(fenced), &mut random));
        assert_eq!((bound.totals().served, bound.totals().fences), (100, 50 * u64::from(fenced)));
        assert_eq!(bound.totals().fences_left_out, 0);
        bound.end();
    }
    // The fence the other way orders nothing of this.
    let other = [
        Op::Alloc(0, 4096, 0),
        Op::Free(0, 0),
        Op::Fence(1, 0),
        Op::Alloc(1, 4096, 1),
        Op::Free(1, 1),
    ];
    let bound = Bound::new(&other, 2, &mut Random(7));
    assert_eq!(bound.totals().plan_block_bytes, 8192);
    bound.end();
    // A fence before the death orders nothing either; one through a third lane does.
    let through = [
        Op::Alloc(0, 4096, 0),
        Op::Fence(0, 1),
        Op::Free(0, 0),
        Op::Fence(0, 2),
        Op::Alloc(1, 4096, 1),
        Op::Fence(2, 1),
        Op::Alloc(2, 4096, 1),
        Op::Free(1, 1),
        Op::Free(2, 1),
    ];
    let bound = Bound::new(&through, 3, &mut Random(8));
    assert_eq!(bound.totals().plan_block_bytes, 8192, "the third may have the first's bytes");
    (0..20).for_each(|_| bound.run(&through, &mut Random(9)));
    // The one before the death is left out.
    assert_eq!((bound.totals().fences, bound.totals().fences_left_out), (40, 20));
    bound.end();
}

/// One buffer after another in the same bytes, lane by lane in turn: between two of them one fence
/// is issued of the three recorded, and without any one of these the marks are wrong.
#[test]
fn the_canary_of_one_forgotten_fence_is_caught() {
    let mut ops = Vec::new();
    for buffer in 0..6u32 {
        let (lane, next) = (buffer as usize % 2, (buffer as usize + 1) % 2);
        ops.push(Op::Alloc(buffer, 4096, lane));
        // Before the death, the other way, and twice: needed is one.
        ops.extend([Op::Fence(lane, next), Op::Free(buffer, lane), Op::Fence(next, lane)]);
        ops.extend([Op::Fence(lane, next), Op::Fence(lane, next)]);
    }
    for forgotten in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
        let mut random = Random(71);
        let bound = Bound::new(&ops, 2, &mut random);
        assert_eq!(bound.totals().plan_block_bytes, 4096, "all share");
        if let Some(place) = forgotten {
            assert!(bound.binding.forget_fence(0, place));
        } else {
            assert!(!bound.binding.forget_fence(0, 5), "five are needed");
        }
        (0..60).for_each(|_| bound.run(&ops, &mut random));
        let issued = if forgotten.is_some() { 4 } else { 5 };
        assert_eq!((bound.totals().fences, bound.totals().fences_left_out), (60 * issued, 60 * 19));
        let wrong = bound.rig.finish().1;
        assert_eq!(wrong > 0, forgotten.is_some(), "{wrong} wrong without {forgotten:?}");
        bound.forget();
    }
}

/// A use by another lane that was recorded is ordered by the plan; one that was not keeps the bytes
/// from all lanes until the step's end.
#[test]
fn uses_by_other_lanes_are_waited_for() {
    let rig = Rig::new(64 << 20, 2);
    let (one, two) = (rig.streams[0], rig.streams[1]);
    let recording = recordings::begin(rig.pool.handle(), None).expect("begun");
    for used in [false, true] {
        let block = rig.pool.alloc(4096, one).expect("fits");
        if used {
            rig.pool.record_use(block, two).expect("live");
        }
        rig.pool.dealloc(block, one).expect("live");
    }
    let last = rig.pool.alloc(4096, one).expect("fits");
    rig.pool.dealloc(last, one).expect("live");
    recordings::end(recording).expect("open");
    let (plan, number) = plan_of(recording);
    // The second has its bytes to the end: nothing orders the other lane. The others may share.
    assert_eq!((plan.height(), plan.offset_of(1) == plan.offset_of(2)), (8192, false));
    let shared = plan.offset_of(0) == plan.offset_of(2);
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    for asks in [false, true] {
        let step = bound.begin(0, &[one, two]).expect("none is open");
        let before = bound.totals().served;
        for buffer in 0..3 {
            let block = step_alloc(step, 4096, one).expect("fits");
            if buffer == 1 || asks && buffer == 0 {
                slow::record_use(step, block, two).expect("live");
            }
            assert_eq!(step_free(step, block, one), Status::Ok);
        }
        let local = 0u64;
        let gone = slow::record_use(step, std::ptr::from_ref(&local) as usize, two);
        assert_eq!(gone.expect_err("nobody's").status(), Status::NotOwned);
        slow::end(step, false).expect("all are free");
        // Whoever shares the first's bytes goes to the pool.
        let served = if asks { 2 } else { 3 };
        assert_eq!(bound.totals().served - before, served, "asks: {asks}, shared: {shared}");
    }
    drop(bound);
    binding::unbind(made).expect("idle");
    recordings::let_go(recording).expect("held");
    rig.end();
}

/// With fences that are never issued the marks must tell: else the tests above show nothing.
#[test]
fn the_canary_of_forgotten_fences_is_caught() {
    let mut caught = 0;
    for round in 0..6 {
        let mut random = Random(61 + round);
        let ops = random_step(&mut random, 150, 2);
        let bound = Bound::new(&ops, 2, &mut random);
        let before = bound.rig.finish().1;
        assert_eq!(before, 0);
        // Every point counts as passed: no fence is issued, and no step waits for the one before.
        bound.rig.pool.with_core(|core| core.ignore_stamps()).expect("alive");
        (0..30).for_each(|_| bound.run(&ops, &mut random));
        caught += u64::from(bound.rig.finish().1 > 0);
        bound.forget();
    }
    assert!(caught >= 4, "{caught} of 6 canaries were caught");
}

/// A step on another stream than the one before waits for it.
#[test]
fn a_step_waits_for_every_lane_of_the_step_before() {
    let ops = [Op::Alloc(0, 4096, 0), Op::Free(0, 0)];
    let mut random = Random(10);
    let mut bound = Bound::new(&ops, 1, &mut random);
    let streams = [bound.rig.streams[0], bound.rig.add_stream()];
    bound.rig.finish();
    for round in 0..40usize {
        bound.rig.streams[0] = streams[round % 2];
        bound.run(&ops, &mut random);
    }
    bound.rig.streams = streams.to_vec();
    assert_eq!(bound.rig.finish(), (41, 0));
    assert!(bound.rig.driver.count(Call::StreamWait) > 10);
    bound.end();
}
