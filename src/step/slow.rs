//! What the hot path of a step leaves over, and what is called once a step.
//!
//! Promises: every wrong call is an error that changes nothing: a step that has ended, another
//! thread's, a stream that is no lane of it, an address that is no live buffer. What the plan
//! does not serve the pool does, with the binding's lock open. Cost: a lock; see [`super`].

use super::binding::{Binding, Entry, State};
use super::follow::{Run, Served};
use super::runner::{self, Hot, Runner};
use crate::error::{Error, Result, Status};
use crate::pool::order::stream_name;
use crate::pool::record::Event;
use crate::pool::slow::guarded;
use crate::pool::{loss, registry, world};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A step of this thread's.
struct Owned {
    runner: &'static Runner,
    binding: Arc<Binding>,
}

fn bad(text: impl Into<Box<str>>) -> Error {
    Error::new(Status::InvalidArgument, text)
}

/// This thread's open step with this handle; its hot path is open afterwards.
fn owned(step: u64) -> Result<Owned> {
    let thread = registry::enrol()?;
    let found = runner::find(step);
    // SAFETY: null, or a runner, which is never unmapped.
    let runner = unsafe { found.as_ref() };
    let open = |r: &&'static Runner| step != 0 && r.handle.load(Ordering::Acquire) == step;
    let runner = runner
        .filter(open)
        .ok_or_else(|| bad(format!("no open step has the handle {step:#x}: it has ended")))?;
    // SAFETY: this thread's own cache, whose serial never changes.
    if !runner.is_owners(step, unsafe { (*thread).serial }) {
        return Err(bad("the step was begun by another thread: steps belong to one thread"));
    }
    let binding = runner.binding().ok_or_else(|| bad("the step has ended"))?;
    Ok(Owned { runner, binding })
}

impl Owned {
    /// Runs `f` on the step's books and hot state.
    fn with<R>(&self, f: impl FnOnce(&mut State, &mut Hot) -> R) -> R {
        let mut state = self.binding.lock();
        // SAFETY: this thread is the step's owner, and in no hot operation.
        let hot = unsafe { &mut *self.runner.hot.get() };
        f(&mut state, hot)
    }

    /// The lane of a stream.
    fn lane(&self, stream: u64) -> Result<u16> {
        if !self.runner.pool_lives() {
            // The pool says which of the two is gone.
            self.binding.pool.captures_open()?;
            return Err(loss::lost());
        }
        let lane = self.with(|state, hot| {
            let lanes = state.run.as_ref().map_or(0, |run| run.lanes);
            let same = |s: &u64| stream_name(*s) == stream_name(stream);
            hot.streams[..lanes].iter().position(same)
        });
        lane.map(|lane| lane as u16).ok_or_else(|| {
            let text = format!("stream {stream:#x} is no lane of this step");
            Error::new(Status::InvalidStream, text)
        })
    }

    /// Does what `f` does to a live buffer of the step at an address; it answers whether there is
    /// one at the offset. False: the address is not in the plan block, and is the pool's to know.
    ///
    /// # Errors
    /// As [`not_live`]: it lies in the plan block, and no live buffer begins there.
    fn inside(
        &self,
        address: usize,
        f: impl FnOnce(&mut Run, (&mut Hot, &mut Entry), u64) -> bool,
    ) -> Result<bool> {
        self.with(|state, hot| {
            let State { run, entries, block, .. } = state;
            let Some(run) = run else { return Ok(true) };
            let offset = address.wrapping_sub(block.address) as u64;
            if block.address == 0 || offset >= block.bytes {
                return Ok(false);
            }
            let entry = &mut entries[run.entry];
            match f(run, (hot, entry), offset) {
                true => Ok(true),
                false => Err(not_live(address, !entry.script.at(offset).is_empty())),
            }
        })
    }

    fn note(&self, event: Event) {
        self.with(|state, _| {
            if let Some(log) = state.run.as_mut().and_then(|run| run.log.as_mut()) {
                log.push(event);
            }
        });
    }

    fn ask_pool(&self, bytes: usize, align: usize, stream: u64) -> Result<usize> {
        // The pool's own blocks begin at multiples of 256.
        let align = if align <= 256 { 0 } else { align };
        self.binding.pool.alloc_aligned(bytes, align, stream)
    }
}

/// Writes an address, or none for an error.
///
/// # Safety
/// `out` is null or valid for a pointer's write.
unsafe fn answer(out: *mut *mut c_void, find: impl FnOnce() -> Result<usize>) -> Status {
    guarded(|| {
        if out.is_null() {
            return Err(bad("the pointer for the result is NULL"));
        }
        let found = find();
        // SAFETY: not null, and valid for the write as promised.
        unsafe { *out = *found.as_ref().unwrap_or(&0) as *mut c_void };
        found.map(drop)
    })
}

/// The whole of an allocation that the hot path could not serve.
///
/// # Safety
/// As [`answer`].
#[cold]
#[inline(never)]
pub unsafe extern "C" fn alloc(
    step: u64,
    out: *mut *mut c_void,
    bytes: usize,
    stream: u64,
) -> Status {
    // SAFETY: as promised.
    unsafe { answer(out, || alloc_slow(step, bytes, stream)) }
}

