//! What programs ask about memory: how much there is, where a block begins and ends, what kind it
//! is; and what they hand on to others, by which a block must stay where it is.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::memory::serving;
use super::{driver, plainly, row};
use crate::cuda::pointer as attribute;
use crate::cuda::{DevicePtr, Handle, INVALID_VALUE, NOT_FOUND, Result, SUCCESS};
use crate::ipc::{self, isolate};
use crate::pool::{self, Api};
use crate::{count, place, sizes, thread};
use std::ffi::{c_int, c_uint, c_void};

/// # Safety
/// As of the driver's, but that either place may be NULL, as programs pass it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Result {
    thread::with(|thread| {
        if place::made().is_some()
            && let Some((pool, api)) = serving(thread)
        {
            // SAFETY: NULL or places of the caller's.
            let status = thread.inside(|| unsafe { (api.mem_info)(pool, free, total) });
            if status == pool::OK {
                count::served(thread, row!(MemGetInfo));
                return SUCCESS;
            }
        }
        if !thread.is_inside() {
            count::passed(thread, row!(MemGetInfo));
        }
        let (mut own_free, mut own_total) = (0, 0);
        let free = if free.is_null() { &raw mut own_free } else { free };
        let total = if total.is_null() { &raw mut own_total } else { total };
        thread.inside(|| driver!(MemGetInfo(free => *mut usize, total => *mut usize)))
    })
}

/// What the pool says of an address.
pub enum Owned {
    /// Not the pool's.
    No,
    /// The pool's, and no live block.
    Free,
    /// In the live block with this start and requested length.
    Block(usize, usize),
}

/// Asks the pool about an address.
pub fn owned(address: DevicePtr) -> Owned {
    let Some(api) = pool::api().filter(|_| !thread::with(thread::Thread::is_inside)) else {
        return Owned::No;
    };
    match ipc::imported(address) {
        Some((base, bytes)) => Owned::Block(base, bytes),
        // The block's neighbours are another process's.
        None if ipc::is_on_imported_page(address) => Owned::Free,
        None => block(api, address),
    }
}

fn block(api: &Api, address: DevicePtr) -> Owned {
    let (mut base, mut usable) = (0, 0);
    let status = thread::with(|thread| {
        // SAFETY: locals to fill; the address is only compared.
        thread.inside(|| unsafe {
            (api.block_range)(address as usize, &raw mut base, &raw mut usable)
        })
    });
    match status {
        pool::OK => {
            let requested = match isolate::is_on() {
                true => isolate::requested(base).map_or(usable, |bytes| bytes.min(usable)),
                false => sizes::requested(base, usable),
            };
            // What lies behind the request is not the program's.
            if address as usize - base < requested.max(1) {
                Owned::Block(base, requested)
            } else {
                Owned::Free
            }
        }
        pool::DOUBLE_FREE => Owned::Free,
        _ => Owned::No,
    }
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut DevicePtr,
    bytes: *mut usize,
    address: DevicePtr,
) -> Result {
    match owned(address) {
        Owned::No => plainly(|| {
            driver!(MemGetAddressRange(
                base => *mut DevicePtr, bytes => *mut usize, address => DevicePtr,
            ))
        }),
        Owned::Free => NOT_FOUND,
        Owned::Block(start, length) => {
            // SAFETY: each is NULL, which CUDA allows, or the caller's place.
            unsafe {
                if !base.is_null() {
                    *base = start as DevicePtr;
                }
                if !bytes.is_null() {
                    *bytes = length;
                }
            }
            SUCCESS
        }
    }
}

/// Writes what the pool knows better of an attribute. Whether it does.
///
/// # Safety
/// `data` has room for the attribute's value.
unsafe fn answer(data: *mut c_void, which: c_int, base: usize, bytes: usize) -> bool {
    // SAFETY: as promised; the types are those of `cuda.h`.
    unsafe {
        match which {
            attribute::RANGE_START => data.cast::<DevicePtr>().write_unaligned(base as DevicePtr),
            attribute::RANGE_SIZE => data.cast::<usize>().write_unaligned(bytes),
            // A `bool`, of which CUDA writes the byte. Other processes' memory has a handle there.
            attribute::IS_LEGACY_IPC_CAPABLE => {
                let own = ipc::imported(base as DevicePtr).is_none();
                data.cast::<u8>().write(u8::from(own));
            }
            attribute::BUFFER_ID => match sizes::number(base) {
                Some(number) => data.cast::<u64>().write_unaligned(number),
                None => return false,
            },
            attribute::CONTEXT => match context_of(base) {
                Some(context) => data.cast::<Handle>().write_unaligned(context),
                None => return false,
            },
            _ => return false,
        }
    }
    true
}

