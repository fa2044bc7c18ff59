//! Streams: handles, queues, and what CUDA orders between them.
//!
//! Owns the tables of handles and default streams, and the one place where an entry joins a
//! queue. Promises that a destroyed stream's queued work still completes, that its handle serves
//! a later stream (on purpose: programs that keep state by handle must notice), that the legacy
//! stream waits for all earlier work of its context's blocking streams and they for its, and that
//! non-blocking streams are ordered with neither. It runs nothing. Cost: submitting is O(log
//! streams); on the legacy stream O(streams of the context).

use std::collections::{BTreeMap, VecDeque};
use std::thread::ThreadId;

use super::capture::Member;
use super::{Action, Code, Context, Engine, Point, Range, State, Uid, Work, code};

/// The handle of the legacy default stream (`CU_STREAM_LEGACY`).
pub const LEGACY: u64 = 1;
/// The handle of the per-thread default stream (`CU_STREAM_PER_THREAD`).
pub const PER_THREAD: u64 = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

/// Stream handles look like addresses of this region, which no program has mapped.
const HANDLE_BASE: u64 = 0x7351_0000_0000;
const HANDLE_STEP: u64 = 0x40;
/// The greatest priority (numerically least) and the least.
pub const PRIORITY_GREATEST: i32 = -5;
/// The default, and least, priority.
pub const PRIORITY_LEAST: i32 = 0;

/// What a stream is ordered with besides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The context's legacy default stream.
    Legacy,
    /// A thread's own default stream; ordered with the legacy stream.
    PerThread,
    /// Made by the program; ordered with the legacy stream.
    Blocking,
    /// Made by the program with `CU_STREAM_NON_BLOCKING`.
    NonBlocking,
    /// Carries one node of a graph's launch.
    Node,
}

impl StreamKind {
    fn meets_legacy(self) -> bool {
        matches!(self, StreamKind::PerThread | StreamKind::Blocking)
    }
}

/// One entry of a queue.
pub(crate) struct Entry {
    pub seq: u64,
    pub action: Action,
    /// Points in other queues that must have been passed.
    pub deps: Vec<Point>,
}

/// One stream's queue. It outlives the stream's handle until it is empty.
pub(crate) struct Queue {
    pub context: Context,
    pub device: i32,
    pub kind: StreamKind,
    pub flags: u32,
    pub priority: i32,
    /// Handle while the program has one; 0 for default streams, nodes and destroyed streams.
    pub handle: u64,
    pub entries: VecDeque<Entry>,
    /// Number of the last entry ever queued.
    pub tail: u64,
    /// Number of the last entry done.
    pub done: u64,
    /// Virtual time at which the last queued entry ends.
    pub tail_us: f64,
    /// Turns that the queue is still held back.
    pub hold: u64,
    /// The head is being run.
    pub busy: bool,
    /// `progress` when the head was last tried in vain.
    pub tried: Option<u64>,
    /// The last legacy entry this queue has been ordered behind.
    pub legacy_seen: u64,
    pub capture: Option<Member>,
}

/// Handles and default streams.
#[derive(Default)]
pub(crate) struct Streams {
    by_handle: BTreeMap<u64, Uid>,
    free: Vec<u64>,
    slots: u64,
    legacy: BTreeMap<Context, Uid>,
    per_thread: Vec<(ThreadId, Context, Uid)>,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.by_handle.len()
    }
}

/// What the program said about a stream it calls with.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The context current to the calling thread, if any.
    pub context: Option<Context>,
    /// That context's device.
    pub device: i32,
    /// Whether handle 0 means the per-thread stream (`_ptsz` and `_ptds` entries).
    pub per_thread: bool,
}

/// What is known of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Identity, never used twice.
    pub uid: Uid,
    /// Its context.
    pub context: Context,
    /// Its device.
    pub device: i32,
    /// Flags it was made with.
    pub flags: u32,
    /// Priority, clamped.
    pub priority: i32,
    /// What it is ordered with.
    pub kind: StreamKind,
}

impl Engine {
    /// Makes a stream. A handle that a destroyed stream had is given again three times in four.
    pub fn create_stream(
        &self,
        context: Context,
        device: i32,
        flags: u32,
        priority: i32,
    ) -> Result<u64, Code> {
        if flags & !NON_BLOCKING != 0 {
            return Err(code::INVALID_VALUE);
        }
        let kind = match flags & NON_BLOCKING {
            0 => StreamKind::Blocking,
            _ => StreamKind::NonBlocking,
        };
        let mut state = self.lock();
        let uid = state.add_queue(context, device, kind);
        let handle = state.stream_handle();
        state.streams.by_handle.insert(handle, uid);
        state.dead_handles.remove(&handle);
        if let Some(queue) = state.queues.get_mut(&uid) {
            queue.handle = handle;
            queue.flags = flags;
            queue.priority = priority.clamp(PRIORITY_GREATEST, PRIORITY_LEAST);
        }
        Ok(handle)
    }

