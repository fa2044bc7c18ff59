//! Tags suspended and resumed on the host device: contents, accounts, refusals, faults, other tags.
//!
//! Whatever happens, the pool's books agree with the device's census, blocks of other tags keep
//! their contents, and nothing is left on the device or pinned on the host in the end.

#[path = "common/device.rs"]
mod common;
#[path = "suspend/cycles.rs"]
mod cycles;
#[path = "suspend/edges.rs"]
mod edges;
#[path = "suspend/faults.rs"]
mod faults;
#[path = "suspend/meanwhile.rs"]
mod meanwhile;
#[path = "suspend/refusals.rs"]
mod refusals;
#[path = "suspend/steps.rs"]
mod steps;

use common::{Block, Watched, check_books, settings};
use forebay::driver::Driver;
use forebay::driver::host::HostOptions;
use forebay::error::{Error, Result, Status};
use forebay::pool::stats::Stats;
use forebay::pool::suspend::{Level, Report};
use forebay::pool::{Pool, Settings, registry, report};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A granule of the devices here.
const GRANULE: usize = 64 << 10;

/// A pool over its own device, with tags that are suspendable.
pub struct Ground {
    /// The device.
    pub driver: Arc<Watched>,
    /// The pool.
    pub pool: Pool,
    /// Its suspendable tags.
    pub tags: Vec<u8>,
    made: u64,
    _alone: MutexGuard<'static, ()>,
}

/// One at a time: a stream's end reaches every pool, and a thread's tag is the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ground {
    /// A device of `granules`, work of which runs when the test says, and `tags` suspendable tags.
    pub fn new(granules: usize, tags: usize, tune: impl FnOnce(&mut Settings)) -> Ground {
        let alone = alone();
        let driver = common::device(HostOptions {
            total_bytes: granules * GRANULE,
            granularity: GRANULE,
            deferred: true,
            peer_devices: 3,
            ..HostOptions::default()
        });
        let mut settings = settings(&driver);
        settings.oom_wait = std::time::Duration::ZERO;
        tune(&mut settings);
        let pool = common::pool(&driver, settings);
        let tags: Vec<u8> = (0..tags).map(tag).collect();
        for &tag in &tags {
            pool.declare_suspendable(tag).expect("a tag");
        }
        Ground { driver, pool, tags, made: 0, _alone: alone }
    }

    /// A block under a tag, its contents written.
    pub fn alloc(&mut self, tag: u8, bytes: usize, stream: u64) -> Result<Block> {
        let address = under(tag, || self.pool.alloc(bytes, stream))?;
        self.made += 1;
        Ok(Block::new(address, bytes, stream, self.made))
    }

    /// The books of pool and device.
    pub fn stats(&self) -> Stats {
        check_books(&self.driver, &self.pool)
    }

    /// Suspends tags, contents kept; nothing may stand in the way.
    pub fn suspend(&self, tags: &[u8]) -> Report {
        self.pool.suspend(tags, Level::Offload).expect("nothing stands in the way")
    }

    /// Resumes tags; nothing may stand in the way.
    pub fn resume(&self, tags: &[u8]) -> Report {
        let mut report = Report::default();
        self.pool.resume(tags, &mut report).expect("nothing stands in the way");
        report
    }

    /// Frees a block on its stream.
    pub fn free(&self, block: Block) {
        self.pool.dealloc(block.address, block.stream).expect("live");
    }

    /// Ends the pool: nothing is left, on the device, pinned or open.
    pub fn end(self, streams: &[u64]) {
        common::end(&self.driver, self.pool, streams);
    }
}

/// The `i`th tag of these tests.
pub fn tag(i: usize) -> u8 {
    report::tag_create(&format!("suspendable {i}")).expect("a tag")
}

/// Runs `f` with this thread's tag.
pub fn under<T>(tag: u8, f: impl FnOnce() -> T) -> T {
    let before = registry::set_tag(u32::from(tag)).expect("a tag");
    let result = f();
    registry::set_tag(before).expect("the tag before");
    result
}

/// An error's status and text.
pub fn told<T: std::fmt::Debug>(result: Result<T>) -> (Status, String) {
    let error: Error = result.expect_err("it is refused");
    (error.status(), error.message().to_owned())
}

/// Whether every part of a text is in another.
pub fn has(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

/// Bytes that the device has lent.
pub fn device_bytes(driver: &Watched) -> usize {
    driver.inner().census().page_bytes
}

/// Streams of the device.
pub fn streams(driver: &Watched, count: usize) -> Vec<u64> {
    (0..count).map(|_| driver.stream_create().expect("a stream").0).collect()
}
