//! Graph captures: what is allocated in one belongs to its graph until that is gone.
//!
//! Owns the open captures of the process and the graphs whose end has been told. Promises: while
//! any capture is open no fence is recorded, nothing is unmapped and nothing waits for the
//! device; a capture's memory serves nothing else before its release.
//!
//! A program tells of captures (`forebay_capture_begin`); `FOREBAY_DEBUG=streams` asks the driver
//! instead whether a stream captures that nobody told of. The end of a graph may be told from a
//! callback that may make no driver call: it is noted, and the keeper, or whoever comes next,
//! does the rest.

use super::core::Core;
use super::ladder::Refusal;
use super::registry;
use super::{HANDLE_SHIFT, control, devices, keeper, share, world};
use crate::base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::driver::{Code, StreamHandle};
use crate::error::{Error, Result, Status};
use crate::stream::{LaneId, LaneKind};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// A capture as a pool knows it.
#[derive(Clone, Copy, Debug)]
pub struct Capture {
    /// The lane of its memory.
    pub lane: LaneId,
    key: u64,
    before: Option<LaneId>,
    open: bool,
}

impl Core {
    fn begin_capture(&mut self, number: u64, key: u64, stream: u64) -> Result<()> {
        if self.captures.contains_key(&number) {
            // A pool made meanwhile began it already.
            return Ok(());
        }
        if self.captures.values().any(|c| c.key == key && c.open) {
            return Err(Error::new(
                Status::Busy,
                format!("a capture is open on stream {stream:#x} already"),
            ));
        }
        let handle = StreamHandle(stream);
        if self.driver.0.stream_check(handle).is_err() {
            return Err(super::core::unknown_stream(stream));
        }
        let Some((lane, before)) = self.lanes.capture_begin(key, handle) else {
            return Err(Error::new(Status::Busy, "no lane is left for a capture"));
        };
        self.captures.insert(number, Capture { lane, key, before, open: true });
        Ok(())
    }

    /// A capture on another device's stream: where devices have peers, fences may reach there.
    fn begin_foreign_capture(&mut self, number: u64) {
        if share::any_peers() {
            self.begin_hold(number);
        }
    }

    /// A capture whose streams are none of this pool's lanes, or not known.
    fn begin_hold(&mut self, number: u64) {
        if !self.foreign_captures.contains(&number) {
            self.foreign_captures.push(number);
            self.lanes.foreign_capture_begin();
        }
    }

    fn end_foreign_capture(&mut self, number: u64) {
        let before = self.foreign_captures.len();
        self.foreign_captures.retain(|&open| open != number);
        if self.foreign_captures.len() < before {
            self.lanes.foreign_capture_end();
            self.wipe_held();
        }
    }

    /// The pool ends with its context: what captures on other devices keeps it no more. A hold
    /// does, which may be of a capture on this one.
    pub(super) fn let_foreign_go(&mut self) {
        let holds = HELD.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let before = self.foreign_captures.len();
        self.foreign_captures.retain(|number| holds.contains(number));
        for _ in self.foreign_captures.len()..before {
            self.lanes.foreign_capture_end();
        }
    }

    fn end_capture(&mut self, number: u64) -> Result<()> {
        let Some(capture) = self.captures.get_mut(&number).filter(|c| c.open) else {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("capture {number} is not open: it has ended already"),
            ));
        };
        capture.open = false;
        let (key, before) = (capture.key, capture.before);
        self.lanes.capture_end(key, before);
        self.wipe_held();
        Ok(())
    }

    /// The captures of these streams that are not released, by number and lane: those that are
    /// `open`, or all.
    pub(super) fn captures_on(&self, keys: &[u64], open: bool) -> Vec<(u64, LaneId)> {
        let wanted = |c: &Capture| keys.contains(&c.key) && (c.open || !open);
        let found = self.captures.iter().filter(|(_, capture)| wanted(capture));
        found.map(|(&number, capture)| (number, capture.lane)).collect()
    }

    /// The numbers of the captures that are open here.
    pub(super) fn open_captures(&self) -> Vec<u64> {
        let open = self.captures.iter().filter(|(_, capture)| capture.open);
        open.map(|(&number, _)| number).collect()
    }

    fn release_capture(&mut self, number: u64) -> Result<()> {
        let Some(capture) = self.captures.get(&number).copied() else { return Ok(()) };
        if capture.open {
            return Err(Error::new(Status::Busy, "the capture is open; end it first"));
        }
        if self.fuse.is_blown() {
            self.captures.remove(&number);
            return Ok(());
        }
        let released = self.lanes.capture_release(&*self.driver.0, capture.lane);
        if !released.map_err(control::driver_error)? {
            return Err(Error::new(Status::Busy, "another capture is open; end it first"));
        }
        self.captures.remove(&number);
        self.retired.push(capture.lane);
        self.settle();
        self.sweep_tags();
        Ok(())
    }
}

