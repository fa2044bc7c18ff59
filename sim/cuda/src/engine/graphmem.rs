//! Memory of graphs: allocation and free nodes, and what lives between them.
//!
//! Owns a table of blocks, one for each allocation node, behind a leaf lock. Promises that a
//! block's address is fixed while a node, an executable graph or a launch knows it; that it may be
//! touched by queued work only between the turns of its allocation and of its free (a free node of
//! the same launch or of another graph, `cuMemFreeAsync`, `cuMemFree`, or the free that a launch
//! with auto free begins with); and that a block outlives its graph while it is not freed. It must
//! not call memory with the table locked. Cost: O(log blocks) a look-up, O(blocks) a trim.
//!
//! The rules are those of `cuda.h` and of the CUDA programming guide's chapter on graph memory
//! nodes; what they leave open is said where it is decided.

mod edges;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::bytes::{self, Rows};
use super::graph::{Exec, Node, NodeId};
use super::pool::Order;
use super::{Action, Body, Code, Context, Engine, Kind, Point, Range, State, Uid, Work, code};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: Code = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// What a device's graphs are said to hold comes in pieces of this many bytes.
const CHUNK: u64 = 2 << 20;
/// Kinds of misuse.
pub(super) const OUT_OF_ORDER: &str = "graph memory out of order";
const DOUBLE_FREE: &str = "double free";

/// `CU_GRAPH_MEM_ATTR_*`.
pub mod attribute {
    /// Bytes that graphs have now.
    pub const USED: u32 = 0;
    /// Most bytes that graphs had.
    pub const USED_HIGH: u32 = 1;
    /// Bytes held for graphs.
    pub const RESERVED: u32 = 2;
    /// Most bytes held for graphs.
    pub const RESERVED_HIGH: u32 = 3;
}

/// One allocation node's memory. The node, executable graphs and launches share it; its addresses
/// end with the last of them, or with the free that comes later.
pub(crate) struct GraphBlock {
    at: u64,
    engine: Weak<Engine>,
}

impl Drop for GraphBlock {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.graph_memory_settle();
        }
    }
}

/// What a memory node does.
#[derive(Clone)]
pub(crate) enum MemNode {
    /// Begins a block.
    Alloc(Arc<GraphBlock>),
    /// Ends the block at an address, which stays its own as long as this node is there.
    Free { at: u64, _block: Option<Arc<GraphBlock>> },
}

impl MemNode {
    fn at(&self) -> u64 {
        match self {
            MemNode::Alloc(block) => block.at,
            MemNode::Free { at, .. } => *at,
        }
    }
}

/// One block.
struct Entry {
    len: u64,
    device: i32,
    /// The nodes' share; gone when no node, executable graph or launch is left.
    nodes: Weak<GraphBlock>,
    /// The graph that its allocation node is in.
    owner: u64,
    /// Its graph has a free node for it.
    freed_inside: bool,
    /// Another graph has one.
    freed_outside: bool,
    /// Whether its turn is now: between its allocation's and its free's.
    live: bool,
    /// The end of the launch that allocated it, until the program frees it.
    born: Option<Point>,
    /// The end of the last launch or free that has to do with it.
    busy: Option<Point>,
    /// It has pages.
    backed: bool,
}

impl Entry {
    /// Whether the program has no use for its contents.
    fn idle(&self) -> bool {
        !self.live && self.born.is_none()
    }
}

/// All blocks.
#[derive(Default)]
pub(crate) struct GraphMemory {
    blocks: BTreeMap<u64, Entry>,
    /// By device: most bytes used and held.
    high: BTreeMap<i32, (u64, u64)>,
}

impl GraphMemory {
    fn covering(&self, range: &Range) -> Option<(u64, &Entry)> {
        let end = range.start.saturating_add(range.len);
        let (at, block) = self.blocks.range(..end).next_back()?;
        (range.start < at + block.len).then_some((*at, block))
    }

    fn used(&self, device: i32) -> u64 {
        let backed = self.blocks.values().filter(|b| b.device == device && b.backed);
        backed.map(|b| b.len.next_multiple_of(CHUNK)).sum()
    }

    /// Why an item that runs now may not touch a range, if it may not.
    pub fn denied(&self, range: &Range) -> Option<String> {
        let (at, block) = self.covering(range)?;
        (!block.live).then(|| format!("graph memory {at:#x}: not between its allocation and free"))
    }

