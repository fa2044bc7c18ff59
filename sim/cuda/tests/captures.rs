//! Stream capture: what it forbids, in each mode and thread, and what ends it.

mod common;
mod queued;

use common::row;
use queued::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a call answers during a capture, and whether the capture survives it.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    /// Done, and harmless.
    Fine,
    /// Refused with this code, and the capture is invalid.
    Fatal(u32),
}
use Verdict::{Fatal, Fine};

/// What a call needs from the scene.
#[derive(Clone, Copy)]
struct Scene {
    captured: u64,
    context: u64,
    /// Recorded before the capture, and passed.
    outside: u64,
    /// Recorded in the capture.
    inside: u64,
    /// Never recorded.
    blank: u64,
    /// A non-blocking stream that is not captured.
    other: u64,
    cell: u64,
}

struct Row {
    name: &'static str,
    call: fn(Scene) -> u32,
    /// In the capturing thread, by the capture's mode.
    own: [Verdict; 3],
    /// In another thread of default mode.
    foreign: [Verdict; 3],
    /// In the capturing thread once it has exchanged its mode to RELAXED.
    relaxed: Verdict,
    source: &'static str,
}

const SAFE: [Verdict; 3] = [Fine; 3];
const UNSAFE: [Verdict; 3] = [Fatal(900), Fatal(900), Fine];
const FOREIGN_UNSAFE: [Verdict; 3] = [Fatal(900), Fine, Fine];
const T: &str = "T: hip-tests, hipStreamBeginCapture.cc";

fn always(code: u32) -> [Verdict; 3] {
    [Fatal(code); 3]
}

fn alloc(_: Scene) -> u32 {
    let mut at = 0;
    cu!(cuMemAlloc_v2(&raw mut at, 16))
}

fn reserve(_: Scene) -> u32 {
    let mut at = 0;
    cu!(cuMemAddressReserve(&raw mut at, 2 << 20, 0, 0, 0))
}

fn upload(s: Scene) -> u32 {
    let word = 1u32;
    cu!(cuMemcpyHtoD_v2(s.cell, std::ptr::from_ref(&word).cast::<c_void>(), 4))
}

fn unsafe_rows() -> Vec<Row> {
    let row = |name, call, source| Row {
        name,
        call,
        own: UNSAFE,
        foreign: FOREIGN_UNSAFE,
        relaxed: Fine,
        source,
    };
    vec![
        row("cuMemAlloc", alloc, T),
        row("cuMemAddressReserve", reserve, "assumption"),
        row("cuStreamQuery of another stream", |s| cu!(cuStreamQuery(s.other)), T),
        row("cuStreamSynchronize of another stream", |s| wait(s.other), T),
        row(
            "cuEventQuery of an event recorded outside",
            |s| cu!(cuEventQuery(s.outside)),
            "P: PyTorch's NCCL watchdog",
        ),
        row(
            "cuEventSynchronize of an event recorded outside",
            |s| cu!(cuEventSynchronize(s.outside)),
            "assumption",
        ),
        row(
            "cuMemsetD8 on the legacy stream, non-blocking capture",
            |s| cu!(cuMemsetD8_v2(s.cell, 1, 4)),
            "assumption",
        ),
        row("cuMemcpyHtoD on the legacy stream, non-blocking capture", upload, "assumption"),
        row("cuModuleLoadData", load_module, "assumption"),
        row("cuMemPoolGetAttribute", pool_attribute, "I: cuda-python#2834"),
    ]
}

fn load_module(_: Scene) -> u32 {
    let mut module = 0;
    cu!(cuModuleLoadData(&raw mut module, c"fill_u32".as_ptr().cast::<c_void>()))
}

fn pool_attribute(_: Scene) -> u32 {
    let (mut pool, mut value) = (0, 0u64);
    assert_eq!(cu!(cuDeviceGetDefaultMemPool(&raw mut pool, 0)), 0);
    cu!(cuMemPoolGetAttribute(pool, 4, (&raw mut value).cast::<c_void>()))
}

