//! Regions: reservations beside the heap's, whose granules their owner backs and unbacks.
//!
//! A region is one reservation of fixed length whose base never moves. Its granules are numbered
//! from 0 and hold pages of the pool's stock, or none. Promises: what is mapped is open to the
//! pool's present peers; a map is done whole or not at all, save granules that are then
//! *stranded*; those, and regions given up that could not be unmapped, are retried by
//! [`Vmem::recover`]. Where freed contents are to be overwritten ([`Vmem::overwrite`]) a page is
//! before it is unmapped; where the driver refuses that it stays where it is, and where it could
//! not be seen done it is stranded: it may be overwritten at any time.
//! Must not know what a region is for. Cost: the driver's calls; a wait for the fill.

use super::Vmem;
use crate::driver::{Call, Code, DriverError, DriverResult, PageHandle};
use std::collections::BTreeMap;

/// A region's number; no other region of the pool ever has it.
pub type RegionId = u32;

/// Granules of a region side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The first granule, by its number in the region.
    pub first: u32,
    /// How many.
    pub len: u32,
}

/// One region.
#[derive(Debug)]
pub(super) struct Region {
    base: usize,
    /// Length in bytes.
    bytes: usize,
    /// By granule; those without a page have no entry, so that length costs nothing.
    pages: BTreeMap<u32, PageHandle>,
    /// Granules whose page is mapped and should not be.
    stranded: Vec<u32>,
    /// Those of them that nobody was given: they may be out of the device's reach.
    unseen: Vec<u32>,
    /// Its owner is gone: it is to be unmapped and given back.
    given_up: bool,
}

impl Region {
    /// Rows of granules that hold a page and for which `which` says yes.
    fn rows(&self, which: impl Fn(u32) -> bool) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for g in self.pages.keys().copied().filter(|&g| which(g)) {
            match rows.last_mut() {
                Some(row) if row.first + row.len == g => row.len += 1,
                _ => rows.push(Row { first: g, len: 1 }),
            }
        }
        rows
    }

    /// The granules of a row that hold a page.
    fn backed(&self, row: Row) -> impl Iterator<Item = u32> {
        self.pages.range(row.first..row.first + row.len).map(|(&g, _)| g)
    }

    fn is_stranded(&self, granule: u32) -> bool {
        self.stranded.contains(&granule)
    }
}

const NO_REGION: DriverError = DriverError { call: Call::Map, code: Code::InvalidValue };

impl Vmem {
    /// Reserves a region of `bytes`, a multiple of the granule. Answers its number and base. Cost:
    /// the call, whatever its length.
    pub fn add_region(&mut self, bytes: usize) -> DriverResult<(RegionId, usize)> {
        let base = self.driver.reserve(bytes)?;
        self.calls.reserves += 1;
        let id = self.next_region;
        self.next_region += 1;
        let (pages, stranded, unseen) = (BTreeMap::new(), Vec::new(), Vec::new());
        let given_up = false;
        self.regions.insert(id, Region { base, bytes, pages, stranded, unseen, given_up });
        Ok((id, base))
    }

    /// Whether no granule of a row holds a page, a stranded one included.
    pub fn is_unbacked(&self, id: RegionId, row: Row) -> bool {
        let Some(region) = self.regions.get(&id) else { return false };
        region.backed(row).next().is_none()
    }

    /// Whether all pages that a row's granules hold are stranded.
    pub fn holds_stranded_only(&self, id: RegionId, row: Row) -> bool {
        let Some(region) = self.regions.get(&id) else { return false };
        region.backed(row).all(|g| region.is_stranded(g))
    }

