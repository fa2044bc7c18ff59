//! Memory nodes of graphs, added by hand, and what a device holds for them.

use crate::common::*;
use std::ptr::null;

const USED: u32 = 0;
const USED_HIGH: u32 = 1;
const RESERVED: u32 = 2;

fn attribute(which: u32) -> u64 {
    let mut value = 0;
    assert_eq!(cudaDeviceGetGraphMemAttribute(0, which, &mut value), 0);
    value
}

fn wish(bytes: usize) -> AllocNode {
    AllocNode { pool: PoolProps::of(0), access: null(), access_count: 0, bytes, at: 0 }
}

fn kind(node: u64) -> u32 {
    let mut kind = 99;
    assert_eq!(cudaGraphNodeGetType(node, &mut kind), 0);
    kind
}

/// A graph of one allocation, freed inside if asked; its nodes and the address.
fn graph_of(bytes: usize, inside: bool) -> (u64, u64, u64, u64) {
    let (mut graph, mut node, mut end, mut wish) = (0, 0, 0, wish(bytes));
    assert_eq!(cudaGraphCreate(&mut graph, 0), 0);
    assert_eq!(cudaGraphAddMemAllocNode(&mut node, graph, null(), 0, &mut wish), 0);
    if inside {
        assert_eq!(cudaGraphAddMemFreeNode(&mut end, graph, &node, 1, wish.at), 0);
    }
    (graph, node, end, wish.at)
}

#[test]
fn nodes_are_added_and_tell_their_memory() {
    let _turn = turn();
    let (graph, node, end, at) = graph_of(10_000, true);
    assert_ne!(at, 0);
    assert_eq!((kind(node), kind(end)), (10, 11));
    let (mut told, mut freed) = (wish(0), 0);
    assert_eq!(cudaGraphMemAllocNodeGetParams(node, &mut told), 0);
    assert_eq!((told.at, told.bytes, told.pool.location), (at, 10_000, [1, 0]));
    assert_eq!((cudaGraphMemFreeNodeGetParams(end, &mut freed), freed), (0, at));
    assert_eq!(cudaGraphMemFreeNodeGetParams(node, &mut freed), 1);
    assert_eq!(cudaGetLastError(), 1);
    let (mut after, mut count) = ([0; 2], 2);
    assert_eq!(cudaGraphNodeGetDependencies(end, after.as_mut_ptr(), &mut count), 0);
    assert_eq!((count, after[0]), (1, node));
    let (mut other, mut none) = (0, wish(0));
    assert_eq!(cudaGraphAddMemAllocNode(&mut other, graph, null(), 0, &mut none), 1, "no bytes");
    let mut far = AllocNode { pool: PoolProps::of(7), ..wish(64) };
    assert_eq!(cudaGraphAddMemAllocNode(&mut other, graph, null(), 0, &mut far), 1, "no device");
    assert_eq!(cudaGraphAddMemFreeNode(&mut other, graph, &node, 1, at), 1, "a second free");
    let nothing = std::ptr::null_mut();
    assert_eq!(cudaGraphAddMemAllocNode(nothing, graph, null(), 0, &mut wish(64)), 1);
    assert_eq!(cudaGraphAddMemAllocNode(&mut other, graph, null(), 0, std::ptr::null_mut()), 1);
    assert_eq!(cudaGraphDestroy(graph), 0);
}

#[test]
fn memory_that_a_graph_leaves_is_the_programs_until_it_is_freed() {
    let _turn = turn();
    let (graph, _, _, at) = graph_of(4096, false);
    let (stream, mut exec) = (stream(), 0);
    assert_eq!(cudaGraphInstantiate(&mut exec, graph, 0), 0);
    for value in [3u32, 4] {
        assert_eq!(cudaGraphLaunch(exec, stream), 0);
        assert_eq!(cudaMemsetAsync(at, value as i32, 8, stream), 0);
        assert_eq!(cudaStreamSynchronize(stream), 0);
        assert_eq!(words_of(at, 2), [value * 0x0101_0101; 2]);
        assert_eq!(cudaGraphLaunch(exec, stream), 1, "it is not freed");
        match value {
            3 => assert_eq!(cudaFreeAsync(at, stream), 0),
            _ => assert_eq!(cudaFree(at), 0),
        }
    }
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!(cudaGraphExecDestroy(exec), 0);
    assert_eq!(cudaGraphDestroy(graph), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
}

#[test]
fn a_device_counts_what_graphs_hold_and_gives_it_back() {
    let _turn = turn();
    assert_eq!(cudaDeviceGraphMemTrim(0), 0);
    let (mut zero, mut before, mut now, mut total) = (0, 0, 0, 0);
    assert_eq!(cudaDeviceSetGraphMemAttribute(0, USED_HIGH, &mut zero), 0);
    assert_eq!(cudaMemGetInfo(&mut before, &mut total), 0);
    let (graph, ..) = graph_of(5 << 20, true);
    let (stream, mut exec) = (stream(), 0);
    assert_eq!(cudaGraphInstantiate(&mut exec, graph, 0), 0);
    assert_eq!(cudaGraphLaunch(exec, stream), 0);
    assert_eq!(cudaStreamSynchronize(stream), 0);
    assert_eq!((attribute(USED), attribute(USED_HIGH)), (6 << 20, 6 << 20));
    assert_eq!((cudaMemGetInfo(&mut now, &mut total), before - now), (0, 6 << 20));
    assert_eq!(cudaDeviceGraphMemTrim(0), 0);
    assert_eq!((attribute(USED), attribute(RESERVED)), (0, 0));
    assert_eq!((cudaMemGetInfo(&mut now, &mut total), now), (0, before));
    assert_eq!(cudaDeviceSetGraphMemAttribute(0, USED, &mut zero), 1, "no high-water mark");
    assert_eq!(cudaDeviceGetGraphMemAttribute(0, 4, &mut zero), 1);
    assert_eq!(cudaDeviceGetGraphMemAttribute(0, USED, std::ptr::null_mut()), 1);
    assert_eq!(cudaDeviceGetGraphMemAttribute(2, USED, &mut zero), 101);
    assert_eq!(cudaDeviceSetGraphMemAttribute(2, USED_HIGH, &mut zero), 101);
    assert_eq!(cudaDeviceGraphMemTrim(-1), 101);
    assert_eq!(cudaGetLastError(), 101);
    assert_eq!(cudaGraphExecDestroy(exec), 0);
    assert_eq!(cudaGraphDestroy(graph), 0);
    assert_eq!(cudaStreamDestroy(stream), 0);
}
