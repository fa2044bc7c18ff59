//! A few mappings kept aside, so that unmapping works at the kernel's limit on mappings.
//!
//! Owns some pages that nobody uses. The kernel refuses every `mmap` of a process past its
//! limit, also one that would lower the count, as turning a mapping back into reserved address
//! space does; and giving the range up first would leave a hole that another thread could
//! fill. Promises that giving the spare up makes room. It must not hold memory.
//! Cost: a few system calls, once a device and once each time the limit was met.

use super::sys::{self, Errno};

/// Mappings kept: one more than the two pieces an unmap may cut off, and a margin.
const COUNT: usize = 5;

/// The spare mappings, if there are any now.
#[derive(Default)]
pub(super) struct Spare {
    mappings: Option<sys::Apart>,
}

impl Spare {
    /// Sets mappings aside if there are none; without success where there is no room.
    pub(super) fn refill(&mut self) {
        if self.mappings.is_none() {
            self.mappings = sys::Apart::new(COUNT).ok();
        }
    }

    /// Runs a call; when the limit stops it, gives the spare up and runs it once more.
    pub(super) fn help(&mut self, call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        match call() {
            Err(libc::ENOMEM) if self.mappings.take().is_some() => call(),
            other => other,
        }
    }
}
