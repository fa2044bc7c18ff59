//! The caches in front of a pool: one a thread, and one a thread and lane inside it.
//!
//! Owns their layout and the right to touch them:
//!
//! - the **owner thread** touches its caches inside [`enter`] (the hot path), or with the pool's
//!   core locked (slow paths);
//! - **another thread** touches them only after [`close_hot_path`] (the cache's epoch is made
//!   stale), [`barrier`] and [`await_owner`] (an operation under way has ended). From then until
//!   the owner enrols again, which needs the registry's lock, the hot path stays closed.
//!
//! Cache memory is `MADV_WIPEONFORK`: in a forked child it reads as zeros, so the epoch can never
//! match and every operation falls to the slow path, which says so.
//!
//! Cost: entering and leaving are two plain stores and one compare.

mod capacity;

pub use capacity::{capacity_max, capacity_min};

use super::Shared;
use crate::base::sync::SpinLock;
use crate::base::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence};
use crate::base::{sync, tls};
use crate::slab::Round;
use crate::slab::class::{CLASSES, slot_bytes};
use crate::slab::depot::{Budget, Depot, Full, ROUNDS_MAX, Rounds};
use crate::stream::LaneId;
use std::collections::VecDeque;

/// Bumped when every cache of the process becomes invalid (shutdown). Starts at 1: a zeroed
/// cache never matches.
pub static EPOCH: AtomicU32 = AtomicU32::new(1);

/// Entries of a thread's direct-mapped table of lanes.
pub const TABLE: usize = 16;

/// One entry of the table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    /// Lane key; 0 with a null lane when empty.
    pub key: u64,
    /// The cache.
    pub lane: *mut LaneCache,
}

/// A thread's cache. The first line is all that a hot operation needs of it.
#[repr(C, align(64))]
pub struct ThreadCache {
    /// Equal to [`EPOCH`] while the hot path is open.
    pub epoch: AtomicU32,
    /// 1 while the owner is inside an operation.
    pub busy: AtomicU32,
    /// The tag that new blocks carry, 1 to 127.
    pub tag: u32,
    /// The thread's own number, which no other had before; 0 before its first operation. Caches
    /// are used again by other threads.
    pub serial: u32,
    /// The lane used last.
    pub last: Entry,
    /// The lane of `forebay_malloc` and `forebay_free`.
    pub sync: *mut LaneCache,
    /// Lanes by key.
    pub table: [Entry; TABLE],
    /// All lane caches of this thread. Changed under the registry's lock only.
    pub lanes: *mut Vec<*mut LaneCache>,
}

const _: () = assert!(size_of::<ThreadCache>() <= tls::FIRST_BYTES);

/// A magazine of one class, with the class's counters beside it.
#[repr(C)]
#[derive(Debug)]
pub struct Magazine {
    /// Array of [`ROUNDS_MAX`] rounds; null until first used.
    pub rounds: *mut Round,
    /// Rounds in it.
    pub len: u32,
    /// Rounds it may hold now.
    pub cap: u32,
    /// Slots handed out.
    pub allocs: AtomicU64,
    /// Slots taken back.
    pub frees: AtomicU64,
}

/// The magazine behind the current one: full or empty.
#[repr(C)]
#[derive(Debug)]
pub struct Previous {
    /// As in [`Magazine`].
    pub rounds: *mut Round,
    /// Rounds in it.
    pub len: u32,
    /// Misses of the class since its capacity was last taken away.
    pub misses: u32,
}

/// Slots freed with `cudaFree`'s meaning that wait for a fence, oldest first.
#[derive(Default)]
pub struct Waiting {
    /// The rounds of all closed batches.
    pub rounds: VecDeque<Round>,
    /// Closed batches: how many rounds, behind which sequence of the sync lane.
    pub batches: VecDeque<(u32, u64)>,
    /// Bytes in closed batches.
    pub bytes: u64,
    /// Cost of closing one batch, moving average, ns.
    pub cost_ns: f64,
    /// Batches closed.
    pub turns: u32,
}

/// A depot holds at most this much of a class.
const DEPOT_CLASS_BYTES: u64 = 8 << 20;

/// Rounds that go back to their slabs in one passage: few, so that no single free pays for many.
pub const SOME: usize = 16;

/// Rounds that go to the magazines in one passage, for the same reason: the fence of a batch
/// makes all of it free at once.
pub const READY_SOME: u32 = 32;

/// The most rounds in an open batch of frees.
pub const BATCH_MAX: usize = 4096;

