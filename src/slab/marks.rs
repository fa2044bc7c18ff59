//! What the hot path reads about an address: descriptors and live marks.
//!
//! Owns [`Marks`]: one 8-byte descriptor a quantum and one byte a slot, out of band (the
//! memory itself may not be readable by the CPU), and the allocator of mark ranges. A mark of 0
//! says not live; otherwise it is the block's tag, with [`SPECIAL`] set when a free must look
//! further (recorded uses, pins, debug records).
//!
//! Promises: ranges of marks start at multiples of 128 and have at least one spare mark that
//! stays 0; descriptors of quanta that begin no known block are 0.

use crate::base::raw::Table;
use crate::base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::stream::LaneId;

/// Set in a mark when the block has entries in the pool's side table.
pub const SPECIAL: u8 = 0x80;

/// What a descriptor says of its quantum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptor {
    /// No block begins here, nor does a slab lie here.
    None,
    /// The quantum `index` of a slab.
    Slab {
        /// First mark of the slab.
        marks: u32,
        /// The slab's lane.
        lane: LaneId,
        /// Which quantum of the slab this is.
        index: u32,
        /// Its class.
        class: usize,
    },
    /// An extent begins here.
    Extent {
        /// The heap's node.
        node: u32,
    },
}

/// Set in a slab's descriptor word when its memory belongs to a graph capture: frees of other
/// lanes must look further.
pub const CAPTIVE: u64 = 1 << 51;

const KIND_SHIFT: u32 = 62;
const CLASS_SHIFT: u32 = 52;
const INDEX_SHIFT: u32 = 44;
const LANE_SHIFT: u32 = 32;

/// The class in a descriptor word; 0 when it is no slab's.
#[inline(always)]
pub fn word_class(word: u64) -> usize {
    ((word >> CLASS_SHIFT) & 63) as usize
}

/// The quantum-in-slab in a descriptor word.
#[inline(always)]
pub fn word_index(word: u64) -> u32 {
    ((word >> INDEX_SHIFT) & 127) as u32
}

/// The lane in a descriptor word.
#[inline(always)]
pub fn word_lane(word: u64) -> u32 {
    ((word >> LANE_SHIFT) & 4095) as u32
}

impl Descriptor {
    fn word(self) -> u64 {
        match self {
            Descriptor::None => 0,
            Descriptor::Slab { marks, lane, index, class } => {
                u64::from(marks)
                    | u64::from(lane) << LANE_SHIFT
                    | u64::from(index) << INDEX_SHIFT
                    | (class as u64) << CLASS_SHIFT
                    | 1 << KIND_SHIFT
            }
            Descriptor::Extent { node } => u64::from(node) | 2 << KIND_SHIFT,
        }
    }

    fn from_word(word: u64) -> Descriptor {
        match word >> KIND_SHIFT {
            1 => Descriptor::Slab {
                marks: word as u32,
                lane: word_lane(word) as LaneId,
                index: word_index(word),
                class: word_class(word),
            },
            2 => Descriptor::Extent { node: word as u32 },
            _ => Descriptor::None,
        }
    }
}

/// Mark ranges are powers of two from 128 to 16384.
const RANGE_MIN: usize = 128;
const RANGE_KINDS: usize = 8;

/// Descriptors and marks of one pool.
#[derive(Debug)]
pub struct Marks {
    descriptors: Table<AtomicU64>,
    marks: Table<AtomicU8>,
    top: usize,
    spare: [Vec<u32>; RANGE_KINDS],
}

impl Marks {
    /// Tables for `quanta` quanta of address space. `None`: no address space for them.
    pub fn new(quanta: usize) -> Option<Marks> {
        Some(Marks {
            descriptors: Table::new(quanta)?,
            // One mark for each 256 B, doubled because ranges are rounded up.
            marks: Table::new(quanta.checked_mul(128)?)?,
            top: 0,
            spare: Default::default(),
        })
    }

    /// How many quanta the tables cover.
    pub fn quanta(&self) -> usize {
        self.descriptors.len()
    }

    /// The tables' addresses, for the hot path: descriptors, marks.
    pub fn pointers(&self) -> (*const AtomicU64, *const AtomicU8) {
        (self.descriptors.as_ptr(), self.marks.as_ptr())
    }

    /// What lies at a quantum.
    pub fn get(&self, quantum: u32) -> Descriptor {
        Descriptor::from_word(self.descriptors.at(quantum as usize).load(Ordering::Acquire))
    }

    /// Says what lies at a quantum.
    pub fn set(&self, quantum: u32, descriptor: Descriptor) {
        self.descriptors.at(quantum as usize).store(descriptor.word(), Ordering::Release);
    }

    /// Says that the slab at a quantum belongs to a capture, until its descriptor is set again.
    pub fn hold(&self, quantum: u32) {
        self.descriptors.at(quantum as usize).fetch_or(CAPTIVE, Ordering::Release);
    }

    /// The mark at an index.
    pub fn mark(&self, index: u32) -> &AtomicU8 {
        self.marks.at(index as usize)
    }

    /// A range of zero marks for `slots` slots and a spare; `None` when all are in use.
    pub fn take_range(&mut self, slots: usize) -> Option<u32> {
        let (kind, len) = range_kind(slots);
        if let Some(range) = self.spare[kind].pop() {
            return Some(range);
        }
        if self.top + len > self.marks.len() {
            return None;
        }
        let range = self.top as u32;
        self.top += len;
        Some(range)
    }

    /// Gives a range back; all its marks are 0.
    pub fn give_range(&mut self, range: u32, slots: usize) {
        debug_assert!((0..slots as u32).all(|i| self.mark(range + i).load(Ordering::Relaxed) == 0));
        self.spare[range_kind(slots).0].push(range);
    }
}

fn range_kind(slots: usize) -> (usize, usize) {
    let len = (slots + 1).next_power_of_two().max(RANGE_MIN);
    let kind = (len / RANGE_MIN).trailing_zeros() as usize;
    debug_assert!(kind < RANGE_KINDS);
    (kind, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_read_as_written() {
        let marks = Marks::new(4).expect("address space");
        assert_eq!(marks.get(3), Descriptor::None);
        let slab = Descriptor::Slab { marks: u32::MAX, lane: 4095, index: 127, class: 60 };
        let extent = Descriptor::Extent { node: u32::MAX };
        for descriptor in [slab, extent, Descriptor::None] {
            marks.set(2, descriptor);
            assert_eq!(marks.get(2), descriptor);
            assert_eq!((marks.get(1), marks.get(3)), (Descriptor::None, Descriptor::None));
        }
        let word = slab.word();
        assert_eq!((word_class(word), word_index(word), word_lane(word)), (60, 127, 4095));
        assert_eq!(word_class(extent.word()), 0, "an extent has no class");
    }
}