    /// Maps pages of the stock, which holds enough, at unbacked granules and opens them. All or
    /// nothing, save granules that are stranded then.
    pub fn map_region(&mut self, id: RegionId, row: Row) -> DriverResult<()> {
        debug_assert!(self.stock.len() >= row.len as usize, "the caller fills the stock first");
        let region = self.regions.get_mut(&id).ok_or(NO_REGION)?;
        let address = region.base + row.first as usize * self.granule;
        let from = self.stock.len() - row.len as usize;
        let mapped = self.driver.map_run(address, self.granule, &self.stock[from..]);
        let done = mapped.as_ref().map_or_else(|&(done, _)| done, |()| row.len as usize);
        for (g, page) in (row.first..).zip(self.stock.drain(from..from + done)) {
            let before = region.pages.insert(g, page);
            debug_assert_eq!(before, None);
        }
        self.mapped_pages += done;
        self.region_pages += done;
        self.calls.maps += done as u64;
        let opened = mapped.map_err(|(_, error)| error).and_then(|()| {
            self.driver.set_access(address, row.len as usize * self.granule, &self.peers)
        });
        match opened {
            Ok(()) => {
                self.calls.set_access += 1;
                Ok(())
            }
            Err(error) => {
                self.drop_row(id, Row { len: done as u32, ..row });
                Err(error)
            }
        }
    }

    /// Unmaps a row that nobody was given; where that fails its granules are stranded.
    pub fn drop_row(&mut self, id: RegionId, row: Row) {
        if row.len == 0 {
            return;
        }
        let Err(error) = self.take_row(id, row) else { return };
        tracing::error!(%error, id, ?row, "undo failed; pages of a region are stranded");
        if let Some(region) = self.regions.get_mut(&id) {
            region.stranded.extend(row.first..row.first + row.len);
            region.unseen.extend(row.first..row.first + row.len);
            self.region_pages -= row.len as usize;
        }
    }

    /// What pages hold from now on when regions give them back; `None`: what they held.
    pub fn overwrite(&mut self, with: Option<u8>) {
        self.overwrite = with;
    }

    /// Unmaps a row of backed granules in one call; their pages go to the stock. The caller knows
    /// that nothing on the device touches them any more. A row that is stranded by the failure
    /// ([`Vmem::holds_stranded_only`]) is its owner's no more.
    pub fn unmap_region(&mut self, id: RegionId, row: Row) -> DriverResult<()> {
        if let Some(value) = self.overwrite {
            self.wipe_row(id, row, value)?;
        }
        self.take_row(id, row)
    }

    /// Overwrites what a row's owner had, and waits for that. One stream serves all: a fill whose
    /// end could not be seen comes before the next try's, which is awaited before pages go; until
    /// then its row is stranded.
    fn wipe_row(&mut self, id: RegionId, row: Row, value: u8) -> DriverResult<()> {
        let region = self.regions.get(&id).ok_or(NO_REGION)?;
        let seen: Vec<Row> = region
            .rows(|g| (row.first..row.first + row.len).contains(&g) && !region.unseen.contains(&g));
        if seen.is_empty() {
            return Ok(());
        }
        let stream = match self.wiper {
            Some(stream) => stream,
            None => *self.wiper.insert(self.driver.stream_create()?),
        };
        let filled = seen.iter().try_for_each(|part| {
            let address = region.base + part.first as usize * self.granule;
            self.driver.fill(address, value, part.len as usize * self.granule, stream)
        });
        self.driver.stream_synchronize(stream).inspect_err(|_| self.strand_row(id, row))?;
        filled
    }

    /// Takes a row from its owner that cannot be unmapped yet.
    fn strand_row(&mut self, id: RegionId, row: Row) {
        let Some(region) = self.regions.get_mut(&id) else { return };
        let new: Vec<u32> = region.backed(row).filter(|&g| !region.is_stranded(g)).collect();
        self.region_pages -= new.len();
        region.stranded.extend(new);
    }

    /// Ends the stream that clears pages, and what it has to do.
    fn end_wiper(&mut self) -> DriverResult<()> {
        if let Some(stream) = self.wiper {
            self.driver.stream_synchronize(stream)?;
            self.driver.stream_destroy(stream)?;
            self.wiper = None;
        }
        Ok(())
    }

