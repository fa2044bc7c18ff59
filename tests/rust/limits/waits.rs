//! The wait for fences before a request fails: how long it goes on while others pass.

use super::common::MIB;
use forebay::config::Config;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay::driver::{
    DeviceInfo, Driver, DriverResult, EventHandle, PageHandle, Scope, StreamHandle,
};
use forebay::error::Status;
use forebay::pool::{Pool, Settings, registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A host device whose queued work runs one operation every [`LOOKS`] times that the pool looks at
/// its fences. Between two looks of a waiting request lies a sleep, so that a machine under load
/// finishes less in a given time, never more.
struct Unhurried(HostDriver, AtomicU64);

/// Many more than one try to place a block makes.
const LOOKS: u64 = 100;

impl Driver for Unhurried {
    fn backend(&self) -> &'static str {
        self.0.backend()
    }
    fn device(&self) -> &DeviceInfo {
        self.0.device()
    }
    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        self.0.memory_info()
    }
    fn together(&self, f: &mut dyn FnMut()) {
        if self.1.fetch_add(1, Ordering::Relaxed) % LOOKS == LOOKS - 1 {
            self.0.step(0);
        }
        self.0.together(f);
    }
    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        self.0.reserve(bytes)
    }
    fn unreserve(&self, address: usize, bytes: usize) -> DriverResult<()> {
        self.0.unreserve(address, bytes)
    }
    fn create(&self, bytes: usize) -> DriverResult<PageHandle> {
        self.0.create(bytes)
    }
    fn release(&self, page: PageHandle) -> DriverResult<()> {
        self.0.release(page)
    }
    fn map(&self, address: usize, bytes: usize, page: PageHandle) -> DriverResult<()> {
        self.0.map(address, bytes, page)
    }
    fn unmap(&self, address: usize, bytes: usize) -> DriverResult<()> {
        self.0.unmap(address, bytes)
    }
    fn set_access(&self, address: usize, bytes: usize, peers: &[u32]) -> DriverResult<()> {
        self.0.set_access(address, bytes, peers)
    }
    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize> {
        self.0.alloc_plain(bytes)
    }
    fn free_plain(&self, address: usize) -> DriverResult<()> {
        self.0.free_plain(address)
    }
    fn stream_create(&self) -> DriverResult<StreamHandle> {
        self.0.stream_create()
    }
    fn stream_destroy(&self, stream: StreamHandle) -> DriverResult<()> {
        self.0.stream_destroy(stream)
    }
    fn stream_synchronize(&self, stream: StreamHandle) -> DriverResult<()> {
        self.0.stream_synchronize(stream)
    }
    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        self.0.stream_wait(stream, event)
    }
    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()> {
        self.0.stream_check(stream)
    }
    fn copy(&self, to: usize, from: usize, bytes: usize, s: StreamHandle) -> DriverResult<()> {
        self.0.copy(to, from, bytes, s)
    }
    fn fill(&self, to: usize, value: u8, bytes: usize, s: StreamHandle) -> DriverResult<()> {
        self.0.fill(to, value, bytes, s)
    }
    fn event_create(&self) -> DriverResult<EventHandle> {
        self.0.event_create()
    }
    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.0.event_destroy(event)
    }
    fn event_record(&self, event: EventHandle, scope: Scope) -> DriverResult<()> {
        self.0.event_record(event, scope)
    }
    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.0.event_query(event)
    }
    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.0.event_synchronize(event)
    }
}

/// Streams, each with a block of 2 MiB that its queued work is still to finish with.
const STREAMS: usize = 64;

/// Asks for nearly all of a pool whose streams have freed everything and finish one by one. Answers
/// what came, and how many streams had not finished by then.
fn ask(patience: Duration) -> (Result<(), Status>, usize) {
    let total = STREAMS * 2 * MIB;
    let options = HostOptions { total_bytes: total, deferred: true, ..HostOptions::default() };
    let driver =
        Arc::new(Unhurried(HostDriver::new(options).expect("a host device"), AtomicU64::new(0)));
    let mut settings = Settings::resolve(&Config::default(), total as u64, true);
    settings.keeper = false;
    settings.oom_wait = patience;
    let pool = Pool::with_driver(driver.clone() as Arc<dyn Driver>, settings).expect("a pool");
    let streams: Vec<StreamHandle> =
        (0..=STREAMS).map(|_| driver.stream_create().expect("a stream")).collect();
    let blocks: Vec<usize> = streams[1..]
        .iter()
        .map(|stream| pool.alloc(2 * MIB, stream.0).expect("the limit's bytes can be had"))
        .collect();
    for (&stream, &block) in streams[1..].iter().zip(&blocks) {
        driver.fill(block, 1, 1, stream).expect("queued");
        pool.dealloc(block, stream.0).expect("live");
    }
    let got = pool.alloc(total - 4 * MIB, streams[0].0);
    let unfinished = driver.0.outstanding();
    let answer = got.as_ref().map(drop).map_err(|error| error.status());
    if let Ok(block) = got {
        pool.dealloc(block, streams[0].0).expect("live");
    }
    let id = pool.id();
    let _ = pool.into_handle();
    driver.0.run_all();
    registry::destroy(id).expect("no fault");
    streams.into_iter().for_each(|s| driver.stream_destroy(s).expect("it exists"));
    driver.0.run_all();
    assert!(driver.0.census().is_clean(), "{:?}", driver.0.census());
    (answer, unfinished)
}

#[test]
fn a_wait_ends_with_the_patience_though_fences_go_on_passing() {
    // A quarter of the sleeps alone that all streams' ends need.
    let patience = Duration::from_millis(60);
    let (answer, unfinished) = ask(patience);
    assert_eq!(answer, Err(Status::OutOfMemory), "each fence that passed prolonged the wait");
    assert!(unfinished > STREAMS / 2, "{unfinished} streams are left");
    let (answer, unfinished) = ask(Duration::from_secs(3600));
    assert_eq!(answer, Ok(()), "the fences suffice in the end");
    assert!(unfinished <= 4, "{unfinished} operations are left");
}
