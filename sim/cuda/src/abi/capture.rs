//! Stream captures: begun, asked for, ended; the thread's mode.

use super::device::place;
use super::stream::{pair, stream};
use crate::call;
use crate::engine::capture::{CaptureInfo, STATUS_ACTIVE, exchange_mode};
use crate::entry::{Call, enter};
use crate::types::*;
use std::cell::RefCell;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuStreamBeginCapture, 10000).without_context(),
    call!(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000).per_thread().without_context(),
    call!(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010).without_context(),
    call!(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010)
        .per_thread()
        .without_context(),
    call!(cuThreadExchangeStreamCaptureMode, 10010).without_context(),
    call!(cuStreamEndCapture, 10000).without_context(),
    call!(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000).per_thread().without_context(),
    call!(cuStreamIsCapturing, 10000).without_context(),
    call!(cuStreamIsCapturing_ptsz, "cuStreamIsCapturing", 10000).per_thread().without_context(),
    call!(cuStreamGetCaptureInfo, 10010).without_context(),
    call!(cuStreamGetCaptureInfo_ptsz, "cuStreamGetCaptureInfo", 10010)
        .per_thread()
        .without_context(),
    call!(cuStreamGetCaptureInfo_v2, "cuStreamGetCaptureInfo", 11030).without_context(),
    call!(cuStreamGetCaptureInfo_v2_ptsz, "cuStreamGetCaptureInfo", 11030)
        .per_thread()
        .without_context(),
    call!(cuStreamGetCaptureInfo_v3, "cuStreamGetCaptureInfo", 12030).without_context(),
    call!(cuStreamGetCaptureInfo_v3_ptsz, "cuStreamGetCaptureInfo", 12030)
        .per_thread()
        .without_context(),
    call!(cuStreamUpdateCaptureDependencies, 11030).without_context(),
    call!(cuStreamUpdateCaptureDependencies_ptsz, "cuStreamUpdateCaptureDependencies", 11030)
        .per_thread()
        .without_context(),
];

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET_DEPENDENCIES: u32 = 1;

unsafe fn begin_with(name: &'static str, own: bool, handle: CUstream, mode: u32) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}, mode={mode}"),
        |world| {
            let info = stream(world, handle, own)?;
            world.engine.begin_capture(info.uid, mode)
        },
    )
}

unsafe fn begin(name: &'static str, own: bool, handle: CUstream) -> CUresult {
    // SAFETY: nothing is read through these.
    unsafe { begin_with(name, own, handle, 0) }
}

pair! {
    /// Begins a capture in mode GLOBAL; the form before CUDA 10.1.
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz, begin(stream: CUstream)
}

pair! {
    /// Begins a capture: 900 on the legacy stream, 401 in a captured one.
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
    begin_with(stream: CUstream, mode: u32)
}

/// Swaps the thread's capture mode.
///
/// # Safety
///
/// `mode` is null or a place for a mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> CUresult {
    enter("cuThreadExchangeStreamCaptureMode", String::new, |_| {
        let at = place(mode)?;
        // SAFETY: not null; CUDA asks the caller for a place that holds a mode.
        unsafe { *at = exchange_mode(*at)? };
        Ok(())
    })
}

unsafe fn end(name: &'static str, own: bool, handle: CUstream, graph: *mut CUgraph) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}"),
        |world| {
            let info = stream(world, handle, own)?;
            let captured = world.engine.capture_of(info.uid);
            if captured && graph.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let ended = world.engine.end_capture(info.uid);
            if !graph.is_null() {
                // SAFETY: not null; CUDA asks the caller for a writable place.
                unsafe { *graph = ended.unwrap_or(0) };
            }
            ended.map(|_| ())
        },
    )
}

pair! {
    /// Ends a capture: its graph, or 0 with the reason.
    cuStreamEndCapture, cuStreamEndCapture_ptsz, end(stream: CUstream, graph: *mut CUgraph)
}

unsafe fn is_capturing(
    name: &'static str,
    own: bool,
    handle: CUstream,
    status: *mut u32,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell_capture(name, own, handle, status, |_| {}) }
}

