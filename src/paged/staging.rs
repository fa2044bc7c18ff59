//! A ring of pinned buffers from which tables are copied to the device.
//!
//! Owns the buffers and an event for each that is in flight. Promises that a buffer is written only
//! when every copy queued from it has ended, as its event says; a buffer whose event could not be
//! recorded is in flight until one can, or, once its stream is gone, until the device has been
//! waited for. When all are in flight another is made, up to a limit; then the caller is told to
//! come again. Nothing else waits but the end of the ring, for what is in flight. Cost: a query a
//! buffer that is looked at.

use super::error::{MemoryError, Result};
use super::{wait_for_device, wait_for_stream};
use crate::error::{Error, Status};
use crate::pool::events::Event;
use crate::pool::hot::SYNC_STREAM;
use crate::pool::{Pool, devices};

/// What a buffer is doing.
#[derive(Debug)]
enum State {
    Free,
    /// In flight on this stream until the event has passed.
    Behind(Event, u64),
    /// In flight on this stream, with no event yet.
    Unmarked(u64),
}

#[derive(Debug)]
struct Buffer {
    address: usize,
    state: State,
}

/// The ring.
#[derive(Debug)]
pub(super) struct Ring {
    /// Where the buffers come from: the device's pool where the CPU may touch its memory, else the
    /// pool of pinned memory.
    source: Pool,
    /// Whose device makes the copies.
    pool: Pool,
    buffers: Vec<Buffer>,
    bytes: usize,
    most: usize,
    /// Where the last buffer was taken: the next is the one in flight longest.
    at: usize,
}

const ALL_IN_FLIGHT: MemoryError =
    MemoryError::Again("all staging buffers are in flight: call again when a copy has ended");

impl Ring {
    /// A ring of at most `most` buffers of `bytes` each, for copies to `pool`'s device; none is
    /// made yet.
    pub(super) fn new(pool: &Pool, bytes: usize, most: usize) -> Result<Ring> {
        let own = pool.driver()?.device().host_accessible;
        let number = if own { pool.id() } else { devices::host_pool()? };
        let source = Pool::from_number(number)?;
        let pool = Pool::from_number(pool.id())?;
        Ok(Ring { source, pool, buffers: Vec::new(), bytes, most, at: 0 })
    }

    /// Bytes of a buffer.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Buffers made so far, and those in flight as of the last look.
    pub(super) fn counts(&self) -> (usize, usize) {
        let busy = |buffer: &&Buffer| !matches!(buffer.state, State::Free);
        (self.buffers.len(), self.buffers.iter().filter(busy).count())
    }

    /// `count` buffers that nothing reads: their numbers, or none of them.
    pub(super) fn take(&mut self, pool: &Pool, count: usize) -> Result<Vec<usize>> {
        if count > self.most {
            return Err(MemoryError::Invalid(
                "the change needs more staging than the table has: bind it with more or larger \
                 buffers",
            ));
        }
        let mut free = Vec::with_capacity(count);
        let len = self.buffers.len();
        for step in 0..len {
            let at = (self.at + step) % len;
            if free.len() < count && self.buffers[at].settle(pool)? {
                free.push(at);
            }
        }
        while free.len() < count && self.buffers.len() < self.most {
            let address = self.source.alloc(self.bytes, SYNC_STREAM)?;
            free.push(self.buffers.len());
            self.buffers.push(Buffer { address, state: State::Free });
        }
        if free.len() < count {
            return Err(ALL_IN_FLIGHT);
        }
        self.at = free.last().map_or(0, |&last| (last + 1) % self.buffers.len());
        Ok(free)
    }

    /// Writes entries into a free buffer, from byte `offset` on. Answers their address.
    pub(super) fn write(&mut self, buffer: usize, offset: usize, entries: &[i32]) -> usize {
        let Buffer { address, state } = &self.buffers[buffer];
        let bytes = size_of_val(entries);
        assert!(matches!(state, State::Free) && offset + bytes <= self.bytes, "it is free");
        let to = std::ptr::with_exposed_provenance_mut::<i32>(address + offset);
        // SAFETY: the buffer's `bytes` bytes are this ring's, memory that the CPU may write, and no
        // copy reads them: `settle` has seen its event passed. Entries are multiples of 4 bytes
        // behind an address that is a multiple of 256.
        unsafe { std::ptr::copy_nonoverlapping(entries.as_ptr(), to, entries.len()) };
        address + offset
    }

    /// A copy from a buffer was queued on `stream`.
    pub(super) fn begin(&mut self, buffer: usize, stream: u64) {
        self.buffers[buffer].state = State::Unmarked(stream);
    }

    /// All copies from a buffer are queued: records the event that ends its flight.
    pub(super) fn end(&mut self, pool: &Pool, buffer: usize) -> Result<()> {
        self.buffers[buffer].mark(pool).map_err(Into::into)
    }

    /// Waits until nothing reads any buffer, as far as that can be waited for. Refused alone while
    /// a graph capture forbids a wait that is needed.
    pub(super) fn settle(&mut self) -> Result<()> {
        for buffer in &mut self.buffers {
            match buffer.end(&self.pool) {
                Ok(()) => buffer.state = State::Free,
                Err(error @ MemoryError::Again(_)) => return Err(error),
                // The ring's end tries again, and tells.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Buffer {
    /// Records an event behind the copies that have none.
    fn mark(&mut self, pool: &Pool) -> std::result::Result<(), Error> {
        if let State::Unmarked(stream) = self.state {
            self.state = State::Behind(pool.event(stream)?, stream);
        }
        Ok(())
    }

    /// Waits until nothing reads the buffer, by whatever can be waited for.
    fn end(&mut self, pool: &Pool) -> Result<()> {
        if let Err(error) = self.mark(pool) {
            tracing::debug!(%error, "the stream is waited for instead of an event");
        }
        let stream = match &self.state {
            State::Free => return Ok(()),
            State::Behind(event, _) if event.wait().is_ok() => return Ok(()),
            State::Behind(_, stream) | State::Unmarked(stream) => *stream,
        };
        wait_for_stream(pool, stream)
    }

    /// Whether nothing reads the buffer now.
    fn settle(&mut self, pool: &Pool) -> Result<bool> {
        match self.mark(pool) {
            Ok(()) => {}
            // No event will ever tell, so the device is asked; not while that would end a capture.
            Err(error) if error.status() == Status::InvalidStream => match wait_for_device(pool) {
                Ok(()) => self.state = State::Free,
                Err(MemoryError::Again(_)) => return Ok(false),
                Err(error) => return Err(error),
            },
            Err(error) => {
                tracing::warn!(%error, "a staging buffer has no event yet");
                return Ok(false);
            }
        }
        match &self.state {
            State::Free => {}
            State::Behind(event, _) if event.passed()? => self.state = State::Free,
            State::Behind(..) | State::Unmarked(_) => return Ok(false),
        }
        Ok(true)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for mut buffer in self.buffers.drain(..) {
            let ended = buffer.end(&self.pool);
            let free = || Ok(self.source.dealloc(buffer.address, SYNC_STREAM)?);
            let freed: Result<()> = ended.and_then(|()| free());
            if let Err(error) = freed {
                tracing::warn!(%error, "a staging buffer was not given back");
            }
        }
    }
}
