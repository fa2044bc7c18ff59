//! Slabs: blocks of the heap cut into equal slots, each with its free bits.
//!
//! Owns which slots are in their slab and which are out. Slabs belong to a lane: their
//! free slots are free in that lane's order. Cost: O(log slabs of the class) to find a slab, a
//! few instructions a slot.

use super::Round;
use super::class::{CLASS_END, CLASSES, INFO, slot_bytes};
use super::marks::Marks;
use crate::base::raw::prefetch;
use crate::base::units::{MIB, QUANTUM, QUANTUM_SHIFT, UNIT_SHIFT};
use crate::heap::NodeId;
use crate::stream::LaneId;
use std::collections::BTreeMap;

/// A slab's number.
pub type SlabId = u32;

/// Slabs are at least this long, one slot permitting.
const SLAB_MIN: usize = 64 << 10;
/// And at most this long.
const SLAB_MAX: usize = 2 * MIB;
/// A new slab's length is this share of the class's bytes in use.
const SLAB_SHARE: usize = 16;

/// Mark ranges start at multiples of this.
const MARK_BLOCK: usize = 128;

/// Free bits of a slab: most slabs have few slots, and their bits share the slab's own line.
#[derive(Debug)]
enum Words {
    Few([u64; WORDS_FEW]),
    Many(Box<[u64]>),
}

/// With so many words a [`Slab`] fills one line of the cache.
const WORDS_FEW: usize = 3;

impl Words {
    /// Bits of `slots` slots, all set.
    fn full(slots: usize) -> Words {
        let bits = |word: usize| match slots.saturating_sub(word * 64) {
            left @ 0..64 => (1 << left) - 1,
            _ => !0,
        };
        match slots.div_ceil(64) {
            0..=WORDS_FEW => Words::Few(std::array::from_fn(bits)),
            count => Words::Many((0..count).map(bits).collect()),
        }
    }

    #[inline]
    fn get(&mut self) -> &mut [u64] {
        match self {
            Words::Few(words) => words,
            Words::Many(words) => words,
        }
    }
}

/// One slab.
#[repr(align(64))]
#[derive(Debug)]
pub struct Slab {
    /// Its block in the heap.
    pub node: NodeId,
    /// First quantum.
    pub off: u32,
    /// Length in quanta.
    pub quanta: u32,
    /// Its class.
    pub class: u8,
    /// Its lane.
    pub lane: LaneId,
    /// How many slots it has.
    pub slots: u32,
    /// How many of them are in the slab.
    pub free: u32,
    /// First mark.
    pub marks: u32,
    /// A bit a slot: set = in the slab.
    words: Words,
}

const _: () = assert!(size_of::<Option<Slab>>() == 64);

/// A lane's slabs with free slots, by class and address, and how many slots are out.
#[derive(Debug)]
struct LaneSlabs {
    partial: [BTreeMap<u32, SlabId>; CLASSES],
    out: [u64; CLASSES],
}

/// All slabs of one pool.
#[derive(Debug, Default)]
pub struct Slabs {
    slabs: Vec<Option<Slab>>,
    spare: Vec<SlabId>,
    lanes: Vec<Option<Box<LaneSlabs>>>,
    /// Slab by first quantum.
    by_off: BTreeMap<u32, SlabId>,
    /// Slab by mark index / 128: a slot's mark names its slab.
    by_mark: Vec<SlabId>,
    /// Free bytes in slabs: free slots and what is left over at slabs' ends.
    free_bytes: u64,
}

impl Slabs {
    /// The length in quanta for a new slab, and the shortest that would do.
    pub fn wanted(&self, lane: LaneId, class: usize) -> (u32, u32) {
        let slot = slot_bytes(class);
        let out = self.lane(lane).map_or(0, |l| l.out[class]) as usize;
        let bytes = (out * slot / SLAB_SHARE).clamp(SLAB_MIN, SLAB_MAX);
        let least = slot.div_ceil(QUANTUM);
        let wanted = ((bytes / slot).max(1) * slot).div_ceil(QUANTUM);
        (wanted as u32, least as u32)
    }

    /// How many slots of a class are out of `lane`'s slabs: live, cached or waiting.
    pub fn out(&self, lane: LaneId, class: usize) -> u64 {
        self.lane(lane).map_or(0, |l| l.out[class])
    }

