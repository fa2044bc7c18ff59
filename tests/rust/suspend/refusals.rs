//! What is refused, by name, and that a refusal changes nothing.

use super::*;
use forebay::abi::alloc::{forebay_alloc, forebay_dealloc};
use forebay::abi::{PoolT, StreamT};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::share::close_export;

#[test]
fn pinned_and_exported_blocks_refuse_the_suspend_by_name() {
    let mut g = Ground::new(64, 2, |_| {});
    let (kv, other) = (g.tags[0], g.tags[1]);
    let block = g.alloc(kv, 6 * GRANULE, 0).expect("room");
    let small = g.alloc(kv, 700, 0).expect("room");
    let elsewhere = g.alloc(other, GRANULE, 0).expect("room");
    g.pool.pin(elsewhere.address).expect("live");
    for pinned in [block, small] {
        g.pool.pin(pinned.address).expect("live");
        let (status, text) = told(g.pool.suspend(&[kv], Level::Offload));
        let name = format!("{:#x}", pinned.address);
        assert_eq!(status, Status::Busy);
        assert!(has(&text, &[&name, "suspendable 0", "pinned"]), "{text}");
        block.check();
        g.pool.unpin(pinned.address).expect("pinned");
    }
    let export = g.pool.export(block.address).expect("whole pages");
    let (status, text) = told(g.pool.suspend(&[kv], Level::Discard));
    assert_eq!(status, Status::Busy);
    assert!(has(&text, &[&format!("{:#x}", block.address), "exported"]), "{text}");
    // Freed, and its pages still out.
    g.free(block);
    let (_, text) = told(g.pool.suspend(&[kv], Level::Discard));
    assert!(has(&text, &["exported"]), "{text}");
    close_export(export.id).expect("open");
    let window = g.pool.open_export(small.address).expect("live");
    let (_, text) = told(g.pool.suspend(&[kv], Level::Discard));
    assert!(has(&text, &[&format!("{:#x}", small.address), "exported"]), "{text}");
    close_export(window.id).expect("open");
    // The other tag's pin is nobody else's affair.
    g.suspend(&[kv]);
    let (_, text) = told(g.pool.suspend(&[kv, other], Level::Offload));
    assert!(has(&text, &[&format!("{:#x}", elsewhere.address)]), "{text}");
    g.resume(&[kv]);
    small.check();
    g.free(small);
    g.free(elsewhere);
    drop(export);
    g.driver.inner().run_all();
    g.end(&[]);
}

#[test]
fn what_needs_the_memory_is_refused_while_it_is_away() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let block = g.alloc(kv, 2 * GRANULE, 0).expect("room");
    g.suspend(&[kv]);
    let pool = &g.pool;
    for (status, text) in [
        told(under(kv, || pool.alloc(100, 0))),
        told(under(kv, || pool.alloc(3 * GRANULE, 0))),
        told(pool.pin(block.address)),
        told(pool.export(block.address)),
        told(pool.open_export(block.address)),
    ] {
        assert_eq!(status, Status::Busy);
        assert!(has(&text, &["suspendable 0", "suspended", "resume"]), "{text}");
    }
    // What does not, is not.
    assert_eq!(pool.usable_size(block.address).expect("live"), 2 * GRANULE);
    pool.record_use(block.address, 0).expect("live");
    assert!(pool.block_around(block.address + 9).is_ok());
    pool.alloc(3 * GRANULE, 0).and_then(|address| pool.dealloc(address, 0)).expect("untagged");
    g.resume(&[kv]);
    block.check();
    let more = g.alloc(kv, 100, 0).expect("awake");
    g.free(more);
    g.free(block);
    g.end(&[]);
}

#[test]
fn tags_that_are_none_are_refused() {
    let g = Ground::new(16, 1, |_| {});
    let (declared, other) = (g.tags[0], tag(3));
    for bad in [0, 1, 126, 127] {
        let (status, _) = told(g.pool.declare_suspendable(bad));
        assert_eq!(status, Status::InvalidArgument, "{bad}");
    }
    let (status, text) = told(g.pool.suspend(&[declared, other], Level::Offload));
    assert_eq!(status, Status::InvalidArgument);
    assert!(has(&text, &["suspendable 3", "not suspendable"]), "{text}");
    assert!(!g.pool.is_suspended(declared).expect("alive"), "all or none");
    let (status, _) = told(g.pool.resume(&[other], &mut Report::default()));
    assert_eq!(status, Status::InvalidArgument);
    g.pool.declare_suspendable(declared).expect("again is fine");
    assert_eq!(g.suspend(&[]), Report::default());
    g.end(&[]);
}

