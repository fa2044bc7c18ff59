//! Mappings of physical memory at reserved addresses, and who may access them.
//!
//! Owns the rules of map, unmap and access. Promises that a call that is refused changes
//! nothing, save that [`Space::set_access`] may have opened the mappings before the one at
//! which the budget or the host's limit ended. A mapping starts with no access at all; the CPU
//! has the widest right that any device or the host has, unless CPU access is switched off.
//! Cost: O(log n) a mapping touched, one system call a map and a run of equal rights.

use super::os::{self, HostError, Rights};
use super::refused::Refused;
use super::space::Space;
use super::{Config, DEVICES_MAX, GoneWhat, Range};
use crate::memory::page::{PhysId, Place};
use crate::types::*;

/// One mapping.
#[derive(Debug)]
pub struct Mapping {
    /// Its length; a prefix of the handle's memory.
    pub len: u64,
    /// The handle it was made with.
    pub handle: u64,
    /// The memory behind it.
    pub phys: PhysId,
    /// The reservation that it lies in.
    pub reservation: u64,
    /// Rights of each device, `CU_MEM_ACCESS_FLAGS_*`.
    pub access: [u8; DEVICES_MAX],
    /// Rights of the host, for memory that lies there.
    pub host_access: u8,
    /// What the CPU may do now.
    rights: Rights,
    /// The call that made it.
    pub call: u64,
    /// Its number for `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub sync_memops: bool,
}

impl Mapping {
    /// What the CPU may do by the rights of devices and host.
    fn wanted(&self) -> Rights {
        let all = self.access.iter().fold(self.host_access, |all, flags| all | flags);
        match u32::from(all) {
            CU_MEM_ACCESS_FLAGS_PROT_NONE => Rights::None,
            CU_MEM_ACCESS_FLAGS_PROT_READ => Rights::Read,
            _ => Rights::ReadWrite,
        }
    }
}

/// Devices with access, not counting the one that the memory lies in.
fn peers(access: &[u8; DEVICES_MAX], place: Place) -> usize {
    let own = place.device().map(|d| d as usize);
    access.iter().enumerate().filter(|(i, flags)| **flags != 0 && Some(*i) != own).count()
}

/// Units are counted in millionths.
const UNIT: u64 = 1_000_000;
/// What a further reservation with open mappings takes. One reservation held 523,404 mappings;
/// with one each there were 299,949 (a report for an H100 with driver 580.82): the share is
/// (523,404 - 299,949) / 299,948 of a mapping.
const RESERVATION: u64 = 744_979;
/// What two contexts of one device get together, of a million parts: 111,629 + 111,586 mappings
/// where one context had 523,404.
const SHARED: u64 = 426_468;

/// What mappings take of each device's budget.
#[derive(Debug)]
pub struct Budget {
    mappings: u64,
    taken: [u64; DEVICES_MAX],
    /// Reservations in which a device has open mappings.
    reservations: [u64; DEVICES_MAX],
    /// Contexts of each device, as the last caller said.
    pub contexts: [u32; DEVICES_MAX],
}

impl Budget {
    /// An untouched budget.
    pub fn new(config: &Config) -> Budget {
        Budget {
            mappings: config.mappings,
            taken: [0; DEVICES_MAX],
            reservations: [0; DEVICES_MAX],
            contexts: [0; DEVICES_MAX],
        }
    }

    /// All of a device's budget in millionths of a mapping.
    fn limit(&self, device: usize) -> u64 {
        match self.contexts[device] {
            0 | 1 => self.mappings.saturating_mul(UNIT),
            _ => self.mappings.saturating_mul(SHARED),
        }
    }

    /// What is taken, the first reservation being free.
    fn spent(&self, device: usize) -> u64 {
        self.taken[device] * UNIT + self.reservations[device].saturating_sub(1) * RESERVATION
    }

