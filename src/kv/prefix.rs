//! Prefixes: what a new sequence finds already computed, and what a sequence leaves to others.
//!
//! Promises that a hit's blocks belong to the sequence at once, in all groups alike, and that a
//! block is registered only when its tokens are committed and what it continues is registered.
//! Groups with a window have their part in [`super::hybrid`].
//! Cost: about 50 ns a block (hash, look-up, compare).

use super::blocks::{Blocks, Link, NONE};
use super::copies::CopyJob;
use super::error::{KvError, Result};
use super::events::Events;
use super::hash::{Digest, Hashing};
use super::sequence::{Seq, Sequence, distinct};
use super::{Core, Fence, KvCache};

/// Blocks that continue one prefix and are looked at for a common beginning.
const SIBLINGS: usize = 32;

/// What was found of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Tokens that the sequence now holds, all committed.
    pub tokens: u32,
    /// Of these, tokens in whole blocks shared with others; the rest is copied by a job of
    /// [`KvCache::take_copies`].
    pub shared: u32,
}

impl KvCache {
    /// Gives an empty sequence the longest prefix of `tokens` that is there. A model needs at least
    /// one token to compute: leave the prompt's last one out. Nothing found is no error. In a group
    /// with a window the null block stands before what the next token sees, as after
    /// [`KvCache::trim`].
    /// Errors: stale, or the sequence holds tokens.
    pub fn find_prefix(&self, seq: Seq, tokens: &[i32]) -> Result<Match> {
        self.with(|core| core.find_prefix(seq, tokens))
    }

    /// The first `tokens` tokens of a sequence are computed, or will be by work that runs before
    /// any that is given the blocks by a hit: its full blocks can be hit from now on. With
    /// `dedupe`, a block that equals a registered one is freed behind `after` for that one: the
    /// table changes. Errors: stale, or fewer tokens than were committed, or more than there are.
    pub fn commit(&self, seq: Seq, tokens: u32, after: Fence) -> Result<()> {
        self.with(|core| {
            core.check_fence(after)?;
            core.commit(seq, tokens, after)
        })
    }

    /// As [`KvCache::commit`] for several sequences under one lock, all or none. Refused also when
    /// one is named twice.
    pub fn commit_all(&self, batch: &[(Seq, u32)], after: Fence) -> Result<()> {
        self.with(|core| {
            core.check_fence(after)?;
            for &(seq, tokens) in batch {
                core.may_commit(seq, tokens)?;
            }
            distinct(batch.iter().map(|&(seq, _)| seq))?;
            batch.iter().try_for_each(|&(seq, tokens)| core.commit(seq, tokens, after))
        })
    }

    /// Forgets all prefixes; blocks that nobody holds become free, sequences keep theirs.
    pub fn reset_prefixes(&self) {
        self.with(|core| {
            for blocks in &mut core.groups {
                blocks.clear(&mut core.events);
            }
        });
    }
}

impl Core {
    fn find_prefix(&mut self, seq: Seq, tokens: &[i32]) -> Result<Match> {
        let per_block = self.config.groups[0].geometry.block_tokens as usize;
        let found = self.sequences.get_mut(seq)?;
        if found.len > 0 || found.tables.iter().any(|table| !table.blocks.is_empty()) {
            return Err(KvError::Unsupported("a prefix is looked for before the first append"));
        }
        if !self.config.prefixes {
            return Ok(Match::default());
        }
        let most = (self.config.max_blocks as usize).min(u32::MAX as usize / per_block);
        let prompt = tokens.chunks_exact(per_block).take(most);
        let (groups, hashing) = (&mut self.groups, self.config.hashing);
        let full = match &mut self.hybrid {
            None => attach_all(groups, found, hashing, prompt),
            Some(hybrid) => hybrid.attach(groups, found, hashing, prompt),
        };
        (found.len, found.sealed) = ((full * per_block) as u32, full as u32);
        let shared = found.len;
        let room = full < self.config.max_blocks as usize;
        let more = if room { self.copy_beginning(seq, &tokens[full * per_block..])? } else { 0 };
        let found = self.sequences.get_mut(seq)?;
        found.len += more;
        found.committed = found.len;
        self.hits += u64::from(found.len);
        self.misses += tokens.len() as u64 - u64::from(found.len);
        Ok(Match { tokens: shared + more, shared })
    }

    /// Takes over the beginning of a block that continues the sequence's prefix, by a copy; answers
    /// how many tokens. None where a block for the copy is not free in each group.
    fn copy_beginning(&mut self, seq: Seq, tokens: &[i32]) -> Result<u32> {
        if !self.config.partial || tokens.is_empty() {
            return Ok(0);
        }
        let found = self.sequences.get(seq)?;
        let salt = found.salt;
        // The source may be what would be given up for the copy.
        if self.groups.iter().any(|blocks| blocks.available() < 2) {
            return Ok(0);
        }
        let mut same = usize::MAX;
        let mut from = vec![NONE; self.groups.len()];
        let hybrid = self.hybrid.as_ref();
        for (at, (blocks, table)) in self.groups.iter().zip(&found.tables).enumerate() {
            if !blocks.keeps_tokens() {
                continue;
            }
            let parent = table.blocks.last().copied().unwrap_or(NONE);
            let is_it = |block| match hybrid {
                Some(hybrid) if hybrid.anchor() == at => hybrid.is_complete(&self.groups, block),
                _ => true,
            };
            let nearest = blocks.nearest(parent, salt, tokens, SIBLINGS, is_it);
            let Some((block, count)) = nearest else { return Ok(0) };
            same = same.min(count);
            from[at] = block;
        }
        if let Some(hybrid) = hybrid {
            let anchor = from[hybrid.anchor()];
            for group in hybrid.windows() {
                let Some(block) = self.groups[group].companion(anchor) else { return Ok(0) };
                from[group] = block;
            }
        }
        for (at, from) in from.into_iter().enumerate() {
            let blocks = &mut self.groups[at];
            let found = self.sequences.get_mut(seq)?;
            let table = &mut found.tables[at].blocks;
            blocks.reuse(from, found.priority);
            let mut held = vec![from];
            if blocks.keeps_tokens() {
                // Who holds a block that may be registered holds what it continues.
                table.iter().for_each(|&block| blocks.hold(block));
                held.extend(table.iter().rev());
            }
            let to = blocks.take(found.priority, &mut self.events);
            blocks.hold_target(to);
            if blocks.keeps_tokens() {
                blocks.copy_tokens(from, to, same);
            }
            table.push(to);
            let job = CopyJob { group: at as u32, from, to, tokens: same as u32 };
            self.pending.push(job, held);
        }
        Ok(same as u32)
    }

