//! Which of a group's blocks there are: numbers below an end that moves.
//!
//! Promises that a block at or above the end is never given out and never hit; that one which
//! somebody still holds, or whose fence has not passed, stays until then (it *drains*); that
//! prefixes among them are given up with all that continues them. Cost: a look at all clean and
//! cached blocks a resize.

use super::super::events::Events;
use super::{Blocks, State};

impl Blocks {
    /// Moves the end. Blocks below it that were closed are clean; those above are closed at once
    /// or drain.
    pub(in super::super) fn resize(&mut self, end: u32, events: &mut Events) {
        debug_assert!(end >= 1 && end as usize <= self.all.len());
        let before = std::mem::replace(&mut self.end, end);
        if end >= before {
            let closed = |id: &u32| self.all[*id as usize].state == State::Closed;
            let opened: Vec<u32> = (before..end).rev().filter(closed).collect();
            for &id in &opened {
                self.all[id as usize].state = State::Clean;
            }
            self.closed -= opened.len() as u32;
            // They are used last: the lower the blocks in use, the sooner the end can fall.
            self.clean.splice(0..0, opened);
            self.top = self.top.max(end);
            return;
        }
        let clean = std::mem::take(&mut self.clean);
        for id in clean {
            if id < end { self.clean.push(id) } else { self.close(id) }
        }
        self.late.extend(self.queue.iter(&self.all).filter(|&id| id >= end));
        self.drain(events);
    }

    /// A block that holds nothing and is above the end is there no more.
    pub(super) fn close(&mut self, id: u32) {
        debug_assert!(id >= self.end);
        self.all[id as usize].state = State::Closed;
        self.closed += 1;
    }

    /// Gives prefixes above the end up that nobody uses any more.
    #[inline]
    pub(in super::super) fn drain(&mut self, events: &mut Events) {
        if !self.late.is_empty() {
            self.drain_late(events);
        }
    }

    #[cold]
    fn drain_late(&mut self, events: &mut Events) {
        for id in std::mem::take(&mut self.late) {
            if id >= self.end && self.all[id as usize].state == State::Cached {
                self.give_up(id, events);
            }
        }
    }

    /// The highest fence that has passed.
    pub(in super::super) fn passed(&self) -> u64 {
        self.passed
    }

    /// The end.
    pub(in super::super) fn end(&self) -> u32 {
        self.end
    }

    /// One past the highest block that is there: what lies from here on nobody uses.
    pub(in super::super) fn needed(&mut self) -> u32 {
        while self.top > self.end && self.all[self.top as usize - 1].state == State::Closed {
            self.top -= 1;
        }
        self.top
    }

    /// Blocks above the end that are there still.
    pub(in super::super) fn draining(&self) -> u32 {
        self.all.len() as u32 - self.end - self.closed
    }

    /// Blocks that are not there.
    pub(in super::super) fn closed(&self) -> u32 {
        self.closed
    }
}
