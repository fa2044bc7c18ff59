//! Host memory of the host device: what stands for page-locked memory beside a GPU.
//!
//! Owns nothing but entries in the tables of [`super::memory`]. Promises that such memory counts
//! for nothing of the device's. It is not locked: here a copy is the CPU's, whatever lies there.
//! Cost: one lock and one system call.

use super::memory::{Memory, error, fail, mapping_error};
use super::sys;
use crate::driver::{Call, Code, DriverResult};

impl Memory {
    pub(super) fn host_alloc(&self, bytes: usize) -> DriverResult<usize> {
        let call = Call::HostAlloc;
        let Some(rounded) = bytes.checked_next_multiple_of(sys::page_size()) else {
            return fail(call, Code::OutOfMemory);
        };
        if bytes == 0 {
            return fail(call, Code::InvalidValue);
        }
        let mut tables = self.tables();
        tables.spare.refill();
        let address =
            sys::allocate(rounded).map_err(|errno| error(call, errno, Code::OutOfMemory))?;
        tables.host.insert(address, rounded);
        Ok(address)
    }

    pub(super) fn host_free(&self, address: usize) -> DriverResult<()> {
        let call = Call::HostFree;
        let mut tables = self.tables();
        let Some(&bytes) = tables.host.get(&address) else {
            return fail(call, Code::InvalidValue);
        };
        // SAFETY: the range is one whole allocation of ours; its owner gives it up.
        let done = tables.spare.help(|| unsafe { sys::free(address, bytes) });
        done.map_err(|errno| mapping_error(call, errno))?;
        tables.host.remove(&address);
        Ok(())
    }
}
