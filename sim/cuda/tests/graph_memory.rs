//! Memory nodes of graphs: captured and added, launched again, freed inside and outside.

mod common;
mod queued;

use common::row;
use forebay_simcuda::abi::graphmem::AllocParams;
use forebay_simcuda::abi::mempool::PoolProps;
use forebay_simcuda::types::{CUmemAccessDesc, CUmemLocation};
use queued::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const OUT_OF_ORDER: &str = "graph memory out of order";
const FAULT: &str = "queued work on memory it may not touch";
/// Where the rules come from.
const NODE: &str = "H: cuGraphAddMemAllocNode";
const GUIDE: &str = "CUDA guide: graph memory nodes";
const AUTO_FREE: u64 = 1;

fn alloc(bytes: usize, stream: u64) -> u64 {
    let mut at = 0;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut at, bytes, stream)), 0, "cuMemAllocAsync");
    at
}

fn free(at: u64, stream: u64) -> u32 {
    cu!(cuMemFreeAsync(at, stream))
}

fn instantiate(graph: u64, flags: u64) -> (u32, u64) {
    let mut exec = 0;
    let code = cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, flags));
    (code, exec)
}

fn ready(graph: u64, flags: u64) -> u64 {
    let (code, exec) = instantiate(graph, flags);
    assert_eq!(code, 0, "cuGraphInstantiateWithFlags");
    exec
}

fn go(exec: u64, stream: u64) -> u32 {
    cu!(cuGraphLaunch(exec, stream))
}

fn attribute(which: u32) -> u64 {
    let mut value = 0u64;
    let at = (&raw mut value).cast::<c_void>();
    assert_eq!(cu!(cuDeviceGetGraphMemAttribute(0, which, at)), 0);
    value
}

fn free_bytes() -> usize {
    let (mut free, mut all) = (0, 0);
    assert_eq!(cu!(cuMemGetInfo_v2(&raw mut free, &raw mut all)), 0);
    free
}

/// A graph that allocates, fills, copies to `out`, and frees if `inside`.
fn recorded(s: u64, value: u32, out: u64, inside: bool) -> (u64, u64) {
    assert_eq!(begin(s, 0), 0);
    let at = alloc(4096, s);
    assert_eq!(fill(at, value, 1024, s), 0);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(out, at + 4092, 4, s)), 0);
    if inside {
        assert_eq!(free(at, s), 0);
    }
    let (code, graph) = end(s);
    assert_eq!(code, 0);
    (graph, at)
}

fn params(bytes: usize) -> AllocParams {
    let pool = PoolProps {
        alloc_type: 1,
        handle_types: 0,
        location: CUmemLocation { type_: 1, id: 0 },
        security: null(),
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    };
    AllocParams { pool, access: null(), access_count: 0, bytes, dptr: 0 }
}

fn kinds(graph: u64) -> Vec<u32> {
    let (mut nodes, mut count) = ([0u64; 8], 8usize);
    assert_eq!(cu!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count)), 0);
    let kind = |node: &u64| {
        let mut kind = 99;
        assert_eq!(cu!(cuGraphNodeGetType(*node, &raw mut kind)), 0);
        kind
    };
    nodes[..count].iter().map(kind).collect()
}

#[test]
fn captured_allocations_are_nodes_and_run_again_at_one_address() {
    for seed in 0..20 {
        let sim = world(&format!("seed = {seed}"));
        let s = stream(NON_BLOCKING);
        let out = device(4);
        let (graph, at) = recorded(s, 5, out, true);
        assert_eq!(kinds(graph), [10, 2, 1, 11], "allocation, fill, copy, free");
        assert_eq!((sim.live("pool_blocks"), sim.live("graph_allocations")), (0, 1));
        let exec = ready(graph, 0);
        for _ in 0..3 {
            put(out, &[0]);
            assert_eq!(go(exec, s), 0);
            assert_eq!(get(out, 1), [5], "seed {seed}");
        }
        assert_eq!(free(at, s), 1, "freed by its own graph");
        assert_eq!(cu!(cuGraphExecDestroy(exec)), 0);
        assert_eq!(sim.live("graph_allocations"), 1);
        assert_eq!(cu!(cuGraphDestroy(graph)), 0);
        assert_eq!(wait(s), 0);
        assert_eq!(sim.live("graph_allocations"), 0, "gone with graph, executable graph, launch");
        drop(forgiven(sim));
    }
    row(
        "a captured cuMemAllocAsync, cuMemFreeAsync: nodes of types 10 and 11",
        "H: cuMemAllocAsync",
    );
    row("the address of an allocation node is the same at every launch", NODE);
    row("memory that its own graph frees cannot be freed outside: 1", NODE);
}