/// The least, but for a batch of many bytes: a short fence is not all that closing a batch costs.
pub const BATCH_MIN: u32 = 128;

/// Slots freed with `cudaFree`'s meaning since the last fence. The classes are kept so that
/// nobody looks the descriptors up a second time.
#[repr(C)]
#[derive(Debug)]
pub struct OpenBatch {
    /// The slots, as many as [`LaneCache::open`] says.
    pub rounds: [Round; BATCH_MAX],
    /// Their classes.
    pub classes: [u8; BATCH_MAX],
}

/// The cache of one thread for one lane.
#[repr(C, align(64))]
pub struct LaneCache {
    /// First address of the pool's first reservation.
    pub base: usize,
    /// Its length.
    pub len: usize,
    /// Descriptor words by quantum.
    pub descriptors: *const AtomicU32,
    /// Live marks.
    pub marks: *const AtomicU8,
    /// The lane's number.
    pub id: u32,
    /// Rounds in the open batch of frees (sync lane).
    pub open: u32,
    /// At this many rounds a free leaves the hot path: the batch is closed, or passed slots wait
    /// to be put into the magazines.
    pub open_max: u32,
    /// Frees since the waiting batches were last looked at.
    pub since_look: u32,
    /// Bytes in the open batch.
    pub open_bytes: AtomicU64,
    /// The open batch is closed at this many bytes.
    pub open_bytes_max: u64,
    /// The open batch (sync lane), else null.
    pub batch: *mut OpenBatch,
    /// Requested bytes handed out so far.
    pub requested: AtomicU64,
    /// Whether this is a capture's lane: it keeps no slots of others' slabs, so that its frees
    /// take the slow path.
    pub captive: bool,
    /// The lane's key.
    pub key: u64,
    /// Its pool.
    pub pool: &'static Shared,
    /// The thread whose cache this is; null when nobody's.
    pub owner: *mut ThreadCache,
    /// By class.
    pub mags: [Magazine; CLASSES],
    /// By class.
    pub prev: [Previous; CLASSES],
    /// The open batch is closed at this many rounds.
    pub open_due: u32,
    /// Rounds of the last passed batch that are on their way to the magazines: from the first to
    /// before the second.
    pub ready: (u32, u32),
    /// That batch (sync lane), else null.
    pub ready_batch: *mut OpenBatch,
    /// Closed batches; null until the sync lane's first.
    pub waiting: *mut Waiting,
    /// The lane's depot, shared by all threads' caches of the lane.
    pub depot: *const SpinLock<Depot>,
    /// What all caches of the pool may hold.
    pub budget: *const Budget,
    /// Bytes of magazine capacity granted to this cache, out of the budget.
    pub granted: u64,
}

/// This thread's cache; the shared block of zeros before the thread's first operation.
#[inline(always)]
pub fn current() -> *mut ThreadCache {
    tls::get().cast()
}

/// Whether `cache` is the block of zeros.
pub fn is_first(cache: *mut ThreadCache) -> bool {
    cache.cast::<u8>() == tls::first()
}

/// Opens a hot operation on the owner's cache: true when the caches may be touched until
/// [`leave`]. False: already left; take the slow path.
///
/// # Safety
/// `cache` came from [`current`] on this thread.
#[inline(always)]
pub unsafe fn enter(cache: *mut ThreadCache) -> bool {
    // SAFETY: the block of zeros and thread caches are never unmapped, and both words are
    // atomics.
    unsafe {
        (*cache).busy.store(1, Ordering::Relaxed);
        // The store must be issued before the load: `membarrier` in [`barrier`] supplies
        // the hardware half of this fence.
        compiler_fence(Ordering::SeqCst);
        if (*cache).epoch.load(Ordering::Relaxed) == EPOCH.load(Ordering::Relaxed) {
            return true;
        }
        (*cache).busy.store(0, Ordering::Release);
    }
    false
}

/// Ends a hot operation.
///
/// # Safety
/// [`enter`] answered true on this thread and this is the first `leave` since.
#[inline(always)]
pub unsafe fn leave(cache: *mut ThreadCache) {
    // SAFETY: as in `enter`.
    unsafe { (*cache).busy.store(0, Ordering::Release) };
}

