//! Sequences grow: blocks for new tokens, and private copies of shared tails.
//!
//! Promises that a refused append has changed nothing, in any group, and that a tail block that
//! somebody else may read is replaced by a private one before it is written. Cost: one lock a
//! batch; a token that fits in the tail costs a few stores, a new block a few more.

use super::blocks::NONE;
use super::copies::CopyJob;
use super::error::{KvError, Result};
use super::sequence::{Seq, Sequence};
use super::{Core, KvCache};

/// New tokens of a sequence.
#[derive(Clone, Copy, Debug)]
pub enum Tokens<'a> {
    /// Their numbers: full blocks of them can be registered.
    Known(&'a [i32]),
    /// How many; from there on the sequence registers nothing.
    Count(u32),
}

impl Tokens<'_> {
    #[inline]
    fn len(&self) -> Option<u32> {
        match *self {
            Tokens::Known(tokens) => u32::try_from(tokens.len()).ok(),
            Tokens::Count(count) => Some(count),
        }
    }
}

/// One item of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The sequence that grows.
    pub seq: Seq,
    /// By what.
    pub tokens: Tokens<'a>,
}

impl KvCache {
    /// Appends tokens to one sequence: they have blocks when this returns. Refused, with nothing
    /// changed, when blocks lack in any group, the sequence would be too long, or is stale.
    pub fn append(&self, seq: Seq, tokens: Tokens<'_>) -> Result<()> {
        self.with(|core| core.append(seq, tokens))
    }

    /// Appends to several sequences, in order, under one lock. Answers how many were done; when one
    /// is refused, why: those before it stand, it and those after it are unchanged.
    pub fn append_all(&self, batch: &[Append<'_>]) -> (usize, Result<()>) {
        self.with(|core| {
            for (done, item) in batch.iter().enumerate() {
                if let Err(error) = core.append(item.seq, item.tokens) {
                    return (done, Err(error));
                }
            }
            (batch.len(), Ok(()))
        })
    }

    /// Takes the blocks for `tokens` more tokens without using them, and a copy of a shared tail:
    /// unless the sequence is forked before, the appends that follow cannot be refused for want of
    /// blocks up to there. Refused as [`KvCache::append`].
    pub fn reserve(&self, seq: Seq, tokens: u32) -> Result<()> {
        self.with(|core| core.reserve(seq, tokens))
    }
}

impl Core {
    #[inline]
    fn append(&mut self, seq: Seq, tokens: Tokens<'_>) -> Result<()> {
        let count = tokens.len().ok_or(TOO_MANY)?;
        let len = self.sequences.get(seq)?.len;
        if count == 0 {
            return Ok(());
        }
        self.make_room(seq, count)?;
        let keep = self.config.prefixes;
        let found = self.sequences.get_mut(seq)?;
        found.len = len + count;
        found.begun = true;
        match tokens {
            Tokens::Count(_) => found.hashed = false,
            Tokens::Known(tokens) if keep && found.hashed => {
                let groups = self.groups.iter_mut().zip(&found.tables);
                for (blocks, table) in groups.filter(|(blocks, _)| blocks.keeps_tokens()) {
                    let per_block = self.config.groups[0].geometry.block_tokens as usize;
                    let mut at = len as usize;
                    let mut rest = tokens;
                    while !rest.is_empty() {
                        let offset = at % per_block;
                        let (now, later) = rest.split_at(rest.len().min(per_block - offset));
                        blocks.write(table.blocks[at / per_block], offset, now);
                        at += now.len();
                        rest = later;
                    }
                }
            }
            Tokens::Known(_) => {}
        }
        Ok(())
    }

    fn reserve(&mut self, seq: Seq, tokens: u32) -> Result<()> {
        self.sequences.get(seq)?;
        if tokens == 0 {
            return Ok(());
        }
        self.make_room(seq, tokens)
    }

    /// Gives a sequence blocks for `count` tokens more in all groups, or in none, and a tail that
    /// is its own.
    #[inline]
    fn make_room(&mut self, seq: Seq, count: u32) -> Result<()> {
        let most = self.config.max_blocks;
        let found = self.sequences.get(seq)?;
        let spare = if found.begun { 0 } else { self.config.watermark };
        let end = found.len.checked_add(count).ok_or(TOO_MANY)?;
        let mut fits = true;
        for (at, blocks) in self.groups.iter().enumerate() {
            let geometry = &self.config.groups[at].geometry;
            let total = geometry.blocks_for(end);
            if total > most {
                return Err(KvError::TooLong { blocks: total, most });
            }
            let new = total.saturating_sub(found.tables[at].blocks.len() as u32);
            let copied = self.shared_tail(found, at) != NONE;
            let need = new + u32::from(copied);
            blocks.require(need, spare)?;
            fits &= need == 0;
        }
        if fits {
            return Ok(());
        }
        for at in 0..self.groups.len() {
            let total = self.config.groups[at].geometry.blocks_for(end) as usize;
            let found = self.sequences.get(seq)?;
            if self.shared_tail(found, at) != NONE {
                self.own_tail(seq, at)?;
            }
            let found = self.sequences.get_mut(seq)?;
            let table = &mut found.tables[at];
            while table.blocks.len() < total {
                table.blocks.push(self.groups[at].take(found.priority, &mut self.events));
            }
        }
        Ok(())
    }

    /// The tail block that is to be written next, if it is begun and somebody else may read it.
    #[inline]
    fn shared_tail(&self, found: &Sequence, group: usize) -> u32 {
        let geometry = &self.config.groups[group].geometry;
        if geometry.is_state() || found.len.is_multiple_of(geometry.block_tokens) {
            return NONE;
        }
        let tail = found.tables[group].blocks[(found.len / geometry.block_tokens) as usize];
        if self.groups[group].is_shared(tail) { tail } else { NONE }
    }

    /// Puts a private copy in the place of a shared tail; a block for it is there.
    fn own_tail(&mut self, seq: Seq, group: usize) -> Result<()> {
        let per_block = self.config.groups[group].geometry.block_tokens;
        let found = self.sequences.get_mut(seq)?;
        let (index, tokens) = (found.len / per_block, found.len % per_block);
        let blocks = &mut self.groups[group];
        let table = &mut found.tables[group];
        let from = table.blocks[index as usize];
        let to = blocks.take(found.priority, &mut self.events);
        table.blocks[index as usize] = to;
        table.changed = table.changed.min(index);
        // The sequence's reference to the old block becomes the copy's; the new one gets another.
        blocks.hold_target(to);
        let mut held = vec![from];
        if blocks.keeps_tokens() {
            blocks.copy_tokens(from, to, tokens as usize);
            // Who holds a block that may be registered holds what it continues.
            let before = &table.blocks[..index as usize];
            before.iter().for_each(|&block| blocks.hold(block));
            held.extend(before.iter().rev());
        }
        let job = CopyJob { group: group as u32, from, to, tokens };
        self.pending.push(job, held);
        Ok(())
    }
}

const TOO_MANY: KvError = KvError::OutOfRange("a sequence has at most 2^32 - 1 tokens");
