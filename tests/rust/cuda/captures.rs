//! Graph captures of the driver's own: calls of a pool during one neither fail nor end it, and its
//! memory stays its graph's.

use super::cuda::Sim;
use super::machine::{Device, Kind};
use super::{MIB, common, no_misuse, on_sim_with};
use forebay::config::Config;
use forebay::driver::StreamHandle;
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings, capture, registry};

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "calls in a capture" => calls(),
        "memory of a graph" => assert_eq!(graph_memory(End::Release, false), 0, "corrupt blocks"),
        "memory of a followed graph" => {
            assert_eq!(graph_memory(End::Follow, false), 0, "corrupt blocks");
        }
        "memory of a graph, stamps ignored" => {
            assert!(graph_memory(End::Release, true) > 0, "nobody noticed");
        }
        "undeclared, blocking stream" => undeclared(Kind::Blocking, true),
        "undeclared, non-blocking stream" => undeclared(Kind::NonBlocking, false),
        "undeclared, checked" => undeclared_checked(),
        _ => return false,
    }
    true
}

/// `GLOBAL`, `THREAD_LOCAL`, `RELAXED`.
const MODES: [&str; 3] = ["0", "1", "2"];

/// The capture mode that the parent chose.
fn mode() -> usize {
    std::env::var("FOREBAY_TEST_MODE").expect("the parent gives it").parse().expect("a number")
}

fn begin(sim: Sim, stream: u64) {
    sim.ok("cuStreamBeginCapture_v2", &[stream as usize, mode()]);
}

fn end(sim: Sim, stream: u64) -> usize {
    let mut graph = 0usize;
    sim.ok("cuStreamEndCapture", &[stream as usize, &raw mut graph as usize]);
    assert_ne!(graph, 0);
    graph
}

/// 0: none, 1: a capture is open, 2: it is invalid.
fn status(sim: Sim, stream: u64) -> u32 {
    let mut status = 9u32;
    sim.ok("cuStreamIsCapturing", &[stream as usize, &raw mut status as usize]);
    status
}

fn nodes(sim: Sim, graph: usize) -> usize {
    let mut nodes = 0usize;
    sim.ok("cuGraphGetNodes", &[graph, 0, &raw mut nodes as usize]);
    nodes
}

/// Calls that a pool must not make while a capture is open.
const FORBIDDEN: [&str; 6] = [
    "cuCtxRecordEvent",
    "cuEventRecord",
    "cuMemUnmap",
    "cuStreamWaitEvent",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
];

/// Everything that a program asks of a pool, on one lane: hits, misses, growth, all frees.
fn all_calls(device: &Device, lane: u64, ours: &mut Vec<usize>) {
    let pool = &device.pool;
    for bytes in [1000, 200 << 10, MIB, 5 * MIB, 20 * MIB] {
        let count = if bytes < 4096 { 200 } else { 3 };
        let blocks: Vec<usize> =
            (0..count).map(|_| pool.alloc(bytes, lane).expect("memory is left")).collect();
        for &block in &blocks[1..] {
            pool.dealloc(block, lane).expect("live");
        }
        let again = pool.alloc(bytes, lane).expect("freed a moment ago");
        pool.dealloc(again, SYNC_STREAM).expect("live");
        ours.push(blocks[0]);
    }
}

/// Frees with and without fences are pending on each lane. Answers as many live blocks.
fn pending_frees(device: &Device, lanes: [u64; 3]) -> Vec<(usize, u64)> {
    let mut kept = Vec::new();
    for lane in lanes {
        for i in 0..25 {
            let [freed, live] = [0, 1].map(|_| device.pool.alloc(1 << (i % 22), lane));
            let freed = freed.expect("fits");
            device.fill(freed, 1, 1, if lane == SYNC_STREAM { 0 } else { lane });
            device.pool.dealloc(freed, lane).expect("live");
            kept.push((live.expect("fits"), lane));
        }
    }
    kept
}

