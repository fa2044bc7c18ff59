//! Stream safety of a pool behind the C ABI: no memory is reused before its last use is over.
//!
//! Owns a load of several threads with several streams each. Blocks are allocated, filled, copied
//! between streams and freed through `forebay.h` alone, each freed at once after its last use was
//! queued. What a block held is read back by a copy that is queued before the free, so a reuse
//! that comes too early shows as a wrong byte. A canary that breaks the rule on purpose (its
//! readback is queued after the free) must find wrong bytes, else the load proves nothing.
//! Limits: 64 live blocks a stream, 128 readbacks under way a thread.

use crate::Words;
use crate::cuda::{Driver, Library};
use crate::lab::Lab;
use crate::machine::Machine;
use crate::report;
use crate::rule::{Stage, Stop};
use serde_json::json;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const STREAMS: usize = 3;
const LIVE_MAX: usize = 64;
/// Readbacks under way in a thread, and bytes of each: the start and the end of a block.
const PENDING_MAX: usize = 128;
const SAMPLE: usize = 4096;

type Pool = *mut c_void;
type Stream = *mut c_void;

macro_rules! forebay {
    ($($name:ident = $symbol:literal ($($kind:ty),*);)*) => {
        /// The functions of `forebay.h` that the load calls.
        struct Forebay {
            $($name: unsafe extern "C" fn($($kind),*) -> i32,)*
            last_error: unsafe extern "C" fn() -> *const c_char,
        }

        impl Forebay {
            fn open(path: &Path) -> Result<Forebay, String> {
                let library = Library::open(path)?;
                let find = |name: &CStr| {
                    let found = library.symbol(name);
                    match found.is_null() {
                        true => Err(format!("{} has no {name:?}", path.display())),
                        false => Ok(found),
                    }
                };
                // SAFETY: functions of forebay.h, with the types that it gives them.
                unsafe {
                    Ok(Forebay {
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($kind),*) -> i32,
                        >(find($symbol)?),)*
                        last_error: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn() -> *const c_char,
                        >(find(c"forebay_last_error")?),
                    })
                }
            }
        }
    };
}

forebay! {
    pool_default = c"forebay_pool_default"(i32, *mut Pool);
    alloc = c"forebay_alloc"(Pool, *mut *mut c_void, usize, Stream);
    dealloc = c"forebay_dealloc"(Pool, *mut c_void, Stream);
    malloc = c"forebay_malloc"(*mut *mut c_void, usize);
    free = c"forebay_free"(*mut c_void);
    record_use = c"forebay_record_use"(Pool, *mut c_void, Stream);
    stream_create = c"forebay_stream_create"(Pool, *mut Stream);
    stream_destroy = c"forebay_stream_destroy"(Pool, Stream);
    stream_synchronize = c"forebay_stream_synchronize"(Pool, Stream);
    stream_copy = c"forebay_stream_copy"(Pool, *mut c_void, *const c_void, usize, Stream);
    stream_fill = c"forebay_stream_fill"(Pool, *mut c_void, u8, usize, Stream);
}

/// What all threads share.
struct Scene {
    forebay: Forebay,
    lab: Lab,
    pool: Pool,
    seed: u64,
    until: Instant,
    /// Read back after the free instead of before it.
    canary: bool,
    stop: AtomicBool,
}

// SAFETY: the pool's handle is used by the library's thread-safe functions alone.
unsafe impl Sync for Scene {}

/// What a thread did and found.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Tally {
    blocks: u64,
    readbacks: u64,
    across: u64,
    out_of_memory: u64,
    wrong: u64,
}

#[derive(Clone, Copy)]
struct Block {
    at: *mut c_void,
    bytes: usize,
    value: u8,
    stream: usize,
    /// Made by `forebay_malloc`: freed without a stream.
    plain: bool,
}

struct Pending {
    value: u8,
    bytes: usize,
}

struct Worker<'a> {
    scene: &'a Scene,
    random: u64,
    streams: [Stream; STREAMS],
    live: Vec<Block>,
    pending: Vec<Pending>,
    /// Pinned memory for `PENDING_MAX` samples.
    samples: *mut u8,
    event: u64,
    tally: Tally,
}