pair! {
    /// Whether a stream is captured: 0 no, 1 yes, 2 in an invalid capture.
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz,
    is_capturing(stream: CUstream, status: *mut u32)
}

unsafe fn tell_capture(
    name: &'static str,
    own: bool,
    handle: CUstream,
    status: *mut u32,
    more: impl FnOnce(&CaptureInfo),
) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}"),
        |world| {
            let to = place(status)?;
            let info = stream(world, handle, own)?;
            let capture = world.engine.capture_info(info.uid)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = capture.status };
            if capture.status == STATUS_ACTIVE {
                more(&capture);
            }
            Ok(())
        },
    )
}

/// Writes through a pointer that may be null.
///
/// # Safety
///
/// `to` is null or writable.
pub(super) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *to = value };
    }
}

unsafe fn info_v1(
    name: &'static str,
    own: bool,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell_capture(name, own, stream, status, |info| put(id, info.id)) }
}

pair! {
    /// A stream's capture status and the capture's number.
    cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
    info_v1(stream: CUstream, status: *mut u32, id: *mut u64)
}

thread_local! {
    /// Nodes last told to this thread: the caller reads them until its next such call.
    static TOLD: RefCell<Vec<CUgraphNode>> = const { RefCell::new(Vec::new()) };
}

/// Keeps nodes for the caller to read, and answers where.
fn keep(nodes: &[CUgraphNode]) -> *const CUgraphNode {
    let kept = TOLD.try_with(|told| {
        let mut told = told.borrow_mut();
        *told = nodes.to_vec();
        told.as_ptr()
    });
    // A thread that is ending has no such place any more.
    kept.unwrap_or(std::ptr::null())
}

#[expect(clippy::too_many_arguments, reason = "cuda.h's arguments and two more")]
unsafe fn info_v2(
    name: &'static str,
    own: bool,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    count: *mut usize,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe {
        tell_capture(name, own, stream, status, |info| {
            put(id, info.id);
            put(graph, info.graph);
            if !nodes.is_null() {
                put(nodes, keep(&info.deps));
            }
            put(count, info.deps.len());
        })
    }
}

pair! {
    /// A stream's capture status, the capture's number and graph, and what the stream's next
    /// node depends on. The nodes may be read until the thread's next such call.
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
    info_v2(
        stream: CUstream,
        status: *mut u32,
        id: *mut u64,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        count: *mut usize,
    )
}

#[expect(clippy::too_many_arguments, reason = "cuda.h's arguments and two more")]
unsafe fn info_v3(
    name: &'static str,
    own: bool,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const c_void,
    count: *mut usize,
) -> CUresult {
    // SAFETY: the caller's promise; edges of captures carry no data here.
    unsafe {
        put(edges, std::ptr::null());
        info_v2(name, own, stream, status, id, graph, nodes, count)
    }
}

pair! {
    /// The same with edge data, which no edge has here: a null pointer.
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
    info_v3(
        stream: CUstream,
        status: *mut u32,
        id: *mut u64,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        edges: *mut *const c_void,
        count: *mut usize,
    )
}

unsafe fn update(
    name: &'static str,
    own: bool,
    handle: CUstream,
    nodes: *const CUgraphNode,
    count: usize,
    flags: u32,
) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}, count={count}, flags={flags}"),
        |world| {
            if flags > SET_DEPENDENCIES || (nodes.is_null() && count > 0) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let nodes = match count {
                0 => &[],
                // SAFETY: not null; CUDA asks the caller for `count` readable nodes.
                _ => unsafe { std::slice::from_raw_parts(nodes, count) },
            };
            let info = stream(world, handle, own)?;
            world.engine.update_dependencies(info.uid, nodes, flags == SET_DEPENDENCIES)
        },
    )
}

pair! {
    /// Adds to (0) or replaces (1) what a captured stream's next node depends on.
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz,
    update(stream: CUstream, nodes: *const CUgraphNode, count: usize, flags: u32)
}
