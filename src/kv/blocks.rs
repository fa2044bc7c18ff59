//! One group's blocks: who holds them, what they hold, and which may be had.
//!
//! Owns every block's state and the tree of registered prefixes. A block is at any time exactly one
//! of: the null block (number 0, never handed out), *clean* (nobody's, holds nothing), *used*
//! (somebody holds a reference), *cached* (nobody's, but a prefix that may be hit) or *quarantined*
//! (nobody's, until its fence has passed); blocks above the end of a group that is not at its
//! full length are *closed* ([`resize`]). Promises that these six sum to all blocks, that a block
//! is given out only when its fence has passed, and that a cached prefix goes only after all that
//! continue it: whoever holds a registered block holds its parent too, so what continues a cached
//! block is itself nobody's. Eviction walks to a leaf; it calls nothing and never nests. Blocks of
//! a window beside prefixes continue nothing ([`companions`]).
//! Not for sharing between threads. Cost: some stores a block and call.

mod audit;
mod companions;
mod resize;

use super::NO_FENCE;
use super::error::{KvError, Result, Shortage};
use super::events::{Event, Events};
use super::evict::{Policy, Queue};
use super::hash::{Digest, short};
use super::index::Index;
use companions::{Companions, Left};
use std::collections::BTreeMap;

/// No block.
pub(super) const NONE: u32 = u32::MAX;
/// The block that stands where a sequence has none; it is never written.
pub(super) const NULL: u32 = 0;

/// What a block is just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Null,
    Clean,
    Used,
    Cached,
    Quarantined,
    Closed,
}

/// How a block is known to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Not at all.
    No,
    /// By its tokens and its parent.
    Tokens,
    /// By a hash of the caller's.
    Raw,
    /// By the registered block of another group that it goes with ([`companions`]).
    Companion,
}

/// One block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub refs: u32,
    pub state: State,
    pub known: Known,
    /// Whether the raw level gave it out: sequences never hold it.
    pub raw: bool,
    /// Whether it was hit since it was registered.
    pub hit: bool,
    pub list: u8,
    pub priority: u8,
    /// Neighbours in the queue of the cached.
    pub next: u32,
    pub prev: u32,
    /// The registered block that this one continues; [`NONE`]: it is a first block.
    pub parent: u32,
    /// The newest registered block that continues this one, and its neighbours among those.
    pub child: u32,
    pub older: u32,
    pub newer: u32,
    /// The tenant's salt, of a first block.
    pub salt: u64,
    /// The latest fence that anybody freed it behind.
    pub fence: u64,
    /// References of copies that are made into it, and the latest fence that one ends by: nobody
    /// but its holder reads it on their account.
    pub copying: u32,
    pub copied: u64,
}

impl Block {
    const fn new(state: State) -> Block {
        Block {
            refs: 0,
            state,
            known: Known::No,
            raw: false,
            hit: false,
            list: 0,
            priority: 0,
            next: NONE,
            prev: NONE,
            parent: NONE,
            child: NONE,
            older: NONE,
            newer: NONE,
            salt: 0,
            fence: 0,
            copying: 0,
            copied: 0,
        }
    }
}

/// What a block's prefix is looked up by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    pub parent: u32,
    pub salt: u64,
    pub tokens: &'a [i32],
    pub digest: &'a Digest,
}

/// A group's blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    pub group: u32,
    pub all: Vec<Block>,
    clean: Vec<u32>,
    queue: Queue,
    index: Index,
    /// The newest registered first block.
    roots: u32,
    /// Each block's tokens, where prefixes are kept and known by them.
    tokens: Vec<i32>,
    digests: Vec<Digest>,
    block_tokens: usize,
    waiting: BTreeMap<u64, Vec<u32>>,
    used: u32,
    quarantined: u32,
    passed: u64,
    /// Blocks from here on are closed or drain; and one past the highest that is not closed, or
    /// more.
    end: u32,
    top: u32,
    closed: u32,
    /// Prefixes above the end that nobody uses any more.
    late: Vec<u32>,
    companions: Companions,
    left: Left,
}

/// Counts of a group's blocks by state; their sum, with the null block, is all that there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All blocks that there are, the null block included.
    pub total: u32,
    /// Blocks that somebody holds.
    pub used: u32,
    /// Blocks that hold nothing.
    pub free: u32,
    /// Blocks of prefixes that nobody uses.
    pub cached: u32,
    /// Blocks that wait for a fence.
    pub quarantined: u32,
}

