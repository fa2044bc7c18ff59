//! Which addresses are reserved, and what is mapped where.
//!
//! Owns the reservations, each with an entry for every granule of it. A mapping's first granule
//! has its page, its length and its rights; the granules after it say that they belong to the
//! one before. It must not touch the addresses, and does not know the pages.
//! Cost: a step of an ordered map with one entry a reservation, and an array's element for each
//! granule that is looked at. The arrays take 16 bytes a granule, where they are used.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::PageHandle;

/// Of a granule that belongs to the mapping before it.
const INNER: u64 = u64::MAX;
/// Of `what`: the mapping's length in granules, the number of its list of peers, whether it may be
/// used, and whether it is locked in memory.
const LENGTH: u64 = u32::MAX as u64;
const PEERS_SHIFT: u32 = 32;
const OPEN: u64 = 1 << 62;
const LOCKED: u64 = 1 << 63;
const PEERS: u64 = !(LENGTH | OPEN | LOCKED);

/// Usable addresses start at the map's key; the kernel's own range is a granule longer,
/// so that it holds an aligned range wherever the kernel put it. The slack also keeps two
/// reservations from touching.
pub(super) struct Reservation {
    pub(super) bytes: usize,
    pub(super) raw_address: usize,
    pub(super) raw_bytes: usize,
    /// The handle of the page mapped at each granule; 0 where nothing is, or [`INNER`].
    pages: Vec<u64>,
    what: Vec<u64>,
    mappings: usize,
}

/// The arrays of a reservation that is to be made.
pub(super) struct Map {
    pages: Vec<u64>,
    what: Vec<u64>,
}

/// Zeros, which at this length come from the kernel and take memory where they are written.
fn zeroed(count: usize) -> Option<Vec<u64>> {
    // Asked for first: `vec!` ends the process where there is no memory, `resize` writes it all.
    Vec::<u64>::new().try_reserve_exact(count).ok()?;
    Some(vec![0; count])
}

/// One mapping.
pub(super) struct Mapping {
    pub(super) bytes: usize,
    pub(super) page: PageHandle,
    pub(super) locked: bool,
}

/// All reservations of a device.
pub(super) struct Space {
    granularity: usize,
    reservations: BTreeMap<usize, Reservation>,
    mappings: usize,
    reserved_bytes: usize,
    /// The lists of other devices with access that were ever given; the first is empty.
    peers: Vec<Arc<[u32]>>,
}

impl Space {
    pub(super) fn new(granularity: usize) -> Space {
        let (reservations, peers) = (BTreeMap::new(), vec![Arc::default()]);
        Space { granularity, reservations, mappings: 0, reserved_bytes: 0, peers }
    }

    /// How many mappings there are.
    pub(super) fn mappings(&self) -> usize {
        self.mappings
    }

    /// How many reservations there are, and their bytes.
    pub(super) fn reserved(&self) -> (usize, usize) {
        (self.reservations.len(), self.reserved_bytes)
    }

