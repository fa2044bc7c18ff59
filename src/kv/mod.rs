//! A paged KV cache: sequences over fixed-size blocks, with reuse of common prefixes.
//!
//! This is the logical layer: it says which block holds which tokens of which sequence, and touches
//! no device. A *group* is a set of layers that share a block table; each group has blocks of its
//! own, numbered from 0, where number 0 is the *null block* that stands for none. A *sequence* owns
//! a reference to each block in its tables. Full blocks whose contents are computed (*committed*)
//! can be *registered*: a later sequence with the same first tokens takes them over (a *hit*).
//! Blocks that nobody holds are free, or *cached* while they hold a prefix, or *quarantined* until
//! the fence has passed behind which they were freed.
//!
//! What it promises:
//! - A call that is refused has changed nothing; a call over several sequences is done whole or
//!   says how many it did. [`KvError::NoBlocks`] is ordinary flow control.
//! - There is no pin: a hit belongs to its sequence at once, and goes with it.
//! - A block is handed out only when the fences of all who freed it have passed
//!   ([`KvCache::pass`]); a block of tokens that another may read is never written: a writer gets a
//!   copy (copy on write), told as a [`CopyJob`] whose both ends are held until
//!   [`KvCache::copied`].
//! - Prefixes are compared token by token, never by hash alone. The prefix that continues another
//!   goes before it. Eviction calls nothing.
//! - In every snapshot the blocks of a group are used, free, cached, quarantined or null, and these
//!   sum to all.
//!
//! All calls may come from any thread; one lock is taken once a call, so calls over many sequences
//! are the cheap form. No call waits, calls back, or allocates memory on its usual path. One
//! sequence is to be used by one thread at a time: calls are whole, but their order is the
//! callers'.
//!
//! Prefixes need a group of full attention and equal block length. Beside it there may be groups
//! with a window: a hit gives these the last blocks alone that the next token sees, with the null
//! block before, and ends where all of them have those. A cache with states, or with windows alone,
//! works without prefixes.
//!
//! ```
//! use forebay::kv::{
//!     Config, Content, Element, Geometry, KvCache, NO_FENCE, Open, Order, Tokens,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let llama3_8b = Geometry {
//!     layers: 32,
//!     heads: 8,
//!     key_size: 128,
//!     value_size: 128,
//!     block_tokens: 16,
//!     element: Element::Bf16,
//!     content: Content::Attention { window: 0 },
//!     order: Order::BlockOuter,
//! };
//! let cache = KvCache::new(Config::new(llama3_8b, 1000))?;
//! assert_eq!(cache.layout(0).map(|layout| layout.block_bytes), Some(2 << 20));
//!
//! let prompt: Vec<i32> = (0..48).collect();
//! let first = cache.open(Open::default())?;
//! cache.append(first, Tokens::Known(&prompt))?;
//! // ... the step that computes the prompt is queued ...
//! cache.commit(first, 48, NO_FENCE)?;
//!
//! let second = cache.open(Open::default())?;
//! let found = cache.find_prefix(second, &prompt[..39])?;
//! assert_eq!((found.shared, found.tokens), (32, 39));
//! let mut copies = Vec::new();
//! if let Some(batch) = cache.take_copies(&mut copies) {
//!     // ... the copy of the third block's first 7 tokens is queued ...
//!     cache.copied(batch, NO_FENCE)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Ideas come from the PagedAttention paper (arXiv 2309.06180), vLLM, SGLang and TensorRT-LLM.

mod append;
mod audit;
mod blocks;
mod copies;
mod error;
mod events;
mod evict;
mod geometry;
pub mod handles;
mod hash;
mod hybrid;
mod index;
mod lifetime;
mod prefix;
mod raw;
mod resize;
mod sequence;
mod stats;
mod tables;
#[cfg(test)]
mod tests;