/// The number of the next capture or hold.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Begins a graph capture on `stream`, in every pool. Answers its number.
pub fn begin(stream: u64) -> Result<u64> {
    if registry::live_pools().is_empty() {
        devices::default_pool()?;
    }
    release_gone();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Known before the pools are asked: one that is made meanwhile begins it itself.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push((number, stream));
    let begun = begin_everywhere(number, stream);
    if begun.is_err() {
        undo_begin(number);
    }
    begun.map(|()| number)
}

fn begin_everywhere(number: u64, stream: u64) -> Result<()> {
    let mut any = false;
    for id in registry::live_pools() {
        let key = (id << HANDLE_SHIFT) ^ stream;
        let begin = |core: &mut Core| core.begin_capture(number, key, stream);
        match registry::without_caches(id, |lane| lane.key == key, begin).and_then(|r| r) {
            Ok(()) => any = true,
            // A stream belongs to one device; other devices' pools do not know it.
            Err(e) if e.status() == Status::InvalidStream => {
                if let Ok(pool) = registry::pool(id) {
                    let _ended = pool.with_core(id, |core| core.begin_foreign_capture(number));
                }
            }
            // It has ended meanwhile.
            Err(e) if e.status() == Status::InvalidPool => {}
            Err(e) => return Err(e),
        }
    }
    if any { Ok(()) } else { Err(super::core::unknown_stream(stream)) }
}

/// Takes a capture back that has begun in some pools. What cannot be released yet, because
/// another capture is open, is released later.
fn undo_begin(number: u64) {
    // First: a pool that is made from now on does not begin it.
    forget_open(number);
    end_foreign(number);
    let undone = each_pool_with(number, |id, capture| {
        let here = |lane: &super::cache::LaneCache| lane.key == capture.key;
        registry::without_caches(id, here, |core| {
            if core.captures.get(&number).is_some_and(|c| c.open) {
                core.end_capture(number)?;
            }
            core.release_capture(number)
        })?
    });
    if let Err(error) = undone
        && error.status() != Status::InvalidArgument
    {
        tracing::debug!(%error, "a capture that did not begin is released later");
        tell_gone(number);
    }
}

/// Whether any capture is open in the process.
pub fn any_open() -> bool {
    !OPEN.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
        || !HELD.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// Holds that are open in the process.
static HELD: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Tells that captures begin on streams that nobody can name yet: until [`unhold`] no pool records
/// a fence, unmaps or waits. What is allocated meanwhile belongs to no graph; [`begin`] says so of
/// a stream once it is known. Answers the hold's number.
pub fn hold() -> Result<u64> {
    world::check_world()?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Known before the pools are asked: one that is made meanwhile holds by itself.
    HELD.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    for id in registry::live_pools() {
        // A pool that ended meanwhile records nothing.
        if let Ok(pool) = registry::pool(id) {
            let _ended = pool.with_core(id, |core| core.begin_hold(number));
        }
    }
    Ok(number)
}

/// Ends a hold; one that is not open is left alone.
pub fn unhold(number: u64) {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).retain(|&held| held != number);
    end_foreign(number);
}

/// Lets other devices' pools record fences again.
fn end_foreign(number: u64) {
    for id in registry::live_pools() {
        // A pool that ended meanwhile records none.
        if let Ok(pool) = registry::pool(id) {
            let _ended = pool.with_core(id, |core| core.end_foreign_capture(number));
        }
    }
}

/// Captures that are open in the process: number and stream.
static OPEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn forget_open(number: u64) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|&(open, _)| open != number);
}

/// Begins the open captures in a pool that is being made: its memory obeys them too.
pub fn begin_open_captures(core: &mut Core) {
    for &number in HELD.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        core.begin_hold(number);
    }
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (number, stream) in open {
        let key = (core.id << HANDLE_SHIFT) ^ stream;
        // A stream that the pool does not know may stand for one of its own device: whoever tells
        // of captures had no pool there yet. So it holds, peers or not.
        if let Err(error) = core.begin_capture(number, key, stream) {
            core.begin_hold(number);
            tracing::debug!(%error, "the new pool holds until an open capture is over");
        }
    }
}

