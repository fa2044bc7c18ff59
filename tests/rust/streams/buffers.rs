//! Sets of buffers: whoever gets a buffer is ordered behind its last holder.
//!
//! The device is deferred: queued work runs in an order that a seed chooses, so that work which
//! is not ordered comes in the wrong order under some seed.

use crate::common;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::{Pool, buffers, registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: usize = 1 << 20;

fn deferred() -> (Arc<HostDriver>, Pool, Vec<u64>) {
    let options = HostOptions { total_bytes: 64 * MIB, deferred: true, ..HostOptions::default() };
    let (driver, pool) = common::pool(options, |settings| settings.keeper = false);
    let streams = common::streams(&driver, 3);
    (driver, pool, streams)
}

/// Queued by [`note`]: appends a digit to the word.
fn append(words: [usize; 4]) {
    // SAFETY: the word is leaked.
    let log = unsafe { &*(words[0] as *const AtomicU64) };
    log.store(log.load(Ordering::Relaxed) * 10 + words[1] as u64, Ordering::Relaxed);
}

/// Queues a note that work number `digit` has run on `stream`.
fn note(driver: &HostDriver, stream: u64, log: &'static AtomicU64, digit: usize) {
    let words = [std::ptr::from_ref(log) as usize, digit, 0, 0];
    driver.launch(StreamHandle(stream), append, words).expect("a live stream");
}

/// Runs all queued work, in the order that `seed` chooses.
fn run(driver: &HostDriver, seed: u64) {
    let mut random = common::Random(seed);
    while driver.step(random.bits()).is_some() {}
}

/// One buffer goes from stream to stream; answers the order of their work.
fn relay(seed: u64, retired: bool) -> u64 {
    let (driver, pool, s) = deferred();
    let log: &'static AtomicU64 = Box::leak(Box::default());
    let set = buffers::create(pool.handle(), 10_000, 1).expect("fits");
    for (holder, &stream) in s.iter().enumerate() {
        let buffer = buffers::acquire(set, stream).expect("it is in");
        note(&driver, stream, log, 2 * holder + 1);
        note(&driver, stream, log, 2 * holder + 2);
        buffers::release(set, buffer, stream).expect("it is out");
        if retired {
            registry::retire_stream(stream).expect("known or not");
            driver.stream_destroy(StreamHandle(stream)).expect("it exists");
        }
    }
    run(&driver, seed);
    buffers::destroy(set).expect("all are in");
    let id = pool.id();
    drop(pool);
    assert!(registry::pool(id).is_err());
    if !retired {
        s.iter().for_each(|&s| driver.stream_destroy(StreamHandle(s)).expect("it exists"));
    }
    driver.run_all();
    assert!(driver.census().is_clean(), "{:?}", driver.census());
    log.load(Ordering::Relaxed)
}

#[test]
fn a_buffer_s_next_holder_comes_after_its_last() {
    for seed in 0..50 {
        for retired in [false, true] {
            assert_eq!(relay(seed, retired), 123_456, "seed {seed}, streams retired: {retired}");
        }
    }
}

#[test]
fn a_buffer_is_ordered_behind_its_release_only() {
    let (driver, pool, s) = deferred();
    let log: &'static AtomicU64 = Box::leak(Box::default());
    let set = buffers::create(pool.handle(), 10_000, 1).expect("fits");
    let buffer = buffers::acquire(set, s[0]).expect("it is in");
    note(&driver, s[0], log, 1);
    buffers::release(set, buffer, s[0]).expect("it is out");
    driver.run_all();
    // Work that has nothing to do with the buffer, and does not end.
    note(&driver, s[0], log, 9);
    driver.hold(StreamHandle(s[0])).expect("a live stream");
    assert_eq!(buffers::acquire(set, s[1]).expect("it is in"), buffer);
    note(&driver, s[1], log, 2);
    driver.run_all();
    assert_eq!(log.load(Ordering::Relaxed), 12, "not behind what the last holder did later");
    driver.unhold(StreamHandle(s[0])).expect("a live stream");
    buffers::release(set, buffer, s[1]).expect("it is out");
    driver.run_all();
    buffers::destroy(set).expect("all are in");
}

#[test]
fn a_set_outlives_its_pool_and_can_be_ended() {
    let (driver, pool, s) = deferred();
    let set = buffers::create(pool.handle(), MIB, 3).expect("fits");
    let idle = buffers::create(pool.handle(), MIB, 3).expect("fits");
    let out = buffers::acquire(set, s[0]).expect("all are in");
    let released = buffers::acquire(set, s[0]).expect("two are in");
    buffers::release(set, released, s[0]).expect("it is out");
    drop(pool);
    let status = |result: Result<(), forebay::error::Error>| result.map_err(|e| e.status());
    let ended = Err(Status::InvalidPool);
    assert_eq!(status(buffers::acquire(set, s[0]).map(drop)), ended);
    assert_eq!(status(buffers::release(set, out, s[0])), ended);
    for set in [set, idle] {
        assert_eq!(status(buffers::destroy(set)), Ok(()), "the memory went with the pool");
        assert_eq!(status(buffers::destroy(set)), Err(Status::InvalidArgument));
    }
    s.iter().for_each(|&s| driver.stream_destroy(StreamHandle(s)).expect("it exists"));
    driver.run_all();
    assert!(driver.census().is_clean(), "{:?}", driver.census());
}
