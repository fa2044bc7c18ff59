//! Several lanes on late streams: no byte is reused before the lane that had it is done, within a
//! step and from step to step; a canary that forgets the fences is caught.

use crate::astray::Bound;
use crate::common::{Random, seed};
use crate::model::{Op, Rig, random_step, step_alloc, step_alloc_within, step_free};
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
    assert!(issued > 1000 && left_out > 10_000, "{issued} fences issued, {left_out} left out");
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

/// One thing that a program with work on several lanes does. Buffers are named by letters.
#[derive(Clone, Copy)]
pub enum Act {
    /// A buffer of so many bytes, on a lane.
    Alloc(char, usize, usize),
    /// Work on a buffer: marks and a look at them, on a lane.
    Work(char, usize),
    Use(char, usize),
    Free(char, usize),
    /// Later work of the second lane waits for the first: told when it is recorded, and left to
    /// the plan in a step.
    Fence(usize, usize),
    /// The same, and the program's own in a step too.
    Own(usize, usize),
}

/// Plays it by the pool, with the recording's number, or by a step.
pub fn act(rig: &Rig, acts: &[Act], recording: Option<u64>, step: u64, random: &mut Random) {
    let mut live = std::collections::HashMap::new();
    let by_pool = recording.is_some();
    for act in acts {
        let act = *act;
        match act {
            Act::Alloc(name, bytes, lane) => {
                let stream = rig.streams[lane];
                let address = match by_pool {
                    true => rig.pool.alloc(bytes, stream).expect("fits"),
                    false => step_alloc(step, bytes, stream).expect("fits"),
                };
                live.insert(name, (address, bytes));
            }
            Act::Work(name, lane) => {
                let value = random.bits();
                rig.mark(live[&name], value, lane);
                rig.look(live[&name], value, lane);
            }
            Act::Use(name, lane) => match by_pool {
                true => rig.pool.record_use(live[&name].0, rig.streams[lane]).expect("live"),
                false => slow::record_use(step, live[&name].0, rig.streams[lane]).expect("live"),
            },
            Act::Free(name, lane) => {
                let (address, _) = live.remove(&name).expect("live");
                match by_pool {
                    true => rig.pool.dealloc(address, rig.streams[lane]).expect("live"),
                    false => assert_eq!(step_free(step, address, rig.streams[lane]), Status::Ok),
                }
            }
            Act::Fence(from, to) | Act::Own(from, to) => {
                let (from, to) = (rig.streams[from], rig.streams[to]);
                match recording {
                    Some(number) => recordings::fence(number, from, to).expect("streams"),
                    None if matches!(act, Act::Fence(..)) => {}
                    None => slow::fence(step, from, to).expect("lanes"),
                }
            }
        }
    }
}

/// Records the acts, plans and binds them, and runs 200 steps on late lanes; all are served by the
/// plan. Answers how many fences were issued and left out, and how many marks were wrong.
fn acted(acts: &[Act], height: u64) -> (u64, u64, u64) {
    let (found, planned) = played(acts, 2, seed(81));
    assert_eq!(planned, height, "lanes share bytes");
    found
}

/// The same on so many lanes; and the plan's height.
fn played(acts: &[Act], lanes: usize, seed: u64) -> ((u64, u64, u64), u64) {
    let mut random = Random(seed);
    let rig = Rig::new(64 << 20, lanes);
    let recording = recordings::begin(rig.pool.handle(), None).expect("none is open");
    act(&rig, acts, Some(recording), 0, &mut random);
    recordings::end(recording).expect("open");
    let streams = recordings::get(recording).expect("ended").streams.clone();
    let (plan, number) = plan_of(recording);
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    for _ in 0..200 {
        let step = bound.begin(0, &streams).expect("none is open");
        act(&rig, acts, None, step, &mut random);
        slow::end(step, false).expect("all are free");
        rig.work(&mut random);
    }
    let (_, wrong) = rig.finish();
    let totals = bound.totals();
    let births = acts.iter().filter(|act| matches!(act, Act::Alloc(..))).count() as u64;
    assert_eq!((totals.served, totals.fallbacks), (200 * births, 0), "seed {seed}");
    drop(bound);
    binding::unbind(made).expect("idle");
    recordings::let_go(recording).expect("held");
    rig.end();
    ((totals.fences, totals.fences_left_out, wrong), plan.height())
}

