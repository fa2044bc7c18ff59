//! Tags suspended and resumed on the simulated driver: what the device has free, contents, graphs.

use super::cuda::Sim;
use super::{MIB, fill, holds, no_misuse, on_sim};
use forebay::error::Status;
use forebay::pool::suspend::{Level, Report};
use forebay::pool::{Pool, registry, report};

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "suspended and resumed" => there_and_back(),
        "a suspend whose calls fail" => calls_fail(),
        "a graph's memory is suspended" => graphs(),
        "plain segments" => plain_segments(),
        _ => return false,
    }
    true
}

fn kv() -> u8 {
    report::tag_create("kv").expect("a tag")
}

fn under_kv<T>(f: impl FnOnce() -> T) -> T {
    let before = registry::set_tag(u32::from(kv())).expect("a tag");
    let done = f();
    registry::set_tag(before).expect("a tag");
    done
}

fn free_bytes(pool: &Pool) -> usize {
    pool.driver().map(|d| d.memory_info().expect("alive").0).expect("alive")
}

/// A default pool with `kv` suspendable.
fn pool() -> Pool {
    let pool = Pool::default_pool().expect("a pool");
    pool.declare_suspendable(kv()).expect("a tag");
    pool
}

/// What other processes may have, and what comes back.
fn there_and_back() {
    let sim = Sim::open();
    let pool = pool();
    let stream = pool.driver().map(|d| d.stream_create().expect("a stream").0).expect("alive");
    let sizes = [700, 300 << 10, 9 * MIB, 40 * MIB + 5];
    let blocks = sizes.map(|bytes| under_kv(|| pool.alloc(bytes, stream)).expect("fits"));
    let other = pool.alloc(3 * MIB, stream).expect("fits");
    for (i, (&at, bytes)) in blocks.iter().zip(sizes).enumerate() {
        fill(&pool, at, bytes, 0x11 * (i as u8 + 1), stream);
    }
    fill(&pool, other, 3 * MIB, 0xee, stream);
    for _ in 0..3 {
        let before = free_bytes(&pool);
        let (pinned, streams) = (sim.live("host_allocations"), sim.live("streams"));
        let told = pool.suspend(&[kv()], Level::Offload).expect("nothing in the way");
        assert!(told.device_bytes >= 49 * MIB as u64, "{told:?}");
        assert_eq!(free_bytes(&pool) - before, told.device_bytes as usize);
        assert!(holds(&pool, other, 3 * MIB, 0xee, stream));
        let mut report = Report::default();
        pool.resume(&[kv()], &mut report).expect("room");
        assert_eq!(free_bytes(&pool), before);
        assert_eq!((sim.live("host_allocations"), sim.live("streams")), (pinned, streams));
        for (i, (&at, bytes)) in blocks.iter().zip(sizes).enumerate() {
            assert!(holds(&pool, at, bytes, 0x11 * (i as u8 + 1), stream), "{i}");
        }
    }
    // Another takes the device's memory meanwhile.
    pool.suspend(&[kv()], Level::Offload).expect("nothing in the way");
    sim.ok("cuInit", &[0]);
    let context = sim.get("cuDevicePrimaryCtxRetain", &[0]);
    sim.ok("cuCtxSetCurrent", &[context]);
    let taken = sim.get("cuMemAlloc_v2", &[230 * MIB]);
    let mut report = Report::default();
    let error = pool.resume(&[kv()], &mut report).expect_err("there is no room");
    assert_eq!(error.status(), Status::OutOfMemory);
    assert!(report.missing_bytes > 0 && error.message().contains("missing"), "{error}");
    sim.ok("cuMemFree_v2", &[taken]);
    pool.resume(&[kv()], &mut report).expect("room");
    assert!(holds(&pool, blocks[3], sizes[3], 0x44, stream));
    blocks.into_iter().chain([other]).for_each(|at| pool.dealloc(at, stream).expect("live"));
    no_misuse();
}

#[test]
fn device_memory_goes_and_comes_back() {
    on_sim("suspended and resumed", &[]);
}

