//! From no driver at all to a usable device, and every rung in between.

use super::cuda::Sim;
use super::{MIB, fill, holds, no_misuse, on_sim, on_sim_with, refused};
use forebay::config::Config;
use forebay::driver::cuda::Fallback;
use forebay::error::Status;
use forebay::pool::{Pool, devices};

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "works" => works(),
        "refused" => only_refused(),
        "falls back" => falls_back(),
        "steps down" => steps_down(),
        _ => return false,
    }
    true
}

/// What the parent expects, given to the child.
const EXPECT: &str = "FOREBAY_TEST_EXPECT";

fn expected() -> String {
    std::env::var(EXPECT).expect("the parent says")
}

/// Allocates small and large, writes, reads, frees, on both kinds of lane.
fn use_pool(pool: &Pool) {
    for bytes in [1, 1000, 64 << 10, 300 << 10, 5 * MIB, 33 * MIB] {
        let (a, b) = (pool.alloc(bytes, 0).expect("fits"), pool.alloc(bytes, 0).expect("fits"));
        fill(pool, a, bytes, 1, 0);
        fill(pool, b, bytes, 2, 0);
        assert!(holds(pool, a, bytes, 1, 0) && holds(pool, b, bytes, 2, 0), "{bytes}");
        pool.dealloc(a, 0).expect("live");
        let again = pool.alloc(bytes, 0).expect("fits");
        fill(pool, again, bytes, 3, 0);
        assert!(holds(pool, b, bytes, 2, 0), "{bytes}: a neighbour was written");
        pool.dealloc(again, 0).expect("live");
        pool.dealloc(b, forebay::pool::hot::SYNC_STREAM).expect("live");
    }
    assert_eq!(pool.stats().expect("alive").live_bytes, 0);
}

fn works() {
    let pool = Pool::default_pool().expect("a device");
    use_pool(&pool);
    let config = Config::from_env().expect("well-formed");
    let opened = devices::open_cuda(&config).expect("open");
    assert_eq!(opened.device().fallbacks(), []);
    assert_eq!(opened.device().uses_primary_context(), Some(true));
    let driver = opened.driver();
    assert!(driver.device().context_events);
    assert_eq!(driver.backed_reservations(), None);
    assert!(Sim::open().calls("cuMemMap") > 0, "pages are mapped");
    assert_eq!(Sim::open().calls("cuMemAlloc_v2"), 0);
    no_misuse();
}

#[test]
fn a_pool_works_and_says_nothing() {
    let told = on_sim("works", &[]);
    assert!(!told.contains("forebay::driver"), "{told}");
    // Whatever the driver's look-up of entry points.
    on_sim("works", &[("WITHOUT", "cuGetProcAddress_v2")]);
}

fn only_refused() {
    let (status, text) = refused();
    let expected = expected();
    let mut words = expected.split('|');
    assert_eq!(status.name(), words.next().expect("a status"), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    // And again: a refusal is no state.
    assert_eq!(refused().0, status);
}

#[test]
fn what_makes_a_device_unusable_is_said() {
    let no_driver = Status::NoDriver.name();
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("REFUSE", "init=100")], "CUDA_ERROR_NO_DEVICE|--gpus all"),
        (&[("REFUSE", "init=999")], "CUDA_ERROR_UNKNOWN|dmesg"),
        (&[("REFUSE", "init=803")], "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|nvidia-smi"),
        (&[("REFUSE", "init=4711")], "4711|does not know"),
        (&[("VERSION", "10010")], "too old|offers CUDA 10.1|needs 10.2"),
        (&[("UNKNOWN", "cuMemCreate")], "9999"),
        (&[("WITHOUT", "cuDeviceGetCount")], "cuDeviceGetCount|no such entry point"),
    ];
    for (machine, words) in cases {
        on_sim_with("refused", machine, &[(EXPECT, &format!("{no_driver}|{words}"))]);
    }
}

#[test]
fn a_library_that_is_none_is_named() {
    let no_driver = Status::NoDriver.name();
    let lost = format!("{no_driver}|FOREBAY_CUDA_LIBRARY=/no/such/libcuda.so.1|No such file");
    let own = [("FOREBAY_CUDA_LIBRARY", "/no/such/libcuda.so.1"), (EXPECT, lost.as_str())];
    on_sim_with("refused", &[], &own);
    // A library that is no driver: every entry point is missing.
    let program = std::env::current_exe().expect("this program");
    let libc = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let libc =
        libc.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("libc.so"));
    let libc = libc.unwrap_or_else(|| program.to_str().expect("UTF-8"));
    let text = format!("{no_driver}|no such entry point");
    on_sim_with("refused", &[], &[("FOREBAY_CUDA_LIBRARY", libc), (EXPECT, &text)]);
}

