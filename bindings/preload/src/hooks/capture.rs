//! Graph captures: what they allocate and free on their streams is the driver's; while one is open
//! the pool records no fence and moves no page.
//!
//! Owns the list of open captures. A stream that the pool has no lane for, a thread's own default
//! stream for one, is declared by a stream made for that purpose.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::{driver, plainly};
use crate::cuda::{Handle, Result, STREAM_PER_THREAD, SUCCESS};
use crate::pool::{self, Api};
use crate::{loader, place, thread};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open capture.
struct Open {
    /// The stream that it began on, and the thread if that is the thread's own.
    stream: Handle,
    thread: u64,
    /// The pool's number of it; 0: not declared.
    number: u64,
    /// A stream that was made to declare it, and its pool.
    stand_in: Option<(usize, Handle)>,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn open() -> MutexGuard<'static, Vec<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any capture is open in the process.
#[inline(always)]
pub fn any_open() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Whether a stream captures, as the driver says: it may have joined another's capture.
#[cold]
pub fn captures(stream: Handle) -> bool {
    type IsCapturing = unsafe extern "C" fn(Handle, *mut c_int) -> Result;
    let found = loader::symbol(loader::driver(true), c"cuStreamIsCapturing");
    if found == 0 {
        return false;
    }
    let mut status = 0;
    // SAFETY: the driver's function of this name has this type; a local to fill.
    let result = plainly(|| unsafe {
        std::mem::transmute::<usize, IsCapturing>(found)(stream, &raw mut status)
    });
    // A stream that may not be asked, the legacy one beside a blocking capture, is the driver's.
    result != SUCCESS || status != 0
}

fn thread_of(stream: Handle) -> u64 {
    // SAFETY: no arguments.
    if stream == STREAM_PER_THREAD { unsafe { libc::pthread_self() as u64 } } else { 0 }
}

/// Declares a capture to the pools, before it begins.
fn declare(api: &Api, pool: Option<usize>, stream: Handle) -> (u64, Option<(usize, Handle)>) {
    let mut number = 0;
    let mut stand_in = 0;
    thread::with(|thread| {
        thread.inside(|| {
            // SAFETY: locals to fill, a live stream.
            unsafe {
                if stream != STREAM_PER_THREAD
                    && (api.capture_begin)(stream, &raw mut number) == pool::OK
                {
                    return (number, None);
                }
                let Some(pool) = pool else { return (0, None) };
                if (api.stream_create)(pool, &raw mut stand_in) != pool::OK {
                    return (0, None);
                }
                if (api.capture_begin)(stand_in, &raw mut number) == pool::OK {
                    return (number, Some((pool, stand_in)));
                }
                (api.stream_destroy)(pool, stand_in);
            }
            (0, None)
        })
    })
}

/// Tells the pools that a capture is over. No memory of theirs belongs to its graph.
fn over(api: &Api, capture: &Open) {
    if capture.number == 0 {
        return;
    }
    thread::with(|thread| {
        thread.inside(|| {
            // SAFETY: numbers and streams that `declare` got.
            unsafe {
                (api.capture_end)(capture.number);
                (api.capture_graph_gone)(capture.number as usize);
                if let Some((pool, stream)) = capture.stand_in {
                    (api.stream_destroy)(pool, stream);
                }
            }
        });
    });
}

/// Runs a call that begins a capture.
fn begin(stream: Handle, call: impl FnOnce() -> Result) -> Result {
    if thread::with(thread::Thread::is_inside) {
        return call();
    }
    let (number, stand_in) = match pool::api() {
        Some(api) => declare(api, place::made().or_else(place::any), stream),
        None => (0, None),
    };
    COUNT.fetch_add(1, Ordering::AcqRel);
    let capture = Open { stream, thread: thread_of(stream), number, stand_in };
    let result = plainly(call);
    if result == SUCCESS {
        open().push(capture);
    } else {
        if let Some(api) = pool::api() {
            over(api, &capture);
        }
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
    result
}

/// Forgets a capture that is over.
fn close(stream: Handle) {
    let thread = thread_of(stream);
    let mut list = open();
    let Some(at) = list.iter().position(|c| c.stream == stream && c.thread == thread) else {
        return;
    };
    let capture = list.swap_remove(at);
    drop(list);
    COUNT.fetch_sub(1, Ordering::AcqRel);
    if let Some(api) = pool::api() {
        over(api, &capture);
    }
}

/// Runs a call that ends a capture. One that fails may have left it open.
fn end(stream: Handle, call: impl FnOnce() -> Result) -> Result {
    let result = plainly(call);
    if !thread::with(thread::Thread::is_inside) && (result == SUCCESS || !captures(stream)) {
        close(stream);
    }
    result
}

/// A stream is gone, and with it a capture that began on it.
pub fn stream_destroyed(stream: Handle) {
    if any_open() {
        close(stream);
    }
}

/// A pool is made while captures are open: it learns of them.
pub fn declare_open(api: &Api, pool: usize) {
    for capture in open().iter_mut().filter(|c| c.number == 0) {
        (capture.number, capture.stand_in) = declare(api, Some(pool), capture.stream);
    }
}

/// A context ends, and the pool in it: nothing that captures may keep that.
pub fn end_all(api: &Api) {
    for capture in open().iter_mut() {
        over(api, capture);
        capture.number = 0;
        capture.stand_in = None;
    }
}

fn per_thread(stream: Handle) -> Handle {
    if stream == 0 { STREAM_PER_THREAD } else { stream }
}

/// Defines the forms of a call that begins a capture.
macro_rules! begins {
    ($($name:ident = $entry:ident, $map:expr, ($($argument:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As of the driver's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: Handle $(, $argument: $type)*) -> Result {
            let means: fn(Handle) -> Handle = $map;
            begin(means(stream), || driver!($entry(stream => Handle $(, $argument => $type)*)))
        }
    )*};
}

begins! {
    cuStreamBeginCapture = BeginCapture1, |stream| stream, ();
    cuStreamBeginCapture_ptsz = BeginCapture1Pt, per_thread, ();
    cuStreamBeginCapture_v2 = BeginCapture, |stream| stream, (mode: c_int);
    cuStreamBeginCapture_v2_ptsz = BeginCapturePt, per_thread, (mode: c_int);
    cuStreamBeginCaptureToGraph = BeginCaptureTo, |stream| stream, (
        graph: Handle, nodes: *const c_void, edges: *const c_void, count: usize, mode: c_int
    );
    cuStreamBeginCaptureToGraph_ptsz = BeginCaptureToPt, per_thread, (
        graph: Handle, nodes: *const c_void, edges: *const c_void, count: usize, mode: c_int
    );
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> Result {
    end(stream, || driver!(EndCapture(stream => Handle, graph => *mut Handle)))
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture_ptsz(stream: Handle, graph: *mut Handle) -> Result {
    end(per_thread(stream), || driver!(EndCapturePt(stream => Handle, graph => *mut Handle)))
}
