//! Packing by a key: the lowest segment of the skyline takes what fits it best.
//!
//! The skyline is, over each clique, the top of what has been placed. Flat stretches of it are
//! **segments**. The lowest segment takes, of the unplaced buffers whose ranges lie within it, the
//! one with the largest key; without one it is raised to its lower neighbour, and that space is
//! lost. So heights taken never fall, and buffers with fixed offsets come up in order: a segment is
//! never raised past one, nothing is put where it would reach into one, and when the lowest
//! segment has come to its offset it is placed.
//!
//! The "lowest offset, longest lifetime that fits" family of rules; the index and the keys are
//! our own. Owns its scratch memory, reused from call to call. Cost: each of at most n
//! placings and n raisings is O(log n) and a query; with fixed offsets also those near by.

use super::align_up;
use super::kdtree::KdTree;
use super::prepare::{FREE, Part};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

/// A flat stretch of the skyline, kept under its first clique.
#[derive(Clone, Copy, Debug)]
struct Segment {
    end: u32,
    /// Where the segment to the left begins, or [`NONE`].
    before: u32,
    height: u64,
    alive: bool,
}

/// Packs one part, again and again.
#[derive(Clone, Debug)]
pub(super) struct Packer<'p> {
    part: &'p Part,
    tree: KdTree,
    segments: Vec<Segment>,
    /// Segments by height, then place; those that have changed since are skipped.
    lowest: BinaryHeap<Reverse<(u64, u32)>>,
    offsets: Vec<u64>,
    /// Items with fixed offsets, lowest first; the first `fixed_placed` are placed.
    fixed: Vec<u32>,
    fixed_placed: usize,
    effort: u64,
}

