//! The Nth call of opening a device fails: a clear error or a step down, and nothing left.
//!
//! Each run has a world of its own and, since a process loads a driver once a path, a path of its
//! own. The device is opened, used by a pool as far as it could be, and given up; then opened
//! again without faults.

use super::cuda::{self, Sim};
use super::device::new_world;
use forebay::config::Config;
use forebay::driver::cuda::Opened;
use forebay::error::Status;
use forebay::pool::{Pool, Settings, registry};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

const TOTAL_BYTES: usize = 64 << 20;
const GRANULE: usize = 2 << 20;

/// More calls than opening makes.
const CALLS_MAX: u64 = 400;

/// Another path of the driver's file.
fn path(folder: &Path) -> PathBuf {
    static NUMBERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = folder.join(format!("libcuda.{number}.so"));
    let target = std::fs::canonicalize(cuda::library()).expect("the driver's file");
    std::os::unix::fs::symlink(target, &path).expect("a link");
    path
}

/// Makes a pool, allocates, frees, ends it.
fn use_once(opened: &Opened) {
    let driver = opened.driver();
    let mut settings =
        Settings::resolve(&Config::default(), driver.device().total_bytes as u64, true);
    settings.keeper = false;
    let pool = Pool::with_driver(driver, settings).expect("no fault any more");
    for bytes in [3000, 5 << 20] {
        let block = pool.alloc(bytes, 0).expect("fits");
        pool.dealloc(block, 0).expect("live");
    }
    registry::destroy(pool.into_handle() >> 48).expect("no fault is armed");
}

/// One run, where the thread has a context of the program's or none; whether the fault was met.
fn run(folder: &Path, fault: &str, for_ever: bool, with_context: bool) -> bool {
    let sim = new_world(TOTAL_BYTES, GRANULE, "");
    let mut context = 0;
    if with_context {
        sim.ok("cuInit", &[0]);
        context = cuda::make_context(sim, 0);
    }
    let path = path(folder);
    sim.script(fault);
    let opened = forebay::driver::cuda::open(Some(&path), 0);
    let met = sim.total_calls();
    sim.script("");
    // Where the driver was not even initialised.
    sim.ok("cuInit", &[0]);
    match opened {
        Ok(opened) => {
            restore(sim, for_ever, context);
            let primary = opened.device().uses_primary_context();
            assert!(for_ever || context == 0 || primary != Some(true), "the program's is ignored");
            use_once(&opened);
        }
        Err(error) => {
            assert_eq!(error.status(), Status::NoDriver, "{error}");
            assert!(error.message().contains("CUDA") || error.message().contains("driver"));
            if !for_ever && !fault.contains("cuGetProcAddress") {
                check_all(sim, context);
            }
            restore(sim, for_ever, context);
        }
    }
    if fault.contains("cuGetProcAddress") {
        // Entry points that were not found stay so for the path, the way to release a context,
        // which CUDA 11.0 brought, like any other.
        sim.assert_no_misuse();
        sim.assert_nothing_left();
    } else {
        let opened = forebay::driver::cuda::open(Some(&path), 0).expect("no fault any more");
        assert_eq!(opened.device().fallbacks(), []);
        use_once(&opened);
        drop(opened);
        check_all(sim, context);
    }
    std::fs::remove_file(&path).expect("a link");
    met > 0
}

/// The thread as it was: where every call failed, no way back worked.
fn restore(sim: Sim, for_ever: bool, context: usize) {
    while for_ever && cuda::current_context(sim) != context {
        sim.get("cuCtxPopCurrent_v2", &[]);
    }
    if for_ever {
        let mut global = 0u32;
        sim.ok("cuThreadExchangeStreamCaptureMode", &[&raw mut global as usize]);
    }
    assert_eq!(cuda::current_context(sim), context, "the thread's context was changed");
    assert_eq!(cuda::capture_mode(sim), 0, "the thread's capture mode was changed");
}

/// Nothing is left but the program's context, and nothing was wrong.
fn check_all(sim: Sim, context: usize) {
    sim.assert_no_misuse();
    sim.assert_nothing_left();
    assert_eq!(sim.live("contexts"), u64::from(context != 0), "a context is left");
}

/// Calls that opening makes, but for those that no fault counts.
fn calls_of_opening(folder: &Path) -> u64 {
    let sim = new_world(TOTAL_BYTES, GRANULE, "");
    let path = path(folder);
    let opened = forebay::driver::cuda::open(Some(&path), 0).expect("a device");
    let calls = sim.total_calls();
    use_once(&opened);
    assert!(calls < CALLS_MAX, "{calls}");
    calls
}

/// Every `stride`th call of opening fails, in every way.
pub fn sweep(stride: u64) -> u64 {
    let folder = std::env::temp_dir().join(format!("forebay-opening-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let calls = calls_of_opening(&folder);
    let mut faults = Vec::new();
    for nth in (1..=calls).step_by(stride as usize) {
        for code in [2, 1, 101, 304, 800, 801, 999] {
            faults.push((format!("fail any #{nth} once with {code}"), false));
        }
        for code in [2, 801, 999] {
            faults.push((format!("fail any from #{nth} always with {code}"), true));
        }
        for call in ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree"] {
            let besides = format!("fail any #{nth} once with 2; fail {call} always with 999");
            faults.push((besides, true));
        }
        faults.push((format!("fail cuGetProcAddress #{nth} once with 500"), false));
    }
    for nth in 1..=3 {
        faults.push((format!("fail cuDriverGetVersion #{nth} once with 999"), false));
        faults.push((format!("fail cuInit #{nth} once with 999"), false));
    }
    let mut runs = 0;
    for (fault, for_ever) in faults {
        for with_context in [false, true] {
            let run = || run(&folder, &fault, for_ever, with_context);
            let met = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                eprintln!("opening: {fault}, with a context: {with_context}");
                resume_unwind(panic)
            });
            runs += u64::from(met);
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    runs
}
