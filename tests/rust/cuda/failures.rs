//! When the driver fails in the middle of a program: what is said, and what is lost.

use super::cuda::{Sim, make_context};
use super::{MIB, fill, no_misuse, on_sim, on_sim_with};
use forebay::config::Config;
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings, devices, registry};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "shut down" => shut_down(),
        "context lost" => context_lost(),
        "context destroyed" => context_destroyed(),
        "illegal address" => illegal_address(),
        "out of mappings" => out_of_mappings(),
        "out of memory" => out_of_memory(),
        "unknown code" => unknown_code(),
        "live at exit" => live_at_exit(),
        "keeper at exit" => keeper_at_exit(),
        "capture not declared" => undeclared_capture(),
        _ => return false,
    }
    true
}

fn shut_down() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    let small: Vec<usize> = (0..100).map(|_| pool.alloc(4096, 0).expect("fits")).collect();
    let large = pool.alloc(40 * MIB, 0).expect("fits");
    let settings = Settings::resolve(&Config::from_env().expect("well-formed"), 1 << 25, false);
    let second = Pool::with_driver(pool.driver().expect("alive"), settings).expect("a pool");
    second.alloc(3 * MIB, 0).expect("fits");
    sim.script("fail any with 4 from #1 always");
    // The first call that is made learns it.
    let error = pool.alloc(60 * MIB, 0).expect_err("shut down");
    assert_eq!(error.status(), Status::ShutDown, "{error}");
    let before = sim.total_calls();
    for &block in &small[..50] {
        pool.dealloc(block, 0).expect("a free is a silent success");
    }
    for &block in &small[50..] {
        pool.dealloc(block, SYNC_STREAM).expect("a free is a silent success");
    }
    pool.dealloc(large, SYNC_STREAM).expect("a free is a silent success");
    let driver = pool.driver().expect("alive");
    driver.unmap(2 << 20, 2 << 20).expect("nothing is left to give back");
    // A pool of one's own ends, whatever lived in it.
    let id = second.id();
    let _ = second.into_handle();
    registry::destroy(id).expect("the shutdown took it all");
    assert_eq!(pool.alloc(60 * MIB, 0).expect_err("still").status(), Status::ShutDown);
    assert_eq!(sim.total_calls(), before, "a call was made after the shutdown");
    no_misuse();
}

#[test]
fn after_a_shutdown_frees_succeed_and_nothing_is_called() {
    on_sim("shut down", &[]);
    on_sim_with("shut down", &[], &[("FOREBAY_FREE", "sync")]);
}

fn context_lost() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let own = make_context(sim, 0);
    let pool = Pool::default_pool().expect("a device");
    let block = pool.alloc(3 * MIB, 0).expect("fits");
    sim.ok("cuCtxDestroy_v2", &[own]);
    let error = pool.alloc(64 * MIB, 0).expect_err("the context is gone");
    assert_eq!(error.status(), Status::ContextLost, "{error}");
    assert!(error.message().contains("context"), "{error}");
    // What is known of live blocks is as before.
    assert_eq!(pool.stats().expect("alive").live_blocks, 1);
    pool.dealloc(block, 0).expect("a free is a silent success");
}

