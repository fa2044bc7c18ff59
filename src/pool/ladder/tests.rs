//! The rungs one by one.

use super::wait;
use crate::config::Config;
use crate::driver::Driver;
use crate::driver::host::{HostDriver, HostOptions};
use crate::pool::{Pool, Settings, registry};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// With its patience spent a request looks once more if it has not looked yet, and never again,
/// though something has passed each time: others may free without end what does not suffice.
#[test]
fn a_wait_looks_once_when_the_patience_is_spent() {
    let options = HostOptions { total_bytes: 1 << 26, deferred: true, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), 1 << 26, true);
    settings.keeper = false;
    settings.oom_wait = Duration::from_millis(1);
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let stream = driver.stream_create().expect("a stream");
    let shared = registry::pool(pool.id()).expect("alive");
    let since = Some(Instant::now());
    std::thread::sleep(Duration::from_millis(2));
    for (again, looks) in [(false, true), (true, false), (false, true)] {
        let block = pool.alloc(3 << 20, stream.0).expect("fits");
        driver.fill(block, 1, 1, stream).expect("queued");
        pool.dealloc(block, stream.0).expect("live");
        pool.with_core(|core| core.lanes.record_all(&*core.driver.0)).expect("alive").expect("ok");
        driver.run_all();
        assert_eq!(wait(shared, pool.id(), since, again), Ok(looks), "again: {again}");
    }
    drop(pool);
    driver.stream_destroy(stream).expect("it exists");
}
