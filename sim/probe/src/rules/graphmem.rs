//! Memory of graphs: captured and added allocations, launched again, freed inside and outside.
//!
//! Owns the questions about allocation and free nodes, and about what a device holds for graphs.
//! Cost: a device is filled once.

use crate::cuda::{AllocNode, Location, NON_BLOCKING};
use crate::lab::{Lab, codes, yes};
use crate::rule::Source::{Assumed, Header};
use crate::rule::{Rule, Seen, Stop, rule};
use std::ptr::null;
use std::time::Duration;

/// The rules of this file.
pub const RULES: &[Rule] = &[
    rule("graph memory: types of a captured allocation, fill, free", Header, "10 2 11", types),
    rule("graph memory: launched, and again while it is not freed", Header, "0 1", unfreed),
    rule("graph memory: launched again once freed, each way", Header, "0 0 0 0 0", freed),
    rule("graph memory: auto free on launch, launched twice", Header, "0 0", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let (graph, _) = recorded(lab, stream, SMALL, false)?;
        let exec = ready(lab, graph, AUTO_FREE)?;
        let go = || lab.cuda.cuGraphLaunch(exec, stream);
        Ok(codes(&[go(), go()]))
    }),
    rule("graph memory: cloned; made ready twice", Header, "1 1", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let (graph, _) = recorded(lab, stream, SMALL, true)?;
        let (mut copy, mut exec) = (0, 0);
        let cloned = lab.cuda.cuGraphClone(&raw mut copy, graph);
        ready(lab, graph, 0)?;
        Ok(codes(&[cloned, lab.cuda.cuGraphInstantiate(&raw mut exec, graph, 0)]))
    }),
    rule(
        "graph memory: nodes of nothing, of 4 KiB; freed, twice; other",
        Header,
        "1 0 0 1 1",
        added,
    ),
    rule("graph memory: freed outside though its own graph frees it", Header, "1", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let (graph, at) = recorded(lab, stream, SMALL, true)?;
        let exec = ready(lab, graph, 0)?;
        lab.need("cuGraphLaunch", lab.cuda.cuGraphLaunch(exec, stream))?;
        lab.need("cuStreamSynchronize", lab.wait(stream))?;
        Ok(lab.cuda.cuMemFreeAsync(at, stream).to_string())
    }),
    rule("graph memory: freed before its launch; twice after", Assumed, "1 0 1", early),
    rule("graph memory: launched into a capture", Assumed, "1", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let (graph, _) = recorded(lab, stream, SMALL, true)?;
        let exec = ready(lab, graph, 0)?;
        begin(lab, stream)?;
        let code = lab.cuda.cuGraphLaunch(exec, stream);
        let mut other = 0;
        lab.cuda.cuStreamEndCapture(stream, &raw mut other);
        Ok(code.to_string())
    }),
    rule("graph memory: cuMemFree before its launch is done", Assumed, "1", |lab| {
        let stream = lab.stream(NON_BLOCKING)?;
        let (graph, at) = recorded(lab, stream, SMALL, false)?;
        let exec = ready(lab, graph, 0)?;
        let gate = lab.gate(stream)?;
        lab.need("cuGraphLaunch", lab.cuda.cuGraphLaunch(exec, stream))?;
        // The call may wait for the launch.
        let opened = gate.open_after(Duration::from_millis(200));
        let code = lab.cuda.cuMemFree(at);
        let _ = opened.join();
        Ok(code.to_string())
    }),
    rule("graph memory: 5 MiB counted as 6; given back when trimmed", Assumed, "yes 0 0", trimmed)
        .alone(),
    rule(
        "graph memory: two graphs fill a device in turn; one that cannot",
        Assumed,
        "0 0 0 2",
        full,
    )
    .seconds(30)
    .alone(),
];

const SMALL: usize = 4096;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`, `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const USED: u32 = 0;
const RESERVED: u32 = 2;

fn begin(lab: &Lab, stream: u64) -> Result<(), Stop> {
    lab.ask(lab.attribute(115) == 1, "memory pools are not supported")?;
    lab.need("cuStreamBeginCapture", lab.cuda.cuStreamBeginCapture(stream, 0))
}

/// A graph that allocates, fills the beginning, and frees if `inside`; the address.
fn recorded(lab: &Lab, stream: u64, bytes: usize, inside: bool) -> Result<(u64, u64), Stop> {
    let (mut at, mut graph) = (0, 0);
    begin(lab, stream)?;
    lab.need("cuMemAllocAsync", lab.cuda.cuMemAllocAsync(&raw mut at, bytes, stream))?;
    lab.need("cuMemsetD32Async", lab.cuda.cuMemsetD32Async(at, 1, 4, stream))?;
    if inside {
        lab.need("cuMemFreeAsync", lab.cuda.cuMemFreeAsync(at, stream))?;
    }
    lab.need("cuStreamEndCapture", lab.cuda.cuStreamEndCapture(stream, &raw mut graph))?;
    Ok((graph, at))
}

