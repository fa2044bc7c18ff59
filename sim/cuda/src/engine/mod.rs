//! The asynchronous half of the simulated driver: streams, events, the scheduler, captures, graphs.
//!
//! Owns every queue of work, every stream and event handle, captures, graphs and user objects,
//! behind one lock. Promises that one stream's work runs in its order; that nothing else is
//! ordered unless CUDA orders it (events, the legacy stream, a graph's edges, stream memory
//! operations); that work runs late and, between independent streams, out of order, by a seed;
//! and that a work item only runs while every range it names is accessible, checked at that
//! moment and held until it ends. It must not call into the world (contexts, settings): callers
//! give the context, the device and the virtual time with each call.
//!
//! Lock order: world, engine, memory. No lock of the engine is held while an item's body, a host
//! function or a destructor runs.
//!
//! Who runs the work: threads that wait (they run what they wait for, and now and then something
//! else), every call of the driver ([`Engine::tick`]: maybe one item), and, when the program has
//! made no call for a while, a background thread. One item runs at a time. With one thread in the
//! program the order is a function of the seed and of the calls made, save that the background
//! thread acts by the wall clock; the idle time is long so that a program that keeps calling
//! never meets it.
//!
//! Cost: submitting is O(log streams) plus one entry for each stream a legacy item waits for; a
//! turn is O(streams).

pub mod bytes;
pub mod capture;
pub mod event;
pub mod graph;
pub mod graphmem;
pub mod guard;
pub mod host;
pub mod order;
pub mod pool;
pub mod sched;
pub mod stream;
pub mod userobj;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::cost::Clock;
use crate::entry::Wait;
use crate::memory::Memory;
use crate::misuse;
use crate::rng::Rng;
use crate::settings::{Schedule, Settings};
use crate::world::ContextState;

use capture::{Capture, CaptureId};
use event::Event;
use graph::{Exec, Graph};
use graphmem::GraphMemory;
use host::{HostCall, HostThread};
use pool::Pools;
use stream::{Queue, Streams};
use userobj::UserObject;

/// A context, by its handle. The engine never looks behind it.
pub type Context = u64;
/// A stream's identity, never used twice, unlike its handle.
pub type Uid = u64;
/// A result code of `cuda.h`.
pub type Code = u32;

/// Result codes the engine answers with (names and numbers of `cuda.h`).
pub mod code {
    /// A bad argument.
    pub const INVALID_VALUE: u32 = 1;
    /// There is no memory.
    pub const OUT_OF_MEMORY: u32 = 2;
    /// The stream or event is not known.
    pub const INVALID_HANDLE: u32 = 400;
    /// The call does not fit the state of the stream.
    pub const ILLEGAL_STATE: u32 = 401;
    /// Work is not done.
    pub const NOT_READY: u32 = 600;
    /// A queued item touched memory that is not accessible. Sticks to the context.
    pub const ILLEGAL_ADDRESS: u32 = 700;
    /// Not allowed here, as from a host function.
    pub const NOT_PERMITTED: u32 = 800;
    /// The simulation does not do this.
    pub const NOT_SUPPORTED: u32 = 801;
    /// Not allowed while a capture is open.
    pub const CAPTURE_UNSUPPORTED: u32 = 900;
    /// The capture has been made invalid before.
    pub const CAPTURE_INVALIDATED: u32 = 901;
    /// Two captures would become one.
    pub const CAPTURE_MERGE: u32 = 902;
    /// The capture did not begin in this stream.
    pub const CAPTURE_UNMATCHED: u32 = 903;
    /// A forked stream was not joined.
    pub const CAPTURE_UNJOINED: u32 = 904;
    /// A dependency would cross the capture's border.
    pub const CAPTURE_ISOLATION: u32 = 905;
    /// The legacy stream would depend on a capture.
    pub const CAPTURE_IMPLICIT: u32 = 906;
    /// The event was last recorded in a capture.
    pub const CAPTURED_EVENT: u32 = 907;
    /// The capture belongs to another thread.
    pub const CAPTURE_WRONG_THREAD: u32 = 908;
}

/// A piece of device-visible address space (device memory, or pinned host memory) that queued
/// work touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// The device that touches it.
    pub device: i32,
    /// The work is a copy: the device that the memory lies in may do it as well.
    pub copy: bool,
}

