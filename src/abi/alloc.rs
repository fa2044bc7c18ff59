//! Allocation and free.

use super::{PoolT, StreamT, null, put};
use crate::error::Status;
use crate::pool::slow::guarded;
use crate::pool::{Pool, hot, registry, slow};
use std::ffi::c_void;

/// Allocates device memory from the default pool, as cudaMalloc does.
///
/// @param ptr receives the address, a multiple of 256; NULL on failure and for 0 bytes.
/// @param bytes 0 is fine: FOREBAY_OK and a NULL address, which may be freed.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT (ptr is NULL), FOREBAY_ERROR_OUT_OF_MEMORY (with a report
/// as
/// the last error), FOREBAY_ERROR_NO_DRIVER, FOREBAY_ERROR_FORKED, FOREBAY_ERROR_SHUT_DOWN,
/// FOREBAY_ERROR_CONTEXT_LOST (the device's context is gone, and the pool's memory with it: a
/// kernel failed, or the program destroyed the context or reset the device, as cudaDeviceReset
/// does. Call forebay_device_reset() before; called afterwards it ends what is lost).
///
/// Thread-safe. Free with forebay_free(). Costs some ten ns when a cached block is at hand.
///
/// # Safety
/// `ptr` is NULL or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_malloc(ptr: *mut *mut c_void, bytes: usize) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::malloc(ptr, bytes) }
}

/// Frees memory with cudaFree's meaning: nothing still queued or running can see it reused.
/// Does not wait for the device by default (see FOREBAY_FREE).
///
/// Memory of forebay_malloc() and of forebay_alloc() may be freed in either way, as in CUDA. By
/// this function: any stream gets it again after all work queued before the free. By
/// forebay_free_async() or forebay_dealloc() on a stream: that stream gets it again at once, others
/// after the stream's work queued before the free; the caller has ordered the stream after all
/// other use. With FOREBAY_FREE=sync this function waits for the device itself; with
/// FOREBAY_FREE=stream it is forebay_free_async() on the default stream.
///
/// @param ptr the start of a live block of any pool; NULL is fine.
/// @return FOREBAY_ERROR_NOT_OWNED, FOREBAY_ERROR_DOUBLE_FREE, FOREBAY_ERROR_INTERIOR_POINTER,
/// FOREBAY_ERROR_STALE_POINTER, FOREBAY_ERROR_FORKED; nothing changes then. After
/// forebay_shutdown(), and once the device's context is lost, always FOREBAY_OK.
///
/// Waits for work of the context that the pool works in. A device may have several contexts, all of
/// which reach the memory, and CUDA lists none of them: work queued in another one is to be ordered
/// before the free, by an event or a wait.
///
/// Thread-safe.
///
/// # Safety
/// The caller gives the block up. Any other address is answered with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free(ptr: *mut c_void) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::free(ptr) }
}

/// forebay_alloc() from the default pool.
///
/// # Safety
/// As forebay_alloc().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_malloc_async(
    ptr: *mut *mut c_void,
    bytes: usize,
    stream: StreamT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::alloc(0, ptr, bytes, stream as u64) }
}

/// forebay_dealloc() into whichever pool the block belongs to.
///
/// # Safety
/// As forebay_dealloc().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_free_async(ptr: *mut c_void, stream: StreamT) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::dealloc(0, ptr, stream as u64) }
}

/// Allocates from a pool for work on a stream. The memory may be used by work queued on that
/// stream from now on; for other streams, order them after it first.
///
/// @param pool NULL: the default pool.
/// @param ptr receives the address, a multiple of 256; NULL on failure and for 0 bytes.
/// @return as forebay_malloc(), and FOREBAY_ERROR_INVALID_POOL, FOREBAY_ERROR_INVALID_STREAM;
/// FOREBAY_ERROR_BUSY while the thread's tag is suspended in the pool.
///
/// Thread-safe.
///
/// # Safety
/// `ptr` is NULL or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_alloc(
    pool: PoolT,
    ptr: *mut *mut c_void,
    bytes: usize,
    stream: StreamT,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::alloc(pool as u64, ptr, bytes, stream as u64) }
}

/// forebay_alloc() at a multiple of `alignment`, a power of two up to 2 MiB (0 is refused).
///
/// # Safety
/// As forebay_alloc().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_alloc_aligned(
    pool: PoolT,
    ptr: *mut *mut c_void,
    bytes: usize,
    alignment: usize,
    stream: StreamT,
) -> Status {
    // No alignment at all is no power of two either: 3 stands for it.
    let alignment = if alignment == 0 { 3 } else { alignment };
    // SAFETY: as the caller promised.
    unsafe { slow::alloc(pool as u64, ptr, bytes, alignment, stream as u64) }
}

/// Frees a block in a stream's order: later allocations on that stream may get the memory at
/// once; others only after the work queued on the stream so far. All work that uses the block
/// is on this stream, ordered before it, or noted by forebay_record_use().
///
/// @param pool the block's pool; NULL: found by the address.
/// @param ptr NULL is fine.
/// @return as forebay_free(), and FOREBAY_ERROR_INVALID_POOL, FOREBAY_ERROR_INVALID_STREAM.
///
/// Thread-safe.
///
/// # Safety
/// As forebay_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_dealloc(pool: PoolT, ptr: *mut c_void, stream: StreamT) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::dealloc(pool as u64, ptr, stream as u64) }
}

/// Free and total bytes of the default device, as cudaMemGetInfo answers them: what the pool
/// could still hand out counts as free.
///
/// @param free_bytes, total_bytes each may be NULL.
///
/// Thread-safe.
///
/// # Safety
/// Each pointer is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_mem_info(
    free_bytes: *mut usize,
    total_bytes: *mut usize,
) -> Status {
    guarded(|| {
        let (free, total) = Pool::default_pool()?.memory_info()?;
        // SAFETY: as the caller promised.
        unsafe {
            if !free_bytes.is_null() {
                free_bytes.write(free);
            }
            if !total_bytes.is_null() {
                total_bytes.write(total);
            }
        }
        Ok(())
    })
}

/// The bytes usable at the start of a live block: the request rounded up.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for NULLs; else as forebay_free().
///
/// Thread-safe.
///
/// # Safety
/// `bytes` is NULL or valid for the write. `ptr` is only compared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_usable_size(ptr: *const c_void, bytes: *mut usize) -> Status {
    guarded(|| {
        if ptr.is_null() {
            return Err(null("the block"));
        }
        let pool = Pool::from_number(registry::pool_of(ptr as usize)?)?;
        let size = pool.usable_size(ptr as usize)?;
        // SAFETY: as the caller promised.
        unsafe { put(bytes, size, "the size") }
    })
}

/// Whether an address lies in memory that some pool manages, live or not. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_owns(ptr: *const c_void) -> bool {
    std::panic::catch_unwind(|| registry::pool_of(ptr as usize).is_ok()).unwrap_or(false)
}
