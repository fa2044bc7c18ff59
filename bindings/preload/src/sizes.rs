//! The lengths that were asked for, and how often an address was given out: what
//! `cuMemGetAddressRange` and `CU_POINTER_ATTRIBUTE_BUFFER_ID` say of a block.
//!
//! The pool knows a block's rounded length, which is less than 64 KiB above the request; the
//! request's low 16 bits, kept beside each possible address, give it back exactly. The other 48
//! count. Owns a table by address: a root of one pointer a GiB, and below it 8 bytes for each 256,
//! mapped where used, and the numbers of blocks that were asked about. Cost: a load and a store an
//! allocation. Where no table can be mapped, rounded lengths are told, and no numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const GIB_SHIFT: u32 = 30;
const UNIT_SHIFT: u32 = 8;
/// Where an entry's count begins.
const COUNT_SHIFT: u32 = 16;
const ROOT: usize = 1 << (47 - GIB_SHIFT);
const LEAF: usize = 1 << (GIB_SHIFT - UNIT_SHIFT);

static TABLE: [AtomicPtr<AtomicU64>; ROOT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ROOT];

/// Where the entry of a block is; null: nowhere yet.
#[inline(always)]
fn entry(address: usize) -> Option<&'static AtomicU64> {
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
        Some(entry) => set(entry, bytes),
        None => note_first(address, bytes),
    }
}

#[cold]
fn note_first(address: usize, bytes: usize) {
    let Some(root) = TABLE.get(address >> GIB_SHIFT) else { return };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping, zeroed.
    let leaf = unsafe { libc::mmap(std::ptr::null_mut(), LEAF * 8, access, flags, -1, 0) };
    if leaf == libc::MAP_FAILED {
        return;
    }
    let (order, none) = (Ordering::AcqRel, std::ptr::null_mut());
    if root.compare_exchange(none, leaf.cast(), order, Ordering::Acquire).is_err() {
        // SAFETY: the mapping just made, which nobody else knows.
        unsafe { libc::munmap(leaf, LEAF * 8) };
    }
    if let Some(entry) = entry(address) {
        set(entry, bytes);
    }
}

/// The block is the calling thread's alone: nobody else writes its entry.
#[inline(always)]
fn set(entry: &AtomicU64, bytes: usize) {
    let count = (entry.load(Ordering::Relaxed) >> COUNT_SHIFT).wrapping_add(1);
    entry.store(count << COUNT_SHIFT | u64::from(bytes as u16), Ordering::Relaxed);
}

/// A number for a live block that no other allocation of the process has had: above all that the
/// driver gives, which counts from 1.
pub fn number(address: usize) -> Option<u64> {
    static NUMBERS: Mutex<Option<HashMap<usize, (u64, u64)>>> = Mutex::new(None);
    static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
    let count = entry(address)?.load(Ordering::Relaxed) >> COUNT_SHIFT;
    let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = numbers.get_or_insert_default().entry(address).or_insert((0, 0));
    if known.1 == 0 || known.0 != count {
        *known = (count, NEXT.fetch_add(1, Ordering::Relaxed));
    }
    Some(known.1)
}

/// The length that a live block of `usable` bytes was asked for. Of a block that was not allocated
/// through this library an older block's entry may tell too little, but never nothing.
pub fn requested(address: usize, usable: usize) -> usize {
    let Some(entry) = entry(address) else { return usable };
    let low = entry.load(Ordering::Relaxed) as u16;
    let more = usize::from((usable as u16).wrapping_sub(low));
    if more < usable { usable - more } else { usable }
}
