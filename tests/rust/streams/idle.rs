//! Many streams, each used for a while and then idle: what they keep, and that it comes back.

use crate::common::{self, Rng};
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::pool::Pool;
use std::sync::Arc;

const MIB: usize = 1 << 20;
const LIMIT: usize = 1 << 30;
const STREAMS: usize = 64;
/// What an idle stream may keep.
const STRANDED_MAX: u64 = 4 * MIB as u64;

fn pool() -> (Arc<HostDriver>, Pool, Vec<u64>) {
    let options = HostOptions { total_bytes: LIMIT, ..HostOptions::default() };
    let (driver, pool) = common::pool(options, |settings| settings.keeper = false);
    let streams = common::streams(&driver, STREAMS);
    (driver, pool, streams)
}

/// 100 allocations on a stream, up to `most` bytes, used, and freed but for the first `kept`.
fn use_stream(
    pool: &Pool,
    driver: &HostDriver,
    stream: u64,
    rng: &mut Rng,
    most: usize,
    kept: usize,
) {
    let mut live = Vec::new();
    for _ in 0..100 {
        let bytes = rng.size(256, most);
        let block = pool.alloc(bytes, stream).expect("fits");
        driver.fill(block, 1, bytes, StreamHandle(stream)).expect("a live stream");
        live.push(block);
        if live.len() > 10 && rng.one_in(2) {
            let at = kept + rng.below(live.len() - kept);
            pool.dealloc(live.swap_remove(at), stream).expect("live");
        }
    }
    for block in live.drain(kept..) {
        pool.dealloc(block, stream).expect("live");
    }
}

/// Bytes that nobody uses and that are not plainly free, once all work is done.
fn stranded(pool: &Pool, driver: &HostDriver) -> u64 {
    driver.quiesce();
    let stats = pool.stats().expect("alive");
    assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
    stats.mapped_bytes - stats.live_bytes - stats.idle_bytes
}

fn idle_streams(seed: u64, most: usize, kept: usize) {
    let mut rng = Rng(common::seed(seed));
    println!("seed {}", rng.0);
    let (driver, pool, streams) = pool();
    for &stream in &streams {
        use_stream(&pool, &driver, stream, &mut rng, most, kept);
    }
    let each = stranded(&pool, &driver) / STREAMS as u64;
    println!("blocks to {most} B, {kept} kept: {each} bytes stranded an idle stream");
    assert!(each <= STRANDED_MAX, "{each} bytes");
    // Under pressure all of it comes back in one request, of yet another stream.
    // A block that is kept holds a granule, of which it may be the only one.
    let all = LIMIT - kept * STREAMS * 2 * MIB;
    let block = pool.alloc(all, 0).expect("what idle streams keep is at hand");
    pool.dealloc(block, 0).expect("live");
}

#[test]
fn idle_streams_keep_little_and_give_it_back_under_pressure() {
    for (most, kept) in [(4096, 0), (256 << 10, 0), (2 * MIB, 0), (4096, 1)] {
        idle_streams(7, most, kept);
    }
}

/// The same streams in turn, many times: what they keep does not grow.
#[test]
fn streams_used_again_and_again_keep_no_more() {
    let mut rng = Rng(common::seed(8));
    println!("seed {}", rng.0);
    let (driver, pool, streams) = pool();
    let mut most = 0;
    for _ in 0..8 {
        for &stream in &streams {
            use_stream(&pool, &driver, stream, &mut rng, 256 << 10, 0);
        }
        most = most.max(stranded(&pool, &driver) / STREAMS as u64);
    }
    println!("{most} bytes stranded an idle stream at most");
    assert!(most <= STRANDED_MAX, "{most} bytes");
}
