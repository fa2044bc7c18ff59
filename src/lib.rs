//! Forebay: a device memory pool.
pub mod error;
pub mod driver;
