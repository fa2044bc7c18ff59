//! From a hash to the blocks that carry it: open addressing, linear probing, no tombstones.
//!
//! Owns a table of block numbers, at most half full, so its length never changes after it is made.
//! Promises that each block that was put in is found by its hash until it is taken out. Two blocks
//! may carry one hash; the caller tells them apart. Cost: a probe or two a call.

/// An empty place.
const FREE: u32 = u32::MAX;

/// The table. Hashes are kept beside the numbers, so that a probe touches one cache line.
#[derive(Debug)]
pub(super) struct Index {
    places: Vec<(u64, u32)>,
    mask: usize,
    len: usize,
}

impl Index {
    /// A table for at most `blocks` blocks; none at all where that is 0.
    pub(super) fn new(blocks: usize) -> Option<Index> {
        let length = if blocks == 0 { 1 } else { blocks.checked_mul(2)?.next_power_of_two() };
        let mut places = Vec::new();
        places.try_reserve_exact(length).ok()?;
        places.resize(length, (0, FREE));
        Some(Index { places, mask: length - 1, len: 0 })
    }

    /// Where a hash's search starts. The caller's own hashes may be poor: they are mixed.
    #[inline]
    fn start(&self, hash: u64) -> usize {
        (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize & self.mask
    }

    /// The first block with this hash that `is_it` takes.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.start(hash);
        loop {
            let (found, block) = self.places[at];
            if block == FREE {
                return None;
            }
            if found == hash && is_it(block) {
                return Some(block);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Puts a block in; it must not be in, and there must be room.
    pub(super) fn insert(&mut self, hash: u64, block: u32) {
        debug_assert!(2 * self.len <= self.mask, "the index is made for all blocks");
        let mut at = self.start(hash);
        while self.places[at].1 != FREE {
            at = (at + 1) & self.mask;
        }
        self.places[at] = (hash, block);
        self.len += 1;
    }

    /// Takes a block out, if it is in. What was pushed behind it by its presence moves up.
    pub(super) fn remove(&mut self, hash: u64, block: u32) {
        let mut at = self.start(hash);
        while self.places[at] != (hash, block) {
            if self.places[at].1 == FREE {
                return;
            }
            at = (at + 1) & self.mask;
        }
        self.len -= 1;
        let mut hole = at;
        loop {
            at = (at + 1) & self.mask;
            let (other, block) = self.places[at];
            if block == FREE {
                break;
            }
            // It may move into the hole if its search passes there on its way to where it is.
            let from_start = at.wrapping_sub(self.start(other)) & self.mask;
            let from_hole = at.wrapping_sub(hole) & self.mask;
            if from_start >= from_hole {
                self.places[hole] = self.places[at];
                hole = at;
            }
        }
        self.places[hole] = (0, FREE);
    }

    /// Takes all out.
    pub(super) fn clear(&mut self) {
        self.places.fill((0, FREE));
        self.len = 0;
    }

    /// Blocks that are in.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_map_under_random_use() {
        // Few hashes and a small table: long runs, that wrap.
        let mut index = Index::new(32).expect("memory");
        let mut model: HashMap<u32, u64> = HashMap::new();
        let mut seed = 7u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..100_000 {
            let block = draw(32) as u32;
            match model.remove(&block) {
                Some(hash) => index.remove(hash, block),
                None => {
                    let hash = draw(12) << 20;
                    index.insert(hash, block);
                    model.insert(block, hash);
                }
            }
            let sought = draw(32) as u32;
            for hash in (0..12).map(|h| h << 20) {
                let found = index.find(hash, |block| block == sought).is_some();
                assert_eq!(found, model.get(&sought) == Some(&hash));
            }
            assert_eq!(index.len(), model.len());
        }
    }
}
