//! Steps of several late lanes that are learnt over a plan, and steps in which other memory is
//! freed: what the program leaves to the plan's fences stays ordered.

use crate::common::{Random, seed};
use crate::lanes::{Act, act};
use crate::model::{Rig, step_alloc, step_free};
use crate::recorded::plan_of;
use forebay::error::Status;
use forebay::step::binding::{self, Binding, Setup};
use forebay::step::{Totals, record as recordings, slow};
use std::sync::Arc;

/// A binding of a plan of some acts on two lanes, which learns again when told to.
struct Learner {
    rig: Rig,
    streams: Vec<u64>,
    made: u64,
    bound: Arc<Binding>,
    random: Random,
}

impl Learner {
    fn new(acts: &[Act], replan_percent: u32, seed: u64) -> Learner {
        let mut random = Random(seed);
        let rig = Rig::new(64 << 20, 2);
        let recording = recordings::begin(rig.pool.handle(), None).expect("none is open");
        act(&rig, acts, Some(recording), 0, &mut random);
        recordings::end(recording).expect("open");
        let streams = recordings::get(recording).expect("ended").streams.clone();
        let (plan, _) = plan_of(recording);
        let setup = Setup { bytes: 0, alignment: 512, plans_max: 4, replan_percent };
        let made = binding::create(rig.pool.handle(), setup, 0).expect("made");
        let bound = binding::get(made).expect("there");
        bound.add(0, &plan).expect("it grows");
        recordings::let_go(recording).expect("held");
        Learner { rig, streams, made, bound, random }
    }

    /// One step; what it has counted.
    fn run(&mut self, acts: &[Act]) -> Totals {
        let before = self.bound.totals();
        let step = self.bound.begin(0, &self.streams).expect("none is open");
        act(&self.rig, acts, None, step, &mut self.random);
        slow::end(step, false).expect("all are free");
        self.rig.work(&mut self.random);
        let after = self.bound.totals();
        Totals {
            served: after.served - before.served,
            fallbacks: after.fallbacks - before.fallbacks,
            fences: after.fences - before.fences,
            fences_left_out: after.fences_left_out - before.fences_left_out,
            replanned: after.replanned - before.replanned,
            ..Totals::default()
        }
    }

    /// How many marks were wrong.
    fn end(self) -> u64 {
        let (_, wrong) = self.rig.finish();
        drop(self.bound);
        binding::unbind(self.made).expect("idle");
        self.rig.end();
        wrong
    }
}

/// The same, but for every size.
fn resized(acts: &[Act]) -> Vec<Act> {
    let resize = |act: &Act| match *act {
        Act::Alloc(name, bytes, lane) => Act::Alloc(name, bytes + 4096, lane),
        other => other,
    };
    acts.iter().map(resize).collect()
}

/// Two buffers one after the other beside a third, the later one used by another lane, which is
/// behind the earlier one by a fence that is left to the plan.
fn a_use_behind_a_fence() -> Vec<Act> {
    let mut acts = vec![Act::Alloc('d', 4096, 0), Act::Alloc('a', 4096, 0), Act::Work('a', 0)];
    acts.extend([Act::Free('a', 0), Act::Alloc('c', 4096, 0), Act::Fence(0, 1)]);
    acts.extend([Act::Free('d', 0), Act::Alloc('e', 4096, 0), Act::Use('c', 1)]);
    acts.extend([Act::Work('c', 1), Act::Free('e', 0), Act::Free('c', 0)]);
    acts
}

/// A buffer that another lane works on without a word, and one that has its bytes next.
fn untold_work() -> Vec<Act> {
    let mut acts = vec![Act::Alloc('a', 4096, 0), Act::Own(0, 1), Act::Work('a', 1)];
    acts.extend([Act::Fence(1, 0), Act::Free('a', 0), Act::Alloc('c', 4096, 0)]);
    acts.extend([Act::Work('c', 0), Act::Free('c', 0)]);
    acts
}

