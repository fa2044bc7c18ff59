//! The address map: reservations, and what was at an address before.
//!
//! Owns reserved ranges of the process's address space. Promises that a range stays reserved
//! from [`Space::reserve`] to [`Space::unreserve`], that touching it without a mapping faults,
//! and that an address that is gone can be told by the call that took it. With CPU access
//! switched off, the host's pages lie in a shadow range of the same length, which only the
//! engine reads and writes. It must not know devices' rights.
//! Cost: an ordered look-up; one system call to reserve.

use super::os::{self, HOST_PAGE, HostError};
use super::page::Pages;
use super::plain::Plain;
use super::refused::Refused;
use super::vmm::{Budget, Mapping};
use super::{Config, DEVICES_MAX, Gone, GoneWhat, Range};
use crate::types::*;
use std::collections::{BTreeMap, VecDeque};

/// A reserved range of addresses.
#[derive(Debug)]
pub struct Reservation {
    /// Its length in bytes.
    pub len: u64,
    /// Where the host's pages of it lie: the address itself, or its shadow's.
    pub host: u64,
    /// What the host reserved besides, to be given back with it: start and length.
    shadow: Option<(u64, u64)>,
    /// Mappings in it that each device may access, for the budget.
    pub open_by: [u32; DEVICES_MAX],
    /// The call that made it.
    pub call: u64,
    /// Its number for `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub id: u64,
}

/// All that memory's lock guards.
#[derive(Debug)]
pub struct Space {
    /// What this world's memory is like.
    pub config: Config,
    /// Physical memory and handles.
    pub pages: Pages,
    /// Reservations by address.
    pub reservations: BTreeMap<u64, Reservation>,
    /// Mappings by address.
    pub mappings: BTreeMap<u64, Mapping>,
    /// What mappings have taken of each device's budget.
    pub budget: Budget,
    /// Plain, managed and host memory.
    pub plain: Plain,
    /// Pages that graphs have left.
    pub(super) graph_left: super::graph::LeftPages,
    /// Bytes of address space taken by reservations and plain memory.
    pub reserved: u64,
    /// Given up when the host has no mapping left for an unmap.
    spare: Option<os::Spare>,
    /// The latest ranges that ended.
    gone: VecDeque<Gone>,
    /// The number of the call that changes the map now; set by whoever takes the lock.
    pub call: u64,
}

/// How many ended ranges are remembered.
const GONE_MAX: usize = 8192;

impl Space {
    /// An empty address map over empty devices.
    ///
    /// # Errors
    /// The host refuses memory files.
    pub fn new(config: Config) -> Result<Space, HostError> {
        let pages = Pages::new(config.limits())?;
        Ok(Space {
            budget: Budget::new(&config),
            plain: Plain::new(&config),
            config,
            pages,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            graph_left: BTreeMap::new(),
            reserved: 0,
            spare: Some(os::Spare::take()?),
            gone: VecDeque::new(),
            call: 0,
        })
    }

    /// Takes address space of the host for a reservation or plain memory; `hint` may be 0.
    /// Answers the address and where the host's pages are to be put.
    ///
    /// # Errors
    /// 2 when the simulated or the host's address space has no such range.
    pub fn take_range(&mut self, len: u64, align: u64, hint: u64) -> Result<Taken, Refused> {
        let room = self.config.address_space.saturating_sub(self.reserved);
        if len > room {
            let text = format!("{len} bytes of address space where {room} are left");
            return Err(Refused::new(CUDA_ERROR_OUT_OF_MEMORY, text));
        }
        let at = os::reserve(len, align, hint).map_err(out_of_addresses)?;
        let shadow = match self.config.cpu_access {
            true => None,
            false => match os::reserve(len, align, 0) {
                Ok(shadow) => Some((shadow, len)),
                Err(error) => {
                    os::unmap(at, len);
                    return Err(out_of_addresses(error));
                }
            },
        };
        self.reserved += len;
        Ok(Taken { at, host: shadow.map_or(at, |s| s.0), shadow, len })
    }

    /// Gives a taken range back to the host.
    pub fn give_range(&mut self, taken: Taken) {
        os::unmap(taken.at, taken.len);
        if let Some((shadow, len)) = taken.shadow {
            os::unmap(shadow, len);
        }
        self.reserved -= taken.len;
    }

    /// Makes sure, before a mapping is made, that it can be unmapped again.
    ///
    /// # Errors
    /// The host's limit.
    pub(super) fn keep_spare(&mut self) -> Result<(), HostError> {
        if self.spare.is_none() {
            self.spare = Some(os::Spare::take()?);
        }
        Ok(())
    }

    /// Turns a range back into a bare reservation, also when the host has no mapping left.
    ///
    /// # Errors
    /// The host's; the range is then as before.
    pub(super) fn clear_range(&mut self, host: u64, len: u64) -> Result<(), HostError> {
        match os::clear(host, len) {
            Err(HostError::MappingLimit) if self.spare.is_some() => {
                self.spare = None;
                os::clear(host, len)
            }
            done => done,
        }
    }

