//! Contexts: making, destroying, each thread's stack of them, waiting for one.
//!
//! Handles are checked for what they are: a destroyed context that is current answers 709, and
//! 201 where a handle is passed. Waiting for a context's work holds no lock of the world.

use super::device::place;
use crate::call;
use crate::entry::{Call, Wait, enter, enter_waiting};
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuCtxCreate, 2000).without_context(),
    call!(cuCtxCreate_v2, "cuCtxCreate", 3020).without_context(),
    call!(cuCtxCreate_v3, "cuCtxCreate", 11040).without_context(),
    call!(cuCtxCreate_v4, "cuCtxCreate", 12050).without_context(),
    call!(cuCtxDestroy, 2000).without_context(),
    call!(cuCtxDestroy_v2, "cuCtxDestroy", 4000).without_context(),
    call!(cuCtxPushCurrent, 2000).without_context(),
    call!(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000).without_context(),
    call!(cuCtxPopCurrent, 2000).without_context(),
    call!(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000).without_context(),
    call!(cuCtxSetCurrent, 4000).without_context(),
    call!(cuCtxGetCurrent, 4000).without_context(),
    call!(cuCtxGetDevice, 2000).not_sticky(),
    call!(cuCtxGetId, 12000).without_context(),
    call!(cuCtxSynchronize, 2000),
];

const SCHEDULE_MASK: u32 = 7;
const FLAGS_MASK: u32 = 0xFF;

/// Flags that name at most one way to wait and no unknown bit.
pub(crate) fn check_flags(flags: u32) -> Result<(), CUresult> {
    let one_schedule = (flags & SCHEDULE_MASK).count_ones() <= 1;
    if one_schedule && flags & !FLAGS_MASK == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

unsafe fn create(name: &'static str, to: *mut CUcontext, flags: u32, device: i32) -> CUresult {
    enter(
        name,
        || format!("flags={flags}, device={device}"),
        |world| {
            let to = place(to)?;
            check_flags(flags)?;
            world.device(device)?;
            let id = world.create_context(device, false, flags);
            if name == "cuCtxCreate" {
                world.context(id)?.api_version = 3010;
            }
            world.stack(|stack| stack.push(id));
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = id };
            Ok(())
        },
    )
}

/// Makes a context and pushes it; the form before CUDA 3.2.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate(
    context: *mut CUcontext,
    flags: u32,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { create("cuCtxCreate", context, flags, device) }
}

/// Makes a context and pushes it.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(
    context: *mut CUcontext,
    flags: u32,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { create("cuCtxCreate_v2", context, flags, device) }
}

/// Makes a context with execution affinity, which this driver does not have: 224 when any is
/// asked for.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut CUcontext,
    parameters: *const c_void,
    count: i32,
    flags: u32,
    device: CUdevice,
) -> CUresult {
    let name = "cuCtxCreate_v3";
    if !parameters.is_null() || count != 0 {
        return enter(
            name,
            || format!("count={count}"),
            |_| Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY),
        );
    }
    // SAFETY: the caller's promise.
    unsafe { create(name, context, flags, device) }
}

/// What a context is to be, as `cuCtxCreate_v4` takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUctxCreateParams {
    /// Execution affinity, or null.
    pub execAffinityParams: *const c_void,
    /// How many there are.
    pub numExecAffinityParams: i32,
    /// Graphics sharing, or null.
    pub cigParams: *const c_void,
}

/// Makes a context; affinity (224) and graphics sharing (801) are not had here.
///
/// # Safety
///
/// `context` is null or a place for a handle, `parameters` null or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut CUcontext,
    parameters: *const CUctxCreateParams,
    flags: u32,
    device: CUdevice,
) -> CUresult {
    let name = "cuCtxCreate_v4";
    // SAFETY: null or readable by the caller's promise.
    let asked = unsafe { parameters.as_ref() };
    let refused = asked.and_then(|p| match p {
        p if !p.execAffinityParams.is_null() => Some(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY),
        p if !p.cigParams.is_null() => Some(CUDA_ERROR_NOT_SUPPORTED),
        _ => None,
    });
    if let Some(code) = refused {
        return enter(name, || format!("parameters={asked:?}"), |_| Err(code));
    }
    // SAFETY: the caller's promise.
    unsafe { create(name, context, flags, device) }
}

