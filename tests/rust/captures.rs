//! Graph captures: what enters a capture's memory and what leaves it.
//!
//! A process of its own: captures concern the default pool too.

use forebay::config::{Config, DebugChecks, FreeMode};
use forebay::driver::faulty::{CallSet, Fault, FaultyDriver};
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Call, Code, Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings, buffers, capture, hot};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn host() -> (Pool, u64) {
    // SAFETY: each test runs before anything else of this process reads the environment.
    unsafe { std::env::set_var("FOREBAY_BACKEND", "host") };
    let pool = Pool::default_pool().expect("the host backend");
    let stream = pool.driver().expect("alive").stream_create().expect("a stream").0;
    (pool, stream)
}

/// Blocks that lived before the capture and are freed inside it do not become graph memory
/// that leaves with an ordinary free; what the capture allocated stays its own until release.
#[test]
fn memory_of_a_capture_goes_to_nobody_until_its_release() {
    let _alone = alone();
    let (pool, stream) = host();
    let driver = pool.driver().expect("alive");
    for bytes in [4096, 100_000, 3 * MIB] {
        let before: Vec<usize> = (0..8).map(|_| pool.alloc(bytes, stream).expect("fits")).collect();
        let number = capture::begin(stream).expect("a stream of the device");
        for &block in &before {
            pool.dealloc(block, stream).expect("live");
        }
        let inside: Vec<usize> = (0..8).map(|_| pool.alloc(bytes, stream).expect("fits")).collect();
        // A pool made now knows of the open capture.
        let late = Pool::with_driver(
            pool.driver().expect("alive"),
            forebay::pool::Settings::resolve(
                &forebay::config::Config::default(),
                64 * MIB as u64,
                true,
            ),
        )
        .expect("a pool");
        let captured_late = late.alloc(bytes, stream).expect("fits");
        capture::end(number).expect("open");
        for &block in &inside {
            pool.dealloc(block, stream).expect("live");
        }
        late.dealloc(captured_late, stream).expect("live");
        driver.stream_synchronize(StreamHandle(stream)).expect("a stream");
        let after: Vec<usize> = (0..32).map(|_| pool.alloc(bytes, stream).expect("fits")).collect();
        for block in &inside {
            assert!(!after.contains(block), "the graph may still write {block:#x}");
        }
        assert_ne!(late.alloc(bytes, stream).expect("fits"), captured_late);
        for block in after {
            pool.dealloc(block, stream).expect("live");
        }
        capture::release(number).expect("ended");
        let stats = pool.stats().expect("alive");
        assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
        assert_eq!(stats.live_blocks, 0);
        drop(late);
    }
}

/// A KV cache gives nothing back while a capture is open, and queues nothing on a stream that
/// captures: neither copies, nor tables, nor fences.
#[test]
fn a_kv_cache_leaves_a_capture_alone() {
    use forebay::kv::{self, NO_FENCE, Open, Seq, Tokens};
    use forebay::paged::tables::Table;
    use forebay::paged::{Backed, KvMemory, MemoryConfig, MemoryError};
    let _alone = alone();
    let (pool, stream) = host();
    let geometry = kv::Geometry {
        layers: 32,
        heads: 8,
        key_size: 128,
        value_size: 128,
        block_tokens: 16,
        element: kv::Element::Bf16,
        content: kv::Content::Attention { window: 0 },
        order: kv::Order::BlockOuter,
    };
    let kv = kv::Config { prefixes: false, ..kv::Config::new(geometry, 100) };
    let memory = KvMemory::new(&pool, MemoryConfig { kv, initial: vec![6] }).expect("memory");
    let cache = memory.cache();
    let mut seqs = [cache.open(Open::default()).expect("room"), Seq::from_raw(0)];
    cache.append(seqs[0], Tokens::Count(8)).expect("a block");
    cache.fork(seqs[0], 8, &mut seqs[1..]).expect("room");
    cache.append(seqs[1], Tokens::Count(1)).expect("a block, by a copy");
    let address = pool.alloc(4096, stream).expect("fits");
    let table =
        Table { group: 0, address, rows: 2, stride: 8, staging_bytes: 0, staging_buffers: 0 };
    // SAFETY: a block of the pool's that is the test's own and outlives the binding.
    unsafe { memory.bind_table(table).expect("a group") };
    let number = capture::begin(stream).expect("a stream of the device");
    let page = 2 * MIB as u64;
    let shrunk = memory.resize(0, 4).expect("it waits");
    assert_eq!(shrunk, Backed { open: 4, backed: 4, bytes: 6 * page });
    let busy = |answer: Result<(), MemoryError>| {
        assert_eq!(answer.expect_err("it captures").status(), Status::Busy);
    };
    busy(memory.fence(&[stream]).map(drop));
    busy(memory.run_copies(stream).map(drop));
    busy(memory.sync_table(0, &seqs, stream).map(drop));
    assert_eq!(memory.staging(0).expect("bound").in_flight, 0);
    memory.poll().expect("it waits");
    assert_eq!(memory.backed(0).expect("a group").bytes, 6 * page);
    capture::end(number).expect("open");
    capture::release(number).expect("ended");
    memory.poll().expect("no fault");
    assert_eq!(memory.backed(0).expect("a group").bytes, 4 * page);
    assert_eq!(memory.run_copies(stream).expect("no fault").0, 1, "it was not lost");
    memory.sync_table(0, &seqs, stream).expect("no fault");
    cache.free(&seqs, NO_FENCE).expect("open");
    drop(memory);
    pool.dealloc(address, stream).expect("live");
}

