//! What happens to contiguous sequences' memory between calls: by the keeper, or by a poll.
//!
//! Promises that memory is given back only behind fences that have passed, and that pages ahead of
//! need are mapped only where the pool has room. Waits for no other call: what one holds is looked
//! at again later.

use super::super::error::Result;
use super::super::locked;
use super::super::places::{difference, pages, union};
use super::{Inner, Slot, State};
use crate::kv::Fence;
use crate::pool::keeper::Tended;
use crate::pool::world;
use std::time::Duration;

impl Inner {
    pub(super) fn poll(&self) -> Result<Fence> {
        world::check_world()?;
        let (fence, asked) = locked(&self.fences).poll();
        let given = self.give_back();
        let ahead = self.map_ahead();
        asked?;
        given?;
        ahead?;
        Ok(fence)
    }

    /// What waited for fences that have passed: ended sequences' ranges are free, and pages behind
    /// no token go.
    fn give_back(&self) -> Result<()> {
        let Some(mut slots) = self.slots.try_lock() else { return Ok(()) };
        let fences = locked(&self.fences);
        let mut result = Ok(());
        for at in 0..slots.all.len() {
            let slot = &mut slots.all[at];
            if !fences.has_passed(slot.after) {
                continue;
            }
            if slot.state == State::Leaving {
                // What it has beyond its tokens is what it keeps now.
                (slot.state, slot.excess) = (State::Free, false);
                slots.free.push(at);
            } else if slot.state == State::Open && slot.excess {
                let keep = self.rows(self.ahead_of(slot.tokens));
                match slot.unmap(&keep) {
                    Ok(_) => slot.excess = !difference(&slot.mapped, &keep).is_empty(),
                    Err(error) => result = Err(error),
                }
            }
        }
        drop(fences);
        result.and(slots.shed(self.config.keep_pages).map(|_| ()))
    }

    /// Maps pages for tokens to come, as far as the pool has room.
    fn map_ahead(&self) -> Result<()> {
        if self.config.ahead_tokens == 0 {
            return Ok(());
        }
        let mut at = 0;
        loop {
            // The lock is let go between sequences: `ensure` is what counts.
            let Some(mut slots) = self.slots.try_lock() else { return Ok(()) };
            let Some(slot) = slots.all.get_mut(at) else { return Ok(()) };
            at += 1;
            if slot.state != State::Open || slot.tokens == 0 {
                continue;
            }
            let lack = difference(&self.rows(self.ahead_of(slot.tokens)), &slot.mapped);
            if lack.is_empty() || !slot.region.map_if_room(&lack)? {
                continue;
            }
            slot.mapped = union(&slot.mapped, &lack);
            slots.mapped_ahead += pages(&lack);
        }
    }

    /// Whether something waits for a fence or for the driver.
    fn is_waiting(&self) -> bool {
        let Some(slots) = self.slots.try_lock() else { return true };
        let waits = |slot: &Slot| slot.state == State::Leaving || slot.excess;
        slots.all.iter().any(waits) || slots.kept() > self.config.keep_pages
    }
}

impl Tended for Inner {
    fn tend(&self) -> Option<Duration> {
        if let Err(error) = self.poll() {
            tracing::debug!(%error, "contiguous sequences are looked at again later");
        }
        self.is_waiting().then_some(Duration::from_millis(5))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ContiguousConfig, ContiguousKv};
    use super::*;
    use crate::config::Config;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::kv::{Content, Element, Geometry, Order};
    use crate::pool::{Pool, Settings};
    use std::sync::Arc;

    /// An end behind tokens that were taken back leaves nothing to look after once it has passed.
    #[test]
    fn a_sequence_that_has_left_is_waited_for_no_more() {
        let bytes = 64 << 20;
        let driver = HostDriver::new(HostOptions { total_bytes: bytes, ..HostOptions::default() });
        let mut settings = Settings::resolve(&Config::default(), bytes as u64, true);
        settings.keeper = false;
        let pool = Pool::with_driver(Arc::new(driver.expect("a host device")), settings);
        let pool = pool.expect("a pool");
        let geometry = Geometry {
            layers: 32,
            heads: 8,
            key_size: 128,
            value_size: 128,
            block_tokens: 16,
            element: Element::Bf16,
            content: Content::Attention { window: 0 },
            order: Order::BlockOuter,
        };
        let config = ContiguousConfig {
            groups: vec![geometry],
            max_sequences: 2,
            max_tokens: 4096,
            ahead_tokens: 0,
            keep_pages: 8,
        };
        let kv = ContiguousKv::new(&pool, config).expect("it makes sense");
        assert_eq!(kv.0.tend(), None);
        let seq = kv.open().expect("room");
        kv.ensure(&[(seq, 96)]).1.expect("room");
        let fence = kv.fence_at(1).expect("alive");
        kv.truncate(seq, 8, fence).expect("it has them");
        kv.free(&[seq], fence).expect("open");
        assert!(kv.0.tend().is_some(), "the fence has not passed");
        kv.reach(1).expect("alive");
        assert_eq!(kv.0.tend(), None);
        assert_eq!(kv.stats().leaving, 0);
    }
}
