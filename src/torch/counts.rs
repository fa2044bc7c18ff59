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

    fn take(&mut self, by: u64) {
        self.current = self.current.saturating_sub(by);
        self.freed += by;
    }
}

/// Requests of at most this many bytes are PyTorch's small pool's (`kSmallSize`).
pub const SMALL_MAX: usize = 1 << 20;

/// All, small, large.
pub type Stats3 = [Stat; 3];

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

    /// Such a block has gone.
    pub fn given(&mut self, bytes: usize, taken: usize) {
        for pool in pools(bytes) {
            self.blocks[pool].take(1);
            self.bytes[pool].take(taken as u64);
            self.requested[pool].take(bytes as u64);
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
        counts.given(100, 512);
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
}