/// A world that provoked the free of a graph's own memory.
fn forgiven(mut sim: common::Sim) -> common::Sim {
    sim.expect_misuse("free of graph memory outside its graph");
    sim
}

#[test]
fn memory_that_a_graph_leaves_is_used_and_freed_in_stream_order() {
    for seed in 0..20 {
        let sim = world(&format!("seed = {seed}"));
        let s = stream(NON_BLOCKING);
        let out = device(4);
        let (graph, at) = recorded(s, 7, out, false);
        let exec = ready(graph, 0);
        for round in 0..3 {
            assert_eq!(go(exec, s), 0);
            assert_eq!(go(exec, s), 1, "not freed");
            assert_eq!(fill(at, round, 4, s), 0);
            assert_eq!(cu!(cuMemcpyDtoDAsync_v2(out, at, 4, s)), 0);
            assert_eq!(free(at, s), 0);
            assert_eq!(get(out, 1), [round], "seed {seed}");
        }
        assert_eq!(go(exec, s), 0);
        assert_eq!(wait(s), 0);
        assert_eq!(cu!(cuMemFree_v2(at)), 0);
        assert_eq!(go(exec, s), 0, "freed by cuMemFree");
        assert_eq!(cu!(cuGraphExecDestroy(exec)), 0);
        assert_eq!(cu!(cuGraphDestroy(graph)), 0);
        assert_eq!(get(at, 1), [7], "live after its graph");
        assert_eq!(sim.live("graph_allocations"), 1);
        assert_eq!(free(at, s), 0);
        assert_eq!(wait(s), 0);
        assert_eq!(sim.live("graph_allocations"), 0);
    }
    row("a launch while memory of the last one is not freed: 1", "H: cuGraphLaunch");
    row("memory left by a graph: freed by cuMemFreeAsync or cuMemFree", NODE);
    row("destroying a graph frees none of its live memory", GUIDE);
}

#[test]
fn auto_free_frees_before_each_launch() {
    for seed in 0..20 {
        let sim = world(&format!("seed = {seed}"));
        let s = stream(NON_BLOCKING);
        let out = device(4);
        let (graph, at) = recorded(s, 9, out, false);
        let exec = ready(graph, AUTO_FREE);
        for _ in 0..3 {
            assert_eq!(go(exec, s), 0);
        }
        assert_eq!(get(at, 1), [9]);
        assert_eq!(free(at, s), 0);
        assert_eq!(wait(s), 0);
        assert_eq!(cu!(cuGraphExecDestroy(exec)), 0);
        assert_eq!(cu!(cuGraphDestroy(graph)), 0);
        assert_eq!(sim.live("graph_allocations"), 0, "seed {seed}");
    }
    let _sim = world("");
    let s = stream(NON_BLOCKING);
    let (graph, _) = recorded(s, 9, device(4), false);
    assert_eq!(instantiate(graph, AUTO_FREE | 4).0, 1);
    row("auto free on launch: as cuMemFreeAsync for all that is not freed", NODE);
    row("auto free together with launches from the device: 1", "H: cuGraphInstantiateWithFlags");
}

#[test]
fn another_graph_frees() {
    for seed in 0..20 {
        let mut sim = world(&format!("seed = {seed}"));
        sim.expect_misuse("double free");
        let s = stream(NON_BLOCKING);
        let out = device(4);
        let (graph, at) = recorded(s, 3, out, false);
        let maker = ready(graph, 0);
        assert_eq!(begin(s, 0), 0);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(out, at, 4, s)), 0);
        assert_eq!(free(at, s), 0);
        assert_eq!(free(at, s), 0, "another graph's second free is found at its launch");
        let (_, other) = end(s);
        assert_eq!(cu!(cuGraphDestroy(other)), 0);
        assert_eq!(begin(s, 0), 0);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(out, at, 4, s)), 0);
        assert_eq!(free(at, s), 0);
        let (_, other) = end(s);
        let ender = ready(other, 0);
        assert_eq!(go(ender, s), 1, "nothing to free yet");
        for _ in 0..3 {
            assert_eq!(go(maker, s), 0);
            assert_eq!(go(ender, s), 0);
        }
        assert_eq!(get(out, 1), [3], "seed {seed}");
        let mut node = 0;
        let none: *const u64 = null();
        let code = cu!(cuGraphAddMemFreeNode(&raw mut node, graph, none, 0, at));
        assert_eq!(code, 1, "another graph has a free node for it");
    }
    row("a graph frees what another allocates; 1 to launch it with nothing to free", NODE);
    row("a free node in the owner after one in another graph: 1", NODE);
}