impl Worker<'_> {
    fn check(&self, call: &str, status: i32) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a text of this thread that lasts until its next call.
        let text = unsafe { CStr::from_ptr((self.scene.forebay.last_error)()) };
        Err(format!("{call}: status {status}: {}", text.to_string_lossy()))
    }

    fn cuda(&self, call: &str, code: u32) -> Result<(), String> {
        self.scene.lab.need(call, code).map_err(Stop::why)
    }

    fn draw(&mut self, below: u64) -> u64 {
        // xorshift64*: enough for a load.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    }

    /// Allocates a block and queues its contents. False when memory is out.
    fn make(&mut self) -> Result<bool, String> {
        let stream = self.draw(STREAMS as u64) as usize;
        let bytes = (256usize << self.draw(14)) + self.draw(255) as usize;
        let (value, plain) = (1 + self.draw(255) as u8, self.draw(4) == 0);
        let mut at = std::ptr::null_mut();
        let (forebay, pool) = (&self.scene.forebay, self.scene.pool);
        // SAFETY: a place for the address; pool and stream are live.
        let status = unsafe {
            match plain {
                true => (forebay.malloc)(&raw mut at, bytes),
                false => (forebay.alloc)(pool, &raw mut at, bytes, self.streams[stream]),
            }
        };
        if status == 2 {
            self.tally.out_of_memory += 1;
            return Ok(false);
        }
        self.check("forebay_alloc", status)?;
        // SAFETY: a live block of that many bytes.
        let status = unsafe { (forebay.stream_fill)(pool, at, value, bytes, self.streams[stream]) };
        self.check("forebay_stream_fill", status)?;
        self.live.push(Block { at, bytes, value, stream, plain });
        self.tally.blocks += 1;
        Ok(true)
    }

    /// Queues the copy of a block's ends to the host.
    fn read_back(&mut self, block: Block) -> Result<(), String> {
        let slot = self.pending.len();
        let bytes = block.bytes.min(SAMPLE);
        // SAFETY: within the pinned samples.
        let to = unsafe { self.samples.add(slot * SAMPLE) };
        let (head, tail) = (bytes / 2, bytes - bytes / 2);
        let (stream, from) = (self.streams[block.stream] as u64, block.at as u64);
        let copy = |to: *mut u8, from, bytes| {
            self.scene.lab.cuda.cuMemcpyDtoHAsync(to.cast(), from, bytes, stream)
        };
        self.cuda("cuMemcpyDtoHAsync", copy(to, from, head))?;
        // SAFETY: as above.
        let end = unsafe { to.add(head) };
        self.cuda("cuMemcpyDtoHAsync", copy(end, from + (block.bytes - tail) as u64, tail))?;
        self.pending.push(Pending { value: block.value, bytes });
        self.tally.readbacks += 1;
        Ok(())
    }

    fn free(&mut self, block: Block) -> Result<(), String> {
        let (forebay, pool) = (&self.scene.forebay, self.scene.pool);
        // SAFETY: a live block, freed once.
        let status = unsafe {
            match block.plain {
                true => (forebay.free)(block.at),
                false => (forebay.dealloc)(pool, block.at, self.streams[block.stream]),
            }
        };
        self.check("forebay_free", status)
    }

    /// Copies a block into a new one on another stream, and frees it on its own at once.
    fn across(&mut self, block: Block) -> Result<(), String> {
        if !self.make()? {
            return self.free(block);
        }
        let Some(target) = self.live.last().copied() else { return Ok(()) };
        let bytes = block.bytes.min(target.bytes);
        let (from, to) = (self.streams[block.stream], self.streams[target.stream]);
        let cuda = &self.scene.lab.cuda;
        self.cuda("cuEventRecord", cuda.cuEventRecord(self.event, from as u64))?;
        self.cuda("cuStreamWaitEvent", cuda.cuStreamWaitEvent(to as u64, self.event, 0))?;
        let (forebay, pool) = (&self.scene.forebay, self.scene.pool);
        // SAFETY: live blocks of at least that many bytes; the source's use is recorded before
        // it is freed.
        unsafe {
            let status = (forebay.stream_copy)(pool, target.at, block.at, bytes, to);
            self.check("forebay_stream_copy", status)?;
            self.check("forebay_record_use", (forebay.record_use)(pool, block.at, to))?;
        }
        self.free(block)?;
        if bytes < target.bytes {
            // SAFETY: the rest of the live target.
            let rest = unsafe { target.at.cast::<u8>().add(bytes).cast() };
            // SAFETY: as above.
            let status =
                unsafe { (forebay.stream_fill)(pool, rest, block.value, target.bytes - bytes, to) };
            self.check("forebay_stream_fill", status)?;
        }
        if let Some(target) = self.live.last_mut() {
            target.value = block.value;
        }
        self.tally.across += 1;
        Ok(())
    }

    /// Waits for the readbacks and counts wrong ones.
    fn settle(&mut self) -> Result<(), String> {
        for stream in self.streams {
            // SAFETY: a live stream.
            let status =
                unsafe { (self.scene.forebay.stream_synchronize)(self.scene.pool, stream) };
            self.check("forebay_stream_synchronize", status)?;
        }
        for (slot, pending) in self.pending.drain(..).enumerate() {
            // SAFETY: pinned samples, no longer written to.
            let seen = unsafe {
                std::slice::from_raw_parts(self.samples.add(slot * SAMPLE), pending.bytes)
            };
            self.tally.wrong += u64::from(seen.iter().any(|byte| *byte != pending.value));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let room = self.live.len() < LIVE_MAX * STREAMS;
        let wanted = self.live.is_empty() || (room && self.draw(2) == 0);
        // A full device leaves one of the live blocks to be freed instead.
        if wanted && (self.make()? || self.live.is_empty()) {
            return Ok(());
        }
        let at = self.draw(self.live.len() as u64) as usize;
        let block = self.live.swap_remove(at);
        if !block.plain && self.draw(4) == 0 {
            return self.across(block);
        }
        if self.scene.canary {
            self.free(block)?;
            self.make()?;
            return self.read_back(block);
        }
        self.read_back(block)?;
        self.free(block)
    }

    fn run(&mut self) -> Result<(), String> {
        while Instant::now() < self.scene.until && !self.scene.stop.load(Ordering::Relaxed) {
            self.step()?;
            if self.pending.len() == PENDING_MAX {
                self.settle()?;
            }
        }
        self.settle()?;
        while let Some(block) = self.live.pop() {
            self.free(block)?;
        }
        for stream in self.streams {
            // SAFETY: a live stream, destroyed once.
            let status = unsafe { (self.scene.forebay.stream_destroy)(self.scene.pool, stream) };
            self.check("forebay_stream_destroy", status)?;
        }
        Ok(())
    }
}

fn work(scene: &Scene, number: u64) -> Result<Tally, String> {
    let lab = &scene.lab;
    lab.need("cuCtxSetCurrent", lab.cuda.cuCtxSetCurrent(lab.context)).map_err(Stop::why)?;
    let mut worker = Worker {
        scene,
        random: (scene.seed + number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        streams: [std::ptr::null_mut(); STREAMS],
        live: Vec::new(),
        pending: Vec::new(),
        samples: lab.pinned(PENDING_MAX * SAMPLE).map_err(Stop::why)?.cast(),
        event: lab.event().map_err(Stop::why)?,
        tally: Tally::default(),
    };
    for i in 0..STREAMS {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the stream.
        let status = unsafe { (scene.forebay.stream_create)(scene.pool, &raw mut stream) };
        worker.check("forebay_stream_create", status)?;
        worker.streams[i] = stream;
    }
    let done = worker.run();
    if done.is_err() {
        scene.stop.store(true, Ordering::Relaxed);
    }
    done.map(|()| worker.tally)
}

/// One load; what all threads did together.
fn load(scene: &Scene, threads: u64) -> Result<Tally, String> {
    let tallies: Vec<Result<Tally, String>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(scene, n))).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        };
        started.into_iter().map(join).collect()
    });
    let mut sum = Tally::default();
    for tally in tallies {
        let tally = tally?;
        sum.blocks += tally.blocks;
        sum.readbacks += tally.readbacks;
        sum.across += tally.across;
        sum.out_of_memory += tally.out_of_memory;
        sum.wrong += tally.wrong;
    }
    Ok(sum)
}

