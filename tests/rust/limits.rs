//! Limits and what gives memory back: hard and soft limits, reservoir, trim, decay, reports,
//! the owner's callback; and that a limit's bytes can really be had.

#[path = "common/device.rs"]
mod common;
#[path = "limits/full_use.rs"]
mod full_use;
#[path = "limits/refusals.rs"]
mod refusals;
#[path = "common/rounds.rs"]
mod rounds;
#[path = "limits/waits.rs"]
mod waits;

use common::{MIB, Random, check_books};
use forebay::config::Config;
use forebay::driver::Driver;
use forebay::driver::faulty::CallSet;
use forebay::error::Status;
use forebay::pool::{Pool, Settings};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Waits for the keeper. When it comes is not what is tested.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_hard_limit_holds_under_random_load_of_several_threads() {
    const LIMIT: usize = 24 * MIB;
    let driver = common::plain_device(64 * MIB);
    let mut settings = common::settings(&driver);
    settings.limit = LIMIT as u64;
    settings.oom_wait = Duration::ZERO;
    let pool = Arc::new(common::pool(&driver, settings));
    let streams: Vec<u64> = (0..4).map(|_| driver.stream_create().expect("a stream").0).collect();
    let done = AtomicBool::new(false);
    let seed = common::seed(11);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut looks = 0u64;
            while !done.load(Ordering::Relaxed) {
                let census = driver.inner().census();
                assert!(census.page_bytes <= LIMIT, "{census:?}");
                looks += 1;
                std::thread::yield_now();
            }
            looks
        });
        let workers: Vec<_> = streams
            .iter()
            .map(|&stream| {
                let (driver, pool) = (&driver, &pool);
                scope.spawn(move || {
                    let refused = load(pool, stream, seed + stream);
                    assert!(driver.inner().census().page_bytes <= LIMIT);
                    refused
                })
            })
            .collect();
        let refused: usize = workers.into_iter().map(|w| w.join().expect("no panic")).sum();
        done.store(true, Ordering::Relaxed);
        assert!(watcher.join().expect("no panic") > 0);
        assert!(refused > 0, "the load must reach the limit");
    });
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.live_bytes, stats.live_blocks), (0, 0));
    assert!(stats.peak_mapped_bytes <= LIMIT as u64);
    let pool = Arc::into_inner(pool).expect("the threads are gone");
    common::end(&driver, pool, &streams);
}

/// Random allocations and frees. Answers how many were refused, each for want of memory.
fn load(pool: &Pool, stream: u64, seed: u64) -> usize {
    let mut random = Random(seed);
    let mut live = Vec::new();
    let mut refused = 0;
    for _ in 0..1500 {
        if random.below(8) < 5 {
            match pool.alloc(random.size_to(22), stream) {
                Ok(address) => live.push(address),
                Err(error) => {
                    assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                    refused += 1;
                    live.drain(live.len() / 2..)
                        .for_each(|address| pool.dealloc(address, stream).expect("live"));
                }
            }
        } else if !live.is_empty() {
            let address = live.swap_remove(random.below(live.len()));
            pool.dealloc(address, stream).expect("live");
        }
    }
    live.into_iter().for_each(|address| pool.dealloc(address, stream).expect("live"));
    refused
}

#[test]
fn above_the_soft_limit_idle_pages_are_used_before_new_ones() {
    let driver = common::plain_device(64 * MIB);
    let mut settings = common::settings(&driver);
    settings.soft_limit = Some(16 * MIB as u64);
    let pool = common::pool(&driver, settings);
    let mut blocks: Vec<usize> = (0..8).map(|_| pool.alloc(2 * MIB, 0).expect("fits")).collect();
    blocks.sort_unstable();
    for i in [7, 5, 3, 1] {
        pool.dealloc(blocks.remove(i), 0).expect("live");
    }
    blocks.push(pool.alloc(8 * MIB, 0).expect("four idle pages do"));
    assert_eq!(check_books(&driver, &pool).mapped_bytes, 16 << 20, "no page was created");
    blocks.push(pool.alloc(6 * MIB, 0).expect("the soft limit is no limit to what is live"));
    assert_eq!(check_books(&driver, &pool).mapped_bytes, 22 << 20);
    let hard = pool.alloc(44 * MIB, 0).expect_err("the hard limit is");
    assert_eq!(hard.status(), Status::OutOfMemory);
    blocks.into_iter().for_each(|b| pool.dealloc(b, 0).expect("live"));
    common::end(&driver, pool, &[]);
}