fn calls() {
    let device = Device::open(0, 0, |settings| {
        settings.limit = 1000 * MIB as u64;
        settings.decay = std::time::Duration::from_millis(1);
    });
    let sim = device.sim;
    for kind in [Kind::NonBlocking, Kind::Blocking] {
        let (stream, side) = (device.stream(kind), device.stream(Kind::NonBlocking));
        let lanes = [stream, side, SYNC_STREAM];
        let before = pending_frees(&device, lanes);
        let number = capture::begin(stream).expect("a stream of the device");
        begin(sim, stream);
        let counts = FORBIDDEN.map(|name| sim.calls(name));
        let mut inside = Vec::new();
        let active = |step: &str| assert_eq!(status(sim, stream), 1, "{step} ended the capture");
        for lane in lanes {
            all_calls(&device, lane, &mut inside);
            active("calls in the capturing thread");
            std::thread::scope(|s| s.spawn(|| all_calls(&device, lane, &mut inside)).join())
                .expect("no failure");
            active("calls in another thread");
        }
        for (block, lane) in before {
            device.pool.record_use(block, side).expect("live");
            device.pool.dealloc(block, lane).expect("live");
        }
        active("frees of blocks from before");
        let captured = device.pool.alloc(3000, stream).expect("fits");
        device.fill(captured, 5, 3000, stream);
        device.pool.trim(0).expect("finds nothing to do");
        active("a trim");
        short(&device, stream);
        active("a refusal");
        other_pool(&device, stream);
        active("another pool");
        std::thread::sleep(std::time::Duration::from_millis(30));
        active("the keeper");
        assert_eq!(FORBIDDEN.map(|name| sim.calls(name)), counts, "{FORBIDDEN:?}");
        let graph = end(sim, stream);
        capture::end(number).expect("open");
        assert_eq!(nodes(sim, graph), 1, "the graph holds what the program queued");
        sim.ok("cuGraphDestroy", &[graph]);
        capture::release(number).expect("ended");
        for id in LATER.lock().expect("no panic").drain(..) {
            registry::destroy(id).expect("no capture is open");
        }
        for block in inside.into_iter().chain([captured]) {
            device.pool.dealloc(block, side).expect("live");
        }
        device.destroy_stream(stream, true);
        device.destroy_stream(side, true);
        assert_eq!(device.pool.stats().expect("alive").live_blocks, 0);
        device.synchronize();
        let all = device.pool.alloc(990 * MIB, 0).expect("nothing is anybody's");
        device.pool.dealloc(all, 0).expect("live");
    }
    device.end();
    no_misuse();
}

/// More than there is: an error that names the capture, at once.
fn short(device: &Device, stream: u64) {
    let error = device.pool.alloc(990 * MIB, stream).expect_err("there is not so much");
    assert_eq!(error.status(), Status::OutOfMemory);
    assert!(error.message().contains("capture"), "{error}");
}

/// A pool that is made during the capture obeys it.
fn other_pool(device: &Device, stream: u64) {
    let mut settings = Settings::resolve(&Config::from_env().expect("well-formed"), 1 << 26, false);
    settings.keeper = false;
    let pool = Pool::with_driver(device.driver.clone(), settings).expect("a pool");
    for lane in [stream, SYNC_STREAM] {
        let block = pool.alloc(3 * MIB, lane).expect("fits");
        pool.dealloc(block, lane).expect("live");
    }
    let id = pool.id();
    let busy = registry::destroy(id).expect_err("nothing is unmapped now");
    assert_eq!(busy.status(), Status::Busy);
    let _ = pool.into_handle();
    LATER.lock().expect("no panic").push(id);
}

/// Pools to be ended after the capture.
static LATER: std::sync::Mutex<Vec<u64>> = std::sync::Mutex::new(Vec::new());

/// Runs a scenario in each capture mode, on a driver with and without context events.
fn in_each_mode(name: &str, machine: &[(&str, &str)], own: &[(&str, &str)]) {
    for mode in MODES {
        let mut vars = vec![("FOREBAY_TEST_MODE", mode)];
        vars.extend(own);
        on_sim_with(name, machine, &vars);
    }
}

#[test]
fn calls_in_a_capture_neither_fail_nor_end_it() {
    let (memory, poison) = (("MEMORY", "1GiB"), ("POISON", "none"));
    in_each_mode("calls in a capture", &[memory, poison], &[]);
    in_each_mode("calls in a capture", &[memory, poison, ("CONTEXT_EVENTS", "0")], &[]);
    in_each_mode("calls in a capture", &[memory, poison], &[("FOREBAY_FREE", "sync")]);
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Release,
    Follow,
}

/// What the graph of [`graph_memory`] does at each launch: writes its own memory, moves that
/// through memory freed within the capture, and copies it out.
struct Graph {
    graph: usize,
    exec: usize,
    number: u64,
    out: usize,
    bytes: usize,
}

