//! How a passed batch of frees comes back: some slots in one passage, and none is lost.

use crate::config::Config;
use crate::driver::Driver;
use crate::driver::host::{HostDriver, HostOptions};
use crate::pool::cache::{BATCH_MIN, LaneCache, READY_SOME};
use crate::pool::core::Core;
use crate::pool::hot::SYNC_STREAM;
use crate::pool::{Pool, Settings};
use crate::slab::class::class_of;
use std::sync::Arc;

const BLOCK: usize = 4 << 10;

fn pool() -> Pool {
    let options = HostOptions { total_bytes: 64 << 20, ..HostOptions::default() };
    let total = options.total_bytes as u64;
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), total, true);
    settings.keeper = false;
    Pool::with_driver(driver as Arc<dyn Driver>, settings).expect("a pool")
}

/// Calls `f` with this thread's cache for the sync lane.
fn with_cache<R>(pool: &Pool, f: impl FnOnce(&mut Core, &mut LaneCache) -> R) -> R {
    let call = |core: &mut Core| {
        let cache = core.caches[0].0;
        // SAFETY: the core is locked, and the only thread that has a cache of it is this one.
        f(core, unsafe { &mut *cache })
    };
    pool.with_core(call).expect("alive")
}

/// Slots of the class in the magazines, the depot and back in slabs; in the ready batch; in the
/// open one.
fn places(core: &mut Core, cache: &mut LaneCache) -> (u32, u32, u32) {
    let class = class_of(BLOCK);
    let bytes = cache.depot().lock().class_bytes(class) + core.slabs.free_bytes();
    let kept = cache.mags[class].len + cache.prev[class].len + (bytes / BLOCK as u64) as u32;
    (kept, cache.ready.1 - cache.ready.0, cache.open)
}

#[test]
fn no_free_puts_a_whole_batch_into_the_magazines() {
    let pool = pool();
    // Whole slabs of 16 slots, so that none is left over in one.
    let blocks: Vec<usize> =
        (0..1024).map(|_| pool.alloc(BLOCK, SYNC_STREAM).expect("fits")).collect();
    let (mut before, mut most_ready) = (with_cache(&pool, places).0, 0);
    let at_first = before;
    for (freed, block) in (1u32..).zip(blocks) {
        pool.dealloc(block, SYNC_STREAM).expect("live");
        // A slab that is closed takes its free slots along; that is at most a decrease.
        let (kept, ready, open) = with_cache(&pool, places);
        assert!(kept <= before + READY_SOME, "free {freed}: {before} kept, then {kept}");
        assert!(kept + ready + open <= at_first + freed, "free {freed}: more than was freed");
        (before, most_ready) = (kept, most_ready.max(ready));
    }
    assert!(most_ready >= BATCH_MIN - READY_SOME, "only {most_ready} were ever ready at once");
}

#[test]
fn an_emptied_cache_gives_back_what_is_ready() {
    let pool = pool();
    let blocks: Vec<usize> =
        (0..BATCH_MIN + 1).map(|_| pool.alloc(BLOCK, SYNC_STREAM).expect("fits")).collect();
    for block in blocks {
        pool.dealloc(block, SYNC_STREAM).expect("live");
    }
    let (_, ready, open) = with_cache(&pool, places);
    assert_eq!((ready, open), (BATCH_MIN - READY_SOME, 1));
    with_cache(&pool, |core, cache| {
        core.flush_cache(cache);
        core.flush_depots();
        core.settle();
        assert_eq!((cache.ready.1 - cache.ready.0, cache.open), (0, 0));
        assert_eq!(core.slabs.iter().count(), 0, "each slab is empty, and so closed");
    });
    assert_eq!(pool.stats().expect("alive").pending_bytes, 0);
}

/// A thread that begins while a recording is open keeps batches once it is over, as others do.
#[test]
fn a_cache_made_during_a_recording_keeps_batches_after_it() {
    let pool = pool();
    pool.begin_recording(7, None).expect("none is open");
    let free_some = |count: usize| {
        let blocks: Vec<usize> =
            (0..count).map(|_| pool.alloc(BLOCK, SYNC_STREAM).expect("fits")).collect();
        for &block in &blocks {
            pool.dealloc(block, SYNC_STREAM).expect("live");
        }
        with_cache(&pool, |_, cache| (cache.open, cache.open_max))
    };
    assert_eq!(free_some(3), (0, 0), "every free comes by the lock");
    let events = pool.end_recording(7).expect("open");
    assert_eq!(events.len(), 6, "{events:?}");
    assert_eq!(free_some(3), (3, BATCH_MIN));
    // The same for a cache that is older than the recording.
    pool.begin_recording(8, None).expect("none is open");
    assert_eq!(free_some(3), (0, 0));
    assert_eq!(pool.end_recording(8).expect("open").len(), 6);
    assert_eq!(free_some(3), (3, BATCH_MIN));
}
