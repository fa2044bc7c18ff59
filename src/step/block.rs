//! The plan block: the block of a pool that plans share, taken when needed, given up when asked.
//!
//! Owns the block. Promises that it is taken clean, so that every lane may use it at once, and
//! given back behind all work of the device; that while it is there no free of its addresses by
//! the pool's own functions succeeds; that it has no tag, so that no tag's suspension takes it
//! away. Cost: an allocation and a free of the pool's.

use crate::error::{Result, Status};
use crate::pool::Pool;
use crate::pool::hot::SYNC_STREAM;
use crate::pool::registry;

/// The thread's blocks have no tag while it lives.
struct Untagged(u32);

impl Untagged {
    fn begin() -> Result<Untagged> {
        registry::set_tag(1).map(Untagged)
    }
}

impl Drop for Untagged {
    fn drop(&mut self) {
        // It fails in a world that has ended, where no tag matters.
        let _ended = registry::set_tag(self.0);
    }
}

/// The block that a binding's plans hand out addresses in.
#[derive(Debug, Default)]
pub(super) struct PlanBlock {
    /// Its first address; 0: given up, or not needed yet.
    pub(super) address: usize,
    pub(super) bytes: u64,
    pub(super) alignment: u64,
}

impl PlanBlock {
    /// Whether a block must be taken before a step.
    pub(super) fn missing(&self) -> bool {
        self.address == 0 && self.bytes > 0
    }

    /// Takes a block of the plan block's length. May call the pool's owner: no lock is held.
    pub(super) fn take(pool: &Pool, bytes: u64, alignment: u64) -> Result<usize> {
        let align = alignment.max(super::record::ALIGNMENT) as usize;
        let tag = Untagged::begin()?;
        let address = pool.alloc_aligned(bytes as usize, align, SYNC_STREAM)?;
        drop(tag);
        pool.set_plan_block(address, true)?;
        Ok(address)
    }

    /// Gives the block back, behind all work queued so far. A pool that has ended took it.
    pub(super) fn give(&mut self, pool: &Pool) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        match pool.set_plan_block(self.address, false) {
            Err(error) if error.status() == Status::InvalidPool => {}
            other => {
                other?;
                pool.dealloc(self.address, SYNC_STREAM)?;
            }
        }
        self.address = 0;
        Ok(())
    }
}
