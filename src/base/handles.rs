//! Things by number, for programs that hold them through the C API.
//!
//! Owns every thing until it is let go. Promises that a number is never given twice, so that
//! a stale one is an error and nothing else, and that a thing in use stays while it is used. A
//! process that was forked while another thread held the lock gets an error, not a wait without
//! end. Cost: a short lock a call.

use crate::error::{Error, Result, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// All things of one kind.
#[derive(Debug)]
pub struct Handles<T> {
    /// What they are called, for messages.
    what: &'static str,
    kept: Mutex<Kept<T>>,
}

#[derive(Debug)]
struct Kept<T> {
    last: u64,
    live: BTreeMap<u64, Arc<T>>,
}

/// Milliseconds after which the lock's holder is taken to be a thread of before a fork: it is held
/// for microseconds.
const PATIENCE: u32 = 2000;

impl<T> Handles<T> {
    /// None yet.
    pub const fn new(what: &'static str) -> Handles<T> {
        Handles { what, kept: Mutex::new(Kept { last: 0, live: BTreeMap::new() }) }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Kept<T>>> {
        for turn in 0..PATIENCE {
            match self.kept.try_lock() {
                Ok(kept) => return Ok(kept),
                // The map is whole after every statement, so a panic elsewhere leaves it sound.
                Err(TryLockError::Poisoned(kept)) => return Ok(kept.into_inner()),
                Err(TryLockError::WouldBlock) if turn < 10 => std::thread::yield_now(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(Error::new(
            Status::Forked,
            format!(
                "the {}s' lock is not given back: this process was forked while another thread \
                 held it; use {}s before the fork or after exec",
                self.what, self.what
            ),
        ))
    }

    fn unknown(&self, number: u64) -> Error {
        let what = self.what;
        let text = format!("no {what} has the handle {number:#x}: it was never made, or destroyed");
        Error::new(Status::InvalidArgument, text)
    }

    /// Keeps a thing; its number, never 0.
    ///
    /// # Errors
    /// [`Status::Forked`] where the lock was held at a fork.
    pub fn keep(&self, thing: Arc<T>) -> Result<u64> {
        let mut kept = self.lock()?;
        kept.last += 1;
        let number = kept.last;
        kept.live.insert(number, thing);
        Ok(number)
    }

    /// The thing with this number.
    ///
    /// # Errors
    /// [`Status::Forked`] as [`Handles::keep`]; [`Status::InvalidArgument`] when there is none.
    pub fn get(&self, number: u64) -> Result<Arc<T>> {
        self.lock()?.live.get(&number).cloned().ok_or_else(|| self.unknown(number))
    }

    /// Whether `which` is true of any of them.
    ///
    /// # Errors
    /// As [`Handles::keep`].
    pub fn any(&self, which: impl Fn(&T) -> bool) -> Result<bool> {
        Ok(self.lock()?.live.values().any(|thing| which(thing)))
    }

    /// Lets a thing go; the last of its users drops it.
    ///
    /// # Errors
    /// As [`Handles::get`].
    pub fn let_go(&self, number: u64) -> Result<Arc<T>> {
        self.lock()?.live.remove(&number).ok_or_else(|| self.unknown(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_given_twice() {
        static WORDS: Handles<&str> = Handles::new("word");
        let first = WORDS.keep(Arc::new("one")).expect("kept");
        assert_eq!(*WORDS.get(first).expect("there"), "one");
        assert_eq!(*WORDS.let_go(first).expect("there"), "one");
        let second = WORDS.keep(Arc::new("two")).expect("kept");
        assert_ne!(first, second);
        let error = WORDS.get(first).expect_err("gone");
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.message().contains("no word has the handle"), "{error:?}");
    }
}
