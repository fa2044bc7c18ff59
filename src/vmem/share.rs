//! What a pool shares: its mappings with other devices, pages with other processes.
//!
//! Promises: a change of peers reaches every mapped granule or none; where neither the change nor
//! its undoing worked, that is known and retried. Imported pages are mapped at granules like own
//! ones and are let go when unmapped.

use super::{MapFailure, Vmem};
use crate::driver::{DriverResult, ImportedPage, PageHandle};
use std::os::fd::{BorrowedFd, OwnedFd};

impl Vmem {
    /// The other devices that the memory is open to.
    pub fn peers(&self) -> &[u32] {
        &self.peers
    }

    /// Opens everything mapped, and all that will be, to exactly these devices. One call a row
    /// of mapped granules. On failure the old peers hold; where undoing failed too, some rows
    /// may keep the new access, or lack the old, until [`Vmem::recover`] works.
    pub fn set_peers(&mut self, peers: Vec<u32>) -> DriverResult<()> {
        let rows = self.mapped_rows();
        for (i, &row) in rows.iter().enumerate() {
            if let Err(error) = self.open_to(row, &peers) {
                // The row that failed may have changed in part.
                self.access_unsure |= !self.open_all(&rows[..=i]);
                return Err(error);
            }
        }
        self.peers = peers;
        self.access_unsure = false;
        Ok(())
    }

    /// Opens rows to the present peers, as many as the driver lets. Whether all worked.
    fn open_all(&mut self, rows: &[(usize, usize)]) -> bool {
        let peers = self.peers.clone();
        let mut all = true;
        for &row in rows {
            if let Err(error) = self.open_to(row, &peers) {
                tracing::error!(%error, "access could not be set back; retried later");
                all = false;
            }
        }
        all
    }

    fn open_to(&mut self, row: (usize, usize), peers: &[u32]) -> DriverResult<()> {
        let (address, bytes) = row;
        self.driver.set_access(address, bytes, peers)?;
        self.calls.set_access += 1;
        Ok(())
    }

    /// Rows of adjacent mapped granules of one space, stranded ones and other devices' pages left
    /// out, whom the pool's peers need not reach; and those of regions: addresses and lengths.
    fn mapped_rows(&self) -> Vec<(usize, usize)> {
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for space in &self.spaces {
            let end = space.first + (space.bytes / self.granule) as u32;
            let mut open = false;
            for g in space.first..end {
                let foreign = self.imported.get(&g).is_some_and(Option::is_some);
                let mapped = self.mapped[g as usize].is_some() && !foreign;
                let here = mapped && !self.stranded.contains(&g);
                match rows.last_mut() {
                    Some(row) if here && open => row.1 += 1,
                    _ if here => rows.push((g, 1)),
                    _ => {}
                }
                open = here;
            }
        }
        let place = |(first, len)| (self.address(first), len as usize * self.granule);
        rows.into_iter().map(place).chain(self.region_rows()).collect()
    }

    /// Retries what [`Vmem::recover`] has to of this file's.
    pub(super) fn recover_shared(&mut self) {
        for page in std::mem::take(&mut self.unreleased_imports) {
            self.let_go(page);
        }
        if self.access_unsure {
            self.access_unsure = !self.open_all(&self.mapped_rows());
        }
    }

    /// One descriptor for each of `len` mapped granules. All or nothing.
    pub fn export(&self, first: u32, len: u32) -> DriverResult<Vec<OwnedFd>> {
        let pages = &self.mapped[first as usize..][..len as usize];
        let page = |page: &Option<PageHandle>| page.expect("a live block is mapped");
        pages.iter().map(|p| self.driver.export(page(p))).collect()
    }

    /// Pages out of descriptors that other processes made, a granule each. All or nothing; says
    /// which descriptor failed.
    pub fn import(
        &mut self,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<ImportedPage>, (usize, crate::driver::DriverError)> {
        let mut pages = Vec::with_capacity(fds.len());
        for (i, fd) in fds.iter().enumerate() {
            match self.driver.import(*fd, self.granule) {
                Ok(page) => pages.push(page),
                Err(error) => {
                    self.drop_imports(&pages);
                    return Err((i, error));
                }
            }
        }
        Ok(pages)
    }

    /// Lets imported pages go that were not mapped.
    pub fn drop_imports(&mut self, pages: &[ImportedPage]) {
        pages.iter().for_each(|import| self.let_go(import.page));
    }

    pub(super) fn let_go(&mut self, page: PageHandle) {
        if let Err(error) = self.driver.release(page) {
            tracing::warn!(%error, "an imported page was not let go; retried later");
            self.unreleased_imports.push(page);
        }
    }

    /// Maps imported pages, all of one device's, at granules of one space and opens access, as
    /// [`Vmem::map`] does; those of another device to that one and the own only. On failure the
    /// pages are let go, save stranded ones.
    pub fn map_imports(&mut self, first: u32, pages: &[ImportedPage]) -> Result<(), MapFailure> {
        let len = pages.len() as u32;
        let owner = pages.first().and_then(|import| import.owner);
        debug_assert!(pages.iter().all(|import| import.owner == owner), "one device's");
        for (g, i) in (first..).zip(0..pages.len()) {
            if let Err(error) = self.driver.map(self.address(g), self.granule, pages[i].page) {
                self.drop_imports(&pages[i..]);
                return Err(self.undo(first, g - first, error));
            }
            self.mapped[g as usize] = Some(pages[i].page);
            self.imported.insert(g, owner);
            self.calls.maps += 1;
        }
        let (address, bytes) = (self.address(first), len as usize * self.granule);
        let opened = match owner {
            None => self.driver.set_access(address, bytes, &self.peers),
            Some(owner) => self.driver.open_foreign(address, bytes, owner),
        };
        match opened {
            Ok(()) => {
                self.calls.set_access += 1;
                Ok(())
            }
            Err(error) => Err(self.undo(first, len, error)),
        }
    }

    /// Imported pages, stranded and unreleased ones too.
    pub fn imported_pages(&self) -> usize {
        self.imported.len() + self.unreleased_imports.len()
    }
}
