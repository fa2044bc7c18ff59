//! Forebay: a device memory pool.
pub mod base;
pub mod driver;
pub mod error;
pub mod heap;
pub mod slab;
pub mod stream;
pub mod vmem;
