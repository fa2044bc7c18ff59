//! Sequences shrink, fork and end.
//!
//! Promises that blocks are given back last first, so that what continues a prefix is older than
//! the prefix, and behind the caller's fence; that a fork shares all blocks and costs a reference a
//! block; that a refused call has changed nothing.

use super::blocks::NULL;
use super::copies::CopyJob;
use super::error::{KvError, Result};
use super::geometry::Geometry;
use super::sequence::{Open, Seq, distinct};
use super::{Core, Fence, KvCache};

impl KvCache {
    /// Takes the last `tokens` tokens back (rejected drafts), and room that was reserved behind
    /// them. Blocks that hold none of the rest are freed behind `after`.
    pub fn rollback(&self, seq: Seq, tokens: u32, after: Fence) -> Result<()> {
        self.with(|core| core.rollback(seq, tokens, after))
    }

    /// Makes `out.len()` sequences that begin with the first `tokens` tokens of `seq`, and shares
    /// its blocks; who writes into a shared tail first gets a copy of it. All or none. In a group
    /// of states each gets a copy of the state, which is that of all tokens: there `tokens` must
    /// be all. Errors: a token that is not there, more sequences than may be open, no blocks for
    /// states.
    pub fn fork(&self, seq: Seq, tokens: u32, out: &mut [Seq]) -> Result<()> {
        self.with(|core| core.fork(seq, tokens, out))
    }

    /// Gives blocks back, behind `after`, whose tokens the next one no longer sees: in groups with
    /// a window; with `keep`, in all groups but states, all before the last `keep` tokens. The
    /// null block takes their place in the tables. Refused with `keep` where prefixes are kept.
    pub fn trim(&self, seq: Seq, keep: Option<u32>, after: Fence) -> Result<()> {
        self.with(|core| core.trim(seq, keep, after))
    }

    /// Ends sequences; their blocks are freed behind `after`. Refused, with none ended, when one is
    /// stale or named twice.
    pub fn free(&self, seqs: &[Seq], after: Fence) -> Result<()> {
        self.with(|core| core.free(seqs, after))
    }
}

impl Core {
    fn rollback(&mut self, seq: Seq, tokens: u32, after: Fence) -> Result<()> {
        self.check_fence(after)?;
        let found = self.sequences.get_mut(seq)?;
        let len = found.len.checked_sub(tokens).ok_or(NOT_THERE)?;
        for (at, table) in found.tables.iter().enumerate() {
            let geometry = &self.config.groups[at].geometry;
            if geometry.is_state() && tokens > 0 {
                return Err(KvError::Unsupported(
                    "a state cannot be taken back: fork before drafts",
                ));
            }
            if tokens > 0 && !reaches(geometry, table.trimmed, len) {
                return Err(TRIMMED);
            }
        }
        found.len = len;
        found.committed = found.committed.min(len);
        for (at, table) in found.tables.iter_mut().enumerate() {
            let geometry = &self.config.groups[at].geometry;
            let keep = geometry.blocks_for(len);
            if at == 0 {
                found.sealed = found.sealed.min(len / geometry.block_tokens);
            }
            while table.blocks.len() > keep as usize {
                if let Some(block) = table.blocks.pop().filter(|&block| block != NULL) {
                    self.groups[at].release(block, after);
                }
            }
            table.trimmed = table.trimmed.min(keep);
            table.changed = table.changed.min(keep);
        }
        Ok(())
    }

    fn fork(&mut self, seq: Seq, tokens: u32, out: &mut [Seq]) -> Result<()> {
        let found = self.sequences.get(seq)?;
        if tokens > found.len {
            return Err(NOT_THERE);
        }
        let count = u32::try_from(out.len()).map_err(|_| KvError::TooManySequences)?;
        if count > self.sequences.room() {
            return Err(KvError::TooManySequences);
        }
        for (at, blocks) in self.groups.iter().enumerate() {
            let geometry = &self.config.groups[at].geometry;
            if geometry.is_state() && !found.tables[at].blocks.is_empty() {
                if tokens != found.len {
                    return Err(KvError::Unsupported(
                        "a state is that of all tokens: fork at the end",
                    ));
                }
                blocks.require(count, 0)?;
            }
            if tokens < found.len && !reaches(geometry, found.tables[at].trimmed, tokens) {
                return Err(TRIMMED);
            }
        }
        let (salt, priority, hashed) = (found.salt, found.priority, found.hashed);
        let committed = found.committed.min(tokens);
        for to in out {
            *to = self.sequences.open(Open { salt, priority }, hashed)?;
            for at in 0..self.groups.len() {
                self.share(seq, *to, at, tokens)?;
            }
            let sealed = self.sequences.get(seq)?.sealed;
            let per_block = self.config.groups[0].geometry.block_tokens;
            let made = self.sequences.get_mut(*to)?;
            (made.len, made.committed) = (tokens, committed);
            made.sealed = sealed.min(tokens / per_block);
        }
        Ok(())
    }