    /// The kernel's range of each reservation.
    pub(super) fn raw_ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.reservations.values().map(|found| (found.raw_address, found.raw_bytes))
    }

    /// Whether one page of these bytes can be mapped: fewer than 2^32 granules.
    pub(super) fn can_map(&self, bytes: usize) -> bool {
        (bytes / self.granularity) as u64 <= LENGTH
    }

    /// The arrays for a reservation of whole granules. `None`: the machine has no memory for them.
    pub(super) fn map_of(&self, bytes: usize) -> Option<Map> {
        let count = bytes / self.granularity;
        Some(Map { pages: zeroed(count)?, what: zeroed(count)? })
    }

    /// Notes a reservation of whole granules.
    pub(super) fn add(&mut self, address: usize, bytes: usize, raw: (usize, usize), map: Map) {
        debug_assert_eq!(map.pages.len(), bytes / self.granularity, "made for it");
        let (raw_address, raw_bytes) = raw;
        let Map { pages, what } = map;
        let new = Reservation { bytes, raw_address, raw_bytes, pages, what, mappings: 0 };
        self.reservations.insert(address, new);
        self.reserved_bytes += bytes;
    }

    /// A reservation of exactly these addresses in which nothing is mapped.
    pub(super) fn unused(&self, address: usize, bytes: usize) -> Option<&Reservation> {
        let found = self.reservations.get(&address)?;
        (found.bytes == bytes && found.mappings == 0).then_some(found)
    }

    /// Forgets a reservation that [`Space::unused`] found.
    pub(super) fn remove(&mut self, address: usize) {
        if let Some(found) = self.reservations.remove(&address) {
            debug_assert_eq!(found.mappings, 0, "a used reservation was given up");
            self.reserved_bytes -= found.bytes;
        }
    }

    fn at(&self, address: usize) -> Option<(&Reservation, usize)> {
        let (start, found) = self.reservations.range(..=address).next_back()?;
        let inside = address - start;
        (inside < found.bytes).then(|| (found, inside / self.granularity))
    }

    fn at_mut(&mut self, address: usize) -> Option<(&mut Reservation, usize)> {
        let (start, found) = self.reservations.range_mut(..=address).next_back()?;
        let inside = address - start;
        (inside < found.bytes).then_some((found, inside / self.granularity))
    }

    /// Bytes from `address` up, at most `most`, that are reserved and have nothing mapped.
    pub(super) fn free_at(&self, address: usize, most: usize) -> usize {
        let Some((found, first)) = self.at(address) else { return 0 };
        let most = most / self.granularity;
        let free = found.pages[first..].iter().take(most).take_while(|&&page| page == 0);
        free.count() * self.granularity
    }

    /// Whether the range is one or more adjacent mappings, whole and without a gap.
    pub(super) fn is_whole_mappings(&self, address: usize, end: usize) -> bool {
        let Some((found, first)) = self.at(address) else { return false };
        let last = first + (end - address) / self.granularity;
        let mut at = first;
        while at < last {
            match found.pages.get(at) {
                None | Some(&(0 | INNER)) => return false,
                Some(_) => at += length(found.what[at]),
            }
        }
        at == last
    }

    /// Notes pages of `bytes` each as mapped side by side from `address` up, where
    /// [`Space::free_at`] found room for them.
    pub(super) fn map(&mut self, address: usize, bytes: usize, pages: &[PageHandle]) {
        let count = bytes / self.granularity;
        let Some((found, first)) = self.at_mut(address) else { return };
        for (i, page) in pages.iter().enumerate() {
            let at = first + i * count;
            found.pages[at..at + count].fill(INNER);
            found.pages[at] = page.0;
            found.what[at] = count as u64;
        }
        found.mappings += pages.len();
        self.mappings += pages.len();
    }

    /// Takes out the mapping that starts at `address`.
    pub(super) fn unmap(&mut self, address: usize) -> Option<Mapping> {
        let granularity = self.granularity;
        let (found, at) = self.at_mut(address)?;
        let page = Some(found.pages[at]).filter(|page| !matches!(page, &0 | &INNER))?;
        let what = found.what[at];
        found.pages[at..at + length(what)].fill(0);
        found.what[at] = 0;
        found.mappings -= 1;
        self.mappings -= 1;
        let bytes = length(what) * granularity;
        Some(Mapping { bytes, page: PageHandle(page), locked: what & LOCKED != 0 })
    }

    /// Of whole mappings, those that may not be used yet: address, bytes, page.
    pub(super) fn closed_in(
        &self,
        address: usize,
        end: usize,
    ) -> impl Iterator<Item = (usize, usize, PageHandle)> {
        let granularity = self.granularity;
        let mut at = address;
        std::iter::from_fn(move || {
            while at < end {
                let (found, index) = self.at(at)?;
                let (what, start) = (found.what[index], at);
                let bytes = length(what).max(1) * granularity;
                at += bytes;
                if what & OPEN == 0 {
                    return Some((start, bytes, PageHandle(found.pages[index])));
                }
            }
            None
        })
    }

    /// Notes that whole mappings may be used.
    pub(super) fn open(&mut self, address: usize, end: usize) {
        self.for_each(address, end, |what| *what |= OPEN);
    }

    /// Sets the list of other devices with access to whole mappings.
    pub(super) fn set_peers(&mut self, address: usize, end: usize, peers: &[u32]) {
        let known = self.peers.iter().position(|list| **list == *peers);
        let number = known.unwrap_or_else(|| {
            self.peers.push(peers.into());
            self.peers.len() - 1
        });
        self.for_each(address, end, |what| {
            *what = *what & !PEERS | (number as u64) << PEERS_SHIFT;
        });
    }

    /// Notes whether whole mappings are locked; the bytes that are newly locked and newly not.
    pub(super) fn set_locked(&mut self, address: usize, end: usize, locked: bool) -> [usize; 2] {
        let granularity = self.granularity;
        let (mut more, mut less) = (0, 0);
        self.for_each(address, end, |what| {
            match (*what & LOCKED != 0, locked) {
                (false, true) => more += length(*what) * granularity,
                (true, false) => less += length(*what) * granularity,
                _ => {}
            }
            *what = if locked { *what | LOCKED } else { *what & !LOCKED };
        });
        [more, less]
    }

    fn for_each(&mut self, address: usize, end: usize, mut act: impl FnMut(&mut u64)) {
        let granularity = self.granularity;
        let Some((found, first)) = self.at_mut(address) else { return };
        let last = first + (end - address) / granularity;
        let mut at = first;
        while at < last {
            act(&mut found.what[at]);
            at += length(found.what[at]).max(1);
        }
    }

    /// The devices with access to each mapping that the range touches; `None` where some of the
    /// range is not mapped.
    pub(super) fn peers_in(&self, address: usize, end: usize) -> Option<Vec<Arc<[u32]>>> {
        let (found, first) = self.at(address)?;
        let inside = first * self.granularity + address % self.granularity;
        let last = (inside + (end - address)).div_ceil(self.granularity);
        let mut at = first;
        while found.pages[at] == INNER {
            at -= 1;
        }
        let mut lists = Vec::new();
        while at < last {
            found.pages.get(at).filter(|&&page| page != 0)?;
            let what = found.what[at];
            lists.push(Arc::clone(&self.peers[((what & PEERS) >> PEERS_SHIFT) as usize]));
            at += length(what);
        }
        Some(lists)
    }
}

