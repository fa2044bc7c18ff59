//! What a context keeps beside its work: flags, limits, priorities, peers.

use super::context::{check_flags, given_or_current};
use super::device::place;
use crate::call;
use crate::entry::{Call, enter};
use crate::types::*;
use std::sync::atomic::Ordering;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuCtxGetApiVersion, 3020).without_context(),
    call!(cuCtxGetFlags, 7000),
    call!(cuCtxSetFlags, 12010),
    call!(cuCtxGetLimit, 3010),
    call!(cuCtxSetLimit, 3010),
    call!(cuCtxGetCacheConfig, 3020),
    call!(cuCtxSetCacheConfig, 3020),
    call!(cuCtxGetStreamPriorityRange, 5050),
    call!(cuCtxResetPersistingL2Cache, 11000),
    call!(cuCtxEnablePeerAccess, 4000),
    call!(cuCtxDisablePeerAccess, 4000),
];

/// The least urgent stream priority.
pub const PRIORITY_LEAST: i32 = 0;
/// The most urgent stream priority; what recent data-centre parts answer.
pub const PRIORITY_GREATEST: i32 = -5;

/// Most peers of one context.
const PEERS_MAX: usize = 8;

const LIMIT_STACK_SIZE: u32 = 0;
const LIMIT_PRINTF: u32 = 1;
const LIMIT_HEAP: u32 = 2;
const LIMIT_SYNC_DEPTH: u32 = 3;
const LIMIT_PENDING_LAUNCHES: u32 = 4;
const LIMIT_L2_FETCH: u32 = 5;
const LIMIT_PERSISTING_L2: u32 = 6;
const LIMIT_SHARED: u32 = 7;
const LIMIT_GRAPHICS: u32 = 8;

/// The version of the API that a context was made with: 3020 for all but the oldest form.
///
/// # Safety
///
/// `version` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetApiVersion(context: CUcontext, version: *mut u32) -> CUresult {
    enter(
        "cuCtxGetApiVersion",
        || format!("context={context:#x}"),
        |world| {
            let to = place(version)?;
            // An inactive primary context is known all the same: runtimes ask for its version to
            // learn whether a handle is worth anything.
            let known = if world.is_idle_primary(context) {
                3020
            } else {
                let id = given_or_current(world, context)?;
                world.context(id)?.api_version
            };
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = known };
            Ok(())
        },
    )
}

/// The current context's flags.
///
/// # Safety
///
/// `flags` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetFlags(flags: *mut u32) -> CUresult {
    enter("cuCtxGetFlags", String::new, |world| {
        let to = place(flags)?;
        let found = world.current_context()?.flags.load(Ordering::Acquire);
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *to = found };
        Ok(())
    })
}

/// Sets the current context's flags.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(flags: u32) -> CUresult {
    enter(
        "cuCtxSetFlags",
        || format!("flags={flags}"),
        |world| {
            check_flags(flags)?;
            let state = world.current_context()?;
            state.flags.store(flags, Ordering::Release);
            if state.primary {
                world.device(state.device)?.primary_flags = flags;
            }
            Ok(())
        },
    )
}

/// The default of a limit, or 215.
fn default_limit(limit: u32, capability: (u32, u32)) -> Result<u64, CUresult> {
    Ok(match limit {
        LIMIT_STACK_SIZE => 1024,
        LIMIT_PRINTF => 1 << 20,
        LIMIT_HEAP => 8 << 20,
        LIMIT_SYNC_DEPTH if capability < (9, 0) => 2,
        LIMIT_PENDING_LAUNCHES => 2048,
        LIMIT_L2_FETCH => 64,
        LIMIT_PERSISTING_L2 | LIMIT_GRAPHICS => 0,
        LIMIT_SHARED => 49_152,
        _ => return Err(CUDA_ERROR_UNSUPPORTED_LIMIT),
    })
}

