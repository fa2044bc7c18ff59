//! Plain device memory (`cuMemAlloc` and what is like it), with the blocks that it is cut from.
//!
//! Owns chunks: address ranges of whole granules, mapped and open from the start to the end.
//! A request of up to half a granule shares a chunk with others of its device, context and
//! kind; a larger one has its own. Every block starts at a multiple of 512 bytes and is
//! poisoned. What may be touched is the block's own length, not its chunk's.
//! Cost: O(log n), and the poison.

use super::os::{self, Rights};
use super::page::{PhysId, Place};
use super::refused::Refused;
use super::space::{Space, Taken};
use super::{Config, DEVICES_MAX, GoneWhat, Range};
use crate::memory::host::HostBlock;
use crate::types::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Every block starts at a multiple of this many bytes.
pub const ALIGNMENT: u64 = 512;
/// Rows of `cuMemAllocPitch` start at multiples of this many bytes.
pub const PITCH: u64 = 512;

/// Whose memory a block is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The program's, from `cuMemAlloc`.
    Alloc,
    /// A memory pool's.
    Pool(u64),
    /// An allocation node's of a graph; the number is the block's own.
    Graph(u64),
    /// Another process's, opened by `cuIpcOpenMemHandle`.
    Ipc,
}

/// One allocation.
#[derive(Debug)]
pub struct Block {
    /// Its length in bytes, as asked for.
    pub len: u64,
    /// The chunk that it is cut from.
    pub chunk: u64,
    /// Whose it is.
    pub kind: Kind,
    /// The context that it was made in.
    pub context: u64,
    /// The device that it lies in.
    pub device: u32,
    /// Its number for `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub sync_memops: bool,
    /// Whether another process was told of it.
    pub told: bool,
    /// Times that it was opened, for memory of another process.
    pub opened: u64,
    /// The call that made it.
    pub call: u64,
}

/// Whole granules that blocks are cut from.
#[derive(Debug)]
pub struct Chunk {
    /// Its addresses.
    pub taken: Taken,
    /// Its memory.
    pub phys: PhysId,
    owner: Owner,
    /// Free parts by offset.
    free: BTreeMap<u64, u64>,
}

/// Blocks of different owners share no chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Owner {
    device: u32,
    context: u64,
    kind: Kind,
}

/// Plain and host memory.
#[derive(Debug)]
pub struct Plain {
    /// Plain blocks by address.
    pub blocks: BTreeMap<u64, Block>,
    /// Chunks by address.
    pub chunks: BTreeMap<u64, Chunk>,
    /// Chunks with free parts, by owner.
    partial: HashMap<Owner, BTreeSet<u64>>,
    /// Pinned, registered and managed host memory by address.
    pub host: BTreeMap<u64, HostBlock>,
    /// Which devices may access plain memory of which: `[accessor][owner]`.
    pub peers: [[bool; DEVICES_MAX]; DEVICES_MAX],
    /// Rights of devices to the memory of a pool, or of a graph's block, by its number, where they
    /// differ from the owner's.
    pub pool_access: HashMap<(u64, u32), u8>,
}

impl Plain {
    /// None of it.
    pub fn new(_config: &Config) -> Plain {
        Plain {
            blocks: BTreeMap::new(),
            chunks: BTreeMap::new(),
            partial: HashMap::new(),
            host: BTreeMap::new(),
            peers: [[false; DEVICES_MAX]; DEVICES_MAX],
            pool_access: HashMap::new(),
        }
    }

    /// The block around an address.
    pub fn block_at(&self, at: u64) -> Option<(u64, &Block)> {
        let (start, block) = self.blocks.range(..=at).next_back()?;
        (at < start + block.len).then_some((*start, block))
    }

    /// The chunk around an address.
    pub fn chunk_at(&self, at: u64) -> Option<(u64, &Chunk)> {
        let (start, chunk) = self.chunks.range(..=at).next_back()?;
        (at < start + chunk.taken.len).then_some((*start, chunk))
    }

    /// Where the engine reads and writes what programs see at `at`.
    pub fn host_address(&self, at: u64) -> u64 {
        self.chunk_at(at).map_or(at, |(start, chunk)| at - start + chunk.taken.host)
    }

    /// What a device may do with a block, as `CU_MEM_ACCESS_FLAGS_*`.
    pub fn rights(&self, device: u32, block: &Block) -> u8 {
        const ALL: u8 = CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u8;
        if device == block.device {
            return ALL;
        }
        if let Kind::Pool(pool) | Kind::Graph(pool) = block.kind {
            return self.pool_access.get(&(pool, device)).copied().unwrap_or(0);
        }
        let pair = self.peers.get(device as usize).and_then(|row| row.get(block.device as usize));
        if pair.copied().unwrap_or(false) { ALL } else { 0 }
    }