#[test]
fn a_device_that_does_not_exist_is_an_argument_error() {
    let text = format!("{}|device 2 does not exist|CUDA shows 2", Status::InvalidArgument.name());
    on_sim_with("refused", &[("DEVICES", "2")], &[("FOREBAY_DEVICE", "2"), (EXPECT, &text)]);
}

/// No virtual memory: the whole pool works on plain segments.
fn falls_back() {
    let pool = Pool::default_pool().expect("a device");
    use_pool(&pool);
    let config = Config::from_env().expect("well-formed");
    let opened = devices::open_cuda(&config).expect("open");
    let last = opened.device().fallbacks().last().copied();
    let expected: u32 = expected().parse().expect("a number");
    assert_eq!(last, Some(Fallback::PlainSegments(expected)));
    assert!(opened.driver().backed_reservations().is_some());
    assert!(Sim::open().calls("cuMemAlloc_v2") > 0, "plain allocations serve");
    // As much as the limit can be had, and the refusal beyond it is an error.
    let mut blocks = Vec::new();
    while let Ok(block) = pool.alloc(8 * MIB, 0) {
        blocks.push(block);
    }
    assert!(blocks.len() >= 256 / 8 - 4, "only {} blocks of 8 MiB", blocks.len());
    let (free, total) = pool.memory_info().expect("alive");
    assert!(free < total);
    for block in blocks {
        pool.dealloc(block, 0).expect("live");
    }
    no_misuse();
}

#[test]
fn without_virtual_memory_plain_segments_serve() {
    let symbols = "cuMemCreate,cuMemAddressReserve,cuMemAddressFree,cuMemMap,cuMemUnmap,\
                   cuMemSetAccess,cuMemRelease,cuMemGetAllocationGranularity";
    let missing = forebay::driver::cuda::table::MISSING.to_string();
    let cases: [(&str, &str, &str); 4] = [
        ("WITHOUT", symbols, &missing),
        ("REFUSE", "vmm=801", "801"),
        ("REFUSE", "vmm=800", "800"),
        ("REFUSE", "vmm=999", "999"),
    ];
    for (name, value, code) in cases {
        let told = on_sim_with("falls back", &[(name, value)], &[(EXPECT, code)]);
        assert_eq!(told.matches("no virtual memory management").count(), 1, "{told}");
    }
}

/// Virtual memory with less: each rung is announced once, and the pool works.
fn steps_down() {
    let pool = Pool::default_pool().expect("a device");
    use_pool(&pool);
    let config = Config::from_env().expect("well-formed");
    let opened = devices::open_cuda(&config).expect("open");
    let list: Vec<String> = opened.device().fallbacks().iter().map(|f| format!("{f:?}")).collect();
    assert_eq!(list.join("|"), expected());
    assert_eq!(opened.driver().backed_reservations(), None);
    no_misuse();
}

#[test]
fn refused_properties_are_given_up_one_by_one() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[], ""),
        (&[("REFUSE", "rdma=999")], "Rdma(999)"),
        (&[("REFUSE", "fd=800")], "Shareable(800)"),
        (&[("REFUSE", "fd=801,rdma=999")], "Shareable(801)|Rdma(999)"),
        (&[("FAULTS", "fail cuMemCreate with 999 #1")], "Rdma(999)"),
        (&[("FAULTS", "fail cuMemSetAccess with 999 #1")], "Rdma(999)"),
        (&[("FAULTS", "fail cuMemCreate with 800 #1")], "Shareable(800)"),
        (&[("FAULTS", "fail cuMemCreate with 801 #1")], "Shareable(801)"),
        (
            &[("FAULTS", "fail cuMemCreate with 999 #1; fail cuMemCreate with 800 #2")],
            "Rdma(999)|Shareable(999)",
        ),
        (&[("CONTEXT_EVENTS", "0")], "NoContextEvents"),
        (&[("VERSION", "11020")], "NoContextEvents"),
    ];
    for (machine, list) in cases {
        let told = on_sim_with("steps down", machine, &[(EXPECT, list)]);
        let announced = list.split('|').filter(|word| !word.is_empty()).count();
        assert_eq!(told.matches(" device=0").count(), announced, "{machine:?}: {told}");
    }
}
