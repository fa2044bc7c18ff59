//! Graphs, executable graphs and their launches, user objects.

use super::capture::put;
use super::device::place;
use super::stream::{pair, stream};
use crate::call;
use crate::engine::host::HostFn;
use crate::entry::{Call, enter};
use crate::types::*;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuGraphCreate, 10000).without_context(),
    call!(cuGraphDestroy, 10000).without_context(),
    call!(cuGraphClone, 10000).without_context(),
    call!(cuGraphGetNodes, 10000).without_context(),
    call!(cuGraphGetEdges, 10000).without_context(),
    call!(cuGraphNodeGetType, 10000).without_context(),
    call!(cuGraphInstantiate, 10000).without_context(),
    call!(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000).without_context(),
    call!(cuGraphInstantiateWithFlags, 11040).without_context(),
    call!(cuGraphInstantiateWithParams, 12000).without_context(),
    call!(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000)
        .per_thread()
        .without_context(),
    call!(cuGraphExecGetFlags, 12000).without_context(),
    call!(cuGraphUpload, 11010).without_context(),
    call!(cuGraphUpload_ptsz, "cuGraphUpload", 11010).per_thread().without_context(),
    call!(cuGraphLaunch, 10000).without_context().answers_sticky(),
    call!(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000)
        .per_thread()
        .without_context()
        .answers_sticky(),
    call!(cuGraphExecDestroy, 10000).without_context(),
    call!(cuUserObjectCreate, 11030).without_context(),
    call!(cuUserObjectRetain, 11030).without_context(),
    call!(cuUserObjectRelease, 11030).without_context(),
    call!(cuGraphRetainUserObject, 11030).without_context(),
    call!(cuGraphReleaseUserObject, 11030).without_context(),
];

/// All flags of `cuGraphInstantiateWithFlags`: auto free, upload, device launch, node priority.
const INSTANTIATE_FLAGS: u64 = 15;
/// Auto free and device launch exclude each other.
const NOT_TOGETHER: u64 = 1 | 4;

/// Makes an empty graph.
///
/// # Safety
///
/// `graph` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphCreate(graph: *mut CUgraph, flags: u32) -> CUresult {
    enter(
        "cuGraphCreate",
        || format!("flags={flags}"),
        |world| {
            let to = place(graph)?;
            if flags != 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.engine.create_graph() };
            Ok(())
        },
    )
}

/// Destroys a graph: executable graphs made from it live on.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    enter(
        "cuGraphDestroy",
        || format!("graph={graph:#x}"),
        |world| world.engine.destroy_graph(graph),
    )
}

/// Copies a graph.
///
/// # Safety
///
/// `copy` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphClone(copy: *mut CUgraph, graph: CUgraph) -> CUresult {
    enter(
        "cuGraphClone",
        || format!("graph={graph:#x}"),
        |world| {
            let to = place(copy)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.engine.clone_graph(graph)? };
            Ok(())
        },
    )
}

/// Copies as many of `found` as fit, the rest of the places set to 0; answers the count that a
/// caller without places is told.
///
/// # Safety
///
/// `to` is null or `places` handles may be written there.
unsafe fn fill(to: *mut u64, places: usize, found: &[u64]) -> usize {
    if to.is_null() {
        return found.len();
    }
    for i in 0..places {
        // SAFETY: within the caller's places.
        unsafe { *to.add(i) = found.get(i).copied().unwrap_or(0) };
    }
    places.min(found.len())
}

/// A graph's nodes, or with no places how many there are.
///
/// # Safety
///
/// `count` is null or holds how many handles may be written to `nodes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    enter(
        "cuGraphGetNodes",
        || format!("graph={graph:#x}"),
        |world| {
            let count = place(count)?;
            let found = world.engine.graph_nodes(graph)?;
            // SAFETY: not null; the caller's promise about its places.
            unsafe { *count = fill(nodes, *count, &found) };
            Ok(())
        },
    )
}

/// A graph's edges, or with no places how many there are.
///
/// # Safety
///
/// `count` is null or holds how many handles may be written to `from` and `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetEdges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> CUresult {
    enter(
        "cuGraphGetEdges",
        || format!("graph={graph:#x}"),
        |world| {
            let count = place(count)?;
            if from.is_null() != to.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let (heads, tails): (Vec<u64>, Vec<u64>) =
                world.engine.graph_edges(graph)?.into_iter().unzip();
            // SAFETY: not null; the caller's promise about its places.
            unsafe {
                fill(from, *count, &heads);
                *count = fill(to, *count, &tails);
            }
            Ok(())
        },
    )
}

/// A node's type.
///
/// # Safety
///
/// `kind` is null or a place for a type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut u32) -> CUresult {
    enter(
        "cuGraphNodeGetType",
        || format!("node={node:#x}"),
        |world| {
            let to = place(kind)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.engine.node_kind(node)? as u32 };
            Ok(())
        },
    )
}

unsafe fn instantiate(
    name: &'static str,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CUresult {
    enter(
        name,
        || format!("graph={graph:#x}, flags={flags}"),
        |world| {
            let to = place(exec)?;
            if flags & !INSTANTIATE_FLAGS != 0 || flags & NOT_TOGETHER == NOT_TOGETHER {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let made = world.engine.instantiate(graph, flags)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = made };
            Ok(())
        },
    )
}

