//! Virtual memory: reservations, physical handles, mappings, access.
//!
//! None of these calls needs a context. Those that change something are refused while a capture
//! forbids unsafe calls. The rules are those of the room `memory`.

use super::device::place;
use crate::call;
use crate::entry::{Call, Wait, enter, enter_waiting};
use crate::memory::Range;
use crate::memory::page::Place;
use crate::memory::refused::Refused;
use crate::memory::space::Space;
use crate::misuse;
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuMemGetAllocationGranularity, 10020).without_context(),
    call!(cuMemAddressReserve, 10020).without_context().unsafe_in_capture(),
    call!(cuMemAddressFree, 10020).without_context().unsafe_in_capture(),
    call!(cuMemCreate, 10020).without_context().unsafe_in_capture(),
    call!(cuMemRelease, 10020).without_context().unsafe_in_capture(),
    call!(cuMemMap, 10020).without_context().unsafe_in_capture(),
    call!(cuMemUnmap, 10020).without_context().unsafe_in_capture(),
    call!(cuMemSetAccess, 10020).without_context().unsafe_in_capture(),
    call!(cuMemGetAccess, 10020).without_context(),
    call!(cuMemRetainAllocationHandle, 11000).without_context(),
    call!(cuMemGetAllocationPropertiesFromHandle, 10020).without_context(),
];

/// Handle types that other systems have: WIN32 and WIN32_KMT.
const WINDOWS: u32 = 2 | 4;
const HANDLE_TYPES: u32 =
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | WINDOWS | CU_MEM_HANDLE_TYPE_FABRIC;

/// The code of a setting that refuses a feature.
pub(super) fn allowed(world: &World, feature: &str) -> Result<(), CUresult> {
    world.refused(feature).map_or(Ok(()), Err)
}

/// Changes the memory map on behalf of the present call.
pub(super) fn change<R>(
    world: &World,
    body: impl FnOnce(&mut Space) -> Result<R, Refused>,
) -> Result<R, CUresult> {
    world.memory.change(world.counts.values().sum(), body)
}

/// What waits for all work queued on a device, in every context of it; all devices for none.
pub(super) fn quiet(world: &World, device: Option<u32>) -> Wait {
    let mut wait = Wait::nothing();
    for context in world.contexts.values() {
        if device.is_none_or(|d| i64::from(context.state.device) == i64::from(d)) {
            wait = wait.and(world.engine.wait_context(context.state.id));
        }
    }
    wait
}

/// Queued work that touches a range, in words.
fn queued_use(world: &World, range: Range) -> Option<String> {
    world.engine.queued_use(range.start, range.len)
}

/// The granularity of memory with these properties; they are read but not judged, as the real
/// driver does it.
///
/// # Safety
///
/// `granularity` is null or a place for a size; `prop` is null or properties.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    option: u32,
) -> CUresult {
    enter(
        "cuMemGetAllocationGranularity",
        || format!("option={option}"),
        |world| {
            allowed(world, "vmm")?;
            let to = place(granularity)?;
            if prop.is_null() {
                let text = "cuMemGetAllocationGranularity: the real driver reads through it";
                misuse::record("null properties", text);
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            if option > 1 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = world.settings.granularity as usize };
            Ok(())
        },
    )
}

/// Reserves addresses without memory.
///
/// # Safety
///
/// `ptr` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> CUresult {
    enter(
        "cuMemAddressReserve",
        || format!("size={size}, alignment={alignment}, addr={addr:#x}, flags={flags}"),
        |world| {
            allowed(world, "vmm")?;
            let to = place(ptr)?;
            let (len, align) = (size as u64, alignment as u64);
            let at = change(world, |space| space.reserve(len, align, addr, flags))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = at };
            Ok(())
        },
    )
}

/// Gives reserved addresses back: the whole reservation, with nothing mapped in it.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CUresult {
    enter(
        "cuMemAddressFree",
        || format!("ptr={ptr:#x}, size={size}"),
        |world| {
            allowed(world, "vmm")?;
            change(world, |space| space.unreserve(ptr, size as u64))
        },
    )
}

/// Where memory with these properties lies, or what is wrong with them.
fn judge(world: &World, prop: &CUmemAllocationProp) -> Result<Place, CUresult> {
    let CUmemLocation { type_, id } = prop.location;
    if prop.type_ != CU_MEM_ALLOCATION_TYPE_PINNED
        || prop.win32HandleMetaData != 0
        || prop.requestedHandleTypes & !HANDLE_TYPES != 0
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let number = u32::try_from(id).ok();
    let place = match type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => number
            .filter(|d| *d < world.settings.devices)
            .map(Place::Device)
            .ok_or(CUDA_ERROR_INVALID_VALUE)?,
        CU_MEM_LOCATION_TYPE_HOST_NUMA => {
            allowed(world, "host_numa")?;
            number.map(Place::HostNuma).ok_or(CUDA_ERROR_INVALID_VALUE)?
        }
        CU_MEM_LOCATION_TYPE_HOST
            if world.settings.version >= 13_000 && prop.requestedHandleTypes == 0 =>
        {
            Place::Host
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    if prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC != 0 {
        // No machine here has an IMEX channel.
        return Err(world.refused("fabric").unwrap_or(CUDA_ERROR_NOT_PERMITTED));
    }
    if prop.requestedHandleTypes & WINDOWS != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        allowed(world, "fd")?;
    }
    Ok(place)
}

