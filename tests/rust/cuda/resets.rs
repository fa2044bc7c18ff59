//! A primary context that is reset under a pool, and made active again by whoever comes next.

use super::cuda::{Sim, make_context};
use super::machine::Device;
use super::{MIB, fill, on_sim, on_sim_with};
use forebay::config::Config;
use forebay::driver::{Code, Scope, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings, devices, registry};
use std::sync::Arc;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "reset and active again" => reset_and_active(true, true),
        "reset, which cannot be told" => reset_and_active(false, true),
        "reset and ended" => reset_and_active(true, false),
        "dead events" => dead_events(),
        "a new pool after a reset" => new_pool(true),
        "a new pool after a context" => new_pool(false),
        "a peer is reset" => a_peer_is_reset(),
        "a failed peer comes back" => a_failed_peer_comes_back(),
        _ => return false,
    }
    true
}

/// `told`: the driver tells contexts apart. Else dead events are asked, once. `again`: somebody
/// makes the context active before the pool is used.
fn reset_and_active(told: bool, again: bool) {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    // Fences in flight, on the own events.
    let blocks: Vec<usize> =
        (0..4).map(|_| pool.alloc(5 * MIB, SYNC_STREAM).expect("fits")).collect();
    for &block in &blocks[..2] {
        fill(&pool, block, 5 * MIB, 1, 0);
        pool.dealloc(block, SYNC_STREAM).expect("live");
    }
    pool.trim(0).expect("a trim");
    sim.ok("cuDevicePrimaryCtxReset_v2", &[0]);
    if again {
        sim.get("cuDevicePrimaryCtxRetain", &[0]);
    }
    let error = pool.alloc(200 * MIB, 0).expect_err("its memory is gone");
    assert_eq!(error.status(), Status::ContextLost, "{error}");
    let before = sim.total_calls();
    let error = pool.alloc(100, SYNC_STREAM).expect_err("still");
    assert_eq!(error.status(), Status::ContextLost, "{error}");
    for &block in &blocks[2..] {
        pool.dealloc(block, SYNC_STREAM).expect("a free is a silent success");
    }
    assert_eq!(sim.total_calls(), before, "a lost context was called");
    if told {
        sim.assert_no_misuse();
    }
}

#[test]
fn a_reset_under_the_pool_is_told_before_a_dead_handle_is_used() {
    on_sim("reset and active again", &[("SCHEDULE", "stepped")]);
}

#[test]
fn a_reset_is_told_while_nobody_has_made_the_context_anew() {
    on_sim("reset and ended", &[("SCHEDULE", "stepped")]);
}

#[test]
fn a_reset_is_told_also_where_contexts_cannot_be_told_apart() {
    on_sim("reset, which cannot be told", &[("SCHEDULE", "stepped"), ("WITHOUT", "cuCtxGetId")]);
}

/// What is asked of an event that went with its context, where nothing else tells.
fn dead_events() {
    let sim = Sim::open();
    let config = Config::from_env().expect("well-formed");
    let driver = devices::open_cuda(&config).expect("a device").driver();
    let stream = driver.stream_create().expect("one");
    let event = driver.event_create().expect("one");
    driver.event_record(event, Scope::Stream(stream)).expect("live");
    // A stream that is gone says nothing of the context.
    driver.stream_destroy(stream).expect("live");
    let refused = driver.event_record(event, Scope::Stream(stream)).expect_err("destroyed");
    assert_eq!(refused.code, Code::InvalidHandle);
    let refused = driver.stream_wait(stream, event).expect_err("destroyed");
    assert_eq!(refused.code, Code::InvalidHandle);
    sim.ok("cuDevicePrimaryCtxReset_v2", &[0]);
    sim.get("cuDevicePrimaryCtxRetain", &[0]);
    let lost = |error: forebay::driver::DriverError| assert_eq!(error.code, Code::ContextLost);
    lost(driver.event_query(event).expect_err("dead"));
    lost(driver.event_synchronize(event).expect_err("dead"));
    lost(driver.event_record(event, Scope::Context).expect_err("dead"));
    lost(driver.event_record(event, Scope::Stream(StreamHandle(0))).expect_err("dead"));
    lost(driver.stream_wait(StreamHandle(0), event).expect_err("dead"));
}

#[test]
fn a_dead_event_means_a_lost_context_and_a_dead_stream_does_not() {
    on_sim("dead events", &[("WITHOUT", "cuCtxGetId")]);
}

/// A pool of its own, on the driver that the device has now.
fn a_pool() -> forebay::error::Result<Pool> {
    let config = Config::from_env().expect("well-formed");
    let driver = devices::open_cuda(&config)?.driver();
    let settings = Settings::resolve(&config, driver.device().total_bytes as u64, false);
    Pool::with_driver(driver, settings)
}

