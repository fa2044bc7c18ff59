//! Variables of the device: memory for them, made when it is first asked for, and copies.
//!
//! A variable begins as zeros: initial values stand in the program's binary, which nothing here
//! reads.

use crate::copy::{copy_later, copy_now};
use crate::entry::{export, place};
use crate::module::registered;
use crate::state;
use crate::types::*;

/// Where a variable lies on the current device, and its size: 13 if it is not registered.
unsafe fn locate(symbol: u64) -> Result<(u64, usize), Code> {
    let driver = state::ready()?;
    let device = state::current_device(driver);
    let mut all = registered();
    let variable = all.variables.get_mut(&(symbol as usize)).ok_or(ERROR_INVALID_SYMBOL)?;
    let now = state::generation(device);
    variable.places.retain(|(of, generation, _)| *of != device || *generation == now);
    if let Some((_, _, at)) = variable.places.iter().find(|(of, ..)| *of == device) {
        return Ok((*at, variable.bytes));
    }
    let mut at = 0;
    // SAFETY: a place of this frame; memory that was just made.
    unsafe {
        driver.cuMemAlloc(&mut at, variable.bytes)?;
        driver.cuMemsetD8(false, at, 0, variable.bytes)?;
    }
    variable.places.push((device, now, at));
    Ok((at, variable.bytes))
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
        copy_now(own, part(symbol, bytes, offset)?, from, bytes, kind)
    }

    /// Copies from a variable.
    pair own fn cudaMemcpyFromSymbol, cudaMemcpyFromSymbol_ptds(
        to: u64, symbol: u64, bytes: usize, offset: usize, kind: u32,
    ) {
        copy_now(own, to, part(symbol, bytes, offset)?, bytes, kind)
    }

    /// Copies to a variable in a stream's order.
    pair own fn cudaMemcpyToSymbolAsync, cudaMemcpyToSymbolAsync_ptsz(
        symbol: u64, from: u64, bytes: usize, offset: usize, kind: u32, stream: Stream,
    ) {
        copy_later(own, part(symbol, bytes, offset)?, from, bytes, kind, stream)
    }

    /// Copies from a variable in a stream's order.
    pair own fn cudaMemcpyFromSymbolAsync, cudaMemcpyFromSymbolAsync_ptsz(
        to: u64, symbol: u64, bytes: usize, offset: usize, kind: u32, stream: Stream,
    ) {
        copy_later(own, to, part(symbol, bytes, offset)?, bytes, kind, stream)
    }
}
