//! Primary contexts: one a device, shared by all libraries of a process, counted.
//!
//! The handle of a device's primary context stays the same. It is active from the first retain
//! to the last release or a reset; while inactive it answers 709 where it is current.

use super::context::{check_flags, quiet};
use super::device::place;
use crate::call;
use crate::entry::{Call, Wait, enter, enter_waiting};
use crate::types::*;
use crate::world::ENDING;
use std::sync::atomic::Ordering;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuDevicePrimaryCtxRetain, 7000).without_context(),
    call!(cuDevicePrimaryCtxRelease, 7000).without_context(),
    call!(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000).without_context(),
    call!(cuDevicePrimaryCtxReset, 7000).without_context(),
    call!(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000).without_context(),
    call!(cuDevicePrimaryCtxSetFlags, 7000).without_context(),
    call!(cuDevicePrimaryCtxSetFlags_v2, "cuDevicePrimaryCtxSetFlags", 11000).without_context(),
    call!(cuDevicePrimaryCtxGetState, 7000).without_context(),
];

/// Retains a device's primary context, and makes it active if it is not.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    enter(
        "cuDevicePrimaryCtxRetain",
        || format!("device={device}"),
        |world| {
            let to = place(context)?;
            let found = world.device(device)?;
            found.primary_refs += 1;
            let flags = found.primary_flags;
            let id = world.primary_id(device);
            if !world.contexts.contains_key(&id) {
                world.create_context(device, true, flags);
            }
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = id };
            Ok(())
        },
    )
}

fn release(name: &'static str, device: CUdevice) -> CUresult {
    enter_waiting(
        name,
        || format!("device={device}"),
        |world| {
            let found = world.device(device)?;
            if found.primary_refs == 0 {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            found.primary_refs -= 1;
            if found.primary_refs > 0 {
                return Ok(Wait::nothing());
            }
            let id = world.primary_id(device);
            Ok(quiet(world, id).then(move |world| {
                // Somebody may have retained it while the lock was let go.
                if world.device(device)?.primary_refs == 0 {
                    world.destroy_context(id);
                }
                Ok(())
            }))
        },
    )
}

/// Releases a primary context; the form before CUDA 11.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease(device: CUdevice) -> CUresult {
    release("cuDevicePrimaryCtxRelease", device)
}

/// Releases a primary context; the last release makes it inactive. 201 if it is not retained.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    release("cuDevicePrimaryCtxRelease_v2", device)
}

fn reset(name: &'static str, device: CUdevice) -> CUresult {
    enter_waiting(
        name,
        || format!("device={device}"),
        |world| {
            world.device(device)?;
            let id = world.primary_id(device);
            Ok(quiet(world, id).then(move |world| {
                std::thread::sleep(ENDING);
                world.destroy_context(id);
                Ok(())
            }))
        },
    )
}

/// Resets a primary context; the form before CUDA 11.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset(device: CUdevice) -> CUresult {
    reset("cuDevicePrimaryCtxReset", device)
}

/// Ends all that is in a primary context. Retains stay counted; the next one makes it active.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult {
    reset("cuDevicePrimaryCtxReset_v2", device)
}

fn set_flags(name: &'static str, device: CUdevice, flags: u32) -> CUresult {
    enter(
        name,
        || format!("device={device}, flags={flags}"),
        |world| {
            check_flags(flags)?;
            world.device(device)?.primary_flags = flags;
            let id = world.primary_id(device);
            if let Some(context) = world.contexts.get(&id) {
                context.state.flags.store(flags, Ordering::Release);
            }
            Ok(())
        },
    )
}

/// Sets a primary context's flags; the form before CUDA 11.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: u32) -> CUresult {
    set_flags("cuDevicePrimaryCtxSetFlags", device, flags)
}

/// Sets a primary context's flags, also of an active one.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: u32) -> CUresult {
    set_flags("cuDevicePrimaryCtxSetFlags_v2", device, flags)
}

/// A primary context's flags, and whether it is active.
///
/// # Safety
///
/// `flags` and `active` are null or places for numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: *mut u32,
    active: *mut i32,
) -> CUresult {
    enter(
        "cuDevicePrimaryCtxGetState",
        || format!("device={device}"),
        |world| {
            let (flags, active) = (place(flags)?, place(active)?);
            let set = world.device(device)?.primary_flags;
            let is = world.contexts.contains_key(&world.primary_id(device));
            // SAFETY: not null; CUDA asks the caller for writable places.
            unsafe {
                *flags = set;
                *active = i32::from(is);
            }
            Ok(())
        },
    )
}
