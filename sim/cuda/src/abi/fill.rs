//! Fills: bytes, halves and words, in one row or several; on the default stream and queued.
//!
//! The host waits for none of them, also not for those without `Async`, except when pinned host
//! memory is filled.

use super::stream::{pair, stream};
use crate::call;
use crate::engine::bytes::{self, Rows};
use crate::engine::guard::{self, Place};
use crate::engine::{Action, Body, Kind, Work};
use crate::entry::{Call, Wait, enter_waiting};
use crate::types::*;
use std::sync::Arc;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuMemsetD8_v2, "cuMemsetD8", 3020),
    call!(cuMemsetD8_v2_ptds, "cuMemsetD8", 7000).per_thread(),
    call!(cuMemsetD16_v2, "cuMemsetD16", 3020),
    call!(cuMemsetD16_v2_ptds, "cuMemsetD16", 7000).per_thread(),
    call!(cuMemsetD32_v2, "cuMemsetD32", 3020),
    call!(cuMemsetD32_v2_ptds, "cuMemsetD32", 7000).per_thread(),
    call!(cuMemsetD2D8_v2, "cuMemsetD2D8", 3020),
    call!(cuMemsetD2D8_v2_ptds, "cuMemsetD2D8", 7000).per_thread(),
    call!(cuMemsetD2D16_v2, "cuMemsetD2D16", 3020),
    call!(cuMemsetD2D16_v2_ptds, "cuMemsetD2D16", 7000).per_thread(),
    call!(cuMemsetD2D32_v2, "cuMemsetD2D32", 3020),
    call!(cuMemsetD2D32_v2_ptds, "cuMemsetD2D32", 7000).per_thread(),
    call!(cuMemsetD8Async, 3020),
    call!(cuMemsetD8Async_ptsz, "cuMemsetD8Async", 7000).per_thread(),
    call!(cuMemsetD16Async, 3020),
    call!(cuMemsetD16Async_ptsz, "cuMemsetD16Async", 7000).per_thread(),
    call!(cuMemsetD32Async, 3020),
    call!(cuMemsetD32Async_ptsz, "cuMemsetD32Async", 7000).per_thread(),
    call!(cuMemsetD2D8Async, 3020),
    call!(cuMemsetD2D8Async_ptsz, "cuMemsetD2D8Async", 7000).per_thread(),
    call!(cuMemsetD2D16Async, 3020),
    call!(cuMemsetD2D16Async_ptsz, "cuMemsetD2D16Async", 7000).per_thread(),
    call!(cuMemsetD2D32Async, 3020),
    call!(cuMemsetD2D32Async_ptsz, "cuMemsetD2D32Async", 7000).per_thread(),
];

/// Bytes that a fill writes in a microsecond of virtual time: 1 TB/s, a guess at device memory.
const BYTES_PER_US: f64 = 1_000_000.0;

/// What is to be filled.
struct Ask {
    at: u64,
    pitch: u64,
    /// Elements in a row.
    width: usize,
    height: usize,
    pattern: Vec<u8>,
}

/// The stream of a fill: none for the default stream of a synchronous form.
fn fill(name: &'static str, own: bool, queued: Option<CUstream>, ask: Ask) -> CUresult {
    let words = format!("at={:#x}, {}x{}", ask.at, ask.width, ask.height);
    enter_waiting(
        name,
        || words,
        |world| {
            let info = stream(world, queued.unwrap_or(0), own)?;
            if queued.is_none() {
                world.engine.synchronous(info.uid)?;
            }
            let unit = ask.pattern.len() as u64;
            let rows = Rows { width: ask.width as u64 * unit, height: ask.height as u64 };
            let uneven = |n: u64| !n.is_multiple_of(unit);
            let pitched = rows.height > 1;
            if uneven(ask.at) || (pitched && (uneven(ask.pitch) || ask.pitch < rows.width)) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            if rows.width == 0 || rows.height == 0 {
                return Ok(Wait::nothing());
            }
            let writes = rows.ranges(ask.at, ask.pitch, info.device, false);
            if !guard::accessible(&world.memory, &[], &writes) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let waits = queued.is_none() && guard::place(&world.memory, ask.at) == Place::Pinned;
            let body: Body = Arc::new(move |view| {
                // SAFETY: the engine has checked the range and holds the map still; alignment was
                // checked above.
                unsafe { bytes::fill(view, ask.at, ask.pitch, rows, &ask.pattern) };
                Ok(())
            });
            let kind = Kind::Memset;
            let action = Action::Work(Work { label: name, kind, reads: Vec::new(), writes, body });
            let cost_us = 1.0 + (rows.width * rows.height) as f64 / BYTES_PER_US;
            Ok(match world.engine.submit(info.uid, action, cost_us)? {
                Some(point) if waits => world.engine.wait_points(info.context, vec![point]),
                _ => Wait::nothing(),
            })
        },
    )
}