/// A table of `len` times `value`, or an error where the machine has no memory.
fn table<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    let mut table = Vec::new();
    table.try_reserve_exact(len).map_err(|_| KvError::NoMemory)?;
    table.resize(len, value);
    Ok(table)
}

impl Blocks {
    /// `count` blocks, the null block among them. `prefixes`: whether they may be registered
    /// by their tokens.
    pub(super) fn new(
        group: u32,
        count: u32,
        block_tokens: u32,
        prefixes: bool,
        policy: Policy,
    ) -> Result<Blocks> {
        let count = count as usize;
        let mut all = table(count, Block::new(State::Clean))?;
        all[NULL as usize].state = State::Null;
        let mut clean = table(0, 0)?;
        clean.try_reserve_exact(count).map_err(|_| KvError::NoMemory)?;
        // The lowest number on top.
        clean.extend((1..count as u32).rev());
        let block_tokens = block_tokens as usize;
        let kept = if prefixes { count } else { 0 };
        let words = kept.checked_mul(block_tokens).ok_or(KvError::NoMemory)?;
        Ok(Blocks {
            group,
            all,
            clean,
            queue: Queue::new(policy),
            index: Index::new(count).ok_or(KvError::NoMemory)?,
            roots: NONE,
            tokens: table(words, 0)?,
            digests: table(count, [0; 32])?,
            block_tokens,
            waiting: BTreeMap::new(),
            used: 0,
            quarantined: 0,
            passed: 0,
            end: count as u32,
            top: count as u32,
            closed: 0,
            late: Vec::new(),
            companions: Companions::default(),
            left: Left::default(),
        })
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            total: self.all.len() as u32 - self.closed,
            used: self.used,
            free: self.clean.len() as u32,
            cached: self.queue.len(),
            quarantined: self.quarantined,
        }
    }

    /// Blocks that can be had now, by giving up prefixes where that is needed.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        self.clean.len() as u32 + self.queue.len()
    }

    /// `Ok` if `need` blocks can be had and `spare` more stay.
    #[inline]
    pub(super) fn require(&self, need: u32, spare: u32) -> Result<()> {
        if need == 0 || need.saturating_add(spare) <= self.available() {
            return Ok(());
        }
        Err(KvError::NoBlocks(Shortage {
            group: self.group,
            need,
            free: self.clean.len() as u32,
            evictable: self.queue.len(),
            quarantined: self.quarantined,
        }))
    }

    /// A block with one reference, the caller's; one must be available.
    #[inline]
    pub(super) fn take(&mut self, priority: u8, events: &mut Events) -> u32 {
        let id = match self.clean.pop() {
            Some(id) => id,
            None => self.evict(events),
        };
        let block = &mut self.all[id as usize];
        debug_assert!(block.fence <= self.passed && block.known == Known::No);
        (block.refs, block.state, block.priority) = (1, State::Used, priority);
        (block.raw, block.hit) = (false, false);
        self.used += 1;
        id
    }

    /// Gives up the prefix that the policy names, or rather what continues it: leaves go first.
    fn evict(&mut self, events: &mut Events) -> u32 {
        let mut id = self.queue.oldest().expect("`available` said that there is one");
        while self.all[id as usize].child != NONE {
            id = self.all[id as usize].child;
        }
        debug_assert_eq!(self.all[id as usize].state, State::Cached);
        self.queue.unlink(&mut self.all, id);
        self.forget(id, events);
        id
    }

    /// One reference more. A block that nobody held is nobody's no more.
    #[inline]
    pub(super) fn hold(&mut self, id: u32) {
        let block = &mut self.all[id as usize];
        block.refs += 1;
        if block.refs == 1 {
            let before = std::mem::replace(&mut block.state, State::Used);
            self.used += 1;
            match before {
                State::Cached => self.queue.unlink(&mut self.all, id),
                State::Quarantined => self.quarantined -= 1,
                _ => debug_assert!(false, "block {id} was {before:?}"),
            }
        }
    }

    /// One reference more, of somebody who was given what the block holds.
    pub(super) fn reuse(&mut self, id: u32, priority: u8) {
        self.hold(id);
        let block = &mut self.all[id as usize];
        block.hit = true;
        block.priority = block.priority.max(priority);
    }

    /// One reference more, of a copy that is made into the block.
    pub(super) fn hold_target(&mut self, id: u32) {
        self.hold(id);
        self.all[id as usize].copying += 1;
    }

    /// A copy into the block is made by fence `after`.
    pub(super) fn release_target(&mut self, id: u32, after: u64) {
        let block = &mut self.all[id as usize];
        block.copying -= 1;
        block.copied = block.copied.max(after);
        self.release(id, NO_FENCE);
    }

    /// One reference less, behind fence `after` (0: none). The last one frees the block, once all
    /// fences that it was freed behind have passed; a registered one stays as a prefix.
    #[inline]
    pub(super) fn release(&mut self, id: u32, after: u64) {
        let block = &mut self.all[id as usize];
        debug_assert!(block.refs > 0 && block.state == State::Used, "block {id}: {block:?}");
        block.refs -= 1;
        block.fence = block.fence.max(after);
        if block.refs > 0 {
            return;
        }
        block.fence = block.fence.max(std::mem::take(&mut block.copied));
        let (fence, parent) = (block.fence, block.parent);
        self.used -= 1;
        if fence > self.passed {
            if parent != NONE {
                // What it continues must not be given up before it can be.
                let above = &mut self.all[parent as usize].fence;
                *above = (*above).max(fence);
            }
            self.all[id as usize].state = State::Quarantined;
            self.quarantined += 1;
            self.waiting.entry(fence).or_default().push(id);
        } else {
            self.settle(id);
        }
    }

    fn settle(&mut self, id: u32) {
        match self.all[id as usize].known {
            Known::No if id >= self.end => self.close(id),
            Known::No => {
                self.all[id as usize].state = State::Clean;
                self.clean.push(id);
            }
            _ => {
                self.all[id as usize].state = State::Cached;
                self.queue.push(&mut self.all, id);
                if id >= self.end {
                    self.late.push(id);
                }
            }
        }
    }

    /// All fences up to this one have passed.
    pub(super) fn pass(&mut self, fence: u64) {
        self.passed = self.passed.max(fence);
        while let Some(entry) = self.waiting.first_entry() {
            let key = *entry.key();
            if key > self.passed {
                break;
            }
            for id in entry.remove() {
                let block = &self.all[id as usize];
                // It may have been hit, and freed again behind a later one.
                if block.state == State::Quarantined && block.fence == key {
                    self.quarantined -= 1;
                    self.settle(id);
                }
            }
        }
    }

    /// Whether somebody else holds the block too, or may come to, or held it and still reads it: it
    /// must not be written.
    #[inline]
    pub(super) fn is_shared(&self, id: u32) -> bool {
        let block = &self.all[id as usize];
        let others = block.refs - block.copying > 1;
        others || block.known != Known::No || block.fence > self.passed
    }

    /// Whether it can be hit by its tokens.
    #[inline]
    pub(super) fn is_registered(&self, id: u32) -> bool {
        self.all[id as usize].known == Known::Tokens
    }

    /// Whether blocks are registered by their tokens, which are noted, and continue each other.
    #[inline]
    pub(super) fn keeps_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    pub(super) fn tokens(&self, id: u32) -> &[i32] {
        let start = id as usize * self.block_tokens;
        &self.tokens[start..][..self.block_tokens]
    }

    /// Notes tokens of a block from its `at`th on.
    #[inline]
    pub(super) fn write(&mut self, id: u32, at: usize, tokens: &[i32]) {
        let start = id as usize * self.block_tokens + at;
        self.tokens[start..][..tokens.len()].copy_from_slice(tokens);
    }

    /// Notes in `to` the first `count` tokens of `from`.
    pub(super) fn copy_tokens(&mut self, from: u32, to: u32, count: usize) {
        let start = from as usize * self.block_tokens;
        self.tokens.copy_within(start..start + count, to as usize * self.block_tokens);
    }

    pub(super) fn digest(&self, id: u32) -> &Digest {
        &self.digests[id as usize]
    }

    /// The registered block of exactly these tokens behind this parent.
    #[inline]
    pub(super) fn find(&self, link: Link<'_>) -> Option<u32> {
        self.index.find(short(link.digest), |id| {
            let block = &self.all[id as usize];
            block.known == Known::Tokens
                && id < self.end
                && block.parent == link.parent
                && (link.parent != NONE || block.salt == link.salt)
                && self.tokens(id) == link.tokens
        })
    }

    /// Among at most `most` blocks that continue `parent`, the one that shares most first tokens
    /// with `tokens`, and how many; of those that `is_it` takes.
    pub(super) fn nearest(
        &self,
        parent: u32,
        salt: u64,
        tokens: &[i32],
        most: usize,
        is_it: impl Fn(u32) -> bool,
    ) -> Option<(u32, usize)> {
        let mut at = if parent == NONE { self.roots } else { self.all[parent as usize].child };
        let mut best = None;
        for _ in 0..most {
            if at == NONE {
                break;
            }
            let block = &self.all[at as usize];
            if at < self.end && (parent != NONE || block.salt == salt) {
                let pairs = self.tokens(at).iter().zip(tokens);
                let same = pairs.take_while(|(a, b)| a == b).count();
                if same > best.map_or(0, |(_, same)| same) && is_it(at) {
                    best = Some((at, same));
                }
            }
            at = block.older;
        }
        best
    }

    /// Registers a block that somebody holds, whose tokens are noted, behind a registered parent
    /// (or [`NONE`]); no block that equals it must be registered.
    pub(super) fn register(
        &mut self,
        id: u32,
        (parent, salt): (u32, u64),
        digest: Digest,
        events: &mut Events,
    ) {
        debug_assert!(self.all[id as usize].refs > 0);
        self.index.insert(short(&digest), id);
        self.digests[id as usize] = digest;
        let newest = match parent {
            NONE => &mut self.roots,
            parent => &mut self.all[parent as usize].child,
        };
        let older = std::mem::replace(newest, id);
        if older != NONE {
            self.all[older as usize].newer = id;
        }
        let block = &mut self.all[id as usize];
        block.known = Known::Tokens;
        (block.parent, block.salt) = (parent, salt);
        (block.older, block.newer, block.hit) = (older, NONE, false);
        events.push(Event::Stored { group: self.group, block: id, digest });
    }

    /// Registers a block that somebody holds by the caller's hash. Others may have the same.
    pub(super) fn register_raw(&mut self, id: u32, digest: Digest, events: &mut Events) {
        self.index.insert(short(&digest), id);
        self.digests[id as usize] = digest;
        self.all[id as usize].known = Known::Raw;
        events.push(Event::Stored { group: self.group, block: id, digest });
    }

    /// A block with the caller's hash.
    pub(super) fn find_raw(&self, digest: &Digest) -> Option<u32> {
        self.index.find(short(digest), |id| {
            let raw = id < self.end && self.all[id as usize].known == Known::Raw;
            raw && self.digests[id as usize] == *digest
        })
    }

    /// Makes a block that nothing continues unknown to the index.
    fn forget(&mut self, id: u32, events: &mut Events) {
        let digest = self.digests[id as usize];
        match std::mem::replace(&mut self.all[id as usize].known, Known::No) {
            Known::Tokens => {
                self.index.remove(short(&digest), id);
                self.unlink(id);
                if self.left.leads {
                    self.left.anchors.push(id);
                }
            }
            Known::Companion => self.companions.part(id),
            _ => self.index.remove(short(&digest), id),
        }
        events.push(Event::Removed { group: self.group, block: id, digest });
    }

    /// Takes a block out of those that continue its parent.
    fn unlink(&mut self, id: u32) {
        let block = &mut self.all[id as usize];
        let (parent, older, newer) = (block.parent, block.older, block.newer);
        (block.parent, block.older, block.newer) = (NONE, NONE, NONE);
        match (newer, parent) {
            (NONE, NONE) => self.roots = older,
            (NONE, parent) => self.all[parent as usize].child = older,
            (newer, _) => self.all[newer as usize].older = older,
        }
        if older != NONE {
            self.all[older as usize].newer = newer;
        }
    }

    /// Gives a prefix that nobody uses up, with all that continues it; also takes from the index
    /// one that is used, where nothing continues it. False: it is used, and continued.
    pub(super) fn give_up(&mut self, id: u32, events: &mut Events) -> bool {
        match (self.all[id as usize].state, self.all[id as usize].known) {
            (State::Cached, _) => {
                while self.all[id as usize].state == State::Cached {
                    let mut leaf = id;
                    while self.all[leaf as usize].child != NONE {
                        leaf = self.all[leaf as usize].child;
                    }
                    self.queue.unlink(&mut self.all, leaf);
                    self.forget(leaf, events);
                    self.settle(leaf);
                }
                true
            }
            (_, Known::No) => true,
            _ if self.all[id as usize].child != NONE => false,
            _ => {
                self.forget(id, events);
                true
            }
        }
    }

    /// Makes all prefixes unknown; those that nobody uses become clean.
    pub(super) fn clear(&mut self, events: &mut Events) {
        self.index.clear();
        self.companions.clear();
        self.left.anchors.clear();
        self.roots = NONE;
        for block in &mut self.all {
            block.known = Known::No;
            (block.parent, block.child, block.older, block.newer) = (NONE, NONE, NONE, NONE);
        }
        while let Some(id) = self.queue.oldest() {
            self.queue.unlink(&mut self.all, id);
            self.settle(id);
        }
        events.push(Event::Cleared { group: self.group });
    }
}
