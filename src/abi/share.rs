//! Peers, exports to other processes and imports from them.

use super::{PoolT, null};
use crate::error::{Error, Result, Status};
use crate::pool::slow::guarded;
use crate::pool::{Pool, registry, share};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};

/// What an export consists of. The exporting process sends it, with the descriptors, to the
/// importing one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Export {
    /// sizeof of this structure as the caller knows it; set before the call.
    pub struct_size: usize,
    /// The export's number, for forebay_export_close() in the exporting process.
    pub id: u64,
    /// The memory's length in bytes: count pages.
    pub bytes: u64,
    /// Bytes of the page behind each descriptor.
    pub page_bytes: u64,
    /// Where in the first page the memory starts: 0 in this version.
    pub offset: u64,
    /// How many pages, and descriptors.
    pub count: u64,
}

/// Gives another device access to all memory of a pool, what is mapped later included. Again for
/// a device that has it is fine.
///
/// @param device the other device's number; up to 8 may have access.
/// @return FOREBAY_ERROR_TOO_MANY_PEERS for a ninth, FOREBAY_ERROR_UNSUPPORTED when it does not
/// exist or cannot reach this device's memory, FOREBAY_ERROR_BUSY while a graph capture is open,
/// FOREBAY_ERROR_DRIVER, FOREBAY_ERROR_MAPPING_LIMIT. Nothing changes then.
///
/// forebay_free() waits for what the device does with the memory in its primary context; other
/// work of its (and all of it before CUDA 12.5) is to be ordered before the free by an event.
///
/// Thread-safe; allocations that need the driver wait meanwhile. Costs a driver call for each row
/// of mapped memory. (cudaDeviceEnablePeerAccess has no effect on a pool's memory.)
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_enable_peer(pool: PoolT, device: i32) -> Status {
    guarded(|| Pool::from_handle(pool as u64)?.enable_peer(number(device)?))
}

/// Takes another device's access away. The caller knows that no work of its uses the memory.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when it has none; else as forebay_pool_enable_peer().
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_pool_disable_peer(pool: PoolT, device: i32) -> Status {
    guarded(|| Pool::from_handle(pool as u64)?.disable_peer(number(device)?))
}

fn number(device: i32) -> Result<u32> {
    u32::try_from(device).map_err(|_| invalid(format!("{device} is no device's number")))
}

fn invalid(message: String) -> Error {
    Error::new(Status::InvalidArgument, message)
}

/// Makes file descriptors of a block's pages, for other processes to import. The block consists
/// of whole pages: allocate a multiple of page_bytes with forebay_alloc_aligned() at an alignment
/// of page_bytes. Its pages stay where they are until forebay_export_close(); when the block is
/// freed before, its memory is kept as it is until then.
///
/// @param ptr the start of a live block.
/// @param fds receives count descriptors, in address order. They are the caller's: to send to
/// other processes, and to close (they are not needed to keep the memory). NULL with a capacity of
/// 0: nothing is exported, and description, with id 0, says what would be.
/// @param capacity how many descriptors fit.
/// @param description its struct_size is set by the caller; receives the description.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when the block is not of whole pages or capacity is too
/// small, FOREBAY_ERROR_UNSUPPORTED where the device exports nothing; else as forebay_free(). No
/// descriptor is left open then.
///
/// Thread-safe. One descriptor a page: mind the process's limit on them.
///
/// # Safety
/// `fds` is NULL or valid for writes of `capacity` descriptors; `description` is NULL or valid for
/// reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_export_fd(
    ptr: *const c_void,
    fds: *mut i32,
    capacity: usize,
    description: *mut Export,
) -> Status {
    guarded(|| {
        if ptr.is_null() {
            return Err(null("the block"));
        }
        if fds.is_null() && capacity > 0 {
            return Err(null("the descriptors"));
        }
        // SAFETY: as the caller promised.
        let size = unsafe { checked_size(description)? };
        let pool = Pool::from_number(registry::pool_of(ptr as usize)?)?;
        let planned = pool.describe_export(ptr as usize)?;
        let count = planned.bytes / planned.page_bytes;
        let made = if capacity == 0 {
            planned
        } else if capacity < count {
            return Err(invalid(format!(
                "the block has {count} pages, and there is room for {capacity} descriptors"
            )));
        } else {
            pool.export(ptr as usize)?
        };
        let value = Export {
            struct_size: size,
            id: made.id,
            bytes: made.bytes as u64,
            page_bytes: made.page_bytes as u64,
            offset: 0,
            count: count as u64,
        };
        for (i, fd) in made.fds.into_iter().enumerate() {
            // SAFETY: `capacity` descriptors fit, and there are no more than `count`.
            unsafe { fds.add(i).write(fd.into_raw_fd()) };
        }
        // SAFETY: `size` bytes are the caller's; no more are written than there are.
        unsafe {
            let bytes = size.min(size_of::<Export>());
            std::ptr::copy_nonoverlapping(
                (&raw const value).cast(),
                description.cast::<u8>(),
                bytes,
            );
        }
        Ok(())
    })
}