    /// What is wrong with queueing work on a range in a stream now.
    pub fn misused(&self, range: &Range, order: &dyn Order) -> Option<String> {
        let (at, block) = self.covering(range)?;
        if block.freed_inside {
            return Some(format!("graph memory {at:#x} is freed by the graph that allocates it"));
        }
        let Some(born) = block.born else {
            return Some(format!(
                "graph memory {at:#x}: no launch has allocated it, or it is freed"
            ));
        };
        let ordered = order.same_stream(born) || order.passed(born) || order.behind(born);
        (!ordered).then(|| format!("graph memory {at:#x}: no order behind its graph's launch"))
    }

    /// Whether anything is known of a range.
    pub fn near(&self, range: &Range) -> bool {
        self.covering(range).is_some()
    }

    fn begin(&mut self, at: u64) -> Result<(), String> {
        match self.blocks.get_mut(&at) {
            Some(block) if !block.live => block.live = true,
            _ => return Err(format!("graph memory {at:#x} is allocated, and not freed since")),
        }
        Ok(())
    }

    fn end(&mut self, at: u64) -> Result<(), String> {
        match self.blocks.get_mut(&at) {
            Some(block) if block.live => block.live = false,
            _ => return Err(format!("graph memory {at:#x} is freed, and not allocated")),
        }
        Ok(())
    }
}

impl Exec {
    /// Whether it has allocation or free nodes.
    pub(crate) fn has_memory(&self) -> bool {
        self.nodes.iter().any(|(_, node)| node.memory.is_some())
    }

    /// Addresses that it allocates, and that it frees.
    fn memory(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let (mut made, mut freed) = (BTreeSet::new(), BTreeSet::new());
        for memory in self.nodes.iter().filter_map(|(_, node)| node.memory.as_ref()) {
            match memory {
                MemNode::Alloc(block) => made.insert(block.at),
                MemNode::Free { at, .. } => freed.insert(*at),
            };
        }
        (made, freed)
    }
}

/// A new node, before it has its place in a graph.
pub struct Wish {
    /// The graph.
    pub graph: u64,
    /// What it depends on.
    pub deps: Vec<NodeId>,
    /// The context it runs in.
    pub context: Context,
    /// The device it runs on.
    pub device: i32,
}

/// An allocation node's memory, as its addresses were taken.
#[derive(Clone, Copy)]
pub struct Reserved {
    /// The address.
    pub at: u64,
    /// Bytes asked for.
    pub len: u64,
    /// The device that it lies in.
    pub device: i32,
}

impl Engine {
    pub(crate) fn graph_memory(&self) -> MutexGuard<'_, GraphMemory> {
        self.graph_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alloc_action(&self, at: u64, bytes: u64) -> Action {
        let (me, poison) = (self.me.clone(), self.poison);
        let body: Body = Arc::new(move |view| {
            let Some(engine) = me.upgrade() else { return Ok(()) };
            engine.graph_memory().begin(at)?;
            if let Some(byte) = poison {
                // SAFETY: a launch gives the block its pages, and a trim leaves a block alone
                // whose launch is not done; nobody else may touch it before this turn.
                unsafe { bytes::fill(view, at, 0, Rows::one(bytes), &[byte]) };
            }
            Ok(())
        });
        action("an allocation node", Kind::MemAlloc, body)
    }

    fn free_action(&self, at: u64, label: &'static str) -> Action {
        let me = self.me.clone();
        let body: Body = Arc::new(move |_| match me.upgrade() {
            Some(engine) => engine.graph_memory().end(at),
            None => Ok(()),
        });
        action(label, Kind::MemFree, body)
    }

    /// Enters a block and gives its allocation node's parts.
    fn enter(&self, made: Reserved, graph: u64) -> (Action, MemNode) {
        let block = Arc::new(GraphBlock { at: made.at, engine: self.me.clone() });
        let entry = Entry {
            len: made.len,
            device: made.device,
            nodes: Arc::downgrade(&block),
            owner: graph,
            freed_inside: false,
            freed_outside: false,
            live: false,
            born: None,
            busy: None,
            backed: false,
        };
        self.graph_memory().blocks.insert(made.at, entry);
        (self.alloc_action(made.at, made.len), MemNode::Alloc(block))
    }

