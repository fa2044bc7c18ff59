//! What the pool asks of a CUDA driver: calls and modelled time, on the simulated one.
//!
//! Counts come from the simulation's own report, all calls to the driver included: contexts,
//! capture modes, fences. Times are those of its virtual clock under the profile `a100`, so they
//! are the same on every machine; none of them is a GPU's. `--json` prints `{"rows":[...]}`;
//! `--quick` runs shorter loads. Needs `FOREBAY_SIMULATED_DRIVER` or builds the library.
//! Cost: some seconds.

#[path = "../tests/rust/common/cuda.rs"]
mod cuda;

use cuda::Sim;
use forebay::config::Config;
use forebay::driver::{Driver, StreamHandle, cuda as backend};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings, registry};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

const MIB: usize = 1 << 20;
const GRANULE: usize = 2 * MIB;

/// Calls that make, look at or wait for fences.
const FENCES: [&str; 7] = [
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventDestroy",
    "cuStreamWaitEvent",
    "cuCtxRecordEvent",
];
/// Calls that ask for or set what is current on the thread; they reach no device. The context's
/// number is asked for without naming a context, and at most once in ten milliseconds.
const THREAD: [&str; 7] = [
    "cuCtxGetId",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuThreadExchangeStreamCaptureMode",
    "cuCtxGetDevice",
];
/// Calls that keep the host waiting for a device.
const WAITS: [&str; 4] =
    ["cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree"];

/// One measured figure; a target is the most it may be.
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    target: Option<f64>,
    peer: Option<(&'static str, f64)>,
}

fn row(name: impl Into<String>, value: f64, unit: &'static str, target: Option<f64>) -> Row {
    Row { name: format!("cuda/{}", name.into()), value, unit, target, peer: None }
}

/// A pool over a fresh simulated device.
struct Bench {
    sim: Sim,
    driver: Arc<dyn Driver>,
    pool: Pool,
    streams: Vec<u64>,
}

impl Bench {
    /// A pool limited to `limit`; the device has 1 GiB more.
    fn new(limit: usize, settings: &str, change: impl FnOnce(&mut Settings)) -> Bench {
        let sim = Sim::open();
        let device = limit + (1 << 30);
        sim.configure(&format!("memory = {device}\n{settings}"));
        let driver = backend::open(Some(cuda::library()), 0).expect("a simulated device").driver();
        let mut config = Settings::resolve(&Config::default(), device as u64, false);
        config.limit = limit as u64;
        config.keeper = false;
        change(&mut config);
        let context = sim.get("cuDevicePrimaryCtxRetain", &[0]);
        sim.ok("cuCtxSetCurrent", &[context]);
        let pool = Pool::with_driver(Arc::clone(&driver), config).expect("a pool");
        Bench { sim, driver, pool, streams: Vec::new() }
    }

    fn with_streams(mut self, count: usize) -> Bench {
        self.streams =
            (0..count).map(|_| self.driver.stream_create().expect("a stream").0).collect();
        self
    }

    /// Work for a stream: it runs late.
    fn work(&self, block: usize, bytes: usize, stream: u64) {
        // Straight to the driver, as a program's own work goes.
        let args = [block, 1, bytes.min(4096), stream as usize];
        self.sim.ok("cuMemsetD8Async", &args);
    }

    fn calls(&self) -> Calls {
        let report = self.sim.report();
        let calls = report["calls"].as_object().expect("counts").iter();
        Calls {
            by_name: calls.map(|(k, v)| (plain(k), v.as_u64().expect("a count"))).fold(
                BTreeMap::new(),
                |mut map, (name, count)| {
                    *map.entry(name).or_insert(0) += count;
                    map
                },
            ),
            time_us: report["time_us"].as_f64().expect("the clock"),
        }
    }

    /// Ends the pool; the driver must have been used as CUDA wants it, and nothing be left.
    fn end(self) {
        for &stream in &self.streams {
            self.driver.stream_synchronize(StreamHandle(stream)).expect("a stream");
        }
        let id = self.pool.id();
        let _ = self.pool.into_handle();
        registry::destroy(id).expect("no fault is set");
        for stream in self.streams {
            self.driver.stream_destroy(StreamHandle(stream)).expect("a stream");
        }
        self.sim.ok("cuDevicePrimaryCtxRelease_v2", &[0]);
        self.sim.assert_no_misuse();
        self.sim.assert_nothing_left();
    }
}

