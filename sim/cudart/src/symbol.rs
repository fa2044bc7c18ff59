//! Variables of the device: memory for them, made when it is first asked for, and copies.
//!
//! A variable begins as zeros: initial values stand in the program's binary, which nothing here
//! reads.

use crate::copy::{
    DEFAULT, DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, copy_later, copy_now,
};
use crate::driver::Driver;
use crate::entry::{export, place};
use crate::module::{Place, registered};
use crate::state;
use crate::types::*;

/// Where a variable lies on the current device, and its size: 13 if it is not registered.
unsafe fn locate(symbol: u64) -> Result<(u64, usize), Code> {
    let driver = state::ready()?;
    let context = state::context(driver)?;
    let generation = state::generation(state::current_device(driver));
    let mut all = registered();
    let variable = all.variables.get_mut(&(symbol as usize)).ok_or(ERROR_INVALID_SYMBOL)?;
    variable.places.retain(|place| place.context != context || place.generation == generation);
    if let Some(place) = variable.places.iter().find(|place| place.context == context) {
        return Ok((place.at, variable.bytes));
    }
    let at = state::uncaptured(driver, || zeros(driver, variable.bytes))?;
    variable.places.push(Place { context, generation, at });
    Ok((at, variable.bytes))
}

/// Memory of zeros, which are there when this returns: whatever stream the program uses next is
/// not ordered behind any of this library's.
fn zeros(driver: &Driver, bytes: usize) -> Result<u64, Code> {
    /// `cudaStreamNonBlocking`.
    const NON_BLOCKING: u32 = 1;
    let (mut at, mut stream) = (0, 0);
    // SAFETY: places of this frame; memory and a stream that were just made.
    unsafe {
        driver.cuMemAlloc(&mut at, bytes)?;
        let filled = driver.cuStreamCreate(&mut stream, NON_BLOCKING).and_then(|()| {
            let filled = driver.cuMemsetD8Async(false, at, 0, bytes, stream);
            let done = filled.and_then(|()| driver.cuStreamSynchronize(false, stream));
            done.and(driver.cuStreamDestroy(stream))
        });
        if let Err(code) = filled {
            let _ = driver.cuMemFree(at);
            return Err(code);
        }
    }
    Ok(at)
}

/// Frees what variables have in the current context.
pub fn forget(driver: &Driver, context: Context) -> Answer {
    let mut gone = Vec::new();
    for variable in registered().variables.values_mut() {
        let (here, elsewhere) = variable.places.iter().partition(|p| p.context == context);
        gone.extend::<Vec<Place>>(here);
        variable.places = elsewhere;
    }
    // SAFETY: this library's own memory, which nobody knows any more.
    gone.iter().try_for_each(|place| unsafe { driver.cuMemFree(place.at) })
}

/// Frees variables whose library goes away while the runtime runs. What is in contexts that were
/// reset since is gone; failures are nobody's.
pub fn give_back<'a>(places: impl Iterator<Item = &'a Place>) {
    let Some(driver) = state::started() else { return };
    let _ = state::uncaptured(driver, || {
        for place in places.filter(|place| state::lives(place.context, place.generation)) {
            let before = state::context(driver)?;
            // SAFETY: takes no pointer; the context lives, and the memory is this library's.
            unsafe {
                driver.cuCtxSetCurrent(place.context)?;
                let _ = driver.cuMemFree(place.at);
                driver.cuCtxSetCurrent(before)?;
            }
        }
        Ok(())
    });
}

/// The part of a variable that a copy means.
unsafe fn part(symbol: u64, bytes: usize, offset: usize) -> Result<u64, Code> {
    // SAFETY: the caller's promise.
    let (at, len) = unsafe { locate(symbol) }?;
    match offset.checked_add(bytes) {
        Some(end) if end <= len => Ok(at + offset as u64),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

/// A copy to a variable ends on the device, one from it begins there: 21 otherwise.
fn directed(kind: u32, with_host: u32) -> Answer {
    match kind == with_host || kind == DEVICE_TO_DEVICE || kind == DEFAULT {
        true => Ok(()),
        false => Err(ERROR_INVALID_MEMCPY_DIRECTION),
    }
}

export! {
    /// A variable's address on the current device.
    fn cudaGetSymbolAddress(to: *mut u64, symbol: u64) {
        *place(to)? = locate(symbol)?.0;
        Ok(())
    }

    /// A variable's size.
    fn cudaGetSymbolSize(to: *mut usize, symbol: u64) {
        let to = place(to)?;
        let all = registered();
        let variable = all.variables.get(&(symbol as usize)).ok_or(ERROR_INVALID_SYMBOL)?;
        *to = variable.bytes;
        Ok(())
    }

    /// Copies to a variable.
    pair own fn cudaMemcpyToSymbol, cudaMemcpyToSymbol_ptds(
        symbol: u64, from: u64, bytes: usize, offset: usize, kind: u32,
    ) {
        directed(kind, HOST_TO_DEVICE)?;
        copy_now(own, part(symbol, bytes, offset)?, from, bytes, kind)
    }

    /// Copies from a variable.
    pair own fn cudaMemcpyFromSymbol, cudaMemcpyFromSymbol_ptds(
        to: u64, symbol: u64, bytes: usize, offset: usize, kind: u32,
    ) {
        directed(kind, DEVICE_TO_HOST)?;
        copy_now(own, to, part(symbol, bytes, offset)?, bytes, kind)
    }

    /// Copies to a variable in a stream's order.
    pair own fn cudaMemcpyToSymbolAsync, cudaMemcpyToSymbolAsync_ptsz(
        symbol: u64, from: u64, bytes: usize, offset: usize, kind: u32, stream: Stream,
    ) {
        directed(kind, HOST_TO_DEVICE)?;
        copy_later(own, part(symbol, bytes, offset)?, from, bytes, kind, stream)
    }

    /// Copies from a variable in a stream's order.
    pair own fn cudaMemcpyFromSymbolAsync, cudaMemcpyFromSymbolAsync_ptsz(
        to: u64, symbol: u64, bytes: usize, offset: usize, kind: u32, stream: Stream,
    ) {
        directed(kind, DEVICE_TO_HOST)?;
        copy_later(own, to, part(symbol, bytes, offset)?, bytes, kind, stream)
    }
}