/// A limit of the current context: 215 for one that the device does not have.
///
/// # Safety
///
/// `value` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: u32) -> CUresult {
    enter(
        "cuCtxGetLimit",
        || format!("limit={limit}"),
        |world| {
            let to = place(value)?;
            let default = default_limit(limit, world.settings.capability)?;
            let id = world.current_context()?.id;
            let found = world.context(id)?.limits.get(&limit).copied().unwrap_or(default);
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = found as usize };
            Ok(())
        },
    )
}

/// Sets a limit of the current context, clamped where the hardware would.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> CUresult {
    enter(
        "cuCtxSetLimit",
        || format!("limit={limit}, value={value}"),
        |world| {
            default_limit(limit, world.settings.capability)?;
            let value = value as u64;
            let kept = match limit {
                LIMIT_SHARED | LIMIT_GRAPHICS => return Err(CUDA_ERROR_UNSUPPORTED_LIMIT),
                LIMIT_SYNC_DEPTH => value.min(24),
                LIMIT_L2_FETCH => value.min(128),
                LIMIT_PERSISTING_L2 => 0,
                _ => value,
            };
            let id = world.current_context()?.id;
            world.context(id)?.limits.insert(limit, kept);
            Ok(())
        },
    )
}

/// The preferred cache configuration.
///
/// # Safety
///
/// `config` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut u32) -> CUresult {
    enter("cuCtxGetCacheConfig", String::new, |world| {
        let to = place(config)?;
        let id = world.current_context()?.id;
        let found = world.context(id)?.cache_config;
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *to = found };
        Ok(())
    })
}

/// Sets the preferred cache configuration, which changes nothing here.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCacheConfig(config: u32) -> CUresult {
    enter(
        "cuCtxSetCacheConfig",
        || format!("config={config}"),
        |world| {
            if config > 3 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let id = world.current_context()?.id;
            world.context(id)?.cache_config = config;
            Ok(())
        },
    )
}

/// The range of stream priorities; lower is more urgent. Either place may be null.
///
/// # Safety
///
/// Each pointer is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut i32,
    greatest: *mut i32,
) -> CUresult {
    enter("cuCtxGetStreamPriorityRange", String::new, |_| {
        // SAFETY: written only where not null; CUDA asks the caller for writable places.
        unsafe {
            if !least.is_null() {
                *least = PRIORITY_LEAST;
            }
            if !greatest.is_null() {
                *greatest = PRIORITY_GREATEST;
            }
        }
        Ok(())
    })
}

/// Resets persisting lines of the cache; there are none.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxResetPersistingL2Cache() -> CUresult {
    enter("cuCtxResetPersistingL2Cache", String::new, |_| Ok(()))
}

/// Lets the current context reach the plain memory of another device's context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> CUresult {
    let args = || format!("peer={peer:#x}, flags={flags}");
    enter("cuCtxEnablePeerAccess", args, |world| {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let own = world.current_context()?;
        let other = world.context(peer)?.state.clone();
        if other.id == own.id {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if other.device == own.device || !world.has("peer") {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if let Some(code) = world.refused("peer") {
            return Err(code);
        }
        let peers = &mut world.context(own.id)?.peers;
        if peers.contains(&peer) {
            return Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        if peers.len() >= PEERS_MAX {
            return Err(CUDA_ERROR_TOO_MANY_PEERS);
        }
        peers.push(peer);
        world.refresh_peers();
        Ok(())
    })
}

/// Ends what [`cuCtxEnablePeerAccess`] began: 705 if it had not.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDisablePeerAccess(peer: CUcontext) -> CUresult {
    enter(
        "cuCtxDisablePeerAccess",
        || format!("peer={peer:#x}"),
        |world| {
            let own = world.current_context()?.id;
            world.context(peer)?;
            let peers = &mut world.context(own)?.peers;
            let at = peers.iter().position(|p| *p == peer);
            peers.swap_remove(at.ok_or(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)?);
            world.refresh_peers();
            Ok(())
        },
    )
}