fn conflicting_rows() -> Vec<Row> {
    let row = |name, call, code, source| Row {
        name,
        call,
        own: always(code),
        foreign: always(code),
        relaxed: Fatal(code),
        source,
    };
    vec![
        row("cuStreamSynchronize", |s| wait(s.captured), 900, T),
        row("cuStreamQuery", |s| cu!(cuStreamQuery(s.captured)), 900, T),
        row("cuCtxSynchronize", |_| cu!(cuCtxSynchronize()), 900, T),
        row("cuEventQuery", |s| cu!(cuEventQuery(s.inside)), 907, T),
        row("cuEventSynchronize", |s| cu!(cuEventSynchronize(s.inside)), 907, T),
        row(
            "cuCtxRecordEvent",
            |s| cu!(cuCtxRecordEvent(s.context, s.blank)),
            900,
            "H: cuCtxRecordEvent",
        ),
        row(
            "cuCtxWaitEvent",
            |s| cu!(cuCtxWaitEvent(s.context, s.outside)),
            900,
            "H: cuCtxWaitEvent",
        ),
        row(
            "cuStreamAddCallback",
            |s| cu!(cuStreamAddCallback(s.captured, Some(nothing), null_mut(), 0)),
            900,
            "assumption",
        ),
        row(
            "cuStreamWaitEvent for an event recorded outside",
            |s| cu!(cuStreamWaitEvent(s.captured, s.outside, 0)),
            905,
            "H: CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        ),
    ]
}

fn harmless_rows() -> Vec<Row> {
    let row =
        |name, call, source| Row { name, call, own: SAFE, foreign: SAFE, relaxed: Fine, source };
    vec![
        row("cuEventQuery of an event never recorded", |s| cu!(cuEventQuery(s.blank)), T),
        row(
            "cuEventSynchronize of an event never recorded",
            |s| cu!(cuEventSynchronize(s.blank)),
            T,
        ),
        row("cuMemsetD32Async in another stream", |s| fill(s.cell, 1, 1, s.other), T),
        row("cuMemsetD32Async in the captured stream", |s| fill(s.cell, 1, 1, s.captured), T),
        row(
            "cuEventRecord in another stream",
            |s| cu!(cuEventRecord(s.blank, s.other)),
            "H: cuThreadExchangeStreamCaptureMode",
        ),
        row(
            "work on the legacy stream, non-blocking capture",
            |s| fill(s.cell, 1, 1, LEGACY),
            "H: cuStreamIsCapturing",
        ),
        row(
            "cuStreamGetId",
            |s| {
                let mut id = 0;
                cu!(cuStreamGetId(s.captured, &raw mut id))
            },
            "assumption",
        ),
    ]
}

unsafe extern "C" fn nothing(_stream: *mut c_void, _status: u32, _data: *mut c_void) {}

#[derive(Clone, Copy, PartialEq)]
enum Who {
    Own,
    Foreign,
    Relaxed,
}

fn try_row(r: &Row, mode: usize, who: Who) {
    let sim = world("");
    let context = sim.primary(0);
    let other = stream(NON_BLOCKING);
    let captured = stream(NON_BLOCKING);
    let (outside, inside, blank) = (event(), event(), event());
    let cell = device(16);
    assert_eq!(cu!(cuEventRecord(outside, other)), 0);
    assert_eq!(cu!(cuEventSynchronize(outside)), 0);
    assert_eq!(begin(captured, mode as u32), 0);
    assert_eq!(cu!(cuEventRecord(inside, captured)), 0);
    let scene = Scene { captured, context, outside, inside, blank, other, cell };
    let call = r.call;
    let code = match who {
        Who::Own => call(scene),
        Who::Foreign => {
            let run = move || {
                assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
                call(scene)
            };
            std::thread::spawn(run).join().unwrap()
        }
        Who::Relaxed => {
            let mut mode = 2;
            assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)), 0);
            assert_eq!(mode, 0);
            let code = call(scene);
            assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)), 0);
            assert_eq!(mode, 2);
            code
        }
    };
    let expected = match who {
        Who::Own => r.own[mode],
        Who::Foreign => r.foreign[mode],
        Who::Relaxed if r.own[mode] == Fine => Fine,
        Who::Relaxed => r.relaxed,
    };
    let name = format!("{} in mode {}", r.name, MODES[mode].1);
    let (found, ended) = (status(captured), end(captured));
    match expected {
        Fine => assert_eq!((code, found, ended.0), (0, 1, 0), "{name}"),
        Fatal(fatal) => assert_eq!((code, found, ended), (fatal, 2, (901, 0)), "{name}"),
    }
    assert_eq!(status(captured), 0, "{name}: ending frees the stream");
}