/// A buffer that is freed on another lane than its own: who takes its bytes there is behind the
/// work of the lane where it was born only by the recorded fence.
#[test]
fn a_free_on_another_lane_keeps_the_fence() {
    let acts = |fence: &[Act]| {
        let mut acts = vec![Act::Alloc('a', 4096, 0), Act::Work('a', 0)];
        acts.extend(fence);
        acts.extend([Act::Free('a', 1), Act::Alloc('c', 4096, 1), Act::Work('c', 1)]);
        acts.push(Act::Free('c', 1));
        acts
    };
    assert_eq!(acted(&acts(&[Act::Fence(0, 1)]), 4096), (200, 0, 0));
    let (issued, left_out, wrong) = acted(&acts(&[]), 4096);
    assert_eq!((issued, left_out, wrong > 0), (0, 0, true), "the canary: {wrong}");
}

/// A buffer that another lane uses: its work there is behind that on the bytes' buffer before only
/// by the recorded fence, before whichever birth that comes.
#[test]
fn a_use_on_another_lane_keeps_the_fence() {
    let acts = |fence: &[Act]| {
        // Beside d both have the same bytes.
        let mut acts = vec![Act::Alloc('d', 4096, 0), Act::Alloc('a', 4096, 0)];
        acts.extend([Act::Work('a', 0), Act::Free('a', 0), Act::Alloc('c', 4096, 0)]);
        acts.extend(fence);
        // No birth on the other lane: no death comes before one.
        acts.extend([Act::Free('d', 0), Act::Alloc('e', 4096, 0), Act::Use('c', 1)]);
        acts.extend([Act::Work('c', 1), Act::Free('e', 0), Act::Free('c', 0)]);
        acts
    };
    assert_eq!(acted(&acts(&[Act::Fence(0, 1)]), 8192), (200, 0, 0));
    let (issued, left_out, wrong) = acted(&acts(&[]), 8192);
    assert_eq!((issued, left_out, wrong > 0), (0, 0, true), "the canary: {wrong}");
}

/// A buffer that another lane works on without a word, and that is freed on its own: who takes its
/// bytes there is behind that work only by the fence before the free.
#[test]
fn work_on_another_lane_before_the_free_keeps_the_fence() {
    let acts = |fence: &[Act]| {
        let mut acts = vec![Act::Alloc('a', 4096, 0), Act::Own(0, 1), Act::Work('a', 1)];
        acts.extend(fence);
        acts.extend([Act::Free('a', 0), Act::Alloc('c', 4096, 0), Act::Work('c', 0)]);
        acts.push(Act::Free('c', 0));
        acts
    };
    // The program's own is left out by the plan: nothing had the bytes before.
    assert_eq!(acted(&acts(&[Act::Fence(1, 0)]), 4096), (200, 200, 0));
    let (issued, left_out, wrong) = acted(&acts(&[]), 4096);
    assert_eq!((issued, left_out, wrong > 0), (0, 200, true), "the canary: {wrong}");
}

/// A fence that the program asks for before another lane's work does not stand for the recorded one
/// behind that, although no buffer was freed between the two.
#[test]
fn an_early_fence_does_not_stand_for_one_behind_untold_work() {
    let acts = [
        Act::Alloc('a', 4096, 0),
        Act::Own(1, 0),
        Act::Own(0, 1),
        Act::Work('a', 1),
        Act::Fence(1, 0),
        Act::Alloc('d', 4096, 0),
        Act::Free('a', 0),
        Act::Alloc('c', 4096, 0),
        Act::Work('c', 0),
        Act::Free('c', 0),
        Act::Free('d', 0),
    ];
    assert_eq!(acted(&acts, 8192), (200, 400, 0));
}

/// Buffers at random, some of which another lane works on without a word: behind the birth by the
/// program's own fence, before the free by one that is left to the plan.
#[test]
fn work_on_other_lanes_at_random_keeps_all_marks() {
    let seed = seed(85);
    let (mut issued, mut left_out) = (0, 0);
    for round in 0..10 {
        let mut random = Random(seed + round);
        let lanes = 2 + round as usize % 2;
        let acts = random_acts(&mut random, lanes);
        let ((fences, superfluous, wrong), _) = played(&acts, lanes, seed + round);
        assert_eq!(wrong, 0, "seed {}", seed + round);
        issued += fences;
        left_out += superfluous;
    }
    println!("{issued} fences issued, {left_out} left out");
    assert!(issued > 10_000 && left_out > 1000, "{issued} issued, {left_out} left out");
}

