//! Several searchers on one part, each with random numbers of its own.
//!
//! A searcher takes turns: a packing of `minimise`, or a start of `exact`. Under a capacity
//! parts that the exact search can take are left to it; without one the two share the effort, and
//! the exact search alternates between the least height that is not excluded and one between that
//! and the best. What it excludes raises the bound. Heights are first sought in multiples of the
//! shared alignment; what is left below one multiple gets as much effort again at the most.
//!
//! Promises: the answer is that of the searcher that was done after the least effort (the lowest
//! number of equal ones), else the lowest packing. All others go on until their own effort has
//! passed that, so threads and timing change nothing but the time taken; unless the caller asked
//! for the first in time (`racing`), set a time limit, or stopped it. Owns the threads; they end
//! before [`run`] returns. Cost: a searcher's memory each.

use super::align_up;
use super::bounds::grain;
use super::exact::{Ended, Exact, Jobs};
use super::minimise::{Minimiser, Packed};
use super::prepare::Part;
use super::random::Random;
use super::restart;
use super::solve::{Options, Progress};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(50);
/// Effort for heights between multiples of the shared alignment, beside as much as before.
const FINE_EFFORT: u64 = 20_000;
/// Up to so many buffers packings and the exact search get the same effort from the start.
const EVEN_SHARE_BUFFERS: usize = 500;
/// With more, packings get this much before.
const PACKINGS_FIRST: u64 = 500_000;
/// Steps of halving towards the best height.
const NEARNESS_MAX: i32 = 6;
/// Most searchers, and most threads.
pub const SEARCHERS_MAX: u32 = 256;

/// What is to be reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// No packing is lower, in bytes.
    pub(super) bound: u64,
    /// A packing this low is as good as any.
    pub(super) enough: u64,
    /// Whether a packing above `enough` is worth nothing.
    pub(super) strict: bool,
    /// Effort that each searcher may take.
    pub(super) effort: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The lowest packing seen, whether it is low enough or not; nothing if stopped before one.
    pub(super) best: Option<Packed>,
    /// A bound that is proven, at least the goal's.
    pub(super) bound: u64,
    /// The effort of the searcher whose answer this is.
    pub(super) effort: u64,
}

/// What all threads see.
struct Shared<'a> {
    stop: AtomicBool,
    /// The least effort after which a searcher was done.
    done_after: AtomicU64,
    effort_max: u64,
    deadline: Option<Instant>,
    racing: bool,
    began: Instant,
    /// Effort of earlier parts.
    before: u64,
    outside: Option<&'a AtomicBool>,
}

/// The caller's report function: answers whether to go on.
pub(super) type Report<'a> = &'a mut dyn FnMut(&Progress) -> bool;

/// Who is told how far the search is, through all parts of it.
pub(super) struct Pulse<'a> {
    report: Option<Report<'a>>,
    told: Instant,
    stopped: bool,
}

impl<'a> Pulse<'a> {
    pub(super) fn new(report: Option<Report<'a>>, began: Instant) -> Pulse<'a> {
        Pulse { report, told: began, stopped: false }
    }

    /// Tells, when it is time. False: the search is to end, as was said now or earlier.
    pub(super) fn beat(&mut self, state: impl FnOnce() -> Progress) -> bool {
        if let Some(report) = self.report.as_mut()
            && !self.stopped
            && self.told.elapsed() >= REPORT_EVERY
        {
            self.stopped = !report(&state());
            self.told = Instant::now();
        }
        !self.stopped
    }
}

/// A thread's view of the limits.
struct Watch<'a, 'b, 'c> {
    shared: &'a Shared<'a>,
    pulse: Option<&'b mut Pulse<'c>>,
}

impl Watch<'_, '_, '_> {
    /// Whether a searcher that has come to `effort` may go on.
    fn go_on(&mut self, effort: u64, best: Option<u64>, bound: u64) -> bool {
        let shared = self.shared;
        if let Some(pulse) = self.pulse.as_mut() {
            let state = || {
                let elapsed = shared.began.elapsed();
                Progress { height: best, bound, effort: shared.before + effort, elapsed }
            };
            if !pulse.beat(state) {
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
        let late = shared.deadline.is_some_and(|at| Instant::now() >= at)
            || shared.outside.is_some_and(|flag| flag.load(Ordering::Relaxed));
        if late {
            shared.stop.store(true, Ordering::Relaxed);
        }
        effort < shared.effort_max
            && effort <= shared.done_after.load(Ordering::Relaxed)
            && !shared.stop.load(Ordering::Relaxed)
    }
}

struct Searcher<'p> {
    number: u32,
    goal: Goal,
    /// Heights are sought in multiples of this.
    grain: u64,
    /// Effort after which lower heights are not sought any more, once `grain` is 1.
    fine_until: u64,
    /// The part with sizes as they are, for heights between multiples of the shared alignment.
    fine: Option<&'p Jobs>,
    /// Effort of a search that was replaced.
    spent: u64,
    minimiser: Minimiser<'p>,
    exact: Option<Exact<'p>>,
    random: Random,
    starts: u64,
    /// How near to the best height the exact search tries next: half of the way from the least
    /// one at 1, half of the rest more at each step.
    nearness: i32,
    bound: u64,
    /// Nothing more to find.
    done: bool,
    ended: bool,
}

