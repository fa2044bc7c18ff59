//! The tables that attention kernels read: block rows, slots, and compressed rows.
//!
//! Promises that a row told by deltas equals the row told whole. Numbers are those of the group.
//! Formats as vLLM 0.33 (int32 rows padded with the null block, int64 slots) and FlashInfer
//! (`indptr`, `indices`, `last_page_len` in 1 to the block's tokens) read them.

use super::blocks::NULL;
use super::error::{KvError, Result};
use super::sequence::{Seq, Sequence};
use super::{Core, KvCache};
use std::mem::MaybeUninit;

/// A place that a number is written to and never read from: a number, or memory that holds none
/// yet, as arrays from C may.
pub trait Entry<T> {
    /// Writes the number.
    fn put(&mut self, number: T);
}

impl<T> Entry<T> for T {
    #[inline]
    fn put(&mut self, number: T) {
        *self = number;
    }
}

impl<T> Entry<T> for MaybeUninit<T> {
    #[inline]
    fn put(&mut self, number: T) {
        self.write(number);
    }
}

/// What changed in a row: entries `from .. to` are to be sent; those behind `to` are null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The first entry that changed.
    pub from: u32,
    /// Behind the last entry that changed, or was taken away.
    pub to: u32,
}

/// Compressed rows of several sequences, as FlashInfer reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csr {
    /// Where each sequence's blocks start in `indices`, and at the end how many there are.
    pub indptr: Vec<i32>,
    /// The blocks; trimmed ones are left out.
    pub indices: Vec<i32>,
    /// Tokens in each sequence's last block.
    pub last_page_len: Vec<i32>,
}

impl KvCache {
    /// Writes what changed in a sequence's row since the last call to the same row into `row`, and
    /// tells what that was. `whole`: the row held another sequence's, or nothing; all of it is
    /// written, the end filled with the null block. Blocks that are only reserved are in it.
    /// Errors: stale, no such group, or a row too short.
    pub fn row<E: Entry<i32>>(
        &self,
        group: u32,
        seq: Seq,
        row: &mut [E],
        whole: bool,
    ) -> Result<Delta> {
        let mut core = self.core.lock();
        core.row(group, seq, row, whole)
    }

    /// As [`KvCache::row`] for the rows of several sequences in one array of `stride` entries a
    /// row: the `i`th sequence's row is the `i`th. `deltas` gets one for each. Errors as there;
    /// rows before the one that is refused were written.
    pub fn rows<E: Entry<i32>>(
        &self,
        group: u32,
        seqs: &[Seq],
        array: &mut [E],
        stride: usize,
        deltas: &mut Vec<Delta>,
    ) -> Result<()> {
        let mut core = self.core.lock();
        if stride == 0 || array.len() / stride < seqs.len() {
            return Err(KvError::OutOfRange("the array has fewer rows than there are sequences"));
        }
        for (&seq, row) in seqs.iter().zip(array.chunks_exact_mut(stride)) {
            deltas.push(core.row(group, seq, row, false)?);
        }
        Ok(())
    }

    /// The slots of a sequence's tokens `from .. from + out.len()`: block times the block's tokens,
    /// and the place in it. Errors: stale, no such group, a token that is not there or was trimmed.
    pub fn slots<E: Entry<i64>>(
        &self,
        group: u32,
        seq: Seq,
        from: u32,
        out: &mut [E],
    ) -> Result<()> {
        let core = self.core.lock();
        let (found, per_block) = core.in_group(group, seq)?;
        let end = u32::try_from(out.len()).ok().and_then(|count| from.checked_add(count));
        if end.is_none_or(|end| end > found.len) {
            return Err(KvError::OutOfRange("the sequence does not have so many tokens"));
        }
        let table = &found.tables[group as usize];
        if from / per_block < table.trimmed {
            return Err(KvError::OutOfRange("these tokens were trimmed"));
        }
        for (token, slot) in (from..).zip(out) {
            let block = table.blocks[(token / per_block) as usize];
            slot.put(i64::from(block) * i64::from(per_block) + i64::from(token % per_block));
        }
        Ok(())
    }

