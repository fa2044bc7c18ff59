//! Figures that can be read at any time, without the cache's lock.
//!
//! Owns a board of counters that the lock's holder writes after each change. Promises that a reader
//! sees the counters of one moment: a number before and after tells of a write between, and the
//! reader looks again (a sequence lock). Cost: some stores a change, some loads a reading.

use super::blocks::Counts;
use super::{Core, KvCache};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words of a group on the board.
const WORDS: usize = 7;
/// Words before the groups'.
const HEAD: usize = 4;

/// A group's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Its blocks by state.
    pub counts: Counts,
    /// Configured blocks that there are not ([`KvCache::resize`]).
    pub closed: u32,
    /// Blocks that go as soon as nobody uses them, among those of `counts`.
    pub draining: u32,
}

/// The cache's figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Open sequences.
    pub sequences: u32,
    /// Tokens that were looked for and found, since the cache was made.
    pub hit_tokens: u64,
    /// Tokens that were looked for and not found.
    pub missed_tokens: u64,
    /// Copies that are not made yet.
    pub copies: u32,
    /// Each group's.
    pub groups: Vec<GroupStats>,
}

#[derive(Debug)]
pub(super) struct Board {
    /// Odd while it is written.
    turn: AtomicU64,
    words: Vec<AtomicU64>,
}

impl Board {
    pub(super) fn new(groups: usize) -> Board {
        let words = (0..HEAD + WORDS * groups).map(|_| AtomicU64::new(0)).collect();
        Board { turn: AtomicU64::new(0), words }
    }

    /// Writes the figures; the caller holds the cache's lock.
    #[inline]
    pub(super) fn tell(&self, core: &Core) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let set = |at: usize, value: u64| self.words[at].store(value, Ordering::Relaxed);
        set(0, u64::from(core.sequences.count()));
        set(1, core.hits);
        set(2, core.misses);
        set(3, core.pending.count());
        for (at, blocks) in core.groups.iter().enumerate() {
            let Counts { total, used, free, cached, quarantined } = blocks.counts();
            let (closed, draining) = (blocks.closed(), blocks.draining());
            let counts = [total, used, free, cached, quarantined, closed, draining];
            for (word, count) in counts.into_iter().enumerate() {
                set(HEAD + WORDS * at + word, u64::from(count));
            }
        }
        self.turn.store(turn + 2, Ordering::Release);
    }

    fn read(&self) -> Vec<u64> {
        loop {
            let before = self.turn.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let words = self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
                fence(Ordering::Acquire);
                if self.turn.load(Ordering::Relaxed) == before {
                    return words;
                }
            }
            std::hint::spin_loop();
        }
    }
}

impl KvCache {
    /// The figures of one moment. Takes no lock: waits for the stores at the end of a call of
    /// others, not for the call.
    pub fn stats(&self) -> Stats {
        let words = self.board.read();
        let groups = words[HEAD..].chunks_exact(WORDS).map(|group| {
            let word = |at: usize| group[at] as u32;
            let counts = Counts {
                total: word(0),
                used: word(1),
                free: word(2),
                cached: word(3),
                quarantined: word(4),
            };
            GroupStats { counts, closed: word(5), draining: word(6) }
        });
        Stats {
            sequences: words[0] as u32,
            hit_tokens: words[1],
            missed_tokens: words[2],
            copies: words[3] as u32,
            groups: groups.collect(),
        }
    }
}
