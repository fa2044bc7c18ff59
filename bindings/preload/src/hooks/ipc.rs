//! Legacy IPC: handles of the pool's memory are this library's ([`crate::ipc`]), all others the
//! driver's.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::memory::serving;
use super::query::{Owned, owned};
use super::{driver, plainly, row};
use crate::cuda::{DevicePtr, INVALID_VALUE, Result, SUCCESS};
use crate::ipc::handle::{Handle, RawHandle, Read};
use crate::{count, ipc, thread};
use std::ffi::{c_uint, c_void};

/// The handle of the block that an address lies in.
///
/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut c_void, address: DevicePtr) -> Result {
    let (base, bytes) = match owned(address) {
        Owned::Block(base, bytes) => (base, bytes),
        Owned::Free => return INVALID_VALUE,
        Owned::No => {
            thread::with(|thread| {
                if !thread.is_inside() {
                    count::passed(thread, row!(IpcGetMemHandle));
                }
            });
            let call = || driver!(IpcGetMemHandle(handle => *mut c_void, address => DevicePtr));
            return plainly(call);
        }
    };
    if handle.is_null() {
        return INVALID_VALUE;
    }
    thread::with(|thread| count::served(thread, row!(IpcGetMemHandle)));
    match ipc::handle_of(base, bytes) {
        Ok(raw) => {
            // SAFETY: not null; CUDA asks the caller for room for a handle.
            unsafe { handle.cast::<RawHandle>().write_unaligned(raw) };
            SUCCESS
        }
        Err(result) => result,
    }
}

/// Opens a handle; nothing: it is the driver's.
///
/// # Safety
/// `to` is null or a place for an address.
unsafe fn open(
    row: usize,
    to: *mut DevicePtr,
    handle: &RawHandle,
    flags: c_uint,
) -> Option<Result> {
    thread::with(|thread| {
        if thread.is_inside() {
            return None;
        }
        if matches!(Handle::read(handle), Read::Foreign) {
            count::passed(thread, row);
            return None;
        }
        count::served(thread, row);
        if to.is_null() {
            return Some(INVALID_VALUE);
        }
        Some(match ipc::open(handle, flags, serving(thread))? {
            Ok(address) => {
                // SAFETY: not null, and a place as promised.
                unsafe { *to = address as DevicePtr };
                SUCCESS
            }
            Err(result) => result,
        })
    })
}

/// The form before CUDA 11.0.
///
/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle(
    to: *mut DevicePtr,
    handle: RawHandle,
    flags: c_uint,
) -> Result {
    // SAFETY: as the caller promised.
    unsafe { open(row!(IpcOpenMemHandle1), to, &handle, flags) }.unwrap_or_else(|| {
        plainly(|| {
            driver!(IpcOpenMemHandle1(
                to => *mut DevicePtr, handle => RawHandle, flags => c_uint,
            ))
        })
    })
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    to: *mut DevicePtr,
    handle: RawHandle,
    flags: c_uint,
) -> Result {
    // SAFETY: as the caller promised.
    unsafe { open(row!(IpcOpenMemHandle), to, &handle, flags) }.unwrap_or_else(|| {
        plainly(|| {
            driver!(IpcOpenMemHandle(
                to => *mut DevicePtr, handle => RawHandle, flags => c_uint,
            ))
        })
    })
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcCloseMemHandle(address: DevicePtr) -> Result {
    let closed = thread::with(|thread| {
        if thread.is_inside() {
            return None;
        }
        let result = ipc::close(address);
        match result {
            Some(_) => count::served(thread, row!(IpcCloseMemHandle)),
            None => count::passed(thread, row!(IpcCloseMemHandle)),
        }
        result
    });
    closed.unwrap_or_else(|| plainly(|| driver!(IpcCloseMemHandle(address => DevicePtr))))
}
