//! Fences, on streams that are late for certain: no block is reused, and no page unmapped, before
//! the fence of its free has passed. Each case has a canary: without the fence the reuse shows.

use crate::device::{self, Random, seed};
use crate::{MIB, blocks_of, host_pool, llama, memory, sequence, small};
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Call, Driver, StreamHandle};
use forebay::kv::{KvError, NO_FENCE, Open, Order, Seq, Tokens};
use forebay::paged::{KvMemory, MemoryError};
use forebay::pool::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 2 * MIB as u64;

fn late() -> (Arc<HostDriver>, Pool, Vec<u64>) {
    host_pool(HostOptions { total_bytes: 64 * MIB, ..HostOptions::default() }, 2)
}

/// Looks at blocks that were queued, and those that found another's bytes. Live for ever: looks
/// may run late.
#[derive(Default)]
struct Findings {
    looks: AtomicU64,
    corrupt: AtomicU64,
}

/// The queued look: address, bytes, value, findings.
fn look([address, bytes, value, findings]: [usize; 4]) {
    // SAFETY: the block has memory until its fence has passed, and findings live for ever.
    let (block, findings) = unsafe {
        let block = std::slice::from_raw_parts(address as *const u8, bytes);
        (block, &*(findings as *const Findings))
    };
    findings.looks.fetch_add(1, Ordering::Relaxed);
    let same = block.iter().all(|&byte| byte == value as u8);
    findings.corrupt.fetch_add(u64::from(!same), Ordering::Relaxed);
}

fn address(memory: &KvMemory, block: u32) -> usize {
    let view = memory.view(0).expect("a group");
    view.base + block as usize * view.block_stride as usize
}

/// Queues a write of all of a block on a stream.
fn fill(driver: &HostDriver, memory: &KvMemory, block: u32, value: u8, stream: u64) {
    let to = address(memory, block);
    let bytes = memory.view(0).expect("a group").layout.block_bytes as usize;
    driver.fill(to, value, bytes, StreamHandle(stream)).expect("a live stream");
}

#[test]
fn blocks_are_reused_after_their_fence_only() {
    for fenced in [true, false] {
        let (driver, pool, s) = late();
        let memory = memory(&pool, llama(Order::BlockOuter), 9, 9);
        let cache = memory.cache();
        let seq = sequence(cache, 16 * 8);
        let held = blocks_of(cache, seq);
        driver.hold(StreamHandle(s[0])).expect("a stream");
        held.iter().for_each(|&block| fill(&driver, &memory, block, 1, s[0]));
        let fence = if fenced { memory.fence(&[s[1], s[0]]).expect("streams") } else { NO_FENCE };
        cache.free(&[seq], fence).expect("open");
        memory.poll().expect("no fault");
        let next = cache.open(Open::default()).expect("room");
        let got = cache.append(next, Tokens::Count(1));
        assert_eq!(got.is_err(), fenced, "{got:?}");
        driver.unhold(StreamHandle(s[0])).expect("a stream");
        driver.quiesce();
        assert_eq!(memory.poll().expect("no fault"), fence);
        cache.append(next, Tokens::Count(16)).expect("the fence has passed");
    }
}

#[test]
fn pages_are_given_back_after_the_fence_only() {
    let (driver, pool, s) = late();
    let memory = memory(&pool, llama(Order::BlockOuter), 9, 9);
    let cache = memory.cache();
    let seq = sequence(cache, 16 * 8);
    driver.hold(StreamHandle(s[0])).expect("a stream");
    for block in 1..9 {
        fill(&driver, &memory, block, 1, s[0]);
    }
    let fence = memory.fence(&[s[0]]).expect("a stream");
    cache.free(&[seq], fence).expect("open");
    let shrunk = memory.resize(0, 2).expect("it drains");
    assert_eq!((shrunk.open, shrunk.backed, shrunk.bytes), (2, 9, 9 * PAGE));
    memory.poll().expect("no fault");
    pool.trim(0).expect("no fault");
    assert_eq!(pool.stats().expect("alive").region_bytes, 9 * PAGE);
    // A page that were gone by now would fault this process.
    driver.unhold(StreamHandle(s[0])).expect("a stream");
    driver.quiesce();
    memory.poll().expect("no fault");
    assert_eq!(pool.stats().expect("alive").region_bytes, 2 * PAGE);
}

