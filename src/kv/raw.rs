//! Blocks without sequences, for engines that schedule by themselves: what vLLM's `BlockPool` does.
//!
//! Promises that what this level gives out is counted apart and never a sequence's, so that neither
//! can free the other's. A registered block that nobody holds stays until it is given up, in the
//! order of the cache's policy. Blocks may carry equal hashes. One lock a call.

use super::blocks::{Blocks, Known, NULL, State};
use super::error::{KvError, Result};
use super::hash::Digest;
use super::tables::Entry;
use super::{Core, Fence, KvCache};

impl KvCache {
    /// `out.len()` blocks with one reference each, all or none. What was given up for them is told
    /// by events.
    pub fn take_blocks<E: Entry<u32>>(&self, group: u32, out: &mut [E]) -> Result<()> {
        self.with(|core| {
            let Core { groups, events, .. } = core;
            let blocks = groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            let need = u32::try_from(out.len()).unwrap_or(u32::MAX);
            blocks.require(need, 0)?;
            for out in out {
                let id = blocks.take(0, events);
                blocks.all[id as usize].raw = true;
                out.put(id);
            }
            Ok(())
        })
    }

    /// One reference more to each block, also to registered ones that nobody holds
    /// ([`KvCache::peek_blocks`]). Null blocks are passed over. Errors, with nothing changed: a
    /// block that this level did not give out, or that is held by nobody and not registered.
    pub fn hold_blocks(&self, group: u32, ids: &[u32]) -> Result<()> {
        self.with(|core| {
            let blocks = core.groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            for &id in ids.iter().filter(|&&id| id != NULL) {
                let block = blocks.all.get(id as usize).ok_or(NO_BLOCK)?;
                let is_there = block.state == State::Used || block.known == Known::Raw;
                if !block.raw || !is_there {
                    return Err(NOT_HELD);
                }
            }
            for &id in ids.iter().filter(|&&id| id != NULL) {
                blocks.hold(id);
                blocks.all[id as usize].hit |= blocks.all[id as usize].known == Known::Raw;
            }
            Ok(())
        })
    }

    /// One reference less to each block, in this order, behind `after`: of registered blocks that
    /// become reusable the first named are given up first. Null blocks are passed over. Errors as
    /// [`KvCache::hold_blocks`], also for a block that is named more often than it is held.
    pub fn release_blocks(&self, group: u32, ids: &[u32], after: Fence) -> Result<()> {
        self.with(|core| {
            core.check_fence(after)?;
            let blocks = core.groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            check(blocks, ids)?;
            check_counts(blocks, ids)?;
            ids.iter().filter(|&&id| id != NULL).for_each(|&id| blocks.release(id, after));
            Ok(())
        })
    }

    /// Registers blocks under hashes of the caller's. Errors as [`KvCache::hold_blocks`], also for
    /// one that is registered already.
    pub fn register_blocks(&self, group: u32, pairs: &[(u32, Digest)]) -> Result<()> {
        self.with(|core| {
            let Core { groups, events, .. } = core;
            let blocks = groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            let mut ids: Vec<u32> = pairs.iter().map(|&(id, _)| id).collect();
            check(blocks, &ids)?;
            ids.sort_unstable();
            let known = |id: u32| id == NULL || blocks.all[id as usize].known != Known::No;
            if ids.windows(2).any(|pair| pair[0] == pair[1]) || ids.iter().any(|&id| known(id)) {
                return Err(KvError::OutOfRange("the block is registered already, or null"));
            }
            for &(id, digest) in pairs {
                blocks.register_raw(id, digest, events);
            }
            Ok(())
        })
    }

    /// Takes a reference to a block of each hash, up to the first that is not there. Answers how
    /// many; their numbers go to the front of `out`.
    pub fn find_blocks<E: Entry<u32>>(
        &self,
        group: u32,
        digests: &[Digest],
        out: &mut [E],
    ) -> Result<usize> {
        self.with(|core| {
            let blocks = core.groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            let mut count = 0;
            for (digest, out) in digests.iter().zip(out) {
                let Some(id) = blocks.find_raw(digest) else { break };
                blocks.hold(id);
                blocks.all[id as usize].hit = true;
                out.put(id);
                count += 1;
            }
            Ok(count)
        })
    }

    /// A block of each hash, up to the first that is not there, without a reference: the numbers
    /// go to the front of `out`, and hold until the next call that gives blocks out. Answers how
    /// many. Of several with one hash the one that was registered first.
    pub fn peek_blocks<E: Entry<u32>>(
        &self,
        group: u32,
        digests: &[Digest],
        out: &mut [E],
    ) -> Result<usize> {
        let core = self.core.lock();
        let blocks = core.groups.get(group as usize).ok_or(NO_GROUP)?;
        let mut count = 0;
        for (digest, out) in digests.iter().zip(out) {
            let Some(id) = blocks.find_raw(digest) else { break };
            out.put(id);
            count += 1;
        }
        Ok(count)
    }

    /// Makes blocks unknown to the index; those that nobody holds become free. A block of a
    /// sequence that others continue stays. Answers how many were known before and are not now.
    pub fn evict_blocks(&self, group: u32, ids: &[u32]) -> Result<usize> {
        self.with(|core| {
            let Core { groups, events, .. } = core;
            let blocks = groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            if ids.iter().any(|&id| id as usize >= blocks.all.len()) {
                return Err(NO_BLOCK);
            }
            let known = |blocks: &Blocks, id: u32| blocks.all[id as usize].known != Known::No;
            let count = |&&id: &&u32| known(blocks, id) && blocks.give_up(id, events);
            Ok(ids.iter().filter(count).count())
        })
    }
}

/// Whether all blocks are this level's, and held.
fn check(blocks: &Blocks, ids: &[u32]) -> Result<()> {
    for &id in ids {
        match blocks.all.get(id as usize) {
            _ if id == NULL => {}
            Some(block) if block.raw && block.state == State::Used => {}
            Some(_) => return Err(NOT_HELD),
            None => return Err(NO_BLOCK),
        }
    }
    Ok(())
}

/// Whether no block is named more often than it is held.
fn check_counts(blocks: &Blocks, ids: &[u32]) -> Result<()> {
    let all_single = ids.iter().all(|&id| id == NULL || blocks.all[id as usize].refs > 1);
    if ids.len() == 1 || (all_single && ids.len() == 2) {
        return Ok(());
    }
    let mut sorted: Vec<u32> = ids.iter().copied().filter(|&id| id != NULL).collect();
    sorted.sort_unstable();
    for same in sorted.chunk_by(|a, b| a == b) {
        if same.len() > blocks.all[same[0] as usize].refs as usize {
            return Err(NOT_HELD);
        }
    }
    Ok(())
}

const NO_GROUP: KvError = KvError::OutOfRange("the cache has no such group");
const NO_BLOCK: KvError = KvError::OutOfRange("the group has no such block");
const NOT_HELD: KvError =
    KvError::OutOfRange("a block that the raw level does not hold (so often)");
