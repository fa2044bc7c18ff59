//! Checkerboards and capped pools: what a pool must do whatever its memory looks like. Shared by
//! tests on small devices and the bench on large ones.
//!
//! Owns nothing. Cost: as many driver calls as the device has granules.
#![allow(dead_code, reason = "each program uses its part")]

use super::common::{MIB, Random, Watched};
use forebay::driver::faulty::CallSet;
use forebay::error::Error;
use forebay::pool::Pool;
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;

/// A granule of the device.
pub const GRANULE: usize = 2 * MIB;

/// What a request cost out of the checkerboard.
#[derive(Clone, Copy, Debug)]
pub struct Gathered {
    /// All driver calls during the request, those for fences included.
    pub calls: u64,
    /// Those that change memory.
    pub memory_calls: u64,
    /// Pages that were mapped for it.
    pub pages: u64,
    /// Rows of pages unmapped for it.
    pub runs: u64,
    /// How long the request took, in ns.
    pub ns: u64,
}

impl Gathered {
    /// The most calls allowed: a map a page, an unmap and what belongs to it a run, and two.
    pub fn most(&self) -> u64 {
        self.pages + 2 * self.runs + 2
    }
}

/// Lets the pool make what it makes once in its life: an event for its fences.
pub fn warm_up(pool: &Pool) -> Result<(), Error> {
    let block = pool.alloc(GRANULE, 0)?;
    pool.dealloc(block, 0)?;
    pool.trim(0).map(|_| ())
}

/// Fills the device with blocks of one granule, frees every second one, and asks for `bytes`.
/// Everything is freed again.
pub fn checkerboard(driver: &Watched, pool: &Pool, bytes: usize) -> Result<Gathered, Error> {
    let count = pool.stats()?.limit_bytes as usize / GRANULE;
    let blocks: Vec<usize> =
        (0..count).map(|_| pool.alloc(GRANULE, 0)).collect::<Result<_, _>>()?;
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    for (i, block) in in_order(blocks).into_iter().enumerate() {
        if i % 2 == 0 { kept.push(block) } else { freed.push(block) }
    }
    for block in freed {
        pool.dealloc(block, 0)?;
    }
    let before = pool.stats()?;
    assert_eq!(before.live_bytes, (kept.len() * GRANULE) as u64);
    assert!(before.largest_bytes <= GRANULE as u64, "no two free granules touch: {before:?}");
    driver.reset_counts();
    let start = std::time::Instant::now();
    let block = pool.alloc(bytes, 0)?;
    let ns = start.elapsed().as_nanos() as u64;
    let (calls, memory_calls) = (driver.total(), driver.count_of(CallSet::MEMORY));
    let after = pool.stats()?;
    let pages = after.calls.maps - before.calls.maps;
    let runs = after.calls.unmaps - before.calls.unmaps;
    assert_eq!(after.mapped_bytes, before.mapped_bytes, "no page was created");
    pool.dealloc(block, 0)?;
    for block in kept {
        pool.dealloc(block, 0)?;
    }
    Ok(Gathered { calls, memory_calls, pages, runs, ns })
}

fn in_order(mut blocks: Vec<usize>) -> Vec<usize> {
    blocks.sort_unstable();
    blocks
}

/// A random past: allocations of all sizes over `streams`, then all of them freed.
pub fn history(pool: &Pool, streams: &[u64], seed: u64, operations: usize) {
    let mut random = Random(seed);
    let mut live: Vec<(usize, u64)> = Vec::new();
    for _ in 0..operations {
        if live.is_empty() || random.below(5) < 3 {
            let stream = streams[random.below(streams.len())];
            // What does not fit is not part of the past.
            if let Ok(address) = pool.alloc(random.size_to(23), stream) {
                live.push((address, stream));
                continue;
            }
        }
        if !live.is_empty() {
            let (address, stream) = live.swap_remove(random.below(live.len()));
            let other = streams[random.below(streams.len())];
            let stream = if random.below(4) == 0 { other } else { stream };
            pool.dealloc(address, stream).expect("live");
        }
    }
    for (address, stream) in live {
        pool.dealloc(address, stream).expect("live");
    }
}

