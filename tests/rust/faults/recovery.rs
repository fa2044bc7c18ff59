//! Pages that got stuck: named while they are, back when the driver allows it.

use super::common::{self, MIB, check_books};
use forebay::driver::Call;
use forebay::driver::faulty::{CallSet, Fault};
use forebay::error::Status;
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
