//! The accounts: where every byte of a pool is.
//!
//! Disjoint states whose sum is what the pool holds of the device, exact while no other
//! thread allocates or frees: **live** (rounded), **cached** (free slots anywhere), **pending**
//! (freed, fence not seen passed), **trapped** (clean, in granules that something holds),
//! **idle** (clean whole granules), **region** (pages of regions, such as a KV cache's blocks),
//! **other** (stock, stranded, imported, and what is freed while
//! an export of it is open). **Suspended** are live blocks whose memory is given up for a while:
//! they are no part of that sum. Cost: a walk over free pieces and
//! caches; for people and reports.

use super::Pool;
use super::core::Core;
use super::world;
use crate::base::sync::atomic::Ordering::Relaxed;
use crate::base::units::QUANTUM_SHIFT;
use crate::error::Result;
use crate::slab::class::{CLASS_END, slot_bytes};
use crate::slab::marks::SPECIAL;
use crate::vmem::Calls;

/// A pool's accounts. All in bytes unless named otherwise.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "see the room's page; counters are named for what they count")]
pub struct Stats {
    pub live_bytes: u64,
    pub requested_bytes: u64,
    pub cached_bytes: u64,
    pub pending_bytes: u64,
    pub trapped_bytes: u64,
    pub idle_bytes: u64,
    pub other_bytes: u64,
    pub region_bytes: u64,
    pub mapped_bytes: u64,
    pub peak_live_bytes: u64,
    pub peak_mapped_bytes: u64,
    pub limit_bytes: u64,
    pub soft_limit_bytes: u64,
    pub reserved_address_bytes: u64,
    pub live_blocks: u64,
    pub allocs: u64,
    pub frees: u64,
    pub largest_bytes: u64,
    pub gathers: u64,
    pub pages_moved: u64,
    pub fences_recorded: u64,
    pub out_of_memory: u64,
    pub stranded_pages: u64,
    pub stock_bytes: u64,
    pub suspended_bytes: u64,
    pub suspended_host_bytes: u64,
    pub calls: Calls,
}

impl Stats {
    /// The sum of the disjoint states; equals [`Stats::mapped_bytes`].
    pub fn sum(&self) -> u64 {
        self.live_bytes
            + self.cached_bytes
            + self.pending_bytes
            + self.trapped_bytes
            + self.idle_bytes
            + self.other_bytes
            + self.region_bytes
    }
}

/// What can be told without a walk over free pieces and without a look at fences.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Live blocks, rounded, in bytes.
    pub live_bytes: u64,
    /// Live blocks as requested, in bytes (see [`Stats::requested_bytes`]).
    pub requested_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes of all pages.
    pub mapped_bytes: u64,
    /// The peak of `mapped_bytes`.
    pub peak_mapped_bytes: u64,
    /// Bytes that nothing live occupies in granules that slabs and extents hold: trapped
    /// pieces, pending ones among them, and free slots.
    pub occupied_free_bytes: u64,
    /// Pages moved so far.
    pub pages_moved: u64,
}

/// Sums over the caches of all threads.
#[derive(Clone, Copy, Default, Debug)]
struct SlotSums {
    live_bytes: i64,
    requested: u64,
    allocs: u64,
    frees: u64,
    waiting: u64,
}

impl Core {
    fn slot_sums(&self) -> SlotSums {
        let mut sums = SlotSums {
            live_bytes: self.totals.slot_live_bytes,
            requested: self.totals.slot_requested,
            allocs: self.totals.slot_allocs,
            frees: self.totals.slot_frees,
            waiting: 0,
        };
        for cache in &self.caches {
            // SAFETY: a cache in the list lives while the core is locked; the fields read are
            // atomics, or changed under the core's lock only.
            let cache = unsafe { &*cache.0 };
            for class in 1..CLASS_END {
                let mag = &cache.mags[class];
                let (allocs, frees) = (mag.allocs.load(Relaxed), mag.frees.load(Relaxed));
                sums.allocs += allocs;
                sums.frees += frees;
                sums.live_bytes += allocs.wrapping_sub(frees) as i64 * slot_bytes(class) as i64;
            }
            sums.requested += cache.requested.load(Relaxed);
            sums.waiting += cache.waiting_bytes();
        }
        sums
    }

    /// The accounts now. Fences are looked at first.
    pub fn stats(&mut self) -> Stats {
        self.settle();
        let sums = self.slot_sums();
        let away = self.tagged.away();
        let slots_live = (sums.live_bytes.max(0) as u64).saturating_sub(away.slots);
        let counts = self.heap.counts();
        let account = self.heap.account(&self.lanes, self.sync);
        let granule = self.vmem.granule() as u64;
        let extents = self.totals.extent_live_bytes - away.extents;
        let held = self.shares.held_bytes() - self.held_away();
        let blocks = (counts.live_quanta - counts.asleep_quanta) << QUANTUM_SHIFT;
        let slabs = blocks.saturating_sub(extents + held);
        let slots_pending = self.pending_bytes + sums.waiting - self.pending_away();
        let live = slots_live + extents;
        self.totals.peak_live_bytes = self.totals.peak_live_bytes.max(live);
        let stock = self.vmem.stock() as u64 * granule;
        let stuck = self.vmem.stuck() as u64;
        let imported = self.vmem.imported_pages() as u64 * granule;
        let live_slots = sums.allocs.saturating_sub(sums.frees);
        Stats {
            live_bytes: live,
            requested_bytes: self.totals.extent_requested - away.requested
                + scaled(&sums, slots_live),
            cached_bytes: slabs.saturating_sub(slots_live + slots_pending),
            pending_bytes: slots_pending + (account.pending << QUANTUM_SHIFT),
            trapped_bytes: account.trapped << QUANTUM_SHIFT,
            idle_bytes: account.idle << QUANTUM_SHIFT,
            other_bytes: stock + stuck * granule + imported + held,
            region_bytes: self.vmem.region_pages() as u64 * granule,
            mapped_bytes: self.vmem.pages() as u64 * granule + imported,
            peak_live_bytes: self.totals.peak_live_bytes,
            peak_mapped_bytes: self.totals.peak_pages as u64 * granule,
            limit_bytes: self.settings.limit,
            soft_limit_bytes: self.settings.soft_limit.unwrap_or(0),
            reserved_address_bytes: self.vmem.reserved_bytes() as u64,
            live_blocks: live_slots + self.totals.extent_live,
            allocs: sums.allocs + self.totals.extent_allocs,
            frees: sums.frees + self.totals.extent_frees,
            largest_bytes: u64::from(account.largest) << QUANTUM_SHIFT,
            gathers: self.totals.gathers,
            pages_moved: self.totals.pages_moved,
            fences_recorded: self.lanes.fences_recorded,
            out_of_memory: self.totals.out_of_memory,
            stranded_pages: stuck + self.vmem.stuck_imports() as u64,
            stock_bytes: stock,
            suspended_bytes: away.extents + away.slots,
            suspended_host_bytes: away.host,
            calls: self.vmem.calls(),
        }
    }