/// Closes the hot path of another thread's cache, or of one's own. Afterwards the caller,
/// holding the registry's lock, may touch the thread's lane caches of any pool whose core it
/// has locked.
///
/// # Safety
/// The caller holds the registry's lock, and `cache` is in the registry's list of threads.
pub unsafe fn close_hot_path(cache: *mut ThreadCache) {
    // SAFETY: a registered cache is mapped; the word is an atomic.
    unsafe { (*cache).epoch.store(0, Ordering::Relaxed) };
}

/// Awaits the end of an operation that was under way when the hot path was closed; call
/// after [`barrier`].
///
/// # Safety
/// As [`close_hot_path`].
pub unsafe fn await_owner(cache: *mut ThreadCache) {
    let mut turn = 0;
    // SAFETY: a registered cache is mapped; the word is an atomic.
    while unsafe { (*cache).busy.load(Ordering::Acquire) } != 0 {
        turn += 1;
        sync::relax(turn);
    }
}

/// Makes every running thread of the process pass a full fence. False: the kernel has no
/// `membarrier`; other threads' caches cannot be revoked then.
pub fn barrier() -> bool {
    const PRIVATE_EXPEDITED: i32 = 8;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 16;
    // SAFETY: the call takes plain numbers and touches no memory of ours.
    let call = |command: i32| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if call(PRIVATE_EXPEDITED) == 0 {
        return true;
    }
    call(REGISTER_PRIVATE_EXPEDITED) == 0 && call(PRIVATE_EXPEDITED) == 0
}

/// What a lane cache copies from its pool.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// See [`LaneCache::base`].
    pub base: usize,
    /// See [`LaneCache::len`].
    pub len: usize,
    /// See [`LaneCache::descriptors`].
    pub descriptors: *const AtomicU32,
    /// See [`LaneCache::marks`].
    pub marks: *const AtomicU8,
    /// See [`LaneCache::id`].
    pub lane: LaneId,
    /// See [`LaneCache::captive`].
    pub captive: bool,
    /// See [`LaneCache::depot`].
    pub depot: *const SpinLock<Depot>,
    /// See [`LaneCache::budget`].
    pub budget: *const Budget,
}

// SAFETY: the pointers name tables of atomics that live as long as the pool.
unsafe impl Send for View {}

fn new_rounds() -> *mut Round {
    Box::into_raw(Box::new([Round(0); ROUNDS_MAX])).cast()
}

/// # Safety
/// `rounds` is null or came from [`new_rounds`].
pub(super) unsafe fn drop_rounds(rounds: *mut Round) {
    if !rounds.is_null() {
        // SAFETY: made by `new_rounds` from a box of this very type.
        drop(unsafe { Box::from_raw(rounds.cast::<[Round; ROUNDS_MAX]>()) });
    }
}

impl LaneCache {
    /// Bytes that wait for a fence. The pool's core is locked.
    pub fn waiting_bytes(&self) -> u64 {
        self.open_bytes.load(Ordering::Relaxed) + self.waiting_ref().map_or(0, |w| w.bytes)
    }

    /// Adds a freed slot to the open batch, which has room.
    pub fn push_open(&mut self, class: usize, round: Round) {
        let bytes = slot_bytes(class) as u64;
        let open = self.open as usize;
        // SAFETY: null or made by `open_batch`; owned by this cache.
        let batch = unsafe { self.batch.as_mut() }.expect("the caller saw the open batch");
        batch.rounds[open] = round;
        batch.classes[open] = class as u8;
        self.open += 1;
        self.since_look += 1;
        let open_bytes = self.open_bytes.load(Ordering::Relaxed) + bytes;
        self.open_bytes.store(open_bytes, Ordering::Relaxed);
    }

    fn waiting_ref(&self) -> Option<&Waiting> {
        // SAFETY: null or made by `waiting`; lives as long as the cache.
        unsafe { self.waiting.as_ref() }
    }

    /// The closed batches.
    pub fn waiting(&mut self) -> &mut Waiting {
        if self.waiting.is_null() {
            let first = Waiting { cost_ns: 500.0, ..Waiting::default() };
            self.waiting = Box::into_raw(Box::new(first));
        }
        // SAFETY: just made or made earlier by this function; owned by this cache.
        unsafe { &mut *self.waiting }
    }

    /// Makes the arrays of the open batch and of the one that has passed.
    pub fn open_batch(&mut self) {
        let batch = || OpenBatch { rounds: [Round(0); BATCH_MAX], classes: [0; BATCH_MAX] };
        for array in [&mut self.batch, &mut self.ready_batch] {
            if array.is_null() {
                *array = Box::into_raw(Box::new(batch()));
            }
        }
    }

