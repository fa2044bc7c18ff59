//! A lane's depot: full magazines, handed from thread to thread whole.
//!
//! Owns stacks of full magazines by class, bounded in bytes by the caller. A plain value:
//! the pool keeps it under the core's lock. Cost: a push or a pop.

use super::Round;
use super::class::{CLASSES, slot_bytes};

/// Magazines hold at most this many rounds.
pub const ROUNDS_MAX: usize = 64;

/// The memory of a magazine.
pub type Rounds = Box<[Round; ROUNDS_MAX]>;

/// A full magazine on its way: its memory changes hands, no round is copied.
#[derive(Debug)]
pub struct Full {
    rounds: Rounds,
    len: u32,
}

impl Full {
    /// The first `len` rounds of `rounds`.
    pub fn new(rounds: Rounds, len: u32) -> Full {
        debug_assert!(len as usize <= ROUNDS_MAX);
        Full { rounds, len }
    }

    /// Its rounds.
    pub fn rounds(&self) -> &[Round] {
        &self.rounds[..self.len as usize]
    }

    /// Its memory and how many rounds are in it.
    pub fn into_parts(self) -> (Rounds, u32) {
        (self.rounds, self.len)
    }
}

/// Full magazines of one lane.
#[derive(Debug)]
pub struct Depot {
    full: [Vec<Full>; CLASSES],
    bytes: u64,
}

impl Default for Depot {
    fn default() -> Depot {
        Depot { full: std::array::from_fn(|_| Vec::new()), bytes: 0 }
    }
}

impl Depot {
    /// Takes a full magazine of a class.
    pub fn pop(&mut self, class: usize) -> Option<Full> {
        let full = self.full[class].pop()?;
        self.bytes -= u64::from(full.len) * slot_bytes(class) as u64;
        Some(full)
    }

    /// Keeps a full magazine of a class.
    pub fn push(&mut self, class: usize, full: Full) {
        self.bytes += u64::from(full.len) * slot_bytes(class) as u64;
        self.full[class].push(full);
    }

    /// Bytes of one class.
    pub fn class_bytes(&self, class: usize) -> u64 {
        self.full[class].iter().map(|f| u64::from(f.len)).sum::<u64>() * slot_bytes(class) as u64
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes everything out.
    pub fn drain(&mut self) -> Vec<Full> {
        self.bytes = 0;
        self.full.iter_mut().flat_map(std::mem::take).collect()
    }
}
