//! Streams: made, which a pool without events over a context must know; and destroyed, after which
//! their handles may come back.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::{capture, driver, plainly};
use crate::cuda::{Device, Handle, Result, SUCCESS};
use crate::pool::{self, Api};
use crate::{loader, lookup, place, thread};
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The CUDA version that brought events over a whole context.
const CONTEXT_EVENTS_SINCE: c_int = 12050;

/// A stream that the program has made.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Made {
    stream: Handle,
    context: Handle,
    /// The device whose primary context that is.
    primary: Option<Device>,
}

/// The program's streams, for pools that are made later; empty where events cover a context.
static MADE: Mutex<Vec<Made>> = Mutex::new(Vec::new());

fn made() -> MutexGuard<'static, Vec<Made>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether pools must know streams by name.
fn is_needed() -> bool {
    static NEEDED: OnceLock<bool> = OnceLock::new();
    *NEEDED.get_or_init(|| {
        loader::driver_version() < CONTEXT_EVENTS_SINCE
            || lookup::ask(c"cuCtxRecordEvent", CONTEXT_EVENTS_SINCE, 0) == 0
    })
}

fn note(result: Result, stream: *mut Handle) -> Result {
    if result != SUCCESS
        || stream.is_null()
        || thread::with(thread::Thread::is_inside)
        || !is_needed()
    {
        return result;
    }
    let Some((context, device)) = place::current() else { return result };
    // SAFETY: the driver has just written it.
    let stream = unsafe { *stream };
    let primary = place::is_primary(context, device).then_some(device);
    // Listed first: a pool that is made meanwhile finds it there, or is found here.
    made().push(Made { stream, context, primary });
    if let (Some(api), Some(pool)) = (pool::api(), place::made()) {
        // SAFETY: the stream that was just made. A pool that cannot take it serves others.
        plainly(|| unsafe { (api.stream_note)(pool, stream) });
    }
    result
}

/// A pool is made in a context: it learns of the streams there.
pub fn note_made(api: &Api, pool: usize, context: Handle) {
    for made in made().iter().filter(|made| made.context == context) {
        // SAFETY: a live stream, which `cuStreamDestroy` takes off the list first.
        plainly(|| unsafe { (api.stream_note)(pool, made.stream) });
    }
}

/// A context is about to go, and its streams with it.
pub fn context_ends(context: Handle) {
    made().retain(|made| made.context != context);
    postponed().retain(|(_, of)| *of != context);
}

/// The same of a device's primary context.
pub fn primary_ends(device: Device) {
    made().retain(|made| made.primary != Some(device));
    let primary = place::primary_of(device);
    postponed().retain(|(_, of)| Some(*of) != primary);
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

/// Streams that the program has destroyed while a capture was open: the pool cannot ask about their
/// work then, nor may their handles come back before it has. With their contexts.
static POSTPONED: Mutex<Vec<(Handle, Handle)>> = Mutex::new(Vec::new());

fn postponed() -> MutexGuard<'static, Vec<(Handle, Handle)>> {
    POSTPONED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The context of a stream of the program's; nothing where the driver does not tell.
pub fn context_of(stream: Handle) -> Option<Handle> {
    type GetCtx = unsafe extern "C" fn(Handle, *mut Handle) -> Result;
    if stream <= crate::cuda::STREAM_PER_THREAD {
        return place::current().map(|(context, _)| context);
    }
    let found = loader::symbol(loader::driver(true), c"cuStreamGetCtx");
    if found == 0 {
        return None;
    }
    let mut context = 0;
    // SAFETY: the driver's function of this name has this type; a local to fill.
    let result = plainly(|| unsafe {
        std::mem::transmute::<usize, GetCtx>(found)(stream, &raw mut context)
    });
    (result == SUCCESS && context != 0).then_some(context)
}

/// No capture is open: streams whose end had to wait are destroyed. One thread at a time: what one
/// finds busy, because a capture has begun meanwhile, the next finds on the list.
pub fn destroy_postponed() {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let all = std::mem::take(&mut *postponed());
    for (stream, context) in all {
        if retire(stream) == Some(pool::BUSY) {
            postponed().push((stream, context));
            continue;
        }
        made().retain(|made| made.stream != stream);
        place::within(context, || plainly(|| driver!(StreamDestroy(stream => Handle))));
    }
}

/// Ends a stream's lanes; what the pool says, if it is there.
fn retire(stream: Handle) -> Option<pool::Status> {
    let api = pool::api()?;
    // SAFETY: a number; the program uses the stream no more.
    Some(plainly(|| unsafe { (api.stream_retire)(stream) }))
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Result {
    let ours = !thread::with(thread::Thread::is_inside) && stream > crate::cuda::STREAM_PER_THREAD;
    if !ours {
        return plainly(|| driver!(StreamDestroy(stream => Handle)));
    }
    if postponed().iter().any(|(known, _)| *known == stream) {
        return crate::cuda::INVALID_HANDLE;
    }
    let may_stay = capture::give_up(stream);
    let context = context_of(stream).filter(|_| may_stay);
    match (retire(stream), context) {
        (Some(pool::BUSY), Some(context)) => {
            postponed().push((stream, context));
            if !capture::any_open() {
                destroy_postponed();
            }
            return SUCCESS;
        }
        (None | Some(pool::OK | pool::FORKED | pool::SHUT_DOWN), _) => {}
        // The lane stays: once its work is done, an event on a stream of the same handle tells the
        // truth of what the old one freed.
        _ => wait_for(stream),
    }
    let known: Vec<Made> = made().extract_if(.., |m| m.stream == stream).collect();
    let result = plainly(|| driver!(StreamDestroy(stream => Handle)));
    if result == SUCCESS {
        capture::stream_destroyed(stream);
    } else {
        made().extend(known);
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
