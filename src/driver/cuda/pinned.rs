//! Page-locked host memory as a device of its own, for the pool behind `forebay_host_alloc`.
//!
//! Owns nothing but the way to `cuMemHostAlloc`. Whole segments are allocated there (room
//! [`crate::driver::segments`]), never single pages registered: CUDA refuses a copy from or to a
//! range that spans two registrations, and a block could. A segment stays pinned until the pool
//! ends; pinning costs more than keeping. Promises that the memory is portable (every context
//! may copy with it) and has the same address on the device.
//!
//! Its streams and events do nothing and have always passed: whoever frees host memory knows that
//! no copy uses it. Hence a fill is the CPU's. Cost: some 100 us a MiB when a segment is added,
//! nothing else.

use std::sync::Arc;

use super::CudaDriver;
use crate::driver::{
    Call, Code, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, OnGraphEnd, PageHandle,
    Scope, StreamHandle,
};

/// Segments of pinned memory are so long unless a request needs more: pinned memory is lost to
/// the rest of the machine, so a pool begins with little.
pub const SEGMENT_BYTES: usize = 32 << 20;

/// Page-locked memory of the host. Only plain allocations; see the room's page.
#[derive(Debug)]
pub struct PinnedDriver {
    device: Arc<CudaDriver>,
    info: DeviceInfo,
}

impl PinnedDriver {
    /// For copies to and from `device`; the total is the device's.
    pub fn new(device: Arc<CudaDriver>) -> PinnedDriver {
        let info = DeviceInfo {
            name: "page-locked host memory (cuMemHostAlloc)".into(),
            context_events: true,
            host_accessible: true,
            ..device.device().clone()
        };
        PinnedDriver { device, info }
    }
}

fn no<T>(call: Call) -> DriverResult<T> {
    Err(DriverError { call, code: Code::NotSupported })
}

impl Driver for PinnedDriver {
    fn backend(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    /// The total is a limit, not what the machine has.
    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        Ok((self.info.total_bytes, self.info.total_bytes))
    }

    fn reserve(&self, _bytes: usize) -> DriverResult<usize> {
        no(Call::Reserve)
    }

    fn unreserve(&self, _address: usize, _bytes: usize) -> DriverResult<()> {
        no(Call::Unreserve)
    }

    fn create(&self, _bytes: usize) -> DriverResult<PageHandle> {
        no(Call::Create)
    }

    fn release(&self, _page: PageHandle) -> DriverResult<()> {
        no(Call::Release)
    }

    fn map(&self, _address: usize, _bytes: usize, _page: PageHandle) -> DriverResult<()> {
        no(Call::Map)
    }

    fn unmap(&self, _address: usize, _bytes: usize) -> DriverResult<()> {
        no(Call::Unmap)
    }

    fn set_access(&self, _address: usize, _bytes: usize, _peers: &[u32]) -> DriverResult<()> {
        no(Call::SetAccess)
    }

    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize> {
        self.device.allocate_host(Call::AllocPlain, bytes)
    }

    fn free_plain(&self, address: usize) -> DriverResult<()> {
        super::given_back(self.device.release_host(Call::FreePlain, address))
    }

    fn stream_create(&self) -> DriverResult<StreamHandle> {
        no(Call::StreamCreate)
    }

    fn stream_destroy(&self, _stream: StreamHandle) -> DriverResult<()> {
        no(Call::StreamDestroy)
    }

    fn stream_synchronize(&self, _stream: StreamHandle) -> DriverResult<()> {
        Ok(())
    }

    fn stream_wait(&self, _stream: StreamHandle, _event: EventHandle) -> DriverResult<()> {
        Ok(())
    }

    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()> {
        self.device.stream_check(stream)
    }

    fn stream_id(&self, stream: StreamHandle) -> Option<u64> {
        self.device.stream_id(stream)
    }

    fn stream_capturing(&self, stream: StreamHandle) -> bool {
        self.device.stream_capturing(stream)
    }

    fn on_graph_release(&self, graph: u64, call: OnGraphEnd, word: usize) -> DriverResult<()> {
        self.device.on_graph_release(graph, call, word)
    }

    /// In the device's default stream. No event tells when it is done.
    fn copy(&self, to: usize, from: usize, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        self.device.copy(to, from, bytes, stream)
    }

    /// By the CPU, done on return: queued work would reach the memory when it is another's.
    fn fill(&self, to: usize, value: u8, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        self.stream_check(stream)?;
        // The memory goes with its context.
        self.device.check_alive(Call::Fill)?;
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
        // SAFETY: the caller keeps the range, which is host memory, accessible.
        unsafe { to.write_bytes(value, bytes) };
        Ok(())
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        Ok(EventHandle(1))
    }

    fn event_destroy(&self, _event: EventHandle) -> DriverResult<()> {
        Ok(())
    }

    fn event_record(&self, _event: EventHandle, _scope: Scope) -> DriverResult<()> {
        Ok(())
    }

    fn event_query(&self, _event: EventHandle) -> DriverResult<bool> {
        Ok(true)
    }

    fn event_synchronize(&self, _event: EventHandle) -> DriverResult<()> {
        Ok(())
    }
}