#[test]
fn fences_pass_in_their_order() {
    let (driver, pool, s) = late();
    let memory = memory(&pool, llama(Order::BlockOuter), 9, 9);
    for &stream in &s {
        driver.hold(StreamHandle(stream)).expect("a stream");
        driver.spin(StreamHandle(stream), 0).expect("a stream");
    }
    let first = memory.fence(&[s[0]]).expect("a stream");
    let second = memory.fence(&[s[1]]).expect("a stream");
    let third = memory.fence_at(7).expect("alive");
    let fourth = memory.fence_at(3).expect("alive");
    assert_eq!((first, second, third, fourth), (1, 2, 3, 4));
    driver.unhold(StreamHandle(s[1])).expect("a stream");
    driver.quiesce_stream(s[1]);
    memory.reach(3).expect("alive");
    assert_eq!(memory.poll().expect("no fault"), 0, "the first has not passed");
    driver.unhold(StreamHandle(s[0])).expect("a stream");
    driver.quiesce();
    assert_eq!(memory.poll().expect("no fault"), second, "the counter is at 3");
    memory.reach(2).expect("alive");
    memory.reach(6).expect("alive");
    assert_eq!(memory.poll().expect("no fault"), second);
    memory.reach(7).expect("alive");
    memory.reach(2).expect("it never goes back");
    assert_eq!(memory.poll().expect("no fault"), fourth);
    assert!(matches!(memory.fence(&[]), Err(MemoryError::Invalid(_))));
}

trait Quiet {
    fn quiesce_stream(&self, stream: u64);
}

impl Quiet for HostDriver {
    fn quiesce_stream(&self, stream: u64) {
        self.stream_synchronize(StreamHandle(stream)).expect("a stream");
    }
}

#[test]
fn copies_keep_both_ends_until_they_are_made() {
    for order in [Order::BlockOuter, Order::LayerOuter] {
        let (driver, pool, s) = late();
        let geometry = small(order);
        let memory = memory(&pool, geometry, 6, 6);
        let cache = memory.cache();
        let seq = sequence(cache, 2);
        let from = blocks_of(cache, seq)[0];
        crate::write_block(&memory, &geometry, from, 42);
        let mut forks = [Seq::from_raw(0)];
        cache.fork(seq, 2, &mut forks).expect("room");
        cache.append(forks[0], Tokens::Count(1)).expect("a block");
        let to = blocks_of(cache, forks[0])[0];
        assert_ne!(from, to);
        driver.hold(StreamHandle(s[0])).expect("a stream");
        let (count, fence) = memory.run_copies(s[0]).expect("no fault");
        assert_eq!((count, fence), (1, Some(1)));
        cache.free(&[seq, forks[0]], NO_FENCE).expect("open");
        memory.poll().expect("no fault");
        assert_eq!(cache.stats().groups[0].counts.quarantined, 2, "both ends wait");
        let shrunk = memory.resize(0, 2).expect("it drains");
        assert_eq!(shrunk.backed, 3, "the target has its memory");
        driver.unhold(StreamHandle(s[0])).expect("a stream");
        driver.quiesce();
        assert!(crate::block_holds(&memory, &geometry, to, 42), "{order:?}");
        assert_eq!(memory.poll().expect("no fault"), 1);
        assert_eq!(memory.backed(0).expect("a group").backed, 2);
        assert_eq!(memory.run_copies(s[0]).expect("no fault"), (0, None));
    }
}

