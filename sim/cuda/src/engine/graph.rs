//! Graphs: what a capture leaves, and its launches.
//!
//! Owns graphs and executable graphs. Promises that a launch runs every node once, in any order
//! that the edges allow, behind the stream's earlier work and behind the last launch of the same
//! executable graph, and before the stream's later work; and that what a graph holds lives until
//! the graph, its executable graphs and their launches are gone. Cost: a launch is O(nodes +
//! edges).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::event::Mark;
use super::graphmem::MemNode;
use super::stream::StreamKind;
use super::userobj::Held;
use super::{Action, Code, Context, Engine, Kind, Point, State, Uid, Work, code};

/// A node, by its handle; nodes made later have greater handles.
pub type NodeId = u64;

/// Handles of graphs, nodes and executable graphs look like addresses of this region.
pub(crate) const HANDLE_BASE: u64 = 0x7347_0000_0000;
pub(crate) const HANDLE_STEP: u64 = 0x40;
/// Virtual duration of a node, in microseconds: a guess at a short kernel's.
const NODE_US: f64 = 2.0;

/// One node.
#[derive(Clone)]
pub(crate) struct Node {
    pub action: Action,
    pub deps: Vec<NodeId>,
    pub context: Context,
    pub device: i32,
    /// The event that an event node records or waits for.
    pub event: Option<u64>,
    /// What an allocation or free node has to do with.
    pub memory: Option<MemNode>,
}

impl Node {
    fn kind(&self) -> Kind {
        self.action.kind()
    }

    /// The work over memory that it does, if it does any.
    pub fn work(&self) -> Option<&Work> {
        match &self.action {
            Action::Work(work) | Action::Until(work, _) => Some(work),
            _ => None,
        }
    }
}

/// A graph.
pub(crate) struct Graph {
    pub nodes: BTreeMap<NodeId, Node>,
    /// A capture is filling it.
    pub capturing: bool,
    pub held: Vec<Held>,
}

impl Graph {
    pub fn new(capturing: bool) -> Graph {
        Graph { nodes: BTreeMap::new(), capturing, held: Vec::new() }
    }

    fn has_memory(&self) -> bool {
        self.nodes.values().any(|node| node.memory.is_some())
    }
}

/// An executable graph.
pub struct Exec {
    /// The graph it was made from, which may be gone.
    graph: u64,
    pub(crate) nodes: Vec<(NodeId, Node)>,
    pub(crate) flags: u64,
    /// Where the last launch ends.
    last: Mutex<Option<Point>>,
    /// References to user objects, given back when the last launch is done and the handle gone.
    held: Vec<Held>,
}

impl Engine {
    /// Makes an empty graph.
    pub fn create_graph(&self) -> u64 {
        self.lock().add_graph(false)
    }

