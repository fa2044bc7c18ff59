//! Which fences are kept, against other ways to tell.

use super::super::order::{self, Order};
use super::super::random::Random;
use super::*;

fn buffer(birth: u64, death: u64, size: u64, lane: u16) -> Recorded {
    Recorded { birth, death, size, alignment: 1, tag: 0, lane, end_lane: lane }
}

/// A step at random: buffers of a few bytes, many fences.
fn step(rng: &mut Random, lanes: u16, events: u64) -> Recording {
    let mut step = Recording { lanes, ..Recording::default() };
    let mut live: Vec<usize> = Vec::new();
    let lane = |rng: &mut Random| (rng.bits() % u64::from(lanes)) as u16;
    for time in 0..events {
        match rng.bits() % 3 {
            0 => {
                live.push(step.births.len());
                let (size, lane) = (1 + rng.bits() % 3, lane(rng));
                step.births.push(buffer(time, NEVER, size, lane));
            }
            1 if !live.is_empty() => {
                let at = live.swap_remove(rng.bits() as usize % live.len());
                step.births[at].death = time;
                if rng.bits().is_multiple_of(8) {
                    step.uses.push((at as u32, lane(rng)));
                }
            }
            _ => step.fences.push(Fence { time, from: lane(rng), to: lane(rng) }),
        }
    }
    step
}

/// A plan that shares much: first fit under the exact conflicts.
fn offsets(step: &Recording) -> Vec<u64> {
    let (order, buffers) = (Order::new(step), step.buffers());
    let fits = order::first_fits(step, &order, &buffers);
    let mut offsets = vec![u64::MAX; step.births.len()];
    for (b, at) in buffers.iter().zip(&fits[0]) {
        offsets[b.id as usize] = *at;
    }
    offsets
}

/// Needs for every death and every birth that the recorded fences order, pair by pair, and
/// those of what shares bytes.
fn pairs(step: &Recording, offsets: &[u64]) -> Vec<Need> {
    let all = vec![true; step.fences.len()];
    let mut needs = Vec::new();
    for then in &step.births {
        for (at, first) in step.births.iter().enumerate().filter(|(_, b)| b.death != NEVER) {
            let used = step.uses.iter().filter(|(user, _)| *user as usize == at);
            for from in used.map(|(_, lane)| *lane).chain([first.end_lane]) {
                let (to, birth) = (then.lane, then.birth);
                let need = Need { birth, death: first.death, from, to };
                if from != to && step.met(&[need], &all) {
                    needs.push(need);
                }
            }
        }
    }
    needs.extend(step.needs(offsets, PAIRS_MAX).expect("few pairs"));
    needs.sort_by_key(|need| need.birth);
    needs
}

/// With the chosen fences alone no two buffers that share bytes are in conflict, as the
/// planner's own order has it.
fn keeps_the_order(step: &Recording, offsets: &[u64], chosen: &[bool], seed: u64) {
    let kept = step.fences.iter().zip(chosen).filter(|(_, chosen)| **chosen);
    let fences = kept.map(|(fence, _)| *fence).collect();
    let order = Order::new(&Recording { fences, ..step.clone() });
    let all: Vec<usize> = (0..offsets.len()).filter(|&i| offsets[i] != u64::MAX).collect();
    for &a in &all {
        for &b in all.iter().filter(|&&b| b > a) {
            let (end, past) = (offsets[a] + step.births[a].size, offsets[b] + step.births[b].size);
            let share = offsets[a] < past && offsets[b] < end;
            let conflict = order.conflict(a as u32, b as u32);
            assert!(!share || !conflict, "seed {seed}: buffers {a} and {b}");
        }
    }
}

