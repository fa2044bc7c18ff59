//! Exports of any block, and exports and imports in parts.
//!
//! A descriptor stands for a page, and a process may have few of them (1,024 is usual): 4 GiB are
//! 2,048 pages of 2 MiB. So an export is opened first, its descriptors are made a few at a time,
//! and an import takes them a few at a time. Promises:
//!
//! - an open export keeps the block's pages at their place, and the block out of others' hands
//!   when it is freed meanwhile, as in [`super::share`];
//! - an import that is not mapped leaves nothing behind once it is given up, or its pool ends.
//!
//! A page that is exported shows the importer its neighbours too: allocate whole pages where
//! that matters. Runs under the core's lock. Cost: a driver call a page.

use super::control::driver_error;
use super::core::Core;
use super::share::Opened;
use super::slow::Located;
use super::wipes::Place;
use super::{HANDLE_SHIFT, Pool, registry};
use crate::driver::ImportedPage;
use crate::error::{Error, Result, Status};
use crate::slab::Round;
use crate::slab::class::slot_bytes;
use std::os::fd::{BorrowedFd, OwnedFd};

/// An import whose pages come in parts.
#[derive(Debug)]
pub struct Arriving {
    /// How many pages there will be.
    count: usize,
    /// Those that came.
    pages: Vec<ImportedPage>,
}

/// The most pages that an import may have: 2 TiB of 2 MiB.
const PAGES_MAX: usize = 1 << 20;

fn invalid(message: String) -> Error {
    Error::new(Status::InvalidArgument, message)
}

/// What an export in parts covers: whole pages around the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number, for [`pages`] and [`super::share::close_export`].
    pub id: u64,
    /// The block's length in bytes, rounded up.
    pub block_bytes: usize,
    /// Where in the first page the block begins.
    pub offset: usize,
    /// Bytes of each page.
    pub page_bytes: usize,
    /// How many pages.
    pub count: usize,
}

impl Core {
    /// Opens an export of the live block at `address`. Its free then takes the slow path.
    fn open_window(&mut self, address: usize) -> Result<Window> {
        self.check_context()?;
        self.check_awake(address)?;
        let place = match self.locate(address)? {
            Located::Slot { round, .. } => Place::Slot(round),
            Located::Extent { node } => Place::Extent(node),
            Located::Imported { .. } => {
                return Err(invalid(format!(
                    "the memory at {address:#x} is imported: its own process exports it"
                )));
            }
        };
        let block_bytes = self.mark_special(address)?;
        let per = self.heap.per_granule();
        let quantum = |at| self.quantum(at).map(|(quantum, _)| quantum / per);
        let lost = || Error::new(Status::Internal, "a block lies outside the address range");
        let granule = quantum(address).ok_or_else(lost)?;
        let last = quantum(address + block_bytes - 1).ok_or_else(lost)?;
        let len = last + 1 - granule;
        let id = self.open_export(Opened { address, granule, len }, place);
        let offset = address - self.vmem.address(granule);
        let page_bytes = self.vmem.granule();
        Ok(Window { id, block_bytes, offset, page_bytes, count: len as usize })
    }

    /// Descriptors of `count` pages of an open export, from page `first` on. All or nothing.
    fn window_pages(&self, id: u64, first: usize, count: usize) -> Result<Vec<OwnedFd>> {
        self.check_context()?;
        let opened = self.shares.exports.get(&id);
        let &Opened { granule, len, .. } =
            opened.ok_or_else(|| invalid(format!("{id:#x} is no open export")))?;
        let end = first.checked_add(count).filter(|&end| end <= len as usize);
        if end.is_none() {
            return Err(invalid(format!(
                "the export has {len} pages, and {count} from page {first} on were asked for"
            )));
        }
        // Both fit into the export's length.
        self.vmem.export(granule + first as u32, count as u32).map_err(driver_error)
    }

    /// Bytes of the slot that a round stands for.
    pub(super) fn slot_bytes_of(&self, round: Round) -> u64 {
        slot_bytes(usize::from(self.slabs.slab(self.slabs.of(round)).class)) as u64
    }