    /// Compressed rows of sequences, in order, into `out`, which is emptied first. Errors: stale,
    /// no such group, a sequence without tokens (it has no last block), more than 2^31 - 1
    /// entries.
    pub fn csr(&self, group: u32, seqs: &[Seq], out: &mut Csr) -> Result<()> {
        let core = self.core.lock();
        out.indptr.clear();
        out.indices.clear();
        out.last_page_len.clear();
        out.indptr.push(0);
        for &seq in seqs {
            let (live, last) = core.csr_row(group, seq)?;
            out.indices.extend(live.iter().map(|&block| block as i32));
            let Ok(end) = i32::try_from(out.indices.len()) else { return Err(TOO_MANY) };
            out.indptr.push(end);
            out.last_page_len.push(last);
        }
        Ok(())
    }

    /// As [`KvCache::csr`] into arrays: `indptr` has one entry more than there are sequences,
    /// `last_page_len` as many. Answers how many entries `indices` needs; where it has fewer, it
    /// holds nothing of use, and the others are written all the same.
    pub fn csr_into<E: Entry<i32>>(
        &self,
        group: u32,
        seqs: &[Seq],
        (indptr, indices, last_page_len): (&mut [E], &mut [E], &mut [E]),
    ) -> Result<usize> {
        if indptr.len() != seqs.len() + 1 || last_page_len.len() != seqs.len() {
            return Err(KvError::OutOfRange("indptr needs one entry a sequence and one more"));
        }
        let core = self.core.lock();
        let mut end = 0;
        indptr[0].put(0);
        for (at, &seq) in seqs.iter().enumerate() {
            let (live, last) = core.csr_row(group, seq)?;
            if let Some(row) = indices.get_mut(end..end + live.len()) {
                row.iter_mut().zip(live).for_each(|(entry, &block)| entry.put(block as i32));
            }
            end += live.len();
            indptr[at + 1].put(i32::try_from(end).map_err(|_| TOO_MANY)?);
            last_page_len[at].put(last);
        }
        Ok(end)
    }
}

impl Core {
    fn in_group(&self, group: u32, seq: Seq) -> Result<(&Sequence, u32)> {
        let geometry = match self.config.groups.get(group as usize) {
            Some(group) if !group.geometry.is_state() => &group.geometry,
            Some(_) => return Err(KvError::Unsupported("a state's block holds no tokens")),
            None => return Err(NO_GROUP),
        };
        Ok((self.sequences.get(seq)?, geometry.block_tokens))
    }

    /// A sequence's blocks that are not trimmed, and the tokens in the last one.
    fn csr_row(&self, group: u32, seq: Seq) -> Result<(&[u32], i32)> {
        let (found, per_block) = self.in_group(group, seq)?;
        if found.len == 0 {
            return Err(KvError::OutOfRange("a sequence without tokens has no last block"));
        }
        let table = &found.tables[group as usize];
        let blocks = found.len.div_ceil(per_block);
        let last = found.len - (blocks - 1) * per_block;
        Ok((&table.blocks[table.trimmed as usize..blocks as usize], last as i32))
    }

    fn row<E: Entry<i32>>(
        &mut self,
        group: u32,
        seq: Seq,
        row: &mut [E],
        whole: bool,
    ) -> Result<Delta> {
        let found = self.sequences.get_mut(seq)?;
        let table = found.tables.get_mut(group as usize).ok_or(NO_GROUP)?;
        let len = table.blocks.len();
        if len > row.len() {
            return Err(KvError::OutOfRange("the row is shorter than the sequence's blocks"));
        }
        let (from, told) = if whole {
            (0, row.len())
        } else {
            ((table.changed.min(table.told)) as usize, table.told as usize)
        };
        let to = len.max(told).min(row.len());
        for (entry, &block) in row[from..].iter_mut().zip(&table.blocks[from.min(len)..]) {
            entry.put(block as i32);
        }
        if len < to {
            row[len..to].iter_mut().for_each(|entry| entry.put(NULL as i32));
        }
        table.changed = len as u32;
        table.told = len as u32;
        Ok(Delta { from: from as u32, to: to as u32 })
    }
}

const TOO_MANY: KvError = KvError::OutOfRange("more entries than 32 bits can number");
const NO_GROUP: KvError = KvError::OutOfRange("the cache has no such group");
