//! Memory that others use: peers' access, exports to and imports from other processes.
//!
//! Owns which blocks are exported and what is imported. Promises:
//!
//! - a change of peers reaches all mapped memory or none, and all that is mapped later;
//! - exported memory keeps its pages, at their place, until the export is closed: a block that is
//!   freed before stays as it is, in nobody's use, until then (in the accounts: other);
//! - imported memory is other processes': it counts in the accounts as other, not against the
//!   limit; it is never moved, wiped or reused, and is unmapped once the fences of its free have
//!   passed.
//!
//! Runs under the core's lock. Cost: a driver call a page, and for peers one a row of memory.

use super::control::driver_error;
use super::core::{Core, note};
use super::slow::Located;
use super::wipes::Place;
use super::{HANDLE_SHIFT, Pool, keeper, registry};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::units::QUANTUM_SHIFT;
use crate::config::{FreeMode, Move};
use crate::driver::{Code, DriverError, ImportedPage, PEERS_MAX};
use crate::error::{Error, Result, Status};
use crate::heap::NodeId;
use crate::stream::{LaneId, Stamp};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};

/// An export as its owner holds it.
#[derive(Debug)]
pub struct Export {
    /// Its number, for [`close_export`].
    pub id: u64,
    /// The block's length in bytes: whole pages.
    pub bytes: usize,
    /// Bytes of each page.
    pub page_bytes: usize,
    /// A descriptor a page, in address order; empty when only asked about.
    pub fds: Vec<OwnedFd>,
}

/// A block with open exports.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) place: Place,
    pub(super) open: u32,
    /// What the block waits for, once it is freed.
    freed: Option<Stamp>,
}

/// An open export: its block, and the granules that it keeps in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) address: usize,
    pub(super) granule: u32,
    pub(super) len: u32,
}

/// Granules that hold another process's memory.
#[derive(Clone, Copy, Debug)]
struct Imported {
    node: NodeId,
    granule: u32,
    len: u32,
}

/// What a pool has out and in.
#[derive(Debug, Default)]
pub struct Shares {
    /// Blocks with open exports, by address.
    pub(super) lent: HashMap<usize, Lent>,
    /// The open exports by number.
    pub(super) exports: HashMap<u64, Opened>,
    /// Imports that come in parts, by number.
    pub(super) arriving: HashMap<u64, super::window::Arriving>,
    /// Bytes of blocks that are freed and still exported.
    pub(super) held_bytes: u64,
    /// Freed blocks that wait to be overwritten.
    pub(super) unwiped: std::collections::BTreeSet<usize>,
    /// Live imports by address.
    imports: BTreeMap<usize, Imported>,
    /// Freed imports, until their fences have passed.
    leaving: Vec<(Imported, Stamp)>,
}

impl Shares {
    /// Bytes of blocks that are freed and still exported.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Whether the block at `address` was freed while an export of it was open, or waits to be
    /// overwritten.
    pub fn is_held(&self, address: usize) -> bool {
        self.unwiped.contains(&address)
            || self.lent.get(&address).is_some_and(|lent| lent.freed.is_some())
    }

    /// Whether an export of the block at `address` is open.
    pub fn is_lent(&self, address: usize) -> bool {
        self.lent.contains_key(&address)
    }

    /// Whether a freed import still has to be unmapped.
    pub fn any_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }
}

fn invalid(message: String) -> Error {
    Error::new(Status::InvalidArgument, message)
}

// ---- peers -------------------------------------------------------------------------------

/// Whether some pool has had peers: its device's fences then take their work in.
static PEERS: AtomicBool = AtomicBool::new(false);

/// Whether a fence may reach other devices than its pool's own.
pub fn any_peers() -> bool {
    PEERS.load(Ordering::SeqCst)
}

impl Core {
    fn enable_peer(&mut self, device: u32) -> Result<()> {
        self.check_context()?;
        let peers = self.vmem.peers();
        if peers.contains(&device) {
            return Ok(());
        }
        if !self.driver.0.can_access_peer(device) {
            return Err(Error::new(
                Status::Unsupported,
                format!("device {device} does not exist, or cannot reach this device's memory"),
            ));
        }
        if peers.len() >= PEERS_MAX {
            return Err(Error::new(
                Status::TooManyPeers,
                format!(
                    "the pool's memory is open to devices {peers:?}, and {PEERS_MAX} are the most \
                     that a mapping can be open to; disable one first"
                ),
            ));
        }
        // Set before the look: whoever begins a capture does it the other way round.
        PEERS.store(true, Ordering::SeqCst);
        if super::capture::any_open() {
            // Fences would reach the peer's captures from now on.
            return Err(Error::new(
                Status::Busy,
                "a peer cannot be enabled while a graph capture is open; end it first",
            ));
        }
        let mut more = peers.to_vec();
        more.push(device);
        self.vmem.set_peers(more).map_err(|error| self.peers_failed(error))
    }

