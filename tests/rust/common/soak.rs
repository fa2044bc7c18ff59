//! Compressed continuous inference on a pool, and whether memory stays flat under it.
//!
//! Requests arrive at a rate that wanders, are admitted while the key-value budget lasts, pay
//! a prefill with large temporaries, then decode: their key-value blocks grow one at a time,
//! each step takes temporaries on one of several streams with work queued behind them. Now and
//! then a request is cancelled, a buffer is shared with a second stream, a block is freed with
//! `cudaFree`'s meaning. Cost: as long as asked, one thread and the device's workers.
#![allow(dead_code, reason = "each program that includes it uses its part")]

use forebay::config::Config;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::stats::Stats;
use forebay::pool::{Pool, Settings};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const DEVICE: usize = 320 * MIB;
/// Weights: live from start to end.
const WEIGHTS: [usize; 6] = [8 * MIB, 8 * MIB, 6 * MIB, 4 * MIB, 3 * MIB, 2 * MIB + 96 * KIB];
/// One key-value block: 16 tokens.
const KV_BLOCK: usize = 64 * KIB;
const KV_TOKENS: usize = 16;
/// Key-value blocks that requests may hold together.
const KV_BUDGET: usize = 1600;
const STREAMS: usize = 4;
/// Operations queued on the device at most.
const QUEUE: usize = 300;
/// How much the median may grow between the second and the last quarter.
const GROWTH_MAX: f64 = 0.02;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long, in seconds; at least 4.
    pub seconds: u64,
    /// Equal seeds give equal requests (not equal timing).
    pub seed: u64,
    /// Whether a line is printed each second.
    pub verbose: bool,
}

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Allocations and frees.
    pub operations: u64,
    /// Requests that ended.
    pub requests: u64,
    /// Median mapped bytes of the second and the last quarter.
    pub mapped: (u64, u64),
    /// Median resident bytes of the second and the last quarter.
    pub resident: (u64, u64),
    /// The accounts before the end.
    pub stats: Stats,
}

struct Request {
    tokens: usize,
    left: usize,
    stream: usize,
    kv: Vec<usize>,
}

struct Soak {
    driver: Arc<HostDriver>,
    pool: Pool,
    streams: Vec<u64>,
    seed: u64,
    active: VecDeque<Request>,
    /// Key-value blocks that may be owed.
    budget: usize,
    /// Operations that may be queued on the device.
    queue: usize,
    /// Requests per step, times 1000; wanders.
    rate: usize,
    operations: u64,
    requests: u64,
}

/// Runs the load for the time asked. An error says what was not flat, or did not agree.
pub fn run(options: Options) -> Result<Summary, String> {
    let mut soak = Soak::new(options.seed)?;
    let weights: Vec<usize> =
        WEIGHTS.iter().map(|&bytes| soak.alloc(bytes, 0)).collect::<Result<_, _>>()?;
    let (mut mapped, mut resident) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let (mut sample, mut line) = (start, start);
    let length = Duration::from_secs(options.seconds.max(4));
    while start.elapsed() < length {
        // The high-water mark comes first: in the first quarter a fifth more at once than ever
        // later, at the highest rate, and later work. Then a pool that needs no more stays.
        let first = start.elapsed() < length / 4;
        (soak.budget, soak.queue) =
            if first { (KV_BUDGET / 5 * 6, QUEUE * 2) } else { (KV_BUDGET, QUEUE) };
        soak.rate = if first { 4000 } else { soak.rate };
        for _ in 0..20 {
            soak.step()?;
        }
        let now = Instant::now();
        if now >= sample {
            sample += Duration::from_millis(50);
            let stats = soak.stats()?;
            mapped.push(stats.mapped_bytes);
            resident.push(super_resident());
            if options.verbose && now >= line {
                line += Duration::from_secs(1);
                println!("{}", soak.line(start, &stats, *resident.last().unwrap_or(&0)));
            }
        }
    }
    let stats = soak.stats()?;
    let (operations, requests) = (soak.operations, soak.requests);
    soak.end(weights)?;
    let summary = Summary {
        operations,
        requests,
        mapped: quarters(&mapped),
        resident: quarters(&resident),
        stats,
    };
    flat("mapped bytes", summary.mapped)?;
    flat("resident bytes", summary.resident)?;
    Ok(summary)
}

