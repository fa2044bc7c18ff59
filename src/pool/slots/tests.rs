//! What partial slabs keep from everyone else, measured under a load that is hard on them; what a
//! magazine holds that came from a depot; slabs where the tables are nearly full.

use crate::base::units::QUANTUM;
use crate::config::Config;
use crate::driver::Driver;
use crate::driver::host::{HostDriver, HostOptions};
use crate::error::Status;
use crate::pool::cache::{capacity_max, capacity_min};
use crate::pool::{Pool, Settings};
use crate::slab::class::class_of;
use std::sync::Arc;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A small generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % end as u64) as usize
    }
}

/// Means over the second half of a run, in MiB.
#[derive(Debug)]
struct Means {
    live: f64,
    in_slabs: f64,
    in_caches: f64,
    mapped: f64,
}

/// 64 KiB blocks on `lanes` streams, each freed at a random moment on its own stream, with
/// about `live` bytes of them at a time.
fn random_lifetimes(lanes: usize, live: usize, seed: u64) -> Means {
    const BLOCK: usize = 64 * KIB;
    const OPERATIONS: usize = 60_000;
    let options = HostOptions { total_bytes: 1 << 30, ..HostOptions::default() };
    let total = options.total_bytes as u64;
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), total, true);
    settings.keeper = false;
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let streams: Vec<u64> =
        (0..lanes).map(|_| driver.stream_create().expect("a stream").0).collect();
    let (mut random, mut blocks) = (Random(seed), Vec::new());
    let (target, mut sums, mut samples) = (live / BLOCK, [0u64; 4], 0u64);
    for operation in 0..OPERATIONS {
        // As likely more as fewer at the target, pulled towards it.
        if random.below(2 * target) >= blocks.len() {
            let stream = streams[random.below(lanes)];
            blocks.push((pool.alloc(BLOCK, stream).expect("fits"), stream));
        } else {
            let (block, stream) = blocks.swap_remove(random.below(blocks.len()));
            pool.dealloc(block, stream).expect("live");
        }
        if operation > OPERATIONS / 2 && operation % 100 == 0 {
            let stats = pool.stats().expect("alive");
            let in_slabs = pool.with_core(|core| core.slabs.free_bytes()).expect("alive");
            let now =
                [stats.live_bytes, in_slabs, stats.cached_bytes - in_slabs, stats.mapped_bytes];
            sums.iter_mut().zip(now).for_each(|(sum, now)| *sum += now);
            samples += 1;
        }
    }
    let [live, in_slabs, in_caches, mapped] =
        sums.map(|sum| sum as f64 / samples as f64 / MIB as f64);
    Means { live, in_slabs, in_caches, mapped }
}

/// The figures are in docs/decisions.md, with what other lengths of slabs would give.
#[test]
fn partial_slabs_of_large_slots_keep_a_bounded_share() {
    for lanes in [1, 4, 8, 16] {
        for seed in 1..3 {
            let means = random_lifetimes(lanes, 110 * MIB, seed);
            println!("{lanes} lanes, seed {seed}: {means:.1?}");
            let idle = means.in_slabs + means.in_caches;
            assert!(means.in_slabs < 0.12 * means.live, "{lanes} lanes, seed {seed}: {means:?}");
            assert!(idle < 0.25 * means.live, "{lanes} lanes, seed {seed}: {means:?}");
            assert!(means.mapped < 1.4 * means.live, "{lanes} lanes, seed {seed}: {means:?}");
        }
    }
}

/// A thread fills the lane's depot with magazines as long as they may be. Another thread, whose
/// budget is spent, takes one that is longer than its own may be, and frees into it.
#[test]
fn a_magazine_from_a_depot_is_cut_to_what_its_taker_may_hold() {
    const BLOCK: usize = 4 * KIB;
    let class = class_of(BLOCK);
    let (least, most) = (capacity_min(class), capacity_max(class));
    assert!(least < most, "the class's magazines grow");
    let options = HostOptions { total_bytes: 1 << 26, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), 1 << 26, true);
    settings.keeper = false;
    let pool = Pool::with_driver(driver as Arc<dyn Driver>, settings).expect("a pool");
    let held = |count: u32| -> Vec<usize> {
        (0..count).map(|_| pool.alloc(BLOCK, 0).expect("fits")).collect()
    };
    let free_all = |blocks: &mut dyn Iterator<Item = usize>| {
        blocks.for_each(|block| pool.dealloc(block, 0).expect("live"));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| free_all(&mut held(8 * most).into_iter()));
    });
    let magazine = || {
        let read = |core: &mut crate::pool::core::Core| {
            let cache = core.caches.last().expect("this thread's");
            // SAFETY: the owner is this thread, which is not in an operation.
            let cache = unsafe { &*cache.0 };
            (cache.mags[class].len, cache.mags[class].cap, cache.prev[class].len)
        };
        pool.with_core(read).expect("alive")
    };
    let mut blocks = held(1);
    assert_eq!(magazine(), (most - 1, least, 0), "a whole magazine of the other thread's");
    pool.with_core(|core| while core.budget.take(1) {}).expect("alive");
    blocks.extend(held(least));
    let behind = most - 1 - least;
    assert!(behind > least + super::SOME as u32, "one passage does not do");
    free_all(&mut blocks.drain(..least as usize));
    assert_eq!(magazine(), (least, least, behind), "no more than it may hold, before the old");
    free_all(&mut blocks.drain(..1));
    let (len, cap, behind) = magazine();
    assert_eq!((cap, behind), (least, least), "the budget is spent");
    assert!(len <= cap, "{len} in a magazine of {cap}");
    free_all(&mut blocks.drain(..));
    assert_eq!(pool.stats().expect("alive").live_blocks, 0);
}

/// With 128 marks left, a slab of the length that the class would have does not fit, and the
/// shortest does.
#[test]
fn a_shorter_slab_is_tried_where_the_tables_of_slots_are_full() {
    const BLOCK: usize = 256;
    const SLOTS: usize = QUANTUM / BLOCK;
    let options = HostOptions { total_bytes: 1 << 26, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), 1 << 26, true);
    settings.keeper = false;
    settings.oom_wait = std::time::Duration::ZERO;
    let pool = Pool::with_driver(driver as Arc<dyn Driver>, settings).expect("a pool");
    let take_all = |core: &mut crate::pool::core::Core| {
        let mut last = None;
        while let Some(range) = core.marks.take_range(16_383) {
            last = Some(range);
        }
        core.marks.give_range(last.expect("the tables were empty"), SLOTS);
    };
    pool.with_core(take_all).expect("alive");
    let mut blocks: Vec<usize> =
        (0..SLOTS).map(|_| pool.alloc(BLOCK, 0).expect("a slab of a quantum")).collect();
    let full = pool.alloc(BLOCK, 0).expect_err("no mark is left");
    assert_eq!(full.status(), Status::OutOfMemory, "{full}");
    pool.dealloc(blocks.pop().expect("there are"), 0).expect("live");
    blocks.push(pool.alloc(BLOCK, 0).expect("its slot is free"));
    let extent = pool.alloc(3 * MIB, 0).expect("extents need no marks");
    blocks.into_iter().chain([extent]).for_each(|b| pool.dealloc(b, 0).expect("live"));
    assert_eq!(pool.stats().expect("alive").live_blocks, 0);
}
