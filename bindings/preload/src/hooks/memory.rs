//! `cuMemAlloc`, `cuMemFree`, `cuMemAllocPitch`: memory with `cudaMalloc`'s meaning.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::stream_memory::trace_lane;
use super::{capture, driver, pass_on, plainly, row};
use crate::cuda::{DevicePtr, Handle, INVALID_VALUE, Result, SUCCESS};
use crate::ipc::isolate;
use crate::pool::{self, Api, Status};
use crate::settings::Ipc;
use crate::thread::{self, Serves, Thread};
use crate::{count, cuda, ipc, loader, place, settings, sizes, trace};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocations of fewer bytes are the driver's; `usize::MAX`: not read yet.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether the pool is asked for so many bytes; 0 and more than any device has are the driver's to
/// refuse.
#[inline(always)]
pub fn in_range(bytes: usize) -> bool {
    let min = MIN_BYTES.load(Ordering::Relaxed);
    let min = if min == usize::MAX { read_min() } else { min };
    bytes >= min && bytes != 0
}

#[cold]
fn read_min() -> usize {
    let settings = settings::get();
    if settings.ipc == Ipc::Isolate {
        isolate::turn_on();
    }
    let min = settings.min_bytes;
    MIN_BYTES.store(min, Ordering::Relaxed);
    min
}

/// The pool that serves this thread's context, and its functions.
#[inline(always)]
pub fn serving(thread: &Thread) -> Option<(usize, &'static Api)> {
    if thread.is_inside() {
        return None;
    }
    let serves = match thread.serves() {
        Some(serves) => serves,
        None => place::look_up(),
    };
    match serves {
        Serves::Pool(pool) => Some((pool, pool::api()?)),
        Serves::Driver => None,
    }
}

/// Allocates from a pool for any stream, on behalf of the function with this number.
///
/// # Safety
/// `to` is a place for an address.
#[inline(always)]
pub unsafe fn from_pool(
    thread: &Thread,
    name: usize,
    (pool, api): (usize, &Api),
    to: *mut DevicePtr,
    bytes: usize,
) -> Status {
    let mut address = 0;
    // SAFETY: a local to fill.
    let status = thread.inside(|| unsafe {
        match pool {
            pool if isolate::is_on() => {
                let whole = isolate::rounded(bytes);
                (api.malloc_aligned)(pool, &raw mut address, whole, isolate::PAGE_BYTES)
            }
            0 => (api.malloc)(&raw mut address, bytes),
            pool => (api.pool_malloc)(pool, &raw mut address, bytes),
        }
    });
    if status == pool::OK {
        note_length(address, bytes);
        // SAFETY: as promised.
        unsafe { *to = address as DevicePtr };
        trace::allocated(name, address as DevicePtr, bytes, 0);
    }
    status
}

/// Keeps the length that a block was asked for.
#[inline(always)]
pub fn note_length(address: usize, bytes: usize) {
    sizes::note(address, bytes);
    if isolate::is_on() {
        isolate::note(address, bytes);
    }
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut DevicePtr, bytes: usize) -> Result {
    thread::with(|thread| {
        if in_range(bytes)
            && !to.is_null()
            && let Some(serving) = serving(thread)
        {
            // SAFETY: not null; CUDA asks the caller for a writable place.
            let status = unsafe { from_pool(thread, row!(MemAlloc), serving, to, bytes) };
            if let Some(result) = pool::as_cuda(status) {
                count::served(thread, row!(MemAlloc));
                return result;
            }
        }
        by_driver(thread, to, bytes)
    })
}

#[cold]
fn by_driver(thread: &Thread, to: *mut DevicePtr, bytes: usize) -> Result {
    let call = || driver!(MemAlloc(to => *mut DevicePtr, bytes => usize));
    let result = pass_on(thread, row!(MemAlloc), call);
    note_drivers(thread, row!(MemAlloc), result, to, bytes, 0);
    result
}

