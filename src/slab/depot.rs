//! A lane's depot: full magazines, handed from thread to thread whole.
//!
//! Owns stacks of full magazines by class, bounded in bytes by the caller. A plain value: the
//! pool keeps each lane's under a lock of its own, so that lanes do not meet. Cost: a push or a
//! pop.

use super::Round;
use super::class::{CLASSES, slot_bytes};
use crate::base::sync::atomic::{AtomicU64, Ordering};

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

/// How many bytes the caches of a pool hold or may hold, and the most they may.
#[derive(Debug)]
pub struct Budget {
    held: AtomicU64,
    most: u64,
}

impl Budget {
    /// Nothing held of at most `most` bytes.
    pub fn new(most: u64) -> Budget {
        Budget { held: AtomicU64::new(0), most }
    }

    /// Takes `bytes`, if they are left. Threads that take at once may be refused where one of
    /// them would fit.
    pub fn take(&self, bytes: u64) -> bool {
        if self.held() + bytes > self.most {
            // Nearly always so once the caches are full, and a look is cheaper than two locked
            // additions.
            return false;
        }
        if self.held.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.most {
            return true;
        }
        self.give(bytes);
        false
    }

    /// Gives `bytes` back.
    pub fn give(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes taken now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The most that may be taken.
    pub fn most(&self) -> u64 {
        self.most
    }
}

/// Full magazines of one lane, and the memory of empty ones.
#[derive(Debug)]
pub struct Depot {
    full: [Vec<Full>; CLASSES],
    class_bytes: [u64; CLASSES],
    spare: Vec<Rounds>,
}

impl Default for Depot {
    fn default() -> Depot {
        Depot {
            full: std::array::from_fn(|_| Vec::new()),
            class_bytes: [0; CLASSES],
            spare: Vec::new(),
        }
    }
}

impl Depot {
    /// Takes a full magazine of a class.
    pub fn pop(&mut self, class: usize) -> Option<Full> {
        let full = self.full[class].pop()?;
        self.class_bytes[class] -= u64::from(full.len) * slot_bytes(class) as u64;
        Some(full)
    }

    /// Keeps a full magazine of a class.
    pub fn push(&mut self, class: usize, full: Full) {
        self.class_bytes[class] += u64::from(full.len) * slot_bytes(class) as u64;
        self.full[class].push(full);
    }

    /// Bytes of one class.
    pub fn class_bytes(&self, class: usize) -> u64 {
        self.class_bytes[class]
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.class_bytes.iter().sum()
    }

    /// Memory for an empty magazine.
    pub fn empty(&mut self) -> Rounds {
        self.spare.pop().unwrap_or_else(|| Box::new([Round(0); ROUNDS_MAX]))
    }

    /// Keeps the memory of an emptied magazine.
    pub fn keep(&mut self, rounds: Rounds) {
        const SPARE_MAX: usize = 64;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(rounds);
        }
    }

    /// Takes everything out.
    pub fn drain(&mut self) -> Vec<Full> {
        self.class_bytes = [0; CLASSES];
        self.full.iter_mut().flat_map(std::mem::take).collect()
    }
}