impl<'p> Searcher<'p> {
    fn new(
        number: u32,
        part: &Part,
        minimiser: Minimiser<'p>,
        goal: Goal,
        seed: u64,
    ) -> Searcher<'p> {
        Searcher {
            number,
            goal,
            grain: grain(part),
            fine_until: u64::MAX,
            fine: None,
            spent: 0,
            minimiser,
            exact: None,
            random: Random::new(seed, u64::from(number)),
            starts: 0,
            nearness: 1,
            bound: goal.bound,
            done: false,
            ended: false,
        }
    }

    fn effort(&self) -> u64 {
        let exact = self.exact.as_ref().map_or(0, Exact::effort);
        self.spent + self.minimiser.effort() + exact
    }

    fn height(&self) -> Option<u64> {
        self.minimiser.best().map(|best| best.height)
    }

    /// The least height that is worth a search, in whole grains.
    fn least(&self) -> u64 {
        align_up(self.goal.enough.max(self.bound), self.grain)
    }

    fn judge(&mut self) {
        let height = self.height().unwrap_or(u64::MAX);
        let bound = if self.goal.strict { 0 } else { self.bound };
        if height <= self.goal.enough.max(bound) || self.effort() >= self.fine_until {
            self.done = true;
        } else if !self.goal.strict && self.grain > 1 && height <= self.least() {
            // From now on heights between multiples of the shared alignment are sought too.
            self.fine_until = 2 * self.effort() + FINE_EFFORT;
            self.grain = 1;
            self.start_with(self.fine);
        }
    }

    /// Searches on other terms.
    fn start_with(&mut self, jobs: Option<&'p Jobs>) {
        self.spent += self.exact.as_ref().map_or(0, Exact::effort);
        self.exact = jobs.map(Exact::new);
    }

    /// One packing or one start.
    fn turn(&mut self, watch: &mut Watch) {
        // Of many buffers packings are worth more than starts.
        let late = self.minimiser.len() > EVEN_SHARE_BUFFERS;
        let ahead = if late { PACKINGS_FIRST } else { 0 };
        let packing = self.minimiser.effort().saturating_sub(ahead);
        match self.exact.as_ref().map(|exact| self.spent + exact.effort()) {
            Some(exact) if self.goal.strict || exact < packing => self.start(watch),
            _ => {
                self.minimiser.turn(&mut self.random);
            }
        }
        self.judge();
        let effort = self.effort();
        if self.done {
            self.ended = true;
            watch.shared.done_after.fetch_min(effort, Ordering::Relaxed);
            if watch.shared.racing {
                watch.shared.stop.store(true, Ordering::Relaxed);
            }
        } else {
            self.ended = !watch.go_on(effort, self.height(), self.bound);
        }
    }

    /// One start of the exact search.
    fn start(&mut self, watch: &mut Watch) {
        let best = self.height();
        let (base, bound) = (self.spent + self.minimiser.effort(), self.bound);
        let target = self.target(best.unwrap_or(u64::MAX));
        let Some(exact) = self.exact.as_mut() else {
            return;
        };
        let failures =
            restart::failures(if self.goal.strict { self.starts } else { self.starts / 2 });
        let mut go_on = |effort| watch.go_on(base + effort, best, bound);
        let ended = exact.start(target, failures, &mut self.random, &mut go_on);
        match ended {
            Ended::Found => {
                let offsets = exact.offsets();
                let height = self.minimiser.height_of(&offsets);
                self.minimiser.offer(Packed { height, offsets });
                self.nearness = (self.nearness - 1).max(0);
            }
            Ended::Exhausted => {
                self.bound = self.bound.max(exact.next_height(target));
                self.done |= self.goal.strict;
            }
            Ended::GaveUp if self.starts.is_multiple_of(2) => {}
            Ended::GaveUp => self.nearness = self.nearness % NEARNESS_MAX + 1,
            Ended::Stopped => {}
        }
        self.starts += 1;
    }

    /// The capacity of the next start.
    fn target(&mut self, best: u64) -> u64 {
        if self.goal.strict {
            return self.goal.enough;
        }
        let least = self.least();
        // The highest that would be better; not below `least`, or the searcher were done.
        let most = ((best - 1) / self.grain * self.grain).max(least);
        if self.starts.is_multiple_of(2) {
            return least;
        }
        let share = 1.0 - 0.5f64.powi(self.nearness);
        let way = ((most - least) as f64 * share) as u64 / self.grain * self.grain;
        (least + way).min(most)
    }
}

