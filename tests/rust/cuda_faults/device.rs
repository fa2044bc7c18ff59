//! A simulated GPU as the device of a scenario: one world a run, opened as the backend opens it.
//!
//! Owns the fault that is armed. The script counts every call of the driver's; what the test
//! itself calls meanwhile goes through [`Device::own`], which lifts the fault and takes its count
//! up again. Promises that the thread has no context and the common capture mode outside calls.
//! Cost: a report of the simulation, some 100 us, a question.

use super::cuda::{self, Sim};
use forebay::config::Config;
use forebay::driver::cuda::{CudaDriver, Opened};
use forebay::driver::{Call, Driver, StreamHandle};
use forebay::pool::stats::Stats;
use forebay::pool::{Pool, Settings, capture, registry};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Other devices of the machine.
const PEERS: usize = 3;
/// What work that only takes time writes to.
const SCRATCH_BYTES: usize = 4096;

/// Which call fails, of all of them, and what besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Counted from 1; 0 is none.
    pub nth: u64,
    /// `fail`, or `lose` for a context that fails for good.
    pub verb: &'static str,
    /// All later calls too.
    pub always: bool,
    /// CUDA's number.
    pub code: u32,
    /// Statements that hold besides, from the first call on.
    pub besides: &'static [&'static str],
}

/// A fault with what it has counted.
struct Armed {
    fault: Fault,
    /// Calls before the script was last set.
    seen: u64,
    /// Calls of the world when the script was last set.
    from: u64,
}

/// The device under test.
pub struct Device {
    sim: Sim,
    driver: Arc<CudaDriver>,
    granule: usize,
    context: usize,
    scratch: usize,
    armed: RefCell<Option<Armed>>,
    /// Calls since the fault was armed, when it was lifted.
    lifted_at: Cell<u64>,
    /// Whether the context may be lost, and the test's own work with it.
    may_be_lost: Cell<bool>,
    /// Whether the test itself is at work.
    paused: Cell<bool>,
}

/// The file that has every call of the present world.
fn journal() -> PathBuf {
    std::env::temp_dir().join(format!("forebay-cuda-faults-{}", std::process::id()))
}

/// Panics when a call of the present world failed although nobody made it fail: Forebay then made
/// a call that CUDA refuses, such as unmapping what is not mapped.
pub fn check_journal(fault: Fault) {
    let text = std::fs::read_to_string(journal()).expect("a journal");
    let numbers = fault.besides.iter().filter_map(|line| line.rsplit(' ').next());
    let mut expected: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
    const NOT_READY: u32 = 600;
    expected.extend([0, NOT_READY, fault.code]);
    for line in text.lines() {
        let (_, result) = line.rsplit_once(':').expect("a result");
        let result = result.trim_end_matches('}').parse().expect("a number");
        // The scenario of a second reservation refuses the first.
        let prepared = result == 2 && line.contains("cuMemAddressReserve");
        // Pages that were refused with the property cannot be exported.
        let given_up = [801, 999].contains(&fault.code) && result == 1;
        let known = prepared || given_up && line.contains("cuMemExportToShareableHandle");
        assert!(expected.contains(&result) || known, "a call that CUDA refuses: {line}");
    }
}

/// Removes the journal.
pub fn drop_journal() {
    // There is none when no world had one.
    let _ = std::fs::remove_file(journal());
}

/// A world of so many bytes a device, with more settings, and the driver initialised.
pub fn new_world(total_bytes: usize, granularity: usize, more: &str) -> Sim {
    let sim = Sim::open();
    sim.configure(&format!(
        "devices = {}\nmemory = {total_bytes}\ngranularity = {granularity}\npoison = none\n{more}",
        PEERS + 1
    ));
    sim
}

impl Device {
    /// A mark passes when queued work runs, even on an idle stream.
    pub const MARKS_ARE_LATE: bool = true;