    fn disable_peer(&mut self, device: u32) -> Result<()> {
        self.check_context()?;
        let mut fewer = self.vmem.peers().to_vec();
        fewer.retain(|&peer| peer != device);
        if fewer.len() == self.vmem.peers().len() {
            return Err(invalid(format!("device {device} is no peer of this pool")));
        }
        self.vmem.set_peers(fewer).map_err(|error| self.peers_failed(error))
    }

    fn peers_failed(&self, error: DriverError) -> Error {
        if self.vmem.troubled() {
            keeper::poke(self.id);
        }
        driver_error(error)
    }
}

// ---- exports -----------------------------------------------------------------------------

static NEXT_EXPORT: AtomicU64 = AtomicU64::new(1);

impl Core {
    /// Exports the block at `address`, if it has no more than `room` pages; without a room only
    /// says what the export would be.
    fn export(&mut self, address: usize, room: Option<usize>) -> Result<Export> {
        self.check_context()?;
        self.check_awake(address)?;
        let (node, granule, len) = match self.locate(address)? {
            Located::Extent { node } => self.whole_granules(node).ok_or_else(|| {
                let page = self.vmem.granule();
                invalid(format!(
                    "the block at {address:#x} shares pages with others, and only whole pages can \
                     be exported: allocate a multiple of {page} bytes with forebay_alloc_aligned \
                     at an alignment of {page}"
                ))
            })?,
            Located::Slot { .. } => {
                let page = self.vmem.granule();
                return Err(invalid(format!(
                    "the block at {address:#x} is part of a page, and only whole pages can be \
                     exported: allocate a multiple of {page} bytes"
                )));
            }
            Located::Imported { .. } => {
                return Err(invalid(format!(
                    "the memory at {address:#x} is imported: its own process exports it"
                )));
            }
        };
        let page_bytes = self.vmem.granule();
        let bytes = len as usize * page_bytes;
        let Some(room) = room else {
            return Ok(Export { id: 0, bytes, page_bytes, fds: Vec::new() });
        };
        if room < len as usize {
            return Err(invalid(format!(
                "the block has {len} pages, and there is room for {room} descriptors"
            )));
        }
        let fds = self.vmem.export(granule, len).map_err(driver_error)?;
        let opened = Opened { address, granule, len };
        let id = self.open_export(opened, Place::Extent(node));
        Ok(Export { id, bytes, page_bytes, fds })
    }

    /// Keeps a block and its granules for an export; answers the export's number.
    pub(super) fn open_export(&mut self, opened: Opened, place: Place) -> u64 {
        let id = self.next_share();
        self.vmem.pin(opened.granule, opened.granule + opened.len, true);
        let fresh = Lent { place, open: 0, freed: None };
        self.shares.lent.entry(opened.address).or_insert(fresh).open += 1;
        self.shares.exports.insert(id, opened);
        id
    }

    /// A number for an export or an import in parts, with the pool's in it.
    pub(super) fn next_share(&self) -> u64 {
        let number = NEXT_EXPORT.fetch_add(1, Ordering::Relaxed);
        self.id << HANDLE_SHIFT | (number & ((1 << HANDLE_SHIFT) - 1))
    }

    /// First granule and length of a block that consists of whole granules.
    fn whole_granules(&self, node: NodeId) -> Option<(NodeId, u32, u32)> {
        let (off, len, _) = self.heap.block(node);
        let per = self.heap.per_granule();
        (off.is_multiple_of(per) && len.is_multiple_of(per)).then(|| (node, off / per, len / per))
    }

    fn close_export(&mut self, id: u64) -> Result<()> {
        let Some(Opened { address, granule, len }) = self.shares.exports.remove(&id) else {
            return Err(invalid(format!("{id:#x} is no open export")));
        };
        self.vmem.pin(granule, granule + len, false);
        let lent = self.shares.lent.get_mut(&address).expect("open exports name their block");
        lent.open -= 1;
        if lent.open > 0 {
            return Ok(());
        }
        let (place, freed) = (lent.place, lent.freed);
        self.shares.lent.remove(&address);
        let Some(stamp) = freed else { return Ok(()) };
        if let Place::Extent(node) = place {
            let (_, len, _) = self.heap.block(node);
            self.shares.held_bytes -= u64::from(len) << QUANTUM_SHIFT;
        }
        self.return_exported(address, place, stamp);
        Ok(())
    }