/// Searches one part of a search that began at `began` and spent the effort `before` on earlier
/// parts; `pulse` is told on this thread.
pub(super) fn run(
    part: &Part,
    goal: Goal,
    options: &Options,
    (began, before): (Instant, u64),
    pulse: &mut Pulse<'_>,
) -> Answer {
    let shared = Shared {
        stop: AtomicBool::new(pulse.stopped),
        done_after: AtomicU64::new(u64::MAX),
        effort_max: goal.effort,
        deadline: options.time.and_then(|time| began.checked_add(time)),
        racing: options.racing,
        began,
        before,
        outside: options.stop.as_deref(),
    };
    let mut watch = Watch { shared: &shared, pulse: Some(pulse) };
    let mut first = Searcher::new(0, part, Minimiser::new(part, goal.bound), goal, options.seed);
    // The fixed keys draw no random numbers: one searcher does them for all. The first packing
    // is made whatever the limits are, so that there is an answer.
    while !first.ended && !first.minimiser.warmed_up() {
        first.turn(&mut watch);
    }
    if first.ended {
        return answer(&[first]);
    }
    let rounded = !goal.strict || goal.enough.is_multiple_of(first.grain);
    let capacity_max = if goal.strict { goal.enough } else { first.height().unwrap_or(0) };
    let coarse = Jobs::new(part, capacity_max, rounded);
    let slack = !goal.strict && part.items.iter().any(|i| !i.size.is_multiple_of(grain(part)));
    let fine = if slack { Jobs::new(part, capacity_max, false) } else { None };
    let others = 1..options.searchers.clamp(1, SEARCHERS_MAX);
    let mut searchers: Vec<Searcher> = others
        .map(|number| Searcher::new(number, part, first.minimiser.clone(), goal, options.seed))
        .collect();
    searchers.insert(0, first);
    for searcher in &mut searchers {
        // Rounded sizes prove nothing of heights between multiples.
        searcher.fine = if slack { fine.as_ref() } else { coarse.as_ref() };
        let refined = searcher.fine_until != u64::MAX;
        searcher.start_with(if refined { searcher.fine } else { coarse.as_ref() });
    }
    answer(&work(searchers, options.threads_used(), watch))
}

/// Lets all searchers work to their end, on so many threads; this one is the first.
fn work<'p>(
    searchers: Vec<Searcher<'p>>,
    threads: usize,
    mut watch: Watch<'_, '_, '_>,
) -> Vec<Searcher<'p>> {
    let threads = threads.clamp(1, searchers.len());
    let mut shares: Vec<Vec<Searcher>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, searcher) in searchers.into_iter().enumerate() {
        shares[i % threads].push(searcher);
    }
    let shared = watch.shared;
    let shares: Vec<Mutex<Vec<Searcher>>> = shares.into_iter().map(Mutex::new).collect();
    std::thread::scope(|scope| {
        for share in &shares[1..] {
            let work = move || {
                let mut watch = Watch { shared, pulse: None };
                take_turns(&mut lock(share), &mut watch);
            };
            // Where no more threads can be had, the share is left to this one, below.
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        take_turns(&mut lock(&shares[0]), &mut watch);
    });
    let mut done = Vec::new();
    for share in shares {
        let mut share = share.into_inner().unwrap_or_else(PoisonError::into_inner);
        take_turns(&mut share, &mut watch);
        done.extend(share);
    }
    done.sort_by_key(|searcher| searcher.number);
    done
}

/// A share's searchers. A panic in another thread ends the call, so none is seen half done.
fn lock<T>(share: &Mutex<T>) -> MutexGuard<'_, T> {
    share.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one with the least effort goes on, until all have ended.
fn take_turns(share: &mut [Searcher], watch: &mut Watch) {
    while let Some(next) = share.iter_mut().filter(|s| !s.ended).min_by_key(|s| s.effort()) {
        next.turn(watch);
    }
}

/// The answer of searchers that have ended, in the order of their numbers.
fn answer(searchers: &[Searcher]) -> Answer {
    let done = searchers.iter().filter(|s| s.done).min_by_key(|s| (s.effort(), s.number));
    let lowest = searchers.iter().min_by_key(|s| (s.height().unwrap_or(u64::MAX), s.number));
    let bound = match done {
        // What others had proven by then depends on when they were stopped.
        Some(done) => done.bound,
        None => searchers.iter().map(|s| s.bound).max().unwrap_or(0),
    };
    let best = done.or(lowest);
    Answer {
        best: best.and_then(|s| s.minimiser.best().cloned()),
        bound,
        effort: best.map_or(0, Searcher::effort),
    }
}
