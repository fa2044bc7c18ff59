//! Plain memory: device, pitched, managed and host allocations; what is free.
//!
//! `cuMemFree` and the ends of host memory wait for work that is queued on the device, or on
//! all devices, with no lock held; then they free. All need a current context.

use super::device::place;
use super::vmm::{change, quiet};
use crate::call;
use crate::entry::{Call, Wait, enter, enter_waiting};
use crate::memory::Range;
use crate::memory::host::{Asker, HostKind};
use crate::memory::plain::{Kind, PITCH};
use crate::memory::refused::Refused;
use crate::memory::touch::Spot;
use crate::misuse;
use crate::settings::AddressRange;
use crate::types::*;
use crate::world::World;
use std::ffi::c_void;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuMemGetInfo_v2, "cuMemGetInfo", 3020),
    call!(cuMemAlloc_v2, "cuMemAlloc", 3020).unsafe_in_capture(),
    call!(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020).unsafe_in_capture(),
    call!(cuMemFree_v2, "cuMemFree", 3020).unsafe_in_capture(),
    call!(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020),
    call!(cuMemAllocManaged, 6000).unsafe_in_capture(),
    call!(cuMemAllocHost_v2, "cuMemAllocHost", 3020).unsafe_in_capture(),
    call!(cuMemHostAlloc, 2020).unsafe_in_capture(),
    call!(cuMemFreeHost, 2000).unsafe_in_capture(),
    call!(cuMemHostGetDevicePointer_v2, "cuMemHostGetDevicePointer", 3020),
    call!(cuMemHostGetFlags, 2030),
    call!(cuMemHostRegister, 4000).unsafe_in_capture(),
    call!(cuMemHostRegister_v2, "cuMemHostRegister", 6050).unsafe_in_capture(),
    call!(cuMemHostUnregister, 4000).unsafe_in_capture(),
];

/// `CU_MEMHOSTALLOC_DEVICEMAP`: with unified addressing all host memory is mapped.
const DEVICE_MAP: u32 = 2;

/// The current context and its device.
fn asker(world: &World) -> Result<Asker, CUresult> {
    let state = world.current_context()?;
    let device = u32::try_from(state.device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
    Ok(Asker { context: state.id, device })
}

/// Free and total bytes of the current context's device.
///
/// # Safety
///
/// Both are null or places for sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    enter("cuMemGetInfo_v2", String::new, |world| {
        let (to_free, to_total) = (place(free)?, place(total)?);
        let device = asker(world)?.device;
        let none = || Refused::new(CUDA_ERROR_INVALID_DEVICE, "no such device");
        let (free, total) = change(world, |space| space.pages.info(device).ok_or_else(none))?;
        // SAFETY: not null; CUDA asks the caller for writable places.
        unsafe {
            *to_free = free as usize;
            *to_total = total as usize;
        }
        Ok(())
    })
}

/// Allocates device memory in the current context.
///
/// # Safety
///
/// `dptr` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult {
    enter(
        "cuMemAlloc_v2",
        || format!("bytesize={bytesize}"),
        |world| {
            let to = place(dptr)?;
            let at = plain(world, bytesize as u64)?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = at };
            Ok(())
        },
    )
}

fn plain(world: &mut World, len: u64) -> Result<u64, CUresult> {
    let Asker { context, device } = asker(world)?;
    world.charge(1, len);
    change(world, |space| space.alloc(device, context, len, Kind::Alloc))
}

/// Allocates rows of device memory, each at a multiple of 512 bytes.
///
/// # Safety
///
/// `dptr` and `pitch` are null or places for an address and a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    dptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    enter(
        "cuMemAllocPitch_v2",
        || format!("width={width}, height={height}, element={element}"),
        |world| {
            let (to, to_pitch) = (place(dptr)?, place(pitch)?);
            if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let row = (width as u64).checked_next_multiple_of(PITCH);
            let bytes = row.and_then(|row| row.checked_mul(height as u64));
            let (Some(row), Some(bytes)) = (row, bytes) else {
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            };
            let at = plain(world, bytes)?;
            // SAFETY: not null; CUDA asks the caller for writable places.
            unsafe {
                *to = at;
                *to_pitch = row as usize;
            }
            Ok(())
        },
    )
}

/// Frees plain or managed memory once the device has done its queued work. Memory of a pool or a
/// graph is freed at once.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    enter_waiting(
        "cuMemFree_v2",
        || format!("dptr={dptr:#x}"),
        |world| {
            if dptr == 0 {
                return Ok(Wait::nothing());
            }
            let view = world.memory.view();
            if let Some(Spot::Host(start, block)) = view.spot(dptr)
                && start == dptr
                && block.kind == HostKind::Managed
            {
                drop(view);
                return Ok(quiet(world, None).then(move |world| {
                    change(world, |space| space.host_free(dptr, HostKind::Managed))
                }));
            }
            drop(view);
            let (kind, device, len) = world
                .memory
                .ask(|space| space.freeable(dptr).map(|b| (b.kind, b.device, b.len)))?;
            let wait = match kind {
                Kind::Pool(_) | Kind::Graph(_) => Wait::nothing(),
                _ => quiet(world, Some(device)),
            };
            Ok(wait.then(move |world| {
                world.charge(1, len);
                if matches!(kind, Kind::Graph(_)) {
                    return world.engine.graph_free_now(dptr);
                }
                change(world, |space| {
                    if space.is_open_elsewhere(dptr) {
                        let text = format!("cuMemFree: {dptr:#x}");
                        misuse::record("free of memory that another process has open", text);
                    }
                    space.free(dptr)
                })?;
                if matches!(kind, Kind::Pool(_)) {
                    world.engine.pool_forget(dptr);
                }
                Ok(())
            }))
        },
    )
}

