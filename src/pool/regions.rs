//! Regions of a pool: address ranges of their own, backed by the pool's pages where their owner
//! says.
//!
//! Owns nothing: a [`Region`] is a handle, and the memory is the pool's (room `vmem`). Promises:
//! the base never moves; pages come from the stock, then are created below the pool's limit, then
//! taken from idle rows, and before a request for them fails the same is tried as before an
//! allocation fails; what is unmapped goes back to the stock. Nothing is unmapped while a capture
//! is open, nor, with `FOREBAY_MOVE=idle` or `0`, while the device works. In the accounts these
//! bytes are a state of their own. Unmapping is not a fence: the owner knows that nothing on the
//! device touches a row any more. With `FOREBAY_SCRUB` or poison a row is overwritten before it is
//! unmapped, and the call waits for that; where the driver refuses it the row stays, and where
//! the wait fails the pool keeps the row until it can be seen done. Cost: the driver's calls.

use super::control::{driver_error, tell_unmapped};
use super::core::Core;
use super::ladder::{self, Refusal};
use super::{Pool, keeper, registry};
use crate::config::Move;
use crate::driver::Code;
use crate::error::{Error, Result, Status};
use crate::vmem::regions::RegionId;
pub use crate::vmem::regions::Row;

/// A region, given back when dropped; what cannot be given back then is retried by the pool. All
/// methods may be called from any thread; whose rows are whose is the owner's affair.
#[derive(Debug)]
pub struct Region {
    pool: u64,
    id: RegionId,
    base: usize,
    bytes: usize,
    granule: usize,
}

impl Pool {
    /// Reserves a region of at least `bytes`, rounded up to whole pages, with no memory behind it.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] for 0 bytes or too many; [`Status::OutOfMemory`] when no address
    /// range is so long; [`Status::Unsupported`] where address space cannot be had without memory.
    pub fn region(&self, bytes: usize) -> Result<Region> {
        self.with_core(|core| {
            core.check_context()?;
            if core.driver.0.backed_reservations().is_some() {
                return Err(Error::new(
                    Status::Unsupported,
                    "this device has no virtual memory: address space costs memory there",
                ));
            }
            let granule = core.vmem.granule();
            let whole = bytes.checked_next_multiple_of(granule);
            let fits = |&whole: &usize| u32::try_from(whole / granule).is_ok();
            let Some(bytes) = whole.filter(|&whole| whole > 0).filter(fits) else {
                return Err(Error::new(
                    Status::InvalidArgument,
                    format!("a region of {bytes} bytes is not between one page and 2^32 pages"),
                ));
            };
            let (id, base) = core.vmem.add_region(bytes).map_err(driver_error)?;
            Ok(Region { pool: self.id, id, base, bytes, granule })
        })?
    }
}

impl Region {
    /// Its first address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of a page.
    pub fn granule(&self) -> usize {
        self.granule
    }

    fn with_core<R>(&self, f: impl FnOnce(&mut Core) -> R) -> Result<R> {
        registry::pool(self.pool)?.with_core(self.pool, f)
    }

    /// Whether all rows lie in the region.
    fn covers(&self, rows: &[Row]) -> bool {
        let granules = (self.bytes / self.granule) as u64;
        rows.iter().all(|row| u64::from(row.first) + u64::from(row.len) <= granules)
    }

    /// Maps pages at rows that hold none. All or nothing.
    ///
    /// # Errors
    /// [`Status::OutOfMemory`] below the pool's limit, with its report; a driver call's failure;
    /// [`Status::InvalidArgument`] for a row that is not the region's or holds pages;
    /// [`Status::Busy`] where pages are in the way that the driver refuses to unmap.
    pub fn map(&self, rows: &[Row]) -> Result<()> {
        if rows.iter().all(|row| row.len == 0) {
            return Ok(());
        }
        if !self.covers(rows) {
            return Err(wrong_row());
        }
        let pages: usize = rows.iter().map(|row| row.len as usize).sum();
        let shared = registry::pool(self.pool)?;
        self.with_core(|core| core.check_rows(self.id, rows))??;
        let mapped = ladder::climb(shared, self.pool, pages * self.granule, |core, _| {
            core.map_rows(self.id, rows, pages)
        })?;
        mapped.ok_or_else(super::invalid_pool)
    }

    /// As [`Region::map`], only with pages that the pool has at hand, may create below its soft and
    /// hard limits, or finds idle: nobody is asked to give way, and a refusal is no error. Answers
    /// whether the rows are mapped.
    pub fn map_if_room(&self, rows: &[Row]) -> Result<bool> {
        if !self.covers(rows) {
            return Err(wrong_row());
        }
        let pages: usize = rows.iter().map(|row| row.len as usize).sum();
        self.with_core(|core| {
            core.check_rows(self.id, rows)?;
            let new = pages.saturating_sub(core.vmem.stock());
            let held = (core.vmem.pages() + new) as u64 * self.granule as u64;
            if core.settings.soft_limit.is_some_and(|soft| held > soft) {
                return Ok(false);
            }
            match core.map_rows(self.id, rows, pages) {
                Ok(()) => Ok(true),
                Err(Refusal::Short { .. }) => Ok(false),
                Err(Refusal::Driver(error)) if error.code == Code::OutOfMemory => Ok(false),
                Err(Refusal::Driver(error)) => Err(driver_error(error)),
                Err(_) => Ok(false),
            }
        })?
    }