/// A pool has ended with these captures open, which a lost context allows. Those that no pool
/// has any more are over.
pub fn pool_ended(numbers: &[u64]) {
    for &number in numbers {
        let mut held = false;
        for id in registry::live_pools() {
            let open = |core: &mut Core| core.captures.get(&number).is_some_and(|c| c.open);
            held |= registry::pool(id).and_then(|p| p.with_core(id, open)).unwrap_or(false);
        }
        if !held {
            forget_open(number);
            end_foreign(number);
        }
    }
}

/// Ends a capture: its streams go back to their own lanes; its memory stays its own. Where that
/// fails in a pool, the others' ends come all the same, and the call may be repeated.
pub fn end(number: u64) -> Result<()> {
    world::check_world()?;
    // First: a pool that is made from now on does not begin it, and those made before are asked.
    forget_open(number);
    end_foreign(number);
    let any_open = std::cell::Cell::new(false);
    each_pool_with(number, |id, capture| {
        if !capture.open {
            return Ok(());
        }
        any_open.set(true);
        let end = |core: &mut Core| core.end_capture(number);
        registry::without_caches(id, |lane| lane.key == capture.key, end)?
    })?;
    if any_open.get() {
        return Ok(());
    }
    Err(Error::new(
        Status::InvalidArgument,
        format!("capture {number} is not open: it has ended already"),
    ))
}

/// The capture's graph is gone: its memory is everyone's after the work queued so far.
pub fn release(number: u64) -> Result<()> {
    each_pool_with(number, |id, capture| {
        let pool = registry::pool(id)?;
        let here = |lane: &super::cache::LaneCache| {
            std::ptr::eq(lane.pool, pool) && lane.id == u32::from(capture.lane)
        };
        registry::without_caches(id, here, |core| core.release_capture(number))?
    })
}

