//! Contexts: which one a thread works in, when one ends, and which devices reach its memory.
#![allow(non_snake_case, reason = "CUDA's names")]

use super::{driver, plainly};
use crate::cuda::{self, Device, Handle, Result, SUCCESS};
use crate::{place, pool, thread};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the call is the pool's, or the driver's on our account: nothing is noted then.
fn is_inside() -> bool {
    thread::with(thread::Thread::is_inside)
}

/// Defines functions after which the thread's current context may be another.
macro_rules! changes_current {
    ($($name:ident = $entry:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As of the driver's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Result {
            let result = plainly(|| driver!($entry($($argument => $type),*)));
            if !is_inside() {
                thread::forget();
            }
            result
        }
    )*};
}

changes_current! {
    cuCtxCreate_v2 = CtxCreate2(context: *mut Handle, flags: c_uint, device: Device);
    cuCtxCreate_v3 = CtxCreate3(
        context: *mut Handle, affinity: *mut c_void, count: c_int, flags: c_uint, device: Device
    );
    cuCtxCreate_v4 = CtxCreate4(
        context: *mut Handle, parameters: *mut c_void, flags: c_uint, device: Device
    );
    cuCtxSetCurrent = CtxSetCurrent(context: Handle);
    cuCtxPushCurrent_v2 = CtxPush(context: Handle);
    cuCtxPopCurrent_v2 = CtxPop(context: *mut Handle);
}

/// Uses of contexts that `cuCtxAttach` took, beside the one that a context is made with.
static USES: Mutex<BTreeMap<Handle, u64>> = Mutex::new(BTreeMap::new());

fn uses() -> MutexGuard<'static, BTreeMap<Handle, u64>> {
    USES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxAttach(context: *mut Handle, flags: c_uint) -> Result {
    let result = plainly(|| driver!(CtxAttach(context => *mut Handle, flags => c_uint)));
    if result == SUCCESS && !is_inside() && !context.is_null() {
        // SAFETY: the driver has just written it.
        *uses().entry(unsafe { *context }).or_default() += 1;
        thread::forget();
    }
    result
}

/// The context's last use ends it. It is the current one, and not a primary one, or the driver
/// refuses.
///
/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDetach(context: Handle) -> Result {
    let current = place::current().filter(|(current, _)| *current == context && !is_inside());
    let own = current.is_some_and(|(_, device)| !place::is_primary(context, device));
    let more = uses().get(&context).is_some_and(|more| *more > 0);
    if own && !more {
        place::end_context(context);
    }
    let result = plainly(|| driver!(CtxDetach(context => Handle)));
    if own && more && result == SUCCESS {
        uses().entry(context).and_modify(|more| *more -= 1);
    }
    if own && !more {
        thread::forget_all();
    } else {
        thread::forget();
    }
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDestroy_v2(context: Handle) -> Result {
    place::end_context(context);
    uses().remove(&context);
    let result = plainly(|| driver!(CtxDestroy(context => Handle)));
    thread::forget_all();
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: Device) -> Result {
    let result = plainly(|| driver!(PrimaryRetain(context => *mut Handle, device => Device)));
    if result == SUCCESS && !is_inside() {
        place::retained(device);
    }
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease(device: Device) -> Result {
    if !is_inside() && place::releases(device) {
        place::end_primary(device);
    }
    let result = plainly(|| driver!(PrimaryRelease1(device => Device)));
    thread::forget_all();
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: Device) -> Result {
    if !is_inside() && place::releases(device) {
        place::end_primary(device);
    }
    let result = plainly(|| driver!(PrimaryRelease(device => Device)));
    thread::forget_all();
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset(device: Device) -> Result {
    place::end_primary(device);
    let result = plainly(|| driver!(PrimaryReset1(device => Device)));
    thread::forget_all();
    result
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: Device) -> Result {
    place::end_primary(device);
    let result = plainly(|| driver!(PrimaryReset(device => Device)));
    thread::forget_all();
    result
}

/// The current context's device reaches all memory of another context: the pool's too.
///
/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> Result {
    let result = plainly(|| driver!(EnablePeer(peer => Handle, flags => c_uint)));
    let Some((_, device)) = place::current().filter(|_| result == SUCCESS) else { return result };
    let refused = match place::set_peer(peer, device, true) {
        pool::OK => return SUCCESS,
        pool::TOO_MANY_PEERS => cuda::TOO_MANY_PEERS,
        _ => cuda::PEER_ACCESS_UNSUPPORTED,
    };
    // Half of the peer's memory would be within reach.
    plainly(|| driver!(DisablePeer(peer => Handle)));
    refused
}

/// # Safety
/// As of the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDisablePeerAccess(peer: Handle) -> Result {
    let result = plainly(|| driver!(DisablePeer(peer => Handle)));
    if result == SUCCESS
        && let Some((_, device)) = place::current()
    {
        place::set_peer(peer, device, false);
    }
    result
}
