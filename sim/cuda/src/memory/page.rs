//! Physical memory: what each device has, what is taken, and what keeps it alive.
//!
//! Owns the memory files (two a device: one for memory that may be exported, one for the rest),
//! the physical allocations in them and the handles that name them. A physical allocation lives
//! while a handle, a mapping, a plain chunk, or anybody's open shareable descriptor holds it;
//! then its pages become holes and its bytes are free again. Places in a file are never used
//! twice, so a stale offset reads holes and allocations made in a row lie in a row, which lets
//! the kernel merge their mappings. It must not know addresses.
//! Cost: a hash look-up a call; creating writes the poison, about 0.3 ms for 2 MiB.

use super::os::{self, HostError, RangeLock};
use super::refused::{Refused, Why};
use crate::types::*;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where data starts in a file; below lie the header and the records of exported memory.
pub const DATA_START: u64 = 1 << 44;
/// Length of a memory file: nearly all of it holes, for ever.
pub const FILE_LEN: u64 = 1 << 60;

/// Where physical memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a device, by ordinal.
    Device(u32),
    /// At a NUMA node of the host.
    HostNuma(u32),
    /// Anywhere in the host.
    Host,
}

impl Place {
    /// The device, if it is one.
    pub fn device(self) -> Option<u32> {
        match self {
            Place::Device(ordinal) => Some(ordinal),
            _ => None,
        }
    }
}

/// The number of a physical allocation, never used twice in a process.
pub type PhysId = u64;

/// One physical allocation.
#[derive(Debug)]
pub struct Phys {
    /// The file whose pages it is.
    pub file: Arc<Backing>,
    /// Its place in the file.
    pub offset: u64,
    /// Its length, a multiple of the granule.
    pub len: u64,
    /// Where it lies.
    pub place: Place,
    /// What it was created with.
    pub prop: CUmemAllocationProp,
    /// Holders: handles that are alive, and plain chunks.
    pub holders: u64,
    /// Whether a descriptor to it was ever given out.
    pub exported: bool,
    /// Whether it was made by another process.
    pub foreign: bool,
    /// Whether it was filled with poison.
    pub filled: bool,
    /// Addresses it is mapped at.
    pub mappings: u64,
    /// Its number for `CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID`.
    pub block_id: u64,
}

/// A memory file: a device's, or another process's.
#[derive(Debug)]
pub struct Backing {
    /// The description through which this process maps, punches and locks.
    pub file: File,
    /// Device and inode.
    pub identity: (u64, u64),
}

/// One handle as the program knows it.
#[derive(Debug)]
pub struct Handle {
    /// What it names.
    pub phys: PhysId,
    /// Times it must be released.
    pub refs: u64,
    /// Mappings made with it.
    pub mappings: u64,
    /// The call that released it last, for reports.
    pub released_by: u64,
}

/// The memory of one place: a device's, or the host's.
#[derive(Debug)]
struct Store {
    closed: Arc<Backing>,
    open: Arc<Backing>,
    /// The next place in each file.
    next_closed: u64,
    next_open: u64,
    /// Bytes taken.
    used: u64,
    /// Most bytes taken at once.
    peak: u64,
    capacity: u64,
}

/// What the stores of a world are like.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Devices.
    pub devices: u32,
    /// Bytes of each.
    pub memory: u64,
    /// The mapping unit in bytes.
    pub granule: u64,
    /// What fresh memory is filled with; none leaves it as holes, which read 0.
    pub poison: Option<u8>,
}

/// All physical memory and all handles.
#[derive(Debug)]
pub struct Pages {
    limits: Limits,
    stores: Vec<Store>,
    host: Store,
    phys: HashMap<PhysId, Phys>,
    handles: BTreeMap<u64, Handle>,
    /// Physical allocations by the identity of their file and their place in it.
    places: HashMap<((u64, u64), u64), PhysId>,
    /// Physical allocations that only descriptors hold.
    lingering: Vec<PhysId>,
    /// Files of other processes that this one has memory of.
    pub(super) foreign: HashMap<(u64, u64), Arc<Backing>>,
    /// Bytes filled with poison and still taken.
    poisoned: u64,
    poison_max: u64,
    /// Bytes that were not filled since the host has too little memory.
    pub unpoisoned: u64,
    /// Descriptors given out, by number: the file's identity and the place in it.
    exports: BTreeMap<RawFd, ((u64, u64), u64)>,
    /// The last handles that ended: the handle and the call.
    ended: std::collections::VecDeque<(u64, u64)>,
}