#[test]
fn nodes_are_added_and_asked() {
    let sim = world("devices = 2");
    let s = stream(NON_BLOCKING);
    let (mut graph, mut node, mut end, mut wish) = (0, 0, 0, params(10_000));
    let there = CUmemLocation { type_: 1, id: 1 };
    let open = CUmemAccessDesc { location: there, flags: 3 };
    (wish.access, wish.access_count) = (&raw const open, 1);
    assert_eq!(cu!(cuGraphCreate(&raw mut graph, 0)), 0);
    let none: *const u64 = null();
    let add = |node: &mut u64, wish: &mut AllocParams| {
        cu!(cuGraphAddMemAllocNode(std::ptr::from_mut(node), graph, none, 0, wish))
    };
    for wrong in [
        AllocParams { bytes: 0, ..wish },
        AllocParams { access: null(), ..wish },
        AllocParams { pool: PoolProps { handle_types: 1, ..wish.pool }, ..wish },
        AllocParams { pool: PoolProps { alloc_type: 0, ..wish.pool }, ..wish },
    ] {
        let mut wrong = wrong;
        assert_eq!(add(&mut node, &mut wrong), 1);
    }
    assert_eq!(add(&mut node, &mut wish), 0);
    let at = wish.dptr;
    let deps = [node, node];
    let frees = |end: &mut u64, count: usize, at: u64| {
        let end = std::ptr::from_mut(end);
        cu!(cuGraphAddMemFreeNode(end, graph, deps.as_ptr(), count, at))
    };
    assert_eq!(frees(&mut end, 2, at), 1, "a dependency twice");
    assert_eq!(frees(&mut end, 1, at + 512), 1);
    assert_eq!(frees(&mut end, 1, device(64)), 1, "not an allocation node's");
    assert_eq!(frees(&mut end, 1, at), 0);
    assert_eq!(frees(&mut end, 1, at), 1, "twice in a graph");
    let (mut told, mut freed) = (params(0), 0);
    assert_eq!(cu!(cuGraphMemAllocNodeGetParams(node, &raw mut told)), 0);
    assert_eq!((told.dptr, told.bytes, told.pool.location.id), (at, 10_000, 0));
    assert_eq!(cu!(cuGraphMemFreeNodeGetParams(end, &raw mut freed)), 0);
    assert_eq!(freed, at);
    assert_eq!(cu!(cuGraphMemAllocNodeGetParams(end, &raw mut told)), 1);
    assert_eq!(cu!(cuGraphMemFreeNodeGetParams(node, &raw mut freed)), 1);
    let exec = ready(graph, 0);
    assert_eq!(go(exec, s), 0);
    assert_eq!(wait(s), 0);
    assert_eq!(sim.live("graph_allocations"), 1);
    row("cuGraphAddMemFreeNode: twice, inside a block, or other memory: 1", "H: same");
    row("cuGraphAddMemAllocNode: no bytes, shared, or not pinned: 1", NODE);
}

#[test]
fn a_graph_with_memory_has_one_executable_and_no_copy() {
    let sim = world("");
    let s = stream(NON_BLOCKING);
    let out = device(4);
    let (graph, _) = recorded(s, 5, out, true);
    let mut copy = 0;
    assert_eq!(cu!(cuGraphClone(&raw mut copy, graph)), 1);
    let exec = ready(graph, 0);
    assert_eq!(instantiate(graph, 0).0, 1);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), 0);
    let exec = ready(graph, 0);
    assert_eq!(begin(s, 0), 0);
    assert_eq!(go(exec, s), 1, "memory nodes in a capture");
    assert_eq!(end(s).0, 0);
    assert_eq!(sim.live("graph_execs"), 1);
    row("a graph with memory nodes cannot be cloned: 1", NODE);
    row("a second executable graph before the first is destroyed: 1", "H: cuGraphInstantiate");
    row("launching a graph with memory nodes into a capture: 1", "assumption");
}