/// The context is lost, a reset primary one or the caller's own: pools made afterwards work.
fn new_pool(primary: bool) {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let own = if primary { 0 } else { make_context(sim, 0) };
    let pool = a_pool().expect("a device");
    let block = pool.alloc(3 * MIB, 0).expect("fits");
    if primary {
        sim.ok("cuDevicePrimaryCtxReset_v2", &[0]);
    } else {
        sim.ok("cuCtxDestroy_v2", &[own]);
    }
    let lost = pool.alloc(64 * MIB, 0).expect_err("the context is gone");
    assert_eq!(lost.status(), Status::ContextLost, "{lost}");
    for _ in 0..2 {
        let next = a_pool().expect("the device works");
        let other = next.alloc(3 * MIB, 0).expect("fits");
        fill(&next, other, 3 * MIB, 7, 0);
        assert!(super::holds(&next, other, 3 * MIB, 7, 0));
        next.dealloc(other, 0).expect("live");
        let id = next.id();
        let _ = next.into_handle();
        registry::destroy(id).expect("nothing is wrong with it");
    }
    pool.dealloc(block, 0).expect("a free is a silent success");
    assert!(pool.alloc(100, 0).is_err(), "the old pool stays lost");
    drop(pool);
    if primary {
        sim.assert_no_misuse();
    }
}

#[test]
fn pools_made_after_the_loss_of_a_context_work_in_another() {
    on_sim("a new pool after a reset", &[]);
    on_sim("a new pool after a context", &[]);
}

/// A pool with two peers, and what shows that its fences pass.
fn with_peer(tune: impl Fn(&mut Settings)) -> [Device; 2] {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let devices = [0, 1].map(|ordinal| {
        Device::open(ordinal, 0, |settings| {
            settings.keeper = false;
            tune(settings);
        })
    });
    devices[0].pool.enable_peer(1).expect("it can");
    devices
}

fn turn(first: &Device) {
    let block = first.pool.alloc(20 * MIB, SYNC_STREAM).expect("fits");
    first.fill(block, 1, 20 * MIB, 0);
    first.pool.dealloc(block, SYNC_STREAM).expect("live");
    first.synchronize();
    assert!(first.pool.trim(0).expect("a trim") >= 20 * MIB as u64, "the fence has passed");
}

/// A peer is reset, and active again, between two fences: no handle of before is used.
fn a_peer_is_reset() {
    let sim = Sim::open();
    let [first, peer] = with_peer(|_| {});
    turn(&first);
    drop(peer.pool);
    for _ in 0..2 {
        sim.ok("cuDevicePrimaryCtxReset_v2", &[1]);
        sim.get("cuDevicePrimaryCtxRetain", &[1]);
        turn(&first);
        turn(&first);
    }
    first.end();
    let report = sim.report();
    let mut misuse = report["misuse"].as_array().expect("a list").iter();
    // What the test itself had in that context.
    assert!(misuse.all(|m| m["kind"] == "leak at context destroy"), "{report}");
}

#[test]
fn no_dead_handle_of_a_peer_is_used() {
    let told = on_sim("a peer is reset", &[("DEVICES", "2")]);
    assert!(!told.contains("fences leave it out"), "{told}");
    let waits = [("DEVICES", "2"), ("FAULTS", "fail cuCtxRecordEvent always with 801")];
    let told = on_sim_with("a peer is reset", &waits, &[]);
    assert!(!told.contains("fences leave it out"), "{told}");
}

/// A peer's context fails and is reset later: from then on fences cover its work again.
fn a_failed_peer_comes_back() {
    let sim = Sim::open();
    let [first, peer] = with_peer(|settings| {
        settings.limit = 12 * MIB as u64;
        settings.oom_wait = std::time::Duration::from_millis(1);
    });
    peer.spin_until(4096, 1, 0);
    peer.enter();
    assert_eq!(sim.call("cuCtxSynchronize", &[]), 700);
    first.enter();
    let recorded = || first.pool.stats().expect("alive").fences_recorded;
    let fence = || {
        let block = first.pool.alloc(MIB, SYNC_STREAM).expect("fits");
        let before = recorded();
        first.pool.dealloc(block, SYNC_STREAM).expect("live");
        first.pool.trim(0).expect("a trim");
        recorded() > before
    };
    assert!(fence(), "without the peer");
    sim.ok("cuDevicePrimaryCtxReset_v2", &[1]);
    let own = Arc::clone(&first.driver);
    drop(peer.pool);
    // The device works again, and reads the memory of the first.
    let reader = Device::open(1, 10, |_| {});
    let stream = reader.stream(super::machine::Kind::NonBlocking);
    let bytes = 5 * MIB;
    let block = first.pool.alloc(bytes, SYNC_STREAM).expect("fits");
    own.fill(block, 0x33, bytes, StreamHandle(0)).expect("queued");
    first.synchronize();
    reader.enter();
    let word = sim.get("cuMemAlloc_v2", &[4096]);
    reader.fill(word, 0, 4096, 0);
    reader.synchronize();
    reader.spin_until(word, 1, stream);
    let check = reader.check((block, bytes), 0x33, stream, 0).expect("there is room");
    first.pool.dealloc(block, SYNC_STREAM).expect("live");
    assert!(fence());
    first.synchronize();
    for _ in 0..20 {
        first.pool.stats().expect("settles");
    }
    let mut taken = Vec::new();
    while let Ok(other) = first.pool.alloc(MIB, SYNC_STREAM) {
        assert!(!(block..block + bytes).contains(&other), "the peer reads it");
        taken.push(other);
    }
    // SAFETY: the simulation lets the CPU write device memory; the kernel waits for it.
    unsafe { (word as *mut u32).write_volatile(1) };
    reader.synchronize();
    assert!(reader.held(check));
}

#[test]
fn fences_cover_a_peer_again_once_it_has_been_reset() {
    on_sim("a failed peer comes back", &[("DEVICES", "2")]);
}