const INSIDE: u8 = 0xAB;

fn capture_graph(device: &Device, stream: u64, bytes: usize) -> Graph {
    let (sim, pool, driver) = (device.sim, &device.pool, &device.driver);
    let out = pool.alloc(bytes, 0).expect("fits");
    device.synchronize();
    let number = capture::begin(stream).expect("a stream of the device");
    begin(sim, stream);
    let at = StreamHandle(stream);
    let first = pool.alloc(bytes, stream).expect("fits");
    device.fill(first, INSIDE, bytes, stream);
    let second = pool.alloc(bytes, stream).expect("fits");
    driver.copy(second, first, bytes, at).expect("queued");
    pool.dealloc(first, stream).expect("live");
    // May be the memory of the first: it is the graph's own order.
    let third = pool.alloc(bytes, stream).expect("fits");
    driver.copy(third, second, bytes, at).expect("queued");
    pool.dealloc(second, SYNC_STREAM).expect("live");
    driver.copy(out, third, bytes, at).expect("queued");
    let graph = end(sim, stream);
    capture::end(number).expect("open");
    // Freed after the capture, and still the graph's.
    pool.dealloc(third, 0).expect("live");
    let exec = sim.get("cuGraphInstantiateWithFlags", &[graph, 0]);
    Graph { graph, exec, number, out, bytes }
}

/// Takes all that the pool gives on three lanes and fills it.
fn take_all(device: &Device, lanes: [u64; 3], bytes: usize) -> Vec<(usize, u64)> {
    let mut taken = Vec::new();
    for lane in lanes.into_iter().cycle().take(3 * 64) {
        let Ok(block) = device.pool.alloc(bytes, lane) else { continue };
        let stream = if lane == SYNC_STREAM { 0 } else { lane };
        device.fill(block, 0xEE, bytes, stream);
        taken.push((block, stream));
    }
    assert!(taken.len() >= 3, "the pool gave next to nothing");
    taken
}

/// Launches a graph again and again among other work that has all the memory it can get. Answers
/// how many looks found something else.
fn graph_memory(ending: End, ignored: bool) -> usize {
    let mut failed = 0;
    let device = Device::open(0, 10_000, |settings| {
        settings.keeper = ending == End::Follow;
        settings.limit = 24 * MIB as u64;
        settings.oom_wait = std::time::Duration::from_millis(1);
    });
    if ignored {
        device.pool.with_core(|core| core.ignore_stamps()).expect("alive");
    }
    let mut random = common::Random(common::seed(3));
    let (stream, side) = (device.stream(Kind::NonBlocking), device.stream(Kind::Blocking));
    for bytes in [3000, 150_000, MIB, 3 * MIB] {
        let graph = capture_graph(&device, stream, bytes);
        let mut checks = Vec::new();
        for _ in 0..3 {
            let taken = take_all(&device, [stream, side, SYNC_STREAM], bytes);
            device.fill(graph.out, 0, bytes, side);
            device.synchronize();
            device.sim.ok("cuGraphLaunch", &[graph.exec, side as usize]);
            let out = device.check((graph.out, bytes), INSIDE, side, random.bits());
            checks.extend(out);
            for (block, stream) in taken {
                checks.extend(device.check((block, bytes), 0xEE, stream, random.bits()));
                device.pool.dealloc(block, stream).expect("live");
            }
            device.sim.ok("cuGraphLaunch", &[graph.exec, stream as usize]);
        }
        finish(&device, graph, ending, ignored);
        device.synchronize();
        failed += checks.iter().filter(|check| !device.held(**check)).count();
    }
    device.destroy_stream(stream, true);
    device.destroy_stream(side, true);
    device.end();
    no_misuse();
    failed
}

