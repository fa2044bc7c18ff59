//! Memory pools and stream-ordered allocation.

use crate::entry::Call;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[];
