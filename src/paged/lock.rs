//! A memory's own lock, which a callback of the pool may meet on its way.
//!
//! Owns what it guards. Promises that a thread which holds such a lock waits for none: a callback
//! of the pool runs inside a call that maps pages, and may call the same memory again, or another
//! that a second thread holds, whose callback calls the first. It gets an error instead where the
//! lock is not free. Cost: a mutex, a word, and a count of the thread's.

use super::error::{MemoryError, Result};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

thread_local! {
    /// Its address tells threads apart.
    static HERE: u8 = const { 0 };
    /// Turns that the thread has now, of whatever memories.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

fn this_thread() -> usize {
    // A thread whose variables are gone holds nothing.
    HERE.try_with(|here| std::ptr::from_ref(here).addr()).unwrap_or(1)
}

/// What a memory's calls take turns at.
#[derive(Debug, Default)]
pub(super) struct Turns<T> {
    inner: Mutex<T>,
    /// The thread that holds it; 0: none.
    owner: AtomicUsize,
}

/// Somebody's turn.
#[derive(Debug)]
pub(super) struct Turn<'a, T> {
    guard: MutexGuard<'a, T>,
    owner: &'a AtomicUsize,
}

const INSIDE: MemoryError =
    MemoryError::Again("a callback of the pool calls the memory whose own call it runs in");

const ELSEWHERE: MemoryError = MemoryError::Again(
    "a callback of the pool calls a memory that another thread's call uses: it waits for none",
);

impl<T> Turns<T> {
    pub(super) fn new(value: T) -> Turns<T> {
        Turns { inner: Mutex::new(value), owner: AtomicUsize::new(0) }
    }

    fn turn<'a>(&'a self, guard: MutexGuard<'a, T>) -> Turn<'a, T> {
        self.owner.store(this_thread(), Ordering::Relaxed);
        let _ = HELD.try_with(|held| held.set(held.get() + 1));
        Turn { guard, owner: &self.owner }
    }

    /// Waits for its turn.
    ///
    /// # Errors
    /// [`MemoryError::Again`]: it is this thread's already; or the thread has another's turn, and
    /// this one is not free: who has it may wait for that.
    pub(super) fn lock(&self) -> Result<Turn<'_, T>> {
        // Only this thread writes its own number here, so an old value misleads nobody.
        if self.owner.load(Ordering::Relaxed) == this_thread() {
            return Err(INSIDE);
        }
        if HELD.try_with(Cell::get).unwrap_or(0) > 0 {
            return self.try_lock().ok_or(ELSEWHERE);
        }
        Ok(self.turn(self.inner.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Its turn, if it is nobody's now.
    pub(super) fn try_lock(&self) -> Option<Turn<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(self.turn(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.turn(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        // Before the guard, a field, lets the lock go.
        self.owner.store(0, Ordering::Relaxed);
        let _ = HELD.try_with(|held| held.set(held.get() - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_it_is_told_and_others_come_later() {
        let turns = Turns::new(1);
        let mut held = turns.lock().expect("nobody's");
        assert_eq!(turns.lock().expect_err("this thread's"), INSIDE);
        assert!(turns.try_lock().is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *turns.lock().expect("another's before"));
            std::thread::sleep(std::time::Duration::from_millis(10));
            *held = 2;
            drop(held);
            assert_eq!(waits.join().expect("no panic"), 2);
        });
        assert_eq!(*turns.try_lock().expect("nobody's"), 2);
    }

    #[test]
    fn who_has_a_turn_waits_for_no_other() {
        let (own, other) = (Turns::new(1), Turns::new(2));
        let held = own.lock().expect("nobody's");
        let (taken, is_taken) = std::sync::mpsc::channel();
        let (asked, was_asked) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let turns = &other;
            scope.spawn(move || {
                let turn = turns.lock().expect("nobody's");
                taken.send(()).expect("awaited");
                // Ends by itself: who waits for it all the same is to fail, not to hang.
                let _ = was_asked.recv_timeout(std::time::Duration::from_secs(5));
                drop(turn);
            });
            is_taken.recv().expect("it says so");
            assert_eq!(other.lock().expect_err("another thread's"), ELSEWHERE);
            let _ = asked.send(());
        });
        assert_eq!(*other.lock().expect("nobody's any more"), 2);
        drop(held);
        // Without a turn of its own a thread waits again.
        std::thread::scope(|scope| {
            let turn = other.lock().expect("nobody's");
            let waits = scope.spawn(|| *other.lock().expect("it waits"));
            drop(turn);
            assert_eq!(waits.join().expect("no panic"), 2);
        });
    }
}