fn length(what: u64) -> usize {
    (what & LENGTH) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let mut space = Space::new(10);
        let map = space.map_of(100).expect("memory");
        space.add(1000, 100, (995, 110), map);
        space
    }

    #[test]
    fn mappings_are_found_whole() {
        let mut space = space();
        assert_eq!((space.free_at(1000, 500), space.free_at(1000, 25)), (100, 20));
        assert_eq!((space.free_at(990, 10), space.free_at(1100, 10)), (0, 0));
        space.map(1010, 20, &[PageHandle(5), PageHandle(6)]);
        assert_eq!((space.free_at(1000, 500), space.free_at(1020, 10)), (10, 0));
        assert_eq!(space.free_at(1050, 500), 50);
        assert!(space.is_whole_mappings(1010, 1050) && space.is_whole_mappings(1030, 1050));
        for (from, to) in [(1000, 1050), (1020, 1050), (1010, 1040), (1010, 1060), (990, 1000)] {
            assert!(!space.is_whole_mappings(from, to), "{from}..{to}");
        }
        assert!(space.unused(1000, 100).is_none());
        assert!(space.unmap(1020).is_none() && space.unmap(1000).is_none());
        let first = space.unmap(1010).expect("mapped");
        assert_eq!((first.bytes, first.page, first.locked), (20, PageHandle(5), false));
        assert_eq!((space.mappings(), space.free_at(1000, 500)), (1, 30));
        assert_eq!(space.unmap(1030).map(|mapping| mapping.page), Some(PageHandle(6)));
        assert!(space.unused(1000, 90).is_none() && space.unused(1000, 100).is_some());
        space.remove(1000);
        assert_eq!((space.reserved(), space.free_at(1000, 10)), ((0, 0), 0));
    }

    #[test]
    fn a_reservation_without_end_is_refused() {
        let space = Space::new(1);
        assert!(space.map_of(usize::MAX).is_none());
        assert!(space.can_map(u32::MAX as usize) && !space.can_map(1 << 32));
    }

    #[test]
    fn rights_are_a_mapping_s() {
        let mut space = space();
        space.map(1000, 20, &[PageHandle(1), PageHandle(2), PageHandle(3)]);
        space.set_peers(1020, 1060, &[1, 2]);
        let closed = |space: &Space| space.closed_in(1000, 1060).collect::<Vec<_>>();
        space.open(1020, 1040);
        assert_eq!(closed(&space), [(1000, 20, PageHandle(1)), (1040, 20, PageHandle(3))]);
        space.open(1000, 1060);
        assert_eq!(closed(&space), []);
        assert_eq!(space.set_locked(1020, 1040, true), [20, 0]);
        assert_eq!(space.set_locked(1000, 1060, true), [40, 0]);
        space.set_peers(1020, 1040, &[3]);
        let lists = |from, to| -> Option<Vec<Vec<u32>>> {
            let lists = space.peers_in(from, to)?;
            Some(lists.iter().map(|list| list.to_vec()).collect())
        };
        assert_eq!(lists(1000, 1060), Some(vec![vec![], vec![3], vec![1, 2]]));
        assert_eq!(lists(1019, 1021), Some(vec![vec![], vec![3]]));
        assert_eq!(lists(1035, 1040), Some(vec![vec![3]]));
        assert_eq!((lists(1055, 1061), lists(1060, 1061), lists(1095, 1105)), (None, None, None));
        assert_eq!(space.set_locked(1020, 1040, false), [0, 20]);
        assert_eq!(
            [1000, 1020].map(|at| space.unmap(at).map(|m| m.locked)),
            [Some(true), Some(false)]
        );
    }
}
