//! Memory in stream order, and the pools that it comes from.

use crate::entry::{export, place};
use crate::state;
use crate::types::*;
use std::ffi::c_void;

export! {
    /// Memory that is there from this point of the stream on.
    pair own fn cudaMallocAsync, cudaMallocAsync_ptsz(
        to: *mut u64, bytes: usize, stream: Stream,
    ) {
        let to = place(to)?;
        let driver = state::ready()?;
        if bytes == 0 {
            *to = 0;
            return state::healthy(driver);
        }
        driver.cuMemAllocAsync(own, to, bytes, stream)
    }

    /// The same out of a pool.
    pair own fn cudaMallocFromPoolAsync, cudaMallocFromPoolAsync_ptsz(
        to: *mut u64, bytes: usize, pool: Pool, stream: Stream,
    ) {
        let to = place(to)?;
        let driver = state::ready()?;
        if bytes == 0 {
            *to = 0;
            return state::healthy(driver);
        }
        driver.cuMemAllocFromPoolAsync(own, to, bytes, pool, stream)
    }

    /// Gives memory back at this point of the stream.
    pair own fn cudaFreeAsync, cudaFreeAsync_ptsz(at: u64, stream: Stream) {
        let driver = state::ready()?;
        if at == 0 { state::healthy(driver) } else { driver.cuMemFreeAsync(own, at, stream) }
    }

    /// A device's default pool.
    fn cudaDeviceGetDefaultMemPool(pool: *mut Pool, device: i32) {
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceGetDefaultMemPool(place(pool)?, device)
    }

    /// The pool that a device's stream-ordered allocations come from.
    fn cudaDeviceGetMemPool(pool: *mut Pool, device: i32) {
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceGetMemPool(place(pool)?, device)
    }

    /// Sets it.
    fn cudaDeviceSetMemPool(device: i32, pool: Pool) {
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceSetMemPool(device, pool)
    }

    /// Makes a pool.
    fn cudaMemPoolCreate(pool: *mut Pool, properties: *const c_void) {
        state::ready()?.cuMemPoolCreate(place(pool)?, properties)
    }

    /// Ends a pool.
    fn cudaMemPoolDestroy(pool: Pool) {
        state::ready()?.cuMemPoolDestroy(pool)
    }

    /// Gives unused memory back to the device, down to `keep` bytes.
    fn cudaMemPoolTrimTo(pool: Pool, keep: usize) {
        state::ready()?.cuMemPoolTrimTo(pool, keep)
    }

    /// Sets a number of a pool.
    fn cudaMemPoolSetAttribute(pool: Pool, attribute: u32, value: *mut c_void) {
        state::ready()?.cuMemPoolSetAttribute(pool, attribute, place(value)?)
    }

    /// A number of a pool.
    fn cudaMemPoolGetAttribute(pool: Pool, attribute: u32, value: *mut c_void) {
        state::ready()?.cuMemPoolGetAttribute(pool, attribute, place(value)?)
    }

    /// Opens a pool's memory to devices.
    fn cudaMemPoolSetAccess(pool: Pool, map: *const c_void, count: usize) {
        state::ready()?.cuMemPoolSetAccess(pool, map, count)
    }

    /// Whether a pool's memory is open to a device.
    fn cudaMemPoolGetAccess(flags: *mut u32, pool: Pool, location: *const Location) {
        state::ready()?.cuMemPoolGetAccess(place(flags)?, pool, location)
    }
}
