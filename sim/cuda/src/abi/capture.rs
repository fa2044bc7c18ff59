//! Stream captures and the graphs that they make.

use crate::entry::Call;

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[];
