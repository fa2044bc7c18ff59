//! Streams: uses, retirement, captures, pins; and streams for programs without a runtime.

use super::{PoolT, StreamT, null, put};
use crate::driver::StreamHandle;
use crate::error::Status;
use crate::pool::slow::guarded;
use crate::pool::{Pool, capture as captures, control, registry};
use std::ffi::c_void;

/// Notes that work on `stream` uses the block too: after its free, the memory is reused only
/// after the work queued on that stream by then.
///
/// @param pool NULL: found by the address.
/// @return as forebay_free(); FOREBAY_ERROR_INVALID_STREAM.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_record_use(pool: PoolT, ptr: *mut c_void, stream: StreamT) -> Status {
    guarded(|| {
        if ptr.is_null() {
            return Err(null("the block"));
        }
        let pool = match pool as u64 {
            0 => Pool::from_number(registry::pool_of(ptr as usize)?)?,
            handle => Pool::from_handle(handle)?,
        };
        pool.record_use(ptr as usize, stream as u64)
    })
}

/// Tells that a stream is about to be destroyed: its handle may come back for another stream
/// that is not ordered after its work. Call it before destroying the stream.
///
/// @return FOREBAY_ERROR_BUSY while a graph capture is open; FOREBAY_ERROR_INVALID_STREAM.
///
/// Thread-safe; the stream is not in use by other threads.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_stream_retire(stream: StreamT) -> Status {
    guarded(|| registry::retire_stream(stream as u64))
}

/// Tells that a graph capture begins on a stream: what is allocated on it belongs to the graph
/// until forebay_capture_release(). While any capture is open no page moves.
///
/// @param capture receives the capture's number.
/// @return FOREBAY_ERROR_BUSY when one is open on the stream; FOREBAY_ERROR_INVALID_STREAM.
///
/// Thread-safe.
///
/// # Safety
/// `capture` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_capture_begin(stream: StreamT, capture: *mut u64) -> Status {
    guarded(|| {
        if capture.is_null() {
            return Err(null("the capture"));
        }
        let number = captures::begin(stream as u64)?;
        // SAFETY: as the caller promised.
        unsafe { put(capture, number, "the capture") }
    })
}

/// Tells that a capture has ended. Its memory stays the graph's.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when it has ended already, or never began.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_capture_end(capture: u64) -> Status {
    guarded(|| captures::end(capture))
}

/// Tells that a capture's graph is gone: what it freed is everyone's after the work queued so far.
///
/// @return FOREBAY_ERROR_BUSY while it, or another capture, is open.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_capture_release(capture: u64) -> Status {
    guarded(|| captures::release(capture))
}

/// Tells which graph a capture became: once the graph and all that is instantiated from it are
/// gone, the capture is released by itself, as by forebay_capture_release().
///
/// @param graph a cudaGraph_t of the capture's device. A user object is retained on it.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when the capture never began or is released;
/// FOREBAY_ERROR_UNSUPPORTED where the driver cannot watch graphs: use
/// forebay_capture_graph_gone() with a user object of your own, or forebay_capture_release().
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_capture_graph(capture: u64, graph: *mut c_void) -> Status {
    guarded(|| captures::follow_graph(capture, graph as u64))
}

/// Tells from a callback that a capture's graph is gone. Makes no driver call, so that it can be
/// the destructor of a CUDA user object: cudaUserObjectCreate(&object, (void *)(uintptr_t)capture,
/// forebay_capture_graph_gone, 1, cudaUserObjectNoDestructorSync). The release follows soon, at
/// the latest when the pool is asked for memory that it has not got.
///
/// @param capture the capture's number.
///
/// Thread-safe. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_capture_graph_gone(capture: *mut c_void) {
    captures::graph_gone(capture);
}

/// Promises that the block's pages do not move until forebay_unpin() or its free: for memory
/// registered elsewhere. Pins count.
///
/// @return FOREBAY_ERROR_BUSY while the block's tag is suspended.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pin(ptr: *mut c_void) -> Status {
    guarded(|| owner(ptr)?.pin(ptr as usize))
}

/// Takes one pin back.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when the block is not pinned.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_unpin(ptr: *mut c_void) -> Status {
    guarded(|| owner(ptr)?.unpin(ptr as usize))
}

fn owner(ptr: *mut c_void) -> crate::error::Result<Pool> {
    if ptr.is_null() {
        return Err(null("the block"));
    }
    Pool::from_number(registry::pool_of(ptr as usize)?)
}

/// Creates a stream of the pool's device.
///
/// # Safety
/// `stream` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stream_create(pool: PoolT, stream: *mut StreamT) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(stream, std::ptr::null_mut(), "the stream")? };
        let driver = Pool::from_handle(pool as u64)?.driver()?;
        let made = driver.stream_create().map_err(control::driver_error)?;
        // SAFETY: as above.
        unsafe { put(stream, made.0 as StreamT, "the stream") }
    })
}

/// Retires and destroys a stream; its queued work finishes.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for the default stream, FOREBAY_ERROR_INVALID_STREAM,
/// FOREBAY_ERROR_BUSY while a graph capture is open. Nothing changes then.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_stream_destroy(pool: PoolT, stream: StreamT) -> Status {
    guarded(|| Pool::from_handle(pool as u64)?.destroy_stream(stream as u64))
}

/// Waits for all work queued on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_stream_synchronize(pool: PoolT, stream: StreamT) -> Status {
    guarded(|| {
        let driver = Pool::from_handle(pool as u64)?.driver()?;
        driver.stream_synchronize(StreamHandle(stream as u64)).map_err(control::driver_error)
    })
}

/// Queues a copy between device addresses.
///
/// # Safety
/// Both ranges are live device memory until the copy is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stream_copy(
    pool: PoolT,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: StreamT,
) -> Status {
    guarded(|| {
        let driver = Pool::from_handle(pool as u64)?.driver()?;
        let handle = StreamHandle(stream as u64);
        driver.copy(to as usize, from as usize, bytes, handle).map_err(control::driver_error)
    })
}

/// Queues a fill with one byte value.
///
/// # Safety
/// The range is live device memory until the fill is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stream_fill(
    pool: PoolT,
    to: *mut c_void,
    value: u8,
    bytes: usize,
    stream: StreamT,
) -> Status {
    guarded(|| {
        let driver = Pool::from_handle(pool as u64)?.driver()?;
        let handle = StreamHandle(stream as u64);
        driver.fill(to as usize, value, bytes, handle).map_err(control::driver_error)
    })
}