/// A wait for the device would end an open capture: what needs one, because a stream is gone
/// without an event behind its copies, is refused until the capture has ended.
#[test]
fn a_kv_cache_waits_for_no_device_while_a_capture_is_open() {
    use forebay::kv::{self, NO_FENCE, Open, Seq, Tokens};
    use forebay::paged::tables::Table;
    use forebay::paged::{KvMemory, MemoryConfig, handles};
    let _alone = alone();
    let options = HostOptions { total_bytes: 64 * MIB, ..HostOptions::default() };
    let device = Arc::new(FaultyDriver::new(Arc::new(HostDriver::new(options).expect("a device"))));
    let settings = Settings::resolve(&Config::default(), 64 * MIB as u64, true);
    let pool = Pool::with_driver(device.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let s: Vec<u64> = (0..24).map(|_| device.stream_create().expect("a stream").0).collect();
    let geometry = kv::Geometry {
        layers: 1,
        heads: 8,
        key_size: 128,
        value_size: 128,
        block_tokens: 16,
        element: kv::Element::Bf16,
        content: kv::Content::Attention { window: 0 },
        order: kv::Order::BlockOuter,
    };
    let kv = kv::Config { prefixes: false, ..kv::Config::new(geometry, 100) };
    let memory = KvMemory::new(&pool, MemoryConfig { kv, initial: vec![100] }).expect("memory");
    let cache = Arc::clone(memory.cache());
    let number = handles::MEMORIES.keep(memory).expect("room");
    let memory = handles::MEMORIES.get(number).expect("kept");
    let address = pool.alloc(4096, 0).expect("fits");
    let table =
        Table { group: 0, address, rows: 2, stride: 8, staging_bytes: 0, staging_buffers: 0 };
    // SAFETY: a block of the pool's that is the test's own and outlives the binding.
    unsafe { memory.bind_table(table).expect("a group") };
    let mut seqs = [cache.open(Open::default()).expect("room"), Seq::from_raw(0)];
    cache.append(seqs[0], Tokens::Count(8)).expect("a block");
    cache.fork(seqs[0], 8, &mut seqs[1..]).expect("room");
    cache.append(seqs[1], Tokens::Count(1)).expect("a block, by a copy");
    // A refused copy leaves nothing to be waited for.
    memory.run_copies(0xdead_0000).expect_err("no stream");
    memory.await_copies().expect("there is nothing");
    assert_eq!(device.count(Call::EventSynchronize), 0);
    // The copies are queued, but their events fail; then their streams go.
    device.fail(Fault::from_then_on(CallSet::of(&[Call::EventRecord]), 1));
    memory.run_copies(s[20]).expect_err("no event");
    memory.sync_table(0, &seqs, s[21]).expect_err("no event");
    device.clear_faults();
    device.stream_destroy(StreamHandle(s[20])).expect("a stream");
    device.stream_destroy(StreamHandle(s[21])).expect("a stream");
    let capture = capture::begin(s[22]).expect("a stream of the device");
    // Also a wait that succeeds would end it.
    device.reset_counts();
    assert_eq!(memory.run_copies(s[23]).expect_err("it would wait").status(), Status::Busy);
    assert_eq!(memory.unbind_table(0).expect_err("it would wait").status(), Status::Busy);
    assert_eq!(handles::take_memory(number).expect_err("it would wait").status(), Status::Busy);
    assert_eq!(memory.await_copies().expect_err("it would wait").status(), Status::Busy);
    assert_eq!(device.count(Call::StreamSynchronize) + device.count(Call::EventRecord), 0);
    assert_eq!(memory.staging(0).expect("still bound").in_flight, 1);
    capture::end(capture).expect("open");
    assert_eq!(memory.run_copies(s[23]).expect("it waits").0, 1, "it was not lost");
    memory.unbind_table(0).expect("it waits");
    capture::release(capture).expect("ended");
    cache.free(&seqs, NO_FENCE).expect("open");
    drop((memory, handles::take_memory(number).expect("nothing is to be waited for")));
    pool.dealloc(address, 0).expect("live");
    assert_eq!(pool.stats().expect("alive").region_bytes, 0);
}

/// A memory that is dropped where it may not wait is kept, and ends with the next one.
#[test]
fn a_kv_cache_that_ends_while_a_capture_is_open_is_kept_until_later() {
    use forebay::kv::{self, Open, Seq, Tokens};
    use forebay::paged::{KvMemory, MemoryConfig};
    let _alone = alone();
    let options = HostOptions { total_bytes: 64 * MIB, ..HostOptions::default() };
    let device = Arc::new(FaultyDriver::new(Arc::new(HostDriver::new(options).expect("a device"))));
    let settings = Settings::resolve(&Config::default(), 64 * MIB as u64, true);
    let pool = Pool::with_driver(device.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let s: Vec<u64> = (0..28).map(|_| device.stream_create().expect("a stream").0).collect();
    let geometry = kv::Geometry {
        layers: 32,
        heads: 8,
        key_size: 128,
        value_size: 128,
        block_tokens: 16,
        element: kv::Element::Bf16,
        content: kv::Content::Attention { window: 0 },
        order: kv::Order::BlockOuter,
    };
    let made = || {
        let kv = kv::Config { prefixes: false, ..kv::Config::new(geometry, 8) };
        KvMemory::new(&pool, MemoryConfig { kv, initial: vec![4] }).expect("memory")
    };
    let memory = made();
    let cache = Arc::clone(memory.cache());
    let mut seqs = [cache.open(Open::default()).expect("room"), Seq::from_raw(0)];
    cache.append(seqs[0], Tokens::Count(8)).expect("a block");
    cache.fork(seqs[0], 8, &mut seqs[1..]).expect("room");
    cache.append(seqs[1], Tokens::Count(1)).expect("a block, by a copy");
    device.fail(Fault::from_then_on(CallSet::of(&[Call::EventRecord]), 1));
    memory.run_copies(s[26]).expect_err("no event");
    device.clear_faults();
    device.stream_destroy(StreamHandle(s[26])).expect("a stream");
    let capture = capture::begin(s[27]).expect("a stream of the device");
    drop(memory);
    let other = made();
    capture::end(capture).expect("open");
    capture::release(capture).expect("ended");
    let page = 2 * MIB as u64;
    assert_eq!(pool.stats().expect("alive").region_bytes, 8 * page, "it is there still");
    drop(other);
    assert_eq!(pool.stats().expect("alive").region_bytes, 0);
}

/// Captures reach every pool of the process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _made = host();
    alone
}

/// A pool of its own, over a device that the test can reach.
fn own_pool(tune: impl FnOnce(&mut Settings)) -> (Arc<HostDriver>, Pool, u64) {
    let options = HostOptions { total_bytes: 64 * MIB, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a device"));
    let mut settings = Settings::resolve(&Config::default(), 64 * MIB as u64, true);
    tune(&mut settings);
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    // Far from the numbers of other tests' streams.
    let streams: Vec<u64> = (0..20).map(|_| driver.stream_create().expect("a stream").0).collect();
    (driver, pool, streams[19])
}

#[test]
fn a_capture_that_nobody_told_of_is_named_when_streams_are_checked() {
    let _alone = alone();
    let (driver, pool, stream) = own_pool(|settings| {
        settings.debug = DebugChecks { streams: true, ..DebugChecks::default() };
    });
    let told = |error: forebay::error::Error| {
        assert_eq!(error.status(), Status::InvalidStream, "{error}");
        assert!(error.message().contains("call forebay_capture_begin"), "{error}");
    };
    for bytes in [4096, 3 * MIB] {
        let block = pool.alloc(bytes, stream).expect("nothing captures");
        driver.set_capturing(StreamHandle(stream), true);
        told(pool.alloc(bytes, stream).expect_err("untold"));
        told(pool.dealloc(block, stream).expect_err("untold"));
        told(pool.alloc(bytes, SYNC_STREAM).expect_err("a fence would end the capture"));
        told(pool.trim(0).expect_err("untold"));
        let other = pool.alloc(bytes, 0).expect("another stream, not captured");
        pool.dealloc(other, 0).expect("live");
        driver.set_capturing(StreamHandle(stream), false);
        // Told of, all is well.
        let number = capture::begin(stream).expect("a stream of the device");
        driver.set_capturing(StreamHandle(stream), true);
        let inside = pool.alloc(bytes, stream).expect("told of");
        pool.dealloc(inside, stream).expect("live");
        pool.trim(0).expect("told of");
        driver.set_capturing(StreamHandle(stream), false);
        capture::end(number).expect("open");
        capture::release(number).expect("ended");
        pool.dealloc(block, stream).expect("still live");
    }
    assert_eq!(pool.stats().expect("alive").live_blocks, 0);
}

#[test]
fn a_free_that_waits_for_the_device_does_not_while_a_capture_is_open() {
    let _alone = alone();
    let (driver, pool, stream) = own_pool(|settings| settings.free = FreeMode::Sync);
    let number = capture::begin(stream).expect("a stream of the device");
    driver.hold(StreamHandle(stream)).expect("live");
    for bytes in [4096, 3 * MIB] {
        let block = pool.alloc(bytes, SYNC_STREAM).expect("fits");
        driver.fill(block, 1, bytes, StreamHandle(stream)).expect("queued");
        // SAFETY: the block is the test's own and given up. It would wait for ever.
        let freed = unsafe { hot::free(block as *mut std::ffi::c_void) };
        assert_eq!(freed, Status::Ok);
    }
    let stats = pool.stats().expect("alive");
    assert_eq!((stats.live_blocks, stats.fences_recorded), (0, 0), "{stats:?}");
    assert!(stats.pending_bytes >= 3 * MIB as u64, "{stats:?}");
    let busy = forebay::pool::registry::destroy(pool.id()).expect_err("nothing is unmapped now");
    assert_eq!(busy.status(), Status::Busy);
    capture::end(number).expect("open");
    driver.unhold(StreamHandle(stream)).expect("live");
    driver.quiesce();
    capture::release(number).expect("ended");
    pool.trim(0).expect("all is done");
    assert_eq!(pool.stats().expect("alive").mapped_bytes, 0);
}

#[test]
fn a_buffer_is_neither_taken_nor_put_back_on_a_capturing_stream() {
    let _alone = alone();
    let (driver, pool, stream) = own_pool(|_| {});
    let set = buffers::create(pool.handle(), 20_000, 2).expect("fits");
    let out = buffers::acquire(set, stream).expect("two are in");
    let number = capture::begin(stream).expect("a stream of the device");
    for refused in [
        buffers::acquire(set, stream).expect_err("its event would be the graph's"),
        buffers::release(set, out, stream).expect_err("its event would be the graph's"),
    ] {
        assert_eq!(refused.status(), Status::Busy, "{refused}");
    }
    let other = buffers::acquire(set, 0).expect("another stream");
    buffers::release(set, other, 0).expect("out");
    capture::end(number).expect("open");
    capture::release(number).expect("ended");
    buffers::release(set, out, stream).expect("still out");
    buffers::destroy(set).expect("all are in");
    driver.quiesce();
}

/// A graph's end, told from a callback that may call nothing, releases the capture's memory.
#[test]
fn a_graph_that_ends_gives_its_memory_back() {
    let _alone = alone();
    for keeper in [false, true] {
        let (driver, pool, stream) = own_pool(|settings| settings.keeper = keeper);
        let number = capture::begin(stream).expect("a stream of the device");
        let block = pool.alloc(6 * MIB, stream).expect("fits");
        pool.dealloc(block, stream).expect("live");
        capture::end(number).expect("open");
        capture::follow_graph(number, 99).expect("the host device watches graphs");
        pool.trim(0).expect("no fault");
        assert_eq!(pool.stats().expect("alive").mapped_bytes, 6 << 20, "it is the graph's");
        assert_eq!(driver.end_graph(99), 1);
        // The keeper comes round, or whoever needs memory does it.
        let start = Instant::now();
        while keeper && capture::any_gone() {
            assert!(start.elapsed() < Duration::from_secs(60), "the keeper did not come round");
            std::thread::sleep(Duration::from_millis(2));
        }
        let all = pool.alloc(64 * MIB, 0).expect("nothing is anybody's");
        pool.dealloc(all, 0).expect("live");
        let again = capture::release(number).expect_err("released");
        assert_eq!(again.status(), Status::InvalidArgument);
        assert!(!capture::any_gone());
    }
    let unknown = capture::follow_graph(u64::MAX, 1).expect_err("no such capture");
    assert_eq!(unknown.status(), Status::InvalidArgument);
}

/// A lane's number may serve a capture later: blocks that lived before it are not the capture's.
#[test]
fn a_block_of_an_ended_stream_is_no_capture_s() {
    let _alone = alone();
    let options = HostOptions { total_bytes: 256 * MIB, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), 256 * MIB as u64, true);
    settings.keeper = false;
    let device = Arc::clone(&driver) as Arc<dyn Driver>;
    let pool = Pool::with_driver(device, settings).expect("a pool");
    let [old, captured, other] = [(); 3].map(|()| driver.stream_create().expect("a stream").0);
    let weights = pool.alloc(3 * MIB, old).expect("fits");
    forebay::pool::registry::retire_stream(old).expect("a stream");
    driver.quiesce();
    pool.with_core(|core| core.settle()).expect("alive");
    let number = capture::begin(captured).expect("a stream of the device");
    let inside = pool.alloc(3 * MIB, captured).expect("fits");
    capture::end(number).expect("open");
    pool.dealloc(weights, other).expect("live");
    pool.dealloc(inside, other).expect("live");
    driver.quiesce();
    pool.trim(0).expect("alive");
    let pending = pool.stats().expect("alive").pending_bytes;
    assert_eq!(pending, 3 * MIB as u64, "what the capture allocated waits for its release alone");
    capture::release(number).expect("ended");
    driver.quiesce();
    pool.trim(0).expect("alive");
    assert_eq!(pool.stats().expect("alive").mapped_bytes, 0);
}

/// A capture that begins in one pool and not in the next is open in neither afterwards, and a
/// pool whose other capture is open gives its part back later.
#[test]
fn a_capture_that_fails_to_begin_is_open_nowhere() {
    let _alone = alone();
    let (one, first, stream) = own_pool(|settings| settings.keeper = false);
    let (two, second, same) = own_pool(|settings| settings.keeper = false);
    assert_eq!(stream, same, "each device counts its own");
    let later = two.stream_create().expect("a stream").0;
    let in_second = capture::begin(later).expect("a stream of the second device");
    let in_both = capture::begin(stream).expect("a stream of both");
    assert_eq!(one.stream_create().expect("a stream").0, later);
    let refused = capture::begin(later).expect_err("the second pool has one there");
    assert_eq!(refused.status(), Status::Busy, "{refused}");
    assert!(capture::any_gone(), "the first pool's part waits for the other capture");
    for number in [in_both, in_second] {
        capture::end(number).expect("open");
        let ended = capture::end(number).expect_err("ended");
        assert!(ended.message().contains("not open"), "{ended}");
    }
    assert!(!capture::any_open());
    capture::release_gone();
    assert!(!capture::any_gone());
    for number in [in_both, in_second] {
        capture::release(number).expect("ended");
    }
    for pool in [first, second] {
        let id = pool.id();
        let _ = pool.into_handle();
        forebay::pool::registry::destroy(id).expect("no capture is open");
    }
}

/// A release that one pool refuses reaches the others all the same, and may be repeated.
#[test]
fn what_one_pool_refuses_the_others_release() {
    let _alone = alone();
    let (one, first, stream) = own_pool(|settings| settings.keeper = false);
    let (_two, second, same) = own_pool(|settings| settings.keeper = false);
    assert_eq!(stream, same, "each device counts its own");
    let number = capture::begin(stream).expect("a stream of both");
    for pool in [&first, &second] {
        let block = pool.alloc(6 * MIB, stream).expect("fits");
        pool.dealloc(block, stream).expect("live");
    }
    capture::end(number).expect("open");
    let other = capture::begin(one.stream_create().expect("a stream").0).expect("the first's");
    let refused = capture::release(number).expect_err("the first records no fence now");
    assert_eq!(refused.status(), Status::Busy, "{refused}");
    let mapped = |pool: &Pool| {
        pool.trim(0).expect("no fault");
        pool.stats().expect("alive").mapped_bytes
    };
    assert_eq!((mapped(&first), mapped(&second)), (6 << 20, 0), "the second's is free");
    capture::end(other).expect("open");
    capture::release(number).expect("nothing is open");
    capture::release(other).expect("ended");
    assert_eq!(mapped(&first), 0);
}

/// A capture whose pools all end, which only a lost context allows while it is open, is over.
#[test]
fn a_capture_is_over_when_its_last_pool_ends() {
    let _alone = alone();
    let (default, _) = host();
    let options = HostOptions { total_bytes: 64 * MIB, ..HostOptions::default() };
    let host = Arc::new(HostDriver::new(options).expect("a host device"));
    let driver = Arc::new(FaultyDriver::new(host));
    let mut settings = Settings::resolve(&Config::default(), 64 * MIB as u64, true);
    settings.keeper = false;
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let known = default.driver().expect("alive");
    let stream = loop {
        let stream = driver.stream_create().expect("a stream");
        if known.stream_check(stream).is_err() {
            break stream.0;
        }
    };
    let block = pool.alloc(MIB, 0).expect("fits");
    capture::begin(stream).expect("a stream of the device");
    let id = pool.id();
    let _ = pool.into_handle();
    let busy = forebay::pool::registry::destroy(id).expect_err("a capture is open");
    assert_eq!(busy.status(), Status::Busy, "{busy}");
    driver.fail(Fault::from_then_on(CallSet::ALL, 1).with_code(Code::ContextLost));
    let pool = Pool::from_number(id).expect("alive");
    let lost = pool.alloc(3 * MIB, 0).expect_err("the context is gone");
    assert_eq!(lost.status(), Status::ContextLost, "{lost}");
    pool.dealloc(block, 0).expect("frees succeed silently");
    let _ = pool.into_handle();
    forebay::pool::registry::destroy(id).expect("nothing is left to give back");
    assert!(!capture::any_open());
}

/// So many pools are made and ended beside captures.
const MEETINGS: usize = 20_000;

/// Ends another thread's loop, whether the test goes well or not.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pools come and go while captures begin and end: none keeps one open.
#[test]
fn pools_made_and_ended_meanwhile_keep_no_capture_open() {
    let _alone = alone();
    let (driver, pool, stream) = own_pool(|settings| settings.keeper = false);
    let (done, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let pools = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let settings = Settings::resolve(&Config::default(), 64 * MIB as u64, true);
                let driver = driver.clone() as Arc<dyn Driver>;
                let id = Pool::with_driver(driver, settings).expect("a pool").into_handle();
                let id = forebay::pool::registry::pool_number(id).expect("a pool");
                let start = Instant::now();
                while let Err(error) = forebay::pool::registry::destroy(id) {
                    assert_eq!(error.status(), Status::Busy, "{error}");
                    assert!(start.elapsed() < Duration::from_secs(20), "a capture stays open");
                }
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = Over(&done);
        while made.load(Ordering::Relaxed) < MEETINGS && !pools.is_finished() {
            assert!(start.elapsed() < Duration::from_secs(120), "{made:?} pools in two minutes");
            let number = capture::begin(stream).expect("a stream of the device");
            capture::end(number).expect("open");
            capture::release(number).expect("ended");
            std::thread::yield_now();
        }
    });
    assert!(!capture::any_open());
    pool.trim(0).expect("no capture is open");
}
