//! The lengths that were asked for: what `cuMemGetAddressRange` says of a block.
//!
//! The pool knows a block's rounded length, which is less than 64 KiB above the request; the
//! request's low 16 bits, kept beside each possible address, give it back exactly. Owns a table by
//! address: a root of one pointer a GiB, and below it 2 bytes for each 256, mapped where used.
//! Cost: a load and a store an allocation. Where no table can be mapped, rounded lengths are told.

use std::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

const GIB_SHIFT: u32 = 30;
const UNIT_SHIFT: u32 = 8;
const ROOT: usize = 1 << (47 - GIB_SHIFT);
const LEAF: usize = 1 << (GIB_SHIFT - UNIT_SHIFT);

static TABLE: [AtomicPtr<AtomicU16>; ROOT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ROOT];

/// Where the entry of a block is; null: nowhere yet.
#[inline(always)]
fn entry(address: usize) -> Option<&'static AtomicU16> {
    let leaf = TABLE.get(address >> GIB_SHIFT)?.load(Ordering::Acquire);
    if leaf.is_null() {
        return None;
    }
    // SAFETY: a leaf has LEAF entries, is never unmapped, and the index is below that.
    Some(unsafe { &*leaf.add((address >> UNIT_SHIFT) & (LEAF - 1)) })
}

/// Keeps the length that a block was asked for.
#[inline(always)]
pub fn note(address: usize, bytes: usize) {
    match entry(address) {
        Some(entry) => entry.store(bytes as u16, Ordering::Relaxed),
        None => note_first(address, bytes),
    }
}

#[cold]
fn note_first(address: usize, bytes: usize) {
    let Some(root) = TABLE.get(address >> GIB_SHIFT) else { return };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping, zeroed.
    let leaf = unsafe { libc::mmap(std::ptr::null_mut(), LEAF * 2, access, flags, -1, 0) };
    if leaf == libc::MAP_FAILED {
        return;
    }
    let (order, none) = (Ordering::AcqRel, std::ptr::null_mut());
    if root.compare_exchange(none, leaf.cast(), order, Ordering::Acquire).is_err() {
        // SAFETY: the mapping just made, which nobody else knows.
        unsafe { libc::munmap(leaf, LEAF * 2) };
    }
    if let Some(entry) = entry(address) {
        entry.store(bytes as u16, Ordering::Relaxed);
    }
}

/// The length that a live block of `usable` bytes was asked for. Of a block that was not allocated
/// through this library an older block's entry may tell too little, but never nothing.
pub fn requested(address: usize, usable: usize) -> usize {
    let Some(entry) = entry(address) else { return usable };
    let low = entry.load(Ordering::Relaxed);
    let more = usize::from((usable as u16).wrapping_sub(low));
    if more < usable { usable - more } else { usable }
}
