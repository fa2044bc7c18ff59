//! Blocks get memory and give it back.
//!
//! Owns which pages stand behind which group. Promises that memory is there before a block can be
//! given out and goes only when the block is nobody's, its fences passed; that a refused growth
//! has changed nothing; that pages which could not be given back are remembered and tried again.

use super::places::{difference, pages, union};
use super::{Backed, Inner, KvMemory, NO_GROUP, Result};
use crate::error::Status;
use crate::kv::Bounds;
use crate::pool::regions::Row;
use crate::pool::{keeper, world};

/// A group's pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Backing {
    /// Blocks that have memory.
    blocks: u32,
    /// The rows that are mapped: those of the blocks, and what could not be given back.
    mapped: Vec<Row>,
}

impl KvMemory {
    /// Makes the first `blocks` blocks of a group those that there are. A group that grows has its
    /// memory when this returns. One that shrinks gives out nothing above from now on, gives up
    /// prefixes there that nobody uses, and gives memory back from its end: at once as far as the
    /// blocks are nobody's and their fences have passed, the rest in [`KvMemory::poll`] as
    /// sequences end. Answers how far that is.
    ///
    /// # Errors
    /// A number of blocks that the group cannot have. Growing: no memory below the pool's limit, or
    /// a driver call's failure; nothing has changed then. Shrinking: a driver call's failure;
    /// blocks above the new end are closed all the same, and their memory is given
    /// back later.
    pub fn resize(&self, group: u32, blocks: u32) -> Result<Backed> {
        self.0.resize(group, blocks)
    }

    /// A group's memory now.
    pub fn backed(&self, group: u32) -> Result<Backed> {
        world::check_world()?;
        let backing = self.0.backing.lock()?;
        self.0.answer(group, backing.get(group as usize).ok_or(NO_GROUP)?)
    }
}

impl Inner {
    fn granule(&self) -> u64 {
        self.region.granule() as u64
    }

    fn answer(&self, group: u32, backing: &Backing) -> Result<Backed> {
        let open = self.cache.bounds(group)?.open;
        let bytes = pages(&backing.mapped) * self.granule();
        Ok(Backed { open, backed: backing.blocks, bytes })
    }

    /// Memory for the first blocks, before anybody uses the cache.
    pub(super) fn begin(&self, initial: &[u32]) -> Result<()> {
        let mut backing = self.backing.lock()?;
        let mut groups = (0u32..).zip(initial).zip(backing.iter_mut());
        groups.try_for_each(|((group, &blocks), backing)| self.grow(group, blocks, backing))
    }

    fn resize(&self, group: u32, blocks: u32) -> Result<Backed> {
        world::check_world()?;
        let mut all = self.backing.lock()?;
        // What has passed since may be given back too.
        let asked = self.pass();
        let backing = all.get_mut(group as usize).ok_or(NO_GROUP)?;
        let grows = blocks > self.cache.bounds(group)?.open;
        if blocks > backing.blocks && self.cache.may_have(group, blocks) {
            self.grow(group, blocks, backing)?;
        }
        self.cache.resize_behind(group, blocks)?;
        let released = self.release(group, backing);
        let answer = self.answer(group, backing);
        if self.drains(group, backing) {
            keeper::poke(self.pool.id());
        }
        drop(all);
        if grows {
            // It has grown: what failed besides, the next poll tries again, and tells.
            for error in [released.err(), asked.err()].into_iter().flatten() {
                tracing::debug!(%error, "a group has grown, and something else failed meanwhile");
            }
            return answer;
        }
        released?;
        asked?;
        answer
    }

    /// Puts memory behind the first `blocks` blocks.
    fn grow(&self, group: u32, blocks: u32, backing: &mut Backing) -> Result<()> {
        let rows = self.places[group as usize].rows(blocks, self.granule());
        let lack = difference(&rows, &backing.mapped);
        self.region.map(&lack)?;
        backing.mapped = union(&backing.mapped, &lack);
        backing.blocks = blocks;
        Ok(())
    }

    /// Gives back what stands behind blocks that are nobody's any more.
    fn release(&self, group: u32, backing: &mut Backing) -> Result<()> {
        let Bounds { needed, .. } = self.cache.bounds(group)?;
        let rows = self.places[group as usize].rows(needed, self.granule());
        let mut excess = difference(&backing.mapped, &rows);
        backing.blocks = backing.blocks.min(needed);
        if excess.is_empty() {
            return Ok(());
        }
        // From the high end.
        excess.reverse();
        let (done, unmapped) = self.region.unmap(&excess);
        let mut gone = excess[..done].to_vec();
        gone.reverse();
        backing.mapped = difference(&backing.mapped, &gone);
        match unmapped {
            // A capture, or work where pages must not go meanwhile: they wait as fences do.
            Err(error) if error.status() == Status::Busy => Ok(()),
            unmapped => Ok(unmapped?),
        }
    }

    /// As `release`, for all groups; nothing while another call grows or shrinks one.
    pub(super) fn release_all(&self) -> Result<()> {
        let Some(mut all) = self.backing.try_lock() else { return Ok(()) };
        (0u32..).zip(all.iter_mut()).try_for_each(|(group, backing)| self.release(group, backing))
    }

    fn drains(&self, group: u32, backing: &Backing) -> bool {
        self.cache.bounds(group).is_ok_and(|bounds| {
            let rows = self.places[group as usize].rows(bounds.open, self.granule());
            backing.blocks > bounds.open || pages(&backing.mapped) > pages(&rows)
        })
    }

    /// Whether some group has more memory than it is to have, or may have: it is being changed.
    pub(super) fn is_draining(&self) -> bool {
        let Some(all) = self.backing.try_lock() else { return true };
        (0u32..).zip(all.iter()).any(|(group, backing)| self.drains(group, backing))
    }
}