#[test]
fn use_that_the_graph_does_not_order_is_misuse() {
    let mut sim = world("schedule = stepped");
    sim.expect_misuse(OUT_OF_ORDER);
    let (a, b, e) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event());
    assert_eq!(begin(a, 0), 0);
    assert_eq!(cu!(cuEventRecord(e, a)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 0);
    let at = alloc(4096, a);
    assert_eq!(fill(at, 1, 4, b), 0);
    assert_eq!(free(at, a), 0);
    assert_eq!(cu!(cuEventRecord(e, b)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(a, e, 0)), 0);
    let (code, graph) = end(a);
    assert_eq!(code, 0);
    let _exec = ready(graph, 0);
    let texts = misuse_texts();
    assert!(texts.iter().any(|t| t.contains("not behind the allocation")), "{texts:?}");
    assert!(texts.iter().any(|t| t.contains("not before the free")), "{texts:?}");
    row("a node that no edge orders between allocation and free: misuse", GUIDE);
}

#[test]
fn use_outside_its_life_is_misuse_and_fails_the_context() {
    for freed in [false, true] {
        let mut sim = world("");
        sim.expect_misuse(OUT_OF_ORDER);
        sim.expect_misuse(FAULT);
        let s = stream(NON_BLOCKING);
        let (graph, at) = recorded(s, 1, device(4), false);
        let exec = ready(graph, 0);
        if freed {
            assert_eq!(go(exec, s), 0);
            assert_eq!(free(at, s), 0);
        }
        assert_eq!(fill(at, 1, 4, s), 0);
        assert_eq!(wait(s), 700);
    }
    row("graph memory used before its launch or after its free: misuse and 700", GUIDE);
}

#[test]
fn use_that_no_order_puts_behind_the_launch_is_misuse() {
    let mut sim = world("schedule = stepped");
    sim.expect_misuse(OUT_OF_ORDER);
    let (a, b) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let (graph, at) = recorded(a, 1, device(4), false);
    assert_eq!(go(ready(graph, 0), a), 0);
    assert_eq!(cu!(cuMemFree_v2(at)), 1, "before the launch is done");
    assert_eq!(fill(at, 1, 4, b), 0);
    assert_eq!(free(at, a), 0);
    let texts = misuse_texts();
    assert!(texts[1].contains("no order behind its graph's launch"), "{texts:?}");
    assert!(texts[2].contains("freed while"), "{texts:?}");
    row("graph memory used in a stream that is not behind its launch: misuse", NODE);
    row("cuMemFree of graph memory before its launch is done: 1 and misuse", "assumption");
}

#[test]
fn frees_are_checked() {
    let mut sim = world("");
    sim.expect_misuse("double free");
    let s = stream(NON_BLOCKING);
    let pool = alloc(512, s);
    assert_eq!(begin(s, 0), 0);
    assert_eq!(free(pool, s), 1, "the pool's own");
    assert_eq!(status(s), 1, "the capture goes on");
    assert_eq!(end(s).0, 0);
    assert_eq!(free(pool, s), 0);
    let (graph, at) = recorded(s, 1, device(4), false);
    let exec = ready(graph, 0);
    assert_eq!(free(at, s), 1, "not allocated yet");
    assert_eq!(go(exec, s), 0);
    assert_eq!((free(at, s), free(at, s)), (0, 1));
    assert_eq!(wait(s), 0);
    assert_eq!(cu!(cuMemFree_v2(at)), 1);
    row("a captured free of memory that is no graph's: 1", "H: cuMemFreeAsync");
    row("a captured free of memory that is no graph's: the capture goes on", "assumption");
    row("a free of graph memory that is not allocated: 1, and misuse", "assumption");
}

