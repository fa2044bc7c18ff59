//! What blocks held is overwritten before their pages serve anybody else, where that is asked for.

use crate::device::{self, Watched, check_books};
use crate::{block_holds, memory, small, write_block};
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Driver};
use forebay::kv::{NO_FENCE, Order};
use forebay::paged::contiguous::{ContiguousConfig, ContiguousKv};
use forebay::pool::Pool;
use std::sync::Arc;

const PAGE: usize = 64 << 10;
const PAGES: usize = 32;
/// What the blocks hold.
const SECRET: u8 = 0x5e;

fn open(change: fn(&mut forebay::pool::Settings)) -> (Arc<Watched>, Pool) {
    let (total_bytes, granularity) = (PAGES * PAGE, PAGE);
    let driver = device::device(HostOptions { total_bytes, granularity, ..Default::default() });
    let mut settings = device::settings(&driver);
    change(&mut settings);
    let pool = device::pool(&driver, settings);
    (driver, pool)
}

/// How often each value is found in so many bytes of the pool, which are all that it has at hand.
fn found(driver: &Watched, pool: &Pool, pages: usize) -> [usize; 256] {
    let created = driver.count(Call::Create);
    let block = pool.alloc(pages * PAGE, 0).expect("they are at hand");
    assert_eq!(driver.count(Call::Create), created, "they were somebody's before");
    // SAFETY: a live block of this length.
    let bytes = unsafe { std::slice::from_raw_parts(block as *const u8, pages * PAGE) };
    let mut values = [0; 256];
    bytes.iter().for_each(|&byte| values[usize::from(byte)] += 1);
    pool.dealloc(block, 0).expect("live");
    values
}

/// A cache whose blocks all hold the secret.
fn filled(pool: &Pool, order: Order) -> forebay::paged::KvMemory {
    let geometry = small(order);
    let memory = memory(pool, geometry, 60, 50);
    (0..50).for_each(|block| write_block(&memory, &geometry, block, SECRET));
    memory
}

#[test]
fn others_find_zeros_where_scrub_is_asked_for_and_poison_where_that_is() {
    type Change = fn(&mut forebay::pool::Settings);
    let cases: [(Change, u8); 3] = [
        (|_| (), SECRET),
        (|settings| settings.scrub = true, 0),
        (|settings| settings.debug.poison = true, forebay::pool::wipes::POISON),
    ];
    for (change, held) in cases {
        for order in [Order::BlockOuter, Order::LayerOuter] {
            let (driver, pool) = open(change);
            let memory = filled(&pool, order);
            let before = memory.backed(0).expect("a group").bytes as usize / PAGE;
            memory.resize(0, 2).expect("nothing is held");
            let after = memory.backed(0).expect("a group").bytes as usize / PAGE;
            // What stays keeps its contents.
            assert!(block_holds(&memory, &small(order), 1, SECRET));
            let pages = before - after;
            assert!(pages > 10, "{pages} of {before}");
            // The last page of a layer is not full.
            let least = if held == SECRET { (pages - 3) * PAGE } else { pages * PAGE };
            let count = found(&driver, &pool, pages)[usize::from(held)];
            assert!(count >= least, "{order:?} {held}: {count} of {least}");
            drop(memory);
            pool.trim(0).expect("no fault");
            device::end(&driver, pool, &[]);
        }
    }
}

#[test]
fn an_ended_cache_leaves_nothing_to_be_read() {
    let (driver, pool) = open(|settings| settings.scrub = true);
    let memory = filled(&pool, Order::BlockOuter);
    let pages = memory.backed(0).expect("a group").bytes as usize / PAGE;
    drop(memory);
    assert_eq!(found(&driver, &pool, pages)[0], pages * PAGE);
    device::end(&driver, pool, &[]);
}

#[test]
fn pages_that_could_not_be_cleared_are_nobodys_until_they_are() {
    let (driver, pool) = open(|settings| settings.scrub = true);
    let memory = filled(&pool, Order::BlockOuter);
    let before = memory.backed(0).expect("a group").bytes;
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::Fill]), 1));
    memory.resize(0, 2).expect_err("they cannot be cleared");
    assert_eq!(memory.backed(0).expect("a group").bytes, before);
    assert_eq!(check_books(&driver, &pool).region_bytes, before);
    memory.poll().expect_err("still not");
    driver.clear_faults();
    memory.poll().expect("they can be now");
    let pages = (before - memory.backed(0).expect("a group").bytes) as usize / PAGE;
    assert!(pages > 10, "{pages}");
    assert_eq!(found(&driver, &pool, pages)[0], pages * PAGE);
    // The owner is gone before they can be cleared: the pool does it later.
    (0..2).for_each(|block| write_block(&memory, &small(Order::BlockOuter), block, SECRET));
    let pages = memory.backed(0).expect("a group").bytes as usize / PAGE;
    pool.trim(0).expect("no fault");
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::Fill]), 1));
    drop(memory);
    assert!(pool.with_core(|core| core.recover()).expect("alive"), "some is stuck");
    driver.clear_faults();
    assert!(!pool.with_core(|core| core.recover()).expect("alive"), "all is back");
    assert_eq!(found(&driver, &pool, pages)[0], pages * PAGE);
    device::end(&driver, pool, &[]);
}

