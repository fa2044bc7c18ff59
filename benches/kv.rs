//! What the bookkeeping of a paged KV cache costs: nanoseconds of thread CPU time, medians.
//!
//! 100,000 blocks of 16 tokens, prefixes, statistics and events on. Each load is run some rounds in
//! one process; the median is the figure. No device is touched: there is none in this layer; save
//! by the rows of `kv/memory.rs`, whose device is the host backend.
//! `--json` prints `{"rows":[...]}`; `--quick` runs fewer rounds. Cost: some seconds.

#[path = "../cli/src/cpu_time.rs"]
mod cpu_time;
#[path = "kv/memory.rs"]
mod memory;

use cpu_time::thread_cpu_ns;
use forebay::kv::{
    Append, Config, Content, Element, Geometry, KvCache, NO_FENCE, Open, Order, Seq, Tokens,
};
use serde_json::{Value, json};
use std::time::Instant;

const BLOCKS: u32 = 100_000;
const BLOCK_TOKENS: u32 = 16;
/// Sequences of a decode step.
const BATCH: usize = 256;
/// Tokens of a long prompt.
const PROMPT: usize = 8192;

/// One figure; a target is the most it may be.
struct Row {
    name: &'static str,
    value: f64,
    unit: &'static str,
    target: Option<f64>,
}

/// Llama-3-8B in bf16: a block is 2 MiB.
fn llama() -> Geometry {
    Geometry {
        layers: 32,
        heads: 8,
        key_size: 128,
        value_size: 128,
        block_tokens: BLOCK_TOKENS,
        element: Element::Bf16,
        content: Content::Attention { window: 0 },
        order: Order::BlockOuter,
    }
}

fn cache() -> KvCache {
    let config = Config { events: 65_536, max_sequences: 4096, ..Config::new(llama(), BLOCKS) };
    KvCache::new(config).expect("memory for the tables")
}

fn open(cache: &KvCache, salt: u64) -> Seq {
    cache.open(Open { salt, priority: 0 }).expect("there is room")
}

fn filled(cache: &KvCache, salt: u64, tokens: &[i32]) -> Seq {
    let seq = open(cache, salt);
    cache.append(seq, Tokens::Known(tokens)).expect("blocks");
    cache.commit(seq, tokens.len() as u32, NO_FENCE).expect("they are there");
    seq
}

/// Nanoseconds of this thread's CPU time for `load`.
fn ns(load: impl FnOnce()) -> f64 {
    let start = thread_cpu_ns();
    load();
    (thread_cpu_ns() - start) as f64
}

