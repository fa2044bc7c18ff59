//! Memories and contiguous caches by number, for programs that hold them through the C API.
//!
//! Owns each of them until it is let go. Promises that a number is never given twice, not even to
//! one of the other kind, so that a stale one is an error and nothing else; one that is let go
//! stays until calls that use it have ended. In a forked child every call is refused before a lock
//! is touched. Cost: a short lock.

use super::{ContiguousKv, KvMemory};
use crate::error::{Error, Result, Status};
use crate::pool::world;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static LAST: AtomicU64 = AtomicU64::new(0);

/// What is held by number: things of one kind.
#[derive(Debug)]
pub struct Live<T> {
    what: &'static str,
    live: Mutex<BTreeMap<u64, Arc<T>>>,
}

/// Memories behind caches.
pub static MEMORIES: Live<KvMemory> = Live::new("KV memory");
/// Caches with contiguous addresses.
pub static CONTIGUOUS: Live<ContiguousKv> = Live::new("contiguous KV cache");

impl<T> Live<T> {
    const fn new(what: &'static str) -> Live<T> {
        Live { what, live: Mutex::new(BTreeMap::new()) }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<T>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unknown(&self, number: u64) -> Error {
        let text = format!("no {} has the handle {number:#x}: never made, or destroyed", self.what);
        Error::new(Status::InvalidArgument, text)
    }

    /// Keeps one; its number, never 0.
    pub fn keep(&self, one: T) -> Result<u64> {
        world::check_world()?;
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.all().insert(number, Arc::new(one));
        Ok(number)
    }

    /// The one with this number.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] when there is none; [`Status::Forked`], [`Status::ShutDown`].
    pub fn get(&self, number: u64) -> Result<Arc<T>> {
        world::check_world()?;
        self.all().get(&number).cloned().ok_or_else(|| self.unknown(number))
    }

    /// Lets one go; it ends with the answer, or with the last call that uses it. Also after the
    /// library's end.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] when there is none; [`Status::Forked`].
    pub fn take(&self, number: u64) -> Result<Arc<T>> {
        self.take_when(number, |_| Ok(()))
    }

    /// [`Live::take`], unless `ready` has a reason against it: then it stays as it was.
    ///
    /// # Errors
    /// As [`Live::take`], and those of `ready`.
    pub fn take_when(&self, number: u64, ready: impl FnOnce(&T) -> Result<()>) -> Result<Arc<T>> {
        world::check_world().or_else(|error| match error.status() {
            Status::ShutDown => Ok(()),
            _ => Err(error),
        })?;
        let found = self.all().get(&number).cloned();
        ready(&*found.ok_or_else(|| self.unknown(number))?)?;
        let gone = self.all().remove(&number);
        gone.ok_or_else(|| self.unknown(number))
    }
}

/// Lets a memory go, once the copies that it has queued and not seen the end of are over.
///
/// # Errors
/// As [`Live::take`]; [`Status::Busy`], with the memory as it was, where
/// [`KvMemory::await_copies`] is refused.
pub fn take_memory(number: u64) -> Result<Arc<KvMemory>> {
    MEMORIES.take_when(number, |memory| match memory.await_copies().map_err(Error::from) {
        Err(error) if error.status() == Status::Busy => Err(error),
        _ => Ok(()),
    })
}