/// Ends a context once its work is done; pops it if it is this thread's current one.
fn destroy(name: &'static str, context: CUcontext) -> CUresult {
    enter_waiting(
        name,
        || format!("context={context:#x}"),
        |world| {
            if context == 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            if world.context(context)?.state.primary {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            Ok(destroy_quietly(world, context, true))
        },
    )
}

/// Destroys a context, if it is to be, once its work is done.
pub(super) fn destroy_quietly(world: &World, context: CUcontext, really: bool) -> Wait {
    quiet(world, context).then(move |world| {
        if really {
            world.stack(|stack| {
                if stack.last() == Some(&context) {
                    stack.pop();
                }
            });
            world.destroy_context(context);
        }
        Ok(())
    })
}

/// Waits for a context's work, whatever became of it.
pub(crate) fn quiet(world: &World, context: CUcontext) -> Wait {
    world.engine.wait_context(context).even_if_failed()
}

/// Destroys a context; the form before CUDA 4.0.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy(context: CUcontext) -> CUresult {
    destroy("cuCtxDestroy", context)
}

/// Destroys a context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    destroy("cuCtxDestroy_v2", context)
}

fn push(name: &'static str, context: CUcontext) -> CUresult {
    enter(
        name,
        || format!("context={context:#x}"),
        |world| {
            if context == 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            world.may_be_current(context)?;
            world.stack(|stack| stack.push(context));
            Ok(())
        },
    )
}

/// Pushes a context; the form before CUDA 4.0.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent(context: CUcontext) -> CUresult {
    push("cuCtxPushCurrent", context)
}

/// Pushes a context on this thread's stack.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    push("cuCtxPushCurrent_v2", context)
}

unsafe fn pop(name: &'static str, to: *mut CUcontext) -> CUresult {
    enter(name, String::new, |world| {
        let id = world.stack(|stack| stack.pop()).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if !to.is_null() {
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = id };
        }
        Ok(())
    })
}

/// Pops the current context; the form before CUDA 4.0.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { pop("cuCtxPopCurrent", context) }
}

/// Pops this thread's current context: 201 when there is none.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { pop("cuCtxPopCurrent_v2", context) }
}

/// Replaces the top of this thread's stack; 0 pops it.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    enter(
        "cuCtxSetCurrent",
        || format!("context={context:#x}"),
        |world| {
            if context != 0 {
                world.may_be_current(context)?;
            }
            world.stack(|stack| {
                stack.pop();
                if context != 0 {
                    stack.push(context);
                }
            });
            Ok(())
        },
    )
}

/// This thread's current context, or 0.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    enter("cuCtxGetCurrent", String::new, |world| {
        let to = place(context)?;
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *to = world.stack(|stack| stack.last().copied()).unwrap_or(0) };
        Ok(())
    })
}

/// The current context's device.
///
/// # Safety
///
/// `device` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    enter("cuCtxGetDevice", String::new, |world| {
        let to = place(device)?;
        let found = world.current_context()?.device;
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *to = found };
        Ok(())
    })
}

/// A context, or the current one for 0: 709 when the current one was destroyed.
pub(crate) fn given_or_current(world: &mut World, id: CUcontext) -> Result<CUcontext, CUresult> {
    if id == 0 { Ok(world.current_context()?.id) } else { Ok(world.context(id)?.state.id) }
}

/// A number that no other context of the process has; 0 asks for the current one.
///
/// # Safety
///
/// `id` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetId(context: CUcontext, id: *mut u64) -> CUresult {
    enter(
        "cuCtxGetId",
        || format!("context={context:#x}"),
        |world| {
            let to = place(id)?;
            let context = given_or_current(world, context)?;
            let unique = world.context(context)?.state.unique;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = unique };
            Ok(())
        },
    )
}

/// Waits for all work of the current context; answers its error if there is one.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> CUresult {
    enter_waiting("cuCtxSynchronize", String::new, |world| {
        let state = world.current_context()?;
        world.engine.host_looks_at_context(state.id)?;
        let wait = world.engine.wait_context(state.id);
        Ok(wait.then(move |_| match state.sticky() {
            0 => Ok(()),
            code => Err(code),
        }))
    })
}