#[test]
fn another_pools_tag_is_its_own_affair() {
    let mut g = Ground::new(32, 1, |_| {});
    let kv = g.tags[0];
    let (driver, pool) = common::small_pool(16 << 20);
    let block = g.alloc(kv, GRANULE, 0).expect("room");
    let elsewhere = under(kv, || pool.alloc(1000, 0)).expect("room");
    let (status, _) = told(pool.suspend(&[kv], Level::Offload));
    assert_eq!(status, Status::InvalidArgument);
    g.suspend(&[kv]);
    let more = under(kv, || pool.alloc(1000, 0)).expect("it is not suspendable there");
    pool.dealloc(elsewhere, 0).expect("live");
    pool.dealloc(more, 0).expect("live");
    g.resume(&[kv]);
    block.check();
    g.free(block);
    common::end(&driver, pool, &[]);
    g.end(&[]);
}

/// What the hot paths of an allocation and a free say.
fn hot(pool: u64, stream: u64, address: usize) -> [(Status, String); 2] {
    let (pool, stream) = (pool as PoolT, stream as StreamT);
    let (mut at, block) = (std::ptr::null_mut(), address as *mut std::ffi::c_void);
    // SAFETY: a local receives the address; the block stays, as its free is refused.
    let answers = unsafe {
        [forebay_alloc(pool, &raw mut at, 1000, stream), forebay_dealloc(pool, block, stream)]
    };
    answers.map(|status| (status, String::new()))
}

/// Fills this thread's cache.
fn warm(pool: u64, stream: u64) {
    let (pool, stream) = (pool as PoolT, stream as StreamT);
    let mut blocks = [std::ptr::null_mut(); 300];
    for block in &mut blocks {
        // SAFETY: a local receives the address.
        assert_eq!(unsafe { forebay_alloc(pool, block, 1000, stream) }, Status::Ok);
    }
    for block in blocks {
        // SAFETY: the block is live and given up.
        assert_eq!(unsafe { forebay_dealloc(pool, block, stream) }, Status::Ok);
    }
}

/// A value that no stream can have must not stand for the lane of something else: of a tag's
/// slabs, of `cudaFree`'s meaning, or of a stream in another pool.
#[test]
fn a_value_that_is_no_stream_reaches_no_lane() {
    let mut g = Ground::new(64, 1, |_| {});
    let kv = g.tags[0];
    let small = g.alloc(kv, 1000, 0).expect("room");
    let handle = g.pool.handle();
    // Another pool, of whose default stream this thread has a cache with slots in it.
    let (second_driver, second) = common::small_pool(64 << 20);
    let other = second.handle();
    let tags = handle ^ (u64::MAX - u64::from(kv));
    for wild in [tags, handle ^ SYNC_STREAM, handle ^ other, handle, 1 << 48, u64::MAX] {
        let answers = [
            told(g.pool.note_stream(wild)),
            told(g.pool.alloc(1000, wild)),
            told(g.pool.record_use(small.address, wild)),
            told(g.pool.dealloc(small.address, wild)),
            told(registry::retire_stream(wild)),
        ];
        warm(other, 0);
        let answers = answers.into_iter().chain(hot(handle, wild, small.address));
        for (at, (status, text)) in answers.enumerate() {
            assert_eq!(status, Status::InvalidStream, "{wild:#x}, call {at}: {text}");
        }
    }
    common::end(&second_driver, second, &[]);
    // The tag's lane is what it was: nobody else gets its slots, and they sleep with it.
    let untagged = g.alloc(1, 1000, 0).expect("room");
    assert_ne!(untagged.address / GRANULE, small.address / GRANULE);
    assert_eq!(g.suspend(&[kv]).blocks, 1);
    untagged.check();
    g.resume(&[kv]);
    small.check();
    g.free(small);
    g.free(untagged);
    g.driver.inner().run_all();
    g.end(&[]);
}
