//! Memory that ends, and calls that fail behind work that they had queued: nothing stale is found,
//! nothing late is overwritten, nothing is lost.

use crate::device::{self, Watched};
use crate::{MIB, bind, blocks_of, host_pool, llama, memory, sequence};
use forebay::config::Move;
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Driver, StreamHandle};
use forebay::error::Status;
use forebay::kv::{self, KvCache, KvError, NO_FENCE, Open, Order, Seq, Tokens};
use forebay::paged::contiguous::{ContiguousConfig, ContiguousKv};
use forebay::paged::tables::Table;
use forebay::paged::{Backed, KvMemory, MemoryError};
use forebay::pool::Pool;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 2 * MIB as u64;

fn cache(blocks: u32, prefixes: bool) -> Arc<KvCache> {
    let geometry = llama(Order::BlockOuter);
    let config = kv::Config { prefixes, ..kv::Config::new(geometry, blocks) };
    Arc::new(KvCache::new(config).expect("it makes sense"))
}

#[test]
fn prefixes_end_with_the_memory_that_held_them() {
    let (driver, pool) = device::small_pool(64 * MIB);
    let cache = cache(9, true);
    let tokens: Vec<i32> = (0..48).collect();
    let memory = KvMemory::over(&pool, Arc::clone(&cache), &[9]).expect("room");
    let seq = cache.open(Open::default()).expect("room");
    cache.append(seq, Tokens::Known(&tokens)).expect("blocks");
    cache.commit(seq, 48, NO_FENCE).expect("they are there");
    cache.free(&[seq], NO_FENCE).expect("open");
    assert_eq!(cache.stats().groups[0].counts.cached, 3);
    drop(memory);
    assert_eq!(cache.stats().groups[0].counts.cached, 0, "what they held is gone");
    // The same for blocks that were filled before there was memory.
    let seq = cache.open(Open::default()).expect("room");
    cache.append(seq, Tokens::Known(&tokens)).expect("blocks");
    cache.commit(seq, 48, NO_FENCE).expect("they are there");
    cache.free(&[seq], NO_FENCE).expect("open");
    let memory = KvMemory::over(&pool, Arc::clone(&cache), &[9]).expect("nobody uses it");
    assert_eq!(cache.stats().groups[0].counts.cached, 0, "the memory is new");
    drop(memory);
    device::end(&driver, pool, &[]);
}

/// A copy into a fork's tail was queued on the first of two streams, and its event failed.
fn failed_copy(held: bool) -> (Arc<Watched>, Pool, [u64; 2], KvMemory, Seq, Seq) {
    let (driver, pool) = device::small_pool(64 * MIB);
    let s = [0, 1].map(|_| driver.stream_create().expect("a stream").0);
    let memory = memory(&pool, llama(Order::BlockOuter), 8, 8);
    let cache = memory.cache();
    let seq = sequence(cache, 2);
    let mut forks = [Seq::from_raw(0)];
    cache.fork(seq, 2, &mut forks).expect("room");
    cache.append(forks[0], Tokens::Count(1)).expect("a block");
    if held {
        driver.inner().hold(StreamHandle(s[0])).expect("a stream");
    }
    driver.fail(Fault::once(CallSet::of(&[Call::EventRecord]), 1));
    assert!(memory.run_copies(s[0]).is_err());
    (driver, pool, s, memory, seq, forks[0])
}

#[test]
fn late_copies_do_not_overwrite_new_tokens() {
    let (driver, pool, s, memory, _, fork) = failed_copy(true);
    let to = blocks_of(memory.cache(), fork)[0];
    // The third token's keys of the first layer.
    let at = memory.view(0).expect("a group").base + to as usize * PAGE as usize + 2 * 2048;
    assert_eq!(memory.run_copies(s[1]).expect("the fault is over").0, 1);
    driver.inner().fill(at, 0x77, 2048, StreamHandle(s[1])).expect("a stream");
    // Nothing but a wait keeps the second stream from going on.
    std::thread::sleep(Duration::from_millis(20));
    driver.inner().unhold(StreamHandle(s[0])).expect("a stream");
    driver.inner().quiesce();
    // SAFETY: the block has memory, and all work on it has ended.
    assert_eq!(unsafe { (at as *const u8).read() }, 0x77, "the step wrote it last");
    drop(memory);
    device::end(&driver, pool, &s);
}

/// Without the second stream's wait its work would have ended before the first one's copy.
#[test]
fn copies_wait_for_those_of_an_earlier_stream() {
    let (driver, pool, s, memory, _, _) = failed_copy(true);
    assert_eq!(memory.run_copies(s[1]).expect("the fault is over").0, 1);
    std::thread::sleep(Duration::from_millis(20));
    assert!(driver.inner().outstanding() > 1, "the second stream waits for the first");
    driver.inner().unhold(StreamHandle(s[0])).expect("a stream");
    driver.inner().quiesce();
    drop(memory);
    device::end(&driver, pool, &s);
}

