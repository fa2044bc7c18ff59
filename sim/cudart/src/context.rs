//! What is set for a device as a whole: flags, limits, the preferred cache, attributes.

use crate::entry::{export, place};
use crate::state;

/// `cudaDeviceMapHost`.
const MAP_HOST: u32 = 8;

export! {
    /// One number about a device.
    fn cudaDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) {
        let to = place(value)?;
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceGetAttribute(to, attribute, device)
    }

    /// A limit of the current device.
    fn cudaDeviceGetLimit(value: *mut usize, limit: u32) {
        state::ready()?.cuCtxGetLimit(place(value)?, limit)
    }

    /// Sets a limit of the current device.
    fn cudaDeviceSetLimit(limit: u32, value: usize) {
        state::ready()?.cuCtxSetLimit(limit, value)
    }

    /// The preferred split of cache and shared memory.
    fn cudaDeviceGetCacheConfig(config: *mut u32) {
        state::ready()?.cuCtxGetCacheConfig(place(config)?)
    }

    /// Sets it.
    fn cudaDeviceSetCacheConfig(config: u32) {
        state::ready()?.cuCtxSetCacheConfig(config)
    }

    /// The range of streams' priorities; either place may be null.
    fn cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) {
        state::ready()?.cuCtxGetStreamPriorityRange(least, greatest)
    }

    /// Lines of the cache that persist become ordinary ones.
    fn cudaCtxResetPersistingL2Cache() {
        state::ready()?.cuCtxResetPersistingL2Cache()
    }

    /// Flags of the thread's device, which is made ready with them.
    fn cudaSetDeviceFlags(flags: u32) {
        let driver = state::driver()?;
        driver.cuDevicePrimaryCtxSetFlags(state::current_device(driver), flags)?;
        state::ready().map(drop)
    }

    /// Flags of the thread's device; those of the current context if the program has made one by
    /// the driver. The runtime's own contexts map host memory.
    fn cudaGetDeviceFlags(flags: *mut u32) {
        let to = place(flags)?;
        let driver = state::driver()?;
        let context = state::context(driver)?;
        if context != 0 && !state::is_primary(context) {
            return driver.cuCtxGetFlags(to);
        }
        let mut active = 0;
        let device = state::current_device(driver);
        driver.cuDevicePrimaryCtxGetState(device, to, &mut active)?;
        *to |= MAP_HOST;
        Ok(())
    }

    /// Nothing is profiled.
    fn cudaProfilerStart() {
        Ok(())
    }

    /// Nothing is profiled.
    fn cudaProfilerStop() {
        Ok(())
    }
}
