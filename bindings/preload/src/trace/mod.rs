//! `FOREBAY_PRELOAD_TRACE=FILE`: every device allocation and free of the program, served or passed
//! on, in the CSV that `forebay replay` reads.
//!
//! Owns the ring that calls put their events into and the thread that writes them, both started at
//! the first allocation. An allocation takes its place in the order once its memory is there, a
//! free before it is given up, so that an address is never allocated in the file before it is
//! freed. Promises: a call never waits for the file, an event that finds the ring full is counted
//! and told; what has happened is in the file within a tenth of a second, so that a killed process
//! loses no more; the process's end is written by its exit handler, and each later event by its own
//! thread. A forked child writes nothing. Cost: one load when off; some 100 ns an event when on,
//! 3 MiB for the ring, and 24 bytes a live block.

mod ring;
mod writer;

use crate::{background, loader, settings, thread};
use ring::{Event, Ring};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use writer::Writer;

/// How many events wait for the writer at most, as a power of two.
const RING_SHIFT: u32 = 16;
/// How long the writer sleeps when there is nothing to write.
const PAUSE: Duration = Duration::from_millis(20);

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

struct Trace {
    ring: Ring,
    start: Instant,
    writer: Mutex<Writer>,
}

/// The trace; null while there is none.
static TRACE: AtomicPtr<Trace> = AtomicPtr::new(std::ptr::null_mut());
/// The process that began it: its children write nothing.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// Whether exit handlers run: each event is written at once from then on.
static ENDING: AtomicBool = AtomicBool::new(false);

fn trace() -> Option<&'static Trace> {
    // SAFETY: null, or leaked by `start`.
    unsafe { TRACE.load(Ordering::Acquire).as_ref() }
}

/// A free that is under way.
#[derive(Clone, Copy)]
pub struct Mark(Option<(u64, Event)>);

/// The ticket of a free that found no place.
const NO_PLACE: u64 = u64::MAX;

/// Memory was allocated by the function with this name's number.
#[inline(always)]
pub fn allocated(name: usize, address: u64, bytes: usize, stream: usize) {
    if STATE.load(Ordering::Relaxed) != OFF {
        note_allocated(name, address, bytes, stream);
    }
}

/// Memory is about to be freed; [`freed`] says whether it was.
#[inline(always)]
pub fn freeing(name: usize, address: u64, stream: usize) -> Mark {
    // Unknown: nothing was allocated yet.
    if STATE.load(Ordering::Relaxed) != ON { Mark(None) } else { mark(name, address, stream) }
}

/// What became of a free.
#[inline(always)]
pub fn freed(mark: Mark, done: bool) {
    if let Mark(Some((ticket, event))) = mark {
        note_freed(ticket, event, done);
    }
}

#[cold]
fn note_allocated(name: usize, address: u64, bytes: usize, stream: usize) {
    start();
    let Some(trace) = trace() else { return };
    match trace.ring.reserve() {
        Some(ticket) => {
            let event = trace.event(name, address, bytes as u64, stream);
            trace.ring.commit(ticket, Some(event));
        }
        None => trace.ring.lose(),
    }
    trace.at_end();
}

#[cold]
fn mark(name: usize, address: u64, stream: usize) -> Mark {
    let Some(trace) = trace() else { return Mark(None) };
    let event = trace.event(name, address, 0, stream);
    Mark(Some((trace.ring.reserve().unwrap_or(NO_PLACE), event)))
}

#[cold]
fn note_freed(ticket: u64, event: Event, done: bool) {
    let Some(trace) = trace() else { return };
    match ticket {
        NO_PLACE if done => trace.ring.lose(),
        NO_PLACE => {}
        ticket => trace.ring.commit(ticket, done.then_some(event)),
    }
    trace.at_end();
}

impl Trace {
    fn event(&self, name: usize, address: u64, bytes: u64, stream: usize) -> Event {
        let at_us = self.start.elapsed().as_micros() as u64;
        Event { at_us, name, address, bytes, stream: stream as u64 }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While exit handlers run nobody else may come to write.
    fn at_end(&self) {
        if ENDING.load(Ordering::Acquire) && is_beginner() {
            self.writer().drain(&self.ring);
        }
    }
}

/// Whether this is the process that began the trace.
fn is_beginner() -> bool {
    // SAFETY: no arguments.
    PROCESS.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// The first allocation: opens the file and starts the writer, if a trace is asked for.
fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let state = match settings::get().trace.as_deref().map(Writer::open) {
            None => OFF,
            Some(Ok(writer)) => begin(writer),
            Some(Err(why)) => {
                static SAID: AtomicBool = AtomicBool::new(false);
                loader::say_once(
                    &SAID,
                    &format!("FOREBAY_PRELOAD_TRACE: {why}: nothing is traced"),
                );
                OFF
            }
        };
        STATE.store(state, Ordering::Release);
    });
}

fn begin(writer: Writer) -> u8 {
    let ring = Ring::new(RING_SHIFT);
    let trace = Box::new(Trace { ring, start: Instant::now(), writer: Mutex::new(writer) });
    TRACE.store(Box::into_raw(trace), Ordering::Release);
    // SAFETY: no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    // SAFETY: the handler stays loaded and does not unwind.
    let handled = unsafe { libc::atexit(end) } == 0;
    let runs = background::start("forebay-trace", run_writer).is_ok();
    if !runs || !handled {
        // Each event is written by its own thread then.
        ENDING.store(true, Ordering::Release);
    }
    ON
}

fn run_writer() {
    thread::with(|thread| {
        thread.inside(|| {
            while let Some(trace) = trace() {
                if !trace.writer().drain(&trace.ring) {
                    std::thread::sleep(PAUSE);
                }
            }
        });
    });
}

extern "C" fn end() {
    let Some(trace) = trace().filter(|_| is_beginner()) else { return };
    ENDING.store(true, Ordering::Release);
    let mut writer = trace.writer();
    while writer.drain(&trace.ring) {}
    if let Some(text) = writer.told_at_end(&trace.ring) {
        static SAID: AtomicBool = AtomicBool::new(false);
        loader::say_once(&SAID, &text);
    }
}