    /// Destroys a stream: the handle is dead at once, queued work still completes. A capture that
    /// the stream is part of becomes invalid; if it began here, it ends.
    pub fn destroy_stream(&self, handle: u64) -> Result<(), Code> {
        if handle <= PER_THREAD {
            return Err(code::INVALID_HANDLE);
        }
        let mut state = self.lock();
        let Some(uid) = state.streams.by_handle.remove(&handle) else {
            let text = state.unknown("cuStreamDestroy", "stream", handle);
            drop(state);
            self.report("a stream that is not there", text);
            return Err(code::INVALID_HANDLE);
        };
        state.streams.free.push(handle);
        state.dead_handles.insert(handle);
        state.leave_capture(uid);
        if let Some(queue) = state.queues.get_mut(&uid) {
            queue.handle = 0;
        }
        state.bury(uid);
        Ok(())
    }

    /// Finds the stream that `handle` means to this caller, making default streams as needed.
    pub fn stream(&self, handle: u64, caller: Caller) -> Result<Info, Code> {
        let mut state = self.lock();
        match state.resolve(handle, caller) {
            Ok(uid) => state.info(uid).ok_or(code::INVALID_HANDLE),
            Err(code::INVALID_HANDLE) => {
                let text = state.unknown("a stream call", "stream", handle);
                drop(state);
                self.report("a stream that is not there", text);
                Err(code::INVALID_HANDLE)
            }
            Err(other) => Err(other),
        }
    }

    /// Puts an entry at the end of a stream, or, if the stream is being captured, a node into the
    /// capture's graph. `cost_us` is its virtual duration.
    pub fn submit(&self, uid: Uid, action: Action, cost_us: f64) -> Result<Option<Point>, Code> {
        let mut state = self.lock();
        if state.captured(uid)? {
            state.capture_node(uid, action)?;
            return Ok(None);
        }
        state.implicit(uid)?;
        let wrong = match &action {
            Action::Work(work) | Action::Until(work, _) => self.check_order(&state, uid, work),
            _ => None,
        };
        let point = state.push(uid, action, Vec::new(), self.now_us(), cost_us);
        drop(state);
        if let Some((kind, text)) = wrong {
            self.report(kind, text);
        }
        self.start_idler();
        Ok(Some(point))
    }

    /// Puts an entry at the end of a stream, behind all that some contexts have been given so far
    /// and before all that they will be given, in any stream of theirs.
    pub fn submit_between(
        &self,
        uid: Uid,
        action: Action,
        cost_us: f64,
        contexts: &[Context],
    ) -> Result<Point, Code> {
        let mut state = self.lock();
        state.implicit(uid)?;
        let before = contexts.iter().flat_map(|context| state.context_tails(*context)).collect();
        let point = state.push(uid, action, before, self.now_us(), cost_us);
        for context in contexts {
            state.context_waits.entry(*context).or_default().push(point);
        }
        drop(state);
        self.start_idler();
        Ok(point)
    }

    /// Everything that `uid` has been given so far: for the legacy stream also what blocking
    /// streams of the context have.
    pub fn tail(&self, uid: Uid) -> Vec<Point> {
        self.lock().tails(uid)
    }

    /// Everything that any stream of `context` has been given so far.
    pub fn context_tail(&self, context: Context) -> Vec<Point> {
        self.lock().context_tails(context)
    }

    /// Whether all `points` have been passed.
    pub fn all_passed(&self, points: &[Point]) -> bool {
        let state = self.lock();
        points.iter().all(|p| state.passed(*p))
    }

    /// A context is gone: its streams' and events' handles are dead, its queued work is dropped
    /// and its captures end.
    pub fn context_destroyed(&self, context: Context) {
        let mut state = self.lock();
        state.contexts.remove(&context);
        while state.driving {
            state = self.sleep(state, std::time::Duration::from_millis(10));
        }
        let gone: Vec<Uid> =
            state.queues.iter().filter(|(_, q)| q.context == context).map(|(u, _)| *u).collect();
        for uid in gone {
            state.leave_capture(uid);
            if let Some(queue) = state.queues.remove(&uid)
                && queue.handle != 0
            {
                state.streams.by_handle.remove(&queue.handle);
                state.streams.free.push(queue.handle);
                state.dead_handles.insert(queue.handle);
            }
        }
        state.streams.legacy.remove(&context);
        state.streams.per_thread.retain(|(_, c, _)| *c != context);
        state.faults.remove(&context);
        state.context_waits.remove(&context);
        state.forget_events(context);
        drop(state);
        self.announce();
    }
}

