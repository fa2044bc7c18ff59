//! `FOREBAY_IPC=isolate`: every block has pages of its own.
//!
//! A page that is handed to another process shows it the block's neighbours too. In this mode each
//! allocation is whole pages at a page's start, so that there are none. Owns the lengths that were
//! asked for, which [`crate::sizes`] cannot tell from blocks so much longer. Cost: on average a
//! page's half for a large allocation and a page for a small one, and the pool's slow path; the
//! list keeps one entry for each address that was ever handed out.

use crate::pool::Export;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The page of all devices that CUDA maps memory of.
pub const PAGE_BYTES: usize = 2 << 20;

static ON: AtomicBool = AtomicBool::new(false);
static LENGTHS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// Blocks have pages of their own from now on.
pub fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

/// Whether they have.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// What is asked of the pool for a request; too much for any device where it overflows.
pub fn rounded(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes)
}

/// Keeps the length that a block was asked for.
pub fn note(address: usize, bytes: usize) {
    let mut lengths = LENGTHS.lock().unwrap_or_else(PoisonError::into_inner);
    lengths.get_or_insert_default().insert(address, bytes);
}

/// The length that a live block was asked for, if it was asked for in this mode.
pub fn requested(base: usize) -> Option<usize> {
    LENGTHS.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&base).copied()
}

/// Whether an export shows nothing but its block of `bytes` bytes.
pub fn is_alone(export: &Export, bytes: usize) -> bool {
    export.offset == 0 && export.bytes == rounded(bytes) as u64
}