    /// Takes a mapping, and a reservation if it is the first in it; false if there is no room.
    fn take(&mut self, device: usize, first_of_reservation: bool) -> bool {
        self.taken[device] += 1;
        self.reservations[device] += u64::from(first_of_reservation);
        if self.spent(device) <= self.limit(device) {
            return true;
        }
        self.give(device, first_of_reservation);
        false
    }

    fn give(&mut self, device: usize, last_of_reservation: bool) {
        self.taken[device] -= 1;
        self.reservations[device] -= u64::from(last_of_reservation);
    }

    /// Mappings that a device has open.
    pub fn open(&self, device: u32) -> u64 {
        self.taken.get(device as usize).copied().unwrap_or(0)
    }
}

/// One wish of `cuMemSetAccess`, checked.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// The device, or the host.
    device: Option<usize>,
    flags: u8,
}

impl Space {
    /// `cuMemCreate`: a handle of fresh memory.
    ///
    /// # Errors
    /// 2 when the place is full; the host's limit.
    pub fn create(
        &mut self,
        place: Place,
        len: u64,
        prop: CUmemAllocationProp,
    ) -> Result<u64, Refused> {
        let phys = self.pages.take(place, len, prop)?;
        Ok(self.pages.new_handle(phys))
    }

    /// `cuMemMap`: the first `len` bytes of a handle's memory at `at`, without access.
    ///
    /// # Errors
    /// 1 for a range that is not aligned, reserved and free, an offset other than 0, flags, or a
    /// bad handle; the host's limit.
    pub fn map(
        &mut self,
        at: u64,
        len: u64,
        offset: u64,
        handle: u64,
        flags: u64,
    ) -> Result<(), Refused> {
        let granule = self.config.granule;
        let range = Range { start: at, len };
        if flags != 0 || offset != 0 {
            return Err(Refused::invalid(format!("flags {flags}, offset {offset}: must be 0")));
        }
        if at == 0 || len == 0 || !at.is_multiple_of(granule) || !len.is_multiple_of(granule) {
            return Err(Refused::invalid(format!("{range}: not of whole granules")));
        }
        self.keep_spare()?;
        let (phys, memory) = self.pages.of_handle(handle, "cuMemMap")?;
        if len > memory.len {
            let text = format!("{len} bytes of a handle of {}", memory.len);
            return Err(Refused::invalid(text));
        }
        let Some((base, reservation)) = self.reservation_of(range) else {
            let first = Range { start: at, len: 1 };
            let reserved = self.reservation_of(first).is_some();
            return Err(match self.last_gone(first).filter(|_| !reserved) {
                Some(gone) if gone.what == GoneWhat::Reservation => Refused::misuse(
                    CUDA_ERROR_INVALID_VALUE,
                    "use of a freed reservation",
                    format!("cuMemMap: {range} {gone}"),
                ),
                _ => Refused::invalid(format!("{range}: not reserved")),
            });
        };
        if let Some((start, mapped)) = self.overlapping(range) {
            let there = Range { start, len: mapped.len };
            return Err(Refused::invalid(format!("{range}: {there} is mapped")));
        }
        let host = at - base + reservation.host;
        // The shadow is the engine's alone, which asks before each access.
        let rights = if self.config.cpu_access { Rights::None } else { Rights::ReadWrite };
        os::map(host, len, &memory.file.file, memory.offset, rights)?;
        let mapping = Mapping {
            len,
            handle,
            phys,
            reservation: base,
            access: [0; DEVICES_MAX],
            host_access: 0,
            rights,
            call: self.call,
            id: super::page::number(),
            sync_memops: false,
        };
        self.pages.add_mapping(handle);
        self.mappings.insert(at, mapping);
        Ok(())
    }

    /// The first mapping that overlaps a range.
    pub fn overlapping(&self, range: Range) -> Option<(u64, &Mapping)> {
        let before = self.mappings.range(..range.start).next_back();
        if let Some((start, m)) = before.filter(|(start, m)| **start + m.len > range.start) {
            return Some((*start, m));
        }
        let end = range.end()?;
        self.mappings.range(range.start..end).next().map(|(start, m)| (*start, m))
    }

