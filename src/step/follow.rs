//! Where a step is in what was recorded, when it does not go as recorded.
//!
//! An allocation of another size or lane than the next birth's goes to the pool, and the place is
//! found again at one that fits: with `u` allocations that fitted nothing since the last that did,
//! the next fits the birth `u` later (they were of other sizes), or one between (some were extra),
//! or one of the next few (some did not come), in this order. A birth that is passed over, or whose
//! bytes are in use, counts as one that is free when it is due.
//!
//! Owns the books of one step besides the hot state. Promises that a planned address is answered
//! only when what was due is free, or no live buffer has bytes of it, and no lane that used the
//! bytes is unordered. Cost: O(1) for one mismatch and O([`NEAR`]) to look around; O(n) while a
//! buffer is late.

use super::binding::Entry;
use super::gaps::Gap;
use super::runner::{Hot, LIVE, NOT_LIVE};
use super::script::Wait;
use super::totals::Totals;
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::order::stream_name;
use crate::pool::record::Event;

/// How many births are looked at on either side of the expected one.
const NEAR: usize = 32;
/// Bytes that no lane may use: several had them.
pub(super) const ANY_LANE: u16 = u16::MAX;

/// Bytes whose last user is not ordered before other lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taint {
    pub(super) bytes: (u64, u64),
    /// The lane that may use them.
    pub(super) lane: u16,
}

/// The books of an open step.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) entry: usize,
    pub(super) lanes: usize,
    /// Allocations that fitted nothing since the last that did.
    unresolved: usize,
    /// Fences issued, of the list that is gone by.
    pub(super) waits_at: usize,
    /// Fences issued before their place was found.
    ahead_at: usize,
    /// From this ordinal on all recorded fences are issued, needed by the plan or not.
    pub(super) all_from: usize,
    /// Fences that were left out before.
    left_out: u64,
    /// Births whose count of deaths is one less than it was.
    changed: Vec<usize>,
    pub(super) taints: Vec<Taint>,
    pub(super) gaps: Vec<Gap>,
    /// Offsets of live buffers that other lanes use than were recorded.
    used: Vec<u64>,
    /// What happens, where the step is to be planned anew.
    pub(super) log: Option<Vec<Event>>,
    /// The program's own fences since the last birth that do not stand for recorded ones, as the
    /// log has them.
    told: Vec<(u16, u16)>,
    /// Whether there are fences in the log that the program has not asked for.
    pub(super) reissued: bool,
    pub(super) tally: Totals,
}

/// Who serves an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Served {
    /// The plan, at this address, which was recorded as a multiple of that.
    Plan(usize, usize),
    /// The pool, at a multiple of this; 0: as it likes.
    Pool(usize),
}

