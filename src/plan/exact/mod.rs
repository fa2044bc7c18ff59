//! Exact search: is there a plan under this capacity?
//!
//! Buffers are placed from the bottom up. Every solution can be pushed down until each buffer lies
//! at its lowest aligned offset over 0 or over one that it rests on; only such **bottom-justified**
//! solutions are looked for, and each is met on one path:
//!
//! - **Branching.** Of the unplaced buffers with the least lower bound e, one is taken. Left: it is
//!   placed at e. Right: it does not lie on what is placed, so it rests on an unplaced rival; its
//!   bound becomes the least end of those. A buffer with a fixed offset is placed when its turn
//!   comes, and has no right.
//! - **Propagation** (`propagate`) raises bounds and finds contradictions clique by clique.
//! - **Jumping back.** Every bound keeps the cliques that it comes from. Decisions that touch no
//!   clique of a contradiction are undone without a second look.
//! - **Starts.** Each start has its own random score and a limit of failures (`restart`); cliques
//!   that fail often weigh more in later ones. A start that exhausts the search without its
//!   limit is a proof that there is no plan.
//!
//! The canonical solutions are an idea of the MiniMalloc paper (Moffitt, ASPLOS 2023); branching,
//! explanations and scores are our own. Owns all state of a search. Cost: 5 to 80 us a decision
//! on instances of 150 to 450 buffers; memory 50 bytes times n squared at most.

mod jobs;
mod propagate;
mod set;
mod state;

pub(super) use jobs::Jobs;

use super::random::Random;
use jobs::{Len, NONE};
use set::Set;
use state::State;

/// Up to this many buffers of a part the search is used.
pub const BUFFERS_MAX: usize = 1200;
/// Effort between two looks at the caller's `go_on`.
const LOOK: u64 = 512;

/// How a start ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// There is a plan: see [`Exact::offsets`].
    Found,
    /// There is none: proven.
    Exhausted,
    /// The limit of failures is reached.
    GaveUp,
    /// The caller did not want it to go on.
    Stopped,
}

/// A contradiction: where, and the cliques that it comes from.
#[derive(Clone, Copy, Debug, Default)]
struct Failure {
    clique: u32,
    cliques: Set,
}

/// A search over one part.
pub(super) struct Exact<'j> {
    jobs: &'j Jobs,
    capacity: Len,
    state: State,
    /// What was before each decision on the path, and the job that it placed.
    path: Vec<(State, u32)>,
    depth: usize,
    /// Each clique's jobs; the first `live` of them are unplaced, the others lie in the order of
    /// their placing, the last placed first.
    members: Vec<Vec<u32>>,
    live: Vec<u32>,
    /// Cliques to be looked at again.
    queue: Vec<u32>,
    queued: Vec<bool>,
    /// A rival that a raised job can rest on, as far as was seen last.
    rest: Vec<u32>,
    scratch: Vec<(Len, u32)>,
    failure: Failure,
    /// How often each clique failed, over all starts.
    weights: Vec<f64>,
    weight_sums: Vec<f64>,
    scores: Vec<f64>,
    weight_power: f64,
    effort: u64,
}

