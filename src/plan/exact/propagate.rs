//! What follows from the bounds: raises and contradictions, clique by clique, to a fixpoint.
//!
//! In a clique with capacity C, all unplaced jobs lie above one another. With R the sum of their
//! sizes, the lowest of them starts at C - R or below. From that:
//!
//! - no bound at or below C - R: a contradiction;
//! - a job whose bound is above C - R is not the lowest, so it starts at or above the least end of
//!   those that can be;
//! - Jackson's bound: put down in the order of their bounds, they must end by C.
//!
//! And between cliques: a job that does not lie on what is placed rests on an unplaced rival.
//! Every raise notes the cliques that it comes from. Owns the queue of cliques that have changed.
//! Cost: a look at a clique is linear in its unplaced jobs.

use super::jobs::{Len, NONE};
use super::set::Set;
use super::{Exact, Failure};

impl Exact<'_> {
    /// Has a clique looked at again.
    #[inline]
    pub(super) fn enqueue(&mut self, clique: u32) {
        if !std::mem::replace(&mut self.queued[clique as usize], true) {
            self.queue.push(clique);
        }
    }

    /// Has all cliques of a job looked at again.
    pub(super) fn enqueue_range(&mut self, job: u32) {
        let job = &self.jobs.jobs[job as usize];
        (job.first..job.end).for_each(|clique| self.enqueue(clique));
    }

    /// Forgets what was to be looked at.
    pub(super) fn clear_queue(&mut self) {
        for clique in self.queue.drain(..) {
            self.queued[clique as usize] = false;
        }
    }

    fn fail(&mut self, clique: u32, cliques: Set) -> bool {
        self.failure = Failure { clique, cliques };
        self.clear_queue();
        false
    }

    /// The clique itself, and the reasons of all its unplaced jobs.
    fn why_clique(&self, clique: u32) -> Set {
        let s = clique as usize;
        let live = &self.members[s][..self.live[s] as usize];
        live.iter().fold(self.jobs.one(clique), |set, j| set | self.state.why[*j as usize])
    }

    /// Puts a job at its bound; its rivals go above. Whether none of them is fixed below.
    pub(super) fn place(&mut self, job: u32) -> bool {
        let i = job as usize;
        let all = self.jobs;
        let placed = &all.jobs[i];
        let top = self.state.low[i] + placed.size;
        self.state.placed[i] = true;
        self.state.placed_count += 1;
        for s in placed.first as usize..placed.end as usize {
            self.state.rest[s] -= placed.size;
            let live = self.live[s] as usize - 1;
            self.live[s] = live as u32;
            let members = &mut self.members[s];
            let at = members.iter().position(|m| *m == job).unwrap_or(live);
            members.copy_within(at + 1..live + 1, at);
            members[live] = job;
        }
        self.enqueue_range(job);
        for &rival in &placed.rivals {
            let (r, other) = (rival as usize, &all.jobs[rival as usize]);
            if self.state.placed[r] {
                continue;
            }
            let shared = placed.first.max(other.first);
            if other.fixed != NONE {
                if other.fixed < top {
                    return self.fail(shared, all.one(shared));
                }
                continue;
            }
            let base = other.align(top);
            self.state.base[r] = self.state.base[r].max(base);
            if self.state.low[r] < base {
                self.state.low[r] = base;
                self.state.why[r] = all.one(shared);
                self.enqueue_range(rival);
            }
        }
        true
    }

    /// Follows everything to its end. Whether there is no contradiction; if there is, it is in
    /// `failure`.
    pub(super) fn propagate(&mut self) -> bool {
        loop {
            while let Some(clique) = self.queue.pop() {
                self.queued[clique as usize] = false;
                if !self.look(clique) {
                    return false;
                }
            }
            match self.look_between() {
                None => return false,
                Some(false) => return true,
                Some(true) => {}
            }
        }
    }

    /// One clique. Whether it holds no contradiction.
    fn look(&mut self, clique: u32) -> bool {
        let s = clique as usize;
        let live = self.live[s] as usize;
        self.effort += 1;
        if live == 0 {
            self.state.end_first[s] = (NONE, NONE);
            self.state.end_second[s] = NONE;
            return true;
        }
        // The loads are at most the capacity, as `start` saw to.
        let limit = self.capacity - self.state.rest[s];
        let (mut least, mut most, mut end_min) = (NONE, 0, NONE);
        self.scratch.clear();
        for &j in &self.members[s][..live] {
            let low = self.state.low[j as usize];
            least = least.min(low);
            most = most.max(low);
            if low <= limit {
                end_min = end_min.min(low + self.jobs.jobs[j as usize].size);
            }
            self.scratch.push((low, j));
        }
        if least > limit {
            return self.fail(clique, self.why_clique(clique));
        }
        let some_above = most > limit;
        if some_above && !self.raise_above(clique, limit, end_min) {
            return false;
        }
        let (mut first, mut second) = ((NONE, NONE), NONE);
        for &(low, j) in &self.scratch {
            let end = low + self.jobs.jobs[j as usize].size;
            if end < first.0 {
                second = first.0;
                first = (end, j);
            } else if end < second {
                second = end;
            }
        }
        self.state.end_first[s] = first;
        self.state.end_second[s] = second;
        !some_above || self.jackson(clique)
    }

    /// Raises all whose bound is above `limit` to `end_min`, the least end of the others.
    fn raise_above(&mut self, clique: u32, limit: Len, end_min: Len) -> bool {
        let all = self.jobs;
        let mut why = None;
        for k in 0..self.scratch.len() {
            let (low, j) = self.scratch[k];
            let i = j as usize;
            if low <= limit || low >= end_min {
                continue;
            }
            let job = &all.jobs[i];
            let why = *why.get_or_insert_with(|| self.why_clique(clique));
            let raised = job.align(end_min);
            if job.fixed != NONE || raised + job.size > self.capacity {
                return self.fail(clique, why);
            }
            self.scratch[k].0 = raised;
            self.state.low[i] = raised;
            self.state.why[i] = why;
            for other in (job.first..job.end).filter(|t| *t != clique) {
                self.enqueue(other);
            }
        }
        true
    }

    /// Jackson's bound over the clique's jobs in `scratch`. They are sorted in place, and the
    /// clique keeps that order: next time they are nearly sorted.
    fn jackson(&mut self, clique: u32) -> bool {
        let list = &mut self.scratch;
        let mut moved = false;
        for k in 1..list.len() {
            let entry = list[k];
            let mut at = k;
            while at > 0 && list[at - 1].0 > entry.0 {
                list[at] = list[at - 1];
                at -= 1;
            }
            moved |= at != k;
            list[at] = entry;
        }
        if moved {
            let members = &mut self.members[clique as usize];
            for (member, entry) in members.iter_mut().zip(list.iter()) {
                *member = entry.1;
            }
        }
        let (mut time, mut busy_since) = (0, 0);
        for (k, &(low, j)) in list.iter().enumerate() {
            if low > time {
                (time, busy_since) = (low, k);
            }
            time += self.jobs.jobs[j as usize].size;
        }
        if time <= self.capacity {
            return true;
        }
        let busy = &self.scratch[busy_since..];
        let one = self.jobs.one(clique);
        let why = busy.iter().fold(one, |set, (_, j)| set | self.state.why[*j as usize]);
        self.fail(clique, why)
    }

    /// Jobs that must rest on an unplaced rival, and twins. Whether a bound was raised; nothing
    /// after a contradiction.
    fn look_between(&mut self) -> Option<bool> {
        let all = self.jobs;
        let mut raised = false;
        for i in 0..all.jobs.len() {
            let job = &all.jobs[i];
            if self.state.placed[i] || job.fixed != NONE {
                continue;
            }
            let twin = job.twin as usize;
            if job.twin != NONE
                && !self.state.placed[twin]
                && self.state.low[i] < self.state.low[twin]
            {
                self.state.low[i] = self.state.low[twin];
                let why = self.state.why[twin] | job.range;
                self.state.why[i] |= why;
                self.enqueue_range(i as u32);
                raised = true;
            }
            let low = self.state.low[i];
            if low <= self.state.base[i] || self.still_rests(i) {
                continue;
            }
            let (end, rest) = (job.first as usize..job.end as usize)
                .map(|s| self.state.end_of_other(s, i as u32))
                .min_by_key(|(end, _)| *end)
                .unwrap_or((NONE, NONE));
            self.rest[i] = rest;
            let lowest = if end == NONE { NONE } else { job.align(end) };
            if lowest == NONE || lowest + job.size > self.capacity {
                let why = all.reason(&self.state, i, lowest) | self.state.why[i];
                self.fail(job.first.midpoint(job.end - 1), why);
                return None;
            }
            if lowest > low {
                let why = all.reason(&self.state, i, lowest);
                self.state.why[i] |= why;
                self.state.low[i] = lowest;
                self.enqueue_range(i as u32);
                raised = true;
            }
        }
        Some(raised)
    }

    /// Whether the rival that job `i` could rest on last time still ends in time.
    fn still_rests(&self, i: usize) -> bool {
        let rest = self.rest[i] as usize;
        let end = |r: usize| self.state.low[r] + self.jobs.jobs[r].size;
        self.rest[i] != NONE && !self.state.placed[rest] && end(rest) <= self.state.low[i]
    }
}