impl State {
    pub(crate) fn add_queue(&mut self, context: Context, device: i32, kind: StreamKind) -> Uid {
        let uid = self.fresh();
        let queue = Queue {
            context,
            device,
            kind,
            flags: 0,
            priority: PRIORITY_LEAST,
            handle: 0,
            entries: VecDeque::new(),
            tail: 0,
            done: 0,
            tail_us: 0.0,
            hold: 0,
            busy: false,
            tried: None,
            legacy_seen: 0,
            capture: None,
        };
        self.queues.insert(uid, queue);
        uid
    }

    fn stream_handle(&mut self) -> u64 {
        let free = self.streams.free.len() as u64;
        if free > 0 && self.rng.below(4) != 0 {
            let at = self.rng.below(free) as usize;
            return self.streams.free.swap_remove(at);
        }
        self.streams.slots += 1;
        HANDLE_BASE + self.streams.slots * HANDLE_STEP
    }

    /// A sentence about a handle that means nothing.
    pub(crate) fn unknown(&self, call: &str, what: &str, handle: u64) -> String {
        let state = match self.dead_handles.contains(&handle) {
            true => "has been destroyed",
            false => "was never given out",
        };
        format!("{call}: {what} {handle:#x} {state}")
    }

    pub(crate) fn info(&self, uid: Uid) -> Option<Info> {
        self.queues.get(&uid).map(|q| Info {
            uid,
            context: q.context,
            device: q.device,
            flags: q.flags,
            priority: q.priority,
            kind: q.kind,
        })
    }

    fn resolve(&mut self, handle: u64, caller: Caller) -> Result<Uid, Code> {
        let legacy = handle == LEGACY || (handle == 0 && !caller.per_thread);
        if handle > PER_THREAD {
            return self.streams.by_handle.get(&handle).copied().ok_or(code::INVALID_HANDLE);
        }
        const INVALID_CONTEXT: Code = 201;
        let context = caller.context.ok_or(INVALID_CONTEXT)?;
        if legacy {
            if let Some(uid) = self.streams.legacy.get(&context) {
                return Ok(*uid);
            }
            let uid = self.add_queue(context, caller.device, StreamKind::Legacy);
            self.streams.legacy.insert(context, uid);
            return Ok(uid);
        }
        let thread = std::thread::current().id();
        let known = self.streams.per_thread.iter().find(|(t, c, _)| *t == thread && *c == context);
        if let Some((_, _, uid)) = known {
            return Ok(*uid);
        }
        let uid = self.add_queue(context, caller.device, StreamKind::PerThread);
        self.streams.per_thread.push((thread, context, uid));
        Ok(uid)
    }

    /// Removes a queue that nobody can use any more.
    pub(crate) fn bury(&mut self, uid: Uid) {
        let dead = self.queues.get(&uid).is_some_and(|q| {
            q.entries.is_empty()
                && q.handle == 0
                && !matches!(q.kind, StreamKind::Legacy | StreamKind::PerThread)
        });
        if dead {
            self.queues.remove(&uid);
        }
    }

    /// Refuses work on the legacy stream while a blocking stream of its context is captured, and
    /// makes those captures invalid.
    pub(crate) fn implicit(&mut self, uid: Uid) -> Result<(), Code> {
        let Some(queue) = self.queues.get(&uid) else { return Err(code::INVALID_HANDLE) };
        if queue.kind != StreamKind::Legacy {
            return Ok(());
        }
        let context = queue.context;
        let hit = self.captures_of_blocking(context);
        if hit.is_empty() {
            return Ok(());
        }
        self.invalidate(&hit);
        Err(code::CAPTURE_IMPLICIT)
    }

