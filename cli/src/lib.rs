//! The parts of the `forebay` command that benches, tests and fuzz targets use too.
//!
//! Owns the trace reader ([`trace`]), the replay ([`replay`], over [`target::Target`]), the
//! comparators ([`baseline`]) and the command's own pieces. Promises that reading a trace
//! never panics and that figures mean the same for every target. Must not hold pool
//! logic: whatever the pool does, it does behind the target.

pub mod args;
pub mod baseline;
pub mod commands;
pub mod cpu_time;
pub mod device;
pub mod instance;
pub mod picture;
pub mod program;
pub mod progress;
pub mod replay;
pub mod target;
pub mod target_forebay;
pub mod trace;
