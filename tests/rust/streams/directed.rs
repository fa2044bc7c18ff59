//! The rule of lanes, case by case, on a device that is late for certain.
//!
//! A held stream runs nothing until it is let go, so what must not be reused is known exactly.
//! Every case is tried with stamps ignored too, and must then show the reuse.

use crate::common;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::Pool;
use forebay::pool::hot::SYNC_STREAM;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// Lengths that take each way: small slot, large slot, extent, several granules.
const LENGTHS: [usize; 4] = [1024, 200 << 10, MIB, 5 * MIB];

fn device(ignore_stamps: bool) -> (Arc<HostDriver>, Pool, Vec<u64>) {
    let options = HostOptions { total_bytes: 12 * MIB, ..HostOptions::default() };
    let (driver, pool) = common::pool(options, |settings| {
        settings.keeper = false;
        settings.oom_wait = std::time::Duration::from_millis(1);
    });
    if ignore_stamps {
        pool.with_core(|core| core.ignore_stamps()).expect("alive");
    }
    let streams = common::streams(&driver, 3);
    (driver, pool, streams)
}

fn fill(driver: &HostDriver, address: usize, bytes: usize, stream: u64) {
    driver.fill(address, 1, bytes, StreamHandle(stream)).expect("a live stream");
}

fn hold(driver: &HostDriver, stream: u64) {
    driver.hold(StreamHandle(stream)).expect("a live stream");
}

fn unhold(driver: &HostDriver, stream: u64) {
    driver.unhold(StreamHandle(stream)).expect("a live stream");
    driver.quiesce();
}

/// Takes blocks of `bytes` on `stream` until the pool is exhausted: whether one of them
/// overlaps the `bytes` at `address`. All are freed again.
fn gets(pool: &Pool, (address, bytes): (usize, usize), stream: u64) -> bool {
    let mut taken = Vec::new();
    let mut overlaps = false;
    loop {
        match pool.alloc(bytes, stream) {
            Ok(block) => {
                overlaps |= block < address + bytes && address < block + bytes;
                taken.push(block);
            }
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                break;
            }
        }
    }
    for block in taken {
        pool.dealloc(block, stream).expect("a live block");
    }
    overlaps
}

#[test]
fn what_one_stream_frees_another_gets_after_its_fence_only() {
    for bytes in LENGTHS {
        for ignored in [false, true] {
            let (driver, pool, s) = device(ignored);
            let block = pool.alloc(bytes, s[0]).expect("fits");
            hold(&driver, s[0]);
            fill(&driver, block, bytes, s[0]);
            pool.dealloc(block, s[0]).expect("live");
            assert_eq!(gets(&pool, (block, bytes), s[1]), ignored, "{bytes} bytes, held");
            unhold(&driver, s[0]);
            assert!(gets(&pool, (block, bytes), s[1]), "{bytes} bytes, let go");
        }
    }
}

#[test]
fn a_stream_takes_what_it_freed_itself_at_once() {
    for bytes in LENGTHS {
        let (driver, pool, s) = device(false);
        let block = pool.alloc(bytes, s[0]).expect("fits");
        hold(&driver, s[0]);
        fill(&driver, block, bytes, s[0]);
        pool.dealloc(block, s[0]).expect("live");
        assert!(gets(&pool, (block, bytes), s[0]), "{bytes} bytes");
        unhold(&driver, s[0]);
    }
}

#[test]
fn a_recorded_use_on_another_stream_keeps_the_block() {
    for bytes in LENGTHS {
        for ignored in [false, true] {
            let (driver, pool, s) = device(ignored);
            let block = pool.alloc(bytes, s[0]).expect("fits");
            hold(&driver, s[1]);
            fill(&driver, block, bytes, s[1]);
            pool.record_use(block, s[1]).expect("live");
            pool.dealloc(block, s[0]).expect("live");
            for by in [s[0], s[2], SYNC_STREAM] {
                let got = gets(&pool, (block, bytes), by);
                assert!(ignored || !got, "{bytes} bytes on {by:#x}");
            }
            // What both wait for alone may go to neither but after both.
            unhold(&driver, s[1]);
            assert!(gets(&pool, (block, bytes), s[0]), "{bytes} bytes, let go");
        }
    }
}

