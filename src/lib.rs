//! Forebay: a device memory pool.
pub mod abi;
pub mod base;
pub mod config;
pub mod driver;
pub mod error;
pub mod heap;
pub mod logging;
pub mod pool;
pub mod slab;
pub mod stream;
pub mod vmem;
