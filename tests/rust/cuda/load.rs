//! A random load over the streams of several devices whose every block is checked.
//!
//! A block is filled on its home stream, may be copied from and looked at on others (in an order
//! made with events and told with `record_use`), is looked at a last time in its home stream's
//! order, and is freed while all that is still queued. Blocks freed with `cudaFree`'s meaning need
//! no `record_use`. The rules that keep the program itself correct: only the home stream writes;
//! a block that other streams read is written no more; another stream's first use, and a free on
//! it, wait for the home stream's work so far. Each thread has, besides the common streams, one of
//! its own on each device that it destroys and makes again while its work is queued.

use super::common::Random;
use super::machine::{Check, Device, Kind};
use forebay::driver::{EventHandle, Scope, StreamHandle};
use forebay::error::Status;
use forebay::pool::hot::SYNC_STREAM;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all workers of one run share.
pub struct Shared {
    /// The devices.
    pub devices: Vec<Device>,
    /// Eight streams of each.
    pub streams: Vec<Vec<u64>>,
    /// Blocks on their way from one thread to another.
    pub post: Mutex<Vec<Block>>,
    /// Trims now and then; off where that would unmap memory still in use (stamps ignored).
    pub trims: bool,
    /// Whether the pools are told before a stream is destroyed.
    pub told: bool,
    /// Only streams of the thread's own, so that nearly all work is on streams that end.
    pub own_only: bool,
    /// Bytes each worker keeps live on each device.
    pub live: usize,
    /// Operations begun by all workers.
    pub clock: AtomicU64,
}

/// A live block.
#[derive(Debug)]
pub struct Block {
    device: usize,
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
    /// Streams destroyed and made again, and how many of those got a handle known before.
    pub renewed: u64,
    pub known: u64,
}

impl Done {
    /// Operations in all, refused allocations apart.
    pub fn operations(self) -> u64 {
        self.allocs + self.frees + self.uses + self.copies
    }

    /// The sums of two.
    pub fn and(self, other: Done) -> Done {
        Done {
            allocs: self.allocs + other.allocs,
            frees: self.frees + other.frees,
            uses: self.uses + other.uses,
            copies: self.copies + other.copies,
            refused: self.refused + other.refused,
            renewed: self.renewed + other.renewed,
            known: self.known + other.known,
        }
    }
}

/// One thread's part of the load.
pub struct Worker<'a> {
    shared: &'a Shared,
    rng: Random,
    events: Vec<EventHandle>,
    own: Vec<u64>,
    /// Handles that own streams had.
    handles: HashSet<u64>,
    blocks: Vec<Block>,
    bytes: Vec<usize>,
    /// What it did.
    pub done: Done,
    checks: Vec<(usize, Check)>,
}