    /// A free node's parts. 1 for what is no graph's memory, for a second free in the same graph,
    /// and for frees both in the graph that allocates and in another.
    fn free_node(&self, graph: u64, at: u64) -> Result<(Action, MemNode), Code> {
        let mut table = self.graph_memory();
        let block = table.blocks.get_mut(&at).ok_or(code::INVALID_VALUE)?;
        let inside = block.owner == graph;
        if block.freed_inside || (inside && block.freed_outside) {
            return Err(code::INVALID_VALUE);
        }
        match inside {
            true => block.freed_inside = true,
            false => block.freed_outside = true,
        }
        let nodes = block.nodes.upgrade();
        drop(table);
        Ok((self.free_action(at, "a free node"), MemNode::Free { at, _block: nodes }))
    }

    /// An allocation of a captured stream becomes a node. `reserve` takes the addresses.
    pub(super) fn capture_alloc(
        &self,
        uid: Uid,
        reserve: impl FnOnce() -> Result<Reserved, Code>,
    ) -> Result<u64, Code> {
        let graph = self.lock().captured_graph(uid)?;
        let made = reserve()?;
        let (action, memory) = self.enter(made, graph);
        self.lock().capture_memory_node(uid, action, memory)?;
        Ok(made.at)
    }

    /// A free of a captured stream becomes a node.
    pub(super) fn capture_free(&self, uid: Uid, at: u64) -> Result<(), Code> {
        let graph = self.lock().captured_graph(uid)?;
        let (action, memory) = self.free_node(graph, at)?;
        self.lock().capture_memory_node(uid, action, memory).map(drop)
    }

    /// Adds an allocation node to a graph: its handle and its address.
    pub fn add_alloc_node(
        &self,
        wish: Wish,
        reserve: impl FnOnce() -> Result<Reserved, Code>,
    ) -> Result<(NodeId, u64), Code> {
        self.lock().check_wish(&wish)?;
        let made = reserve()?;
        let (action, memory) = self.enter(made, wish.graph);
        self.lock().add_wish(wish, action, memory).map(|node| (node, made.at))
    }

    /// Adds a free node to a graph.
    pub fn add_free_node(&self, wish: Wish, at: u64) -> Result<NodeId, Code> {
        self.lock().check_wish(&wish)?;
        let (action, memory) = self.free_node(wish.graph, at)?;
        self.lock().add_wish(wish, action, memory)
    }

    /// The address of a node of this kind (an allocation, or a free); 1 for any other node.
    pub fn memory_of_node(&self, node: NodeId, kind: Kind) -> Result<u64, Code> {
        let state = self.lock();
        let found = state.graphs.values().find_map(|g| g.nodes.get(&node));
        let memory = found.filter(|n| n.action.kind() == kind).and_then(|n| n.memory.as_ref());
        memory.map(MemNode::at).ok_or(code::INVALID_VALUE)
    }

    /// Reports nodes of a graph that use its memory in no order with its memory nodes.
    pub(super) fn check_nodes(&self, nodes: &BTreeMap<NodeId, Node>) {
        if nodes.values().any(|n| n.memory.is_some()) {
            edges::misordered(nodes, &self.graph_memory())
                .into_iter()
                .for_each(|text| self.report(OUT_OF_ORDER, text));
        }
    }

    /// Lets a launch begin: its blocks have pages; the frees that it begins with are queued.
    ///
    /// 1 if memory of an earlier launch is not freed, unless it is to be freed now, and if memory
    /// of another graph that it frees is not allocated; 2 if the device is full.
    pub(super) fn admit(&self, state: &mut State, exec: &Exec, uid: Uid) -> Result<(), Code> {
        let (made, freed) = exec.memory();
        let mut table = self.graph_memory();
        let unfreed = |at: &u64| table.blocks.get(at).is_some_and(|b| b.born.is_some());
        let left: Vec<u64> = made.iter().copied().filter(unfreed).collect();
        if !left.is_empty() && exec.flags & AUTO_FREE == 0 {
            return Err(code::INVALID_VALUE);
        }
        if let Some(at) = freed.difference(&made).find(|at| !unfreed(at)) {
            let text = format!("a launch frees graph memory {at:#x}, which is not allocated");
            drop(table);
            self.report(DOUBLE_FREE, text);
            return Err(code::INVALID_VALUE);
        }
        let order = state.order_of(uid);
        let touched = exec.nodes.iter().filter_map(|(_, node)| node.work());
        let ranges = touched.flat_map(|w| w.reads.iter().chain(&w.writes));
        let other = ranges.filter(|r| table.covering(r).is_some_and(|(at, _)| !made.contains(&at)));
        let mut wrong: BTreeSet<String> = other.filter_map(|r| table.misused(r, &order)).collect();
        let start = |at: &u64| Range { start: *at, len: 1, device: 0, copy: false };
        wrong.extend(freed.difference(&made).filter_map(|at| table.misused(&start(at), &order)));
        drop(order);
        for at in &left {
            if let Some(block) = table.blocks.get_mut(at) {
                block.born = None;
            }
        }
        drop(table);
        wrong.into_iter().for_each(|text| self.report(OUT_OF_ORDER, text));
        for at in left {
            let action = self.free_action(at, "a free before a launch");
            let point = state.push(uid, action, Vec::new(), self.now_us(), 1.0);
            if let Some(block) = self.graph_memory().blocks.get_mut(&at) {
                block.busy = Some(point);
            }
        }
        self.back(state, &made)
    }

