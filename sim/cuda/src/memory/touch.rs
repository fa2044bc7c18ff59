//! Who may touch what, and what an address is.
//!
//! Owns nothing: it reads the map. Promises that a check is exact to the byte for plain memory
//! and to the mapping for virtual memory, and that a denial says what was there before.
//! Cost: one ordered look-up for each mapping or block in the range.

use super::host::{HostBlock, HostKind, READ_ONLY};
use super::page::{PhysId, Place};
use super::plain::{Block, Kind, plain_prop};
use super::space::Space;
use super::vmm::Mapping;
use super::{Gone, Range};
use crate::types::*;
use std::fmt;
use std::sync::RwLockReadGuard;

/// Why a range may not be touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Nothing is there, and nothing was lately.
    NeverMapped,
    /// What was there has ended.
    Gone(Gone),
    /// It is there, but not for this device.
    NoAccess,
    /// It may be read only.
    ReadOnly,
}

/// A denied access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied {
    /// The first part that may not be touched.
    pub range: Range,
    /// The device that would.
    pub device: u32,
    /// Whether it would write.
    pub write: bool,
    /// Why not.
    pub cause: Cause,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.write { "write" } else { "read" };
        write!(f, "device {} would {verb} {}: ", self.device, self.range)?;
        match self.cause {
            Cause::NeverMapped => write!(f, "nothing is mapped there"),
            Cause::Gone(gone) => write!(f, "it {gone}"),
            Cause::NoAccess => write!(f, "the device has no access"),
            Cause::ReadOnly => write!(f, "it may be read only"),
        }
    }
}

/// What is at an address.
#[derive(Clone, Copy, Debug)]
pub enum Spot<'a> {
    /// A mapping of virtual memory, and where it starts.
    Mapped(u64, &'a Mapping),
    /// A plain block, and where it starts.
    Plain(u64, &'a Block),
    /// Host memory that devices can reach, and where it starts.
    Host(u64, &'a HostBlock),
}

impl Spot<'_> {
    /// The first address behind it.
    fn end(&self) -> u64 {
        match self {
            Spot::Mapped(start, m) => start + m.len,
            Spot::Plain(start, b) => start + b.len,
            Spot::Host(start, b) => start + b.len,
        }
    }
}

impl Space {
    /// What is at an address, if anything.
    pub fn spot(&self, at: u64) -> Option<Spot<'_>> {
        if let Some((start, mapping)) = self.mapping_at(at) {
            return Some(Spot::Mapped(start, mapping));
        }
        if let Some((start, block)) = self.plain.block_at(at) {
            return Some(Spot::Plain(start, block));
        }
        self.host_at(at).map(|(start, block)| Spot::Host(start, block))
    }

    /// What a device may do at a spot, as `CU_MEM_ACCESS_FLAGS_*`.
    pub fn rights(&self, device: u32, spot: &Spot<'_>) -> u8 {
        match spot {
            Spot::Mapped(_, m) => m.access.get(device as usize).copied().unwrap_or(0),
            Spot::Plain(_, b) => self.plain.rights(device, b),
            Spot::Host(_, b) if b.kind == HostKind::Registered && b.flags & READ_ONLY != 0 => {
                CU_MEM_ACCESS_FLAGS_PROT_READ as u8
            }
            Spot::Host(..) => CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u8,
        }
    }

    /// As [`View::check`].
    ///
    /// # Errors
    /// The first part that the device may not touch.
    pub fn check(&self, device: u32, range: Range, write: bool) -> Result<(), Denied> {
        let needed = if write { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { 1 } as u8;
        let end = range.start.saturating_add(range.len);
        let mut at = range.start;
        while at < end {
            let rest = Range { start: at, len: end - at };
            let denied = |cause| Denied { range: rest, device, write, cause };
            let Some(spot) = self.spot(at) else {
                let gone = self.last_gone(Range { start: at, len: 1 });
                let cause = gone.map_or(Cause::NeverMapped, |gone| Cause::Gone(*gone));
                return Err(denied(cause));
            };
            match self.rights(device, &spot) {
                0 => return Err(denied(Cause::NoAccess)),
                rights if rights & needed != needed => return Err(denied(Cause::ReadOnly)),
                _ => {}
            }
            at = spot.end();
        }
        Ok(())
    }

    /// The parts of physical memory behind a range: memory, offset in it, length, address.
    fn physical(&self, range: Range) -> Vec<(PhysId, u64, u64, u64)> {
        let end = range.start.saturating_add(range.len);
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < end {
            let Some(Spot::Mapped(start, mapping)) = self.spot(at) else { break };
            let len = (start + mapping.len).min(end) - at;
            parts.push((mapping.phys, at - start, len, at));
            at += len;
        }
        parts
    }

    /// Plain blocks of other processes that a context has opened.
    pub(super) fn opened_in(&self, context: u64) -> Vec<u64> {
        let open = |b: &Block| b.context == context && b.kind == Kind::Ipc;
        self.plain.blocks.iter().filter(|(_, b)| open(b)).map(|(at, _)| *at).collect()
    }

    /// Where the memory at a spot lies, and its properties.
    pub fn memory_of(&self, spot: &Spot<'_>) -> Option<(Place, CUmemAllocationProp, u64)> {
        let id = match spot {
            Spot::Mapped(_, m) => m.phys,
            Spot::Plain(_, b) => match self.plain.chunks.get(&b.chunk)?.phys {
                // A graph's block between launches.
                super::graph::NO_PAGES => {
                    return Some((Place::Device(b.device), plain_prop(b.device), b.id));
                }
                phys => phys,
            },
            Spot::Host(..) => return None,
        };
        let phys = self.pages.phys(id)?;
        Some((phys.place, phys.prop, phys.block_id))
    }
}

/// The map, held so that nothing in it is unmapped.
pub struct View<'a> {
    space: RwLockReadGuard<'a, Space>,
}