impl<'a> Worker<'a> {
    /// A worker with nothing live.
    pub fn new(shared: &'a Shared, seed: u64) -> Worker<'a> {
        let each = || shared.devices.iter();
        let events = each().map(|d| d.driver.event_create().expect("an event")).collect();
        let own: Vec<u64> = each().map(|d| d.stream(Kind::NonBlocking)).collect();
        Worker {
            shared,
            rng: Random(seed),
            events,
            handles: own.iter().copied().collect(),
            own,
            blocks: Vec::new(),
            bytes: vec![0; shared.devices.len()],
            done: Done::default(),
            checks: Vec::new(),
        }
    }

    /// Does `operations`, then frees all it has. Answers what was done and the queued checks, each
    /// with its device.
    pub fn run(mut self, operations: u64) -> (Done, Vec<(usize, Check)>) {
        while self.done.operations() < operations {
            self.wander();
            self.operation();
        }
        while let Some(block) = self.blocks.pop() {
            self.free(block);
        }
        for (device, (&event, &own)) in
            self.shared.devices.iter().zip(self.events.iter().zip(&self.own))
        {
            device.driver.event_destroy(event).expect("it exists");
            device.destroy_stream(own, true);
        }
        (self.done, self.checks)
    }

    /// Whatever context is current, calls of the pools work in their own.
    fn wander(&mut self) {
        match self.rng.below(8) {
            0 => self.shared.devices[0].sim.ok("cuCtxSetCurrent", &[0]),
            1 => self.shared.devices[self.rng.below(self.shared.devices.len())].enter(),
            _ => {}
        }
    }

    fn operation(&mut self) {
        // Ebb and flow, all workers together: whole granules fall idle, then their pages are
        // wanted elsewhere.
        let shared = self.shared;
        let ebb = shared.clock.fetch_add(1, Ordering::Relaxed) / 2500 % 3 == 2;
        let device = self.rng.below(shared.devices.len());
        let more = self.bytes[device] < if ebb { shared.live / 20 } else { shared.live };
        if shared.trims && self.rng.one_in(1000) {
            shared.devices[device].pool.trim(0).expect("a trim");
        }
        match self.rng.below(100) {
            0..=34 if more => self.alloc(device),
            35..=40 => self.exchange(),
            41..=52 => self.copy(),
            53..=58 => self.look_elsewhere(),
            59 => self.renew(device),
            _ if self.blocks.is_empty() => self.alloc(device),
            60..=79 if more => self.alloc(device),
            _ => {
                let at = self.rng.below(self.blocks.len());
                let block = self.take(at);
                self.free(block);
            }
        }
    }

    /// A common stream, or this thread's own.
    fn stream(&mut self, device: usize) -> u64 {
        let streams = &self.shared.streams[device];
        match self.rng.below(streams.len() + 1) {
            at if at < streams.len() && !self.shared.own_only => streams[at],
            _ => self.own[device],
        }
    }

    fn alloc(&mut self, device: usize) {
        // After each ebb come large blocks first.
        let flood = self.shared.clock.load(Ordering::Relaxed) % 7500 < 300;
        let bytes = match self.rng.below(100) {
            0..=9 if flood => self.rng.size_between(2 << 20, 8 << 20),
            0..=1 => self.rng.size_between(256 << 10, 6 << 20),
            2..=20 => self.rng.size_between(16 << 10, 256 << 10),
            _ => self.rng.size_between(8, 16 << 10),
        };
        let home = self.stream(device);
        let sync = self.rng.one_in(4);
        let lane = if sync && self.rng.one_in(2) { SYNC_STREAM } else { home };
        let address = match self.shared.devices[device].pool.alloc(bytes, lane) {
            Ok(address) => address,
            Err(error) => {
                assert_eq!(error.status(), Status::OutOfMemory, "{error}");
                return self.out_of_memory(device);
            }
        };
        assert!(address.is_multiple_of(256));
        let value = self.rng.bits() as u8;
        self.shared.devices[device].fill(address, value, bytes, home);
        self.done.allocs += 1;
        self.bytes[device] += bytes;
        self.blocks.push(Block { device, address, bytes, value, home, sync, read: false });
    }

    fn out_of_memory(&mut self, device: usize) {
        self.done.refused += 1;
        self.shared.devices[device].synchronize();
        for _ in 0..self.blocks.len().div_ceil(4) {
            let at = self.rng.below(self.blocks.len());
            let block = self.take(at);
            self.free(block);
        }
    }

    fn take(&mut self, at: usize) -> Block {
        let block = self.blocks.swap_remove(at);
        self.bytes[block.device] -= block.bytes;
        block
    }

    /// Makes `stream`'s later work wait for all of `before`'s so far.
    fn order(&self, device: usize, before: u64, stream: u64) {
        if before != stream {
            let (driver, event) = (&self.shared.devices[device].driver, self.events[device]);
            let scope = Scope::Stream(StreamHandle(before));
            driver.event_record(event, scope).expect("a live stream");
            driver.stream_wait(StreamHandle(stream), event).expect("a live stream");
        }
    }

    /// Queues a look at a block.
    fn check(&mut self, block: &Block, stream: u64) {
        let device = &self.shared.devices[block.device];
        let at = self.rng.bits();
        let check = device.check((block.address, block.bytes), block.value, stream, at);
        self.checks.extend(check.map(|check| (block.device, check)));
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
        let device = self.blocks[longer].device;
        let apart = device != self.blocks[shorter].device;
        if from == to || apart || self.blocks[shorter].read {
            return;
        }
        let (address, value) = (self.blocks[longer].address, self.blocks[longer].value);
        let stream = self.blocks[shorter].home;
        self.order(device, self.blocks[longer].home, stream);
        let target = &mut self.blocks[shorter];
        target.value = value;
        let (to, bytes) = (target.address, target.bytes);
        let driver = &self.shared.devices[device].driver;
        driver.copy(to, address, bytes, StreamHandle(stream)).expect("a live stream");
        self.done.copies += 1;
        self.used(longer, stream);
    }

    /// Looks at a block on another stream.
    fn look_elsewhere(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let at = self.rng.below(self.blocks.len());
        let device = self.blocks[at].device;
        let stream = self.stream(device);
        self.order(device, self.blocks[at].home, stream);
        let block = self.blocks.swap_remove(at);
        self.check(&block, stream);
        self.blocks.push(block);
        self.used(self.blocks.len() - 1, stream);
    }

    /// Tells the pool that `stream` reads a block, where its free will not cover that.
    fn used(&mut self, at: usize, stream: u64) {
        let block = &mut self.blocks[at];
        if block.home == stream {
            return;
        }
        block.read = true;
        if !block.sync {
            let pool = &self.shared.devices[block.device].pool;
            pool.record_use(block.address, stream).expect("a live block");
            self.done.uses += 1;
        }
    }

    /// Destroys this thread's own stream of a device with its work still queued, and makes
    /// another. Live blocks move to a common stream first, which waits for that work.
    fn renew(&mut self, device: usize) {
        let streams = &self.shared.streams[device];
        let (old, heir) = (self.own[device], streams[self.rng.below(streams.len())]);
        let orphans = |b: &&mut Block| b.device == device && b.home == old;
        let mut any = false;
        for block in self.blocks.iter_mut().filter(orphans) {
            block.home = heir;
            any = true;
        }
        if any {
            self.order(device, old, heir);
        }
        let machine = &self.shared.devices[device];
        machine.destroy_stream(old, self.shared.told);
        let kind = [Kind::Blocking, Kind::NonBlocking, Kind::Priority][self.rng.below(3)];
        self.own[device] = machine.stream(kind);
        self.done.renewed += 1;
        self.done.known += u64::from(!self.handles.insert(self.own[device]));
    }

    /// Gives a block to the other threads, and takes one of theirs. Blocks at home on a stream of
    /// this thread's own stay.
    fn exchange(&mut self) {
        let mut post = self.shared.post.lock().expect("no panic");
        if let Some(block) = post.pop() {
            self.bytes[block.device] += block.bytes;
            self.blocks.push(block);
        }
        drop(post);
        if !self.blocks.is_empty() {
            let at = self.rng.below(self.blocks.len());
            if self.blocks[at].home != self.own[self.blocks[at].device] {
                let block = self.take(at);
                self.shared.post.lock().expect("no panic").push(block);
            }
        }
    }

    /// Looks at a block for the last time and frees it with that still queued.
    pub fn free(&mut self, block: Block) {
        self.check(&block, block.home);
        let lane = if block.sync {
            SYNC_STREAM
        } else if self.rng.one_in(6) {
            let other = self.stream(block.device);
            self.order(block.device, block.home, other);
            other
        } else {
            block.home
        };
        let pool = &self.shared.devices[block.device].pool;
        pool.dealloc(block.address, lane).expect("a live block");
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
