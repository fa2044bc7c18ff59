//! Address space and pages: reservations, the stock, transactional mapping.
//!
//! Owns every reservation and page of one pool. Granules are numbered across all
//! reservations in the order they were made; a page is one granule long. A page is mapped at
//! one granule, or in the **stock** (created, mapped nowhere), or **stranded** (mapped where it
//! should not be, because undoing a failed step failed too), or **unreleased** (the driver
//! refused to take it back). The last two are retried by [`Vmem::recover`]. Granules may hold
//! **imported** pages too, other processes' memory ([`share`]): those are never in the stock.
//! **Regions** ([`regions`]) are reservations apart from these, whose owners say where pages go.
//!
//! Promises: what is mapped is open to the pool's present peers, save other devices' pages, which
//! are open to the pool's device and their own; every operation that takes
//! several driver calls either succeeds or leaves all mappings as they were, stranded granules
//! named; no page is ever lost.
//!
//! Must not know who uses a granule. Cost: the driver's calls and little else.

pub mod regions;
mod share;
#[cfg(test)]
mod tests;

use crate::driver::{Code, Driver, DriverError, DriverResult, PageHandle, StreamHandle};
use regions::{Region, RegionId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// One reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its first address.
    pub base: usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// The number of its first granule.
    pub first: u32,
}

/// What driver calls the room has made, by kind, and what they moved.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each counts successful calls of that name, a run's one by one")]
pub struct Calls {
    pub created: u64,
    pub released: u64,
    pub maps: u64,
    pub unmaps: u64,
    pub set_access: u64,
    pub reserves: u64,
}

impl Calls {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.created + self.released + self.maps + self.unmaps + self.set_access + self.reserves
    }
}

/// A map that failed: why, and which granules now hold stranded pages.
#[derive(Debug)]
pub struct MapFailure {
    /// The driver's error.
    pub error: DriverError,
    /// Granules left mapped, as (first, length); empty when the undo worked.
    pub stranded: Option<(u32, u32)>,
}

/// Address space and pages of one pool.
pub struct Vmem {
    driver: Arc<dyn Driver>,
    granule: usize,
    spaces: Vec<Space>,
    /// The page mapped at each granule.
    mapped: Vec<Option<PageHandle>>,
    /// How often each granule is pinned. A granule may hold thousands of blocks, and each may
    /// be pinned again and again.
    pins: Vec<u32>,
    stock: Vec<PageHandle>,
    unreleased: Vec<PageHandle>,
    stranded: Vec<u32>,
    calls: Calls,
    mapped_pages: usize,
    pinned: u32,
    /// The other devices that every mapped granule is open to.
    peers: Vec<u32>,
    /// Whether a change of peers failed and could not be undone everywhere.
    access_unsure: bool,
    /// Granules that hold imported pages, with the device whose they are if it is another one.
    imported: HashMap<u32, Option<u32>>,
    /// Imported pages that the driver refused to let go.
    unreleased_imports: Vec<PageHandle>,
    regions: BTreeMap<RegionId, Region>,
    next_region: RegionId,
    /// Pages mapped in regions, stranded ones left out.
    region_pages: usize,
    /// What pages of regions are overwritten with before they are given back.
    overwrite: Option<u8>,
    /// The stream that does it.
    wiper: Option<StreamHandle>,
}

impl Vmem {
    /// No address space yet.
    pub fn new(driver: Arc<dyn Driver>) -> Vmem {
        let granule = driver.device().granularity;
        Vmem {
            driver,
            granule,
            spaces: Vec::new(),
            mapped: Vec::new(),
            pins: Vec::new(),
            stock: Vec::new(),
            unreleased: Vec::new(),
            stranded: Vec::new(),
            calls: Calls::default(),
            mapped_pages: 0,
            pinned: 0,
            peers: Vec::new(),
            access_unsure: false,
            imported: HashMap::new(),
            unreleased_imports: Vec::new(),
            regions: BTreeMap::new(),
            next_region: 0,
            region_pages: 0,
            overwrite: None,
            wiper: None,
        }
    }

    /// Bytes a granule.
    pub fn granule(&self) -> usize {
        self.granule
    }

    /// Driver calls made so far.
    pub fn calls(&self) -> Calls {
        self.calls
    }

    /// All reservations.
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    /// Pages of this pool in any state; imported ones are not its own.
    pub fn pages(&self) -> usize {
        self.mapped_pages + self.stock.len() + self.unreleased.len()
    }

    /// Pages that are mapped, stranded ones included.
    pub fn mapped_pages(&self) -> usize {
        self.mapped_pages
    }

    /// Pages created and mapped nowhere.
    pub fn stock(&self) -> usize {
        self.stock.len()
    }

    /// Own pages stranded or unreleased.
    pub fn stuck(&self) -> usize {
        let own = self.stranded.iter().filter(|g| !self.imported.contains_key(g)).count();
        own + self.unreleased.len() + self.stranded_in_regions()
    }

