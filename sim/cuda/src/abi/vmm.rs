//! Virtual memory: reservations, physical handles, mappings, access.

use crate::entry::Call;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[];