    /// Queues one entry, behind everything CUDA orders it behind, and `deps`.
    pub(crate) fn push(
        &mut self,
        uid: Uid,
        action: Action,
        mut deps: Vec<Point>,
        now_us: f64,
        cost_us: f64,
    ) -> Point {
        let Some(queue) = self.queues.get(&uid) else {
            return Point { uid, seq: 0, at_us: now_us };
        };
        let context = queue.context;
        self.context_deps(context, &mut deps);
        let (cross, seen) = self.cross_deps(uid);
        deps.extend(cross);
        let begin = deps.iter().fold(now_us, |t, d| t.max(d.at_us));
        deps.retain(|d| !self.passed(*d));
        self.seq += 1;
        let seq = self.seq;
        let hold = 1 + self.rng.below(self.options.hold_turns_max.max(1));
        let Some(queue) = self.queues.get_mut(&uid) else {
            return Point { uid, seq: 0, at_us: now_us };
        };
        queue.legacy_seen = seen;
        if queue.entries.is_empty() {
            queue.hold = hold;
        }
        let at_us = begin.max(queue.tail_us) + cost_us;
        queue.tail = seq;
        queue.tail_us = at_us;
        queue.entries.push_back(Entry { seq, action, deps });
        Point { uid, seq, at_us }
    }

    /// What the legacy stream adds to an entry's order: points in other streams, and the last
    /// legacy entry that the stream is then behind.
    fn cross_deps(&self, uid: Uid) -> (Vec<Point>, u64) {
        let Some(queue) = self.queues.get(&uid) else { return (Vec::new(), 0) };
        let (context, seen) = (queue.context, queue.legacy_seen);
        if queue.kind == StreamKind::Legacy {
            let met = |q: &Queue| q.context == context && q.kind.meets_legacy();
            let met = self.queues.iter().filter(|(_, q)| met(q));
            let points = met.map(|(u, q)| Point { uid: *u, seq: q.tail, at_us: q.tail_us });
            return (points.collect(), seen);
        }
        let legacy = self.streams.legacy.get(&context).filter(|_| queue.kind.meets_legacy());
        match legacy.and_then(|uid| Some((*uid, self.queues.get(uid)?))) {
            Some((uid, q)) if q.tail > seen => {
                (vec![Point { uid, seq: q.tail, at_us: q.tail_us }], q.tail)
            }
            _ => (Vec::new(), seen),
        }
    }

    /// All that a stream's next entry would come behind.
    pub(crate) fn would_wait_for(&self, uid: Uid) -> Vec<Point> {
        let (mut points, _) = self.cross_deps(uid);
        if let Some(queue) = self.queues.get(&uid) {
            points.push(Point { uid, seq: queue.tail, at_us: queue.tail_us });
            points.extend(self.context_waits.get(&queue.context).into_iter().flatten());
        }
        points
    }

    /// A queued item of another stream that touches the range and that the stream's next entry
    /// does not come behind, in words.
    pub(crate) fn unordered_use(&self, uid: Uid, range: &Range) -> Option<String> {
        let behind = self.needed(&self.would_wait_for(uid));
        let end = range.start.saturating_add(range.len);
        let touches = |work: &Work| {
            let mut all = work.reads.iter().chain(&work.writes);
            all.any(|r| r.start < end && range.start < r.start.saturating_add(r.len))
        };
        self.queues.iter().filter(|(other, _)| **other != uid).find_map(|(other, queue)| {
            let known = behind.get(other).copied().unwrap_or(0);
            let entry =
                queue.entries.iter().filter(|e| e.seq > known).find(|e| match &e.action {
                    Action::Work(work) | Action::Until(work, _) => touches(work),
                    _ => false,
                })?;
            Some(format!("item {} of stream {:#x} (identity {other})", entry.seq, queue.handle))
        })
    }

    fn context_deps(&mut self, context: Context, deps: &mut Vec<Point>) {
        let Some(waits) = self.context_waits.get(&context) else { return };
        let open: Vec<Point> = waits.iter().filter(|p| !self.passed(**p)).copied().collect();
        deps.extend(open.iter().copied());
        match open.is_empty() {
            true => self.context_waits.remove(&context),
            false => self.context_waits.insert(context, open),
        };
    }

    pub(crate) fn tails(&self, uid: Uid) -> Vec<Point> {
        let Some(queue) = self.queues.get(&uid) else { return Vec::new() };
        let (context, legacy) = (queue.context, queue.kind == StreamKind::Legacy);
        let points = self.queues.iter().filter(|(u, q)| {
            **u == uid || (legacy && q.context == context && q.kind.meets_legacy())
        });
        points.map(|(u, q)| Point { uid: *u, seq: q.tail, at_us: q.tail_us }).collect()
    }

    pub(crate) fn context_tails(&self, context: Context) -> Vec<Point> {
        let of_context = self.queues.iter().filter(|(_, q)| q.context == context);
        of_context.map(|(u, q)| Point { uid: *u, seq: q.tail, at_us: q.tail_us }).collect()
    }
}