    /// The mapping around an address.
    pub fn mapping_at(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        (at < start + mapping.len).then_some((*start, mapping))
    }

    /// The starts of the mappings that a range consists of, if it is whole mappings of one
    /// reservation without a gap.
    ///
    /// # Errors
    /// 1, with what is wrong.
    fn whole_mappings(&self, range: Range, what: &str) -> Result<Vec<u64>, Refused> {
        let Some(end) = range.end().filter(|_| range.start != 0 && range.len > 0) else {
            return Err(Refused::invalid(format!("{what}: {range} is no range")));
        };
        let mut starts = Vec::new();
        let mut at = range.start;
        let mut reservation = None;
        for (start, mapping) in self.mappings.range(range.start..end) {
            if *start != at {
                break;
            }
            if *reservation.get_or_insert(mapping.reservation) != mapping.reservation {
                let text = format!("{what}: {range} spans reservations");
                return Err(Refused::invalid(text));
            }
            at = start + mapping.len;
            starts.push(*start);
        }
        if at == end {
            return Ok(starts);
        }
        if at > end {
            return Err(Refused::invalid(format!("{what}: {range} ends inside a mapping")));
        }
        let missing = Range { start: at, len: end - at };
        if at == range.start && self.mapping_at(at).is_some() {
            return Err(Refused::invalid(format!("{what}: {range} starts inside a mapping")));
        }
        Err(match self.last_gone(Range { start: at, len: 1 }) {
            Some(gone) if gone.what == GoneWhat::Mapping => Refused::misuse(
                CUDA_ERROR_INVALID_VALUE,
                "use after unmap",
                format!("{what}: {missing} is not mapped, {gone}"),
            ),
            _ => Refused::invalid(format!("{what}: {missing} is not mapped")),
        })
    }

    /// `cuMemUnmap`: one or several adjacent whole mappings of one reservation. Answers how many.
    ///
    /// # Errors
    /// 1 for any other range; the host's limit.
    pub fn unmap(&mut self, range: Range) -> Result<u64, Refused> {
        let starts = self.whole_mappings(range, "cuMemUnmap")?;
        let host = self.host_address(range.start);
        self.clear_range(host, range.len)?;
        for start in &starts {
            self.close(*start);
            if let Some(mapping) = self.mappings.remove(start) {
                self.pages.drop_mapping(mapping.handle);
                self.went(Range { start: *start, len: mapping.len }, GoneWhat::Mapping);
            }
        }
        Ok(starts.len() as u64)
    }

    /// Takes all rights of devices away, for the budget.
    fn close(&mut self, start: u64) {
        for device in 0..DEVICES_MAX {
            self.set_device(start, device, 0);
        }
    }

    /// Sets one device's right to one mapping; false if the budget has no room.
    fn set_device(&mut self, start: u64, device: usize, flags: u8) -> bool {
        let Some(mapping) = self.mappings.get_mut(&start) else {
            return true;
        };
        let before = mapping.access[device];
        let base = mapping.reservation;
        if (before != 0) == (flags != 0) {
            mapping.access[device] = flags;
            return true;
        }
        mapping.access[device] = flags;
        let Some(reservation) = self.reservations.get_mut(&base) else {
            return true;
        };
        let open = &mut reservation.open_by[device];
        if flags == 0 {
            *open -= 1;
            self.budget.give(device, *open == 0);
        } else if self.budget.take(device, *open == 0) {
            *open += 1;
        } else {
            mapping.access[device] = before;
            return false;
        }
        true
    }

