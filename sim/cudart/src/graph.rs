//! Graphs: asked about, made ready, launched; objects that they hold.
//!
//! The driver that this is made for tells a graph's edges but not a node's, so the graphs that the
//! program has seen are kept: a node is one of theirs.

use crate::driver;
use crate::driver::Driver;
use crate::entry::{export, place};
use crate::state;
use crate::types::*;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Graphs that the program has seen and not destroyed.
static SEEN: Mutex<BTreeSet<Graph>> = Mutex::new(BTreeSet::new());

fn seen() -> MutexGuard<'static, BTreeSet<Graph>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program has seen this graph; 0 is none.
pub fn see(graph: Graph) {
    if graph != 0 {
        seen().insert(graph);
    }
}

/// Bytes of `cudaGraphEdgeData`, all 0 for a plain dependency.
const EDGE_BYTES: usize = 8;

export! {
    /// An empty graph.
    fn cudaGraphCreate(graph: *mut Graph, flags: u32) {
        let to = place(graph)?;
        state::driver()?.cuGraphCreate(to, flags)?;
        see(*to);
        Ok(())
    }

    /// Destroys a graph.
    fn cudaGraphDestroy(graph: Graph) {
        seen().remove(&graph);
        state::driver()?.cuGraphDestroy(graph)
    }

    /// Copies a graph.
    fn cudaGraphClone(copy: *mut Graph, graph: Graph) {
        let to = place(copy)?;
        state::driver()?.cuGraphClone(to, graph)?;
        see(*to);
        Ok(())
    }

    /// A graph's nodes; with no place for them, how many.
    fn cudaGraphGetNodes(graph: Graph, nodes: *mut Node, count: *mut usize) {
        state::driver()?.cuGraphGetNodes(graph, nodes, place(count)?)?;
        see(graph);
        Ok(())
    }

    /// What kind of work a node is.
    fn cudaGraphNodeGetType(node: Node, kind: *mut u32) {
        state::driver()?.cuGraphNodeGetType(node, place(kind)?)
    }

    /// A graph's edges. CUDA 12's form has four arguments, CUDA 13's is the one with data.
    fn cudaGraphGetEdges(
        graph: Graph, from: *mut Node, to: *mut Node, fourth: *mut c_void, fifth: *mut usize,
    ) {
        match driver::is_13() {
            true => edges(graph, from, to, fourth, fifth),
            false => edges(graph, from, to, std::ptr::null_mut(), fourth.cast()),
        }
    }

    /// A graph's edges, with what they carry.
    fn cudaGraphGetEdges_v2(
        graph: Graph, from: *mut Node, to: *mut Node, data: *mut c_void, count: *mut usize,
    ) {
        edges(graph, from, to, data, count)
    }

    /// The nodes that depend on none.
    fn cudaGraphGetRootNodes(graph: Graph, nodes: *mut Node, count: *mut usize) {
        let driver = state::driver()?;
        let edges = edges_of(driver, graph)?;
        let mut all = nodes_of(driver, graph)?;
        all.retain(|node| !edges.iter().any(|(_, to)| to == node));
        give(&all, nodes, std::ptr::null_mut(), count)
    }

    /// The nodes that a node depends on. CUDA 12's form has three arguments, CUDA 13's is the one
    /// with data.
    fn cudaGraphNodeGetDependencies(
        node: Node, nodes: *mut Node, third: *mut c_void, fourth: *mut usize,
    ) {
        let before = beside(node, |(from, to)| (to == node).then_some(from))?;
        match driver::is_13() {
            true => give(&before, nodes, third, fourth),
            false => give(&before, nodes, std::ptr::null_mut(), third.cast()),
        }
    }

    /// The nodes that a node depends on, with what the edges carry.
    fn cudaGraphNodeGetDependencies_v2(
        node: Node, nodes: *mut Node, data: *mut c_void, count: *mut usize,
    ) {
        let before = beside(node, |(from, to)| (to == node).then_some(from))?;
        give(&before, nodes, data, count)
    }

    /// The nodes that depend on a node. CUDA 12's form has three arguments, CUDA 13's is the one
    /// with data.
    fn cudaGraphNodeGetDependentNodes(
        node: Node, nodes: *mut Node, third: *mut c_void, fourth: *mut usize,
    ) {
        let after = beside(node, |(from, to)| (from == node).then_some(to))?;
        match driver::is_13() {
            true => give(&after, nodes, third, fourth),
            false => give(&after, nodes, std::ptr::null_mut(), third.cast()),
        }
    }

    /// The nodes that depend on a node, with what the edges carry.
    fn cudaGraphNodeGetDependentNodes_v2(
        node: Node, nodes: *mut Node, data: *mut c_void, count: *mut usize,
    ) {
        let after = beside(node, |(from, to)| (from == node).then_some(to))?;
        give(&after, nodes, data, count)
    }

    /// Writes a graph to a file, in the language of Graphviz; flags are not looked at.
    fn cudaGraphDebugDotPrint(graph: Graph, path: *const c_char, _flags: u32) {
        let path = place(path.cast_mut())?;
        let driver = state::driver()?;
        let mut text = String::from("digraph graph_of_cuda {\n");
        for node in nodes_of(driver, graph)? {
            let mut kind = 0;
            driver.cuGraphNodeGetType(node, &mut kind)?;
            let _ = writeln!(text, "  n{node:x} [label=\"type {kind}\"];");
        }
        for (from, to) in edges_of(driver, graph)? {
            let _ = writeln!(text, "  n{from:x} -> n{to:x};");
        }
        text.push_str("}\n");
        let path = CStr::from_ptr(path).to_str().map_err(|_| ERROR_INVALID_VALUE)?;
        std::fs::write(path, text).map_err(|_| ERROR_OPERATING_SYSTEM)
    }

    /// Makes a graph ready to run.
    fn cudaGraphInstantiate(exec: *mut Exec, graph: Graph, flags: u64) {
        state::ready()?.cuGraphInstantiateWithFlags(place(exec)?, graph, flags)
    }

    /// Makes a graph ready to run.
    fn cudaGraphInstantiateWithFlags(exec: *mut Exec, graph: Graph, flags: u64) {
        state::ready()?.cuGraphInstantiateWithFlags(place(exec)?, graph, flags)
    }

    /// Makes a graph ready to run.
    pair own fn cudaGraphInstantiateWithParams, cudaGraphInstantiateWithParams_ptsz(
        exec: *mut Exec, graph: Graph, parameters: *mut c_void,
    ) {
        let driver = state::ready()?;
        driver.cuGraphInstantiateWithParams(own, place(exec)?, graph, place(parameters)?)
    }

    /// The flags that it was made ready with.
    fn cudaGraphExecGetFlags(exec: Exec, flags: *mut u64) {
        state::driver()?.cuGraphExecGetFlags(exec, place(flags)?)
    }

    /// Prepares a launch.
    pair own fn cudaGraphUpload, cudaGraphUpload_ptsz(exec: Exec, stream: Stream) {
        state::ready()?.cuGraphUpload(own, exec, stream)
    }

    /// Runs a graph in the stream's order.
    pair own fn cudaGraphLaunch, cudaGraphLaunch_ptsz(exec: Exec, stream: Stream) {
        state::ready()?.cuGraphLaunch(own, exec, stream)
    }

    /// Destroys what was made ready.
    fn cudaGraphExecDestroy(exec: Exec) {
        state::driver()?.cuGraphExecDestroy(exec)
    }

    /// An object with a count and a destructor.
    fn cudaUserObjectCreate(
        object: *mut u64, data: *mut c_void, destroy: Option<HostFn>, references: u32, flags: u32,
    ) {
        let destroy = destroy.ok_or(ERROR_INVALID_VALUE)?;
        state::driver()?.cuUserObjectCreate(place(object)?, data, destroy, references, flags)
    }

    /// Counts up.
    fn cudaUserObjectRetain(object: u64, count: u32) {
        state::driver()?.cuUserObjectRetain(object, count)
    }

    /// Counts down.
    fn cudaUserObjectRelease(object: u64, count: u32) {
        state::driver()?.cuUserObjectRelease(object, count)
    }

    /// The graph holds the object.
    fn cudaGraphRetainUserObject(graph: Graph, object: u64, count: u32, flags: u32) {
        state::driver()?.cuGraphRetainUserObject(graph, object, count, flags)
    }

    /// The graph holds it no more.
    fn cudaGraphReleaseUserObject(graph: Graph, object: u64, count: u32) {
        state::driver()?.cuGraphReleaseUserObject(graph, object, count)
    }

    /// More nodes, or others, that a captured stream's next work depends on. CUDA 12's form has
    /// four arguments, CUDA 13's one more with what the edges carry.
    pair own fn cudaStreamUpdateCaptureDependencies, cudaStreamUpdateCaptureDependencies_ptsz(
        stream: Stream, nodes: *mut Node, third: usize, fourth: usize, fifth: u32,
    ) {
        let (count, flags) = match driver::is_13() {
            true => (fourth, fifth),
            false => (third, fourth as u32),
        };
        state::ready()?.cuStreamUpdateCaptureDependencies(own, stream, nodes, count, flags)
    }

    /// The same, with what the edges carry, which must be nothing.
    pair own fn cudaStreamUpdateCaptureDependencies_v2,
    cudaStreamUpdateCaptureDependencies_v2_ptsz(
        stream: Stream, nodes: *mut Node, data: *const c_void, count: usize, flags: u32,
    ) {
        if !data.is_null() {
            return Err(ERROR_NOT_SUPPORTED);
        }
        state::ready()?.cuStreamUpdateCaptureDependencies(own, stream, nodes, count, flags)
    }
}

