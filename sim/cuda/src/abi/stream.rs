//! Streams: creation, order, waiting, values written and awaited.
//!
//! Also what the files beside it share: the stream that a handle means to a caller, and the pairs
//! of functions for the legacy and the per-thread default stream.

use super::device::place;
use crate::call;
use crate::engine::host::{HostCall, HostFn, HostTarget, StreamCallback};
use crate::engine::stream::{Caller, Info};
use crate::engine::{Action, code};
use crate::entry::{Call, enter, enter_waiting};
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuStreamCreate, 2000),
    call!(cuStreamCreateWithPriority, 5050),
    call!(cuStreamDestroy, 2000),
    call!(cuStreamDestroy_v2, "cuStreamDestroy", 4000),
    call!(cuStreamQuery, 2000),
    call!(cuStreamQuery_ptsz, "cuStreamQuery", 7000).per_thread(),
    call!(cuStreamSynchronize, 2000),
    call!(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000).per_thread(),
    call!(cuStreamWaitEvent, 3020),
    call!(cuStreamWaitEvent_ptsz, "cuStreamWaitEvent", 7000).per_thread(),
    call!(cuStreamGetFlags, 5050).not_sticky(),
    call!(cuStreamGetFlags_ptsz, "cuStreamGetFlags", 7000).per_thread().not_sticky(),
    call!(cuStreamGetPriority, 5050).not_sticky(),
    call!(cuStreamGetPriority_ptsz, "cuStreamGetPriority", 7000).per_thread().not_sticky(),
    call!(cuStreamGetCtx, 9020).not_sticky(),
    call!(cuStreamGetCtx_ptsz, "cuStreamGetCtx", 9020).per_thread().not_sticky(),
    call!(cuStreamGetCtx_v2, "cuStreamGetCtx", 12050).not_sticky(),
    call!(cuStreamGetCtx_v2_ptsz, "cuStreamGetCtx", 12050).per_thread().not_sticky(),
    call!(cuStreamGetId, 12000).without_context(),
    call!(cuStreamGetId_ptsz, "cuStreamGetId", 12000).per_thread().without_context(),
    call!(cuStreamGetDevice, 12080).not_sticky(),
    call!(cuStreamGetDevice_ptsz, "cuStreamGetDevice", 12080).per_thread().not_sticky(),
    call!(cuStreamAddCallback, 5000),
    call!(cuStreamAddCallback_ptsz, "cuStreamAddCallback", 7000).per_thread(),
    call!(cuLaunchHostFunc, 10000),
    call!(cuLaunchHostFunc_ptsz, "cuLaunchHostFunc", 10000).per_thread(),
];

/// Exports a function twice: for the legacy default stream, and (`_ptsz`, `_ptds`) for the
/// thread's own. Both call `$body` with their name and whether handle 0 means the latter.
macro_rules! pair {
    ($(#[$doc:meta])* $name:ident, $own:ident, $body:ident($($arg:ident: $kind:ty),* $(,)?)) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// Pointers are null or point to what `cuda.h` asks for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> CUresult {
            // SAFETY: the caller's promise.
            unsafe { $body(stringify!($name), false, $($arg),*) }
        }

        /// The same with the thread's own default stream for handle 0.
        ///
        /// # Safety
        ///
        /// Pointers are null or point to what `cuda.h` asks for.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $own($($arg: $kind),*) -> CUresult {
            // SAFETY: the caller's promise.
            unsafe { $body(stringify!($own), true, $($arg),*) }
        }
    };
}
pub(super) use pair;

/// The stream that a handle means to the calling thread.
pub(super) fn stream(world: &World, handle: CUstream, own: bool) -> Result<Info, CUresult> {
    let current = world.current_context();
    let caller = match &current {
        Ok(context) => {
            Caller { context: Some(context.id), device: context.device, per_thread: own }
        }
        Err(_) => Caller { context: None, device: 0, per_thread: own },
    };
    if handle <= crate::engine::stream::PER_THREAD {
        current?;
    }
    world.engine.stream(handle, caller)
}

fn create(name: &'static str, to: *mut CUstream, flags: u32, priority: i32) -> CUresult {
    enter(
        name,
        || format!("flags={flags}, priority={priority}"),
        |world| {
            let to = place(to)?;
            let context = world.current_context()?;
            let handle = world.engine.create_stream(context.id, context.device, flags, priority)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = handle };
            Ok(())
        },
    )
}

/// Makes a stream, blocking (0) or non-blocking (1).
///
/// # Safety
///
/// `stream` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: u32) -> CUresult {
    create("cuStreamCreate", stream, flags, 0)
}

/// Makes a stream with a priority, clamped to the range.
///
/// # Safety
///
/// `stream` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: u32,
    priority: i32,
) -> CUresult {
    create("cuStreamCreateWithPriority", stream, flags, priority)
}

fn destroy(name: &'static str, handle: CUstream) -> CUresult {
    enter(name, || format!("stream={handle:#x}"), |world| world.engine.destroy_stream(handle))
}

/// Destroys a stream; the form before CUDA 4.0.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy(stream: CUstream) -> CUresult {
    destroy("cuStreamDestroy", stream)
}

/// Destroys a stream: returns at once, queued work still completes.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    destroy("cuStreamDestroy_v2", stream)
}

unsafe fn query(name: &'static str, own: bool, handle: CUstream) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}"),
        |world| {
            let info = stream(world, handle, own)?;
            world.engine.host_looks_at(info.uid)?;
            let points = world.engine.tail(info.uid);
            match world.engine.sticky(info.context) {
                Some(code) => Err(code),
                None if world.engine.all_passed(&points) => Ok(()),
                None => Err(code::NOT_READY),
            }
        },
    )
}

