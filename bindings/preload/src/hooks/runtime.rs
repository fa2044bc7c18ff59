//! `cudaMalloc`, `cudaFree`, `cudaMallocAsync`, `cudaFreeAsync`: the runtime's names, as a shorter
//! way to the pool.
//!
//! A call is answered here only if it succeeds at once, in a thread whose context a pool serves and
//! in which this thread's runtime has worked before: nothing is left to the runtime then but its
//! own bookkeeping, of which a success has none. Everything else is the runtime's own function
//! ([`next`]), with its last error, its start at the first call, and its answer once it has ended;
//! it reaches the driver's names, and by them the pool. So a call is counted once: by the runtime's
//! name if it is answered here, else where it ends. Which device is current is known from the
//! driver's context calls, which a runtime of CUDA 12 on makes in `cudaSetDevice` (its reference:
//! "the context will be current on device immediately"); an older one makes them later, so there
//! all calls are its own.
//!
//! Not here, since each asks the driver something anyway: `cudaMallocPitch`, `cudaMalloc3D`,
//! `cudaMemGetInfo`; and `cudaMalloc` of 0 bytes or `cudaFree` of NULL, which start the runtime.
//! Cost over the driver's names: less, by the runtime's own way to them.

mod next;

use super::memory::{from_pool, in_range};
use super::{capture, stream_memory};
use crate::cuda::{DevicePtr, Handle, Result, SUCCESS};
use crate::lookup::HOOKS_COUNT;
use crate::pool::{self, Api};
use crate::thread::{self, Thread};
use crate::{count, ipc, settings, trace};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// `cudaErrorNoDevice`: a program got our name for a runtime that it does not have.
const NO_DEVICE: Result = 100;

/// The names' places in [`crate::lookup::RUNTIME`].
const MALLOC: usize = 0;
const FREE: usize = 1;
const MALLOC_ASYNC: usize = 2;
const MALLOC_ASYNC_PT: usize = 3;
const FREE_ASYNC: usize = 4;
const FREE_ASYNC_PT: usize = 5;

