//! Events: marks in the order of a stream or of a whole context.
//!
//! Owns the table of events. Promises that a wait takes the mark as it is at the call and is not
//! moved by a later record; that an event never recorded holds nobody up; that a destroyed
//! event's mark still counts for those who wait for it already; and that an event recorded in a
//! capture can be neither queried nor awaited by the host. Cost: O(log events); a context's
//! record is O(streams).

use super::capture::CaptureId;
use super::graph::NodeId;
use super::stream::StreamKind;
use super::{Action, Code, Context, Engine, Kind, Point, State, Uid, code};

/// `CU_EVENT_DISABLE_TIMING`.
pub const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
pub const INTERPROCESS: u32 = 4;
/// All flags of `cuEventCreate`: blocking sync, disable timing, interprocess.
const FLAGS: u32 = 1 | DISABLE_TIMING | INTERPROCESS;
/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`.
pub const EXTERNAL: u32 = 1;

/// Event handles look like addresses of this region.
const HANDLE_BASE: u64 = 0x7345_0000_0000;
const HANDLE_STEP: u64 = 0x40;

/// What an event stands for.
#[derive(Clone, Debug)]
pub(crate) enum Mark {
    /// Never recorded: an empty set of work.
    Never,
    /// A place in a stream's order.
    Point(Point),
    /// A place in a capture.
    Captured { capture: CaptureId, nodes: Vec<NodeId> },
}

/// One event.
pub(crate) struct Event {
    pub context: Context,
    pub flags: u32,
    pub mark: Mark,
}

impl Engine {
    /// Makes an event. A handle that a destroyed event had is given again every other time.
    pub fn create_event(&self, context: Context, flags: u32) -> Result<u64, Code> {
        let lone_ipc = flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS;
        if flags & !FLAGS != 0 || lone_ipc {
            return Err(code::INVALID_VALUE);
        }
        let mut state = self.lock();
        let free = state.free_events.len() as u64;
        let handle = match free > 0 && state.rng.below(2) == 0 {
            true => {
                let at = state.rng.below(free) as usize;
                state.free_events.swap_remove(at)
            }
            false => HANDLE_BASE + state.fresh() * HANDLE_STEP,
        };
        state.dead_handles.remove(&handle);
        state.events.insert(handle, Event { context, flags, mark: Mark::Never });
        Ok(handle)
    }

    /// Destroys an event. Work that waits for it goes on waiting for its mark.
    pub fn destroy_event(&self, handle: u64) -> Result<(), Code> {
        let mut state = self.lock();
        if state.events.remove(&handle).is_none() {
            let text = state.unknown("cuEventDestroy", "event", handle);
            drop(state);
            self.report("an event that is not there", text);
            return Err(code::INVALID_HANDLE);
        }
        state.free_events.push(handle);
        state.dead_handles.insert(handle);
        Ok(())
    }

    fn known_event(&self, call: &str, handle: u64) -> Result<(), Code> {
        let state = self.lock();
        if state.events.contains_key(&handle) {
            return Ok(());
        }
        let text = state.unknown(call, "event", handle);
        drop(state);
        self.report("an event that is not there", text);
        Err(code::INVALID_HANDLE)
    }

    /// The context an event was made in.
    pub fn event_context(&self, handle: u64) -> Result<Context, Code> {
        self.known_event("an event call", handle)?;
        self.lock().events.get(&handle).map(|e| e.context).ok_or(code::INVALID_HANDLE)
    }

    /// The flags an event was made with.
    pub fn event_flags(&self, handle: u64) -> Option<u32> {
        self.lock().events.get(&handle).map(|e| e.flags)
    }

    /// Moves the event's mark to the present end of a stream. With [`EXTERNAL`] in a capture, a
    /// node is made that records when the graph runs; outside of a capture that is an error.
    pub fn record(&self, handle: u64, uid: Uid, flags: u32) -> Result<(), Code> {
        self.known_event("cuEventRecord", handle)?;
        if flags & !EXTERNAL != 0 {
            return Err(code::INVALID_VALUE);
        }
        let mut state = self.lock();
        let stream = state.info(uid).ok_or(code::INVALID_HANDLE)?;
        let event = state.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
        if event.context != stream.context {
            return Err(code::INVALID_HANDLE);
        }
        if state.captured(uid)? {
            if flags & EXTERNAL != 0 {
                return state.capture_event_node(uid, Kind::EventRecord, handle);
            }
            let mark = state.captured_mark(uid);
            return state.mark_event(handle, mark);
        }
        if flags & EXTERNAL != 0 {
            return Err(code::INVALID_VALUE);
        }
        state.implicit(uid)?;
        let point = state.push(uid, Action::Mark(Kind::Empty), Vec::new(), self.now_us(), 0.0);
        let done = state.mark_event(handle, Mark::Point(point));
        drop(state);
        self.start_idler();
        done
    }

    /// Makes later work of a stream wait for the event's present mark.
    pub fn stream_wait(&self, uid: Uid, handle: u64, flags: u32) -> Result<(), Code> {
        self.known_event("cuStreamWaitEvent", handle)?;
        if flags & !EXTERNAL != 0 {
            return Err(code::INVALID_VALUE);
        }
        let mut state = self.lock();
        let mark = state.events.get(&handle).map(|e| e.mark.clone()).ok_or(code::INVALID_HANDLE)?;
        let capturing = state.captured(uid)?;
        if capturing && flags & EXTERNAL != 0 {
            return state.capture_event_node(uid, Kind::WaitEvent, handle);
        }
        if flags & EXTERNAL != 0 {
            return Err(code::INVALID_VALUE);
        }
        match mark {
            Mark::Captured { capture, nodes } => state.join_capture(uid, capture, nodes),
            _ if capturing => {
                let hit: Vec<CaptureId> = state.capture_of(uid).into_iter().collect();
                state.invalidate(&hit);
                Err(code::CAPTURE_ISOLATION)
            }
            Mark::Never => Ok(()),
            Mark::Point(point) => {
                state.implicit(uid)?;
                state.push(uid, Action::Mark(Kind::Empty), vec![point], self.now_us(), 0.0);
                Ok(())
            }
        }
    }

    /// Moves the event's mark behind everything that any stream of the context has been given.
    /// Refused, and every capture of the context made invalid, while one is open.
    pub fn record_context(&self, handle: u64, context: Context, device: i32) -> Result<(), Code> {
        self.known_event("cuCtxRecordEvent", handle)?;
        let mut state = self.lock();
        if state.events.get(&handle).map(|e| e.context) != Some(context) {
            return Err(code::INVALID_HANDLE);
        }
        let hit = state.captures_of_context(context);
        if !hit.is_empty() {
            state.invalidate(&hit);
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        let deps = state.context_tails(context);
        let uid = state.add_queue(context, device, StreamKind::Node);
        let point = state.push(uid, Action::Mark(Kind::Empty), deps, self.now_us(), 0.0);
        let done = state.mark_event(handle, Mark::Point(point));
        drop(state);
        self.start_idler();
        done
    }

    /// Makes all later work of a context wait for the event's present mark. Refused, and the
    /// captures made invalid, if the context has one open or the event belongs to one.
    pub fn context_waits(&self, handle: u64, context: Context) -> Result<(), Code> {
        self.known_event("cuCtxWaitEvent", handle)?;
        let mut state = self.lock();
        let mark = state.events.get(&handle).map(|e| e.mark.clone()).ok_or(code::INVALID_HANDLE)?;
        let mut hit = state.captures_of_context(context);
        if let Mark::Captured { capture, .. } = mark {
            hit.push(capture);
        }
        if !hit.is_empty() {
            state.invalidate(&hit);
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        if let Mark::Point(point) = mark {
            state.context_waits.entry(context).or_default().push(point);
        }
        Ok(())
    }

    /// The points a host that queries or awaits the event looks at. A captured event makes its
    /// capture invalid; a recorded one is an unsafe call during captures, one never recorded is
    /// not.
    pub fn event_points(&self, call: &str, handle: u64) -> Result<Vec<Point>, Code> {
        self.known_event(call, handle)?;
        let mut state = self.lock();
        let mark = state.events.get(&handle).map(|e| e.mark.clone()).ok_or(code::INVALID_HANDLE)?;
        match mark {
            Mark::Never => Ok(Vec::new()),
            Mark::Captured { capture, .. } => {
                state.invalidate(&[capture]);
                Err(code::CAPTURED_EVENT)
            }
            Mark::Point(point) => {
                state.unsafe_call()?;
                Ok(vec![point])
            }
        }
    }

    /// Virtual milliseconds between two recorded, passed, timed events.
    pub fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Code> {
        self.known_event("cuEventElapsedTime", start)?;
        self.known_event("cuEventElapsedTime", end)?;
        let state = self.lock();
        let mut at_us = [0.0; 2];
        let mut ready = true;
        for (slot, handle) in at_us.iter_mut().zip([start, end]) {
            let event = state.events.get(&handle).ok_or(code::INVALID_HANDLE)?;
            if event.flags & DISABLE_TIMING != 0 {
                return Err(code::INVALID_HANDLE);
            }
            match event.mark {
                Mark::Never => return Err(code::INVALID_HANDLE),
                Mark::Captured { .. } => return Err(code::CAPTURED_EVENT),
                Mark::Point(point) => {
                    ready &= state.passed(point);
                    *slot = point.at_us;
                }
            }
        }
        match ready {
            true => Ok(((at_us[1] - at_us[0]) / 1000.0) as f32),
            false => Err(code::NOT_READY),
        }
    }
}

impl State {
    pub(crate) fn mark_event(&mut self, handle: u64, mark: Mark) -> Result<(), Code> {
        let event = self.events.get_mut(&handle).ok_or(code::INVALID_HANDLE)?;
        event.mark = mark;
        Ok(())
    }

    /// The present mark's point, for a graph's event wait node.
    pub(crate) fn event_point(&self, handle: u64) -> Option<Point> {
        match self.events.get(&handle)?.mark {
            Mark::Point(point) => Some(point),
            _ => None,
        }
    }

    /// The events of a context that is gone are dead.
    pub(crate) fn forget_events(&mut self, context: Context) {
        let gone: Vec<u64> =
            self.events.iter().filter(|(_, e)| e.context == context).map(|(h, _)| *h).collect();
        for handle in gone {
            self.events.remove(&handle);
            self.free_events.push(handle);
            self.dead_handles.insert(handle);
        }
    }
}
