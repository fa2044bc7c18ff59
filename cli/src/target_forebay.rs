//! The pool as a target.
//!
//! Owns the pool it makes, over a driver of its own that counts calls by kind, with one
//! stream of the device for each stream of the trace. Promises a pool as large as its device
//! (whatever `FOREBAY_LIMIT` and `FOREBAY_HEADROOM` say), every other setting as configured,
//! and that allocations and frees mean what `forebay_alloc` and `forebay_dealloc` mean. Must
//! hold no policy. Cost: the pool's own, a call of the rlib an event.

use std::convert::Infallible;

use forebay::config::Config;

use crate::device;
use crate::target::{SharedTarget, Target, TargetError, TargetStats};

/// A handle onto a pool, for one thread. No value exists while the build has no pool.
#[derive(Debug)]
pub struct ForebayTarget {
    never: Infallible,
}

impl ForebayTarget {
    /// Makes a pool on a device of `bytes` (rounded up to pages; `None`: the whole device, as
    /// far as the configuration goes) with `streams` streams.
    pub fn open(
        config: &Config,
        bytes: Option<u64>,
        streams: u32,
    ) -> Result<ForebayTarget, TargetError> {
        let driver = device::open(config, bytes)?;
        let name = &driver.device().name;
        Err(TargetError::other(format!("this build has no pool for {streams} streams of {name}")))
    }

    /// The device's size in bytes.
    pub fn device_bytes(&self) -> u64 {
        match self.never {}
    }

    /// The device's page in bytes.
    pub fn page_bytes(&self) -> u64 {
        match self.never {}
    }
}

impl Target for ForebayTarget {
    fn alloc(&mut self, _bytes: u64, _stream: u32) -> Result<u64, TargetError> {
        match self.never {}
    }

    fn free(&mut self, _address: u64, _stream: u32) -> Result<(), TargetError> {
        match self.never {}
    }

    fn touch(&mut self, _address: u64, _bytes: u64, _stream: u32) -> Result<(), TargetError> {
        match self.never {}
    }

    fn stats(&self) -> TargetStats {
        match self.never {}
    }
}

impl SharedTarget for ForebayTarget {
    fn share(&self) -> Result<ForebayTarget, TargetError> {
        match self.never {}
    }
}