    /// Brings the list of chunks with free parts in line with one chunk.
    fn note_parts(&mut self, start: u64) {
        let Some(chunk) = self.chunks.get(&start) else { return };
        let list = self.partial.entry(chunk.owner).or_default();
        if chunk.free.is_empty() {
            list.remove(&start);
            if list.is_empty() {
                self.partial.remove(&chunk.owner);
            }
        } else {
            list.insert(start);
        }
    }

    /// Enters a chunk of one block, to which the host has mapped nothing yet.
    pub(super) fn add_bare_chunk(
        &mut self,
        taken: Taken,
        phys: PhysId,
        (device, context, kind): (u32, u64, Kind),
    ) {
        let owner = Owner { device, context, kind };
        self.chunks.insert(taken.at, Chunk { taken, phys, owner, free: BTreeMap::new() });
    }

    /// Gives all addresses back to the host, at the world's end.
    pub(super) fn unmap_all(&mut self) {
        for chunk in self.chunks.values() {
            os::unmap(chunk.taken.at, chunk.taken.len);
            if let Some((shadow, len)) = chunk.taken.shadow {
                os::unmap(shadow, len);
            }
        }
        for (at, block) in &self.host {
            if let Some(len) = block.mapped {
                os::unmap(*at, len);
            }
        }
    }
}

/// Properties of plain memory.
pub(super) fn plain_prop(device: u32) -> CUmemAllocationProp {
    let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device as i32 };
    CUmemAllocationProp { type_: CU_MEM_ALLOCATION_TYPE_PINNED, location, ..Default::default() }
}

impl Space {
    /// Allocates plain memory of a device.
    ///
    /// # Errors
    /// 1 for no bytes, 2 when the device or its address space is full; the host's limit.
    pub fn alloc(
        &mut self,
        device: u32,
        context: u64,
        len: u64,
        kind: Kind,
    ) -> Result<u64, Refused> {
        if len == 0 {
            return Err(Refused::invalid("0 bytes"));
        }
        let Some(rounded) = len.checked_next_multiple_of(ALIGNMENT) else {
            let text = format!("{len} bytes");
            return Err(Refused::new(CUDA_ERROR_OUT_OF_MEMORY, text));
        };
        let owner = Owner { device, context, kind };
        let at = if rounded <= self.config.granule / 2 {
            self.cut(owner, rounded)?
        } else {
            self.new_chunk(owner, rounded, rounded)?
        };
        let chunk = self.plain.chunk_at(at).map_or(at, |(start, _)| start);
        let block = Block {
            len,
            chunk,
            kind,
            context,
            device,
            id: super::page::number(),
            sync_memops: false,
            told: false,
            opened: 0,
            call: self.call,
        };
        self.plain.blocks.insert(at, block);
        Ok(at)
    }

    /// A small block out of the first free part that is long enough.
    fn cut(&mut self, owner: Owner, len: u64) -> Result<u64, Refused> {
        let partial = self.plain.partial.get(&owner).into_iter().flatten();
        let fits = |start: &u64| {
            let parts = &self.plain.chunks.get(start)?.free;
            let part = parts.iter().find(|(_, free)| **free >= len);
            part.map(|(offset, free)| (*start, *offset, *free))
        };
        let found = partial.into_iter().find_map(fits);
        let Some((start, offset, free)) = found else {
            return self.new_chunk(owner, self.config.granule, len);
        };
        let phys = self.plain.chunks.get(&start).and_then(|c| self.pages.phys(c.phys));
        if let (Some(byte), Some(phys)) = (self.config.poison, phys) {
            os::fill_file(&phys.file.file, phys.offset + offset, len, byte)?;
        }
        if let Some(chunk) = self.plain.chunks.get_mut(&start) {
            chunk.free.remove(&offset);
            if free > len {
                chunk.free.insert(offset + len, free - len);
            }
        }
        self.plain.note_parts(start);
        Ok(start + offset)
    }

    /// A chunk whose first `used` bytes are taken.
    fn new_chunk(&mut self, owner: Owner, bytes: u64, used: u64) -> Result<u64, Refused> {
        let granule = self.config.granule;
        let Some(len) = bytes.checked_next_multiple_of(granule) else {
            return Err(Refused::new(CUDA_ERROR_OUT_OF_MEMORY, format!("{bytes} bytes")));
        };
        let place = Place::Device(owner.device);
        let phys = self.pages.take(place, len, plain_prop(owner.device))?;
        match self.place_chunk(owner, phys, len, used) {
            Ok(at) => Ok(at),
            Err(refused) => {
                self.pages.drop_holder(phys);
                Err(refused)
            }
        }
    }

    fn place_chunk(
        &mut self,
        owner: Owner,
        phys: PhysId,
        len: u64,
        used: u64,
    ) -> Result<u64, Refused> {
        self.keep_spare()?;
        let taken = self.take_range(len, self.config.granule, 0)?;
        let mapped = match self.pages.phys(phys) {
            Some(memory) => {
                let file = &memory.file.file;
                os::map(taken.host, len, file, memory.offset, Rights::ReadWrite)
            }
            None => Err(os::HostError::Memory),
        };
        if let Err(error) = mapped {
            self.give_range(taken);
            return Err(error.into());
        }
        let mut free = BTreeMap::new();
        // A large block's rest up to the granule is nobody's.
        if used < len && used <= self.config.granule / 2 {
            free.insert(used, len - used);
        }
        self.plain.chunks.insert(taken.at, Chunk { taken, phys, owner, free });
        self.plain.note_parts(taken.at);
        Ok(taken.at)
    }