/// Medians of the second and the last quarter.
fn quarters(samples: &[u64]) -> (u64, u64) {
    let quarter = samples.len() / 4;
    let median = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part.get(part.len() / 2).copied().unwrap_or(0)
    };
    (median(&samples[quarter..2 * quarter]), median(&samples[samples.len() - quarter..]))
}

fn flat(what: &str, (second, last): (u64, u64)) -> Result<(), String> {
    if last as f64 > second as f64 * (1.0 + GROWTH_MAX) {
        return Err(format!("{what} grew: median {second} in the second quarter, {last} at last"));
    }
    Ok(())
}

fn super_resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|v| v.parse().ok()).unwrap_or(0);
    pages * 4096
}

impl Soak {
    fn new(seed: u64) -> Result<Soak, String> {
        let options = HostOptions { total_bytes: DEVICE, ..HostOptions::default() };
        let driver = Arc::new(HostDriver::new(options).map_err(|e| e.to_string())?);
        let settings = Settings::resolve(&Config::default(), DEVICE as u64, true);
        let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings);
        let pool = pool.map_err(|e| e.to_string())?;
        let made: Result<Vec<_>, _> = (0..STREAMS).map(|_| driver.stream_create()).collect();
        let streams = made.map_err(|e| e.to_string())?.iter().map(|s| s.0).collect();
        let (active, rate) = (VecDeque::new(), 500);
        let (budget, queue) = (KV_BUDGET / 5 * 6, QUEUE * 2);
        let (operations, requests) = (0, 0);
        Ok(Soak { driver, pool, streams, seed, active, budget, queue, rate, operations, requests })
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.seed;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn between(&mut self, least: usize, end: usize) -> usize {
        least + (self.random() % (end - least) as u64) as usize
    }

    /// A block with a fill queued behind it.
    fn alloc(&mut self, bytes: usize, stream: usize) -> Result<usize, String> {
        let stream = self.streams[stream];
        let address = self.pool.alloc(bytes, stream).map_err(|e| e.to_string())?;
        self.operations += 1;
        let value = self.operations as u8;
        let filled = self.driver.fill(address, value, bytes, StreamHandle(stream));
        filled.map_err(|e| e.to_string())?;
        Ok(address)
    }

    fn free(&mut self, address: usize, stream: usize) -> Result<(), String> {
        self.operations += 1;
        let stream = self.streams.get(stream).copied().unwrap_or(SYNC_STREAM);
        self.pool.dealloc(address, stream).map_err(|e| e.to_string())
    }