/// Handles and numbers stay different over all worlds of a process, so a stale one of an
/// earlier world is never a good one of this.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A number that was not used before in this process.
pub fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// How many ended handles are remembered for reports.
const ENDED_MAX: usize = 4096;

fn backing(name: &std::ffi::CStr) -> Result<Arc<Backing>, HostError> {
    let file = os::memory_file(name, FILE_LEN)?;
    let identity = os::identity(&file)?;
    Ok(Arc::new(Backing { file, identity }))
}

impl Store {
    fn new(capacity: u64, device: u32) -> Result<Store, HostError> {
        let closed = backing(c"forebay_sim_memory")?;
        let open = backing(c"forebay_sim_exportable")?;
        super::share::write_header(&open.file, device)?;
        Ok(Store {
            closed,
            open,
            next_closed: DATA_START,
            next_open: DATA_START,
            used: 0,
            peak: 0,
            capacity,
        })
    }
}

impl Pages {
    /// Empty devices.
    ///
    /// # Errors
    /// The host has no memory files left for it.
    pub fn new(limits: Limits) -> Result<Pages, HostError> {
        let mut stores = Vec::new();
        for device in 0..limits.devices {
            stores.push(Store::new(limits.memory, device)?);
        }
        let host = Store::new(os::host_memory(), u32::MAX)?;
        Ok(Pages {
            limits,
            stores,
            host,
            phys: HashMap::new(),
            handles: BTreeMap::new(),
            places: HashMap::new(),
            lingering: Vec::new(),
            foreign: HashMap::new(),
            poisoned: 0,
            poison_max: os::host_memory() / 4,
            unpoisoned: 0,
            exports: BTreeMap::new(),
            ended: std::collections::VecDeque::new(),
        })
    }

    fn store(&mut self, place: Place) -> Option<&mut Store> {
        match place {
            Place::Device(ordinal) => self.stores.get_mut(ordinal as usize),
            Place::HostNuma(_) | Place::Host => Some(&mut self.host),
        }
    }

    /// Free and total bytes of a device. Other processes' memory that this one has imported
    /// counts as taken.
    pub fn info(&mut self, device: u32) -> Option<(u64, u64)> {
        self.reap();
        let store = self.stores.get(device as usize)?;
        Some((store.capacity.saturating_sub(store.used), store.capacity))
    }

    /// Takes `len` bytes for a plain chunk or a handle, with one holder.
    ///
    /// # Errors
    /// 2 when the device is full; the host's refusal.
    pub fn take(
        &mut self,
        place: Place,
        len: u64,
        prop: CUmemAllocationProp,
    ) -> Result<PhysId, Refused> {
        assert!(len > 0 && len.is_multiple_of(self.limits.granule));
        let room = |store: &Store| len <= store.capacity.saturating_sub(store.used);
        let no_place = Refused::new(CUDA_ERROR_INVALID_DEVICE, "no such device");
        if !self.store(place).is_some_and(|s| room(s)) {
            self.reap();
        }
        let exportable = prop.requestedHandleTypes != 0;
        let store = self.store(place).ok_or(no_place)?;
        if !room(store) {
            let free = store.capacity.saturating_sub(store.used);
            let why = format!("{len} bytes of {free} free ones of {place:?}");
            return Err(Refused::new(CUDA_ERROR_OUT_OF_MEMORY, why));
        }
        let (file, next) = match exportable {
            true => (Arc::clone(&store.open), &mut store.next_open),
            false => (Arc::clone(&store.closed), &mut store.next_closed),
        };
        let offset = *next;
        *next += len;
        let filled = self.poison(&file, offset, len)?;
        let id = number();
        let phys = Phys {
            file,
            offset,
            len,
            place,
            prop,
            holders: 1,
            exported: false,
            foreign: false,
            filled,
            mappings: 0,
            block_id: id,
        };
        if exportable {
            super::share::write_record(&phys, self.limits.granule)?;
        }
        self.insert(id, phys);
        Ok(id)
    }

    /// Enters a physical allocation and counts its bytes.
    pub(super) fn insert(&mut self, id: PhysId, phys: Phys) {
        if let Some(store) = self.store(phys.place) {
            store.used += phys.len;
            store.peak = store.peak.max(store.used);
        }
        self.places.insert((phys.file.identity, phys.offset), id);
        let before = self.phys.insert(id, phys);
        assert!(before.is_none());
    }

