//! Streams, and what is captured from them.

use crate::driver;
use crate::entry::{export, place};
use crate::graph::see;
use crate::state;
use crate::types::*;
use std::ffi::c_void;

export! {
    /// Makes a stream.
    fn cudaStreamCreate(stream: *mut Stream) {
        state::ready()?.cuStreamCreate(place(stream)?, 0)
    }

    /// Makes a stream, blocking (0) or non-blocking (1).
    fn cudaStreamCreateWithFlags(stream: *mut Stream, flags: u32) {
        state::ready()?.cuStreamCreate(place(stream)?, flags)
    }

    /// Makes a stream with a priority.
    fn cudaStreamCreateWithPriority(stream: *mut Stream, flags: u32, priority: i32) {
        state::ready()?.cuStreamCreateWithPriority(place(stream)?, flags, priority)
    }

    /// Destroys a stream; what is queued still runs.
    fn cudaStreamDestroy(stream: Stream) {
        state::ready()?.cuStreamDestroy(stream)
    }

    /// 600 while the stream has work.
    pair own fn cudaStreamQuery, cudaStreamQuery_ptsz(stream: Stream) {
        state::ready()?.cuStreamQuery(own, stream)
    }

    /// Waits for the stream's work.
    pair own fn cudaStreamSynchronize, cudaStreamSynchronize_ptsz(stream: Stream) {
        state::ready()?.cuStreamSynchronize(own, stream)
    }

    /// The stream's later work waits for an event.
    pair own fn cudaStreamWaitEvent, cudaStreamWaitEvent_ptsz(
        stream: Stream, event: Event, flags: u32,
    ) {
        state::ready()?.cuStreamWaitEvent(own, stream, event, flags)
    }

    /// A stream's flags.
    pair own fn cudaStreamGetFlags, cudaStreamGetFlags_ptsz(stream: Stream, flags: *mut u32) {
        state::ready()?.cuStreamGetFlags(own, stream, place(flags)?)
    }

    /// A stream's priority.
    pair own fn cudaStreamGetPriority, cudaStreamGetPriority_ptsz(
        stream: Stream, priority: *mut i32,
    ) {
        state::ready()?.cuStreamGetPriority(own, stream, place(priority)?)
    }

    /// A stream's number, unique in the process.
    pair own fn cudaStreamGetId, cudaStreamGetId_ptsz(stream: Stream, id: *mut u64) {
        state::ready()?.cuStreamGetId(own, stream, place(id)?)
    }

    /// A stream's device.
    pair own fn cudaStreamGetDevice, cudaStreamGetDevice_ptsz(stream: Stream, device: *mut i32) {
        state::ready()?.cuStreamGetDevice(own, stream, place(device)?)
    }

    /// Calls a function in the stream's order, also after an error.
    pair own fn cudaStreamAddCallback, cudaStreamAddCallback_ptsz(
        stream: Stream, function: *mut c_void, data: *mut c_void, flags: u32,
    ) {
        state::ready()?.cuStreamAddCallback(own, stream, place(function)?, data, flags)
    }

    /// Calls a function in the stream's order.
    pair own fn cudaLaunchHostFunc, cudaLaunchHostFunc_ptsz(
        stream: Stream, function: Option<HostFn>, data: *mut c_void,
    ) {
        let function = function.ok_or(ERROR_INVALID_VALUE)?;
        state::ready()?.cuLaunchHostFunc(own, stream, function, data)
    }

    /// What goes to the stream from now on becomes a graph.
    pair own fn cudaStreamBeginCapture, cudaStreamBeginCapture_ptsz(stream: Stream, mode: u32) {
        state::ready()?.cuStreamBeginCapture(own, stream, mode)
    }

    /// Ends that, with the graph.
    pair own fn cudaStreamEndCapture, cudaStreamEndCapture_ptsz(
        stream: Stream, graph: *mut Graph,
    ) {
        state::ready()?.cuStreamEndCapture(own, stream, graph)?;
        if !graph.is_null() {
            see(*graph);
        }
        Ok(())
    }

    /// Whether a stream is being captured.
    pair own fn cudaStreamIsCapturing, cudaStreamIsCapturing_ptsz(
        stream: Stream, status: *mut u32,
    ) {
        state::ready()?.cuStreamIsCapturing(own, stream, place(status)?)
    }

    /// About a capture. CUDA 12's form under this name has three arguments, CUDA 13's all.
    pair own fn cudaStreamGetCaptureInfo, cudaStreamGetCaptureInfo_ptsz(
        stream: Stream, status: *mut u32, id: *mut u64, graph: *mut Graph,
        nodes: *mut *const Node, edges: *mut *const c_void, count: *mut usize,
    ) {
        let driver = state::ready()?;
        if driver::is_13() {
            let status = place(status)?;
            told(graph, |graph| {
                driver
                    .cuStreamGetCaptureInfo_v3(own, stream, status, id, graph, nodes, edges, count)
            })
        } else {
            let (graph, nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut(),
                std::ptr::null_mut());
            driver.cuStreamGetCaptureInfo(own, stream, place(status)?, id, graph, nodes, count)
        }
    }

    /// About a capture.
    pair own fn cudaStreamGetCaptureInfo_v2, cudaStreamGetCaptureInfo_v2_ptsz(
        stream: Stream, status: *mut u32, id: *mut u64, graph: *mut Graph,
        nodes: *mut *const Node, count: *mut usize,
    ) {
        let driver = state::ready()?;
        let status = place(status)?;
        told(graph, |graph| {
            driver.cuStreamGetCaptureInfo(own, stream, status, id, graph, nodes, count)
        })
    }

    /// About a capture, with what its edges carry.
    pair own fn cudaStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo_v3_ptsz(
        stream: Stream, status: *mut u32, id: *mut u64, graph: *mut Graph,
        nodes: *mut *const Node, edges: *mut *const c_void, count: *mut usize,
    ) {
        let driver = state::ready()?;
        let status = place(status)?;
        told(graph, |graph| {
            driver.cuStreamGetCaptureInfo_v3(own, stream, status, id, graph, nodes, edges, count)
        })
    }

    /// The thread's mode of captures, exchanged.
    fn cudaThreadExchangeStreamCaptureMode(mode: *mut u32) {
        state::driver()?.cuThreadExchangeStreamCaptureMode(place(mode)?)
    }
}

/// Asks for a capture's graph even where the program does not: its nodes are asked about later.
unsafe fn told(to: *mut Graph, ask: impl FnOnce(&mut Graph) -> Answer) -> Answer {
    let mut graph = 0;
    ask(&mut graph)?;
    see(graph);
    if graph != 0 && !to.is_null() {
        // SAFETY: not null; the caller's promise.
        unsafe { *to = graph };
    }
    Ok(())
}
