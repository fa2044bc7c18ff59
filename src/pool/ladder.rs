//! What is tried before an allocation fails, in order, and how the failure is told.
//!
//! The rungs inside the lock (runs, fences, caches, pages, gather) are room `grow`'s. The
//! rungs here let the lock go in between: *revoke* other threads' magazines, *wait* for pending
//! fences until those that have passed suffice, let blocks of whole granules begin *anywhere*,
//! *evict* idle plan blocks one by one, ask the *owner*. Each rung ends with a fresh try of all
//! inside.
//! Nothing here is bounded by luck: every rung is tried once, the wait ends after
//! `FOREBAY_OOM_WAIT_MS`.

#[cfg(test)]
mod tests;

use super::cache::LaneCache;
use super::core::Core;
use super::{Shared, registry, report};
use crate::base::units::QUANTUM;
use crate::driver::{Code, DriverError};
use crate::error::{Error, Result, Status};
use std::time::{Duration, Instant};

/// Why the rungs inside the lock found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// So many bytes of memory are missing.
    Short {
        /// Missing bytes.
        missing: u64,
    },
    /// No address range (or its tables) is left.
    AddressSpace,
    /// A driver call failed.
    Driver(DriverError),
    /// The stream captures a graph that the pool was not told of (`FOREBAY_DEBUG=streams`).
    Capturing(u64),
    /// The stream was destroyed untold, and its handle is another stream's by now
    /// (`FOREBAY_DEBUG=streams`).
    Reused(u64),
    /// The tag's memory is taken away now, or is about to be.
    Asleep(u8),
    /// The cache belongs to another pool or lane by now; look it up again.
    Stale,
}

/// Runs `attempt` under the lock, climbing a rung each time it is refused. The cache that
/// `attempt` finds may differ from try to try. `None`: its cache is another's by now; look it
/// up again.
#[inline(always)]
pub fn climb<R>(
    shared: &'static Shared,
    id: u64,
    bytes: usize,
    mut attempt: impl FnMut(&mut Core, Fit) -> std::result::Result<R, Refusal>,
) -> Result<Option<R>> {
    match shared.with_core(id, |core| attempt(core, Rung::Inside.fit()))? {
        Ok(value) => Ok(Some(value)),
        Err(Refusal::Stale) => Ok(None),
        Err(refusal) => climb_on(shared, id, bytes, refusal, &mut attempt),
    }
}

/// The rungs after the first.
#[cold]
#[inline(never)]
fn climb_on<R>(
    shared: &'static Shared,
    id: u64,
    bytes: usize,
    mut refusal: Refusal,
    attempt: &mut impl FnMut(&mut Core, Fit) -> std::result::Result<R, Refusal>,
) -> Result<Option<R>> {
    for rung in [Rung::Revoke, Rung::Wait, Rung::Anywhere, Rung::Evict, Rung::Owner] {
        if !refusal.may_pass() {
            break;
        }
        // Another place is no help against a driver that fails.
        let driver_fails = matches!(refusal, Refusal::Driver(_));
        // The first rung is every miss's: no look at the clock there.
        let since = (rung == Rung::Wait).then(Instant::now);
        if rung == Rung::Anywhere && driver_fails || !rung.climb(shared, id, bytes, since, false)? {
            continue;
        }
        loop {
            match shared.with_core(id, |core| attempt(core, rung.fit()))? {
                Ok(value) => return Ok(Some(value)),
                Err(Refusal::Stale) => return Ok(None),
                Err(why) => refusal = why,
            }
            // The owner may free in several steps, and of the pending fences some may suffice;
            // the other rungs are climbed once.
            let in_steps = matches!(rung, Rung::Owner | Rung::Evict | Rung::Wait);
            if !in_steps || !refusal.may_pass() || !rung.climb(shared, id, bytes, since, true)? {
                break;
            }
        }
    }
    Err(failure(shared, id, bytes, refusal))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rung {
    Inside,
    Revoke,
    Wait,
    Anywhere,
    Evict,
    Owner,
}

/// Where blocks of whole granules may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// At a granule: then no granule is cut in two that other such blocks could use whole,
    /// and a limit's bytes can be had in such blocks after any history.
    Granules,
    /// Anywhere, as all other blocks: better than to fail.
    Anywhere,
}

impl Rung {
    fn fit(self) -> Fit {
        match self {
            Rung::Inside | Rung::Revoke | Rung::Wait => Fit::Granules,
            Rung::Anywhere | Rung::Evict | Rung::Owner => Fit::Anywhere,
        }
    }

