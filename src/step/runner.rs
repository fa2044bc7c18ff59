//! Runners: where a step's hot state lies, found by its handle.
//!
//! A step's handle is a place in a table and the step's own number, which no other step ever has:
//! a stale one is told. Runners are never unmapped; one whose binding ends serves another.
//!
//! Promises: [`Hot`] is touched by the step's owner alone while a step is open, and by whoever
//! holds the binding's lock while none is. A call is the owner's when the runner carries its
//! handle and the calling thread's serial, which are set under that lock before the handle is
//! known. Cost: three loads.

use crate::error::{Error, Result, Status};
use crate::plan::recording::LANES_MAX;
use crate::pool::Shared;
use crate::step::binding::Binding;
use crate::step::script::{Birth, Free};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bits of a handle that name the runner.
const PLACE_BITS: u32 = 16;
const RUNNERS_MAX: usize = 1 << PLACE_BITS;

/// A buffer's state within a step.
pub(super) const NOT_LIVE: u8 = 0;
/// It has its planned address now.
pub(super) const LIVE: u8 = 1;

/// What the hot path reads and writes.
#[derive(Debug)]
pub(super) struct Hot {
    /// The plan block's first address.
    pub(super) base: usize,
    pub(super) births: *mut Birth,
    /// The next birth's ordinal.
    pub(super) cursor: usize,
    /// From this ordinal on births take the slow path.
    pub(super) until: usize,
    /// Planned buffers that are due and not free, less those freed that are due at `cursor`.
    pub(super) owed: isize,
    pub(super) frees: *const Free,
    /// The free that is expected next.
    pub(super) free_at: usize,
    pub(super) free_end: usize,
    pub(super) states: *mut u8,
    /// Planned buffers that are live.
    pub(super) live: usize,
    /// Allocations that the plan has served.
    pub(super) served: u64,
    pub(super) streams: [u64; LANES_MAX],
}

impl Hot {
    pub(super) const fn new() -> Hot {
        Hot {
            base: 0,
            births: std::ptr::null_mut(),
            cursor: 0,
            until: 0,
            owed: 0,
            frees: std::ptr::null(),
            free_at: 0,
            free_end: 0,
            states: std::ptr::null_mut(),
            live: 0,
            served: 0,
            streams: [u64::MAX; LANES_MAX],
        }
    }
}

/// One place for a step.
#[derive(Debug)]
pub(super) struct Runner {
    /// The open step's handle; 0: none.
    pub(super) handle: AtomicU64,
    /// The serial of the thread whose step it is; 0: none.
    pub(super) owner: AtomicU32,
    /// The pool's place and number.
    pub(super) shared: AtomicPtr<Shared>,
    pub(super) pool: AtomicU64,
    pub(super) hot: UnsafeCell<Hot>,
    /// The open step's binding.
    pub(super) binding: Mutex<Option<Arc<Binding>>>,
    place: usize,
    steps: AtomicU64,
}

// SAFETY: `hot` is reached by one thread at a time, by the room's rule above; its pointers lead
// into lists that the binding keeps while a step is open. All else is atomic or locked.
unsafe impl Sync for Runner {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Runner {}

static RUNNERS: [AtomicPtr<Runner>; RUNNERS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; RUNNERS_MAX];
static SPARE: Mutex<(usize, Vec<&'static Runner>)> = Mutex::new((0, Vec::new()));

/// A runner for a binding.
///
/// # Errors
/// [`Status::Busy`] when 65,536 bindings exist.
pub(super) fn take() -> Result<&'static Runner> {
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runner) = spare.1.pop() {
        return Ok(runner);
    }
    let place = spare.0;
    if place >= RUNNERS_MAX {
        return Err(Error::new(Status::Busy, "65,536 bindings exist at once; end some"));
    }
    spare.0 += 1;
    let runner: &'static Runner = Box::leak(Box::new(Runner {
        handle: AtomicU64::new(0),
        owner: AtomicU32::new(0),
        shared: AtomicPtr::new(std::ptr::null_mut()),
        pool: AtomicU64::new(0),
        hot: UnsafeCell::new(Hot::new()),
        binding: Mutex::new(None),
        place,
        steps: AtomicU64::new(0),
    }));
    RUNNERS[place].store(std::ptr::from_ref(runner).cast_mut(), Ordering::Release);
    Ok(runner)
}

/// Takes a runner back whose binding is gone.
pub(super) fn give(runner: &'static Runner) {
    debug_assert_eq!(runner.handle.load(Ordering::Relaxed), 0);
    SPARE.lock().unwrap_or_else(PoisonError::into_inner).1.push(runner);
}

/// The runner that a handle names, whether its step is open or not.
#[inline(always)]
pub(super) fn find(handle: u64) -> *const Runner {
    RUNNERS[handle as usize & (RUNNERS_MAX - 1)].load(Ordering::Acquire)
}

impl Runner {
    /// A handle that no step had before.
    pub(super) fn next_handle(&self) -> u64 {
        let step = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        step << PLACE_BITS | self.place as u64
    }

    /// Whether the thread with this serial has a step with this handle open.
    #[inline(always)]
    pub(super) fn is_owners(&self, handle: u64, thread: u32) -> bool {
        self.handle.load(Ordering::Acquire) == handle
            && self.owner.load(Ordering::Relaxed) == thread
    }

    /// Whether the pool that the step began in is still there, and its context.
    #[inline(always)]
    pub(super) fn pool_lives(&self) -> bool {
        // SAFETY: set when a step begins, to a pool's place, which is never unmapped.
        match unsafe { self.shared.load(Ordering::Relaxed).as_ref() } {
            Some(shared) => {
                shared.id.load(Ordering::Relaxed) == self.pool.load(Ordering::Relaxed)
                    && !shared.lost.load(Ordering::Relaxed)
            }
            None => false,
        }
    }

    /// The binding of the open step.
    pub(super) fn binding(&self) -> Option<Arc<Binding>> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