    /// `cuMemSetAccess`: rights of some locations to whole mappings; other locations keep
    /// theirs. Answers how many mappings the range has.
    ///
    /// # Errors
    /// 1 for a bad range, location or flag; 711 for more peers than allowed; the code of the
    /// setting that refuses RDMA-capable memory; 2 when the budget is exhausted, and the host's
    /// limit: then the mappings before that one have been opened.
    pub fn set_access(&mut self, range: Range, wishes: &[CUmemAccessDesc]) -> Result<u64, Refused> {
        if wishes.is_empty() {
            return Err(Refused::invalid("no location"));
        }
        let starts = self.whole_mappings(range, "cuMemSetAccess")?;
        let mut checked = Vec::with_capacity(wishes.len());
        for wish in wishes {
            checked.push(self.check_wish(wish)?);
        }
        for start in &starts {
            self.check_mapping(*start, &checked)?;
        }
        let before = self.rights_of(&starts);
        let (done, refused) = self.grant(&starts, &checked);
        if let Err((from, error)) = self.apply_rights(&starts[..done]) {
            self.restore(&starts[from..], &before[from..]);
            return Err(error.into());
        }
        match refused {
            Some(refused) => Err(refused),
            None => Ok(starts.len() as u64),
        }
    }

    /// Gives the wished rights in order of address, as far as the budget goes. Answers how many
    /// mappings have been touched.
    fn grant(&mut self, starts: &[u64], wishes: &[Wish]) -> (usize, Option<Refused>) {
        for (i, start) in starts.iter().enumerate() {
            for wish in wishes {
                let fits = match wish.device {
                    Some(device) => self.set_device(*start, device, wish.flags),
                    None => {
                        if let Some(mapping) = self.mappings.get_mut(start) {
                            mapping.host_access = wish.flags;
                        }
                        true
                    }
                };
                if !fits {
                    let text = format!("the mapping budget ended at {start:#x}");
                    let refused = Refused::new(CUDA_ERROR_OUT_OF_MEMORY, text);
                    return (i + 1, Some(refused));
                }
            }
        }
        (starts.len(), None)
    }

    fn rights_of(&self, starts: &[u64]) -> Vec<([u8; DEVICES_MAX], u8)> {
        let rights = |m: &Mapping| (m.access, m.host_access);
        starts.iter().map(|s| self.mappings.get(s).map_or(([0; _], 0), rights)).collect()
    }

    /// Takes rights back that the host did not let through.
    fn restore(&mut self, starts: &[u64], before: &[([u8; DEVICES_MAX], u8)]) {
        for (start, (access, host_access)) in starts.iter().zip(before) {
            for (device, flags) in access.iter().enumerate() {
                self.set_device(*start, device, *flags);
            }
            if let Some(mapping) = self.mappings.get_mut(start) {
                mapping.host_access = *host_access;
            }
        }
    }

    fn check_wish(&self, wish: &CUmemAccessDesc) -> Result<Wish, Refused> {
        let flags = match wish.flags {
            CU_MEM_ACCESS_FLAGS_PROT_NONE
            | CU_MEM_ACCESS_FLAGS_PROT_READ
            | CU_MEM_ACCESS_FLAGS_PROT_READWRITE => wish.flags as u8,
            other => return Err(Refused::invalid(format!("access flags {other}"))),
        };
        let CUmemLocation { type_, id } = wish.location;
        let device = match type_ {
            CU_MEM_LOCATION_TYPE_DEVICE => match usize::try_from(id) {
                Ok(device) if device < self.config.devices as usize => Some(device),
                _ => return Err(Refused::invalid(format!("device {id}"))),
            },
            CU_MEM_LOCATION_TYPE_HOST_NUMA => None,
            CU_MEM_LOCATION_TYPE_HOST if self.config.version >= 13_000 => None,
            other => return Err(Refused::invalid(format!("location type {other}"))),
        };
        Ok(Wish { device, flags })
    }

