//! Groups grow and shrink: what has memory when, whose it is, and that nothing moves.

use crate::device::{self, Watched, check_books};
use crate::{MIB, block_holds, blocks_of, llama, memory, sequence, small, write_block};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Driver};
use forebay::error::Status;
use forebay::kv::{self, KvError, NO_FENCE, Open, Order, Tokens};
use forebay::paged::{Backed, KvMemory, MemoryConfig, MemoryError};
use forebay::pool::Pool;
use std::sync::Arc;

const PAGE: u64 = 2 * MIB as u64;

fn open(bytes: usize) -> (Arc<Watched>, Pool) {
    device::small_pool(bytes)
}

/// A pool with a device of small pages.
fn fine(pages: usize) -> (Arc<Watched>, Pool) {
    let granularity = 64 << 10;
    let total_bytes = pages * granularity;
    let options = HostOptions { total_bytes, granularity, peer_devices: 3, ..Default::default() };
    let driver = device::device(options);
    let pool = device::pool(&driver, device::settings(&driver));
    (driver, pool)
}

fn status(error: MemoryError) -> Status {
    error.status()
}

#[test]
fn a_block_of_llama_is_a_page_and_growing_moves_nothing() {
    let (driver, pool) = open(64 * MIB);
    let geometry = llama(Order::BlockOuter);
    let memory = memory(&pool, geometry, 1000, 4);
    let view = memory.view(0).expect("a group");
    assert_eq!((view.offset, view.layer_stride, view.block_stride), (0, 64 << 10, PAGE));
    assert_eq!(check_books(&driver, &pool).region_bytes, 4 * PAGE);
    for block in 0..4 {
        write_block(&memory, &geometry, block, 10 + block as u8);
    }
    let grown = memory.resize(0, 20).expect("it fits");
    assert_eq!(grown, Backed { open: 20, backed: 20, bytes: 20 * PAGE });
    assert_eq!(memory.view(0).expect("a group"), view);
    write_block(&memory, &geometry, 19, 99);
    for block in 0..4 {
        assert!(block_holds(&memory, &geometry, block, 10 + block as u8), "block {block}");
    }
    assert_eq!(memory.cache().stats().groups[0].counts.total, 20);
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.region_bytes, stats.live_bytes), (20 * PAGE, 0));
    let report = pool.report_json().expect("alive");
    assert!(report.contains(&format!("\"region_bytes\":{}", 20 * PAGE)), "{report}");
    drop(memory);
    assert_eq!(check_books(&driver, &pool).region_bytes, 0);
    device::end(&driver, pool, &[]);
}

#[test]
fn every_block_has_all_its_memory_in_either_order() {
    for order in [Order::BlockOuter, Order::LayerOuter] {
        let (driver, pool) = fine(64);
        let geometry = small(order);
        let memory = memory(&pool, geometry, 90, 2);
        for blocks in [2, 3, 10, 11, 50, 90] {
            memory.resize(0, blocks).expect("it fits");
            for block in 0..blocks {
                write_block(&memory, &geometry, block, block as u8);
            }
            for block in 0..blocks {
                assert!(block_holds(&memory, &geometry, block, block as u8), "{order:?} {block}");
            }
        }
        // Back again: what is left keeps its contents.
        for blocks in [60, 59, 7, 2] {
            let backed = memory.resize(0, blocks).expect("nothing is held");
            assert_eq!((backed.open, backed.backed), (blocks, blocks));
            assert_eq!(check_books(&driver, &pool).region_bytes, backed.bytes);
            for block in 0..blocks {
                assert!(block_holds(&memory, &geometry, block, block as u8), "{order:?} {block}");
            }
        }
        let layers = if order == Order::BlockOuter { 1 } else { 3 };
        assert!(memory.backed(0).expect("a group").bytes <= layers * (64 << 10));
        drop(memory);
        device::end(&driver, pool, &[]);
    }
}

#[test]
fn blocks_come_out_of_the_pools_limit_and_go_back_to_its_stock() {
    let (driver, pool) = open(64 * MIB);
    pool.set_limits(Some(20 * PAGE), None).expect("no fault");
    let memory = memory(&pool, llama(Order::BlockOuter), 100, 4);
    let block = pool.alloc(8 * MIB, 0).expect("it fits");
    let before = memory.backed(0).expect("a group");
    let refused = memory.resize(0, 17).expect_err("4 + 16 pages are the limit");
    assert_eq!(status(refused), Status::OutOfMemory);
    assert_eq!(memory.backed(0).expect("a group"), before);
    assert_eq!(memory.cache().stats().groups[0].counts.total, 4);
    check_books(&driver, &pool);
    memory.resize(0, 16).expect("up to the limit");
    assert_eq!(pool.stats().expect("alive").mapped_bytes, 20 * PAGE);
    let refused = pool.alloc(2 * MIB, 0).expect_err("the limit is reached");
    assert!(refused.message().contains("regions hold 33554432"), "{refused}");
    // What the cache gives back the pool has, without a page created.
    memory.resize(0, 12).expect("nothing is held");
    assert_eq!(pool.stats().expect("alive").stock_bytes, 4 * PAGE);
    let created = driver.count(Call::Create);
    let other = pool.alloc(8 * MIB, 0).expect("the stock suffices");
    assert_eq!(driver.count(Call::Create), created);
    assert_eq!(check_books(&driver, &pool).stock_bytes, 0);
    // And the other way round: idle pages of the heap become blocks.
    pool.dealloc(block, 0).expect("live");
    pool.dealloc(other, 0).expect("live");
    memory.resize(0, 20).expect("idle pages suffice");
    assert_eq!(driver.count(Call::Create), created);
    assert_eq!(pool.memory_info().expect("alive").0, 0, "nobody else can have it");
    check_books(&driver, &pool);
    drop(memory);
    pool.trim(0).expect("no fault");
    assert_eq!(pool.stats().expect("alive").mapped_bytes, 0);
    device::end(&driver, pool, &[]);
}

