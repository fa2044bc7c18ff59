//! How many calls were served and passed on, by name.
//!
//! Owns a block of counters a thread, which only that thread writes, and the list of all blocks. A
//! thread's end gives its block to another. Promises that counting takes no lock and no locked
//! instruction. With `FOREBAY_STATS=1` the sums are printed when the process ends, by the process
//! that began and by no child of it.

use crate::lookup::{self, NAMES_COUNT};
use crate::settings;
use crate::thread::{self, Thread};
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A thread's counters.
pub struct Counters {
    served: [AtomicU64; NAMES_COUNT],
    passed: [AtomicU64; NAMES_COUNT],
    used: AtomicBool,
    next: *const Counters,
}

/// All blocks that were ever made.
static ALL: AtomicPtr<Counters> = AtomicPtr::new(std::ptr::null_mut());
/// The key whose hook gives a block back; `u32::MAX`: none yet.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// The process that began to count.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Counts a call that the pool served.
#[inline(always)]
pub fn served(thread: &Thread, hook: usize) {
    let counters = thread.counters.get();
    if counters.is_null() {
        return slowly(hook, true);
    }
    // SAFETY: not null: a block that is never freed.
    bump(unsafe { (*counters).served.get(hook) });
}

/// Counts a call that went to the driver.
#[inline(always)]
pub fn passed(thread: &Thread, hook: usize) {
    let counters = thread.counters.get();
    if counters.is_null() {
        return slowly(hook, false);
    }
    // SAFETY: as in `served`.
    bump(unsafe { (*counters).passed.get(hook) });
}

#[inline(always)]
fn bump(counter: Option<&AtomicU64>) {
    if let Some(counter) = counter {
        // Only this thread writes it.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

#[cold]
fn slowly(hook: usize, served: bool) {
    let block = take_block();
    // SAFETY: never freed.
    let block_ref = unsafe { &*block };
    bump(if served { block_ref.served.get(hook) } else { block_ref.passed.get(hook) });
    thread::with(|thread| thread.counters.set(block));
}

fn blocks() -> impl Iterator<Item = &'static Counters> {
    // SAFETY: null or a block that is never freed; `next` is set before a block is listed.
    let mut at = unsafe { ALL.load(Ordering::Acquire).cast_const().as_ref() };
    std::iter::from_fn(move || {
        let block = at?;
        // SAFETY: as above.
        at = unsafe { block.next.as_ref() };
        Some(block)
    })
}

/// A free block, or a new one; it goes back when the thread ends.
fn take_block() -> *const Counters {
    begin();
    let free = blocks().find(|block| !block.used.swap(true, Ordering::AcqRel));
    let block = match free {
        Some(block) => std::ptr::from_ref(block),
        None => list(Box::new(Counters {
            served: [const { AtomicU64::new(0) }; NAMES_COUNT],
            passed: [const { AtomicU64::new(0) }; NAMES_COUNT],
            used: AtomicBool::new(true),
            next: std::ptr::null(),
        })),
    };
    let key = KEY.load(Ordering::Acquire);
    if key != u32::MAX {
        // SAFETY: the key was made in `begin`. Without a value the block stays this thread's.
        unsafe { libc::pthread_setspecific(key, block.cast()) };
    }
    block
}

fn list(mut block: Box<Counters>) -> *const Counters {
    let mut first = ALL.load(Ordering::Acquire);
    loop {
        block.next = first;
        let new = Box::into_raw(block);
        match ALL.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return new,
            Err(now) => {
                first = now;
                // SAFETY: just made, and not listed.
                block = unsafe { Box::from_raw(new) };
            }
        }
    }
}

/// A thread ends: its block serves another.
unsafe extern "C" fn give_back(block: *mut c_void) {
    thread::with(|thread| thread.counters.set(std::ptr::null()));
    // SAFETY: a block that `take_block` gave this thread.
    unsafe { (*block.cast::<Counters>()).used.store(false, Ordering::Release) };
}

/// The first count of the process: the hook for threads' ends, and the one at exit if asked.
fn begin() {
    static BEGUN: std::sync::Once = std::sync::Once::new();
    BEGUN.call_once(|| {
        let mut key = 0;
        // SAFETY: a local; the hook stays loaded.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } == 0 {
            KEY.store(key, Ordering::Release);
        }
        // SAFETY: no arguments.
        PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
        if settings::get().stats {
            // SAFETY: the handler stays loaded and does not unwind. Refused: nothing is printed.
            unsafe { libc::atexit(print) };
        }
    });
}

fn sums(hook: usize) -> (u64, u64) {
    let of = |counter: Option<&AtomicU64>| counter.map_or(0, |c| c.load(Ordering::Relaxed));
    blocks().fold((0, 0), |(served, passed), block| {
        (served + of(block.served.get(hook)), passed + of(block.passed.get(hook)))
    })
}

extern "C" fn print() {
    // A child made by fork or clone runs its parent's handlers.
    // SAFETY: no arguments.
    if PROCESS.load(Ordering::Relaxed) != unsafe { libc::getpid() } {
        return;
    }
    let mut text = String::new();
    for (hook, name) in lookup::names().enumerate() {
        let (served, passed) = sums(hook);
        if served + passed > 0 {
            let name = name.to_string_lossy();
            let _always = writeln!(text, "forebay: {name}: {served} served, {passed} passed on");
        }
    }
    // SAFETY: a buffer of this length.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// How often the function `name` was served by the pool and passed on to the driver, in all threads
/// so far. A call of the runtime that the pool does not serve at once is counted by the driver's
/// name that it ends in, and by no other. Answers 0, or 1 for a name that
/// this library does not stand before.
///
/// # Safety
/// `name` is NUL-terminated; `served` and `passed` are NULL or places for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_preload_count(
    name: *const c_char,
    served: *mut u64,
    passed: *mut u64,
) -> i32 {
    if name.is_null() {
        return 1;
    }
    // SAFETY: as the caller promised.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(hook) = lookup::names().position(|row| row == name) else { return 1 };
    let sums = sums(hook);
    // SAFETY: as the caller promised.
    unsafe {
        if !served.is_null() {
            served.write(sums.0);
        }
        if !passed.is_null() {
            passed.write(sums.1);
        }
    }
    0
}