/// Makes physical memory without an address.
///
/// # Safety
///
/// `handle` is null or a place for a handle; `prop` is null or properties.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    let args = || {
        // SAFETY: null, or properties by the caller's promise.
        let prop = unsafe { prop.as_ref() };
        format!("size={size}, prop={prop:?}, flags={flags}")
    };
    enter("cuMemCreate", args, |world| {
        allowed(world, "vmm")?;
        let to = place(handle)?;
        // SAFETY: null, or properties by the caller's promise.
        let prop = unsafe { prop.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let len = size as u64;
        if flags != 0 || len == 0 || !len.is_multiple_of(world.settings.granularity) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let lies = judge(world, prop)?;
        if lies.device().is_none() {
            world.charge_host();
        }
        world.charge(0, len);
        let made = change(world, |space| space.create(lies, len, *prop))?;
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *to = made };
        Ok(())
    })
}

/// Releases a handle once; memory ends with its last handle, mapping and export.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    enter(
        "cuMemRelease",
        || format!("handle={handle:#x}"),
        |world| {
            allowed(world, "vmm")?;
            let (len, host) = change(world, |space| {
                let (_, phys) = space.pages.of_handle(handle, "cuMemRelease")?;
                let told = (phys.len, phys.place.device().is_none());
                space.pages.release(handle, space.call)?;
                Ok(told)
            })?;
            if host {
                world.charge_host();
            }
            world.charge(0, len);
            Ok(())
        },
    )
}

/// Maps the start of a handle's memory at reserved addresses, without access.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    let args =
        || format!("ptr={ptr:#x}, size={size}, offset={offset}, handle={handle:#x}, flags={flags}");
    enter("cuMemMap", args, |world| {
        allowed(world, "vmm")?;
        world.charge(1, size as u64);
        let (len, offset) = (size as u64, offset as u64);
        change(world, |space| space.map(ptr, len, offset, handle, flags))
    })
}

/// Unmaps whole mappings. Work that is queued and touches them will fail when it runs.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult {
    enter_waiting(
        "cuMemUnmap",
        || format!("ptr={ptr:#x}, size={size}"),
        |world| {
            allowed(world, "vmm")?;
            let range = Range { start: ptr, len: size as u64 };
            let waits = world.settings.unmap_waits;
            let wait = if waits { quiet(world, None).even_if_failed() } else { Wait::nothing() };
            if !waits && let Some(who) = queued_use(world, range) {
                let text = format!("cuMemUnmap of {range}: {who}");
                misuse::record("unmap of memory in use by queued work", text);
            }
            Ok(wait.then(move |world| {
                let mappings = change(world, |space| space.unmap(range))?;
                world.charge(mappings, range.len);
                Ok(())
            }))
        },
    )
}

/// Sets the rights of some locations to whole mappings.
///
/// # Safety
///
/// `desc` is null or `count` descriptions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    enter(
        "cuMemSetAccess",
        || format!("ptr={ptr:#x}, size={size}, count={count}"),
        |world| {
            allowed(world, "vmm")?;
            if desc.is_null() || count == 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null, and `count` descriptions by the caller's promise.
            let wishes = unsafe { std::slice::from_raw_parts(desc, count) };
            let range = Range { start: ptr, len: size as u64 };
            let mut contexts = [0; crate::memory::DEVICES_MAX];
            for context in world.contexts.values() {
                if let Some(count) = contexts.get_mut(context.state.device as usize) {
                    *count += 1;
                }
            }
            let done = change(world, |space| {
                space.budget.contexts = contexts;
                space.set_access(range, wishes)
            });
            world.charge(done.unwrap_or(1), range.len);
            done.map(|_| ())
        },
    )
}

/// A location's rights at an address.
///
/// # Safety
///
/// `flags` is null or a place for a number; `location` is null or a location.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAccess(
    flags: *mut u64,
    location: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> CUresult {
    enter(
        "cuMemGetAccess",
        || format!("ptr={ptr:#x}"),
        |world| {
            allowed(world, "vmm")?;
            let to = place(flags)?;
            // SAFETY: null, or a location by the caller's promise.
            let location = *unsafe { location.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let found = world.memory.ask(|space| space.get_access(ptr, location))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = found };
            Ok(())
        },
    )
}

/// The handle behind an address, which must be released once more for it.
///
/// # Safety
///
/// `handle` is null or a place for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CUresult {
    enter(
        "cuMemRetainAllocationHandle",
        || format!("addr={addr:p}"),
        |world| {
            allowed(world, "vmm")?;
            let to = place(handle)?;
            let at = place(addr)? as u64;
            let found = change(world, |space| space.retain_handle(at))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = found };
            Ok(())
        },
    )
}

/// What a handle's memory was created with.
///
/// # Safety
///
/// `prop` is null or a place for properties.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    let name = "cuMemGetAllocationPropertiesFromHandle";
    enter(
        name,
        || format!("handle={handle:#x}"),
        |world| {
            allowed(world, "vmm")?;
            let to = place(prop)?;
            let found =
                world.memory.ask(|space| Ok(space.pages.of_handle(handle, name)?.1.prop))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = found };
            Ok(())
        },
    )
}