#[test]
fn a_group_shrinks_as_far_as_its_blocks_are_nobodys() {
    let (driver, pool) = open(64 * MIB);
    let geometry = llama(Order::BlockOuter);
    let memory = memory(&pool, geometry, 100, 9);
    let cache = memory.cache();
    let low = sequence(cache, 16 * 2);
    let high = sequence(cache, 16 * 3);
    assert_eq!((blocks_of(cache, low), blocks_of(cache, high)), (vec![1, 2], vec![3, 4, 5]));
    for block in 1..6 {
        write_block(&memory, &geometry, block, block as u8);
    }
    let shrunk = memory.resize(0, 4).expect("it drains");
    assert_eq!(shrunk, Backed { open: 4, backed: 6, bytes: 6 * PAGE });
    assert_eq!(cache.stats().groups[0].draining, 2);
    for block in 1..6 {
        assert!(block_holds(&memory, &geometry, block, block as u8), "block {block}");
    }
    let seq = cache.open(Open::default()).expect("room");
    assert!(matches!(cache.append(seq, Tokens::Count(1)), Err(KvError::NoBlocks(_))));
    cache.rollback(high, 16, NO_FENCE).expect("it holds them");
    memory.poll().expect("no fault");
    assert_eq!(memory.backed(0).expect("a group").backed, 5);
    cache.free(&[high], NO_FENCE).expect("open");
    memory.poll().expect("no fault");
    assert_eq!(memory.backed(0).expect("a group"), Backed { open: 4, backed: 4, bytes: 4 * PAGE });
    cache.append(seq, Tokens::Count(1)).expect("block 3 is free");
    // A group that drains may grow again over what is still held.
    let long = memory.resize(0, 10).expect("it fits");
    assert_eq!(long, Backed { open: 10, backed: 10, bytes: 10 * PAGE });
    assert_eq!(check_books(&driver, &pool).region_bytes, 10 * PAGE);
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn prefixes_above_the_end_are_given_up() {
    let (driver, pool) = open(64 * MIB);
    let kv = kv::Config::new(llama(Order::BlockOuter), 100);
    let memory = KvMemory::new(&pool, MemoryConfig { kv, initial: vec![9] }).expect("memory");
    let cache = memory.cache();
    let tokens: Vec<i32> = (0..16 * 6).collect();
    let seq = cache.open(Open::default()).expect("room");
    cache.append(seq, Tokens::Known(&tokens)).expect("blocks");
    cache.commit(seq, 16 * 6, NO_FENCE).expect("there");
    cache.free(&[seq], NO_FENCE).expect("open");
    assert_eq!(cache.stats().groups[0].counts.cached, 6);
    let shrunk = memory.resize(0, 3).expect("nothing is held");
    assert_eq!(shrunk, Backed { open: 3, backed: 3, bytes: 3 * PAGE });
    let again = cache.open(Open::default()).expect("room");
    assert_eq!(cache.find_prefix(again, &tokens).expect("empty").tokens, 32);
    cache.check().expect("the accounts");
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn prefixes_beside_windows_give_their_memory_back() {
    let (driver, pool) = open(64 * MIB);
    let mut kv = kv::Config::new(llama(Order::BlockOuter), 100);
    kv.groups.push(kv.groups[0]);
    // Two blocks before the next token's are seen.
    kv.groups[1].geometry.content = kv::Content::Attention { window: 20 };
    let memory = KvMemory::new(&pool, MemoryConfig { kv, initial: vec![9, 9] }).expect("memory");
    let cache = memory.cache();
    let cached = || cache.stats().groups.iter().map(|g| g.counts.cached).collect::<Vec<_>>();
    let tokens: Vec<i32> = (0..16 * 6).collect();
    let seq = cache.open(Open::default()).expect("room");
    cache.append(seq, Tokens::Known(&tokens)).expect("blocks");
    cache.commit(seq, 16 * 6, NO_FENCE).expect("there");
    cache.trim(seq, None, NO_FENCE).expect("open");
    assert_eq!(cached(), [0, 4]);
    // The two that are in use lie above the end; those that nobody uses go at once.
    let shrunk = memory.resize(1, 3).expect("there are so many");
    assert_eq!(shrunk, Backed { open: 3, backed: 7, bytes: 7 * PAGE });
    cache.free(&[seq], NO_FENCE).expect("open");
    assert_eq!(cached(), [6, 2]);
    memory.poll().expect("it works");
    assert_eq!(memory.backed(1).expect("two").bytes, 3 * PAGE);
    let again = cache.open(Open::default()).expect("room");
    assert_eq!(cache.find_prefix(again, &tokens).expect("empty").tokens, 32);
    cache.free(&[again], NO_FENCE).expect("open");
    let shrunk = memory.resize(0, 2).expect("nothing is held");
    assert_eq!(shrunk, Backed { open: 2, backed: 2, bytes: 2 * PAGE });
    assert_eq!(cached(), [1, 1], "what went with a prefix that is given up is free");
    assert_eq!(check_books(&driver, &pool).region_bytes, 5 * PAGE);
    cache.check().expect("the accounts");
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn groups_have_their_own_lengths_in_one_region() {
    let (driver, pool) = fine(64);
    let mut kv = kv::Config::new(small(Order::BlockOuter), 30);
    kv.prefixes = false;
    kv.groups.push(kv::Group { geometry: small(Order::LayerOuter), blocks: 20 });
    let memory = KvMemory::new(&pool, MemoryConfig { kv, initial: vec![2, 2] }).expect("memory");
    let (first, second) = (memory.view(0).expect("one"), memory.view(1).expect("two"));
    assert_eq!(first.base, second.base);
    // 30 blocks of 24 KiB are 11.25 pages of 64 KiB.
    assert_eq!((first.offset, second.offset), (0, 12 * (64 << 10)));
    memory.resize(1, 20).expect("it fits");
    assert_eq!(memory.backed(0).expect("one").bytes, 64 << 10);
    assert_eq!(memory.backed(1).expect("two").bytes, 8 * (64 << 10));
    assert_eq!(check_books(&driver, &pool).region_bytes, 9 * (64 << 10));
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn peers_reach_blocks_that_are_there_and_those_to_come() {
    let (driver, pool) = fine(64);
    let memory = memory(&pool, small(Order::BlockOuter), 40, 5);
    let base = memory.view(0).expect("a group").base;
    let bytes = |memory: &KvMemory| memory.backed(0).expect("a group").bytes as usize;
    pool.enable_peer(1).expect("it can");
    assert_eq!(driver.inner().peers_of(base, bytes(&memory)), Some(vec![1]));
    memory.resize(0, 20).expect("it fits");
    assert_eq!(driver.inner().peers_of(base, bytes(&memory)), Some(vec![1]));
    pool.disable_peer(1).expect("it is one");
    assert_eq!(driver.inner().peers_of(base, bytes(&memory)), Some(vec![]));
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn a_cache_outlives_its_pool_without_harm() {
    let (driver, pool) = open(64 * MIB);
    let memory = memory(&pool, llama(Order::BlockOuter), 100, 6);
    let fence = memory.fence(&[0]).expect("a stream");
    let id = pool.id();
    let _ = pool.into_handle();
    forebay::pool::registry::destroy(id).expect("no fault");
    assert!(fence > NO_FENCE);
    assert_eq!(status(memory.resize(0, 8).expect_err("no pool")), Status::InvalidPool);
    assert_eq!(status(memory.fence(&[0]).expect_err("no pool")), Status::InvalidPool);
    drop(memory);
    assert!(driver.inner().census().is_clean(), "{:?}", driver.inner().census());
}

#[test]
fn the_keeper_ends_a_shrinking_that_waits() {
    let driver = device::plain_device(64 * MIB);
    let mut settings = device::settings(&driver);
    settings.keeper = true;
    let pool = device::pool(&driver, settings);
    let stream = driver.stream_create().expect("a stream").0;
    let memory = memory(&pool, llama(Order::BlockOuter), 100, 8);
    let seq = sequence(memory.cache(), 16 * 7);
    driver.inner().hold(forebay::driver::StreamHandle(stream)).expect("a stream");
    driver.inner().spin(forebay::driver::StreamHandle(stream), 0).expect("a stream");
    let fence = memory.fence(&[stream]).expect("a stream");
    memory.cache().free(&[seq], fence).expect("open");
    let shrunk = memory.resize(0, 2).expect("it drains");
    assert_eq!(shrunk.backed, 8);
    driver.inner().unhold(forebay::driver::StreamHandle(stream)).expect("a stream");
    // Nobody calls `poll`.
    for _ in 0..3000 {
        if memory.backed(0).expect("a group").bytes == 2 * PAGE {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(memory.backed(0).expect("a group").bytes, 2 * PAGE);
    drop(memory);
    device::end(&driver, pool, &[stream]);
}