/// Runs the load and its canary. False when memory was reused too early.
///
/// # Errors
/// A call was refused, or an argument is wrong.
pub fn run(mut words: Words, driver: Option<&Path>, file: Option<&Path>) -> Result<bool, String> {
    let library = words.value("--library")?.map(PathBuf::from);
    let library = library.ok_or("streams needs --library LIBFOREBAY")?;
    let seconds = words.number("--seconds", 20)?.max(2);
    let seed = words.number("--seed", 1)?;
    let threads = words.number("--threads", 4)?.clamp(1, 64);
    let canary_only = words.flag("--canary");
    words.finish()?;
    let cuda = Driver::open(driver)?;
    let lab = Lab::new(cuda, Stage::Context).map_err(Stop::why)?;
    let machine = Machine::of(&lab);
    let forebay = Forebay::open(&library)?;
    let mut pool = std::ptr::null_mut();
    // SAFETY: a place for the handle.
    let status = unsafe { (forebay.pool_default)(0, &raw mut pool) };
    if status != 0 {
        // SAFETY: a text of this thread that lasts until its next call.
        let text = unsafe { CStr::from_ptr((forebay.last_error)()) };
        return Err(format!("forebay_pool_default: {}", CString::from(text).to_string_lossy()));
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let stop = AtomicBool::new(false);
    let mut scene = Scene { forebay, lab, pool, seed, until, canary: canary_only, stop };
    println!("{}\nseed {seed}, {threads} threads, {STREAMS} streams each", machine.line());
    let safe = load(&scene, threads)?;
    println!("load: {safe:?}");
    let mut canary = safe;
    if !canary_only {
        scene.canary = true;
        scene.until = Instant::now() + Duration::from_secs(seconds.div_ceil(4));
        canary = load(&scene, threads)?;
        println!("canary, which reads back after the free: {canary:?}");
    }
    let shown = canary.wrong > 0 && (canary_only || (safe.wrong == 0 && safe.readbacks > 0));
    println!("{}", if shown { "no reuse came too early" } else { "FAILED" });
    let value = json!({
        "machine": machine.json(),
        "simulated": machine.simulated,
        "seed": seed,
        "threads": threads,
        "blocks": safe.blocks,
        "readbacks": safe.readbacks,
        "copies_across_streams": safe.across,
        "out_of_memory": safe.out_of_memory,
        "wrong": safe.wrong,
        "canary_wrong": canary.wrong,
        "ok": shown,
    });
    report::write(&value, file)?;
    Ok(shown)
}
