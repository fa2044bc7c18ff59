//! Forebay: a device memory pool.
pub mod config;
pub mod driver;
pub mod error;
pub mod telemetry;