fn ready(lab: &Lab, graph: u64, flags: u64) -> Result<u64, Stop> {
    let mut exec = 0;
    let code = lab.cuda.cuGraphInstantiate(&raw mut exec, graph, flags);
    lab.need("cuGraphInstantiateWithFlags", code)?;
    Ok(exec)
}

fn attribute(lab: &Lab, which: u32) -> Result<u64, Stop> {
    let mut value = 0u64;
    let to = (&raw mut value).cast();
    let code = lab.cuda.cuDeviceGetGraphMemAttribute(lab.device, which, to);
    lab.need("cuDeviceGetGraphMemAttribute", code)?;
    Ok(value)
}

fn types(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let (graph, _) = recorded(lab, stream, SMALL, true)?;
    let (mut nodes, mut count) = ([0u64; 3], 3);
    let code = lab.cuda.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count);
    lab.need("cuGraphGetNodes", code)?;
    let mut kinds = [99; 3];
    for (node, kind) in nodes.iter().zip(&mut kinds) {
        lab.need("cuGraphNodeGetType", lab.cuda.cuGraphNodeGetType(*node, kind))?;
    }
    Ok(codes(&kinds))
}

fn unfreed(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let (graph, _) = recorded(lab, stream, SMALL, false)?;
    let exec = ready(lab, graph, 0)?;
    let go = || lab.cuda.cuGraphLaunch(exec, stream);
    Ok(codes(&[go(), go()]))
}

/// Launched, freed in the stream's order, launched, freed by `cuMemFree`, launched.
fn freed(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let (graph, at) = recorded(lab, stream, SMALL, false)?;
    let exec = ready(lab, graph, 0)?;
    let go = || lab.cuda.cuGraphLaunch(exec, stream);
    let (first, later, second) = (go(), lab.cuda.cuMemFreeAsync(at, stream), go());
    lab.need("cuStreamSynchronize", lab.wait(stream))?;
    Ok(codes(&[first, later, second, lab.cuda.cuMemFree(at), go()]))
}

/// An allocation node by hand: of nothing, as it should be; its free node, twice, and one of other
/// memory.
fn added(lab: &Lab) -> Seen {
    let (mut graph, mut node, mut end) = (0, 0, 0);
    lab.need("cuGraphCreate", lab.cuda.cuGraphCreate(&raw mut graph, 0))?;
    let mut add = |bytes: usize| {
        let location = Location { kind: 1, id: lab.device };
        let mut wish = AllocNode { kind: 1, location, bytes, ..AllocNode::default() };
        let code = lab.cuda.cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut wish);
        (code, wish.at)
    };
    let (empty, _) = add(0);
    let (made, at) = add(SMALL);
    let other = lab.plain(SMALL)?;
    let mut free = |at| {
        let end = &raw mut end;
        lab.cuda.cuGraphAddMemFreeNode(end, graph, &raw const node, 1, at)
    };
    Ok(codes(&[empty, made, free(at), free(at), free(other)]))
}

fn early(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let (graph, at) = recorded(lab, stream, SMALL, false)?;
    let exec = ready(lab, graph, 0)?;
    let free = || lab.cuda.cuMemFreeAsync(at, stream);
    let before = free();
    lab.need("cuGraphLaunch", lab.cuda.cuGraphLaunch(exec, stream))?;
    Ok(codes(&[before, free(), free()]))
}

fn trimmed(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let (graph, _) = recorded(lab, stream, 5 << 20, true)?;
    let exec = ready(lab, graph, 0)?;
    lab.need("cuGraphLaunch", lab.cuda.cuGraphLaunch(exec, stream))?;
    lab.need("cuStreamSynchronize", lab.wait(stream))?;
    let used = attribute(lab, USED)?;
    lab.note(&format!("5 MiB count as {used} bytes"));
    let code = lab.cuda.cuDeviceGraphMemTrim(lab.device);
    Ok(format!("{} {code} {}", yes(used == 6 << 20), attribute(lab, RESERVED)?))
}

/// Two graphs of three quarters of the free memory each, and one of more than all.
fn full(lab: &Lab) -> Seen {
    let stream = lab.stream(NON_BLOCKING)?;
    let free = lab.free_bytes()?;
    let piece = free / 4 * 3;
    let execs = [piece, piece, free * 2]
        .map(|bytes| recorded(lab, stream, bytes, true).and_then(|(g, _)| ready(lab, g, 0)));
    let [first, second, more] = execs;
    let (first, second, more) = (first?, second?, more?);
    let go = |exec| match lab.cuda.cuGraphLaunch(exec, stream) {
        0 => lab.wait(stream),
        code => code,
    };
    Ok(codes(&[go(first), go(second), go(first), go(more)]))
}
