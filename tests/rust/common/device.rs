//! A pool over a small host device that counts and fails its calls, for several test programs.
//!
//! Owns the set-up and the checks that all of them make: contents of blocks, and the books of
//! pool and device against each other. Must not hide a failure: every check panics.
//! Cost: a check of the books walks all blocks.
#![allow(dead_code, unused_imports, reason = "each program uses its part")]

mod random;

use forebay::config::Config;
use forebay::driver::faulty::FaultyDriver;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::pool::stats::Stats;
use forebay::pool::{Pool, Settings, registry};
use std::sync::Arc;

pub use random::{Random, seed};

/// A megabyte.
pub const MIB: usize = 1 << 20;

/// The driver that tests look through.
pub type Watched = FaultyDriver<HostDriver>;

/// A host device with its counting driver.
pub fn device(options: HostOptions) -> Arc<Watched> {
    let host = Arc::new(HostDriver::new(options).expect("a host device"));
    Arc::new(FaultyDriver::new(host))
}

/// A device of `bytes` in granules of 2 MiB.
pub fn plain_device(bytes: usize) -> Arc<Watched> {
    device(HostOptions { total_bytes: bytes, ..HostOptions::default() })
}

/// The default settings for a device, without a keeper: tests decide what happens when.
pub fn settings(driver: &Watched) -> Settings {
    let total = driver.device().total_bytes as u64;
    let mut settings = Settings::resolve(&Config::default(), total, true);
    settings.keeper = false;
    settings
}

/// A pool over `driver`.
pub fn pool(driver: &Arc<Watched>, settings: Settings) -> Pool {
    Pool::with_driver(Arc::clone(driver) as Arc<dyn Driver>, settings).expect("a pool")
}

/// A pool over a device of its own, `bytes` long.
pub fn small_pool(bytes: usize) -> (Arc<Watched>, Pool) {
    let driver = plain_device(bytes);
    let pool = pool(&driver, settings(&driver));
    (driver, pool)
}

/// Ends a pool and its device's streams; nothing may be left.
pub fn end(driver: &Watched, pool: Pool, streams: &[u64]) {
    let id = pool.id();
    // The handle keeps the drop from ending it a second time.
    let _ = pool.into_handle();
    registry::destroy(id).expect("no fault is armed");
    for &stream in streams {
        driver.stream_destroy(StreamHandle(stream)).expect("a stream");
    }
    driver.inner().run_all();
    driver.inner().quiesce();
    assert!(driver.inner().census().is_clean(), "left: {:?}", driver.inner().census());
}

/// Checks a pool's books against each other and the device's, at a quiescent point.
pub fn check_books(driver: &Watched, pool: &Pool) -> Stats {
    let stats = pool.stats().expect("a live pool");
    let census = driver.inner().census();
    let granule = driver.device().granularity as u64;
    assert_eq!(stats.sum(), stats.mapped_bytes, "the states sum to what is held: {stats:?}");
    let held = census.page_bytes + census.imported_bytes;
    assert_eq!(stats.mapped_bytes, held as u64, "pages: {stats:?}, {census:?}");
    let mapped = census.mappings as u64 * granule;
    let unmapped = stats.mapped_bytes - mapped;
    assert!(stats.stock_bytes <= unmapped, "stock is mapped nowhere: {stats:?}, {census:?}");
    let unreleased = (unmapped - stats.stock_bytes) / granule;
    assert!(unreleased <= stats.stranded_pages, "pages are named: {stats:?}, {census:?}");
    pool.with_core(|core| core.check()).expect("a live pool");
    stats
}

/// A block with known contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its address.
    pub address: usize,
    /// Its requested bytes.
    pub bytes: usize,
    /// The stream it was allocated on.
    pub stream: u64,
    /// What its contents are made from.
    pub seed: u64,
}

/// Bytes from one written word to the next.
const STRIDE: usize = 8192;

impl Block {
    /// A new block, its contents written.
    pub fn new(address: usize, bytes: usize, stream: u64, seed: u64) -> Block {
        let block = Block { address, bytes, stream, seed };
        for at in block.words() {
            // SAFETY: the pool handed these bytes to the test alone, mapped and accessible.
            unsafe { (at as *mut u64).write(at as u64 ^ seed) };
        }
        block
    }

    fn words(self) -> impl Iterator<Item = usize> {
        let last = self.bytes.saturating_sub(8) / 8 * 8;
        let whole = self.bytes >= 8;
        let at = (0..last).step_by(STRIDE).chain([last]);
        at.filter(move |_| whole).map(move |offset| self.address + offset)
    }

    /// Panics unless the contents are as written.
    pub fn check(self) {
        for at in self.words() {
            // SAFETY: as in `new`; a live block stays accessible.
            let found = unsafe { (at as *const u64).read() };
            assert_eq!(found, at as u64 ^ self.seed, "contents of {self:x?} changed at {at:#x}");
        }
    }
}