    /// `cuMemAddressReserve`: `len` bytes, aligned to `align` or the granule, at `hint` if that
    /// is free.
    ///
    /// # Errors
    /// 2 for a length of 0 or of no whole host pages, for an alignment that is no power of two,
    /// and when no range is left; 1 for flags and for a hint that is not on a host page.
    pub fn reserve(&mut self, len: u64, align: u64, hint: u64, flags: u64) -> Result<u64, Refused> {
        if flags != 0 {
            return Err(Refused::invalid("flags must be 0"));
        }
        if len == 0 || !len.is_multiple_of(HOST_PAGE) {
            let text = format!("{len} bytes are no whole host pages");
            return Err(Refused::new(CUDA_ERROR_OUT_OF_MEMORY, text));
        }
        if align != 0 && !align.is_power_of_two() {
            let text = format!("alignment {align} is no power of two");
            return Err(Refused::new(CUDA_ERROR_OUT_OF_MEMORY, text));
        }
        if !hint.is_multiple_of(HOST_PAGE) {
            return Err(Refused::invalid(format!("hint {hint:#x} is not on a host page")));
        }
        let align = align.max(self.config.granule);
        let taken = self.take_range(len, align, hint)?;
        let reservation = Reservation {
            len,
            host: taken.host,
            shadow: taken.shadow,
            open_by: [0; DEVICES_MAX],
            call: self.call,
            id: super::page::number(),
        };
        let at = taken.at;
        let before = self.reservations.insert(at, reservation);
        assert!(before.is_none());
        Ok(at)
    }

    /// `cuMemAddressFree`: the whole of a reservation in which nothing is mapped.
    ///
    /// # Errors
    /// 1, and the reservation is as it was.
    pub fn unreserve(&mut self, at: u64, len: u64) -> Result<(), Refused> {
        if at == 0 || len == 0 {
            return Err(Refused::invalid("no range"));
        }
        let Some(found) = self.reservations.get(&at) else {
            return Err(self.no_reservation(at, "cuMemAddressFree"));
        };
        if found.len != len {
            let text = format!("{len} bytes at {at:#x}, where {} were reserved", found.len);
            return Err(Refused::invalid(text));
        }
        if let Some((mapped, _)) = self.mappings.range(at..at + len).next() {
            return Err(Refused::invalid(format!("{mapped:#x} is still mapped")));
        }
        if let Some(reservation) = self.reservations.remove(&at) {
            let host = reservation.host;
            self.give_range(Taken { at, host, shadow: reservation.shadow, len });
            self.went(Range { start: at, len }, GoneWhat::Reservation);
        }
        Ok(())
    }

    fn no_reservation(&self, at: u64, what: &str) -> Refused {
        match self.last_gone(Range { start: at, len: 1 }) {
            Some(gone) if gone.what == GoneWhat::Reservation => Refused::misuse(
                CUDA_ERROR_INVALID_VALUE,
                "use of a freed reservation",
                format!("{what}: {at:#x} {gone}"),
            ),
            _ => Refused::invalid(format!("no reservation starts at {at:#x}")),
        }
    }

    /// The reservation that holds a range wholly.
    pub fn reservation_of(&self, range: Range) -> Option<(u64, &Reservation)> {
        let (start, found) = self.reservations.range(..=range.start).next_back()?;
        let end = range.end()?;
        (end <= start + found.len).then_some((*start, found))
    }

    /// Remembers that a range ended by the present call.
    pub fn went(&mut self, range: Range, what: GoneWhat) {
        if self.gone.len() == GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(Gone { range, what, call: self.call });
    }

    /// What was at a range and ended last, among the latest that ended. What was there before
    /// the present reservation of it does not count.
    pub fn last_gone(&self, range: Range) -> Option<&Gone> {
        let here = self.reservation_of(Range { start: range.start, len: 1 });
        let since = here.map_or(0, |(_, reservation)| reservation.call);
        let found = self.gone.iter().rev().find(|gone| gone.range.overlaps(range))?;
        (found.call >= since).then_some(found)
    }

    /// The same, if it was an allocation.
    pub fn last_freed(&self, at: u64) -> Option<&Gone> {
        let gone = self.last_gone(Range { start: at, len: 1 })?;
        (gone.what == GoneWhat::Allocation).then_some(gone)
    }
}

/// A range taken of the host's address space.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// The address that programs see.
    pub at: u64,
    /// Where the host's pages of it are put.
    pub host: u64,
    /// The shadow: start and length.
    pub shadow: Option<(u64, u64)>,
    /// Its length.
    pub len: u64,
}

/// The host's lack of addresses is the driver's, too (2); its limit on mappings is not.
fn out_of_addresses(error: HostError) -> Refused {
    match error {
        HostError::Memory => {
            Refused::new(CUDA_ERROR_OUT_OF_MEMORY, "the host has no such address range")
        }
        other => other.into(),
    }
}

impl Drop for Space {
    /// Gives all addresses back. Nothing runs on them any more: the engine is gone.
    fn drop(&mut self) {
        for (at, reservation) in &self.reservations {
            os::unmap(*at, reservation.len);
            if let Some((shadow, len)) = reservation.shadow {
                os::unmap(shadow, len);
            }
        }
        self.plain.unmap_all();
    }
}