    /// Destroys a graph. One that a capture fills cannot be.
    pub fn destroy_graph(&self, handle: u64) -> Result<(), Code> {
        let mut state = self.lock();
        match state.graphs.get(&handle) {
            Some(graph) if !graph.capturing => drop(state.graphs.remove(&handle)),
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    /// Copies a graph with what it holds. Nodes get handles of their own. 1 if it has memory
    /// nodes.
    pub fn clone_graph(&self, handle: u64) -> Result<u64, Code> {
        let mut state = self.lock();
        let graph =
            state.graphs.get(&handle).filter(|g| !g.capturing).ok_or(code::INVALID_VALUE)?;
        if graph.has_memory() {
            return Err(code::INVALID_VALUE);
        }
        let (nodes, held) = (graph.nodes.clone(), graph.held.clone());
        let copy = state.add_graph(false);
        let mut names: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        for (old, mut node) in nodes {
            node.deps = node.deps.iter().filter_map(|d| names.get(d).copied()).collect();
            if let Some(new) = state.add_node(copy, node) {
                names.insert(old, new);
            }
        }
        if let Some(graph) = state.graphs.get_mut(&copy) {
            graph.held = held;
        }
        Ok(copy)
    }

    /// The nodes of a graph, in the order they were made.
    pub fn graph_nodes(&self, handle: u64) -> Result<Vec<NodeId>, Code> {
        let state = self.lock();
        let graph = state.graphs.get(&handle).ok_or(code::INVALID_VALUE)?;
        Ok(graph.nodes.keys().copied().collect())
    }

    /// The edges of a graph, as pairs of nodes.
    pub fn graph_edges(&self, handle: u64) -> Result<Vec<(NodeId, NodeId)>, Code> {
        let state = self.lock();
        let graph = state.graphs.get(&handle).ok_or(code::INVALID_VALUE)?;
        let edges = graph.nodes.iter().flat_map(|(to, n)| n.deps.iter().map(|from| (*from, *to)));
        Ok(edges.collect())
    }

    /// The type of a node.
    pub fn node_kind(&self, node: NodeId) -> Result<Kind, Code> {
        let state = self.lock();
        let found = state.graphs.values().find_map(|g| g.nodes.get(&node));
        found.map(Node::kind).ok_or(code::INVALID_VALUE)
    }

    /// Makes an executable graph, which is independent of the graph from then on. A graph with
    /// memory nodes has one at a time: 1.
    pub fn instantiate(&self, handle: u64, flags: u64) -> Result<u64, Code> {
        let mut state = self.lock();
        let graph =
            state.graphs.get(&handle).filter(|g| !g.capturing).ok_or(code::INVALID_VALUE)?;
        let another = state.execs.values().any(|exec| exec.graph == handle);
        if another && graph.has_memory() {
            return Err(code::INVALID_VALUE);
        }
        self.check_nodes(&graph.nodes);
        let nodes = graph.nodes.iter().map(|(id, n)| (*id, n.clone())).collect();
        let (last, held) = (Mutex::new(None), graph.held.clone());
        let exec = Exec { graph: handle, nodes, flags, last, held };
        let handle = HANDLE_BASE + state.fresh() * HANDLE_STEP;
        state.execs.insert(handle, Arc::new(exec));
        Ok(handle)
    }

    /// Destroys an executable graph; launches under way still complete.
    pub fn destroy_exec(&self, handle: u64) -> Result<(), Code> {
        let gone = self.lock().execs.remove(&handle);
        gone.map(drop).ok_or(code::INVALID_VALUE)
    }

    /// The flags an executable graph was made with.
    pub fn exec_flags(&self, handle: u64) -> Result<u64, Code> {
        self.lock().execs.get(&handle).map(|exec| exec.flags).ok_or(code::INVALID_VALUE)
    }

    /// Makes an executable graph's memory ready, so that a launch need not.
    pub fn upload_graph(&self, handle: u64) -> Result<(), Code> {
        let state = self.lock();
        let exec = state.execs.get(&handle).cloned().ok_or(code::INVALID_VALUE)?;
        self.upload(&state, &exec)
    }

    /// Launches an executable graph in a stream; in a captured stream, its nodes join the capture,
    /// which memory nodes cannot: 1.
    pub fn launch_graph(&self, handle: u64, uid: Uid) -> Result<(), Code> {
        let mut state = self.lock();
        let exec = state.execs.get(&handle).cloned().ok_or(code::INVALID_VALUE)?;
        if state.captured(uid)? {
            return match exec.has_memory() {
                true => Err(code::INVALID_VALUE),
                false => state.embed(&exec, uid),
            };
        }
        state.implicit(uid)?;
        self.admit(&mut state, &exec, uid)?;
        let end = state.launch(&exec, uid, self.now_us());
        self.launched(&exec, end);
        drop(state);
        self.start_idler();
        Ok(())
    }
}

impl State {
    /// Adds a node to a graph and gives its handle; none if the graph is not known.
    pub(crate) fn add_node(&mut self, graph: u64, node: Node) -> Option<NodeId> {
        let id = HANDLE_BASE + self.fresh() * HANDLE_STEP;
        self.graphs.get_mut(&graph)?.nodes.insert(id, node);
        Some(id)
    }

    fn launch(&mut self, exec: &Arc<Exec>, uid: Uid, now_us: f64) -> Point {
        let mut last = exec.last.lock().unwrap_or_else(PoisonError::into_inner);
        let start =
            self.push(uid, Action::Mark(Kind::Empty), last.iter().copied().collect(), now_us, 0.0);
        let mut points: BTreeMap<NodeId, Point> = BTreeMap::new();
        for (id, node) in &exec.nodes {
            let mut deps: Vec<Point> =
                node.deps.iter().filter_map(|d| points.get(d).copied()).collect();
            deps.push(start);
            if node.kind() == Kind::WaitEvent {
                deps.extend(node.event.and_then(|e| self.event_point(e)));
            }
            let own = self.add_queue(node.context, node.device, StreamKind::Node);
            let point = self.push(own, node.action.clone(), deps, now_us, NODE_US);
            if node.kind() == Kind::EventRecord
                && let Some(event) = node.event
            {
                // The event may have been destroyed since: then nobody can ask for the mark.
                let _ = self.mark_event(event, Mark::Point(point));
            }
            points.insert(*id, point);
        }
        let all = points.into_values().collect();
        let end = self.push(uid, Action::Join(Arc::clone(exec)), all, now_us, 0.0);
        *last = Some(end);
        end
    }

    /// Copies an executable graph's nodes into a capture, behind the stream's dependency set.
    fn embed(&mut self, exec: &Arc<Exec>, uid: Uid) -> Result<(), Code> {
        let queue = self.queues.get(&uid).ok_or(code::INVALID_HANDLE)?;
        let member = queue.capture.clone().ok_or(code::ILLEGAL_STATE)?;
        let capture = self.captures.get(&member.capture).ok_or(code::ILLEGAL_STATE)?;
        let graph = capture.graph;
        let mut names: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        let mut leaves: Vec<NodeId> = Vec::new();
        for (old, node) in &exec.nodes {
            let mut node = node.clone();
            node.deps = match node.deps.is_empty() {
                true => member.deps.clone(),
                false => node.deps.iter().filter_map(|d| names.get(d).copied()).collect(),
            };
            leaves.retain(|leaf| !node.deps.contains(leaf));
            let new = self.add_node(graph, node).ok_or(code::INVALID_VALUE)?;
            names.insert(*old, new);
            leaves.push(new);
        }
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.held.extend(exec.held.iter().cloned());
        }
        if !leaves.is_empty() {
            self.set_dependencies(uid, leaves);
        }
        Ok(())
    }
}
