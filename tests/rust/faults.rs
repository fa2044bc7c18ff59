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
#[path = "faults/recovery.rs"]
mod recovery;
#[path = "faults/scenarios.rs"]
mod scenarios;
#[path = "faults/shared.rs"]
mod shared;

use common::{Block, Watched, check_books};
use forebay::driver::faulty::{CallSet, Fault, Times};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Code, Driver, StreamHandle};
use forebay::error::{Error, Status};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings, hot, registry};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A stage for one run of a scenario: a device, a pool, and what is live in it.
pub struct Stage {
    /// The device.
    pub driver: Arc<Watched>,
    /// What the pool is made with.
    pub settings: Settings,
    /// The pool; `None` while it could not be made, or has been destroyed.
    pub pool: Option<Pool>,
    /// Streams of the device.
    pub streams: Vec<u64>,
    /// Live blocks.
    pub live: Vec<Block>,
    /// Blocks that the pool keeps on behalf of others (buffer sets).
    pub foreign_blocks: u64,
    made: u64,
}

/// A scenario: what happens before, and what happens under faults. Calls in `act` may fail.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Device bytes in all and a granule.
    pub device: (usize, usize),
    /// Changes the settings.
    pub tune: fn(&mut Settings),
    /// Without faults.
    pub prepare: fn(&mut Stage),
    /// With faults.
    pub act: fn(&mut Stage),
    /// Kinds of call that must have been failed in some run.
    pub kinds: &'static [Call],
}

impl Stage {
    fn new(scenario: &Scenario) -> Stage {
        let (total_bytes, granularity) = scenario.device;
        // Deferred: queued work runs when the scenario says, so that runs are alike.
        let deferred = true;
        let peer_devices = 12;
        let options = HostOptions {
            total_bytes,
            granularity,
            deferred,
            peer_devices,
            ..HostOptions::default()
        };
        let driver = common::device(options);
        let mut settings = common::settings(&driver);
        settings.oom_wait = std::time::Duration::ZERO;
        (scenario.tune)(&mut settings);
        let (pool, streams, live) = (None, Vec::new(), Vec::new());
        Stage { driver, settings, pool, streams, live, foreign_blocks: 0, made: 0 }
    }

    /// The pool, where the scenario has one.
    pub fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the scenario has made its pool")
    }

    /// Makes the pool.
    pub fn open(&mut self) -> Result<(), Error> {
        let driver = Arc::clone(&self.driver) as Arc<dyn Driver>;
        self.pool = Some(Pool::with_driver(driver, self.settings.clone())?);
        Ok(())
    }

    /// Adds streams.
    pub fn add_streams(&mut self, count: usize) {
        for _ in 0..count {
            self.streams.push(self.driver.stream_create().expect("no fault yet").0);
        }
    }

    /// Allocates a block and writes it. Answers whether that worked.
    pub fn alloc(&mut self, bytes: usize, stream: u64) -> bool {
        match self.pool().alloc(bytes, stream) {
            Ok(address) => {
                self.made += 1;
                self.live.push(Block::new(address, bytes, stream, self.made));
                true
            }
            Err(error) => {
                assert_ne!(error.status(), Status::Internal, "{error}");
                assert!(!error.message().is_empty());
                false
            }
        }
    }

    /// Frees block `i` on a stream, checking its contents first. On failure it stays live.
    pub fn free(&mut self, i: usize, stream: u64) -> bool {
        let block = self.live[i];
        block.check();
        let freed = if stream == SYNC_STREAM {
            // SAFETY: the block is the test's own and not used again when this succeeds.
            unsafe { hot::free(block.address as *mut std::ffi::c_void) }
        } else {
            match self.pool().dealloc(block.address, stream) {
                Ok(()) => Status::Ok,
                Err(error) => error.status(),
            }
        };
        assert_ne!(freed, Status::Internal);
        if freed == Status::Ok {
            self.live.swap_remove(i);
        }
        freed == Status::Ok
    }

    /// Frees every second live block on its own stream.
    pub fn free_every_second(&mut self) {
        let all = std::mem::take(&mut self.live);
        for (i, block) in all.into_iter().enumerate() {
            self.live.push(block);
            if i % 2 == 1 {
                let last = self.live.len() - 1;
                self.free(last, block.stream);
            }
        }
    }

    /// Without faults, a live block can be freed.
    fn free_first(&mut self) {
        let stream = self.live[0].stream;
        let stream = if stream == SYNC_STREAM { 0 } else { stream };
        assert!(self.free(0, stream), "a live block can be freed");
    }

    /// Contents, books and the model of what is live.
    fn check(&self) {
        for block in &self.live {
            block.check();
        }
        let Some(pool) = &self.pool else { return };
        if !pool.with_core(|core| core.troubled()).expect("alive") {
            let peers = pool.peers().expect("alive");
            for block in &self.live {
                let open = self.driver.inner().peers_of(block.address, block.bytes);
                assert_eq!(open.as_ref(), Some(&peers), "{block:x?}");
            }
        }
        let stats = check_books(&self.driver, pool);
        assert_eq!(stats.live_blocks, self.live.len() as u64 + self.foreign_blocks, "{stats:?}");
        if self.foreign_blocks == 0 {
            let usable = |b: &Block| pool.usable_size(b.address).expect("live") as u64;
            let sum: u64 = self.live.iter().map(usable).sum();
            assert_eq!(stats.live_bytes, sum, "{stats:?}");
        }
    }

    /// With the faults gone: the next calls work, what was stuck comes back, and after the
    /// end nothing is left.
    fn finish(mut self) {
        if self.pool.is_none() {
            self.open().expect("no fault any more");
        }
        self.driver.inner().run_all();
        self.check();
        // Room for the next calls, where the scenario left none.
        while self.pool().stats().expect("alive").live_bytes > self.settings.limit / 2 {
            self.free_first();
        }
        for bytes in [3000, 300 << 10] {
            assert!(self.alloc(bytes, 0) && self.free(self.live.len() - 1, 0), "{bytes} B");
        }
        let stuck = self.pool().with_core(|core| core.recover()).expect("alive");
        assert!(!stuck, "all that was stuck is back");
        assert_eq!(self.pool().stats().expect("alive").stranded_pages, 0);
        assert_eq!(self.driver.inner().census().imported_pages, 0, "what is freed is gone");
        self.check();
        while !self.live.is_empty() {
            self.free_first();
        }
        self.check();
        let pool = self.pool.take().expect("alive");
        common::end(&self.driver, pool, &self.streams);
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
    let driver = Arc::clone(&stage.driver);
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

/// Queues work on a stream, so that its fences are late.
fn busy(stage: &Stage, stream: u64) {
    stage.driver.inner().spin(StreamHandle(stream), 0).expect("a stream");
}
