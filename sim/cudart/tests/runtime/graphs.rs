//! Captures and graphs.

use crate::common::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

static DROPPED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn dropped(_data: *mut c_void) {
    DROPPED.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_capture_becomes_a_graph_that_runs_as_often_as_launched() {
    let mut turn = turn();
    turn.misuses();
    let (stream, out) = (stream(), pinned(2));
    let device = device_words(&[1, 1]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    let mut status = 9;
    assert_eq!((cudaStreamIsCapturing(stream, &mut status), status), (0, 0));
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    assert_eq!((cudaStreamIsCapturing(stream, &mut status), status), (0, 1));
    let (mut id, mut graph, mut count, mut nodes) = (0, 0, 9, std::ptr::null());
    let info = |id: &mut u64, graph: &mut u64, nodes: &mut *const u64, count: &mut usize| {
        let mut status = 0;
        assert_eq!(cudaStreamGetCaptureInfo_v2(stream, &mut status, id, graph, nodes, count), 0);
        assert_eq!(status, 1);
    };
    info(&mut id, &mut graph, &mut nodes, &mut count);
    assert_eq!(count, 0);
    assert!(id > 0 && graph > 0);
    assert_eq!(cudaMemsetAsync(device, 4, 4, stream), 0);
    assert_eq!(cudaMemcpyAsync(out.as_mut_ptr() as u64, device, 8, 2, stream), 0);
    info(&mut id, &mut graph, &mut nodes, &mut count);
    assert_eq!(count, 1);
    let mut object = 0;
    DROPPED.store(0, Ordering::SeqCst);
    let nothing = std::ptr::null_mut();
    assert_eq!(cudaUserObjectCreate(&mut object, nothing, Some(dropped), 1, 1), 0);
    assert_eq!(cudaGraphRetainUserObject(graph, object, 1, 1), 0);
    let mut ended = 0;
    assert_eq!((cudaStreamEndCapture(stream, &mut ended), ended), (0, graph));
    assert_eq!((cudaGraphGetNodes(graph, std::ptr::null_mut(), &mut count), count), (0, 2));
    let mut nodes = [0; 2];
    assert_eq!(cudaGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count), 0);
    let kinds = nodes.map(|node| {
        let mut kind = 99;
        assert_eq!(cudaGraphNodeGetType(node, &mut kind), 0);
        kind
    });
    assert_eq!(kinds, [2, 1], "a fill, a copy");
    let (mut from, mut to) = ([0; 1], [0; 1]);
    count = 1;
    assert_eq!(cudaGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count), 0);
    assert_eq!((count, from[0], to[0]), (1, nodes[0], nodes[1]));
    assert_eq!(out, [0, 0], "a capture runs nothing");
    let mut exec = 0;
    assert_eq!(cudaGraphInstantiate(&mut exec, graph, 0), 0);
    for other in [7u32, 8] {
        assert_eq!(cudaMemcpy(device + 4, std::ptr::from_ref(&other) as u64, 4, 1), 0);
        assert_eq!(cudaDeviceSynchronize(), 0);
        assert_eq!(cudaGraphLaunch(exec, stream), 0);
        assert_eq!(cudaStreamSynchronize(stream), 0);
        assert_eq!(out, [0x0404_0404, other]);
    }
    assert_eq!(cudaGraphDestroy(graph), 0);
    assert_eq!(cudaGraphExecDestroy(exec), 0);
    assert_eq!(cudaDeviceSynchronize(), 0);
    for _ in 0..1000 {
        if DROPPED.load(Ordering::SeqCst) > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(DROPPED.load(Ordering::SeqCst), 1, "the last graph has gone");
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFreeHost(out.as_mut_ptr().cast()), 0);
}

#[test]
fn a_graphs_nodes_know_their_neighbours() {
    let _turn = turn();
    let (stream, device) = (stream(), device_words(&[1, 1]));
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    assert_eq!(cudaMemsetAsync(device, 4, 4, stream), 0);
    let (mut status, mut count, mut latest) = (0, 0, std::ptr::null());
    let none = std::ptr::null_mut();
    let code =
        cudaStreamGetCaptureInfo_v2(stream, &mut status, none, none, &mut latest, &mut count);
    assert_eq!((code, count), (0, 1));
    // SAFETY: one node, by the count.
    let first = unsafe { *latest };
    assert_eq!((cudaGraphNodeGetDependencies(first, none, &mut count), count), (0, 0));
    assert_eq!(cudaMemsetAsync(device + 4, 5, 4, stream), 0);
    let mut graph = 0;
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 0);
    let mut found = [7, 7];
    count = 2;
    assert_eq!(cudaGraphGetRootNodes(graph, found.as_mut_ptr(), &mut count), 0);
    assert_eq!((count, found), (1, [first, 0]));
    count = 2;
    assert_eq!(cudaGraphNodeGetDependentNodes(first, found.as_mut_ptr(), &mut count), 0);
    assert_eq!(count, 1);
    let second = found[0];
    assert_ne!(second, first);
    count = 1;
    assert_eq!(cudaGraphNodeGetDependencies(second, found.as_mut_ptr(), &mut count), 0);
    assert_eq!((count, found[0]), (1, first));
    let file = crate::child::scratch("graph.dot");
    let path = std::ffi::CString::new(file.to_str().expect("is text")).expect("no zero");
    assert_eq!(cudaGraphDebugDotPrint(graph, path.as_ptr(), 0), 0);
    let text = std::fs::read_to_string(&file).expect("was written");
    std::fs::remove_file(&file).expect("is there");
    assert!(text.starts_with("digraph"), "{text}");
    assert!(text.contains(&format!("n{first:x} -> n{second:x};")), "{text}");
    assert_eq!(cudaGraphDestroy(graph), 0);
    assert_eq!(cudaGraphNodeGetDependencies(second, none, &mut count), 1);
    assert_eq!(cudaStreamDestroy(stream), 0);
    assert_eq!(cudaFree(device), 0);
}

#[test]
fn what_a_capture_forbids_ends_it() {
    let mut turn = turn();
    turn.misuses();
    let (stream, mut at, mut graph) = (stream(), 0, 7);
    assert_eq!(cudaStreamBeginCapture(stream, 0), 0);
    assert_eq!(cudaMalloc(&mut at, 4096), 900);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 901);
    assert_eq!(graph, 0);
    assert_eq!(cudaStreamEndCapture(stream, &mut graph), 401, "there is no capture");
    assert_eq!(cudaMalloc(&mut at, 4096), 0);
    assert_eq!(cudaFree(at), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
}
