//! Freed memory overwritten before its next owner: poison or zeros, behind all that may use it.
//!
//! Owns the blocks that could not be overwritten when they were freed: what other streams may
//! still use (`cudaFree`'s meaning, recorded uses) waits for the fence of its free, and while a
//! capture is open nothing is queued on the legacy stream, which would end it. An exported block
//! is overwritten when its export is closed. What was to be cleared (`FOREBAY_SCRUB=1`) and the
//! driver refused is tried again at each look at the fences. Promises that such a block is nobody's
//! until it has been overwritten; in the accounts it is pending or other meanwhile. Poison is a
//! means of finding errors: a block that the driver would not poison goes on without.
//! Cost: a fill a free; nothing where neither is asked for.

use super::core::{Core, Side, note};
use super::share::Shares;
use crate::base::units::QUANTUM_SHIFT;
use crate::config::FreeMode;
use crate::driver::{Code, StreamHandle, cuda::codes};
use crate::heap::NodeId;
use crate::slab::Round;
use crate::slab::marks::Descriptor;
use crate::stream::{LaneId, Stamp};

/// What poisoned memory holds.
pub const POISON: u8 = 0xde;

/// A freed block whose contents are still there.
#[derive(Clone, Copy, Debug)]
pub struct Unwiped {
    pub(super) address: usize,
    pub(super) bytes: usize,
    /// What its free waits for.
    pub(super) stamp: Stamp,
    /// Whether other streams may use it until that has passed.
    pub(super) used: bool,
    pub(super) place: Place,
}

/// Where a block goes back to.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Its slab.
    Slot(Round),
    /// The heap.
    Extent(NodeId),
}

impl Core {
    /// Whether what is queued on `lane`'s stream now comes behind all that uses the freed block.
    /// `asked` tells whether the caller has waited for the device.
    pub(super) fn orders_wipe(&self, lane: LaneId, side: &Side, asked: FreeMode) -> bool {
        let in_order = lane != self.sync && side.uses.is_empty();
        in_order || asked == FreeMode::Sync || !self.settings.wipes()
    }

    /// Overwrites a block that is being freed, in `lane`'s order. False: not now, as a capture is
    /// open or the driver refused; [`Core::hold_unwiped`] keeps it.
    pub(super) fn wipe(&mut self, address: usize, bytes: usize, lane: LaneId) -> bool {
        let stream = self.lanes.stream_of(lane);
        if stream.0 <= 1 && self.lanes.open_captures() > 0 && self.settings.wipes() {
            return false;
        }
        self.overwrite(address, bytes, stream)
    }

    fn overwrite(&mut self, address: usize, bytes: usize, stream: StreamHandle) -> bool {
        let Some(value) = self.settings.overwrites_with() else { return true };
        match self.driver.0.fill(address, value, bytes, stream) {
            // A capture that nobody told of.
            Err(error) if error.code == Code::Other(codes::CAPTURE_UNSUPPORTED) => false,
            // Freed contents reach nobody: held until it works. A pool whose memory is gone hands
            // nothing out.
            Err(error)
                if self.settings.scrub
                    && !matches!(error.code, Code::ContextLost | Code::ShutDown) =>
            {
                if self.unwiped.is_empty() {
                    tracing::warn!(%error, "freed memory could not be cleared; held until it is");
                }
                false
            }
            filled => {
                note(filled, "freed memory could not be overwritten");
                true
            }
        }
    }

    /// Keeps a block that is freed on `lane`, and was not overwritten, from everybody; `used`:
    /// other streams may use it until `stamp` has passed.
    pub(super) fn hold_unwiped(
        &mut self,
        (address, bytes): (usize, usize),
        (stamp, lane): (Stamp, LaneId),
        used: bool,
        at: Place,
    ) {
        // It is overwritten on the legacy stream, which comes behind its own work alone.
        let used = used || self.lanes.stream_of(lane).0 > 1;
        match at {
            Place::Slot(_) => self.pending_bytes += bytes as u64,
            Place::Extent(node) => {
                self.forget_extent(node);
                self.shares.hold(address, bytes as u64);
            }
        }
        self.unwiped.push(Unwiped { address, bytes, stamp, used, place: at });
    }

    /// Gives back a block that was freed while it was exported, now that nobody imports it. A slot
    /// counts as pending already.
    pub(super) fn return_exported(&mut self, address: usize, place: Place, stamp: Stamp) {
        let bytes = match place {
            Place::Slot(round) => self.slot_bytes_of(round) as usize,
            Place::Extent(node) => (self.heap.block(node).1 as usize) << QUANTUM_SHIFT,
        };
        match place {
            Place::Slot(round) if !self.settings.wipes() => {
                self.pending_bytes -= bytes as u64;
                self.wait_for(stamp, round, bytes as u64);
                return;
            }
            Place::Extent(node) if !self.settings.wipes() => {
                self.return_extent(node, stamp);
                return;
            }
            Place::Extent(_) => self.shares.hold(address, bytes as u64),
            Place::Slot(_) => {}
        }
        self.unwiped.push(Unwiped { address, bytes, stamp, used: true, place });
        self.wipe_held();
    }

    /// Overwrites what is held and used no more, once no capture is open, and frees it behind that.
    pub(super) fn wipe_held(&mut self) {
        if self.unwiped.is_empty() || self.lanes.open_captures() > 0 {
            return;
        }
        let mut refused = false;
        for held in std::mem::take(&mut self.unwiped) {
            let wait = refused || held.used && !self.lanes.passed(held.stamp);
            if wait || !self.overwrite(held.address, held.bytes, StreamHandle(0)) {
                // What it refused once in a look it is not asked again.
                refused |= !wait;
                self.unwiped.push(held);
                continue;
            }
            let bytes = held.bytes as u64;
            let filled = self.lanes.stamp(self.sync, bytes);
            let stamp = self.lanes.join(&[held.stamp, filled]);
            match held.place {
                Place::Slot(round) => {
                    self.pending_bytes -= bytes;
                    self.wait_for(stamp, round, bytes);
                }
                Place::Extent(node) => {
                    self.shares.unhold(held.address, bytes);
                    self.return_extent(node, stamp);
                }
            }
        }
    }

    /// Ends an extent for whoever asks by address, and in the accounts; the heap still has it.
    pub(super) fn forget_extent(&mut self, node: NodeId) {
        let (off, len, _) = self.heap.block(node);
        let extent = super::core::Extent::from_word(self.heap.word(node));
        self.marks.set(off, Descriptor::None);
        self.totals.extent_frees += 1;
        self.totals.extent_live -= 1;
        self.totals.extent_live_bytes -= u64::from(len) << QUANTUM_SHIFT;
        self.totals.extent_requested -= extent.bytes as u64;
    }
}

impl Shares {
    /// Holds a freed block that is exported to nobody.
    pub(super) fn hold(&mut self, address: usize, bytes: u64) {
        self.unwiped.insert(address);
        self.held_bytes += bytes;
    }

    pub(super) fn unhold(&mut self, address: usize, bytes: u64) {
        self.unwiped.remove(&address);
        self.held_bytes -= bytes;
    }
}
