//! The memory of the simulated driver, as the engine asks it.
//!
//! Owns the translation between the two rooms: nothing else of the engine knows memory's types.
//! Promises that a copy may be made by the device it runs on or by the one that the memory lies
//! in (each has a copy engine), while a kernel, a fill and a stream memory operation need access
//! of their own device. Cost: one check a range.

use super::{MemoryCheck, Range, RangeFault, View};
use crate::memory::{self, Memory};

/// Whether a range may be touched now.
fn check(view: &memory::View<'_>, range: &Range, write: bool) -> Result<(), RangeFault> {
    let part = memory::Range { start: range.start, len: range.len };
    let device = u32::try_from(range.device).unwrap_or(u32::MAX);
    let Err(denied) = view.check(device, part, write) else { return Ok(()) };
    if range.copy
        && let Some(owner) = view.device_of(denied.range.start)
        && owner != device
        && view.check(owner, part, write).is_ok()
    {
        return Ok(());
    }
    Err(RangeFault { range: *range, write, why: denied.to_string() })
}

fn check_all(view: &memory::View<'_>, reads: &[Range], writes: &[Range]) -> Result<(), RangeFault> {
    reads.iter().try_for_each(|r| check(view, r, false))?;
    writes.iter().try_for_each(|r| check(view, r, true))
}

impl MemoryCheck for Memory {
    fn guarded(
        &self,
        reads: &[Range],
        writes: &[Range],
        body: &mut dyn FnMut(View<'_>),
    ) -> Result<(), RangeFault> {
        let view = self.view();
        check_all(&view, reads, writes)?;
        body(&|at| view.host_address(at));
        Ok(())
    }

    fn free(&self, at: u64) {
        // A block that cuMemFree has freed meanwhile is refused, and reported as a double free.
        let _ = self.change(0, |space| space.free(at));
    }

    fn back(&self, at: u64) -> Result<(), super::Code> {
        self.change(0, |space| space.graph_back(at))
    }

    fn unback(&self, at: u64) {
        // The host's limit is reported by itself, and the block keeps its pages.
        let _ = self.change(0, |space| space.graph_unback(at));
    }

    fn retire(&self, at: u64) {
        // As above: the block then stays.
        let _ = self.change(0, |space| space.graph_retire(at));
    }

    fn trim(&self, device: i32) {
        let device = u32::try_from(device).unwrap_or(u32::MAX);
        let _ = self.change(0, |space| {
            space.graph_trim(device);
            Ok(())
        });
    }

    fn left(&self, device: i32) -> u64 {
        let device = u32::try_from(device).unwrap_or(u32::MAX);
        self.ask(|space| Ok(space.graph_left(device))).unwrap_or(0)
    }
}

/// Whether ranges may be touched at the time of a call.
pub fn accessible(memory: &Memory, reads: &[Range], writes: &[Range]) -> bool {
    check_all(&memory.view(), reads, writes).is_ok()
}

/// What an address is to a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Device memory, mapped or only reserved.
    Device,
    /// Host memory that devices reach.
    Pinned,
    /// The program's own memory.
    Pageable,
}

/// What an address is.
pub fn place(memory: &Memory, at: u64) -> Place {
    let view = memory.view();
    if view.is_host(at) {
        Place::Pinned
    } else if view.is_device(at) {
        Place::Device
    } else {
        Place::Pageable
    }
}