    /// Gives `to` the blocks of the first `tokens` tokens of `seq` in one group.
    fn share(&mut self, seq: Seq, to: Seq, at: usize, tokens: u32) -> Result<()> {
        let geometry = self.config.groups[at].geometry;
        let kept = geometry.blocks_for(tokens) as usize;
        let made = self.sequences.get_mut(to)?;
        let mut table = std::mem::take(&mut made.tables[at]);
        let priority = made.priority;
        let old = &self.sequences.get(seq)?.tables[at];
        let blocks = &mut self.groups[at];
        if geometry.is_state() {
            if let Some(&from) = old.blocks.first() {
                let state = blocks.take(priority, &mut self.events);
                table.blocks.push(state);
                // The copy holds both, besides their sequences.
                blocks.hold_target(state);
                blocks.hold(from);
                let job = CopyJob { group: at as u32, from, to: state, tokens: 0 };
                self.pending.push(job, vec![from]);
            }
        } else {
            table.blocks.extend_from_slice(&old.blocks[..kept]);
            table.trimmed = old.trimmed;
            table.blocks.iter().filter(|&&block| block != NULL).for_each(|&b| blocks.hold(b));
        }
        self.sequences.get_mut(to)?.tables[at] = table;
        Ok(())
    }

    fn trim(&mut self, seq: Seq, keep: Option<u32>, after: Fence) -> Result<()> {
        self.check_fence(after)?;
        let prefixes = self.config.prefixes;
        let found = self.sequences.get_mut(seq)?;
        if keep.is_some() && prefixes {
            return Err(KvError::Unsupported(
                "tokens can be trimmed only where no prefixes are kept",
            ));
        }
        for (at, table) in found.tables.iter_mut().enumerate() {
            let geometry = &self.config.groups[at].geometry;
            let seen = match (keep, geometry.window()) {
                (Some(keep), _) if !geometry.is_state() => keep,
                // The next token sees itself and the window less one before it.
                (None, window) if window > 0 => window - 1,
                _ => continue,
            };
            let gone = found.len.saturating_sub(seen) / geometry.block_tokens;
            if gone <= table.trimmed {
                continue;
            }
            for index in (table.trimmed..gone).rev() {
                let block = std::mem::replace(&mut table.blocks[index as usize], NULL);
                self.groups[at].release(block, after);
            }
            table.changed = table.changed.min(table.trimmed);
            table.trimmed = gone;
        }
        Ok(())
    }

    fn free(&mut self, seqs: &[Seq], after: Fence) -> Result<()> {
        self.check_fence(after)?;
        seqs.iter().try_for_each(|&seq| self.sequences.get(seq).map(drop))?;
        distinct(seqs.iter().copied())?;
        for &seq in seqs {
            let found = self.sequences.get_mut(seq)?;
            for (table, blocks) in found.tables.iter_mut().zip(&mut self.groups) {
                for block in table.blocks.drain(..).rev().filter(|&block| block != NULL) {
                    blocks.release(block, after);
                }
            }
            self.sequences.close(seq);
        }
        Ok(())
    }
}

/// Whether all that a token behind `len` tokens sees is still there, in a table whose first
/// `trimmed` blocks are not.
fn reaches(geometry: &Geometry, trimmed: u32, len: u32) -> bool {
    let seen = geometry.window().saturating_sub(1);
    trimmed == 0 || len.saturating_sub(seen) / geometry.block_tokens >= trimmed
}

const TRIMMED: KvError = KvError::OutOfRange("tokens that are needed there were trimmed");
const NOT_THERE: KvError = KvError::OutOfRange("the sequence does not have so many tokens");
