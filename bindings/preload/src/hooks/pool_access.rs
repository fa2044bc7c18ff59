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

/// `CUmemAccessDesc`: a place and what it may do there, 0: nothing.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Access {
    kind: c_int,
    device: Device,
    flags: c_int,
}

/// The device whose default memory pool this is.
fn owner_of(pool: Handle) -> Option<Device> {
    type Count = unsafe extern "C" fn(*mut c_int) -> Result;
    let found = loader::symbol(loader::driver(true), c"cuDeviceGetCount");
    let mut count = 0;
    if found != 0 {
        // SAFETY: the driver's function of this name has this type; a local to fill.
        plainly(|| unsafe { std::mem::transmute::<usize, Count>(found)(&raw mut count) });
    }
    let mut devices = 0..count.min(place::DEVICES_MAX as c_int);
    devices.find(|device| pool != 0 && default_pool(*device) == pool)
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAccess(
    pool: Handle,
    map: *const Access,
    count: usize,
) -> Result {
    let call = |map: *const Access, count: usize| {
        plainly(|| driver!(MemPoolSetAccess(pool => Handle, map => *const Access, count => usize)))
    };
    let result = call(map, count);
    if result != SUCCESS || map.is_null() || thread::with(thread::Thread::is_inside) {
        return result;
    }
    let Some(owner) = owner_of(pool) else { return result };
    let mut done = Vec::new();
    for at in 0..count {
        // SAFETY: the driver has just read `count` of them.
        let wish = unsafe { *map.add(at) };
        if wish.kind != OF_DEVICE || wish.device == owner {
            continue;
        }
        let had = place::reaches_pool(owner, wish.device);
        let status = place::set_reach(owner, wish.device, wish.flags != 0, Said::MemoryPool);
        done.push((wish, had));
        if status == pool::OK {
            continue;
        }
        // What the driver has opened that was not open before is closed again.
        for (wish, _) in done.into_iter().filter(|(wish, had)| wish.flags != 0 && !had) {
            place::set_reach(owner, wish.device, false, Said::MemoryPool);
            call(&Access { flags: 0, ..wish }, 1);
        }
        return match status {
            pool::TOO_MANY_PEERS => cuda::TOO_MANY_PEERS,
            _ => cuda::PEER_ACCESS_UNSUPPORTED,
        };
    }
    SUCCESS
}
