//! One path through everything: create, allocate, free, account, destroy.
use forebay::config::Config;
use forebay::driver::Driver;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::pool::{Pool, Settings};
use std::sync::Arc;

fn pool(bytes: usize) -> (Arc<HostDriver>, Pool) {
    let options = HostOptions { total_bytes: bytes, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("host"));
    let settings = Settings::resolve(&Config::default(), bytes as u64, true);
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("pool");
    (driver, pool)
}

#[test]
fn one_path_through_everything() {
    let (driver, pool) = pool(64 << 20);
    let mut blocks = Vec::new();
    for i in 0..2000usize {
        let bytes = 1 + (i * 7919) % 40_000;
        blocks.push(pool.alloc(bytes, 0).expect("fits"));
    }
    let big = pool.alloc(5 << 20, 0).expect("fits");
    let stats = pool.stats().expect("alive");
    assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
    assert_eq!(stats.live_blocks, 2001);
    for b in blocks {
        pool.dealloc(b, 0).expect("live");
    }
    pool.dealloc(big, 0).expect("live");
    let stats = pool.stats().expect("alive");
    assert_eq!(stats.live_bytes, 0);
    assert_eq!(stats.sum(), stats.mapped_bytes, "{stats:?}");
    pool.with_core(|c| c.check()).expect("alive");
    drop(pool);
    assert!(driver.census().is_clean(), "{:?}", driver.census());
}
