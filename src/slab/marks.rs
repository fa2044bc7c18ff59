//! What the hot path reads about an address: descriptors and live marks.
//!
//! Owns [`Marks`]: one 4-byte descriptor a quantum and one byte a slot, out of band (the
//! memory itself may not be readable by the CPU); 4 bytes a line of 128 marks that say the class
//! and lane of the line's slab, for slow paths; and the allocator of mark ranges. A mark of 0
//! says not live; otherwise it is the block's tag, with [`SPECIAL`] set when a free must look
//! further (recorded uses, pins, debug records).
//!
//! Promises: ranges of marks start at multiples of 128 and have at least one spare mark that
//! stays 0; descriptors of quanta that begin no known block are 0.
//!
//! Limits: 2^26 marks. Ranges are rounded up to powers of two, so that they are enough for 2^25
//! slots live at once in a pool (8 GiB of the smallest, 256 B), often for more. And 2^26 extents.

use super::class::CLASS_END;
use crate::base::raw::Table;
use crate::base::sync::atomic::{AtomicU8, AtomicU32, Ordering};
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

// A descriptor word: class or code (6 bits), quantum in the slab (7), line of marks (19); an
// extent's has its node above the code.
const CODE_BITS: u32 = 6;
const INDEX_BITS: u32 = 7;
const LINE_SHIFT: u32 = CODE_BITS + INDEX_BITS;

/// In a class's place: a slab whose memory belongs to a graph capture.
const CAPTIVE: u32 = 61;
/// In a class's place: an extent begins here.
const EXTENT: u32 = 62;

const _: () = assert!(CLASS_END as u32 <= CAPTIVE);

/// Marks that share a line of the tables.
const LINE: u32 = 128;

/// Marks that a pool may have.
const MARKS_MAX: usize = (LINE as usize) << (32 - LINE_SHIFT);

/// A descriptor of a slab: its first mark.
#[inline(always)]
pub fn word_marks(word: u32) -> u32 {
    (word >> LINE_SHIFT) * LINE
}

/// A descriptor of a slab: which of its quanta.
#[inline(always)]
pub fn word_index(word: u32) -> u32 {
    (word >> CODE_BITS) & ((1 << INDEX_BITS) - 1)
}

/// The class in a descriptor; `None` when the hot path must look further.
#[inline(always)]
pub fn word_class(word: u32) -> Option<usize> {
    let code = word & ((1 << CODE_BITS) - 1);
    if code.wrapping_sub(1) < CLASS_END as u32 - 1 { Some(code as usize) } else { None }
}

/// Mark ranges are powers of two from 128 to 16384.
const RANGE_MIN: usize = 128;
const RANGE_KINDS: usize = 8;

/// Descriptors that are asked for from the kernel at once: 64 KiB of them, for 256 MiB of memory.
const POPULATE: usize = 16 << 10;

/// Descriptors that a new pool asks for: 256 KiB of them, for 1 GiB of memory.
const POPULATE_FIRST: usize = 4 * POPULATE;

/// Descriptors and marks of one pool.
#[derive(Debug)]
pub struct Marks {
    descriptors: Table<AtomicU32>,
    lines: Table<AtomicU32>,
    marks: Table<AtomicU8>,
    /// One past the last descriptor that was asked for from the kernel.
    populated: usize,
    top: usize,
    spare: [Vec<u32>; RANGE_KINDS],
}

impl Marks {
    /// Tables for `quanta` quanta of address space. `None`: no address space for them.
    pub fn new(quanta: usize) -> Option<Marks> {
        // One mark for each 256 B, doubled because ranges are rounded up.
        let marks = quanta.checked_mul(LINE as usize)?.min(MARKS_MAX);
        let mut tables = Marks {
            descriptors: Table::new(quanta)?,
            lines: Table::new(marks / LINE as usize)?,
            marks: Table::new(marks)?,
            populated: 0,
            top: 0,
            spare: Default::default(),
        };
        // What any pool uses is had now rather than within its first allocations: the first
        // marks, whose page may be a huge one, and the descriptors of the first memory.
        tables.marks.populate(0, 1);
        tables.lines.populate(0, 1);
        tables.expect(0, POPULATE_FIRST.min(quanta));
        Some(tables)
    }

    /// How many quanta the tables cover.
    pub fn quanta(&self) -> usize {
        self.descriptors.len()
    }

    /// Says that `quanta` quanta from `off` are about to be used. Costs a system call when they
    /// reach past all before, and spares 16 page faults for each 256 MiB. Where addresses are taken
    /// from below, as the heap does, all are asked for so; others come as they are written.
    pub fn expect(&mut self, off: usize, quanta: usize) {
        let end = off + quanta;
        if end > self.populated {
            let start = self.populated.max(off / POPULATE * POPULATE);
            let end = end.next_multiple_of(POPULATE);
            self.descriptors.populate(start, end);
            self.populated = end;
        }
    }

    /// The tables' addresses, for the hot path: descriptors, marks.
    pub fn pointers(&self) -> (*const AtomicU32, *const AtomicU8) {
        (self.descriptors.as_ptr(), self.marks.as_ptr())
    }

