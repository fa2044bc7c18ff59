//! A stage for one run of a scenario, over the device that the test program names.
//!
//! `super::Device` is that device: the host's with a counting driver, or a simulated GPU. Its
//! methods are the same in all programs. Owns the pool, what is live in it, and the checks of
//! contents, books and peers after each run. Must not hide a failure: every check panics.

use super::Device;
use super::common::Block;
use forebay::driver::Call;
use forebay::error::{Error, Status};
use forebay::pool::hot::SYNC_STREAM;
use forebay::pool::{Pool, Settings, hot};

/// A stage for one run of a scenario: a device, a pool, and what is live in it.
pub struct Stage {
    /// The device.
    pub driver: Device,
    /// What the pool is made with.
    pub settings: Settings,
    /// The pool; `None` while it could not be made, or has been destroyed.
    pub pool: Option<Pool>,
    /// Streams of the device.
    pub streams: Vec<u64>,
    /// Live blocks.
    pub live: Vec<Block>,
    /// Blocks that the pool keeps on behalf of others (buffer sets).
    pub foreign_blocks: u64,
    made: u64,
}

/// A scenario: what happens before, and what happens under faults. Calls in `act` may fail.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Device bytes in all and a granule.
    pub device: (usize, usize),
    /// Changes the settings.
    pub tune: fn(&mut Settings),
    /// Without faults.
    pub prepare: fn(&mut Stage),
    /// With faults.
    pub act: fn(&mut Stage),
    /// Kinds of call that must have been failed in some run.
    pub kinds: &'static [Call],
}

impl Stage {
    /// The stage of a scenario, empty.
    pub fn new(scenario: &Scenario) -> Stage {
        let (total_bytes, granularity) = scenario.device;
        let driver = Device::new(total_bytes, granularity);
        let mut settings = driver.settings();
        settings.oom_wait = std::time::Duration::ZERO;
        (scenario.tune)(&mut settings);
        let (pool, streams, live) = (None, Vec::new(), Vec::new());
        Stage { driver, settings, pool, streams, live, foreign_blocks: 0, made: 0 }
    }

    /// The pool, where the scenario has one.
    pub fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the scenario has made its pool")
    }

    /// Makes the pool.
    pub fn open(&mut self) -> Result<(), Error> {
        self.pool = Some(Pool::with_driver(self.driver.shared(), self.settings.clone())?);
        Ok(())
    }

    /// Adds streams.
    pub fn add_streams(&mut self, count: usize) {
        for _ in 0..count {
            self.streams.push(self.driver.make_stream());
        }
    }

    /// Allocates a block and writes it. Answers whether that worked.
    pub fn alloc(&mut self, bytes: usize, stream: u64) -> bool {
        match self.pool().alloc(bytes, stream) {
            Ok(address) => {
                self.made += 1;
                self.live.push(Block::new(address, bytes, stream, self.made));
                true
            }
            Err(error) => {
                assert_ne!(error.status(), Status::Internal, "{error}");
                assert!(!error.message().is_empty());
                false
            }
        }
    }

    /// Frees block `i` on a stream, checking its contents first. On failure it stays live.
    pub fn free(&mut self, i: usize, stream: u64) -> bool {
        let block = self.live[i];
        block.check();
        let freed = if stream == SYNC_STREAM {
            // SAFETY: the block is the test's own and not used again when this succeeds.
            unsafe { hot::free(block.address as *mut std::ffi::c_void) }
        } else {
            match self.pool().dealloc(block.address, stream) {
                Ok(()) => Status::Ok,
                Err(error) => error.status(),
            }
        };
        assert_ne!(freed, Status::Internal);
        if freed == Status::Ok {
            self.live.swap_remove(i);
        }
        freed == Status::Ok
    }

    /// Frees every second live block on its own stream.
    pub fn free_every_second(&mut self) {
        let all = std::mem::take(&mut self.live);
        for (i, block) in all.into_iter().enumerate() {
            self.live.push(block);
            if i % 2 == 1 {
                let last = self.live.len() - 1;
                self.free(last, block.stream);
            }
        }
    }

    /// Without faults, a live block can be freed.
    pub fn free_first(&mut self) {
        let stream = self.live[0].stream;
        let stream = if stream == SYNC_STREAM { 0 } else { stream };
        assert!(self.free(0, stream), "a live block can be freed");
    }

    /// Contents, books and the model of what is live.
    pub fn check(&self) {
        for block in &self.live {
            block.check();
        }
        let Some(pool) = &self.pool else { return };
        if !pool.with_core(|core| core.troubled()).expect("alive") {
            let peers = pool.peers().expect("alive");
            for block in &self.live {
                let open = self.driver.peers_of(block.address, block.bytes);
                assert_eq!(open.as_ref(), Some(&peers), "{block:x?}");
            }
        }
        let stats = self.driver.check_books(pool);
        assert_eq!(stats.live_blocks, self.live.len() as u64 + self.foreign_blocks, "{stats:?}");
        if self.foreign_blocks == 0 {
            let usable = |b: &Block| pool.usable_size(b.address).expect("live") as u64;
            let sum: u64 = self.live.iter().map(usable).sum();
            assert_eq!(stats.live_bytes, sum, "{stats:?}");
        }
    }

    /// With the faults gone: the next calls work, what was stuck comes back, and after the
    /// end nothing is left.
    pub fn finish(mut self) {
        if self.pool.is_none() {
            self.open().expect("no fault any more");
        }
        self.driver.run_all();
        self.check();
        // Room for the next calls, where the scenario left none.
        while self.pool().stats().expect("alive").live_bytes > self.settings.limit / 2 {
            self.free_first();
        }
        for bytes in [3000, 300 << 10] {
            let mut fits = self.alloc(bytes, 0);
            if !fits && Device::MARKS_ARE_LATE {
                // What was freed without a fence has one now, which is work like any other.
                self.driver.run_all();
                fits = self.alloc(bytes, 0);
            }
            assert!(fits && self.free(self.live.len() - 1, 0), "{bytes} B");
        }
        let mut stuck = self.pool().with_core(|core| core.recover()).expect("alive");
        if Device::MARKS_ARE_LATE {
            // What was freed without a fence has one now.
            self.driver.run_all();
            stuck = self.pool().with_core(|core| core.recover()).expect("alive");
        }
        assert!(!stuck, "all that was stuck is back");
        assert_eq!(self.pool().stats().expect("alive").stranded_pages, 0);
        assert_eq!(self.driver.imported_pages(), 0, "what is freed is gone");
        self.check();
        while !self.live.is_empty() {
            self.free_first();
        }
        self.check();
        let pool = self.pool.take().expect("alive");
        self.driver.end(pool, &self.streams);
    }
}
