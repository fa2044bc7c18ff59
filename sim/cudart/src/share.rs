//! Memory shared between processes by handle.

use crate::entry::{export, place};
use crate::state;
use crate::types::*;

export! {
    /// A handle for another process to open this memory by.
    fn cudaIpcGetMemHandle(handle: *mut IpcHandle, at: u64) {
        state::ready()?.cuIpcGetMemHandle(place(handle)?, at)
    }

    /// Opens another process's memory.
    fn cudaIpcOpenMemHandle(to: *mut u64, handle: IpcHandle, flags: u32) {
        state::ready()?.cuIpcOpenMemHandle(place(to)?, handle, flags)
    }

    /// Closes it.
    fn cudaIpcCloseMemHandle(at: u64) {
        state::ready()?.cuIpcCloseMemHandle(at)
    }
}
