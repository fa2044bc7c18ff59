//! Copies that the device has to make: of a shared tail before it is written, of a prefix's
//! beginning into a block of its own.
//!
//! Promises that both ends of a copy are held from the moment that it is needed until the caller
//! says that it is made, whatever becomes of the sequences meanwhile.

use super::error::{KvError, Result};
use super::{Core, Fence, KvCache};
use std::collections::VecDeque;

/// Copy the first `tokens` tokens, all layers, of block `from` to block `to`. For a state, all of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyJob {
    /// The group.
    pub group: u32,
    /// The block to read.
    pub from: u32,
    /// The block to write.
    pub to: u32,
    /// Tokens that count; 0 for a state.
    pub tokens: u32,
}

/// Jobs that were handed out together; to be given back to [`KvCache::copied`] once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the copies' blocks are held until `copied`"]
pub struct Copies(u64);

impl Copies {
    /// The batch as a number.
    pub const fn raw(&self) -> u64 {
        self.0
    }

    /// A batch of a number; one that is not outstanding is refused by [`KvCache::copied`].
    pub const fn from_raw(raw: u64) -> Copies {
        Copies(raw)
    }
}

#[derive(Debug)]
pub(super) struct Held {
    pub job: CopyJob,
    /// Blocks that are held for the source's sake, besides the target: the last first.
    pub from: Vec<u32>,
}

/// Jobs to hand out, and those handed out.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub waiting: Vec<Held>,
    pub out: VecDeque<(u64, Vec<Held>)>,
    last: u64,
}

impl Pending {
    /// A job whose target and `from` the caller holds: these references are the job's from now on.
    pub(super) fn push(&mut self, job: CopyJob, from: Vec<u32>) {
        self.waiting.push(Held { job, from });
    }

    /// Copies that are not made yet.
    pub(super) fn count(&self) -> u64 {
        (self.waiting.len() + self.out.iter().map(|(_, held)| held.len()).sum::<usize>()) as u64
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.waiting.iter().chain(self.out.iter().flat_map(|(_, held)| held))
    }
}

impl KvCache {
    /// Moves the copies that are needed to `out`, in the order in which they must be made: before
    /// the work that reads or writes their targets, and, for states, before the work that writes
    /// their sources (a state that was forked goes on in its block). `None`: there are none.
    pub fn take_copies(&self, out: &mut Vec<CopyJob>) -> Option<Copies> {
        self.take_first_copies(usize::MAX, out)
    }

    /// As [`KvCache::take_copies`], the first `most` of them.
    pub fn take_first_copies(&self, most: usize, out: &mut Vec<CopyJob>) -> Option<Copies> {
        self.with(|core| {
            let pending = &mut core.pending;
            let most = most.min(pending.waiting.len());
            if most == 0 {
                return None;
            }
            pending.last += 1;
            let later = pending.waiting.split_off(most);
            let batch = std::mem::replace(&mut pending.waiting, later);
            out.extend(batch.iter().map(|held| held.job));
            pending.out.push_back((pending.last, batch));
            Some(Copies(pending.last))
        })
    }

    /// The copies of a batch are queued, and are made when `after` has passed ([`super::NO_FENCE`]:
    /// they are made). Refused for a batch that is not outstanding.
    pub fn copied(&self, copies: Copies, after: Fence) -> Result<()> {
        self.with(|core| core.copied(copies, after))
    }
}

impl Core {
    fn copied(&mut self, copies: Copies, after: Fence) -> Result<()> {
        self.check_fence(after)?;
        let out = &mut self.pending.out;
        let at = out.iter().position(|(id, _)| *id == copies.0);
        let Some((_, batch)) = at.and_then(|at| out.remove(at)) else {
            return Err(KvError::OutOfRange("no such batch of copies is outstanding"));
        };
        for Held { job, from } in batch {
            let blocks = &mut self.groups[job.group as usize];
            blocks.release_target(job.to, after);
            from.into_iter().for_each(|block| blocks.release(block, after));
        }
        Ok(())
    }
}