/// `cuMemAlloc_v2` is `cuMemAlloc`.
fn plain(name: &str) -> String {
    match name.rsplit_once("_v") {
        Some((front, end)) if end.chars().all(|c| c.is_ascii_digit()) => front.to_owned(),
        _ => name.to_owned(),
    }
}

/// What the simulation counted.
#[derive(Clone)]
struct Calls {
    by_name: BTreeMap<String, u64>,
    time_us: f64,
}

impl Calls {
    fn since(&self, before: &Calls) -> Calls {
        let count = |name: &String| before.by_name.get(name).copied().unwrap_or(0);
        let mut by_name = self.by_name.clone();
        by_name.iter_mut().for_each(|(name, calls)| *calls -= count(name));
        by_name.retain(|_, calls| *calls > 0);
        Calls { by_name, time_us: self.time_us - before.time_us }
    }

    fn of(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|&name| self.by_name.get(name)).sum()
    }

    fn all(&self) -> u64 {
        self.by_name.values().sum()
    }

    /// Without the caller's own work.
    fn but(&self, names: &[&str]) -> u64 {
        self.all() - self.of(names)
    }
}

const OWN_WORK: [&str; 1] = ["cuMemsetD8Async"];

/// Measures something with so many pairs of calls.
type Part = fn(usize) -> Vec<Row>;

/// What is measured, each in a process of its own: a program begins CUDA once in its life.
const PARTS: [(&str, Part); 10] = [
    ("sync-4KiB", |pairs| sync_lane(4 << 10, pairs)),
    ("sync-64KiB", |pairs| sync_lane(64 << 10, pairs)),
    ("ring", |pairs| hand_over(Way::Ring, true, false, pairs / 10)),
    ("one-way", |pairs| hand_over(Way::OneWay, false, false, pairs / 10)),
    ("one-way-late", |pairs| hand_over(Way::OneWay, true, false, pairs / 10)),
    ("one-way-waits", |pairs| hand_over(Way::OneWay, true, true, pairs / 10)),
    ("large", |_| large_blocks()),
    ("gather", |_| gather(512 * MIB)),
    ("reservoir", |pairs| reservoir(pairs / 10)),
    ("idle", |_| idle_streams()),
];

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let json = arguments.iter().any(|argument| argument == "--json");
    arguments.retain(|argument| !argument.starts_with("--"));
    let pairs = if quick { 20_000 } else { 200_000 };
    if let Some(&(_, part)) = PARTS.iter().find(|(name, _)| arguments == [*name]) {
        println!("{}", as_json(&part(pairs)));
        return;
    }
    let rows: Vec<Value> = PARTS.iter().flat_map(|(name, _)| apart(name, quick)).collect();
    match json {
        true => println!("{:#}", serde_json::json!({ "rows": rows })),
        false => print!("{}", as_table(&rows)),
    }
}

/// One part's rows, from a process of its own.
fn apart(part: &str, quick: bool) -> Vec<Value> {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.arg(part).args(quick.then_some("--quick")).stderr(Stdio::inherit());
    command.env(cuda::LIBRARY, cuda::library());
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{part}: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("rows")
}

