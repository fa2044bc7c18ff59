//! What PyTorch's statistics need and the pool does not keep: numbers and bytes of blocks, small
//! and large, with their peaks.
//!
//! Owns plain numbers; whoever has them locks them. Promises that `current` is never negative and
//! that a peak is never below it. Cost: some additions a block.

/// One number over time, as PyTorch's `Stat` has it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The highest since the last reset.
    pub peak: u64,
    /// All that was ever added.
    pub allocated: u64,
    /// All that was ever taken away.
    pub freed: u64,
}

impl Stat {
    const ZERO: Stat = Stat { current: 0, peak: 0, allocated: 0, freed: 0 };

    fn add(&mut self, by: u64) {
        self.current += by;
        self.allocated += by;
        self.peak = self.peak.max(self.current);
    }

    /// Answers by how much `current` fell, for [`Stat::put_back`].
    fn take(&mut self, by: u64) -> u64 {
        let fall = by.min(self.current);
        self.current -= fall;
        self.freed += by;
        fall
    }

    fn put_back(&mut self, by: u64, fall: u64) {
        self.current += fall;
        self.freed -= by;
        self.peak = self.peak.max(self.current);
    }
}

/// Requests of at most this many bytes are PyTorch's small pool's (`kSmallSize`).
pub const SMALL_MAX: usize = 1 << 20;

/// All, small, large.
pub type Stats3 = [Stat; 3];

/// A block that was counted as gone, for [`Counts::not_given`].
#[must_use]
#[derive(Debug)]
pub struct Given {
    bytes: usize,
    taken: usize,
    /// By how much blocks, bytes and requested bytes fell, of all and of small or large.
    falls: [[u64; 3]; 2],
}

/// A device's counts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Blocks.
    pub blocks: Stats3,
    /// Their bytes, rounded up to what they take.
    pub bytes: Stats3,
    /// Their bytes as they were asked for.
    pub requested: Stats3,
    /// Requests that failed for memory.
    pub out_of_memory: u64,
}

impl Counts {
    /// Nothing yet.
    pub const fn new() -> Counts {
        Counts {
            blocks: [Stat::ZERO; 3],
            bytes: [Stat::ZERO; 3],
            requested: [Stat::ZERO; 3],
            out_of_memory: 0,
        }
    }

    /// A block of `bytes` has come, and takes `taken`.
    pub fn taken(&mut self, bytes: usize, taken: usize) {
        for pool in pools(bytes) {
            self.blocks[pool].add(1);
            self.bytes[pool].add(taken as u64);
            self.requested[pool].add(bytes as u64);
        }
    }

    /// Such a block is going.
    pub fn given(&mut self, bytes: usize, taken: usize) -> Given {
        let falls = pools(bytes).map(|pool| {
            [
                self.blocks[pool].take(1),
                self.bytes[pool].take(taken as u64),
                self.requested[pool].take(bytes as u64),
            ]
        });
        Given { bytes, taken, falls }
    }

    /// It has not gone after all.
    pub fn not_given(&mut self, given: Given) {
        let Given { bytes, taken, falls } = given;
        for (pool, [blocks, held, requested]) in pools(bytes).into_iter().zip(falls) {
            self.blocks[pool].put_back(1, blocks);
            self.bytes[pool].put_back(taken as u64, held);
            self.requested[pool].put_back(bytes as u64, requested);
        }
    }

    /// Peaks begin anew.
    pub fn reset_peaks(&mut self) {
        for stats in [&mut self.blocks, &mut self.bytes, &mut self.requested] {
            for stat in stats {
                stat.peak = stat.current;
            }
        }
    }
}

/// Where a block counts: with all, and with the small or the large.
fn pools(bytes: usize) -> [usize; 2] {
    [0, if bytes <= SMALL_MAX { 1 } else { 2 }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_of_all_are_not_the_sum_of_peaks() {
        let mut counts = Counts::new();
        counts.taken(100, 512);
        let _gone = counts.given(100, 512);
        counts.taken(SMALL_MAX + 1, SMALL_MAX + 4096);
        let stat = |current, peak, allocated, freed| Stat { current, peak, allocated, freed };
        assert_eq!(counts.blocks, [stat(1, 1, 2, 1), stat(0, 1, 1, 1), stat(1, 1, 1, 0)]);
        let large = (SMALL_MAX + 4096) as u64;
        assert_eq!(counts.bytes[0], stat(large, large, large + 512, 512));
        assert_eq!(counts.requested[1], stat(0, 100, 100, 100));
        counts.reset_peaks();
        assert_eq!(counts.blocks[1].peak, 0);
        assert_eq!(counts.bytes[0].peak, large);
    }

    #[test]
    fn what_did_not_go_is_as_it_was() {
        let mut counts = Counts::new();
        counts.taken(3000, 4096);
        let before = counts;
        let given = counts.given(3000, 4096);
        assert_eq!((counts.bytes[0].current, counts.bytes[0].freed), (0, 4096));
        // More than there is, as of an address that is no block.
        let more = counts.given(3000, 4096);
        counts.not_given(more);
        counts.not_given(given);
        assert_eq!(counts, before);
    }
}
