//! Which of the prefixes that nobody uses is given up first.
//!
//! Owns up to [`LISTS`] lists of blocks, oldest first, linked through the blocks themselves.
//! Promises that a block is in at most one list, and that [`Queue::oldest`] is what the policy
//! gives up next. It knows nothing of prefixes: that leaves go first is its user's duty.
//! Never calls anything of others. Cost: a few stores a call.

use super::blocks::{Block, NONE};

/// Lists of a queue: as many as there are priorities.
pub(super) const LISTS: usize = 8;

/// In what order prefixes that nobody uses are given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The one whose last use is longest ago.
    #[default]
    Lru,
    /// The lowest priority first, within one the longest unused. A block's priority is the highest
    /// of the sequences that used it.
    PriorityLru,
    /// Segmented LRU: blocks that were never hit first; those that were are protected, as long as
    /// they are at most four fifths of the group's blocks.
    SegmentedLru,
}

/// The highest priority, [`LISTS`] less one.
pub const PRIORITY_MAX: u8 = LISTS as u8 - 1;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    len: u32,
}

/// The lists.
#[derive(Debug)]
pub(super) struct Queue {
    policy: Policy,
    lists: [List; LISTS],
    len: u32,
}

impl Queue {
    pub(super) fn new(policy: Policy) -> Queue {
        Queue { policy, lists: [List { first: NONE, last: NONE, len: 0 }; LISTS], len: 0 }
    }

    /// Blocks in all lists.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Puts a block in as the newest of its list.
    pub(super) fn push(&mut self, blocks: &mut [Block], id: u32) {
        let block = &blocks[id as usize];
        let list = match self.policy {
            Policy::Lru => 0,
            Policy::PriorityLru => block.priority,
            Policy::SegmentedLru => u8::from(block.hit),
        };
        self.link(blocks, id, list);
        if self.policy == Policy::SegmentedLru {
            while 5 * u64::from(self.lists[1].len) > 4 * blocks.len() as u64 {
                let oldest = self.lists[1].first;
                self.unlink(blocks, oldest);
                blocks[oldest as usize].hit = false;
                self.link(blocks, oldest, 0);
            }
        }
    }

    fn link(&mut self, blocks: &mut [Block], id: u32, list: u8) {
        let into = &mut self.lists[list as usize];
        let block = &mut blocks[id as usize];
        (block.list, block.prev, block.next) = (list, into.last, NONE);
        if into.last == NONE {
            into.first = id;
        } else {
            blocks[into.last as usize].next = id;
        }
        into.last = id;
        into.len += 1;
        self.len += 1;
    }

    /// Takes a block out of the list that it is in.
    pub(super) fn unlink(&mut self, blocks: &mut [Block], id: u32) {
        let (list, prev, next) = {
            let block = &blocks[id as usize];
            (&mut self.lists[block.list as usize], block.prev, block.next)
        };
        if prev == NONE {
            list.first = next;
        } else {
            blocks[prev as usize].next = next;
        }
        if next == NONE {
            list.last = prev;
        } else {
            blocks[next as usize].prev = prev;
        }
        list.len -= 1;
        self.len -= 1;
    }

    /// What is to be given up next.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.lists.iter().map(|list| list.first).find(|&first| first != NONE)
    }

    /// All blocks, in the order in which they would be given up.
    pub(super) fn iter<'a>(&'a self, blocks: &'a [Block]) -> impl Iterator<Item = u32> + 'a {
        self.lists.iter().flat_map(move |list| {
            let real = |id: u32| (id != NONE).then_some(id);
            std::iter::successors(real(list.first), move |&id| real(blocks[id as usize].next))
        })
    }
}