fn try_rows(rows: &[Row]) {
    for r in rows {
        for mode in 0..3 {
            for who in [Who::Own, Who::Foreign, Who::Relaxed] {
                try_row(r, mode, who);
            }
        }
        let text = format!(
            "capture: {}: own thread {:?}, other thread {:?}, after exchange to RELAXED {:?}",
            r.name, r.own, r.foreign, r.relaxed
        );
        let short = format!("in a capture: {}", r.name);
        row(if r.source == "assumption" { &short } else { &text }, r.source);
    }
}

#[test]
fn unsafe_calls_in_every_mode_and_thread() {
    try_rows(&unsafe_rows());
}

#[test]
fn calls_that_conflict_with_a_capture_in_every_mode_and_thread() {
    try_rows(&conflicting_rows());
}

#[test]
fn harmless_calls_in_every_mode_and_thread() {
    try_rows(&harmless_rows());
}

#[test]
fn the_legacy_stream_beside_a_blocking_capture() {
    for (mode, name) in MODES {
        for use_it in [
            |cell| fill(cell, 1, 1, LEGACY),
            |cell| cu!(cuMemsetD8_v2(cell, 1, 4)),
            |cell| upload_to(cell),
            |_| cu!(cuEventRecord(event(), LEGACY)),
        ] {
            let _sim = world("");
            let s = stream(0);
            let cell = device(16);
            assert_eq!(begin(s, mode), 0);
            let mut found = 7;
            assert_eq!(cu!(cuStreamIsCapturing(LEGACY, &raw mut found)), 906, "{name}");
            assert_eq!(status(s), 1, "asking harms nothing");
            assert_eq!(use_it(cell), 906, "{name}");
            assert_eq!(status(s), 2, "{name}");
            assert_eq!(end(s), (901, 0));
            assert_eq!(use_it(cell), 0, "{name}: usable again");
        }
    }
    row("legacy stream while a blocking stream is captured: 906, capture invalid", T);
    row("cuStreamIsCapturing on it: 906, capture unharmed", "H: cuStreamIsCapturing");
}

fn upload_to(cell: u64) -> u32 {
    let word = 1u32;
    cu!(cuMemcpyHtoD_v2(cell, std::ptr::from_ref(&word).cast::<c_void>(), 4))
}

#[test]
fn beginning_and_ending_have_their_codes() {
    let _sim = world("");
    let s = stream(NON_BLOCKING);
    assert_eq!(begin(LEGACY, 0), 900);
    assert_eq!(begin(s, 3), 1);
    assert_eq!(end(s), (401, 0));
    assert_eq!(end(0), (401, 0));
    assert_eq!(begin(s, 0), 0);
    assert_eq!(begin(s, 0), 401);
    assert_eq!(cu!(cuStreamEndCapture(s, null_mut())), 1);
    assert_eq!(status(s), 1);
    let other = std::thread::spawn(move || end(s)).join().unwrap();
    assert_eq!(other, (908, 0));
    assert_eq!(end(s).0, 0);
    assert_eq!(begin(s, 2), 0);
    let other = std::thread::spawn(move || end(s)).join().unwrap();
    assert_eq!(other.0, 0);
    let mut mode = 3;
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)), 1);
    row("begin: legacy stream 900, captured stream 401, unknown mode 1", T);
    row("end: not captured 401; another thread's, not RELAXED, 908", "T; H: cuStreamEndCapture");
    row("ending a capture in the wrong thread leaves it open", "assumption");
}

#[test]
fn forks_join_or_fail() {
    let _sim = world("");
    let (a, b, e) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event());
    let cell = device(16);
    let fork = || {
        assert_eq!(begin(a, 0), 0);
        assert_eq!(fill(cell, 1, 1, a), 0);
        assert_eq!(cu!(cuEventRecord(e, a)), 0);
        assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 0);
        assert_eq!(status(b), 1, "the wait takes the stream into the capture");
        assert_eq!(fill(cell, 2, 1, b), 0);
    };
    fork();
    assert_eq!(end(a), (904, 0));
    assert_eq!((status(a), status(b)), (0, 0));
    fork();
    assert_eq!(cu!(cuEventRecord(e, b)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(a, e, 0)), 0);
    assert_eq!(fill(cell, 3, 1, b), 0);
    assert_eq!(end(a), (904, 0));
    fork();
    assert_eq!(end(b), (903, 0));
    assert_eq!(end(a), (901, 0));
    row("an unjoined fork, or work behind the join: 904", T);
    row("ending in a stream where the capture did not begin: 903", "H: error texts");
    row("ending in the wrong stream makes the capture invalid", "assumption");
    assert_eq!(begin(a, 0), 0);
    assert_eq!(begin(b, 0), 0);
    assert_eq!(cu!(cuEventRecord(e, a)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 902);
    assert_eq!((end(a), end(b)), ((901, 0), (901, 0)));
    row("waiting for another capture's event: 902, both invalid", "H: error texts");
    assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 907);
    assert_eq!(cu!(cuEventQuery(e)), 907);
    assert_eq!(cu!(cuEventRecord(e, a)), 0);
    assert_eq!(cu!(cuEventSynchronize(e)), 0);
    row("an event of a capture that has ended: 907 until recorded again", "assumption");
}