pub use append::{Append, Tokens};
pub use audit::Leaks;
pub use blocks::Counts;
pub use copies::{Copies, CopyJob};
pub use error::{KvError, Result, Shortage};
pub use events::Event;
pub use evict::{PRIORITY_MAX, Policy};
pub use geometry::{Content, Element, Geometry, Layout, Order};
pub use hash::{Digest, Hashing};
pub use prefix::Match;
pub use resize::Bounds;
pub use sequence::{Open, Seq};
pub use stats::{GroupStats, Stats};
pub use tables::{Csr, Delta, Entry};

use crate::base::sync::SpinLock;
use blocks::Blocks;
use copies::Pending;
use events::Events;
use hybrid::Hybrid;
use sequence::Sequences;
use stats::Board;

/// A fence as the cache knows it: a number that grows. Work that is queued up to fence `f` has
/// ended once [`KvCache::pass`] was called with `f` or more. [`NO_FENCE`]: nothing is to be waited
/// for.
pub type Fence = u64;

/// Nothing to wait for.
pub const NO_FENCE: Fence = 0;

/// One group of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// What its blocks hold.
    pub geometry: Geometry,
    /// Its blocks at most, the null block included: 2 to 2^31 - 1. At first there are all
    /// ([`KvCache::resize`]).
    pub blocks: u32,
}

/// What a cache is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The groups, at least one.
    pub groups: Vec<Group>,
    /// Sequences that may be open at a time.
    pub max_sequences: u32,
    /// Blocks that one sequence may have in a group.
    pub max_blocks: u32,
    /// Whether prefixes are kept and hit. That needs a group of full attention, no states, and
    /// blocks of equally many tokens.
    pub prefixes: bool,
    /// In what order they are given up.
    pub policy: Policy,
    /// How they are hashed.
    pub hashing: Hashing,
    /// Whether a full block that equals a registered one is given back for that one when it is
    /// committed. Else, or where a fork shares it, both stay, and the sequence registers nothing
    /// from there on.
    pub dedupe: bool,
    /// Whether the first tokens of a block that differs later are reused, by a copy.
    pub partial: bool,
    /// Blocks of each group that a sequence's first append must leave to the others.
    pub watermark: u32,
    /// Events that are kept until they are taken; 0: none.
    pub events: usize,
}

impl Config {
    /// A cache of one group with prefixes, LRU, XXH3, copies of partial blocks, no events.
    pub fn new(geometry: Geometry, blocks: u32) -> Config {
        Config {
            groups: vec![Group { geometry, blocks }],
            max_sequences: 1024,
            max_blocks: u32::MAX,
            prefixes: true,
            policy: Policy::default(),
            hashing: Hashing::default(),
            dedupe: true,
            partial: true,
            watermark: 0,
            events: 0,
        }
    }

    fn check(&self) -> Result<()> {
        let wrong = |what| Err(KvError::Config(what));
        let [first, ..] = &self.groups[..] else { return wrong("a cache needs a group") };
        for group in &self.groups {
            if !(2..=i32::MAX as u32).contains(&group.blocks) {
                return wrong("a group needs 2 to 2^31 - 1 blocks: the null block and others");
            }
            group.geometry.layout(group.blocks)?;
            if self.prefixes && group.geometry.is_state() {
                return wrong("a state is no prefix's: turn prefixes off");
            }
            if self.prefixes && group.geometry.block_tokens != first.geometry.block_tokens {
                return wrong("prefixes need blocks of equally many tokens in all groups");
            }
        }
        if self.prefixes && self.groups.iter().all(|group| group.geometry.window() > 0) {
            return wrong("prefixes need a group of full attention: turn them off");
        }
        if self.max_sequences == 0 || self.max_blocks == 0 {
            return wrong("sequences and blocks a sequence must not be 0");
        }
        Ok(())
    }
}