/// Pairs with `cudaFree`'s meaning: calls a thousand frees, and bytes that wait at most.
fn sync_lane(bytes: usize, pairs: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let bench = Bench::new(4 << 30, "schedule = eager", |_| ());
    let pair = || {
        let block = bench.pool.alloc(bytes, SYNC_STREAM).expect("fits");
        bench.pool.dealloc(block, SYNC_STREAM).expect("live");
    };
    (0..pairs / 4).for_each(|_| pair());
    let before = bench.calls();
    let mut waiting = 0;
    for i in 0..pairs {
        pair();
        if i % 64 == 0 {
            waiting = waiting.max(bench.pool.stats().expect("alive").pending_bytes);
        }
    }
    let calls = bench.calls().since(&before);
    let thousand = pairs as f64 / 1000.0;
    let name = |what: &str| format!("sync {}KiB/{what}", bytes >> 10);
    let each = |calls: u64| calls as f64 / thousand;
    // The hot pair is one of 4 KiB; larger blocks fill a batch with fewer frees.
    let most = (bytes == 4 << 10).then_some(10.0);
    rows.push(row(name("calls a 1000 frees"), each(calls.all()), "calls", most));
    rows.push(row(name("of them fences"), each(calls.of(&FENCES)), "calls", None));
    rows.push(row(name("of them thread state"), each(calls.of(&THREAD)), "calls", None));
    let waiting = waiting as f64 / MIB as f64;
    rows.push(row(name("in quarantine at most"), waiting, "MiB", Some(16.0)));
    bench.end();
    rows
}

/// How blocks travel between streams.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Each stream hands its blocks to the next of four, which frees them.
    Ring,
    /// One stream makes all blocks, three others free them: all memory must come back to it.
    OneWay,
}

/// Blocks of 1 MiB are allocated and filled on one stream, and used and freed on another after it
/// (by an event of the program's own). 64 are live.
fn hand_over(way: Way, late: bool, waits: bool, steps: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let schedule = if late { "schedule = late\nseed = 3" } else { "schedule = eager" };
    let bench = Bench::new(8 << 30, schedule, |settings| {
        settings.reuse.internal_dependencies = waits;
    })
    .with_streams(4);
    let event = bench.sim.get("cuEventCreate", &[2]);
    let mut live: VecDeque<(usize, u64)> = VecDeque::new();
    let mut step = |i: usize| {
        let (from, to) = match way {
            Way::Ring => (bench.streams[i % 4], bench.streams[(i + 1) % 4]),
            Way::OneWay => (bench.streams[0], bench.streams[1 + i % 3]),
        };
        if live.len() == 64 {
            let (block, of) = live.pop_front().expect("full");
            bench.pool.dealloc(block, of).expect("live");
        }
        let block = bench.pool.alloc(MIB, from).expect("what others freed is handed over");
        bench.work(block, MIB, from);
        bench.sim.ok("cuEventRecord", &[event, from as usize]);
        bench.sim.ok("cuStreamWaitEvent", &[to as usize, event, 0]);
        bench.work(block, MIB, to);
        live.push_back((block, to));
    };
    (0..4096).for_each(&mut step);
    let before = bench.calls();
    (4096..4096 + steps).for_each(&mut step);
    let mut calls = bench.calls().since(&before);
    for (own, times) in [("cuEventRecord", 1), ("cuStreamWaitEvent", 1), ("cuMemsetD8Async", 2)] {
        *calls.by_name.entry(own.to_owned()).or_default() -= times * steps as u64;
    }
    let each = |calls: u64| calls as f64 / (steps as f64 / 1000.0);
    let name = |what: &str| {
        let way = if way == Way::Ring { "ring" } else { "one way" };
        let late = if late { ", late" } else { "" };
        let waits = if waits { ", waits allowed" } else { "" };
        format!("hand-over {way}{late}{waits}/{what}")
    };
    // How late work is done, the simulation draws: without a wait the pool cannot hasten it.
    let most = (!late || way == Way::Ring).then_some(100.0);
    rows.push(row(name("calls a 1000"), each(calls.all()), "calls", most));
    for (call, count) in calls.by_name.iter().filter(|(_, count)| **count > 0) {
        rows.push(row(name(call), each(*count), "calls", None));
    }
    rows.push(row(name("host waits"), calls.of(&WAITS) as f64, "calls", Some(0.0)));
    for (block, of) in live {
        bench.pool.dealloc(block, of).expect("live");
    }
    bench.sim.ok("cuEventDestroy_v2", &[event]);
    bench.end();
    rows
}

