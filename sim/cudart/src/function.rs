//! What is known of a kernel: attributes, and how many blocks fit.
//!
//! No binary is read, so every kernel has the same numbers: 32 registers a thread, no static
//! memory. How many blocks fit follows from those and from the device's attributes.

use crate::driver::Driver;
use crate::entry::{export, place};
use crate::launch::Launch;
use crate::module::{kernel, registered};
use crate::state;
use crate::types::*;

/// Registers of each thread.
const REGISTERS: i32 = 32;
/// Registers are handed out to warps in units of this.
const WARP: i32 = 32;
/// `CUdevice_attribute`.
const THREADS_OF_BLOCK: u32 = 1;
const SHARED_OF_BLOCK: u32 = 8;
const PROCESSORS: u32 = 16;
const THREADS_OF_PROCESSOR: u32 = 39;
const MAJOR: u32 = 75;
const MINOR: u32 = 76;
const SHARED_OF_PROCESSOR: u32 = 81;
const REGISTERS_OF_PROCESSOR: u32 = 82;
const SHARED_OPTIN: u32 = 97;
const BLOCKS_OF_PROCESSOR: u32 = 106;
/// `cudaFuncAttributeMaxDynamicSharedMemorySize`.
const MAX_SHARED: u32 = 8;
/// The largest attribute that CUDA 12 knows.
const ATTRIBUTE_MAX: u32 = 16;

/// `cudaFuncAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    shared: usize,
    constant: usize,
    local: usize,
    threads_max: i32,
    registers: i32,
    ptx_version: i32,
    binary_version: i32,
    cache_mode: i32,
    dynamic_shared_max: i32,
    carveout: i32,
    cluster: [i32; 6],
    reserved: [i32; 16],
}

const _: () = assert!(size_of::<Attributes>() == 144);

fn number(driver: &Driver, attribute: u32, device: i32) -> Result<i32, Code> {
    let mut value = 0;
    // SAFETY: a place of this frame.
    unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) }?;
    Ok(value)
}

/// How many blocks of `threads` threads and `shared` bytes a processor holds.
fn blocks(threads: i32, shared: usize, of: impl Fn(u32) -> Result<i32, Code>) -> Result<i32, Code> {
    if threads <= 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    if threads > of(THREADS_OF_BLOCK)? {
        return Ok(0);
    }
    let threads = (threads + WARP - 1) / WARP * WARP;
    let mut most = of(BLOCKS_OF_PROCESSOR)?;
    most = most.min(of(THREADS_OF_PROCESSOR)? / threads);
    most = most.min(of(REGISTERS_OF_PROCESSOR)? / (threads * REGISTERS));
    let all = of(SHARED_OF_PROCESSOR)? as usize;
    if let Some(fit) = all.checked_div(shared) {
        most = most.min(i32::try_from(fit).unwrap_or(i32::MAX));
    }
    Ok(most)
}

/// How many blocks of a launch the current device holds at once.
pub fn resident(launch: &Launch) -> Result<u64, Code> {
    let driver = state::ready()?;
    let device = state::current_device(driver);
    let threads = i32::try_from(launch.block.count()).unwrap_or(i32::MAX);
    let each = blocks(threads, launch.shared, |attribute| number(driver, attribute, device))?;
    let processors = number(driver, PROCESSORS, device)?;
    Ok(u64::from(each.unsigned_abs()) * u64::from(processors.unsigned_abs()))
}

fn occupancy(to: *mut i32, function: u64, threads: i32, shared: usize) -> Answer {
    let to = place(to)?;
    kernel(function)?;
    let driver = state::ready()?;
    let device = state::current_device(driver);
    let most = blocks(threads, shared, |attribute| number(driver, attribute, device))?;
    // SAFETY: not null; the caller's promise.
    unsafe { *to = most };
    Ok(())
}

export! {
    /// What is known of a kernel.
    fn cudaFuncGetAttributes(attributes: *mut Attributes, function: u64) {
        let to = place(attributes)?;
        let kernel = kernel(function)?;
        let driver = state::ready()?;
        let device = state::current_device(driver);
        let version = 10 * number(driver, MAJOR, device)? + number(driver, MINOR, device)?;
        let default = number(driver, SHARED_OF_BLOCK, device)?;
        *to = Attributes {
            threads_max: number(driver, THREADS_OF_BLOCK, device)?,
            registers: REGISTERS,
            ptx_version: version,
            binary_version: version,
            dynamic_shared_max: default.max(kernel.shared as i32),
            carveout: -1,
            ..Attributes::default()
        };
        Ok(())
    }

    /// Sets an attribute of a kernel: the dynamic shared memory is kept, others are accepted.
    fn cudaFuncSetAttribute(function: u64, attribute: u32, value: i32) {
        kernel(function)?;
        if attribute > ATTRIBUTE_MAX {
            return Err(ERROR_INVALID_VALUE);
        }
        if attribute != MAX_SHARED {
            return Ok(());
        }
        let driver = state::ready()?;
        let most = number(driver, SHARED_OPTIN, state::current_device(driver))?;
        if value < 0 || value > most {
            return Err(ERROR_INVALID_VALUE);
        }
        if let Some(kernel) = registered().kernels.get_mut(&(function as usize)) {
            kernel.shared = value.unsigned_abs();
        }
        Ok(())
    }

    /// The preferred split of cache and shared memory; accepted.
    fn cudaFuncSetCacheConfig(function: u64, config: u32) {
        kernel(function)?;
        if config > 3 { Err(ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// How many blocks of a kernel a processor holds.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        to: *mut i32, function: u64, threads: i32, shared: usize,
    ) {
        occupancy(to, function, threads, shared)
    }

    /// The same, with flags.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        to: *mut i32, function: u64, threads: i32, shared: usize, flags: u32,
    ) {
        if flags > 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        occupancy(to, function, threads, shared)
    }

    /// Dynamic shared memory that each of so many blocks may have.
    fn cudaOccupancyAvailableDynamicSMemPerBlock(
        to: *mut usize, function: u64, count: i32, threads: i32,
    ) {
        let to = place(to)?;
        kernel(function)?;
        let driver = state::ready()?;
        let device = state::current_device(driver);
        let most = blocks(threads, 0, |attribute| number(driver, attribute, device))?;
        if count <= 0 || count > most {
            return Err(ERROR_INVALID_VALUE);
        }
        let all = number(driver, SHARED_OF_PROCESSOR, device)? / count;
        *to = all.min(number(driver, SHARED_OPTIN, device)?).max(0) as usize;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h100(attribute: u32) -> Result<i32, Code> {
        Ok(match attribute {
            THREADS_OF_BLOCK => 1024,
            BLOCKS_OF_PROCESSOR => 32,
            THREADS_OF_PROCESSOR => 2048,
            REGISTERS_OF_PROCESSOR => 65_536,
            SHARED_OF_PROCESSOR => 233_472,
            other => return Err(other as Code),
        })
    }

    #[test]
    fn the_scarcest_of_all_bounds_the_blocks() {
        assert_eq!(blocks(256, 0, h100), Ok(8));
        assert_eq!(blocks(1, 0, h100), Ok(32));
        assert_eq!(blocks(1024, 0, h100), Ok(2));
        assert_eq!(blocks(128, 100_000, h100), Ok(2));
        assert_eq!(blocks(1025, 0, h100), Ok(0));
        assert_eq!(blocks(0, 0, h100), Err(ERROR_INVALID_VALUE));
    }
}