    /// One step of the serving loop.
    fn step(&mut self) -> Result<(), String> {
        let turn = self.between(0, 2000);
        self.rate = if turn == 0 { self.between(50, 3000) } else { self.rate };
        let arriving = self.rate / 1000 + usize::from(self.between(0, 1000) < self.rate % 1000);
        for _ in 0..arriving {
            self.admit()?;
        }
        for _ in 0..self.active.len().min(16) {
            let Some(mut request) = self.active.pop_front() else { break };
            let cancelled = self.between(0, 2000) == 0;
            if request.left == 0 || cancelled {
                self.finish(request)?;
                continue;
            }
            self.decode(&mut request)?;
            self.active.push_back(request);
        }
        while self.driver.outstanding() > self.queue {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// A request comes, if its key-value blocks are sure to be there to its end.
    fn admit(&mut self) -> Result<(), String> {
        let (tokens, left) = (self.between(16, 400), self.between(8, 200));
        let worst = (tokens + left).div_ceil(KV_TOKENS);
        let owed: usize = self.active.iter().map(|r| (r.tokens + r.left).div_ceil(KV_TOKENS)).sum();
        if owed + worst > self.budget {
            return Ok(());
        }
        let stream = self.between(0, STREAMS);
        let mut kv = Vec::new();
        for _ in 0..tokens.div_ceil(KV_TOKENS) {
            kv.push(self.alloc(KV_BLOCK, stream)?);
        }
        // Prefill: activations in proportion to the prompt, layer by layer.
        for _ in 0..3 {
            let hidden = self.alloc(tokens * 4 * KIB, stream)?;
            let scores = self.alloc(tokens * 600, stream)?;
            self.free(scores, stream)?;
            self.free(hidden, stream)?;
        }
        self.active.push_back(Request { tokens, left, stream, kv });
        Ok(())
    }

    fn decode(&mut self, request: &mut Request) -> Result<(), String> {
        request.tokens += 1;
        request.left -= 1;
        if request.tokens.div_ceil(KV_TOKENS) > request.kv.len() {
            request.kv.push(self.alloc(KV_BLOCK, request.stream)?);
        }
        let hidden = self.alloc(16 * KIB, request.stream)?;
        let logits = self.alloc(125 * KIB, request.stream)?;
        match self.between(0, 64) {
            0 => {
                // Another stream sends the logits on.
                let other = self.streams[(request.stream + 1) % STREAMS];
                self.driver
                    .stream_synchronize(StreamHandle(self.streams[request.stream]))
                    .and_then(|()| self.driver.fill(logits, 1, KIB, StreamHandle(other)))
                    .map_err(|e| e.to_string())?;
                self.pool.record_use(logits, other).map_err(|e| e.to_string())?;
                self.free(logits, request.stream)?;
            }
            1 => self.free(logits, usize::MAX)?,
            _ => self.free(logits, request.stream)?,
        }
        self.free(hidden, request.stream)
    }

    fn finish(&mut self, request: Request) -> Result<(), String> {
        self.requests += 1;
        for block in request.kv {
            self.free(block, request.stream)?;
        }
        Ok(())
    }

    fn stats(&self) -> Result<Stats, String> {
        let stats = self.pool.stats().map_err(|e| e.to_string())?;
        if stats.sum() == stats.mapped_bytes {
            return Ok(stats);
        }
        Err(format!("the accounts sum to {}: {stats:?}", stats.sum()))
    }

    fn line(&self, start: Instant, stats: &Stats, resident: u64) -> String {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        format!(
            "{:6.1} s {:>10} ops {:>4} running  MiB: live {:6.1}  cached {:5.1}  pending {:5.1}  \
             trapped {:5.1}  idle {:5.1}  mapped {:6.1}  resident {:6.1}",
            start.elapsed().as_secs_f64(),
            self.operations,
            self.active.len(),
            mib(stats.live_bytes),
            mib(stats.cached_bytes),
            mib(stats.pending_bytes),
            mib(stats.trapped_bytes),
            mib(stats.idle_bytes),
            mib(stats.mapped_bytes),
            mib(resident),
        )
    }

    /// Frees all; nothing may be left.
    fn end(mut self, weights: Vec<usize>) -> Result<(), String> {
        while let Some(request) = self.active.pop_front() {
            self.finish(request)?;
        }
        for block in weights {
            self.free(block, 0)?;
        }
        self.driver.quiesce();
        let stats = self.stats()?;
        if stats.live_bytes != 0 || stats.live_blocks != 0 {
            return Err(format!("blocks are live after the last free: {stats:?}"));
        }
        let Soak { driver, pool, streams, .. } = self;
        drop(pool);
        for stream in streams {
            driver.stream_destroy(StreamHandle(stream)).map_err(|e| e.to_string())?;
        }
        let census = driver.census();
        if census.is_clean() { Ok(()) } else { Err(format!("left behind: {census:?}")) }
    }
}
