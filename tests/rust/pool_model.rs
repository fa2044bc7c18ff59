//! The whole pool against a naive model, on random programs.
//!
//! A program is a list of operations over several streams whose work is late. The model is an
//! ordered map of live blocks. After every operation: no two blocks overlap, each is aligned
//! and at least as long as asked for, the books agree (live bytes and blocks, bytes by tag, states
//! that sum to what is held, pages of the device), contents are as written, wrong calls give their
//! errors and change nothing, and memory is refused only when it is really short.
//!
//! `FOREBAY_TEST_SEED=n` runs a failing seed again; a failure is shrunk before it is shown.

#[path = "common/device.rs"]
mod common;
#[path = "pool_model/program.rs"]
mod program;

use common::{Block, MIB, Watched, check_books};
use forebay::driver::host::HostOptions;
use forebay::driver::{Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::report::tag_create;
use forebay::pool::stats::Stats;
use forebay::pool::{Pool, hot, registry};
use program::{Free, Op};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

const DEVICE_BYTES: usize = 64 * MIB;
const STREAMS: usize = 4;

/// A live block as the model knows it.
#[derive(Clone, Copy, Debug)]
struct Live {
    block: Block,
    usable: usize,
    tag: u8,
    pins: u32,
}

/// The pool under test beside its model.
struct Model {
    driver: Arc<Watched>,
    pool: Pool,
    streams: Vec<u64>,
    tags: Vec<u8>,
    tag: u8,
    live: BTreeMap<usize, Live>,
    freed: Vec<usize>,
    made: u64,
    limit: u64,
}

impl Model {
    fn new() -> Model {
        let options = HostOptions {
            total_bytes: DEVICE_BYTES,
            // Work runs when the program says: fences are late.
            deferred: true,
            ..HostOptions::default()
        };
        let driver = common::device(options);
        let mut settings = common::settings(&driver);
        settings.oom_wait = std::time::Duration::ZERO;
        let limit = settings.limit;
        let pool = common::pool(&driver, settings);
        let streams = (0..STREAMS).map(|_| driver.stream_create().expect("a stream").0).collect();
        let tags = ["weights", "cache", "scratch"].map(|name| tag_create(name).expect("a tag"));
        registry::set_tag(1).expect("a thread cache");
        let tags = [1].into_iter().chain(tags).collect();
        let (live, freed) = (BTreeMap::new(), Vec::new());
        Model { driver, pool, streams, tags, tag: 1, live, freed, made: 0, limit }
    }

    /// The stream for a number: the last stands for the sync lane.
    fn stream(&self, number: usize) -> u64 {
        self.streams.get(number).copied().unwrap_or(SYNC_STREAM)
    }

    fn pick(&self, number: usize) -> Option<Live> {
        let count = self.live.len();
        (count > 0).then(|| *self.live.values().nth(number % count).expect("below the count"))
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { bytes, align, stream } => self.alloc(bytes, align, stream),
            Op::Free { pick, how } => self.free(pick, how),
            Op::RecordUse { pick, stream } => {
                if let Some(live) = self.pick(pick) {
                    let stream = self.streams[stream];
                    self.pool.record_use(live.block.address, stream).expect("a live block");
                }
            }
            Op::Pin { pick } => self.pin(pick),
            Op::Unpin { pick } => self.unpin(pick),
            Op::Trim { keep } => self.trim(keep),
            Op::SetLimit { bytes } => {
                self.pool.set_limits(Some(bytes), None).expect("a limit within the device");
                self.limit = bytes;
            }
            Op::Retire { stream } => {
                registry::retire_stream(self.streams[stream]).expect("no capture is open");
            }
            Op::Tag { number } => {
                self.tag = self.tags[number];
                registry::set_tag(u32::from(self.tag)).expect("a thread cache");
            }
            Op::Work { stream } => {
                self.driver.inner().spin(StreamHandle(self.streams[stream]), 0).expect("a stream");
            }
            Op::Run { seed } => drop(self.driver.inner().step(seed)),
            Op::FreeTwice => self.free_twice(),
            Op::Interior { pick, offset } => self.interior(pick, offset),
            Op::Foreign { offset } => self.foreign(offset),
        }
    }

    fn alloc(&mut self, bytes: usize, align: usize, stream: usize) {
        let stream = self.stream(stream);
        let before = self.pool.stats().expect("alive");
        match self.pool.alloc_aligned(bytes, align, stream) {
            Ok(address) => {
                let align = align.max(256);
                assert_eq!(address % align, 0, "aligned to {align}");
                let usable = self.pool.usable_size(address).expect("a live block");
                assert!(usable >= bytes, "{usable} bytes for {bytes}");
                let below = self.live.range(..=address).next_back();
                let below_end = below.map_or(0, |(&start, live)| start + live.usable);
                assert!(below_end <= address, "{address:#x} lies in {below:x?}");
                let above = self.live.range(address..).next();
                assert!(above.is_none_or(|(&start, _)| address + usable <= start), "{above:x?}");
                self.made += 1;
                let block = Block::new(address, bytes, stream, self.made);
                self.freed.retain(|&old| old != address);
                self.live.insert(address, Live { block, usable, tag: self.tag, pins: 0 });
            }
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                assert!(error.message().contains(&format!("{bytes} bytes requested")), "{error}");
                self.really_short(bytes);
                let after = self.pool.stats().expect("alive");
                assert_eq!(after.live_bytes, before.live_bytes);
                assert_eq!(after.out_of_memory, before.out_of_memory + 1);
            }
        }
    }

    /// Fragmentation is no reason: whole free granules of the pool would not have sufficed.
    fn really_short(&self, bytes: usize) {
        let granule = self.driver.device().granularity as u64;
        let stats = self.pool.stats().expect("alive");
        let room = self.limit.saturating_sub(stats.mapped_bytes) / granule * granule;
        let free = stats.idle_bytes + stats.stock_bytes + room;
        let most = (bytes as u64).next_multiple_of(granule);
        assert!(free < most, "{free} bytes in whole granules, {most} needed: {stats:?}");
    }

    fn free(&mut self, pick: usize, how: Free) {
        let Some(live) = self.pick(pick) else { return };
        let address = live.block.address;
        live.block.check();
        match how {
            Free::Own if live.block.stream != SYNC_STREAM => {
                self.pool.dealloc(address, live.block.stream).expect("a live block");
            }
            Free::On(stream) if stream < STREAMS => {
                self.pool.dealloc(address, self.streams[stream]).expect("a live block");
            }
            Free::Own | Free::On(_) => {
                // SAFETY: the model gives the block up.
                let status = unsafe { hot::free(address as *mut std::ffi::c_void) };
                assert_eq!(status, Status::Ok);
            }
        }
        self.live.remove(&address);
        self.freed.push(address);
        self.refused(address, &[Status::DoubleFree]);
    }

    fn pin(&mut self, pick: usize) {
        let Some(live) = self.pick(pick) else { return };
        self.pool.pin(live.block.address).expect("a live block");
        self.live.get_mut(&live.block.address).expect("live").pins += 1;
    }

    fn unpin(&mut self, pick: usize) {
        let Some(live) = self.pick(pick) else { return };
        let unpinned = self.pool.unpin(live.block.address);
        match live.pins {
            0 => {
                let error = unpinned.expect_err("it was not pinned");
                assert_eq!(error.status(), Status::InvalidArgument);
            }
            _ => {
                unpinned.expect("it was pinned");
                self.live.get_mut(&live.block.address).expect("live").pins -= 1;
            }
        }
    }

    fn trim(&mut self, keep: u64) {
        let before = self.pool.stats().expect("alive").mapped_bytes;
        let released = self.pool.trim(keep).expect("no fault is armed");
        let after = self.pool.stats().expect("alive");
        assert_eq!(before - after.mapped_bytes, released);
        let granule = self.driver.device().granularity as u64;
        let least = keep.next_multiple_of(granule);
        let none_idle = after.idle_bytes + after.stock_bytes == 0;
        assert!(after.mapped_bytes <= least || none_idle, "idle memory is kept: {after:?}");
    }

    fn free_twice(&mut self) {
        let Some(&address) = self.freed.last() else { return };
        // Meanwhile other blocks may lie around it.
        self.refused(address, &[Status::DoubleFree, Status::InteriorPointer]);
    }

    fn interior(&mut self, pick: usize, offset: usize) {
        let Some(live) = self.pick(pick) else { return };
        let offset = 1 + offset % (live.usable - 1);
        self.refused(live.block.address + offset, &[Status::InteriorPointer]);
    }

    fn foreign(&mut self, offset: usize) {
        let local = 0u8;
        self.refused(std::ptr::from_ref(&local) as usize, &[Status::NotOwned]);
        self.refused(offset.max(1), &[Status::NotOwned]);
    }

    /// A free of `address` gives one of these errors, on every path, and changes nothing.
    fn refused(&self, address: usize, statuses: &[Status]) {
        let before = self.pool.stats().expect("alive");
        for stream in self.streams.iter().take(2) {
            let error = self.pool.dealloc(address, *stream).expect_err("a wrong free");
            assert!(statuses.contains(&error.status()), "{error}, not {statuses:?}");
        }
        // SAFETY: a wrong address is answered with an error.
        let status = unsafe { hot::free(address as *mut std::ffi::c_void) };
        assert!(statuses.contains(&status), "{status:?}, not {statuses:?}");
        let after = self.pool.stats().expect("alive");
        assert_eq!(before, after, "a wrong free of {address:#x} changed something");
    }

    /// The books of pool, device and model agree.
    fn check(&self) -> Stats {
        let stats = check_books(&self.driver, &self.pool);
        assert_eq!(stats.live_blocks, self.live.len() as u64, "{stats:?}");
        let live: usize = self.live.values().map(|l| l.usable).sum();
        assert_eq!(stats.live_bytes, live as u64, "{stats:?}");
        let mut tags = BTreeMap::<u8, (u64, u64)>::new();
        for live in self.live.values() {
            let entry = tags.entry(live.tag).or_default();
            entry.0 += live.usable as u64;
            entry.1 += 1;
        }
        let told = self.pool.tag_bytes().expect("alive");
        for (tag, &told) in told.iter().enumerate() {
            assert_eq!(told, tags.get(&(tag as u8)).copied().unwrap_or_default(), "tag {tag}");
        }
        stats
    }

    /// Frees all; nothing may be left.
    fn finish(mut self) {
        while !self.live.is_empty() {
            self.free(0, Free::Own);
        }
        self.driver.inner().run_all();
        assert_eq!(self.check().live_bytes, 0);
        let granule = self.driver.device().granularity;
        let whole = self.limit as usize / granule * granule;
        let all = self.pool.alloc(whole, self.streams[0]).expect("all of it is free");
        self.pool.dealloc(all, self.streams[0]).expect("live");
        common::end(&self.driver, self.pool, &self.streams);
    }
}