/// Why an item was not allowed to run.
#[derive(Clone, Debug)]
pub struct RangeFault {
    /// The range that is not accessible.
    pub range: Range,
    /// Whether the item would have written it.
    pub write: bool,
    /// What is known: not mapped, no access, which call unmapped it.
    pub why: String,
}

/// The memory map, as the engine sees it.
pub trait MemoryCheck: Send + Sync {
    /// Runs `body` if all of `reads` may be read and all of `writes` written, each by its
    /// device, and lets no mapping change until it returns. Otherwise `body` does not run.
    fn guarded(
        &self,
        reads: &[Range],
        writes: &[Range],
        body: &mut dyn FnMut(View<'_>),
    ) -> Result<(), RangeFault>;

    /// Gives a pool's block back to the device.
    fn free(&self, at: u64);

    /// Gives a graph's block pages, if it has none.
    fn back(&self, _at: u64) -> Result<(), Code> {
        Ok(())
    }

    /// Takes a graph's block its pages, and leaves them to the device's graphs.
    fn unback(&self, _at: u64) {}

    /// Ends a graph's block, and leaves its pages to the device's graphs.
    fn retire(&self, _at: u64) {}

    /// Gives what a device's graphs have left back to it.
    fn trim(&self, _device: i32) {}

    /// Bytes that a device's graphs have left.
    fn left(&self, _device: i32) -> u64 {
        0
    }
}

/// Where this process reads and writes what programs see at an address. Good for the granule
/// of 2 MiB around the address.
pub type View<'a> = &'a dyn Fn(u64) -> u64;

/// Takes reports of misuse: a kind, and a sentence.
pub type Misuse = Arc<dyn Fn(&str, String) + Send + Sync>;

/// What a work item does when all its ranges are accessible. An error is misuse that the
/// item itself found; it sticks to the context like an illegal address.
pub type Body = Arc<dyn Fn(View<'_>) -> Result<(), String> + Send + Sync>;

/// What a spinning item asks again and again.
pub type Test = Arc<dyn Fn(View<'_>) -> bool + Send + Sync>;

/// Node types of `cuda.h` (`CUgraphNodeType`), which also name the kinds of queued work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A kernel.
    Kernel = 0,
    /// A copy.
    Memcpy = 1,
    /// A fill.
    Memset = 2,
    /// A host function.
    Host = 3,
    /// A child graph.
    Graph = 4,
    /// Nothing.
    Empty = 5,
    /// Waits for an event of outside the graph.
    WaitEvent = 6,
    /// Records an event of outside the graph.
    EventRecord = 7,
    /// A stream-ordered allocation.
    MemAlloc = 10,
    /// A stream-ordered free.
    MemFree = 11,
    /// A stream memory operation.
    BatchMemOp = 12,
}

/// A piece of queued work over memory. Cloned into graphs, so its body can run again.
#[derive(Clone)]
pub struct Work {
    /// The call that queued it, for reports.
    pub label: &'static str,
    /// What kind of graph node it makes.
    pub kind: Kind,
    /// Ranges read.
    pub reads: Vec<Range>,
    /// Ranges written.
    pub writes: Vec<Range>,
    /// What it does.
    pub body: Body,
}

/// One entry of a queue.
#[derive(Clone)]
pub enum Action {
    /// Work over memory.
    Work(Work),
    /// Is done once `test` says so; tried again and again, as a spinning kernel or a stream
    /// wait-value operation. Its body runs once at the end.
    Until(Work, Test),
    /// A function of the program, run by the engine's own thread.
    Host(HostCall),
    /// Nothing: a mark, or a wait, whose order is all that matters.
    Mark(Kind),
    /// The last entry of a graph's launch; keeps the executable graph alive until then.
    Join(Arc<Exec>),
}

impl Action {
    /// The node type of this action in a graph.
    pub fn kind(&self) -> Kind {
        match self {
            Action::Work(work) | Action::Until(work, _) => work.kind,
            Action::Host(_) => Kind::Host,
            Action::Mark(kind) => *kind,
            Action::Join(_) => Kind::Graph,
        }
    }
}

/// A place in a stream's order: passed once the stream has done its entry `seq`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The stream.
    pub uid: Uid,
    /// Number of the entry; numbers rise over all streams.
    pub seq: u64,
    /// Virtual time at which the entry ends, in microseconds.
    pub at_us: f64,
}

/// How the engine behaves; fixed when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When work runs.
    pub mode: Schedule,
    /// Seed of all choices.
    pub seed: u64,
    /// Most turns a stream that gets work is held back.
    pub hold_turns_max: u64,
    /// Without a call for this long, the background thread runs what is ready. 0: never.
    pub idle_ms: u64,
    /// What pool memory is filled with when it is allocated.
    pub poison: Option<u8>,
}

