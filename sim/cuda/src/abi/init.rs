//! `cuInit` and the driver's version.

use crate::call;
use crate::entry::{Call, enter};
use crate::types::*;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] =
    &[call!(cuInit, 2000).before_init(), call!(cuDriverGetVersion, 2020).before_init()];

/// Starts the driver: 1 for flags that are not 0 or settings that cannot be read.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> CUresult {
    enter(
        "cuInit",
        || format!("flags={flags}"),
        |world| {
            if flags != 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            world.initialise()
        },
    )
}

/// The driver's version, such as 12080.
///
/// # Safety
///
/// `version` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> CUresult {
    enter("cuDriverGetVersion", String::new, |world| {
        if version.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *version = world.settings.version as i32 };
        Ok(())
    })
}