    /// A device of so many bytes in granules of so many, in a world as `FOREBAY_TEST_WORLD` says.
    pub fn new(total_bytes: usize, granularity: usize) -> Device {
        let more = std::env::var("FOREBAY_TEST_WORLD").unwrap_or_default();
        let seed = super::SEED.load(std::sync::atomic::Ordering::Relaxed);
        let journal = journal();
        // Stepped, queued work runs when the scenario says, so that runs are alike.
        let schedule = if more.contains("schedule") { "" } else { "schedule = stepped\n" };
        let more = format!("seed = {seed}\njournal = {}\n{schedule}{more}", journal.display());
        let sim = new_world(total_bytes, granularity, &more);
        sim.ok("cuInit", &[0]);
        let opened = forebay::driver::cuda::open(Some(cuda::library()), 0).expect("a device");
        let Opened::Virtual(driver) = opened else { panic!("no virtual memory") };
        let context = sim.get("cuDevicePrimaryCtxRetain", &[0]);
        let (armed, lifted_at, may_be_lost) = (RefCell::new(None), Cell::new(0), Cell::new(false));
        let granule = granularity;
        let (scratch, paused) = (0, Cell::new(false));
        let mut device = Device {
            sim,
            driver,
            granule,
            context,
            scratch,
            armed,
            lifted_at,
            may_be_lost,
            paused,
        };
        device.scratch = device.inside(|sim| {
            const PORTABLE: usize = 1;
            sim.get("cuMemHostAlloc", &[SCRATCH_BYTES, PORTABLE])
        });
        device
    }

