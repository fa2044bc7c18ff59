//! Memory behind a KV cache on the simulated driver: grown and shrunk, on late streams with a
//! canary, tables into device memory, contiguous addresses, and calls that fail. Contents are
//! written and read by the device's own work.

use super::machine::{Device, Kind};
use super::{MIB, fill, holds, no_misuse, on_sim};
use forebay::driver::StreamHandle;
use forebay::error::Status;
use forebay::kv::{
    self, Content, Csr, Element, Geometry, KvCache, NO_FENCE, Open, Order, Seq, Tokens,
};
use forebay::paged::contiguous::{ContiguousConfig, ContiguousKv};
use forebay::paged::tables::Table;
use forebay::paged::{KvMemory, MemoryConfig, MemoryError};
use forebay::pool::{Pool, devices};

const PAGE: usize = 2 * MIB;

/// Runs the scenario if it is one of these.
pub fn run(name: &str) -> bool {
    match name {
        "blocks grown and shrunk" => grown_and_shrunk(),
        "blocks on a late stream" => late(),
        "pages on a late stream" => late_pages(),
        "copies on a late stream" => late_copies(),
        "a table in device memory" => tables(),
        "a table in pinned memory" => pinned_table(),
        "contiguous addresses" => contiguous(),
        "blocks whose calls fail" => calls_fail(),
        "blocks without virtual memory" => plain_segments(),
        _ => return false,
    }
    no_misuse();
    true
}

/// Llama-3-8B in bf16: 16 tokens are a page; of contiguous addresses 32 tokens are a page of keys
/// and one of values.
fn llama() -> Geometry {
    Geometry {
        layers: 32,
        heads: 8,
        key_size: 128,
        value_size: 128,
        block_tokens: 16,
        element: Element::Bf16,
        content: Content::Attention { window: 0 },
        order: Order::BlockOuter,
    }
}

fn device() -> Device {
    Device::open(0, 64, |settings| settings.keeper = false)
}

fn memory(pool: &Pool, most: u32, initial: u32) -> KvMemory {
    let kv = kv::Config { prefixes: false, ..kv::Config::new(llama(), most) };
    KvMemory::new(pool, MemoryConfig { kv, initial: vec![initial] }).expect("memory")
}

fn sequence(cache: &KvCache, tokens: u32) -> Seq {
    let seq = cache.open(Open::default()).expect("room");
    cache.append(seq, Tokens::Count(tokens)).expect("blocks");
    seq
}

fn blocks_of(cache: &KvCache, seq: Seq) -> Vec<i32> {
    let mut csr = Csr::default();
    cache.csr(0, &[seq], &mut csr).expect("it holds tokens");
    csr.indices
}

fn address(memory: &KvMemory, block: i32) -> usize {
    memory.view(0).expect("a group").base + block as usize * PAGE
}

fn free_bytes(d: &Device) -> usize {
    d.driver.memory_info().expect("alive").0
}

fn region_bytes(pool: &Pool) -> usize {
    pool.stats().expect("alive").region_bytes as usize
}

/// A word of device memory that a busy kernel waits for.
fn word(d: &Device) -> usize {
    d.sim.get("cuMemAlloc_v2", &[4])
}

/// Everything ends, and nothing is left on the device.
fn end(d: Device, streams: &[u64], words: &[usize]) {
    let sim = d.sim;
    d.synchronize();
    streams.iter().for_each(|&stream| d.destroy_stream(stream, true));
    words.iter().for_each(|&word| sim.ok("cuMemFree_v2", &[word]));
    d.end();
    // Staging buffers are the pinned pool's, whose own segment stays.
    assert_eq!(devices::host_bytes().0, 0);
    for kind in ["handles", "mappings", "reservations", "events", "streams"] {
        let report = sim.report();
        let left = report["live"].get(kind).and_then(serde_json::Value::as_u64);
        assert_eq!(left, Some(0), "{kind} in {}", report["live"]);
    }
}

