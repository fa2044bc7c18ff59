//! Which ranges of the memory file are free.
//!
//! Owns the free list of one growing offset space. Promises that ranges handed out never
//! overlap, that the lowest fitting range comes first (neighbouring pages then share one
//! kernel mapping), and that neighbours merge when freed. It must not touch the file.
//! Cost: O(log n) while all ranges have one length, else a walk over those too short.

use std::collections::BTreeMap;

/// The free list. Starts empty, with length 0.
#[derive(Default)]
pub(super) struct Ranges {
    free: BTreeMap<usize, usize>,
    end: usize,
}

impl Ranges {
    /// Takes `bytes`, growing the space when nothing fits.
    pub(super) fn take(&mut self, bytes: usize) -> usize {
        debug_assert!(bytes > 0, "an empty range has no place");
        let fit = self.free.iter().find(|(_, length)| **length >= bytes);
        let Some((&offset, &length)) = fit else {
            let offset = self.end;
            self.end += bytes;
            return offset;
        };
        self.free.remove(&offset);
        if length > bytes {
            self.free.insert(offset + bytes, length - bytes);
        }
        offset
    }

    /// Gives a range back that [`Ranges::take`] handed out.
    pub(super) fn give(&mut self, mut offset: usize, mut bytes: usize) {
        debug_assert!(offset + bytes <= self.end, "a range outside the space");
        if let Some((&before, &length)) = self.free.range(..offset).next_back() {
            debug_assert!(before + length <= offset, "a range given back twice");
            if before + length == offset {
                self.free.remove(&before);
                offset = before;
                bytes += length;
            }
        }
        if let Some(length) = self.free.remove(&(offset + bytes)) {
            bytes += length;
        }
        if offset + bytes == self.end {
            self.end = offset;
        } else {
            self.free.insert(offset, bytes);
        }
    }

    /// One past the highest offset in use.
    pub(super) fn end(&self) -> usize {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_range_first_and_neighbours_merge() {
        let mut ranges = Ranges::default();
        assert_eq!([ranges.take(10), ranges.take(10), ranges.take(10)], [0, 10, 20]);
        ranges.give(0, 10);
        assert_eq!(ranges.take(20), 30);
        ranges.give(10, 10);
        assert_eq!(ranges.take(20), 0);
        assert_eq!(ranges.end(), 50);
        ranges.give(20, 10);
        ranges.give(30, 20);
        assert_eq!(ranges.end(), 20);
        ranges.give(0, 20);
        assert_eq!((ranges.end(), ranges.free.len()), (0, 0));
    }

    #[test]
    fn a_longer_range_is_split() {
        let mut ranges = Ranges::default();
        assert_eq!([ranges.take(30), ranges.take(5)], [0, 30]);
        ranges.give(0, 30);
        assert_eq!([ranges.take(10), ranges.take(20), ranges.take(1)], [0, 10, 35]);
    }
}
