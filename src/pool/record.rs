//! What a program asks of a pool, written down: allocations, frees, uses, and the fences it tells.
//!
//! Owns the log of a recording. While one is open no slot of the pool is cached, so that every
//! operation comes by the core's lock, whose order is the log's. Promises that memory behaves as
//! ever: a recording watches, it changes no address's meaning. At most [`EVENTS_MAX`] events are
//! kept; a longer recording is an error at its end, not a shorter log. Cost: beginning stops all
//! threads once; an operation costs the slow path, and 40 bytes.

use super::Pool;
use super::core::Core;
use super::hot::SYNC_STREAM;
use super::order::stream_name;
use super::registry::with_caches_closed;
use crate::error::{Error, Result, Status};

/// The most events of one recording.
pub const EVENTS_MAX: usize = 1 << 24;

/// One thing that happened, in the order of the pool's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A block has come.
    Alloc {
        /// Its address.
        address: usize,
        /// Requested bytes.
        bytes: u64,
        /// The alignment asked for, in bytes; 0 where none was.
        align: u64,
        /// The stream it is for; [`SYNC_STREAM`] for `cudaMalloc`'s meaning.
        stream: u64,
        /// The thread's tag.
        tag: u8,
    },
    /// A block has gone.
    Free {
        /// Its address.
        address: usize,
        /// The stream in whose order; [`SYNC_STREAM`] for `cudaFree`'s meaning.
        stream: u64,
    },
    /// A block of no interest has come, where another may have been that was freed unseen.
    Gone {
        /// Its address.
        address: usize,
    },
    /// Work on another stream uses a block.
    Use {
        /// The block's address.
        address: usize,
        /// The stream.
        stream: u64,
    },
    /// Later work of one stream waits for the work queued on another so far.
    Fence {
        /// What is waited for.
        from: u64,
        /// Who waits.
        to: u64,
    },
}

/// An open recording of a pool.
#[derive(Debug)]
pub struct Recorder {
    /// The recording's number, by which it is ended.
    number: u64,
    /// The one stream that it is of; `None`: all.
    only: Option<u64>,
    events: Vec<Event>,
    overflowed: bool,
    events_max: usize,
}

impl Recorder {
    fn note(&mut self, event: Event) {
        let event = match event {
            Event::Alloc { stream, address, .. }
                if self.only.is_some_and(|only| only != stream) =>
            {
                Event::Gone { address }
            }
            event => event,
        };
        let wanted = match event {
            Event::Alloc { .. } | Event::Gone { .. } => true,
            Event::Fence { from, to } => self.only.is_none_or(|only| only == from || only == to),
            // Whose block it was, whoever reads the log knows.
            Event::Free { .. } | Event::Use { .. } => true,
        };
        if !wanted {
            return;
        }
        if self.events.len() >= self.events_max {
            self.overflowed = true;
            return;
        }
        self.events.push(event);
    }
}

impl Core {
    /// Writes an event down, if a recording is open.
    #[inline]
    pub(super) fn note_event(&mut self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note(event());
        }
    }

    /// Allocations so far that came by the lock.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// Whether every operation must come by the lock: no slot is cached then.
    pub(super) fn caches_nothing(&self) -> bool {
        self.recorder.is_some() || self.settings.always_slow()
    }

    /// Lets the open recording have so many events at most: a test's, which has no time for more.
    #[doc(hidden)]
    pub fn limit_recording(&mut self, events_max: usize) {
        if let Some(recorder) = &mut self.recorder {
            recorder.events_max = events_max;
        }
    }

    fn end_recording(&mut self, number: u64) -> Result<Vec<Event>> {
        match self.recorder.take() {
            Some(recorder) if recorder.number == number && recorder.overflowed => Err(Error::new(
                Status::Unsupported,
                format!("the recording is longer than {EVENTS_MAX} events; record one step"),
            )),
            Some(recorder) if recorder.number == number => Ok(recorder.events),
            other => {
                self.recorder = other;
                Err(Error::new(
                    Status::InvalidArgument,
                    "this recording is not open: it was never begun here, or has ended",
                ))
            }
        }
    }
}

impl Pool {
    /// Begins a recording under a number of the caller's: of one stream's allocations, or of all.
    ///
    /// # Errors
    /// [`Status::Busy`] while one is open on the pool; [`Status::Unsupported`] where threads cannot
    /// be stopped.
    pub fn begin_recording(&self, number: u64, only: Option<u64>) -> Result<()> {
        let only = only.map(stream_name);
        with_caches_closed(self.id, |core| {
            if core.recorder.is_some() {
                return Err(Error::new(
                    Status::Busy,
                    "a recording is open on this pool; end it before another begins",
                ));
            }
            let (events, overflowed, events_max) = (Vec::new(), false, EVENTS_MAX);
            let recorder = Recorder { number, only, events, overflowed, events_max };
            core.recorder = Some(Box::new(recorder));
            Ok(())
        })?
    }

    /// Ends it; what was written down.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] when this recording is not open; [`Status::Unsupported`] when
    /// it has more than [`EVENTS_MAX`] events, which are lost.
    pub fn end_recording(&self, number: u64) -> Result<Vec<Event>> {
        self.with_core(|core| core.end_recording(number))?
    }

    /// Makes later work of `to` wait for the work queued on `from` so far, and writes it down if a
    /// recording is open.
    ///
    /// # Errors
    /// As [`Pool::fence`].
    pub fn fence_recorded(&self, from: u64, to: u64) -> Result<()> {
        self.fence(from, to)?;
        let (from, to) = (stream_name(from), stream_name(to));
        self.with_core(|core| core.note_event(|| Event::Fence { from, to }))
    }
}

/// Whether a stream stands for `cudaFree`'s meaning, which orders nothing by itself.
pub fn is_sync(stream: u64) -> bool {
    stream == SYNC_STREAM
}