/// All that a lock guards.
#[derive(Debug)]
struct Core {
    config: Config,
    sequences: Sequences,
    groups: Vec<Blocks>,
    /// Where prefixes are kept and some groups have windows.
    hybrid: Option<Hybrid>,
    pending: Pending,
    events: Events,
    hits: u64,
    misses: u64,
    /// Whether somebody puts memory behind the blocks.
    memory: bool,
    /// The highest fence that was made where memory stands behind the blocks.
    made: Fence,
}

/// The cache.
#[derive(Debug)]
pub struct KvCache {
    core: SpinLock<Core>,
    board: Board,
    layouts: Vec<Layout>,
    max_sequences: u32,
}

impl KvCache {
    /// A cache. Errors: a configuration or geometry that makes no sense, or no memory for tables:
    /// about 128 bytes a block and 4 a token of it where prefixes are kept.
    pub fn new(config: Config) -> Result<KvCache> {
        config.check()?;
        let groups: Result<Vec<Blocks>> = (0u32..)
            .zip(&config.groups)
            .map(|(at, group)| {
                let Geometry { block_tokens, .. } = group.geometry;
                let tokens = config.prefixes && group.geometry.window() == 0;
                Blocks::new(at, group.blocks, block_tokens, tokens, config.policy)
            })
            .collect();
        let mut groups = groups?;
        let hybrid = config.prefixes.then(|| Hybrid::new(&config.groups)).flatten();
        if let Some(hybrid) = &hybrid {
            hybrid.tie(&mut groups)?;
        }
        let layouts: Result<Vec<Layout>> =
            config.groups.iter().map(|group| group.geometry.layout(group.blocks)).collect();
        let board = Board::new(config.groups.len());
        let max_sequences = config.max_sequences;
        let core = Core {
            sequences: Sequences::new(config.max_sequences, config.groups.len()),
            groups,
            hybrid,
            pending: Pending::default(),
            events: Events::new(config.events)?,
            hits: 0,
            misses: 0,
            memory: false,
            made: NO_FENCE,
            config,
        };
        board.tell(&core);
        Ok(KvCache { core: SpinLock::new(core), board, layouts: layouts?, max_sequences })
    }

    /// Runs a change under the lock, and tells the board what it led to.
    #[inline]
    fn with<R>(&self, change: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.core.lock();
        let answer = change(&mut core);
        core.drain();
        self.board.tell(&core);
        answer
    }

    /// Where a group's elements lie. `None`: no such group.
    pub fn layout(&self, group: u32) -> Option<&Layout> {
        self.layouts.get(group as usize)
    }

    /// Opens a sequence without tokens. Errors: all are open, or the priority is above
    /// [`PRIORITY_MAX`].
    pub fn open(&self, open: Open) -> Result<Seq> {
        if open.priority > PRIORITY_MAX {
            return Err(KvError::OutOfRange("priorities are 0 to 7"));
        }
        self.with(|core| core.sequences.open(open, core.config.prefixes))
    }

    /// Sequences that may be open at a time.
    pub fn max_sequences(&self) -> u32 {
        self.max_sequences
    }

    /// Tokens that a sequence holds.
    pub fn len(&self, seq: Seq) -> Result<u32> {
        self.core.lock().sequences.get(seq).map(|found| found.len)
    }

    /// All work up to this fence has ended: what was freed behind it can be had again. Does nothing
    /// where memory stands behind the blocks: its poll tells which fences have passed.
    pub fn pass(&self, fence: Fence) {
        self.with(|core| {
            if !core.memory {
                core.groups.iter_mut().for_each(|blocks| blocks.pass(fence));
            }
        });
    }

    /// As [`KvCache::pass`], for who puts memory behind the blocks.
    pub(crate) fn pass_behind(&self, fence: Fence) {
        self.with(|core| core.groups.iter_mut().for_each(|blocks| blocks.pass(fence)));
    }

    /// Moves at most `most` events to `out`, oldest first; answers how many were dropped since the
    /// last call because nobody took them.
    pub fn take_events(&self, most: usize, out: &mut Vec<Event>) -> u64 {
        self.core.lock().events.take(most, out)
    }
}