    /// Keeps a freed extent as it is while exports of it are open. False: there are none.
    pub(super) fn hold_exported(&mut self, address: usize, bytes: u64, stamp: Stamp) -> bool {
        if self.shares.lent.is_empty() {
            return false;
        }
        let Some(lent) = self.shares.lent.get_mut(&address) else { return false };
        lent.freed = Some(stamp);
        self.shares.held_bytes += bytes;
        true
    }

    /// The same for a slot, which counts as pending.
    pub(super) fn hold_exported_slot(&mut self, address: usize, bytes: u64, stamp: Stamp) {
        if let Some(lent) = self.shares.lent.get_mut(&address) {
            lent.freed = Some(stamp);
            self.pending_bytes += bytes;
        }
    }
}

/// Closes an export: nobody uses the memory through it any more.
pub fn close_export(id: u64) -> Result<()> {
    let pool = id >> HANDLE_SHIFT;
    let unknown = |_| invalid(format!("{id:#x} is no open export"));
    registry::pool(pool).map_err(unknown)?.with_core(pool, |core| core.close_export(id))?
}

// ---- imports -----------------------------------------------------------------------------

impl Core {
    /// Maps other processes' pages, one a descriptor, side by side. Answers their address.
    fn import(&mut self, fds: &[BorrowedFd<'_>]) -> Result<usize> {
        self.check_context()?;
        let pages = self.import_pages(fds)?;
        self.map_arrived(&pages)
    }

    /// Pages out of descriptors. All or nothing.
    pub(super) fn import_pages(&mut self, fds: &[BorrowedFd<'_>]) -> Result<Vec<ImportedPage>> {
        self.vmem.import(fds).map_err(|(i, error)| match error.code {
            Code::InvalidHandle | Code::InvalidValue => invalid(format!(
                "descriptor {i} of {} names no page of a device: it must come from \
                 forebay_export_fd",
                fds.len()
            )),
            Code::NotSupported => Error::new(
                Status::Unsupported,
                format!(
                    "descriptor {i} of {} names a page in the memory of a device that this one \
                     cannot reach, or the device imports none",
                    fds.len()
                ),
            ),
            _ => driver_error(error),
        })
    }

    /// Maps imported pages side by side; they are let go where that fails.
    pub(super) fn map_arrived(&mut self, pages: &[ImportedPage]) -> Result<usize> {
        let count = pages.len();
        if pages.iter().any(|page| page.owner != pages[0].owner) {
            self.vmem.drop_imports(pages);
            return Err(invalid("the pages are of several devices: import each alone".to_owned()));
        }
        let len = u32::try_from(count).unwrap_or(u32::MAX);
        let gap = match len.checked_mul(self.heap.per_granule()) {
            Some(quanta) => self.gap_for(len, quanta),
            None => Err(invalid(format!("{count} pages are too many"))),
        };
        let granule = match gap {
            Ok(granule) => granule,
            Err(error) => {
                self.vmem.drop_imports(pages);
                return Err(error);
            }
        };
        if let Err(failure) = self.vmem.map_imports(granule, pages) {
            if let Some((first, len)) = failure.stranded {
                self.heap.strand(first, len);
            }
            if self.vmem.troubled() {
                keeper::poke(self.id);
            }
            return Err(driver_error(failure.error));
        }
        let node = self.heap.set_foreign(granule, len);
        let address = self.vmem.address(granule);
        self.shares.imports.insert(address, Imported { node, granule, len });
        let held = self.vmem.pages() + self.vmem.imported_pages();
        self.totals.peak_pages = self.totals.peak_pages.max(held);
        Ok(address)
    }

    fn gap_for(&mut self, len: u32, quanta: u32) -> Result<u32> {
        if let Some(granule) = self.heap.highest_gap(len) {
            return Ok(granule);
        }
        // Whatever stands in the way is an address range that is too short.
        let made = self.more_space(quanta, 1);
        self.heap.highest_gap(len).ok_or_else(|| match made {
            Err(super::ladder::Refusal::Driver(error)) => driver_error(error),
            _ => Error::new(Status::OutOfMemory, "no address range is long enough to import"),
        })
    }

    /// The import that `address` lies in: its address and length in bytes.
    pub fn imported_at(&self, address: usize) -> Option<(usize, usize)> {
        let (&start, import) = self.shares.imports.range(..=address).next_back()?;
        let bytes = import.len as usize * self.vmem.granule();
        (address - start < bytes).then_some((start, bytes))
    }

    /// Frees an import in `lane`'s order: it is unmapped once its stamp has passed.
    pub(super) fn free_import(&mut self, address: usize, bytes: usize, lane: LaneId, m: FreeMode) {
        let side = self.side.remove(&address).unwrap_or_default();
        for _ in 0..side.pins {
            self.pin_granules(address, bytes, false);
        }
        let stamp = if m == FreeMode::Sync && side.uses.is_empty() {
            Stamp::CLEAN
        } else {
            self.free_stamp(lane, lane, &side.uses, bytes as u64)
        };
        if let Some(import) = self.shares.imports.remove(&address) {
            self.shares.leaving.push((import, stamp));
        }
        self.record_leaving();
        self.settle();
        if self.shares.any_leaving() {
            keeper::poke(self.id);
        }
    }

    /// Records the fences that freed imports wait for.
    pub(super) fn record_leaving(&mut self) {
        if self.shares.any_leaving() {
            let recorded = self.lanes.record_all(&*self.driver.0);
            note(recorded, "a fence could not be recorded");
        }
    }

    /// Unmaps freed imports whose fences have passed. Answers whether any went.
    pub(super) fn unmap_left(&mut self) -> bool {
        if self.shares.leaving.is_empty() || self.lanes.open_captures() > 0 {
            return false;
        }
        // Where a device cannot be asked whether it is idle, the fences must do.
        let ask = self.settings.moves != Move::Always && self.driver.0.device().context_events;
        if ask && !self.device_idle().unwrap_or(false) {
            return false;
        }
        let mut any = false;
        for (import, stamp) in std::mem::take(&mut self.shares.leaving) {
            let Imported { node, granule, len } = import;
            if self.lanes.passed(stamp) {
                let bytes = len as usize * self.vmem.granule();
                super::control::tell_unmapped(self.id, self.vmem.address(granule), bytes);
                match self.vmem.unmap(granule, len) {
                    Ok(()) => {
                        self.heap.drop_foreign(node);
                        any = true;
                        continue;
                    }
                    Err(error) => tracing::warn!(%error, "an import was not unmapped; retried"),
                }
            }
            self.shares.leaving.push((import, stamp));
        }
        any
    }

    /// Calls `f` with every live import: address and bytes.
    pub fn each_import(&self, mut f: impl FnMut(usize, usize)) {
        for (&address, import) in &self.shares.imports {
            f(address, import.len as usize * self.vmem.granule());
        }
    }

    /// Fails once the device's context is known to be gone.
    pub fn check_context(&self) -> Result<()> {
        if self.fuse.is_blown() { Err(super::loss::lost()) } else { Ok(()) }
    }
}

impl Pool {
    /// Gives another device access to all of the pool's memory, present and future. Again for
    /// one that has it is fine.
    pub fn enable_peer(&self, device: u32) -> Result<()> {
        self.with_core(|core| core.enable_peer(device))?
    }

    /// Takes another device's access away again.
    pub fn disable_peer(&self, device: u32) -> Result<()> {
        self.with_core(|core| core.disable_peer(device))?
    }

    /// The devices that [`Pool::enable_peer`] gave access.
    pub fn peers(&self) -> Result<Vec<u32>> {
        self.with_core(|core| core.vmem.peers().to_vec())
    }

    /// Exports the block at `address`: a descriptor for each of its pages, the caller's to send
    /// and close. The pages stay where they are until [`close_export`].
    pub fn export(&self, address: usize) -> Result<Export> {
        self.export_within(address, usize::MAX)
    }

    /// [`Pool::export`] for a caller with room for so many descriptors: refused where the block has
    /// more pages than that.
    pub fn export_within(&self, address: usize, room: usize) -> Result<Export> {
        self.with_core(|core| core.export(address, Some(room)))?
    }

    /// What [`Pool::export`] would make, without descriptors and with number 0.
    pub fn describe_export(&self, address: usize) -> Result<Export> {
        self.with_core(|core| core.export(address, None))?
    }

    /// Maps memory that another process exported; freed like any block. The descriptors are not
    /// needed afterwards.
    pub fn import(&self, fds: &[BorrowedFd<'_>]) -> Result<usize> {
        if fds.is_empty() {
            return Err(invalid("no descriptor was given".to_owned()));
        }
        self.with_core(|core| core.import(fds))?
    }

    /// Bytes of a page: what each descriptor of an export stands for.
    pub fn page_bytes(&self) -> Result<usize> {
        self.with_core(|core| core.vmem.granule())
    }
}
