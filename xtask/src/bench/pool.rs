//! Group `pool`: time per operation, beside other allocators.
//!
//! Must run the shipped shared library, not the crate: an inlined build would measure less.

use super::Row;
use crate::Outcome;

/// Fails: no program for this group is built in.
pub fn run(_quick: bool) -> Outcome<Vec<Row>> {
    Err("not built in".to_owned())
}
