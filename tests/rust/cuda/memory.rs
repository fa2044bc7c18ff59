//! Memory through the whole of Forebay on the simulated driver: order, movement, pinned memory,
//! exported pages, peers.

use super::cuda::Sim;
use super::{MIB, common, fill, holds, no_misuse, on_sim};
use forebay::abi::host::{forebay_host_alloc, forebay_host_free};
use forebay::config::Config;
use forebay::driver::{Code, Driver, PageHandle, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, devices, share};
use std::os::fd::AsFd;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "streams in turn" => streams_in_turn(),
        "pages move" => pages_move(),
        "pinned host memory" => pinned_host_memory(),
        "export and import" => export_and_import(),
        "another device's pages" => another_devices_pages(),
        "a page out of reach" => a_page_out_of_reach(),
        "peers" => peers(),
        "graph's end" => end_of_a_graph(),
        _ => return false,
    }
    true
}

/// Blocks go from stream to stream; each is written by its owner alone and checked before it is
/// freed, on the stream that uses it.
fn streams_in_turn() {
    let pool = Pool::default_pool().expect("a device");
    let driver = pool.driver().expect("alive");
    let seed = common::seed(11);
    println!("seed {seed}");
    let mut rng = common::Random(seed);
    let streams: Vec<u64> = (0..3).map(|_| driver.stream_create().expect("one").0).collect();
    let mut live: Vec<(usize, usize, u8, u64)> = Vec::new();
    for round in 0..2000u32 {
        if live.len() > 40 || (!live.is_empty() && rng.one_in(3)) {
            let (block, bytes, value, stream) = live.swap_remove(rng.below(live.len()));
            assert!(holds(&pool, block, bytes, value, stream), "round {round}");
            let lane = if rng.one_in(4) { SYNC_STREAM } else { stream };
            pool.dealloc(block, lane).expect("live");
        } else {
            let stream = streams[rng.below(streams.len())];
            let bytes = rng.size_between(256, 3 * MIB);
            let value = round as u8;
            let block = pool.alloc(bytes, stream).expect("fits");
            fill(&pool, block, bytes, value, stream);
            live.push((block, bytes, value, stream));
        }
    }
    for (block, bytes, value, stream) in live {
        assert!(holds(&pool, block, bytes, value, stream));
        pool.dealloc(block, stream).expect("live");
    }
    for stream in streams {
        forebay::pool::registry::retire_stream(stream).expect("no capture is open");
        driver.stream_destroy(StreamHandle(stream)).expect("live");
    }
    assert_eq!(pool.stats().expect("alive").live_blocks, 0);
    no_misuse();
}

#[test]
fn contents_keep_their_order_on_several_streams() {
    for seed in ["1", "2", "3"] {
        on_sim("streams in turn", &[("SEED", seed)]);
    }
    on_sim("streams in turn", &[("CONTEXT_EVENTS", "0")]);
}

/// Every second block is freed, then one as large as all of them is asked for.
fn pages_move() {
    let pool = Pool::default_pool().expect("a device");
    let blocks: Vec<usize> = (0..100).map(|_| pool.alloc(2 * MIB, 0).expect("fits")).collect();
    for (i, &block) in blocks.iter().enumerate() {
        fill(&pool, block, 2 * MIB, i as u8, 0);
    }
    for &block in blocks.iter().skip(1).step_by(2) {
        pool.dealloc(block, 0).expect("live");
    }
    let large = pool.alloc(120 * MIB, 0).expect("pages move");
    fill(&pool, large, 120 * MIB, 0xEE, 0);
    for (i, &block) in blocks.iter().enumerate().step_by(2) {
        assert!(holds(&pool, block, 2 * MIB, i as u8, 0), "block {i}");
        pool.dealloc(block, 0).expect("live");
    }
    pool.dealloc(large, 0).expect("live");
    assert!(pool.stats().expect("alive").pages_moved > 0);
    no_misuse();
}

#[test]
fn pages_move_and_live_blocks_keep_their_contents() {
    on_sim("pages move", &[]);
}

fn pinned_host_memory() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    let device = pool.alloc(3 * MIB, 0).expect("fits");
    let mut blocks = Vec::new();
    for bytes in [100, 4096, 3 * MIB, 50 * MIB] {
        let mut block = std::ptr::null_mut();
        // SAFETY: a local to fill.
        let status = unsafe { forebay_host_alloc(&raw mut block, bytes) };
        assert_eq!(status, Status::Ok, "{bytes}");
        // SAFETY: the block has these bytes, and is the host's.
        unsafe { std::ptr::write_bytes(block.cast::<u8>(), 0x5C, bytes) };
        blocks.push((block, bytes));
    }
    assert!(sim.calls("cuMemHostAlloc") > 0, "CUDA pins it");
    let driver = pool.driver().expect("alive");
    driver.copy(device, blocks[2].0.expose_provenance(), 3 * MIB, StreamHandle(0)).expect("queued");
    assert!(holds(&pool, device, 3 * MIB, 0x5C, 0), "copied from pinned memory");
    let (live, held) = devices::host_bytes();
    assert!(live >= (53 * MIB) as u64 && held >= live);
    for (block, _) in blocks {
        // SAFETY: ours, and no copy uses it any more.
        assert_eq!(unsafe { forebay_host_free(block) }, Status::Ok);
    }
    assert_eq!(devices::host_bytes().0, 0);
    no_misuse();
}

