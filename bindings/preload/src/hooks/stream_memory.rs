//! `cuMemAllocAsync`, `cuMemFreeAsync`: memory in a stream's order; and memory pools, which are the
//! driver's.
//!
//! The pool serves streams of its own context. For a thread's own default stream, which has no lane
//! there, memory comes and goes with `cudaMalloc`'s meaning, which is stronger. Memory of a graph,
//! asked for or freed while the stream captures, is the driver's, and so is all of a device whose
//! memory pool the program chose. The default memory pool, named, is as good as none named.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::memory::{
    drivers_free, from_pool, in_range, note_drivers, note_length, refused, serving,
};
use super::{capture, driver, pass_on, plainly, row};
use crate::cuda::{self, Device, DevicePtr, Handle, Result, SUCCESS};
use crate::ipc::{self, isolate};
use crate::pool::{self, Api, Status};
use crate::thread::{self, Thread};
use crate::{count, loader, place, trace};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The stream that a `_ptsz` function's handle means.
pub fn per_thread(stream: Handle) -> Handle {
    if stream == 0 { cuda::STREAM_PER_THREAD } else { stream }
}

/// What the pool calls a stream that it has a lane for.
#[inline(always)]
pub fn lane(stream: Handle) -> Handle {
    if stream == cuda::STREAM_LEGACY { 0 } else { stream }
}

/// What a trace calls a stream: one name for the legacy default stream. A thread's own has none, as
/// the pool has no lane for it.
#[inline(always)]
pub fn trace_lane(stream: Handle) -> Handle {
    if stream == cuda::STREAM_PER_THREAD { 0 } else { lane(stream) }
}

/// Whether stream-ordered memory of the current device comes from a pool of the program's choice.
#[inline(always)]
pub fn is_programs_choice() -> bool {
    place::OWN_MEMORY_POOLS.load(Ordering::Relaxed) && place::has_own_memory_pool()
}