fn grown_and_shrunk() {
    let d = device();
    let stream = d.stream(Kind::NonBlocking);
    let before = free_bytes(&d);
    let memory = memory(&d.pool, 1000, 4);
    assert_eq!(before - free_bytes(&d), 4 * PAGE, "pages, and no more");
    let view = memory.view(0).expect("a group");
    for block in 0..4 {
        fill(&d.pool, address(&memory, block), PAGE, 10 + block as u8, stream);
    }
    for blocks in [5, 20, 60] {
        let now = memory.resize(0, blocks).expect("room");
        assert_eq!((now.open, now.backed), (blocks, blocks));
        assert_eq!(before - free_bytes(&d), blocks as usize * PAGE);
        assert_eq!(memory.view(0).expect("a group"), view, "addresses do not move");
        fill(&d.pool, address(&memory, blocks as i32 - 1), PAGE, blocks as u8, stream);
    }
    for block in 0..4 {
        assert!(holds(&d.pool, address(&memory, block), PAGE, 10 + block as u8, stream));
    }
    assert!(holds(&d.pool, address(&memory, 19), PAGE, 20, stream));
    // Past the device's memory: nothing changes.
    let error = memory.resize(0, 1000).expect_err("256 MiB");
    assert_eq!(error.status(), Status::OutOfMemory);
    assert_eq!(memory.backed(0).expect("a group").backed, 60);
    // What shrinks goes to the pool's stock, and serves its allocations.
    let now = memory.resize(0, 5).expect("nobody holds them");
    assert_eq!((now.backed, region_bytes(&d.pool)), (5, 5 * PAGE));
    assert_eq!(before - free_bytes(&d), 60 * PAGE, "in the stock");
    let block = d.pool.alloc(40 * PAGE, stream).expect("out of the stock");
    assert_eq!(before - free_bytes(&d), 60 * PAGE);
    d.pool.dealloc(block, stream).expect("live");
    d.synchronize();
    d.pool.trim(0).expect("no fault");
    assert_eq!(before - free_bytes(&d), 5 * PAGE, "the device has them");
    assert!(holds(&d.pool, address(&memory, 4), PAGE, 5, stream));
    drop(memory);
    d.pool.trim(0).expect("no fault");
    assert_eq!(free_bytes(&d), before);
    end(d, &[stream], &[]);
}

#[test]
fn blocks_grow_and_shrink_under_addresses_that_stay() {
    on_sim("blocks grown and shrunk", &[]);
}

/// Without the fence the next owner's bytes are overwritten by the late stream.
fn late() {
    let d = device();
    let streams = [d.stream(Kind::NonBlocking), d.stream(Kind::NonBlocking)];
    let word = word(&d);
    for fenced in [true, false] {
        let memory = memory(&d.pool, 5, 5);
        let cache = memory.cache();
        let seq = sequence(cache, 16 * 4);
        let held = blocks_of(cache, seq);
        let mut busy = Some(d.busy(word, streams[0]));
        for &block in &held {
            fill(&d.pool, address(&memory, block), PAGE, 1, streams[0]);
        }
        let fence = if fenced { memory.fence(&streams).expect("streams") } else { NO_FENCE };
        cache.free(&[seq], fence).expect("open");
        assert_eq!(memory.poll(), Ok(NO_FENCE));
        let next = cache.open(Open::default()).expect("room");
        assert_eq!(cache.append(next, Tokens::Count(64)).is_err(), fenced);
        if fenced {
            drop(busy.take());
            d.synchronize();
            assert_eq!(memory.poll(), Ok(fence));
            cache.append(next, Tokens::Count(64)).expect("the fence has passed");
        }
        for block in blocks_of(cache, next) {
            fill(&d.pool, address(&memory, block), PAGE, 2, streams[1]);
        }
        d.sim.ok("cuStreamSynchronize", &[streams[1] as usize]);
        // Where there was no fence, the late stream writes only now.
        drop(busy);
        d.synchronize();
        for block in blocks_of(cache, next) {
            let kept = holds(&d.pool, address(&memory, block), PAGE, 2, streams[1]);
            assert_eq!(kept, fenced, "block {block}");
        }
    }
    end(d, &streams, &[word]);
}

#[test]
fn blocks_are_reused_after_their_fence_only() {
    on_sim("blocks on a late stream", &[]);
}

fn late_pages() {
    let d = device();
    let stream = d.stream(Kind::Blocking);
    let word = word(&d);
    let memory = memory(&d.pool, 20, 10);
    let cache = memory.cache();
    let seq = sequence(cache, 16 * 9);
    let busy = d.busy(word, stream);
    for block in 1..10 {
        fill(&d.pool, address(&memory, block), PAGE, 3, stream);
    }
    let fence = memory.fence(&[stream]).expect("a stream");
    cache.free(&[seq], fence).expect("open");
    let unmaps = d.sim.calls("cuMemUnmap");
    let now = memory.resize(0, 2).expect("it drains");
    assert_eq!((now.open, now.backed), (2, 10));
    assert_eq!(memory.poll(), Ok(NO_FENCE));
    assert_eq!((d.sim.calls("cuMemUnmap"), region_bytes(&d.pool)), (unmaps, 10 * PAGE));
    // A counter's fence passes behind the streams' before it, not earlier.
    let counted = memory.fence_at(1).expect("alive");
    memory.reach(1).expect("alive");
    assert_eq!(memory.poll(), Ok(NO_FENCE));
    drop(busy);
    d.synchronize();
    assert_eq!(memory.poll(), Ok(counted));
    assert!(d.sim.calls("cuMemUnmap") > unmaps);
    assert_eq!(region_bytes(&d.pool), 2 * PAGE);
    drop(memory);
    end(d, &[stream], &[word]);
}

