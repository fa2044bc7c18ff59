//! How many rounds a magazine may hold, by class.
//!
//! Owns two tables made at compile time. Cost: a load.

use crate::slab::class::{CLASS_END, CLASSES, INFO};
use crate::slab::depot::ROUNDS_MAX;

/// The most rounds that a magazine of a class may hold: 256 KiB, 2 to 64 rounds.
#[inline]
pub fn capacity_max(class: usize) -> u32 {
    static ROUNDS: [u8; CLASSES] = rounds_in(256 << 10);
    u32::from(ROUNDS[class])
}

/// The capacity that a magazine starts with: 64 KiB, as long as the shortest slab, so that a
/// first refill takes whole lines of marks and two threads do not share one.
#[inline]
pub fn capacity_min(class: usize) -> u32 {
    static ROUNDS: [u8; CLASSES] = rounds_in(64 << 10);
    u32::from(ROUNDS[class])
}

/// By class, the slots that have `bytes` together, 2 to [`ROUNDS_MAX`]. A table, since a division
/// would cost more than the rest of a spill's first look.
const fn rounds_in(bytes: usize) -> [u8; CLASSES] {
    let mut rounds = [2; CLASSES];
    let mut class = 1;
    while class < CLASS_END {
        let fit = bytes / ((INFO[class].units as usize) << 8);
        rounds[class] = match fit {
            0..=2 => 2,
            3..ROUNDS_MAX => fit as u8,
            _ => ROUNDS_MAX as u8,
        };
        class += 1;
    }
    rounds
}