#[test]
fn ignored_stamps_hand_out_a_block_with_a_recorded_use() {
    for bytes in LENGTHS {
        let (driver, pool, s) = device(true);
        let block = pool.alloc(bytes, s[0]).expect("fits");
        hold(&driver, s[1]);
        fill(&driver, block, bytes, s[1]);
        pool.record_use(block, s[1]).expect("live");
        pool.dealloc(block, s[0]).expect("live");
        assert!(gets(&pool, (block, bytes), s[0]), "{bytes} bytes: the hook has no effect");
        unhold(&driver, s[1]);
    }
}

#[test]
fn a_free_with_cuda_free_s_meaning_waits_for_every_stream() {
    for bytes in LENGTHS {
        for lane in [SYNC_STREAM, 0] {
            for ignored in [false, true] {
                let (driver, pool, s) = device(ignored);
                let lane = if lane == 0 { s[0] } else { lane };
                let block = pool.alloc(bytes, lane).expect("fits");
                hold(&driver, s[2]);
                fill(&driver, block, bytes, s[2]);
                pool.dealloc(block, SYNC_STREAM).expect("live");
                let mut got = false;
                for by in [SYNC_STREAM, s[1], s[2], s[0]] {
                    got |= gets(&pool, (block, bytes), by);
                }
                assert_eq!(got, ignored, "{bytes} bytes of {lane:#x}");
                unhold(&driver, s[2]);
                let mut got = false;
                for by in [SYNC_STREAM, s[1], s[0]] {
                    got |= gets(&pool, (block, bytes), by);
                }
                assert!(got, "{bytes} bytes of {lane:#x}, let go");
            }
        }
    }
}

#[test]
fn a_block_used_on_a_stream_that_is_retired_comes_back() {
    for bytes in LENGTHS {
        let (driver, pool, s) = device(false);
        let block = pool.alloc(bytes, s[0]).expect("fits");
        fill(&driver, block, bytes, s[1]);
        pool.record_use(block, s[1]).expect("live");
        forebay::pool::registry::retire_stream(s[1]).expect("known");
        driver.stream_destroy(StreamHandle(s[1])).expect("it exists");
        driver.quiesce();
        pool.stats().expect("alive");
        pool.dealloc(block, s[0]).expect("live");
        driver.quiesce();
        pool.trim(0).expect("a trim");
        let stats = pool.stats().expect("alive");
        assert_eq!(stats.pending_bytes, 0, "{bytes} bytes wait for a stream that is gone");
        // The lane's number serves another stream.
        let next = driver.stream_create().expect("a stream").0;
        let again = pool.alloc(bytes, next).expect("fits");
        pool.dealloc(again, next).expect("live");
    }
}

#[test]
fn trim_gives_back_nothing_that_work_still_uses() {
    let (driver, pool, s) = device(false);
    let block = pool.alloc(5 * MIB, s[0]).expect("fits");
    hold(&driver, s[0]);
    fill(&driver, block, 5 * MIB, s[0]);
    pool.dealloc(block, s[0]).expect("live");
    assert_eq!(pool.trim(0).expect("a trim"), 0, "the fence has not passed");
    unhold(&driver, s[0]);
    assert!(pool.trim(0).expect("a trim") >= 5 * MIB as u64);
}

/// A stream is retired with frees pending, and its handle comes back for another stream: the new
/// one is not ordered behind the old one's work.
#[test]
fn a_handle_that_comes_back_takes_nothing_from_the_stream_before() {
    for bytes in LENGTHS {
        let (driver, pool, s) = device(false);
        let block = pool.alloc(bytes, s[0]).expect("fits");
        hold(&driver, s[0]);
        fill(&driver, block, bytes, s[0]);
        pool.dealloc(block, s[0]).expect("live");
        forebay::pool::registry::retire_stream(s[0]).expect("known");
        assert!(!gets(&pool, (block, bytes), s[0]), "{bytes} B: the same handle, another stream");
        // Twice: two lanes of the past have the handle's name.
        let second = pool.alloc(bytes, s[0]).expect("fits");
        fill(&driver, second, bytes, s[0]);
        pool.dealloc(second, s[0]).expect("live");
        forebay::pool::registry::retire_stream(s[0]).expect("known");
        for taken in [block, second] {
            assert!(!gets(&pool, (taken, bytes), s[0]), "{bytes} B");
            assert!(!gets(&pool, (taken, bytes), SYNC_STREAM), "{bytes} B");
        }
        unhold(&driver, s[0]);
        for taken in [block, second] {
            assert!(gets(&pool, (taken, bytes), s[0]), "{bytes} B: all work is done");
        }
        driver.quiesce();
        pool.trim(0).expect("no fault");
        assert_eq!(pool.stats().expect("alive").mapped_bytes, 0, "no lane of the past keeps any");
    }
}

