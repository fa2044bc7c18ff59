//! Peers, exports to other processes and imports from them.

use super::{PoolT, null};
use crate::error::{Error, Result, Status};
use crate::pool::slow::guarded;
use crate::pool::{Pool, registry, share, window};
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
    /// Where in the first page the memory starts; 0 from forebay_export_fd().
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
        let made = match capacity {
            0 => pool.describe_export(ptr as usize)?,
            // The block may be another one by now: its pages are counted with the export.
            room => pool.export_within(ptr as usize, room)?,
        };
        let value = Export {
            struct_size: size,
            id: made.id,
            bytes: made.bytes as u64,
            page_bytes: made.page_bytes as u64,
            offset: 0,
            count: (made.bytes / made.page_bytes) as u64,
        };
        for (i, fd) in made.fds.into_iter().enumerate() {
            // SAFETY: `capacity` descriptors fit, and there are no more.
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

/// Opens an export of a block of any size, whose descriptors forebay_export_pages() makes a few at
/// a time. The block's pages stay where they are until forebay_export_close(); when the block is
/// freed before, its memory is kept as it is until then. The pages hold other blocks too, which
/// the importing process can then reach: allocate whole pages where that matters.
///
/// This stands in for CUDA's legacy IPC. cuIpcGetMemHandle() and cudaIpcGetMemHandle() refuse a
/// pool's memory as an invalid value, as they refuse all memory that is mapped; only under
/// libforebay_preload.so do they take it. Send the description, and what forebay_export_pages()
/// makes, over a Unix socket instead; the other process calls forebay_import_open(),
/// forebay_import_pages() and forebay_import_map().
///
/// @param ptr the start of a live block.
/// @param description its struct_size is set by the caller; receives the description: bytes are
/// those of all pages, offset is where in the first one the block begins.
/// @return as forebay_free(); FOREBAY_ERROR_INVALID_ARGUMENT for imported memory;
/// FOREBAY_ERROR_BUSY while the block's tag is suspended.
///
/// Thread-safe. Costs no driver call; from then on the block's free takes the slow path.
///
/// # Safety
/// `description` is NULL or valid for reads and writes of its struct_size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_export_open(
    ptr: *const c_void,
    description: *mut Export,
) -> Status {
    guarded(|| {
        if ptr.is_null() {
            return Err(null("the block"));
        }
        // SAFETY: as the caller promised.
        let size = unsafe { checked_size(description)? };
        let pool = Pool::from_number(registry::pool_of(ptr as usize)?)?;
        let opened = pool.open_export(ptr as usize)?;
        let value = Export {
            struct_size: size,
            id: opened.id,
            bytes: (opened.count * opened.page_bytes) as u64,
            page_bytes: opened.page_bytes as u64,
            offset: opened.offset as u64,
            count: opened.count as u64,
        };
        // SAFETY: `size` covers the whole structure, which is the caller's.
        unsafe { description.write(value) };
        Ok(())
    })
}