    /// Fills fresh pages; says whether it did.
    fn poison(&mut self, file: &Backing, offset: u64, len: u64) -> Result<bool, Refused> {
        let Some(byte) = self.limits.poison else {
            return Ok(false);
        };
        if self.poisoned + len > self.poison_max {
            self.unpoisoned += len;
            return Ok(false);
        }
        if let Err(error) = os::fill_file(&file.file, offset, len, byte) {
            os::punch(&file.file, offset, len);
            return Err(error.into());
        }
        self.poisoned += len;
        Ok(true)
    }

    /// A physical allocation by number.
    pub fn phys(&self, id: PhysId) -> Option<&Phys> {
        self.phys.get(&id)
    }

    /// A physical allocation by number, to change.
    pub(super) fn phys_mut(&mut self, id: PhysId) -> Option<&mut Phys> {
        self.phys.get_mut(&id)
    }

    /// The physical allocation at a place of a file, if this process has it.
    pub(super) fn find(&self, identity: (u64, u64), offset: u64) -> Option<PhysId> {
        self.places.get(&(identity, offset)).copied()
    }

    /// One holder less; ends the allocation if it was the last.
    pub fn drop_holder(&mut self, id: PhysId) {
        let Some(phys) = self.phys.get_mut(&id) else {
            debug_assert!(false, "a holder of nothing");
            return;
        };
        assert!(phys.holders > 0);
        phys.holders -= 1;
        if phys.holders > 0 {
            return;
        }
        debug_assert_eq!(phys.mappings, 0);
        if phys.exported && !phys.foreign && os::is_shared(&phys.file.file, phys.offset, phys.len) {
            self.lingering.push(id);
        } else {
            self.end(id);
        }
    }

    /// Ends a physical allocation: its pages become holes, its bytes free.
    fn end(&mut self, id: PhysId) {
        let Some(phys) = self.phys.remove(&id) else {
            return;
        };
        if let Some(store) = self.store(phys.place) {
            store.used -= phys.len;
        }
        let Backing { file, identity } = &*phys.file;
        self.places.remove(&(*identity, phys.offset));
        if phys.exported || phys.foreign {
            let _ = os::lock(file, phys.offset, phys.len, RangeLock::Drop);
        }
        // Memory of another process is punched by whoever holds the last share.
        if !phys.foreign || !os::is_shared(file, phys.offset, phys.len) {
            os::punch(file, phys.offset, phys.len);
        }
        if phys.foreign {
            // One reference in the table, one here.
            if Arc::strong_count(&phys.file) <= 2 {
                self.foreign.remove(identity);
            }
        } else if phys.filled {
            self.poisoned -= phys.len;
        }
    }

    /// Ends what only descriptors held and none holds any more.
    pub fn reap(&mut self) {
        let waiting = std::mem::take(&mut self.lingering);
        for id in waiting {
            let Some(phys) = self.phys.get(&id) else { continue };
            if phys.holders > 0 {
                continue;
            }
            if os::is_shared(&phys.file.file, phys.offset, phys.len) {
                self.lingering.push(id);
            } else {
                self.end(id);
            }
        }
    }

    /// A new handle for a physical allocation that has a holder in its name already.
    pub(super) fn new_handle(&mut self, phys: PhysId) -> u64 {
        let id = number() << 8 | 0xC1;
        let handle = Handle { phys, refs: 1, mappings: 0, released_by: 0 };
        self.handles.insert(id, handle);
        id
    }

    /// A handle that the program may use, not one that only its mappings keep.
    ///
    /// # Errors
    /// 1, with the misuse that it is.
    pub fn handle(&self, id: u64, what: &str) -> Result<&Handle, Refused> {
        if id == 0 {
            return Err(Refused::new(CUDA_ERROR_INVALID_VALUE, "handle 0"));
        }
        match self.handles.get(&id) {
            Some(handle) if handle.refs > 0 => Ok(handle),
            other => Err(self.stale(id, other, what)),
        }
    }

    fn stale(&self, id: u64, kept: Option<&Handle>, what: &str) -> Refused {
        let ended = self.ended.iter().rev().find(|(handle, _)| *handle == id);
        let released = kept.map(|h| h.released_by).or(ended.map(|(_, call)| *call));
        let text = match released {
            Some(call) => format!("{what}: handle {id:#x} was released by call {call}"),
            None => format!("{what}: handle {id:#x} was never given out"),
        };
        let kind = match released {
            Some(_) => "use of a released handle",
            None => "use of an unknown handle",
        };
        Refused { code: CUDA_ERROR_INVALID_VALUE, why: Why::Misuse(kind), text }
    }

