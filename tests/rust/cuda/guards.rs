//! What is kept apart: freed pinned memory and queued work, captures and the pool's own work on
//! the legacy stream, a bad handle and the pool.

use super::cuda::Sim;
use super::machine::{Device, Kind};
use super::{MIB, no_misuse, on_sim, on_sim_with};
use forebay::abi::host::{forebay_host_alloc, forebay_host_free};
use forebay::abi::streams::forebay_stream_destroy;
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, buffers, capture};

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "wipe of pinned memory" => wipe_of_pinned(),
        "graph followed beside pinned memory" => followed_beside_pinned(),
        "stream of a lost context" => stream_of_lost_context(),
        "thread of a lost context" => thread_of_lost_context(),
        "wipe under other streams' work" => wipe_under_use(),
        "wipe beside a declared capture" => wipe_beside_capture(true),
        "wipe beside an undeclared capture" => wipe_beside_capture(false),
        "pinned memory that is not there" => not_pinned(),
        "the default stream is not destroyed" => default_stream(),
        _ => return false,
    }
    true
}

fn host_block(bytes: usize) -> *mut u8 {
    let mut block = std::ptr::null_mut();
    // SAFETY: a local to fill.
    assert_eq!(unsafe { forebay_host_alloc(&raw mut block, bytes) }, Status::Ok, "{bytes}");
    block.cast()
}

/// The legacy stream is busy; a freed pinned block is the next owner's at once, and stays so.
fn wipe_of_pinned() {
    let device = Device::open(0, 1, |_| {});
    let word = device.sim.get("cuMemAlloc_v2", &[4096]);
    // The first segment: that takes a call which waits for the device.
    let first = host_block(5 * MIB);
    // SAFETY: ours, and no copy uses it.
    assert_eq!(unsafe { forebay_host_free(first.cast()) }, Status::Ok);
    for bytes in [3000, 5 * MIB] {
        let kernel = device.busy(word, 0);
        let first = host_block(bytes);
        // SAFETY: the block has these bytes, and is the host's.
        unsafe { first.write_bytes(0x11, bytes) };
        // SAFETY: ours, and no copy uses it.
        assert_eq!(unsafe { forebay_host_free(first.cast()) }, Status::Ok);
        let second = host_block(bytes);
        assert_eq!(second, first, "the same memory");
        // SAFETY: as above.
        let seen = unsafe { std::slice::from_raw_parts(second, bytes) };
        assert!(seen.iter().all(|&byte| byte == 0), "{bytes}: not scrubbed");
        // SAFETY: as above.
        unsafe { second.write_bytes(0x22, bytes) };
        drop(kernel);
        device.synchronize();
        // SAFETY: as above.
        let seen = unsafe { std::slice::from_raw_parts(second, bytes) };
        assert!(seen.iter().all(|&byte| byte == 0x22), "{bytes}: overwritten by its last free");
        // SAFETY: as above.
        assert_eq!(unsafe { forebay_host_free(second.cast()) }, Status::Ok);
    }
    device.sim.ok("cuMemFree_v2", &[word]);
    device.end();
    no_misuse();
}

#[test]
fn a_pinned_block_is_wiped_before_it_is_anothers() {
    on_sim_with("wipe of pinned memory", &[], &[("FOREBAY_SCRUB", "1")]);
}

