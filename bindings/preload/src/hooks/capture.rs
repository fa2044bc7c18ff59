//! Graph captures: what they allocate and free on their streams is the driver's; while one is open
//! the pool records no fence and moves no page.
//!
//! Owns the list of open captures, which a capture enters before pools are told of it. A stream
//! that the pool has no lane for, a thread's own default stream for one, is declared by a stream
//! made for that purpose.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::{driver, plainly, stream};
use crate::cuda::{Device, Handle, Result, STREAM_PER_THREAD, SUCCESS};
use crate::pool::{self, Api};
use crate::{loader, place, thread};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open capture, or one that is about to begin.
struct Open {
    /// Its number here.
    id: u64,
    /// The stream that it began on, and the thread if that is the thread's own.
    stream: Handle,
    thread: u64,
    /// The context of that stream.
    context: Handle,
    /// Whether it captures into a graph that the program had before.
    into: bool,
    /// The pool's number of it; 0: not declared.
    number: u64,
    /// A stream that was made to declare it, and its pool.
    stand_in: Option<(usize, Handle)>,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicU64 = AtomicU64::new(1);

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

/// Declares a capture to the pools, of which `pool` is one.
fn declare(api: &Api, pool: usize, stream: Handle) -> (u64, Option<(usize, Handle)>) {
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
fn begin(stream: Handle, into: bool, call: impl FnOnce() -> Result) -> Result {
    if thread::with(thread::Thread::is_inside) {
        return call();
    }
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let thread = thread_of(stream);
    let current = || place::current().map(|(context, _)| context);
    let context = stream::context_of(stream).or_else(current).unwrap_or(0);
    COUNT.fetch_add(1, Ordering::AcqRel);
    // Listed before anybody looks for a pool: one that is made meanwhile finds it there.
    open().push(Open { id, stream, thread, context, into, number: 0, stand_in: None });
    // Waits for a pool that is being made.
    let pool = place::made().or_else(place::any);
    if let (Some(api), Some(pool)) = (pool::api(), pool)
        && let Some(capture) = open().iter_mut().find(|c| c.id == id && c.number == 0)
    {
        (capture.number, capture.stand_in) = declare(api, pool, stream);
    }
    let result = plainly(call);
    if result != SUCCESS {
        close(|capture| capture.id == id);
    }
    result
}

/// Forgets a capture that is over. What waited for the last one's end is done.
fn close(which: impl Fn(&Open) -> bool) {
    let mut list = open();
    let Some(at) = list.iter().position(which) else { return };
    let capture = list.swap_remove(at);
    drop(list);
    closed(&capture);
}

/// A capture is off the list. It counts until the pools know: whoever sees none open then finds
/// that they wait for none.
fn closed(capture: &Open) {
    if let Some(api) = pool::api() {
        over(api, capture);
    }
    COUNT.fetch_sub(1, Ordering::AcqRel);
    if !any_open() {
        stream::destroy_postponed();
        place::enable_owed();
    }
}

/// Forgets the capture that began on a stream.
fn close_on(stream: Handle) {
    let thread = thread_of(stream);
    close(|capture| capture.stream == stream && capture.thread == thread);
}

/// Runs a call that ends a capture. One that fails may have left it open.
fn end(stream: Handle, call: impl FnOnce() -> Result) -> Result {
    let result = plainly(call);
    if !thread::with(thread::Thread::is_inside) && (result == SUCCESS || !captures(stream)) {
        close_on(stream);
    }
    result
}

/// A stream is gone, and with it a capture that began on it.
pub fn stream_destroyed(stream: Handle) {
    if any_open() {
        close_on(stream);
    }
}

/// A stream is about to go. A capture that began on it ends with it, and ends now, so that the pool
/// can ask about the work that the stream has before. Whether none is left that only the stream's
/// end ends: another thread than the one that began it may not end it.
pub fn give_up(stream: Handle) -> bool {
    if !any_open() {
        return true;
    }
    let into = open().iter().find(|capture| capture.stream == stream).map(|capture| capture.into);
    let Some(into) = into else { return true };
    let mut graph = 0;
    let to = &raw mut graph;
    plainly(|| driver!(EndCapture(stream => Handle, to => *mut Handle)));
    // One that the program had before stays its own.
    if graph != 0 && !into {
        type Destroy = unsafe extern "C" fn(Handle) -> Result;
        let found = loader::symbol(loader::driver(true), c"cuGraphDestroy");
        if found != 0 {
            // SAFETY: the driver's function of this name has this type; the graph is nobody else's.
            plainly(|| unsafe { std::mem::transmute::<usize, Destroy>(found)(graph) });
        }
    }
    let is_over = !captures(stream);
    if is_over {
        close_on(stream);
    }
    is_over
}

/// A pool is made while captures are open: it learns of them.
pub fn declare_open(api: &Api, pool: usize) {
    for capture in open().iter_mut().filter(|c| c.number == 0) {
        (capture.number, capture.stand_in) = declare(api, pool, capture.stream);
    }
}

/// A context is about to go, and with it what its streams capture.
pub fn context_ends(context: Handle) {
    if !any_open() {
        return;
    }
    let gone: Vec<Open> = open().extract_if(.., |c| c.context == context).collect();
    gone.iter().for_each(closed);
}

/// A pool is about to end, the device's: captures in other contexts go on, and those that are
/// declared by it are by another, or by the next that is made.
pub fn pool_ends(api: &Api, pool: usize, device: Device) {
    if !any_open() {
        return;
    }
    let other = place::any();
    for capture in open().iter_mut().filter(|capture| capture.number != 0) {
        let by_it = match capture.stand_in {
            Some((of, _)) => of == pool,
            None => place::device_of(capture.context).is_none_or(|of| of == device),
        };
        if !by_it {
            continue;
        }
        // First: the others' pools record no fence in between.
        let next = other.map_or((0, None), |other| declare(api, other, capture.stream));
        over(api, capture);
        (capture.number, capture.stand_in) = next;
    }
}

fn per_thread(stream: Handle) -> Handle {
    if stream == 0 { STREAM_PER_THREAD } else { stream }
}

/// Defines the forms of a call that begins a capture.
macro_rules! begins {
    ($($name:ident = $entry:ident, $map:expr, $into:literal,
       ($($argument:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As of the driver's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: Handle $(, $argument: $type)*) -> Result {
            let means: fn(Handle) -> Handle = $map;
            begin(means(stream), $into, || {
                driver!($entry(stream => Handle $(, $argument => $type)*))
            })
        }
    )*};
}

begins! {
    cuStreamBeginCapture = BeginCapture1, |stream| stream, false, ();
    cuStreamBeginCapture_ptsz = BeginCapture1Pt, per_thread, false, ();
    cuStreamBeginCapture_v2 = BeginCapture, |stream| stream, false, (mode: c_int);
    cuStreamBeginCapture_v2_ptsz = BeginCapturePt, per_thread, false, (mode: c_int);
    cuStreamBeginCaptureToGraph = BeginCaptureTo, |stream| stream, true, (
        graph: Handle, nodes: *const c_void, edges: *const c_void, count: usize, mode: c_int
    );
    cuStreamBeginCaptureToGraph_ptsz = BeginCaptureToPt, per_thread, true, (
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
