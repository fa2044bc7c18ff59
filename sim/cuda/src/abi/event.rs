//! Events: made, recorded, asked for, awaited; also over a whole context.

use super::device::place;
use super::stream::{pair, stream};
use crate::call;
use crate::engine::code;
use crate::entry::{Call, enter, enter_waiting};
use crate::types::*;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuEventCreate, 2000),
    call!(cuEventDestroy, 2000).not_sticky(),
    call!(cuEventDestroy_v2, "cuEventDestroy", 4000).not_sticky(),
    call!(cuEventRecord, 2000),
    call!(cuEventRecord_ptsz, "cuEventRecord", 7000).per_thread(),
    call!(cuEventRecordWithFlags, 11010),
    call!(cuEventRecordWithFlags_ptsz, "cuEventRecordWithFlags", 11010).per_thread(),
    call!(cuEventQuery, 2000).without_context(),
    call!(cuEventSynchronize, 2000),
    call!(cuEventElapsedTime, 2000),
    call!(cuEventElapsedTime_v2, "cuEventElapsedTime", 12080),
    call!(cuCtxRecordEvent, 12050).without_context(),
    call!(cuCtxWaitEvent, 12050).without_context(),
];

/// Makes an event.
///
/// # Safety
///
/// `event` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: u32) -> CUresult {
    enter(
        "cuEventCreate",
        || format!("flags={flags}"),
        |world| {
            let to = place(event)?;
            let context = world.current_context()?;
            let handle = world.engine.create_event(context.id, flags)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = handle };
            Ok(())
        },
    )
}

fn destroy(name: &'static str, event: CUevent) -> CUresult {
    enter(name, || format!("event={event:#x}"), |world| world.engine.destroy_event(event))
}

/// Destroys an event; the form before CUDA 4.0.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy(event: CUevent) -> CUresult {
    destroy("cuEventDestroy", event)
}

/// Destroys an event: returns at once, and those who wait for it wait on.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    destroy("cuEventDestroy_v2", event)
}

unsafe fn record_with(
    name: &'static str,
    own: bool,
    event: CUevent,
    handle: CUstream,
    flags: u32,
) -> CUresult {
    enter(
        name,
        || format!("event={event:#x}, stream={handle:#x}, flags={flags}"),
        |world| {
            let info = stream(world, handle, own)?;
            world.engine.record(event, info.uid, flags)
        },
    )
}

unsafe fn record(name: &'static str, own: bool, event: CUevent, handle: CUstream) -> CUresult {
    // SAFETY: nothing is read through these.
    unsafe { record_with(name, own, event, handle, 0) }
}

pair! {
    /// Moves an event's mark to a stream's present end.
    cuEventRecord, cuEventRecord_ptsz, record(event: CUevent, stream: CUstream)
}

pair! {
    /// The same; flag 1 makes a record node in a capture.
    cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz,
    record_with(event: CUevent, stream: CUstream, flags: u32)
}

/// Whether an event's mark has been passed: else 600.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    enter(
        "cuEventQuery",
        || format!("event={event:#x}"),
        |world| {
            let points = world.engine.event_points("cuEventQuery", event)?;
            let context = world.engine.event_context(event)?;
            match world.engine.sticky(context) {
                Some(code) => Err(code),
                None if world.engine.all_passed(&points) => Ok(()),
                None => Err(code::NOT_READY),
            }
        },
    )
}

/// Waits until an event's mark has been passed; answers its context's error.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    enter_waiting(
        "cuEventSynchronize",
        || format!("event={event:#x}"),
        |world| {
            let points = world.engine.event_points("cuEventSynchronize", event)?;
            let context = world.engine.event_context(event)?;
            Ok(world.engine.wait_points(context, points))
        },
    )
}

unsafe fn elapsed(
    name: &'static str,
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    enter(
        name,
        || format!("start={start:#x}, end={end:#x}"),
        |world| {
            let to = place(milliseconds)?;
            let ms = world.engine.elapsed_ms(start, end)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = ms };
            Ok(())
        },
    )
}

/// Virtual milliseconds between two events.
///
/// # Safety
///
/// `milliseconds` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { elapsed("cuEventElapsedTime", milliseconds, start, end) }
}

/// Virtual milliseconds between two events.
///
/// # Safety
///
/// `milliseconds` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { elapsed("cuEventElapsedTime_v2", milliseconds, start, end) }
}

/// Moves an event's mark behind all work of a context. While a stream of it is captured: 900,
/// and the captures become invalid.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxRecordEvent(context: CUcontext, event: CUevent) -> CUresult {
    enter(
        "cuCtxRecordEvent",
        || format!("context={context:#x}, event={event:#x}"),
        |world| {
            let state = world.context(context)?.state.clone();
            if state.sticky() != 0 {
                return Err(state.sticky());
            }
            world.engine.record_context(event, context, state.device)
        },
    )
}

/// Makes all later work of a context wait for an event's present mark. While a stream of it is
/// captured, or for an event of a capture: 900, and the captures become invalid.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxWaitEvent(context: CUcontext, event: CUevent) -> CUresult {
    enter(
        "cuCtxWaitEvent",
        || format!("context={context:#x}, event={event:#x}"),
        |world| {
            let state = world.context(context)?.state.clone();
            if state.sticky() != 0 {
                return Err(state.sticky());
            }
            world.engine.context_waits(event, context)
        },
    )
}
