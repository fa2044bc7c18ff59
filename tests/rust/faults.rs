//! Fail the Nth driver call, for every N: nothing live changes, nothing is lost, the next call
//! works.
//!
//! Each scenario is run again and again, with call 1, 2, 3 ... failing once or from then on,
//! with likely and unlikely codes, and with undoing made impossible besides, until a run
//! needs fewer calls than N. After each run the contents of live blocks, the pool's books, its
//! heap and the device's census are checked, first with the faults still there, then
//! without them; then everything is freed and nothing may be left.

#[path = "common/device.rs"]
mod common;
#[path = "faults/loss.rs"]
mod loss;
#[path = "faults/lost.rs"]
mod lost;
#[path = "faults/recovery.rs"]
mod recovery;
#[path = "faults/scenarios.rs"]
mod scenarios;
#[path = "faults/shared.rs"]
mod shared;
#[path = "faults/stage.rs"]
mod stage;

use common::{Watched, check_books};
use forebay::driver::faulty::{CallSet, Fault, Times};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Code, Driver, StreamHandle};
use forebay::pool::stats::Stats;
use forebay::pool::{Pool, Settings, registry};
use scenarios::*;
use shared::{CAPTURE, EXPORT, PEERS};
use stage::{Scenario, Stage};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The device under test: host memory, its calls counted and failed on demand.
pub struct Device(pub Arc<Watched>);

impl std::ops::Deref for Device {
    type Target = Arc<Watched>;
    fn deref(&self) -> &Arc<Watched> {
        &self.0
    }
}

impl Device {
    /// A mark on an idle stream has passed at once.
    pub const MARKS_ARE_LATE: bool = false;

    /// A device of so many bytes in granules of so many.
    pub fn new(total_bytes: usize, granularity: usize) -> Device {
        // Deferred: queued work runs when the scenario says, so that runs are alike.
        let deferred = true;
        let peer_devices = 12;
        Device(common::device(HostOptions {
            total_bytes,
            granularity,
            deferred,
            peer_devices,
            ..HostOptions::default()
        }))
    }

    /// As a pool uses it.
    pub fn shared(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.0) as Arc<dyn Driver>
    }

    /// The default settings for it, without a keeper.
    pub fn settings(&self) -> Settings {
        common::settings(&self.0)
    }

    /// A new stream, while there is no fault.
    pub fn make_stream(&self) -> u64 {
        self.0.stream_create().expect("no fault yet").0
    }

    /// The pool's books against each other and the device's.
    pub fn check_books(&self, pool: &Pool) -> Stats {
        check_books(&self.0, pool)
    }

    /// Other devices that a mapped range is open to.
    pub fn peers_of(&self, address: usize, bytes: usize) -> Option<Vec<u32>> {
        self.0.inner().peers_of(address, bytes)
    }

    /// Imported pages that are still held.
    pub fn imported_pages(&self) -> usize {
        self.0.inner().census().imported_pages
    }

    /// Whether nothing is left on the device.
    pub fn is_clean(&self) -> bool {
        self.0.inner().census().is_clean()
    }

    /// Runs all queued work.
    pub fn run_all(&self) {
        self.0.inner().run_all();
    }

    /// Runs one piece of queued work, chosen by `seed`.
    pub fn step(&self, seed: u64) {
        self.0.inner().step(seed);
    }

    /// Queues work on a stream, so that its fences are late.
    pub fn busy(&self, stream: u64) {
        self.0.inner().spin(StreamHandle(stream), 0).expect("a stream");
    }

    /// Refuses the first two reservations from now on.
    pub fn refuse_two_reservations(&self) {
        self.0.fail(Fault::once(CallSet::of(&[Call::Reserve]), 1));
        self.0.fail(Fault::once(CallSet::of(&[Call::Reserve]), 2));
    }

    /// The device's own beginning of a capture; there is none on the host.
    pub fn begin_capture(&self, _stream: u64) {}

    /// The device's own end of it; answers the graph.
    pub fn end_capture(&self, stream: u64) -> u64 {
        stream + 7
    }

    /// The graph ends; whoever asked to be told has been.
    pub fn end_graph(&self, graph: u64) {
        assert_eq!(self.0.inner().end_graph(graph), 1);
    }

    /// Gives up a graph that nobody follows.
    pub fn drop_graph(&self, _graph: u64) {}

    /// Ends the pool and the streams; nothing may be left.
    pub fn end(&self, pool: Pool, streams: &[u64]) {
        common::end(&self.0, pool, streams);
    }
}

/// A way for calls to fail.
#[derive(Clone, Copy, Debug)]
struct Mode {
    times: Times,
    code: Option<Code>,
    /// Kinds that fail always, besides: what undoing needs.
    besides: &'static [Call],
}

const MODES: [Mode; 8] = [
    Mode { times: Times::Once, code: None, besides: &[] },
    Mode { times: Times::Once, code: Some(Code::Other(999)), besides: &[] },
    Mode { times: Times::FromThenOn, code: None, besides: &[] },
    Mode { times: Times::FromThenOn, code: Some(Code::Other(999)), besides: &[] },
    Mode { times: Times::Once, code: None, besides: &[Call::Unmap] },
    Mode { times: Times::Once, code: None, besides: &[Call::Release, Call::EventDestroy] },
    Mode { times: Times::Once, code: None, besides: &[Call::Unreserve, Call::EventQuery] },
    Mode { times: Times::Once, code: None, besides: &[Call::EventCreate, Call::EventRecord] },
];

