//! The bodies of the fuzz targets: bytes in, a panic when an invariant breaks.
//!
//! Kept apart from the targets so that ordinary tests run them too, over seeded random bytes,
//! where no nightly toolchain is. Each body accepts any bytes and keeps nothing between calls.

pub mod config;
pub mod ops;
pub mod plan;
pub mod trace;
