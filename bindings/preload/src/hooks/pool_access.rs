//! `cuMemPoolSetAccess`: which devices reach the default memory pool's memory. The pool stands in
//! for that one, so they reach the pool's memory too, or the call is refused and nothing changes.
//! Other memory pools are the driver's. Cost: a driver call for each row of mapped memory and each
//! device whose access changes.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::stream_memory::default_pool;
use super::{driver, plainly};
use crate::cuda::{self, Device, Handle, Result, SUCCESS};
use crate::place::{self, Said};
use crate::{loader, pool, thread};
use std::ffi::c_int;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const OF_DEVICE: c_int = 1;

/// Entries of a list that are looked at; the driver has a few devices, and the host.
const LIST_MAX: usize = 4096;

/// `CUmemAccessDesc`: a place and what it may do there, 0: nothing.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Access {
    kind: c_int,
    device: Device,
    flags: c_int,
}

/// How many devices there are.
fn devices() -> c_int {
    type Count = unsafe extern "C" fn(*mut c_int) -> Result;
    let found = loader::symbol(loader::driver(true), c"cuDeviceGetCount");
    let mut count = 0;
    if found != 0 {
        // SAFETY: the driver's function of this name has this type; a local to fill.
        plainly(|| unsafe { std::mem::transmute::<usize, Count>(found)(&raw mut count) });
    }
    count.min(place::DEVICES_MAX as c_int)
}

/// The device whose default memory pool this is.
fn owner_of(pool: Handle) -> Option<Device> {
    (0..devices()).find(|device| pool != 0 && default_pool(*device) == pool)
}

/// What the pool is asked for: other devices, each with its last wish, those that gain access
/// first, since a pool that refuses does so then. Nothing: the driver refuses the list.
fn wishes(owner: Device, list: &[Access]) -> Option<Vec<(Device, bool)>> {
    let devices = devices();
    let mut wishes: Vec<(Device, bool)> = Vec::new();
    for wish in list.iter().filter(|wish| wish.kind == OF_DEVICE && wish.device != owner) {
        if !(0..devices).contains(&wish.device) {
            return None;
        }
        wishes.retain(|(device, _)| *device != wish.device);
        wishes.push((wish.device, wish.flags != 0));
    }
    wishes.sort_by_key(|(_, access)| !access);
    Some(wishes)
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAccess(
    pool: Handle,
    map: *const Access,
    count: usize,
) -> Result {
    let call = || {
        plainly(|| driver!(MemPoolSetAccess(pool => Handle, map => *const Access, count => usize)))
    };
    let is_list = !map.is_null() && map.is_aligned() && count <= LIST_MAX;
    if !is_list || thread::with(thread::Thread::is_inside) {
        return call();
    }
    let Some(owner) = owner_of(pool) else { return call() };
    // SAFETY: the program's list; the driver reads as many.
    let list = unsafe { std::slice::from_raw_parts(map, count) };
    let Some(wishes) = wishes(owner, list) else { return call() };
    let mut done = Vec::new();
    let mut status = pool::OK;
    for (device, access) in wishes {
        let had = place::reaches_pool(owner, device);
        status = place::set_reach(owner, device, access, Said::MemoryPool);
        if status != pool::OK {
            break;
        }
        done.push((device, had));
    }
    let result = match status {
        pool::OK => call(),
        pool::TOO_MANY_PEERS => cuda::TOO_MANY_PEERS,
        _ => cuda::PEER_ACCESS_UNSUPPORTED,
    };
    if result != SUCCESS {
        for (device, had) in done.into_iter().rev() {
            place::put_reach_back(owner, device, had);
        }
    }
    result
}
