//! The host device's streams: late, ordered execution on a few worker threads.
//!
//! Owns the queues, the workers and the count of unfinished operations. Promises that no
//! operation runs inside the call that queues it, that one stream's operations run in
//! their order, and that a mark passes only when all work before it is done. It must not
//! touch the tables of `memory`. Cost: with nothing queued, record and query are a few atomic
//! loads; else one lock.
//!
//! With [`HostOptions::deferred`](super::HostOptions::deferred) there are no workers:
//! work runs only in [`Streams::step`], [`Streams::run_all`] and in whoever synchronizes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::events::{Cell, Mark, Table};
use super::queues::{Op, Queues};
use super::sys;
use crate::driver::{Call, Code, DriverError, DriverResult, Scope, StreamHandle};

/// More workers than this add no order that fewer cannot show.
const WORKERS_MAX: usize = 4;

/// Handles are multiples of this: 1 and 2 name special streams in CUDA's runtime.
const HANDLE_STEP: u64 = 16;

/// The stream half of the host driver.
pub(super) struct Streams {
    shared: Arc<Shared>,
    /// Which slots are live streams, for checks without a lock. Written under the lock.
    live: Table<AtomicBool>,
    deferred: bool,
    process: u32,
}

struct Shared {
    state: Mutex<State>,
    /// Work may be runnable.
    work: Condvar,
    /// An operation has finished.
    done: Condvar,
    /// Operations queued and not finished. Falls (with release) after each one's effects.
    outstanding: AtomicUsize,
}

struct State {
    queues: Queues,
    workers: Vec<JoinHandle<()>>,
    idle_workers: usize,
    waiters: usize,
    stop: bool,
}

fn handle_of(slot: u32) -> StreamHandle {
    StreamHandle(u64::from(slot) * HANDLE_STEP)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0
    }

    /// Runs the head operation of `slot`, with the lock released meanwhile.
    fn run<'a>(&'a self, mut state: MutexGuard<'a, State>, slot: u32) -> MutexGuard<'a, State> {
        let op = state.queues.start(slot);
        drop(state);
        // SAFETY: whoever queued the operation keeps its ranges accessible until it is done,
        // by the contract of `crate::driver`; the queue's order and lock order it against the
        // operations and the host code before and after it.
        unsafe { op.run() };
        let mut state = self.lock();
        state.queues.finish(slot);
        self.outstanding.fetch_sub(1, Ordering::Release);
        if state.waiters > 0 {
            self.done.notify_all();
        }
        if state.idle_workers > 0 && state.queues.has_waits() {
            self.work.notify_all();
        }
        state
    }

    fn worker(&self) {
        sys::block_signals();
        let mut state = self.lock();
        while !state.stop {
            match state.queues.next_in_turn() {
                Some(slot) => state = self.run(state, slot),
                None => {
                    state.idle_workers += 1;
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.idle_workers -= 1;
                }
            }
        }
    }
}

impl Streams {
    pub(super) fn new(deferred: bool) -> Streams {
        let state = State {
            queues: Queues::new(),
            workers: Vec::new(),
            idle_workers: 0,
            waiters: 0,
            stop: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
            outstanding: AtomicUsize::new(0),
        };
        let live: Table<AtomicBool> = Table::new();
        if let Some(flag) = live.grow_to(0) {
            flag.store(true, Ordering::Release);
        }
        Streams { shared: Arc::new(shared), live, deferred, process: std::process::id() }
    }

    /// The slot of a live stream. No lock.
    #[inline]
    fn slot(&self, call: Call, stream: StreamHandle) -> DriverResult<u32> {
        let slot = stream.0 / HANDLE_STEP;
        let flag = usize::try_from(slot).ok().and_then(|slot| self.live.get(slot));
        let live = flag.is_some_and(|flag| flag.load(Ordering::Acquire));
        match u32::try_from(slot) {
            Ok(slot) if live && stream.0.is_multiple_of(HANDLE_STEP) => Ok(slot),
            _ => Err(DriverError { call, code: Code::InvalidHandle }),
        }
    }

    /// As [`Streams::slot`], with the lock taken and the answer true under it.
    fn locked(
        &self,
        call: Call,
        stream: StreamHandle,
    ) -> DriverResult<(u32, MutexGuard<'_, State>)> {
        let state = self.shared.lock();
        let slot = self.slot(call, stream)?;
        debug_assert!(state.queues.is_live(slot), "the flags follow the queues");
        Ok((slot, state))
    }

    pub(super) fn check(&self, stream: StreamHandle) -> DriverResult<()> {
        self.slot(Call::StreamCheck, stream).map(drop)
    }

    pub(super) fn create(&self) -> DriverResult<StreamHandle> {
        let mut state = self.shared.lock();
        let slot = state.queues.create();
        match self.live.grow_to(slot as usize) {
            Some(flag) => flag.store(true, Ordering::Release),
            None => {
                state.queues.close(slot);
                return Err(DriverError { call: Call::StreamCreate, code: Code::NotSupported });
            }
        }
        Ok(handle_of(slot))
    }

    pub(super) fn destroy(&self, stream: StreamHandle) -> DriverResult<()> {
        let call = Call::StreamDestroy;
        let (slot, mut state) = self.locked(call, stream)?;
        if slot == 0 {
            return Err(DriverError { call, code: Code::InvalidValue });
        }
        if let Some(flag) = self.live.get(slot as usize) {
            flag.store(false, Ordering::Release);
        }
        state.queues.close(slot);
        self.shared.work.notify_all();
        self.shared.done.notify_all();
        Ok(())
    }

