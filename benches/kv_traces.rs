//! How much of a KV cache's memory holds tokens when real requests are served, and what prefixes
//! save: logical blocks only, no device.
//!
//! `--traces FOLDER` has the Azure LLM inference traces and Mooncake's conversation trace.
//! *Waste*: requests wait from the start and are served by continuous batching, so that memory is
//! full until the last ones; the last prompt is computed in chunks as far as blocks reach, a
//! hundredth of them is left to running requests, and the newest is put back when blocks lack.
//! Bytes that hold the keys and values of no token, over all bytes, mean of the steps while
//! requests wait. Beside it the same with memory for the trace's longest request each.
//! *Prefixes*: Mooncake's requests one after the other on a cache of a given size; tokens found
//! over tokens asked for, beside what a cache without end would find, counted from the trace's own
//! block hashes alone.
//! `--json` prints `{"rows":[...]}`. Cost: some seconds, and about 1 GiB for the largest cache.

use forebay::kv::{
    Append, Config, Content, Element, Geometry, KvCache, KvError, NO_FENCE, Open, Order, Seq,
    Tokens,
};
use serde_json::{Value, json};
use std::collections::{HashSet, VecDeque};
use std::io::Read as _;
use std::path::Path;

/// 16 tokens of Llama-3-8B in bf16 are 2 MiB: so many blocks are 55 GiB.
const BLOCKS: u32 = 28_000;
const BLOCK_TOKENS: u32 = 16;
/// Bytes that may hold no token, in percent: PagedAttention's figure, arXiv 2309.06180, figure 2.
const WASTE: f64 = 3.7;
/// Tokens of a block of Mooncake's hashes.
const HASHED: usize = 512;

struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    target: Option<f64>,
}

#[derive(Clone, Copy)]
struct Request {
    known: u32,
    end: u32,
}

struct Running {
    seq: Seq,
    len: u32,
    end: u32,
}

fn geometry(block_tokens: u32) -> Geometry {
    Geometry {
        layers: 32,
        heads: 8,
        key_size: 128,
        value_size: 128,
        block_tokens,
        element: Element::Bf16,
        content: Content::Attention { window: 0 },
        order: Order::BlockOuter,
    }
}

/// Serves all requests; the mean part of memory that holds no token while some wait, and how many
/// ran at a time and were put back.
fn serve(requests: &[Request]) -> (f64, f64, u64) {
    let config = Config {
        prefixes: false,
        max_sequences: 8192,
        watermark: BLOCKS / 100,
        ..Config::new(geometry(BLOCK_TOKENS), BLOCKS)
    };
    let cache = KvCache::new(config).expect("memory for the tables");
    let mut waiting: VecDeque<Request> = requests.iter().copied().collect();
    let mut running: Vec<Running> = Vec::new();
    let (mut steps, mut waste, mut at_once, mut put_back) = (0u64, 0.0, 0.0, 0);
    // The request whose prompt is being computed, and how far that is.
    let mut filling: Option<(Seq, Request, u32)> = None;
    while !waiting.is_empty() || filling.is_some() || !running.is_empty() {
        let opened = |next| (cache.open(Open::default()).expect("there is room"), next, 0);
        while let Some((seq, next, len)) =
            filling.take().or_else(|| waiting.pop_front().map(opened))
        {
            let free = cache.stats().groups[0].counts.free.saturating_sub(BLOCKS / 100);
            let room = free * BLOCK_TOKENS + (BLOCK_TOKENS - len % BLOCK_TOKENS) % BLOCK_TOKENS;
            let chunk = room.min(next.known - len);
            cache.append(seq, Tokens::Count(chunk)).expect("that many are free");
            if len + chunk == next.known {
                running.push(Running { seq, len: next.known, end: next.end });
                continue;
            }
            filling = Some((seq, next, len + chunk));
            assert!(chunk > 0 || !running.is_empty(), "a prompt of {} fits nowhere", next.known);
            break;
        }
        let batch: Vec<Append<'_>> =
            running.iter().map(|one| Append { seq: one.seq, tokens: Tokens::Count(1) }).collect();
        let (done, result) = cache.append_all(&batch);
        running[..done].iter_mut().for_each(|one| one.len += 1);
        if let Err(KvError::NoBlocks(_)) = result {
            let last = running.pop().expect("one was refused");
            cache.free(&[last.seq], NO_FENCE).expect("open");
            waiting.push_front(Request { known: last.len, end: last.end });
            put_back += 1;
        }
        if !waiting.is_empty() {
            let tokens: u64 = running.iter().map(|one| u64::from(one.len)).sum::<u64>()
                + filling.map_or(0, |(_, _, len)| u64::from(len));
            let all = f64::from(BLOCKS - 1) * f64::from(BLOCK_TOKENS);
            waste += 100.0 * (1.0 - tokens as f64 / all);
            at_once += running.len() as f64;
            steps += 1;
        }
        running.retain(|one| {
            let goes_on = one.len < one.end;
            if !goes_on {
                cache.free(&[one.seq], NO_FENCE).expect("open");
            }
            goes_on
        });
    }
    cache.check().expect("a sound cache");
    (waste / steps.max(1) as f64, at_once / steps.max(1) as f64, put_back)
}

