//! The keeper: one background thread of the process that settles, recovers and trims.
//!
//! Started when the first pool needs it (fences in flight, decay, a soft limit, something
//! stranded), never at load; parked at exit, where a look under way is awaited. It calls no user
//! code save the unmap callback and spends at most its budget of driver time, but that after a long
//! look it rests no more than a second while somebody asks for it. Where it is off, the same work
//! happens when an allocation needs it, and decay does not happen.

#[cfg(test)]
mod tests;

use super::core::Core;
use super::registry;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

struct State {
    pools: Vec<u64>,
    running: bool,
    poked: bool,
    /// The keeper, while it looks at pools.
    looking: Option<libc::pthread_t>,
}

static STATE: Mutex<State> =
    Mutex::new(State { pools: Vec::new(), running: false, poked: false, looking: None });
static WAKE: Condvar = Condvar::new();
static LOOKED: Condvar = Condvar::new();
static PARKED: AtomicBool = AtomicBool::new(false);

/// How long the keeper sleeps while something is pending.
const TICK: Duration = Duration::from_millis(5);

/// Who pokes the keeper waits no longer than this for its budget.
const REST_MAX: Duration = Duration::from_secs(1);

/// The process's end waits so long for a look under way: a thread that ends the process inside a
/// pool's callback holds the lock that the keeper waits for.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// What the keeper looks after besides a pool: memory of it that a room above fills and empties.
pub trait Tended: Send + Sync {
    /// One look, with no lock held. Answers when to look again; `None`: not before the pool's next
    /// poke. Must not wait and must not call the keeper but by [`poke`].
    fn tend(&self) -> Option<Duration>;
}

static TENDED: Mutex<Vec<(u64, Weak<dyn Tended>)>> = Mutex::new(Vec::new());

/// Has the keeper look after `tended` with pool `id`, for as long as it lives.
pub fn tend_too(id: u64, tended: &Arc<dyn Tended>) {
    let mut all = TENDED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, tended)| tended.strong_count() > 0);
    all.push((id, Arc::downgrade(tended)));
}

/// The keeper begins no look after `tended` any more; one may be under way.
pub fn tend_no_more(tended: &Arc<dyn Tended>) {
    let mut all = TENDED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, other)| !std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(tended)));
}

/// Looks after what belongs to these pools. Answers when to look again.
fn tend_all(pools: &[u64]) -> Option<Duration> {
    let live: Vec<Arc<dyn Tended>> = {
        let all = TENDED.lock().unwrap_or_else(PoisonError::into_inner);
        let of = all.iter().filter(|(id, _)| pools.contains(id));
        of.filter_map(|(_, tended)| tended.upgrade()).collect()
    };
    live.iter().filter_map(|tended| tended.tend()).min()
}

/// Enters a pool; the thread starts if the pool needs it at once.
pub fn watch(id: u64) {
    let wants = registry::pool(id).and_then(|p| {
        p.with_core(id, |core| {
            let settings = &core.settings;
            let now = !settings.decay.is_zero() || settings.soft_limit.is_some();
            (settings.keeper, now)
        })
    });
    let Ok((true, now)) = wants else { return };
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.pools.push(id);
    if now {
        start(&mut state);
    }
}

/// A pool ends.
pub fn forget(id: u64) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.pools.retain(|&p| p != id);
}

/// Something is pending or stranded in a pool: the keeper looks soon. May be called with
/// the core locked.
pub fn poke(id: u64) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if !state.pools.contains(&id) || (state.poked && state.running) {
        return;
    }
    state.poked = true;
    start(&mut state);
    WAKE.notify_one();
}

/// Something is to be done that no pool's lock is needed for to know: the keeper looks soon,
/// if any pool wants one. Makes no driver call.
pub fn wake() {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if !state.pools.is_empty() {
        state.poked = true;
        start(&mut state);
        WAKE.notify_one();
    }
}