#[test]
fn the_keeper_trims_to_the_soft_limit() {
    let driver = common::plain_device(64 * MIB);
    let mut settings = common::settings(&driver);
    settings.keeper = true;
    settings.soft_limit = Some(8 * MIB as u64);
    let pool = common::pool(&driver, settings);
    let kept = pool.alloc(2 * MIB, 0).expect("fits");
    // By now it has had its first look, and sleeps.
    std::thread::sleep(Duration::from_millis(50));
    let large = pool.alloc(30 * MIB, 0).expect("below the hard limit");
    pool.dealloc(large, 0).expect("live");
    wait_until("the keeper trims", || driver.inner().census().page_bytes <= 8 * MIB);
    assert_eq!(check_books(&driver, &pool).mapped_bytes, 8 << 20, "and no more than it must");
    pool.set_limits(None, Some(4 << 20)).expect("below the hard limit");
    wait_until("the keeper trims", || driver.inner().census().page_bytes <= 4 * MIB);
    pool.dealloc(kept, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn limits_change_at_run_time() {
    let driver = common::plain_device(256 * MIB);
    let mut settings = common::settings(&driver);
    settings.limit = 16 * MIB as u64;
    let pool = common::pool(&driver, settings);
    let first = pool.alloc(12 * MIB, 0).expect("below the limit");
    pool.alloc(6 * MIB, 0).expect_err("above it");
    // Up, far beyond what the pool was made for.
    pool.set_limits(Some(256 << 20), Some(200 << 20)).expect("the device's size");
    let second = pool.alloc(240 * MIB, 0).expect("below the new limit");
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.limit_bytes, stats.soft_limit_bytes), (256 << 20, 200 << 20));
    pool.dealloc(second, 0).expect("live");
    // Down: idle memory goes back at once, and the soft limit follows.
    pool.set_limits(Some(20 << 20), None).expect("above what is live");
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.limit_bytes, stats.soft_limit_bytes), (20 << 20, 20 << 20));
    assert!(stats.mapped_bytes <= 20 << 20, "{stats:?}");
    // Below what is live: binds what is asked from now on.
    pool.set_limits(Some(4 << 20), None).expect("a limit may be below what is live");
    assert_eq!(check_books(&driver, &pool).mapped_bytes, 12 << 20);
    pool.alloc(2 * MIB, 0).expect_err("nothing more");
    pool.dealloc(first, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn wrong_limits_change_nothing() {
    let (driver, pool) = common::small_pool(64 * MIB);
    let block = pool.alloc(MIB, 0).expect("fits");
    let before = pool.stats().expect("alive");
    let wrong = [
        (Some(65 << 20), None),
        (Some(u64::MAX), None),
        (Some(1 << 20), None),
        (Some(0), None),
        (None, Some(65 << 20)),
        (Some(32 << 20), Some(33 << 20)),
    ];
    for (hard, soft) in wrong {
        let error = pool.set_limits(hard, soft).expect_err("a wrong limit");
        assert_eq!(error.status(), Status::InvalidArgument, "{hard:?} {soft:?}: {error}");
        assert_eq!(pool.stats().expect("alive"), before, "{hard:?} {soft:?}");
    }
    pool.dealloc(block, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn the_reservoir_is_filled_at_the_start_and_used_without_driver_calls() {
    let driver = common::plain_device(64 * MIB);
    let mut settings = common::settings(&driver);
    settings.reserve = 15 * MIB as u64;
    let pool = common::pool(&driver, settings);
    assert_eq!(driver.inner().census().page_bytes, 16 * MIB, "whole granules");
    assert_eq!(check_books(&driver, &pool).idle_bytes, 16 << 20);
    driver.reset_counts();
    let blocks = [5 * MIB, 3 * MIB, 100_000, 256, 7 * MIB];
    let blocks = blocks.map(|bytes| pool.alloc(bytes, 0).expect("in the reservoir"));
    assert_eq!(driver.count_of(CallSet::MEMORY), 0, "nothing is mapped for them");
    blocks.into_iter().for_each(|b| pool.dealloc(b, 0).expect("live"));
    common::end(&driver, pool, &[]);
}

#[test]
fn trim_keeps_what_it_is_told_and_all_that_is_live() {
    let (driver, pool) = common::small_pool(64 * MIB);
    let live = common::Block::new(pool.alloc(5 * MIB, 0).expect("fits"), 5 * MIB, 0, 7);
    let idle = pool.alloc(40 * MIB, 0).expect("fits");
    pool.dealloc(idle, 0).expect("live");
    let held = check_books(&driver, &pool).mapped_bytes;
    assert_eq!(pool.trim(held).expect("no fault"), 0);
    assert_eq!(pool.trim(20 << 20).expect("no fault"), held - (20 << 20));
    assert_eq!(driver.inner().census().page_bytes, 20 * MIB);
    pool.trim(0).expect("no fault");
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.mapped_bytes, stats.idle_bytes), (6 << 20, 0), "what lives needs three");
    live.check();
    pool.dealloc(live.address, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn decay_gives_idle_memory_back_down_to_the_threshold() {
    let driver = common::plain_device(64 * MIB);
    let mut settings = common::settings(&driver);
    settings.keeper = true;
    settings.decay = Duration::from_millis(20);
    settings.release_threshold = 4 * MIB as u64;
    let pool = common::pool(&driver, settings);
    let live = pool.alloc(2 * MIB, 0).expect("fits");
    let idle = pool.alloc(30 * MIB, 0).expect("fits");
    pool.dealloc(idle, 0).expect("live");
    wait_until("idle memory decays", || driver.inner().census().page_bytes <= 6 * MIB);
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.live_bytes, stats.idle_bytes), (2 << 20, 4 << 20));
    pool.dealloc(live, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn headroom_is_left_to_others() {
    let vars = [("FOREBAY_HEADROOM", "24M")];
    let (config, problems) = Config::from_vars(vars);
    assert_eq!(problems, []);
    let driver = common::plain_device(64 * MIB);
    let total = driver.device().total_bytes as u64;
    for host in [true, false] {
        assert_eq!(Settings::resolve(&config, total, host).limit, 40 << 20);
    }
    let mut settings = Settings::resolve(&config, total, true);
    settings.keeper = false;
    let pool = common::pool(&driver, settings);
    let most = pool.alloc(40 * MIB, 0).expect("all but the headroom");
    pool.alloc(256, 0).expect_err("the headroom is not the pool's");
    let (free, of) = driver.memory_info().expect("no fault");
    assert_eq!((free, of), (24 * MIB, 64 * MIB), "others find it free");
    pool.dealloc(most, 0).expect("live");
    common::end(&driver, pool, &[]);
}

/// `FOREBAY_AHEAD`: while a pool grows, its keeper maps what growth will need; never more than
/// asked, never above a limit, and nothing where it is off.
#[test]
fn the_keeper_maps_ahead_of_a_growing_pool() {
    const AHEAD: u64 = 8 << 20;
    let driver = common::plain_device(1 << 30);
    let mut settings = common::settings(&driver);
    settings.keeper = true;
    settings.ahead = AHEAD;
    settings.soft_limit = Some(768 << 20);
    let pool = common::pool(&driver, settings);
    let mut live = Vec::new();
    let mut hits = 0;
    while hits < 5 {
        let idle = pool.stats().expect("alive").idle_bytes;
        assert!(idle <= AHEAD, "{idle}");
        let calls = driver.count_of(CallSet::MEMORY);
        live.push(pool.alloc(2 * MIB, 0).expect("fits"));
        // The keeper may have called in between: only a quiet allocation tells.
        hits += u32::from(idle > 0 && driver.count_of(CallSet::MEMORY) == calls);
        assert!(live.len() < 380, "nothing was mapped ahead of {} allocations", live.len());
        std::thread::sleep(Duration::from_millis(10));
    }
    let grown = live.len() as u64 * (2 << 20);
    assert!(pool.stats().expect("alive").mapped_bytes <= grown + AHEAD);
    // Growth has ended: what is ahead serves the next, and no more comes.
    wait_until("the keeper goes on", || {
        let before = pool.stats().expect("alive").mapped_bytes;
        std::thread::sleep(Duration::from_millis(50));
        pool.stats().expect("alive").mapped_bytes == before
    });
    check_books(&driver, &pool);
    for block in live {
        pool.dealloc(block, 0).expect("live");
    }
    common::end(&driver, pool, &[]);
}

#[test]
fn nothing_is_mapped_ahead_by_default() {
    let driver = common::plain_device(1 << 30);
    let mut settings = common::settings(&driver);
    settings.keeper = true;
    assert_eq!(settings.ahead, 0);
    let pool = common::pool(&driver, settings);
    let live: Vec<usize> = (0..20)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(4));
            pool.alloc(2 * MIB, 0).expect("fits")
        })
        .collect();
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.mapped_bytes, stats.idle_bytes), (40 << 20, 0));
    for block in live {
        pool.dealloc(block, 0).expect("live");
    }
    common::end(&driver, pool, &[]);
}
