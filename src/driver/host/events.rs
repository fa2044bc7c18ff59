//! The host device's events: marks that can be read without a lock.
//!
//! Owns the event cells and a table that grows without moving its elements. Promises
//! that a cell's address is stable for the driver's life, so record and query need no
//! lock while no work is queued. It must not decide whether a mark has passed; `streams` does.
//! Cost: a lookup is one shift, two loads and a bounds check.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Length of a table's first chunk; each further chunk is twice as long as the last.
const FIRST: usize = 64;
/// Chunks of a table: room for 67 million elements.
const CHUNKS: usize = 20;

/// A growing table whose elements never move and are read without a lock.
pub(super) struct Table<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

impl<T: Default> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// Chunk and place in it. Chunk k starts at index `FIRST * (2^k - 1)`.
    fn place(index: usize) -> Option<(usize, usize)> {
        let shifted = index.checked_add(FIRST)?;
        let chunk = (shifted / FIRST).ilog2() as usize;
        (chunk < CHUNKS).then(|| (chunk, shifted - (FIRST << chunk)))
    }

    /// The element, if the table has grown so far.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        let (chunk, place) = Self::place(index)?;
        self.chunks[chunk].get()?.get(place)
    }

    /// The element, after growing the table to hold it. `None` past the table's limit.
    pub(super) fn grow_to(&self, index: usize) -> Option<&T> {
        let (chunk, place) = Self::place(index)?;
        let fresh = || (0..FIRST << chunk).map(|_| T::default()).collect();
        self.chunks[chunk].get_or_init(fresh).get(place)
    }
}

/// A point in the device's queues: all work with a ticket up to this one, of one stream
/// or of all. Ticket 0 has always passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    /// The stream's slot, or [`Mark::ALL`].
    pub(super) slot: u32,
    /// The last ticket that counts.
    pub(super) ticket: u64,
}

impl Mark {
    /// In place of a slot: every stream.
    pub(super) const ALL: u32 = u32::MAX;
    /// A mark with no work before it.
    pub(super) const PASSED: Mark = Mark { slot: 0, ticket: 0 };
}

/// One event. The two halves of its mark change together under the queue lock, except
/// that anyone may set the ticket to 0 once the mark has passed.
#[derive(Default)]
pub(super) struct Cell {
    live: AtomicBool,
    slot: AtomicU32,
    ticket: AtomicU64,
}

impl Cell {
    /// Whether the mark is known to have passed. False may be out of date.
    #[inline]
    pub(super) fn is_passed(&self) -> bool {
        self.ticket.load(Ordering::Acquire) == 0
    }

    /// The mark has passed: the release makes what its work did visible to whoever
    /// sees it.
    #[inline]
    pub(super) fn set_passed(&self) {
        self.ticket.store(0, Ordering::Release);
    }

    /// Moves the mark. Under the queue lock only.
    pub(super) fn set(&self, mark: Mark) {
        self.slot.store(mark.slot, Ordering::Relaxed);
        self.ticket.store(mark.ticket, Ordering::Release);
    }

    /// The present mark. Under the queue lock only.
    pub(super) fn mark(&self) -> Mark {
        let ticket = self.ticket.load(Ordering::Acquire);
        Mark { slot: self.slot.load(Ordering::Relaxed), ticket }
    }
}

#[derive(Default)]
struct Index {
    free: Vec<u32>,
    made: u32,
    live: usize,
}

/// All events of a device. Handle n is cell n - 1, so that 0 names none.
pub(super) struct Events {
    cells: Table<Cell>,
    index: Mutex<Index>,
}

impl Events {
    pub(super) fn new() -> Events {
        Events { cells: Table::new(), index: Mutex::new(Index::default()) }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new event, passed. `None` when no more fit.
    pub(super) fn create(&self) -> Option<u64> {
        let mut index = self.index();
        let number = match index.free.pop() {
            Some(number) => number,
            None => {
                self.cells.grow_to(index.made as usize)?;
                index.made += 1;
                index.made - 1
            }
        };
        let cell = self.cells.get(number as usize)?;
        cell.set_passed();
        cell.live.store(true, Ordering::Release);
        index.live += 1;
        Some(u64::from(number) + 1)
    }

    /// Whether the handle named an event; it does no longer.
    pub(super) fn destroy(&self, handle: u64) -> bool {
        let mut index = self.index();
        let Some(cell) = self.get(handle) else {
            return false;
        };
        cell.live.store(false, Ordering::Release);
        index.live -= 1;
        // The handle named a cell, and those are numbered with 32 bits.
        index.free.push((handle - 1) as u32);
        true
    }

    /// The live event of this handle.
    #[inline]
    pub(super) fn get(&self, handle: u64) -> Option<&Cell> {
        let number = usize::try_from(handle.checked_sub(1)?).ok()?;
        self.cells.get(number).filter(|cell| cell.live.load(Ordering::Acquire))
    }

    /// How many events exist.
    pub(super) fn live(&self) -> usize {
        self.index().live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_elements_have_distinct_stable_places() {
        let table: Table<AtomicU32> = Table::new();
        assert!(table.get(0).is_none());
        for i in 0..1000u32 {
            let cell = table.grow_to(i as usize).expect("within the limit");
            assert_eq!(cell.swap(i + 1, Ordering::Relaxed), 0, "element {i} is fresh");
        }
        for i in 0..1000u32 {
            assert_eq!(table.get(i as usize).map(|c| c.load(Ordering::Relaxed)), Some(i + 1));
        }
        assert!(table.get(FIRST * ((1 << CHUNKS) - 1)).is_none());
        assert!(table.get(usize::MAX).is_none());
    }

    #[test]
    fn handles_are_checked_and_come_back() {
        let events = Events::new();
        assert!(events.get(0).is_none());
        assert!(events.get(1).is_none());
        let first = events.create().expect("room");
        assert!(events.get(first).is_some_and(Cell::is_passed));
        assert!(events.destroy(first));
        assert!(!events.destroy(first));
        assert!(events.get(first).is_none());
        assert_eq!(events.create(), Some(first));
        assert_eq!(events.live(), 1);
    }
}
