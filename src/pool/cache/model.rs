//! A model of who may touch a thread's cache: the owner inside `enter` and `leave`, another
//! thread after it has closed the hot path and awaited the owner.
//!
//! The words are loom's here. `membarrier` puts a full fence between the owner's store and its
//! load wherever the owner then is; loom knows no such call, so both sides carry the fence.

use crate::base::sync::{SpinLock, relax};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};

const EPOCH: u32 = 1;

struct Cache {
    epoch: AtomicU32,
    busy: AtomicU32,
    /// What only one thread at a time may touch; loom checks that.
    rounds: UnsafeCell<u32>,
    registry: SpinLock<()>,
    barrier: bool,
}

// SAFETY: `rounds` is what the model checks; all else is atomics and a lock.
unsafe impl Sync for Cache {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Cache {}

impl Cache {
    fn new(barrier: bool) -> Arc<Cache> {
        Arc::new(Cache {
            epoch: AtomicU32::new(EPOCH),
            busy: AtomicU32::new(0),
            rounds: UnsafeCell::new(0),
            registry: SpinLock::new(()),
            barrier,
        })
    }

    fn barrier(&self) {
        if self.barrier {
            fence(Ordering::SeqCst);
        }
    }

    fn touch(&self) {
        // SAFETY: the protocol under test lets one thread in; loom fails the model otherwise.
        self.rounds.with_mut(|rounds| unsafe { *rounds += 1 });
    }

    /// The owner's hot operation. False: the hot path is closed.
    fn operate(&self) -> bool {
        self.busy.store(1, Ordering::Relaxed);
        self.barrier();
        let open = self.epoch.load(Ordering::Relaxed) == EPOCH;
        if open {
            self.touch();
        }
        self.busy.store(0, Ordering::Release);
        open
    }

    /// The owner opens its hot path again, as enrolling does.
    fn enrol(&self) {
        let registry = self.registry.lock();
        self.epoch.store(EPOCH, Ordering::Relaxed);
        drop(registry);
    }

    /// Another thread takes the cache.
    fn revoke(&self) {
        let registry = self.registry.lock();
        self.epoch.store(0, Ordering::Relaxed);
        self.barrier();
        let mut turn = 0;
        while self.busy.load(Ordering::Acquire) != 0 {
            turn += 1;
            relax(turn);
        }
        self.touch();
        drop(registry);
    }
}

/// One thread operates twice, enrolling when refused; another revokes once.
fn play(barrier: bool) {
    let cache = Cache::new(barrier);
    let owner = {
        let cache = Arc::clone(&cache);
        loom::thread::spawn(move || {
            let mut done = 0;
            for _ in 0..2 {
                if cache.operate() {
                    done += 1;
                } else {
                    cache.enrol();
                }
            }
            done
        })
    };
    cache.revoke();
    let done: u32 = owner.join().expect("no panic");
    cache.rounds.with(|rounds| {
        // SAFETY: the owner has ended, so this thread is alone.
        assert_eq!(unsafe { *rounds }, done + 1);
    });
}

#[test]
fn loom_owner_and_revoker_exclude_each_other() {
    loom::model(|| play(true));
}

/// Without the barrier the owner's store may come after its load: the model must see it.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_the_barrier_both_get_in() {
    loom::model(|| play(false));
}
