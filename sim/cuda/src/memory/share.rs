//! Memory that other processes can reach: shareable descriptors, legacy IPC handles, ranges for
//! network cards.
//!
//! Owns what two processes must agree on: the header and the records of a memory file, the 64
//! bytes of a legacy handle. A shareable descriptor is another description of the memory file
//! with its position at the memory and a shared lock on the memory's range. The kernel keeps
//! such a lock until the last copy of the descriptor is gone, whoever has it and however that
//! process ended; so memory lives exactly while somebody can still import it, and a killed
//! exporter takes nothing away from an importer. A process has one description a foreign file
//! and no descriptor for each import. Cost: a few system calls.

use super::os::{self, HostError, RangeLock};
use super::page::{Backing, DATA_START, Pages, Phys, PhysId, Place};
use super::plain::{ALIGNMENT, Kind};
use super::refused::Refused;
use super::space::Space;
use super::{GoneWhat, Range};
use crate::types::*;
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"fbsimhdr");
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"fbsimrec");
const IPC_MAGIC: u64 = u64::from_le_bytes(*b"fbsimipc");
/// The form of header and records.
const FORM: u64 = 1;
const RECORDS_START: u64 = 4096;
const RECORD_WORDS: usize = 8;
/// Length of a legacy handle, `CU_IPC_HANDLE_SIZE`.
pub const IPC_BYTES: usize = 64;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the one flag that is accepted.
const LAZY_PEERS: u32 = 1;

/// Writes a memory file's header: whose it is.
///
/// # Errors
/// The host's.
pub(super) fn write_header(file: &File, device: u32) -> Result<(), HostError> {
    Ok(file.write_all_at(&bytes_of([HEADER_MAGIC, FORM, u64::from(device)]), 0)?)
}

