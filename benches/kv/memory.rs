//! What memory behind a KV cache costs on the host backend: blocks grown, fences looked at, a
//! table's step sent, a contiguous sequence's tail mapped. Thread CPU time with the system's part:
//! mappings and page tables of this machine stand for a driver's, so that no figure has a target.

use super::{BATCH, Row, llama, median, ns};
use forebay::config::Config;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::kv::{self, Append, NO_FENCE, Open, Seq, Tokens};
use forebay::paged::contiguous::{ContiguousConfig, ContiguousKv};
use forebay::paged::tables::Table;
use forebay::paged::{KvMemory, MemoryConfig};
use forebay::pool::{Pool, Settings};
use std::sync::Arc;

const PAGE: usize = 2 << 20;
/// Entries of a row.
const ROW: u32 = 512;

struct Bed {
    driver: Arc<HostDriver>,
    pool: Pool,
    stream: u64,
}

/// A pool of 8 GiB of addresses' worth of pages, of which only touched ones take memory.
fn bed() -> Bed {
    let options = HostOptions { total_bytes: 4096 * PAGE, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), 4096 * PAGE as u64, true);
    settings.keeper = false;
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let stream = driver.stream_create().expect("a stream").0;
    Bed { driver, pool, stream }
}

fn memory(bed: &Bed, most: u32, initial: u32) -> KvMemory {
    let kv = kv::Config { prefixes: false, ..kv::Config::new(llama(), most) };
    KvMemory::new(&bed.pool, MemoryConfig { kv, initial: vec![initial] }).expect("memory")
}

/// A growth by so many pages, out of the pool's stock or created for it, in microseconds.
fn growth(bed: &Bed, pages: u32, created: bool, rounds: usize) -> f64 {
    let memory = memory(bed, 1000, 8);
    median(rounds, |_| {
        if created {
            bed.pool.trim(0).expect("no fault");
        }
        let mut now = None;
        let spent = ns(|| now = memory.resize(0, 8 + pages).ok());
        assert_eq!(now.map(|now| now.backed), Some(8 + pages));
        let now = memory.resize(0, 8).expect("nobody holds them");
        assert_eq!(now.backed, 8);
        spent / 1e3
    })
}

/// A poll that finds nothing, and a fence of a stream with the poll that sees it passed, in
/// nanoseconds.
fn polls(bed: &Bed, rounds: usize) -> [f64; 2] {
    let memory = memory(bed, 1000, 8);
    let idle = median(rounds, |_| {
        ns(|| (0..1000).for_each(|_| assert_eq!(memory.poll(), Ok(NO_FENCE)))) / 1e3
    });
    let fenced = median(rounds * 16, |_| {
        let mut fence = NO_FENCE;
        let made = ns(|| fence = memory.fence(&[bed.stream]).expect("a stream"));
        bed.driver.quiesce();
        let mut passed = NO_FENCE;
        let seen = ns(|| passed = memory.poll().expect("no fault"));
        assert_eq!(passed, fence);
        made + seen
    });
    [idle, fenced]
}

