//! The hot path: what an allocation and a free cost when nothing special happens.
//!
//! Owns no state. A hit is: thread pointer, epoch, lane, class, pop; or descriptor,
//! class and slot, live mark taken by exchange, push. No lock, no clock, no log; counters are
//! plain stores of this thread. Everything else goes to one cold function each. About 12 to
//! 20 ns for a pair, harness included.

use super::cache::{self, LaneCache, TABLE, ThreadCache};
use super::{HANDLE_SHIFT, slow};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::units::{QUANTUM_SHIFT, UNIT_SHIFT};
use crate::error::Status;
use crate::slab::Round;
use crate::slab::class::{BY_SIZE, INFO, SLOT_MAX};
use crate::slab::marks::{SPECIAL, word_class, word_index, word_marks};
use crate::stream::SYNC;
use std::ffi::c_void;

/// The stream number that stands for `cudaFree`'s meaning. No handle has this value.
pub const SYNC_STREAM: u64 = 0x7fff_ffff_fff1;

/// The entry of a thread's table for a key.
#[inline(always)]
pub fn slot_in_table(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize & (TABLE - 1)
}

/// Whether two values can be a pool's handle and a stream. A lane's key has the one above 48 bits
/// and the other below, so that others would name lanes of other pools.
#[inline(always)]
pub fn is_sound(pool: u64, stream: u64) -> bool {
    pool << (64 - HANDLE_SHIFT) | stream >> HANDLE_SHIFT == 0
}

/// # Safety
/// Inside `enter` of `cache`.
#[inline(always)]
unsafe fn find_lane(cache: *mut ThreadCache, key: u64) -> *mut LaneCache {
    // SAFETY: between enter and leave the owner alone touches the cache.
    unsafe {
        if (*cache).last.key == key {
            return (*cache).last.lane;
        }
        let entry = (*cache).table[slot_in_table(key)];
        if entry.key == key {
            (*cache).last = entry;
            return entry.lane;
        }
    }
    std::ptr::null_mut()
}

