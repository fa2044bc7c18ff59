//! Caches that another thread takes away, or gives to another lane, while this one is on its
//! slow way.
//!
//! The moments that matter are made by hand: a cache is found first and taken away before it is
//! used; a thread is let in while another holds the core's lock.

use super::*;
use crate::config::Config;
use crate::driver::Driver;
use crate::driver::host::{HostDriver, HostOptions};
use crate::pool::{HANDLE_SHIFT, Pool, Settings};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

fn host_pool() -> (Arc<HostDriver>, Pool, u64) {
    let options = HostOptions { total_bytes: 256 * MIB, ..HostOptions::default() };
    let total = options.total_bytes as u64;
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), total, true);
    settings.keeper = false;
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let stream = driver.stream_create().expect("a stream").0;
    (driver, pool, stream)
}

/// Lengths that take each way: a slot, an extent.
const LENGTHS: [usize; 2] = [1000, 3 * MIB];

#[test]
fn a_cache_removed_after_it_was_found_is_not_used() {
    let (_driver, pool, stream) = host_pool();
    for bytes in LENGTHS {
        let live = pool.alloc(bytes, stream).expect("fits");
        let found = find(pool.handle(), stream).expect("warm");
        // As another thread does it that holds the registry's lock: from here until the memory
        // is the arena's again, only the core's lock tells this thread.
        let removed = found.shared().with_core(pool.id(), |core| {
            // SAFETY: the core is locked, and the owner of the cache is here.
            core.remove_cache(unsafe { &mut *found.0 });
        });
        removed.expect("alive");
        let answer = alloc_from(found, bytes, 0, stream).expect("not a failure");
        assert_eq!(answer, None, "{bytes} bytes out of a cache that is gone");
        assert!(!free_into(found, live, stream).expect("not a failure"), "{bytes} bytes");
        // Nothing was freed.
        pool.with_core(|core| core.locate(live).expect("still live")).expect("alive");
        // The rest of its removal; the next look-up makes a new one.
        let key = found.key();
        registry::without_caches(pool.id(), |lane| lane.key == key, |_| ()).expect("membarrier");
        pool.dealloc(live, stream).expect("live");
        let again = pool.alloc(bytes, stream).expect("fits");
        pool.dealloc(again, stream).expect("live");
    }
}

#[test]
fn a_cache_taken_away_again_and_again_is_looked_up_again() {
    const TAKEN: usize = 1000;
    let (_driver, pool, stream) = host_pool();
    let key = pool.handle() ^ stream;
    let id = pool.id();
    let mut operations = 0;
    thread::scope(|scope| {
        let taker = scope.spawn(move || {
            for _ in 0..TAKEN {
                registry::without_caches(id, |lane| lane.key == key, |_| ()).expect("membarrier");
                // Not so often that sixteen looks in a row could all be too late.
                thread::sleep(Duration::from_micros(50));
            }
        });
        while !taker.is_finished() {
            let block = pool.alloc(LENGTHS[operations % 2], stream).expect("the stream lives");
            pool.dealloc(block, stream).expect("live");
            operations += 1;
        }
    });
    let stats = pool.stats().expect("alive");
    assert_eq!((stats.allocs, stats.frees), (operations as u64, operations as u64));
    assert_eq!((stats.live_blocks, stats.live_bytes), (0, 0));
    assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
}

/// The lane of the slab that a block lies in.
fn lane_of(pool: &Pool, address: usize) -> LaneId {
    let located = pool.with_core(|core| core.locate(address)).expect("alive").expect("live");
    let Located::Slot { lane, .. } = located else { panic!("{address:#x} is no slot") };
    lane
}

#[test]
fn no_thread_enters_while_a_key_changes_its_lane() {
    const ROUNDS: usize = 60;
    let (driver, pool, _) = host_pool();
    for round in 0..ROUNDS {
        let stream = driver.stream_create().expect("a stream");
        let key = (pool.id() << HANDLE_SHIFT) ^ stream.0;
        let (pool, id) = (&pool, pool.id());
        let (switched, has_switched) = mpsc::channel::<()>();
        let (captured, before, block) = thread::scope(|scope| {
            let held = pool.with_core(|_| {
                // While the core is held here, both threads come as far as they can.
                let switcher = scope.spawn(move || {
                    let begin = |core: &mut Core| core.lanes.capture_begin(key, stream);
                    registry::without_caches(id, |lane| lane.key == key, begin)
                });
                let user = scope.spawn(move || {
                    let first = pool.alloc(1000, stream.0).expect("fits");
                    has_switched.recv().expect("the switch ends");
                    let second = pool.alloc(1000, stream.0).expect("fits");
                    pool.dealloc(first, stream.0).expect("live");
                    second
                });
                thread::sleep(Duration::from_micros(500));
                (switcher, user)
            });
            let (switcher, user) = held.expect("alive");
            let begun = switcher.join().expect("no panic").expect("membarrier");
            let (lane, before) = begun.expect("a lane is left");
            switched.send(()).expect("the user waits");
            (lane, before, user.join().expect("no panic"))
        });
        assert_eq!(lane_of(pool, block), captured, "round {round}: memory of the capture");
        registry::without_caches(
            id,
            |lane| lane.key == key,
            |core| {
                core.lanes.capture_end(key, before);
            },
        )
        .expect("membarrier");
        pool.dealloc(block, stream.0).expect("live");
    }
}