/// Whether two ranges have bytes in common.
pub(super) fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl Run {
    pub(super) fn new(entry: usize, lanes: usize, learns: bool) -> Run {
        Run {
            entry,
            lanes,
            unresolved: 0,
            waits_at: 0,
            ahead_at: 0,
            all_from: if learns { 0 } else { usize::MAX },
            left_out: 0,
            changed: Vec::new(),
            taints: Vec::new(),
            gaps: Vec::new(),
            used: Vec::new(),
            log: learns.then(Vec::new),
            told: Vec::new(),
            reissued: false,
            tally: Totals::default(),
        }
    }

    /// Brings the hot state up to date with the books: lists, and from where on it is not enough.
    pub(super) fn refresh(&self, hot: &mut Hot, entry: &mut Entry) {
        let wait = self.waits(entry).get(self.waits_at).map(|w| w.before);
        let due = self.gaps.iter().map(|gap| gap.due).min();
        let all = entry.script.len();
        let slow = self.unresolved > 0 || !self.taints.is_empty() || self.log.is_some();
        hot.until = if slow { 0 } else { all.min(wait.unwrap_or(all)).min(due.unwrap_or(all)) };
        let watched = self.log.is_some() || !self.used.is_empty();
        hot.free_end = if watched { 0 } else { entry.script.frees.len() };
        hot.births = entry.script.births.as_mut_ptr();
        hot.frees = entry.script.frees.as_ptr();
        hot.states = entry.states.as_mut_ptr();
    }

    /// Puts the counts of deaths back to what was recorded.
    pub(super) fn undo(&mut self, entry: &mut Entry) {
        for at in self.changed.drain(..) {
            entry.script.births[at].deaths += 1;
        }
    }

    /// Births that did not come by the step's end.
    pub(super) fn left_over(&self, hot: &Hot, entry: &Entry) -> u64 {
        (entry.script.len() - hot.cursor).saturating_sub(self.unresolved) as u64
    }

    /// Serves an allocation on a lane.
    ///
    /// # Errors
    /// None: where a recorded fence cannot be issued again the pool serves.
    pub(super) fn serve(
        &mut self,
        (hot, entry, pool): (&mut Hot, &mut Entry, &Pool),
        bytes: u64,
        lane: u16,
    ) -> Served {
        let Some(at) = self.place(hot, entry, bytes, lane) else {
            self.unresolved += 1;
            self.tally.fallbacks += 1;
            self.issue_all(hot, entry);
            self.issue_ahead(hot, entry, pool);
            self.refresh(hot, entry);
            return Served::Pool(0);
        };
        self.advance(hot, entry, at);
        let ordered = self.issue(hot, entry, pool);
        let align = entry.script.aligns[at] as usize;
        let served = if !entry.script.planned(at) {
            self.tally.by_pool += 1;
            Served::Pool(align)
        } else if !ordered || self.blocked(hot, entry, at, lane) {
            self.pass_over(entry, at);
            self.tally.fallbacks += 1;
            self.issue_all(hot, entry);
            Served::Pool(align)
        } else {
            entry.states[at] = LIVE;
            hot.live += 1;
            hot.served += 1;
            Served::Plan(hot.base + entry.script.births[at].offset as usize, align)
        };
        self.refresh(hot, entry);
        served
    }

    /// The birth that an allocation is.
    fn place(&self, hot: &Hot, entry: &Entry, bytes: u64, lane: u16) -> Option<usize> {
        let script = &entry.script;
        let fits = |&at: &usize| {
            at < script.len() && script.sizes[at] == bytes && script.births[at].lane == lane
        };
        let expected = hot.cursor + self.unresolved;
        let before = hot.cursor.max(expected.saturating_sub(NEAR));
        let found = (before..=expected).rev().find(fits);
        match found {
            None if self.unresolved > 0 => (expected + 1..=expected + NEAR).find(fits),
            found => found,
        }
    }

    /// Comes to birth `at`; those between are passed over.
    fn advance(&mut self, hot: &mut Hot, entry: &mut Entry, at: usize) {
        let skipped = at - hot.cursor;
        // As many were of other sizes as were asked for; the rest did not come.
        self.tally.missing += skipped.saturating_sub(self.unresolved) as u64;
        self.unresolved = 0;
        for ordinal in hot.cursor..=at {
            hot.owed += entry.script.births[ordinal].deaths as isize;
            if ordinal == at || !entry.script.planned(ordinal) {
                continue;
            }
            match entry.script.free(ordinal).due as usize {
                due if due <= at => hot.owed -= 1,
                due => self.expect_less(entry, due),
            }
        }
        hot.cursor = at + 1;
    }

    fn expect_less(&mut self, entry: &mut Entry, due: usize) {
        entry.script.births[due].deaths -= 1;
        self.changed.push(due);
    }

    /// The pool serves birth `at`, where the step is now.
    fn pass_over(&mut self, entry: &mut Entry, at: usize) {
        let due = entry.script.free(at).due as usize;
        debug_assert!(due > at, "a buffer is born before it is due");
        self.expect_less(entry, due);
    }

    /// The fences that are issued.
    pub(super) fn waits<'a>(&self, entry: &'a Entry) -> &'a [Wait] {
        let all = self.all_from < usize::MAX;
        if all { &entry.script.fences } else { &entry.script.waits }
    }

    /// From here on all recorded fences are issued: which ones the plan needs says nothing of
    /// memory that is not planned.
    pub(super) fn issue_all(&mut self, hot: &Hot, entry: &Entry) {
        if self.all_from < usize::MAX {
            return;
        }
        // One that could not be issued is due yet.
        let due = self.waits(entry).get(self.waits_at).map_or(hot.cursor, |w| w.before);
        self.all_from = hot.cursor;
        let past = entry.script.fences.partition_point(|w| w.before < due.min(hot.cursor));
        self.left_out = past.saturating_sub(self.waits_at) as u64;
        self.waits_at = past;
    }

    /// How many fences the step has left out.
    pub(super) fn left_out(&self, entry: &Entry) -> u64 {
        if self.all_from < usize::MAX { self.left_out } else { entry.script.left_out }
    }

    /// Issues the recorded fences up to here. False: one could not be, and is tried again.
    fn issue(&mut self, hot: &Hot, entry: &Entry, pool: &Pool) -> bool {
        let (next, all) = self.issue_from((hot, entry, pool), self.waits_at, hot.cursor);
        self.waits_at = next;
        all
    }

    /// Issues those up to where the step would be if all that fitted nothing were of other sizes.
    /// They are issued again at their places, should these be found.
    fn issue_ahead(&mut self, hot: &Hot, entry: &Entry, pool: &Pool) {
        let (at, past) = (self.ahead_at.max(self.waits_at), hot.cursor + self.unresolved);
        self.ahead_at = self.issue_from((hot, entry, pool), at, past).0;
    }

    /// Issues fences from a place in their list up to birth `past`: the next place, and whether all
    /// could be.
    fn issue_from(
        &mut self,
        (hot, entry, pool): (&Hot, &Entry, &Pool),
        mut at: usize,
        past: usize,
    ) -> (usize, bool) {
        while let Some(&wait) = self.waits(entry).get(at).filter(|wait| wait.before < past) {
            let (from, to) = (hot.streams[wait.from as usize], hot.streams[wait.to as usize]);
            if let Err(error) = pool.fence(from, to) {
                tracing::warn!(%error, "a recorded fence could not be issued; the pool serves");
                return (at, false);
            }
            at += 1;
            self.tally.fences += 1;
            self.note(wait, (from, to));
        }
        self.told.clear();
        (at, true)
    }

    /// Writes an issued fence down; one that the program has asked for since the last birth is
    /// there already, at its place.
    fn note(&mut self, wait: Wait, (from, to): (u64, u64)) {
        let Some(log) = &mut self.log else { return };
        match self.told.iter().position(|lanes| *lanes == (wait.from, wait.to)) {
            Some(at) => drop(self.told.swap_remove(at)),
            None => {
                log.push(Event::Fence { from: stream_name(from), to: stream_name(to) });
                self.reissued = true;
            }
        }
    }

    /// Whether birth `at` cannot have its bytes on this lane.
    fn blocked(&self, hot: &Hot, entry: &Entry, at: usize, lane: u16) -> bool {
        let bytes = entry.script.bytes(at);
        let tainted = |t: &Taint| t.lane != lane && overlap(t.bytes, bytes);
        if self.taints.iter().any(tainted) || self.gaps.iter().any(|g| overlap(g.bytes, bytes)) {
            return true;
        }
        // All that was due is free: the plan says that the bytes are.
        hot.owed != 0
            && (0..at).any(|other| {
                entry.states[other] == LIVE && overlap(entry.script.bytes(other), bytes)
            })
    }

    /// Ends the live planned buffer at an offset. False: there is none.
    pub(super) fn end(
        &mut self,
        (hot, entry): (&mut Hot, &mut Entry),
        offset: u64,
        lane: u16,
    ) -> bool {
        let live = |&&i: &&u32| entry.states[i as usize] == LIVE;
        let Some(ordinal) = entry.script.at(offset).iter().find(live).map(|&i| i as usize) else {
            return false;
        };
        let free = *entry.script.free(ordinal);
        entry.states[ordinal] = NOT_LIVE;
        hot.live -= 1;
        let due = free.due as usize;
        if due <= hot.cursor {
            hot.owed -= 1;
        } else {
            self.expect_less(entry, due);
        }
        let used = self.end_use(offset);
        let late = due < hot.cursor || lane != free.lane;
        self.tally.late += u64::from(late);
        if self.lanes > 1 && (late || used) {
            // The lane of the recorded end may use it yet: what it does is noted by nobody.
            let other = lane != free.lane;
            let others = free.shared || free.untold || used || other;
            let lane = if others { ANY_LANE } else { lane };
            self.taints.push(Taint { bytes: entry.script.bytes(ordinal), lane });
        }
        hot.free_at = entry.script.free_of[ordinal] as usize + 1;
        self.refresh(hot, entry);
        true
    }

    /// Notes that a lane uses the live buffer at an offset. False: there is none.
    pub(super) fn use_by(
        &mut self,
        (hot, entry): (&mut Hot, &mut Entry),
        offset: u64,
        lane: u16,
    ) -> bool {
        let script = &entry.script;
        let live = |&&i: &&u32| entry.states[i as usize] == LIVE;
        if let Some(&ordinal) = script.at(offset).iter().find(live) {
            let home = script.free(ordinal as usize).lane;
            if home != lane && script.uses.binary_search(&(ordinal, lane)).is_err() {
                self.used.push(offset);
            }
        } else if self.gaps.iter().any(|gap| gap.bytes.0 == offset) {
            self.used.push(offset);
        } else {
            return false;
        }
        self.refresh(hot, entry);
        true
    }

    /// Whether lanes used the buffer that ends at an offset which were not recorded.
    pub(super) fn end_use(&mut self, offset: u64) -> bool {
        let before = self.used.len();
        self.used.retain(|used| *used != offset);
        self.used.len() < before
    }

    /// Issues a fence that the program asks for, which may be the next recorded one.
    pub(super) fn fence(
        &mut self,
        (hot, entry, pool): (&mut Hot, &mut Entry, &Pool),
        (from, to): (u16, u16),
    ) -> Result<()> {
        pool.fence(hot.streams[from as usize], hot.streams[to as usize])?;
        // It is that one only behind all that was due by then: a later free's work is not in it.
        // Other lanes' work on what lives on may come between this and the recorded one.
        let all_free = hot.owed + entry.script.births[hot.cursor].deaths as isize == 0;
        if let Some(wait) = self.waits(entry).get(self.waits_at)
            && all_free
            && entry.script.orders_deaths
            && (wait.from, wait.to, wait.before) == (from, to, hot.cursor)
        {
            self.waits_at += 1;
            self.tally.fences += 1;
        } else if self.log.is_some() {
            self.told.push((from, to));
        }
        self.refresh(hot, entry);
        Ok(())
    }
}