    /// The open batch has passed: it becomes the ready one, of which nothing is left.
    pub fn ready_open(&mut self) {
        debug_assert_eq!(self.ready.0, self.ready.1);
        std::mem::swap(&mut self.batch, &mut self.ready_batch);
        self.ready = (0, self.open);
        self.open = 0;
        self.open_bytes.store(0, Ordering::Relaxed);
    }

    /// Takes the next slot of the ready batch, and its class.
    #[inline]
    pub fn next_ready(&mut self) -> Option<(Round, usize)> {
        let (at, end) = self.ready;
        if at == end {
            return None;
        }
        // SAFETY: made by `open_batch` before any round was open; owned by this cache.
        let batch = unsafe { self.ready_batch.as_ref()? };
        self.ready.0 += 1;
        Some((batch.rounds[at as usize], usize::from(batch.classes[at as usize])))
    }

    /// Sets where frees leave the hot path next.
    pub fn set_open_max(&mut self) {
        let some = if self.ready.0 == self.ready.1 { u32::MAX } else { self.open + READY_SOME };
        self.open_max = self.open_due.min(some);
    }

    /// The next free leaves the hot path: the slow one decides when frees may stay on it again.
    pub fn close_open(&mut self) {
        self.open_max = 0;
    }

    /// The open batch's slots.
    #[inline]
    fn batched(&self) -> &[Round] {
        // SAFETY: null or made by `open_batch`; lives as long as the cache.
        match unsafe { self.batch.as_ref() } {
            Some(batch) => &batch.rounds[..self.open as usize],
            None => &[],
        }
    }

    /// Closes the open batch: it waits for the sync lane's sequence `seq`.
    pub fn close_batch(&mut self, seq: u64) {
        let bytes = self.open_bytes.swap(0, Ordering::Relaxed);
        let rounds = self.batched().to_vec();
        self.open = 0;
        let waiting = self.waiting();
        waiting.batches.push_back((rounds.len() as u32, seq));
        waiting.bytes += bytes;
        waiting.rounds.extend(rounds);
    }

    /// Sets a class's capacity, making its array at first use.
    pub fn set_cap(&mut self, class: usize, cap: u32) {
        debug_assert!(cap as usize <= ROUNDS_MAX);
        let mag = &mut self.mags[class];
        if mag.rounds.is_null() && cap > 0 {
            mag.rounds = new_rounds();
        }
        mag.cap = cap;
    }

    /// The rounds in the current magazine.
    pub fn rounds(&self, class: usize) -> &[Round] {
        let mag = &self.mags[class];
        if mag.len == 0 {
            return &[];
        }
        // SAFETY: the array exists when `len > 0`, and its first `len` rounds are set.
        unsafe { std::slice::from_raw_parts(mag.rounds, mag.len as usize) }
    }

    /// Puts a round into the current magazine, which has room.
    #[inline]
    pub fn push(&mut self, class: usize, round: Round) {
        let mag = &mut self.mags[class];
        debug_assert!(mag.len < mag.cap && !mag.rounds.is_null());
        // SAFETY: `len < cap <= ROUNDS_MAX`, inside the array.
        unsafe { *mag.rounds.add(mag.len as usize) = round };
        mag.len += 1;
    }

    /// Takes a round out of the current magazine.
    #[inline]
    pub fn pop(&mut self, class: usize) -> Option<Round> {
        let mag = &mut self.mags[class];
        mag.len = mag.len.checked_sub(1)?;
        // SAFETY: the round below the old `len` is set.
        Some(unsafe { *mag.rounds.add(mag.len as usize) })
    }

    /// What all caches of the pool may hold.
    pub fn budget(&self) -> &Budget {
        // SAFETY: the core keeps the budget alive until its last cache is removed.
        unsafe { &*self.budget }
    }

    /// The lane's depot.
    pub fn depot(&self) -> &SpinLock<Depot> {
        // SAFETY: the core keeps the depot alive until the lane's last cache is removed.
        unsafe { &*self.depot }
    }

    /// Fills the current, empty magazine from the depot. Takes the depot's lock only.
    #[cold]
    #[inline(never)]
    pub fn refill(&mut self, class: usize) -> bool {
        if self.mags[class].cap == 0 {
            return false;
        }
        debug_assert_eq!(self.mags[class].len, 0);
        // SAFETY: as in `depot`.
        let mut depot = unsafe { &*self.depot }.lock();
        let Some(full) = depot.pop(class) else { return false };
        self.budget().give(full.rounds().len() as u64 * slot_bytes(class) as u64);
        if let Some(old) = self.install(class, full) {
            depot.keep(old);
        }
        true
    }