/// The graph ends, told or followed; then its memory is everyone's.
fn finish(device: &Device, graph: Graph, ending: End, ignored: bool) {
    let (sim, pool) = (device.sim, &device.pool);
    let whole = 24 * MIB;
    pool.dealloc(graph.out, 0).expect("live");
    if ending == End::Follow {
        capture::follow_graph(graph.number, graph.graph as u64).expect("a live graph");
        sim.ok("cuGraphDestroy", &[graph.graph]);
        device.synchronize();
        // Instantiated before it was followed: the executable graph is not counted by CUDA.
        sim.ok("cuGraphExecDestroy", &[graph.exec]);
    } else {
        device.synchronize();
        let early = pool.alloc(whole, 0);
        assert_eq!(early.is_err(), !ignored, "the graph's memory");
        if let Ok(block) = early {
            pool.dealloc(block, 0).expect("live");
        }
        sim.ok("cuGraphExecDestroy", &[graph.exec]);
        sim.ok("cuGraphDestroy", &[graph.graph]);
        capture::release(graph.number).expect("ended");
    }
    let mut tries = 0;
    let all = loop {
        device.synchronize();
        match pool.alloc(whole, 0) {
            Ok(block) => break block,
            Err(error) if tries == 500 => panic!("the memory does not come back: {error}"),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
        tries += 1;
    };
    pool.dealloc(all, 0).expect("live");
    assert!(graph.bytes < whole);
}

#[test]
fn memory_of_a_graph_is_nobody_elses_until_its_release() {
    in_each_mode("memory of a graph", &[], &[]);
    in_each_mode("memory of a graph", &[("SEED", "2"), ("CONTEXT_EVENTS", "0")], &[]);
}

#[test]
fn memory_of_a_graph_comes_back_with_its_end() {
    in_each_mode("memory of a followed graph", &[], &[]);
}

#[test]
fn canary_stamps_ignored_corrupt_a_graph() {
    in_each_mode("memory of a graph, stamps ignored", &[], &[]);
}

/// A capture that nobody declared, and frees with `cudaFree`'s meaning beside it: the fence over
/// the context asks the legacy stream first, which knows of captures on blocking streams.
fn undeclared(kind: Kind, survives: bool) {
    let device = Device::open(0, 0, |settings| settings.keeper = false);
    let (sim, stream) = (device.sim, device.stream(kind));
    let blocks: Vec<usize> =
        (0..4).map(|_| device.pool.alloc(20 * MIB, SYNC_STREAM).expect("fits")).collect();
    begin(sim, stream);
    for block in blocks {
        device.pool.dealloc(block, SYNC_STREAM).expect("a free never fails for a fence");
    }
    device.pool.trim(0).expect("a trim");
    assert_eq!(status(sim, stream), if survives { 1 } else { 2 });
    let mut graph = 0usize;
    let ended = sim.call("cuStreamEndCapture", &[stream as usize, &raw mut graph as usize]);
    assert_eq!((ended == 0, graph != 0), (survives, survives));
    if graph != 0 {
        assert_eq!(nodes(sim, graph), 0);
        sim.ok("cuGraphDestroy", &[graph]);
    }
    device.synchronize();
    let all = device.pool.alloc(200 * MIB, 0).expect("no free was lost");
    device.pool.dealloc(all, 0).expect("live");
    device.destroy_stream(stream, true);
    device.end();
    no_misuse();
}

#[test]
fn an_undeclared_capture_survives_on_a_blocking_stream_only() {
    in_each_mode("undeclared, blocking stream", &[], &[]);
    in_each_mode("undeclared, non-blocking stream", &[], &[]);
}

fn undeclared_checked() {
    let device = Device::open(0, 0, |settings| settings.keeper = false);
    let told = |error: forebay::error::Error| {
        assert_eq!(error.status(), Status::InvalidStream, "{error}");
        assert!(error.message().contains("call forebay_capture_begin"), "{error}");
    };
    for kind in [Kind::Blocking, Kind::NonBlocking] {
        let (sim, stream) = (device.sim, device.stream(kind));
        let block = device.pool.alloc(20 * MIB, stream).expect("nothing captures");
        begin(sim, stream);
        told(device.pool.alloc(1000, stream).expect_err("untold"));
        told(device.pool.dealloc(block, stream).expect_err("untold"));
        told(device.pool.dealloc(block, SYNC_STREAM).expect_err("untold"));
        told(device.pool.trim(0).expect_err("untold"));
        assert_eq!(status(sim, stream), 1, "asking does no harm");
        sim.ok("cuGraphDestroy", &[end(sim, stream)]);
        device.pool.dealloc(block, SYNC_STREAM).expect("live");
        device.destroy_stream(stream, true);
    }
    device.end();
    no_misuse();
}

#[test]
fn an_undeclared_capture_is_named_when_streams_are_checked() {
    in_each_mode("undeclared, checked", &[], &[("FOREBAY_DEBUG", "streams")]);
}