/// The context that an address of a pool belongs to.
fn context_of(address: usize) -> Option<Handle> {
    let api = pool::api()?;
    let mut pool = 0;
    // SAFETY: a local to fill.
    let found = plainly(|| unsafe { (api.pool_of)(address, &raw mut pool) });
    if found == pool::OK { place::context_of(pool) } else { None }
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    which: c_int,
    address: DevicePtr,
) -> Result {
    if !data.is_null()
        && let Owned::Block(base, bytes) = owned(address)
        // SAFETY: not null; CUDA asks the caller for room.
        && unsafe { answer(data, which, base, bytes) }
    {
        return SUCCESS;
    }
    plainly(|| {
        driver!(PointerGetAttribute(
            data => *mut c_void, which => c_int, address => DevicePtr,
        ))
    })
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    which: *mut c_int,
    data: *mut *mut c_void,
    address: DevicePtr,
) -> Result {
    let result = plainly(|| {
        driver!(PointerGetAttributes(
            count => c_uint,
            which => *mut c_int,
            data => *mut *mut c_void,
            address => DevicePtr,
        ))
    });
    if result == SUCCESS
        && let Owned::Block(base, bytes) = owned(address)
    {
        for i in 0..count as usize {
            // SAFETY: the driver has just read `count` of both, and written through each.
            unsafe {
                let to = *data.add(i);
                if !to.is_null() {
                    answer(to, *which.add(i), base, bytes);
                }
            }
        }
    }
    result
}

/// Runs a call by which others learn a block's place: its pages stay there from now on.
fn pinned(address: DevicePtr, call: impl FnOnce() -> Result) -> Result {
    let (Owned::Block(base, _), Some(api)) = (owned(address), pool::api()) else {
        return plainly(call);
    };
    // SAFETY: the start of a live block.
    let pinned = plainly(|| unsafe { (api.pin)(base) }) == pool::OK;
    let result = plainly(call);
    if pinned && result != SUCCESS {
        // SAFETY: as above.
        plainly(|| unsafe { (api.unpin)(base) });
    }
    result
}

/// The same for all blocks that begin in a range or reach into it.
fn pinned_range(address: DevicePtr, bytes: usize, call: impl FnOnce() -> Result) -> Result {
    /// Where blocks may begin.
    const STEP: usize = 256;
    let Some(api) = pool::api() else { return plainly(call) };
    let (mut at, mut pins) = (address as usize, Vec::new());
    let end = at.saturating_add(bytes);
    while at < end {
        let next = match owned(at as DevicePtr) {
            Owned::No => break,
            Owned::Free => at,
            Owned::Block(base, length) => {
                // SAFETY: the start of a live block.
                if plainly(|| unsafe { (api.pin)(base) }) == pool::OK {
                    pins.push(base);
                }
                base + length.max(1) - 1
            }
        };
        at = next - next % STEP + STEP;
    }
    let result = plainly(call);
    if result != SUCCESS {
        for base in pins {
            // SAFETY: as above.
            plainly(|| unsafe { (api.unpin)(base) });
        }
    }
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerSetAttribute(
    data: *const c_void,
    which: c_int,
    address: DevicePtr,
) -> Result {
    let call = || {
        driver!(PointerSetAttribute(
            data => *const c_void, which => c_int, address => DevicePtr,
        ))
    };
    // Asked for before memory is registered with a network card.
    if which == attribute::SYNC_MEMOPS { pinned(address, call) } else { plainly(call) }
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut u64,
    address: *mut c_void,
) -> Result {
    // As for memory from `cuMemAlloc`: whoever tries takes its way by legacy handles then.
    if !matches!(owned(address as DevicePtr), Owned::No) {
        return INVALID_VALUE;
    }
    plainly(|| driver!(RetainHandle(handle => *mut u64, address => *mut c_void)))
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: DevicePtr,
    bytes: usize,
    kind: c_int,
    flags: u64,
) -> Result {
    pinned_range(address, bytes, || {
        driver!(HandleForRange(
            handle => *mut c_void,
            address => DevicePtr,
            bytes => usize,
            kind => c_int,
            flags => u64,
        ))
    })
}