impl Default for Options {
    fn default() -> Options {
        Options { mode: Schedule::Late, seed: 1, hold_turns_max: 24, idle_ms: 50, poison: None }
    }
}

/// Everything under the engine's lock.
pub struct State {
    pub(crate) options: Options,
    pub(crate) rng: Rng,
    /// Number of the last entry of any queue.
    pub(crate) seq: u64,
    pub(crate) queues: BTreeMap<Uid, Queue>,
    pub(crate) streams: Streams,
    pub(crate) events: BTreeMap<u64, Event>,
    /// Handles of destroyed events, given again.
    pub(crate) free_events: Vec<u64>,
    pub(crate) captures: BTreeMap<CaptureId, Capture>,
    pub(crate) graphs: BTreeMap<u64, Graph>,
    pub(crate) execs: BTreeMap<u64, Arc<Exec>>,
    pub(crate) user_objects: BTreeMap<u64, Arc<UserObject>>,
    /// Next number for anything that is never used twice.
    pub(crate) next_id: u64,
    /// Errors that stick to a context, with the sentence that was reported.
    pub(crate) faults: BTreeMap<Context, Code>,
    /// Live contexts, to make errors stick to.
    pub(crate) contexts: BTreeMap<Context, Arc<ContextState>>,
    /// Contexts that wait for an event, and the points they wait for.
    pub(crate) context_waits: BTreeMap<Context, Vec<Point>>,
    /// A thread is running an item.
    pub(crate) driving: bool,
    /// Host functions handed over and not done.
    pub(crate) hosts_running: usize,
    /// Entries done so far, over all queues.
    pub(crate) progress: u64,
    /// Calls so far; the background thread acts when this stands still.
    pub(crate) calls: u64,
    /// Whether the background thread exists.
    pub(crate) idler: bool,
    /// Handles given out and destroyed, of any kind, for "destroyed" in reports.
    pub(crate) dead_handles: BTreeSet<u64>,
}

/// The asynchronous half of one simulated driver.
pub struct Engine {
    state: Mutex<State>,
    /// Something has been done, or may be possible now.
    changed: Condvar,
    memory: Arc<dyn MemoryCheck>,
    misuse: Misuse,
    clock: Arc<Clock>,
    host: Arc<HostThread>,
    /// Memory pools: a leaf lock, taken under any other of the engine's.
    pools: Mutex<Pools>,
    /// Memory of graphs: a leaf lock as well, never held with the pools'.
    graph_memory: Mutex<GraphMemory>,
    /// What pool memory is filled with when it is allocated.
    poison: Option<u8>,
    /// For the threads that outlive a call.
    me: Weak<Engine>,
}

impl Engine {
    /// An engine with no streams but the default ones, which need not be made.
    pub fn new(settings: &Settings, memory: Arc<Memory>, clock: Arc<Clock>) -> Arc<Engine> {
        let options =
            Options { mode: settings.schedule, seed: settings.seed, ..Options::default() };
        Engine::with(options, memory, clock, Arc::new(misuse::record))
    }