/// What was ordered by all fences is by the chosen ones, for any work at any time on any lane
/// that the fences bind to a buffer: looked at moment by moment. How many two there were.
fn keeps_untold_work(step: &Recording, offsets: &[u64], chosen: &[bool], seed: u64) -> usize {
    // For each moment: up to when each lane is behind each other one.
    let end = 1 + step.fences.last().map_or(0, |f| f.time);
    let last = step.births.last().map_or(0, |b| b.birth);
    let moments = |chosen: &[bool]| -> Vec<Seen> {
        let until = |time: u64| {
            let mut seen = Seen::new(step.lanes);
            let some = step.fences.iter().zip(chosen).filter(|(f, is)| **is && f.time <= time);
            some.for_each(|(f, _)| seen.wait(f));
            seen
        };
        (0..=end).map(until).collect()
    };
    let (all, some) = (moments(&vec![true; chosen.len()]), moments(chosen));
    let at = |of: &[Seen], time: u64, lane, other| of[time.min(end) as usize].up_to(lane, other);
    let placed: Vec<usize> = (0..offsets.len()).filter(|&i| offsets[i] != u64::MAX).collect();
    let mut checked = 0;
    for (&a, &b) in placed.iter().flat_map(|a| placed.iter().map(move |b| (a, b))) {
        let (first, then) = (&step.births[a], &step.births[b]);
        let share =
            a < b && offsets[a] < offsets[b] + then.size && offsets[b] < offsets[a] + first.size;
        let lives = |b: &Recorded| b.birth + 1..b.death.min(end);
        for from in (0..step.lanes).filter(|lane| share && *lane != first.lane) {
            for to in (0..step.lanes).filter(|lane| *lane != from) {
                // Work at a time is before the death when that is behind a later fence.
                let before = at(&all, first.death.saturating_sub(1), first.lane, from);
                let works = lives(first).any(|time| time <= before);
                let begins = |&time: &u64| {
                    let home = to == then.lane;
                    home || at(&all, time, to, then.lane) > then.birth
                };
                let mut issued = then.birth..then.death.min(last + 1);
                let Some(begins) = issued.find(begins) else { continue };
                if works {
                    checked += 1;
                    let kept = at(&some, begins, to, from) >= before;
                    assert!(kept, "seed {seed}: {a} on {from}, then {b} on {to}");
                }
            }
        }
    }
    checked
}

#[test]
fn what_is_implied_or_orders_no_reuse_is_left_out() {
    // One after another on two lanes, in the same bytes.
    let births = vec![buffer(0, 1, 8, 0), buffer(5, 6, 8, 1), buffer(9, 10, 8, 0)];
    let fence = |time, from, to| Fence { time, from, to };
    let needed = |fences: &[Fence]| {
        let step = Recording {
            lanes: 2,
            births: births.clone(),
            fences: fences.into(),
            ..Default::default()
        };
        step.needed_fences(&[0, 0, 0])
    };
    // Of three between death and birth the last will do; one before the death orders nothing.
    let four = [fence(0, 0, 1), fence(2, 0, 1), fence(3, 0, 1), fence(4, 0, 1), fence(7, 1, 0)];
    assert_eq!(needed(&four), [false, false, false, true, true]);
    // The wrong way, and behind the last birth.
    let more = [fence(2, 0, 1), fence(4, 1, 0), fence(8, 1, 0), fence(11, 0, 1)];
    assert_eq!(needed(&more), [true, false, true, false]);
    // No bytes shared: none.
    let step = Recording { lanes: 2, births, fences: four.into(), ..Default::default() };
    assert_eq!(step.needed_fences(&[0, 8, 16]), [false; 5]);
}

