//! What partial slabs keep from everyone else, measured under a load that is hard on them.

use crate::config::Config;
use crate::driver::Driver;
use crate::driver::host::{HostDriver, HostOptions};
use crate::pool::{Pool, Settings};
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