fn run(ops: Vec<Op>) {
    // Streams' ends reach every pool of the process: one program at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut model = Model::new();
    for op in ops {
        let held = model.pool.stats().expect("alive").mapped_bytes;
        model.step(op);
        let stats = model.check();
        assert!(stats.mapped_bytes <= model.limit.max(held), "within the limit: {stats:?}");
    }
    for live in model.live.values() {
        live.block.check();
    }
    model.finish();
}

/// Runs `cases` random programs made from `seed`.
fn programs(
    cases: u32,
    default_seed: u64,
    strategy: impl proptest::strategy::Strategy<Value = Vec<Op>>,
) {
    let seed = common::seed(default_seed);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&strategy, |ops| {
        let caught = std::panic::AssertUnwindSafe(|| run(ops));
        std::panic::catch_unwind(caught).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            TestCaseError::fail(text.unwrap_or_else(|| "a panic without text".to_owned()))
        })
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, ops)) => {
            panic!("FOREBAY_TEST_SEED={seed}: {why}\nthe shortest program: {ops:?}")
        }
        Err(other) => panic!("FOREBAY_TEST_SEED={seed}: {other}"),
    }
}

#[test]
fn short_programs_agree_with_the_model() {
    programs(150, 1, program::anything(1..40));
}

#[test]
fn long_programs_agree_with_the_model() {
    programs(15, 2, program::anything(300..600));
}

#[test]
fn programs_in_little_memory_agree_with_the_model() {
    programs(60, 3, program::crowded(50..200));
}
