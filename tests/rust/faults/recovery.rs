//! Pages that got stuck: named while they are, back when the driver allows it.

use super::common::{self, MIB, check_books};
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::{Call, Driver};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use std::time::{Duration, Instant};

/// Strands the granules of a block of three: access fails, and so does the way back.
fn strand_three(keeper: bool) -> (std::sync::Arc<common::Watched>, forebay::pool::Pool) {
    let driver = common::plain_device(32 * MIB);
    let mut settings = common::settings(&driver);
    settings.keeper = keeper;
    let pool = common::pool(&driver, settings);
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::SetAccess, Call::Unmap]), 1));
    let refused = pool.alloc(6 * MIB, 0).expect_err("no access, no block");
    assert_eq!(refused.status(), Status::MappingLimit, "{refused}");
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.stranded_pages, stats.other_bytes), (3, 6 << 20));
    assert_eq!(driver.inner().census().mappings, 3, "stranded pages are still mapped");
    (driver, pool)
}

#[test]
fn stranded_pages_are_recovered_one_by_one() {
    let _alone = super::alone();
    let (driver, pool) = strand_three(false);
    // One unmap works, then they fail again.
    driver.clear_faults();
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::Unmap]), 2));
    assert!(pool.with_core(|core| core.recover()).expect("alive"), "two are still stuck");
    assert_eq!(check_books(&driver, &pool).stranded_pages, 2);
    driver.clear_faults();
    assert!(!pool.with_core(|core| core.recover()).expect("alive"));
    let stats = check_books(&driver, &pool);
    assert_eq!((stats.stranded_pages, stats.stock_bytes), (0, 6 << 20));
    let all = pool.alloc(32 * MIB, 0).expect("the whole device can be had again");
    pool.dealloc(all, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn an_allocation_that_needs_stranded_pages_recovers_them() {
    let _alone = super::alone();
    let (driver, pool) = strand_three(false);
    driver.clear_faults();
    let all = pool.alloc(32 * MIB, 0).expect("no keeper is needed for that");
    assert_eq!(check_books(&driver, &pool).stranded_pages, 0);
    pool.dealloc(all, 0).expect("live");
    common::end(&driver, pool, &[]);
}

#[test]
fn the_keeper_recovers_stranded_pages() {
    let _alone = super::alone();
    let (driver, pool) = strand_three(true);
    driver.clear_faults();
    wait_until(|| pool.stats().expect("alive").stranded_pages == 0);
    common::end(&driver, pool, &[]);
}

#[test]
fn the_keeper_retries_pages_that_were_not_taken_back() {
    let _alone = super::alone();
    let driver = common::plain_device(32 * MIB);
    let mut settings = common::settings(&driver);
    settings.keeper = true;
    let pool = common::pool(&driver, settings);
    let block = pool.alloc(8 * MIB, 0).expect("fits");
    pool.dealloc(block, 0).expect("live");
    driver.fail(Fault::from_then_on(CallSet::of(&[Call::Release]), 1));
    let refused = pool.trim(0).expect_err("the driver takes nothing back");
    assert_eq!(refused.status(), Status::Driver);
    assert_eq!(check_books(&driver, &pool).stranded_pages, 1);
    driver.clear_faults();
    wait_until(|| pool.stats().expect("alive").stranded_pages == 0);
    pool.trim(0).expect("no fault any more");
    assert_eq!(driver.inner().census().pages, 0);
    common::end(&driver, pool, &[]);
}

/// The keeper comes round; how soon is not what is tested.
fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "the keeper did not come round");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// With FOREBAY_SCRUB=1 freed contents reach no next owner, though the driver will not clear them.
#[test]
fn what_could_not_be_scrubbed_is_nobodys_until_it_is() {
    let _alone = super::alone();
    for bytes in [1000, 200 << 10, 3 * MIB] {
        for how in ["own stream", "legacy", "sync"] {
            let driver = common::plain_device(8 * MIB);
            let mut settings = common::settings(&driver);
            settings.scrub = true;
            let pool = common::pool(&driver, settings);
            let own = driver.stream_create().expect("a stream").0;
            let lane = match how {
                "own stream" => own,
                "legacy" => 0,
                _ => SYNC_STREAM,
            };
            let block = pool.alloc(bytes, lane).expect("fits");
            // SAFETY: a live block on a device that the CPU reaches.
            unsafe { (block as *mut u8).write_bytes(0x5A, bytes) };
            driver.fail(Fault::from_then_on(CallSet::of(&[Call::Fill]), 1));
            pool.dealloc(block, lane).expect("a free does not fail for that");
            let twice = pool.dealloc(block, lane).expect_err("freed");
            assert_eq!(twice.status(), Status::DoubleFree, "{how}, {bytes}");
            driver.synchronize().expect("alive");
            let fills = driver.count(Call::Fill);
            // Records the fence that the block waits for.
            pool.trim(0).expect("nothing to give back");
            driver.synchronize().expect("alive");
            let stats = check_books(&driver, &pool);
            assert!(stats.pending_bytes + stats.other_bytes >= bytes as u64, "{how}: {stats:?}");
            assert!(driver.count(Call::Fill) > fills, "{how}, {bytes}: not tried again");
            let mut others = Vec::new();
            while let Ok(other) = pool.alloc(bytes, lane) {
                assert!(other != block, "{how}, {bytes}: handed out with its contents");
                others.push(other);
            }
            driver.clear_faults();
            while let Ok(other) = pool.alloc(bytes, lane) {
                others.push(other);
                driver.synchronize().expect("alive");
            }
            assert!(others.contains(&block), "{how}, {bytes}: never given back");
            // SAFETY: live again.
            let seen = unsafe { std::slice::from_raw_parts(block as *const u8, bytes) };
            assert!(seen.iter().all(|&byte| byte == 0), "{how}, {bytes}: not cleared");
            for other in others {
                pool.dealloc(other, lane).expect("live");
            }
            forebay::pool::registry::retire_stream(own).expect("no capture is open");
            common::end(&driver, pool, &[own]);
        }
    }
}