#[test]
fn pinned_host_memory_comes_from_cuda() {
    on_sim("pinned host memory", &[]);
}

fn export_and_import() {
    let driver = Pool::default_pool().expect("a device").driver().expect("alive");
    let granule = driver.device().granularity;
    let page = driver.create(granule).expect("memory");
    let base = driver.reserve(2 * granule).expect("addresses");
    driver.map(base, granule, page).expect("free");
    driver.set_access(base, granule, &[]).expect("mapped");
    driver.fill(base, 0x77, granule, StreamHandle(0)).expect("queued");
    driver.stream_synchronize(StreamHandle(0)).expect("alive");
    let fd = driver.export(page).expect("exportable");
    let again = driver.import(fd.as_fd(), granule).expect("ours");
    assert_eq!(again.owner, None);
    let again = again.page;
    drop(fd);
    driver.map(base + granule, granule, again).expect("free");
    driver.set_access(base + granule, granule, &[]).expect("mapped");
    let pool = Pool::default_pool().expect("a device");
    assert!(holds(&pool, base + granule, granule, 0x77, 0), "the same memory");
    driver.unmap(base, 2 * granule).expect("two whole mappings");
    driver.release(page).expect("ours");
    driver.release(again).expect("ours");
    driver.unreserve(base, 2 * granule).expect("empty");
    let file = std::fs::File::open("/proc/self/exe").expect("this program");
    let error = driver.import(file.as_fd(), granule).expect_err("no page of CUDA's");
    assert_eq!(error.code, Code::InvalidHandle);
    no_misuse();
}

#[test]
fn a_page_goes_through_a_descriptor() {
    on_sim("export and import", &[]);
}

/// The driver of device 1 on the simulated machine, and a page of it with a descriptor.
fn of_device_1() -> (std::sync::Arc<dyn Driver>, PageHandle, std::os::fd::OwnedFd) {
    let mut config = Config::from_env().expect("well-formed");
    config.device = 1;
    let there = devices::open_cuda(&config).expect("a device").driver();
    let page = there.create(there.device().granularity).expect("memory");
    let fd = there.export(page).expect("exportable");
    (there, page, fd)
}

/// A page of another device, mapped by this one's pool, is read and written by both devices, and
/// by no peer of the pool's, which need not reach it. Pages of several devices are no import.
fn another_devices_pages() {
    let sim = Sim::open();
    let (there, page, fd) = of_device_1();
    let pool = Pool::default_pool().expect("a device");
    pool.enable_peer(2).expect("reachable");
    let own = pool.alloc_aligned(2 << 20, 2 << 20, 0).expect("room");
    let exported = pool.export(own).expect("whole pages");
    let mixed = pool.import(&[fd.as_fd(), exported.fds[0].as_fd()]).expect_err("two devices'");
    assert_eq!(mixed.status(), Status::InvalidArgument, "{mixed}");
    assert!(mixed.message().contains("several devices"), "{mixed}");
    // Access that is refused undoes the import.
    let before = pool.stats().expect("alive").other_bytes;
    sim.script("fail cuMemSetAccess with 999 #1");
    let refused = pool.import(&[fd.as_fd()]).expect_err("no access");
    assert_eq!(refused.status(), Status::Driver, "{refused}");
    sim.script("");
    assert_eq!(pool.stats().expect("alive").other_bytes, before, "nothing is kept");
    let at = pool.import(&[fd.as_fd()]).expect("within reach");
    assert_eq!([0, 1, 2].map(|device| access(&sim, at, device)), [3, 3, 0]);
    // A change of peers leaves it alone, as they need not reach its device.
    pool.disable_peer(2).expect("it was one");
    pool.enable_peer(1).expect("reachable");
    pool.disable_peer(1).expect("it was one");
    assert_eq!([0, 1, 2].map(|device| access(&sim, at, device)), [3, 3, 0]);
    assert_eq!([0, 1, 2].map(|device| access(&sim, own, device)), [3, 0, 0]);
    for device in 0..2 {
        let context = sim.get("cuDevicePrimaryCtxRetain", &[device]);
        sim.ok("cuCtxPushCurrent_v2", &[context]);
        sim.ok("cuMemsetD32_v2", &[at, 5 + device, 16]);
        let mut word = 0u32;
        sim.ok("cuMemcpyDtoH_v2", &[&raw mut word as usize, at + 60, 4]);
        assert_eq!(word, 5 + device as u32, "as device {device} sees it");
        sim.get("cuCtxPopCurrent_v2", &[]);
        sim.ok("cuDevicePrimaryCtxRelease_v2", &[device]);
    }
    pool.dealloc(at, SYNC_STREAM).expect("live");
    share::close_export(exported.id).expect("open");
    pool.dealloc(own, SYNC_STREAM).expect("live");
    drop(fd);
    there.release(page).expect("ours");
    no_misuse();
}