    /// What lies at a quantum.
    pub fn get(&self, quantum: u32) -> Descriptor {
        let word = self.descriptors.at(quantum as usize).load(Ordering::Acquire);
        match word & ((1 << CODE_BITS) - 1) {
            0 => Descriptor::None,
            EXTENT => Descriptor::Extent { node: word >> CODE_BITS },
            _ => {
                let marks = word_marks(word);
                let line = self.lines.at((marks / LINE) as usize).load(Ordering::Acquire);
                let (lane, class) = ((line >> CODE_BITS) as LaneId, (line & 63) as usize);
                Descriptor::Slab { marks, lane, index: word_index(word), class }
            }
        }
    }

    /// Says what lies at a quantum. All quanta of a slab have the lane that was given last.
    pub fn set(&self, quantum: u32, descriptor: Descriptor) {
        let word = match descriptor {
            Descriptor::None => 0,
            Descriptor::Slab { marks, lane, index, class } => {
                debug_assert!(marks.is_multiple_of(LINE) && index < 1 << INDEX_BITS);
                let line = class as u32 | u32::from(lane) << CODE_BITS;
                self.lines.at((marks / LINE) as usize).store(line, Ordering::Release);
                class as u32 | index << CODE_BITS | (marks / LINE) << LINE_SHIFT
            }
            Descriptor::Extent { node } => {
                debug_assert!(node < 1 << (32 - CODE_BITS));
                EXTENT | node << CODE_BITS
            }
        };
        self.descriptors.at(quantum as usize).store(word, Ordering::Release);
    }

    /// Says that a slab lies at `quanta` from `off`.
    pub fn set_slab(&self, (off, quanta): (u32, u32), marks: u32, lane: LaneId, class: usize) {
        self.set(off, Descriptor::Slab { marks, lane, index: 0, class });
        let mut word = self.descriptors.at(off as usize).load(Ordering::Relaxed);
        for quantum in off + 1..off + quanta {
            word += 1 << CODE_BITS;
            self.descriptors.at(quantum as usize).store(word, Ordering::Release);
        }
    }

    /// Says that nothing known begins at `quanta` from `off`.
    pub fn clear(&self, (off, quanta): (u32, u32)) {
        for quantum in off..off + quanta {
            self.descriptors.at(quantum as usize).store(0, Ordering::Release);
        }
    }

    /// Says that a slab's quantum belongs to a capture, until its descriptor is set again: the
    /// hot path keeps off it.
    pub fn hold(&self, quantum: u32) {
        let descriptor = self.descriptors.at(quantum as usize);
        let word = descriptor.load(Ordering::Acquire);
        if word_class(word).is_some() {
            descriptor.store(word & !((1 << CODE_BITS) - 1) | CAPTIVE, Ordering::Release);
        }
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
            return self.split_range(kind);
        }
        let range = self.top as u32;
        self.top += len;
        Some(range)
    }

    /// A range of `kind` out of a longer spare one; the rest stays spare, in halves.
    #[cold]
    fn split_range(&mut self, kind: usize) -> Option<u32> {
        let longer = (kind + 1..RANGE_KINDS).find(|&longer| !self.spare[longer].is_empty())?;
        let range = self.spare[longer].pop()?;
        for half in kind..longer {
            self.spare[half].push(range + (RANGE_MIN << half) as u32);
        }
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
        let last = MARKS_MAX as u32 - LINE;
        let marks = Marks { lines: Table::new(1 << 19).expect("address space"), ..marks };
        let slab = Descriptor::Slab { marks: last, lane: 4095, index: 127, class: 60 };
        let extent = Descriptor::Extent { node: (1 << 26) - 1 };
        for descriptor in [slab, extent, Descriptor::None] {
            marks.set(2, descriptor);
            assert_eq!(marks.get(2), descriptor);
            assert_eq!((marks.get(1), marks.get(3)), (Descriptor::None, Descriptor::None));
        }
        let word = |quantum| marks.descriptors.at(quantum).load(Ordering::Relaxed);
        marks.set(2, slab);
        assert_eq!(word_class(word(2)), Some(60));
        assert_eq!((word_marks(word(2)), word_index(word(2))), (last, 127));
        marks.set(3, extent);
        assert_eq!((word_class(word(3)), word_class(0)), (None, None), "no slab, no class");
    }

    #[test]
    fn a_slab_is_set_as_its_quanta_one_by_one() {
        let marks = Marks::new(130).expect("address space");
        marks.set_slab((1, 128), 256, 5, 60);
        for index in 0..128 {
            let slab = Descriptor::Slab { marks: 256, lane: 5, index, class: 60 };
            assert_eq!(marks.get(1 + index), slab);
        }
        assert_eq!((marks.get(0), marks.get(129)), (Descriptor::None, Descriptor::None));
        marks.clear((2, 127));
        assert!(matches!(marks.get(1), Descriptor::Slab { .. }));
        assert!((2..130).all(|quantum| marks.get(quantum) == Descriptor::None));
    }

    #[test]
    fn the_hot_path_keeps_off_a_held_slab() {
        let marks = Marks::new(4).expect("address space");
        let slab = Descriptor::Slab { marks: 128, lane: 7, index: 1, class: 9 };
        let word = || marks.descriptors.at(1).load(Ordering::Relaxed);
        marks.set(1, slab);
        marks.hold(1);
        assert_eq!(word_class(word()), None);
        assert_eq!(marks.get(1), slab, "it is what it was");
        marks.hold(2);
        assert_eq!(marks.get(2), Descriptor::None, "no slab, nothing to hold");
        marks.set(1, slab);
        assert_eq!(word_class(word()), Some(9));
    }
}
