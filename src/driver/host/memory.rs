//! The host device's memory: pages, reservations, mappings and plain allocations.
//!
//! Owns one memory file whose ranges are the pages, and the tables that say what is
//! where. Promises the contract of [`crate::driver`] for the memory calls: every argument is
//! checked against the tables before the system calls that do the work, so a
//! failing call changes nothing. It must not read or write the memory itself.
//! Cost: one lock, a few array elements a page and one system call a call; none to map, since
//! what may not be used yet looks like address space, and gets its file once it may.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pages::{Page, Pages};
use super::ranges::Ranges;
use super::space::Space;
use super::spare::Spare;
use super::sys::{self, Errno};
use super::{Census, HostOptions};
use crate::driver::{Call, Code, DriverError, DriverResult, PEERS_MAX, PageHandle};

/// The file grows by at least this much, so that few calls are spent on growing.
const GROWTH_BYTES: usize = 1 << 30;

/// The memory half of the host driver.
pub(super) struct Memory {
    pub(super) file: OwnedFd,
    granularity: usize,
    total_bytes: usize,
    pub(super) pinned: bool,
    peer_devices: u32,
    mapping_budget: Option<usize>,
    warned: AtomicBool,
    tables: Mutex<Tables>,
}

pub(super) struct Tables {
    pub(super) pages: Pages,
    /// Ranges whose page is gone here, while other processes may still use them.
    pub(super) lent: Vec<(usize, usize)>,
    pub(super) space: Space,
    plain: BTreeMap<usize, usize>,
    /// What [`super::staging`] gave out: address to length.
    pub(super) host: BTreeMap<usize, usize>,
    ranges: Ranges,
    pub(super) spare: Spare,
    pub(super) file_bytes: usize,
    page_bytes: usize,
    plain_bytes: usize,
    locked_bytes: usize,
}

pub(super) fn fail<T>(call: Call, code: Code) -> DriverResult<T> {
    Err(DriverError { call, code })
}

/// What an error number means where the only scarce thing is the number of mappings.
pub(super) fn mapping_error(call: Call, errno: Errno) -> DriverError {
    error(call, errno, Code::MappingLimit)
}

/// The error for a system call's number, given what lack of memory means to this call.
pub(super) fn error(call: Call, errno: Errno, scarce: Code) -> DriverError {
    let code = match errno {
        libc::ENOMEM => scarce,
        other => Code::Other(other.unsigned_abs()),
    };
    DriverError { call, code }
}

impl Memory {
    pub(super) fn new(options: &HostOptions) -> DriverResult<Memory> {
        let page_size = sys::page_size();
        let granularity = options.granularity;
        let sound = granularity.is_power_of_two() && granularity >= page_size;
        if !sound || options.total_bytes < granularity {
            return fail(Call::Create, Code::InvalidValue);
        }
        let file =
            sys::memory_file().map_err(|errno| error(Call::Create, errno, Code::OutOfMemory))?;
        Ok(Memory {
            file,
            granularity,
            total_bytes: options.total_bytes,
            pinned: options.pinned,
            peer_devices: options.peer_devices,
            mapping_budget: options.mapping_budget,
            warned: AtomicBool::new(false),
            tables: Mutex::new(Tables::new(granularity)),
        })
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of a well-formed range of whole granules.
    pub(super) fn end_of(&self, call: Call, address: usize, bytes: usize) -> DriverResult<usize> {
        let mask = self.granularity - 1;
        if bytes == 0 || (address | bytes) & mask != 0 {
            return fail(call, Code::InvalidValue);
        }
        address.checked_add(bytes).ok_or(DriverError { call, code: Code::InvalidValue })
    }

    pub(super) fn info(&self) -> (usize, usize) {
        let mut tables = self.tables();
        tables.take_back(&self.file);
        (self.total_bytes - tables.used(), self.total_bytes)
    }

    pub(super) fn census(&self, census: &mut Census) {
        let mut tables = self.tables();
        tables.take_back(&self.file);
        let imported = tables.pages.iter().filter(|page| page.source.is_some());
        (census.imported_pages, census.imported_bytes) =
            imported.fold((0, 0), |(count, bytes), page| (count + 1, bytes + page.bytes));
        census.pages = tables.pages.len() - census.imported_pages;
        census.lent_pages = tables.lent.len();
        census.page_bytes = tables.page_bytes;
        census.mappings = tables.space.mappings();
        census.locked_bytes = tables.locked_bytes;
        (census.reservations, census.reserved_bytes) = tables.space.reserved();
        census.plain_allocs = tables.plain.len();
        census.plain_bytes = tables.plain_bytes;
        census.host_allocs = tables.host.len();
        census.host_bytes = tables.host.values().sum();
        census.fds = 1 + census.imported_pages;
    }

    pub(super) fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        let call = Call::Reserve;
        self.end_of(call, 0, bytes)?;
        let Some(raw_bytes) = bytes.checked_add(self.granularity) else {
            return fail(call, Code::NoAddressSpace);
        };
        let mut tables = self.tables();
        tables.spare.refill();
        let Some(map) = tables.space.map_of(bytes) else {
            return fail(call, Code::NoAddressSpace);
        };
        let raw_address =
            sys::reserve(raw_bytes).map_err(|errno| error(call, errno, Code::NoAddressSpace))?;
        let address = raw_address.next_multiple_of(self.granularity);
        tables.space.add(address, bytes, (raw_address, raw_bytes), map);
        Ok(address)
    }

