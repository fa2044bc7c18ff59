//! Stream safety on the simulated driver: memory freed on one stream must not reach another
//! before the work behind it is done, whatever the pool does meanwhile.
//!
//! The random load runs over eight streams of four kinds on each of two devices, in four threads.
//! Its canary is the same with stamps ignored, which must find corruption under every seed.

use super::cuda::Sim;
use super::load::{Done, Shared, Worker};
use super::machine::{Device, Kind};
use super::{MIB, common, on_sim_with};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "load" => load(&Load { operations: number("OPERATIONS"), ..Load::default() }),
        "load, stamps ignored" => canary(),
        _ => return false,
    }
    true
}

/// A number that the parent gives to a scenario.
fn number(what: &str) -> u64 {
    let given = std::env::var(format!("FOREBAY_TEST_{what}")).expect("the parent gives it");
    given.parse().expect("a number")
}

struct Load {
    threads: u64,
    operations: u64,
    limit: usize,
    live: usize,
    ignore_stamps: bool,
    told: bool,
    own_only: bool,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            threads: 4,
            operations: 4000,
            limit: 48 * MIB,
            live: 6 * MIB,
            ignore_stamps: false,
            told: true,
            own_only: false,
        }
    }
}

/// Runs the load; answers what was done, how many checks there were and how many failed.
fn corruption(what: &Load) -> (Done, usize, usize, u64) {
    use Kind::{Blocking, Legacy, NonBlocking, Priority};
    let seed = common::seed(1);
    let kinds =
        [Legacy, Blocking, Blocking, NonBlocking, NonBlocking, NonBlocking, Priority, Priority];
    let places = what.operations as usize * 2;
    let open = |ordinal| {
        Device::open(ordinal, places, |settings| {
            settings.limit = what.limit as u64;
            settings.oom_wait = std::time::Duration::from_millis(1);
        })
    };
    let devices: Vec<Device> = (0..2).map(open).collect();
    for device in devices.iter().filter(|_| what.ignore_stamps) {
        device.pool.with_core(|core| core.ignore_stamps()).expect("alive");
    }
    let shared = Shared {
        streams: devices.iter().map(|d| kinds.iter().map(|&k| d.stream(k)).collect()).collect(),
        devices,
        post: Mutex::new(Vec::new()),
        trims: !what.ignore_stamps,
        told: what.told,
        own_only: what.own_only,
        live: what.live,
        clock: AtomicU64::new(0),
    };
    let each = what.operations / what.threads;
    let mut parts: Vec<_> = std::thread::scope(|scope| {
        let start = |t: u64| {
            let worker = Worker::new(&shared, seed ^ t << 32);
            scope.spawn(move || worker.run(each))
        };
        let threads: Vec<_> = (0..what.threads).map(start).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    let mut last = Worker::new(&shared, seed);
    last.empty_post();
    parts.push(last.run(0));
    shared.devices.iter().for_each(Device::synchronize);
    let done = parts.iter().fold(Done::default(), |sum, (done, _)| sum.and(*done));
    let checks = || parts.iter().flat_map(|(_, checks)| checks);
    let failed = checks().filter(|(d, check)| !shared.devices[*d].held(*check)).count();
    let moved = end(shared, what.ignore_stamps);
    (done, checks().count(), failed, moved)
}

/// Everything is free and all work done: the accounts agree, and nothing is left behind.
fn end(shared: Shared, ignored: bool) -> u64 {
    let sim = Sim::open();
    let mut moved = 0;
    for (device, streams) in shared.devices.into_iter().zip(shared.streams) {
        device.pool.with_core(|core| core.check()).expect("alive");
        let stats = device.pool.stats().expect("alive");
        assert_eq!((stats.live_bytes, stats.live_blocks), (0, 0), "{stats:?}");
        if !ignored {
            assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
            // What passes may empty slabs, whose memory waits for a fence of its own.
            for _ in 0..4 {
                device.pool.trim(0).expect("a trim");
                device.synchronize();
            }
            device.pool.trim(0).expect("a trim");
            let end = device.pool.stats().expect("alive");
            assert_eq!(end.mapped_bytes, 0, "all that is idle goes back: {end:?}");
        }
        moved += stats.pages_moved;
        for stream in streams.into_iter().filter(|&s| s != 0) {
            device.destroy_stream(stream, true);
        }
        device.end();
    }
    sim.assert_no_misuse();
    sim.assert_nothing_left();
    moved
}

fn load(what: &Load) {
    let (done, checks, failed, moved) = corruption(what);
    println!("{done:?}, {checks} checks, {moved} pages moved");
    assert_eq!(failed, 0, "corrupt blocks of {checks}");
    assert!(done.operations() >= what.operations);
    assert_eq!(done.allocs, done.frees);
    assert!(checks as u64 >= done.frees, "each block is looked at before its free");
    assert!(done.known > 0, "handles come back: {done:?}");
    assert!(moved > 0, "pages are moved under the load");
}

/// The devices are so large that no page moves: work on unmapped memory would end the contexts.
fn canary() {
    let what = Load { limit: 2048 * MIB, ignore_stamps: true, ..Load::default() };
    let (_, checks, failed, _) = corruption(&what);
    println!("{failed} of {checks} checks failed");
    assert!(failed > 0, "memory is reused too early and nobody noticed");
}

/// Runs a scenario of two devices under a seed of the load's and the scheduler's.
fn seeded(name: &str, seed: u64, operations: u64, machine: &[(&str, &str)]) {
    let (seed, operations) = (seed.to_string(), operations.to_string());
    let mut settings = vec![("DEVICES", "2"), ("MEMORY", "4GiB"), ("SEED", seed.as_str())];
    settings.extend(machine);
    let own = [("FOREBAY_TEST_SEED", seed.as_str()), ("FOREBAY_TEST_OPERATIONS", &operations)];
    on_sim_with(name, &settings, &own);
}

#[test]
fn four_threads_on_eight_streams_of_two_devices_corrupt_nothing() {
    let first = common::seed(20_260_401);
    for seed in first..first + 3 {
        seeded("load", seed, 60_000, &[]);
    }
    seeded("load", first, 60_000, &[("CONTEXT_EVENTS", "0")]);
}

#[test]
#[ignore = "three minutes; cargo xtask test --full"]
fn four_threads_corrupt_nothing_for_long() {
    let first = common::seed(77);
    for seed in first..first + 10 {
        seeded("load", seed, 200_000, &[]);
        seeded("load", seed, 60_000, &[("CONTEXT_EVENTS", "0")]);
        seeded("load", seed, 60_000, &[("SCHEDULE", "eager")]);
    }
}

#[test]
fn canary_stamps_ignored_corrupt_memory_under_every_seed() {
    let first = common::seed(1);
    for seed in first..first + 20 {
        seeded("load, stamps ignored", seed, 4000, &[]);
    }
}