fn alloc_slow(step: u64, bytes: usize, stream: u64) -> Result<usize> {
    let owned = owned(step)?;
    let lane = owned.lane(stream)?;
    if bytes == 0 {
        return Ok(0);
    }
    let served = owned.with(|state, hot| {
        let State { run, entries, .. } = state;
        let Some(run) = run else { return Served::Pool(0) };
        let entry = &mut entries[run.entry];
        run.serve((hot, entry, &owned.binding.pool), bytes as u64, lane)
    });
    let (address, align) = match served {
        Served::Plan(address, align) => (address, align),
        Served::Pool(align) => (owned.ask_pool(bytes, align, stream)?, align),
    };
    let stream = stream_name(stream);
    let (bytes, align) = (bytes as u64, align as u64);
    owned.note(Event::Alloc { address, bytes, align, stream, tag: 0 });
    Ok(address)
}

/// An allocation that is not planned and lives through at most `births` planned ones: out of what
/// the plan leaves free, else the pool's. 0: its life is not known.
///
/// # Safety
/// As [`answer`].
pub unsafe fn alloc_within(
    step: u64,
    out: *mut *mut c_void,
    bytes: usize,
    births: u64,
    stream: u64,
) -> Status {
    let find = || {
        let owned = owned(step)?;
        let lane = owned.lane(stream)?;
        if bytes == 0 {
            return Ok(0);
        }
        let found = owned.with(|state, hot| {
            let State { run, entries, block, .. } = state;
            let run = run.as_mut()?;
            let entry = &mut entries[run.entry];
            run.serve_gap((hot, entry), block.bytes, (bytes as u64, lane), births)
        });
        found.map_or_else(|| owned.ask_pool(bytes, 0, stream), Ok)
    };
    // SAFETY: as promised.
    unsafe { answer(out, find) }
}

/// The whole of a free that the hot path could not serve.
#[cold]
#[inline(never)]
pub extern "C" fn free(step: u64, address: *mut c_void, stream: u64) -> Status {
    guarded(|| {
        if address.is_null() {
            return Ok(());
        }
        match world::check_world() {
            Err(e) if e.status() == Status::ShutDown => return Ok(()),
            other => other?,
        }
        match free_slow(step, address as usize, stream) {
            // What lay in a lost context is gone.
            Err(error) if error.status() == Status::ContextLost => Ok(()),
            other => other,
        }
    })
}

fn free_slow(step: u64, address: usize, stream: u64) -> Result<()> {
    let owned = owned(step)?;
    let lane = owned.lane(stream)?;
    let ended = owned.inside(address, |run, (hot, entry), offset| {
        run.end((hot, entry), offset, lane) || run.end_gap((hot, entry), offset, lane)
    })?;
    if !ended {
        owned.binding.pool.dealloc(address, stream)?;
    }
    owned.note(Event::Free { address, stream: stream_name(stream) });
    Ok(())
}

#[cold]
fn not_live(address: usize, begins: bool) -> Error {
    let (status, what) = match begins {
        true => (Status::DoubleFree, "no live buffer of the step begins there now"),
        false => (Status::InteriorPointer, "no buffer of the step begins there"),
    };
    Error::new(status, format!("address {address:#x} lies in the step's plan block, and {what}"))
}

/// Notes that work on another lane uses a buffer of the step: as the pool's own function does.
///
/// # Errors
/// [`Status::InvalidStream`] for a stream that is no lane; as [`free`] for the address.
pub fn record_use(step: u64, address: usize, stream: u64) -> Result<()> {
    let owned = owned(step)?;
    let lane = owned.lane(stream)?;
    let noted = owned
        .inside(address, |run, (hot, entry), offset| run.use_by((hot, entry), offset, lane))?;
    if !noted {
        owned.binding.pool.record_use(address, stream)?;
    }
    owned.note(Event::Use { address, stream: stream_name(stream) });
    Ok(())
}

/// Makes later work of `to` wait for the work queued on `from`, both lanes of the step.
///
/// # Errors
/// [`Status::InvalidStream`] for others; [`Status::Busy`] while a capture is open.
pub fn fence(step: u64, from: u64, to: u64) -> Result<()> {
    let owned = owned(step)?;
    let lanes = (owned.lane(from)?, owned.lane(to)?);
    owned.with(|state, hot| {
        let State { run, entries, .. } = state;
        let Some(run) = run else { return Ok(()) };
        let entry = &mut entries[run.entry];
        run.fence((hot, entry, &owned.binding.pool), lanes)
    })?;
    owned.note(Event::Fence { from: stream_name(from), to: stream_name(to) });
    Ok(())
}

/// Ends a step; with `all` also one whose planned buffers are live: they are given up.
///
/// # Errors
/// [`Status::Busy`]: planned buffers are live, and the step stays open; as of a plan, where the
/// step was recorded to be planned anew: it has ended then.
pub fn end(step: u64, all: bool) -> Result<()> {
    owned(step)?.binding.end(all)
}