#[test]
fn a_stream_that_ended_after_a_failure_stops_no_copies() {
    let (driver, pool, s, memory, _, _) = failed_copy(false);
    driver.stream_synchronize(StreamHandle(s[0])).expect("a stream");
    pool.destroy_stream(s[0]).expect("a stream");
    assert_eq!(memory.run_copies(s[1]).expect("the fault is over"), (1, Some(1)));
    driver.inner().quiesce();
    drop(memory);
    device::end(&driver, pool, &s[1..]);
}

/// A stream that was made since may have the handle of the one that the copies are on.
#[test]
fn a_stream_of_the_same_handle_waits_for_a_failed_calls_copies_too() {
    let (driver, pool, s, memory, _, _) = failed_copy(true);
    driver.reset_counts();
    assert_eq!(memory.run_copies(s[0]).expect("the fault is over").0, 1);
    assert_eq!(driver.count(Call::StreamWait), 1, "a handle tells no streams apart");
    driver.inner().unhold(StreamHandle(s[0])).expect("a stream");
    driver.inner().quiesce();
    assert_eq!(memory.run_copies(s[0]).expect("none are left").0, 0);
    assert_eq!(driver.count(Call::StreamWait), 1);
    drop(memory);
    device::end(&driver, pool, &s);
}

#[test]
fn an_end_waits_for_copies_of_failed_calls_and_keeps_no_block() {
    let (driver, pool, s, memory, seq, fork) = failed_copy(true);
    let cache = Arc::clone(memory.cache());
    cache.free(&[seq, fork], NO_FENCE).expect("open");
    let (late, stream) = (Arc::clone(&driver), StreamHandle(s[0]));
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        late.inner().unhold(stream).expect("a stream");
    });
    drop(memory);
    assert_eq!(driver.inner().outstanding(), 0, "the copy was waited for");
    other.join().expect("no panic");
    let counts = cache.stats().groups[0].counts;
    assert_eq!((counts.used, counts.quarantined), (0, 0), "{counts:?}");
    driver.inner().quiesce();
    device::end(&driver, pool, &s);
}

#[test]
fn an_end_unmaps_nothing_while_the_device_works_and_may_not() {
    for moves in [Move::Idle, Move::Never] {
        let driver = device::plain_device(64 * MIB);
        let mut settings = device::settings(&driver);
        settings.moves = moves;
        let pool = device::pool(&driver, settings);
        let stream = driver.stream_create().expect("a stream");
        let memory = memory(&pool, llama(Order::BlockOuter), 8, 8);
        driver.inner().hold(stream).expect("a stream");
        driver.inner().spin(stream, 0).expect("a stream");
        driver.reset_counts();
        drop(memory);
        assert!(pool.with_core(|core| core.recover()).expect("alive"), "it is not back");
        assert_eq!(driver.count(Call::Unmap), 0, "{moves:?}");
        driver.inner().unhold(stream).expect("a stream");
        driver.inner().quiesce();
        assert!(!pool.with_core(|core| core.recover()).expect("alive"), "all is back");
        assert_eq!(device::check_books(&driver, &pool).region_bytes, 0);
        device::end(&driver, pool, &[stream.0]);
    }
}

#[test]
fn staging_is_given_back_though_a_wait_fails() {
    let (driver, pool) = device::small_pool(64 * MIB);
    let s = [driver.stream_create().expect("a stream").0];
    let memory = memory(&pool, llama(Order::BlockOuter), 8, 8);
    let seq = sequence(memory.cache(), 20);
    let address = pool.alloc(4096, 0).expect("room");
    let (staging_bytes, staging_buffers) = (0, 0);
    let table = Table { group: 0, address, rows: 4, stride: 8, staging_bytes, staging_buffers };
    for calls in [Call::EventSynchronize, Call::EventRecord] {
        let before = pool.stats().expect("alive").live_bytes;
        bind(&memory, table).expect("it makes sense");
        if calls == Call::EventRecord {
            driver.fail(Fault::from_then_on(CallSet::of(&[calls]), 1));
            assert!(memory.sync_table(0, &[seq], s[0]).is_err());
        } else {
            memory.sync_table(0, &[seq], s[0]).expect("no fault yet");
            driver.fail(Fault::from_then_on(CallSet::of(&[calls]), 1));
        }
        memory.unbind_table(0).expect("bound");
        driver.clear_faults();
        assert_eq!(pool.stats().expect("alive").live_bytes, before, "{calls:?}");
    }
    memory.cache().free(&[seq], NO_FENCE).expect("open");
    pool.dealloc(address, 0).expect("live");
    drop(memory);
    device::end(&driver, pool, &s);
}