/// `FOREBAY_MOVE`: where pages move only while the device is idle, they wait for all work, also for
/// that of other streams on other memory; where they never move, they never do.
#[test]
fn pages_move_when_the_setting_says() {
    use forebay::config::Move;
    for (moves, while_busy, while_idle) in
        [(Move::Always, true, true), (Move::Idle, false, true), (Move::Never, false, false)]
    {
        let options = HostOptions { total_bytes: 12 * MIB, ..HostOptions::default() };
        let (driver, pool) = common::pool(options, |settings| {
            settings.keeper = false;
            settings.moves = moves;
            settings.oom_wait = std::time::Duration::ZERO;
        });
        let busy = common::streams(&driver, 1)[0];
        let blocks: Vec<usize> = (0..6).map(|_| pool.alloc(2 * MIB, 0).expect("fits")).collect();
        for i in [0, 2, 4] {
            pool.dealloc(blocks[i], 0).expect("live");
        }
        hold(&driver, busy);
        fill(&driver, blocks[1], MIB, busy);
        let moved = pool.alloc(4 * MIB, 0);
        assert_eq!(moved.is_ok(), while_busy, "{moves:?}: {moved:?}");
        if let Ok(block) = moved {
            pool.dealloc(block, 0).expect("live");
        }
        assert_eq!(pool.trim(0).expect("no fault") > 0, while_busy, "{moves:?}");
        unhold(&driver, busy);
        let moved = pool.alloc(4 * MIB, 0);
        assert_eq!(moved.is_ok(), while_idle, "{moves:?}: {moved:?}");
        let never = pool.stats().expect("alive").pages_moved == 0;
        assert_eq!(never, moves == Move::Never, "{moves:?}");
    }
}

#[test]
fn a_request_waits_for_the_fences_that_suffice_and_no_longer() {
    let options = HostOptions { total_bytes: 12 * MIB, ..HostOptions::default() };
    let (driver, pool) = common::pool(options, |settings| {
        settings.keeper = false;
        settings.oom_wait = std::time::Duration::from_secs(3600);
    });
    let s = common::streams(&driver, 3);
    let blocks = [0, 1].map(|i| {
        let block = pool.alloc(5 * MIB, s[i]).expect("fits");
        hold(&driver, s[i]);
        fill(&driver, block, 5 * MIB, s[i]);
        pool.dealloc(block, s[i]).expect("live");
        block
    });
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (pool, third) = (&pool, s[2]);
        scope.spawn(move || tell.send(pool.alloc(5 * MIB, third)).expect("the test waits"));
        std::thread::sleep(std::time::Duration::from_millis(20));
        driver.unhold(StreamHandle(s[0])).expect("a live stream");
        // The other stream does not end; nobody needs what it uses.
        let got = told.recv_timeout(std::time::Duration::from_secs(30));
        unhold(&driver, s[1]);
        let got = got.expect("one passed fence was enough").expect("it fits");
        assert_eq!(got, blocks[0]);
        pool.dealloc(got, s[2]).expect("live");
    });
}

#[test]
fn blocks_that_two_streams_use_in_turn_take_the_memory_of_a_few() {
    for (bytes, rounds) in [(4 << 10, 12_000), (100 << 10, 3000)] {
        let options = HostOptions { total_bytes: 256 * MIB, ..HostOptions::default() };
        let (driver, pool) = common::pool(options, |settings| settings.keeper = false);
        let streams = common::streams(&driver, 2);
        for _ in 0..rounds {
            let block = pool.alloc(bytes, streams[0]).expect("one lives at a time");
            pool.record_use(block, streams[1]).expect("live");
            pool.dealloc(block, streams[0]).expect("live");
        }
        let mapped = pool.stats().expect("alive").mapped_bytes;
        assert!(mapped <= 20 * MIB as u64, "{mapped} bytes for blocks of {bytes}");
    }
}
