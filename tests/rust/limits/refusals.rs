//! What a refusal says, and what the owner may do about it.

use super::common::{self, MIB, check_books};
use forebay::error::Status;
use forebay::pool::report::tag_create;
use forebay::pool::{Pool, registry};
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn the_report_names_the_request_the_limit_and_the_top_tag() {
    let driver = common::plain_device(64 * MIB);
    let mut settings = common::settings(&driver);
    settings.limit = 32 * MIB as u64;
    let pool = common::pool(&driver, settings);
    let (most, least) = (tag_create("kv-cache"), tag_create("activations"));
    let tagged = |tag: &forebay::error::Result<u8>, bytes| {
        let tag = *tag.as_ref().expect("a tag");
        let before = registry::set_tag(u32::from(tag)).expect("a thread cache");
        let block = pool.alloc(bytes, 0).expect("fits");
        registry::set_tag(before).expect("a thread cache");
        block
    };
    let blocks = [tagged(&least, 4 * MIB), tagged(&most, 20 * MIB), tagged(&least, MIB)];
    let wanted = 12 * MIB + 5;
    let error = pool.alloc(wanted, 0).expect_err("too much");
    assert_eq!(error.status(), Status::OutOfMemory);
    let text = error.message();
    assert!(text.contains(&format!("{wanted} bytes requested")), "{text}");
    assert!(text.contains(&format!("limit {}", 32 * MIB)), "{text}");
    let (first, second) = (text.find("kv-cache"), text.find("activations"));
    let (first, second) = (first.expect("the top tag"), second.expect("the next"));
    assert!(first < second, "the largest comes first: {text}");
    assert_eq!(pool.stats().expect("alive").out_of_memory, 1);
    blocks.into_iter().for_each(|b| pool.dealloc(b, 0).expect("live"));
    common::end(&driver, pool, &[]);
}

/// What the owner's callback works on.
struct Owner {
    pool: Pool,
    evictable: Mutex<Vec<usize>>,
    asked: Mutex<Vec<usize>>,
}

/// Frees one evictable block; uses the pool, which needs its locks.
unsafe extern "C" fn evict(context: *mut c_void, bytes: usize) -> bool {
    // SAFETY: the test passes its `Owner`, which outlives the pool's use of the callback.
    let owner = unsafe { &*context.cast::<Owner>() };
    owner.asked.lock().expect("no panic").push(bytes);
    let Some(block) = owner.evictable.lock().expect("no panic").pop() else { return false };
    assert!(owner.pool.stats().expect("no lock is held").live_bytes > 0);
    owner.pool.dealloc(block, 0).expect("no lock is held");
    true
}

#[test]
fn the_owner_is_asked_without_locks_and_may_free() {
    let (driver, pool) = common::small_pool(16 * MIB);
    let evictable: Vec<usize> = (0..4).map(|_| pool.alloc(4 * MIB, 0).expect("fits")).collect();
    let alias = Pool::from_number(pool.id()).expect("alive");
    let owner = Owner { pool: alias, evictable: Mutex::new(evictable), asked: Mutex::default() };
    let context = std::ptr::from_ref(&owner) as usize;
    pool.set_on_out_of_memory(Some((evict, context))).expect("alive");
    let block = pool.alloc(10 * MIB, 0).expect("the owner gives three blocks up");
    assert_eq!(*owner.asked.lock().expect("no panic"), vec![10 * MIB; 3]);
    assert_eq!(owner.evictable.lock().expect("no panic").len(), 1);
    let error = pool.alloc(14 * MIB, 0).expect_err("one block is not enough");
    assert_eq!(error.status(), Status::OutOfMemory);
    // Asked once more and it freed; asked again and it had nothing.
    assert_eq!(owner.asked.lock().expect("no panic").len(), 5);
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.live_blocks, stats.out_of_memory), (1, 1));
    pool.set_on_out_of_memory(None).expect("alive");
    pool.alloc(14 * MIB, 0).expect_err("nobody is asked");
    assert_eq!(owner.asked.lock().expect("no panic").len(), 5);
    pool.dealloc(block, 0).expect("live");
    common::end(&driver, pool, &[]);
}

/// Counts what is about to lose its place. Must not call the pool.
unsafe extern "C" fn unmapped(context: *mut c_void, address: *mut c_void, bytes: usize) {
    // SAFETY: the test passes this mutex, which outlives the callback.
    let rows = unsafe { &*context.cast::<Mutex<Vec<(usize, usize)>>>() };
    rows.lock().expect("no panic").push((address as usize, bytes));
}

#[test]
fn moved_and_trimmed_pages_are_told_of_and_pinned_ones_stay() {
    let (driver, pool) = common::small_pool(16 * MIB);
    let rows: Mutex<Vec<(usize, usize)>> = Mutex::default();
    pool.set_on_unmap(Some((unmapped, std::ptr::from_ref(&rows) as usize))).expect("alive");
    let mut blocks: Vec<usize> = (0..8).map(|_| pool.alloc(2 * MIB, 0).expect("fits")).collect();
    blocks.sort_unstable();
    let freed: Vec<usize> = [7, 5, 3, 1].map(|i| blocks.remove(i)).into();
    freed.iter().for_each(|&b| pool.dealloc(b, 0).expect("live"));
    blocks.iter().for_each(|&b| pool.pin(b).expect("live"));
    let large = pool.alloc(6 * MIB, 0).expect("three pages can move");
    let told = rows.lock().expect("no panic").clone();
    assert!(told.iter().all(|(a, n)| freed.contains(a) && *n == 2 * MIB), "{told:x?} {freed:x?}");
    assert!((2..=3).contains(&told.len()), "as many as were missing: {told:x?}");
    pool.set_on_unmap(None).expect("alive");
    blocks.into_iter().chain([large]).for_each(|b| pool.dealloc(b, 0).expect("live"));
    pool.trim(0).expect("no fault");
    assert_eq!(rows.lock().expect("no panic").len(), told.len(), "nobody is told any more");
    common::end(&driver, pool, &[]);
}

/// Where a callback has come.
#[derive(Default)]
struct Inside {
    entered: AtomicBool,
    replaced: AtomicBool,
    early: AtomicBool,
}

/// Takes a while; notes whether it was replaced meanwhile.
unsafe extern "C" fn slowly(context: *mut c_void, _: *mut c_void, _: usize) {
    // SAFETY: the test passes this, which outlives the callback.
    let inside = unsafe { &*context.cast::<Inside>() };
    inside.entered.store(true, Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(200));
    inside.early.store(inside.replaced.load(Ordering::SeqCst), Ordering::SeqCst);
}

#[test]
fn a_callback_that_is_replaced_runs_no_more() {
    let (driver, pool) = common::small_pool(16 * MIB);
    let inside = Inside::default();
    pool.set_on_unmap(Some((slowly, std::ptr::from_ref(&inside) as usize))).expect("alive");
    let block = pool.alloc(2 * MIB, 0).expect("fits");
    pool.dealloc(block, 0).expect("live");
    std::thread::scope(|scope| {
        scope.spawn(|| pool.trim(0).expect("no fault"));
        while !inside.entered.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        pool.set_on_unmap(None).expect("alive");
        inside.replaced.store(true, Ordering::SeqCst);
    });
    assert!(!inside.early.load(Ordering::SeqCst), "replaced while it ran: its context was gone");
    common::end(&driver, pool, &[]);
}