    /// Makes room in the current, full magazine: the full one behind it goes to the depot.
    /// Takes the depot's lock only. False: the depot is full, or the capacity may still grow.
    #[cold]
    #[inline(never)]
    pub fn spill(&mut self, class: usize) -> bool {
        if self.mags[class].cap < capacity_max(class) {
            return false;
        }
        let bytes = u64::from(self.prev[class].len) * slot_bytes(class) as u64;
        // SAFETY: as in `depot`.
        let mut depot = unsafe { &*self.depot }.lock();
        if depot.class_bytes(class) + bytes > DEPOT_CLASS_BYTES || !self.budget().take(bytes) {
            return false;
        }
        let empty = depot.empty();
        if let Some(full) = self.eject(class, empty) {
            depot.push(class, full);
        }
        drop(depot);
        self.swap(class);
        true
    }

    /// [`LaneCache::swap`] where the magazine behind has memory: no call.
    ///
    /// # Safety
    /// `class` is below [`CLASSES`].
    #[inline(always)]
    pub unsafe fn exchange(&mut self, class: usize) {
        // SAFETY: as promised.
        let mag = unsafe { self.mags.get_unchecked_mut(class) };
        // SAFETY: as promised.
        let prev = unsafe { self.prev.get_unchecked_mut(class) };
        std::mem::swap(&mut mag.rounds, &mut prev.rounds);
        std::mem::swap(&mut mag.len, &mut prev.len);
    }

    /// Makes a full magazine the current one, which is empty. Answers the old memory.
    pub fn install(&mut self, class: usize, full: Full) -> Option<Rounds> {
        let (rounds, len) = full.into_parts();
        let mag = &mut self.mags[class];
        debug_assert_eq!(mag.len, 0);
        let old = std::mem::replace(&mut mag.rounds, Box::into_raw(rounds).cast());
        mag.len = len;
        // SAFETY: null, or made by `Box::into_raw` from memory of this type.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old.cast()) })
    }

    /// Takes the magazine behind the current one away, leaving `empty` in its place.
    pub fn eject(&mut self, class: usize, empty: Rounds) -> Option<Full> {
        let prev = &mut self.prev[class];
        let len = std::mem::replace(&mut prev.len, 0);
        let old = std::mem::replace(&mut prev.rounds, Box::into_raw(empty).cast());
        // SAFETY: null, or made by `Box::into_raw` from memory of this type.
        (!old.is_null()).then(|| Full::new(unsafe { Box::from_raw(old.cast()) }, len))
    }

    /// Exchanges the current magazine with the one behind it.
    #[inline]
    pub fn swap(&mut self, class: usize) {
        let (mag, prev) = (&mut self.mags[class], &mut self.prev[class]);
        if prev.rounds.is_null() {
            prev.rounds = new_rounds();
        }
        std::mem::swap(&mut mag.rounds, &mut prev.rounds);
        std::mem::swap(&mut mag.len, &mut prev.len);
    }

    /// Takes all rounds of the magazine behind the current one.
    pub fn take_prev(&mut self, class: usize) -> Vec<Round> {
        let prev = &mut self.prev[class];
        if prev.len == 0 {
            return Vec::new();
        }
        // SAFETY: as in `rounds`.
        let rounds = unsafe { std::slice::from_raw_parts(prev.rounds, prev.len as usize) };
        let rounds = rounds.to_vec();
        prev.len = 0;
        rounds
    }

    /// Takes up to `most` rounds of the magazine behind the current one.
    pub fn take_behind(&mut self, class: usize, most: usize) -> ([Round; SOME], usize) {
        let prev = &mut self.prev[class];
        let count = most.min(SOME).min(prev.len as usize);
        let mut taken = [Round(0); SOME];
        for round in &mut taken[..count] {
            prev.len -= 1;
            // SAFETY: the round below the old `len` is set.
            *round = unsafe { *prev.rounds.add(prev.len as usize) };
        }
        (taken, count)
    }

    /// Takes all rounds of both magazines.
    pub fn take_all(&mut self, class: usize) -> Vec<Round> {
        let mut rounds = self.rounds(class).to_vec();
        self.mags[class].len = 0;
        rounds.append(&mut self.take_prev(class));
        rounds
    }
}

#[cfg(all(test, loom))]
mod model;