    /// Gives blocks pages, if need be those of blocks that no launch uses.
    fn back(&self, state: &State, made: &BTreeSet<u64>) -> Result<(), Code> {
        for at in made {
            let Some(device) = self.graph_memory().blocks.get(at).map(|b| b.device) else {
                continue;
            };
            match self.memory.back(*at) {
                Err(OUT_OF_MEMORY) => {
                    self.trim(state, device, made);
                    self.memory.back(*at)?;
                }
                done => done?,
            }
            let left = self.memory.left(device);
            let mut table = self.graph_memory();
            if let Some(block) = table.blocks.get_mut(at) {
                block.backed = true;
            }
            let used = table.used(device);
            let high = table.high.entry(device).or_default();
            *high = (high.0.max(used), high.1.max(used + left));
        }
        Ok(())
    }

    /// Makes an executable graph's memory ready, as `cuGraphUpload` does.
    pub(super) fn upload(&self, state: &State, exec: &Exec) -> Result<(), Code> {
        self.back(state, &exec.memory().0)
    }

    /// A launch is queued and ends at `end`: what it allocates and does not free is the program's.
    pub(super) fn launched(&self, exec: &Exec, end: Point) {
        let (made, freed) = exec.memory();
        let mut table = self.graph_memory();
        for at in made.union(&freed) {
            if let Some(block) = table.blocks.get_mut(at) {
                block.busy = Some(end);
                block.born = (made.contains(at) && !freed.contains(at)).then_some(end);
            }
        }
    }

    /// Frees a graph's block in a stream's order.
    pub(super) fn graph_free_later(&self, mut state: MutexGuard<'_, State>, uid: Uid, at: u64) {
        let range = {
            let table = self.graph_memory();
            let len = table.blocks.get(&at).map_or(0, |b| b.len);
            Range { start: at, len, device: 0, copy: false }
        };
        let misordered = self.graph_memory().misused(&range, &state.order_of(uid));
        let beside = state.unordered_use(uid, &range);
        let action = self.free_action(at, "cuMemFreeAsync");
        let point = state.push(uid, action, Vec::new(), self.now_us(), 1.0);
        if let Some(block) = self.graph_memory().blocks.get_mut(&at) {
            (block.born, block.busy) = (None, Some(point));
        }
        drop(state);
        self.start_idler();
        if let Some(text) = misordered {
            self.report(OUT_OF_ORDER, text);
        }
        if let Some(other) = beside {
            self.report(OUT_OF_ORDER, format!("{at:#x} freed while {other} is not ordered"));
        }
    }

    /// Whether the program may free a graph's block now; none if the address is no block's. 1 if
    /// the graph that allocates it frees it, or no launch has allocated it since its last free.
    pub(super) fn graph_freeable(&self, at: u64, call: &str) -> Option<Result<(), Code>> {
        let found = self.graph_memory().blocks.get(&at).map(|b| (b.freed_inside, b.born.is_some()));
        let (inside, born) = found?;
        if inside {
            let text = format!("{call} of graph memory {at:#x}, which its own graph frees");
            self.report("free of graph memory outside its graph", text);
        } else if !born {
            self.report(DOUBLE_FREE, format!("{call} of graph memory {at:#x}, not allocated now"));
        }
        Some(if inside || !born { Err(code::INVALID_VALUE) } else { Ok(()) })
    }

