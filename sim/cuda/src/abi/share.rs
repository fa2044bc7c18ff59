//! Memory shared between processes: exported handles, legacy IPC handles, ranges for others.
//!
//! Descriptors that are given out are the program's to close. The rules are those of
//! `memory::share`.

use super::device::place;
use super::vmm::{allowed, change};
use crate::call;
use crate::entry::{Call, enter};
use crate::memory::Range;
use crate::memory::share::IPC_BYTES;
use crate::types::*;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuMemExportToShareableHandle, 10020).without_context(),
    call!(cuMemImportFromShareableHandle, 10020).without_context().unsafe_in_capture(),
    call!(cuMemGetHandleForAddressRange, 11070),
    call!(cuIpcGetMemHandle, 4010),
    call!(cuIpcOpenMemHandle, 4010).unsafe_in_capture(),
    call!(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000).unsafe_in_capture(),
    call!(cuIpcCloseMemHandle, 4010).unsafe_in_capture(),
];

/// A legacy handle of memory: bytes that only the driver understands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcMemHandle {
    /// The bytes.
    pub reserved: [u8; IPC_BYTES],
}

/// `CU_MEM_HANDLE_TYPE_WIN32` and `CU_MEM_HANDLE_TYPE_WIN32_KMT`.
const WINDOWS: [u32; 2] = [2, 4];
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: u32 = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`, from CUDA 12.8 on.
const DMA_BUF_PCIE: u64 = 1;

/// Writes a descriptor of this process for a handle's memory.
///
/// # Safety
///
/// `shareable` is null or a place for a descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    handle_type: u32,
    flags: u64,
) -> CUresult {
    let name = "cuMemExportToShareableHandle";
    let args = || format!("handle={handle:#x}, handleType={handle_type}, flags={flags}");
    enter(name, args, |world| {
        allowed(world, "vmm")?;
        let to = place(shareable)?.cast::<i32>();
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        world.memory.ask(|space| space.pages.handle(handle, name).map(|_| ()))?;
        match handle_type {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => allowed(world, "fd")?,
            CU_MEM_HANDLE_TYPE_FABRIC => {
                return Err(world.refused("fabric").unwrap_or(CUDA_ERROR_NOT_PERMITTED));
            }
            windows if WINDOWS.contains(&windows) => return Err(CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        let fd = change(world, |space| space.pages.export(handle))?;
        // SAFETY: not null; CUDA asks the caller for a place for the descriptor.
        unsafe { *to = fd };
        Ok(())
    })
}

/// Makes a handle of memory that a descriptor stands for.
///
/// # Safety
///
/// `handle` is null or a place for a handle. `os_handle` is a descriptor's number, not an
/// address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    os_handle: *mut c_void,
    handle_type: u32,
) -> CUresult {
    enter(
        "cuMemImportFromShareableHandle",
        || format!("osHandle={}, type={handle_type}", os_handle as usize),
        |world| {
            allowed(world, "vmm")?;
            let to = place(handle)?;
            match handle_type {
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => allowed(world, "fd")?,
                CU_MEM_HANDLE_TYPE_FABRIC => {
                    return Err(world.refused("fabric").unwrap_or(CUDA_ERROR_NOT_PERMITTED));
                }
                windows if WINDOWS.contains(&windows) => return Err(CUDA_ERROR_NOT_SUPPORTED),
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            let fd = i32::try_from(os_handle as isize).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
            let made = change(world, |space| space.pages.import(fd))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = made };
            Ok(())
        },
    )
}

/// Writes a descriptor that stands for a dma-buf over a range of device memory.
///
/// # Safety
///
/// `handle` is null or a place for a descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: u32,
    flags: u64,
) -> CUresult {
    let range = Range { start: dptr, len: size as u64 };
    enter(
        "cuMemGetHandleForAddressRange",
        || format!("{range}, handleType={handle_type}, flags={flags}"),
        |world| {
            let to = place(handle)?.cast::<i32>();
            let pcie = flags == DMA_BUF_PCIE && world.settings.version >= 12_080;
            if handle_type != DMA_BUF || flags != 0 && !pcie {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            allowed(world, "dma_buf")?;
            let fd = change(world, |space| space.range_handle(range))?;
            // SAFETY: not null; CUDA asks the caller for a place for the descriptor.
            unsafe { *to = fd };
            Ok(())
        },
    )
}

/// Names memory from `cuMemAlloc` for other processes.
///
/// # Safety
///
/// `handle` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(
    handle: *mut CUipcMemHandle,
    dptr: CUdeviceptr,
) -> CUresult {
    enter(
        "cuIpcGetMemHandle",
        || format!("dptr={dptr:#x}"),
        |world| {
            let to = place(handle)?;
            let reserved = change(world, |space| space.ipc_get(dptr))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = CUipcMemHandle { reserved } };
            Ok(())
        },
    )
}

/// # Safety
///
/// `to` is null or a place for an address.
unsafe fn open(
    name: &'static str,
    to: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> CUresult {
    enter(
        name,
        || format!("flags={flags}"),
        |world| {
            let to = place(to)?;
            let context = world.current_context()?.id;
            world.charge(1, 0);
            let at = change(world, |space| space.ipc_open(handle.reserved, flags, context))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = at };
            Ok(())
        },
    )
}

/// Opens another process's memory; the form before CUDA 11.0.
///
/// # Safety
///
/// `pdptr` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle(
    pdptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { open("cuIpcOpenMemHandle", pdptr, handle, flags) }
}

/// Opens another process's memory.
///
/// # Safety
///
/// `pdptr` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    pdptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { open("cuIpcOpenMemHandle_v2", pdptr, handle, flags) }
}

/// Closes another process's memory once.
#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(dptr: CUdeviceptr) -> CUresult {
    enter(
        "cuIpcCloseMemHandle",
        || format!("dptr={dptr:#x}"),
        |world| {
            world.charge(1, 0);
            change(world, |space| space.ipc_close(dptr))
        },
    )
}