/// A buffer's memory was used on another lane without a word: before its free, and behind its
/// birth.
#[test]
fn fences_that_bind_another_lanes_work_to_a_life_are_kept() {
    let fence = |time, from, to| Fence { time, from, to };
    let needed = |lanes, births: &[Recorded], fences: &[Fence]| {
        let (births, fences) = (births.to_vec(), fences.to_vec());
        let offsets = vec![0; births.len()];
        Recording { lanes, births, fences, ..Default::default() }.needed_fences(&offsets)
    };
    // Between birth and death lane 0 may work on it; who comes next on lane 1 is behind that.
    let again = [buffer(0, 3, 8, 1), buffer(4, 5, 8, 1)];
    assert_eq!(needed(2, &again, &[fence(1, 1, 0), fence(2, 0, 1)]), [false, true]);
    // So it is when only the way back was told, but not for a fence before the birth.
    assert_eq!(needed(2, &again, &[fence(2, 0, 1)]), [true]);
    assert_eq!(needed(2, &again, &[fence(0, 0, 1)]), [false]);
    // Of the ways back the last before the death binds most; any up to the next birth will do.
    let back = [fence(1, 0, 1), fence(2, 0, 1), fence(4, 0, 1)];
    assert_eq!(needed(2, &again, &back), [false, false, true]);
    assert_eq!(needed(2, &again, &back[..2]), [false, true]);
    assert_eq!(needed(2, &again, &[fence(3, 0, 1)]), [false], "behind the death");
    // The second's work on lane 0 is behind the first on lane 1, if a birth comes yet.
    let long = [buffer(0, 1, 8, 1), buffer(2, 7, 8, 1), buffer(8, 9, 8, 1)];
    assert_eq!(needed(2, &long[..2], &[fence(3, 1, 0), fence(4, 1, 0)]), [false, false]);
    assert_eq!(needed(2, &long, &[fence(3, 1, 0), fence(4, 1, 0)]), [true, false]);
    assert_eq!(needed(2, &long, &[fence(7, 1, 0)]), [false], "behind the death");
    // Through a third lane, to a fourth that works on the second.
    let chain = [fence(1, 2, 0), fence(2, 0, 1), fence(5, 1, 3), fence(6, 3, 1)];
    assert_eq!(needed(4, &again, &chain[..2]), [true, true]);
    let more = [again[0], buffer(4, 7, 8, 1), buffer(8, 9, 8, 1)];
    assert_eq!(needed(4, &more[..2], &chain), [true, true, false, false]);
    assert_eq!(needed(4, &more, &chain), [true; 4]);
}

#[test]
fn a_step_with_work_on_other_lanes_keeps_all() {
    let step = Recording {
        lanes: 2,
        births: vec![buffer(0, 1, 8, 0), buffer(3, 4, 8, 0), buffer(6, 7, 8, 0)],
        fences: vec![Fence { time: 2, from: 0, to: 1 }, Fence { time: 5, from: 1, to: 1 }],
        ..Default::default()
    };
    let needed = |change: fn(&mut Recording)| {
        let mut step = step.clone();
        change(&mut step);
        step.needed_fences(&[0, 0, if step.births[2].death == NEVER { u64::MAX } else { 0 }])
    };
    assert_eq!(needed(|_| ()), [false, false]);
    assert_eq!(needed(|step| step.uses.push((1, 0))), [false, false], "its own lane");
    assert_eq!(needed(|step| step.uses.push((1, 1))), [true, false]);
    assert_eq!(needed(|step| step.births[0].end_lane = 1), [true, false]);
    assert_eq!(needed(|step| step.births[2].death = NEVER), [true, false]);
    assert_eq!(needed(|step| step.keeps_fences = true), [true, false]);
}

#[test]
fn beyond_so_many_pairs_all_are_kept() {
    let births = (0..40u64).map(|i| buffer(3 * i, 3 * i + 1, 8, 0)).collect();
    let fences = vec![Fence { time: 2, from: 0, to: 1 }];
    let step = Recording { lanes: 2, births, fences, ..Default::default() };
    // Each shares its bytes with each: 780 pairs, none of two lanes.
    assert_eq!(step.needs(&[0; 40], 780), Some(Vec::new()));
    assert_eq!(step.fewest(&[0; 40], 780), [false]);
    assert_eq!(step.needs(&[0; 40], 779), None);
    assert_eq!(step.fewest(&[0; 40], 779), [true]);
}