/// The allocation or mapping around an address: 500 when there is none.
///
/// # Safety
///
/// `base` and `size` are null or places; a null one is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    dptr: CUdeviceptr,
) -> CUresult {
    enter(
        "cuMemGetAddressRange_v2",
        || format!("dptr={dptr:#x}"),
        |world| {
            let hide = world.settings.address_range == AddressRange::NotFound;
            let view = world.memory.view();
            let (start, len) = match view.spot(dptr) {
                Some(Spot::Mapped(..)) if hide => return Err(CUDA_ERROR_NOT_FOUND),
                Some(Spot::Mapped(start, mapping)) => (start, mapping.len),
                Some(Spot::Plain(start, block)) => (start, block.len),
                Some(Spot::Host(start, block)) => (start, block.len),
                None => return Err(CUDA_ERROR_NOT_FOUND),
            };
            if !base.is_null() {
                // SAFETY: not null; CUDA asks the caller for a writable place.
                unsafe { *base = start };
            }
            if !size.is_null() {
                // SAFETY: as above.
                unsafe { *size = len as usize };
            }
            Ok(())
        },
    )
}

/// Allocates host memory of a kind and writes its address.
///
/// # Safety
///
/// `to` is null or a place for an address.
unsafe fn host(
    name: &'static str,
    to: *mut u64,
    len: usize,
    kind: HostKind,
    flags: u32,
) -> CUresult {
    enter(
        name,
        || format!("bytesize={len}, flags={flags}"),
        |world| {
            let to = place(to)?;
            let who = asker(world)?;
            world.charge_host();
            world.charge(1, len as u64);
            let at = change(world, |space| space.host_alloc(who, len as u64, kind, flags))?;
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = at };
            Ok(())
        },
    )
}

/// Allocates memory that host and devices reach by one address.
///
/// # Safety
///
/// `dptr` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { host("cuMemAllocManaged", dptr, bytesize, HostKind::Managed, flags) }
}

/// Allocates pinned host memory.
///
/// # Safety
///
/// `pp` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CUresult {
    // SAFETY: the caller's promise; an address is as wide as the number.
    unsafe { host("cuMemAllocHost_v2", pp.cast(), bytesize, HostKind::Pinned, 0) }
}

/// Allocates pinned host memory with flags.
///
/// # Safety
///
/// `pp` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    pp: *mut *mut c_void,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    // SAFETY: the caller's promise; an address is as wide as the number.
    unsafe { host("cuMemHostAlloc", pp.cast(), bytesize, HostKind::Pinned, flags) }
}

/// Frees pinned host memory once all queued work is done.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(p: *mut c_void) -> CUresult {
    let at = p as u64;
    enter_waiting(
        "cuMemFreeHost",
        || format!("p={at:#x}"),
        |world| {
            if p.is_null() {
                return Ok(Wait::nothing());
            }
            Ok(quiet(world, None).then(move |world| {
                world.charge_host();
                change(world, |space| space.host_free(at, HostKind::Pinned))
            }))
        },
    )
}

/// The address by which devices reach host memory: the same one.
///
/// # Safety
///
/// `pdptr` is null or a place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    pdptr: *mut CUdeviceptr,
    p: *mut c_void,
    flags: u32,
) -> CUresult {
    enter(
        "cuMemHostGetDevicePointer_v2",
        || format!("p={p:p}, flags={flags}"),
        |world| {
            let (to, at) = (place(pdptr)?, place(p)? as u64);
            if flags != 0 || !world.memory.view().is_host(at) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = at };
            Ok(())
        },
    )
}

/// The flags that pinned memory was allocated with.
///
/// # Safety
///
/// `flags` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetFlags(flags: *mut u32, p: *mut c_void) -> CUresult {
    enter(
        "cuMemHostGetFlags",
        || format!("p={p:p}"),
        |world| {
            let (to, at) = (place(flags)?, place(p)? as u64);
            let view = world.memory.view();
            let Some(Spot::Host(_, block)) = view.spot(at) else {
                return Err(CUDA_ERROR_INVALID_VALUE);
            };
            if block.kind != HostKind::Pinned {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = block.flags | DEVICE_MAP };
            Ok(())
        },
    )
}

fn register(name: &'static str, p: *mut c_void, bytesize: usize, flags: u32) -> CUresult {
    let range = Range { start: p as u64, len: bytesize as u64 };
    enter(
        name,
        || format!("{range}, flags={flags}"),
        |world| {
            let who = asker(world)?;
            world.charge_host();
            world.charge(0, range.len);
            change(world, |space| space.register(who, range, flags))
        },
    )
}

/// Registers host memory of the program; the form before CUDA 6.5.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister(p: *mut c_void, bytesize: usize, flags: u32) -> CUresult {
    register("cuMemHostRegister", p, bytesize, flags)
}

/// Registers host memory of the program.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32) -> CUresult {
    register("cuMemHostRegister_v2", p, bytesize, flags)
}

/// Ends a registration once all queued work is done.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(p: *mut c_void) -> CUresult {
    let at = p as u64;
    enter_waiting(
        "cuMemHostUnregister",
        || format!("p={at:#x}"),
        |world| {
            Ok(quiet(world, None).then(move |world| {
                world.charge_host();
                change(world, |space| space.unregister(at))
            }))
        },
    )
}