unsafe fn edges(
    graph: Graph,
    from: *mut Node,
    to: *mut Node,
    data: *mut c_void,
    count: *mut usize,
) -> Answer {
    let count = place(count)?;
    // SAFETY: not null; the caller's promise about its places.
    unsafe {
        state::driver()?.cuGraphGetEdges(graph, from, to, count)?;
        if !data.is_null() && !from.is_null() {
            data.cast::<u8>().write_bytes(0, *count * EDGE_BYTES);
        }
    }
    Ok(())
}

fn nodes_of(driver: &Driver, graph: Graph) -> Result<Vec<Node>, Code> {
    let mut count = 0;
    // SAFETY: places of this frame, as many as the driver is told.
    unsafe {
        driver.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count)?;
        let mut nodes = vec![0; count];
        driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count)?;
        nodes.truncate(count);
        Ok(nodes)
    }
}

fn edges_of(driver: &Driver, graph: Graph) -> Result<Vec<(Node, Node)>, Code> {
    let mut count = 0;
    let none = std::ptr::null_mut();
    // SAFETY: places of this frame, as many as the driver is told.
    unsafe {
        driver.cuGraphGetEdges(graph, none, none, &mut count)?;
        let (mut from, mut to) = (vec![0; count], vec![0; count]);
        driver.cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count)?;
        Ok(from.into_iter().zip(to).take(count).collect())
    }
}