/// The same with memory for the longest request each: waste and how many run at a time.
fn reserve_longest(requests: &[Request]) -> (f64, f64) {
    let all = f64::from(BLOCKS - 1) * f64::from(BLOCK_TOKENS);
    let longest = requests.iter().map(|request| request.end).max().unwrap_or(1);
    let fit = (all / f64::from(longest)) as usize;
    let mut waiting: VecDeque<Request> = requests.iter().copied().collect();
    let mut running: Vec<Request> = Vec::new();
    let (mut steps, mut waste) = (0u64, 0.0);
    while !waiting.is_empty() && fit > 0 {
        let room = (fit - running.len()).min(waiting.len());
        running.extend(waiting.drain(..room));
        running.iter_mut().for_each(|one| one.known += 1);
        let tokens: u64 = running.iter().map(|one| u64::from(one.known)).sum();
        waste += 100.0 * (1.0 - tokens as f64 / all);
        steps += 1;
        running.retain(|one| one.known < one.end);
    }
    (waste / steps.max(1) as f64, fit as f64)
}

/// Requests of an Azure trace: time, prompt tokens, answer tokens.
fn azure(path: &Path) -> Vec<Request> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let numbers = text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split(',').skip(1).map(|field| field.trim().parse::<u32>().ok());
        Some((fields.next()??, fields.next()??))
    });
    let real = numbers.filter(|&(prompt, answer)| prompt > 0 && answer > 0);
    real.map(|(known, answer)| Request { known, end: known + answer }).collect()
}

/// A request of Mooncake's trace: its lengths and the hashes of its prompt's blocks.
struct Hashed {
    request: Request,
    hashes: Vec<u64>,
}

fn mooncake(path: &Path) -> Vec<Hashed> {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip of UTF-8");
    let parsed = text.lines().map(|line| {
        let value: Value = serde_json::from_str(line).expect("a JSON object a line");
        let number = |name: &str| value[name].as_u64().expect("a number") as u32;
        let hashes = value["hash_ids"].as_array().expect("a list");
        let (known, answer) = (number("input_length"), number("output_length"));
        Hashed {
            request: Request { known, end: known + answer.max(1) },
            hashes: hashes.iter().map(|hash| hash.as_u64().expect("a number")).collect(),
        }
    });
    parsed.filter(|one| one.request.known > 1).collect()
}

/// Tokens of a prompt: each a function of its block's hash and its place there.
fn prompt(one: &Hashed) -> Vec<i32> {
    let token = |at: usize| {
        let hash = one.hashes.get(at / HASHED).copied().unwrap_or(u64::MAX);
        let mixed = (hash.wrapping_mul(HASHED as u64) + (at % HASHED) as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 33) as i32
    };
    (0..one.request.known as usize).map(token).collect()
}