fn bytes_of<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn read_words<const N: usize>(file: &File, at: u64) -> Result<[u64; N], HostError> {
    let mut words = [0u64; N];
    for (i, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at + 8 * i as u64)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

fn record_at(offset: u64, granule: u64) -> u64 {
    RECORDS_START + (offset - DATA_START) / granule * (8 * RECORD_WORDS as u64)
}

/// Writes what an importer must know of exportable memory.
///
/// # Errors
/// The host's.
pub(super) fn write_record(phys: &Phys, granule: u64) -> Result<(), HostError> {
    let (kind, node) = match phys.place {
        Place::Device(ordinal) => (1, ordinal),
        Place::Host => (2, 0),
        Place::HostNuma(node) => (3, node),
    };
    let CUmemAllocFlags { compressionType, gpuDirectRDMACapable, usage, .. } = phys.prop.allocFlags;
    let flags =
        u64::from(compressionType) | u64::from(gpuDirectRDMACapable) << 8 | u64::from(usage) << 16;
    let words = [
        RECORD_MAGIC,
        phys.offset,
        phys.len,
        kind | u64::from(node) << 32,
        u64::from(phys.prop.type_) | u64::from(phys.prop.requestedHandleTypes) << 32,
        flags,
        granule,
        0,
    ];
    let at = record_at(phys.offset, granule);
    Ok(phys.file.file.write_all_at(&bytes_of::<RECORD_WORDS>(words), at)?)
}

/// The memory that a record tells of, as this process is to enter it.
fn read_record(file: Arc<Backing>, offset: u64, granule: u64) -> Option<Phys> {
    let header: [u64; 2] = read_words(&file.file, 0).ok()?;
    if header != [HEADER_MAGIC, FORM] || offset < DATA_START {
        return None;
    }
    let record: [u64; RECORD_WORDS] = read_words(&file.file, record_at(offset, granule)).ok()?;
    let [magic, place, len, location, types, flags, its_granule, _] = record;
    if magic != RECORD_MAGIC || place != offset || its_granule != granule {
        return None;
    }
    let node = (location >> 32) as u32;
    let place = match location as u32 {
        1 => Place::Device(node),
        2 => Place::Host,
        3 => Place::HostNuma(node),
        _ => return None,
    };
    let location = CUmemLocation { type_: location as u32, id: node as i32 };
    let prop = CUmemAllocationProp {
        type_: types as u32,
        requestedHandleTypes: (types >> 32) as u32,
        location,
        win32HandleMetaData: 0,
        allocFlags: CUmemAllocFlags {
            compressionType: flags as u8,
            gpuDirectRDMACapable: (flags >> 8) as u8,
            usage: (flags >> 16) as u16,
            reserved: [0; 4],
        },
    };
    Some(foreign_phys(file, offset, len, place, prop))
}

fn foreign_phys(
    file: Arc<Backing>,
    offset: u64,
    len: u64,
    place: Place,
    prop: CUmemAllocationProp,
) -> Phys {
    Phys {
        file,
        offset,
        len,
        place,
        prop,
        holders: 1,
        exported: false,
        foreign: true,
        filled: false,
        mappings: 0,
        block_id: super::page::number(),
    }
}

impl Pages {
    /// Another description of a memory's file, with shares in the ranges of all of `parts`.
    fn describe(&mut self, parts: &[PhysId]) -> Result<File, Refused> {
        let first = parts.first().and_then(|id| self.phys(*id));
        let Some((backing, offset)) = first.map(|p| (Arc::clone(&p.file), p.offset)) else {
            return Err(Refused::invalid("no memory"));
        };
        let same_file =
            |id: &PhysId| self.phys(*id).is_some_and(|p| Arc::ptr_eq(&p.file, &backing));
        if !parts.iter().all(same_file) {
            return Err(Refused::invalid("memory of several processes"));
        }
        let file = os::reopen(backing.file.as_raw_fd())?;
        os::set_position(&file, offset)?;
        for id in parts {
            let Some(phys) = self.phys_mut(*id) else { continue };
            // The own share tells importers that the exporter still has it.
            os::lock(&backing.file, phys.offset, phys.len, RangeLock::Take)?;
            os::lock(&file, phys.offset, phys.len, RangeLock::Take)?;
            phys.exported = true;
        }
        Ok(file)
    }

    /// `cuMemExportToShareableHandle` for POSIX descriptors.
    ///
    /// # Errors
    /// 1 for a bad handle and for memory that was not created for it; the host's limit of files.
    pub fn export(&mut self, handle: u64) -> Result<RawFd, Refused> {
        self.reap();
        let (id, phys) = self.of_handle(handle, "cuMemExportToShareableHandle")?;
        if phys.prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 0 {
            return Err(Refused::invalid("the memory was not created to be exported so"));
        }
        self.hand_out(&[id])
    }

    /// A descriptor for the program.
    fn hand_out(&mut self, parts: &[PhysId]) -> Result<RawFd, Refused> {
        let file = self.describe(parts)?;
        let (identity, offset) = (os::identity(&file)?, os::position(file.as_raw_fd())?);
        let fd = file.into_raw_fd();
        self.gave_out(fd, identity, offset);
        Ok(fd)
    }

    /// `cuMemImportFromShareableHandle`: a new handle for the memory behind a descriptor of this
    /// process. The descriptor stays the program's.
    ///
    /// # Errors
    /// 1 for a descriptor that no export made, 801 for memory of a device that is not here.
    pub fn import(&mut self, fd: RawFd) -> Result<u64, Refused> {
        self.reap();
        let strange = || Refused::invalid(format!("descriptor {fd} is no shareable handle"));
        let identity = os::identity_of(fd).ok_or_else(strange)?;
        let offset = os::position(fd).map_err(|_| strange())?;
        if let Some(id) = self.find(identity, offset) {
            if let Some(phys) = self.phys_mut(id) {
                phys.holders += 1;
            }
            return Ok(self.new_handle(id));
        }
        let file = self.foreign_file(identity, || os::reopen(fd)).map_err(|_| strange())?;
        let granule = self.limits().granule;
        let entered = read_record(file, offset, granule).ok_or_else(strange);
        let id = entered.and_then(|phys| self.enter_foreign(phys)).inspect_err(|_| {
            self.forget_file(identity);
        })?;
        Ok(self.new_handle(id))
    }

    /// The one description that this process has of another's file.
    fn foreign_file(
        &mut self,
        identity: (u64, u64),
        open: impl FnOnce() -> Result<File, HostError>,
    ) -> Result<Arc<Backing>, HostError> {
        if let Some(known) = self.foreign.get(&identity) {
            return Ok(Arc::clone(known));
        }
        let file = open()?;
        if os::identity(&file)? != identity {
            return Err(HostError::Other(libc::ESTALE));
        }
        let backing = Arc::new(Backing { file, identity });
        self.foreign.insert(identity, Arc::clone(&backing));
        Ok(backing)
    }

    fn forget_file(&mut self, identity: (u64, u64)) {
        if self.foreign.get(&identity).is_some_and(|f| Arc::strong_count(f) == 1) {
            self.foreign.remove(&identity);
        }
    }

    fn enter_foreign(&mut self, phys: Phys) -> Result<PhysId, Refused> {
        if phys.place.device().is_some_and(|d| d >= self.limits().devices) {
            let text = format!("{:?} is not in this process", phys.place);
            return Err(Refused::new(CUDA_ERROR_NOT_SUPPORTED, text));
        }
        os::lock(&phys.file.file, phys.offset, phys.len, RangeLock::Take)?;
        let id = super::page::number();
        self.insert(id, phys);
        Ok(id)
    }
}

/// Where the generation of a block is kept in a device's closed file, for importers.
fn cell_at(position: u64) -> u64 {
    RECORDS_START + (position - DATA_START) / ALIGNMENT * 8
}

impl Space {
    /// `cuMemGetHandleForAddressRange` as a descriptor that stands for a dma-buf: it keeps the
    /// memory alive.
    ///
    /// # Errors
    /// 1 for a range that is not aligned to host pages, not fully mapped, or of memory of
    /// several devices or properties; the host's limit of files.
    pub fn range_handle(&mut self, range: Range) -> Result<RawFd, Refused> {
        let aligned = range.start.is_multiple_of(os::HOST_PAGE)
            && range.len.is_multiple_of(os::HOST_PAGE)
            && range.len > 0;
        let Some(end) = range.end().filter(|_| aligned) else {
            return Err(Refused::invalid(format!("{range} is not of host pages")));
        };
        let mut parts = Vec::new();
        if let Some((_, chunk)) = self.plain.chunk_at(range.start) {
            if self.plain.block_at(range.start).is_none() || end > chunk.taken.at + chunk.taken.len
            {
                return Err(Refused::invalid(format!("{range} is not allocated")));
            }
            parts.push(chunk.phys);
        }
        let mut at = range.start;
        while parts.is_empty() || at < end && self.mapping_at(at).is_some() {
            let Some((start, mapping)) = self.mapping_at(at) else {
                return Err(Refused::invalid(format!("{range} is not mapped")));
            };
            parts.push(mapping.phys);
            at = start + mapping.len;
        }
        if self.plain.chunk_at(range.start).is_none() && at < end {
            return Err(Refused::invalid(format!("{range} is not fully mapped")));
        }
        let props = |id: &PhysId| self.pages.phys(*id).map(|p| (p.place, p.prop));
        if parts.iter().any(|id| props(id) != props(&parts[0])) {
            return Err(Refused::invalid(format!("{range} has memory of several kinds")));
        }
        self.pages.hand_out(&parts)
    }

    /// `cuIpcGetMemHandle`: 64 bytes that name a plain block of this process.
    ///
    /// # Errors
    /// 1 for anything but the start of a block from `cuMemAlloc`.
    pub fn ipc_get(&mut self, at: u64) -> Result<[u8; IPC_BYTES], Refused> {
        let legacy = |at| format!("{at:#x} is not the start of memory from cuMemAlloc");
        let Some(block) = self.plain.blocks.get_mut(&at).filter(|b| b.kind == Kind::Alloc) else {
            return Err(Refused::invalid(legacy(at)));
        };
        let (start, len, id, device) = (block.chunk, block.len, block.id, block.device);
        block.told = true;
        let Some(number) = self.plain.chunks.get(&start).map(|c| c.phys) else {
            return Err(Refused::invalid(legacy(at)));
        };
        let Some(phys) = self.pages.phys_mut(number) else {
            return Err(Refused::invalid(legacy(at)));
        };
        let file = &phys.file.file;
        let position = phys.offset + (at - start);
        os::lock(file, phys.offset, phys.len, RangeLock::Take)?;
        file.write_all_at(&id.to_le_bytes(), cell_at(position)).map_err(HostError::from)?;
        phys.exported = true;
        let fd = file.as_raw_fd() as u32;
        let words = [
            IPC_MAGIC,
            u64::from(std::process::id()) | u64::from(fd) << 32,
            phys.file.identity.1,
            phys.offset,
            phys.len,
            len,
            (at - start) | u64::from(device) << 48,
            id,
        ];
        let mut handle = [0; IPC_BYTES];
        handle.copy_from_slice(&bytes_of(words));
        Ok(handle)
    }

    /// A block that other processes were told of ends.
    pub(super) fn untell(&mut self, at: u64, chunk: u64) {
        let Some(phys) = self.plain.chunks.get(&chunk).and_then(|c| self.pages.phys(c.phys)) else {
            return;
        };
        let position = phys.offset + (at - chunk);
        // Without the cell a stale handle would open whatever comes next; that is no reason to
        // fail a free.
        let _ = phys.file.file.write_all_at(&[0; 8], cell_at(position));
    }

    /// Whether another process has a block's chunk open: freeing it then is undefined.
    pub fn is_open_elsewhere(&self, at: u64) -> bool {
        let block = self.plain.blocks.get(&at).filter(|b| b.told);
        let chunk = block.and_then(|b| self.plain.chunks.get(&b.chunk));
        let phys = chunk.and_then(|c| self.pages.phys(c.phys));
        phys.is_some_and(|p| os::is_shared(&p.file.file, p.offset, p.len))
    }

    /// `cuIpcOpenMemHandle`: the block as an address of this process; once more the same one if
    /// it is open.
    ///
    /// # Errors
    /// 1 for flags other than 1, 201 in the process that made it, 400 for bytes that are no
    /// handle, 205 when the exporter or its block is gone, 101 for a device that is not here.
    pub fn ipc_open(
        &mut self,
        handle: [u8; IPC_BYTES],
        flags: u32,
        context: u64,
    ) -> Result<u64, Refused> {
        if flags != LAZY_PEERS {
            return Err(Refused::invalid(format!("flags {flags}, 1 is the one accepted")));
        }
        let mut words = [0u64; 8];
        for (word, bytes) in words.iter_mut().zip(handle.chunks_exact(8)) {
            let mut whole = [0; 8];
            whole.copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        let [magic, process, inode, offset, bytes, len, inner, id] = words;
        let (pid, fd) = (process as u32, (process >> 32) as u32);
        let (delta, device) = (inner & ((1 << 48) - 1), (inner >> 48) as u32);
        let granule = self.config.granule;
        let sane = magic == IPC_MAGIC
            && offset >= DATA_START
            && bytes.is_multiple_of(granule)
            && delta.checked_add(len).is_some_and(|end| end <= bytes);
        if !sane {
            return Err(Refused::new(CUDA_ERROR_INVALID_HANDLE, "no handle of a memory block"));
        }
        if pid == std::process::id() {
            let text = "the handle was made in this process";
            return Err(Refused::new(CUDA_ERROR_INVALID_CONTEXT, text));
        }
        if device >= self.config.devices {
            return Err(Refused::new(CUDA_ERROR_INVALID_DEVICE, format!("device {device}")));
        }
        let gone = |_| Refused::new(CUDA_ERROR_MAP_FAILED, format!("process {pid} is gone"));
        let file = os::open_path(&format!("/proc/{pid}/fd/{fd}")).map_err(gone)?;
        let identity = os::identity(&file)?;
        let cell: [u64; 1] = read_words(&file, cell_at(offset + delta))?;
        if identity.1 != inode || cell != [id] {
            return Err(Refused::new(CUDA_ERROR_MAP_FAILED, "the block was freed"));
        }
        let known = self.pages.find(identity, offset);
        if let Some(at) = known.and_then(|phys| self.opened_at(phys, delta)) {
            if let Some(block) = self.plain.blocks.get_mut(&at) {
                block.opened += 1;
            }
            return Ok(at);
        }
        let phys = match known {
            Some(phys) => phys,
            None => {
                let backing = self.pages.foreign_file(identity, || Ok(file))?;
                let location =
                    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device as i32 };
                let prop = CUmemAllocationProp {
                    type_: CU_MEM_ALLOCATION_TYPE_PINNED,
                    location,
                    ..Default::default()
                };
                let place = Place::Device(device);
                self.pages.enter_foreign(foreign_phys(backing, offset, bytes, place, prop))?
            }
        };
        if known.is_some()
            && let Some(memory) = self.pages.phys_mut(phys)
        {
            memory.holders += 1;
        }
        self.adopt(device, context, phys, delta, len).inspect_err(|_| self.pages.drop_holder(phys))
    }

    fn opened_at(&self, phys: PhysId, delta: u64) -> Option<u64> {
        let chunk = self.plain.chunks.iter().find(|(start, chunk)| {
            chunk.phys == phys && self.plain.blocks.contains_key(&(**start + delta))
        });
        chunk.map(|(start, _)| start + delta)
    }

    /// `cuIpcCloseMemHandle`. The last close unmaps the block.
    ///
    /// # Errors
    /// 1 for an address that was not opened so.
    pub fn ipc_close(&mut self, at: u64) -> Result<(), Refused> {
        let Some(block) = self.plain.blocks.get_mut(&at).filter(|b| b.kind == Kind::Ipc) else {
            return Err(Refused::invalid(format!("{at:#x} was not opened")));
        };
        block.opened -= 1;
        if block.opened > 0 {
            return Ok(());
        }
        let (start, len) = (block.chunk, block.len);
        self.plain.blocks.remove(&at);
        self.went(Range { start: at, len }, GoneWhat::Allocation);
        if let Some(chunk) = self.plain.chunks.remove(&start) {
            self.give_range(chunk.taken);
            self.pages.drop_holder(chunk.phys);
        }
        Ok(())
    }
}
