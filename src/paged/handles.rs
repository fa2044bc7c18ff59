//! Memories by number, for programs that hold them through the C API.
//!
//! Owns every such memory until it is let go. Promises that a number is never given twice, so that
//! a stale one is an error and nothing else; one that is let go stays until calls that use it have
//! ended. In a forked child every call is refused before a lock is touched. Cost: a short lock.

use super::KvMemory;
use crate::error::{Error, Result, Status};
use crate::pool::world;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Memories {
    last: u64,
    live: BTreeMap<u64, Arc<KvMemory>>,
}

static LIVE: Mutex<Memories> = Mutex::new(Memories { last: 0, live: BTreeMap::new() });

fn memories() -> Result<MutexGuard<'static, Memories>> {
    world::check_world()?;
    Ok(LIVE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn unknown(number: u64) -> Error {
    let text = format!("no KV memory has the handle {number:#x}: never made, or destroyed");
    Error::new(Status::InvalidArgument, text)
}

/// Keeps a memory; its number, never 0.
pub fn keep(memory: KvMemory) -> Result<u64> {
    let mut memories = memories()?;
    memories.last += 1;
    let number = memories.last;
    memories.live.insert(number, Arc::new(memory));
    Ok(number)
}

/// The memory with this number.
///
/// # Errors
/// [`Status::InvalidArgument`] when there is none; [`Status::Forked`], [`Status::ShutDown`].
pub fn get(number: u64) -> Result<Arc<KvMemory>> {
    memories()?.live.get(&number).cloned().ok_or_else(|| unknown(number))
}

/// Lets a memory go; it ends with the answer, or with the last call that uses it. Also after the
/// library's end.
///
/// # Errors
/// [`Status::InvalidArgument`] when there is none; [`Status::Forked`]; [`Status::Busy`], with the
/// memory as it was, where [`KvMemory::await_copies`] is refused.
pub fn take(number: u64) -> Result<Arc<KvMemory>> {
    world::check_world().or_else(|error| match error.status() {
        Status::ShutDown => Ok(()),
        _ => Err(error),
    })?;
    let found = LIVE.lock().unwrap_or_else(PoisonError::into_inner).live.get(&number).cloned();
    let waited = found.ok_or_else(|| unknown(number))?.await_copies().map_err(Error::from);
    if let Err(error) = waited
        && error.status() == Status::Busy
    {
        return Err(error);
    }
    let gone = LIVE.lock().unwrap_or_else(PoisonError::into_inner).live.remove(&number);
    gone.ok_or_else(|| unknown(number))
}
