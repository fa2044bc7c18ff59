//! Wrong use is an error with a reason, and changes nothing.

use crate::device;
use crate::{MIB, bind, llama, memory, sequence};
use forebay::driver::Driver;
use forebay::error::Status;
use forebay::kv::{self, Geometry, KvCache, KvError, Order};
use forebay::paged::tables::Table;
use forebay::paged::{KvMemory, MemoryConfig, MemoryError};
use forebay::pool::regions::Row;
use std::sync::Arc;

#[test]
fn configurations_without_sense_are_refused() {
    let (driver, pool) = device::small_pool(16 * MIB);
    let new = |initial: &[u32], change: fn(&mut kv::Config)| {
        let mut kv = kv::Config::new(llama(Order::BlockOuter), 100);
        change(&mut kv);
        KvMemory::new(&pool, MemoryConfig { kv, initial: initial.to_vec() }).map(drop)
    };
    let kept = |_: &mut kv::Config| {};
    assert!(matches!(new(&[], kept), Err(MemoryError::Invalid(_))));
    assert!(matches!(new(&[2, 2], kept), Err(MemoryError::Invalid(_))));
    for blocks in [0, 1, 101] {
        let refused = new(&[blocks], kept);
        assert!(matches!(refused, Err(MemoryError::Kv(KvError::OutOfRange(_)))), "{blocks}");
    }
    let empty = new(&[2], |kv| kv.groups.clear());
    assert!(matches!(empty, Err(MemoryError::Kv(KvError::Config(_)))));
    let none = |kv: &mut kv::Config| kv.max_sequences = 0;
    assert!(matches!(new(&[2], none), Err(MemoryError::Kv(KvError::Config(_)))));
    // Eight pages are all there are.
    let short = new(&[9], kept).expect_err("too many");
    assert_eq!(short.status(), Status::OutOfMemory);
    assert!(short.to_string().contains("out of memory"), "{short}");
    assert_eq!(pool.stats().expect("alive").region_bytes, 0);
    // Two groups whose bytes do not fit in one range.
    let huge = |kv: &mut kv::Config| {
        let geometry = Geometry {
            heads: 1 << 15,
            key_size: 1 << 12,
            value_size: 1 << 12,
            ..kv.groups[0].geometry
        };
        kv.groups = vec![kv::Group { geometry, blocks: 1 << 20 }; 2];
    };
    assert!(new(&[2, 2], huge).is_err());
    device::end(&driver, pool, &[]);
}

#[test]
fn memory_comes_once_and_before_the_first_sequence() {
    let (driver, pool) = device::small_pool(16 * MIB);
    let config = kv::Config::new(llama(Order::BlockOuter), 100);
    let cache = Arc::new(KvCache::new(config).expect("it makes sense"));
    let over = |blocks| KvMemory::over(&pool, Arc::clone(&cache), &[blocks]);
    let in_use = |answer: Result<KvMemory, MemoryError>| {
        assert!(matches!(answer, Err(MemoryError::Kv(KvError::Unsupported(_)))), "{answer:?}");
    };
    assert_eq!(over(9).expect_err("8 pages are all").status(), Status::OutOfMemory);
    assert_eq!(cache.stats().groups[0].counts.total, 100);
    let memory = over(4).expect("a refusal leaves no trace");
    in_use(over(4));
    in_use(over(4));
    assert_eq!(cache.stats().groups[0].counts.total, 4);
    drop(memory);
    assert_eq!(cache.stats().groups[0].counts.total, 100, "as it was made");
    let seq = cache.open(kv::Open::default()).expect("room");
    in_use(over(4));
    cache.free(&[seq], kv::NO_FENCE).expect("open");
    let mut blocks = [0; 1];
    cache.take_blocks(0, &mut blocks).expect("a block");
    in_use(over(4));
    cache.release_blocks(0, &blocks, kv::NO_FENCE).expect("held");
    // Numbers of fences go on above what has passed, and the cache's old ones are not waited for.
    cache.take_blocks(0, &mut blocks).expect("a block");
    cache.release_blocks(0, &blocks, 41).expect("held");
    in_use(over(4));
    cache.pass(41);
    let memory = over(4).expect("nobody uses it");
    assert_eq!(memory.fence(&[0]).expect("a stream"), 42);
    drop(memory);
    cache.pass(u64::MAX);
    in_use(over(4));
    device::end(&driver, pool, &[]);
}

