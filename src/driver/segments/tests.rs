//! Plain segments over the host device's plain allocations: arguments, accounts, a random load.

use super::SegmentDriver;
use crate::base::units::QUANTUM;
use crate::config::Config;
use crate::driver::faulty::{CallSet, Fault, FaultyDriver};
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::{Call, Code, Driver, DriverResult, PageHandle};
use crate::error::Status;
use crate::pool::{Pool, Settings};
use std::sync::Arc;

const MIB: usize = 1 << 20;
const GRANULE: usize = 2 * MIB;

fn host(bytes: usize) -> Arc<HostDriver> {
    let options = HostOptions { total_bytes: bytes, ..HostOptions::default() };
    Arc::new(HostDriver::new(options).expect("a device"))
}

fn code<T: std::fmt::Debug>(result: DriverResult<T>) -> Code {
    result.expect_err("refused").code
}

#[test]
fn a_reservation_is_one_aligned_plain_allocation() {
    let host = host(64 * MIB);
    let driver = SegmentDriver::new(Arc::clone(&host), 3 * MIB);
    assert_eq!(driver.backed_reservations(), Some(4 * MIB), "whole granules");
    let a = driver.reserve(4 * MIB).expect("fits");
    let b = driver.reserve(GRANULE).expect("fits");
    assert!(a.is_multiple_of(GRANULE) && b.is_multiple_of(GRANULE));
    assert_eq!(host.census().plain_allocs, 2);
    assert!(host.census().plain_bytes >= 6 * MIB);
    assert_eq!(code(driver.reserve(GRANULE + 1)), Code::InvalidValue);
    assert_eq!(code(driver.reserve(0)), Code::InvalidValue);
    // What there is no memory for, there are no addresses for.
    assert_eq!(code(driver.reserve(128 * MIB)), Code::NoAddressSpace);
    assert_eq!(code(driver.unreserve(a, GRANULE)), Code::InvalidValue);
    assert_eq!(code(driver.unreserve(a + GRANULE, GRANULE)), Code::InvalidValue);
    driver.unreserve(a, 4 * MIB).expect("ours");
    driver.unreserve(b, GRANULE).expect("ours");
    assert!(host.census().is_clean());
}

#[test]
fn wrong_arguments_change_nothing() {
    let driver = SegmentDriver::new(host(64 * MIB), 4 * MIB);
    let base = driver.reserve(4 * GRANULE).expect("fits");
    let page = driver.create(GRANULE).expect("fits");
    let map = |at, bytes, page| driver.map(at, bytes, page);
    assert_eq!(code(map(base + 1, GRANULE, page)), Code::InvalidValue);
    assert_eq!(code(map(base + 4 * GRANULE, GRANULE, page)), Code::InvalidValue);
    assert_eq!(code(map(base, 2 * GRANULE, page)), Code::InvalidValue);
    assert_eq!(code(map(base, GRANULE, PageHandle(77))), Code::InvalidHandle);
    assert_eq!(code(driver.set_access(base, GRANULE, &[])), Code::InvalidValue);
    map(base + GRANULE, GRANULE, page).expect("free");
    assert_eq!(code(map(base + GRANULE, GRANULE, page)), Code::InvalidValue);
    driver.set_access(base + GRANULE, GRANULE, &[]).expect("mapped");
    assert_eq!(code(driver.set_access(base + GRANULE, GRANULE, &[1])), Code::NotSupported);
    assert_eq!(code(driver.set_access(base, 2 * GRANULE, &[])), Code::InvalidValue);
    assert_eq!(code(driver.unmap(base, 2 * GRANULE)), Code::InvalidValue);
    assert_eq!(code(driver.unreserve(base, 4 * GRANULE)), Code::InvalidValue);
    driver.release(page).expect("ours");
    assert_eq!(code(driver.release(page)), Code::InvalidHandle);
    assert_eq!(code(map(base, GRANULE, page)), Code::InvalidHandle);
    driver.unmap(base + GRANULE, GRANULE).expect("whole");
    assert_eq!(code(driver.unmap(base + GRANULE, GRANULE)), Code::InvalidValue);
    driver.unreserve(base, 4 * GRANULE).expect("empty");
}