    /// Frees a graph's block at once. The launch that allocates it has to be done: the guide
    /// leaves open what else would happen, so that is misuse, and 1.
    pub fn graph_free_now(&self, at: u64) -> Result<(), Code> {
        self.graph_freeable(at, "cuMemFree").unwrap_or(Err(code::INVALID_VALUE))?;
        let state = self.lock();
        let mut table = self.graph_memory();
        let block = table.blocks.get_mut(&at).ok_or(code::INVALID_VALUE)?;
        if block.born.is_some_and(|born| !state.passed(born)) {
            drop((table, state));
            let text = format!("cuMemFree of graph memory {at:#x} before its launch is done");
            self.report(OUT_OF_ORDER, text);
            return Err(code::INVALID_VALUE);
        }
        (block.live, block.born) = (false, None);
        drop((table, state));
        self.graph_memory_settle();
        Ok(())
    }

    /// Ends blocks that are freed and that no node knows.
    pub(super) fn graph_memory_settle(&self) {
        let mut ended = Vec::new();
        let mut table = self.graph_memory();
        table.blocks.retain(|at, block| {
            let over = block.idle() && block.nodes.strong_count() == 0;
            if over {
                ended.push(*at);
            }
            !over
        });
        drop(table);
        ended.into_iter().for_each(|at| self.memory.retire(at));
    }

    /// Takes pages from blocks of a device that no launch uses, save some; gives all that the
    /// device's graphs have left back to it.
    fn trim(&self, state: &State, device: i32, save: &BTreeSet<u64>) {
        let mut table = self.graph_memory();
        let mut bare = Vec::new();
        for (at, block) in &mut table.blocks {
            let done = block.busy.is_none_or(|point| state.passed(point));
            if block.device == device && block.backed && block.idle() && done && !save.contains(at)
            {
                block.backed = false;
                bare.push(*at);
            }
        }
        drop(table);
        bare.into_iter().for_each(|at| self.memory.unback(at));
        self.memory.trim(device);
    }

    /// `cuDeviceGraphMemTrim`.
    pub fn graph_trim(&self, device: i32) {
        let state = self.lock();
        self.trim(&state, device, &BTreeSet::new());
    }

    /// An attribute of a device's graph memory.
    pub fn graph_memory_get(&self, device: i32, attribute: u32) -> Result<u64, Code> {
        let left = self.memory.left(device);
        let table = self.graph_memory();
        let used = table.used(device);
        let high = table.high.get(&device).copied().unwrap_or_default();
        match attribute {
            attribute::USED => Ok(used),
            attribute::USED_HIGH => Ok(high.0),
            attribute::RESERVED => Ok(used + left),
            attribute::RESERVED_HIGH => Ok(high.1),
            _ => Err(code::INVALID_VALUE),
        }
    }

    /// Resets a high-water mark to what is now; nothing else can be set.
    pub fn graph_memory_set(&self, device: i32, attribute: u32, value: u64) -> Result<(), Code> {
        let left = self.memory.left(device);
        let mut table = self.graph_memory();
        let used = table.used(device);
        let high = table.high.entry(device).or_default();
        match (attribute, value) {
            (attribute::USED_HIGH, 0) => high.0 = used,
            (attribute::RESERVED_HIGH, 0) => high.1 = used + left,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }
}

impl State {
    fn check_wish(&self, wish: &Wish) -> Result<(), Code> {
        let graph = self.graphs.get(&wish.graph).ok_or(code::INVALID_VALUE)?;
        let distinct: BTreeSet<NodeId> = wish.deps.iter().copied().collect();
        let known = distinct.iter().all(|dep| graph.nodes.contains_key(dep));
        match known && distinct.len() == wish.deps.len() {
            true => Ok(()),
            false => Err(code::INVALID_VALUE),
        }
    }

    fn add_wish(&mut self, wish: Wish, action: Action, memory: MemNode) -> Result<NodeId, Code> {
        let Wish { graph, deps, context, device } = wish;
        let node = Node { action, deps, context, device, event: None, memory: Some(memory) };
        self.add_node(graph, node).ok_or(code::INVALID_VALUE)
    }
}

fn action(label: &'static str, kind: Kind, body: Body) -> Action {
    Action::Work(Work { label, kind, reads: Vec::new(), writes: Vec::new(), body })
}
