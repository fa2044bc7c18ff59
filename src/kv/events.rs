//! What became of prefixes: a bounded ring for routers and indexes elsewhere.
//!
//! Promises that events come in order and that what did not fit is counted: the oldest are dropped.
//! Not for sharing between threads.

use super::error::{KvError, Result};
use super::hash::Digest;
use std::collections::VecDeque;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block can be hit from now on.
    Stored {
        /// The group.
        group: u32,
        /// The block.
        block: u32,
        /// What it is known by: in a group with a window what the block that it goes with is.
        digest: Digest,
    },
    /// A block can be hit no more.
    Removed {
        /// The group.
        group: u32,
        /// The block.
        block: u32,
        /// What it was known by.
        digest: Digest,
    },
    /// No block of the group can be hit any more.
    Cleared {
        /// The group.
        group: u32,
    },
}

/// The ring.
#[derive(Debug)]
pub(super) struct Events {
    ring: VecDeque<Event>,
    most: usize,
    dropped: u64,
}

impl Events {
    /// A ring of at most `most` events; 0: none are kept, and none counted as dropped.
    pub(super) fn new(most: usize) -> Result<Events> {
        let mut ring = VecDeque::new();
        ring.try_reserve_exact(most).map_err(|_| KvError::NoMemory)?;
        Ok(Events { ring, most, dropped: 0 })
    }

    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        if self.most == 0 {
            return;
        }
        if self.ring.len() == self.most {
            self.ring.pop_front();
            self.dropped += 1;
        }
        self.ring.push_back(event);
    }

    /// Moves at most `most` events to `out`, oldest first; answers how many were dropped since the
    /// last time.
    pub(super) fn take(&mut self, most: usize, out: &mut Vec<Event>) -> u64 {
        out.extend(self.ring.drain(..most.min(self.ring.len())));
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_dropped_and_counted() {
        let mut events = Events::new(3).expect("memory");
        (0..5).for_each(|group| events.push(Event::Cleared { group }));
        let mut out = Vec::new();
        assert_eq!(events.take(2, &mut out), 2);
        assert_eq!(out, [Event::Cleared { group: 2 }, Event::Cleared { group: 3 }]);
        assert_eq!(events.take(9, &mut out), 0);
        assert_eq!(out[2..], [Event::Cleared { group: 4 }]);
    }
}