/// Every call on a pool whose context is destroyed: one clear error, frees that succeed, an end.
fn context_destroyed() {
    let sim = Sim::open();
    sim.ok("cuInit", &[0]);
    let own = make_context(sim, 0);
    let config = Config::from_env().expect("well-formed");
    let driver = devices::open_cuda(&config).expect("a device").driver();
    let settings = Settings::resolve(&config, driver.device().total_bytes as u64, false);
    let pool = Pool::with_driver(Arc::clone(&driver), settings.clone()).expect("a pool");
    let stream = sim.get("cuStreamCreate", &[1]) as u64;
    let mut blocks = Vec::new();
    for lane in [0, stream, SYNC_STREAM] {
        for bytes in [1000, 200 << 10, 5 * MIB] {
            let [live, freed] = [0, 1].map(|_| pool.alloc(bytes, lane).expect("fits"));
            fill(&pool, freed, bytes, 1, if lane == SYNC_STREAM { 0 } else { lane });
            pool.dealloc(freed, lane).expect("live");
            blocks.push((live, lane));
        }
    }
    sim.ok("cuCtxDestroy_v2", &[own]);
    let lost = |error: forebay::error::Error| assert_eq!(error.status(), Status::ContextLost);
    lost(pool.alloc(64 * MIB, 0).expect_err("the context is gone"));
    let before = sim.total_calls();
    for lane in [0, stream, SYNC_STREAM] {
        for bytes in [1000, 200 << 10, 5 * MIB] {
            lost(pool.alloc(bytes, lane).expect_err("nothing is handed out any more"));
        }
    }
    lost(pool.enable_peer(1).expect_err("no memory is there"));
    assert_eq!(pool.stats().expect("alive").live_blocks, 9, "as it was");
    for (block, lane) in blocks {
        pool.dealloc(block, lane).expect("a free is a silent success");
    }
    registry::retire_stream(stream).expect("nothing is left to wait for");
    let id = pool.id();
    let _ = pool.into_handle();
    registry::destroy(id).expect("needs no driver");
    assert_eq!(sim.total_calls(), before, "a lost context was called");
    // The device's driver works in that context for good.
    lost(Pool::with_driver(driver, settings).expect_err("its context is gone"));
    // That the context is gone is learnt from a call, which is all that was wrong.
    let report = sim.report();
    let mut misuse = report["misuse"].as_array().expect("a list").iter();
    assert!(misuse.all(|m| m["kind"] == "use of a destroyed context"), "{report}");
}

#[test]
fn a_pool_of_a_destroyed_context_answers_one_error_and_can_be_ended() {
    on_sim("context destroyed", &[("DEVICES", "2")]);
}

#[test]
fn a_context_destroyed_under_the_pool_is_told() {
    on_sim("context lost", &[]);
}

fn illegal_address() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    let block = pool.alloc(3 * MIB, 0).expect("fits");
    sim.script("fail cuMemCreate with 700 from #1 always");
    let error = pool.alloc(64 * MIB, 0).expect_err("the context is unusable");
    assert_eq!(error.status(), Status::ContextLost, "{error}");
    let before = sim.total_calls();
    pool.dealloc(block, 0).expect("a free is a silent success");
    assert!(pool.alloc(100, 0).is_err());
    assert_eq!(sim.total_calls(), before, "a lost context was called");
}

#[test]
fn an_illegal_address_is_named() {
    let told = on_sim("illegal address", &[]);
    assert!(told.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{told}");
    assert!(told.contains("compute-sanitizer"), "{told}");
}

fn unknown_code() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    sim.script("fail cuMemMap with 4321 from #1 always");
    let error = pool.alloc(64 * MIB, 0).expect_err("failed");
    assert_eq!(error.status(), Status::Driver);
    assert!(error.message().contains("4321"), "{error}");
    sim.script("");
    let block = pool.alloc(64 * MIB, 0).expect("the next call works");
    pool.dealloc(block, 0).expect("live");
    no_misuse();
}

#[test]
fn a_number_that_nobody_knows_is_passed_on() {
    on_sim("unknown code", &[]);
}

fn out_of_mappings() {
    let pool = Pool::default_pool().expect("a device");
    let mut blocks = Vec::new();
    let error = loop {
        match pool.alloc(2 * MIB, 0) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        assert!(blocks.len() < 100, "the budget holds 20");
    };
    assert_eq!(error.status(), Status::MappingLimit, "{error}");
    assert!(blocks.len() >= 10, "{}", blocks.len());
    for block in blocks {
        pool.dealloc(block, 0).expect("live");
    }
    let block = pool.alloc(2 * MIB, 0).expect("fits again");
    pool.dealloc(block, 0).expect("live");
    no_misuse();
}

#[test]
fn a_spent_budget_of_mappings_is_told() {
    on_sim("out of mappings", &[("MAPPINGS", "20")]);
}

fn out_of_memory() {
    let pool = Pool::default_pool().expect("a device");
    let mut blocks = Vec::new();
    let error = loop {
        match pool.alloc(10 * MIB, 0) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        assert!(blocks.len() < 30, "the device has 256 MiB");
    };
    assert_eq!(error.status(), Status::OutOfMemory, "{error}");
    assert!(blocks.len() >= 24, "{}", blocks.len());
    for block in blocks {
        pool.dealloc(block, 0).expect("live");
    }
    let block = pool.alloc(200 * MIB, 0).expect("one large one fits now");
    pool.dealloc(block, 0).expect("live");
    no_misuse();
}