/// A block of 16 MiB or more has a fence of its own, at once.
fn large_blocks() -> Vec<Row> {
    let mut rows = Vec::new();
    let bench = Bench::new(256 * MIB, "schedule = late", |_| ()).with_streams(2);
    // Two lanes are in use, or a fence is of use to nobody.
    for &stream in &bench.streams {
        let block = bench.pool.alloc(MIB, stream).expect("fits");
        bench.pool.dealloc(block, stream).expect("live");
    }
    let mut unfenced = 0;
    for _ in 0..16 {
        let block = bench.pool.alloc(16 * MIB, bench.streams[0]).expect("fits");
        bench.work(block, MIB, bench.streams[0]);
        let before = bench.calls();
        bench.pool.dealloc(block, bench.streams[0]).expect("live");
        unfenced += u64::from(bench.calls().since(&before).of(&["cuEventRecord"]) == 0);
    }
    rows.push(row("large blocks/freed without a fence", unfenced as f64, "of 16", Some(0.0)));
    bench.end();
    rows
}

/// `bytes` out of a checkerboard, in modelled time, beside one map and one access a page.
fn gather(bytes: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let device = 2 * bytes + 64 * MIB;
    let bench = Bench::new(device, "profile = a100\nschedule = eager", |_| ());
    let blocks: Vec<usize> =
        (0..device / GRANULE).map(|_| bench.pool.alloc(GRANULE, 0).expect("fits")).collect();
    for &block in blocks.iter().skip(1).step_by(2) {
        bench.pool.dealloc(block, 0).expect("live");
    }
    let before = bench.calls();
    let block = bench.pool.alloc(bytes, 0).expect("idle pages suffice");
    let calls = bench.calls().since(&before);
    let pages = bytes / GRANULE;
    let theirs = page_by_page(bench.sim, pages);
    let name = |what: &str| format!("gather {}MiB/{what}", bytes / MIB);
    let mut time = row(name("modelled time"), calls.time_us / 1000.0, "ms", None);
    time.peer = Some(("one map and access a page", theirs / 1000.0));
    rows.push(time);
    for call in ["cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemCreate"] {
        rows.push(row(name(call), calls.of(&[call]) as f64, "calls", None));
    }
    bench.pool.dealloc(block, 0).expect("live");
    for &block in blocks.iter().step_by(2) {
        bench.pool.dealloc(block, 0).expect("live");
    }
    bench.end();
    rows
}

/// What it costs to map `pages` pages that are there, each with an access call of its own, into
/// a second range, as GMLake stitches (its source: one map and one access for each 2 MiB).
fn page_by_page(sim: Sim, pages: usize) -> f64 {
    // CUmemAllocationProp: pinned device memory of device 0; CUmemAccessDesc: read and write.
    let mut properties = [0u32; 8];
    properties[0] = 1;
    properties[2] = 1;
    let access = [1u32, 0, 3];
    let range = sim.get("cuMemAddressReserve", &[pages * GRANULE, 0, 0, 0]);
    let handles: Vec<usize> = (0..pages)
        .map(|_| sim.get("cuMemCreate", &[GRANULE, properties.as_ptr() as usize, 0]))
        .collect();
    let time = || sim.report()["time_us"].as_f64().expect("the clock");
    let before = time();
    for (i, &handle) in handles.iter().enumerate() {
        let at = range + i * GRANULE;
        sim.ok("cuMemMap", &[at, GRANULE, 0, handle, 0]);
        sim.ok("cuMemSetAccess", &[at, GRANULE, access.as_ptr() as usize, 1]);
    }
    let spent = time() - before;
    sim.ok("cuMemUnmap", &[range, pages * GRANULE]);
    handles.iter().for_each(|&handle| sim.ok("cuMemRelease", &[handle]));
    sim.ok("cuMemAddressFree", &[range, pages * GRANULE]);
    spent
}