#[test]
fn an_invalid_capture_answers_901_until_it_ends() {
    let _sim = world("");
    let (s, e) = (stream(NON_BLOCKING), event());
    let cell = device(16);
    assert_eq!(begin(s, 2), 0);
    assert_eq!(cu!(cuEventRecord(e, s)), 0);
    assert_eq!(wait(s), 900);
    assert_eq!(fill(cell, 1, 1, s), 901);
    assert_eq!(cu!(cuEventRecord(e, s)), 901);
    assert_eq!(wait(s), 901);
    assert_eq!(cu!(cuStreamWaitEvent(stream(NON_BLOCKING), e, 0)), 901);
    assert_eq!(begin(s, 2), 401);
    assert_eq!(end(s), (901, 0));
    assert_eq!(fill(cell, 1, 1, s), 0);
    assert_eq!(wait(s), 0);
    row("an invalid capture: 901 from every use until it is ended", "CUDA guide: invalidation");
}

#[test]
fn capture_info_names_graph_and_dependencies() {
    let _sim = world("");
    let s = stream(NON_BLOCKING);
    let cell = device(16);
    let (mut state, mut id, mut graph, mut count) = (9, 0, 0, 0);
    let mut nodes: *const u64 = std::ptr::null();
    assert_eq!(begin(s, 0), 0);
    assert_eq!(fill(cell, 1, 1, s), 0);
    let code = cu!(cuStreamGetCaptureInfo_v2(
        s,
        &raw mut state,
        &raw mut id,
        &raw mut graph,
        &raw mut nodes,
        &raw mut count
    ));
    assert_eq!((code, state, count), (0, 1, 1));
    assert!(id != 0 && graph != 0);
    // SAFETY: one node, valid until the next such call of this thread.
    let node = unsafe { *nodes };
    let mut kind = 99;
    assert_eq!(cu!(cuGraphNodeGetType(node, &raw mut kind)), 0);
    assert_eq!(kind, 2, "memset");
    let none: *const u64 = std::ptr::null();
    assert_eq!(cu!(cuStreamUpdateCaptureDependencies(s, none, 0, 1)), 0);
    assert_eq!(fill(cell, 2, 1, s), 0);
    assert_eq!(cu!(cuGraphDestroy(graph)), 1, "a graph that is being filled");
    let (code, ended) = end(s);
    assert_eq!((code, ended), (0, graph));
    let mut edges = 9;
    let places: *mut u64 = null_mut();
    assert_eq!(cu!(cuGraphGetEdges(graph, places, places, &raw mut edges)), 0);
    assert_eq!(edges, 0, "the second node depends on nothing");
    assert_eq!(cu!(cuStreamUpdateCaptureDependencies(s, none, 0, 1)), 401);
    row("capture info: number, graph, dependencies; these can be replaced", "H: CUDA_STREAM");
}