    /// Whether the wishes may be granted for a mapping, before anything changes.
    fn check_mapping(&self, start: u64, wishes: &[Wish]) -> Result<(), Refused> {
        let Some(mapping) = self.mappings.get(&start) else {
            return Ok(());
        };
        let Some(phys) = self.pages.phys(mapping.phys) else {
            return Ok(());
        };
        if wishes.iter().any(|w| w.device.is_none()) && phys.place.device().is_some() {
            return Err(Refused::invalid("host access to memory of a device"));
        }
        let opens = wishes.iter().any(|w| w.flags != 0);
        if let Some(code) = self.config.refuse_rdma
            && opens
            && phys.prop.allocFlags.gpuDirectRDMACapable != 0
        {
            let text = "memory that is RDMA capable cannot be opened here";
            return Err(Refused::new(code, text));
        }
        let mut after = mapping.access;
        for wish in wishes {
            if let Some(device) = wish.device {
                after[device] = wish.flags;
            }
        }
        let own = phys.place.device().map(|d| d as usize);
        for (device, flags) in after.iter().enumerate() {
            let foreign = own.is_some() && Some(device) != own;
            if let Some(code) = self.config.refuse_peer.filter(|_| *flags != 0 && foreign) {
                let text = format!("device {device} cannot reach {:?}", phys.place);
                return Err(Refused::new(code, text));
            }
        }
        let peers = peers(&after, phys.place);
        if peers > self.config.peers_max {
            let text = format!("{peers} peers at {start:#x}, at most {}", self.config.peers_max);
            return Err(Refused::new(CUDA_ERROR_TOO_MANY_PEERS, text));
        }
        Ok(())
    }

    /// Brings the CPU's rights in line, one system call a run of equal changes. An error
    /// names the first mapping that it could not be done for.
    fn apply_rights(&mut self, starts: &[u64]) -> Result<(), (usize, HostError)> {
        if !self.config.cpu_access {
            return Ok(());
        }
        let mut i = 0;
        while i < starts.len() {
            let Some(first) = self.mappings.get(&starts[i]) else { break };
            let (wanted, before) = (first.wanted(), first.rights);
            let mut end = starts[i];
            let from = i;
            while let Some(next) = starts.get(i).and_then(|s| self.mappings.get(s)) {
                if next.wanted() != wanted || next.rights != before {
                    break;
                }
                end += next.len;
                i += 1;
            }
            if wanted != before {
                let host = self.host_address(starts[from]);
                os::protect(host, end - starts[from], wanted).map_err(|e| (from, e))?;
                for start in &starts[from..i] {
                    if let Some(mapping) = self.mappings.get_mut(start) {
                        mapping.rights = wanted;
                    }
                }
            }
        }
        Ok(())
    }

    /// `cuMemGetAccess`: a location's rights at an address.
    ///
    /// # Errors
    /// 1 when nothing is mapped there, and for a bad location.
    pub fn get_access(&self, at: u64, location: CUmemLocation) -> Result<u64, Refused> {
        let Some((_, mapping)) = self.mapping_at(at) else {
            return Err(Refused::invalid(format!("nothing is mapped at {at:#x}")));
        };
        let wish = self.check_wish(&CUmemAccessDesc { location, flags: 0 })?;
        Ok(u64::from(match wish.device {
            Some(device) => mapping.access[device],
            None => mapping.host_access,
        }))
    }

    /// `cuMemRetainAllocationHandle`: the handle that an address was mapped with, once more.
    ///
    /// # Errors
    /// 1 when nothing is mapped there.
    pub fn retain_handle(&mut self, at: u64) -> Result<u64, Refused> {
        let Some((_, mapping)) = self.mapping_at(at) else {
            return Err(Refused::invalid(format!("nothing is mapped at {at:#x}")));
        };
        let handle = mapping.handle;
        self.pages.retain(handle);
        Ok(handle)
    }

    /// Where the engine reads and writes what programs see at `at`.
    pub fn host_address(&self, at: u64) -> u64 {
        match self.reservations.range(..=at).next_back() {
            Some((start, r)) if at < start + r.len => at - start + r.host,
            _ => self.plain.host_address(at),
        }
    }
}
