//! Pages shared with other processes, and access by other devices.
//!
//! Owns nothing: pages and mappings are `memory`'s. A descriptor of a page is the device's
//! memory file opened anew, its position at the page, and the page's range **marked** (a shared
//! lock of the open file). Duplicates, mappings and copies of the descriptor in other processes
//! hold the same open file, and the mark goes with the last of them: so the device knows when a
//! page that is gone here may be used again. Promises that memory lives on wherever it is held,
//! the exporting process's end included. It must not touch the memory, save
//! [`Memory::read_as_peer`].
//! Cost: a few system calls a page.
//!
//! Whoever holds a descriptor can reach the whole device's file: descriptors are for processes
//! that trust each other, as on a GPU.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::memory::{Memory, error, fail};
use super::pages::Page;
use super::sys;
use crate::driver::{Call, Code, DriverError, DriverResult, PageHandle};

impl Memory {
    pub(super) fn export(&self, page: PageHandle) -> DriverResult<OwnedFd> {
        let call = Call::Export;
        let mut tables = self.tables();
        let Some(found) = tables.pages.get_mut(page).filter(|found| !found.released) else {
            return fail(call, Code::InvalidHandle);
        };
        let file = found.source.as_ref().unwrap_or(&self.file);
        let fd = sys::open_again(file)
            .and_then(|fd| sys::set_position(&fd, found.offset).map(|()| fd))
            .and_then(|fd| sys::mark(&fd, found.offset, found.bytes).map(|()| fd));
        let fd =
            fd.map_err(|errno| error(call, errno, Code::Other(libc::ENOMEM.unsigned_abs())))?;
        found.exported = true;
        Ok(fd)
    }

    pub(super) fn import(&self, fd: BorrowedFd<'_>, bytes: usize) -> DriverResult<PageHandle> {
        let call = Call::Import;
        self.end_of(call, 0, bytes)?;
        let foreign = fail(call, Code::InvalidHandle);
        if !sys::is_memory_file(fd) {
            return foreign;
        }
        let (Ok(offset), Ok(length)) = (sys::position(fd), sys::length(fd)) else {
            return foreign;
        };
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= length);
        // The mark is the descriptor's own: seen from another opening of the file.
        let Ok(other) = sys::open_again(&fd.as_fd()) else { return foreign };
        if !inside || !sys::is_marked(&other, offset, bytes) {
            return foreign;
        }
        let kept = fd.try_clone_to_owned();
        let kept = kept.map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::EMFILE);
            error(call, errno, Code::Other(libc::ENOMEM.unsigned_abs()))
        })?;
        let mut tables = self.tables();
        let page = Page { source: Some(kept), ..Page::at(offset, bytes) };
        tables.pages.insert(page).ok_or(DriverError { call, code: Code::OutOfMemory })
    }

    /// The devices, beside the own one, that may use all of a range; `None` where some of it is
    /// not mapped.
    pub(super) fn peers_of(&self, address: usize, bytes: usize) -> Option<Vec<u32>> {
        let end = address.checked_add(bytes)?;
        let all = self.tables().space.peers_in(address, end)?;
        let mut peers = all.first()?.to_vec();
        peers.retain(|peer| all.iter().all(|other| other.contains(peer)));
        Some(peers)
    }

    /// What another device would read.
    pub(super) fn read_as_peer(
        &self,
        device: u32,
        address: usize,
        bytes: usize,
    ) -> DriverResult<Vec<u8>> {
        let allowed = self.peers_of(address, bytes).is_some_and(|peers| peers.contains(&device));
        if !allowed {
            return fail(Call::Copy, Code::InvalidValue);
        }
        let mut read = vec![0; bytes];
        let to = read.as_mut_ptr().expose_provenance();
        // SAFETY: the range is mapped and accessible, as just checked, and the caller keeps it so;
        // `read` has room for it.
        unsafe { sys::copy_bytes(to, address, bytes) };
        Ok(read)
    }
}