/// Many lanes before and after the same bytes: what is bounded is the work, not the needs.
#[test]
fn beyond_so_many_ends_and_begins_all_are_kept() {
    let (lanes, count) = (8u16, 10u64);
    let mut births: Vec<Recorded> = (0..count).map(|i| buffer(i, 100 + i, 8, 0)).collect();
    births.extend((0..count).map(|i| buffer(200 + i, 400, 8, 0)));
    births.push(buffer(500, 501, 8, 0));
    let fence = |time, from, to| Fence { time, from, to };
    let mut fences: Vec<Fence> = (1..lanes).map(|lane| fence(50, lane, 0)).collect();
    fences.extend((1..lanes).map(|lane| fence(300, 0, lane)));
    let step = Recording { lanes, births, fences, ..Default::default() };
    let mut offsets: Vec<u64> = (0..2 * count).map(|i| i % count * 8).collect();
    offsets.push(count * 8);
    // 10 pairs of 8 ends; each end meets 8 begins but its own.
    assert_eq!(step.needs(&offsets, 639), None);
    assert!(step.needs(&offsets, 640).is_some_and(|needs| !needs.is_empty()));
    assert!(step.fewest(&offsets, 639).iter().all(|kept| *kept));
}

#[test]
fn a_chain_in_use_is_not_doubled() {
    let births =
        vec![buffer(0, 1, 8, 0), buffer(3, 4, 8, 1), buffer(7, 8, 8, 2), buffer(9, 10, 8, 2)];
    // 0 to 1 and 1 to 2 are needed anyhow: 0 to 2 comes by them.
    let fences = [(2, 0, 1), (5, 1, 2), (6, 0, 2)];
    let fences = fences.map(|(time, from, to)| Fence { time, from, to }).into();
    let step = Recording { lanes: 3, births, fences, ..Default::default() };
    assert_eq!(step.needed_fences(&[0, 0, 0, 0]), [true, true, false]);
}

#[test]
fn no_more_than_a_transitive_reduction_and_none_too_few() {
    let (mut kept, mut reduced, mut recorded, mut untold) = (0, 0, 0, 0);
    for seed in 0..400 {
        let mut rng = Random::new(seed, 3);
        let lanes = 2 + (seed % 3) as u16;
        let step = step(&mut rng, lanes, 60);
        let offsets = offsets(&step);
        let chosen = step.fewest(&offsets, PAIRS_MAX);
        let needs = step.needs(&offsets, PAIRS_MAX).expect("few pairs");
        assert!(step.met(&needs, &chosen), "seed {seed}");
        keeps_the_order(&step, &offsets, &chosen, seed);
        untold += keeps_untold_work(&step, &offsets, &chosen, seed);
        let mut reduction: Vec<bool> = step.fences.iter().map(|f| f.from != f.to).collect();
        recorded += count(&reduction);
        assert!(step.prune(&pairs(&step, &offsets), &mut reduction));
        assert!(count(&chosen) <= count(&reduction), "seed {seed}: {step:?}");
        kept += count(&chosen);
        reduced += count(&reduction);
        // Each is needed.
        for i in (0..chosen.len()).filter(|&i| chosen[i]) {
            let mut fewer = chosen.clone();
            fewer[i] = false;
            assert!(!step.met(&needs, &fewer), "seed {seed}: fence {i}");
        }
    }
    println!("{recorded} recorded, {reduced} in a reduction, {kept} kept; {untold} untold");
    assert!(untold > 1000, "{untold} works on other lanes");
    assert!(kept > 400 && kept < recorded / 2, "{kept} of {recorded}");
}

/// Between two lanes no choice of fences is smaller: all are tried.
#[test]
fn between_two_lanes_none_is_smaller() {
    let mut tried = 0;
    for seed in 0..600 {
        let mut rng = Random::new(seed, 4);
        let step = step(&mut rng, 2, 40);
        if step.fences.len() > 14 {
            continue;
        }
        let offsets = offsets(&step);
        let needs = step.needs(&offsets, PAIRS_MAX).expect("few pairs");
        let kept = count(&step.fewest(&offsets, PAIRS_MAX));
        for set in (0u32..1 << step.fences.len()).filter(|set| (set.count_ones() as usize) < kept) {
            let some: Vec<bool> = (0..step.fences.len()).map(|i| set >> i & 1 == 1).collect();
            assert!(!step.met(&needs, &some), "seed {seed}: {some:?} of {step:?}");
        }
        tried += usize::from(kept > 1);
    }
    assert!(tried > 40, "{tried} with two fences or more");
}
