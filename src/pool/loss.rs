//! The context is lost: what a pool does when its device's context is gone.
//!
//! Promises: the call that learns it fails with one clear error; from then on every allocation
//! does, every free is a silent success, the accounts can still be read, and the pool's end makes
//! no driver call. Other devices' pools go on, and a pool that is made afterwards works in the
//! context that the device has then.
//!
//! A thread's magazines could go on handing out memory that is gone, so every hot path closes at
//! once (the process's epoch moves on), and a thread that opens its own again forgets the caches
//! of lost pools first. Cost: none until a context is lost.

use super::{Shared, cache};
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::driver::fuse::Fuse;
use crate::driver::{Call, Code, DriverError};
use crate::error::{Error, Status};

/// Pools whose context was lost, in all.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Whether any pool's context was ever lost.
pub fn any_lost() -> bool {
    LOST.load(Ordering::Acquire) > 0
}

/// Has pool `id`, which `shared` serves, closed to the hot path when `fuse` blows.
pub fn watch(fuse: &Fuse, shared: &'static Shared, id: u64) {
    fuse.on_loss(move || {
        if shared.id.load(Ordering::Acquire) == id {
            shared.lost.store(true, Ordering::Release);
            LOST.fetch_add(1, Ordering::Release);
            cache::EPOCH.fetch_add(1, Ordering::Release);
        }
    });
}

/// The error of everything that needs the memory.
#[cold]
pub fn lost() -> Error {
    Error::new(
        Status::ContextLost,
        "the device's context is lost (a kernel failed, or the program destroyed the context or \
         reset the device), and this pool's memory with it; destroy the pool, and make a new one \
         once the device works again (the default pool: forebay_device_reset ends it)",
    )
}

/// The same as a driver's answer.
pub fn lost_call(call: Call) -> DriverError {
    DriverError { call, code: Code::ContextLost }
}