/// A device whose work runs when it is told to.
fn deferred() -> (Arc<Watched>, Pool) {
    let (total_bytes, granularity, deferred) = (PAGES * PAGE, PAGE, true);
    let options = HostOptions { total_bytes, granularity, deferred, ..Default::default() };
    let driver = device::device(options);
    let mut settings = device::settings(&driver);
    settings.scrub = true;
    let pool = device::pool(&driver, settings);
    (driver, pool)
}

#[test]
fn pages_whose_end_was_not_seen_serve_nobody_while_they_may_be_cleared() {
    let order = Order::BlockOuter;
    let (driver, pool) = deferred();
    let memory = filled(&pool, order);
    driver.fail(Fault::once(CallSet::of(&[Call::StreamSynchronize]), 1));
    memory.resize(0, 2).expect_err("the wait fails");
    driver.clear_faults();
    memory.resize(0, 50).expect("it grows again");
    (2..50).for_each(|block| write_block(&memory, &small(order), block, 7));
    driver.synchronize().expect("no fault");
    let held = |block: &u32| block_holds(&memory, &small(order), *block, 7);
    assert_eq!((2..50).filter(held).count(), 48, "some were cleared while in use");
    check_books(&driver, &pool);
    drop(memory);
    device::end(&driver, pool, &[]);
}

#[test]
fn a_range_whose_end_was_not_seen_serves_nobody_while_it_may_be_cleared() {
    let (driver, pool) = deferred();
    let config = ContiguousConfig {
        groups: vec![small(Order::BlockOuter)],
        max_sequences: 1,
        max_tokens: 40,
        ahead_tokens: 0,
        keep_pages: 0,
    };
    let kv = ContiguousKv::new(&pool, config).expect("memory");
    for value in [SECRET, 7] {
        let seq = kv.open().expect("room");
        kv.ensure(&[(seq, 40)]).1.expect("memory");
        let view = kv.view(seq, 0).expect("open");
        let sides = [view.keys, view.values.expect("attention")];
        let tokens = || {
            sides
                .into_iter()
                .flat_map(|s| (0..40).map(move |t| s.address + t * s.token_stride as usize))
        };
        // SAFETY: each token has memory of the sequence's.
        tokens().for_each(|at| unsafe { (at as *mut u8).write(value) });
        driver.synchronize().expect("no fault");
        // SAFETY: as above; nothing writes it now.
        let held = tokens().filter(|&at| unsafe { (at as *const u8).read() } == value).count();
        assert_eq!(held, 80, "some were cleared while in use");
        driver.fail(Fault::once(CallSet::of(&[Call::StreamSynchronize]), 1));
        kv.free(&[seq], NO_FENCE).expect("open");
        let ended = kv.poll().err().or_else(|| kv.release_kept().err());
        assert!(ended.is_some(), "the wait fails");
        driver.clear_faults();
    }
    drop(kv);
    assert!(!pool.with_core(|core| core.recover()).expect("alive"), "all is back");
    device::end(&driver, pool, &[]);
}

#[test]
fn contiguous_sequences_leave_nothing_either() {
    let (driver, pool) = open(|settings| settings.scrub = true);
    let geometry = small(Order::BlockOuter);
    let config = ContiguousConfig {
        groups: vec![geometry],
        max_sequences: 2,
        max_tokens: 100,
        ahead_tokens: 0,
        keep_pages: 0,
    };
    let kv = ContiguousKv::new(&pool, config).expect("memory");
    let seq = kv.open().expect("room");
    let (_, ensured) = kv.ensure(&[(seq, 100)]);
    ensured.expect("memory");
    let pages = kv.stats().open_pages as usize;
    let view = kv.view(seq, 0).expect("open");
    for side in [view.keys, view.values.expect("attention")] {
        for token in 0..100 {
            let at = side.address + token * side.token_stride as usize;
            // SAFETY: the token has memory.
            unsafe { (at as *mut u8).write_bytes(SECRET, 512) };
        }
    }
    kv.free(&[seq], NO_FENCE).expect("open");
    kv.poll().expect("no fault");
    assert_eq!(kv.stats().open_pages + kv.stats().leaving_pages + kv.stats().kept_pages, 0);
    let values = found(&driver, &pool, pages);
    assert_eq!((values[usize::from(SECRET)], values[0]), (0, pages * PAGE));
    drop(kv);
    device::end(&driver, pool, &[]);
}
