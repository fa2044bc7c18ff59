//! Zeroed tables straight from the kernel: touched only where used, gone when dropped.
//!
//! Owns [`Table`], a fixed-length array of atomics over `mmap`ed memory (descriptors, live
//! marks), and [`wiped_on_fork`], memory that reads as zero in a forked child (caches). Promises
//! that an index out of range is an error of the caller caught by a panic in the checked
//! accessor; the hot path reads through [`Table::as_ptr`] after its own check.

use super::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Types whose all-zero bytes are a valid value and that may be shared between threads.
pub trait ZeroAtomic: Sync + Send + private::Sealed {}
mod private {
    pub trait Sealed {}
}
macro_rules! zero_atomic {
    ($($t:ty),*) => {$(
        impl private::Sealed for $t {}
        impl ZeroAtomic for $t {}
    )*};
}
zero_atomic!(AtomicU8, AtomicU32, AtomicU64);

/// A fixed-length array of zeroed atomics.
#[derive(Debug)]
pub struct Table<T: ZeroAtomic> {
    start: NonNull<T>,
    len: usize,
    marker: PhantomData<T>,
}

// SAFETY: a table is an owned array of atomics; sharing it shares atomics only.
unsafe impl<T: ZeroAtomic> Sync for Table<T> {}
// SAFETY: the memory belongs to the table and is not tied to a thread.
unsafe impl<T: ZeroAtomic> Send for Table<T> {}

impl<T: ZeroAtomic> Table<T> {
    /// A zeroed table of `len` entries; `None` when the kernel has no address space for it.
    pub fn new(len: usize) -> Option<Table<T>> {
        assert!(len > 0, "a table has entries");
        let bytes = len.checked_mul(size_of::<T>())?;
        let start = map_zeroed(bytes, false)?;
        if bytes >= HUGE_FROM {
            ask_for_huge_pages(start, bytes);
        }
        Some(Table { start: start.cast(), len, marker: PhantomData })
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a table has entries.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Entry `index`. Panics when out of range.
    #[inline]
    pub fn at(&self, index: usize) -> &T {
        assert!(index < self.len, "table index {index} of {}", self.len);
        // SAFETY: index is in range, and zeroed bytes are a valid T (ZeroAtomic).
        unsafe { self.start.add(index).as_ref() }
    }

    /// Has the kernel give memory to the entries `from..to` now, in one call, rather than by a
    /// fault for each page when it is first written. A refusal changes nothing but the time.
    pub fn populate(&self, from: usize, to: usize) {
        let (from, to) = (from.min(self.len), to.min(self.len));
        let start = from * size_of::<T>() / PAGE * PAGE;
        populate(self.start.cast(), start, to * size_of::<T>());
    }

    /// The first entry's address, for readers that check the range themselves.
    pub fn as_ptr(&self) -> *const T {
        self.start.as_ptr()
    }
}

impl<T: ZeroAtomic> Drop for Table<T> {
    fn drop(&mut self) {
        unmap(self.start.cast(), self.len * size_of::<T>());
    }
}

/// Tables from this length on ask for huge pages: a random look at a descriptor of a large
/// device would otherwise miss the TLB as well.
const HUGE_FROM: usize = 8 << 20;

#[cfg(not(miri))]
fn ask_for_huge_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the range was just mapped. The advice may be refused: then pages stay small.
    let answer = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    if answer != 0 {
        tracing::debug!("no huge pages for a table of {bytes} bytes");
    }
}

#[cfg(miri)]
fn ask_for_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

/// The least size of the CPU's pages, to which ranges of advice are rounded. Where pages are
/// larger the advice is refused.
const PAGE: usize = 4096;

#[cfg(not(miri))]
fn populate(start: NonNull<u8>, from: usize, to: usize) {
    if from >= to {
        return;
    }
    // SAFETY: the caller's range lies within one table, whose mapping is private and anonymous:
    // populating it changes no contents.
    let answer = unsafe {
        let first = start.as_ptr().add(from);
        libc::madvise(first.cast(), to - from, libc::MADV_POPULATE_WRITE)
    };
    if answer != 0 {
        tracing::trace!("a table is populated as it is written (before Linux 5.14, or no memory)");
    }
}

#[cfg(miri)]
fn populate(_start: NonNull<u8>, _from: usize, _to: usize) {}

/// Asks the processor to have the line of `item` at hand soon. Costs a load's issue, waits for
/// nothing.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes nothing and may name any address; this one is a live item's.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            (&raw const *item).cast(),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = item;
}

/// Zeroed, page-aligned memory that a forked child reads as zeros. `None` when refused.
pub fn wiped_on_fork(bytes: usize) -> Option<NonNull<u8>> {
    map_zeroed(bytes, true)
}

#[cfg(not(miri))]
fn map_zeroed(bytes: usize, wipe: bool) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice disturbs nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = NonNull::new(start.cast::<u8>())?;
    if wipe {
        // SAFETY: the range was just mapped and is private and anonymous, as the advice needs.
        let answer = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_WIPEONFORK) };
        if answer != 0 {
            unmap(start, bytes);
            return None;
        }
    }
    Some(start)
}

#[cfg(not(miri))]
fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller owns the mapping and uses it no more.
    let answer = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    debug_assert_eq!(answer, 0, "munmap of an owned mapping");
}

#[cfg(miri)]
fn map_zeroed(bytes: usize, _wipe: bool) -> Option<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).ok()?;
    // SAFETY: the layout has a non-zero size.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

#[cfg(miri)]
fn unmap(start: NonNull<u8>, bytes: usize) {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("as allocated");
    // SAFETY: allocated by `map_zeroed` with this very layout.
    unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
}

#[cfg(test)]
mod tests {
    use super::super::sync::atomic::Ordering;
    use super::*;

    #[test]
    fn table_is_zeroed_and_holds_values() {
        let table = Table::<AtomicU64>::new(1000).expect("memory");
        assert_eq!(table.at(999).load(Ordering::Relaxed), 0);
        table.at(5).store(7, Ordering::Relaxed);
        assert_eq!(table.at(5).load(Ordering::Relaxed), 7);
        assert_eq!(table.len(), 1000);
    }

    #[test]
    fn populating_keeps_what_is_written() {
        let table = Table::<AtomicU32>::new(5000).expect("memory");
        table.at(1500).store(9, Ordering::Relaxed);
        table.populate(1200, 2000);
        table.populate(4000, 1 << 40);
        table.populate(9000, 9001);
        assert_eq!(table.at(1500).load(Ordering::Relaxed), 9);
        assert_eq!(table.at(4999).load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "table index 8 of 8")]
    fn table_checks_its_range() {
        Table::<AtomicU8>::new(8).expect("memory").at(8);
    }
}
