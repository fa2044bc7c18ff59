//! Stream capture: which streams are recorded instead of run, and what is forbidden meanwhile.
//!
//! Owns the open captures and each thread's capture mode. Promises the rules of `cuda.h` and of
//! the CUDA programming guide: a forked stream joins through an event and must be joined again; a
//! forbidden call makes the captures it conflicts with invalid; an invalid capture answers 901
//! until `cuStreamEndCapture` ends it. It runs nothing. Cost: O(open captures) for a forbidden
//! call, O(nodes) to end one.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::thread::ThreadId;

use super::event::Mark;
use super::graph::{Graph, Node, NodeId};
use super::graphmem::MemNode;
use super::stream::StreamKind;
use super::{Action, Code, Context, Engine, Kind, State, Uid, code};

/// Identity of a capture, unique in the process.
pub type CaptureId = u64;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: other threads' unsafe calls are forbidden too.
pub const MODE_GLOBAL: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: the thread's own unsafe calls are forbidden.
pub const MODE_THREAD_LOCAL: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: unsafe calls are allowed.
pub const MODE_RELAXED: u32 = 2;

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub const STATUS_NONE: u32 = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub const STATUS_ACTIVE: u32 = 1;
/// `CU_STREAM_CAPTURE_STATUS_INVALIDATED`.
pub const STATUS_INVALIDATED: u32 = 2;

thread_local! {
    static THREAD_MODE: Cell<u32> = const { Cell::new(MODE_GLOBAL) };
}

/// Swaps the calling thread's mode, as `cuThreadExchangeStreamCaptureMode` does.
pub fn exchange_mode(mode: u32) -> Result<u32, Code> {
    match mode <= MODE_RELAXED {
        true => Ok(THREAD_MODE.with(|m| m.replace(mode))),
        false => Err(code::INVALID_VALUE),
    }
}

/// One capture.
pub(crate) struct Capture {
    /// The stream it began in.
    pub origin: Uid,
    pub mode: u32,
    /// The thread it began on.
    pub thread: ThreadId,
    pub valid: bool,
    /// The graph it fills.
    pub graph: u64,
    /// Nodes taken out of a dependency set by the program; these need no join.
    pub dropped: BTreeSet<NodeId>,
}

/// A stream's part in a capture.
#[derive(Clone)]
pub(crate) struct Member {
    pub capture: CaptureId,
    /// What the stream's next node depends on.
    pub deps: Vec<NodeId>,
}

/// What a stream says about its capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureInfo {
    /// One of the `STATUS_` values.
    pub status: u32,
    /// Identity of the capture; 0 without one.
    pub id: CaptureId,
    /// The graph being filled; 0 unless active.
    pub graph: u64,
    /// What the next node will depend on.
    pub deps: Vec<NodeId>,
}

