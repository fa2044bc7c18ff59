//! The usage count of a context, as programs of before CUDA 4.0 keep it: `cuCtxAttach` takes a use
//! and `cuCtxDetach` gives one back; the last one destroys the context.
//!
//! Rules as the driver API's reference has them (CUDA Driver API 12.9, "Context Management
//! [DEPRECATED]"): a context is made with one use; both work on the context that is current to the
//! calling thread. A primary context has no such count here: 201.

use super::context::destroy_quietly;
use super::device::place;
use crate::call;
use crate::entry::{Call, enter, enter_waiting};
use crate::types::*;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] =
    &[call!(cuCtxAttach, 2000).without_context(), call!(cuCtxDetach, 2000).without_context()];

/// Takes a use of the current context.
///
/// # Safety
///
/// `context` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxAttach(context: *mut CUcontext, flags: u32) -> CUresult {
    enter(
        "cuCtxAttach",
        || format!("flags={flags}"),
        |world| {
            let to = place(context)?;
            if flags != 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let id =
                world.stack(|stack| stack.last().copied()).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
            let current = world.context(id)?;
            if current.state.primary {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            current.uses += 1;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = id };
            Ok(())
        },
    )
}

/// Gives a use of the current context back; with the last one it is destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDetach(context: CUcontext) -> CUresult {
    enter_waiting(
        "cuCtxDetach",
        || format!("context={context:#x}"),
        |world| {
            let current = world.stack(|stack| stack.last().copied());
            if context == 0 || current != Some(context) {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            let found = world.context(context)?;
            if found.state.primary {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            found.uses -= 1;
            let last = found.uses == 0;
            Ok(destroy_quietly(world, context, last))
        },
    )
}