    fn open_import(&mut self, count: usize) -> Result<u64> {
        self.check_context()?;
        if !(1..=PAGES_MAX).contains(&count) {
            return Err(invalid(format!("an import has 1 to {PAGES_MAX} pages, not {count}")));
        }
        let id = self.next_share();
        self.shares.arriving.insert(id, Arriving { count, pages: Vec::new() });
        Ok(id)
    }

    fn take_pages(&mut self, id: u64, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.check_context()?;
        let arriving = self.shares.arriving.get(&id).ok_or_else(|| no_import(id))?;
        let room = arriving.count - arriving.pages.len();
        if fds.len() > room {
            return Err(invalid(format!(
                "the import awaits {room} more pages, and {} came",
                fds.len()
            )));
        }
        let pages = self.import_pages(fds)?;
        if let Some(arriving) = self.shares.arriving.get_mut(&id) {
            arriving.pages.extend(pages);
        }
        Ok(())
    }

    fn finish_import(&mut self, id: u64) -> Result<usize> {
        self.check_context()?;
        let arriving = self.shares.arriving.get(&id).ok_or_else(|| no_import(id))?;
        if arriving.pages.len() < arriving.count {
            return Err(invalid(format!(
                "{} of the import's {} pages have come",
                arriving.pages.len(),
                arriving.count
            )));
        }
        let pages = self.shares.arriving.remove(&id).map(|a| a.pages).unwrap_or_default();
        self.map_arrived(&pages)
    }

    fn give_up_import(&mut self, id: u64) -> Result<()> {
        let arriving = self.shares.arriving.remove(&id).ok_or_else(|| no_import(id))?;
        self.vmem.drop_imports(&arriving.pages);
        Ok(())
    }

    /// Lets go what imports in parts hold: the pool ends.
    pub(super) fn give_up_imports(&mut self) {
        for (_, arriving) in std::mem::take(&mut self.shares.arriving) {
            self.vmem.drop_imports(&arriving.pages);
        }
    }
}

fn no_import(id: u64) -> Error {
    invalid(format!("{id:#x} is no open import"))
}

/// Runs on the core of the pool that a share's number names.
fn with_owner<T>(
    id: u64,
    missing: fn(u64) -> Error,
    f: impl FnOnce(&mut Core) -> Result<T>,
) -> Result<T> {
    let pool = id >> HANDLE_SHIFT;
    registry::pool(pool).map_err(|_| missing(id))?.with_core(pool, f)?
}

/// Descriptors of `count` pages of an open export, from page `first` on; the caller's to send and
/// to close. All or nothing.
pub fn pages(id: u64, first: usize, count: usize) -> Result<Vec<OwnedFd>> {
    let missing = |id| invalid(format!("{id:#x} is no open export"));
    with_owner(id, missing, |core| core.window_pages(id, first, count))
}

/// Gives the next pages to an import; the descriptors are not needed afterwards. All or nothing.
pub fn take_pages(id: u64, fds: &[BorrowedFd<'_>]) -> Result<()> {
    with_owner(id, no_import, |core| core.take_pages(id, fds))
}

/// Maps an import whose pages have all come; answers its address. Freed like any block. The
/// import's number ends with it, whether it works or not.
pub fn finish_import(id: u64) -> Result<usize> {
    with_owner(id, no_import, |core| core.finish_import(id))
}

/// Ends an import that is not mapped.
pub fn give_up_import(id: u64) -> Result<()> {
    with_owner(id, no_import, |core| core.give_up_import(id))
}

impl Pool {
    /// Opens an export of the live block at `address`, of any size; [`pages`] makes its
    /// descriptors. The pages stay where they are until [`super::share::close_export`].
    pub fn open_export(&self, address: usize) -> Result<Window> {
        self.with_core(|core| core.open_window(address))?
    }

    /// Begins an import of `count` pages; [`take_pages`] gives them, [`finish_import`] maps them.
    pub fn open_import(&self, count: usize) -> Result<u64> {
        self.with_core(|core| core.open_import(count))?
    }
}
