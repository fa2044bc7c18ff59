//! A ring of events between all threads and the one that writes them.
//!
//! Owns a fixed number of slots, each with its turn. Promises the order of [`Ring::reserve`]: what
//! is reserved first is taken first, though it be committed later; and that nobody waits: an event
//! that finds no slot is counted as lost. One thread at a time takes. Cost: two atomic
//! read-modify-writes an event.

use std::sync::atomic::{AtomicU64, Ordering};

/// An allocation or a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Microseconds since the trace began.
    pub at_us: u64,
    /// The number of the function's name.
    pub name: usize,
    pub address: u64,
    /// Bytes that were asked for; 0: a free.
    pub bytes: u64,
    pub stream: u64,
}

struct Slot {
    /// The ticket that may write it; one more: the ticket that has.
    turn: AtomicU64,
    words: [AtomicU64; 5],
}

/// See the module.
pub struct Ring {
    slots: Box<[Slot]>,
    reserved: AtomicU64,
    taken: AtomicU64,
    lost: AtomicU64,
}

/// The name of an event that did not happen after all.
const NOTHING: u64 = u64::MAX;

impl Ring {
    /// A ring of `1 << shift` slots of 48 bytes.
    pub fn new(shift: u32) -> Ring {
        let slot =
            |turn| Slot { turn: AtomicU64::new(turn), words: [const { AtomicU64::new(0) }; 5] };
        Ring {
            slots: (0..1u64 << shift).map(slot).collect(),
            reserved: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    fn slot(&self, ticket: u64) -> Option<&Slot> {
        self.slots.get((ticket & (self.slots.len() as u64 - 1)) as usize)
    }

    /// A place in the order, to be committed; `None`: the ring is full.
    pub fn reserve(&self) -> Option<u64> {
        let mut ticket = self.reserved.load(Ordering::Relaxed);
        loop {
            let turn = self.slot(ticket)?.turn.load(Ordering::Acquire);
            if turn < ticket {
                return None;
            }
            if turn == ticket {
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                match self.reserved.compare_exchange(ticket, ticket + 1, success, failure) {
                    Ok(_) => return Some(ticket),
                    Err(now) => ticket = now,
                }
            } else {
                ticket = self.reserved.load(Ordering::Relaxed);
            }
        }
    }

    /// Fills a reserved place; `None`: with nothing.
    pub fn commit(&self, ticket: u64, event: Option<Event>) {
        let Some(slot) = self.slot(ticket) else { return };
        let words = match event {
            Some(e) => [e.at_us, e.name as u64, e.address, e.bytes, e.stream],
            None => [0, NOTHING, 0, 0, 0],
        };
        for (place, word) in slot.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        slot.turn.store(ticket + 1, Ordering::Release);
    }

    /// The next event, if it is committed. For one thread at a time.
    pub fn take(&self) -> Option<Event> {
        loop {
            let ticket = self.taken.load(Ordering::Relaxed);
            let slot = self.slot(ticket)?;
            if slot.turn.load(Ordering::Acquire) != ticket + 1 {
                return None;
            }
            let [at_us, name, address, bytes, stream] =
                std::array::from_fn(|i| slot.words[i].load(Ordering::Relaxed));
            self.taken.store(ticket + 1, Ordering::Relaxed);
            slot.turn.store(ticket + self.slots.len() as u64, Ordering::Release);
            if name != NOTHING {
                return Some(Event { at_us, name: name as usize, address, bytes, stream });
            }
        }
    }

    /// Counts an event that found the ring full.
    pub fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// How many events were lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