#[inline(always)]
fn count(counter: &AtomicU64, by: u64) {
    // This thread alone writes the counter; readers sum.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Pops a slot; 0 when both magazines are empty.
///
/// # Safety
/// Inside `enter` of `cache`; `lane` is one of its lanes; `bytes - 1 < SLOT_MAX`.
#[inline(always)]
unsafe fn pop(cache: *mut ThreadCache, lane: *mut LaneCache, bytes: usize) -> usize {
    // SAFETY: as promised; a class from the table is below CLASSES, `len` rounds are set, and
    // a round's mark index lies in the mark table.
    unsafe {
        let lane = &mut *lane;
        let class = *BY_SIZE.get_unchecked((bytes - 1) >> 8) as usize;
        if lane.mags.get_unchecked(class).len == 0 {
            if lane.prev.get_unchecked(class).len == 0 {
                return 0;
            }
            lane.exchange(class);
        }
        let mag = lane.mags.get_unchecked_mut(class);
        mag.len -= 1;
        let round = *mag.rounds.add(mag.len as usize);
        let mark = &*lane.marks.add(round.mark() as usize);
        mark.store((*cache).tag as u8, Ordering::Relaxed);
        count(&mag.allocs, 1);
        count(&lane.requested, bytes as u64);
        lane.base + ((round.unit() as usize) << UNIT_SHIFT)
    }
}

/// `forebay_alloc`.
///
/// # Safety
/// `out` is null or valid for a pointer's write.
#[inline(always)]
pub unsafe fn alloc(pool: u64, out: *mut *mut c_void, bytes: usize, stream: u64) -> Status {
    // SAFETY: as promised.
    unsafe { alloc_in::<false>(pool, out, bytes, stream) }
}

/// `forebay_malloc`.
///
/// # Safety
/// As [`alloc`].
#[inline(always)]
pub unsafe fn malloc(out: *mut *mut c_void, bytes: usize) -> Status {
    // SAFETY: as promised.
    unsafe { alloc_in::<true>(0, out, bytes, SYNC_STREAM) }
}

/// Both of them: on the default pool's sync lane (`DEFAULT_SYNC`), or on that of the key.
///
/// # Safety
/// As [`alloc`].
#[inline(always)]
unsafe fn alloc_in<const DEFAULT_SYNC: bool>(
    pool: u64,
    out: *mut *mut c_void,
    bytes: usize,
    stream: u64,
) -> Status {
    let cache = cache::current();
    // SAFETY: `cache` is this thread's; `out` as promised; the lane is found inside `enter`.
    unsafe {
        let sound = DEFAULT_SYNC || is_sound(pool, stream);
        if bytes.wrapping_sub(1) < SLOT_MAX && !out.is_null() && sound && cache::enter(cache) {
            let lane = if DEFAULT_SYNC { (*cache).sync } else { find_lane(cache, pool ^ stream) };
            let address = if lane.is_null() { 0 } else { pop(cache, lane, bytes) };
            cache::leave(cache);
            if address != 0 {
                *out = address as *mut c_void;
                return Status::Ok;
            }
            return alloc_behind::<DEFAULT_SYNC>(pool, out, bytes, stream);
        }
        slow::alloc(pool, out, bytes, 0, stream)
    }
}

/// [`alloc`] with both magazines empty: out of the depot. Apart, and called last, so that the hit
/// has no call in it and saves no registers.
///
/// # Safety
/// As [`alloc`]; `out` is not null, `bytes - 1 < SLOT_MAX` and pool and stream are sound.
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_behind<const DEFAULT_SYNC: bool>(
    pool: u64,
    out: *mut *mut c_void,
    bytes: usize,
    stream: u64,
) -> Status {
    let cache = cache::current();
    // SAFETY: as in `alloc`; a class from the table is below CLASSES.
    unsafe {
        if cache::enter(cache) {
            let lane = if DEFAULT_SYNC { (*cache).sync } else { find_lane(cache, pool ^ stream) };
            let class = usize::from(BY_SIZE[(bytes - 1) >> 8]);
            let filled = !lane.is_null()
                && (*lane).mags[class].len == 0
                && (*lane).prev[class].len == 0
                && (*lane).refill(class);
            let address = if filled { pop(cache, lane, bytes) } else { 0 };
            cache::leave(cache);
            if address != 0 {
                *out = address as *mut c_void;
                return Status::Ok;
            }
        }
        slow::alloc(pool, out, bytes, 0, stream)
    }
}

/// What [`locate`] found: class, mark index, unit offset.
struct Slot {
    class: usize,
    mark: u32,
    unit: u32,
}

/// The slot that begins at `address`, if it is one of the pool's first reservation.
///
/// # Safety
/// Inside `enter`; `lane` is a lane of this thread.
#[inline(always)]
unsafe fn locate(lane: *const LaneCache, address: usize) -> Option<Slot> {
    // SAFETY: the offset is checked against the reservation, which the descriptors cover; a
    // class is below CLASSES.
    unsafe {
        let lane = &*lane;
        let offset = address.wrapping_sub(lane.base);
        if offset >= lane.len {
            return None;
        }
        let word = (*lane.descriptors.add(offset >> QUANTUM_SHIFT)).load(Ordering::Relaxed);
        let class = word_class(word)?;
        let info = INFO.get_unchecked(class);
        let in_quantum = offset & ((1 << QUANTUM_SHIFT) - 1);
        let in_slab = in_quantum | (word_index(word) as usize) << QUANTUM_SHIFT;
        // Rotating makes stray low bits a huge number, so one compare checks both.
        let unit = in_slab.rotate_right(UNIT_SHIFT);
        let slot = ((unit & 0xff_ffff) * info.magic as usize) >> 31;
        if slot * info.units as usize != unit || lane.captive {
            return None;
        }
        Some(Slot {
            class,
            mark: word_marks(word).wrapping_add(slot as u32),
            unit: (offset >> UNIT_SHIFT) as u32,
        })
    }
}

/// Frees a slot into the current magazine. False: the block is not a plain one; nothing has
/// changed.
///
/// # Safety
/// Inside `enter` of the cache that `lane` belongs to; `slot` was located in it, and the current
/// magazine of its class has room.
#[inline(always)]
unsafe fn put(lane: &mut LaneCache, slot: &Slot) -> bool {
    // SAFETY: as promised; `len < cap` rounds are inside the array.
    unsafe {
        let mag = lane.mags.get_unchecked_mut(slot.class);
        debug_assert!(mag.len < mag.cap);
        let mark = &*lane.marks.add(slot.mark as usize);
        let before = mark.swap(0, Ordering::Relaxed);
        if before.wrapping_sub(1) < SPECIAL - 1 {
            *mag.rounds.add(mag.len as usize) = Round::new(slot.unit, slot.mark);
            mag.len += 1;
            count(&mag.frees, 1);
            return true;
        }
        if before != 0 {
            // Not a plain block: give the mark back, the slow path takes it.
            mark.store(before, Ordering::Relaxed);
        }
        false
    }
}

/// `forebay_dealloc`.
///
/// # Safety
/// The caller gives the block up; any address is answered with an error, not a fault.
#[inline(always)]
pub unsafe fn dealloc(pool: u64, address: *mut c_void, stream: u64) -> Status {
    let cache = cache::current();
    // SAFETY: `cache` is this thread's; the lane is found inside `enter`; the mark index is
    // that of a slot located in a live slab.
    unsafe {
        if is_sound(pool, stream) && cache::enter(cache) {
            let lane = find_lane(cache, pool ^ stream);
            if !lane.is_null()
                && (*lane).id != u32::from(SYNC)
                && let Some(slot) = locate(lane, address as usize)
            {
                let lane = &mut *lane;
                let mag = lane.mags.get_unchecked(slot.class);
                if mag.len >= mag.cap {
                    let prev = lane.prev.get_unchecked(slot.class);
                    if mag.cap == 0 || prev.len != 0 || prev.rounds.is_null() {
                        cache::leave(cache);
                        return dealloc_behind(pool, address, stream);
                    }
                    lane.exchange(slot.class);
                }
                if put(lane, &slot) {
                    cache::leave(cache);
                    return Status::Ok;
                }
            }
            cache::leave(cache);
        }
        slow::dealloc(pool, address as usize, stream)
    }
}

/// [`dealloc`] with both magazines full: one goes to the depot first. Apart for the reason of
/// [`alloc_behind`].
///
/// # Safety
/// As [`dealloc`]; pool and stream are sound.
#[cold]
#[inline(never)]
unsafe extern "C" fn dealloc_behind(pool: u64, address: *mut c_void, stream: u64) -> Status {
    let cache = cache::current();
    // SAFETY: as in `dealloc`.
    unsafe {
        if cache::enter(cache) {
            let lane = find_lane(cache, pool ^ stream);
            if !lane.is_null()
                && (*lane).id != u32::from(SYNC)
                && let Some(slot) = locate(lane, address as usize)
            {
                let lane = &mut *lane;
                let (mag, prev) = (&lane.mags[slot.class], &lane.prev[slot.class]);
                let full = mag.len >= mag.cap && prev.len != 0;
                if full && lane.spill(slot.class) && put(lane, &slot) {
                    cache::leave(cache);
                    return Status::Ok;
                }
            }
            cache::leave(cache);
        }
        slow::dealloc(pool, address as usize, stream)
    }
}

/// `forebay_free`.
///
/// # Safety
/// As [`dealloc`].
#[inline(always)]
pub unsafe fn free(address: *mut c_void) -> Status {
    let cache = cache::current();
    // SAFETY: as in `dealloc`; the batch array has room for `open_max` rounds.
    unsafe {
        if cache::enter(cache) {
            let lane = (*cache).sync;
            if !lane.is_null()
                && (*lane).open < (*lane).open_max
                && !(*lane).batch.is_null()
                && let Some(slot) = locate(lane, address as usize)
            {
                let lane = &mut *lane;
                let mark = (*lane.marks.add(slot.mark as usize)).swap(0, Ordering::Relaxed);
                if mark.wrapping_sub(1) < SPECIAL - 1 {
                    let open = lane.open as usize;
                    let batch = &raw mut *lane.batch;
                    *(&raw mut (*batch).rounds).cast::<Round>().add(open) =
                        Round::new(slot.unit, slot.mark);
                    *(&raw mut (*batch).classes).cast::<u8>().add(open) = slot.class as u8;
                    lane.open += 1;
                    lane.since_look += 1;
                    let slot_bytes = u64::from(INFO.get_unchecked(slot.class).units) << 8;
                    count(&lane.open_bytes, slot_bytes);
                    if lane.open_bytes.load(Ordering::Relaxed) >= lane.open_bytes_max {
                        lane.open_max = lane.open;
                    }
                    count(&lane.mags.get_unchecked(slot.class).frees, 1);
                    cache::leave(cache);
                    return Status::Ok;
                }
                if mark != 0 {
                    (*lane.marks.add(slot.mark as usize)).store(mark, Ordering::Relaxed);
                }
            }
            cache::leave(cache);
        }
        slow::dealloc(0, address as usize, SYNC_STREAM)
    }
}