#[test]
fn numbers_and_handles_that_are_not_there_are_refused() {
    let (driver, pool) = device::small_pool(32 * MIB);
    let memory = memory(&pool, llama(Order::BlockOuter), 100, 4);
    let before = memory.backed(0).expect("a group");
    assert!(matches!(memory.view(1), Err(MemoryError::Invalid(_))));
    assert!(matches!(memory.backed(1), Err(MemoryError::Invalid(_))));
    assert!(matches!(memory.resize(1, 4), Err(MemoryError::Invalid(_))));
    for blocks in [0, 1, 101, u32::MAX] {
        let refused = memory.resize(0, blocks);
        assert!(matches!(refused, Err(MemoryError::Kv(KvError::OutOfRange(_)))), "{refused:?}");
    }
    assert_eq!(memory.backed(0).expect("a group"), before);
    for streams in [&[0x1234][..], &[0, 0x1234]] {
        let refused = memory.fence(streams).expect_err("no such stream");
        assert_eq!(refused.status(), Status::InvalidStream);
    }
    assert!(matches!(memory.fence(&[0; 65]), Err(MemoryError::Invalid(_))));
    assert_eq!(memory.fence(&[0]).expect("a stream"), 1, "refused ones took no number");
    let lost = memory.run_copies(0x1234);
    assert_eq!(lost.expect("there are none"), (0, None));
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let (driver, pool) = device::small_pool(64 * MIB);
    let memory = memory(&pool, llama(Order::BlockOuter), 100, 10);
    let address = pool.alloc(4096, 0).expect("it fits");
    let good =
        Table { group: 0, address, rows: 2, stride: 3, staging_bytes: 0, staging_buffers: 0 };
    let refused = |table: Table| {
        let answer = bind(&memory, table);
        assert!(matches!(answer, Err(MemoryError::Invalid(_))), "{table:?}: {answer:?}");
    };
    refused(Table { group: 1, ..good });
    refused(Table { address: 0, ..good });
    refused(Table { address: address + 2, ..good });
    refused(Table { address: usize::MAX - 3, ..good });
    refused(Table { rows: 0, ..good });
    refused(Table { stride: 0, ..good });
    refused(Table { staging_bytes: 6, ..good });
    assert!(matches!(memory.sync_table(0, &[], 0), Err(MemoryError::Invalid(_))));
    assert!(matches!(memory.unbind_table(0), Err(MemoryError::Invalid(_))));
    assert!(matches!(memory.staging(0), Err(MemoryError::Invalid(_))));
    bind(&memory, good).expect("it is one");
    refused(good);
    let cache = memory.cache();
    let seqs = [0, 1, 2].map(|_| sequence(cache, 1));
    assert!(matches!(memory.sync_table(0, &seqs, 0), Err(MemoryError::Invalid(_))));
    let long = sequence(cache, 16 * 4);
    let short = memory.sync_table(0, &[long], 0);
    assert!(matches!(short, Err(MemoryError::Kv(KvError::OutOfRange(_)))), "{short:?}");
    let stale = memory.sync_table(0, &[kv::Seq::from_raw(5)], 0);
    assert_eq!(stale, Err(MemoryError::Kv(KvError::Stale)));
    let lost = memory.sync_table(0, &seqs[..1], 0x1234).expect_err("no such stream");
    assert!(matches!(lost.status(), Status::InvalidStream), "{lost}");
    memory.sync_table(0, &seqs[..2], 0).expect("all is well");
    memory.unbind_table(0).expect("bound");
    // Staging that can never hold the first sync.
    bind(&memory, Table { staging_bytes: 4, staging_buffers: 5, ..good })
        .expect("six entries in buffers of one");
    assert!(matches!(memory.sync_table(0, &seqs[..2], 0), Err(MemoryError::Invalid(_))));
    drop(memory);
    pool.dealloc(address, 0).expect("live");
    device::end(&driver, pool, &[]);
}

#[test]
fn regions_and_rows_that_cannot_be_are_refused() {
    let (driver, pool) = device::small_pool(16 * MIB);
    let status = |answer: forebay::error::Result<()>| answer.expect_err("wrong").status();
    assert_eq!(status(pool.region(0).map(drop)), Status::InvalidArgument);
    assert_eq!(status(pool.region(usize::MAX).map(drop)), Status::InvalidArgument);
    let region = pool.region(7 * MIB).expect("a range");
    assert_eq!((region.bytes(), region.granule()), (8 * MIB, 2 * MIB));
    let row = |first, len| Row { first, len };
    assert_eq!(status(region.map(&[row(3, 2)])), Status::InvalidArgument);
    assert_eq!(status(region.map(&[row(u32::MAX, 2)])), Status::InvalidArgument);
    region.map(&[row(1, 1), row(3, 1)]).expect("it fits");
    assert_eq!(status(region.map(&[row(0, 2)])), Status::InvalidArgument, "one has a page");
    assert_eq!(status(region.unmap(&[row(0, 9)]).1), Status::InvalidArgument);
    // A free of what the cache holds is no free.
    let inside = region.base() + 2 * MIB;
    assert_eq!(status(pool.dealloc(inside, 0)), Status::NotOwned);
    assert_eq!(region.unmap(&[row(1, 1)]), (1, Ok(())));
    region.close().expect("no fault");
    region.close().expect("again is fine");
    drop(region);
    assert_eq!(driver.memory_info().expect("a driver").1, 16 * MIB);
    device::end(&driver, pool, &[]);
}