/// The process ends: the keeper touches nothing any more. Waits for its look under way, up to
/// [`END_PATIENCE`]; the keeper itself does not wait.
pub fn park() {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    PARKED.store(true, Ordering::Release);
    WAKE.notify_one();
    let start = Instant::now();
    while state.looking.is_some_and(|keeper| keeper != this_thread()) {
        let Some(left) = END_PATIENCE.checked_sub(start.elapsed()) else {
            drop(state);
            tracing::warn!("the keeper is still at work; the process ends beside it");
            return;
        };
        let woken = LOOKED.wait_timeout(state, left);
        state = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn start(state: &mut State) {
    if state.running || PARKED.load(Ordering::Acquire) {
        return;
    }
    let spawned = std::thread::Builder::new().name("forebay-keeper".into()).spawn(|| {
        let done = std::panic::catch_unwind(run);
        if done.is_err() {
            tracing::error!("the keeper ended after a panic; settling goes on without it");
        }
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        state.running = false;
        state.poked = false;
        state.looking = None;
        LOOKED.notify_all();
    });
    match spawned {
        Ok(_) => state.running = true,
        Err(error) => tracing::warn!(%error, "the keeper could not be started"),
    }
}

fn run() {
    block_signals();
    let mut wait: Option<Duration> = Some(TICK);
    loop {
        let pools = {
            let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.poked && !PARKED.load(Ordering::Acquire) {
                state = match wait {
                    Some(time) => {
                        let woken = WAKE.wait_timeout(state, time);
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => WAKE.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
            }
            if PARKED.load(Ordering::Acquire) {
                return;
            }
            state.poked = false;
            state.looking = Some(this_thread());
            state.pools.clone()
        };
        super::capture::release_gone();
        let looks: Vec<Look> = pools.iter().filter_map(|&id| tick(id)).collect();
        let parked = PARKED.load(Ordering::Acquire);
        let start = Instant::now();
        let tended = if parked { None } else { tend_all(&pools) };
        let work = looks.iter().map(|look| look.work).sum::<Duration>() + start.elapsed();
        STATE.lock().unwrap_or_else(PoisonError::into_inner).looking = None;
        LOOKED.notify_all();
        wait = looks.iter().filter_map(|look| look.next).chain(tended).min();
        if super::capture::any_gone() {
            wait = Some(wait.map_or(TICK * 20, |wait| wait.min(TICK * 20)));
        }
        // The budget is so many ms of work in each second.
        let asking = looks.iter().filter(|look| look.next.is_some());
        let budget = asking.map(|look| look.budget_ms).min().unwrap_or(100).max(1);
        rest(work * (1000 / budget.min(1000)).saturating_sub(1));
    }
}

/// Does nothing for so long; a poke before or meanwhile shortens it to [`REST_MAX`], and the
/// process's end to nothing.
fn rest(time: Duration) {
    let start = Instant::now();
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    while !PARKED.load(Ordering::Acquire) {
        let enough = if state.poked { time.min(REST_MAX) } else { time };
        let left = enough.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        let woken = WAKE.wait_timeout(state, left);
        state = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Works in exit handlers too, after the thread's own data is gone.
fn this_thread() -> libc::pthread_t {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}

/// Signals of the program are for its own threads.
fn block_signals() {
    // SAFETY: the set is a local, filled before use; only this thread's mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// What a look at a pool comes to.
struct Look {
    /// When to look again; `None`: not before the next poke.
    next: Option<Duration>,
    /// How long the pool's lock was held for it: waiting for the lock is no work.
    work: Duration,
    /// The pool's budget in ms a second.
    budget_ms: u32,
}

/// One look at a pool, unless it is gone.
fn tick(id: u64) -> Option<Look> {
    if PARKED.load(Ordering::Acquire) {
        return None;
    }
    let look = |core: &mut Core| {
        let start = Instant::now();
        let next = core.tend();
        Look { next, work: start.elapsed(), budget_ms: core.settings.keeper_budget_ms }
    };
    registry::pool(id).ok()?.with_core(id, look).ok()
}

impl Core {
    /// The keeper's work: settle, recover, trim above the soft limit, map ahead, decay.
    pub fn tend(&mut self) -> Option<Duration> {
        if self.fuse.is_blown() {
            return None;
        }
        let mut next = None;
        self.record_leaving();
        if self.lanes.in_flight() || !self.pending.is_empty() {
            self.settle();
            next = Some(TICK);
        }
        if self.troubled() && self.recover() || self.shares.any_leaving() {
            next = next.or(Some(TICK * 20));
        }
        if let Some(soft) = self.settings.soft_limit
            && self.vmem.pages() as u64 * self.vmem.granule() as u64 > soft
        {
            let trimmed = self.trim(soft);
            super::core::note(trimmed.map(|_| ()), "trimming to the soft limit failed");
            next = next.or(Some(TICK * 20));
        }
        let ahead = self.map_ahead();
        self.decay().into_iter().chain(next).chain(ahead).min()
    }

    /// Gives memory back that has been idle for the decay time.
    fn decay(&mut self) -> Option<Duration> {
        let decay = self.settings.decay;
        if decay.is_zero() {
            return None;
        }
        let idle = self.heap.counts().idle_granules + self.vmem.stock() as u64;
        let idle = idle * self.vmem.granule() as u64;
        if idle <= self.settings.release_threshold {
            self.idle_since = None;
        } else {
            let since = *self.idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= decay {
                let held = self.vmem.pages() as u64 * self.vmem.granule() as u64;
                let keep = held - idle + self.settings.release_threshold;
                let trimmed = self.trim(keep);
                super::core::note(trimmed.map(|_| ()), "giving idle memory back failed");
                self.idle_since = None;
            }
        }
        Some((decay / 4).max(Duration::from_millis(1)))
    }
}