/// Whether the process's exit handlers run: the runtime may have ended, and says so itself.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Defines entries that add their caller's address behind the arguments and jump on: whose runtime
/// is meant depends on the caller.
macro_rules! entries {
    ($($name:ident($x86:literal, $arm:literal) -> $run:ident($($kind:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As of the runtime's.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "CUDA's name")]
        pub unsafe extern "C" fn $name($(_: $kind),*) -> Result {
            std::arch::naked_asm!(
                "endbr64",
                concat!("mov ", $x86, ", [rsp]"),
                "jmp {run}",
                run = sym $run,
            )
        }

        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As of the runtime's.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "CUDA's name")]
        pub unsafe extern "C" fn $name($(_: $kind),*) -> Result {
            std::arch::naked_asm!(
                "bti c",
                concat!("mov ", $arm, ", x30"),
                "b {run}",
                run = sym $run,
            )
        }
    )*};
}

entries! {
    cudaMalloc("rdx", "x2") -> malloc(*mut DevicePtr, usize);
    cudaFree("rsi", "x1") -> free(DevicePtr);
    cudaMallocAsync("rcx", "x3") -> malloc_async(*mut DevicePtr, usize, Handle);
    cudaMallocAsync_ptsz("rcx", "x3") -> malloc_async_pt(*mut DevicePtr, usize, Handle);
    cudaFreeAsync("rdx", "x2") -> free_async(DevicePtr, Handle);
    cudaFreeAsync_ptsz("rdx", "x2") -> free_async_pt(DevicePtr, Handle);
}

/// The pool for a call, if the call can be answered here.
#[inline(always)]
fn serving(thread: &Thread) -> Option<(usize, &'static Api)> {
    let pool = thread.serves_runtime()?;
    if capture::any_open() {
        return None;
    }
    Some((pool, pool::api()?))
}

/// Makes the call the runtime's own. What it answers is its own too.
#[cold]
fn forward(name: usize, caller: usize, call: impl FnOnce(usize) -> Result) -> Result {
    let Some(real) = next::function(name, caller) else { return NO_DEVICE };
    let result = call(real.address);
    if result == SUCCESS && real.is_known {
        notice();
    }
    result
}

/// The runtime has worked in this thread: its later calls may be answered here.
fn notice() {
    static ONCE: Once = Once::new();
    // After the runtime's own handler, which it has registered by now: ours runs before that.
    // SAFETY: the handler stays loaded and does not unwind.
    ONCE.call_once(|| unsafe {
        if libc::atexit(end) != 0 {
            end();
        }
    });
    if !ENDING.load(Ordering::Acquire) {
        thread::with(Thread::runtime_worked);
    }
}

extern "C" fn end() {
    ENDING.store(true, Ordering::Release);
    thread::forget_all();
}

unsafe extern "C" fn malloc(to: *mut DevicePtr, bytes: usize, caller: usize) -> Result {
    thread::with(|thread| {
        if in_range(bytes)
            && !to.is_null()
            && let Some(serving) = serving(thread)
        {
            let row = HOOKS_COUNT + MALLOC;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            if unsafe { from_pool(thread, row, serving, to, bytes) } == pool::OK {
                count::served(thread, row);
                return SUCCESS;
            }
        }
        type Real = unsafe extern "C" fn(*mut DevicePtr, usize) -> Result;
        // SAFETY: the runtime's function of this name has this type; the program's arguments.
        forward(MALLOC, caller, |real| unsafe {
            std::mem::transmute::<usize, Real>(real)(to, bytes)
        })
    })
}

unsafe extern "C" fn free(address: DevicePtr, caller: usize) -> Result {
    thread::with(|thread| {
        // Memory that other processes have, or this one has of theirs, takes the longer way; so do
        // frees that wait, which may find that the context has failed.
        if address != 0
            && !ipc::is_marked(address)
            && !settings::get().free_waits
            && let Some((_, api)) = serving(thread)
        {
            let row = HOOKS_COUNT + FREE;
            let mark = trace::freeing(row, address, 0);
            // SAFETY: any address is answered with a status; the caller gives the block up.
            let status = thread.inside(|| unsafe { (api.free)(address as usize) });
            trace::freed(mark, status == pool::OK);
            if status == pool::OK {
                count::served(thread, row);
                return SUCCESS;
            }
        }
        type Real = unsafe extern "C" fn(DevicePtr) -> Result;
        // SAFETY: as in `malloc`.
        forward(FREE, caller, |real| unsafe { std::mem::transmute::<usize, Real>(real)(address) })
    })
}

type AllocateOn = unsafe extern "C" fn(*mut DevicePtr, usize, Handle) -> Result;
type FreeOn = unsafe extern "C" fn(DevicePtr, Handle) -> Result;

unsafe extern "C" fn malloc_async(
    to: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
    caller: usize,
) -> Result {
    if allocates(MALLOC_ASYNC, to, bytes, stream) {
        return SUCCESS;
    }
    // SAFETY: as in `malloc`.
    forward(MALLOC_ASYNC, caller, |real| unsafe {
        std::mem::transmute::<usize, AllocateOn>(real)(to, bytes, stream)
    })
}

unsafe extern "C" fn malloc_async_pt(
    to: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
    caller: usize,
) -> Result {
    if allocates(MALLOC_ASYNC_PT, to, bytes, stream_memory::per_thread(stream)) {
        return SUCCESS;
    }
    // SAFETY: as in `malloc`.
    forward(MALLOC_ASYNC_PT, caller, |real| unsafe {
        std::mem::transmute::<usize, AllocateOn>(real)(to, bytes, stream)
    })
}

unsafe extern "C" fn free_async(address: DevicePtr, stream: Handle, caller: usize) -> Result {
    if frees(FREE_ASYNC, address, stream) {
        return SUCCESS;
    }
    // SAFETY: as in `malloc`.
    forward(FREE_ASYNC, caller, |real| unsafe {
        std::mem::transmute::<usize, FreeOn>(real)(address, stream)
    })
}

unsafe extern "C" fn free_async_pt(address: DevicePtr, stream: Handle, caller: usize) -> Result {
    if frees(FREE_ASYNC_PT, address, stream_memory::per_thread(stream)) {
        return SUCCESS;
    }
    // SAFETY: as in `malloc`.
    forward(FREE_ASYNC_PT, caller, |real| unsafe {
        std::mem::transmute::<usize, FreeOn>(real)(address, stream)
    })
}

/// Whether the pool has allocated in a stream's order.
#[inline(always)]
fn allocates(name: usize, to: *mut DevicePtr, bytes: usize, stream: Handle) -> bool {
    thread::with(|thread| {
        if !in_range(bytes) || to.is_null() || stream_memory::is_programs_choice() {
            return false;
        }
        let Some(serving) = serving(thread) else { return false };
        let row = HOOKS_COUNT + name;
        // SAFETY: not null; CUDA asks the caller for a writable place.
        let status =
            unsafe { stream_memory::from_pool_on(thread, row, serving, to, bytes, stream) };
        if status == pool::OK {
            count::served(thread, row);
        }
        status == pool::OK
    })
}

/// Whether the pool has freed in a stream's order.
#[inline(always)]
fn frees(name: usize, address: DevicePtr, stream: Handle) -> bool {
    thread::with(|thread| {
        if address == 0 || ipc::is_marked(address) || !stream_memory::has_lane(stream) {
            return false;
        }
        let Some((pool, api)) = serving(thread) else { return false };
        let row = HOOKS_COUNT + name;
        let stream = stream_memory::lane(stream);
        let mark = trace::freeing(row, address, stream);
        // SAFETY: any address is answered with a status; the caller gives the block up.
        let status = thread.inside(|| unsafe { (api.dealloc)(pool, address as usize, stream) });
        trace::freed(mark, status == pool::OK);
        if status == pool::OK {
            count::served(thread, row);
        }
        status == pool::OK
    })
}