impl<'p> Packer<'p> {
    /// A packer for `part`.
    pub(super) fn new(part: &'p Part) -> Packer<'p> {
        let fresh = Segment { end: 0, before: NONE, height: 0, alive: false };
        Packer {
            part,
            tree: KdTree::new(&part.items),
            segments: vec![fresh; part.cliques as usize],
            lowest: BinaryHeap::new(),
            offsets: vec![0; part.items.len()],
            fixed: part.fixed.clone(),
            fixed_placed: 0,
            effort: 0,
        }
    }

    /// The offsets of the last packing that was not given up.
    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Placings and raisings so far.
    pub(super) fn effort(&self) -> u64 {
        self.effort
    }

    /// Packs by `order`: items, smallest key first. The height; nothing once it comes to
    /// `give_up` or above.
    pub(super) fn pack(&mut self, order: &[u32], give_up: u64) -> Option<u64> {
        let mut keys = vec![0; order.len()];
        for (rank, item) in (1u32..).zip(order) {
            keys[*item as usize] = rank;
        }
        // Those with fixed offsets are placed by their offset, not by a key.
        for item in &self.fixed {
            keys[*item as usize] = 0;
        }
        self.tree.set_keys(&keys);
        self.segments.iter_mut().for_each(|s| s.alive = false);
        let whole = Segment { end: self.part.cliques, before: NONE, height: 0, alive: true };
        self.segments[0] = whole;
        self.lowest.clear();
        self.lowest.push(Reverse((0, 0)));
        self.fixed_placed = 0;
        let mut left = order.len();
        let mut highest = 0;
        while left > 0 {
            let Reverse((height, at)) = self.lowest.pop()?;
            let segment = self.segments[at as usize];
            if !segment.alive || segment.height != height {
                continue;
            }
            self.effort += 1;
            let Some((item, offset)) = self.choose(at, segment, order) else {
                self.raise(at, segment);
                continue;
            };
            left -= 1;
            self.offsets[item as usize] = offset;
            let top = offset + self.part.items[item as usize].size;
            highest = highest.max(top);
            if highest >= give_up {
                return None;
            }
            self.place(at, segment, item, top);
        }
        Some(highest)
    }

    /// What the lowest segment takes, and its offset.
    fn choose(&mut self, at: u32, segment: Segment, order: &[u32]) -> Option<(u32, u64)> {
        let items = &self.part.items;
        let waiting = &self.fixed[self.fixed_placed..];
        let key = if waiting.is_empty() {
            self.tree.largest(at, segment.end)
        } else if let Some(place) = self.due(at, segment) {
            self.fixed.swap(self.fixed_placed, place);
            self.fixed_placed += 1;
            return Some((self.fixed[self.fixed_placed - 1], segment.height));
        } else {
            let clear = |item: u32| {
                let i = items[item as usize];
                let top = align_up(segment.height, i.align) + i.size;
                let mut near =
                    waiting.iter().map(|f| items[*f as usize]).take_while(|f| f.fixed < top);
                !near.any(|f| f.first < i.end && i.first < f.end)
            };
            self.tree.largest_of(at, segment.end, &mut |item| clear(item))
        };
        let item = *order.get((key as usize).checked_sub(1)?)?;
        self.tree.remove(item);
        Some((item, align_up(segment.height, items[item as usize].align)))
    }

    /// Where in `fixed` one stands whose offset the segment has reached. The skyline is at or above
    /// that height everywhere, and nothing reaches into a fixed buffer: so its range lies within
    /// one segment.
    fn due(&self, at: u32, segment: Segment) -> Option<usize> {
        let items = &self.part.items;
        (self.fixed_placed..self.fixed.len())
            .take_while(|&f| items[self.fixed[f] as usize].fixed == segment.height)
            .find(|&f| {
                let i = items[self.fixed[f] as usize];
                at <= i.first && i.end <= segment.end
            })
    }

    /// Lifts a segment that nothing fits to its lower neighbour, or to a fixed offset before
    /// that, and joins what is level.
    fn raise(&mut self, at: u32, segment: Segment) {
        let left = match segment.before {
            NONE => u64::MAX,
            before => self.segments[before as usize].height,
        };
        let right = self.segments.get(segment.end as usize).map_or(u64::MAX, |s| s.height);
        let waiting = self.fixed[self.fixed_placed..].iter();
        let next = waiting
            .map(|f| self.part.items[*f as usize])
            .take_while(|f| f.fixed < left.min(right))
            .find(|f| f.first < segment.end && at < f.end)
            .map_or(FREE, |f| f.fixed);
        let height = left.min(right).min(next);
        debug_assert!(height > segment.height && height != u64::MAX, "an unplaced buffer fits");
        self.settle(at, Segment { height, ..segment });
    }

    /// Writes a segment down, joined with neighbours of its height.
    fn settle(&mut self, mut at: u32, mut segment: Segment) {
        if let Some(right) = self.segments.get(segment.end as usize).copied()
            && right.height == segment.height
        {
            self.segments[segment.end as usize].alive = false;
            segment.end = right.end;
        }
        if segment.before != NONE {
            let left = self.segments[segment.before as usize];
            if left.height == segment.height {
                self.segments[at as usize].alive = false;
                at = segment.before;
                segment.before = left.before;
            }
        }
        segment.alive = true;
        self.segments[at as usize] = segment;
        if let Some(right) = self.segments.get_mut(segment.end as usize) {
            right.before = at;
        }
        self.lowest.push(Reverse((segment.height, at)));
    }

    /// Puts an item on a segment, which falls into up to three.
    fn place(&mut self, at: u32, segment: Segment, item: u32, top: u64) {
        let i = self.part.items[item as usize];
        let mut middle = Segment { end: i.end, before: segment.before, height: top, alive: true };
        if i.first > at {
            self.segments[at as usize].end = i.first;
            self.lowest.push(Reverse((segment.height, at)));
            middle.before = at;
        }
        if i.end < segment.end {
            self.segments[i.end as usize] = Segment { before: i.first, ..segment };
            if let Some(right) = self.segments.get_mut(segment.end as usize) {
                right.before = i.end;
            }
            self.lowest.push(Reverse((segment.height, i.end)));
        }
        self.settle(i.first, middle);
    }
}
