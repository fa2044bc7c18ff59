//! Whose context calls run in, and what the caller finds afterwards.

use super::cuda::{Sim, capture_mode, current_context, make_context};
use super::{MIB, fill, holds, no_misuse, on_sim};
use forebay::error::Status;
use forebay::pool::Pool;
use forebay::pool::hot::SYNC_STREAM;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "another device's context" => another_devices(),
        "the caller's own context" => callers_own(),
        "no context at all" => none_at_all(),
        "a stream of another context" => foreign_stream(),
        "numbers that are no streams" => no_streams(),
        "two contexts of one device" => two_contexts(),
        _ => return false,
    }
    true
}

/// Everything a pool does, while the thread's context and mode are watched.
fn watched(sim: Sim, context: usize) {
    let mode = capture_mode(sim);
    let same = |step: &str| {
        assert_eq!(current_context(sim), context, "{step}");
        assert_eq!(capture_mode(sim), mode, "{step}");
    };
    let pool = Pool::default_pool().expect("a device");
    same("making the pool");
    let small = pool.alloc(1000, 0).expect("fits");
    let large = pool.alloc(9 * MIB, 0).expect("fits");
    same("allocating");
    fill(&pool, large, 9 * MIB, 7, 0);
    assert!(holds(&pool, large, 9 * MIB, 7, 0));
    same("copying");
    pool.dealloc(small, forebay::pool::hot::SYNC_STREAM).expect("live");
    pool.dealloc(large, 0).expect("live");
    pool.trim(0).expect("idle");
    same("freeing and trimming");
    assert!(pool.alloc(1 << 40, 0).is_err());
    same("a failure");
    let driver = pool.driver().expect("alive");
    let event = driver.event_create().expect("an event");
    assert!(driver.event_query(event).expect("alive"));
    driver.event_destroy(event).expect("live");
    same("events");
}

fn another_devices() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let context = make_context(sim, 1);
    watched(sim, context);
    no_misuse();
}

#[test]
fn another_devices_context_stays_current() {
    on_sim("another device's context", &[("DEVICES", "2")]);
}

fn primary_is_active(sim: Sim, device: usize) -> bool {
    let (mut flags, mut active) = (0u32, 0i32);
    let at = [device, &raw mut flags as usize, &raw mut active as usize];
    sim.ok("cuDevicePrimaryCtxGetState", &at);
    active != 0
}

fn callers_own() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let context = make_context(sim, 0);
    watched(sim, context);
    assert!(!primary_is_active(sim, 0), "a primary context was made behind the caller's back");
    // Another thread, without a context, works in the same one.
    std::thread::spawn(move || watched(sim, 0)).join().expect("no failure");
    assert!(!primary_is_active(sim, 0));
    no_misuse();
}

#[test]
fn the_callers_own_context_serves() {
    on_sim("the caller's own context", &[]);
}

fn none_at_all() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    watched(sim, 0);
    assert!(primary_is_active(sim, 0));
    no_misuse();
}

#[test]
fn without_a_context_the_primary_one_serves() {
    on_sim("no context at all", &[]);
}

fn foreign_stream() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    pool.alloc(1000, 0).expect("fits");
    let primary = sim.get("cuDevicePrimaryCtxRetain", &[0]);
    let own = {
        sim.ok("cuCtxPushCurrent_v2", &[primary]);
        let stream = sim.get("cuStreamCreate", &[1]);
        sim.get("cuCtxPopCurrent_v2", &[]);
        stream
    };
    let other = make_context(sim, 0);
    let foreign = sim.get("cuStreamCreate", &[1]);
    pool.alloc(1000, own as u64).expect("a stream of the pool's context");
    let error = pool.alloc(1000, foreign as u64).expect_err("another context's stream");
    assert_eq!(error.status(), Status::InvalidStream);
    assert_eq!(current_context(sim), other);
    no_misuse();
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let told = on_sim("a stream of another context", &[]);
    assert!(told.contains("another context"), "{told}");
}

fn no_streams() {
    let pool = Pool::default_pool().expect("a device");
    // 2 is the per-thread default stream: one handle for as many streams as threads.
    for stream in [2, 3, 77, 4095] {
        let error = pool.alloc(1000, stream).expect_err("no stream");
        assert_eq!(error.status(), Status::InvalidStream, "{stream}");
    }
    // 1 is the legacy stream by its other name.
    let block = pool.alloc(1000, 1).expect("the legacy stream");
    pool.dealloc(block, 0).expect("live");
    no_misuse();
}

#[test]
fn numbers_that_are_no_streams_are_refused() {
    on_sim("numbers that are no streams", &[]);
}

/// The pool works in the first context; a thread that works in another uses its memory there.
fn two_contexts() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let first = make_context(sim, 0);
    let pool = Pool::default_pool().expect("a device");
    let block = pool.alloc(3 * MIB, 0).expect("fits");
    fill(&pool, block, 3 * MIB, 1, 0);
    assert!(holds(&pool, block, 3 * MIB, 1, 0));
    let other = std::thread::spawn(move || {
        let second = make_context(sim, 0);
        watched(sim, second);
        let pool = Pool::default_pool().expect("a device");
        let stream = sim.get("cuStreamCreate", &[1]);
        sim.ok("cuMemsetD8Async", &[block, 2, 3 * MIB, stream]);
        sim.ok("cuStreamSynchronize", &[stream]);
        let refused = pool.alloc(1000, stream as u64).expect_err("another context's stream");
        assert_eq!(refused.status(), Status::InvalidStream);
        assert!(holds(&pool, block, 3 * MIB, 2, 0), "one memory in both");
        assert_eq!(current_context(sim), second);
        pool.dealloc(block, SYNC_STREAM).expect("live");
        sim.ok("cuCtxDestroy_v2", &[second]);
    });
    other.join().expect("no failure");
    // The end of a context that is not the pool's is no business of the pool's.
    assert_eq!(current_context(sim), first);
    watched(sim, first);
    assert!(!primary_is_active(sim, 0));
    no_misuse();
}

#[test]
fn memory_serves_in_every_context_of_its_device() {
    on_sim("two contexts of one device", &[]);
}
