//! Locks and atomics. Under loom the lock is made of loom's parts, so that models of what
//! it guards are checked over every interleaving; the atomics of statics and of zeroed tables
//! stay `std`'s, since loom's can be neither. Under shuttle the lock's word is shuttle's: every
//! taking of the lock is a point where its scheduler chooses.
//!
//! Owns [`SpinLock`], the lock of a pool's core: taken by one exchange, given back by one
//! store. A test-and-set lock costs about 15 ns a pair less than `std::sync::Mutex`, whose
//! unlock is an exchange too. Waiters spin briefly, then yield, then sleep: a holder may be in
//! a driver call of some hundred microseconds. Not fair, not reentrant, not poisoned: a panic
//! inside a critical section is caught at the ABI and the guard's drop unlocks.

pub use std::sync::atomic;

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::atomic::AtomicBool};
#[cfg(shuttle)]
use shuttle::sync::atomic::AtomicBool;
#[cfg(not(loom))]
use std::cell::UnsafeCell;
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::AtomicBool;

use atomic::Ordering;
use std::marker::PhantomData;
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
    /// Loom's record of the access; ends before the lock is given back.
    #[cfg(loom)]
    value: Option<loom::cell::MutPtr<T>>,
    /// A guard may go where `&mut T` may: shared between threads only if `T` may be.
    marker: PhantomData<&'a mut T>,
}

impl<T> SpinLock<T> {
    /// An open lock around `value`.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// An open lock around `value`.
    #[cfg(any(loom, shuttle))]
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting as long as it needs.
    #[inline(always)]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if !self.win() {
            self.wait();
        }
        self.guard()
    }

    /// Takes the lock if it is open.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        if self.win() { Some(self.guard()) } else { None }
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn win(&self) -> bool {
        !self.taken.swap(true, Ordering::Acquire)
    }

    /// As above, but a loser writes nothing: loom does not know that an exchange comes right
    /// after the write it read, and would let a loser's come after the holder's release.
    #[cfg(loom)]
    fn win(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The guard of the one who just won `taken`.
    #[inline(always)]
    fn guard(&self) -> SpinGuard<'_, T> {
        SpinGuard {
            lock: self,
            #[cfg(loom)]
            value: Some(self.value.get_mut()),
            marker: PhantomData,
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut turns = 0u32;
        loop {
            if !self.taken.load(Ordering::Relaxed) && self.win() {
                return;
            }
            turns = turns.saturating_add(1);
            relax(turns);
        }
    }
}

/// One turn of waiting: spin at first, then yield, then sleep 20 us at a time.
#[cfg(not(any(loom, shuttle)))]
pub fn relax(turn: u32) {
    match turn {
        0..=100 => std::hint::spin_loop(),
        101..=200 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(20)),
    }
}

/// One turn of waiting: lets shuttle run another thread.
#[cfg(shuttle)]
pub fn relax(_turn: u32) {
    shuttle::thread::yield_now();
}

/// One turn of waiting: lets loom run another thread.
#[cfg(loom)]
pub fn relax(_turn: u32) {
    loom::thread::yield_now();
}

impl<T> SpinGuard<'_, T> {
    #[cfg(not(loom))]
    #[inline(always)]
    fn pointer(&self) -> *mut T {
        self.lock.value.get()
    }

    #[cfg(loom)]
    fn pointer(&self) -> *mut T {
        self.value.as_ref().map_or(std::ptr::null_mut(), |value| value.with(|p| p))
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard exists, so `taken` was won by it and no other guard lives.
        unsafe { &*self.pointer() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference.
        unsafe { &mut *self.pointer() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(loom)]
        drop(self.value.take());
        self.lock.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
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

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn loom_lock_excludes_and_publishes() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(0u32));
            let other = {
                let lock = Arc::clone(&lock);
                loom::thread::spawn(move || *lock.lock() += 1)
            };
            *lock.lock() += 1;
            other.join().expect("no panic");
            assert_eq!(*lock.lock(), 2);
        });
    }

    #[test]
    fn loom_try_lock_wins_alone() {
        loom::model(|| {
            let lock = Arc::new(SpinLock::new(0u32));
            let other = {
                let lock = Arc::clone(&lock);
                loom::thread::spawn(move || lock.try_lock().map(|mut value| *value += 1).is_some())
            };
            let mine = lock.try_lock().map(|mut value| *value += 1).is_some();
            let theirs = other.join().expect("no panic");
            assert!(mine || theirs, "an open lock is won by someone");
            assert_eq!(*lock.lock(), u32::from(mine) + u32::from(theirs));
        });
    }
}
