//! A CUDA driver without a GPU: every rule, delay and failure, over host memory.
//!
//! Built as a shared library with the SONAME `libcuda.so.1`, so that a program that opens the
//! driver gets this one when a test puts it first. It is a real implementation, strict where
//! the real driver is undefined: memory is pages of a memfd, mapped into reserved address ranges
//! with access rights; streams run late and out of order on purpose; a copy that touches memory
//! that is not there makes the context fail for good, and what a program did wrong is kept in a
//! list of misuse. Tests only: it is never installed and never shipped.
//!
//! # Floors
//!
//! | module | holds |
//! |---|---|
//! | [`abi`] | the exported `cu*` functions: unpack, call, answer |
//! | [`entry`] | the wrapper that every exported function runs in, and the table of calls |
//! | [`world`] | settings, devices, contexts: all that the world lock guards |
//! | [`engine`] | streams, events, the scheduler, captures |
//! | [`memory`] | the address map, pages, mappings, plain allocations |
//! | [`faults`], [`cost`], [`journal`], [`misuse`] | what goes wrong, what it costs, what is told |
//! | [`control`] | the `forebay_sim_*` functions beside `cu*` |
//!
//! # Locks
//!
//! World, then Engine, then Memory. The list of misuse, the virtual clock and a context's
//! sticky error are leaves that may be touched under any of them.
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "CUDA's own names for its functions and types"
)]

pub mod abi;
pub mod attributes;
pub mod control;
pub mod cost;
pub mod engine;
pub mod entry;
pub mod faults;
pub mod journal;
pub mod memory;
pub mod misuse;
pub mod results;
pub mod rng;
pub mod settings;
pub mod symbols;
pub mod types;
pub mod world;

/// Every exported function under one path, for tests that borrow their types.
#[allow(unused_imports, reason = "a file may export nothing")]
pub mod exports {
    pub use crate::abi::attach::*;
    pub use crate::abi::capture::*;
    pub use crate::abi::context::*;
    pub use crate::abi::copy::*;
    pub use crate::abi::device::*;
    pub use crate::abi::event::*;
    pub use crate::abi::fill::*;
    pub use crate::abi::graph::*;
    pub use crate::abi::graphmem::*;
    pub use crate::abi::init::*;
    pub use crate::abi::launch::*;
    pub use crate::abi::limits::*;
    pub use crate::abi::memop::*;
    pub use crate::abi::memory::*;
    pub use crate::abi::mempool::*;
    pub use crate::abi::pointer::*;
    pub use crate::abi::primary::*;
    pub use crate::abi::share::*;
    pub use crate::abi::stream::*;
    pub use crate::abi::symbols::*;
    pub use crate::abi::vmm::*;
    pub use crate::control::*;
}