#[test]
fn fences_that_were_never_made_are_refused() {
    let (driver, pool) = device::small_pool(64 * MIB);
    let memory = memory(&pool, llama(Order::BlockOuter), 8, 8);
    let cache = memory.cache();
    let seq = sequence(cache, 20);
    let fence = memory.fence_at(1).expect("alive");
    let refused = |result: kv::Result<()>| {
        assert!(matches!(result, Err(KvError::OutOfRange(_))), "{result:?}");
    };
    refused(cache.free(&[seq], fence + 1));
    refused(cache.rollback(seq, 17, fence + 1));
    refused(cache.trim(seq, Some(1), fence + 1));
    let mut blocks = [0; 1];
    cache.take_blocks(0, &mut blocks).expect("room");
    refused(cache.release_blocks(0, &blocks, fence + 1));
    cache.release_blocks(0, &blocks, fence).expect("it was made");
    cache.free(&[seq], fence).expect("it was made");
    // What has passed is told by a poll alone.
    cache.pass(fence);
    assert_eq!(cache.stats().groups[0].counts.quarantined, 3);
    assert!(matches!(cache.resize(0, 4), Err(KvError::Unsupported(_))));
    memory.reach(1).expect("alive");
    memory.poll().expect("no fault");
    assert_eq!(cache.stats().groups[0].counts.quarantined, 0);
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn an_end_is_the_end_of_its_fences() {
    let (driver, pool) = device::small_pool(64 * MIB);
    let cache = cache(8, false);
    let memory = KvMemory::over(&pool, Arc::clone(&cache), &[8]).expect("room");
    let seq = sequence(&cache, 20);
    cache.free(&[seq], memory.fence_at(9).expect("alive")).expect("open");
    drop(memory);
    assert_eq!(cache.stats().groups[0].counts.quarantined, 0);
    drop(KvMemory::over(&pool, cache, &[8]).expect("nobody uses it"));
    device::end(&driver, pool, &[]);
}

#[test]
fn numbers_of_blocks_that_would_overflow_are_refused() {
    let options = HostOptions { total_bytes: 1 << 36, ..HostOptions::default() };
    let (_driver, pool, _) = host_pool(options, 0);
    let geometry = kv::Geometry { block_tokens: 1 << 16, ..llama(Order::BlockOuter) };
    let memory = memory(&pool, geometry, 3, 2);
    for blocks in [u32::MAX, 1 << 31, 4] {
        let refused = memory.resize(0, blocks);
        assert!(matches!(refused, Err(MemoryError::Kv(KvError::OutOfRange(_)))), "{refused:?}");
    }
    assert_eq!(memory.backed(0).expect("a group").backed, 2);
}

#[test]
fn pages_at_hand_are_mapped_ahead_at_the_soft_limit() {
    let (driver, pool) = device::small_pool(64 * MIB);
    pool.set_limits(Some(16 * PAGE), Some(8 * PAGE)).expect("they make sense");
    let config = ContiguousConfig {
        groups: vec![llama(Order::BlockOuter)],
        max_sequences: 8,
        max_tokens: 4096,
        ahead_tokens: 64,
        keep_pages: 0,
    };
    let kv = ContiguousKv::new(&pool, config).expect("it makes sense");
    let first = kv.open().expect("room");
    kv.ensure(&[(first, 96)]).1.expect("room");
    let second = kv.open().expect("room");
    kv.ensure(&[(second, 32)]).1.expect("room");
    kv.free(&[first], NO_FENCE).expect("open");
    kv.poll().expect("no fault");
    kv.poll().expect("no fault");
    assert!(kv.stats().mapped_ahead > 0, "{:?}", kv.stats());
    drop(kv);
    device::end(&driver, pool, &[]);
}

/// A growth that has happened is answered so, whatever failed besides: the next poll tells that.
#[test]
fn growing_answers_for_the_growth_alone() {
    let (driver, pool) = device::small_pool(64 * MIB);
    let stream = driver.stream_create().expect("a stream").0;
    let memory = memory(&pool, llama(Order::BlockOuter), 16, 4);
    memory.fence(&[stream]).expect("a stream");
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::EventQuery]), 1));
    let backed = Backed { open: 8, backed: 8, bytes: 8 * PAGE };
    assert_eq!(memory.resize(0, 8).expect("it has grown"), backed);
    assert_eq!(memory.poll().expect_err("the event cannot be asked").status(), Status::Driver);
    driver.clear_faults();
    memory.poll().expect("no fault");
    // Pages that could not be given back when it shrank are tried again when it grows.
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::Unmap]), 1));
    assert_eq!(memory.resize(0, 2).expect_err("pages stay").status(), Status::MappingLimit);
    assert_eq!(memory.resize(0, 4).expect("it has memory").open, 4);
    assert_eq!(memory.poll().expect_err("pages stay").status(), Status::MappingLimit);
    driver.clear_faults();
    memory.poll().expect("no fault");
    assert_eq!(memory.backed(0).expect("a group"), Backed { open: 4, backed: 4, bytes: 4 * PAGE });
    // A shrinking tells what failed with it.
    memory.fence(&[stream]).expect("a stream");
    driver.fail(Fault::once(CallSet::of(&[Call::EventQuery]), 1));
    assert_eq!(memory.resize(0, 2).expect_err("not all was looked at").status(), Status::Driver);
    assert_eq!(memory.backed(0).expect("a group").open, 2);
    drop(memory);
    device::end(&driver, pool, &[stream]);
}