/// The structure's size as the caller set it.
///
/// # Safety
/// `export` is NULL or valid for reads of its struct_size.
unsafe fn checked_size(export: *const Export) -> Result<usize> {
    if export.is_null() {
        return Err(null("the export"));
    }
    // SAFETY: not null, and valid as the caller promised.
    let size = unsafe { (*export).struct_size };
    if size < size_of::<Export>() {
        return Err(invalid(format!(
            "struct_size is {size}: set it to sizeof(forebay_export) before the call"
        )));
    }
    Ok(size)
}

/// Ends an export: the caller knows that other processes use the memory no more. The descriptors
/// are closed apart.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when it is not open.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_export_close(id: u64) -> Status {
    guarded(|| share::close_export(id))
}

/// Maps memory that another process exported into a pool's address space. It counts in the
/// accounts as other, and not against the pool's limit.
///
/// @param pool NULL: the default pool; its device is the exporting pool's.
/// @param fds description->count descriptors as this process received them; not needed afterwards.
/// @param description as the exporting process sent it, struct_size included.
/// @param ptr receives the address; NULL on failure. Free it with forebay_free() or
/// forebay_dealloc(); the exporting process closes its export after that.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for descriptors that name no pages of this device,
/// FOREBAY_ERROR_UNSUPPORTED, FOREBAY_ERROR_OUT_OF_MEMORY (address space), FOREBAY_ERROR_DRIVER.
/// Nothing is kept then.
///
/// Thread-safe.
///
/// # Safety
/// `fds` is valid for reads of description->count descriptors, which are open; `description` is
/// NULL or valid for reads of its struct_size; `ptr` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_import_fd(
    pool: PoolT,
    fds: *const i32,
    description: *const Export,
    ptr: *mut *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { super::put(ptr, std::ptr::null_mut(), "the result")? };
        if fds.is_null() {
            return Err(null("the descriptors"));
        }
        // SAFETY: as the caller promised; the size covers the whole structure.
        let export = unsafe {
            checked_size(description)?;
            description.read()
        };
        let pool = Pool::from_handle(pool as u64)?;
        let count = checked_count(&export, pool.page_bytes()?)?;
        // SAFETY: as the caller promised.
        let numbers = unsafe { std::slice::from_raw_parts(fds, count) };
        if let Some(bad) = numbers.iter().find(|&&fd| fd < 0) {
            return Err(invalid(format!("{bad} is no descriptor")));
        }
        // SAFETY: the descriptors are open for the call, as the caller promised, and not -1.
        let borrowed = |&fd: &i32| unsafe { BorrowedFd::borrow_raw(fd) };
        let fds: Vec<BorrowedFd<'_>> = numbers.iter().map(borrowed).collect();
        let address = pool.import(&fds)?;
        // SAFETY: as above.
        unsafe { super::put(ptr, address as *mut c_void, "the result") }
    })
}

/// How many pages the export has, if the pool can map them.
fn checked_count(export: &Export, page_bytes: usize) -> Result<usize> {
    let Export { bytes, page_bytes: theirs, offset, count, .. } = *export;
    let sum = count.checked_mul(theirs);
    if count == 0 || count > 1 << 20 || theirs == 0 || offset != 0 || sum != Some(bytes) {
        return Err(invalid(format!(
            "the export's description contradicts itself: {count} pages of {theirs} bytes, {bytes} \
             in all, offset {offset}"
        )));
    }
    if theirs != page_bytes as u64 {
        return Err(invalid(format!(
            "the export's pages have {theirs} bytes, this pool's {page_bytes}"
        )));
    }
    Ok(count as usize)
}
