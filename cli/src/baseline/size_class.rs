//! A cache that keeps every block for its size class for ever: the simple caching pool.
//!
//! Eight classes a doubling. Up to 1 MiB they are at least 256 bytes apart and their blocks are
//! cut from segments of 2 MiB that belong to one class; above, they are at least 2 MiB apart
//! and each block is memory of its own. (Were every multiple of 2 MiB a class, the cache
//! would look up to half as large again.) Nothing goes back to the device. Owns pure accounts
//! over an invented address space: it has no memory, so [`Target::touch`] fails. Promises that
//! a block comes from the class's free list, last in first out, before a driver call is made.
//! Must not share memory between classes: that is the point. Cost: O(1) an event.

use std::collections::HashMap;

use forebay::driver::Call;

use crate::target::{Target, TargetError, TargetStats};

/// A segment of small blocks, and the unit of large ones, in bytes.
pub const SEGMENT: u64 = 2 << 20;
/// The largest size served from segments, in bytes.
pub const SMALL_MAX: u64 = 1 << 20;
const STEP_MIN: u64 = 256;

/// The class of a request: the length of the block it gets, in bytes.
pub fn class_bytes(bytes: u64) -> u64 {
    let bytes = bytes.max(1);
    let step_min = if bytes > SMALL_MAX { SEGMENT } else { STEP_MIN };
    // Between 2^k (exclusive) and 2^(k+1) the eight classes are 2^k / 8 apart.
    let below = (bytes.next_power_of_two() / 2).max(1);
    bytes.next_multiple_of((below / 8).max(step_min))
}

/// A segment, or a large block's first 2 MiB.
#[derive(Clone, Copy)]
struct Segment {
    class_bytes: u64,
    live: u64,
}

/// The comparator. For one thread.
#[derive(Default)]
pub struct SizeClass {
    /// By address / 2 MiB; the place 0 stays empty, so no address is 0. Large blocks fill
    /// the places after their first with empty segments.
    segments: Vec<Segment>,
    free: HashMap<u64, Vec<u64>>,
    requested: HashMap<u64, u64>,
    stats: TargetStats,
}

impl SizeClass {
    /// An empty cache.
    pub fn new() -> SizeClass {
        let empty = Segment { class_bytes: 0, live: 0 };
        SizeClass { segments: vec![empty], ..SizeClass::default() }
    }

    /// Takes memory from the device for one class and puts its blocks on the free list.
    fn grow(&mut self, class: u64) {
        let start = self.segments.len() as u64 * SEGMENT;
        let length = class.next_multiple_of(SEGMENT);
        let blocks = if class > SMALL_MAX { 1 } else { SEGMENT / class };
        self.segments.push(Segment { class_bytes: class, live: 0 });
        for _ in 1..length / SEGMENT {
            self.segments.push(Segment { class_bytes: 0, live: 0 });
        }
        let list = self.free.entry(class).or_default();
        list.extend((0..blocks).rev().map(|block| start + block * class));
        self.stats.calls.add(Call::AllocPlain, 1);
        self.stats.mapped_bytes += length;
        self.stats.peak_mapped_bytes = self.stats.mapped_bytes;
    }

    /// Free bytes of a segment that something live occupies.
    fn trapped(segment: Segment) -> u64 {
        if segment.live == 0 || segment.class_bytes > SMALL_MAX {
            return 0;
        }
        SEGMENT - segment.live * segment.class_bytes
    }

    fn count_live(&mut self, place: usize, change: i64) {
        let segment = &mut self.segments[place];
        self.stats.trapped_bytes -= SizeClass::trapped(*segment);
        segment.live = segment.live.saturating_add_signed(change);
        self.stats.trapped_bytes += SizeClass::trapped(*segment);
    }
}

impl Target for SizeClass {
    fn alloc(&mut self, bytes: u64, _stream: u32) -> Result<u64, TargetError> {
        let class = class_bytes(bytes);
        if self.free.get(&class).is_none_or(Vec::is_empty) {
            self.grow(class);
        }
        let Some(address) = self.free.get_mut(&class).and_then(Vec::pop) else {
            return Err(TargetError::other("a class that has just grown has no block"));
        };
        self.count_live((address / SEGMENT) as usize, 1);
        self.requested.insert(address, bytes);
        self.stats.requested_bytes += bytes;
        self.stats.live_bytes += class;
        self.stats.live_blocks += 1;
        Ok(address)
    }

    fn free(&mut self, address: u64, _stream: u32) -> Result<(), TargetError> {
        let Some(bytes) = self.requested.remove(&address) else {
            return Err(TargetError::other(format!("no live block at {address:#x}")));
        };
        let place = (address / SEGMENT) as usize;
        let class = self.segments[place].class_bytes;
        self.count_live(place, -1);
        self.free.entry(class).or_default().push(address);
        self.stats.requested_bytes -= bytes;
        self.stats.live_bytes -= class;
        self.stats.live_blocks -= 1;
        Ok(())
    }

    fn touch(&mut self, _address: u64, _bytes: u64, _stream: u32) -> Result<(), TargetError> {
        Err(TargetError::other("the size-class cache is an account without memory"))
    }

    fn stats(&self) -> TargetStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn classes_are_eight_a_doubling_and_256_bytes_apart() {
        let of = [
            (1, 256),
            (256, 256),
            (257, 512),
            (2048, 2048),
            (2049, 2304),
            (4096, 4096),
            (4097, 4608),
            (MIB - 1, MIB),
            (MIB, MIB),
            (MIB + 1, 2 * MIB),
            (2 * MIB + 1, 4 * MIB),
            (31 * MIB, 32 * MIB),
            (32 * MIB + 1, 36 * MIB),
        ];
        for (bytes, class) in of {
            assert_eq!(class_bytes(bytes), class, "class of {bytes}");
        }
    }

    #[test]
    fn classes_never_share_memory() {
        let mut cache = SizeClass::new();
        let a = cache.alloc(1000, 0).expect("memory");
        assert_eq!(cache.stats().mapped_bytes, 2 * MIB);
        assert_eq!(cache.stats().trapped_bytes, 2 * MIB - 1024);
        cache.free(a, 0).expect("live");
        assert_eq!((cache.stats().trapped_bytes, cache.stats().mapped_bytes), (0, 2 * MIB));
        // Another class cannot use the empty segment; the same class does.
        let b = cache.alloc(3000, 0).expect("memory");
        assert_eq!(cache.stats().mapped_bytes, 4 * MIB);
        assert_eq!(cache.alloc(900, 0), Ok(a));
        assert_eq!(cache.stats().mapped_bytes, 4 * MIB);
        let large = cache.alloc(5 * MIB, 0).expect("memory");
        assert_eq!(cache.stats().mapped_bytes, 10 * MIB);
        for address in [a, b, large] {
            cache.free(address, 0).expect("live");
        }
        let stats = cache.stats();
        assert_eq!((stats.live_bytes, stats.requested_bytes, stats.live_blocks), (0, 0, 0));
        assert_eq!((stats.peak_mapped_bytes, stats.calls.total()), (10 * MIB, 3));
        assert!(cache.free(a, 0).is_err(), "a second free is refused");
    }
}