pair! {
    /// Whether all of a stream's work is done: else 600.
    cuStreamQuery, cuStreamQuery_ptsz, query(stream: CUstream)
}

unsafe fn synchronise(name: &'static str, own: bool, handle: CUstream) -> CUresult {
    enter_waiting(
        name,
        || format!("stream={handle:#x}"),
        |world| {
            let info = stream(world, handle, own)?;
            world.engine.host_looks_at(info.uid)?;
            Ok(world.engine.wait_points(info.context, world.engine.tail(info.uid)))
        },
    )
}

pair! {
    /// Waits for all of a stream's work; answers its context's error.
    cuStreamSynchronize, cuStreamSynchronize_ptsz, synchronise(stream: CUstream)
}

unsafe fn wait_event(
    name: &'static str,
    own: bool,
    handle: CUstream,
    event: CUevent,
    flags: u32,
) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}, event={event:#x}, flags={flags}"),
        |world| {
            let info = stream(world, handle, own)?;
            world.engine.stream_wait(info.uid, event, flags)
        },
    )
}

pair! {
    /// Makes later work of a stream wait for an event's present mark.
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz,
    wait_event(stream: CUstream, event: CUevent, flags: u32)
}

/// Writes one fact about a stream.
unsafe fn tell<T>(
    name: &'static str,
    own: bool,
    handle: CUstream,
    to: *mut T,
    fact: impl FnOnce(Info) -> T,
) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}"),
        |world| {
            let to = place(to)?;
            let info = stream(world, handle, own)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = fact(info) };
            Ok(())
        },
    )
}

unsafe fn flags_of(name: &'static str, own: bool, stream: CUstream, flags: *mut u32) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell(name, own, stream, flags, |info| info.flags) }
}

pair! {
    /// The flags a stream was made with.
    cuStreamGetFlags, cuStreamGetFlags_ptsz, flags_of(stream: CUstream, flags: *mut u32)
}

unsafe fn priority_of(
    name: &'static str,
    own: bool,
    stream: CUstream,
    priority: *mut i32,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell(name, own, stream, priority, |info| info.priority) }
}

pair! {
    /// A stream's priority, clamped.
    cuStreamGetPriority, cuStreamGetPriority_ptsz,
    priority_of(stream: CUstream, priority: *mut i32)
}

unsafe fn context_of(
    name: &'static str,
    own: bool,
    stream: CUstream,
    context: *mut CUcontext,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell(name, own, stream, context, |info| info.context) }
}

pair! {
    /// A stream's context.
    cuStreamGetCtx, cuStreamGetCtx_ptsz, context_of(stream: CUstream, context: *mut CUcontext)
}

unsafe fn contexts_of(
    name: &'static str,
    own: bool,
    stream: CUstream,
    context: *mut CUcontext,
    green: *mut u64,
) -> CUresult {
    // SAFETY: the caller's promise; a null place for the green context is skipped.
    unsafe {
        let done = tell(name, own, stream, context, |info| info.context);
        if done == CUDA_SUCCESS && !green.is_null() {
            *green = 0;
        }
        done
    }
}

pair! {
    /// A stream's context; its green context, 0, since there are none.
    cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
    contexts_of(stream: CUstream, context: *mut CUcontext, green: *mut u64)
}

unsafe fn id_of(name: &'static str, own: bool, stream: CUstream, id: *mut u64) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell(name, own, stream, id, |info| info.uid) }
}

pair! {
    /// A number that no other stream of the process ever has.
    cuStreamGetId, cuStreamGetId_ptsz, id_of(stream: CUstream, id: *mut u64)
}

unsafe fn device_of(
    name: &'static str,
    own: bool,
    stream: CUstream,
    device: *mut CUdevice,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell(name, own, stream, device, |info| info.device) }
}

pair! {
    /// A stream's device.
    cuStreamGetDevice, cuStreamGetDevice_ptsz, device_of(stream: CUstream, device: *mut CUdevice)
}

unsafe fn add_callback(
    name: &'static str,
    own: bool,
    handle: CUstream,
    callback: Option<StreamCallback>,
    data: *mut c_void,
    flags: u32,
) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}, flags={flags}"),
        |world| {
            let function = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            if flags != 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let info = stream(world, handle, own)?;
            world.engine.refuse_captured(info.uid, code::CAPTURE_UNSUPPORTED)?;
            let target = HostTarget::Callback { function, stream: handle };
            let call = HostCall { target, data: data as usize };
            world.engine.submit(info.uid, Action::Host(call), 0.0).map(|_| ())
        },
    )
}

pair! {
    /// Queues a stream callback, which is called even when the context has failed. A captured
    /// stream does not take one.
    cuStreamAddCallback, cuStreamAddCallback_ptsz,
    add_callback(
        stream: CUstream,
        callback: Option<StreamCallback>,
        data: *mut c_void,
        flags: u32,
    )
}

unsafe fn host_function(
    name: &'static str,
    own: bool,
    handle: CUstream,
    function: Option<HostFn>,
    data: *mut c_void,
) -> CUresult {
    enter(
        name,
        || format!("stream={handle:#x}"),
        |world| {
            let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let info = stream(world, handle, own)?;
            let target = HostTarget::Function(function);
            let call = HostCall { target, data: data as usize };
            world.engine.submit(info.uid, Action::Host(call), 0.0).map(|_| ())
        },
    )
}

pair! {
    /// Queues a host function, which is not called once the context has failed.
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz,
    host_function(stream: CUstream, function: Option<HostFn>, data: *mut c_void)
}
