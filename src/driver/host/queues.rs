//! The queues behind the host device's streams: who may run next, and what has passed.
//!
//! Owns one first-in-first-out queue a stream. Every operation gets a ticket from one
//! counter, so a mark is a ticket: it has passed when no older operation is left in the
//! stream (or in any stream). An operation stays at its queue's head while it runs.
//! Promises one stream's order and nothing across streams. It must not run operations, lock
//! or wait; `streams` does. Cost: O(1) to queue, O(streams with work) to choose.

use std::collections::VecDeque;

use super::events::Mark;
use super::sys;

/// One piece of queued work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Copies bytes between addresses.
    Copy { to: usize, from: usize, bytes: usize },
    /// Fills a range with one value.
    Fill { to: usize, value: u8, bytes: usize },
    /// Takes this long.
    Delay { ns: u64 },
    /// May not start before the mark has passed.
    Wait(Mark),
    /// Calls a function of the program with these words.
    Call { call: fn([usize; 4]), words: [usize; 4] },
}

impl Op {
    /// Does the work.
    ///
    /// # Safety
    /// The ranges are accessible until this returns, as the contract of
    /// [`crate::driver`] demands of whoever queued them.
    pub(super) unsafe fn run(self) {
        match self {
            // SAFETY: the caller vouches for both ranges.
            Op::Copy { to, from, bytes } => unsafe { sys::copy_bytes(to, from, bytes) },
            // SAFETY: the caller vouches for the range.
            Op::Fill { to, value, bytes } => unsafe { sys::fill_bytes(to, value, bytes) },
            Op::Delay { ns: 0 } | Op::Wait(_) => {}
            Op::Call { call, words } => call(words),
            Op::Delay { ns } => std::thread::sleep(std::time::Duration::from_nanos(ns)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Live,
    /// Destroyed, with work left.
    Closing,
}

struct Slot {
    state: State,
    ops: VecDeque<(u64, Op)>,
    running: bool,
    held: bool,
}

/// All streams' queues. Slot 0 is the default stream and always live.
pub(super) struct Queues {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots with operations left, in no order.
    active: Vec<u32>,
    last_ticket: u64,
    waits: usize,
    turn: usize,
}

impl Queues {
    pub(super) fn new() -> Queues {
        let mut queues = Queues {
            slots: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            last_ticket: 0,
            waits: 0,
            turn: 0,
        };
        let first = queues.create();
        debug_assert_eq!(first, 0, "the default stream");
        queues
    }

    /// A new stream's slot; the one freed last comes first.
    pub(super) fn create(&mut self) -> u32 {
        let fresh = Slot { state: State::Live, ops: VecDeque::new(), running: false, held: false };
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = fresh;
            return slot;
        }
        self.slots.push(fresh);
        (self.slots.len() - 1) as u32
    }

    pub(super) fn is_live(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|s| s.state == State::Live)
    }

    /// Streams created and not yet gone, the default stream apart.
    pub(super) fn streams(&self) -> usize {
        self.slots.len() - self.free.len() - 1
    }

    /// Streams with work left.
    pub(super) fn active(&self) -> usize {
        self.active.len()
    }

    /// Whether any queued operation waits for a mark.
    pub(super) fn has_waits(&self) -> bool {
        self.waits > 0
    }

    /// Marks a live stream as destroyed; its slot is free once its work is done.
    pub(super) fn close(&mut self, slot: u32) {
        debug_assert!(self.is_live(slot) && slot != 0, "only created streams are closed");
        let stream = &mut self.slots[slot as usize];
        stream.state = State::Closing;
        stream.held = false;
        self.free_if_done(slot);
    }

    fn free_if_done(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        if stream.state == State::Closing && stream.ops.is_empty() {
            stream.state = State::Free;
            self.free.push(slot);
        }
    }

    /// Stops a live stream from starting operations, or lets it go on.
    pub(super) fn set_held(&mut self, slot: u32, held: bool) {
        debug_assert!(self.is_live(slot), "only live streams are held");
        self.slots[slot as usize].held = held;
    }

    /// Queues an operation on a live stream. True when the stream had none before.
    pub(super) fn push(&mut self, slot: u32, op: Op) -> bool {
        debug_assert!(self.is_live(slot), "only live streams take work");
        self.last_ticket += 1;
        self.waits += usize::from(matches!(op, Op::Wait(_)));
        let stream = &mut self.slots[slot as usize];
        let first = stream.ops.is_empty();
        stream.ops.push_back((self.last_ticket, op));
        if first {
            self.active.push(slot);
        }
        first
    }

    /// The mark of all work queued so far on a stream, or on all of them.
    pub(super) fn mark(&self, slot: u32) -> Mark {
        let mark = Mark { slot, ticket: self.last_ticket };
        if self.passed(mark) { Mark::PASSED } else { mark }
    }

    fn oldest(&self, slot: u32) -> Option<u64> {
        let stream = self.slots.get(slot as usize)?;
        stream.ops.front().map(|(ticket, _)| *ticket)
    }

    /// Whether all work before the mark is done.
    pub(super) fn passed(&self, mark: Mark) -> bool {
        let before = |slot: u32| self.oldest(slot).is_some_and(|ticket| ticket <= mark.ticket);
        if mark.slot == Mark::ALL {
            !self.active.iter().any(|&slot| before(slot))
        } else {
            !before(mark.slot)
        }
    }

    fn runnable(&self, slot: u32) -> bool {
        let stream = &self.slots[slot as usize];
        if stream.held || stream.running {
            return false;
        }
        match stream.ops.front() {
            Some((_, Op::Wait(mark))) => self.passed(*mark),
            Some(_) => true,
            None => false,
        }
    }

    /// The next stream to serve, each in turn.
    pub(super) fn next_in_turn(&mut self) -> Option<u32> {
        let count = self.active.len();
        let mut order = (0..count).map(|i| (self.turn + i) % count);
        let found = order.find(|&i| self.runnable(self.active[i]))?;
        self.turn = found + 1;
        Some(self.active[found])
    }

    /// A stream that may run, chosen by `seed` alone.
    pub(super) fn next_by_seed(&self, seed: u64) -> Option<u32> {
        let mut ready: Vec<u32> =
            self.active.iter().copied().filter(|&slot| self.runnable(slot)).collect();
        ready.sort_unstable();
        let count = ready.len() as u64;
        let place = mix(seed).checked_rem(count)?;
        ready.get(place as usize).copied()
    }

    /// The stream that may run and whose next operation was queued first.
    pub(super) fn next_by_age(&self) -> Option<u32> {
        let ready = self.active.iter().copied().filter(|&slot| self.runnable(slot));
        ready.min_by_key(|&slot| self.oldest(slot))
    }

    /// A stream that must run for the mark to pass. `None` when the one in the way is held
    /// or running, or the mark has passed. Each step goes to an older mark, so this ends.
    pub(super) fn next_towards(&self, mut mark: Mark) -> Option<u32> {
        while !self.passed(mark) {
            let slot = match mark.slot {
                Mark::ALL => self.active.iter().copied().min_by_key(|&slot| self.oldest(slot))?,
                slot => slot,
            };
            let stream = &self.slots[slot as usize];
            if stream.held || stream.running {
                return None;
            }
            match stream.ops.front()? {
                (_, Op::Wait(earlier)) if !self.passed(*earlier) => {
                    debug_assert!(earlier.ticket <= mark.ticket, "waits look back only");
                    mark = *earlier;
                }
                _ => return Some(slot),
            }
        }
        None
    }

    /// Starts the head operation of a runnable stream.
    pub(super) fn start(&mut self, slot: u32) -> Op {
        debug_assert!(self.runnable(slot), "chosen among the runnable");
        let stream = &mut self.slots[slot as usize];
        stream.running = true;
        stream.ops.front().map_or(Op::Delay { ns: 0 }, |(_, op)| *op)
    }

    /// Ends the operation that [`Queues::start`] started.
    pub(super) fn finish(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        debug_assert!(stream.running, "started before");
        stream.running = false;
        let done = stream.ops.pop_front();
        self.waits -= usize::from(matches!(done, Some((_, Op::Wait(_)))));
        if self.slots[slot as usize].ops.is_empty() {
            self.active.retain(|&other| other != slot);
            self.free_if_done(slot);
        }
    }
}

/// Spreads a seed over all bits, so that neighbouring seeds choose independently.
fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
