//! Caches by number, for programs that hold them through the C API.
//!
//! Owns every such cache until it is let go. Promises that a number is never given twice, so that
//! a stale one is an error and nothing else, and that a cache in use stays until the call has
//! ended: who lets it go waits for that, and is refused while memory stands behind the cache. In a
//! forked child every call is refused before a lock is
//! touched. Cost: the check for a fork and an uncontended reader's lock, about 15 ns a call.

use super::KvCache;
use crate::error::{Error, Result, Status};
use crate::pool::world;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Caches that a process may hold at a time.
const MOST: usize = 256;
const SLOT_BITS: u32 = 8;

/// A cache and its number; number 0: none.
struct Slot {
    number: u64,
    cache: Option<Arc<KvCache>>,
}

static SLOTS: [RwLock<Slot>; MOST] = [const { RwLock::new(Slot { number: 0, cache: None }) }; MOST];

/// Caches ever kept: the upper bits of the next number.
static KEPT: AtomicU64 = AtomicU64::new(0);

fn unknown(number: u64) -> Error {
    let text = format!("no KV cache has the handle {number:#x}: never made, or destroyed");
    Error::new(Status::InvalidArgument, text)
}

/// Keeps a cache; its number, never 0.
///
/// # Errors
/// [`Status::Forked`] in a forked child, [`Status::ShutDown`] after the library's end,
/// [`Status::Limit`] when 256 are kept.
pub fn keep(cache: KvCache) -> Result<u64> {
    world::check_world()?;
    world::begin()?;
    for (at, slot) in SLOTS.iter().enumerate() {
        let is_used = |slot: &Slot| slot.cache.is_some();
        if is_used(&slot.read().unwrap_or_else(PoisonError::into_inner)) {
            continue;
        }
        // Calls with stale handles may hold it for a moment.
        let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
        if !is_used(&slot) {
            let generation = KEPT.fetch_add(1, Ordering::Relaxed) + 1;
            slot.number = generation << SLOT_BITS | at as u64;
            slot.cache = Some(Arc::new(cache));
            return Ok(slot.number);
        }
    }
    Err(Error::new(Status::Limit, format!("a process has at most {MOST} KV caches: destroy one")))
}

/// Uses the cache with this number.
///
/// # Errors
/// As [`keep`]; [`Status::InvalidArgument`] when there is none of this number; those of `f`.
#[inline]
pub fn with<R>(number: u64, f: impl FnOnce(&KvCache) -> Result<R>) -> Result<R> {
    world::check_world()?;
    let slot = SLOTS[number as usize % MOST].read().unwrap_or_else(PoisonError::into_inner);
    match &slot.cache {
        Some(cache) if slot.number == number => f(cache),
        _ => Err(unknown(number)),
    }
}

/// The cache with this number, for who holds it longer than a call.
///
/// # Errors
/// As [`with`].
pub fn share(number: u64) -> Result<Arc<KvCache>> {
    world::check_world()?;
    let slot = SLOTS[number as usize % MOST].read().unwrap_or_else(PoisonError::into_inner);
    match &slot.cache {
        Some(cache) if slot.number == number => Ok(Arc::clone(cache)),
        _ => Err(unknown(number)),
    }
}

/// Lets a cache go, once all calls that use it have ended; also after the library's end.
///
/// # Errors
/// [`Status::Forked`] and [`Status::InvalidArgument`] as [`with`]; [`Status::Busy`] while somebody
/// holds it by [`share`].
pub fn take(number: u64) -> Result<KvCache> {
    world::check_world().or_else(|error| match error.status() {
        Status::ShutDown => Ok(()),
        _ => Err(error),
    })?;
    let mut slot = SLOTS[number as usize % MOST].write().unwrap_or_else(PoisonError::into_inner);
    if slot.number != number {
        return Err(unknown(number));
    }
    let cache = slot.cache.take().ok_or_else(|| unknown(number))?;
    match Arc::try_unwrap(cache) {
        Ok(cache) => {
            slot.number = 0;
            Ok(cache)
        }
        Err(held) => {
            slot.cache = Some(held);
            let text = "memory stands behind the KV cache: destroy that first";
            Err(Error::new(Status::Busy, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Content, Element, Geometry, Order};
    use super::*;

    fn small() -> KvCache {
        let content = Content::Attention { window: 0 };
        let (layers, heads, key_size, value_size, block_tokens) = (1, 1, 1, 1, 4);
        let (element, order) = (Element::F16, Order::BlockOuter);
        let geometry =
            Geometry { layers, heads, key_size, value_size, block_tokens, element, content, order };
        KvCache::new(Config::new(geometry, 8)).expect("it makes sense")
    }

    #[test]
    fn a_number_is_good_for_one_cache() {
        let first = keep(small()).expect("room");
        assert_eq!(with(first, |cache| Ok(cache.stats().sequences)).expect("known"), 0);
        let status = |number| with(number, |_| Ok(())).err().map(|e| e.status());
        assert_eq!([0, 1, u64::MAX, first + 256].map(status), [Some(Status::InvalidArgument); 4]);
        let held = share(first).expect("known");
        assert_eq!(take(first).err().map(|e| e.status()), Some(Status::Busy));
        assert_eq!(status(first), None, "it is still there");
        drop(held);
        assert!(take(first).is_ok());
        assert_eq!(share(first).err().map(|e| e.status()), Some(Status::InvalidArgument));
        assert_eq!(take(first).err().map(|e| e.status()), Some(Status::InvalidArgument));
        let second = keep(small()).expect("room");
        assert_ne!(first, second);
        assert_eq!(status(first), Some(Status::InvalidArgument));
        assert!(take(second).is_ok());
    }

    #[test]
    fn who_lets_go_waits_for_calls() {
        static DONE: AtomicU64 = AtomicU64::new(0);
        let number = keep(small()).expect("room");
        let (inside, seen) = std::sync::mpsc::channel();
        let user = std::thread::spawn(move || {
            with(number, |cache| {
                inside.send(()).expect("the test waits");
                std::thread::sleep(std::time::Duration::from_millis(30));
                DONE.store(1, Ordering::SeqCst);
                Ok(cache.stats().sequences)
            })
        });
        seen.recv().expect("the user is inside");
        assert!(take(number).is_ok());
        assert_eq!(DONE.load(Ordering::SeqCst), 1, "the call was waited for");
        assert_eq!(user.join().expect("no panic").expect("it was there"), 0);
    }
}
