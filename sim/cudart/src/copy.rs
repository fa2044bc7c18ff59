//! Copies and fills.
//!
//! The kind of a copy chooses the driver's function: it then checks the two ends itself. The kind
//! "default" leaves both to the driver.

use crate::driver::Driver;
use crate::entry::export;
use crate::state;
use crate::types::*;

/// `cudaMemcpyKind`.
const HOST_TO_HOST: u32 = 0;
pub const HOST_TO_DEVICE: u32 = 1;
pub const DEVICE_TO_HOST: u32 = 2;
pub const DEVICE_TO_DEVICE: u32 = 3;
pub const DEFAULT: u32 = 4;

/// `CUmemorytype`.
const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;
const TYPE_UNIFIED: u32 = 4;

export! {
    /// Copies, as synchronous as the two ends make it.
    pair own fn cudaMemcpy, cudaMemcpy_ptds(to: u64, from: u64, bytes: usize, kind: u32) {
        copy_now(own, to, from, bytes, kind)
    }

    /// Copies in a stream's order.
    pair own fn cudaMemcpyAsync, cudaMemcpyAsync_ptsz(
        to: u64, from: u64, bytes: usize, kind: u32, stream: Stream,
    ) {
        copy_later(own, to, from, bytes, kind, stream)
    }

    /// Copies rows.
    pair own fn cudaMemcpy2D, cudaMemcpy2D_ptds(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize,
        kind: u32,
    ) {
        let driver = state::ready()?;
        match rows((to, to_pitch), (from, from_pitch), width, height, kind)? {
            Some(rows) => driver.cuMemcpy2DUnaligned(own, &rows),
            None => state::healthy(driver),
        }
    }

    /// Copies rows in a stream's order.
    pair own fn cudaMemcpy2DAsync, cudaMemcpy2DAsync_ptsz(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize,
        kind: u32, stream: Stream,
    ) {
        let driver = state::ready()?;
        match rows((to, to_pitch), (from, from_pitch), width, height, kind)? {
            Some(rows) => driver.cuMemcpy2DAsync(own, &rows, stream),
            None => state::healthy(driver),
        }
    }

    /// Copies between two devices.
    fn cudaMemcpyPeer(to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize) {
        let (driver, to_context, from_context) = both(to_device, from_device)?;
        driver.cuMemcpyPeer(false, to, to_context, from, from_context, bytes)
    }

    /// Copies between two devices in a stream's order.
    fn cudaMemcpyPeerAsync(
        to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize, stream: Stream,
    ) {
        let (driver, to_context, from_context) = both(to_device, from_device)?;
        driver.cuMemcpyPeerAsync(false, to, to_context, from, from_context, bytes, stream)
    }

    /// Fills bytes.
    pair own fn cudaMemset, cudaMemset_ptds(to: u64, value: i32, bytes: usize) {
        let driver = state::ready()?;
        match bytes {
            0 => state::healthy(driver),
            _ => driver.cuMemsetD8(own, to, value as u8, bytes),
        }
    }

    /// Fills bytes in a stream's order.
    pair own fn cudaMemsetAsync, cudaMemsetAsync_ptsz(
        to: u64, value: i32, bytes: usize, stream: Stream,
    ) {
        let driver = state::ready()?;
        match bytes {
            0 => state::healthy(driver),
            _ => driver.cuMemsetD8Async(own, to, value as u8, bytes, stream),
        }
    }

    /// Fills rows.
    pair own fn cudaMemset2D, cudaMemset2D_ptds(
        to: u64, pitch: usize, value: i32, width: usize, height: usize,
    ) {
        let driver = state::ready()?;
        match width == 0 || height == 0 {
            true => state::healthy(driver),
            false => driver.cuMemsetD2D8(own, to, pitch, value as u8, width, height),
        }
    }

    /// Fills rows in a stream's order.
    pair own fn cudaMemset2DAsync, cudaMemset2DAsync_ptsz(
        to: u64, pitch: usize, value: i32, width: usize, height: usize, stream: Stream,
    ) {
        let driver = state::ready()?;
        match width == 0 || height == 0 {
            true => state::healthy(driver),
            false => driver.cuMemsetD2D8Async(own, to, pitch, value as u8, width, height, stream),
        }
    }
}

