//! Memory of other kinds: the driver's, once more after a trim if it has none left.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::memory::note_drivers;
use super::{driver, pass_on, row};
use crate::cuda::{DevicePtr, Handle, Result};
use crate::thread;
use std::ffi::{c_uint, c_void};

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(
    to: *mut DevicePtr,
    bytes: usize,
    flags: c_uint,
) -> Result {
    thread::with(|thread| {
        let result = pass_on(
            thread,
            row!(MemAllocManaged),
            || driver!(MemAllocManaged(to => *mut DevicePtr, bytes => usize, flags => c_uint)),
        );
        note_drivers(thread, row!(MemAllocManaged), result, to, bytes, 0);
        result
    })
}

/// Defines functions of the driver's that take memory and are passed on.
macro_rules! passed_on {
    ($($name:ident = $entry:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As of the driver's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Result {
            thread::with(|thread| {
                pass_on(thread, row!($entry), || driver!($entry($($argument => $type),*)))
            })
        }
    )*};
}

passed_on! {
    cuMemAllocHost_v2 = MemAllocHost(to: *mut *mut c_void, bytes: usize);
    cuMemHostAlloc = MemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemCreate = MemCreate(
        handle: *mut u64, bytes: usize, properties: *const c_void, flags: u64
    );
    cuArrayCreate_v2 = ArrayCreate(array: *mut Handle, descriptor: *const c_void);
    cuArray3DCreate_v2 = Array3dCreate(array: *mut Handle, descriptor: *const c_void);
    cuMipmappedArrayCreate = MipmappedArrayCreate(
        array: *mut Handle, descriptor: *const c_void, levels: c_uint
    );
}
