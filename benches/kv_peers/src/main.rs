//! NVIDIA's `kvbm-logical` under the loads of `benches/kv.rs`: as many blocks of as many tokens, in
//! nanoseconds of thread CPU time (two threads: by the clock), medians. Prints one JSON object, a
//! load's name to its figure in the unit that the cache's own row has. A prompt's hashes are given
//! to it; the cache's own row includes them.

#[path = "../../../cli/src/cpu_time.rs"]
mod cpu_time;

use cpu_time::thread_cpu_ns;
use kvbm_logical::blocks::ImmutableBlock;
use kvbm_logical::manager::FrequencyTrackingCapacity;
use kvbm_logical::{BlockManager, BlockRegistry, SequenceHash};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

const BLOCKS: usize = 100_000;
const BLOCK_TOKENS: usize = 16;
/// Blocks of a prompt of 8,192 tokens.
const PROMPT: usize = 512;

/// What the blocks hold, in the type's words: memory of one kind.
#[derive(Clone)]
struct Device;

fn manager() -> BlockManager<Device> {
    let tracker = FrequencyTrackingCapacity::Medium.create_tracker();
    let registry = BlockRegistry::builder().frequency_tracker(tracker).build();
    let builder = BlockManager::<Device>::builder().block_count(BLOCKS).block_size(BLOCK_TOKENS);
    builder.registry(registry).with_lru_backend().build().expect("a manager")
}

fn ns(load: impl FnOnce()) -> f64 {
    let start = thread_cpu_ns();
    load();
    (thread_cpu_ns() - start) as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn take_and_release(count: usize, rounds: usize) -> f64 {
    let manager = manager();
    let turns = 100_000 / count;
    let round = |_| {
        ns(|| {
            for _ in 0..turns {
                black_box(manager.allocate_blocks(count).expect("blocks"));
            }
        }) / (turns * count) as f64
    };
    median((0..rounds).map(round).collect())
}

fn hashes(salt: u64) -> Vec<SequenceHash> {
    let hash = |at: u64| (salt * 1_000_003 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let link = |at: u64| SequenceHash::new(hash(at), (at > 0).then(|| hash(at - 1)), at);
    (0..PROMPT as u64).map(link).collect()
}

/// A prompt that is not there, the same once it is, and its end, in microseconds.
fn prompts(rounds: usize) -> [f64; 3] {
    let manager = manager();
    let (mut prefill, mut hit, mut end) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds as u64 {
        let hashes = hashes(round);
        let mut held: Vec<ImmutableBlock<Device>> = Vec::new();
        prefill.push(ns(|| {
            assert!(manager.match_blocks(&hashes).is_empty());
            let blocks = manager.allocate_blocks(PROMPT).expect("blocks");
            let staged = blocks.into_iter().zip(&hashes);
            let staged =
                staged.map(|(block, hash)| block.stage(*hash, BLOCK_TOKENS).expect("full"));
            held = manager.register_blocks(staged.collect());
        }) / 1e3);
        drop(held);
        let mut found = Vec::new();
        hit.push(ns(|| found = manager.match_blocks(&hashes)) / 1e3);
        assert_eq!(found.len(), PROMPT);
        end.push(ns(|| drop(found)) / 1e3);
    }
    [prefill, hit, end].map(median)
}

fn two_threads(rounds: usize) -> f64 {
    const PAIRS: usize = 200_000;
    let manager = manager();
    let round = |_| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..PAIRS {
                        black_box(manager.allocate_blocks(1).expect("a block"));
                    }
                });
            }
        });
        start.elapsed().as_nanos() as f64 / (2 * PAIRS) as f64
    };
    median((0..rounds).map(round).collect())
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let rounds = if quick { 5 } else { 25 };
    let [prefill, hit, end] = prompts(rounds);
    let figures = json!({
        "take and release a block": take_and_release(1, rounds),
        "take and release 128, a block": take_and_release(128, rounds),
        "prefill of 8192 tokens": prefill,
        "hit of 512 blocks": hit,
        "end of 512 blocks": end,
        "two threads, a pair": two_threads(rounds),
    });
    println!("{figures}");
}
