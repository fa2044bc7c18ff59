//! The pool as a target.
//!
//! Owns the pool it makes, over a driver that counts calls by kind, with one stream of the
//! device for each stream of the trace. Promises a pool as large as its device (whatever
//! `FOREBAY_LIMIT` and `FOREBAY_HEADROOM` say), no keeper thread (so that a replay repeats),
//! every other setting as configured, and that allocations and frees take the path that
//! `forebay_alloc` and `forebay_dealloc` take. Must hold no policy. Cost: the pool's own, a
//! call of the rlib an event.

use std::sync::Arc;

use forebay::config::Config;
use forebay::driver::faulty::FaultyDriver;
use forebay::driver::{Call, Driver, StreamHandle};
use forebay::error::{Error, Status};
use forebay::pool::{Pool, Settings, registry};

use crate::device;
use crate::target::{Calls, SharedTarget, Target, TargetError, TargetStats};

/// A handle onto a pool, for one thread, with streams of its own.
pub struct ForebayTarget {
    shared: Arc<Shared>,
    streams: Vec<StreamHandle>,
}

/// What all threads' handles share. The pool goes before its driver.
struct Shared {
    pool: Pool,
    driver: Arc<FaultyDriver<dyn Driver>>,
    limit: u64,
}

impl ForebayTarget {
    /// Makes a pool on a device of `bytes` (rounded up to pages; `None`: the whole device, as
    /// far as the configuration goes) with `streams` streams. A CUDA device has the size it has:
    /// there the pool's limit is `bytes`.
    pub fn open(
        config: &Config,
        bytes: Option<u64>,
        streams: u32,
    ) -> Result<ForebayTarget, TargetError> {
        let driver = Arc::new(FaultyDriver::new(device::open(config, bytes)?));
        let total = driver.device().total_bytes as u64;
        let page = driver.device().granularity as u64;
        let wanted = bytes.map_or(total, |bytes| bytes.max(1).next_multiple_of(page));
        if wanted > total {
            let text = format!("the device has {total} bytes, and {wanted} are wanted");
            return Err(TargetError::other(text));
        }
        let total = wanted;
        let mut settings = Settings::resolve(config, total, driver.backend() == "host");
        settings.limit = total;
        settings.soft_limit = settings.soft_limit.map(|soft| soft.min(total));
        settings.cache = config.cache_bytes(total, total);
        settings.keeper = false;
        let pool =
            Pool::with_driver(Arc::clone(&driver) as Arc<dyn Driver>, settings).map_err(failed)?;
        ForebayTarget::with_streams(Arc::new(Shared { pool, driver, limit: total }), streams)
    }

    fn with_streams(shared: Arc<Shared>, count: u32) -> Result<ForebayTarget, TargetError> {
        let mut target = ForebayTarget { shared, streams: Vec::new() };
        // The replay's own calls go past the counter.
        let driver = Arc::clone(target.shared.driver.inner());
        for _ in 0..count {
            let stream = driver.stream_create();
            target.streams.push(stream.map_err(|error| TargetError::other(error.to_string()))?);
        }
        Ok(target)
    }

    /// The device's size in bytes.
    pub fn device_bytes(&self) -> u64 {
        self.shared.limit
    }

    /// The device's page in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.shared.driver.device().granularity as u64
    }
}

#[cold]
fn failed(error: Error) -> TargetError {
    let oom = matches!(error.status(), Status::OutOfMemory);
    TargetError { oom, text: error.message().to_string() }
}

impl Target for ForebayTarget {
    #[inline]
    fn alloc(&mut self, bytes: u64, stream: u32) -> Result<u64, TargetError> {
        let stream = self.streams[stream as usize].0;
        // A size beyond the address space is beyond every device, too.
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.shared.pool.alloc(bytes, stream).map(|address| address as u64).map_err(failed)
    }

    #[inline]
    fn free(&mut self, address: u64, stream: u32) -> Result<(), TargetError> {
        let stream = self.streams[stream as usize].0;
        self.shared.pool.dealloc(address as usize, stream).map_err(failed)
    }

    fn touch(&mut self, address: u64, bytes: u64, stream: u32) -> Result<(), TargetError> {
        let stream = self.streams[stream as usize];
        self.shared
            .driver
            .inner()
            .fill(address as usize, 0xA5, bytes as usize, stream)
            .map_err(|error| TargetError::other(error.to_string()))
    }

    fn stats(&self) -> TargetStats {
        let mut calls = Calls::default();
        for call in Call::ALL {
            calls.add(call, self.shared.driver.count(call));
        }
        // The pool lives as long as this handle.
        let glance = self.shared.pool.with_core(|core| core.glance()).unwrap_or_default();
        TargetStats {
            live_bytes: glance.live_bytes,
            requested_bytes: glance.requested_bytes,
            mapped_bytes: glance.mapped_bytes,
            trapped_bytes: glance.occupied_free_bytes,
            peak_mapped_bytes: glance.peak_mapped_bytes,
            calls,
            pages_moved: glance.pages_moved,
            live_blocks: glance.live_blocks,
        }
    }
}

impl SharedTarget for ForebayTarget {
    fn share(&self) -> Result<ForebayTarget, TargetError> {
        ForebayTarget::with_streams(Arc::clone(&self.shared), self.streams.len() as u32)
    }
}

impl Drop for ForebayTarget {
    fn drop(&mut self) {
        let driver = self.shared.driver.inner();
        for &stream in &self.streams {
            // The pool forgets the stream before its handle may come back. What fails here
            // the library has logged; the streams go with their driver.
            let _ = registry::retire_stream(stream.0);
            let _ = driver.stream_destroy(stream);
        }
    }
}
