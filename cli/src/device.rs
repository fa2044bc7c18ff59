//! The device that a command works on.
//!
//! Owns the way from a configuration to a driver; promises that host memory is used only
//! when it was asked for by name. Must not make a pool. Cost: that of opening a driver.

use std::sync::Arc;

use forebay::config::{Backend, Config};
use forebay::driver::Driver;
use forebay::driver::host::{DEFAULT_DEVICE_BYTES, DEFAULT_GRANULARITY, HostDriver, HostOptions};

use crate::target::TargetError;

/// What is said where no CUDA driver can be used.
pub const NO_CUDA: &str = "the CUDA backend is not part of this build; \
    set FOREBAY_BACKEND=host (or give --backend host) to work in host memory instead";

/// The configuration of the environment, with the backend given on the command line, if one
/// is. What is wrong with variables is reported by the library.
pub fn configured(backend: Option<Backend>) -> Result<Config, String> {
    let mut config = Config::from_env().map_err(|error| error.message().to_string())?;
    if let Some(backend) = backend {
        config.backend = backend;
    }
    Ok(config)
}

/// Opens the driver of the configured backend. `bytes` is the size of a host device; without
/// it the size is the configured limit, or the host backend's own default.
pub fn open(config: &Config, bytes: Option<u64>) -> Result<Arc<dyn Driver>, TargetError> {
    if config.backend != Backend::Host {
        return Err(TargetError::other(NO_CUDA));
    }
    let default = DEFAULT_DEVICE_BYTES as u64;
    let limit = config.limit.map(|limit| limit.resolve(default));
    let wanted = bytes.or(limit).unwrap_or(default);
    let total = usize::try_from(wanted)
        .ok()
        .and_then(|total| total.max(1).checked_next_multiple_of(DEFAULT_GRANULARITY))
        .ok_or_else(|| TargetError::other(format!("a device of {wanted} bytes is too large")))?;
    let options = HostOptions {
        total_bytes: total,
        context_events: config.host_context_events,
        event_cost_ns: config.host_event_ns,
        ..HostOptions::default()
    };
    match HostDriver::new(options) {
        Ok(driver) => Ok(Arc::new(driver)),
        Err(error) => Err(TargetError::other(format!("no host device: {error}"))),
    }
}

/// A device that every allocator here plays a trace on: twice the peak of live bytes, rounded
/// up to pages, and 1 GiB.
pub fn ample_bytes(peak_live_bytes: u64) -> u64 {
    (peak_live_bytes * 2).next_multiple_of(DEFAULT_GRANULARITY as u64) + (1 << 30)
}

/// The size of the device a trace is replayed on, unless one is given: the configured
/// limit; else, on the host backend, [`ample_bytes`]; else `None`, the whole device.
pub fn replay_bytes(config: &Config, peak_live_bytes: u64) -> Option<u64> {
    let ample = ample_bytes(peak_live_bytes);
    match config.limit {
        Some(limit) => Some(limit.resolve(ample)),
        None => (config.backend == Backend::Host).then_some(ample),
    }
}
