//! What a thread knows: the pool that serves it now, and its counters.
//!
//! Owns one thread-local without a destructor, so that calls at thread exit find it as it was.
//! Promises that a look costs no call of the driver. Cost: one access to the thread's block.

use crate::count::Counters;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Moves on whenever what threads know may be wrong: a context is destroyed or reset. Never 0.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The pool that serves a thread's current context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    /// None: the driver serves.
    Driver,
    /// The pool with this handle; 0 is the default pool.
    Pool(usize),
}

/// A thread's own block.
pub struct Thread {
    generation: Cell<u64>,
    serves: Cell<Serves>,
    /// The generation in which the runtime was last seen to work in this thread's context.
    runtime: Cell<u64>,
    inside: Cell<bool>,
    /// The thread's counters; null until its first slow path.
    pub counters: Cell<*const Counters>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            generation: Cell::new(0),
            serves: Cell::new(Serves::Driver),
            runtime: Cell::new(0),
            inside: Cell::new(false),
            counters: Cell::new(std::ptr::null()),
        }
    };
}

/// This thread's block.
#[inline(always)]
pub fn with<R>(f: impl FnOnce(&Thread) -> R) -> R {
    // No destructor is registered for it, so access does not fail at thread exit.
    THREAD.with(f)
}

impl Thread {
    /// What serves this thread, if that is known.
    #[inline(always)]
    pub fn serves(&self) -> Option<Serves> {
        (self.generation.get() == GENERATION.load(Ordering::Acquire)).then(|| self.serves.get())
    }

    /// The pool for a call of the runtime, if the runtime has worked in this very context: it has
    /// nothing left to do for this thread then.
    #[inline(always)]
    pub fn serves_runtime(&self) -> Option<usize> {
        if self.runtime.get() != GENERATION.load(Ordering::Acquire) || self.is_inside() {
            return None;
        }
        match self.serves.get() {
            Serves::Pool(pool) => Some(pool),
            Serves::Driver => None,
        }
    }

    /// The runtime has worked in this thread's context. Notes that if a pool serves it.
    pub fn runtime_worked(&self) {
        let generation = self.generation.get();
        if !self.is_inside() && matches!(self.serves(), Some(Serves::Pool(_))) {
            self.runtime.set(generation);
        }
    }

    /// Keeps what was found while `generation` held.
    pub fn keep(&self, generation: u64, serves: Serves) {
        self.serves.set(serves);
        self.generation.set(generation);
    }

    /// Whether this thread is in the pool or in the driver on our account: its calls are the
    /// driver's own then.
    #[inline(always)]
    pub fn is_inside(&self) -> bool {
        self.inside.get()
    }

    /// Runs `f` as a call of the pool or the driver on our account.
    #[inline(always)]
    pub fn inside<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.inside.replace(true);
        let result = f();
        self.inside.set(before);
        result
    }
}

/// The thread's current context has changed, or may have.
pub fn forget() {
    with(|thread| {
        thread.generation.set(0);
        thread.runtime.set(0);
    });
}

/// A context has gone or is about to: every thread looks anew.
pub fn forget_all() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// The generation now.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}