    pub(super) fn unreserve(&self, address: usize, bytes: usize) -> DriverResult<()> {
        let call = Call::Unreserve;
        self.end_of(call, address, bytes)?;
        let mut tables = self.tables();
        let (raw_address, raw_bytes) = match tables.space.unused(address, bytes) {
            Some(found) => (found.raw_address, found.raw_bytes),
            None => return fail(call, Code::InvalidValue),
        };
        // SAFETY: the range is a whole reservation of ours and nothing is mapped in it.
        let done = tables.spare.help(|| unsafe { sys::free(raw_address, raw_bytes) });
        done.map_err(|errno| mapping_error(call, errno))?;
        tables.space.remove(address);
        Ok(())
    }

    pub(super) fn create(&self, bytes: usize) -> DriverResult<PageHandle> {
        let call = Call::Create;
        self.end_of(call, 0, bytes)?;
        let mut tables = self.tables();
        tables.take_back(&self.file);
        if bytes > self.total_bytes - tables.used() || !tables.space.can_map(bytes) {
            return fail(call, Code::OutOfMemory);
        }
        let offset = tables.ranges.take(bytes);
        let end = tables.ranges.end();
        if end > tables.file_bytes {
            let length = end.next_multiple_of(GROWTH_BYTES);
            if let Err(errno) = sys::set_length(&self.file, length) {
                tables.ranges.give(offset, bytes);
                return Err(error(call, errno, Code::OutOfMemory));
            }
            tables.file_bytes = length;
        }
        let Some(page) = tables.pages.insert(Page::at(offset, bytes)) else {
            tables.ranges.give(offset, bytes);
            return fail(call, Code::OutOfMemory);
        };
        tables.page_bytes += bytes;
        Ok(page)
    }

    pub(super) fn release(&self, page: PageHandle) -> DriverResult<()> {
        let mut tables = self.tables();
        match tables.pages.get_mut(page) {
            Some(found) if !found.released => found.released = true,
            _ => return fail(Call::Release, Code::InvalidHandle),
        }
        tables.drop_if_unused(page, &self.file);
        Ok(())
    }

    pub(super) fn map(&self, address: usize, bytes: usize, page: PageHandle) -> DriverResult<()> {
        self.map_run(address, bytes, &[page]).map_err(|(_, error)| error)
    }