/// Makes an executable graph; the form before CUDA 11, with places for what went wrong.
///
/// # Safety
///
/// `exec` is null or a place for a handle; `node` as well; `log` is null or `bytes` long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiate(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut u8,
    bytes: usize,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe {
        if bytes > 0 {
            put(log, 0);
        }
        put(node, 0);
        instantiate("cuGraphInstantiate", exec, graph, 0)
    }
}

/// Makes an executable graph; the form of CUDA 11.
///
/// # Safety
///
/// `exec` is null or a place for a handle; `node` as well; `log` is null or `bytes` long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiate_v2(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut u8,
    bytes: usize,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe {
        if bytes > 0 {
            put(log, 0);
        }
        put(node, 0);
        instantiate("cuGraphInstantiate_v2", exec, graph, 0)
    }
}

/// Makes an executable graph.
///
/// # Safety
///
/// `exec` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { instantiate("cuGraphInstantiateWithFlags", exec, graph, flags) }
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
pub struct InstantiateParams {
    /// Flags, as of `cuGraphInstantiateWithFlags`.
    pub flags: u64,
    /// Where to upload, if the flags say so.
    pub upload_stream: CUstream,
    /// Written: the node that could not be instantiated.
    pub error_node: CUgraphNode,
    /// Written: 0 for success, 1 for an error.
    pub result: u32,
}

unsafe fn instantiate_with(
    name: &'static str,
    _own: bool,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut InstantiateParams,
) -> CUresult {
    let flags = if params.is_null() {
        u64::MAX
    } else {
        // SAFETY: not null; CUDA asks the caller for the structure.
        unsafe { (*params).flags }
    };
    // SAFETY: the caller's promise.
    unsafe {
        let done = instantiate(name, exec, graph, flags);
        if !params.is_null() {
            (*params).error_node = 0;
            (*params).result = u32::from(done != CUDA_SUCCESS);
        }
        done
    }
}

pair! {
    /// Makes an executable graph, with a structure for arguments and outcome.
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
    instantiate_with(exec: *mut CUgraphExec, graph: CUgraph, params: *mut InstantiateParams)
}

/// The flags of an executable graph.
///
/// # Safety
///
/// `flags` is null or a place for flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecGetFlags(exec: CUgraphExec, flags: *mut u64) -> CUresult {
    enter(
        "cuGraphExecGetFlags",
        || format!("exec={exec:#x}"),
        |world| {
            let to = place(flags)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.engine.exec_flags(exec)? };
            Ok(())
        },
    )
}

unsafe fn upload(name: &'static str, own: bool, exec: CUgraphExec, handle: CUstream) -> CUresult {
    enter(
        name,
        || format!("exec={exec:#x}, stream={handle:#x}"),
        |world| {
            stream(world, handle, own)?;
            world.engine.upload_graph(exec)
        },
    )
}

pair! {
    /// Makes an executable graph ready to be launched: its memory nodes have pages.
    cuGraphUpload, cuGraphUpload_ptsz, upload(exec: CUgraphExec, stream: CUstream)
}

unsafe fn launch(name: &'static str, own: bool, exec: CUgraphExec, handle: CUstream) -> CUresult {
    enter(
        name,
        || format!("exec={exec:#x}, stream={handle:#x}"),
        |world| {
            let info = stream(world, handle, own)?;
            world.engine.launch_graph(exec, info.uid)
        },
    )
}

pair! {
    /// Launches an executable graph in a stream.
    cuGraphLaunch, cuGraphLaunch_ptsz, launch(exec: CUgraphExec, stream: CUstream)
}

/// Destroys an executable graph; its launches still complete.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    enter(
        "cuGraphExecDestroy",
        || format!("exec={exec:#x}"),
        |world| world.engine.destroy_exec(exec),
    )
}

/// Makes a user object.
///
/// # Safety
///
/// `object` is null or a place for a handle; the destructor may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuUserObjectCreate(
    object: *mut CUuserObject,
    data: *mut c_void,
    destroy: Option<HostFn>,
    references: u32,
    flags: u32,
) -> CUresult {
    enter(
        "cuUserObjectCreate",
        || format!("references={references}, flags={flags}"),
        |world| {
            let to = place(object)?;
            let destroy = destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let data = data as usize;
            let handle = world.engine.create_user_object(data, destroy, references, flags)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = handle };
            Ok(())
        },
    )
}

/// Adds references to a user object.
#[unsafe(no_mangle)]
pub extern "C" fn cuUserObjectRetain(object: CUuserObject, count: u32) -> CUresult {
    enter(
        "cuUserObjectRetain",
        || format!("object={object:#x}, count={count}"),
        |world| world.engine.retain_user_object(object, count),
    )
}

/// Gives references to a user object back.
#[unsafe(no_mangle)]
pub extern "C" fn cuUserObjectRelease(object: CUuserObject, count: u32) -> CUresult {
    enter(
        "cuUserObjectRelease",
        || format!("object={object:#x}, count={count}"),
        |world| world.engine.release_user_object(object, count),
    )
}

/// Gives a graph references to a user object: new ones (0) or the caller's (1).
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> CUresult {
    enter(
        "cuGraphRetainUserObject",
        || format!("graph={graph:#x}, object={object:#x}, count={count}, flags={flags}"),
        |world| world.engine.graph_retain(graph, object, count, flags),
    )
}

/// Takes references to a user object from a graph.
#[unsafe(no_mangle)]
pub extern "C" fn cuGraphReleaseUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
) -> CUresult {
    enter(
        "cuGraphReleaseUserObject",
        || format!("graph={graph:#x}, object={object:#x}, count={count}"),
        |world| world.engine.graph_release(graph, object, count),
    )
}
