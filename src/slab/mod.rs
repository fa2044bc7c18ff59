//! Small blocks: size classes, slabs cut into slots, full magazines kept ready.
//!
//! - [`class`]: the size classes and their tables;
//! - [`marks`]: the descriptors and live marks that the hot path reads;
//! - [`slabs`]: slabs as blocks of the heap, their free slots;
//! - [`depot`]: full magazines of a lane, swapped whole.
//!
//! Promises: a slot is in exactly one place (its slab's free bits, a magazine, the depot,
//! quarantine, pending, or live); lowest-addressed partial slab first, lowest free slot first;
//! an empty slab goes back to the heap at once. Calls no driver, holds no lock.

pub mod class;
pub mod depot;
pub mod marks;
pub mod slabs;
#[cfg(test)]
mod tests;

/// A slot on its way between slab, magazine and user: unit offset (address minus the pool's
/// first base, in 256 B units) in the low half, mark index in the high half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Round(pub u64);

impl Round {
    /// From the unit offset and the mark index.
    #[inline(always)]
    pub fn new(unit: u32, mark: u32) -> Round {
        Round(u64::from(unit) | u64::from(mark) << 32)
    }

    /// Offset from the pool's first base, in units of 256 B.
    #[inline(always)]
    pub fn unit(self) -> u32 {
        self.0 as u32
    }

    /// Index of the slot's live mark.
    #[inline(always)]
    pub fn mark(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The quantum the slot begins in.
    #[inline(always)]
    pub fn quantum(self) -> u32 {
        self.unit() >> 6
    }
}