/// No scenario needs more calls than this.
const CALLS_MAX: u64 = 2000;

/// One run with call `nth` failing. Answers whether the run had that many calls.
fn run(scenario: &Scenario, mode: Mode, nth: u64, struck: &mut BTreeSet<Call>) -> bool {
    let mut stage = Stage::new(scenario);
    (scenario.prepare)(&mut stage);
    stage.check();
    let driver = Arc::clone(&stage.driver.0);
    driver.reset_counts();
    driver.start_journal(CALLS_MAX as usize * 2);
    let fault = Fault { calls: CallSet::ALL, nth, times: mode.times, code: mode.code };
    driver.fail(fault);
    if !mode.besides.is_empty() {
        driver.fail(Fault::from_then_on(CallSet::of(mode.besides), 1));
    }
    (scenario.act)(&mut stage);
    let calls = driver.total();
    let failed = driver.injected();
    stage.check();
    driver.clear_faults();
    let journal = driver.stop_journal();
    let failures = journal.iter().filter(|e| e.result.is_err()).map(|e| e.call);
    if failed > 0 {
        struck.extend(failures);
    }
    stage.finish();
    calls >= nth
}

/// All runs of a scenario.
fn sweep(scenario: Scenario) {
    let _alone = alone();
    let mut struck = BTreeSet::new();
    let mut runs = 0;
    for mode in MODES {
        let mut nth = 1;
        while run_named(&scenario, mode, nth, &mut struck) {
            nth += 1;
            runs += 1;
            assert!(nth < CALLS_MAX, "{}: {mode:?} never ends", scenario.name);
        }
        assert!(nth > 1, "{}: {mode:?} made no call", scenario.name);
    }
    let names: Vec<&str> = struck.iter().map(|c| c.name()).collect();
    println!("{}: {runs} runs, failed {}", scenario.name, names.join(", "));
    for kind in scenario.kinds {
        assert!(struck.contains(kind), "{}: {} never failed", scenario.name, kind.name());
    }
}

/// [`run`], naming the run when it panics.
fn run_named(s: &Scenario, mode: Mode, nth: u64, struck: &mut BTreeSet<Call>) -> bool {
    let caught = std::panic::AssertUnwindSafe(|| run(s, mode, nth, struck));
    match std::panic::catch_unwind(caught) {
        Ok(more) => more,
        Err(panic) => {
            eprintln!("scenario {}: {mode:?}, call {nth}", s.name);
            std::panic::resume_unwind(panic)
        }
    }
}

/// One scenario at a time: streams' ends reach every pool of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Captures concern the default pool too: host memory, and no thread that calls its driver.
    // SAFETY: the lock is held, and only its holders read or write the environment.
    unsafe {
        std::env::set_var("FOREBAY_BACKEND", "host");
        std::env::set_var("FOREBAY_KEEPER", "0");
    }
    alone
}

/// Ends a stream's lanes in the stage's pool.
fn retire(stream: u64) -> bool {
    registry::retire_stream(stream).is_ok()
}

macro_rules! swept {
    ($($test:ident: $scenario:ident,)*) => {
        $(
            #[test]
            fn $test() {
                sweep($scenario);
            }
        )*

        #[test]
        fn every_kind_of_call_that_the_pool_makes_is_failed_somewhere() {
            let all = [$($scenario),*];
            // The pool makes no plain allocation; questions have no way to fail.
            let unused = [
                Call::AllocPlain,
                Call::FreePlain,
                Call::CanAccessPeer,
                Call::StreamCapturing,
                // Of a suspend: `suspend.rs` fails them.
                Call::HostAlloc,
                Call::HostFree,
            ];
            for call in Call::ALL {
                let somewhere = all.iter().any(|s| s.kinds.contains(&call));
                assert_ne!(somewhere, unused.contains(&call), "{}", call.name());
            }
        }
    };
}

swept! {
    create_pool: CREATE,
    small_blocks: SMALL,
    large_blocks: LARGE,
    gather_pages: GATHER,
    gather_only_while_idle: GATHER_WHEN_IDLE,
    trim_and_limits: TRIM,
    async_streams: ASYNC,
    late_frees_in_little_memory: LITTLE_MEMORY,
    synchronous_frees_and_questions: QUESTIONS,
    sets_of_buffers: BUFFERS,
    streams_of_c_programs: STREAMS,
    destroy_pool: DESTROY,
    second_reservation: MORE_SPACE,
    peers_of_mapped_memory: PEERS,
    exports_and_imports: EXPORT,
    captures_and_their_graphs: CAPTURE,
}

/// The stage's own streams must stay known to the driver.
#[test]
fn a_stage_without_faults_leaves_nothing() {
    let _alone = alone();
    for scenario in [SMALL, LARGE, GATHER, ASYNC] {
        let mut stage = Stage::new(&scenario);
        (scenario.prepare)(&mut stage);
        (scenario.act)(&mut stage);
        for &stream in &stage.streams {
            assert_eq!(stage.driver.stream_check(StreamHandle(stream)), Ok(()));
        }
        stage.finish();
    }
}