/// The pool of pinned memory is the oldest that knows the capture.
fn followed_beside_pinned() {
    let block = host_block(100);
    let device = Device::open(0, 0, |settings| settings.keeper = false);
    let (sim, stream) = (device.sim, device.stream(Kind::NonBlocking));
    let number = capture::begin(stream).expect("a stream of the device");
    sim.ok("cuStreamBeginCapture_v2", &[stream as usize, 0]);
    let inside = device.pool.alloc(3 * MIB, stream).expect("fits");
    device.fill(inside, 7, 3 * MIB, stream);
    let mut graph = 0usize;
    sim.ok("cuStreamEndCapture", &[stream as usize, &raw mut graph as usize]);
    capture::end(number).expect("open");
    device.pool.dealloc(inside, stream).expect("live");
    capture::follow_graph(number, graph as u64).expect("a live graph");
    sim.ok("cuGraphDestroy", &[graph]);
    device.synchronize();
    let start = std::time::Instant::now();
    while capture::end(number).is_err_and(|error| !error.message().contains("released")) {
        assert!(start.elapsed().as_secs() < 60, "nobody released it");
        capture::release_gone();
    }
    // SAFETY: ours, and no copy uses it.
    assert_eq!(unsafe { forebay_host_free(block.cast()) }, Status::Ok);
    device.destroy_stream(stream, true);
    device.end();
    no_misuse();
}

#[test]
fn a_graph_is_followed_when_pinned_memory_came_first() {
    on_sim("graph followed beside pinned memory", &[]);
}

/// A handle whose context is gone names no stream; the pool's own context is another.
fn stream_of_lost_context() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    let block = pool.alloc(3 * MIB, 0).expect("fits");
    let stream = pool.driver().expect("alive").stream_create().expect("a stream").0;
    for code in [709, 201, 1, 400, 999] {
        sim.script(&format!("fail cuStreamGetCtx with {code} from #1 always"));
        let refused = pool.alloc(100, stream).expect_err("no stream");
        assert_eq!(refused.status(), Status::InvalidStream, "{code}: {refused}");
        sim.script("");
        let next = pool.alloc(20 * MIB, 0).expect("the pool goes on");
        pool.dealloc(next, 0).expect("live");
    }
    pool.dealloc(block, 0).expect("live");
    no_misuse();
}

#[test]
fn a_stream_of_a_lost_context_does_not_cost_the_pool() {
    on_sim("stream of a lost context", &[]);
}

/// The context that the calling thread left current is gone, and not the pool's.
fn thread_of_lost_context() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    let block = pool.alloc(3 * MIB, 0).expect("fits");
    for code in [709, 201] {
        sim.script(&format!("fail cuCtxGetCurrent with {code} from #1 always"));
        let next = pool.alloc(20 * MIB, 0).expect("the pool's context is another");
        pool.dealloc(next, 0).expect("live");
        sim.script("");
        pool.trim(0).expect("the pool goes on");
    }
    pool.dealloc(block, 0).expect("live");
    no_misuse();
}

#[test]
fn a_threads_lost_context_does_not_cost_the_pool() {
    on_sim("thread of a lost context", &[]);
}

/// A slot and an extent of each of the two lanes, filled.
fn filled_blocks(device: &Device) -> Vec<(usize, usize, u64)> {
    let mut blocks = Vec::new();
    for lane in [0, SYNC_STREAM] {
        for bytes in [3000, 5 * MIB] {
            let block = device.pool.alloc(bytes, lane).expect("fits");
            device.fill(block, 0x33, bytes, 0);
            blocks.push((block, bytes, lane));
        }
    }
    device.sim.ok("cuStreamSynchronize", &[0]);
    blocks
}

/// What other streams could use is overwritten behind a fence, which a large free records.
fn fenced_by_a_large_free(device: &Device) {
    let large = device.pool.alloc(16 * MIB, SYNC_STREAM).expect("fits");
    device.pool.dealloc(large, SYNC_STREAM).expect("live");
    device.synchronize();
    device.pool.stats().expect("alive");
    device.synchronize();
}

