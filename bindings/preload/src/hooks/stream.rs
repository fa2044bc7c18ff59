//! Streams: made, which a pool without events over a context must know; and destroyed, after which
//! their handles may come back.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::{capture, driver, plainly};
use crate::cuda::{Handle, Result, SUCCESS};
use crate::{loader, place, pool, thread};
use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

/// The CUDA version that brought events over a whole context.
const CONTEXT_EVENTS_SINCE: c_int = 12050;

fn note(result: Result, stream: *mut Handle) -> Result {
    static NEEDED: OnceLock<bool> = OnceLock::new();
    if result != SUCCESS || stream.is_null() {
        return result;
    }
    let needed = *NEEDED.get_or_init(|| loader::driver_version() < CONTEXT_EVENTS_SINCE);
    if needed
        && !thread::with(thread::Thread::is_inside)
        && let (Some(api), Some(pool)) = (pool::api(), place::made())
    {
        // SAFETY: the stream that was just made. A pool that cannot take it serves others.
        plainly(|| unsafe { (api.stream_note)(pool, *stream) });
    }
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, flags: c_uint) -> Result {
    let made = plainly(|| driver!(StreamCreate(stream => *mut Handle, flags => c_uint)));
    note(made, stream)
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut Handle,
    flags: c_uint,
    priority: c_int,
) -> Result {
    let made = plainly(|| {
        driver!(StreamCreatePriority(
            stream => *mut Handle, flags => c_uint, priority => c_int,
        ))
    });
    note(made, stream)
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Result {
    let ours = !thread::with(thread::Thread::is_inside) && stream > crate::cuda::STREAM_PER_THREAD;
    if ours && let Some(api) = pool::api() {
        // SAFETY: a number; the program uses the stream no more.
        let status = plainly(|| unsafe { (api.stream_retire)(stream) });
        if !matches!(status, pool::OK | pool::FORKED | pool::SHUT_DOWN) {
            // The lane stays: once its work is done, an event on a stream of the same handle tells
            // the truth of what the old one freed.
            wait_for(stream);
        }
    }
    let result = plainly(|| driver!(StreamDestroy(stream => Handle)));
    if ours && result == SUCCESS {
        capture::stream_destroyed(stream);
    }
    result
}

/// Waits for a stream, whatever this thread's own captures forbid.
fn wait_for(stream: Handle) {
    type Exchange = unsafe extern "C" fn(*mut c_int) -> Result;
    type Synchronize = unsafe extern "C" fn(Handle) -> Result;
    const RELAXED: c_int = 2;
    let driver = loader::driver(true);
    let exchange = loader::symbol(driver, c"cuThreadExchangeStreamCaptureMode");
    let wait = loader::symbol(driver, c"cuStreamSynchronize");
    if exchange == 0 || wait == 0 || capture::captures(stream) {
        return;
    }
    let mut mode = RELAXED;
    // SAFETY: the driver's functions of these names have these types; this thread's own mode is
    // put back.
    unsafe {
        let exchange = std::mem::transmute::<usize, Exchange>(exchange);
        exchange(&raw mut mode);
        std::mem::transmute::<usize, Synchronize>(wait)(stream);
        exchange(&raw mut mode);
    }
}
