//! Which devices reach each other's memory: all that PyTorch uses, as far as the machine lets them.
//! CUDA's own switch for that, which PyTorch turns, has no effect on memory that is mapped.
//!
//! Owns the pairs that are still to be opened: while a graph capture is open no peer can be
//! enabled, so they wait for the end of a private pool or the next device's first use. Promises
//! that what is refused for good is told, and that the devices work then, closed to each other.
//! Must not make a pool. Cost: a driver call or two a pair, once; else a load.

use super::{DEVICES_MAX, made};
use crate::error::{Result, Status};
use crate::pool::{Pool, capture};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The stream of a device that PyTorch uses most: its first tensor finds the mapped page.
const DEFAULT_STREAM: u64 = 0;

/// Devices whose memory is to be opened, each with the device that is to reach it.
static WAITING: Mutex<Vec<(i32, i32)>> = Mutex::new(Vec::new());
/// How many those are, for a look without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Opens a device that has a pool now to all others that have one, and those to it.
pub(super) fn open(number: i32) {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    // A device whose pool has ended is opened when its next one is made.
    let others = (0..DEVICES_MAX as i32).filter(|&other| other != number && made(other).is_some());
    for pair in others.flat_map(|other| [(number, other), (other, number)]) {
        if !waiting.contains(&pair) {
            waiting.push(pair);
        }
    }
    COUNT.store(waiting.len(), Ordering::Relaxed);
    drop(waiting);
    open_waiting();
}

/// Opens what could not be opened before, as far as that is possible now. To be called without the
/// lock of the private pools: it may allocate.
pub(super) fn open_waiting() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.retain(|&(from, to)| must_wait(from, to));
    COUNT.store(waiting.len(), Ordering::Relaxed);
}

/// Opens the memory of `from` to `to`. Whether that has to be tried again.
fn must_wait(from: i32, to: i32) -> bool {
    let (Some(pool), Some(_)) = (made(from), made(to)) else { return false };
    let Err(error) = enable(&pool, to.unsigned_abs()) else { return false };
    match error.status() {
        Status::Busy => {
            tracing::debug!(from, to, %error, "memory is opened to the other device later");
            return true;
        }
        // PyTorch asks CUDA the same, and copies through the host then.
        Status::Unsupported => {
            tracing::debug!(from, to, %error, "memory is not open to the other device");
        }
        _ => tracing::warn!(from, to, %error, "memory is not open to the other device"),
    }
    false
}

/// Makes a device a peer. A mapping shows whether the driver does what it says it can: a pool that
/// has none would be of no use once the first one is refused.
fn enable(pool: &Pool, to: u32) -> Result<()> {
    let is_bare = pool.stats()?.mapped_bytes == 0 && !capture::any_open();
    // Where there is no room for it nothing is shown, and the driver is believed.
    let proof = if is_bare { pool.alloc(pool.page_bytes()?, DEFAULT_STREAM).ok() } else { None };
    let enabled = pool.enable_peer(to);
    if let Some(proof) = proof {
        pool.dealloc(proof, DEFAULT_STREAM)?;
    }
    enabled
}
