//! What changes along the path of a search.
//!
//! Owns bounds and their reasons, flat arrays that are copied whole for each decision: some
//! microseconds for hundreds of buffers, where a log of changes would cost a test at each write.
//! Must not hold what can be undone by counting (the members of cliques).

use super::jobs::{Job, Jobs, Len, NONE};
use super::set::Set;

/// Bounds after a number of decisions.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// No unplaced job lies lower; a placed one lies there.
    pub(super) low: Vec<Len>,
    /// The aligned top of what is placed under it: where it could lie now.
    pub(super) base: Vec<Len>,
    /// The cliques that `low` comes from.
    pub(super) why: Vec<Set>,
    pub(super) placed: Vec<bool>,
    pub(super) placed_count: usize,
    /// The sum of unplaced sizes in each clique.
    pub(super) rest: Vec<Len>,
    /// The least end of an unplaced job in each clique, and whose it is.
    pub(super) end_first: Vec<(Len, u32)>,
    /// The least end of the other ones.
    pub(super) end_second: Vec<Len>,
}

impl State {
    /// Nothing placed. Loads above 32 bits are cut: the search refuses those before.
    pub(super) fn root(jobs: &Jobs) -> State {
        let (n, m) = (jobs.jobs.len(), jobs.members.len());
        let mut state = State {
            low: vec![0; n],
            base: vec![0; n],
            why: vec![Set::default(); n],
            placed: vec![false; n],
            placed_count: 0,
            rest: vec![0; m],
            end_first: vec![(NONE, NONE); m],
            end_second: vec![NONE; m],
        };
        state.reset(jobs);
        state
    }

    /// Back to nothing placed.
    pub(super) fn reset(&mut self, jobs: &Jobs) {
        self.base.fill(0);
        self.why.fill(Set::default());
        self.placed.fill(false);
        self.placed_count = 0;
        for (low, job) in self.low.iter_mut().zip(&jobs.jobs) {
            *low = if job.fixed == NONE { 0 } else { job.fixed };
        }
        for (rest, load) in self.rest.iter_mut().zip(&jobs.loads) {
            *rest = (*load).min(u64::from(NONE)) as Len;
        }
        self.end_first.fill((NONE, NONE));
        self.end_second.fill(NONE);
    }

    /// Takes the other's values, without new memory.
    pub(super) fn copy_from(&mut self, other: &State) {
        self.low.copy_from_slice(&other.low);
        self.base.copy_from_slice(&other.base);
        self.why.copy_from_slice(&other.why);
        self.placed.copy_from_slice(&other.placed);
        self.placed_count = other.placed_count;
        self.rest.copy_from_slice(&other.rest);
        self.end_first.copy_from_slice(&other.end_first);
        self.end_second.copy_from_slice(&other.end_second);
    }

    /// The least end of the unplaced rivals of job number `i`; [`NONE`] without any.
    pub(super) fn least_end(&self, job: &Job, i: u32) -> Len {
        let cliques = job.first as usize..job.end as usize;
        cliques.map(|s| self.end_of_other(s, i).0).min().unwrap_or(NONE)
    }

    /// The least end in a clique of jobs other than `i`, and whose it is if that is known.
    #[inline]
    pub(super) fn end_of_other(&self, clique: usize, i: u32) -> (Len, u32) {
        match self.end_first[clique] {
            (_, owner) if owner == i => (self.end_second[clique], NONE),
            first => first,
        }
    }
}

impl Jobs {
    /// Why no unplaced rival of job `i` ends below `bound`: those too long for it need no reason.
    pub(super) fn reason(&self, state: &State, i: usize, bound: Len) -> Set {
        let job = &self.jobs[i];
        let rivals = job.rivals.iter().map(|r| *r as usize);
        rivals
            .filter(|&r| !state.placed[r] && self.jobs[r].size < bound)
            .fold(job.range, |set, r| set | state.why[r])
    }
}
