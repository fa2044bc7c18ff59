//! Private pools: memory that PyTorch keeps for graphs, which replay at fixed addresses.
//!
//! PyTorch opens a private pool before a capture begins and gives a filter that says of a stream
//! whether it belongs to it. So there are three parts: from the opening on no fence is recorded
//! (a hold); the first block that comes or goes on a stream that the filter takes begins a capture
//! of the pool's on that stream; closing ends both. The captures' memory serves nothing else until
//! PyTorch has released the private pool as often as it has opened it. Memory that one capture
//! freed is not used by a later one of the same private pool. Cost while none is open: one load a
//! block.

use crate::error::{Result, Status};
use crate::pool::capture;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// PyTorch's name for a private pool (`MempoolId_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    /// A number of the process's graphs, or 0.
    pub first: u64,
    /// A number of the program's pools, or 0.
    pub second: u64,
}

/// Says whether a stream belongs to the private pool; its word comes first. Called with the lock
/// of the private pools held, so that none is closed meanwhile: it must not allocate.
pub type Filter = unsafe extern "C" fn(*mut c_void, *mut c_void) -> bool;

/// A private pool.
struct Private {
    device: i32,
    id: Id,
    /// While it is open: the filter and its word, and the hold.
    open: Option<(Filter, usize, u64)>,
    /// How often it was opened and not released.
    uses: usize,
    /// Streams of the present capture, each with its capture's number.
    streams: Vec<(u64, u64)>,
    /// Captures that have ended.
    ended: Vec<u64>,
}

static ALL: Mutex<Vec<Private>> = Mutex::new(Vec::new());
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn all() -> MutexGuard<'static, Vec<Private>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a private pool. One that is open already gets the new filter.
///
/// # Errors
/// As `forebay_capture_begin`.
pub fn begin(device: i32, id: Id, filter: Filter, word: usize) -> Result<()> {
    super::handle(device)?;
    let hold = capture::hold()?;
    let mut all = all();
    let at = all.iter().position(|p| p.device == device && p.id == id);
    let fresh =
        || Private { device, id, open: None, uses: 0, streams: Vec::new(), ended: Vec::new() };
    // Those opened last are asked first.
    let mut private = at.map_or_else(fresh, |at| all.remove(at));
    private.uses += 1;
    let before = private.open.replace((filter, word, hold));
    if let Some((_, _, hold)) = before {
        capture::unhold(hold);
    } else {
        OPEN.fetch_add(1, Ordering::Release);
    }
    all.push(private);
    Ok(())
}

/// Begins the capture of a stream that an open private pool's filter takes, once.
///
/// # Errors
/// As `forebay_capture_begin`.
pub fn look(device: i32, stream: u64) -> Result<()> {
    if OPEN.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut all = all();
    let has = |p: &Private| p.device == device && p.streams.iter().any(|s| s.0 == stream);
    if all.iter().any(has) {
        return Ok(());
    }
    let takes = |p: &&mut Private| {
        let Some((filter, word, _)) = p.open.filter(|_| p.device == device) else { return false };
        // SAFETY: it stays callable until the private pool is closed, which needs the lock.
        unsafe { filter(word as *mut c_void, stream as *mut c_void) }
    };
    // The one opened last comes first, as in PyTorch.
    if let Some(private) = all.iter_mut().rev().find(takes) {
        let number = capture::begin(stream)?;
        private.streams.push((stream, number));
    }
    Ok(())
}

/// Closes a private pool; one that is not open is left alone.
///
/// # Errors
/// The first failure of a capture's end; all are ended.
pub fn end(device: i32, id: Id) -> Result<()> {
    let mut all = all();
    let Some(private) = all.iter_mut().find(|p| p.device == device && p.id == id) else {
        return Ok(());
    };
    let Some((_, _, hold)) = private.open.take() else { return Ok(()) };
    OPEN.fetch_sub(1, Ordering::Release);
    let mut done = Ok(());
    for (_, number) in std::mem::take(&mut private.streams) {
        private.ended.push(number);
        done = done.and(capture::end(number));
    }
    capture::unhold(hold);
    drop(all);
    super::peers::open_waiting();
    done
}

/// PyTorch needs a private pool once less; after the last time its memory is everyone's. Where a
/// capture is open, or the driver fails, that happens later, by itself.
///
/// # Errors
/// `InvalidArgument` for a capture that no pool has any more; the others are released.
pub fn release(device: i32, id: Id) -> Result<()> {
    let mut all = all();
    let Some(at) = all.iter().position(|p| p.device == device && p.id == id) else {
        return Ok(());
    };
    let private = &mut all[at];
    private.uses = private.uses.saturating_sub(1);
    if private.uses > 0 || private.open.is_some() {
        return Ok(());
    }
    let gone = all.remove(at);
    drop(all);
    let mut done = Ok(());
    for number in gone.ended {
        match capture::release(number) {
            Err(error) if error.status() != Status::InvalidArgument => {
                tracing::debug!(%error, "a graph's memory is released later");
                capture::tell_gone(number);
            }
            released => done = done.and(released),
        }
    }
    done
}