    /// Queues an operation. Starts a worker when more streams have work than are served.
    pub(super) fn queue(&self, call: Call, stream: StreamHandle, op: Op) -> DriverResult<()> {
        let (slot, mut state) = self.locked(call, stream)?;
        self.push(&mut state, call, slot, op)
    }

    fn push(&self, state: &mut State, call: Call, slot: u32, op: Op) -> DriverResult<()> {
        if state.workers.is_empty() && !self.deferred {
            self.start_worker(state)
                .map_err(|errno| DriverError { call, code: Code::Other(errno) })?;
        }
        self.shared.outstanding.fetch_add(1, Ordering::Relaxed);
        if !state.queues.push(slot, op) || self.deferred {
            return Ok(());
        }
        self.shared.work.notify_one();
        // Counting idle workers would not do: one may have been woken for another stream.
        let short = state.workers.len() < state.queues.active().min(WORKERS_MAX);
        if short && let Err(errno) = self.start_worker(state) {
            tracing::debug!(errno, "one more worker did not start; those there go on");
        }
        Ok(())
    }

    fn start_worker(&self, state: &mut State) -> Result<(), u32> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("forebay-device".into());
        let worker = thread
            .spawn(move || shared.worker())
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN).unsigned_abs())?;
        state.workers.push(worker);
        Ok(())
    }

    pub(super) fn record(&self, cell: &Cell, scope: Scope) -> DriverResult<()> {
        let call = Call::EventRecord;
        let slot = match scope {
            Scope::Context => Mark::ALL,
            Scope::Stream(stream) => self.slot(call, stream)?,
        };
        if self.shared.idle() {
            cell.set_passed();
            return Ok(());
        }
        let state = self.shared.lock();
        cell.set(state.queues.mark(slot));
        Ok(())
    }

    pub(super) fn query(&self, cell: &Cell) -> bool {
        if cell.is_passed() || self.shared.idle() {
            return true;
        }
        let state = self.shared.lock();
        let passed = state.queues.passed(cell.mark());
        if passed {
            cell.set_passed();
        }
        passed
    }

    pub(super) fn wait_event(&self, stream: StreamHandle, cell: &Cell) -> DriverResult<()> {
        let call = Call::StreamWait;
        let (slot, mut state) = self.locked(call, stream)?;
        let mark = cell.mark();
        if state.queues.passed(mark) {
            return Ok(());
        }
        self.push(&mut state, call, slot, Op::Wait(mark))
    }

    pub(super) fn synchronize(&self, stream: StreamHandle) -> DriverResult<()> {
        let (slot, state) = self.locked(Call::StreamSynchronize, stream)?;
        let mark = state.queues.mark(slot);
        self.wait_for(state, mark);
        Ok(())
    }

    pub(super) fn synchronize_event(&self, cell: &Cell) {
        if !self.query(cell) {
            let state = self.shared.lock();
            let mark = cell.mark();
            self.wait_for(state, mark);
        }
    }

    /// Waits for all work queued so far, on every stream.
    pub(super) fn quiesce(&self) {
        if !self.shared.idle() {
            let state = self.shared.lock();
            let mark = state.queues.mark(Mark::ALL);
            self.wait_for(state, mark);
        }
    }

    fn wait_for<'a>(&'a self, mut state: MutexGuard<'a, State>, mark: Mark) {
        while !state.queues.passed(mark) {
            let helps = if self.deferred { state.queues.next_towards(mark) } else { None };
            if let Some(slot) = helps {
                state = self.shared.run(state, slot);
                continue;
            }
            state.waiters += 1;
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiters -= 1;
        }
    }

    pub(super) fn set_held(&self, stream: StreamHandle, held: bool) -> DriverResult<()> {
        let (slot, mut state) = self.locked(Call::StreamCheck, stream)?;
        state.queues.set_held(slot, held);
        self.shared.work.notify_all();
        self.shared.done.notify_all();
        Ok(())
    }

    /// Runs one operation of a stream chosen by `seed`; says which.
    pub(super) fn step(&self, seed: u64) -> Option<StreamHandle> {
        let state = self.shared.lock();
        let slot = state.queues.next_by_seed(seed)?;
        drop(self.shared.run(state, slot));
        Some(handle_of(slot))
    }

    /// Runs operations, oldest first, until none may run; says how many.
    pub(super) fn run_all(&self) -> usize {
        let mut state = self.shared.lock();
        let mut count = 0;
        while let Some(slot) = state.queues.next_by_age() {
            state = self.shared.run(state, slot);
            count += 1;
        }
        count
    }

    /// Streams created and not yet gone, the default stream apart.
    pub(super) fn live(&self) -> usize {
        self.shared.lock().queues.streams()
    }

    /// Operations queued and not finished.
    pub(super) fn outstanding(&self) -> usize {
        self.shared.outstanding.load(Ordering::Acquire)
    }

    /// Worker threads started so far.
    #[cfg(test)]
    pub(super) fn workers(&self) -> usize {
        self.shared.lock().workers.len()
    }
}

impl Drop for Streams {
    /// Lets running operations end, drops the queued ones and joins the workers.
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // A forked child has none of the workers, and one of them may have held the lock.
            return;
        }
        let mut state = self.shared.lock();
        state.stop = true;
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        self.shared.work.notify_all();
        for worker in workers {
            if worker.join().is_err() {
                tracing::error!("a worker thread of the host device panicked");
            }
        }
    }
}