/// The four functions of one width: a row and rows, on the default stream and queued.
macro_rules! fills {
    (
        $value:ty, $what:literal,
        $row:ident: $n1:ident, $p1:ident, $row_later:ident: $n2:ident, $p2:ident,
        $rows:ident: $n3:ident, $p3:ident, $rows_later:ident: $n4:ident, $p4:ident
    ) => {
        unsafe fn $row(name: &'static str, own: bool, at: u64, v: $value, n: usize) -> CUresult {
            let pattern = v.to_ne_bytes().to_vec();
            fill(name, own, None, Ask { at, pitch: 0, width: n, height: 1, pattern })
        }

        pair! {
            #[doc = concat!("Fills ", $what, " on the default stream; the host does not wait.")]
            $n1, $p1, $row(at: CUdeviceptr, value: $value, count: usize)
        }

        unsafe fn $row_later(
            name: &'static str,
            own: bool,
            at: u64,
            v: $value,
            n: usize,
            stream: CUstream,
        ) -> CUresult {
            let pattern = v.to_ne_bytes().to_vec();
            fill(name, own, Some(stream), Ask { at, pitch: 0, width: n, height: 1, pattern })
        }

        pair! {
            #[doc = concat!("Queues a fill of ", $what, ".")]
            $n2, $p2, $row_later(at: CUdeviceptr, value: $value, count: usize, stream: CUstream)
        }

        unsafe fn $rows(
            name: &'static str,
            own: bool,
            at: u64,
            pitch: usize,
            v: $value,
            width: usize,
            height: usize,
        ) -> CUresult {
            let (pitch, pattern) = (pitch as u64, v.to_ne_bytes().to_vec());
            fill(name, own, None, Ask { at, pitch, width, height, pattern })
        }

        pair! {
            #[doc = concat!("Fills rows of ", $what, " on the default stream.")]
            $n3, $p3,
            $rows(at: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize)
        }

        #[expect(clippy::too_many_arguments, reason = "cuda.h's arguments and two more")]
        unsafe fn $rows_later(
            name: &'static str,
            own: bool,
            at: u64,
            pitch: usize,
            v: $value,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> CUresult {
            let (pitch, pattern) = (pitch as u64, v.to_ne_bytes().to_vec());
            fill(name, own, Some(stream), Ask { at, pitch, width, height, pattern })
        }

        pair! {
            #[doc = concat!("Queues a fill of rows of ", $what, ".")]
            $n4, $p4,
            $rows_later(
                at: CUdeviceptr,
                pitch: usize,
                value: $value,
                width: usize,
                height: usize,
                stream: CUstream,
            )
        }
    };
}

fills! {
    u8, "bytes",
    bytes_now: cuMemsetD8_v2, cuMemsetD8_v2_ptds,
    bytes_later: cuMemsetD8Async, cuMemsetD8Async_ptsz,
    byte_rows_now: cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds,
    byte_rows_later: cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz
}

fills! {
    u16, "16-bit halves",
    halves_now: cuMemsetD16_v2, cuMemsetD16_v2_ptds,
    halves_later: cuMemsetD16Async, cuMemsetD16Async_ptsz,
    half_rows_now: cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds,
    half_rows_later: cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz
}

fills! {
    u32, "32-bit words",
    words_now: cuMemsetD32_v2, cuMemsetD32_v2_ptds,
    words_later: cuMemsetD32Async, cuMemsetD32Async_ptsz,
    word_rows_now: cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds,
    word_rows_later: cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz
}