    pub(super) fn map_run(
        &self,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> Result<(), (usize, DriverError)> {
        let mut tables = self.tables();
        let mut done = 0;
        while done < pages.len() {
            let at = address.wrapping_add(done.wrapping_mul(page_bytes));
            let row = self.row(&tables, at, page_bytes, &pages[done..]);
            let count = row.map_err(|error| (done, error))?;
            tables.add_mappings(at, page_bytes, &pages[done..][..count]);
            done += count;
        }
        Ok(())
    }

    /// How many of the first of `pages` can be mapped side by side at `address`, at least one;
    /// or why not even the first can.
    fn row(
        &self,
        tables: &Tables,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> DriverResult<usize> {
        let call = Call::Map;
        self.end_of(call, address, page_bytes)?;
        match tables.pages.get(pages[0]) {
            Some(found) if found.released => return fail(call, Code::InvalidHandle),
            Some(found) if found.bytes != page_bytes => return fail(call, Code::InvalidValue),
            Some(_) => {}
            None => return fail(call, Code::InvalidHandle),
        }
        if tables.space.free_at(address, page_bytes) < page_bytes {
            return fail(call, Code::InvalidValue);
        }
        let budget = self
            .mapping_budget
            .map_or(usize::MAX, |most| most.saturating_sub(tables.space.mappings()));
        if budget == 0 {
            return fail(call, Code::MappingLimit);
        }
        let sound = |page: &&PageHandle| {
            let found = tables.pages.get(**page);
            found.is_some_and(|found| found.bytes == page_bytes && !found.released)
        };
        let count = pages.iter().take(budget).take_while(sound).count();
        Ok(tables.space.free_at(address, page_bytes.saturating_mul(count)) / page_bytes)
    }

    /// Puts files behind whole mappings that may be used from now on: all of them, or none.
    fn open(&self, tables: &mut Tables, address: usize, end: usize) -> Result<(), Errno> {
        let mut opened: Vec<(usize, usize)> = Vec::new();
        let mut closed = tables.space.closed_in(address, end).peekable();
        let mut result = Ok(());
        while let Some((at, mut bytes, page)) = closed.next() {
            let Some(first) = tables.pages.get(page) else { continue };
            // An imported page has a file of its own.
            let file = first.source.as_ref().unwrap_or(&self.file);
            while first.source.is_none()
                && let Some(&(next, more, page)) = closed.peek()
                && next == at + bytes
                && let Some(found) = tables.pages.get(page)
                && found.source.is_none()
                && found.offset == first.offset + bytes
            {
                bytes += more;
                closed.next();
            }
            // SAFETY: the range is whole mappings of ours without a file yet, in a reservation
            // of ours; the lock keeps it so.
            result = unsafe { sys::map_file(at, bytes, file, first.offset) };
            if result.is_err() {
                break;
            }
            opened.push((at, bytes));
        }
        drop(closed);
        if result.is_ok() {
            tables.space.open(address, end);
            return Ok(());
        }
        for (at, bytes) in opened {
            // SAFETY: as above; nobody was told that the range may be used.
            let undone = tables.spare.help(|| unsafe { sys::cover(at, bytes) });
            if let Err(errno) = undone {
                tracing::warn!(errno, bytes, "memory may be used although access was refused");
            }
        }
        result
    }

    pub(super) fn unmap(&self, address: usize, bytes: usize) -> DriverResult<()> {
        let call = Call::Unmap;
        let end = self.end_of(call, address, bytes)?;
        let mut tables = self.tables();
        if !tables.space.is_whole_mappings(address, end) {
            return fail(call, Code::InvalidValue);
        }
        // SAFETY: the range is exactly whole mappings of ours, inside one reservation.
        let done = tables.spare.help(|| unsafe { sys::cover(address, bytes) });
        done.map_err(|errno| mapping_error(call, errno))?;
        let mut at = address;
        while let Some(mapping) = tables.space.unmap(at) {
            at += mapping.bytes;
            if mapping.locked {
                tables.locked_bytes -= mapping.bytes;
            }
            if let Some(page) = tables.pages.get_mut(mapping.page) {
                page.mappings -= 1;
            }
            tables.drop_if_unused(mapping.page, &self.file);
            if at == end {
                break;
            }
        }
        debug_assert_eq!(at, end, "whole mappings, as checked above");
        tables.spare.refill();
        Ok(())
    }

    /// Whether a device of this number is said to be there, beside the own one.
    pub(super) fn is_peer(&self, device: u32) -> bool {
        (1..=self.peer_devices).contains(&device)
    }

    pub(super) fn set_access(
        &self,
        address: usize,
        bytes: usize,
        peers: &[u32],
    ) -> DriverResult<()> {
        let call = Call::SetAccess;
        let end = self.end_of(call, address, bytes)?;
        if peers.len() > PEERS_MAX {
            return fail(call, Code::TooManyPeers);
        }
        if !peers.iter().all(|&peer| self.is_peer(peer)) {
            return fail(call, Code::InvalidValue);
        }
        let mut tables = self.tables();
        if !tables.space.is_whole_mappings(address, end) {
            return fail(call, Code::InvalidValue);
        }
        self.open(&mut tables, address, end).map_err(|errno| mapping_error(call, errno))?;
        tables.space.set_peers(address, end, peers);
        if self.pinned {
            let locked = self.lock_or_warn(address, bytes);
            let [more, less] = tables.space.set_locked(address, end, locked);
            tables.locked_bytes += more;
            tables.locked_bytes -= less;
        }
        Ok(())
    }

    /// Locks all of an accessible range, or none of it.
    fn lock_or_warn(&self, address: usize, bytes: usize) -> bool {
        // SAFETY: the caller has just checked that the range is mapped by us.
        let Err(errno) = (unsafe { sys::lock(address, bytes) }) else {
            return true;
        };
        // SAFETY: as above. A partial lock must not stay uncounted; unlocking a mapped range
        // does not fail.
        let undone = unsafe { sys::unlock(address, bytes) };
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                bytes,
                errno,
                ?undone,
                "memory could not be locked and stays pageable; raise the limit on locked memory \
                 (ulimit -l)"
            );
        }
        false
    }