#[test]
fn a_device_counts_what_its_graphs_hold_and_trims_it() {
    let sim = world("");
    let s = stream(NON_BLOCKING);
    let before = free_bytes();
    assert_eq!(begin(s, 0), 0);
    let at = alloc(5 << 20, s);
    assert_eq!(fill(at, 1, 4, s), 0);
    assert_eq!(free(at, s), 0);
    let (_, graph) = end(s);
    let exec = ready(graph, 0);
    assert_eq!((attribute(0), free_bytes()), (0, before), "pages come with the first launch");
    assert_eq!(cu!(cuGraphUpload(exec, s)), 0);
    assert_eq!((attribute(0), before - free_bytes()), (6 << 20, 6 << 20), "or with an upload");
    assert_eq!(go(exec, s), 0);
    assert_eq!(cu!(cuDeviceGraphMemTrim(0)), 0);
    assert_eq!(attribute(2), 6 << 20, "to be run: stays");
    assert_eq!(wait(s), 0);
    assert_eq!(cu!(cuDeviceGraphMemTrim(0)), 0);
    assert_eq!((attribute(0), attribute(1)), (0, 6 << 20));
    assert_eq!((attribute(2), attribute(3), free_bytes()), (0, 6 << 20, before));
    assert_eq!(go(exec, s), 0, "pages again");
    assert_eq!(wait(s), 0);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), 0);
    assert_eq!(cu!(cuGraphDestroy(graph)), 0);
    assert_eq!(sim.live("graph_allocations"), 0);
    assert_eq!((attribute(0), attribute(2)), (0, 6 << 20), "kept for other graphs");
    let mut zero = 0u64;
    let value = (&raw mut zero).cast::<c_void>();
    assert_eq!(cu!(cuDeviceSetGraphMemAttribute(0, 1, value)), 0);
    assert_eq!(cu!(cuDeviceSetGraphMemAttribute(0, 0, value)), 1);
    assert_eq!(cu!(cuDeviceSetGraphMemAttribute(9, 1, value)), 101);
    assert_eq!(attribute(1), 0);
    assert_eq!(cu!(cuDeviceGraphMemTrim(0)), 0);
    assert_eq!((attribute(2), free_bytes()), (0, before));
    assert_eq!(cu!(cuDeviceGetGraphMemAttribute(0, 4, value)), 1);
    assert_eq!(cu!(cuDeviceGraphMemTrim(9)), 101);
    row("pages come with a graph's upload or first launch", GUIDE);
    row("pages of graphs that are gone stay the device's graphs' until trimmed", GUIDE);
    row("cuDeviceGraphMemTrim spares what runs, is to run, or is not freed", "H: same");
    row("graph memory is counted in pieces of 2 MiB, used while it has pages", "assumption");
}

#[test]
fn a_full_device_takes_from_idle_graphs_first() {
    let _sim = world("memory = 32MiB");
    let s = stream(NON_BLOCKING);
    let graph = |bytes: usize| {
        assert_eq!(begin(s, 0), 0);
        let at = alloc(bytes, s);
        assert_eq!(free(at, s), 0);
        ready(end(s).1, 0)
    };
    let (large, other, huge) = (graph(20 << 20), graph(24 << 20), graph(40 << 20));
    for exec in [large, other, large] {
        assert_eq!(go(exec, s), 0);
        assert_eq!(wait(s), 0);
    }
    assert_eq!(go(huge, s), 2);
    assert_eq!(go(large, s), 0);
    assert_eq!(wait(s), 0);
    row("a full device: pages of graphs that do not run are taken, then 2", "assumption");
}

#[test]
fn graphs_open_their_memory_to_other_devices() {
    let sim = world("devices = 2");
    let s = stream(NON_BLOCKING);
    let mut pool = 0;
    assert_eq!(cu!(cuDeviceGetDefaultMemPool(&raw mut pool, 0)), 0);
    let open = CUmemAccessDesc { location: CUmemLocation { type_: 1, id: 1 }, flags: 3 };
    let (closed, shut) = recorded(s, 1, device(4), false);
    assert_eq!(cu!(cuMemPoolSetAccess(pool, &raw const open, 1)), 0);
    let (graph, at) = recorded(s, 1, device(4), false);
    for made in [closed, graph] {
        assert_eq!(go(ready(made, 0), s), 0);
    }
    assert_eq!(wait(s), 0);
    sim.primary(1);
    let other = stream(NON_BLOCKING);
    assert_eq!(fill(shut, 2, 4, other), 1, "no access");
    assert_eq!(fill(at, 2, 4, other), 0);
    assert_eq!(wait(other), 0);
    assert_eq!(cu!(cuMemAllocAsync(null_mut(), 4, other)), 1);
    row("a captured allocation has its pool's rights", "H: cuMemAllocAsync");
}