    /// Samples the peak of live bytes.
    pub(super) fn note_peak_live(&mut self) {
        let all = self.slot_sums().live_bytes.max(0) as u64 + self.totals.extent_live_bytes;
        let away = self.tagged.away();
        let live = all.saturating_sub(away.extents + away.slots);
        self.totals.peak_live_bytes = self.totals.peak_live_bytes.max(live);
    }

    /// The figures that cost little: about a microsecond and no driver call. For readers that
    /// ask often and must not change what they watch.
    pub fn glance(&self) -> Glance {
        let sums = self.slot_sums();
        let away = self.tagged.away();
        let slots_live = (sums.live_bytes.max(0) as u64).saturating_sub(away.slots);
        let live = slots_live + self.totals.extent_live_bytes - away.extents;
        let granule = self.vmem.granule() as u64;
        let counts = self.heap.counts();
        let held = self.shares.held_bytes() - self.held_away();
        let occupied = (counts.backed_granules - counts.idle_granules) * granule;
        Glance {
            live_bytes: live,
            requested_bytes: self.totals.extent_requested - away.requested
                + scaled(&sums, slots_live),
            live_blocks: sums.allocs.saturating_sub(sums.frees) + self.totals.extent_live,
            mapped_bytes: (self.vmem.pages() + self.vmem.imported_pages()) as u64 * granule,
            peak_mapped_bytes: self.totals.peak_pages as u64 * granule,
            occupied_free_bytes: occupied.saturating_sub(live + held),
            pages_moved: self.totals.pages_moved,
        }
    }

    /// Free bytes in granules that blocks hold, now. Cost: none.
    pub fn trapped_now(&self) -> u64 {
        self.heap.trapped_quanta() << QUANTUM_SHIFT
    }

    /// Live bytes (rounded) by tag: index 1 to 127. Walks all marks.
    pub fn tag_bytes(&self) -> Vec<(u64, u64)> {
        let mut tags = vec![(0u64, 0u64); usize::from(SPECIAL)];
        self.each_block(|_, bytes, _, tag| {
            let entry = &mut tags[usize::from(tag & !SPECIAL)];
            entry.0 += bytes as u64;
            entry.1 += 1;
        });
        tags
    }

    /// Calls `f` with every live block: address, rounded bytes, requested bytes where known
    /// (extents), tag.
    pub fn each_block(&self, mut f: impl FnMut(usize, usize, Option<usize>, u8)) {
        for slab in self.slabs.iter() {
            let class = usize::from(slab.class);
            for slot in 0..slab.slots {
                let tag = self.marks.mark(slab.marks + slot).load(Relaxed);
                if tag != 0 {
                    let bytes = slot_bytes(class);
                    f(self.address(slab.off) + slot as usize * bytes, bytes, None, tag);
                }
            }
        }
        self.heap.each_live(|node, off, len| {
            if self.slabs.at(off).is_none() && !self.shares.is_held(self.address(off)) {
                let extent = super::core::Extent::from_word(self.heap.word(node));
                let bytes = (len as usize) << QUANTUM_SHIFT;
                f(self.address(off), bytes, Some(extent.bytes), extent.tag);
            }
        });
    }
}

/// Requested bytes of live slots: requests are counted at allocation only, so the share of
/// live in all that was handed out is assumed for them.
fn scaled(sums: &SlotSums, slots_live: u64) -> u64 {
    if sums.allocs == 0 {
        return 0;
    }
    let live_slots = sums.allocs.saturating_sub(sums.frees);
    let mean = sums.requested as f64 / sums.allocs as f64;
    ((mean * live_slots as f64) as u64).min(slots_live)
}

impl Pool {
    /// The accounts now; exact while no other thread allocates or frees.
    pub fn stats(&self) -> Result<Stats> {
        self.with_core(Core::stats)
    }

    /// The peaks of live and mapped bytes begin anew at what is there now.
    pub fn reset_peaks(&self) -> Result<()> {
        self.with_core(|core| {
            core.totals.peak_pages = core.vmem.pages();
            core.totals.peak_live_bytes = 0;
            core.note_peak_live();
        })
    }

    /// Live bytes and blocks by tag.
    pub fn tag_bytes(&self) -> Result<Vec<(u64, u64)>> {
        world::check_world()?;
        self.with_core(|core| core.tag_bytes())
    }
}
