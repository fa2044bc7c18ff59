//! Memory: allocated, freed, registered.
//!
//! Sizes of 0 answer success and a null pointer where the runtime does so; freeing a null pointer
//! only sees to a context. Both answer the error of a context that has failed. All else is the
//! driver's.

use crate::entry::{export, place};
use crate::state;
use crate::types::*;
use std::ffi::c_void;

/// The element size that rows are laid out for.
const UNIT: u32 = 4;

export! {
    /// Memory of the current device; a null pointer for 0 bytes.
    fn cudaMalloc(to: *mut u64, bytes: usize) {
        let to = place(to)?;
        let driver = state::ready()?;
        if bytes == 0 {
            *to = 0;
            return state::healthy(driver);
        }
        driver.cuMemAlloc(to, bytes)
    }

    /// Gives memory back; all kinds of device memory. A null pointer starts the runtime.
    fn cudaFree(at: u64) {
        let driver = state::ready()?;
        if at == 0 { state::healthy(driver) } else { driver.cuMemFree(at) }
    }

    /// Rows of memory, each starting where copies are fast.
    fn cudaMallocPitch(to: *mut u64, pitch: *mut usize, width: usize, height: usize) {
        let (to, pitch) = (place(to)?, place(pitch)?);
        let driver = state::ready()?;
        if width == 0 || height == 0 {
            *to = 0;
            *pitch = 0;
            return state::healthy(driver);
        }
        driver.cuMemAllocPitch(to, pitch, width, height, UNIT)
    }

    /// Planes of rows.
    fn cudaMalloc3D(to: *mut PitchedPtr, extent: Extent) {
        let to = place(to)?;
        let driver = state::ready()?;
        let rows = extent.height.checked_mul(extent.depth).ok_or(ERROR_INVALID_VALUE)?;
        let (mut ptr, mut pitch) = (0, 0);
        match extent.width > 0 && rows > 0 {
            true => driver.cuMemAllocPitch(&mut ptr, &mut pitch, extent.width, rows, UNIT)?,
            false => state::healthy(driver)?,
        }
        *to = PitchedPtr { ptr, pitch, xsize: extent.width, ysize: extent.height };
        Ok(())
    }

    /// Memory that host and devices both touch.
    fn cudaMallocManaged(to: *mut u64, bytes: usize, flags: u32) {
        state::ready()?.cuMemAllocManaged(place(to)?, bytes, flags)
    }

    /// Page-locked memory.
    fn cudaMallocHost(to: *mut *mut c_void, bytes: usize) {
        host_alloc(to, bytes, 0)
    }

    /// Page-locked memory, with flags.
    fn cudaHostAlloc(to: *mut *mut c_void, bytes: usize, flags: u32) {
        host_alloc(to, bytes, flags)
    }

    /// Gives page-locked memory back.
    fn cudaFreeHost(at: *mut c_void) {
        let driver = state::ready()?;
        if at.is_null() { state::healthy(driver) } else { driver.cuMemFreeHost(at) }
    }

    /// Page-locks the program's own memory.
    fn cudaHostRegister(at: *mut c_void, bytes: usize, flags: u32) {
        state::ready()?.cuMemHostRegister(at, bytes, flags)
    }

    /// Takes that back.
    fn cudaHostUnregister(at: *mut c_void) {
        state::ready()?.cuMemHostUnregister(at)
    }

    /// The address by which a device reaches page-locked memory.
    fn cudaHostGetDevicePointer(to: *mut u64, host: *mut c_void, flags: u32) {
        state::ready()?.cuMemHostGetDevicePointer(place(to)?, host, flags)
    }

    /// The flags that page-locked memory was made with.
    fn cudaHostGetFlags(flags: *mut u32, host: *mut c_void) {
        state::ready()?.cuMemHostGetFlags(place(flags)?, host)
    }

    /// Free and total memory of the current device.
    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        state::ready()?.cuMemGetInfo(free, total)
    }
}

unsafe fn host_alloc(to: *mut *mut c_void, bytes: usize, flags: u32) -> Answer {
    let to = place(to)?;
    let driver = state::ready()?;
    // SAFETY: not null; the caller's promise.
    unsafe {
        if bytes == 0 {
            *to = std::ptr::null_mut();
            return state::healthy(driver);
        }
        driver.cuMemHostAlloc(to, bytes, flags)
    }
}
