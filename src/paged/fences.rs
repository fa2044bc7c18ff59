//! Fences as numbers: events of streams, and a counter of the caller's, in one order.
//!
//! Owns the events of fences that have not passed. Promises that numbers grow by one; that a
//! number has passed only when its own events or counter and those of all numbers before have;
//! that a fence which could not be made has no number. A stream that is late therefore holds back
//! the numbers made after it: that costs memory for a while, never safety. Never waits. Cost: an
//! event a stream and fence.

use super::error::{MemoryError, Result};
use crate::kv::{Fence, NO_FENCE};
use crate::pool::Pool;
use crate::pool::events::Event;
use std::collections::VecDeque;

/// What a number waits for.
#[derive(Debug)]
enum Wait {
    Events(Vec<Event>),
    /// The caller's counter reaches this.
    Counter(u64),
}

/// Fences that have not passed.
#[derive(Debug, Default)]
pub(super) struct Fences {
    waiting: VecDeque<(Fence, Wait)>,
    last: Fence,
    passed: Fence,
    counter: u64,
}

/// Streams of one fence; more are refused.
const STREAMS_MAX: usize = 64;

impl Fences {
    /// Numbers above `passed`.
    pub(super) fn above(passed: Fence) -> Fences {
        Fences { last: passed, passed, ..Fences::default() }
    }

    /// A number that passes when all work queued so far on these streams has ended.
    pub(super) fn behind(&mut self, pool: &Pool, streams: &[u64]) -> Result<Fence> {
        if streams.is_empty() || streams.len() > STREAMS_MAX {
            return Err(MemoryError::Invalid("a fence is behind 1 to 64 streams"));
        }
        let events = streams.iter().map(|&stream| pool.event(stream));
        let events = events.collect::<std::result::Result<Vec<Event>, _>>()?;
        Ok(self.push(Wait::Events(events)))
    }

    /// A number that passes when the caller's counter reaches `value`.
    pub(super) fn at_counter(&mut self, value: u64) -> Fence {
        self.push(Wait::Counter(value))
    }

    fn push(&mut self, wait: Wait) -> Fence {
        self.last += 1;
        self.waiting.push_back((self.last, wait));
        self.last
    }

    /// The caller's counter is at `value`; it never goes back.
    pub(super) fn reach(&mut self, value: u64) {
        self.counter = self.counter.max(value);
    }

    /// Looks which numbers have passed. Answers the highest, and an error where an event could not
    /// be asked: those before it have been looked at.
    pub(super) fn poll(&mut self) -> (Fence, Result<()>) {
        while let Some((fence, wait)) = self.waiting.front_mut() {
            match wait {
                Wait::Counter(value) if *value <= self.counter => {}
                Wait::Counter(_) => break,
                Wait::Events(events) => {
                    while let Some(event) = events.last() {
                        match event.passed() {
                            Ok(true) => drop(events.pop()),
                            Ok(false) => return (self.passed, Ok(())),
                            Err(error) => return (self.passed, Err(error.into())),
                        }
                    }
                }
            }
            self.passed = *fence;
            self.waiting.pop_front();
        }
        (self.passed, Ok(()))
    }

    /// The highest number that was given out.
    pub(super) fn last(&self) -> Fence {
        self.last
    }

    /// Whether a number has passed, as of the last look.
    pub(super) fn has_passed(&self, fence: Fence) -> bool {
        fence == NO_FENCE || fence <= self.passed
    }

    /// Whether a number was given out; [`NO_FENCE`] always is.
    pub(super) fn is_known(&self, fence: Fence) -> bool {
        fence <= self.last
    }
}
