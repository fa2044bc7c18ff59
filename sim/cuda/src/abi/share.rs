//! Memory between processes: exported handles, dma-buf, legacy IPC.

use crate::entry::Call;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[];
