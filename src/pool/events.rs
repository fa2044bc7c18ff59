//! Events of a pool's device: points in streams' work that owners of memory ask about.
//!
//! Owns nothing: the pool lends its events and takes them back. Promises that asking never waits,
//! and that no event is recorded on a stream whose capture the pool knows of. Cost: a driver call
//! each, and the core's lock once for lending and once for the return.

use super::control::driver_error;
use super::core::unknown_stream;
use super::world::check_world;
use super::{Pool, registry};
use crate::driver::{Driver, EventHandle, Scope, StreamHandle};
use crate::error::{Result, Status};
use std::sync::Arc;

/// A point in a stream's work. Asking about it makes no driver call in a forked child. Goes back
/// to its pool when dropped. All methods may be called from
/// any thread.
pub struct Event {
    pool: u64,
    driver: Arc<dyn Driver>,
    handle: EventHandle,
}

impl Pool {
    /// The point in `stream`'s work that comes after all that is queued on it now.
    ///
    /// # Errors
    /// [`Status::InvalidStream`]; [`Status::Busy`] while the stream captures a graph; a driver
    /// call's failure.
    pub fn event(&self, stream: u64) -> Result<Event> {
        let handle = StreamHandle(if stream == 1 { 0 } else { stream });
        let (driver, lent) = self.with_core(|core| {
            core.check_context()?;
            core.outside_capture(stream)?;
            let driver = Arc::clone(&core.driver.0);
            let lent = core.lanes.event(&*driver).map_err(driver_error)?;
            Ok::<_, crate::error::Error>((driver, lent))
        })??;
        let event = Event { pool: self.id, driver, handle: lent };
        if event.driver.stream_check(handle).is_err() {
            return Err(unknown_stream(stream));
        }
        event.driver.event_record(lent, Scope::Stream(handle)).map_err(driver_error)?;
        Ok(event)
    }

    /// Fails while a stream captures a graph: what is queued on it then would be the graph's.
    pub fn outside_capture(&self, stream: u64) -> Result<()> {
        self.with_core(|core| core.outside_capture(stream))?
    }

    /// Queues a copy of `bytes` between addresses of the device or of pinned host memory, in
    /// `stream`'s order.
    ///
    /// # Safety
    /// Until it is made both ranges stay mapped and are the caller's: nobody else writes `from`'s,
    /// or reads or writes `to`'s, save in `stream`'s order.
    pub unsafe fn copy(&self, to: usize, from: usize, bytes: usize, stream: u64) -> Result<()> {
        let driver = self.driver()?;
        let stream = StreamHandle(if stream == 1 { 0 } else { stream });
        driver.copy(to, from, bytes, stream).map_err(driver_error)
    }
}

impl Pool {
    /// Waits for all work queued on a stream.
    pub fn stream_synchronize(&self, stream: u64) -> Result<()> {
        let stream = StreamHandle(if stream == 1 { 0 } else { stream });
        self.driver()?.stream_synchronize(stream).map_err(driver_error)
    }

    /// Waits for all work queued on the device, that of destroyed streams included.
    ///
    /// # Errors
    /// [`Status::Unsupported`] where the driver cannot; a driver call's failure.
    pub fn device_synchronize(&self) -> Result<()> {
        self.driver()?.synchronize().map_err(driver_error)
    }
}

impl Event {
    /// Makes later work of `stream` wait, on the device, for the work before it.
    pub fn holds_back(&self, stream: u64) -> Result<()> {
        check_world()?;
        let stream = StreamHandle(if stream == 1 { 0 } else { stream });
        self.driver.stream_wait(stream, self.handle).map_err(driver_error)
    }

    /// Whether all work before it is done. Never waits.
    pub fn passed(&self) -> Result<bool> {
        check_world()?;
        self.driver.event_query(self.handle).map_err(driver_error)
    }

    /// Waits until [`Event::passed`] would say true.
    pub fn wait(&self) -> Result<()> {
        check_world()?;
        self.driver.event_synchronize(self.handle).map_err(driver_error)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let pool = registry::pool(self.pool);
        let given =
            pool.and_then(|p| p.with_core(self.pool, |core| core.lanes.give_event(self.handle)));
        // The pool's end took its own events, but not what it had lent.
        if given.is_err_and(|error| error.status() == Status::InvalidPool)
            && let Err(error) = self.driver.event_destroy(self.handle)
        {
            tracing::debug!(%error, "an event of a pool that has ended was not destroyed");
        }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("handle", &self.handle).finish_non_exhaustive()
    }
}