    fn lane(&self, lane: LaneId) -> Option<&LaneSlabs> {
        self.lanes.get(lane as usize)?.as_deref()
    }

    fn lane_mut(&mut self, lane: LaneId) -> &mut LaneSlabs {
        let index = lane as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index].get_or_insert_with(|| {
            Box::new(LaneSlabs {
                partial: std::array::from_fn(|_| BTreeMap::new()),
                out: [0; CLASSES],
            })
        })
    }

    /// Makes a block of the heap a slab. `None`: no marks are left; the block is untouched.
    pub fn open(
        &mut self,
        marks: &mut Marks,
        node: NodeId,
        (off, quanta): (u32, u32),
        lane: LaneId,
        class: usize,
    ) -> Option<SlabId> {
        let slots = ((quanta as usize) << QUANTUM_SHIFT) / slot_bytes(class);
        debug_assert!(slots > 0 && quanta <= 128);
        let first_mark = marks.take_range(slots)?;
        let slab = Slab {
            node,
            off,
            quanta,
            class: class as u8,
            lane,
            slots: slots as u32,
            free: slots as u32,
            marks: first_mark,
            words: Words::full(slots),
        };
        let id = match self.spare.pop() {
            Some(id) => {
                self.slabs[id as usize] = Some(slab);
                id
            }
            None => {
                self.slabs.push(Some(slab));
                (self.slabs.len() - 1) as SlabId
            }
        };
        marks.set_slab((off, quanta), first_mark, lane, class);
        self.by_off.insert(off, id);
        let blocks =
            first_mark as usize / MARK_BLOCK..(first_mark as usize + slots) / MARK_BLOCK + 1;
        if self.by_mark.len() < blocks.end {
            self.by_mark.resize(blocks.end, SlabId::MAX);
        }
        self.by_mark[blocks].fill(id);
        self.lane_mut(lane).partial[class].insert(off, id);
        self.free_bytes += u64::from(quanta) << QUANTUM_SHIFT;
        Some(id)
    }

    /// Takes up to `want` slots of the lane's lowest partial slab of the class: from one
    /// word of free bits, so that the marks of one refill share lines with nobody else's.
    pub fn take(
        &mut self,
        lane: LaneId,
        class: usize,
        want: usize,
        mut out: impl FnMut(Round),
    ) -> usize {
        let Some(lanes) = self.lanes.get_mut(lane as usize).and_then(Option::as_deref_mut) else {
            return 0;
        };
        let Some((&off, &id)) = lanes.partial[class].first_key_value() else { return 0 };
        let slab = self.slabs[id as usize].as_mut().expect("partial slabs exist");
        let units = INFO[class].units;
        let base_unit = slab.off << (QUANTUM_SHIFT - UNIT_SHIFT);
        let words = slab.words.get();
        let word = words.iter().position(|&w| w != 0).expect("a partial slab has a free slot");
        let mut left = words[word];
        let mut taken = 0;
        while taken < want && left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let slot = word as u32 * 64 + bit;
            out(Round::new(base_unit + slot * units, slab.marks + slot));
            taken += 1;
        }
        words[word] = left;
        slab.free -= taken as u32;
        if slab.free == 0 {
            lanes.partial[class].remove(&off);
        }
        lanes.out[class] += taken as u64;
        self.free_bytes -= (taken * slot_bytes(class)) as u64;
        taken
    }

    /// The first quantum of the slab that [`Slabs::take`] would serve from.
    pub fn first_partial(&self, lane: LaneId, class: usize) -> Option<u32> {
        self.lane(lane)?.partial[class].first_key_value().map(|(&off, _)| off)
    }

    /// Gives `to` the lowest partial slab of the class that `from` has. Its free slots must
    /// be clean. Answers whether there was one.
    pub fn adopt(&mut self, marks: &Marks, from: LaneId, to: LaneId, class: usize) -> bool {
        let first = self.lane(from).and_then(|l| l.partial[class].first_key_value());
        let Some((_, &id)) = first else { return false };
        self.hand_over(marks, id, to);
        true
    }

    /// Gives `to` every slab of `from`.
    pub fn reassign(&mut self, marks: &Marks, from: LaneId, to: LaneId) {
        if !self.lane_in_use(from) {
            return;
        }
        let ids: Vec<SlabId> =
            self.by_off.values().copied().filter(|&id| self.slab(id).lane == from).collect();
        for id in ids {
            self.hand_over(marks, id, to);
        }
    }

    fn hand_over(&mut self, marks: &Marks, id: SlabId, to: LaneId) {
        let slab = self.slabs[id as usize].as_mut().expect("an open slab");
        let from = std::mem::replace(&mut slab.lane, to);
        let (off, quanta, first_mark) = (slab.off, slab.quanta, slab.marks);
        let (class, free, out) = (slab.class as usize, slab.free, slab.slots - slab.free);
        marks.set_slab((off, quanta), first_mark, to, class);
        let old = self.lane_mut(from);
        old.partial[class].remove(&off);
        old.out[class] -= u64::from(out);
        let new = self.lane_mut(to);
        new.out[class] += u64::from(out);
        if free > 0 {
            new.partial[class].insert(off, id);
        }
    }

    /// The slab that holds a quantum.
    pub fn at(&self, quantum: u32) -> Option<SlabId> {
        let (_, &id) = self.by_off.range(..=quantum).next_back()?;
        let slab = self.slabs[id as usize].as_ref()?;
        (quantum < slab.off + slab.quanta).then_some(id)
    }

    /// The slab of a slot that is out.
    #[inline]
    pub fn of(&self, round: Round) -> SlabId {
        self.by_mark[round.mark() as usize / MARK_BLOCK]
    }

    /// Has the slabs of slots at hand that are about to be given back.
    #[inline]
    pub fn expect(&self, rounds: &[Round]) {
        for &round in rounds {
            prefetch(&self.slabs[self.of(round) as usize]);
        }
    }

    /// A slab by number.
    pub fn slab(&self, id: SlabId) -> &Slab {
        self.slabs[id as usize].as_ref().expect("slab numbers in use name slabs")
    }

    /// Puts a slot back into its slab. Answers the slab when that left it empty: the
    /// caller closes it.
    pub fn give(&mut self, round: Round) -> Option<SlabId> {
        let id = self.of(round);
        let slab = self.slabs[id as usize].as_mut().expect("marks of open slabs name them");
        debug_assert!((slab.off..slab.off + slab.quanta).contains(&round.quantum()));
        let slot = round.mark() - slab.marks;
        let (word, bit) = ((slot / 64) as usize, 1u64 << (slot % 64));
        let free_bits = &mut slab.words.get()[word];
        debug_assert!(*free_bits & bit == 0, "the slot was out");
        *free_bits |= bit;
        slab.free += 1;
        let (lane, class, off) = (slab.lane, slab.class as usize, slab.off);
        let (free, slots) = (slab.free, slab.slots);
        let lanes = self.lane_mut(lane);
        lanes.out[class] -= 1;
        if free == 1 {
            lanes.partial[class].insert(off, id);
        }
        self.free_bytes += slot_bytes(class) as u64;
        (free == slots).then_some(id)
    }

    /// Ends an empty slab; answers its node, which the caller frees in the heap.
    pub fn close(&mut self, marks: &mut Marks, id: SlabId) -> (NodeId, LaneId) {
        let slab = self.slabs[id as usize].take().expect("an open slab");
        debug_assert_eq!(slab.free, slab.slots, "only empty slabs are closed");
        self.spare.push(id);
        self.by_off.remove(&slab.off);
        self.lane_mut(slab.lane).partial[slab.class as usize].remove(&slab.off);
        marks.clear((slab.off, slab.quanta));
        marks.give_range(slab.marks, slab.slots as usize);
        self.free_bytes -= u64::from(slab.quanta) << QUANTUM_SHIFT;
        (slab.node, slab.lane)
    }

    /// Free bytes inside slabs, leftovers at their ends included.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// All open slabs, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Slab> {
        self.by_off.values().map(|&id| self.slab(id))
    }

    /// Whether a lane has slabs.
    pub fn lane_in_use(&self, lane: LaneId) -> bool {
        self.lane(lane)
            .is_some_and(|l| (1..CLASS_END).any(|c| l.out[c] > 0 || !l.partial[c].is_empty()))
    }
}
