//! Steps that do not go as recorded: other sizes, extra and missing allocations, late frees, and
//! what was never planned.

use crate::common::{Random, seed};
use crate::model::{
    By, Op, Rig, play, random_step, record, step_alloc, step_alloc_within, step_free,
};
use crate::recorded::plan_of;
use forebay::error::Status;
use forebay::plan::handles;
use forebay::step::Totals;
use forebay::step::binding::{self, Binding};
use forebay::step::{record as recordings, slow};
use std::sync::Arc;

/// A rig with a bound plan of a step.
pub struct Bound {
    pub rig: Rig,
    pub binding: Arc<Binding>,
    number: u64,
    plan: u64,
    recording: u64,
}

impl Bound {
    pub fn new(ops: &[Op], lanes: usize, random: &mut Random) -> Bound {
        let rig = Rig::new(256 << 20, lanes);
        let recording = record(&rig, ops, random);
        let (plan, plan_number) = plan_of(recording);
        let number = binding::bind(plan_number, &plan, rig.pool.handle()).expect("bound");
        let binding = binding::get(number).expect("there");
        Bound { rig, binding, number, plan: plan_number, recording }
    }

    pub fn begin(&self) -> u64 {
        self.binding.begin(0, &self.streams()).expect("none is open")
    }

    /// The streams in the order of the plan's lanes.
    pub fn streams(&self) -> Vec<u64> {
        let lanes = recordings::get(self.recording).expect("ended").streams.clone();
        if lanes.len() > 1 { lanes } else { self.rig.streams.clone() }
    }