/// What a step of [`BATCH`] sequences has changed, into staging and queued,
/// in microseconds; the copies themselves are another thread's.
fn table(bed: &Bed, rounds: usize) -> f64 {
    let memory = memory(bed, 4000, 2);
    // Sequences begin at 16 to 31 tokens and get 90 more at most.
    memory.resize(0, 1 + BATCH as u32 * 8).expect("room");
    let bytes = BATCH * ROW as usize * 4;
    let array = bed.pool.alloc(bytes, bed.stream).expect("room");
    let rows = BATCH as u32;
    let table =
        Table { group: 0, address: array, rows, stride: ROW, staging_bytes: 0, staging_buffers: 0 };
    // SAFETY: the array is a block of the pool, of this length, until after the unbinding.
    unsafe { memory.bind_table(table) }.expect("it makes sense");
    let cache = memory.cache();
    let seqs: Vec<Seq> = (0..BATCH)
        .map(|at| {
            let seq = cache.open(Open::default()).expect("room");
            cache.append(seq, Tokens::Count(16 + at as u32 % 16)).expect("blocks");
            seq
        })
        .collect();
    memory.sync_table(0, &seqs, bed.stream).expect("room");
    bed.driver.quiesce();
    let steps = (rounds * 8).min(90);
    let figure = median(steps, |_| {
        let step: Vec<Append<'_>> =
            seqs.iter().map(|&seq| Append { seq, tokens: Tokens::Count(1) }).collect();
        assert_eq!(cache.append_all(&step), (BATCH, Ok(())));
        let mut sent = 0;
        let spent = ns(|| {
            sent = memory.sync_table(0, &seqs, bed.stream).expect("staging").entries;
        });
        assert_eq!(sent, BATCH / 16, "every 16th sequence has a new block");
        bed.driver.quiesce();
        spent / 1e3
    });
    memory.unbind_table(0).expect("bound");
    drop(memory);
    bed.pool.dealloc(array, bed.stream).expect("live");
    figure
}

/// A sequence that needs a page more for its keys and one for its values, in microseconds; and a
/// step of [`BATCH`] sequences that need none, in nanoseconds a sequence.
fn contiguous(bed: &Bed, rounds: usize) -> [f64; 2] {
    let config = ContiguousConfig {
        groups: vec![llama()],
        max_sequences: BATCH as u32,
        max_tokens: 4096,
        ahead_tokens: 0,
        keep_pages: 0,
    };
    let cache = ContiguousKv::new(&bed.pool, config).expect("it makes sense");
    let ensure = |batch: &[(Seq, u32)]| assert_eq!(cache.ensure(batch), (batch.len(), Ok(())));
    let seqs: Vec<Seq> = (0..BATCH).map(|_| cache.open().expect("room")).collect();
    let per_page = cache.tokens_per_page(0).expect("a group") as u32;
    ensure(&[(seqs[0], per_page)]);
    let tail = median(rounds * 4, |_| {
        let spent = ns(|| ensure(&[(seqs[0], per_page + 1)]));
        assert_eq!(cache.usage(seqs[0]).expect("open").mapped, 4 * PAGE as u64);
        cache.truncate(seqs[0], per_page, NO_FENCE).expect("it holds it");
        cache.poll().expect("no fault");
        assert_eq!(cache.usage(seqs[0]).expect("open").mapped, 2 * PAGE as u64);
        spent / 1e3
    });
    let mut batch: Vec<(Seq, u32)> = seqs.iter().map(|&seq| (seq, 1)).collect();
    batch[0].1 = per_page;
    ensure(&batch);
    let step = median(rounds * 4, |_| ns(|| ensure(&batch)) / BATCH as f64);
    [tail, step]
}

/// The rows.
pub fn measure(rounds: usize) -> Vec<Row> {
    let bed = bed();
    let row = |name, value, unit| Row { name, value, unit, target: None };
    let mut rows = vec![
        row("host: growth by 1 page of the stock", growth(&bed, 1, false, rounds), "us"),
        row("host: growth by 64 pages of the stock", growth(&bed, 64, false, rounds), "us"),
        row("host: growth by 64 new pages", growth(&bed, 64, true, rounds), "us"),
    ];
    let [idle, fenced] = polls(&bed, rounds);
    rows.push(row("host: poll, nothing waits", idle, "ns"));
    rows.push(row("host: fence, and the poll that sees it", fenced, "ns"));
    rows.push(row("host: table's step of 256, staged", table(&bed, rounds), "us"));
    let [tail, step] = contiguous(&bed, rounds);
    rows.push(row("host: contiguous tail, 2 pages mapped", tail, "us"));
    rows.push(row("host: contiguous step, none mapped, each", step, "ns"));
    bed.driver.stream_synchronize(StreamHandle(bed.stream)).expect("alive");
    rows
}
