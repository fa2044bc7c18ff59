//! Copies and fills, ordered by a stream or not.

use crate::entry::Call;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[];
