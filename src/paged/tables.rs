//! Block tables on the device: bound arrays that follow the cache by deltas.
//!
//! A bound table is an int32 array of rows that kernels read, anywhere a copy of the device can
//! write: device memory, or pinned host memory. [`KvMemory::sync_table`] gives its first rows to
//! sequences, in order, and sends what has changed since the last call. Owns a copy of what the
//! array holds once all queued copies are made, and what of it was not sent yet. Promises that a
//! refused or failed call loses no change: the next one sends it. Syncs of one table belong on one
//! stream, or are ordered by the caller. Cost: a look a sequence, and a copy a stretch of changed
//! entries, where stretches less than 4 KiB apart are one.

use super::staging::Ring;
use super::{Inner, KvMemory, MemoryError, NO_GROUP, Result};
use crate::kv::{KvCache, KvError, Seq};
use crate::pool::{Pool, world};
use std::collections::HashMap;

/// What a table is bound with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The group whose blocks it holds. A group has one table at a time, since a change is told
    /// once: while it is bound nobody else asks for rows of the group by deltas
    /// ([`KvCache::row`], [`KvCache::rows`]); the table would lack what was told there.
    pub group: u32,
    /// The array's address, a multiple of 4; it stays the caller's and must outlive the binding.
    pub address: usize,
    /// Its rows: sequences of a step at most.
    pub rows: u32,
    /// Entries from a row to the next: blocks of a sequence at most.
    pub stride: u32,
    /// Bytes of a staging buffer, a multiple of 4; 0: 64 KiB.
    pub staging_bytes: u32,
    /// Staging buffers at most; 0: as many as hold the whole array three times, 4 at least.
    pub staging_buffers: u32,
}

/// What a sync sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Entries.
    pub entries: usize,
    /// Copies that were queued.
    pub copies: usize,
}

/// A table's staging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staging {
    /// Buffers made so far.
    pub buffers: usize,
    /// Of these, buffers in flight as of the last sync.
    pub in_flight: usize,
}

/// Bytes of a staging buffer when nothing is said.
const STAGING_BYTES: usize = 64 << 10;

/// Stretches of changed entries that are nearer than this are one copy.
const GAP: usize = 1024;

/// All bound tables, by group.
#[derive(Debug, Default)]
pub(super) struct Tables(HashMap<u32, Bound>);

#[derive(Debug)]
struct Bound {
    table: Table,
    /// The array as it will be.
    entries: Vec<i32>,
    /// Stretches of entries that were not sent: from and to.
    unsent: Vec<(usize, usize)>,
    /// Whose each row is, and where each is.
    owners: Vec<Option<Seq>>,
    rows: HashMap<Seq, u32>,
    /// Rows from here on are null blocks.
    filled: usize,
    ring: Ring,
}

impl KvMemory {
    /// Binds a group's table. All of the array is null blocks after the first sync but what that
    /// writes.
    ///
    /// # Errors
    /// No such group, or one that has a table; no rows or entries; an address that is 0 or no
    /// multiple of 4.
    ///
    /// # Safety
    /// The array's `rows * stride * 4` bytes are writable by copies of the pool's device until it
    /// is unbound and the memory's copies have ended; work that reads them, and whoever else writes
    /// them, is ordered with the streams of the syncs.
    pub unsafe fn bind_table(&self, table: Table) -> Result<()> {
        world::check_world()?;
        let mut tables = self.0.tables.lock()?;
        if self.0.places.get(table.group as usize).is_none() {
            return Err(NO_GROUP);
        }
        if tables.0.contains_key(&table.group) {
            return Err(MemoryError::Invalid("the group has a table already: unbind that first"));
        }
        tables.0.insert(table.group, Bound::new(&self.0.pool, table)?);
        Ok(())
    }

    /// Unbinds a group's table; waits for copies in flight.
    ///
    /// # Errors
    /// No table; [`MemoryError::Again`], with the table as it was, where a copy has no event, its
    /// stream is gone, and a graph capture forbids to wait for the device.
    pub fn unbind_table(&self, group: u32) -> Result<()> {
        world::check_world()?;
        let mut tables = self.0.tables.lock()?;
        tables.0.get_mut(&group).ok_or(NO_TABLE)?.ring.settle()?;
        let bound = tables.0.remove(&group);
        // Its staging goes back to the pool without the lock.
        drop(tables);
        drop(bound);
        Ok(())
    }

    /// Row `i` of the group's table becomes `seqs[i]`'s; rows behind are null blocks. Queues copies
    /// of what has changed on `stream`.
    ///
    /// # Errors
    /// [`MemoryError::Again`] when all staging buffers are in flight; more sequences than rows; a
    /// stale sequence, or one with more blocks than a row; a driver call's failure; a stream that
    /// captures a graph. No change is lost, but part of it may have been sent. Waits for the device
    /// where a call failed after it had queued copies and its stream is gone since.
    pub fn sync_table(&self, group: u32, seqs: &[Seq], stream: u64) -> Result<Synced> {
        world::check_world()?;
        let mut tables = self.0.tables.lock()?;
        let bound = tables.0.get_mut(&group).ok_or(NO_TABLE)?;
        bound.follow(&self.0.cache, seqs)?;
        bound.send(&self.0, stream)
    }

