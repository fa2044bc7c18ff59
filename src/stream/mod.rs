//! Order of frees: lanes, stamps, fences.
//!
//! Owns the book of lanes (one a stream, one for `cudaFree`'s meaning, one a graph
//! capture) and the fences recorded on them. A **stamp** says after which point a free piece is
//! really free: `(lane, sequence)`. It has *passed* once a fence of that lane with at least that
//! sequence has been seen passed by the host. A stamp over several lanes is a *join*.
//!
//! Invariants: a lane's sequence never goes back, not even when its number serves another
//! stream later, so an old stamp stays passed; no fence is recorded while a capture is open;
//! a failed record or query changes nothing.
//!
//! Must not know blocks, holes or pages. Cost: a look at a stamp is an array read; joins are
//! looked up in an ordered map.

pub mod lanes;
#[cfg(test)]
pub(crate) mod tests;

pub use lanes::{LaneKind, Lanes};

/// The number of a lane of one pool; 12 bits wide.
pub type LaneId = u16;

/// How many lanes a pool can have at once, the two reserved numbers included.
pub const LANES_MAX: usize = 4096;

/// "No lane": the stamp of clean memory.
pub const CLEAN: LaneId = 0;

/// The lane of `cudaFree`'s meaning: the first that a pool opens. What is freed on it waits
/// for a fence whichever way it comes.
pub const SYNC: LaneId = 1;

/// The lane number that says: the sequence is the number of a join.
pub const JOIN: LaneId = LaneId::MAX;

/// After which point a free piece is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// [`CLEAN`], a lane, or [`JOIN`].
    pub lane: LaneId,
    /// The lane's sequence, or the join's number.
    pub seq: u64,
}

impl Stamp {
    /// Free for everyone, now.
    pub const CLEAN: Stamp = Stamp { lane: CLEAN, seq: 0 };

    /// Whether two adjacent pieces with these stamps may become one, and its stamp.
    pub fn merged(self, other: Stamp) -> Option<Stamp> {
        let same = self.lane == other.lane && (self.lane != JOIN || self.seq == other.seq);
        same.then(|| Stamp { lane: self.lane, seq: self.seq.max(other.seq) })
    }
}