/// With the reservoir filled at start, nothing but fences is asked of the driver.
fn reservoir(steps: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let bench = Bench::new(512 * MIB, "schedule = late", |s| s.reserve = 384 * MIB as u64);
    let bench = bench.with_streams(2);
    let mut seed = 11u64;
    let mut live: VecDeque<(usize, u64)> = VecDeque::new();
    let mut step = |i: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bytes = 256usize << ((seed >> 33) % 14);
        let stream = bench.streams[i / 512 % 2];
        if live.len() == 200 {
            let (block, of) = live.pop_front().expect("full");
            bench.pool.dealloc(block, of).expect("live");
        }
        let block = bench.pool.alloc(bytes, stream).expect("fits");
        bench.work(block, bytes, stream);
        live.push_back((block, stream));
    };
    let start = bench.calls();
    (0..1024).for_each(&mut step);
    // Each stream has been used once: the pool has looked whose it is.
    let before = bench.calls();
    (1024..1024 + steps).for_each(&mut step);
    let first = before.since(&start);
    let calls = bench.calls().since(&before);
    let others = [&FENCES[..], &THREAD[..], &OWN_WORK[..], &["cuStreamIsCapturing"]].concat();
    let name = |what: &str| format!("reservoir/{what}");
    rows.push(row(name("calls but fences"), calls.but(&others) as f64, "calls", Some(0.0)));
    rows.push(row(name("at two streams' first use"), first.but(&others) as f64, "calls", None));
    rows.push(row(name("fences"), calls.of(&FENCES) as f64, "calls", None));
    for (call, count) in calls.by_name.iter().filter(|(n, _)| !others.contains(&n.as_str())) {
        rows.push(row(name(call), *count as f64, "calls", None));
    }
    for (block, of) in live {
        bench.pool.dealloc(block, of).expect("live");
    }
    bench.end();
    rows
}

/// 64 streams, each used for 100 allocations and then idle: what they keep from others.
fn idle_streams() -> Vec<Row> {
    let mut rows = Vec::new();
    const STREAMS: usize = 64;
    const DEVICE: usize = 1 << 30;
    let bench = Bench::new(DEVICE, "schedule = late", |_| ()).with_streams(STREAMS);
    let mut seed = 5u64;
    for &stream in &bench.streams {
        let mut live = Vec::new();
        for _ in 0..100 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let bytes = 256usize << ((seed >> 33) % 14);
            let block = bench.pool.alloc(bytes, stream).expect("fits");
            bench.work(block, bytes, stream);
            live.push(block);
            if live.len() > 10 {
                bench.pool.dealloc(live.swap_remove(3), stream).expect("live");
            }
        }
        live.into_iter().for_each(|block| bench.pool.dealloc(block, stream).expect("live"));
    }
    for &stream in &bench.streams {
        bench.driver.stream_synchronize(StreamHandle(stream)).expect("a stream");
    }
    let stats = bench.pool.stats().expect("alive");
    let stranded = stats.mapped_bytes - stats.live_bytes - stats.idle_bytes;
    let each = stranded as f64 / STREAMS as f64 / MIB as f64;
    rows.push(row("idle streams/stranded a stream", each, "MiB", Some(4.0)));
    let whole = bench.pool.alloc(DEVICE, 0);
    let missing = if whole.is_ok() { 0.0 } else { 1.0 };
    rows.push(row("idle streams/refused whole device", missing, "requests", Some(0.0)));
    if let Ok(block) = whole {
        bench.pool.dealloc(block, 0).expect("live");
    }
    bench.end();
    rows
}

fn as_table(rows: &[Value]) -> String {
    rows.iter().fold(String::new(), |mut text, row| {
        let target = row["target"].as_f64().map_or(String::new(), |t| format!("<= {t}"));
        let (name, unit) = (row["name"].as_str(), row["unit"].as_str());
        let value = row["value"].as_f64().unwrap_or(f64::NAN);
        let (name, unit) = (name.unwrap_or_default(), unit.unwrap_or_default());
        let _ = write!(text, "{name:44} {value:>12.2} {unit:8} {target}");
        for (peer, theirs) in row["peers"].as_object().into_iter().flatten() {
            let _ = write!(text, "  {peer}: {theirs:.2}");
        }
        text.push('\n');
        text
    })
}

fn as_json(rows: &[Row]) -> Value {
    let object = |r: &Row| {
        let peers: BTreeMap<_, _> = r.peer.into_iter().collect();
        serde_json::json!({
            "name": r.name, "value": r.value, "unit": r.unit, "target": r.target,
            "met": r.target.map(|most| r.value <= most), "peers": peers,
        })
    };
    rows.iter().map(object).collect()
}