/// Frees on the legacy stream and with `cudaFree`'s meaning while a blocking stream captures: what
/// overwrites them would end the capture.
fn wipe_beside_capture(declared: bool) {
    let device = Device::open(0, 0, |settings| {
        settings.keeper = false;
        settings.limit = 64 * MIB as u64;
    });
    let (sim, pool, stream) = (device.sim, &device.pool, device.stream(Kind::Blocking));
    let set = buffers::create(pool.handle(), 20_000, 1).expect("fits");
    let out = buffers::acquire(set, stream).expect("one is in");
    let words = sim.get("cuMemAlloc_v2", &[4096]);
    let other = device.stream(Kind::NonBlocking);
    let kernel = device.busy(words, other);
    buffers::release(set, out, other).expect("out");
    let blocks = filled_blocks(&device);
    let number = declared.then(|| capture::begin(stream).expect("a stream of the device"));
    sim.ok("cuStreamBeginCapture_v2", &[stream as usize, 0]);
    let fills = sim.calls("cuMemsetD8Async");
    for &(block, _, lane) in &blocks {
        pool.dealloc(block, lane).expect("live");
        assert_eq!(pool.dealloc(block, lane).expect_err("freed").status(), Status::DoubleFree);
    }
    let refused = buffers::acquire(set, 0).expect_err("the wait would end the capture");
    assert_eq!(refused.status(), Status::Driver, "{refused}");
    let stats = pool.stats().expect("alive");
    assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
    for &(block, bytes, lane) in &blocks {
        // SAFETY: the simulation lets the CPU read device memory; the pool maps it still.
        let seen = unsafe { std::slice::from_raw_parts(block as *const u8, bytes) };
        assert!(seen.iter().all(|&byte| byte == 0x33), "queued beside the capture");
        let next = pool.alloc(bytes, lane).expect("fits");
        assert!(blocks.iter().all(|&(freed, ..)| freed != next), "handed out with its contents");
        pool.dealloc(next, lane).expect("live");
    }
    assert_eq!(sim.calls("cuMemsetD8Async"), fills);
    let mut graph = 0usize;
    sim.ok("cuStreamEndCapture", &[stream as usize, &raw mut graph as usize]);
    sim.ok("cuGraphDestroy", &[graph]);
    // What overwrites the blocks comes behind this.
    let before = device.busy(words + 256, 0);
    if let Some(number) = number {
        capture::end(number).expect("open");
        capture::release(number).expect("ended");
    }
    drop(kernel);
    pool.stats().expect("alive");
    for &(_, bytes, _) in &blocks {
        let next = pool.alloc(bytes, other).expect("fits");
        assert!(blocks.iter().all(|&(freed, ..)| freed != next), "not overwritten yet");
        pool.dealloc(next, other).expect("live");
    }
    drop(before);
    fenced_by_a_large_free(&device);
    for &(block, bytes, _) in &blocks {
        // SAFETY: as above.
        let seen = unsafe { std::slice::from_raw_parts(block as *const u8, bytes) };
        assert!(seen.iter().all(|&byte| byte == 0), "not scrubbed");
    }
    buffers::destroy(set).expect("all are in");
    device.synchronize();
    let stats = pool.stats().expect("alive");
    assert_eq!((stats.live_blocks, stats.sum()), (0, stats.mapped_bytes), "{stats:?}");
    let all = pool.alloc(64 * MIB, 0).expect("nothing is held back");
    pool.dealloc(all, 0).expect("live");
    sim.ok("cuMemFree_v2", &[words]);
    device.destroy_stream(stream, true);
    device.destroy_stream(other, true);
    device.end();
    no_misuse();
}

#[test]
fn a_free_beside_a_capture_is_wiped_after_it() {
    let scrub = [("FOREBAY_SCRUB", "1")];
    on_sim_with("wipe beside a declared capture", &[], &scrub);
    on_sim_with("wipe beside an undeclared capture", &[], &scrub);
}