    /// Maps memory of another process as a block of its own, `delta` bytes into it.
    pub(super) fn adopt(
        &mut self,
        device: u32,
        context: u64,
        phys: PhysId,
        delta: u64,
        len: u64,
    ) -> Result<u64, Refused> {
        let Some(bytes) = self.pages.phys(phys).map(|p| p.len) else {
            return Err(Refused::invalid("no memory"));
        };
        let owner = Owner { device, context, kind: Kind::Ipc };
        let chunk = self.place_chunk(owner, phys, bytes, bytes)?;
        let block = Block {
            len,
            chunk,
            kind: Kind::Ipc,
            context,
            device,
            id: super::page::number(),
            sync_memops: false,
            told: false,
            opened: 1,
            call: self.call,
        };
        self.plain.blocks.insert(chunk + delta, block);
        Ok(chunk + delta)
    }

    /// Whether an address may be given to `cuMemFree`, and whose block it is.
    ///
    /// # Errors
    /// 1; all but a null pointer and virtual memory are misuse.
    pub fn freeable(&self, at: u64) -> Result<&Block, Refused> {
        if at == 0 {
            return Err(Refused::invalid("no pointer"));
        }
        if let Some(block) = self.plain.blocks.get(&at) {
            if block.kind == Kind::Ipc {
                let text = format!("{at:#x} was opened by cuIpcOpenMemHandle");
                return Err(foreign("free of memory of another process", text));
            }
            return Ok(block);
        }
        if let Some((start, _)) = self.plain.block_at(at) {
            let text = format!("{at:#x} lies inside the allocation at {start:#x}");
            return Err(foreign("free of an interior pointer", text));
        }
        if let Some((start, _)) = self.reservation_of(Range { start: at, len: 1 }) {
            let text = format!("{at:#x} is virtual memory, reserved at {start:#x}");
            return Err(foreign("free of virtual memory", text));
        }
        if let Some(gone) = self.last_freed(at) {
            return Err(foreign("double free", format!("{at:#x} {gone}")));
        }
        Err(foreign("free of a foreign pointer", format!("{at:#x} was never given out")))
    }

    /// Frees a block of plain memory, whoever's it is.
    ///
    /// # Errors
    /// As [`Space::freeable`] for an address that is no block's; the host's limit.
    pub fn free(&mut self, at: u64) -> Result<(), Refused> {
        let Some(block) = self.plain.blocks.get(&at) else {
            return self.freeable(at).map(|_| ());
        };
        let (start, told, len) = (block.chunk, block.told, block.len);
        let rounded = len.next_multiple_of(ALIGNMENT);
        if told {
            self.untell(at, start);
        }
        self.plain.blocks.remove(&at);
        self.went(Range { start: at, len }, GoneWhat::Allocation);
        let in_use = self.plain.blocks.range(start..).next().is_some_and(|(_, b)| b.chunk == start);
        let Some(chunk) = self.plain.chunks.get_mut(&start) else {
            return Ok(());
        };
        if in_use {
            give_part(&mut chunk.free, at - start, rounded);
            self.plain.note_parts(start);
            return Ok(());
        }
        let (taken, phys) = (chunk.taken, chunk.phys);
        chunk.free.clear();
        self.plain.note_parts(start);
        self.plain.chunks.remove(&start);
        self.give_range(taken);
        self.pages.drop_holder(phys);
        Ok(())
    }

    /// Frees what a context or a pool leaves; answers the blocks, for the list of leaks.
    pub fn free_of(&mut self, of: impl Fn(&Block) -> bool) -> Vec<(u64, u64, u64)> {
        let found = self.plain.blocks.iter().filter(|(_, block)| of(block));
        let left: Vec<_> = found.map(|(at, b)| (*at, b.len, b.call)).collect();
        for (at, ..) in &left {
            let freed = self.free(*at);
            debug_assert!(freed.is_ok());
        }
        left
    }
}

/// Puts a part back and joins it with its neighbours.
fn give_part(free: &mut BTreeMap<u64, u64>, mut offset: u64, mut len: u64) {
    if let Some((before, length)) = free.range(..offset).next_back()
        && before + length == offset
    {
        (offset, len) = (*before, len + length);
    }
    if let Some(after) = free.remove(&(offset + len)) {
        len += after;
    }
    free.insert(offset, len);
}

fn foreign(kind: &'static str, text: String) -> Refused {
    Refused::misuse(CUDA_ERROR_INVALID_VALUE, kind, format!("cuMemFree: {text}"))
}