/// Allocates from a pool in a stream's order, on behalf of the function with this number.
///
/// # Safety
/// `to` is a place for an address.
#[inline(always)]
pub unsafe fn from_pool_on(
    thread: &Thread,
    name: usize,
    (pool, api): (usize, &Api),
    to: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> Status {
    if stream == cuda::STREAM_PER_THREAD {
        // SAFETY: as promised.
        return unsafe { from_pool(thread, name, (pool, api), to, bytes) };
    }
    let stream = lane(stream);
    let mut address = 0;
    // SAFETY: a local to fill.
    let status = thread.inside(|| unsafe {
        if isolate::is_on() {
            let (whole, page) = (isolate::rounded(bytes), isolate::PAGE_BYTES);
            (api.alloc_aligned)(pool, &raw mut address, whole, page, stream)
        } else {
            (api.alloc)(pool, &raw mut address, bytes, stream)
        }
    });
    if status == pool::OK {
        note_length(address, bytes);
        // SAFETY: as promised.
        unsafe { *to = address as DevicePtr };
        trace::allocated(name, address as DevicePtr, bytes, stream);
    }
    status
}

/// Tries the pool; `None`: the driver is to answer.
#[inline(always)]
fn allocate(
    thread: &Thread,
    row: usize,
    to: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> Option<Result> {
    if !in_range(bytes) || to.is_null() {
        return None;
    }
    let serving = serving(thread)?;
    if capture::any_open() && capture::captures(stream) {
        return None;
    }
    if is_programs_choice() {
        return None;
    }
    // SAFETY: not null; CUDA asks the caller for a writable place.
    let status = unsafe { from_pool_on(thread, row, serving, to, bytes, stream) };
    let result = pool::as_cuda(status)?;
    count::served(thread, row);
    Some(result)
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(
    to: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> Result {
    thread::with(|thread| {
        let row = row!(MemAllocAsync);
        allocate(thread, row, to, bytes, stream).unwrap_or_else(|| {
            let result = pass_on(
                thread,
                row,
                || driver!(MemAllocAsync(to => *mut DevicePtr, bytes => usize, stream => Handle)),
            );
            note_drivers(thread, row, result, to, bytes, stream);
            result
        })
    })
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync_ptsz(
    to: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> Result {
    thread::with(|thread| {
        let row = row!(MemAllocAsyncPt);
        allocate(thread, row, to, bytes, per_thread(stream)).unwrap_or_else(|| {
            let result = pass_on(
                thread,
                row,
                || driver!(MemAllocAsyncPt(to => *mut DevicePtr, bytes => usize, stream => Handle)),
            );
            note_drivers(thread, row, result, to, bytes, per_thread(stream));
            result
        })
    })
}

/// Frees into the pool; `None`: the address is the driver's.
#[inline(always)]
fn free(thread: &Thread, row: usize, address: DevicePtr, stream: Handle) -> Option<Result> {
    let api = pool::api()?;
    if address == 0 || thread.is_inside() {
        return None;
    }
    // A graph's own free node, or an error that the driver has to name.
    if capture::any_open() && capture::captures(stream) {
        return None;
    }
    let marked = ipc::is_marked(address);
    if marked && ipc::is_imported(address) {
        return Some(cuda::INVALID_VALUE);
    }
    let known = match thread.serves() {
        Some(thread::Serves::Pool(pool)) if has_lane(stream) => Some(pool),
        _ => None,
    };
    let mark = trace::freeing(row, address, trace_lane(stream));
    let mut status = pool::NOT_OWNED;
    if let Some(pool) = known {
        let stream = lane(stream);
        // SAFETY: any address is answered with a status; the caller gives the block up.
        status = thread.inside(|| unsafe { (api.dealloc)(pool, address as usize, stream) });
    }
    if status != pool::OK {
        status = elsewhere(thread, status, address, stream);
    }
    trace::freed(mark, status == pool::OK);
    match status {
        pool::OK => {
            if marked {
                ipc::freed(address);
            }
            count::served(thread, row);
            Some(SUCCESS)
        }
        DRIVERS_ERROR => Some(match synchronize(stream) {
            // Nothing was freed, whatever the stream says by now.
            SUCCESS => cuda::INVALID_VALUE,
            error => error,
        }),
        status => refused(status, address),
    }
}

/// Whether a stream's number means the same to every pool: a thread's own default stream has no
/// lane, and with several pools the legacy one is the current context's, not the block's.
#[inline(always)]
pub fn has_lane(stream: Handle) -> bool {
    match stream {
        cuda::STREAM_PER_THREAD => false,
        0 | cuda::STREAM_LEGACY => !place::SEVERAL.load(Ordering::Relaxed),
        _ => true,
    }
}

/// The stream cannot be waited for: the driver says why, and nothing was freed.
const DRIVERS_ERROR: Status = -1;

/// A free into another pool than the thread's, or on a stream that the pool has no lane for: the
/// stream's work is waited for where no fence would see it. A thread's own default stream is
/// ordered with the legacy one, which every fence sees.
#[cold]
fn elsewhere(thread: &Thread, status: Status, address: DevicePtr, stream: Handle) -> Status {
    let Some(api) = pool::api() else { return status };
    let mut pool = 0;
    // SAFETY: a local to fill.
    let owned = thread.inside(|| unsafe { (api.pool_of)(address as usize, &raw mut pool) });
    if owned != pool::OK {
        return owned;
    }
    let named = stream > cuda::STREAM_PER_THREAD;
    let serving = thread.serves() == Some(thread::Serves::Pool(pool));
    let own = named || serving || place::made() == Some(pool);
    if own && stream != cuda::STREAM_PER_THREAD {
        let stream = lane(stream);
        // SAFETY: as in `free`.
        let status = thread.inside(|| unsafe { (api.dealloc)(pool, address as usize, stream) });
        if !matches!(status, pool::INVALID_STREAM | pool::BUSY | pool::UNSUPPORTED) {
            return status;
        }
    }
    if (named || !own) && synchronize(stream) != SUCCESS {
        return DRIVERS_ERROR;
    }
    // SAFETY: as in `free`.
    thread.inside(|| unsafe { (api.free)(address as usize) })
}

fn synchronize(stream: Handle) -> Result {
    type Synchronize = unsafe extern "C" fn(Handle) -> Result;
    let found = loader::symbol(loader::driver(true), c"cuStreamSynchronize");
    if found == 0 {
        return cuda::NOT_FOUND;
    }
    // SAFETY: the driver's function of this name has this type; it checks the stream.
    plainly(|| unsafe { std::mem::transmute::<usize, Synchronize>(found)(stream) })
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: DevicePtr, stream: Handle) -> Result {
    thread::with(|thread| {
        let row = row!(MemFreeAsync);
        free(thread, row, address, stream).unwrap_or_else(|| {
            let call = || driver!(MemFreeAsync(address => DevicePtr, stream => Handle));
            if thread.is_inside() {
                return call();
            }
            count::passed(thread, row);
            drivers_free(row, address, stream, call)
        })
    })
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync_ptsz(address: DevicePtr, stream: Handle) -> Result {
    thread::with(|thread| {
        let row = row!(MemFreeAsyncPt);
        free(thread, row, address, per_thread(stream)).unwrap_or_else(|| {
            let call = || driver!(MemFreeAsyncPt(address => DevicePtr, stream => Handle));
            if thread.is_inside() {
                return call();
            }
            count::passed(thread, row);
            drivers_free(row, address, per_thread(stream), call)
        })
    })
}

/// Tries the pool where the memory pool that is named is the device's default one: that is what
/// `cuMemAllocAsync` takes too. `None`: the driver is to answer.
fn from_default(
    thread: &Thread,
    row: usize,
    to: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Option<Result> {
    serving(thread)?;
    let (_, device) = thread.inside(place::current)?;
    if pool == 0 || default_pool(device) != pool {
        return None;
    }
    allocate(thread, row, to, bytes, stream)
}

/// A device's default memory pool, asked once: it is the same as long as the process lives.
/// 0: the driver has none.
pub fn default_pool(device: Device) -> Handle {
    type Default = unsafe extern "C" fn(*mut Handle, Device) -> Result;
    static KNOWN: [AtomicUsize; place::DEVICES_MAX] =
        [const { AtomicUsize::new(0) }; place::DEVICES_MAX];
    let Some(known) = KNOWN.get(device as usize) else { return 0 };
    if known.load(Ordering::Relaxed) == 0 {
        let found = loader::symbol(loader::driver(true), c"cuDeviceGetDefaultMemPool");
        if found == 0 {
            return 0;
        }
        let mut default = 0;
        // SAFETY: the driver's function of this name has this type; a local to fill.
        let ask =
            || unsafe { std::mem::transmute::<usize, Default>(found)(&raw mut default, device) };
        if plainly(ask) == SUCCESS {
            known.store(default, Ordering::Relaxed);
        }
    }
    known.load(Ordering::Relaxed)
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    to: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Result {
    thread::with(|thread| {
        let row = row!(MemAllocFromPool);
        from_default(thread, row, to, bytes, pool, stream).unwrap_or_else(|| {
            let result = pass_on(thread, row, || {
                driver!(MemAllocFromPool(
                    to => *mut DevicePtr, bytes => usize, pool => Handle, stream => Handle,
                ))
            });
            note_drivers(thread, row, result, to, bytes, stream);
            result
        })
    })
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    to: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Result {
    thread::with(|thread| {
        let row = row!(MemAllocFromPoolPt);
        from_default(thread, row, to, bytes, pool, per_thread(stream)).unwrap_or_else(|| {
            let result = pass_on(thread, row, || {
                driver!(MemAllocFromPoolPt(
                    to => *mut DevicePtr, bytes => usize, pool => Handle, stream => Handle,
                ))
            });
            note_drivers(thread, row, result, to, bytes, per_thread(stream));
            result
        })
    })
}

/// A memory pool of the program's own choice has properties that it counts on.
///
/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceSetMemPool(device: Device, pool: Handle) -> Result {
    let result = plainly(|| driver!(DeviceSetMemPool(device => Device, pool => Handle)));
    if result == SUCCESS {
        place::set_memory_pool(device, default_pool(device) == pool);
    }
    result
}
