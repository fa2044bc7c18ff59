//! Streams, events, queued work, captures.
//!
//! Promises the contract of [`crate::driver`] over CUDA's streams and events. Handles are CUDA's
//! own pointers as numbers; CUDA gives no sure way to tell a destroyed handle from a live one, so
//! neither can this room: using one is undefined, as with CUDA. What can be told cheaply is: a
//! stream of another context, a number that no pointer has, a stream that captures.
//!
//! Nothing is recorded on a capturing stream: the record would become part of the program's
//! graph. A fence over the context asks the legacy stream first, which knows of captures on
//! blocking streams; captures on non-blocking streams CUDA does not tell, so they are declared
//! (`forebay_capture_begin`).

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, PoisonError};

use cust_raw::{CUevent, CUstream};

use super::codes;
use super::context::Inside;
use super::newer::RawResult;
use super::table::MISSING;
use super::{CudaDriver, Fallback};
use crate::driver::{Call, Code, DriverError, DriverResult, EventHandle, Scope, StreamHandle};

/// `CU_STREAM_LEGACY`, another name of stream 0.
const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`: another stream on each thread, under one handle.
const PER_THREAD: u64 = 2;
/// No pointer is smaller; CUDA would follow it.
const POINTER_MIN: u64 = 4096;

fn stream_of(stream: StreamHandle) -> CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0 as usize)
}

fn event_of(event: EventHandle) -> CUevent {
    std::ptr::with_exposed_provenance_mut(event.0 as usize)
}

/// Fails for a number that names no stream.
fn plausible(call: Call, stream: StreamHandle) -> DriverResult<()> {
    match stream.0 {
        0 | LEGACY => Ok(()),
        PER_THREAD => Err(DriverError { call, code: Code::NotSupported }),
        1..POINTER_MIN => Err(DriverError { call, code: Code::InvalidHandle }),
        _ => Ok(()),
    }
}

fn live(call: Call, event: EventHandle) -> DriverResult<CUevent> {
    if event.0 < POINTER_MIN {
        return Err(DriverError { call, code: Code::InvalidHandle });
    }
    Ok(event_of(event))
}

/// An answer about an event alone, which is the pool's own: that there is no such event means that
/// its context is gone.
fn of_own_event(call: Call, answer: DriverResult<()>) -> DriverResult<()> {
    answer.map_err(|error| match error.code {
        Code::InvalidHandle => DriverError { call, code: Code::ContextLost },
        _ => error,
    })
}

/// What CUDA calls when a graph's object ends.
struct GraphEnd {
    call: unsafe extern "C" fn(*mut c_void),
    word: usize,
    armed: AtomicBool,
}

/// Runs once, on a thread of CUDA's that may make no CUDA call.
unsafe extern "C" fn graph_ended(word: *mut c_void) {
    // SAFETY: the box that `on_graph_release` leaked for this one call.
    let end = unsafe { Box::from_raw(word.cast::<GraphEnd>()) };
    if end.armed.load(Ordering::Acquire) {
        // SAFETY: as whoever asked for the call promised.
        unsafe { (end.call)(std::ptr::with_exposed_provenance_mut(end.word)) };
    }
}

impl CudaDriver {
    pub(super) fn make_stream(&self) -> DriverResult<StreamHandle> {
        const NON_BLOCKING: u32 = 1;
        let call = Call::StreamCreate;
        let inside = self.contexts.enter(call, true)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a local to fill.
        inside.check(call, unsafe { self.api.stream_create(&raw mut stream, NON_BLOCKING) })?;
        Ok(StreamHandle(stream.expose_provenance() as u64))
    }

    pub(super) fn end_stream(&self, stream: StreamHandle) -> DriverResult<()> {
        let call = Call::StreamDestroy;
        plausible(call, stream)?;
        if stream.0 <= LEGACY {
            return Err(DriverError { call, code: Code::InvalidValue });
        }
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: the caller's live stream, which it uses no more.
        inside.check(call, unsafe { self.api.stream_destroy(stream_of(stream)) })
    }

    pub(super) fn wait_for_stream(&self, stream: StreamHandle) -> DriverResult<()> {
        let call = Call::StreamSynchronize;
        plausible(call, stream)?;
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: the caller's live stream.
        inside.check(call, unsafe { self.api.stream_synchronize(stream_of(stream)) })
    }

    pub(super) fn wait_for_context(&self, call: Call) -> DriverResult<()> {
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: no arguments; inside the context.
        inside.check(call, unsafe { self.api.ctx_synchronize() })
    }

    /// Enters the context to queue work on a stream. Fails, without harm, for the legacy stream
    /// while a blocking stream captures: the work would end that capture.
    fn enter_to_queue(&self, call: Call, stream: StreamHandle) -> DriverResult<Inside<'_>> {
        let inside = self.contexts.enter(call, false)?;
        if stream.0 <= LEGACY && self.is_capturing(&inside, call, stream)? {
            return Err(DriverError { call, code: Code::Other(codes::CAPTURE_UNSUPPORTED) });
        }
        Ok(inside)
    }

    pub(super) fn queue_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        let call = Call::StreamWait;
        plausible(call, stream)?;
        let event = live(call, event)?;
        let inside = self.enter_to_queue(call, stream)?;
        // SAFETY: live handles, as the caller promised.
        let queued = unsafe { self.api.stream_wait_event(stream_of(stream), event, 0) };
        self.of_event(&inside, call, event, queued)?;
        let waits = self.each_peer_mark(event, |mark| {
            // SAFETY: a live stream, and an event of our own in a peer's context.
            let queued = unsafe { self.api.stream_wait_event(stream_of(stream), mark, 0) };
            inside.check(call, queued).map(|()| true)
        });
        waits.map(|_| ())
    }

    /// `Ok` for a stream of this context.
    pub(super) fn check_stream(&self, stream: StreamHandle) -> DriverResult<()> {
        let call = Call::StreamCheck;
        plausible(call, stream)?;
        if stream.0 <= LEGACY {
            return Ok(());
        }
        let inside = self.contexts.enter(call, false)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a local to fill; the caller says that this is a stream.
        let result = unsafe { self.api.stream_get_ctx(stream_of(stream), &raw mut context) };
        match result {
            MISSING => return Ok(()),
            codes::SUCCESS => {}
            // These concern the pool's own context. Of any other the handle is the cause: a stream
            // may belong to a context that is gone.
            sticky if codes::is_sticky(sticky) || sticky == codes::DEINITIALIZED => {
                return inside.check(call, sticky);
            }
            _ => return Err(DriverError { call, code: Code::InvalidHandle }),
        }
        if context != inside.context() {
            tracing::warn!(
                stream = stream.0,
                device = self.ordinal,
                "a stream of another context than the pool's is refused"
            );
            return Err(DriverError { call, code: Code::InvalidHandle });
        }
        Ok(())
    }

    /// What tells a stream from others that had its handle (CUDA 12.0 brought it).
    pub(super) fn id_of_stream(&self, stream: StreamHandle) -> Option<u64> {
        let call = Call::StreamCheck;
        plausible(call, stream).ok()?;
        let _inside = self.contexts.enter(call, false).ok()?;
        let mut id = 0;
        // SAFETY: a local to fill; the caller says that this is a stream.
        let result = unsafe { self.api.stream_get_id(stream_of(stream), &raw mut id) };
        (result == codes::SUCCESS).then_some(id)
    }

    /// Whether a capture is open on a stream, or beside the legacy stream.
    pub(super) fn is_capturing(
        &self,
        inside: &Inside<'_>,
        call: Call,
        stream: StreamHandle,
    ) -> DriverResult<bool> {
        let mut status = 0;
        // SAFETY: a local to fill; a live stream, or the legacy one.
        let result = unsafe { self.api.stream_is_capturing(stream_of(stream), &raw mut status) };
        match result {
            codes::CAPTURE_IMPLICIT => Ok(true),
            MISSING => Ok(false),
            result => inside.check(call, result).map(|()| status != 0),
        }
    }

    /// `Ok` while the context is there. Asks the driver and disturbs no capture.
    pub(super) fn check_alive(&self, call: Call) -> DriverResult<()> {
        let inside = self.contexts.enter(call, true)?;
        self.is_capturing(&inside, call, StreamHandle(0)).map(|_| ())
    }

    pub(super) fn stream_captures(&self, stream: StreamHandle) -> bool {
        let call = Call::StreamCapturing;
        if plausible(call, stream).is_err() {
            return false;
        }
        let Ok(inside) = self.contexts.enter(call, false) else { return false };
        self.is_capturing(&inside, call, stream).unwrap_or(false)
    }

    pub(super) fn call_after_graph(
        &self,
        graph: u64,
        call_back: unsafe extern "C" fn(*mut c_void),
        word: usize,
    ) -> DriverResult<()> {
        /// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, the one flag, which must be given.
        const NO_SYNC: u32 = 1;
        /// `CU_GRAPH_USER_OBJECT_MOVE`: the caller's reference becomes the graph's.
        const MOVE: u32 = 1;
        let call = Call::OnGraphRelease;
        if graph < POINTER_MIN {
            return Err(DriverError { call, code: Code::InvalidHandle });
        }
        let inside = self.contexts.enter(call, true)?;
        self.release_objects();
        let end = GraphEnd { call: call_back, word, armed: AtomicBool::new(true) };
        let end = Box::into_raw(Box::new(end));
        let mut object = std::ptr::null_mut();
        // SAFETY: a local to fill; `graph_ended` takes exactly this pointer, once.
        let made = unsafe {
            let call = Some(graph_ended as unsafe extern "C" fn(*mut c_void));
            self.api.user_object_create(&raw mut object, end.cast(), call, 1, NO_SYNC)
        };
        if let Err(error) = inside.check(call, made) {
            // SAFETY: CUDA did not take it.
            drop(unsafe { Box::from_raw(end) });
            return Err(error);
        }
        let graph = std::ptr::with_exposed_provenance_mut(graph as usize);
        // SAFETY: the caller's live graph, and an object that we hold.
        let kept = unsafe { self.api.graph_retain_user_object(graph, object, 1, MOVE) };
        inside.check(call, kept).inspect_err(|_| {
            // SAFETY: still ours: the object calls back only after the release below.
            unsafe { (*end).armed.store(false, Ordering::Release) };
            self.objects().push(object.expose_provenance());
            self.release_objects();
        })
    }

    fn objects(&self) -> MutexGuard<'_, Vec<usize>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back objects that no graph took; what CUDA refuses is tried again the next time.
    fn release_objects(&self) {
        self.objects().retain(|&object| {
            let object = std::ptr::with_exposed_provenance_mut(object);
            // SAFETY: our one reference, which the graph did not take.
            let released = unsafe { self.api.user_object_release(object, 1) };
            released != codes::SUCCESS
        });
    }

    /// At the driver's end: [`CudaDriver::release_objects`] for the last time.
    pub(super) fn end_objects(&self) {
        if self.objects().is_empty() {
            return;
        }
        if let Ok(_inside) = self.contexts.enter(Call::OnGraphRelease, true) {
            self.release_objects();
        }
        if !self.objects().is_empty() {
            tracing::warn!(device = self.ordinal, "an object of a graph is still held");
        }
    }

    pub(super) fn queue_copy(
        &self,
        to: usize,
        from: usize,
        bytes: usize,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let call = Call::Copy;
        plausible(call, stream)?;
        let inside = self.enter_to_queue(call, stream)?;
        let (to, from) = (to as u64, from as u64);
        // SAFETY: the caller keeps both ranges accessible until the work is done.
        inside.check(call, unsafe { self.api.memcpy_async(to, from, bytes, stream_of(stream)) })
    }

    pub(super) fn queue_fill(
        &self,
        to: usize,
        value: u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let call = Call::Fill;
        plausible(call, stream)?;
        let inside = self.enter_to_queue(call, stream)?;
        // SAFETY: the caller keeps the range accessible until the work is done.
        inside.check(call, unsafe {
            self.api.memset_async(to as u64, value, bytes, stream_of(stream))
        })
    }

    pub(super) fn make_event(&self) -> DriverResult<EventHandle> {
        const DISABLE_TIMING: u32 = 2;
        let call = Call::EventCreate;
        let inside = self.contexts.enter(call, true)?;
        let mut event = std::ptr::null_mut();
        // SAFETY: a local to fill.
        inside.check(call, unsafe { self.api.event_create(&raw mut event, DISABLE_TIMING) })?;
        Ok(EventHandle(event.expose_provenance() as u64))
    }

    pub(super) fn end_event(&self, event: EventHandle) -> DriverResult<()> {
        let call = Call::EventDestroy;
        let event = live(call, event)?;
        let inside = self.contexts.enter(call, true)?;
        self.forget_marks(event);
        // SAFETY: a live event that the caller uses no more.
        inside.check(call, unsafe { self.api.event_destroy(event) })
    }

    pub(super) fn mark(&self, event: EventHandle, scope: Scope) -> DriverResult<()> {
        let call = Call::EventRecord;
        let event = live(call, event)?;
        let stream = match scope {
            Scope::Stream(stream) => stream,
            Scope::Context if self.info.context_events => StreamHandle(0),
            Scope::Context => return Err(DriverError { call, code: Code::NotSupported }),
        };
        plausible(call, stream)?;
        let inside = self.contexts.enter(call, false)?;
        if self.is_capturing(&inside, call, stream)? {
            return Err(DriverError { call, code: Code::Other(codes::CAPTURE_UNSUPPORTED) });
        }
        // What the event marked before counts until it marks something else.
        if scope != Scope::Context {
            // SAFETY: live handles, as the caller promised.
            let recorded = unsafe { self.api.event_record(event, stream_of(stream)) };
            let recorded = self.of_event(&inside, call, event, recorded);
            return recorded.map(|()| self.unmark_peers(event));
        }
        if !self.context_events_refused.load(Ordering::Relaxed) {
            // SAFETY: the event was made in this context.
            let result = unsafe { self.api.ctx_record_event(inside.context(), event) };
            if !matches!(result, codes::NOT_SUPPORTED | MISSING) {
                self.of_event(&inside, call, event, result)?;
                return self.mark_peers(&inside, call, event);
            }
            self.context_events_refused.store(true, Ordering::Relaxed);
            self.announce(Fallback::ContextEventsRefused(result));
        }
        drop(inside);
        // All work before the mark is then done, whatever the event marked before.
        self.wait_for_context(call)?;
        self.wait_for_peers(call).map(|()| self.unmark_peers(event))
    }

    /// The meaning of an answer about an event of the pool's and a stream of the program's: of a
    /// bad handle the event is the cause if it is bad alone.
    #[inline]
    fn of_event(
        &self,
        inside: &Inside<'_>,
        call: Call,
        event: CUevent,
        result: RawResult,
    ) -> DriverResult<()> {
        let answer = inside.check(call, result);
        if !matches!(&answer, Err(error) if error.code == Code::InvalidHandle) {
            return answer;
        }
        // SAFETY: an event of the pool's; one that is gone has just been refused by the driver.
        match unsafe { self.api.event_query(event) } {
            codes::INVALID_HANDLE => of_own_event(call, answer),
            _ => answer,
        }
    }

    pub(super) fn has_passed(&self, event: EventHandle) -> DriverResult<bool> {
        let call = Call::EventQuery;
        let event = live(call, event)?;
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: a live event.
        match unsafe { self.api.event_query(event) } {
            codes::NOT_READY => return Ok(false),
            result => of_own_event(call, inside.check(call, result))?,
        }
        // SAFETY: events of our own in peers' contexts.
        self.each_peer_mark(event, |mark| match unsafe { self.api.event_query(mark) } {
            codes::NOT_READY => Ok(false),
            result => inside.check(call, result).map(|()| true),
        })
    }

    pub(super) fn wait_for_event(&self, event: EventHandle) -> DriverResult<()> {
        let call = Call::EventSynchronize;
        let event = live(call, event)?;
        let inside = self.contexts.enter(call, true)?;
        // SAFETY: a live event.
        of_own_event(call, inside.check(call, unsafe { self.api.event_synchronize(event) }))?;
        let waited = self.each_peer_mark(event, |mark| {
            // SAFETY: an event of our own in a peer's context.
            inside.check(call, unsafe { self.api.event_synchronize(mark) }).map(|()| true)
        });
        waited.map(|_| ())
    }
}