/// A call that failed behind copies that it had queued: the fence that comes is behind these too.
#[test]
fn copies_of_a_failed_call_are_behind_the_next_calls_fence() {
    let (driver, pool) = device::small_pool(64 * MIB);
    let s = [0, 1].map(|_| driver.stream_create().expect("a stream").0);
    let memory = memory(&pool, llama(Order::BlockOuter), 6, 6);
    let cache = memory.cache();
    let seq = sequence(cache, 2);
    let mut forks = [Seq::from_raw(0)];
    cache.fork(seq, 2, &mut forks).expect("room");
    cache.append(forks[0], Tokens::Count(1)).expect("a block");
    driver.inner().hold(StreamHandle(s[0])).expect("a stream");
    driver.fail(Fault::once(CallSet::of(&[Call::EventRecord]), 1));
    assert!(memory.run_copies(s[0]).is_err());
    let (count, fence) = memory.run_copies(s[1]).expect("the fault is over");
    assert_eq!((count, fence), (1, Some(1)));
    assert_eq!(memory.poll().expect("no fault"), 0, "the first copy may still be made");
    driver.inner().unhold(StreamHandle(s[0])).expect("a stream");
    driver.inner().quiesce();
    assert_eq!(memory.poll().expect("no fault"), 1);
    drop(memory);
    device::end(&driver, pool, &s);
}

/// Sequences come and go over two late streams, groups grow and shrink, and each block's last look
/// is queued before its free. Answers how many looks found another's bytes.
fn churn(seed: u64, fenced: bool) -> u64 {
    let granularity = 64 << 10;
    let total_bytes = 64 * granularity;
    let options = HostOptions { total_bytes, granularity, deferred: true, ..Default::default() };
    let (driver, pool, streams) = host_pool(options, 2);
    let memory = memory(&pool, small(Order::BlockOuter), 40, 20);
    let findings: &'static Findings = Box::leak(Box::default());
    let mut rng = Random(seed);
    let mut live: Vec<(Seq, Vec<u32>, u8, u64)> = Vec::new();
    let cache = memory.cache();
    let bytes = memory.view(0).expect("a group").layout.block_bytes as usize;
    for _ in 0..1500 {
        match rng.below(10) {
            0..4 => {
                let seq = cache.open(Open::default()).expect("room");
                let tokens = 1 + rng.below(24) as u32;
                match cache.append(seq, Tokens::Count(tokens)) {
                    Ok(()) => {
                        let (value, stream) = (rng.bits() as u8, streams[rng.below(2)]);
                        let blocks = blocks_of(cache, seq);
                        for &block in &blocks {
                            fill(&driver, &memory, block, value, stream);
                        }
                        live.push((seq, blocks, value, stream));
                    }
                    Err(KvError::NoBlocks(_)) => cache.free(&[seq], NO_FENCE).expect("open"),
                    Err(error) => panic!("{error}"),
                }
            }
            4..7 if !live.is_empty() => {
                let at = rng.below(live.len());
                let (seq, blocks, value, stream) = live.swap_remove(at);
                for block in blocks {
                    let words = [address(&memory, block), bytes, usize::from(value)];
                    let words =
                        [words[0], words[1], words[2], std::ptr::from_ref(findings) as usize];
                    driver.launch(StreamHandle(stream), look, words).expect("a stream");
                }
                let fence = if fenced { memory.fence(&[stream]).expect("one") } else { NO_FENCE };
                cache.free(&[seq], fence).expect("open");
            }
            // Pages that work still uses would fault the process: only with fences.
            7 if fenced => {
                memory.resize(0, 2 + rng.below(39) as u32).expect("there is room");
            }
            8 => _ = driver.step(rng.bits()),
            _ => _ = memory.poll().expect("no fault"),
        }
    }
    cache.check().expect("the accounts");
    driver.run_all();
    let looks = findings.looks.load(Ordering::Relaxed);
    assert!(looks > 50, "{looks} looks");
    findings.corrupt.load(Ordering::Relaxed)
}

#[test]
fn nothing_is_overwritten_before_its_last_look() {
    let seed = seed(20);
    for seed in seed..seed + 8 {
        assert_eq!(churn(seed, true), 0, "seed {seed}");
        assert!(churn(seed, false) > 0, "seed {seed}: without fences the fault must show");
    }
}