#[test]
fn pages_are_given_back_after_the_fence_only() {
    on_sim("pages on a late stream", &[]);
}

fn late_copies() {
    let d = device();
    let stream = d.stream(Kind::NonBlocking);
    let word = word(&d);
    let memory = memory(&d.pool, 6, 6);
    let cache = memory.cache();
    let seq = sequence(cache, 8);
    let from = blocks_of(cache, seq)[0];
    fill(&d.pool, address(&memory, from), PAGE, 9, stream);
    let busy = d.busy(word, stream);
    let mut forks = [Seq::from_raw(0)];
    cache.fork(seq, 8, &mut forks).expect("room");
    cache.append(forks[0], Tokens::Count(1)).expect("a block");
    let (made, fence) = memory.run_copies(stream).expect("no fault");
    assert_eq!(made, 1);
    let to = blocks_of(cache, forks[0])[0];
    assert_ne!(to, from);
    // Both ends are held until the copy is made.
    cache.free(&[seq, forks[0]], NO_FENCE).expect("open");
    memory.poll().expect("no fault");
    let next = cache.open(Open::default()).expect("room");
    assert!(cache.append(next, Tokens::Count(16 * 4)).is_err(), "two of five are held");
    drop(busy);
    d.synchronize();
    assert_eq!(memory.poll().ok(), fence);
    // 16 bytes would do: tokens 0 to 7 of each layer's keys and values are what is copied.
    let layer = address(&memory, to) + 31 * (PAGE / 32);
    assert!(holds(&d.pool, layer, 8 * 2048, 9, stream));
    cache.append(next, Tokens::Count(16 * 5)).expect("all are free");
    drop(memory);
    end(d, &[stream], &[word]);
}

#[test]
fn copies_hold_both_ends_until_they_are_made() {
    on_sim("copies on a late stream", &[]);
}

/// The table's array on the device, read by a copy of its own.
fn array(d: &Device, at: usize, entries: usize, stream: u64) -> Vec<i32> {
    let mut copy = vec![-7i32; entries];
    let to = copy.as_mut_ptr().expose_provenance();
    let stream = StreamHandle(stream);
    d.driver.copy(to, at, entries * 4, stream).expect("queued");
    d.driver.stream_synchronize(stream).expect("alive");
    copy
}

/// Rows made anew.
fn expected(cache: &KvCache, seqs: &[Seq], rows: usize, stride: usize) -> Vec<i32> {
    let mut table = vec![0; rows * stride];
    for (row, &seq) in seqs.iter().enumerate() {
        let blocks = blocks_of(cache, seq);
        table[row * stride..][..blocks.len()].copy_from_slice(&blocks);
    }
    table
}