/// Makes descriptors of some pages of an open export.
///
/// @param id the export's number.
/// @param first the first page wanted, from 0.
/// @param fds receives `count` descriptors, in address order: the caller's, to send and to close.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when the export is not open or has not so many pages,
/// FOREBAY_ERROR_UNSUPPORTED where the device exports nothing, FOREBAY_ERROR_DRIVER (the process's
/// limit on descriptors, for one). No descriptor is left open then.
///
/// Thread-safe. A driver call a page.
///
/// # Safety
/// `fds` is NULL or valid for writes of `count` descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_export_pages(
    id: u64,
    first: usize,
    fds: *mut i32,
    count: usize,
) -> Status {
    guarded(|| {
        if fds.is_null() {
            return Err(null("the descriptors"));
        }
        for (i, fd) in window::pages(id, first, count)?.into_iter().enumerate() {
            // SAFETY: there are `count` of them, and as many fit.
            unsafe { fds.add(i).write(fd.into_raw_fd()) };
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
/// @param pool NULL: the default pool; its device is the exporting pool's, or one that reaches that
/// device's memory. In that case the memory is open to these two devices and to no peer of the
/// pool's, and a free does not wait for what the exporting pool's device does with it.
/// @param fds description->count descriptors as this process received them; not needed afterwards.
/// @param description as the exporting process sent it, struct_size included.
/// @param ptr receives the address; NULL on failure. Free it with forebay_free() or
/// forebay_dealloc(); the exporting process closes its export after that.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for descriptors that name no pages, or pages of several
/// devices, FOREBAY_ERROR_UNSUPPORTED for pages of a device that is out of reach and where none can
/// be imported, FOREBAY_ERROR_OUT_OF_MEMORY (address space), FOREBAY_ERROR_DRIVER. Nothing is kept
/// then.
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
        let fds = unsafe { borrowed(std::slice::from_raw_parts(fds, count))? };
        let address = pool.import(&fds)?;
        // SAFETY: as above.
        unsafe { super::put(ptr, address as *mut c_void, "the result") }
    })
}

/// Begins an import whose descriptors come in parts, for exports of more pages than a process may
/// have descriptors.
///
/// @param pool NULL: the default pool; of which device, as of forebay_import_fd().
/// @param description as the exporting process sent it, struct_size included.
/// @param id receives the import's number, for forebay_import_pages(), then forebay_import_map()
/// or forebay_import_cancel().
/// @return FOREBAY_ERROR_INVALID_ARGUMENT for a description that contradicts itself or this pool's
/// pages.
///
/// Thread-safe.
///
/// # Safety
/// `description` is NULL or valid for reads of its struct_size; `id` is NULL or valid for the
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_import_open(
    pool: PoolT,
    description: *const Export,
    id: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { super::put(id, 0, "the import's number")? };
        // SAFETY: as the caller promised; the size covers the whole structure.
        let export = unsafe {
            checked_size(description)?;
            description.read()
        };
        let pool = Pool::from_handle(pool as u64)?;
        let count = checked_count(&export, pool.page_bytes()?)?;
        let number = pool.open_import(count)?;
        // SAFETY: as above.
        unsafe { super::put(id, number, "the import's number") }
    })
}

/// Gives the next pages to an import, in order.
///
/// @param fds descriptors as this process received them; not needed afterwards.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when the import is not open, for more pages than it
/// awaits, and for descriptors that name no pages of this device. None of them is taken then.
///
/// Thread-safe. A driver call a page.
///
/// # Safety
/// `fds` is NULL or valid for reads of `count` descriptors, which are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_import_pages(id: u64, fds: *const i32, count: usize) -> Status {
    guarded(|| {
        if fds.is_null() {
            return Err(null("the descriptors"));
        }
        // SAFETY: as the caller promised.
        let fds = unsafe { borrowed(std::slice::from_raw_parts(fds, count))? };
        window::take_pages(id, &fds)
    })
}

/// Maps an import whose pages have all come. Its number ends.
///
/// @param ptr receives the address of the first page: the block begins at the description's
/// offset. NULL on failure. Free it (this address) with forebay_free() or forebay_dealloc(); the
/// exporting process closes its export after that.
/// @return FOREBAY_ERROR_INVALID_ARGUMENT while pages are missing (the import stays open then);
/// FOREBAY_ERROR_OUT_OF_MEMORY (address space), FOREBAY_ERROR_DRIVER.
///
/// Thread-safe. A driver call a page, and one.
///
/// # Safety
/// `ptr` is NULL or valid for the write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_import_map(id: u64, ptr: *mut *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: as the caller promised.
        unsafe { super::put(ptr, std::ptr::null_mut(), "the result")? };
        let address = window::finish_import(id)?;
        // SAFETY: as above.
        unsafe { super::put(ptr, address as *mut c_void, "the result") }
    })
}

/// Ends an import that is not mapped; its pages are let go.
///
/// @return FOREBAY_ERROR_INVALID_ARGUMENT when it is not open.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_import_cancel(id: u64) -> Status {
    guarded(|| window::give_up_import(id))
}

/// Descriptors of the caller's, for the call.
///
/// # Safety
/// They are open for as long as the result is used.
unsafe fn borrowed(numbers: &[i32]) -> Result<Vec<BorrowedFd<'_>>> {
    if let Some(bad) = numbers.iter().find(|&&fd| fd < 0) {
        return Err(invalid(format!("{bad} is no descriptor")));
    }
    // SAFETY: open, as the caller promised, and not -1.
    Ok(numbers.iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) }).collect())
}

/// How many pages the export has, if the pool can map them.
fn checked_count(export: &Export, page_bytes: usize) -> Result<usize> {
    let Export { bytes, page_bytes: theirs, offset, count, .. } = *export;
    let sum = count.checked_mul(theirs);
    if count == 0 || count > 1 << 20 || offset >= theirs || sum != Some(bytes) {
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