#[test]
fn graphs_run_again_late_and_in_the_order_of_their_edges() {
    for seed in 0..20 {
        let sim = world(&format!("seed = {seed}"));
        let (a, b, e) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event());
        let cells = device(16);
        put(cells, &[0; 4]);
        let add = kernel("add_u32");
        let bump = |at: u64, by: u32, s: u64| {
            let (mut at, mut by, mut n) = (at, by, 1u64);
            launch(add, s, &mut [argument(&mut at), argument(&mut by), argument(&mut n)])
        };
        assert_eq!(begin(a, 0), 0);
        assert_eq!(bump(cells, 1, a), 0);
        assert_eq!(cu!(cuEventRecord(e, a)), 0);
        assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 0);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(cells + 4, cells, 4, b)), 0);
        assert_eq!(cu!(cuEventRecord(e, b)), 0);
        assert_eq!(cu!(cuStreamWaitEvent(a, e, 0)), 0);
        assert_eq!(bump(cells + 4, 10, a), 0);
        let (code, graph) = end(a);
        assert_eq!(code, 0);
        assert_eq!(get(cells, 2), [0, 0], "captured work does not run");
        let (mut exec, mut nodes) = (0, 9);
        assert_eq!(cu!(cuGraphGetNodes(graph, null_mut(), &raw mut nodes)), 0);
        assert_eq!(nodes, 3);
        assert_eq!(cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)), 0);
        assert_eq!(cu!(cuGraphDestroy(graph)), 0);
        for _ in 0..3 {
            assert_eq!(cu!(cuGraphLaunch(exec, a)), 0);
        }
        assert_eq!(cu!(cuGraphLaunch(exec, b)), 0);
        assert_eq!(cu!(cuGraphExecDestroy(exec)), 0);
        assert_eq!(cu!(cuGraphExecDestroy(exec)), 1);
        assert_eq!(get(cells, 2), [4, 14], "seed {seed}");
        assert_eq!(sim.live("graphs") + sim.live("graph_execs"), 0);
    }
    row("a graph's launch runs every node behind those it depends on", "H: cuGraphLaunch");
    row("launches of one executable graph do not overlap", "H: cuGraphLaunch");
    row("destroying an executable graph lets its launches complete", "H: cuGraphExecDestroy");
}

static DESTROYED: AtomicU32 = AtomicU32::new(0);
static ANSWER: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn destructor(_data: *mut c_void) {
    let mut at = 0;
    ANSWER.store(cu!(cuMemAlloc_v2(&raw mut at, 16)), Ordering::SeqCst);
    DESTROYED.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn user_objects_end_with_their_last_reference() {
    let mut sim = world("schedule = stepped");
    sim.expect_misuse("call where none is allowed");
    let s = stream(NON_BLOCKING);
    let (mut object, mut state, mut id, mut graph) = (0, 0, 0, 0);
    let create = |to: &mut u64, count, flags| {
        let to = std::ptr::from_mut(to);
        cu!(cuUserObjectCreate(to, null_mut(), Some(destructor), count, flags))
    };
    assert_eq!(create(&mut object, 1, 0), 1);
    assert_eq!(create(&mut object, 0, 1), 1);
    assert_eq!(create(&mut object, 1, 1), 0);
    assert_eq!(begin(s, 0), 0);
    assert_eq!(fill(device_of_before(), 1, 1, s), 0);
    let (none, count): (*mut *const u64, *mut usize) = (null_mut(), null_mut());
    let code =
        cu!(cuStreamGetCaptureInfo_v2(s, &raw mut state, &raw mut id, &raw mut graph, none, count));
    assert_eq!(code, 0);
    assert_eq!(cu!(cuGraphRetainUserObject(graph, object, 1, 1)), 0);
    assert_eq!(end(s).0, 0);
    let mut exec = 0;
    assert_eq!(cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)), 0);
    assert_eq!(cu!(cuGraphDestroy(graph)), 0);
    assert_eq!(cu!(cuGraphLaunch(exec, s)), 0);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), 0);
    assert_eq!((sim.live("user_objects"), DESTROYED.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(wait(s), 0);
    while DESTROYED.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(ANSWER.load(Ordering::SeqCst), 800);
    assert_eq!(sim.live("user_objects"), 0);
    row("a user object lives as long as graph, executable graph and launch", "CUDA guide");
    row("a call from its destructor: 800 and misuse", "H: cuUserObjectCreate");
}

/// Device memory made before the capture that uses it.
fn device_of_before() -> u64 {
    let mut mode = 2;
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)), 0);
    let at = device(16);
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode)), 0);
    at
}

#[test]
fn a_destroyed_stream_ends_its_capture() {
    let sim = world("");
    let (s, other) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    assert_eq!(begin(s, 0), 0);
    assert_eq!(cu!(cuStreamDestroy_v2(s)), 0);
    assert_eq!(sim.live("captures"), 0);
    assert_eq!(wait(other), 0);
    row("destroying the stream of a capture ends the capture", "assumption");
}
