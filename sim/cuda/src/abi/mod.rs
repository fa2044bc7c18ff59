//! The exported functions: unpack, call, answer. No rule of CUDA lives here that a room below
//! could hold.
//!
//! Each file owns a group of `cu*` functions and its part of the table of calls, `CALLS`.
//! Null pointers are refused before anything is read through them. Names, argument
//! orders and structures are those of CUDA 12's `cuda.h`.

pub mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod init;
pub mod launch;
pub mod limits;
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
    capture::CALLS,
    context::CALLS,
    copy::CALLS,
    device::CALLS,
    event::CALLS,
    init::CALLS,
    launch::CALLS,
    limits::CALLS,
    memory::CALLS,
    mempool::CALLS,
    pointer::CALLS,
    primary::CALLS,
    share::CALLS,
    stream::CALLS,
    symbols::CALLS,
    vmm::CALLS,
];