/// A page that this device cannot reach is refused, and let go.
fn a_page_out_of_reach() {
    let sim = Sim::open();
    let config = Config::from_env().expect("well-formed");
    let here = devices::open_cuda(&config).expect("a device").driver();
    let (there, page, fd) = of_device_1();
    let granule = here.device().granularity;
    let refused = here.import(fd.as_fd(), granule).expect_err("out of reach");
    assert_eq!(refused.code, Code::NotSupported);
    let pool = Pool::default_pool().expect("a device");
    let error = pool.import(&[fd.as_fd()]).expect_err("out of reach");
    assert_eq!(error.status(), Status::Unsupported, "{error}");
    assert!(error.message().contains("cannot reach"), "{error}");
    let again = there.import(fd.as_fd(), granule).expect("its own");
    assert_eq!(again.owner, None);
    there.release(again.page).expect("ours");
    // A property that cannot be had says nothing: no page is kept, none is passed.
    sim.script("fail cuMemGetAllocationPropertiesFromHandle with 999 from #1 always");
    let failed = there.import(fd.as_fd(), granule).expect_err("unknown");
    assert_eq!(failed.code, Code::Other(999));
    sim.script("");
    drop(fd);
    there.release(page).expect("ours");
    assert_eq!(sim.live("physical"), 0, "what was refused is kept");
    no_misuse();
}

#[test]
fn descriptors_of_another_device_are_mapped_where_it_is_reached() {
    on_sim("another device's pages", &[("DEVICES", "3")]);
    on_sim("a page out of reach", &[("DEVICES", "2"), ("LACKS", "peer")]);
}

/// A device's rights at an address: 0, or 3 for reading and writing.
fn access(sim: &Sim, at: usize, device: u32) -> u64 {
    let location = [1u32, device];
    let mut flags = 99u64;
    let args = [&raw mut flags as usize, location.as_ptr() as usize, at];
    sim.ok("cuMemGetAccess", &args);
    flags
}

fn peers() {
    let driver = Pool::default_pool().expect("a device").driver().expect("alive");
    assert!(driver.can_access_peer(1) && driver.can_access_peer(2));
    assert!(
        !driver.can_access_peer(0) && !driver.can_access_peer(3) && !driver.can_access_peer(99)
    );
    let granule = driver.device().granularity;
    let page = driver.create(granule).expect("memory");
    let base = driver.reserve(granule).expect("addresses");
    driver.map(base, granule, page).expect("free");
    let sim = Sim::open();
    let access = |device| access(&sim, base, device);
    driver.set_access(base, granule, &[1, 2]).expect("mapped");
    assert_eq!([access(0), access(1), access(2)], [3, 3, 3]);
    driver.set_access(base, granule, &[2]).expect("mapped");
    assert_eq!([access(0), access(1), access(2)], [3, 0, 3]);
    driver.set_access(base, granule, &[]).expect("mapped");
    assert_eq!([access(0), access(1), access(2)], [3, 0, 0]);
    let code = |peers: &[u32]| driver.set_access(base, granule, peers).expect_err("refused").code;
    assert_eq!(code(&[0]), Code::InvalidValue);
    assert_eq!(code(&[7]), Code::InvalidValue);
    assert_eq!(code(&[1; 9]), Code::TooManyPeers);
    driver.unmap(base, granule).expect("whole");
    driver.release(page).expect("ours");
    driver.unreserve(base, granule).expect("empty");
    no_misuse();
}

#[test]
fn peers_are_given_and_lose_access() {
    on_sim("peers", &[("DEVICES", "3")]);
}

static ENDED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

unsafe extern "C" fn ended(word: *mut std::ffi::c_void) {
    ENDED.store(word.addr(), std::sync::atomic::Ordering::SeqCst);
}

fn end_of_a_graph() {
    use std::sync::atomic::Ordering;
    let sim = Sim::open();
    let driver = Pool::default_pool().expect("a device").driver().expect("alive");
    let graph = sim.get("cuGraphCreate", &[0]);
    driver.on_graph_release(graph as u64, ended, 42).expect("a live graph");
    assert_eq!(ENDED.load(Ordering::SeqCst), 0);
    sim.ok("cuGraphDestroy", &[graph]);
    for _ in 0..500 {
        if ENDED.load(Ordering::SeqCst) != 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(ENDED.load(Ordering::SeqCst), 42);
    // A refusal calls nothing.
    ENDED.store(0, Ordering::SeqCst);
    sim.script("fail cuGraphRetainUserObject with 1 from #1 always");
    let graph = sim.get("cuGraphCreate", &[0]);
    assert!(driver.on_graph_release(graph as u64, ended, 43).is_err());
    sim.ok("cuGraphDestroy", &[graph]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(ENDED.load(Ordering::SeqCst), 0);
    no_misuse();
}

#[test]
fn a_graphs_end_is_told_once() {
    on_sim("graph's end", &[]);
}