    pub(super) fn alloc_plain(&self, bytes: usize) -> DriverResult<usize> {
        let call = Call::AllocPlain;
        if bytes == 0 {
            return fail(call, Code::InvalidValue);
        }
        let mut tables = self.tables();
        let rounded = match bytes.checked_next_multiple_of(sys::page_size()) {
            Some(rounded) if rounded <= self.total_bytes - tables.used() => rounded,
            _ => return fail(call, Code::OutOfMemory),
        };
        tables.spare.refill();
        let address =
            sys::allocate(rounded).map_err(|errno| error(call, errno, Code::OutOfMemory))?;
        tables.plain.insert(address, rounded);
        tables.plain_bytes += rounded;
        Ok(address)
    }

    pub(super) fn free_plain(&self, address: usize) -> DriverResult<()> {
        let call = Call::FreePlain;
        let mut tables = self.tables();
        let Some(&bytes) = tables.plain.get(&address) else {
            return fail(call, Code::InvalidValue);
        };
        // SAFETY: the range is one whole allocation of ours; its owner gives it up.
        let done = tables.spare.help(|| unsafe { sys::free(address, bytes) });
        done.map_err(|errno| mapping_error(call, errno))?;
        tables.plain.remove(&address);
        tables.plain_bytes -= bytes;
        Ok(())
    }

    /// Bytes of the machine's memory behind the pages now.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        sys::held_bytes(&self.file)
    }
}

impl Tables {
    fn new(granularity: usize) -> Tables {
        Tables {
            pages: Pages::default(),
            lent: Vec::new(),
            space: Space::new(granularity),
            plain: BTreeMap::new(),
            host: BTreeMap::new(),
            ranges: Ranges::default(),
            spare: Spare::default(),
            file_bytes: 0,
            page_bytes: 0,
            plain_bytes: 0,
            locked_bytes: 0,
        }
    }

    /// Gives ranges back that other processes no longer use.
    pub(super) fn take_back(&mut self, file: &OwnedFd) {
        let lent = std::mem::take(&mut self.lent);
        for (offset, bytes) in lent {
            if sys::is_marked(file, offset, bytes) {
                self.lent.push((offset, bytes));
            } else {
                self.give_range(file, offset, bytes);
            }
        }
    }

    fn give_range(&mut self, file: &OwnedFd, offset: usize, bytes: usize) {
        // When it fails the machine keeps the memory until the range is used again; the
        // device's own count is right either way.
        if let Err(errno) = sys::punch(file, offset, bytes) {
            tracing::warn!(errno, bytes, "a released page's memory was not returned");
        }
        self.ranges.give(offset, bytes);
        self.page_bytes -= bytes;
    }

    /// Bytes of the device in use, by pages and plain allocations together.
    fn used(&self) -> usize {
        self.page_bytes + self.plain_bytes
    }

    /// Notes pages of `bytes` each as mapped side by side from `address` up.
    fn add_mappings(&mut self, address: usize, bytes: usize, pages: &[PageHandle]) {
        self.space.map(address, bytes, pages);
        for &page in pages {
            if let Some(found) = self.pages.get_mut(page) {
                found.mappings += 1;
            }
        }
    }

    /// Gives a page's memory back once it is released and mapped nowhere.
    fn drop_if_unused(&mut self, id: PageHandle, file: &OwnedFd) {
        let unused = |page: &Page| page.released && page.mappings == 0;
        if !self.pages.get(id).is_some_and(unused) {
            return;
        }
        let Some(page) = self.pages.remove(id) else {
            return;
        };
        if page.source.is_some() {
            return;
        }
        if page.exported && sys::is_marked(file, page.offset, page.bytes) {
            self.lent.push((page.offset, page.bytes));
            return;
        }
        self.give_range(file, page.offset, page.bytes);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let tables = self.tables.get_mut().unwrap_or_else(PoisonError::into_inner);
        let reserved = tables.space.raw_ranges();
        let plain = tables.plain.iter().chain(&tables.host).map(|(&a, &b)| (a, b));
        for (address, bytes) in reserved.chain(plain) {
            // SAFETY: the range is ours, and no call can use it: `self` is going away.
            if let Err(errno) = unsafe { sys::free(address, bytes) } {
                tracing::warn!(errno, bytes, "address space was not given back");
            }
        }
    }
}