impl<'j> Exact<'j> {
    /// A search that has not begun.
    pub(super) fn new(jobs: &'j Jobs) -> Exact<'j> {
        let (n, m) = (jobs.jobs.len(), jobs.members.len());
        Exact {
            jobs,
            capacity: 0,
            state: State::root(jobs),
            path: Vec::new(),
            depth: 0,
            members: jobs.members.clone(),
            live: vec![0; m],
            queue: Vec::with_capacity(m),
            queued: vec![false; m],
            rest: vec![NONE; n],
            scratch: Vec::new(),
            failure: Failure::default(),
            weights: vec![1.0; m],
            weight_sums: vec![0.0; m + 1],
            scores: vec![0.0; n],
            weight_power: 1.0,
            effort: 0,
        }
    }

    /// Cliques looked at so far.
    pub(super) fn effort(&self) -> u64 {
        self.effort
    }

    /// The least height of a plan, given that none takes `excluded` bytes or less.
    pub(super) fn next_height(&self, excluded: u64) -> u64 {
        self.jobs.next_height(excluded)
    }

    /// The offsets that the last start found, in bytes.
    pub(super) fn offsets(&self) -> Vec<u64> {
        debug_assert_eq!(self.state.placed_count, self.jobs.jobs.len());
        self.state.low.iter().map(|at| self.jobs.bytes(*at)).collect()
    }

    /// One start: looks for a plan under `capacity` bytes until `failures_max` contradictions.
    /// `go_on` is asked now and then, and told the effort so far.
    pub(super) fn start(
        &mut self,
        capacity: u64,
        failures_max: u64,
        random: &mut Random,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Ended {
        self.capacity = self.jobs.capacity(capacity);
        if self.jobs.loads.iter().any(|load| *load > u64::from(self.capacity)) {
            return Ended::Exhausted;
        }
        self.state.reset(self.jobs);
        for (live, members) in self.live.iter_mut().zip(&self.members) {
            *live = members.len() as u32;
        }
        self.depth = 0;
        self.draw_scores(random);
        (0..self.live.len() as u32).for_each(|clique| self.enqueue(clique));
        let (mut failures, mut looked) = (0, self.effort);
        let mut sound = self.propagate();
        loop {
            if self.effort - looked >= LOOK {
                looked = self.effort;
                if !go_on(self.effort) {
                    self.clear_queue();
                    return Ended::Stopped;
                }
            }
            if sound {
                if self.state.placed_count == self.jobs.jobs.len() {
                    return Ended::Found;
                }
                sound = self.descend();
                continue;
            }
            failures += 1;
            self.weights[self.failure.clique as usize] += 1.0;
            if !self.retreat() {
                return Ended::Exhausted;
            }
            if failures > failures_max {
                self.clear_queue();
                return Ended::GaveUp;
            }
            sound = self.postpone() && self.propagate();
        }
    }

    /// Each start prefers other buffers: long or large ones, those in cliques that fail.
    fn draw_scores(&mut self, random: &mut Random) {
        let (length_power, size_power) = (random.between(0.0, 2.0), random.between(0.0, 1.5));
        self.weight_power = random.between(0.0, 1.5);
        let noise = random.unit();
        for (score, job) in self.scores.iter_mut().zip(&self.jobs.jobs) {
            let length = f64::from(job.end - job.first).powf(length_power);
            let size = f64::from(job.size).powf(size_power);
            *score = length * size * (1.0 + noise * random.unit());
        }
    }

    /// Left: places the best of the lowest jobs. Whether no contradiction came of it.
    fn descend(&mut self) -> bool {
        let job = self.choose();
        if self.depth == self.path.len() {
            self.path.push((self.state.clone(), job));
        } else {
            self.path[self.depth].0.copy_from(&self.state);
            self.path[self.depth].1 = job;
        }
        self.depth += 1;
        self.place(job) && self.propagate()
    }

    fn choose(&mut self) -> u32 {
        let (state, jobs) = (&self.state, &self.jobs.jobs);
        let unplaced = |i: &usize| !state.placed[*i];
        let lowest = (0..jobs.len()).filter(unplaced).map(|i| state.low[i]).min().unwrap_or(NONE);
        let mut sum = 0.0;
        for (weight, sums) in self.weights.iter().zip(&mut self.weight_sums[1..]) {
            sum += weight;
            *sums = sum;
        }
        let (mut best, mut best_score) = (NONE, -1.0);
        for i in (0..jobs.len()).filter(unplaced).filter(|i| state.low[*i] == lowest) {
            let job = &jobs[i];
            if job.fixed != NONE {
                return i as u32;
            }
            if job.twin != NONE && !state.placed[job.twin as usize] {
                continue;
            }
            let weight = self.weight_sums[job.end as usize] - self.weight_sums[job.first as usize];
            let mean = weight / f64::from(job.end - job.first);
            let score = self.scores[i] * mean.powf(self.weight_power);
            if score > best_score {
                (best, best_score) = (i as u32, score);
            }
        }
        debug_assert!(best != NONE, "the first of twins is never above the others");
        best
    }

    /// Undoes decisions up to the last one that the contradiction touches, that one too. Whether
    /// there was one; without, there is no plan.
    fn retreat(&mut self) -> bool {
        while self.depth > 0 {
            self.depth -= 1;
            let (before, job) = &self.path[self.depth];
            let i = *job as usize;
            let range = self.jobs.jobs[i].first..self.jobs.jobs[i].end;
            range.for_each(|s| self.live[s as usize] += 1);
            if !self.jobs.jobs[i].range.meets(&self.failure.cliques) {
                continue;
            }
            if self.jobs.jobs[i].fixed == NONE {
                self.state.copy_from(before);
                return true;
            }
            // It lies here whatever comes: the contradiction holds before it, as far as its
            // rivals were too high to go below it.
            let more = self.jobs.reason(before, i, self.jobs.jobs[i].fixed + 1);
            self.failure.cliques |= more | before.why[i];
        }
        false
    }

    /// Right: the job just undone rests on an unplaced rival. Whether that is possible.
    fn postpone(&mut self) -> bool {
        let i = self.path[self.depth].1 as usize;
        let job = &self.jobs.jobs[i];
        let end = self.state.least_end(job, i as u32);
        let low = if end == NONE { NONE } else { job.align(end) };
        let reason = self.jobs.reason(&self.state, i, low);
        let why = self.failure.cliques | reason | self.state.why[i];
        if low == NONE || low + job.size > self.capacity {
            self.failure = Failure { clique: job.first, cliques: why };
            return false;
        }
        self.state.why[i] = why;
        self.state.low[i] = low;
        self.enqueue_range(i as u32);
        true
    }
}

#[cfg(test)]
mod tests;