impl<'a> View<'a> {
    pub(super) fn new(space: RwLockReadGuard<'a, Space>) -> View<'a> {
        View { space }
    }

    /// Whether a device may read (or write) a range.
    ///
    /// # Errors
    /// The first part that it may not, and why.
    pub fn check(&self, device: u32, range: Range, write: bool) -> Result<(), Denied> {
        self.space.check(device, range, write)
    }

    /// What is at an address.
    pub fn spot(&self, at: u64) -> Option<Spot<'_>> {
        self.space.spot(at)
    }

    /// Whether an address is host memory that devices reach (pinned, registered, managed).
    pub fn is_host(&self, at: u64) -> bool {
        matches!(self.space.spot(at), Some(Spot::Host(..)))
    }

    /// Whether an address belongs to devices: mapped, reserved or plain device memory.
    pub fn is_device(&self, at: u64) -> bool {
        let one = Range { start: at, len: 1 };
        self.space.reservation_of(one).is_some() || self.space.plain.chunk_at(at).is_some()
    }

    /// The device that the memory at an address lies in, if it lies in one.
    pub fn device_of(&self, at: u64) -> Option<u32> {
        match self.space.spot(at)? {
            Spot::Plain(_, b) => Some(b.device),
            spot => self.space.memory_of(&spot)?.0.device(),
        }
    }

    /// Where the engine itself reads and writes what programs see at `at`: the same address, or
    /// its shadow while the CPU has no access to device memory. Consecutive within one mapping;
    /// within a reservation too.
    pub fn host_address(&self, at: u64) -> u64 {
        self.space.host_address(at)
    }

    /// Whether one piece of work touches the same physical bytes by two addresses and writes
    /// them: coherent here, not promised on a device. Says where.
    pub fn alias_hazard(&self, reads: &[Range], writes: &[Range]) -> Option<String> {
        let all: Vec<_> =
            reads.iter().chain(writes).flat_map(|r| self.space.physical(*r)).collect();
        for (phys, offset, len, at) in writes.iter().flat_map(|w| self.space.physical(*w)) {
            let clash = all.iter().find(|(other, from, length, address)| {
                let same_bytes = *from < offset + len && offset < from + length;
                // The same byte by the same address has the same distance.
                *other == phys
                    && same_bytes
                    && at.wrapping_sub(offset) != address.wrapping_sub(*from)
            });
            if let Some((.., other)) = clash {
                let text = format!("written at {at:#x}, touched at {other:#x}: one memory");
                return Some(text);
            }
        }
        None
    }

    /// The map itself.
    pub fn space(&self) -> &Space {
        &self.space
    }
}
