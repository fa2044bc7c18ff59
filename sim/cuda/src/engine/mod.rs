//! The engine: streams, events, the scheduler that runs work late and out of order, captures.
//!
//! Its own lock, below the world's and above memory's. Its worker holds memory's read lock
//! while a piece of work runs, and no other. Streams keep their context's
//! [`ContextState`](crate::world::ContextState) to make its error stick.

pub mod capture;
pub mod event;
pub mod graph;
pub mod sched;
pub mod stream;

use crate::cost::Clock;
use crate::entry::Wait;
use crate::memory::Memory;
use crate::settings::Settings;
use crate::world::ContextState;
use std::sync::Arc;

/// The engine of one world.
pub struct Engine {}

impl Engine {
    /// An engine over this memory.
    pub fn new(_settings: &Settings, _memory: Arc<Memory>, _clock: Arc<Clock>) -> Arc<Engine> {
        Arc::new(Engine {})
    }

    /// Live counts for the report: streams, events, graphs, captures.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// A context has come to be.
    pub fn context_created(&self, _context: &Arc<ContextState>) {}

    /// What waits for all work queued in a context so far, on all its streams.
    pub fn wait_context(self: &Arc<Self>, _context: u64) -> Wait {
        Wait::nothing()
    }

    /// A context is gone, and its streams, events and queued work with it.
    pub fn context_destroyed(&self, _context: u64) {}

    /// Whether a call that is unsafe during a capture may go on in this thread: else 900, and
    /// the captures that forbid it are invalidated.
    pub fn check_capture(&self) -> Result<(), u32> {
        Ok(())
    }

    /// Runs up to `count` pieces of work; answers how many ran.
    pub fn step(&self, _count: u32) -> u32 {
        0
    }

    /// The world ends: queued work is dropped, the worker stops.
    pub fn stop(&self) {}
}