    /// Unmaps rows that hold pages, in their order, until a call fails. Answers how many rows are
    /// unmapped, or were taken to be unmapped later, and why not all. The others are the owner's as
    /// they were.
    ///
    /// # Errors
    /// [`Status::Busy`] while a capture is open, or while the device works and pages may move only
    /// when it does not; a driver call's failure.
    pub fn unmap(&self, rows: &[Row]) -> (usize, Result<()>) {
        if !self.covers(rows) {
            return (0, Err(wrong_row()));
        }
        let unmapped = self.with_core(|core| core.unmap_region_rows((self.id, self.base), rows));
        unmapped.unwrap_or_else(|error| (0, Err(error)))
    }

    /// Gives everything back: pages to the stock, addresses to the driver. May be repeated after a
    /// failure. A pool that has ended has taken it already.
    ///
    /// # Errors
    /// As [`Region::unmap`].
    pub fn close(&self) -> Result<()> {
        self.with_core(|core| {
            core.may_unmap()?;
            tell_unmapped(core.id, self.base, self.bytes);
            core.vmem.close_region(self.id).map_err(driver_error)
        })
        .unwrap_or_else(|error| match error.status() {
            Status::InvalidPool | Status::ShutDown => Ok(()),
            _ => Err(error),
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.close().is_ok() {
            return;
        }
        let given_up = self.with_core(|core| {
            match core.may_unmap() {
                Ok(()) => {
                    // Told twice, where the refusal came after it: nobody is harmed.
                    tell_unmapped(core.id, self.base, self.bytes);
                    core.vmem.give_up_region(self.id);
                }
                Err(_) => {
                    // Nobody is there to be told when the pages go.
                    tell_unmapped(core.id, self.base, self.bytes);
                    core.vmem.leave_region(self.id);
                }
            }
            keeper::poke(core.id);
        });
        if let Err(error) = given_up {
            tracing::debug!(%error, "the pool of a region is gone, and the region with it");
        }
    }
}

fn wrong_row() -> Error {
    Error::new(Status::InvalidArgument, "a row is not the region's, or holds pages already")
}

impl Core {
    /// Fails for rows that hold pages; stranded ones are retried first.
    fn check_rows(&mut self, id: RegionId, rows: &[Row]) -> Result<()> {
        self.check_context()?;
        let free = |core: &Core| rows.iter().all(|&row| core.vmem.is_unbacked(id, row));
        if !free(self) && self.vmem.troubled() {
            self.recover();
        }
        if free(self) {
            return Ok(());
        }
        if rows.iter().all(|&row| self.vmem.holds_stranded_only(id, row)) {
            return Err(Error::new(
                Status::Busy,
                "pages that could not be unmapped are in the way, and still cannot be",
            ));
        }
        Err(wrong_row())
    }

    fn map_rows(
        &mut self,
        id: RegionId,
        rows: &[Row],
        pages: usize,
    ) -> std::result::Result<(), Refusal> {
        self.ready(pages, (0, 0))?;
        for (at, &row) in rows.iter().enumerate().filter(|(_, row)| row.len > 0) {
            if let Err(error) = self.vmem.map_region(id, row) {
                // Nobody has seen what was mapped so far.
                rows[..at].iter().for_each(|&row| self.vmem.drop_row(id, row));
                if self.vmem.troubled() {
                    keeper::poke(self.id);
                    // Else the next attempt finds its own leavings in the way.
                    self.recover();
                }
                return Err(Refusal::Driver(error));
            }
        }
        Ok(())
    }

    /// Fails where nothing may be unmapped now.
    fn may_unmap(&mut self) -> Result<()> {
        self.check_context()?;
        self.without_captures()?;
        let ask = self.settings.moves != Move::Always && self.driver.0.device().context_events;
        if ask && !self.device_idle().map_err(driver_error)? {
            return Err(Error::new(
                Status::Busy,
                "the device works, and FOREBAY_MOVE lets pages go only while it does not",
            ));
        }
        Ok(())
    }

    fn unmap_region_rows(
        &mut self,
        (id, base): (RegionId, usize),
        rows: &[Row],
    ) -> (usize, Result<()>) {
        if let Err(error) = self.may_unmap() {
            return (0, Err(error));
        }
        let granule = self.vmem.granule();
        for (done, &row) in rows.iter().enumerate().filter(|(_, row)| row.len > 0) {
            tell_unmapped(self.id, base + row.first as usize * granule, row.len as usize * granule);
            if let Err(error) = self.vmem.unmap_region(id, row) {
                let taken = self.vmem.holds_stranded_only(id, row);
                keeper::poke(self.id);
                return (done + usize::from(taken), Err(driver_error(error)));
            }
        }
        self.poke_above_soft();
        (rows.len(), Ok(()))
    }
}