/// A copy at once.
///
/// # Safety
///
/// Both ends hold `bytes` bytes.
pub unsafe fn copy_now(own: bool, to: u64, from: u64, bytes: usize, kind: u32) -> Answer {
    let driver = state::ready()?;
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            HOST_TO_HOST..=DEFAULT if bytes == 0 => state::healthy(driver),
            HOST_TO_HOST | DEFAULT => driver.cuMemcpy(own, to, from, bytes),
            HOST_TO_DEVICE => driver.cuMemcpyHtoD(own, to, from, bytes),
            DEVICE_TO_HOST => driver.cuMemcpyDtoH(own, to, from, bytes),
            DEVICE_TO_DEVICE => driver.cuMemcpyDtoD(own, to, from, bytes),
            _ => Err(ERROR_INVALID_MEMCPY_DIRECTION),
        }
    }
}

/// A copy in a stream's order.
///
/// # Safety
///
/// Both ends hold `bytes` bytes until the copy is done.
pub unsafe fn copy_later(
    own: bool,
    to: u64,
    from: u64,
    bytes: usize,
    kind: u32,
    stream: Stream,
) -> Answer {
    let driver = state::ready()?;
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            HOST_TO_HOST..=DEFAULT if bytes == 0 => state::healthy(driver),
            HOST_TO_HOST | DEFAULT => driver.cuMemcpyAsync(own, to, from, bytes, stream),
            HOST_TO_DEVICE => driver.cuMemcpyHtoDAsync(own, to, from, bytes, stream),
            DEVICE_TO_HOST => driver.cuMemcpyDtoHAsync(own, to, from, bytes, stream),
            DEVICE_TO_DEVICE => driver.cuMemcpyDtoDAsync(own, to, from, bytes, stream),
            _ => Err(ERROR_INVALID_MEMCPY_DIRECTION),
        }
    }
}

/// The driver's description of a copy of rows; nothing when there is nothing to copy.
fn rows(
    to: (u64, usize),
    from: (u64, usize),
    width: usize,
    height: usize,
    kind: u32,
) -> Result<Option<Rows>, Code> {
    let (src_type, dst_type) = match kind {
        HOST_TO_HOST => (TYPE_HOST, TYPE_HOST),
        HOST_TO_DEVICE => (TYPE_HOST, TYPE_DEVICE),
        DEVICE_TO_HOST => (TYPE_DEVICE, TYPE_HOST),
        DEVICE_TO_DEVICE => (TYPE_DEVICE, TYPE_DEVICE),
        DEFAULT => (TYPE_UNIFIED, TYPE_UNIFIED),
        _ => return Err(ERROR_INVALID_MEMCPY_DIRECTION),
    };
    if width == 0 || height == 0 {
        return Ok(None);
    }
    if to.1 < width || from.1 < width {
        return Err(ERROR_INVALID_PITCH_VALUE);
    }
    let end = |kind, at| if kind == TYPE_HOST { (at, 0) } else { (0, at) };
    let (src_host, src_device) = end(src_type, from.0);
    let (dst_host, dst_device) = end(dst_type, to.0);
    Ok(Some(Rows {
        src_x: 0,
        src_y: 0,
        src_type,
        src_host,
        src_device,
        src_array: 0,
        src_pitch: from.1,
        dst_x: 0,
        dst_y: 0,
        dst_type,
        dst_host,
        dst_device,
        dst_array: 0,
        dst_pitch: to.1,
        width,
        height,
    }))
}

/// The driver, and the primary contexts of two devices.
fn both(to: i32, from: i32) -> Result<(&'static Driver, Context, Context), Code> {
    let driver = state::ready()?;
    state::checked(driver, to)?;
    state::checked(driver, from)?;
    Ok((driver, state::primary(driver, to)?, state::primary(driver, from)?))
}
