//! Freed memory overwritten before its next owner: poison or zeros, in the order of the free.
//!
//! Owns the blocks that could not be overwritten when they were freed: while a capture is open
//! nothing is queued on the legacy stream, which would end it. Promises that such a block is
//! nobody's until it has been overwritten. Cost: a fill a free; nothing where neither is asked for.

use super::core::{Core, note};
use super::share::Shares;
use crate::base::units::QUANTUM_SHIFT;
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
    address: usize,
    bytes: usize,
    /// What its free waits for.
    stamp: Stamp,
    place: Place,
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
    /// Overwrites a block that is being freed, in `lane`'s order. False: not now, as a capture is
    /// open; [`Core::hold_unwiped`] keeps it.
    pub(super) fn wipe(&mut self, address: usize, bytes: usize, lane: LaneId) -> bool {
        let stream = self.lanes.stream_of(lane);
        if stream.0 <= 1 && self.lanes.open_captures() > 0 && self.settings.wipes() {
            return false;
        }
        self.overwrite(address, bytes, stream)
    }

    fn overwrite(&mut self, address: usize, bytes: usize, stream: StreamHandle) -> bool {
        let value = match (self.settings.debug.poison, self.settings.scrub) {
            (true, _) => POISON,
            (false, true) => 0,
            (false, false) => return true,
        };
        match self.driver.0.fill(address, value, bytes, stream) {
            // A capture that nobody told of.
            Err(error) if error.code == Code::Other(codes::CAPTURE_UNSUPPORTED) => false,
            filled => {
                note(filled, "freed memory could not be overwritten");
                true
            }
        }
    }

    /// Keeps a block that is freed, and was not overwritten, from everybody.
    pub(super) fn hold_unwiped(&mut self, address: usize, bytes: usize, stamp: Stamp, at: Place) {
        match at {
            Place::Slot(_) => self.pending_bytes += bytes as u64,
            Place::Extent(node) => {
                self.forget_extent(node);
                self.shares.hold(address, bytes as u64);
            }
        }
        self.unwiped.push(Unwiped { address, bytes, stamp, place: at });
    }

    /// Whether a freed block at `address` can be held: exported ones are held by their exports.
    pub(super) fn can_hold(&self, address: usize) -> bool {
        !self.shares.is_lent(address)
    }

    /// Overwrites what is held, once no capture is open, and frees it behind that.
    pub(super) fn wipe_held(&mut self) {
        if self.unwiped.is_empty() || self.lanes.open_captures() > 0 {
            return;
        }
        for held in std::mem::take(&mut self.unwiped) {
            if !self.overwrite(held.address, held.bytes, StreamHandle(0)) {
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
    fn forget_extent(&mut self, node: NodeId) {
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
    fn hold(&mut self, address: usize, bytes: u64) {
        self.unwiped.insert(address);
        self.held_bytes += bytes;
    }

    fn unhold(&mut self, address: usize, bytes: u64) {
        self.unwiped.remove(&address);
        self.held_bytes -= bytes;
    }
}
