//! Tests of the host device, and what they share.
//!
//! Device memory is touched only through [`read`] and [`write`], which ask the kernel first, so
//! that a wrong mapping fails a test and does not end the process.

mod life;
mod memory;
mod share;
mod streams;

use super::*;

const GRANULE: usize = DEFAULT_GRANULARITY;
const DEFAULT_STREAM: StreamHandle = StreamHandle(0);

fn device() -> HostDriver {
    HostDriver::new(HostOptions::default()).expect("a device")
}

fn deferred() -> HostDriver {
    HostDriver::new(HostOptions { deferred: true, ..HostOptions::default() }).expect("a device")
}

fn code<T: std::fmt::Debug>(result: DriverResult<T>) -> Code {
    result.expect_err("wrong use").code
}

fn read(address: usize) -> u8 {
    assert!(sys::readable(address), "{address:#x} is inaccessible");
    // SAFETY: just found readable; the test has no work queued on it and keeps it mapped.
    unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() }
}

fn write(address: usize, value: u8) {
    assert!(sys::readable(address), "{address:#x} is inaccessible");
    // SAFETY: as for `read`; memory that the device makes readable is writable too.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(value) }
}

/// A reservation of `granules` with pages mapped and accessible in all of it.
fn mapped(driver: &HostDriver, granules: usize) -> (usize, Vec<PageHandle>) {
    let base = driver.reserve(granules * GRANULE).expect("address space");
    let pages = (0..granules)
        .map(|i| {
            let page = driver.create(GRANULE).expect("memory");
            driver.map(base + i * GRANULE, GRANULE, page).expect("a free range");
            page
        })
        .collect();
    driver.set_access(base, granules * GRANULE, &[]).expect("mapped");
    (base, pages)
}