/// Each of CUDA's calls fails once; then it works, and contents are as they were.
fn calls_fail() {
    let sim = Sim::open();
    let pool = pool();
    let at = under_kv(|| pool.alloc(20 * MIB, 0)).expect("fits");
    fill(&pool, at, 20 * MIB, 0x3c, 0);
    let calls = [
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemcpyAsync",
        "cuStreamCreate",
        "cuStreamSynchronize",
        "cuStreamDestroy_v2",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuEventSynchronize",
        "cuCtxRecordEvent",
    ];
    let mut failed = 0;
    for call in calls {
        for wake in [false, true] {
            sim.script(&format!("fail {call} once with 999"));
            let done = match wake {
                true => pool.resume(&[kv()], &mut Report::default()),
                false => pool.suspend(&[kv()], Level::Offload).map(|_| ()),
            };
            sim.script("");
            failed += usize::from(done.is_err());
            assert_eq!(pool.is_suspended(kv()).expect("alive"), wake != done.is_ok(), "{call}");
            pool.with_core(|core| core.recover()).expect("alive");
            if done.is_err() && wake {
                pool.resume(&[kv()], &mut Report::default()).expect("no fault");
            } else if done.is_err() {
                pool.suspend(&[kv()], Level::Offload).expect("no fault");
            }
        }
        assert!(holds(&pool, at, 20 * MIB, 0x3c, 0), "{call}");
    }
    assert!(failed >= 6, "{failed}");
    pool.dealloc(at, 0).expect("live");
    no_misuse();
}

#[test]
fn calls_that_fail_leave_all_or_nothing() {
    on_sim("a suspend whose calls fail", &[]);
}

/// A graph of the driver's own is launched again after its memory was away.
fn graphs() {
    let sim = Sim::open();
    let pool = pool();
    sim.ok("cuInit", &[0]);
    let context = sim.get("cuDevicePrimaryCtxRetain", &[0]);
    sim.ok("cuCtxSetCurrent", &[context]);
    let stream = sim.get("cuStreamCreate", &[1]);
    let number = forebay::pool::capture::begin(stream as u64).expect("a stream");
    sim.ok("cuStreamBeginCapture_v2", &[stream, 1]);
    let scratch = under_kv(|| pool.alloc(5 * MIB, stream as u64)).expect("fits");
    let out = under_kv(|| pool.alloc(5 * MIB, stream as u64)).expect("fits");
    fill(&pool, scratch, 5 * MIB, 0x77, stream as u64);
    let driver = pool.driver().expect("alive");
    let handle = forebay::driver::StreamHandle(stream as u64);
    driver.copy(out, scratch, 5 * MIB, handle).expect("captured");
    pool.dealloc(scratch, stream as u64).expect("live");
    let mut graph = 0usize;
    sim.ok("cuStreamEndCapture", &[stream, &raw mut graph as usize]);
    forebay::pool::capture::end(number).expect("open");
    let mut exec = 0usize;
    sim.ok("cuGraphInstantiateWithFlags", &[&raw mut exec as usize, graph, 0]);
    for _ in 0..3 {
        sim.ok("cuGraphLaunch", &[exec, stream]);
        assert!(holds(&pool, out, 5 * MIB, 0x77, stream as u64));
        let told = pool.suspend(&[kv()], Level::Offload).expect("no capture is open");
        assert!(told.device_bytes >= 12 * MIB as u64, "scratch too: {told:?}");
        let hoard = pool.alloc(100 * MIB, 0).expect("fits");
        pool.dealloc(hoard, 0).expect("live");
        pool.resume(&[kv()], &mut Report::default()).expect("room");
        assert!(holds(&pool, out, 5 * MIB, 0x77, stream as u64), "kept");
    }
    sim.ok("cuGraphExecDestroy", &[exec]);
    sim.ok("cuGraphDestroy", &[graph]);
    forebay::pool::capture::release(number).expect("ended");
    pool.dealloc(out, 0).expect("live");
    no_misuse();
}

#[test]
fn a_graph_is_launched_after_its_memory_was_away() {
    on_sim("a graph's memory is suspended", &[]);
}

/// Without virtual memory management nothing can go.
fn plain_segments() {
    let pool = Pool::default_pool().expect("a pool");
    let error = pool.declare_suspendable(kv()).expect_err("it cannot");
    assert_eq!(error.status(), Status::Unsupported);
    no_misuse();
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    on_sim("plain segments", &[("REFUSE", "vmm=801")]);
}
