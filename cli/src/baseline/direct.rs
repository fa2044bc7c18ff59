//! One driver allocation a request: what a program does that calls `cudaMalloc` and
//! `cudaFree` for each tensor.
//!
//! Owns the sizes of its live blocks; promises two driver calls a block and nothing kept.
//! Memory is counted in units of 512 bytes, so nothing is ever trapped. Must not cache.
//! Cost: the driver's.

use std::collections::HashMap;
use std::sync::Arc;

use forebay::driver::{Call, Code, Driver, StreamHandle};

use crate::target::{Target, TargetError, TargetStats};

/// The unit a driver's allocations are counted in, in bytes.
pub const UNIT: u64 = 512;

/// The comparator over one driver. For one thread.
pub struct Direct {
    driver: Arc<dyn Driver>,
    sizes: HashMap<u64, u64>,
    stats: TargetStats,
}

impl Direct {
    /// A comparator over `driver`, which nobody else need use alone.
    pub fn new(driver: Arc<dyn Driver>) -> Direct {
        Direct { driver, sizes: HashMap::new(), stats: TargetStats::default() }
    }
}

impl Target for Direct {
    fn alloc(&mut self, bytes: u64, _stream: u32) -> Result<u64, TargetError> {
        let length = usize::try_from(bytes).map_err(|_| TargetError::other("size too large"))?;
        self.stats.calls.add(Call::AllocPlain, 1);
        let address = self.driver.alloc_plain(length).map_err(|error| TargetError {
            oom: error.code == Code::OutOfMemory,
            text: error.to_string(),
        })? as u64;
        let rounded = bytes.next_multiple_of(UNIT);
        self.sizes.insert(address, bytes);
        self.stats.requested_bytes += bytes;
        self.stats.live_bytes += rounded;
        self.stats.live_blocks += 1;
        self.stats.mapped_bytes = self.stats.live_bytes;
        self.stats.peak_mapped_bytes = self.stats.peak_mapped_bytes.max(self.stats.mapped_bytes);
        Ok(address)
    }

    fn free(&mut self, address: u64, _stream: u32) -> Result<(), TargetError> {
        let Some(bytes) = self.sizes.remove(&address) else {
            return Err(TargetError::other(format!("no live block at {address:#x}")));
        };
        self.stats.calls.add(Call::FreePlain, 1);
        let freed = self.driver.free_plain(address as usize);
        self.stats.requested_bytes -= bytes;
        self.stats.live_bytes -= bytes.next_multiple_of(UNIT);
        self.stats.live_blocks -= 1;
        self.stats.mapped_bytes = self.stats.live_bytes;
        freed.map_err(|error| TargetError::other(error.to_string()))
    }

    fn touch(&mut self, address: u64, bytes: u64, _stream: u32) -> Result<(), TargetError> {
        self.driver
            .fill(address as usize, 0xA5, bytes as usize, StreamHandle(0))
            .map_err(|error| TargetError::other(error.to_string()))
    }

    fn stats(&self) -> TargetStats {
        self.stats
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        for &address in self.sizes.keys() {
            // What the driver refuses to take back it reports itself.
            let _ = self.driver.free_plain(address as usize);
        }
    }
}
