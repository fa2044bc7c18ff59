//! Pinned host memory, and buffers of one size.

use super::pools::no_handle;
use super::{PoolT, StreamT, put};
use crate::error::Status;
use crate::pool::buffers;
use crate::pool::devices;
use crate::pool::slow::guarded;
use crate::pool::{HANDLE_SHIFT, hot};
use std::ffi::c_void;

/// A set of device buffers of one size. Opaque; use [`BuffersT`].
pub struct Buffers {
    _private: (),
}

/// A buffer set's handle.
pub type BuffersT = *mut Buffers;

/// Allocates page-locked host memory, as cudaMallocHost does, from slabs.
///
/// @param ptr receives the address; NULL on failure and for 0 bytes.
/// @return as forebay_malloc().
///
/// Thread-safe. Free with forebay_host_free().
///
/// # Safety
/// `ptr` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_host_alloc(ptr: *mut *mut c_void, bytes: usize) -> Status {
    let mut handle = 0;
    let status = guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(ptr, std::ptr::null_mut(), "the result")? };
        handle = devices::host_pool()? << HANDLE_SHIFT;
        Ok(())
    });
    if status != Status::Ok {
        return status;
    }
    // SAFETY: as the caller promised.
    unsafe { hot::alloc(handle, ptr, bytes, 0) }
}

/// Frees page-locked host memory. The caller knows that no queued copy uses it any more.
///
/// @param ptr NULL is fine.
/// @return as forebay_free().
///
/// # Safety
/// As forebay_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_host_free(ptr: *mut c_void) -> Status {
    if ptr.is_null() {
        return Status::Ok;
    }
    let mut handle = 0;
    let status = guarded(|| {
        handle = devices::host_pool_of(ptr as usize)? << HANDLE_SHIFT;
        Ok(())
    });
    match status {
        Status::ShutDown => Status::Ok,
        // SAFETY: as the caller promised.
        Status::Ok => unsafe { hot::dealloc(handle, ptr, 0) },
        other => other,
    }
}

/// Makes a set of `count` buffers of `bytes` each, all allocated now: acquiring one never waits for
/// the device and never maps memory.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for 0, FOREBAY_ERROR_OUT_OF_MEMORY (nothing is kept
/// then).
///
/// Thread-safe.
///
/// # Safety
/// `buffers` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffers_create(
    pool: PoolT,
    bytes: usize,
    count: usize,
    buffers: *mut BuffersT,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(buffers, std::ptr::null_mut(), "the buffers")? };
        let number = buffers::create(pool as u64, bytes, count)?;
        // SAFETY: as above.
        unsafe { put(buffers, number as BuffersT, "the buffers") }
    })
}

/// Takes a buffer for work on a stream; it may be used by work queued on that stream from now on.
/// Prefers one that the same stream released; another's is taken behind that stream's event.
///
/// @return FOREBAY_ERROR_OUT_OF_MEMORY when all are out; FOREBAY_ERROR_BUSY while the stream
/// captures a graph.
///
/// Thread-safe.
///
/// # Safety
/// `ptr` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffers_acquire(
    buffers: BuffersT,
    stream: StreamT,
    ptr: *mut *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { put(ptr, std::ptr::null_mut(), "the buffer")? };
        let address = buffers::acquire(handle(buffers)?, stream as u64)?;
        // SAFETY: as above.
        unsafe { put(ptr, address as *mut c_void, "the buffer") }
    })
}

/// Puts a buffer back, in a stream's order.
///
/// @return FOREBAY_ERROR_DOUBLE_FREE when it is in already, FOREBAY_ERROR_NOT_OWNED for another
/// address; FOREBAY_ERROR_BUSY while the stream captures a graph: the buffer stays out then.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffers_release(
    buffers: BuffersT,
    ptr: *mut c_void,
    stream: StreamT,
) -> Status {
    guarded(|| buffers::release(handle(buffers)?, ptr as usize, stream as u64))
}

/// Ends a buffer set. One whose pool has ended may be ended with buffers out: they went with it.
///
/// @return FOREBAY_ERROR_BUSY while buffers are out.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffers_destroy(buffers: BuffersT) -> Status {
    guarded(|| buffers::destroy(handle(buffers)?))
}

fn handle(buffers: BuffersT) -> crate::error::Result<u64> {
    if buffers.is_null() { Err(no_handle()) } else { Ok(buffers as u64) }
}
