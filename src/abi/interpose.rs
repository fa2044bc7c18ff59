//! For libraries that stand between a program and CUDA: the preload library, first of all.
//!
//! They know a pool, an address inside a block, a context that ends; programs that link Forebay
//! seldom need these.

use super::{PoolT, StreamT, null, put};
use crate::error::Status;
use crate::pool::hot::{self, SYNC_STREAM};
use crate::pool::slow::{self, guarded};
use crate::pool::{Pool, devices, registry};
use std::ffi::c_void;

/// forebay_malloc() from a given pool: memory for work on any stream.
///
/// @param pool NULL: the default pool.
/// @return as forebay_malloc(), and FOREBAY_ERROR_INVALID_POOL.
///
/// Thread-safe. Free with forebay_free(), which takes the pool's lock unless the pool is the
/// default one. Costs what forebay_malloc() does.
///
/// # Safety
/// `ptr` is NULL or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_malloc(
    pool: PoolT,
    ptr: *mut *mut c_void,
    bytes: usize,
) -> Status {
    // SAFETY: as the caller promised.
    unsafe { hot::alloc(pool as u64, ptr, bytes, SYNC_STREAM) }
}

/// forebay_pool_malloc() at a multiple of `alignment`, a power of two up to 2 MiB (0 is refused).
///
/// Thread-safe. Takes the pool's lock.
///
/// # Safety
/// As forebay_pool_malloc().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_malloc_aligned(
    pool: PoolT,
    ptr: *mut *mut c_void,
    bytes: usize,
    alignment: usize,
) -> Status {
    // No alignment at all is no power of two either: 3 stands for it.
    let alignment = if alignment == 0 { 3 } else { alignment };
    // SAFETY: as the caller promised.
    unsafe { slow::alloc(pool as u64, ptr, bytes, alignment, SYNC_STREAM) }
}

/// forebay_mem_info() for a given pool and its device.
///
/// @param pool NULL: the default pool.
/// @param free_bytes, total_bytes each may be NULL.
/// @return FOREBAY_ERROR_INVALID_POOL, FOREBAY_ERROR_DRIVER.
///
/// Thread-safe. One driver call.
///
/// # Safety
/// Each pointer is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_mem_info(
    pool: PoolT,
    free_bytes: *mut usize,
    total_bytes: *mut usize,
) -> Status {
    guarded(|| {
        let (free, total) = Pool::from_handle(pool as u64)?.memory_info()?;
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

/// The live block that an address lies in, at its start or inside.
///
/// @param base receives its first address.
/// @param bytes receives its usable length: the request rounded up.
/// @return FOREBAY_ERROR_NOT_OWNED, FOREBAY_ERROR_STALE_POINTER, FOREBAY_ERROR_DOUBLE_FREE when no
/// live block is there, FOREBAY_ERROR_INVALID_ARGUMENT for NULLs.
///
/// Thread-safe. Takes the pool's lock; no driver call.
///
/// # Safety
/// `base` and `bytes` are NULL or valid for the write. `ptr` is only compared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_block_range(
    ptr: *const c_void,
    base: *mut *mut c_void,
    bytes: *mut usize,
) -> Status {
    guarded(|| {
        if ptr.is_null() {
            return Err(null("the block"));
        }
        let pool = Pool::from_number(registry::pool_of(ptr as usize)?)?;
        let (start, length) = pool.block_around(ptr as usize)?;
        // SAFETY: as the caller promised.
        unsafe {
            put(base, start as *mut c_void, "the base")?;
            put(bytes, length, "the length")
        }
    })
}

/// The pool whose memory an address lies in, live or not.
///
/// @param pool receives the handle: NULL for the default pool, which serves fastest under that
/// name.
/// @return FOREBAY_ERROR_NOT_OWNED, FOREBAY_ERROR_STALE_POINTER.
///
/// Thread-safe. Takes the registry's lock.
///
/// # Safety
/// `pool` is NULL or valid for the write. `ptr` is only compared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_of(ptr: *const c_void, pool: *mut PoolT) -> Status {
    guarded(|| {
        let id = registry::pool_of(ptr as usize)?;
        let own = devices::default_made() == Some(id);
        let handle = if own { 0 } else { Pool::from_number(id)?.handle() };
        // SAFETY: as the caller promised.
        unsafe { put(pool, handle as PoolT, "the pool") }
    })
}

/// Makes a stream known to a pool before it is used there. Only where the device has no events
/// over a whole context (before CUDA 12.5) does it matter: forebay_free() then waits for the
/// streams that are known.
///
/// @param pool NULL: the default pool.
/// @return FOREBAY_ERROR_INVALID_STREAM for a stream of another context.
///
/// Thread-safe. forebay_stream_retire() ends it.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_stream_note(pool: PoolT, stream: StreamT) -> Status {
    guarded(|| Pool::from_handle(pool as u64)?.note_stream(stream as u64))
}

/// Ends every pool of a device, its default pool too, before the device's context is reset or
/// destroyed. Live blocks are reported as FOREBAY_LEAKS says, and their addresses are stale from
/// then on: freeing them answers FOREBAY_ERROR_STALE_POINTER. The next use of the device makes a
/// new default pool, in the context that is there then.
///
/// @param device the device's number.
/// @return FOREBAY_ERROR_BUSY while a graph capture is open on it, FOREBAY_ERROR_DRIVER when memory
/// could not be given back: the call may be repeated.
///
/// Thread-safe. The caller has waited for the device, and no other call on its pools is under way.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_device_reset(device: i32) -> Status {
    guarded(|| devices::end_device(device))
}