/// Threads that have filled their magazines from a pool and sleep until this is dropped.
pub struct Sleepers {
    wake: Vec<mpsc::Sender<()>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Sleepers {
    /// Starts `count` threads; they sleep when this returns.
    pub fn new(pool: &Arc<Pool>, streams: &[u64], count: usize) -> Sleepers {
        let asleep = Arc::new(Barrier::new(count + 1));
        let (mut wake, mut threads) = (Vec::new(), Vec::new());
        for i in 0..count {
            let (sender, sleep) = mpsc::channel::<()>();
            let (pool, asleep) = (Arc::clone(pool), Arc::clone(&asleep));
            let stream = streams[i % streams.len()];
            threads.push(thread::spawn(move || {
                fill_magazines(&pool, stream);
                asleep.wait();
                // An error says that the sender is gone: time to end.
                let _ = sleep.recv();
            }));
            wake.push(sender);
        }
        asleep.wait();
        Sleepers { wake, threads }
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        self.wake.clear();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !thread::panicking() {
                ended.expect("a sleeper does not panic");
            }
        }
    }
}

/// Lets the pool forget that it was short: for a while after that, it grants new threads'
/// magazines nothing.
fn calm(pool: &Pool, stream: u64) -> Result<(), Error> {
    for _ in 0..10_000 {
        pool.trim(0)?;
        let granted = thread::scope(|scope| {
            let fresh = scope.spawn(|| {
                fill_magazines(pool, stream);
                pool.stats().map(|stats| stats.cached_bytes > 0)
            });
            fresh.join().expect("no panic")
        });
        if granted? {
            return Ok(());
        }
    }
    panic!("magazines stay empty: {:?}", pool.stats()?);
}

/// Allocates and frees slots of several classes, so that their magazines hold some.
fn fill_magazines(pool: &Pool, stream: u64) {
    // A pool that was short a moment ago lets no magazine grow for some thousand misses.
    for _ in 0..5000 {
        let Ok(slot) = pool.alloc(256, stream) else { break };
        pool.dealloc(slot, stream).expect("live");
    }
    for _ in 0..4 {
        for bytes in [256, 4096, 40_000, 150_000] {
            let slots: Vec<usize> =
                (0..24).filter_map(|_| pool.alloc(bytes, stream).ok()).collect();
            for slot in slots {
                pool.dealloc(slot, stream).expect("live");
            }
        }
    }
}

/// [`take_all`] after a random past, while other threads sleep with full magazines. Odd seeds
/// have some more past behind them by then.
pub fn take_capped(
    pool: &Arc<Pool>,
    streams: &[u64],
    (seed, operations): (u64, usize),
    bytes: usize,
) -> Result<usize, Error> {
    history(pool, streams, seed, operations);
    calm(pool, streams[0])?;
    let sleepers = Sleepers::new(pool, streams, 3);
    assert!(pool.stats()?.cached_bytes > 0, "the sleepers hold slots");
    if seed % 2 == 1 {
        history(pool, streams, seed + 1, operations / 10);
    }
    let got = take_all(pool, bytes);
    drop(sleepers);
    got
}

/// Takes blocks of `bytes` until the pool's limit is handed out; answers the bytes it got.
/// They are freed again.
pub fn take_all(pool: &Pool, bytes: usize) -> Result<usize, Error> {
    let limit = pool.stats()?.limit_bytes as usize;
    let mut blocks = Vec::new();
    let mut refused = None;
    while (blocks.len() + 1) * bytes <= limit {
        match pool.alloc(bytes, 0) {
            Ok(block) => blocks.push(block),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let got = blocks.len() * bytes;
    for block in blocks {
        pool.dealloc(block, 0)?;
    }
    if let Some(error) = refused {
        eprintln!("{bytes}-byte blocks end at {got} bytes: {error}");
    }
    Ok(got)
}