    /// The physical allocation of a good handle.
    ///
    /// # Errors
    /// As [`Pages::handle`].
    pub fn of_handle(&self, id: u64, what: &str) -> Result<(PhysId, &Phys), Refused> {
        let number = self.handle(id, what)?.phys;
        match self.phys.get(&number) {
            Some(phys) => Ok((number, phys)),
            None => Err(Refused::new(CUDA_ERROR_UNKNOWN, "a handle without memory")),
        }
    }

    /// One release of a handle.
    ///
    /// # Errors
    /// As [`Pages::handle`].
    pub fn release(&mut self, id: u64, call: u64) -> Result<(), Refused> {
        self.handle(id, "cuMemRelease")?;
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.refs -= 1;
            handle.released_by = call;
        }
        self.settle_handle(id);
        Ok(())
    }

    /// One more reference to the handle of a mapping, also if it was released before.
    pub(super) fn retain(&mut self, id: u64) {
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.refs += 1;
        }
    }

    /// Counts a mapping made with a handle.
    pub(super) fn add_mapping(&mut self, id: u64) {
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.mappings += 1;
            if let Some(phys) = self.phys.get_mut(&handle.phys) {
                phys.mappings += 1;
            }
        }
    }

    /// Counts a mapping's end; may end the handle and the memory.
    pub(super) fn drop_mapping(&mut self, id: u64) {
        if let Some(handle) = self.handles.get_mut(&id) {
            assert!(handle.mappings > 0);
            handle.mappings -= 1;
            if let Some(phys) = self.phys.get_mut(&handle.phys) {
                phys.mappings -= 1;
            }
        }
        self.settle_handle(id);
    }

    fn settle_handle(&mut self, id: u64) {
        let Some(handle) = self.handles.get(&id) else {
            return;
        };
        if handle.refs > 0 || handle.mappings > 0 {
            return;
        }
        let (phys, call) = (handle.phys, handle.released_by);
        self.handles.remove(&id);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((id, call));
        self.drop_holder(phys);
    }

    /// Handles that the program still holds, and its references to them.
    pub fn live_handles(&self) -> (u64, u64) {
        let held = self.handles.values().filter(|h| h.refs > 0);
        held.fold((0, 0), |(count, refs), h| (count + 1, refs + h.refs))
    }

    /// Physical allocations, those that only descriptors keep, and all bytes taken of devices.
    pub fn totals(&self) -> (u64, u64, u64) {
        let used = self.stores.iter().map(|s| s.used).sum();
        (self.phys.len() as u64, self.lingering.len() as u64, used)
    }

    /// Bytes that the devices' and the host's files really take of this machine's memory.
    pub fn resident(&self) -> u64 {
        let stores = self.stores.iter().chain([&self.host]);
        stores.map(|s| os::resident(&s.closed.file) + os::resident(&s.open.file)).sum()
    }

    /// Handles that were not released, with their length, for a list of leaks.
    pub fn held(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.handles
            .iter()
            .filter(|(_, h)| h.refs > 0)
            .map(|(id, h)| (*id, self.phys.get(&h.phys).map_or(0, |p| p.len), h.refs))
    }

    /// The most bytes of a device that were taken at once.
    pub fn peak(&self, device: u32) -> u64 {
        self.stores.get(device as usize).map_or(0, |s| s.peak)
    }

    /// Remembers a descriptor that the program got.
    pub(super) fn gave_out(&mut self, fd: RawFd, file: (u64, u64), offset: u64) {
        if self.exports.len().is_power_of_two() {
            self.exports.retain(|fd, place| is_open_still(*fd, *place));
        }
        self.exports.insert(fd, (file, offset));
    }

    /// Descriptors given out that are still open in this process, by that number.
    pub fn exported(&self) -> u64 {
        self.exports.iter().filter(|(fd, place)| is_open_still(**fd, **place)).count() as u64
    }

    /// Physical allocations that are mapped at several addresses.
    pub fn aliased(&self) -> u64 {
        self.phys.values().filter(|p| p.mappings > 1).count() as u64
    }

    /// The stores' limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

fn is_open_still(fd: RawFd, place: ((u64, u64), u64)) -> bool {
    let (file, offset) = place;
    os::identity_of(fd) == Some(file) && os::position(fd) == Ok(offset)
}