impl Engine {
    /// Begins a capture in a stream.
    pub fn begin_capture(&self, uid: Uid, mode: u32) -> Result<(), Code> {
        if mode > MODE_RELAXED {
            return Err(code::INVALID_VALUE);
        }
        let mut state = self.lock();
        let queue = state.queues.get(&uid).ok_or(code::INVALID_HANDLE)?;
        if queue.kind == StreamKind::Legacy {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        if queue.capture.is_some() {
            return Err(code::ILLEGAL_STATE);
        }
        let id = state.fresh();
        let graph = state.add_graph(true);
        let thread = std::thread::current().id();
        let dropped = BTreeSet::new();
        let capture = Capture { origin: uid, mode, thread, valid: true, graph, dropped };
        state.captures.insert(id, capture);
        if let Some(queue) = state.queues.get_mut(&uid) {
            queue.capture = Some(Member { capture: id, deps: Vec::new() });
        }
        Ok(())
    }

    /// Ends the capture that began in this stream and gives its graph.
    pub fn end_capture(&self, uid: Uid) -> Result<u64, Code> {
        let mut state = self.lock();
        let queue = state.queues.get(&uid).ok_or(code::INVALID_HANDLE)?;
        let id = queue.capture.as_ref().map(|m| m.capture).ok_or(code::ILLEGAL_STATE)?;
        let capture = state.captures.get(&id).ok_or(code::ILLEGAL_STATE)?;
        if capture.origin != uid {
            state.invalidate(&[id]);
            return Err(code::CAPTURE_UNMATCHED);
        }
        if capture.mode != MODE_RELAXED && capture.thread != std::thread::current().id() {
            return Err(code::CAPTURE_WRONG_THREAD);
        }
        let verdict = match capture.valid {
            false => Err(code::CAPTURE_INVALIDATED),
            true if !state.joined(uid, id) => Err(code::CAPTURE_UNJOINED),
            true => Ok(capture.graph),
        };
        state.close(id, verdict.is_ok());
        verdict
    }

    /// The capture status of a stream. The legacy stream answers 906 while a blocking stream of
    /// its context is captured, and harms nothing.
    pub fn capture_info(&self, uid: Uid) -> Result<CaptureInfo, Code> {
        let state = self.lock();
        let queue = state.queues.get(&uid).ok_or(code::INVALID_HANDLE)?;
        if queue.kind == StreamKind::Legacy && !state.captures_of_blocking(queue.context).is_empty()
        {
            return Err(code::CAPTURE_IMPLICIT);
        }
        let none = CaptureInfo { status: STATUS_NONE, id: 0, graph: 0, deps: Vec::new() };
        let Some(member) = &queue.capture else { return Ok(none) };
        let Some(capture) = state.captures.get(&member.capture) else { return Ok(none) };
        Ok(match capture.valid {
            false => CaptureInfo { status: STATUS_INVALIDATED, id: member.capture, ..none },
            true => CaptureInfo {
                status: STATUS_ACTIVE,
                id: member.capture,
                graph: capture.graph,
                deps: member.deps.clone(),
            },
        })
    }

    /// Whether what the stream is given goes into a graph; 901 if its capture is invalid.
    pub fn is_captured(&self, uid: Uid) -> Result<bool, Code> {
        self.lock().captured(uid)
    }

    /// Whether the stream is part of a capture, valid or not.
    pub fn capture_of(&self, uid: Uid) -> bool {
        self.lock().capture_of(uid).is_some()
    }

    /// Adds to or replaces what the stream's next node depends on.
    pub fn update_dependencies(&self, uid: Uid, nodes: &[NodeId], set: bool) -> Result<(), Code> {
        let mut state = self.lock();
        if !state.captured(uid)? {
            return Err(code::ILLEGAL_STATE);
        }
        let id = state.capture_of(uid).ok_or(code::ILLEGAL_STATE)?;
        let graph = state.captures.get(&id).map(|c| c.graph).ok_or(code::ILLEGAL_STATE)?;
        let known = |n: &NodeId| state.graphs.get(&graph).is_some_and(|g| g.nodes.contains_key(n));
        if !nodes.iter().all(known) {
            return Err(code::INVALID_VALUE);
        }
        let mut dropped = Vec::new();
        if let Some(member) = state.queues.get_mut(&uid).and_then(|q| q.capture.as_mut()) {
            if set {
                dropped = std::mem::take(&mut member.deps);
            }
            merge(&mut member.deps, nodes);
            dropped.retain(|n| !member.deps.contains(n));
        }
        if let Some(capture) = state.captures.get_mut(&id) {
            capture.dropped.extend(dropped);
        }
        Ok(())
    }

    /// To be asked before a host waits for or queries a stream.
    pub fn host_looks_at(&self, uid: Uid) -> Result<(), Code> {
        let mut state = self.lock();
        match state.capture_of(uid) {
            Some(id) => {
                let valid = state.captures.get(&id).is_some_and(|c| c.valid);
                state.invalidate(&[id]);
                Err(if valid { code::CAPTURE_UNSUPPORTED } else { code::CAPTURE_INVALIDATED })
            }
            None => {
                state.implicit(uid)?;
                state.unsafe_call()
            }
        }
    }

    /// To be asked before a synchronous call on a stream (a synchronous copy or fill): 906 on a
    /// legacy stream with a captured blocking stream, else the rule for unsafe calls.
    pub fn synchronous(&self, uid: Uid) -> Result<(), Code> {
        let mut state = self.lock();
        state.implicit(uid)?;
        if let Some(id) = state.capture_of(uid) {
            state.invalidate(&[id]);
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        state.unsafe_call()
    }

    /// To be asked before a host waits for a context: 900 in every mode while a stream of it is
    /// captured, which makes the capture invalid.
    pub fn host_looks_at_context(&self, context: Context) -> Result<(), Code> {
        let mut state = self.lock();
        let hit = state.captures_of_context(context);
        if !hit.is_empty() {
            state.invalidate(&hit);
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        state.unsafe_call()
    }

    /// Makes the captures of a stream invalid, for a call that a capture does not support.
    pub fn refuse_captured(&self, uid: Uid, with: Code) -> Result<(), Code> {
        let mut state = self.lock();
        match state.capture_of(uid) {
            None => Ok(()),
            Some(id) => {
                state.invalidate(&[id]);
                Err(with)
            }
        }
    }
}

/// Adds those of `more` that are not in `set`.
fn merge(set: &mut Vec<NodeId>, more: &[NodeId]) {
    for node in more {
        if !set.contains(node) {
            set.push(*node);
        }
    }
}

impl State {
    /// Whether the stream is captured; 901 if its capture is invalid.
    pub(crate) fn captured(&self, uid: Uid) -> Result<bool, Code> {
        let queue = self.queues.get(&uid).ok_or(code::INVALID_HANDLE)?;
        let Some(member) = &queue.capture else { return Ok(false) };
        match self.captures.get(&member.capture) {
            Some(capture) if capture.valid => Ok(true),
            Some(_) => Err(code::CAPTURE_INVALIDATED),
            None => Ok(false),
        }
    }

    pub(crate) fn capture_of(&self, uid: Uid) -> Option<CaptureId> {
        self.queues.get(&uid)?.capture.as_ref().map(|m| m.capture)
    }

    pub(crate) fn invalidate(&mut self, captures: &[CaptureId]) {
        for id in captures {
            if let Some(capture) = self.captures.get_mut(id) {
                capture.valid = false;
            }
        }
    }

    /// Captures with a member of the context that is ordered with the legacy stream.
    pub(crate) fn captures_of_blocking(&self, context: Context) -> Vec<CaptureId> {
        self.captures_where(|q| {
            let blocking = matches!(q.kind, StreamKind::Blocking | StreamKind::PerThread);
            q.context == context && blocking
        })
    }

    /// Captures with a member of the context.
    pub(crate) fn captures_of_context(&self, context: Context) -> Vec<CaptureId> {
        self.captures_where(|q| q.context == context)
    }

    fn captures_where(&self, rule: impl Fn(&super::stream::Queue) -> bool) -> Vec<CaptureId> {
        if self.captures.is_empty() {
            return Vec::new();
        }
        let members = self.queues.values().filter(|q| rule(q));
        let mut found: Vec<CaptureId> =
            members.filter_map(|q| q.capture.as_ref().map(|m| m.capture)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    pub(crate) fn unsafe_call(&mut self) -> Result<(), Code> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let mode = THREAD_MODE.try_with(Cell::get).unwrap_or(MODE_GLOBAL);
        if mode == MODE_RELAXED {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let conflicts = |c: &Capture| match c.thread == thread {
            true => c.mode != MODE_RELAXED,
            false => c.mode == MODE_GLOBAL && mode == MODE_GLOBAL,
        };
        let hit: Vec<CaptureId> =
            self.captures.iter().filter(|(_, c)| conflicts(c)).map(|(id, _)| *id).collect();
        if hit.is_empty() {
            return Ok(());
        }
        self.invalidate(&hit);
        Err(code::CAPTURE_UNSUPPORTED)
    }

    /// Adds a node behind the stream's dependency set and makes it that set.
    pub(crate) fn capture_node(&mut self, uid: Uid, action: Action) -> Result<NodeId, Code> {
        self.capture_full_node(uid, action, None, None)
    }

    /// Adds a memory node.
    pub(crate) fn capture_memory_node(
        &mut self,
        uid: Uid,
        action: Action,
        memory: MemNode,
    ) -> Result<NodeId, Code> {
        self.capture_full_node(uid, action, None, Some(memory))
    }

    /// The graph that a captured stream fills.
    pub(crate) fn captured_graph(&self, uid: Uid) -> Result<u64, Code> {
        let id = self.capture_of(uid).ok_or(code::ILLEGAL_STATE)?;
        self.captures.get(&id).map(|c| c.graph).ok_or(code::ILLEGAL_STATE)
    }

    /// Adds a node that records or awaits an event of outside the graph.
    pub(crate) fn capture_event_node(
        &mut self,
        uid: Uid,
        kind: Kind,
        event: u64,
    ) -> Result<(), Code> {
        self.capture_full_node(uid, Action::Mark(kind), Some(event), None).map(|_| ())
    }

    fn capture_full_node(
        &mut self,
        uid: Uid,
        action: Action,
        event: Option<u64>,
        memory: Option<MemNode>,
    ) -> Result<NodeId, Code> {
        let queue = self.queues.get(&uid).ok_or(code::INVALID_HANDLE)?;
        let member = queue.capture.clone().ok_or(code::ILLEGAL_STATE)?;
        let (context, device) = (queue.context, queue.device);
        let capture = self.captures.get(&member.capture).ok_or(code::ILLEGAL_STATE)?;
        let graph = capture.graph;
        let node = Node { action, deps: member.deps, context, device, event, memory };
        let id = self.add_node(graph, node).ok_or(code::INVALID_VALUE)?;
        self.set_dependencies(uid, vec![id]);
        Ok(id)
    }

    pub(crate) fn set_dependencies(&mut self, uid: Uid, deps: Vec<NodeId>) {
        if let Some(member) = self.queues.get_mut(&uid).and_then(|q| q.capture.as_mut()) {
            member.deps = deps;
        }
    }

    /// The mark of an event recorded in a captured stream.
    pub(crate) fn captured_mark(&self, uid: Uid) -> Mark {
        match self.queues.get(&uid).and_then(|q| q.capture.as_ref()) {
            Some(member) => Mark::Captured { capture: member.capture, nodes: member.deps.clone() },
            None => Mark::Never,
        }
    }

    /// A stream waits for an event recorded in a capture: it joins that capture.
    pub(crate) fn join_capture(
        &mut self,
        uid: Uid,
        id: CaptureId,
        nodes: Vec<NodeId>,
    ) -> Result<(), Code> {
        let Some(capture) = self.captures.get(&id) else { return Err(code::CAPTURED_EVENT) };
        if !capture.valid {
            return Err(code::CAPTURE_INVALIDATED);
        }
        let own = self.capture_of(uid);
        if own.is_some_and(|own| own != id) {
            self.invalidate(&[id, own.unwrap_or(id)]);
            return Err(code::CAPTURE_MERGE);
        }
        let queue = self.queues.get_mut(&uid).ok_or(code::INVALID_HANDLE)?;
        if queue.kind == StreamKind::Legacy {
            self.invalidate(&[id]);
            return Err(code::CAPTURE_IMPLICIT);
        }
        match &mut queue.capture {
            Some(member) => merge(&mut member.deps, &nodes),
            none => *none = Some(Member { capture: id, deps: nodes }),
        }
        Ok(())
    }

    /// Whether every node can be reached backwards from the origin's dependency set.
    fn joined(&self, origin: Uid, id: CaptureId) -> bool {
        let Some(capture) = self.captures.get(&id) else { return false };
        let Some(graph) = self.graphs.get(&capture.graph) else { return false };
        let member = self.queues.get(&origin).and_then(|q| q.capture.as_ref());
        let mut open: Vec<NodeId> = member.map(|m| m.deps.clone()).unwrap_or_default();
        open.extend(capture.dropped.iter().copied());
        let mut reached = BTreeSet::new();
        while let Some(node) = open.pop() {
            if reached.insert(node)
                && let Some(node) = graph.nodes.get(&node)
            {
                open.extend(node.deps.iter().copied());
            }
        }
        graph.nodes.keys().all(|node| reached.contains(node))
    }

    /// Ends a capture: its streams are free again; its graph is the program's, or gone.
    fn close(&mut self, id: CaptureId, keep: bool) {
        let Some(capture) = self.captures.remove(&id) else { return };
        for queue in self.queues.values_mut() {
            if queue.capture.as_ref().is_some_and(|m| m.capture == id) {
                queue.capture = None;
            }
        }
        match keep {
            true => {
                if let Some(graph) = self.graphs.get_mut(&capture.graph) {
                    graph.capturing = false;
                }
            }
            false => drop(self.graphs.remove(&capture.graph)),
        }
    }

    /// A stream that is part of a capture is destroyed.
    pub(crate) fn leave_capture(&mut self, uid: Uid) {
        let Some(id) = self.capture_of(uid) else { return };
        self.invalidate(&[id]);
        if self.captures.get(&id).is_some_and(|c| c.origin == uid) {
            self.close(id, false);
        }
        if let Some(queue) = self.queues.get_mut(&uid) {
            queue.capture = None;
        }
    }

    /// Adds an empty graph and gives its handle.
    pub(crate) fn add_graph(&mut self, capturing: bool) -> u64 {
        let handle = super::graph::HANDLE_BASE + self.fresh() * super::graph::HANDLE_STEP;
        self.graphs.insert(handle, Graph::new(capturing));
        handle
    }
}
