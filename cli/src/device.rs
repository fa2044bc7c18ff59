//! The device that a command works on.
//!
//! Owns the way from a configuration to a driver; promises that host memory is used only
//! when it was asked for by name. Must not make a pool. Cost: that of opening a driver.

use std::sync::Arc;

use forebay::config::{Backend, Config};
use forebay::driver::Driver;
use forebay::driver::host::{DEFAULT_GRANULARITY, HostDriver};
use forebay::pool::devices;

use crate::target::TargetError;

/// The configuration of the environment, with the backend given on the command line, if one
/// is. What is wrong with variables is reported by the library.
pub fn configured(backend: Option<Backend>) -> Result<Config, String> {
    let mut config = Config::from_env().map_err(|error| error.message().to_string())?;
    if let Some(backend) = backend {
        config.backend = backend;
    }
    Ok(config)
}

/// Opens the driver of the configured backend: the one that the default pool would use; or,
/// on the host backend with `bytes`, a device of its own of that size, rounded up to pages.
pub fn open(config: &Config, bytes: Option<u64>) -> Result<Arc<dyn Driver>, TargetError> {
    let bytes = match bytes {
        Some(bytes) if config.backend == Backend::Host => bytes,
        _ => {
            return devices::open_driver(config)
                .map_err(|error| TargetError::other(error.message().to_string()));
        }
    };
    let total = usize::try_from(bytes)
        .ok()
        .and_then(|total| total.max(1).checked_next_multiple_of(DEFAULT_GRANULARITY))
        .ok_or_else(|| TargetError::other(format!("a device of {bytes} bytes is too large")))?;
    let mut options = devices::host_options(config);
    options.total_bytes = total;
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