#[test]
fn pages_are_limited_by_the_device_and_die_with_their_last_mapping() {
    let driver = SegmentDriver::new(host(8 * MIB), 2 * MIB);
    let base = driver.reserve(GRANULE).expect("fits");
    let pages: Vec<_> = (0..4).map(|_| driver.create(GRANULE).expect("fits")).collect();
    assert_eq!(code(driver.create(GRANULE)), Code::OutOfMemory);
    driver.map(base, GRANULE, pages[0]).expect("free");
    driver.release(pages[0]).expect("ours");
    assert_eq!(code(driver.create(GRANULE)), Code::OutOfMemory, "it is still mapped");
    driver.unmap(base, GRANULE).expect("whole");
    driver.create(GRANULE).expect("one has gone");
}

/// A pool of so many bytes on plain segments, and the device below.
fn pool(limit: usize) -> (Arc<HostDriver>, Arc<FaultyDriver<HostDriver>>, Pool) {
    let host = host(128 * MIB);
    let faulty = Arc::new(FaultyDriver::new(Arc::clone(&host)));
    let driver = SegmentDriver::new(Arc::clone(&faulty), 8 * MIB);
    let mut settings = Settings::resolve(&Config::default(), 128 * MIB as u64, true);
    settings.limit = limit as u64;
    (host, faulty, Pool::with_driver(Arc::new(driver), settings).expect("a pool"))
}

#[test]
fn a_pool_works_and_keeps_its_limit() {
    let (host, _, pool) = pool(64 * MIB);
    let mut state = 7u64;
    println!("seed {state}");
    // Knuth's MMIX generator; its high bits are good enough here.
    let mut below = move |end: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    };
    let mut live: Vec<(usize, usize)> = Vec::new();
    let mut refused = 0;
    for round in 0..8_000 {
        if live.len() > 60 || (!live.is_empty() && below(3) == 0) {
            let which = below(live.len());
            let (block, bytes) = live.swap_remove(which);
            // SAFETY: the block is live and the host's.
            let seen = unsafe { [*(block as *const u8), *((block + bytes - 1) as *const u8)] };
            assert_eq!(seen, [block.rotate_right(8) as u8; 2], "round {round}");
            pool.dealloc(block, 0).expect("live");
            continue;
        }
        let most = if below(10) == 0 { 12 * MIB } else { 300 * 1024 };
        let bytes = 1 + below(most);
        match pool.alloc(bytes, 0) {
            Ok(block) => {
                let value = block.rotate_right(8) as u8;
                // SAFETY: as above.
                unsafe {
                    *(block as *mut u8) = value;
                    *((block + bytes - 1) as *mut u8) = value;
                }
                live.push((block, bytes));
            }
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                refused += 1;
            }
        }
        assert!(host.census().plain_bytes <= 64 * MIB, "the limit is the segments' too");
    }
    assert!(refused > 0, "the load never met the limit");
    for (block, _) in live {
        pool.dealloc(block, 0).expect("live");
    }
    // Longer than a segment.
    drop(pool);
    assert!(host.census().is_clean(), "{:?}", host.census());
}

#[test]
fn a_request_longer_than_a_segment_gets_one_of_its_own() {
    let (host, _, pool) = pool(64 * MIB);
    let long = pool.alloc(40 * MIB, 0).expect("fits");
    assert_eq!(host.census().plain_bytes, 48 * MIB, "a segment of 8 MiB, and one of 40");
    pool.dealloc(long, 0).expect("live");
    let again = pool.alloc(40 * MIB - QUANTUM, 0).expect("fits");
    assert_eq!(again, long, "no memory moves, and the place is free");
    pool.dealloc(again, 0).expect("live");
}

#[test]
fn a_device_that_refuses_a_segment_is_out_of_memory_and_recovers() {
    let (host, faulty, pool) = pool(64 * MIB);
    faulty.fail(Fault::from_then_on(CallSet::of(&[Call::AllocPlain]), 1));
    let error = pool.alloc(20 * MIB, 0).expect_err("no segment can be had");
    assert_eq!(error.status(), Status::OutOfMemory, "{error}");
    faulty.clear_faults();
    let block = pool.alloc(20 * MIB, 0).expect("fits");
    pool.dealloc(block, 0).expect("live");
    drop(pool);
    assert!(host.census().is_clean());
}