    /// Does what the rung is for, without the lock; a wait began at `since`. False: nothing
    /// changed, no need to try.
    fn climb(
        self,
        shared: &'static Shared,
        id: u64,
        bytes: usize,
        since: Option<Instant>,
        again: bool,
    ) -> Result<bool> {
        match self {
            Rung::Inside => Ok(true),
            Rung::Anywhere => shared.with_core(id, |core| {
                bytes.next_multiple_of(QUANTUM).is_multiple_of(core.vmem.granule())
            }),
            Rung::Revoke => {
                super::capture::release_gone();
                registry::revoke(shared, id)
            }
            Rung::Wait => wait(shared, id, since, again),
            Rung::Evict => {
                // Nothing that is given up could pass before the capture ends.
                if shared.with_core(id, |core| core.lanes.open_captures() > 0)? {
                    return Ok(false);
                }
                let evicted = shared.evict_plan_block();
                if evicted {
                    // What is given up waits for the work of before.
                    wait(shared, id, Some(Instant::now()), false)?;
                }
                Ok(evicted)
            }
            Rung::Owner => {
                let Some((call, context)) = shared.hooks().on_out_of_memory else {
                    return Ok(false);
                };
                // SAFETY: the owner promised a callable function for this context; no lock of
                // ours is held.
                Ok(unsafe { call(context as *mut std::ffi::c_void, bytes) })
            }
        }
    }
}

impl Refusal {
    /// Whether another rung could help.
    fn may_pass(self) -> bool {
        match self {
            Refusal::Short { .. } | Refusal::AddressSpace => true,
            Refusal::Driver(e) => matches!(e.code, Code::OutOfMemory | Code::MappingLimit),
            Refusal::Stale | Refusal::Capturing(_) | Refusal::Reused(_) | Refusal::Asleep(_) => {
                false
            }
        }
    }
}

/// Waits until a pending fence has passed, up to the pool's patience counted from `since`.
/// False: none has, or it is the patience's end and not the first look: others may free without
/// end what does not suffice.
fn wait(shared: &'static Shared, id: u64, since: Option<Instant>, again: bool) -> Result<bool> {
    let patience = shared.with_core(id, |core| core.settings.oom_wait)?;
    let over = |since: Option<Instant>| since.is_none_or(|s| s.elapsed() >= patience);
    if again && over(since) {
        return Ok(false);
    }
    loop {
        let (progress, in_flight) = shared.with_core(id, |core| {
            if core.lanes.open_captures() > 0 {
                return (false, false);
            }
            let recorded = core.lanes.record_all(&*core.driver.0);
            super::core::note(recorded, "a fence could not be recorded");
            let progress = core.settle();
            (progress, core.lanes.in_flight())
        })?;
        if progress || !in_flight || over(since) {
            return Ok(progress);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[cold]
fn failure(shared: &'static Shared, id: u64, bytes: usize, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Driver(DriverError { code: Code::ContextLost, .. }) => return super::loss::lost(),
        Refusal::Capturing(stream) => return super::capture::undeclared(stream),
        Refusal::Reused(stream) => return super::core::reused_stream(stream),
        Refusal::Asleep(tag) => return super::tagged::asleep(tag),
        _ => {}
    }
    let status = match refusal {
        Refusal::Driver(DriverError { code: Code::MappingLimit, .. }) => Status::MappingLimit,
        Refusal::Driver(DriverError { code: Code::ShutDown, .. }) => Status::ShutDown,
        Refusal::Driver(DriverError { code: Code::OutOfMemory, .. })
        | Refusal::Short { .. }
        | Refusal::AddressSpace
        | Refusal::Capturing(_)
        | Refusal::Reused(_)
        | Refusal::Asleep(_)
        | Refusal::Stale => Status::OutOfMemory,
        Refusal::Driver(_) => Status::Driver,
    };
    let text = shared.with_core(id, |core| {
        core.totals.out_of_memory += 1;
        report::out_of_memory(core, bytes, refusal)
    });
    match text {
        Ok(text) => {
            tracing::error!("{text}");
            Error::new(status, text)
        }
        Err(error) => error,
    }
}

/// The cache behind a pointer found before the lock was taken, if it still is what it was.
///
/// # Safety
/// The core of `cache`'s pool is locked; `cache` came from this thread's table.
pub unsafe fn checked<'a>(
    cache: *mut LaneCache,
    key: u64,
    owner: *mut super::cache::ThreadCache,
) -> std::result::Result<&'a mut LaneCache, Refusal> {
    // SAFETY: lane caches are never unmapped. `owner` names this thread only while the cache
    // is its own, and it changes only under the core's lock, which is held.
    let cache = unsafe { &mut *cache };
    if cache.key == key && cache.owner == owner { Ok(cache) } else { Err(Refusal::Stale) }
}