#[test]
fn out_of_memory_passes() {
    on_sim("out of memory", &[]);
}

fn live_at_exit() {
    let pool = Pool::default_pool().expect("a device");
    for i in 0..200 {
        let block = pool.alloc(1000 + i * 5000, 0).expect("fits");
        if i % 3 > 0 {
            // Pending work for the keeper.
            pool.dealloc(block, SYNC_STREAM).expect("live");
        }
    }
    no_misuse();
}

#[test]
fn a_process_may_end_with_everything_live() {
    let told = on_sim_with("live at exit", &[], &[("FOREBAY_DECAY", "1ms")]);
    assert!(!told.contains("misuse"), "{told}");
}

static TOLD: AtomicBool = AtomicBool::new(false);

/// Memory loses its place; it takes a while to forget it.
unsafe extern "C" fn slow_to_forget(_: *mut c_void, _: *mut c_void, _: usize) {
    TOLD.store(true, Ordering::Release);
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// Runs after the exit handlers that are registered later, and before the driver's own.
extern "C" fn nothing_is_called_any_more() {
    let sim = Sim::open();
    let before = sim.total_calls();
    std::thread::sleep(std::time::Duration::from_millis(400));
    if sim.total_calls() != before {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(3) };
    }
}

/// The process ends while the keeper gives memory back.
fn keeper_at_exit() {
    Sim::open().ok("cuInit", &[0]);
    // SAFETY: the handler is a function of this program and does not unwind.
    assert_eq!(unsafe { libc::atexit(nothing_is_called_any_more) }, 0);
    let pool = Pool::default_pool().expect("a device");
    pool.set_on_unmap(Some((slow_to_forget, 0))).expect("alive");
    let block = pool.alloc(20 * MIB, 0).expect("fits");
    pool.dealloc(block, 0).expect("live");
    pool.stats().expect("alive");
    let start = std::time::Instant::now();
    while !TOLD.load(Ordering::Acquire) {
        assert!(start.elapsed().as_secs() < 60, "the keeper gives nothing back");
        std::thread::yield_now();
    }
    println!("scenario done");
    std::process::exit(0);
}

#[test]
fn the_keeper_calls_nothing_once_exit_handlers_have_run() {
    on_sim_with("keeper at exit", &[], &[("FOREBAY_DECAY", "1ms")]);
}

fn undeclared_capture() {
    const THREAD_LOCAL: usize = 1;
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    let block = pool.alloc(20 * MIB, 0).expect("fits");
    let primary = sim.get("cuDevicePrimaryCtxRetain", &[0]);
    sim.ok("cuCtxSetCurrent", &[primary]);
    let stream = sim.get("cuStreamCreate", &[1]);
    let own = pool.alloc(20 * MIB, stream as u64).expect("fits");
    sim.ok("cuStreamBeginCapture_v2", &[stream, THREAD_LOCAL]);
    let driver = pool.driver().expect("alive");
    assert!(driver.stream_capturing(forebay::driver::StreamHandle(stream as u64)));
    fill(&pool, own, 4096, 9, stream as u64);
    // Freed and allocated on the capturing stream and beside it: memory calls of all kinds.
    pool.dealloc(own, stream as u64).expect("live");
    let grown = pool.alloc(50 * MIB, 0).expect("fits");
    let event = driver.event_create().expect("events can be made");
    let scope = forebay::driver::Scope::Stream(forebay::driver::StreamHandle(stream as u64));
    assert!(driver.event_record(event, scope).is_err(), "a record would enter the graph");
    driver.event_destroy(event).expect("live");
    let graph = {
        let mut graph = 0usize;
        sim.ok("cuStreamEndCapture", &[stream, &raw mut graph as usize]);
        graph
    };
    assert_ne!(graph, 0, "the capture was invalidated");
    assert!(!driver.stream_capturing(forebay::driver::StreamHandle(stream as u64)));
    // The graph holds what the program queued, and nothing of Forebay's.
    let mut nodes = 0usize;
    sim.ok("cuGraphGetNodes", &[graph, 0, &raw mut nodes as usize]);
    assert_eq!(nodes, 1);
    for block in [block, grown] {
        pool.dealloc(block, 0).expect("live");
    }
    no_misuse();
}

#[test]
fn a_capture_that_nobody_declared_is_not_disturbed() {
    on_sim("capture not declared", &[]);
}
