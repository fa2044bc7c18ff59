//! The driver's functions as this library answers them.
//!
//! Each file holds one group. Every function has CUDA's own type. Promises: arguments are passed on
//! unchanged; outputs are written on success only; a call made by the pool, or by the driver on its
//! account, is the driver's own at once.

pub mod capture;
pub mod context;
pub mod ipc;
pub mod memory;
pub mod other;
pub mod pool_access;
pub mod query;
pub mod runtime;
pub mod stream;
pub mod stream_memory;

use crate::cuda::{OUT_OF_MEMORY, Result};
use crate::place;
use crate::thread::{self, Thread};

/// Calls the driver's function of an [`crate::lookup::Entry`]; 500 where it has none.
macro_rules! driver {
    ($entry:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        let real = $crate::lookup::real($crate::lookup::Entry::$entry);
        if real == 0 {
            $crate::cuda::NOT_FOUND
        } else {
            type Real = unsafe extern "C" fn($($type),*) -> $crate::cuda::Result;
            // SAFETY: the driver's function of this name has this type, and it gets what the
            // program gave.
            unsafe { std::mem::transmute::<usize, Real>(real)($($argument),*) }
        }
    }};
}
pub(crate) use driver;

/// The number of an entry's row, for the counters.
macro_rules! row {
    ($entry:ident) => {
        $crate::lookup::Entry::$entry as usize
    };
}
pub(crate) use row;

/// Makes an allocation of the driver's, once more after the pools have given back what is idle if
/// it failed for want of memory.
pub fn pass_on(thread: &Thread, row: usize, call: impl Fn() -> Result) -> Result {
    if thread.is_inside() {
        return call();
    }
    crate::count::passed(thread, row);
    match thread.inside(&call) {
        OUT_OF_MEMORY if place::trim_all() => thread.inside(&call),
        result => result,
    }
}

/// A call of the driver's with nothing around it.
pub fn plainly(call: impl FnOnce() -> Result) -> Result {
    thread::with(|thread| thread.inside(call))
}
