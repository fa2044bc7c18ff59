//! Memory pools and allocation in stream order.
//!
//! In a captured stream these calls make memory nodes of its graph.

use super::device::place;
use super::stream::{pair, stream};
use super::vmm::change;
use crate::call;
use crate::engine::order::Use;
use crate::entry::{Call, enter};
use crate::memory::plain::Kind;
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuMemAllocAsync, 11020),
    call!(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020).per_thread(),
    call!(cuMemAllocFromPoolAsync, 11020),
    call!(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020).per_thread(),
    call!(cuMemFreeAsync, 11020),
    call!(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020).per_thread(),
    call!(cuMemPoolCreate, 11020).without_context().unsafe_in_capture(),
    call!(cuMemPoolDestroy, 11020).without_context().unsafe_in_capture(),
    call!(cuMemPoolTrimTo, 11020).without_context().unsafe_in_capture(),
    call!(cuMemPoolSetAttribute, 11020).without_context().unsafe_in_capture(),
    call!(cuMemPoolGetAttribute, 11020).without_context().unsafe_in_capture(),
    call!(cuMemPoolSetAccess, 11020).without_context().unsafe_in_capture(),
    call!(cuMemPoolGetAccess, 11020).without_context(),
    call!(cuDeviceGetDefaultMemPool, 11020).without_context(),
    call!(cuDeviceGetMemPool, 11020).without_context(),
    call!(cuDeviceSetMemPool, 11020).without_context(),
];

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProps {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
    pub alloc_type: u32,
    /// Handle types that it can be shared by; none here.
    pub handle_types: u32,
    /// Where its memory lies.
    pub location: CUmemLocation,
    /// Windows only.
    pub security: *const c_void,
    /// Most bytes; 0 for no limit.
    pub max_size: usize,
    /// A bit mask of intended uses.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 54],
}

const _: () = assert!(size_of::<PoolProps>() == 88);

/// Pool handles look like addresses of this region.
const HANDLE_BASE: u64 = 0x7350_0000_0000;

/// A device's default pool, made when it is first asked for.
fn default_pool(world: &mut World, device: CUdevice) -> Result<CUmemoryPool, CUresult> {
    world.device(device)?;
    let handle = HANDLE_BASE + 0x40 * (device as u64 + 1);
    world.engine.pool_default(handle, device);
    Ok(handle)
}

fn current_pool(world: &mut World, device: CUdevice) -> Result<CUmemoryPool, CUresult> {
    let default = default_pool(world, device)?;
    Ok(world.engine.pool_current(device).unwrap_or(default))
}

unsafe fn alloc_from(
    name: &'static str,
    own: bool,
    to: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    handle: CUstream,
) -> CUresult {
    enter(
        name,
        || format!("bytes={bytes}, stream={handle:#x}"),
        |world| {
            let to = place(to)?;
            let info = stream(world, handle, own)?;
            let pool = match pool {
                Some(pool) => pool,
                None => current_pool(world, info.device)?,
            };
            if bytes == 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let device = world.engine.pool_device(pool)? as u32;
            let context = info.context;
            let engine = world.engine.clone();
            let fresh = |len, what| match what {
                Use::Pool => change(world, |s| s.alloc(device, context, len, Kind::Pool(pool))),
                Use::Node => {
                    let all = 0..world.devices.len() as u32;
                    let rights = |d| world.engine.pool_access(pool, d as i32).unwrap_or(0) as u8;
                    let access: Vec<(u32, u8)> = all.map(|d| (d, rights(d))).collect();
                    change(world, |s| s.graph_reserve(device, context, len, &access))
                }
            };
            let at = engine.pool_alloc(info.uid, pool, bytes as u64, fresh)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = at };
            Ok(())
        },
    )
}

unsafe fn alloc(
    name: &'static str,
    own: bool,
    to: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { alloc_from(name, own, to, bytes, None, stream) }
}

pair! {
    /// Allocates from the current pool of the stream's device, in the stream's order.
    cuMemAllocAsync, cuMemAllocAsync_ptsz,
    alloc(to: *mut CUdeviceptr, bytes: usize, stream: CUstream)
}

unsafe fn alloc_pool(
    name: &'static str,
    own: bool,
    to: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { alloc_from(name, own, to, bytes, Some(pool), stream) }
}

pair! {
    /// Allocates from a pool, in a stream's order.
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
    alloc_pool(to: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream)
}

unsafe fn free(name: &'static str, own: bool, at: CUdeviceptr, handle: CUstream) -> CUresult {
    enter(
        name,
        || format!("at={at:#x}, stream={handle:#x}"),
        |world| {
            let info = stream(world, handle, own)?;
            match world.engine.pool_free(info.uid, at) {
                Some(done) => done,
                // Not a pool's memory: told as cuMemFree would; not freed.
                None => {
                    world.memory.ask(|space| space.freeable(at).map(|_| ()))?;
                    Err(CUDA_ERROR_NOT_SUPPORTED)
                }
            }
        },
    )
}

pair! {
    /// Frees a pool's memory in a stream's order.
    cuMemFreeAsync, cuMemFreeAsync_ptsz, free(at: CUdeviceptr, stream: CUstream)
}

