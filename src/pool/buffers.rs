//! Buffers of one size, all allocated at the start: acquire and release never reach the pool.
//!
//! Owns the sets of the process by number, and in each set which buffers are in, with an event
//! recorded at each release: whoever acquires the buffer is ordered behind it, also when the
//! releasing stream is gone by then or its handle names another. Cost: a mutex, an event and a
//! scan of the free buffers.

use super::hot::SYNC_STREAM;
use super::{Pool, control, core::unknown_stream};
use crate::driver::{Driver, EventHandle, Scope, StreamHandle};
use crate::error::{Error, Result, Status};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer that is in.
#[derive(Clone, Copy)]
struct Free {
    address: usize,
    /// The stream that released it; whose work it may still be used by until `event`.
    by: Option<(u64, EventHandle)>,
}

/// One set.
struct Set {
    pool: Pool,
    /// The pool's, and still there when the pool has ended.
    driver: Arc<dyn Driver>,
    bytes: usize,
    free: Vec<Free>,
    out: Vec<usize>,
}

static SETS: Mutex<Option<HashMap<u64, Arc<Mutex<Set>>>>> = Mutex::new(None);

/// The most buffers in a set.
const COUNT_MAX: usize = 1 << 20;

/// Makes a set. Answers its number, which is never 0.
pub fn create(pool: u64, bytes: usize, count: usize) -> Result<u64> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    if bytes == 0 || count == 0 || count > COUNT_MAX {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("{count} buffers of {bytes} bytes: both are at least 1, at most {COUNT_MAX}"),
        ));
    }
    let pool = Pool::from_handle(pool)?;
    let driver = pool.driver()?;
    let mut set = Set { pool, driver, bytes, free: Vec::with_capacity(count), out: Vec::new() };
    for _ in 0..count {
        // Clean memory: no stream's work is behind it.
        match set.pool.alloc(bytes, SYNC_STREAM) {
            Ok(address) => set.free.push(Free { address, by: None }),
            Err(error) => {
                set.give_all()?;
                return Err(error);
            }
        }
    }
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) << 4;
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.get_or_insert_default().insert(number, Arc::new(Mutex::new(set)));
    Ok(number)
}

fn set(number: u64) -> Result<Arc<Mutex<Set>>> {
    super::world::check_world()?;
    let sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.as_ref().and_then(|s| s.get(&number)).cloned().ok_or_else(|| {
        Error::new(Status::InvalidArgument, "this handle names no buffer set: never made, or ended")
    })
}

/// Takes a buffer for `stream`. `Busy`: its tag is suspended.
pub fn acquire(number: u64, stream: u64) -> Result<usize> {
    let set = set(number)?;
    let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = set.pool.driver()?;
    if driver.stream_check(StreamHandle(stream)).is_err() {
        return Err(unknown_stream(stream));
    }
    set.pool.with_core(|core| core.outside_capture(stream))??;
    let near = |f: &Free| f.by.is_none_or(|(by, _)| by == stream);
    let index = set.free.iter().rposition(near).or(set.free.len().checked_sub(1));
    let Some(index) = index else {
        return Err(Error::new(
            Status::OutOfMemory,
            format!("all {} buffers of {} bytes are out", set.out.len(), set.bytes),
        ));
    };
    let Free { address, by } = set.free[index];
    set.pool.check_awake(address)?;
    if let Some((_, event)) = by {
        let passed = driver.event_query(event).map_err(control::driver_error)?;
        if !passed {
            let waits = driver.stream_wait(StreamHandle(stream), event);
            waits.map_err(control::driver_error)?;
        }
        set.pool.with_core(|core| core.lanes.give_event(event))?;
    }
    set.free.swap_remove(index);
    set.out.push(address);
    Ok(address)
}

/// Puts a buffer back, in `stream`'s order.
pub fn release(number: u64, address: usize, stream: u64) -> Result<()> {
    let set = set(number)?;
    let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
    if set.pool.driver()?.stream_check(StreamHandle(stream)).is_err() {
        return Err(unknown_stream(stream));
    }
    let Some(index) = set.out.iter().position(|&a| a == address) else {
        let length = set.bytes;
        let within = |a: usize| address.wrapping_sub(a) < length;
        let mut all = set.out.iter().copied().chain(set.free.iter().map(|f| f.address));
        let status = match all.find(|&a| within(a)) {
            Some(start) if start == address => Status::DoubleFree,
            Some(_) => Status::InteriorPointer,
            None => Status::NotOwned,
        };
        return Err(Error::new(status, format!("{address:#x} is not a buffer that is out")));
    };
    set.pool.with_core(|core| core.outside_capture(stream))??;
    let driver = set.pool.driver()?;
    let event = set.pool.with_core(|core| core.lanes.event(&*driver))?;
    let event = event.map_err(control::driver_error)?;
    if let Err(error) = driver.event_record(event, Scope::Stream(StreamHandle(stream))) {
        // A pool that ended meanwhile takes no event back.
        if set.pool.with_core(|core| core.lanes.give_event(event)).is_err()
            && let Err(error) = driver.event_destroy(event)
        {
            tracing::debug!(%error, "an event is lost with its pool");
        }
        return Err(control::driver_error(error));
    }
    set.out.swap_remove(index);
    set.free.push(Free { address, by: Some((stream, event)) });
    Ok(())
}

/// Ends a set whose buffers are all in, or whose pool has ended, which took those that are out.
pub fn destroy(number: u64) -> Result<()> {
    let found = set(number)?;
    let mut set = found.lock().unwrap_or_else(PoisonError::into_inner);
    let pool_lives = set.pool.with_core(|_| ()).is_ok();
    if pool_lives && !set.out.is_empty() {
        return Err(Error::new(Status::Busy, format!("{} buffers are out", set.out.len())));
    }
    set.give_all()?;
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.get_or_insert_default().remove(&number);
    Ok(())
}

impl Set {
    fn give_all(&mut self) -> Result<()> {
        while let Some(&Free { address, by }) = self.free.last() {
            // Behind all work of the device.
            match self.pool.dealloc(address, SYNC_STREAM) {
                // The pool's end took the memory, but not what the set has borrowed.
                Err(e) if e.status() == Status::InvalidPool => {
                    if let Some((_, event)) = by {
                        self.driver.event_destroy(event).map_err(control::driver_error)?;
                    }
                }
                freed => {
                    freed?;
                    if let Some((_, event)) = by {
                        self.pool.with_core(|core| core.lanes.give_event(event))?;
                    }
                }
            }
            self.free.pop();
        }
        Ok(())
    }
}