    fn may_commit(&self, seq: Seq, tokens: u32) -> Result<()> {
        let found = self.sequences.get(seq)?;
        if tokens < found.committed || tokens > found.len {
            return Err(KvError::OutOfRange(
                "committed tokens grow, and are at most what the sequence holds",
            ));
        }
        Ok(())
    }

    #[inline]
    fn commit(&mut self, seq: Seq, tokens: u32, after: Fence) -> Result<()> {
        self.may_commit(seq, tokens)?;
        let per_block = self.config.groups[0].geometry.block_tokens;
        let found = self.sequences.get_mut(seq)?;
        found.committed = tokens;
        let full = tokens / per_block;
        if found.hashed && found.sealed < full {
            match self.hybrid {
                None => self.seal::<false>(seq, full, after)?,
                Some(_) => self.seal::<true>(seq, full, after)?,
            }
        }
        Ok(())
    }

    /// Registers a sequence's blocks up to the `full`th, as far as that can be done. `HYBRID`:
    /// some groups have a window; without them nothing is asked a block on their account.
    fn seal<const HYBRID: bool>(&mut self, seq: Seq, full: u32, after: Fence) -> Result<()> {
        let found = self.sequences.get_mut(seq)?;
        let how = (self.config.hashing, self.config.dedupe, after);
        while found.hashed && found.sealed < full {
            let at = found.sealed as usize;
            for (group, blocks) in self.groups.iter_mut().enumerate() {
                if HYBRID && !blocks.keeps_tokens() {
                    continue;
                }
                if !seal_block(blocks, found, (group, at), how, &mut self.events) {
                    found.hashed = false;
                    break;
                }
            }
            if let Some(hybrid) = self.hybrid.as_ref().filter(|_| HYBRID && found.hashed) {
                let how = (self.config.dedupe, after);
                hybrid.pair(&mut self.groups, found, at, how, &mut self.events);
            }
            found.sealed += u32::from(found.hashed);
        }
        Ok(())
    }
}

/// Registers a sequence's `at`th block in a group of full attention, or gives it back for one that
/// equals it. False: neither can be, and the sequence registers no more.
#[inline]
fn seal_block(
    blocks: &mut Blocks,
    found: &mut Sequence,
    (group, at): (usize, usize),
    (hashing, dedupe, after): (Hashing, bool, Fence),
    events: &mut Events,
) -> bool {
    let (salt, priority) = (found.salt, found.priority);
    let table = &mut found.tables[group];
    let block = table.blocks[at];
    if blocks.is_registered(block) {
        return true;
    }
    let (parent, digest) = match at.checked_sub(1).map(|before| table.blocks[before]) {
        None => (NONE, hashing.root(salt)),
        Some(parent) => (parent, *blocks.digest(parent)),
    };
    if parent != NONE && !blocks.is_registered(parent) {
        return false;
    }
    let tokens = blocks.tokens(block);
    let digest = hashing.link(&digest, tokens);
    match blocks.find(Link { parent, salt, tokens, digest: &digest }) {
        None => blocks.register(block, (parent, salt), digest, events),
        // Who shares the block by a fork would be left with one whose parent it lacks.
        Some(other) if dedupe && blocks.all[block as usize].refs == 1 => {
            blocks.reuse(other, priority);
            blocks.release(block, after);
            table.blocks[at] = other;
            table.changed = table.changed.min(at as u32);
        }
        Some(_) => return false,
    }
    true
}

/// Gives an empty sequence the longest prefix, in whole blocks, that all groups have; answers how
/// many. All groups are of full attention.
fn attach_all<'a>(
    groups: &mut [Blocks],
    found: &mut Sequence,
    hashing: Hashing,
    prompt: impl Iterator<Item = &'a [i32]>,
) -> usize {
    let mut digest = hashing.root(found.salt);
    let mut full = 0;
    for tokens in prompt {
        let next = hashing.link(&digest, tokens);
        if !attach(groups, found, &next, tokens) {
            break;
        }
        digest = next;
        full += 1;
    }
    full
}

/// Gives the sequence the block of these tokens in every group, or in none.
fn attach(groups: &mut [Blocks], found: &mut Sequence, digest: &Digest, tokens: &[i32]) -> bool {
    let salt = found.salt;
    let mut count = 0;
    for (blocks, table) in groups.iter_mut().zip(&mut found.tables) {
        let parent = table.blocks.last().copied().unwrap_or(NONE);
        let Some(block) = blocks.find(Link { parent, salt, tokens, digest }) else { break };
        blocks.reuse(block, found.priority);
        table.blocks.push(block);
        count += 1;
    }
    if count == groups.len() {
        return true;
    }
    for (blocks, table) in groups.iter_mut().zip(&mut found.tables).take(count) {
        if let Some(block) = table.blocks.pop() {
            blocks.release(block, 0);
        }
    }
    false
}