/// Makes a pool.
///
/// # Safety
///
/// `pool` is null or a place for a handle; `props` is null or properties.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    props: *const PoolProps,
) -> CUresult {
    enter("cuMemPoolCreate", String::new, |world| {
        let to = place(pool)?;
        if props.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; CUDA asks the caller for the structure.
        let props = unsafe { *props };
        let of_device = props.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE;
        if props.alloc_type != CU_MEM_ALLOCATION_TYPE_PINNED
            || props.reserved != [0; 54]
            || !props.security.is_null()
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if !of_device && props.location.type_ != CU_MEM_LOCATION_TYPE_HOST_NUMA {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Pools in host memory, and shared ones, are not simulated.
        if !of_device || props.handle_types != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = world.device(props.location.id).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let device = device.ordinal;
        let handle = world.engine.pool_create(HANDLE_BASE, device, props.max_size as u64);
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *to = handle };
        Ok(())
    })
}

/// Destroys a pool: its memory goes when the last block has been freed.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    enter("cuMemPoolDestroy", || format!("pool={pool:#x}"), |world| world.engine.pool_destroy(pool))
}

/// Gives free memory of a pool back, down to so many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    enter(
        "cuMemPoolTrimTo",
        || format!("pool={pool:#x}, keep={keep}"),
        |world| world.engine.pool_trim(pool, keep as u64),
    )
}

/// Sets an attribute: an `int` for reuse policies, else 64 bits.
///
/// # Safety
///
/// `value` is null or holds a value of the attribute's type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> CUresult {
    enter(
        "cuMemPoolSetAttribute",
        || format!("pool={pool:#x}, attribute={attribute}"),
        |world| {
            let at = place(value)?;
            // SAFETY: not null; CUDA asks the caller for a value of this type.
            let value = unsafe {
                match attribute {
                    1..=3 => u64::from(*at.cast::<i32>() != 0),
                    _ => *at.cast::<u64>(),
                }
            };
            world.engine.pool_set(pool, attribute, value)
        },
    )
}

/// An attribute's value: an `int` for reuse policies, else 64 bits.
///
/// # Safety
///
/// `value` is null or a place for a value of the attribute's type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> CUresult {
    enter(
        "cuMemPoolGetAttribute",
        || format!("pool={pool:#x}, attribute={attribute}"),
        |world| {
            let to = place(value)?;
            let found = world.engine.pool_get(pool, attribute)?;
            // SAFETY: not null; CUDA asks the caller for a place of this type.
            unsafe {
                match attribute {
                    1..=3 => *to.cast::<i32>() = found as i32,
                    _ => *to.cast::<u64>() = found,
                }
            }
            Ok(())
        },
    )
}

/// Opens a pool's memory to devices, or closes it.
///
/// # Safety
///
/// `map` is null or `count` descriptions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    enter(
        "cuMemPoolSetAccess",
        || format!("pool={pool:#x}, count={count}"),
        |world| {
            if map.is_null() || count == 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for `count` descriptions.
            let wishes = unsafe { std::slice::from_raw_parts(map, count) };
            let owner = world.engine.pool_device(pool)?;
            for wish in wishes {
                let device = wish.location.id;
                let known = wish.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE
                    && world.device(device).is_ok();
                let flags = [
                    CU_MEM_ACCESS_FLAGS_PROT_NONE,
                    CU_MEM_ACCESS_FLAGS_PROT_READ,
                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                ];
                let own = device == owner && wish.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                if !known || own || !flags.contains(&wish.flags) {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
            }
            for wish in wishes.iter().filter(|w| w.location.id != owner) {
                world.engine.pool_open(pool, wish.location.id, wish.flags)?;
                let (device, flags) = (wish.location.id as u32, wish.flags as u8);
                world.memory.set_pool_access(pool, device, flags);
            }
            Ok(())
        },
    )
}

/// What a device may do with a pool's memory.
///
/// # Safety
///
/// `flags` is null or a place for flags; `location` is null or a location.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAccess(
    flags: *mut u32,
    pool: CUmemoryPool,
    location: *const CUmemLocation,
) -> CUresult {
    enter(
        "cuMemPoolGetAccess",
        || format!("pool={pool:#x}"),
        |world| {
            let to = place(flags)?;
            if location.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for a location.
            let location = unsafe { *location };
            if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE || world.device(location.id).is_err() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.engine.pool_access(pool, location.id)? };
            Ok(())
        },
    )
}

unsafe fn tell(
    name: &'static str,
    to: *mut CUmemoryPool,
    device: CUdevice,
    which: fn(&mut World, CUdevice) -> Result<CUmemoryPool, CUresult>,
) -> CUresult {
    enter(
        name,
        || format!("device={device}"),
        |world| {
            let to = place(to)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = which(world, device)? };
            Ok(())
        },
    )
}

/// A device's default pool.
///
/// # Safety
///
/// `pool` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell("cuDeviceGetDefaultMemPool", pool, device, default_pool) }
}

/// A device's current pool.
///
/// # Safety
///
/// `pool` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { tell("cuDeviceGetMemPool", pool, device, current_pool) }
}

/// Makes a pool of the device its current one.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> CUresult {
    enter(
        "cuDeviceSetMemPool",
        || format!("device={device}, pool={pool:#x}"),
        |world| {
            default_pool(world, device)?;
            world.engine.pool_set_current(device, pool)
        },
    )
}
