//! Plain memory: device, pitched, managed and host allocations; what is free.

use crate::entry::Call;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[];