    /// As a pool uses it.
    pub fn shared(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.driver) as Arc<dyn Driver>
    }

    /// The default settings for it, without a keeper.
    pub fn settings(&self) -> Settings {
        let total = self.driver.device().total_bytes as u64;
        let mut settings = Settings::resolve(&Config::default(), total, true);
        settings.keeper = false;
        settings
    }

    /// Arms a fault; it counts from now on.
    pub fn arm(&self, fault: Fault) {
        self.may_be_lost.set(fault.verb == "lose");
        *self.armed.borrow_mut() = Some(Armed { fault, seen: 0, from: 0 });
        self.set_script();
    }

    /// Sets the script of what is armed, as far as it has not come true.
    fn set_script(&self) {
        let mut armed = self.armed.borrow_mut();
        let Some(armed) = &mut *armed else { return self.sim.script("") };
        let Fault { nth, verb, always, code, besides } = armed.fault;
        let mut script = besides.join(";");
        let left = nth.saturating_sub(armed.seen);
        let line = match (left, always) {
            (0, true) if nth > 0 => format!("fail any always with {code}"),
            (0, _) => String::new(),
            (left, true) => format!("{verb} any from #{left} always with {code}"),
            (left, false) => format!("{verb} any #{left} once with {code}"),
        };
        script = format!("{script};{line}");
        self.sim.script(&script);
        armed.from = self.sim.total_calls();
    }

    /// Calls of the product's since the fault was armed, until it was lifted.
    pub fn calls(&self) -> u64 {
        let armed = self.armed.borrow();
        let lifted_at = self.lifted_at.get();
        armed.as_ref().map_or(lifted_at, |armed| armed.seen + self.sim.total_calls() - armed.from)
    }

    /// Runs what the test itself does, without faults and uncounted.
    pub fn own<T>(&self, run: impl FnOnce(Sim) -> T) -> T {
        if self.armed.borrow().is_none() || self.paused.get() {
            return run(self.sim);
        }
        let calls = self.calls();
        self.sim.script("");
        self.paused.set(true);
        let answer = run(self.sim);
        self.paused.set(false);
        if let Some(armed) = &mut *self.armed.borrow_mut() {
            armed.seen = calls;
        }
        self.set_script();
        answer
    }

    /// [`Device::own`], with the device's context current.
    fn inside<T>(&self, run: impl FnOnce(Sim) -> T) -> T {
        self.own(|sim| {
            sim.ok("cuCtxPushCurrent_v2", &[self.context]);
            let answer = run(sim);
            sim.get("cuCtxPopCurrent_v2", &[]);
            answer
        })
    }

    /// A call of the test's own, which succeeds as long as the context does.
    fn must(&self, call: &str, args: &[usize]) {
        let result = self.inside(|sim| sim.call(call, args));
        assert!(result == 0 || self.may_be_lost.get(), "{call}: {result}");
    }

    /// Calls that were failed by what is armed.
    pub fn injected(&self) -> u64 {
        let armed = self.armed.borrow();
        let Some(Armed { fault, .. }) = &*armed else { return 0 };
        let past = self.calls().saturating_sub(fault.nth.saturating_sub(1));
        let once = !fault.always && fault.besides.is_empty() && fault.verb == "fail";
        if once { past.min(1) } else { past }
    }

    /// Lifts the fault. The thread is as it was before, unless the way back was barred for good.
    pub fn clear_faults(&self) {
        self.lifted_at.set(self.calls());
        let armed = self.armed.borrow_mut().take();
        self.sim.script("");
        let barred = armed.is_some_and(|armed| armed.fault.always);
        while barred && cuda::current_context(self.sim) != 0 {
            self.sim.get("cuCtxPopCurrent_v2", &[]);
        }
        if barred {
            let mut global = 0u32;
            self.sim.ok("cuThreadExchangeStreamCaptureMode", &[&raw mut global as usize]);
        }
        assert_eq!(cuda::current_context(self.sim), 0, "the thread's context was changed");
        assert_eq!(cuda::capture_mode(self.sim), 0, "the thread's capture mode was changed");
    }

    /// Calls of a kind so far, in this world.
    pub fn count(&self, call: Call) -> u64 {
        let names: &[&str] = match call {
            Call::EventRecord => &["cuEventRecord", "cuCtxRecordEvent"],
            Call::EventSynchronize => &["cuEventSynchronize"],
            Call::StreamSynchronize => &["cuStreamSynchronize", "cuCtxSynchronize"],
            Call::StreamWait => &["cuStreamWaitEvent"],
            Call::Unmap => &["cuMemUnmap"],
            other => panic!("{} is not counted", other.name()),
        };
        names.iter().map(|name| self.sim.calls(name)).sum()
    }

    /// A new stream, while there is no fault.
    pub fn make_stream(&self) -> u64 {
        self.driver.stream_create().expect("no fault yet").0
    }

    /// The pool's books against each other and the device's.
    pub fn check_books(&self, pool: &Pool) -> Stats {
        let stats = pool.stats().expect("a live pool");
        let report = self.sim.report();
        let live = |name: &str| report["live"][name].as_u64().expect("a count");
        let granule = self.granule as u64;
        let (pages, mappings) = (live("handle_references"), live("mappings"));
        assert_eq!(stats.sum(), stats.mapped_bytes, "the states sum to what is held: {stats:?}");
        assert_eq!(stats.mapped_bytes, pages * granule, "{pages} pages: {stats:?}");
        let unmapped = stats.mapped_bytes - mappings * granule;
        assert!(stats.stock_bytes <= unmapped, "stock is mapped nowhere: {stats:?}, {mappings}");
        let unreleased = (unmapped - stats.stock_bytes) / granule;
        assert!(unreleased <= stats.stranded_pages, "pages are named: {stats:?}, {mappings}");
        if pages == live("physical") {
            assert_eq!(live("aliased_handles"), 0, "no page is mapped twice");
        }
        pool.with_core(|core| core.check()).expect("a live pool");
        stats
    }

    /// Other devices that a mapped range is open to; `None` where its granules differ.
    pub fn peers_of(&self, address: usize, bytes: usize) -> Option<Vec<u32>> {
        let first = address / self.granule;
        let end = (address + bytes).div_ceil(self.granule);
        let granules = (first..end).map(|g| g * self.granule);
        let mut lists = granules.map(|at| self.own(|sim| open_to(sim, at)));
        let list = lists.next()?;
        lists.all(|other| other == list).then_some(list)
    }

    /// Pages beyond those that are the pool's own.
    pub fn imported_pages(&self) -> usize {
        let (pages, physical) = (self.sim.live("handle_references"), self.sim.live("physical"));
        pages.saturating_sub(physical) as usize
    }

    /// The simulation.
    pub fn sim(&self) -> Sim {
        self.sim
    }

    /// Whether no memory and no event is left on the device.
    pub fn is_clean(&self) -> bool {
        let report = self.sim.report();
        let kinds = ["reservations", "handles", "physical", "mappings", "allocations", "events"];
        kinds.iter().all(|kind| report["live"][kind].as_u64() == Some(0))
    }

    /// Runs all queued work.
    pub fn run_all(&self) {
        self.sim.call("forebay_sim_step", &[u32::MAX as usize]);
    }

    /// Runs one piece of queued work, whichever the world's seed says.
    pub fn step(&self, _seed: u64) {
        self.sim.call("forebay_sim_step", &[1]);
    }

    /// Queues work on a stream, so that its fences are late.
    pub fn busy(&self, stream: u64) {
        let stream = StreamHandle(stream);
        let filled = self.own(|_| self.driver.fill(self.scratch, 1, SCRATCH_BYTES, stream));
        assert!(filled.is_ok() || self.may_be_lost.get(), "{filled:?}");
    }

    /// Refuses the first two reservations from now on.
    pub fn refuse_two_reservations(&self) {
        let refuse = |n| format!("fail cuMemAddressReserve #{n} once with 2;");
        self.sim.script(&(refuse(1) + &refuse(2)));
    }

    /// Begins a capture of the strictest kind.
    pub fn begin_capture(&self, stream: u64) {
        const GLOBAL: usize = 0;
        self.must("cuStreamBeginCapture_v2", &[stream as usize, GLOBAL]);
    }

    /// Ends it, which must be unharmed; answers the graph.
    pub fn end_capture(&self, stream: u64) -> u64 {
        let mut graph = 0usize;
        self.must("cuStreamEndCapture", &[stream as usize, &raw mut graph as usize]);
        graph as u64
    }

    /// The graph ends; whoever asked to be told has been.
    pub fn end_graph(&self, graph: u64) {
        self.drop_graph(graph);
        let start = Instant::now();
        while !capture::any_gone() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody was told");
            std::thread::yield_now();
        }
    }

    /// Gives up a graph that nobody follows.
    pub fn drop_graph(&self, graph: u64) {
        self.must("cuGraphDestroy", &[graph as usize]);
    }

    /// Ends the pool and the streams. Whether nothing is left is looked at without the driver.
    pub fn end(&self, pool: Pool, streams: &[u64]) {
        registry::destroy(pool.into_handle() >> 48).expect("no fault is armed");
        for &stream in streams {
            self.driver.stream_destroy(StreamHandle(stream)).expect("a stream");
        }
        self.run_all();
        self.inside(|sim| {
            sim.ok("cuCtxSynchronize", &[]);
            sim.ok("cuMemFreeHost", &[self.scratch]);
        });
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.sim.script("");
        self.sim.call("cuDevicePrimaryCtxRelease_v2", &[0]);
    }
}

/// Other devices that may write a mapped address.
fn open_to(sim: Sim, address: usize) -> Vec<u32> {
    const DEVICE: i32 = 1;
    const READ_WRITE: u64 = 3;
    let may = |device: &u32| {
        let (mut flags, place) = (0u64, [DEVICE, *device as i32]);
        sim.ok("cuMemGetAccess", &[&raw mut flags as usize, place.as_ptr() as usize, address]);
        flags == READ_WRITE
    };
    (1..=PEERS as u32).filter(may).collect()
}