/// Blocks freed while another stream's work still reads them: by `cudaFree`'s meaning, and with a
/// recorded use. What overwrites them comes behind that work.
fn wipe_under_use() {
    let device = Device::open(0, 8, |settings| {
        settings.keeper = false;
        settings.limit = 64 * MIB as u64;
    });
    let (sim, pool, other) = (device.sim, &device.pool, device.stream(Kind::NonBlocking));
    let word = sim.get("cuMemAlloc_v2", &[4096]);
    for bytes in [3000, 5 * MIB] {
        for recorded in [false, true] {
            device.fill(word, 0, 4096, 0);
            let block = pool.alloc(bytes, 0).expect("fits");
            device.fill(block, 0x33, bytes, 0);
            device.synchronize();
            device.spin_until(word, 1, other);
            let check = device.check((block, bytes), 0x33, other, 0).expect("there is room");
            if recorded {
                pool.record_use(block, other).expect("live");
                pool.dealloc(block, 0).expect("live");
            } else {
                pool.dealloc(block, SYNC_STREAM).expect("live");
            }
            let twice = pool.dealloc(block, 0).expect_err("freed");
            assert_eq!(twice.status(), Status::DoubleFree);
            pool.stats().expect("alive");
            // All that the pool has queued on the legacy stream has run.
            sim.ok("cuStreamSynchronize", &[0]);
            // SAFETY: the simulation lets the CPU write device memory; the kernel waits for it.
            unsafe { (word as *mut u32).write_volatile(1) };
            device.synchronize();
            assert!(device.held(check), "{bytes} B, {recorded}: overwritten while it is read");
            let all = pool.alloc(64 * MIB, 0).expect("nothing is held back");
            device.synchronize();
            // SAFETY: the simulation lets the CPU read device memory; the block has all of the
            // pool's pages, wherever they were before.
            let seen = unsafe { std::slice::from_raw_parts(all as *const u8, 64 * MIB) };
            assert!(!seen.contains(&0x33), "{bytes} B, {recorded}: not scrubbed");
            pool.dealloc(all, 0).expect("live");
        }
    }
    let stats = pool.stats().expect("alive");
    assert_eq!((stats.live_blocks, stats.sum()), (0, stats.mapped_bytes), "{stats:?}");
    sim.ok("cuMemFree_v2", &[word]);
    device.destroy_stream(other, true);
    device.end();
    no_misuse();
}

#[test]
fn a_freed_block_is_wiped_behind_other_streams_work() {
    on_sim_with("wipe under other streams' work", &[], &[("FOREBAY_SCRUB", "1")]);
}

/// An address that is none is refused before anything is made for it.
fn not_pinned() {
    let mut word = 0u64;
    // SAFETY: an address of no pool's, which is answered with an error.
    let status = unsafe { forebay_host_free((&raw mut word).cast()) };
    assert_eq!(status, Status::NotOwned);
    assert_eq!(Sim::open().total_calls(), 0, "a pool was made to refuse an address");
    // SAFETY: NULL is fine.
    assert_eq!(unsafe { forebay_host_free(std::ptr::null_mut()) }, Status::Ok);
    let block = host_block(100);
    // SAFETY: as above, and a block that nothing uses.
    let freed =
        unsafe { [forebay_host_free((&raw mut word).cast()), forebay_host_free(block.cast())] };
    assert_eq!(freed, [Status::NotOwned, Status::Ok]);
    no_misuse();
}

#[test]
fn a_foreign_address_makes_no_pinned_pool() {
    on_sim("pinned memory that is not there", &[]);
}

/// What cannot be destroyed keeps its lane, and what the lane knows.
fn default_stream() {
    let sim = Sim::open();
    let pool = Pool::default_pool().expect("a device");
    for stream in [0usize, 1] {
        let block = pool.alloc(5 * MIB, stream as u64).expect("fits");
        pool.dealloc(block, stream as u64).expect("live");
        let before = sim.total_calls();
        let stream = std::ptr::without_provenance_mut(stream);
        let status = forebay_stream_destroy(std::ptr::null_mut(), stream);
        assert_eq!(status, Status::InvalidArgument);
        assert_eq!(sim.total_calls(), before, "its lane was retired");
        let again = pool.alloc(5 * MIB, stream.addr() as u64).expect("fits");
        assert_eq!(again, block, "in the stream's order still");
        pool.dealloc(again, stream.addr() as u64).expect("live");
    }
    no_misuse();
}

#[test]
fn the_default_stream_cannot_be_destroyed_and_loses_nothing() {
    on_sim_with("the default stream is not destroyed", &[], &[("FOREBAY_KEEPER", "0")]);
}
