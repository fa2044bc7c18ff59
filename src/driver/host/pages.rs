//! The device's pages by handle.
//!
//! Owns one slot a page. A handle is a slot's number and how often the slot was used before, so
//! that the handle of a page that is gone never names another one (until a slot has been used
//! 2^32 times). It must not know where a page is mapped, nor touch memory.
//! Cost: O(1), an array's element a call.

use std::os::fd::OwnedFd;

use crate::driver::PageHandle;

/// A range of a file. Lives until it is both released and mapped nowhere.
pub(super) struct Page {
    pub(super) offset: usize,
    pub(super) bytes: usize,
    pub(super) mappings: u32,
    pub(super) released: bool,
    /// Whether descriptors were made of it.
    pub(super) exported: bool,
    /// The device file it came in by, when it was imported; else it lies in our own.
    pub(super) source: Option<OwnedFd>,
}

impl Page {
    /// A page of the device's own file.
    pub(super) fn at(offset: usize, bytes: usize) -> Page {
        Page { offset, bytes, mappings: 0, released: false, exported: false, source: None }
    }
}

struct Slot {
    uses: u32,
    page: Option<Page>,
}

/// All pages. Starts empty.
#[derive(Default)]
pub(super) struct Pages {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Pages {
    /// Keeps a page under a new handle, which is never 0; `None` past 2^32 - 1 pages.
    pub(super) fn insert(&mut self, page: Page) -> Option<PageHandle> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = u32::try_from(self.slots.len()).ok().filter(|&at| at < u32::MAX)?;
                self.slots.push(Slot { uses: 0, page: None });
                place
            }
        };
        let slot = &mut self.slots[place as usize];
        slot.page = Some(page);
        Some(PageHandle(u64::from(slot.uses) << 32 | u64::from(place + 1)))
    }

    fn slot(handle: PageHandle) -> (usize, u32) {
        let place = (handle.0 & u64::from(u32::MAX)) as usize;
        (place.wrapping_sub(1), (handle.0 >> 32) as u32)
    }

    pub(super) fn get(&self, handle: PageHandle) -> Option<&Page> {
        let (place, uses) = Pages::slot(handle);
        self.slots.get(place).filter(|slot| slot.uses == uses)?.page.as_ref()
    }

    pub(super) fn get_mut(&mut self, handle: PageHandle) -> Option<&mut Page> {
        let (place, uses) = Pages::slot(handle);
        self.slots.get_mut(place).filter(|slot| slot.uses == uses)?.page.as_mut()
    }

    pub(super) fn remove(&mut self, handle: PageHandle) -> Option<Page> {
        let (place, uses) = Pages::slot(handle);
        let slot = self.slots.get_mut(place).filter(|slot| slot.uses == uses)?;
        let page = slot.page.take()?;
        slot.uses = slot.uses.wrapping_add(1);
        self.free.push(place as u32);
        Some(page)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Page> {
        self.slots.iter().filter_map(|slot| slot.page.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_dies_with_its_page() {
        let mut pages = Pages::default();
        let first = pages.insert(Page::at(0, 10)).expect("room");
        let second = pages.insert(Page::at(10, 20)).expect("room");
        assert_eq!(pages.remove(first).map(|page| page.bytes), Some(10));
        let third = pages.insert(Page::at(30, 30)).expect("room");
        assert_ne!(first, third);
        assert!(pages.get(first).is_none() && pages.remove(first).is_none());
        assert_eq!(pages.get(second).map(|page| page.offset), Some(10));
        assert_eq!(pages.get_mut(third).map(|page| page.offset), Some(30));
        assert!(pages.get(PageHandle(0)).is_none() && pages.get(PageHandle(u64::MAX)).is_none());
        assert_eq!((pages.len(), pages.iter().count()), (2, 2));
    }
}
