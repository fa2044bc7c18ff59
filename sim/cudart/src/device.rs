//! Devices: how many, which is current, peers, versions, looking driver functions up.

use crate::driver;
use crate::entry::{export, place};
use crate::state;
use crate::symbol;
use crate::types::*;
use std::ffi::{c_char, c_void};

/// `cudaDriverEntryPointSymbolNotFound`.
const SYMBOL_NOT_FOUND: u32 = 1;
/// `cudaEnablePerThreadDefaultStream`.
const PER_THREAD: u64 = 2;

export! {
    /// How many devices there are: 100 and no count if there is none.
    fn cudaGetDeviceCount(count: *mut i32) {
        let to = place(count)?;
        *to = state::count(state::driver()?)?;
        Ok(())
    }

    /// Makes a device the thread's, and its primary context current.
    fn cudaSetDevice(device: i32) {
        state::choose(state::driver()?, device)
    }

    /// The device of the thread's current context, else the one it chose.
    fn cudaGetDevice(device: *mut i32) {
        let to = place(device)?;
        *to = state::current_device(state::driver()?);
        Ok(())
    }

    /// Starts a device; makes it current with 1 among `flags` left out of account.
    fn cudaInitDevice(device: i32, device_flags: u32, flags: u32) {
        let driver = state::driver()?;
        state::checked(driver, device)?;
        if flags > 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        if flags == 1 {
            driver.cuDevicePrimaryCtxSetFlags(device, device_flags)?;
        }
        state::primary(driver, device).map(drop)
    }

    /// Waits for all that was queued on the current device.
    fn cudaDeviceSynchronize() {
        state::ready()?.cuCtxSynchronize()
    }

    /// Ends all that is in the current device's primary context. Of a context that the program
    /// has made current by the driver only the runtime's own is ended: what it has for variables.
    fn cudaDeviceReset() {
        let driver = state::driver()?;
        let context = state::context(driver)?;
        if context != 0 && !state::is_primary(context) {
            return symbol::forget(driver, context);
        }
        state::reset(driver, state::current_device(driver))
    }

    /// Whether a device can reach another one's memory; never its own.
    fn cudaDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) {
        let to = place(can)?;
        let driver = state::driver()?;
        state::checked(driver, device)?;
        state::checked(driver, peer)?;
        driver.cuDeviceCanAccessPeer(to, device, peer)
    }

    /// Opens a peer's memory to the current device: 101 for itself.
    fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) {
        let driver = state::ready()?;
        state::checked(driver, peer)?;
        if peer == state::current_device(driver) {
            return Err(ERROR_INVALID_DEVICE);
        }
        driver.cuCtxEnablePeerAccess(state::primary(driver, peer)?, flags)
    }

    /// Takes that back; a device has no peer access to itself.
    fn cudaDeviceDisablePeerAccess(peer: i32) {
        let driver = state::ready()?;
        state::checked(driver, peer)?;
        if peer == state::current_device(driver) {
            return Err(ERROR_PEER_ACCESS_NOT_ENABLED);
        }
        driver.cuCtxDisablePeerAccess(state::primary(driver, peer)?)
    }

    /// One number about two devices.
    fn cudaDeviceGetP2PAttribute(value: *mut i32, attribute: u32, from: i32, to: i32) {
        state::driver()?.cuDeviceGetP2PAttribute(place(value)?, attribute, from, to)
    }

    /// A device's place on the bus.
    fn cudaDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32) {
        let driver = state::driver()?;
        state::checked(driver, device)?;
        driver.cuDeviceGetPCIBusId(place(id)?, len, device)
    }

    /// The device at a place on the bus.
    fn cudaDeviceGetByPCIBusId(device: *mut i32, id: *const c_char) {
        state::driver()?.cuDeviceGetByPCIBusId(place(device)?, id)
    }

    /// The driver's version; 0 when there is none.
    fn cudaDriverGetVersion(version: *mut i32) {
        let to = place(version)?;
        match state::library() {
            Ok(driver) => driver.cuDriverGetVersion(to),
            Err(ERROR_INSUFFICIENT_DRIVER) => {
                *to = 0;
                Ok(())
            }
            Err(code) => Err(code),
        }
    }

    /// This runtime's version.
    fn cudaRuntimeGetVersion(version: *mut i32) {
        *place(version)? = driver::version();
        Ok(())
    }

    /// A driver function of the runtime's own CUDA version.
    pair own fn cudaGetDriverEntryPoint, cudaGetDriverEntryPoint_ptsz(
        symbol: *const c_char, function: *mut *mut c_void, flags: u64, status: *mut u32,
    ) {
        let mut newest = 0;
        state::library()?.cuDriverGetVersion(&mut newest)?;
        look_up(own, symbol, function, newest.min(driver::version()), flags, status)
    }

    /// A driver function of a CUDA version.
    pair own fn cudaGetDriverEntryPointByVersion, cudaGetDriverEntryPointByVersion_ptsz(
        symbol: *const c_char, function: *mut *mut c_void, version: u32, flags: u64,
        status: *mut u32,
    ) {
        let version = i32::try_from(version).map_err(|_| ERROR_INVALID_VALUE)?;
        look_up(own, symbol, function, version, flags, status)
    }
}

/// Asks the driver; what it does not have is a null pointer and a word in `status`.
unsafe fn look_up(
    own: bool,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Answer {
    let to = place(function)?;
    if symbol.is_null() || flags > PER_THREAD {
        return Err(ERROR_INVALID_VALUE);
    }
    let flags = if flags == 0 && own { PER_THREAD } else { flags };
    let mut said = 0;
    let driver = state::library()?;
    // SAFETY: the caller's promise; not null.
    unsafe {
        *to = std::ptr::null_mut();
        let asked = driver.cuGetProcAddress(symbol, to, version, flags, &mut said);
        if asked == Err(ERROR_NOT_FOUND) {
            said = SYMBOL_NOT_FOUND;
        } else {
            asked?;
        }
        if !status.is_null() {
            *status = said;
        }
    }
    Ok(())
}
