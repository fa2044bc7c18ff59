//! The exported functions: unpack, call, answer. No rule of CUDA lives here that a room below
//! could hold.
//!
//! Each file owns a group of `cu*` functions and its part of the table of calls, `CALLS`.
//! Null pointers are refused before anything is read through them. Names, argument
//! orders and structures are those of CUDA 12's `cuda.h`.

pub mod attach;
pub mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod fill;
pub mod graph;
pub mod graphmem;
pub mod init;
pub mod launch;
pub mod limits;
pub mod memop;
pub mod memory;
pub mod mempool;
pub mod pointer;
pub mod primary;
pub mod share;
pub mod stream;
pub mod symbols;
pub mod vmm;

use crate::entry::Call;

/// The parts of the table of calls, one a file.
pub static TABLES: &[&[Call]] = &[
    attach::CALLS,
    capture::CALLS,
    context::CALLS,
    copy::CALLS,
    device::CALLS,
    event::CALLS,
    fill::CALLS,
    graph::CALLS,
    graphmem::CALLS,
    init::CALLS,
    launch::CALLS,
    limits::CALLS,
    memop::CALLS,
    memory::CALLS,
    mempool::CALLS,
    pointer::CALLS,
    primary::CALLS,
    share::CALLS,
    stream::CALLS,
    symbols::CALLS,
    vmm::CALLS,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn rows_are_unique_and_named_as_cuda_does() {
        let mut names = BTreeSet::new();
        for call in crate::entry::calls() {
            assert!(names.insert(call.name), "{} has two rows", call.name);
            let plain = call.name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
            assert_eq!(call.per_thread, plain != call.name, "{}", call.name);
            let version = plain.strip_prefix(call.asked).unwrap_or("not its name");
            let known = version.is_empty() || version.starts_with("_v");
            assert!(known, "{} is asked for as {}", call.name, call.asked);
            assert!((2000..=13_050).contains(&call.since), "{}", call.name);
        }
    }
}