/// Tokens found of those asked for, in percent, on a cache of `blocks` blocks of 512 tokens.
fn found(requests: &[Hashed], blocks: u32) -> f64 {
    let config = Config { max_sequences: 4, ..Config::new(geometry(HASHED as u32), blocks) };
    let cache = KvCache::new(config).expect("memory for the tables");
    let mut asked = 0;
    for one in requests {
        let tokens = prompt(one);
        asked += tokens.len() as u64;
        let seq = cache.open(Open::default()).expect("room");
        let hit = cache.find_prefix(seq, &tokens[..tokens.len() - 1]).expect("empty");
        let mut copies = Vec::new();
        if let Some(batch) = cache.take_copies(&mut copies) {
            cache.copied(batch, NO_FENCE).expect("outstanding");
        }
        cache.append(seq, Tokens::Known(&tokens[hit.tokens as usize..])).expect("blocks");
        cache.commit(seq, tokens.len() as u32, NO_FENCE).expect("there");
        cache.free(&[seq], NO_FENCE).expect("open");
    }
    100.0 * cache.stats().hit_tokens as f64 / asked as f64
}

/// What a cache without end would find: whole blocks that came before.
fn ideal(requests: &[Hashed]) -> f64 {
    let mut seen = HashSet::new();
    let (mut asked, mut hit) = (0u64, 0u64);
    for one in requests {
        let known = one.hashes.iter().take_while(|hash| seen.contains(*hash)).count();
        hit += ((known * HASHED) as u64).min(u64::from(one.request.known));
        asked += u64::from(one.request.known);
        seen.extend(one.hashes.iter().copied());
    }
    100.0 * hit as f64 / asked as f64
}

fn measure(folder: &Path, quick: bool) -> Vec<Row> {
    let conversations = mooncake(&folder.join("mooncake_conversation_trace.jsonl.gz"));
    let all = [
        ("azure code", azure(&folder.join("AzureLLMInferenceTrace_code.csv"))),
        ("azure conversation", azure(&folder.join("AzureLLMInferenceTrace_conv.csv"))),
        ("mooncake conversation", conversations.iter().map(|one| one.request).collect()),
    ];
    let mut rows = Vec::new();
    let mut row = |name: String, value, unit, target| rows.push(Row { name, value, unit, target });
    for (name, requests) in &all {
        let some = if quick { &requests[..requests.len() / 8] } else { requests };
        let (waste, at_once, put_back) = serve(some);
        let (longest, fit) = reserve_longest(some);
        row(format!("{name}/waste"), waste, "%", Some(WASTE));
        row(format!("{name}/waste with the longest reserved"), longest, "%", None);
        row(format!("{name}/requests at a time"), at_once, "", None);
        row(format!("{name}/requests at a time with the longest reserved"), fit, "", None);
        row(format!("{name}/put back"), put_back as f64, "", None);
    }
    let some = if quick { &conversations[..conversations.len() / 8] } else { &conversations };
    row("mooncake/prefixes, ideal".to_owned(), ideal(some), "%", None);
    // Blocks of 512 tokens in 55 GiB, in eight times that, and without end.
    for (name, blocks) in [("55 GiB", BLOCKS / 32), ("440 GiB", BLOCKS / 4), ("all", 200_000)] {
        row(format!("mooncake/prefixes, {name}"), found(some, blocks), "%", None);
    }
    rows
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    let place = arguments.iter().position(|argument| argument == "--traces");
    let Some(folder) = place.and_then(|at| arguments.get(at + 1)) else {
        eprintln!("kv_traces: --traces FOLDER is needed");
        std::process::exit(2);
    };
    let rows = measure(Path::new(folder), has("--quick"));
    let object = |row: &Row| {
        let mut made = json!({
            "name": format!("kv/{}", row.name), "value": row.value, "unit": row.unit, "peers": {},
        });
        if let Some(target) = row.target {
            made["target"] = target.into();
            made["met"] = (row.value <= target).into();
        }
        made
    };
    if has("--json") {
        let rows: Vec<Value> = rows.iter().map(object).collect();
        return println!("{}", json!({ "rows": rows }));
    }
    for row in &rows {
        println!("{:60} {:>9.2} {}", row.name, row.value, row.unit);
    }
}
