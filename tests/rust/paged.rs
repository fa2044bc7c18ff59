//! Memory behind the paged KV cache, on host memory: growing and shrinking, fences, tables,
//! contiguous addresses, and each with failing driver calls.

#[path = "paged/bad_input.rs"]
mod bad_input;
#[path = "paged/contiguous.rs"]
mod contiguous;
#[path = "common/device.rs"]
mod device;
#[path = "paged/ends.rs"]
mod ends;
#[path = "paged/faults.rs"]
mod faults;
#[path = "paged/grow.rs"]
mod grow;
#[path = "paged/late.rs"]
mod late;
#[path = "paged/scrub.rs"]
mod scrub;
#[path = "paged/tables.rs"]
mod tables;

use forebay::config::Config;
use forebay::driver::Driver;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::kv::{self, Content, Element, Geometry, KvCache, Open, Order, Seq, Tokens};
use forebay::paged::tables::Table;
use forebay::paged::{KvMemory, MemoryConfig, MemoryError};
use forebay::pool::{Pool, Settings};
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// Llama-3-8B in bf16: 16 tokens are 2 MiB.
fn llama(order: Order) -> Geometry {
    Geometry {
        layers: 32,
        heads: 8,
        key_size: 128,
        value_size: 128,
        block_tokens: 16,
        element: Element::Bf16,
        content: Content::Attention { window: 0 },
        order,
    }
}

/// Four tokens a block, 24 KiB of three layers.
fn small(order: Order) -> Geometry {
    Geometry {
        layers: 3,
        heads: 2,
        key_size: 256,
        value_size: 256,
        block_tokens: 4,
        ..llama(order)
    }
}

/// A pool without a keeper over a host device of its own, and some streams.
fn host_pool(options: HostOptions, streams: usize) -> (Arc<HostDriver>, Pool, Vec<u64>) {
    let total = options.total_bytes as u64;
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), total, true);
    settings.keeper = false;
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let streams = (0..streams).map(|_| driver.stream_create().expect("a stream").0).collect();
    (driver, pool, streams)
}

/// A cache of one group, `initial` of `most` blocks there at the beginning; no prefixes.
fn memory(pool: &Pool, geometry: Geometry, most: u32, initial: u32) -> KvMemory {
    let kv = kv::Config { prefixes: false, ..kv::Config::new(geometry, most) };
    KvMemory::new(pool, MemoryConfig { kv, initial: vec![initial] }).expect("memory")
}

/// Binds a table of the test's own.
fn bind(memory: &KvMemory, table: Table) -> Result<(), MemoryError> {
    // SAFETY: each test binds a block of its pool's, which it keeps, or syncs nothing.
    unsafe { memory.bind_table(table) }
}

/// A sequence of so many tokens.
fn sequence(cache: &KvCache, tokens: u32) -> Seq {
    let seq = cache.open(Open::default()).expect("room");
    cache.append(seq, Tokens::Count(tokens)).expect("blocks");
    seq
}

/// A sequence's blocks in group 0.
fn blocks_of(cache: &KvCache, seq: Seq) -> Vec<u32> {
    let mut csr = kv::Csr::default();
    cache.csr(0, &[seq], &mut csr).expect("it holds tokens");
    csr.indices.iter().map(|&block| block as u32).collect()
}

/// Addresses and lengths of all pieces of a block of group 0.
fn pieces(memory: &KvMemory, geometry: &Geometry, block: u32) -> Vec<(usize, usize)> {
    let view = memory.view(0).expect("a group");
    let at = |layer: u64| {
        view.base
            + (view.offset + layer * view.layer_stride) as usize
            + block as usize * view.block_stride as usize
    };
    let bytes = (view.layout.block_bytes / u64::from(geometry.layers)) as usize;
    (0..u64::from(geometry.layers)).map(|layer| (at(layer), bytes)).collect()
}

/// Writes a value to all of a block.
fn write_block(memory: &KvMemory, geometry: &Geometry, block: u32, value: u8) {
    for (address, bytes) in pieces(memory, geometry, block) {
        // SAFETY: a block below the group's end has memory of its own.
        unsafe { (address as *mut u8).write_bytes(value, bytes) };
    }
}

/// Whether all of a block holds a value.
fn block_holds(memory: &KvMemory, geometry: &Geometry, block: u32, value: u8) -> bool {
    pieces(memory, geometry, block).into_iter().all(|(address, bytes)| {
        // SAFETY: as above; nothing writes it meanwhile.
        let found = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
        found.iter().all(|&byte| byte == value)
    })
}
