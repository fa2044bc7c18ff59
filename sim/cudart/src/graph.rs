//! Graphs: asked about, made ready, launched; objects that they hold.

use crate::driver;
use crate::entry::{export, place};
use crate::state;
use crate::types::*;
use std::ffi::c_void;

/// Bytes of `cudaGraphEdgeData`, all 0 for a plain dependency.
const EDGE_BYTES: usize = 8;

export! {
    /// An empty graph.
    fn cudaGraphCreate(graph: *mut Graph, flags: u32) {
        state::driver()?.cuGraphCreate(place(graph)?, flags)
    }

    /// Destroys a graph.
    fn cudaGraphDestroy(graph: Graph) {
        state::driver()?.cuGraphDestroy(graph)
    }

    /// Copies a graph.
    fn cudaGraphClone(copy: *mut Graph, graph: Graph) {
        state::driver()?.cuGraphClone(place(copy)?, graph)
    }

    /// A graph's nodes; with no place for them, how many.
    fn cudaGraphGetNodes(graph: Graph, nodes: *mut Node, count: *mut usize) {
        state::driver()?.cuGraphGetNodes(graph, nodes, place(count)?)
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