    /// Plays a step by the plan.
    pub fn run(&self, ops: &[Op], random: &mut Random) {
        let step = self.begin();
        play(&self.rig, ops, By::Step(step), random);
        slow::end(step, false).expect("open");
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn plan_number(&self) -> u64 {
        self.plan
    }

    pub fn totals(&self) -> Totals {
        self.binding.totals()
    }

    /// Lets all go as it is: a canary's marks are wrong.
    pub fn forget(self) {
        self.rig.finish();
        drop(self.binding);
        binding::unbind(self.number).expect("idle");
    }

    /// Ends all; no mark may have been wrong, and no block left.
    pub fn end(self) {
        let (_, wrong) = self.rig.finish();
        assert_eq!(wrong, 0, "marks");
        drop(self.binding);
        binding::unbind(self.number).expect("idle");
        handles::let_go(self.plan).expect("held");
        recordings::let_go(self.recording).expect("held");
        assert_eq!(self.rig.pool.stats().expect("alive").live_blocks, 0);
        self.rig.end();
    }
}

#[test]
fn one_percent_of_other_sizes_is_served_and_counted() {
    let seed = seed(21);
    let mut random = Random(seed);
    let ops = random_step(&mut random, 400, 1);
    let bound = Bound::new(&ops, 1, &mut random);
    let mut changed_in_all = 0;
    for _ in 0..100 {
        let mut changed = ops.clone();
        for op in &mut changed {
            if let Op::Alloc(_, bytes, _) = op
                && random.one_in(100)
            {
                *bytes += 400_001 + random.below(1000);
                changed_in_all += 1;
            }
        }
        bound.run(&changed, &mut random);
    }
    let totals = bound.totals();
    assert!(changed_in_all > 200, "{changed_in_all} of 40,000");
    assert_eq!(totals.fallbacks, changed_in_all);
    assert_eq!(totals.served, 40_000 - changed_in_all);
    assert_eq!((totals.missing, totals.late, totals.by_pool), (0, 0, 0));
    bound.end();
}

#[test]
fn extra_and_missing_allocations_are_told_from_others() {
    let alloc = |id, bytes| Op::Alloc(id, bytes, 0);
    let free = |id| Op::Free(id, 0);
    let ops: Vec<Op> =
        (0..8).map(|id| alloc(id, 1000 * (id as usize + 1))).chain((0..8).map(free)).collect();
    let mut random = Random(3);
    let bound = Bound::new(&ops, 1, &mut random);
    let without = |gone: &[u32]| -> Vec<Op> {
        let id = |op: &Op| match *op {
            Op::Alloc(id, ..) | Op::Free(id, _) => id,
            Op::Fence(..) => unreachable!("one lane"),
        };
        ops.iter().copied().filter(|op| !gone.contains(&id(op))).collect()
    };
    // One more than recorded, before the fourth.
    let mut more = ops.clone();
    more.insert(3, alloc(99, 777));
    more.push(free(99));
    bound.run(&more, &mut random);
    let after = bound.totals();
    assert_eq!((after.served, after.fallbacks, after.missing), (8, 1, 0));
    // The second does not come: the third is not what is expected, the fourth tells.
    bound.run(&without(&[1]), &mut random);
    let after = bound.totals();
    assert_eq!((after.served, after.fallbacks, after.missing), (8 + 6, 2, 1));
    // The last two do not come.
    bound.run(&without(&[6, 7]), &mut random);
    let after = bound.totals();
    assert_eq!((after.served, after.fallbacks, after.missing), (14 + 6, 2, 3));
    // And as recorded again.
    bound.run(&ops, &mut random);
    let after = bound.totals();
    assert_eq!((after.served, after.fallbacks, after.missing), (28, 2, 3));
    bound.end();
}

/// Of buffers of one size the next is the next, not the one before that came with another size.
#[test]
fn a_changed_size_among_equal_ones_is_one_fallback() {
    let ops: Vec<Op> =
        (0..4).map(|id| Op::Alloc(id, 4000, 0)).chain((0..4).map(|id| Op::Free(id, 0))).collect();
    let mut random = Random(6);
    let bound = Bound::new(&ops, 1, &mut random);
    let mut changed = ops.clone();
    changed[1] = Op::Alloc(1, 4001, 0);
    bound.run(&changed, &mut random);
    let totals = bound.totals();
    assert_eq!((totals.served, totals.fallbacks, totals.missing), (3, 1, 0));
    bound.end();
}

/// A late free keeps its bytes: who would have them gets others. An early one is no matter.
#[test]
fn late_frees_keep_their_bytes() {
    let ops = [Op::Alloc(0, 4096, 0), Op::Free(0, 0), Op::Alloc(1, 4096, 0), Op::Free(1, 0)];
    let mut random = Random(4);
    let bound = Bound::new(&ops, 1, &mut random);
    assert_eq!(bound.totals().plan_block_bytes, 4096, "the two share their bytes");
    let late = [Op::Alloc(0, 4096, 0), Op::Alloc(1, 4096, 0), Op::Free(0, 0), Op::Free(1, 0)];
    for round in 1..=3 {
        bound.run(&late, &mut random);
        let totals = bound.totals();
        assert_eq!((totals.served, totals.fallbacks, totals.late), (round, round, round));
    }
    bound.run(&ops, &mut random);
    assert_eq!(bound.totals().served, 5);
    bound.end();
}

/// Frees in any order, sizes changed, buffers left out and added: nothing overlaps, all marks stay.
#[test]
fn any_way_that_a_step_goes_is_served_right() {
    let seed = seed(31);
    for round in 0..20 {
        let mut random = Random(seed + round);
        let lanes = 1 + (round as usize) % 3;
        let ops = random_step(&mut random, 120, lanes);
        let bound = Bound::new(&ops, lanes, &mut random);
        for _ in 0..20 {
            bound.run(&mutated(&ops, &mut random), &mut random);
        }
        bound.run(&ops, &mut random);
        let totals = bound.totals();
        assert!(totals.fallbacks > 0 && totals.served > 20 * 60, "seed {}: {totals:?}", round);
        bound.end();
    }
}

/// The same step, but: one in ten frees later, sizes changed, allocations gone or doubled.
fn mutated(ops: &[Op], random: &mut Random) -> Vec<Op> {
    let mut out: Vec<Op> = Vec::new();
    let mut gone = Vec::new();
    let mut extra = 1000;
    for &op in ops {
        match op {
            Op::Alloc(id, ..) if random.one_in(20) => gone.push(id),
            Op::Alloc(id, bytes, lane) if random.one_in(20) => {
                out.push(Op::Alloc(id, bytes + 1 + random.below(9000), lane));
            }
            Op::Alloc(..) if random.one_in(20) => {
                out.push(op);
                let lane = out.len() % lanes_of(ops);
                out.push(Op::Alloc(extra, random.size_between(16, 100_000), lane));
                extra += 1;
            }
            Op::Free(id, _) if gone.contains(&id) => {}
            _ => out.push(op),
        }
    }
    let frees: Vec<usize> = (0..out.len()).filter(|&at| matches!(out[at], Op::Free(..))).collect();
    for at in frees.into_iter().rev() {
        if random.one_in(10) {
            let op = out.remove(at);
            let to = (at + random.below(30)).min(out.len());
            out.insert(to, op);
        }
    }
    for id in 1000..extra {
        let at = out.iter().position(|op| matches!(op, Op::Alloc(a, ..) if *a == id));
        let at = at.expect("it was added");
        let Op::Alloc(_, _, lane) = out[at] else { unreachable!("found as one") };
        let to = at + 1 + random.below(out.len() - at);
        out.insert(to, Op::Free(id, lane));
    }
    out
}

fn lanes_of(ops: &[Op]) -> usize {
    let lane = |op: &Op| match *op {
        Op::Alloc(_, _, lane) | Op::Free(_, lane) => lane,
        Op::Fence(from, to) => from.max(to),
    };
    ops.iter().map(lane).max().unwrap_or(0) + 1
}

/// What is not planned takes bytes that nobody has until its end; else it is the pool's.
#[test]
fn gaps_serve_what_is_not_planned() {
    // A staircase: the plan block is 12 KiB, of which the first births use little.
    let ops = [
        Op::Alloc(0, 4096, 0),
        Op::Alloc(1, 1024, 0),
        Op::Free(1, 0),
        Op::Alloc(2, 8192, 0),
        Op::Free(2, 0),
        Op::Free(0, 0),
    ];
    let mut random = Random(5);
    let bound = Bound::new(&ops, 1, &mut random);
    let (bytes, stream) = (bound.totals().plan_block_bytes as usize, bound.rig.streams[0]);
    assert_eq!(bytes, 12288);
    let inside = |address: usize, base: usize| address.wrapping_sub(base) < bytes;
    let step = bound.begin();
    let take = |bytes| step_alloc(step, bytes, stream).expect("fits");
    let within = |bytes, births| step_alloc_within(step, bytes, births, stream).expect("fits");
    let first = take(4096);
    let base = first & !4095;
    // Through no birth: 8 KiB are free. Through one: all but the second's kilobyte.
    let short = within(7000, 1);
    assert!(inside(short, base), "7,000 bytes beside a kilobyte");
    let long = within(512, 2);
    assert!(!inside(long, base), "the third birth has all that is left");
    let unknown = within(512, 0);
    assert!(!inside(unknown, base), "its life is not known");
    let second = take(1024);
    assert!(inside(second, base));
    assert_eq!(step_free(step, short, stream), Status::Ok);
    assert_eq!(step_free(step, second, stream), Status::Ok);
    // It said one birth, and stays through the next: that goes to the pool.
    let stays = within(2048, 0x1);
    assert!(!inside(stays, base), "the third birth comes next");
    let third = take(8192);
    assert!(inside(third, base));
    for address in [long, unknown, stays, third, first] {
        assert_eq!(step_free(step, address, stream), Status::Ok);
    }
    slow::end(step, false).expect("all are free");
    let totals = bound.totals();
    assert_eq!((totals.gaps_served, totals.gaps_missed), (1, 3));
    assert_eq!((totals.served, totals.fallbacks), (3, 0));

    let step = bound.begin();
    let take = |bytes| step_alloc(step, bytes, stream).expect("fits");
    let first = take(4096);
    let overstays = step_alloc_within(step, 7000, 1, stream).expect("fits");
    assert!(inside(overstays, base));
    let second = take(1024);
    let third = take(8192);
    assert!(!inside(third, base), "its bytes are in use");
    assert_eq!(bound.binding.totals().fallbacks, 0, "told at the step's end");
    for address in [overstays, second, third, first] {
        assert_eq!(step_free(step, address, stream), Status::Ok);
    }
    slow::end(step, false).expect("all are free");
    assert_eq!((bound.totals().served, bound.totals().fallbacks), (5, 1));
    bound.end();
}

/// Dynamic buffers at random times, lives and sizes beside planned ones: nothing overlaps.
#[test]
fn gaps_never_overlap_what_is_planned() {
    let seed = seed(41);
    for round in 0..12 {
        let mut random = Random(seed + round);
        let lanes = 1 + (round as usize) % 2;
        let ops = random_step(&mut random, 100, lanes);
        let bound = Bound::new(&ops, lanes, &mut random);
        for _ in 0..20 {
            let step = bound.begin();
            play(&bound.rig, &ops, By::Gaps(step, &std::cell::RefCell::default()), &mut random);
            slow::end(step, false).expect("all are free");
        }
        let totals = bound.totals();
        assert!(totals.gaps_served > 50, "seed {}: {totals:?}", seed + round);
        assert_eq!(totals.fallbacks + totals.served, 2000);
        bound.end();
    }
}