fn median(rounds: usize, mut round: impl FnMut(usize) -> f64) -> f64 {
    let mut figures: Vec<f64> = (0..rounds).map(&mut round).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A pair of calls for `LEN` blocks, a block.
fn blocks<const LEN: usize>(cache: &KvCache, rounds: usize) -> f64 {
    let turns = 100_000 / LEN;
    median(rounds, |_| {
        let spent = ns(|| {
            let mut ids = [0; LEN];
            for _ in 0..turns {
                cache.take_blocks(0, &mut ids).expect("blocks");
                cache.release_blocks(0, &ids, NO_FENCE).expect("held");
            }
        });
        spent / (turns * LEN) as f64
    })
}

fn prompt(salt: usize) -> Vec<i32> {
    (0..PROMPT).map(|at| (at * 31 + salt * 7919) as i32).collect()
}

fn prefill(cache: &KvCache, rounds: usize) -> f64 {
    median(rounds, |round| {
        let tokens = prompt(round);
        let seq = open(cache, 1);
        let spent = ns(|| {
            assert_eq!(cache.find_prefix(seq, &tokens).expect("empty").tokens, 0);
            cache.append(seq, Tokens::Known(&tokens)).expect("blocks");
            cache.commit(seq, PROMPT as u32, NO_FENCE).expect("there");
        });
        cache.free(&[seq], NO_FENCE).expect("open");
        spent / 1e3
    })
}

/// A prompt of which all blocks are hit, and the sequence's end.
fn hits(cache: &KvCache, rounds: usize) -> (f64, f64) {
    let tokens = prompt(0);
    let mut ends = Vec::new();
    let hit = median(rounds, |_| {
        let seq = open(cache, 1);
        let spent = ns(|| {
            let found = cache.find_prefix(seq, &tokens).expect("empty");
            assert_eq!(found.shared as usize, PROMPT);
        });
        ends.push(ns(|| cache.free(&[seq], NO_FENCE).expect("open")) / 1e3);
        spent / 1e3
    });
    (hit, median(ends.len(), |at| ends[at]))
}

fn fork(cache: &KvCache, rounds: usize) -> f64 {
    let tokens = &prompt(7)[..188 * BLOCK_TOKENS as usize - 5];
    let seq = filled(cache, 2, tokens);
    let figure = median(rounds, |_| {
        let mut fork = [seq];
        let spent = ns(|| cache.fork(seq, tokens.len() as u32, &mut fork).expect("room"));
        cache.free(&fork, NO_FENCE).expect("open");
        spent / 1e3
    });
    cache.free(&[seq], NO_FENCE).expect("open");
    figure
}

/// Decode steps of [`BATCH`] sequences of about 1,000 tokens: a step with statistics, the part of a
/// sequence, what changed in the tables, and a token appended and committed by calls of its own.
fn decode(cache: &KvCache, rounds: usize) -> [f64; 4] {
    let mut lens: Vec<u32> = (0..BATCH as u32).map(|at| 1000 + at).collect();
    let seqs: Vec<Seq> = (10..)
        .zip(&lens)
        .map(|(salt, &len)| filled(cache, salt, &prompt(salt as usize)[..len as usize]))
        .collect();
    let mut rows = vec![0; BATCH * 512];
    let mut deltas = Vec::new();
    cache.rows(0, &seqs, &mut rows, 512, &mut deltas).expect("they fit");
    let mut tables = Vec::new();
    let mut token = 0;
    let step = median(rounds * 16, |_| {
        token += 1;
        let tokens = [token];
        let tokens = Tokens::Known(&tokens);
        let appends: Vec<Append<'_>> = seqs.iter().map(|&seq| Append { seq, tokens }).collect();
        lens.iter_mut().for_each(|len| *len += 1);
        let commits: Vec<(Seq, u32)> = seqs.iter().copied().zip(lens.iter().copied()).collect();
        let spent = ns(|| {
            assert_eq!(cache.append_all(&appends), (BATCH, Ok(())));
            cache.commit_all(&commits, NO_FENCE).expect("there");
            assert_eq!(cache.stats().sequences as usize, BATCH);
        });
        deltas.clear();
        tables.push(ns(|| {
            cache.rows(0, &seqs, &mut rows, 512, &mut deltas).expect("they fit");
        }));
        spent / 1e3
    });
    let scalar = median(rounds, |_| {
        let (seq, len) = (seqs[0], &mut lens[0]);
        ns(|| {
            for token in 0..160 {
                cache.append(seq, Tokens::Known(&[token])).expect("a block");
                *len += 1;
                cache.commit(seq, *len, NO_FENCE).expect("there");
            }
        }) / 160.0
    });
    cache.free(&seqs, NO_FENCE).expect("open");
    let table = median(tables.len(), |at| tables[at]) / 1e3;
    [step, step * 1e3 / BATCH as f64, table, scalar]
}

/// Two threads take and release single blocks: nanoseconds by the clock that pass for a pair.
fn two_threads(cache: &KvCache, rounds: usize) -> f64 {
    const PAIRS: u32 = 200_000;
    median(rounds, |_| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut id = [0];
                    for _ in 0..PAIRS {
                        cache.take_blocks(0, &mut id).expect("blocks");
                        cache.release_blocks(0, &id, NO_FENCE).expect("held");
                    }
                });
            }
        });
        start.elapsed().as_nanos() as f64 / f64::from(2 * PAIRS)
    })
}

fn measure(rounds: usize) -> Vec<Row> {
    let most = |name, value, unit, target| Row { name, value, unit, target: Some(target) };
    let cache = cache();
    let mut rows = vec![
        most("take and release a block", blocks::<1>(&cache, rounds), "ns", 80.0),
        most("take and release 128, a block", blocks::<128>(&cache, rounds), "ns", 25.0),
        most("prefill of 8192 tokens", prefill(&cache, rounds), "us", 150.0),
    ];
    let (hit, end) = hits(&cache, rounds);
    rows.push(most("hit of 512 blocks", hit, "us", 50.0));
    rows.push(most("end of 512 blocks", end, "us", 10.0));
    rows.push(most("fork of 188 blocks", fork(&cache, rounds), "us", 3.0));
    let [step, each, table, scalar] = decode(&cache, rounds);
    rows.push(most("decode step of 256 sequences", step, "us", 25.0));
    rows.push(most("decode, a sequence of a step", each, "ns", 60.0));
    rows.push(most("decode by single calls", scalar, "ns", 100.0));
    rows.push(most("table deltas of a step", table, "us", 5.0));
    // 15 million a second.
    rows.push(most("two threads, a pair", two_threads(&cache, rounds), "ns", 66.7));
    rows
}

fn main() {
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    let rounds = if has("--quick") { 5 } else { 25 };
    let mut rows = measure(rounds);
    rows.extend(memory::measure(rounds));
    let met = |row: &Row| row.target.map(|target| row.value <= target);
    if has("--json") {
        let object = |row: &Row| {
            json!({
                "name": format!("kv/{}", row.name), "value": row.value, "unit": row.unit,
                "target": row.target, "met": met(row), "peers": {},
            })
        };
        let rows: Vec<Value> = rows.iter().map(object).collect();
        println!("{}", json!({ "rows": rows }));
        return;
    }
    for row in &rows {
        let judged = match (row.target, met(row)) {
            (Some(target), Some(true)) => format!("<= {target:5} met"),
            (Some(target), _) => format!("<= {target:5} MISSED"),
            (None, _) => String::new(),
        };
        println!("{:42} {:>9.2} {:4} {judged}", row.name, row.value, row.unit);
    }
}
