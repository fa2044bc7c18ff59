//! Plan blocks: blocks whose owners hand out addresses inside them, and give them up when idle.
//!
//! Owns the mark that keeps such a block from being freed by an address of its own, and each
//! pool's list of owners to ask when memory is short. Promises that owners are asked with no lock
//! of the pool's held, one at a time, and only after all that costs nobody anything was tried.
//! Must not know what a plan block is for. Cost: nothing until memory is short.

use super::core::Core;
use super::{Pool, Shared, registry};
use crate::error::{Error, Result, Status};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Who owns a plan block.
pub trait Evictable: Send + Sync {
    /// Frees the plan block if it is in no use, without waiting for a lock: the caller may
    /// hold the owner's own. Answers whether something was freed.
    fn evict(&self) -> bool;
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Asks the owners, oldest first, until one gives something up.
    pub(super) fn evict_plan_block(&self) -> bool {
        let owners: Vec<Arc<dyn Evictable>> =
            locked(&self.plan_blocks).iter().filter_map(Weak::upgrade).collect();
        owners.iter().any(|owner| owner.evict())
    }

    /// A pool begins: it has no plan blocks.
    pub(super) fn forget_plan_blocks(&self) {
        locked(&self.plan_blocks).clear();
    }
}

impl Core {
    /// Fails for a block that is a plan block.
    pub(super) fn check_no_plan_block(&self, address: usize) -> Result<()> {
        if self.side.is_empty() || !self.side.get(&address).is_some_and(|side| side.plan_block) {
            return Ok(());
        }
        Err(Error::new(
            Status::InvalidArgument,
            format!(
                "address {address:#x} belongs to a plan block: give it back to its step, and \
                 end the plan block by forebay_plan_unbind"
            ),
        ))
    }
}

impl Pool {
    /// Marks a live block as a plan block, or as one no more.
    ///
    /// # Errors
    /// As of a free: the address is no live block of the pool's.
    pub fn set_plan_block(&self, address: usize, plan_block: bool) -> Result<()> {
        self.with_core(|core| {
            core.mark_special(address)?;
            core.side.entry(address).or_default().plan_block = plan_block;
            Ok(())
        })?
    }

    /// Enters an owner into the list of those that are asked when memory is short. One that is
    /// gone is forgotten.
    pub fn add_evictable(&self, owner: Weak<dyn Evictable>) -> Result<()> {
        let shared = registry::pool(self.id)?;
        let mut owners = locked(&shared.plan_blocks);
        owners.retain(|known| known.strong_count() > 0);
        owners.push(owner);
        Ok(())
    }
}