/// The other ends of a node's edges: 1 for a node of no graph that the program has seen.
fn beside(node: Node, end: impl Fn((Node, Node)) -> Option<Node>) -> Result<Vec<Node>, Code> {
    let driver = state::driver()?;
    let graphs: Vec<Graph> = seen().iter().copied().collect();
    for graph in graphs {
        // A graph that is gone with its capture has no nodes.
        if nodes_of(driver, graph).is_ok_and(|nodes| nodes.contains(&node)) {
            return Ok(edges_of(driver, graph)?.into_iter().filter_map(end).collect());
        }
    }
    Err(ERROR_INVALID_VALUE)
}

/// Writes nodes into the caller's places, 0 where there are more; how many there are without
/// places.
unsafe fn give(found: &[Node], nodes: *mut Node, data: *mut c_void, count: *mut usize) -> Answer {
    let count = place(count)?;
    // SAFETY: not null; the caller's promise about its places.
    unsafe {
        if nodes.is_null() {
            *count = found.len();
            return Ok(());
        }
        for i in 0..*count {
            *nodes.add(i) = found.get(i).copied().unwrap_or(0);
        }
        if !data.is_null() {
            data.cast::<u8>().write_bytes(0, *count * EDGE_BYTES);
        }
        *count = found.len().min(*count);
    }
    Ok(())
}
