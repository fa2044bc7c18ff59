//! Telemetry: how what happens in the lower rooms becomes visible outside.
//!
//! Owns the exporters; counters and events are made below. Must not change what it
//! reports on.

pub mod log;