    /// Imported pages stranded or unreleased.
    pub fn stuck_imports(&self) -> usize {
        let stranded = self.stranded.iter().filter(|g| self.imported.contains_key(g)).count();
        stranded + self.unreleased_imports.len()
    }

    /// Whether [`Vmem::recover`] has something to retry.
    pub fn troubled(&self) -> bool {
        let stuck = self.stuck() + self.stuck_imports() > 0;
        stuck || self.access_unsure || self.any_region_given_up()
    }

    /// Reserves at least `least` and at most `wanted` bytes (multiples of the granule),
    /// halving on refusal, `least` last. Answers the new space.
    pub fn add_space(&mut self, wanted: usize, least: usize) -> DriverResult<Space> {
        debug_assert!(wanted >= least && least >= self.granule);
        let mut bytes = wanted / self.granule * self.granule;
        loop {
            match self.driver.reserve(bytes) {
                Ok(base) => {
                    let first = self.mapped.len() as u32;
                    let space = Space { base, bytes, first };
                    let granules = self.mapped.len() + bytes / self.granule;
                    self.mapped.resize(granules, None);
                    self.pins.resize(granules, 0);
                    self.spaces.push(space);
                    self.calls.reserves += 1;
                    return Ok(space);
                }
                Err(e) if e.code == Code::NoAddressSpace && bytes > least => {
                    tracing::warn!(bytes, "address space refused; trying half");
                    bytes = (bytes / 2).next_multiple_of(self.granule).max(least);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// One past the last granule of the space that a granule lies in.
    pub fn space_end(&self, granule: u32) -> u32 {
        let space = self.space_of(granule);
        space.first + (space.bytes / self.granule) as u32
    }

    /// Whether a page is mapped at a granule, stranded or not.
    pub fn is_mapped(&self, granule: u32) -> bool {
        self.mapped[granule as usize].is_some()
    }

    /// Whether a granule's page is mapped where it should not be.
    pub fn is_stranded(&self, granule: u32) -> bool {
        self.stranded.contains(&granule)
    }

    /// Says of a mapped granule that it should not be: [`Vmem::recover`] unmaps it.
    pub fn strand(&mut self, granule: u32) {
        debug_assert!(self.is_mapped(granule) && !self.is_stranded(granule));
        self.stranded.push(granule);
    }

    /// Address space reserved, regions included, in bytes.
    pub fn reserved_bytes(&self) -> usize {
        self.spaces.iter().map(|s| s.bytes).sum::<usize>() + self.region_bytes()
    }

    /// The address of a granule.
    pub fn address(&self, granule: u32) -> usize {
        let space = self.space_of(granule);
        space.base + (granule - space.first) as usize * self.granule
    }

    fn space_of(&self, granule: u32) -> &Space {
        let after = self.spaces.partition_point(|s| s.first <= granule);
        &self.spaces[after - 1]
    }

    /// The space that holds an address, if one does.
    pub fn find(&self, address: usize) -> Option<&Space> {
        self.spaces.iter().find(|s| address.wrapping_sub(s.base) < s.bytes)
    }

    /// Whether a granule holds a pinned block.
    pub fn is_pinned(&self, granule: u32) -> bool {
        self.pins[granule as usize] > 0
    }

    /// Whether any granule is pinned.
    pub fn any_pinned(&self) -> bool {
        self.pinned > 0
    }

    /// Pins (or unpins) the granules `[first, end)` once more (once less).
    pub fn pin(&mut self, first: u32, end: u32, pin: bool) {
        for g in first..end {
            let pins = &mut self.pins[g as usize];
            if pin {
                self.pinned += u32::from(*pins == 0);
                *pins += 1;
            } else {
                debug_assert!(*pins > 0, "unpinned more often than pinned");
                *pins = pins.saturating_sub(1);
                self.pinned -= u32::from(*pins == 0);
            }
        }
    }

    /// Creates pages until the stock holds `count`. On failure those made so far stay.
    pub fn fill_stock(&mut self, count: usize) -> DriverResult<()> {
        while self.stock.len() < count {
            let page = self.driver.create(self.granule)?;
            self.calls.created += 1;
            self.stock.push(page);
        }
        Ok(())
    }

    /// Maps `len` pages of the stock at unbacked granules of one space, and opens access to
    /// all of them in one call. All or nothing, save what [`MapFailure::stranded`] names.
    pub fn map(&mut self, first: u32, len: u32) -> Result<(), MapFailure> {
        debug_assert!(self.stock.len() >= len as usize, "the caller fills the stock first");
        debug_assert!(!self.mapped[first as usize..][..len as usize].iter().any(Option::is_some));
        let from = self.stock.len() - len as usize;
        let pages = &self.stock[from..];
        let mapped = self.driver.map_run(self.address(first), self.granule, pages);
        let done = mapped.as_ref().map_or_else(|&(done, _)| done as u32, |()| len);
        debug_assert!(done <= len, "a run ends with its pages");
        for (g, page) in (first..).zip(self.stock.drain(from..from + done as usize)) {
            self.mapped[g as usize] = Some(page);
        }
        self.mapped_pages += done as usize;
        self.calls.maps += u64::from(done);
        if let Err((_, error)) = mapped {
            return Err(self.undo(first, done, error));
        }
        match self.driver.set_access(self.address(first), len as usize * self.granule, &self.peers)
        {
            Ok(()) => {
                self.calls.set_access += 1;
                Ok(())
            }
            Err(error) => Err(self.undo(first, len, error)),
        }
    }

    fn undo(&mut self, first: u32, len: u32, error: DriverError) -> MapFailure {
        if len == 0 {
            return MapFailure { error, stranded: None };
        }
        match self.unmap(first, len) {
            Ok(()) => MapFailure { error, stranded: None },
            Err(second) => {
                tracing::error!(%error, %second, first, len, "undo failed; pages stranded");
                self.stranded.extend(first..first + len);
                MapFailure { error, stranded: Some((first, len)) }
            }
        }
    }

    /// Unmaps `len` adjacent granules of one space in one call; their pages go to the stock.
    /// The caller knows that nothing on the device touches them any more.
    pub fn unmap(&mut self, first: u32, len: u32) -> DriverResult<()> {
        self.driver.unmap(self.address(first), len as usize * self.granule)?;
        self.calls.unmaps += 1;
        for g in first..first + len {
            let page = self.mapped[g as usize].take();
            let page = page.expect("the caller unmaps mapped granules");
            if self.imported.remove(&g).is_some() {
                self.let_go(page);
                continue;
            }
            self.stock.push(page);
            self.mapped_pages -= 1;
        }
        Ok(())
    }

    /// Gives up to `count` pages of the stock back to the device. Answers how many; a page
    /// that the driver does not take back is kept as unreleased, and ends the round.
    pub fn release(&mut self, count: usize) -> DriverResult<usize> {
        for done in 0..count {
            let Some(page) = self.stock.pop() else { return Ok(done) };
            if let Err(error) = self.driver.release(page) {
                self.unreleased.push(page);
                return Err(error);
            }
            self.calls.released += 1;
        }
        Ok(count)
    }

    /// Gives the last `count` pages of the stock back to the device. Answers how many it took, and
    /// why no more: the others are unreleased and serve nobody until [`Vmem::recover`] is through.
    pub fn give_up(&mut self, count: usize) -> (usize, Option<DriverError>) {
        let count = count.min(self.stock.len());
        for done in 0..count {
            let Err(error) = self.release(1) else { continue };
            let left = self.stock.len() - (count - done - 1);
            self.unreleased.extend(self.stock.drain(left..));
            return (done, Some(error));
        }
        (count, None)
    }

    /// Tries again what failed before; `unmap`: unmaps too. Answers the granules that are free of
    /// their stranded pages now; stops at the first call that fails.
    pub fn recover(&mut self, unmap: bool) -> Vec<u32> {
        let mut freed = Vec::new();
        while let Some(page) = self.unreleased.pop() {
            if self.driver.release(page).is_err() {
                self.unreleased.push(page);
                break;
            }
            self.calls.released += 1;
        }
        while let Some(&granule) = self.stranded.last().filter(|_| unmap) {
            if self.unmap(granule, 1).is_err() {
                break;
            }
            self.stranded.pop();
            freed.push(granule);
        }
        if unmap {
            self.recover_regions();
        }
        self.recover_shared();
        freed
    }

    /// Gives everything back to the driver: mappings, pages, address space. For the pool's
    /// end; may be repeated after a failure, and then goes on where it stopped.
    pub fn close(&mut self) -> DriverResult<()> {
        let mut g = 0;
        while g < self.mapped.len() {
            if self.mapped[g].is_none() {
                g += 1;
                continue;
            }
            let space = *self.space_of(g as u32);
            let stop = space.first as usize + space.bytes / self.granule;
            let mut end = g;
            while end < stop && self.mapped[end].is_some() {
                end += 1;
            }
            self.unmap(g as u32, (end - g) as u32)?;
            g = end;
        }
        self.close_regions()?;
        self.stranded.clear();
        self.access_unsure = false;
        self.stock.append(&mut self.unreleased);
        self.stock.append(&mut self.unreleased_imports);
        self.release(usize::MAX)?;
        while let Some(space) = self.spaces.last() {
            self.driver.unreserve(space.base, space.bytes)?;
            self.spaces.pop();
        }
        self.mapped.clear();
        self.pins.clear();
        Ok(())
    }
}

impl std::fmt::Debug for Vmem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vmem")
            .field("spaces", &self.spaces)
            .field("mapped_pages", &self.mapped_pages)
            .field("stock", &self.stock.len())
            .field("stuck", &self.stuck())
            .finish_non_exhaustive()
    }
}