/// Notes where the driver has allocated what the function with this number was asked for.
pub fn note_drivers(
    thread: &Thread,
    name: usize,
    result: Result,
    to: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) {
    if result == SUCCESS && !to.is_null() {
        // SAFETY: the driver has just written it.
        let address = unsafe { *to };
        place::driver_allocated(address);
        if !thread.is_inside() {
            trace::allocated(name, address, bytes, trace_lane(stream));
        }
    }
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: DevicePtr) -> Result {
    thread::with(|thread| {
        if let Some(api) = pool::api()
            && address != 0
            && !thread.is_inside()
        {
            let marked = ipc::is_marked(address);
            if marked && ipc::is_imported(address) {
                return INVALID_VALUE;
            }
            let mark = trace::freeing(row!(MemFree), address, 0);
            // SAFETY: any address is answered with a status; the caller gives the block up.
            let status = thread.inside(|| unsafe { (api.free)(address as usize) });
            trace::freed(mark, status == pool::OK);
            if status == pool::OK {
                if marked {
                    ipc::freed(address);
                }
                count::served(thread, row!(MemFree));
                return if settings::get().free_waits { waited() } else { SUCCESS };
            }
            if let Some(result) = refused(status, address) {
                return result;
            }
        }
        if thread.is_inside() {
            return driver!(MemFree(address => DevicePtr));
        }
        count::passed(thread, row!(MemFree));
        drivers_free(row!(MemFree), address, 0, || driver!(MemFree(address => DevicePtr)))
    })
}

/// What a free that has waited for the device tells: the error of work that has failed.
#[cold]
fn waited() -> Result {
    type Query = unsafe extern "C" fn(Handle) -> Result;
    let found = loader::symbol(loader::driver(true), c"cuStreamQuery");
    // Beside a capture the default stream may not be asked; nor has the pool waited then.
    if found == 0 || capture::any_open() {
        return SUCCESS;
    }
    // SAFETY: the driver's function of this name has this type.
    match plainly(|| unsafe { std::mem::transmute::<usize, Query>(found)(0) }) {
        // Another thread's work, of later.
        cuda::NOT_READY | cuda::INVALID_CONTEXT => SUCCESS,
        result => result,
    }
}

/// A free of the driver's memory by the function with this number.
pub fn drivers_free(
    name: usize,
    address: DevicePtr,
    stream: Handle,
    call: impl FnOnce() -> Result,
) -> Result {
    let mark = trace::freeing(name, address, trace_lane(stream));
    let result = plainly(call);
    trace::freed(mark, result == SUCCESS && address != 0);
    result
}

/// What CUDA says of an address that the pool would not free; `None`: the address is the driver's.
#[cold]
pub fn refused(status: Status, address: DevicePtr) -> Option<Result> {
    match status {
        pool::NOT_OWNED => None,
        pool::STALE_POINTER if place::driver_frees(address) => None,
        pool::FORKED => Some(cuda::NOT_INITIALIZED),
        // The program takes a free for a wait, and must hear why there is nothing to wait for.
        pool::CONTEXT_LOST if settings::get().free_waits => Some(pool::sticky_error()),
        // The process is ending, or the context and the memory in it are gone.
        pool::SHUT_DOWN | pool::CONTEXT_LOST => Some(SUCCESS),
        _ => Some(INVALID_VALUE),
    }
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    to: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Result {
    thread::with(|thread| {
        let valid = !to.is_null() && !pitch.is_null() && matches!(element, 4 | 8 | 16);
        if valid
            && let Some(serving) = serving(thread)
            && let Some(row) = row_bytes(width)
            && let Some(bytes) = row.checked_mul(height)
            && in_range(bytes)
        {
            // SAFETY: not null; CUDA asks the caller for writable places.
            let status = unsafe { from_pool(thread, row!(MemAllocPitch), serving, to, bytes) };
            if let Some(result) = pool::as_cuda(status) {
                if result == SUCCESS {
                    // SAFETY: as above.
                    unsafe { *pitch = row };
                }
                count::served(thread, row!(MemAllocPitch));
                return result;
            }
        }
        let result = pass_on(thread, row!(MemAllocPitch), || {
            driver!(MemAllocPitch(
                to => *mut DevicePtr,
                pitch => *mut usize,
                width => usize,
                height => usize,
                element => c_uint,
            ))
        });
        if result == SUCCESS {
            // SAFETY: the driver has just written it.
            let bytes = unsafe { *pitch }.saturating_mul(height);
            note_drivers(thread, row!(MemAllocPitch), result, to, bytes, 0);
        }
        result
    })
}

/// A row's bytes: rows begin where textures may.
fn row_bytes(width: usize) -> Option<usize> {
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, cuda::Device) -> Result;
    let (_, device) = place::current()?;
    let found = loader::symbol(loader::driver(true), c"cuDeviceGetAttribute");
    if found == 0 {
        return None;
    }
    let mut alignment = 0;
    // SAFETY: the driver's function of this name has this type; a local to fill.
    let result = unsafe {
        let attribute = std::mem::transmute::<usize, Attribute>(found);
        attribute(&raw mut alignment, cuda::ATTRIBUTE_TEXTURE_ALIGNMENT, device)
    };
    let alignment = usize::try_from(alignment).ok().filter(|_| result == SUCCESS)?;
    width.checked_next_multiple_of(alignment.max(256))
}
