//! A random load on several streams whose every block is checked.
//!
//! A block is filled on its home stream, may be copied from and looked at on others (in an
//! order made with events and told with `record_use`), is looked at a last time in its home
//! stream's order, and is freed while all that is still queued. Blocks freed with `cudaFree`'s
//! meaning need no `record_use`. The rules that keep the program itself correct:
//! only the home stream writes; a block that other streams read is written no more; another
//! stream's first use, and a free on it, wait for the home stream's work so far.

use crate::common::{Findings, Random};
use forebay::driver::host::HostDriver;
use forebay::driver::{Driver, EventHandle, Scope, StreamHandle};
use forebay::error::Status;
use forebay::pool::Pool;
use forebay::pool::hot::SYNC_STREAM;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all workers of one run share.
pub struct Shared {
    /// The device.
    pub driver: std::sync::Arc<HostDriver>,
    /// The pool under test.
    pub pool: Pool,
    /// All streams.
    pub streams: Vec<u64>,
    /// What the checks find.
    pub findings: &'static Findings,
    /// Blocks on their way from one thread to another.
    pub post: Mutex<Vec<Block>>,
    /// The device runs nothing by itself: the load steps it.
    pub deferred: bool,
    /// Trims now and then; off where that would unmap memory still in use (stamps ignored).
    pub trims: bool,
    /// Bytes each worker keeps live.
    pub live: usize,
    /// Operations begun by all workers.
    pub clock: AtomicU64,
}

/// A live block.
#[derive(Debug)]
pub struct Block {
    address: usize,
    bytes: usize,
    value: u8,
    home: u64,
    /// Freed with `cudaFree`'s meaning: foreign uses are not told to the pool.
    sync: bool,
    /// Streams other than home have queued reads.
    read: bool,
}

/// What a worker did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Done {
    pub allocs: u64,
    pub frees: u64,
    pub uses: u64,
    pub copies: u64,
    pub refused: u64,
}

impl Done {
    /// Operations in all, refused allocations apart.
    pub fn operations(self) -> u64 {
        self.allocs + self.frees + self.uses + self.copies
    }
}

/// One thread's part of the load.
pub struct Worker<'a> {
    shared: &'a Shared,
    rng: Random,
    event: EventHandle,
    blocks: Vec<Block>,
    bytes: usize,
    /// A stream that this worker holds, and the operation at which it lets go.
    held: Option<(u64, u64)>,
    /// What it did.
    pub done: Done,
}

/// More queued work than this makes a worker let the device catch up.
const QUEUE_MAX: usize = 3000;

impl<'a> Worker<'a> {
    /// A worker with nothing live.
    pub fn new(shared: &'a Shared, seed: u64) -> Worker<'a> {
        let event = shared.driver.event_create().expect("an event");
        let (rng, blocks, done) = (Random(seed), Vec::new(), Done::default());
        Worker { shared, rng, event, blocks, bytes: 0, held: None, done }
    }

    /// Does `operations`, or fewer if `stop` says so, then frees all it has.
    pub fn run(mut self, operations: u64, stop: impl Fn() -> bool) -> Done {
        while self.done.operations() < operations && !stop() {
            self.operation();
            self.disturb();
        }
        self.let_go();
        while let Some(block) = self.blocks.pop() {
            self.free(block);
        }
        let event = self.event;
        self.shared.driver.event_destroy(event).expect("it exists");
        self.done
    }

    fn operation(&mut self) {
        // Ebb and flow, all workers together: whole granules fall idle, then their pages are
        // wanted elsewhere.
        let ebb = self.shared.clock.fetch_add(1, Ordering::Relaxed) / 10_000 % 3 == 2;
        let more = self.bytes < if ebb { self.shared.live / 20 } else { self.shared.live };
        match self.rng.below(100) {
            0..=34 if more => self.alloc(),
            35..=40 => self.exchange(),
            41..=52 => self.copy(),
            53..=58 => self.look_elsewhere(),
            _ if self.blocks.is_empty() => self.alloc(),
            59..=79 if more => self.alloc(),
            _ => {
                let at = self.rng.below(self.blocks.len());
                let block = self.take(at);
                self.free(block);
            }
        }
    }

    /// Streams held, memory given back, queues drained.
    fn disturb(&mut self) {
        let shared = self.shared;
        if shared.deferred {
            for _ in 0..self.rng.below(3) {
                shared.driver.step(self.rng.bits());
            }
            if shared.driver.outstanding() > 400 {
                shared.driver.run_all();
            }
        } else {
            self.hold_or_let_go();
        }
        if shared.trims && self.rng.one_in(20_000) {
            shared.pool.trim(0).expect("a trim");
        }
    }

    fn hold_or_let_go(&mut self) {
        let shared = self.shared;
        if shared.driver.outstanding() > QUEUE_MAX {
            self.let_go();
            while shared.driver.outstanding() > QUEUE_MAX / 2 {
                std::thread::yield_now();
            }
        }
        let now = self.done.operations();
        match self.held {
            Some((_, end)) if now >= end => self.let_go(),
            None if self.rng.one_in(300) => {
                let stream = self.stream();
                shared.driver.hold(StreamHandle(stream)).expect("a live stream");
                self.held = Some((stream, now + 100));
            }
            _ => {}
        }
    }

    fn let_go(&mut self) {
        if let Some((stream, _)) = self.held.take() {
            self.shared.driver.unhold(StreamHandle(stream)).expect("a live stream");
        }
    }

    fn stream(&mut self) -> u64 {
        self.shared.streams[self.rng.below(self.shared.streams.len())]
    }

    fn alloc(&mut self) {
        // After each ebb come large blocks first.
        let flood = self.shared.clock.load(Ordering::Relaxed) % 30_000 < 500;
        let bytes = match self.rng.below(100) {
            0..=9 if flood => self.rng.size_between(2 << 20, 8 << 20),
            0 => self.rng.size_between(256 << 10, 6 << 20),
            1..=20 => self.rng.size_between(16 << 10, 256 << 10),
            _ => self.rng.size_between(1, 16 << 10),
        };
        let home = self.stream();
        let sync = self.rng.one_in(4);
        let lane = if sync && self.rng.one_in(2) { SYNC_STREAM } else { home };
        let address = match self.shared.pool.alloc(bytes, lane) {
            Ok(address) => address,
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                return self.out_of_memory();
            }
        };
        assert!(address.is_multiple_of(256));
        let value = self.rng.bits() as u8;
        self.fill(address, value, bytes, home);
        self.done.allocs += 1;
        self.bytes += bytes;
        self.blocks.push(Block { address, bytes, value, home, sync, read: false });
    }