    /// An engine over any memory.
    pub fn with(
        options: Options,
        memory: Arc<dyn MemoryCheck>,
        clock: Arc<Clock>,
        misuse: Misuse,
    ) -> Arc<Engine> {
        let state = State {
            options,
            rng: Rng::new(options.seed),
            seq: 0,
            queues: BTreeMap::new(),
            streams: Streams::default(),
            events: BTreeMap::new(),
            free_events: Vec::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            user_objects: BTreeMap::new(),
            next_id: 0,
            faults: BTreeMap::new(),
            contexts: BTreeMap::new(),
            context_waits: BTreeMap::new(),
            driving: false,
            hosts_running: 0,
            progress: 0,
            calls: 0,
            idler: false,
            dead_handles: BTreeSet::new(),
        };
        Arc::new_cyclic(|me| Engine {
            state: Mutex::new(state),
            changed: Condvar::new(),
            memory,
            misuse,
            clock,
            host: HostThread::new(),
            pools: Mutex::new(Pools::default()),
            graph_memory: Mutex::new(GraphMemory::default()),
            poison: options.poison,
            me: me.clone(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something changes, or for `limit`.
    pub(crate) fn sleep<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Duration,
    ) -> MutexGuard<'a, State> {
        match self.changed.wait_timeout(state, limit) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    pub(crate) fn announce(&self) {
        self.changed.notify_all();
    }

    /// Reports misuse.
    pub(crate) fn report(&self, kind: &str, text: String) {
        (self.misuse)(kind, text);
    }

    /// Virtual time, in microseconds.
    pub(crate) fn now_us(&self) -> f64 {
        self.clock.now_ns() as f64 / 1000.0
    }

    /// The error that sticks to `context`, if any.
    pub fn sticky(&self, context: Context) -> Option<Code> {
        self.lock().status(context)
    }

    /// Live things for the report. Default streams are not counted; `pending` is queued work.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let state = self.lock();
        let objects = state.user_objects.values().filter(|o| o.alive()).count();
        let graphs = state.graphs.values().filter(|g| !g.capturing).count();
        let pending: usize = state.queues.values().map(|q| q.entries.len()).sum();
        let (pools, pool_blocks) = self.pools().counts();
        vec![
            ("mem_pools", pools),
            ("pool_blocks", pool_blocks),
            ("streams", state.streams.len() as u64),
            ("events", state.events.len() as u64),
            ("graphs", graphs as u64),
            ("graph_execs", state.execs.len() as u64),
            ("user_objects", objects as u64),
            ("captures", state.captures.len() as u64),
            ("pending", pending as u64),
        ]
    }

    /// A context has come to be.
    pub fn context_created(&self, context: &Arc<ContextState>) {
        self.lock().contexts.insert(context.id, Arc::clone(context));
    }

    /// What waits for all work queued in a context so far, on all its streams.
    pub fn wait_context(self: &Arc<Self>, context: Context) -> Wait {
        self.wait_points(context, self.context_tail(context))
    }

    /// What waits until `points` are passed, and answers the context's error.
    pub fn wait_points(self: &Arc<Self>, context: Context, points: Vec<Point>) -> Wait {
        let me = Arc::clone(self);
        Wait::on(move || {
            let done = me.wait(context, &points).map(|_| ());
            me.pools_settle();
            done
        })
    }

    /// A queued or running item that touches the range, in words.
    pub fn queued_use(&self, start: u64, len: u64) -> Option<String> {
        let state = self.lock();
        let end = start.saturating_add(len);
        let touches = |work: &Work| {
            let mut all = work.reads.iter().chain(&work.writes);
            all.any(|r| r.start < end && start < r.start.saturating_add(r.len))
        };
        state.queues.iter().find_map(|(uid, queue)| {
            let entry = queue.entries.iter().find(|e| match &e.action {
                Action::Work(work) | Action::Until(work, _) => touches(work),
                _ => false,
            })?;
            let label = match &entry.action {
                Action::Work(work) | Action::Until(work, _) => work.label,
                _ => "",
            };
            let (handle, seq) = (queue.handle, entry.seq);
            Some(format!("{label} (item {seq}) of stream {handle:#x} (identity {uid})"))
        })
    }

    /// Whether a call that is unsafe during a capture may go on in this thread: else 900, and
    /// the captures that forbid it are made invalid.
    pub fn check_capture(&self) -> Result<(), Code> {
        self.lock().unsafe_call()
    }

    /// The world ends: queued work is dropped, nothing runs any more.
    pub fn stop(&self) {
        let mut state = self.lock();
        while state.driving {
            state = self.sleep(state, Duration::from_millis(10));
        }
        let dropped = std::mem::take(&mut state.queues);
        let execs = std::mem::take(&mut state.execs);
        let graphs = std::mem::take(&mut state.graphs);
        drop(state);
        drop((dropped, execs, graphs));
        self.announce();
    }
}

impl State {
    /// A number that is never given again.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The error that sticks to a context, whoever found it.
    pub(crate) fn status(&self, context: Context) -> Option<Code> {
        let own = self.faults.get(&context).copied();
        own.or_else(|| self.contexts.get(&context).map(|c| c.sticky()).filter(|code| *code != 0))
    }

    /// Makes an error stick to a context; the first one stays.
    pub(crate) fn fail(&mut self, context: Context, code: Code) {
        self.faults.entry(context).or_insert(code);
        if let Some(context) = self.contexts.get(&context) {
            context.fail(code);
        }
    }

    /// Whether `point` has been passed.
    pub(crate) fn passed(&self, point: Point) -> bool {
        self.queues.get(&point.uid).is_none_or(|queue| queue.done >= point.seq)
    }
}