    fn take_row(&mut self, id: RegionId, row: Row) -> DriverResult<()> {
        let region = self.regions.get_mut(&id).ok_or(NO_REGION)?;
        let address = region.base + row.first as usize * self.granule;
        self.driver.unmap(address, row.len as usize * self.granule)?;
        self.calls.unmaps += 1;
        for g in row.first..row.first + row.len {
            let page = region.pages.remove(&g);
            self.stock.push(page.expect("the caller unmaps backed granules"));
            self.mapped_pages -= 1;
            region.unseen.retain(|&unseen| unseen != g);
            match region.stranded.iter().position(|&stranded| stranded == g) {
                Some(at) => _ = region.stranded.swap_remove(at),
                None => self.region_pages -= 1,
            }
        }
        Ok(())
    }

    /// Unmaps what a region still holds and gives its addresses back. May be repeated after a
    /// failure, and then goes on where it stopped.
    pub fn close_region(&mut self, id: RegionId) -> DriverResult<()> {
        let Some(region) = self.regions.get(&id) else { return Ok(()) };
        for row in region.rows(|_| true) {
            self.unmap_region(id, row)?;
        }
        let region = &self.regions[&id];
        self.driver.unreserve(region.base, region.bytes)?;
        self.regions.remove(&id);
        Ok(())
    }

    /// As [`Vmem::close_region`] for an owner that will not come again: what fails is retried by
    /// [`Vmem::recover`].
    pub fn give_up_region(&mut self, id: RegionId) {
        if let Err(error) = self.close_region(id) {
            tracing::warn!(%error, id, "a region was not given back; retried later");
            self.leave_region(id);
        }
    }

    /// As [`Vmem::give_up_region`] where nothing may be unmapped now.
    pub fn leave_region(&mut self, id: RegionId) {
        if let Some(region) = self.regions.get_mut(&id) {
            region.given_up = true;
            let rows = region.rows(|g| !region.is_stranded(g));
            for row in rows {
                region.stranded.extend(row.first..row.first + row.len);
                self.region_pages -= row.len as usize;
            }
        }
    }

    /// Pages that regions hold, stranded ones left out.
    pub fn region_pages(&self) -> usize {
        self.region_pages
    }

    /// Address space of all regions, in bytes.
    pub(super) fn region_bytes(&self) -> usize {
        self.regions.values().map(|region| region.bytes).sum()
    }

    /// Pages that are stranded in regions.
    pub(super) fn stranded_in_regions(&self) -> usize {
        self.regions.values().map(|region| region.stranded.len()).sum()
    }

    /// Whether a region could not be given back.
    pub(super) fn any_region_given_up(&self) -> bool {
        self.regions.values().any(|region| region.given_up)
    }

    /// Addresses and lengths of all rows of regions that peers are to reach.
    pub(super) fn region_rows(&self) -> Vec<(usize, usize)> {
        let mut rows = Vec::new();
        for region in self.regions.values() {
            for row in region.rows(|g| !region.is_stranded(g)) {
                let address = region.base + row.first as usize * self.granule;
                rows.push((address, row.len as usize * self.granule));
            }
        }
        rows
    }

    /// Retries what [`Vmem::recover`] has to of this file's.
    pub(super) fn recover_regions(&mut self) {
        let ids: Vec<RegionId> = self.regions.keys().copied().collect();
        for id in ids {
            let region = &self.regions[&id];
            // What is refused one region may work in another.
            if region.given_up {
                _ = self.close_region(id);
                continue;
            }
            for row in region.rows(|g| region.is_stranded(g)) {
                if self.unmap_region(id, row).is_err() {
                    break;
                }
            }
        }
    }

    /// Gives all regions back, for the pool's end: their pages go on to the driver as they are.
    pub(super) fn close_regions(&mut self) -> DriverResult<()> {
        self.overwrite = None;
        self.end_wiper()?;
        while let Some(&id) = self.regions.keys().next() {
            self.close_region(id)?;
        }
        Ok(())
    }
}
