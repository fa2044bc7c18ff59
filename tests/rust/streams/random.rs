//! Random loads over 8 late streams: no corruption; with stamps ignored, corruption is found.

use super::load::{Done, Shared, Worker};
use crate::common::{self, Findings};
use forebay::driver::host::HostOptions;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

const MIB: usize = 1 << 20;

struct Run {
    seed: u64,
    threads: u64,
    operations: u64,
    device: usize,
    live: usize,
    deferred: bool,
    context_events: bool,
    ignore_stamps: bool,
}

/// Runs the load; answers what was done and the findings.
fn run(what: &Run) -> (Done, &'static Findings, u64) {
    println!("seed {} (set FOREBAY_TEST_SEED to run it again)", what.seed);
    let options = HostOptions {
        total_bytes: what.device,
        deferred: what.deferred,
        context_events: what.context_events,
        ..HostOptions::default()
    };
    let (driver, pool) = common::pool(options, |settings| {
        settings.keeper = !what.deferred;
        // A held stream is let go by its holder only: waiting long for it is in vain.
        settings.oom_wait = std::time::Duration::from_millis(u64::from(!what.deferred));
    });
    if what.ignore_stamps {
        pool.with_core(|core| core.ignore_stamps()).expect("alive");
    }
    let shared = Shared {
        streams: common::streams(&driver, 8),
        driver,
        pool,
        findings: Findings::new(),
        post: Mutex::new(Vec::new()),
        deferred: what.deferred,
        trims: !what.ignore_stamps,
        live: what.live,
        clock: AtomicU64::new(0),
    };
    let stop = || what.ignore_stamps && shared.findings.corrupt() > 0;
    let each = what.operations / what.threads;
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..what.threads)
            .map(|t| {
                let worker = Worker::new(&shared, what.seed ^ t << 32);
                scope.spawn(move || worker.run(each, stop))
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).fold(Done::default(), sum)
    });
    let mut last = Worker::new(&shared, what.seed);
    last.empty_post();
    let done = sum(done, last.run(0, || true));
    shared.driver.run_all();
    shared.driver.quiesce();
    let findings = shared.findings;
    let moved = end(shared, what.ignore_stamps);
    (done, findings, moved)
}

fn sum(a: Done, b: Done) -> Done {
    Done {
        allocs: a.allocs + b.allocs,
        frees: a.frees + b.frees,
        uses: a.uses + b.uses,
        copies: a.copies + b.copies,
        refused: a.refused + b.refused,
    }
}

/// Everything is free and all work done: the accounts agree, and nothing is left behind.
fn end(shared: Shared, ignored: bool) -> u64 {
    let Shared { driver, pool, .. } = shared;
    pool.with_core(|core| core.check()).expect("alive");
    let stats = pool.stats().expect("alive");
    assert_eq!(stats.live_bytes, 0, "{stats:?}");
    assert_eq!(stats.live_blocks, 0, "{stats:?}");
    if !ignored {
        assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
        pool.trim(0).expect("a trim");
        let end = pool.stats().expect("alive");
        assert_eq!(end.mapped_bytes, 0, "all that is idle goes back: {end:?}");
    }
    drop(pool);
    for stream in shared.streams {
        use forebay::driver::Driver;
        driver.stream_destroy(forebay::driver::StreamHandle(stream)).expect("it exists");
    }
    assert!(driver.census().is_clean(), "{:?}", driver.census());
    stats.pages_moved
}

#[test]
fn four_threads_on_eight_streams_corrupt_nothing() {
    let operations = if cfg!(sanitize_thread) { 40_000 } else { 1_000_000 };
    let (done, findings, moved) = run(&Run {
        seed: common::seed(20_260_401),
        threads: 4,
        operations,
        device: 48 * MIB,
        live: 8 * MIB,
        deferred: false,
        context_events: true,
        ignore_stamps: false,
    });
    println!("{done:?}, {} checks, {moved} pages moved", findings.checked());
    assert_eq!(findings.corrupt(), 0, "corrupt blocks of {}", findings.checked());
    assert!(done.operations() >= operations);
    assert_eq!(done.allocs, done.frees);
    assert!(findings.checked() >= done.frees, "each block is looked at before its free");
    assert!(moved > 0, "pages are moved under the load");
}

#[test]
fn four_threads_without_context_events_corrupt_nothing() {
    let operations = if cfg!(sanitize_thread) { 10_000 } else { 100_000 };
    let (done, findings, _) = run(&Run {
        seed: common::seed(7),
        threads: 4,
        operations,
        device: 48 * MIB,
        live: 8 * MIB,
        deferred: false,
        context_events: false,
        ignore_stamps: false,
    });
    assert_eq!(findings.corrupt(), 0, "corrupt blocks of {}", findings.checked());
    assert_eq!(done.allocs, done.frees);
}

#[test]
fn one_thread_on_a_stepped_device_corrupts_nothing() {
    let first = common::seed(1);
    for seed in first..first + 8 {
        let operations = if cfg!(sanitize_thread) { 1000 } else { 12_000 };
        let (done, findings, _) = run(&Run {
            seed,
            threads: 1,
            operations,
            device: 24 * MIB,
            live: 16 * MIB,
            deferred: true,
            context_events: seed % 2 == 0,
            ignore_stamps: false,
        });
        assert_eq!(findings.corrupt(), 0, "seed {seed}: corrupt of {}", findings.checked());
        assert_eq!(done.allocs, done.frees);
    }
}

/// The canary: the same load with stamps ignored must find corruption. The device is so large
/// that no page moves, for work on unmapped memory would end the process.
#[test]
#[cfg_attr(sanitize_thread, ignore = "the corruption is a data race, which ends the run")]
fn canary_four_threads_with_stamps_ignored_find_corruption() {
    let (_, findings, _) = run(&Run {
        seed: common::seed(3),
        threads: 4,
        operations: 400_000,
        device: 4096 * MIB,
        live: 8 * MIB,
        deferred: false,
        context_events: true,
        ignore_stamps: true,
    });
    assert!(findings.corrupt() > 0, "memory is reused too early and nobody noticed");
}

#[test]
fn canary_a_stepped_device_with_stamps_ignored_finds_corruption() {
    let (_, findings, _) = run(&Run {
        seed: common::seed(4),
        threads: 1,
        operations: 40_000,
        device: 4096 * MIB,
        live: 16 * MIB,
        deferred: true,
        context_events: true,
        ignore_stamps: true,
    });
    assert!(findings.corrupt() > 0, "memory is reused too early and nobody noticed");
}