/// Runs `f` for every pool that has the capture, whatever it answers for one of them; pools that
/// end meanwhile are passed over. Answers the first error.
fn each_pool_with(number: u64, f: impl Fn(u64, Capture) -> Result<()>) -> Result<()> {
    world::check_world()?;
    let mut all = Err(no_capture(number));
    let mut known = false;
    for id in registry::live_pools() {
        let look = |core: &mut Core| core.captures.get(&number).copied();
        let found = registry::pool(id).and_then(|pool| pool.with_core(id, look));
        let done = match found {
            Ok(Some(capture)) => f(id, capture),
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match done {
            Err(error) if error.status() == Status::InvalidPool => continue,
            done if !known => all = done,
            done => all = all.and(done),
        }
        known = true;
    }
    all
}

fn no_capture(number: u64) -> Error {
    Error::new(Status::InvalidArgument, format!("{number} is no capture: never begun, or released"))
}

// ---- graphs that end by themselves ---------------------------------------------------------

/// Captures whose graph is gone, still to be released.
static GONE: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// How many those are, for a look without the lock.
static GONE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether a graph's end was told and not acted on.
pub fn any_gone() -> bool {
    GONE_COUNT.load(Ordering::Relaxed) > 0
}

/// Notes that a capture's graph is gone. Makes no driver call and waits for none.
pub fn tell_gone(number: u64) {
    if world::check_world().is_err() {
        return;
    }
    let mut gone = GONE.lock().unwrap_or_else(PoisonError::into_inner);
    gone.push(number);
    GONE_COUNT.store(gone.len(), Ordering::Relaxed);
    drop(gone);
    keeper::wake();
}

/// The same as a callback: its word is the capture's number.
pub extern "C" fn graph_gone(word: *mut c_void) {
    let told = std::panic::catch_unwind(|| tell_gone(word.addr() as u64));
    if told.is_err() {
        eprintln!("forebay: a panic in a graph's callback was caught; its memory stays its own");
    }
}

/// Releases captures whose graphs are gone, as far as that is possible now.
pub fn release_gone() {
    if !any_gone() {
        return;
    }
    let waiting = std::mem::take(&mut *GONE.lock().unwrap_or_else(PoisonError::into_inner));
    let mut left = Vec::new();
    for number in waiting {
        match release(number) {
            Err(error) if error.status() == Status::InvalidArgument => {
                tracing::warn!(%error, "a graph's end names no capture");
            }
            Err(error) => {
                tracing::debug!(%error, "a capture is released later");
                left.push(number);
            }
            Ok(()) => {}
        }
    }
    let mut gone = GONE.lock().unwrap_or_else(PoisonError::into_inner);
    gone.append(&mut left);
    GONE_COUNT.store(gone.len(), Ordering::Relaxed);
}

/// Has the capture released by itself once the graph, and all instantiated from it, are gone.
pub fn follow_graph(number: u64, graph: u64) -> Result<()> {
    let drivers = std::cell::RefCell::new(Vec::new());
    each_pool_with(number, |id, _| {
        let found = registry::pool(id)?.with_core(id, |core| core.driver().clone())?;
        drivers.borrow_mut().push(found);
        Ok(())
    })?;
    // All pools with the capture are of the one device that the stream belongs to, but not every
    // one's driver may watch a graph.
    let mut refused = no_capture(number);
    for driver in drivers.into_inner() {
        match driver.on_graph_release(graph, graph_gone, number as usize) {
            Ok(()) => return Ok(()),
            Err(error) => {
                refused = control::driver_error(error);
                if !matches!(error.code, Code::NotSupported | Code::ContextLost) {
                    break;
                }
            }
        }
    }
    Err(refused)
}

// ---- captures that nobody told of ----------------------------------------------------------

/// The error for a stream that captures without the pool's knowledge.
#[cold]
pub fn undeclared(stream: u64) -> Error {
    Error::new(
        Status::InvalidStream,
        format!(
            "stream {stream:#x} captures a graph that the pool was not told of: call \
             forebay_capture_begin before the capture starts"
        ),
    )
}

impl Core {
    /// Checks with the driver that the lane's stream is alive, is the one that the lane began
    /// with, and captures nothing that the pool was not told of; for the sync lane, that no known
    /// stream does (`FOREBAY_DEBUG=streams`).
    pub(super) fn check_lane(&mut self, lane: LaneId) -> std::result::Result<(), Refusal> {
        match self.lanes.kind(lane) {
            LaneKind::Stream(stream) => {
                self.driver.0.stream_check(stream).map_err(|_| Refusal::Stale)?;
                if let Some(id) = self.driver.0.stream_id(stream)
                    && *self.stream_ids.entry(lane).or_insert(id) != id
                {
                    return Err(Refusal::Reused(stream.0));
                }
                let captures = self.driver.0.stream_capturing(stream);
                if captures { Err(Refusal::Capturing(stream.0)) } else { Ok(()) }
            }
            LaneKind::Sync => {
                self.undeclared_capture().map_or(Ok(()), |s| Err(Refusal::Capturing(s.0)))
            }
            LaneKind::Capture(_) | LaneKind::Unused => Ok(()),
        }
    }

    /// With `FOREBAY_DEBUG=streams`, fails while a known stream captures untold.
    pub(super) fn check_captures(&self) -> Result<()> {
        match self.undeclared_capture().filter(|_| self.settings.debug.streams) {
            Some(stream) => Err(undeclared(stream.0)),
            None => Ok(()),
        }
    }

    /// Fails while a capture is open on the stream: an event recorded or awaited there would
    /// become part of its graph.
    pub(super) fn outside_capture(&self, stream: u64) -> Result<()> {
        let key = (self.id << HANDLE_SHIFT) ^ stream;
        if self.captures.values().any(|capture| capture.open && capture.key == key) {
            return Err(Error::new(
                Status::Busy,
                format!("a graph capture is open on stream {stream:#x}; end it first"),
            ));
        }
        Ok(())
    }

    /// Fails while any capture is open: nothing may be unmapped.
    pub(super) fn without_captures(&self) -> Result<()> {
        if self.lanes.open_captures() == 0 || self.fuse.is_blown() {
            return Ok(());
        }
        Err(Error::new(
            Status::Busy,
            "a graph capture is open on the pool's device, and nothing is unmapped meanwhile; end \
             it first",
        ))
    }

    fn undeclared_capture(&self) -> Option<StreamHandle> {
        let told = |stream: &StreamHandle| {
            let key = (self.id << HANDLE_SHIFT) ^ stream.0;
            self.captures.values().any(|capture| capture.open && capture.key == key)
        };
        let mut streams = self.lanes.streams().into_iter();
        streams.find(|stream| !told(stream) && self.driver.0.stream_capturing(*stream))
    }
}