fn tables() {
    const ROWS: usize = 40;
    const STRIDE: usize = 64;
    let d = device();
    let stream = d.stream(Kind::NonBlocking);
    let word = word(&d);
    let memory = memory(&d.pool, 2000, 100);
    let cache = memory.cache();
    let bytes = ROWS * STRIDE * 4;
    let at = d.pool.alloc(bytes, stream).expect("room");
    fill(&d.pool, at, bytes, 0xff, stream);
    let table = Table {
        group: 0,
        address: at,
        rows: ROWS as u32,
        stride: STRIDE as u32,
        staging_bytes: 512,
        staging_buffers: 40,
    };
    // SAFETY: the array is memory of the test of this length until after the unbinding.
    unsafe { memory.bind_table(table) }.expect("it makes sense");
    let mut seqs: Vec<Seq> = (1..20).map(|at| sequence(cache, at * 3)).collect();
    memory.sync_table(0, &seqs, stream).expect("staging");
    assert_eq!(array(&d, at, ROWS * STRIDE, stream), expected(cache, &seqs, ROWS, STRIDE));
    // Steps on a late stream: what is in flight is not written meanwhile, and when all buffers are
    // the step is refused; a later one sends what it would have.
    let busy = d.busy(word, stream);
    let (mut sent, mut refused) = (0, 0);
    for step in 0..8 {
        for &seq in &seqs {
            cache.append(seq, Tokens::Count(5)).expect("blocks");
        }
        if step == 3 {
            let fence = memory.fence(&[stream]).expect("a stream");
            cache.free(&seqs.split_off(12), fence).expect("open");
        }
        match memory.sync_table(0, &seqs, stream) {
            Ok(synced) => sent += synced.entries,
            Err(MemoryError::Again(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sent > 0 && refused > 0, "{sent} {refused}");
    assert!(memory.staging(0).expect("bound").in_flight > 20);
    drop(busy);
    d.synchronize();
    memory.sync_table(0, &seqs, stream).expect("all have ended");
    assert_eq!(array(&d, at, ROWS * STRIDE, stream), expected(cache, &seqs, ROWS, STRIDE));
    memory.unbind_table(0).expect("bound");
    drop(memory);
    d.pool.dealloc(at, stream).expect("live");
    end(d, &[stream], &[word]);
}

#[test]
fn a_table_in_device_memory_follows_the_cache() {
    on_sim("a table in device memory", &[]);
}

fn pinned_table() {
    let d = device();
    let stream = d.stream(Kind::Legacy);
    let memory = memory(&d.pool, 100, 50);
    let cache = memory.cache();
    let mut host = 0usize;
    d.enter();
    d.sim.ok("cuMemHostAlloc", &[&raw mut host as usize, 4096, 0]);
    let table =
        Table { group: 0, address: host, rows: 8, stride: 8, staging_bytes: 0, staging_buffers: 0 };
    // SAFETY: the array is memory of the test of this length until after the unbinding.
    unsafe { memory.bind_table(table) }.expect("it makes sense");
    let seqs: Vec<Seq> = (1..8).map(|at| sequence(cache, at * 16)).collect();
    memory.sync_table(0, &seqs, stream).expect("staging");
    assert_eq!(array(&d, host, 64, stream), expected(cache, &seqs, 8, 8));
    drop(memory);
    d.sim.ok("cuMemFreeHost", &[host]);
    end(d, &[], &[]);
}

#[test]
fn a_table_in_pinned_memory_follows_the_cache() {
    on_sim("a table in pinned memory", &[]);
}

fn contiguous() {
    let d = device();
    let streams = [d.stream(Kind::NonBlocking), d.stream(Kind::NonBlocking)];
    let word = word(&d);
    let config = ContiguousConfig {
        groups: vec![llama()],
        max_sequences: 3,
        max_tokens: 1024,
        ahead_tokens: 32,
        keep_pages: 0,
    };
    let cache = ContiguousKv::new(&d.pool, config).expect("it makes sense");
    let before = free_bytes(&d);
    let seq = cache.open().expect("room");
    assert_eq!(free_bytes(&d), before, "addresses alone");
    let view = cache.view(seq, 0).expect("open");
    let values = view.values.expect("attention");
    let token = view.keys.token_stride as usize;
    let ensure = |tokens: u32| assert_eq!(cache.ensure(&[(seq, tokens)]), (1, Ok(())));
    ensure(20);
    for (side, value) in [(view.keys, 4), (values, 5)] {
        fill(&d.pool, side.address, 20 * token, value, streams[0]);
    }
    cache.poll().expect("no fault");
    assert_eq!((cache.stats().mapped_ahead, before - free_bytes(&d)), (2, 4 * PAGE));
    ensure(64);
    assert_eq!(before - free_bytes(&d), 4 * PAGE, "they were mapped ahead");
    fill(&d.pool, values.address + 20 * token, 44 * token, 6, streams[0]);
    for (side, value) in [(view.keys, 4), (values, 5)] {
        assert!(holds(&d.pool, side.address, 20 * token, value, streams[0]));
    }
    assert!(holds(&d.pool, values.address + 20 * token, 44 * token, 6, streams[0]));
    // What it leaves waits for its fence; its addresses too.
    let busy = d.busy(word, streams[0]);
    fill(&d.pool, view.keys.address, 64 * token, 7, streams[0]);
    let fence = cache.fence(&streams).expect("streams");
    cache.free(&[seq], fence).expect("open");
    assert_eq!(cache.poll(), Ok(NO_FENCE));
    assert_eq!((cache.stats().leaving_pages, region_bytes(&d.pool)), (4, 4 * PAGE));
    let next = cache.open().expect("room");
    assert_ne!(cache.view(next, 0).expect("open").keys.address, view.keys.address);
    drop(busy);
    d.synchronize();
    assert_eq!(cache.poll(), Ok(fence));
    assert_eq!((cache.stats().leaving, region_bytes(&d.pool)), (0, 0));
    let again = cache.open().expect("room");
    assert_eq!(cache.view(again, 0).expect("open").keys.address, view.keys.address);
    drop(cache);
    end(d, &streams, &[word]);
}

#[test]
fn contiguous_sequences_have_memory_and_leave_it_behind_their_fences() {
    on_sim("contiguous addresses", &[]);
}

/// Each of CUDA's calls that growing, shrinking, fences and tables make fails once: the call is
/// refused with nothing lost, and then works.
fn calls_fail() {
    let d = device();
    let stream = d.stream(Kind::NonBlocking);
    let memory = memory(&d.pool, 100, 4);
    let cache = memory.cache();
    let seq = sequence(cache, 16 * 3);
    for block in 1..4 {
        fill(&d.pool, address(&memory, block), PAGE, 1 + block as u8, stream);
    }
    let (mut met, mut failed) = (Vec::new(), Vec::new());
    let mut attempt = |call: &'static str, f: &mut dyn FnMut() -> bool| {
        let before = d.sim.calls(call);
        d.sim.script(&format!("fail {call} once with 999"));
        let done = f();
        d.sim.script("");
        if d.sim.calls(call) > before {
            met.push(call);
        }
        d.pool.with_core(|core| core.recover()).expect("alive");
        if !done {
            failed.push(call);
            assert!(f(), "{call} works again");
        }
        for block in 1..4 {
            assert!(holds(&d.pool, address(&memory, block), PAGE, 1 + block as u8, stream));
        }
    };
    for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"] {
        d.pool.trim(0).expect("no fault");
        attempt(call, &mut || memory.resize(0, 30).is_ok());
        assert_eq!(memory.backed(0).expect("a group").backed, 30, "{call}");
        attempt(call, &mut || memory.resize(0, 4).is_ok() && memory.poll().is_ok());
        memory.poll().expect("no fault");
        assert_eq!(memory.backed(0).expect("a group").backed, 4, "{call}");
    }
    for call in ["cuEventCreate", "cuEventRecord"] {
        attempt(call, &mut || memory.fence(&[stream]).is_ok());
    }
    d.synchronize();
    attempt("cuEventQuery", &mut || memory.poll().is_ok());
    let at = d.pool.alloc(4096, stream).expect("room");
    let table =
        Table { group: 0, address: at, rows: 8, stride: 8, staging_bytes: 0, staging_buffers: 0 };
    memory.resize(0, 20).expect("room");
    // SAFETY: the array is memory of the test of this length until after the unbinding.
    unsafe { memory.bind_table(table) }.expect("it makes sense");
    for call in ["cuMemcpyAsync", "cuEventRecord"] {
        cache.append(seq, Tokens::Count(16)).expect("a block");
        attempt(call, &mut || memory.sync_table(0, &[seq], stream).is_ok());
        assert_eq!(array(&d, at, 64, stream), expected(cache, &[seq], 8, 8), "{call}");
    }
    // Others are tried again, or waited for, by the call itself.
    for call in ["cuMemMap", "cuMemSetAccess", "cuEventRecord", "cuMemcpyAsync"] {
        assert!(failed.contains(&call), "{call}: {failed:?}");
    }
    for call in ["cuMemCreate", "cuMemUnmap", "cuEventCreate", "cuEventQuery"] {
        assert!(met.contains(&call), "{call}: {met:?}");
    }
    memory.unbind_table(0).expect("bound");
    drop(memory);
    d.pool.dealloc(at, stream).expect("live");
    end(d, &[stream], &[]);
}

#[test]
fn calls_that_fail_change_nothing() {
    on_sim("blocks whose calls fail", &[]);
}

fn plain_segments() {
    let pool = Pool::default_pool().expect("a pool");
    let kv = kv::Config::new(llama(), 100);
    let error = KvMemory::new(&pool, MemoryConfig { kv, initial: vec![4] }).expect_err("plain");
    assert_eq!(error.status(), Status::Unsupported);
    let config = ContiguousConfig {
        groups: vec![llama()],
        max_sequences: 1,
        max_tokens: 100,
        ahead_tokens: 0,
        keep_pages: 0,
    };
    let opened = ContiguousKv::new(&pool, config).and_then(|cache| cache.open());
    assert_eq!(opened.expect_err("plain").status(), Status::Unsupported);
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    on_sim("blocks without virtual memory", &[("REFUSE", "vmm=801")]);
}
