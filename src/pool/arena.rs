//! Where caches live: chunks that a forked child reads as zeros, reused by size.
//!
//! Owns every chunk; none is ever given back to the kernel, so a stale pointer to a cache stays a
//! pointer to a cache. Used under the registry's lock. Cost: a pop, or a step into the chunk.

use super::Shared;
use super::cache::{
    BATCH_MIN, Entry, LaneCache, Magazine, Previous, TABLE, ThreadCache, View, drop_rounds,
};
use crate::base::raw;
use crate::base::sync::atomic::{AtomicU32, AtomicU64};
use crate::slab::class::CLASSES;
use std::ptr::NonNull;

/// Memory for caches: never given back to the kernel, reused by size.
#[derive(Default)]
pub struct Arena {
    chunk: Option<NonNull<u8>>,
    used: usize,
    threads: Vec<NonNull<u8>>,
    lanes: Vec<NonNull<u8>>,
    /// The number of the thread that came last.
    serial: u32,
}

// SAFETY: the arena owns its chunks; it is used under the registry's lock.
unsafe impl Send for Arena {}

const CHUNK: usize = 256 << 10;

impl Arena {
    fn take(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.next_multiple_of(64);
        if self.chunk.is_none() || self.used + bytes > CHUNK {
            self.chunk = Some(raw::wiped_on_fork(CHUNK)?);
            self.used = 0;
        }
        let chunk = self.chunk?;
        let at = self.used;
        self.used += bytes;
        // SAFETY: `at + bytes <= CHUNK`, inside the chunk.
        Some(unsafe { chunk.add(at) })
    }

    /// A new thread cache, hot path closed.
    pub fn thread(&mut self) -> Option<*mut ThreadCache> {
        let memory = match self.threads.pop() {
            Some(memory) => memory,
            None => self.take(size_of::<ThreadCache>())?,
        };
        let cache = memory.cast::<ThreadCache>().as_ptr();
        // 0 is a thread's that has no cache yet.
        self.serial = self.serial.wrapping_add(1).max(1);
        let empty = Entry { key: 0, lane: std::ptr::null_mut() };
        let value = ThreadCache {
            epoch: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            tag: 1,
            serial: self.serial,
            last: empty,
            sync: std::ptr::null_mut(),
            table: [empty; TABLE],
            lanes: Box::into_raw(Box::default()),
        };
        // SAFETY: the memory is ours, large enough and aligned to 64 (chunks are page-aligned
        // and sizes multiples of 64).
        unsafe { cache.write(value) };
        Some(cache)
    }

    /// Takes a thread cache back.
    ///
    /// # Safety
    /// It came from [`Arena::thread`] and nothing refers to it any more.
    pub unsafe fn give_thread(&mut self, cache: *mut ThreadCache) {
        // SAFETY: `lanes` was made by `Box::into_raw` in `thread`.
        drop(unsafe { Box::from_raw((*cache).lanes) });
        self.threads.extend(NonNull::new(cache.cast::<u8>()));
    }

    /// A new lane cache with empty magazines of capacity 0.
    pub fn lane(
        &mut self,
        owner: *mut ThreadCache,
        pool: &'static Shared,
        view: View,
        key: u64,
    ) -> Option<*mut LaneCache> {
        let memory = match self.lanes.pop() {
            Some(memory) => memory,
            None => self.take(size_of::<LaneCache>())?,
        };
        let cache = memory.cast::<LaneCache>().as_ptr();
        let value = LaneCache {
            base: view.base,
            len: view.len,
            descriptors: view.descriptors,
            marks: view.marks,
            id: u32::from(view.lane),
            open: 0,
            open_max: BATCH_MIN,
            since_look: 0,
            open_bytes: AtomicU64::new(0),
            open_bytes_max: 16 << 20,
            batch: std::ptr::null_mut(),
            requested: AtomicU64::new(0),
            captive: view.captive,
            key,
            pool,
            owner,
            mags: std::array::from_fn(|_| Magazine {
                rounds: std::ptr::null_mut(),
                len: 0,
                cap: 0,
                allocs: AtomicU64::new(0),
                frees: AtomicU64::new(0),
            }),
            prev: std::array::from_fn(|_| Previous {
                rounds: std::ptr::null_mut(),
                len: 0,
                misses: 0,
            }),
            open_due: BATCH_MIN,
            ready: (0, 0),
            ready_batch: std::ptr::null_mut(),
            waiting: std::ptr::null_mut(),
            depot: view.depot,
            budget: view.budget,
            granted: 0,
        };
        // SAFETY: as in `thread`.
        unsafe { cache.write(value) };
        Some(cache)
    }

    /// Takes a lane cache back; its magazines and batches are empty.
    ///
    /// # Safety
    /// It came from [`Arena::lane`] and nothing refers to it any more.
    pub unsafe fn give_lane(&mut self, cache: *mut LaneCache) {
        // SAFETY: the arrays were made by `Box::into_raw` in `new_rounds` and `open_batch`.
        unsafe {
            let cache = &mut *cache;
            cache.owner = std::ptr::null_mut();
            for c in 0..CLASSES {
                drop_rounds(cache.mags[c].rounds);
                drop_rounds(cache.prev[c].rounds);
            }
            for batch in [cache.batch, cache.ready_batch] {
                if !batch.is_null() {
                    drop(Box::from_raw(batch));
                }
            }
            if !cache.waiting.is_null() {
                drop(Box::from_raw(cache.waiting));
            }
        }
        self.lanes.extend(NonNull::new(cache.cast::<u8>()));
    }
}