    fn fill(&self, address: usize, value: u8, bytes: usize, stream: u64) {
        let filled = self.shared.driver.fill(address, value, bytes, StreamHandle(stream));
        filled.expect("a live stream");
    }

    fn out_of_memory(&mut self) {
        self.done.refused += 1;
        self.let_go();
        if self.shared.deferred {
            self.shared.driver.run_all();
        }
        for _ in 0..self.blocks.len().div_ceil(4) {
            let at = self.rng.below(self.blocks.len());
            let block = self.take(at);
            self.free(block);
        }
    }

    fn take(&mut self, at: usize) -> Block {
        let block = self.blocks.swap_remove(at);
        self.bytes -= block.bytes;
        block
    }

    /// Makes `stream`'s later work wait for all of `before`'s so far.
    fn order(&self, before: u64, stream: u64) {
        if before != stream {
            let driver = &self.shared.driver;
            let scope = Scope::Stream(StreamHandle(before));
            driver.event_record(self.event, scope).expect("a live stream");
            driver.stream_wait(StreamHandle(stream), self.event).expect("a live stream");
        }
    }

    fn check(&self, block: &Block, stream: u64) {
        let range = (block.address, block.bytes);
        self.shared.findings.queue(&self.shared.driver, stream, range, block.value);
    }

    /// Copies the start of one block over the whole of a shorter one, on the latter's home.
    fn copy(&mut self) {
        if self.blocks.len() < 2 {
            return;
        }
        let from = self.rng.below(self.blocks.len());
        let to = self.rng.below(self.blocks.len());
        let (longer, shorter) =
            if self.blocks[from].bytes >= self.blocks[to].bytes { (from, to) } else { (to, from) };
        if from == to || self.blocks[shorter].read {
            return;
        }
        let (address, value) = (self.blocks[longer].address, self.blocks[longer].value);
        let stream = self.blocks[shorter].home;
        self.order(self.blocks[longer].home, stream);
        let target = &mut self.blocks[shorter];
        target.value = value;
        let copied =
            self.shared.driver.copy(target.address, address, target.bytes, StreamHandle(stream));
        copied.expect("a live stream");
        self.done.copies += 1;
        self.used(longer, stream);
    }

    /// Looks at a block on another stream.
    fn look_elsewhere(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let at = self.rng.below(self.blocks.len());
        let stream = self.stream();
        self.order(self.blocks[at].home, stream);
        self.check(&self.blocks[at], stream);
        self.used(at, stream);
    }

    /// Tells the pool that `stream` reads a block, where its free will not cover that.
    fn used(&mut self, at: usize, stream: u64) {
        let block = &mut self.blocks[at];
        if block.home == stream {
            return;
        }
        block.read = true;
        if !block.sync {
            self.shared.pool.record_use(block.address, stream).expect("a live block");
            self.done.uses += 1;
        }
    }

    /// Gives a block to the other threads, and takes one of theirs.
    fn exchange(&mut self) {
        let mut post = self.shared.post.lock().expect("no panic");
        if let Some(block) = post.pop() {
            self.bytes += block.bytes;
            self.blocks.push(block);
        }
        drop(post);
        if !self.blocks.is_empty() {
            let at = self.rng.below(self.blocks.len());
            let block = self.take(at);
            self.shared.post.lock().expect("no panic").push(block);
        }
    }

    /// Looks at a block for the last time and frees it with that still queued.
    pub fn free(&mut self, block: Block) {
        self.check(&block, block.home);
        let lane = if block.sync {
            SYNC_STREAM
        } else if self.rng.one_in(6) {
            let other = self.stream();
            self.order(block.home, other);
            other
        } else {
            block.home
        };
        self.shared.pool.dealloc(block.address, lane).expect("a live block");
        self.done.frees += 1;
    }

    /// Frees what nobody fetched.
    pub fn empty_post(&mut self) {
        let blocks = std::mem::take(&mut *self.shared.post.lock().expect("no panic"));
        for block in blocks {
            self.free(block);
        }
    }
}