#[test]
fn a_step_that_is_learnt_over_a_plan_keeps_its_fences() {
    let seed = seed(91);
    for (acts, births, fences) in [(a_use_behind_a_fence(), 4, 1), (untold_work(), 2, 2)] {
        for asked in [true, false] {
            let mut learner = Learner::new(&acts, if asked { 0 } else { 5 }, seed);
            assert_eq!(learner.run(&acts).served, births);
            // By request with the same sizes, or with others after a step that fell back.
            let sizes = if asked { acts.clone() } else { resized(&acts) };
            if asked {
                learner.bound.learn(0).expect("no step is open");
            } else {
                assert_eq!(learner.run(&sizes).fallbacks, births);
            }
            let learning = learner.run(&sizes);
            assert_eq!((learning.fences, learning.fences_left_out), (fences, 0), "{asked}");
            for _ in 0..100 {
                let learnt = learner.run(&sizes);
                assert_eq!((learnt.served, learnt.fallbacks), (births, 0), "asked: {asked}");
                assert_eq!((learnt.fences, learnt.fences_left_out), (fences, 0), "{asked}");
            }
            assert_eq!(learner.bound.totals().replanned, 1);
            assert_eq!(learner.end(), 0, "asked: {asked}, seed {seed}");
        }
    }
}

/// A program that asks for all of its fences itself is learnt again and again with these alone.
#[test]
fn a_fence_that_the_program_asks_for_is_learnt_once() {
    let own = |act: Act| match act {
        Act::Fence(from, to) => Act::Own(from, to),
        other => other,
    };
    let acts: Vec<Act> = untold_work().into_iter().map(own).collect();
    let mut learner = Learner::new(&acts, 0, seed(92));
    for round in 0..4 {
        learner.bound.learn(0).expect("no step is open");
        assert_eq!(learner.run(&acts).replanned, 1);
        let learnt = learner.run(&acts);
        // As recorded: the first orders no reuse.
        assert_eq!((learnt.fences, learnt.fences_left_out), (1, 1), "round {round}");
    }
    assert_eq!(learner.end(), 0);
}

/// A block that is older than the step and freed in it: whoever has it next in the pool is behind
/// another lane's work on it by a fence that reuse of planned bytes does not need.
#[test]
fn other_memory_that_is_freed_in_a_step_keeps_its_fences() {
    const BYTES: usize = 1 << 20;
    let seed = seed(93);
    let mut random = Random(seed);
    let rig = Rig::new(64 << 20, 2);
    let (home, other) = (rig.streams[0], rig.streams[1]);
    let older = rig.pool.alloc(BYTES, home).expect("fits");
    let recording = recordings::begin(rig.pool.handle(), None).expect("none is open");
    let first = rig.pool.alloc(4096, home).expect("fits");
    recordings::fence(recording, other, home).expect("streams");
    rig.pool.dealloc(older, home).expect("live");
    let second = rig.pool.alloc(4096, home).expect("fits");
    [first, second].iter().for_each(|&block| rig.pool.dealloc(block, home).expect("live"));
    recordings::end(recording).expect("open");
    let (plan, number) = plan_of(recording);
    assert_eq!(plan.recording().map(|r| r.keeps_fences), Some(true));
    let made = binding::bind(number, &plan, rig.pool.handle()).expect("bound");
    let bound = binding::get(made).expect("there");
    for _ in 0..200 {
        let older = rig.pool.alloc(BYTES, home).expect("fits");
        let step = bound.begin(0, &[home, other]).expect("none is open");
        let first = step_alloc(step, 4096, home).expect("planned");
        let mut work = |lane| {
            let value = random.bits();
            rig.mark((older, BYTES), value, lane);
            rig.look((older, BYTES), value, lane);
        };
        work(1);
        assert_eq!(step_free(step, older, home), Status::Ok);
        let second = step_alloc(step, 4096, home).expect("planned");
        let next = rig.pool.alloc(BYTES, home).expect("fits");
        assert_eq!(next, older, "the pool has nothing nearer");
        work(0);
        rig.pool.dealloc(next, home).expect("live");
        for block in [first, second] {
            assert_eq!(step_free(step, block, home), Status::Ok);
        }
        slow::end(step, false).expect("all are free");
        rig.work(&mut random);
    }
    let totals = bound.totals();
    assert_eq!((totals.served, totals.fences, totals.fences_left_out), (400, 200, 0));
    assert_eq!(rig.finish().1, 0, "seed {seed}");
    drop(bound);
    binding::unbind(made).expect("idle");
    recordings::let_go(recording).expect("held");
    rig.end();
}
