//! Memory of graphs' allocation nodes: addresses that stay, and pages that come and go.
//!
//! Owns the pages that graphs have left on each device. Promises that an address is fixed from
//! [`Space::graph_reserve`] to [`Space::graph_retire`], and that pages which a graph gives up stay
//! the device's graph allocator's until [`Space::graph_trim`], or until another graph needs some.
//! It must not know nodes or launches: who may touch what, and when, is the engine's. Cost: a
//! system call or two.

use super::os::{self, Rights};
use super::page::{PhysId, Place};
use super::plain::{Block, Kind, plain_prop};
use super::refused::Refused;
use super::space::Space;
use super::{GoneWhat, Range};
use crate::types::*;
use std::collections::BTreeMap;

/// The pages of a block that has none now. No physical allocation has this number.
pub(super) const NO_PAGES: PhysId = 0;

/// Pages that graphs have left, by device: allocations and their lengths in bytes.
pub(super) type LeftPages = BTreeMap<u32, Vec<(PhysId, u64)>>;

impl Space {
    /// Takes addresses for an allocation node of `len` bytes, without pages. `access` are the
    /// rights of devices besides its own, as `CU_MEM_ACCESS_FLAGS_*`.
    ///
    /// # Errors
    /// 1 for no bytes, 2 when the address space is full; the host's limit.
    pub fn graph_reserve(
        &mut self,
        device: u32,
        context: u64,
        len: u64,
        access: &[(u32, u8)],
    ) -> Result<u64, Refused> {
        if len == 0 {
            return Err(Refused::invalid("0 bytes"));
        }
        let Some(bytes) = len.checked_next_multiple_of(self.config.granule) else {
            return Err(Refused::new(CUDA_ERROR_OUT_OF_MEMORY, format!("{len} bytes")));
        };
        let taken = self.take_range(bytes, self.config.granule, 0)?;
        let number = super::page::number();
        let kind = Kind::Graph(number);
        self.plain.pool_access.extend(access.iter().map(|(d, flags)| ((number, *d), *flags)));
        self.plain.add_bare_chunk(taken, NO_PAGES, (device, context, kind));
        let block = Block {
            len,
            chunk: taken.at,
            kind,
            context,
            device,
            id: number,
            sync_memops: false,
            told: false,
            opened: 0,
            call: self.call,
        };
        self.plain.blocks.insert(taken.at, block);
        Ok(taken.at)
    }

    /// Gives a block pages if it has none: those that another graph left, else new ones.
    ///
    /// # Errors
    /// 2 when the device is full; the host's limit.
    pub fn graph_back(&mut self, at: u64) -> Result<(), Refused> {
        let Some((device, host, len)) = self.bare(at) else { return Ok(()) };
        let left = self.graph_left.entry(device).or_default();
        let same = left.iter().position(|(_, bytes)| *bytes == len);
        let phys = match same.map(|i| left.swap_remove(i).0) {
            Some(phys) => phys,
            None => {
                let place = Place::Device(device);
                match self.pages.take(place, len, plain_prop(device)) {
                    Err(full) if full.code == CUDA_ERROR_OUT_OF_MEMORY => {
                        self.graph_trim(device);
                        self.pages.take(place, len, plain_prop(device))?
                    }
                    taken => taken?,
                }
            }
        };
        self.keep_spare()?;
        if let Some(memory) = self.pages.phys(phys)
            && let Err(error) =
                os::map(host, len, &memory.file.file, memory.offset, Rights::ReadWrite)
        {
            self.pages.drop_holder(phys);
            return Err(error.into());
        }
        if let Some(chunk) = self.plain.chunks.get_mut(&at) {
            chunk.phys = phys;
        }
        Ok(())
    }

    /// A block without pages: its device, where the host's pages go, and how many bytes.
    fn bare(&self, at: u64) -> Option<(u32, u64, u64)> {
        let device = self.plain.blocks.get(&at)?.device;
        let chunk = self.plain.chunks.get(&at).filter(|c| c.phys == NO_PAGES)?;
        Some((device, chunk.taken.host, chunk.taken.len))
    }

    /// Takes a block's pages away; they are left to the device's graphs.
    ///
    /// # Errors
    /// The host's limit; the block then keeps its pages.
    pub fn graph_unback(&mut self, at: u64) -> Result<(), Refused> {
        let Some(device) = self.plain.blocks.get(&at).map(|b| b.device) else { return Ok(()) };
        let Some(chunk) = self.plain.chunks.get(&at).filter(|c| c.phys != NO_PAGES) else {
            return Ok(());
        };
        let (host, len, phys) = (chunk.taken.host, chunk.taken.len, chunk.phys);
        self.clear_range(host, len)?;
        if let Some(chunk) = self.plain.chunks.get_mut(&at) {
            chunk.phys = NO_PAGES;
        }
        self.graph_left.entry(device).or_default().push((phys, len));
        Ok(())
    }

    /// Ends a block: its addresses are free, its pages are left to the device's graphs.
    ///
    /// # Errors
    /// The host's limit; the block then stays.
    pub fn graph_retire(&mut self, at: u64) -> Result<(), Refused> {
        self.graph_unback(at)?;
        let Some(block) = self.plain.blocks.remove(&at) else { return Ok(()) };
        if let Kind::Graph(number) = block.kind {
            self.plain.pool_access.retain(|(of, _), _| *of != number);
        }
        if let Some(chunk) = self.plain.chunks.remove(&at) {
            self.give_range(chunk.taken);
        }
        self.went(Range { start: at, len: block.len }, GoneWhat::Allocation);
        Ok(())
    }

    /// Gives the pages that graphs have left on a device back to it.
    pub fn graph_trim(&mut self, device: u32) {
        for (phys, _) in self.graph_left.remove(&device).unwrap_or_default() {
            self.pages.drop_holder(phys);
        }
    }

    /// Bytes that graphs have left on a device.
    pub fn graph_left(&self, device: u32) -> u64 {
        self.graph_left.get(&device).into_iter().flatten().map(|(_, bytes)| bytes).sum()
    }
}