    /// A table's staging buffers.
    pub fn staging(&self, group: u32) -> Result<Staging> {
        world::check_world()?;
        let tables = self.0.tables.lock()?;
        let (buffers, in_flight) = tables.0.get(&group).ok_or(NO_TABLE)?.ring.counts();
        Ok(Staging { buffers, in_flight })
    }
}

const NO_TABLE: MemoryError = MemoryError::Invalid("the group has no table: bind one first");
const BAD_TABLE: MemoryError =
    MemoryError::Invalid("a table needs rows, entries, and an address that is a multiple of 4");

impl Tables {
    /// As [`Ring::settle`], for all tables.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.0.values_mut().try_for_each(|bound| bound.ring.settle())
    }
}

impl Bound {
    fn new(pool: &Pool, table: Table) -> Result<Bound> {
        let entries = table.rows as usize * table.stride as usize;
        let end = entries.checked_mul(4).and_then(|bytes| table.address.checked_add(bytes));
        let aligned = table.address != 0 && table.address.is_multiple_of(4);
        if entries == 0 || end.is_none() || !aligned || !table.staging_bytes.is_multiple_of(4) {
            return Err(BAD_TABLE);
        }
        let bytes = match table.staging_bytes as usize {
            0 => STAGING_BYTES,
            bytes => bytes,
        };
        let most = match table.staging_buffers as usize {
            0 => (3 * (entries * 4).div_ceil(bytes)).max(4),
            most => most,
        };
        let mut owners = Vec::new();
        owners.try_reserve_exact(table.rows as usize).map_err(|_| KvError::NoMemory)?;
        let mut array = Vec::new();
        array.try_reserve_exact(entries).map_err(|_| KvError::NoMemory)?;
        array.resize(entries, 0);
        owners.resize(table.rows as usize, None);
        Ok(Bound {
            table,
            entries: array,
            unsent: vec![(0, entries)],
            owners,
            rows: HashMap::new(),
            filled: 0,
            ring: Ring::new(pool, bytes, most)?,
        })
    }

    /// Writes what has changed to the copy of the array, and notes it as unsent.
    fn follow(&mut self, cache: &KvCache, seqs: &[Seq]) -> Result<()> {
        if seqs.len() > self.owners.len() {
            return Err(MemoryError::Invalid("the table has fewer rows than there are sequences"));
        }
        let stride = self.table.stride as usize;
        let before = self.filled;
        self.filled = before.max(seqs.len());
        for (at, &seq) in seqs.iter().enumerate() {
            let start = at * stride;
            let row = &mut self.entries[start..start + stride];
            let whole = self.owners[at] != Some(seq);
            let delta = cache.row(self.table.group, seq, row, whole)?;
            if whole {
                self.give(at, seq);
            }
            if delta.from < delta.to {
                self.unsent.push((start + delta.from as usize, start + delta.to as usize));
            }
        }
        for at in seqs.len()..before {
            if let Some(seq) = self.owners[at].take() {
                self.rows.remove(&seq);
            }
            self.entries[at * stride..][..stride].fill(0);
            self.unsent.push((at * stride, (at + 1) * stride));
        }
        self.filled = seqs.len();
        Ok(())
    }

    /// A row is another sequence's from now on. Deltas are told once: where that one was before its
    /// row is nobody's.
    fn give(&mut self, at: usize, seq: Seq) {
        if let Some(before) = self.owners[at].replace(seq) {
            self.rows.remove(&before);
        }
        if let Some(old) = self.rows.insert(seq, at as u32) {
            self.owners[old as usize] = None;
        }
    }

    /// Unsent stretches in order, those that are near each other made one.
    fn merge(&mut self) {
        self.unsent.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(self.unsent.len());
        for &(from, to) in &self.unsent {
            match merged.last_mut() {
                Some(last) if from <= last.1 + GAP => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        self.unsent = merged;
    }

    fn send(&mut self, inner: &Inner, stream: u64) -> Result<Synced> {
        self.merge();
        let entries: usize = self.unsent.iter().map(|&(from, to)| to - from).sum();
        if entries == 0 {
            return Ok(Synced::default());
        }
        inner.pool.outside_capture(stream)?;
        let capacity = self.ring.bytes() / 4;
        let buffers = self.ring.take(&inner.pool, entries.div_ceil(capacity))?;
        let mut copies = 0;
        // Where the next buffer begins: a stretch, and entries of it that went before.
        let (mut at, mut sent) = (0, 0);
        for buffer in buffers {
            let mut staged = Vec::new();
            let mut used = 0;
            while used < capacity && at < self.unsent.len() {
                let (from, to) = (self.unsent[at].0 + sent, self.unsent[at].1);
                let len = (to - from).min(capacity - used);
                let address = self.ring.write(buffer, used * 4, &self.entries[from..from + len]);
                staged.push((self.table.address + from * 4, address, len * 4));
                used += len;
                (at, sent) = if from + len == to { (at + 1, 0) } else { (at, sent + len) };
            }
            for (to, from, bytes) in staged {
                // SAFETY: `to` is in the array, as the binding's caller promised; `from` in a
                // buffer of the ring that nobody writes before its copies have ended.
                unsafe { inner.pool.copy(to, from, bytes, stream)? };
                // From here on it is in flight; a refused copy reads nothing.
                self.ring.begin(buffer, stream);
                copies += 1;
            }
            self.ring.end(&inner.pool, buffer)?;
        }
        self.unsent.clear();
        Ok(Synced { entries, copies })
    }
}
