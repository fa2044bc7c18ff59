//! What several test programs share: a seeded generator, a pool over its own host device, and
//! queued checks of contents.
//!
//! Owns no state but [`Findings`], one a test. Must not hide a failure: every check counts.
//! Cost: a check reads the block once, at `memcmp`'s speed.
#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

mod children;
mod random;

use forebay::config::Config;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{Driver, StreamHandle};
use forebay::pool::{Pool, Settings};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use children::{child, scenario};
pub use random::{Random, seed};

/// Whether the long forms of the tests run (`FOREBAY_TEST_FULL=1`).
pub fn full() -> bool {
    std::env::var_os("FOREBAY_TEST_FULL").is_some_and(|v| v == "1")
}

/// A pool over a host device of its own; `tune` changes the settings first.
pub fn pool(options: HostOptions, tune: impl FnOnce(&mut Settings)) -> (Arc<HostDriver>, Pool) {
    let total = options.total_bytes as u64;
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut settings = Settings::resolve(&Config::default(), total, true);
    tune(&mut settings);
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    (driver, pool)
}

/// `count` new streams.
pub fn streams(driver: &HostDriver, count: usize) -> Vec<u64> {
    (0..count).map(|_| driver.stream_create().expect("a stream").0).collect()
}

/// What queued checks found. Lives for ever: checks may run late.
#[derive(Debug, Default)]
pub struct Findings {
    /// Blocks looked at.
    pub checked: AtomicU64,
    /// Blocks whose contents were not what was written.
    pub corrupt: AtomicU64,
}

impl Findings {
    /// New findings.
    pub fn new() -> &'static Findings {
        Box::leak(Box::default())
    }

    /// Blocks looked at so far.
    pub fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    /// Corrupt blocks so far.
    pub fn corrupt(&self) -> u64 {
        self.corrupt.load(Ordering::Relaxed)
    }

    /// Queues a check, in `stream`'s order, that `bytes` at `address` all hold `value`.
    pub fn queue(
        &'static self,
        driver: &HostDriver,
        stream: u64,
        (address, bytes): (usize, usize),
        value: u8,
    ) {
        let me = std::ptr::from_ref(self) as usize;
        let words = [address, bytes, usize::from(value), me];
        driver.launch(StreamHandle(stream), check, words).expect("a live stream");
    }
}

/// The queued check: address, bytes, value, findings.
fn check(words: [usize; 4]) {
    let [address, bytes, value, findings] = words;
    // SAFETY: the test keeps the block until the work it queued before the free is done, and
    // findings live for ever.
    let (block, findings) = unsafe {
        let block = std::slice::from_raw_parts(address as *const u8, bytes);
        (block, &*(findings as *const Findings))
    };
    // All equal to the first, told at memcmp's speed.
    let same = block[0] == value as u8 && block[..bytes - 1] == block[1..];
    findings.checked.fetch_add(1, Ordering::Relaxed);
    if !same {
        findings.corrupt.fetch_add(1, Ordering::Relaxed);
    }
}

/// Bytes of this process in memory.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).and_then(|v| v.parse().ok()).expect("a number");
    pages * 4096
}

/// Lines of the process's memory map.
pub fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("Linux").lines().count()
}

/// Open file descriptors.
pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}
