//! Memory: the address map, pages, mappings, plain allocations, what may be touched by whom.
//!
//! One lock of its own (readers: running work; writer: whatever changes the map), below the
//! world's and the engine's.

pub mod page;
pub mod plain;
pub mod share;
pub mod space;
pub mod vmm;

use crate::settings::Settings;
use std::sync::Arc;

/// All memory of one world.
pub struct Memory {}

impl Memory {
    /// Memory as the settings describe it.
    pub fn new(_settings: &Settings) -> Result<Arc<Memory>, String> {
        Ok(Arc::new(Memory {}))
    }

    /// Live counts for the report: reservations, handles, mappings, allocations, exported fds.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Whether `accessor` may reach plain memory of `owner`, both devices.
    pub fn set_peer(&self, _accessor: u32, _owner: u32, _may: bool) {}

    /// Records what is not given back as misuse, `leak at exit`.
    pub fn record_leaks(&self) {}

    /// A context is gone: its plain allocations go with it. Handles from `cuMemCreate` stay.
    pub fn context_destroyed(&self, _context: u64) {}
}