fn random_acts(random: &mut Random, lanes: usize) -> Vec<Act> {
    let mut acts = Vec::new();
    // Name, lane, whether another lane has worked on it.
    let mut live: Vec<(char, usize, bool)> = Vec::new();
    let mut names = 'a'..='z';
    loop {
        let lane = random.below(lanes);
        let at = random.below(live.len().max(1));
        let other = |home: usize| (home + 1 + lane % (lanes - 1)) % lanes;
        match random.below(4) {
            0 if random.one_in(2) => acts.push(Act::Fence(lane, other(lane))),
            0 | 1 => {
                let Some(name) = names.next() else { break };
                acts.push(Act::Alloc(name, 4096 * (1 + random.below(3)), lane));
                acts.push(Act::Work(name, lane));
                live.push((name, lane, false));
            }
            2 if !live.is_empty() => {
                let (name, home, _) = live.swap_remove(at);
                acts.push(Act::Free(name, home));
            }
            3 if live.get(at).is_some_and(|buffer| !buffer.2) => {
                let (name, home, worked) = &mut live[at];
                *worked = true;
                acts.extend([Act::Own(*home, other(*home)), Act::Work(*name, other(*home))]);
                acts.push(Act::Fence(other(*home), *home));
            }
            _ => {}
        }
    }
    acts.extend(live.into_iter().map(|(name, home, _)| Act::Free(name, home)));
    acts
}

/// What is not planned keeps off bytes that another lane may work on without a word, until the
/// fence that ends such work has been issued.
#[test]
fn a_gap_is_behind_untold_work() {
    let mut ops = vec![Op::Alloc(0, 4096, 0), Op::Fence(0, 1), Op::Fence(1, 0), Op::Free(0, 0)];
    for (id, bytes) in [(1, 512), (2, 512), (3, 8192)] {
        ops.extend([Op::Alloc(id, bytes, 0), Op::Free(id, 0)]);
    }
    let mut random = Random(seed(87));
    let bound = Bound::new(&ops, 2, &mut random);
    assert_eq!(bound.totals().plan_block_bytes, 8192, "the last has all");
    let streams = bound.streams();
    for _ in 0..100 {
        let step = bound.begin();
        let mut work = |address, bytes, lane| {
            let value = random.bits();
            bound.rig.mark((address, bytes), value, lane);
            bound.rig.look((address, bytes), value, lane);
        };
        let alloc = |bytes| step_alloc(step, bytes, streams[0]).expect("planned");
        let within = || step_alloc_within(step, 7000, 1, streams[0]).expect("fits");
        let free = |address| assert_eq!(step_free(step, address, streams[0]), Status::Ok);
        let first = alloc(4096);
        slow::fence(step, streams[0], streams[1]).expect("lanes");
        work(first, 4096, 1);
        free(first);
        let early = within();
        work(early, 7000, 0);
        free(early);
        free(alloc(512));
        let late = within();
        work(late, 7000, 0);
        free(late);
        free(alloc(512));
        let all = alloc(8192);
        let inside = [early, late].map(|address| address.wrapping_sub(all) < 8192);
        assert_eq!(inside, [false, true], "the fence comes before the second birth");
        free(all);
        slow::end(step, false).expect("all are free");
        bound.rig.work(&mut random);
    }
    let totals = bound.totals();
    assert_eq!((totals.gaps_served, totals.gaps_missed, totals.served), (100, 100, 400));
    // Both from the first gap on, although reuse of planned bytes needs one.
    assert_eq!((totals.fences, totals.fences_left_out), (200, 0));
    bound.end();
}

/// Memory beside the plan may rely on any fence: from its allocation on all are issued.
#[test]
fn beside_what_is_not_planned_all_fences_are_issued() {
    let fenced = [Op::Fence(0, 1), Op::Alloc(1, 4096, 0), Op::Free(1, 0)];
    let ops: Vec<Op> = [Op::Alloc(0, 4096, 0), Op::Free(0, 0)].into_iter().chain(fenced).collect();
    let bound = Bound::new(&ops, 2, &mut Random(8));
    let streams = bound.streams();
    for (round, extra) in [(0, false), (1, true), (2, false)] {
        let step = bound.begin();
        let beside = extra.then(|| step_alloc_within(step, 64, 0, streams[0]).expect("fits"));
        for _ in 0..2 {
            let block = step_alloc(step, 4096, streams[0]).expect("planned");
            assert_eq!(step_free(step, block, streams[0]), Status::Ok);
        }
        beside.iter().for_each(|&b| assert_eq!(step_free(step, b, streams[0]), Status::Ok));
        slow::end(step, false).expect("all are free");
        let counts = (bound.totals().fences, bound.totals().fences_left_out);
        assert_eq!(counts, [(0, 1), (1, 1), (1, 2)][round]);
    }
    assert_eq!((bound.totals().served, bound.totals().gaps_missed), (6, 1));
    bound.end();
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
