//! The CUDA backend: one NVIDIA device through the driver API, loaded at run time.
//!
//! - [`library`]: `libcuda.so.1`, found and loaded; nothing links it;
//! - [`table`]: the entry points, each of which may be missing; [`newer`]: declarations that
//!   `cust_raw` lacks;
//! - [`codes`]: what result numbers mean;
//! - [`context`]: which context calls run in, entered and left around each;
//! - [`memory`], [`streams`]: the trait's methods;
//! - [`open`]: from a library to a device, and the rungs below when something is refused;
//! - [`peers`]: other devices' work on this one's memory, for fences;
//! - [`pinned`]: page-locked host memory.
//!
//! Promises the contract of [`crate::driver`]. In addition:
//!
//! *Contexts.* A driver object works in one context of its device (see [`context`]). The caller's
//! own context and capture mode are as before after each call.
//!
//! *Handles.* CUDA cannot tell a destroyed stream or event, or a released page, from a live one:
//! using such a handle is undefined where the host backend answers
//! [`Code::InvalidHandle`]. The pool never does.
//!
//! *Shutdown.* When CUDA has once answered that it is shut down, no entry point is called any
//! more. Calls that ask for something then answer [`Code::ShutDown`]; those that give something
//! back succeed, since the shutdown took it all.
//!
//! *Order.* The default stream 0 is CUDA's legacy stream: it orders itself with all blocking
//! streams of the context. Streams made here are non-blocking. The handle of the per-thread
//! default stream (2) is refused: it names another stream on each thread.
//!
//! Cost: each method is one call of CUDA's and those of [`context`]: one look at the thread's
//! context, and two exchanges of its capture mode for calls that are not queued work.

pub mod codes;
mod context;
pub mod library;
mod memory;
pub mod newer;
pub mod open;
mod peers;
pub mod pinned;
mod streams;
pub mod table;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Call, Code, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, ImportedPage,
    OnGraphEnd, PageHandle, Scope, StreamHandle,
};
use context::Contexts;
use memory::Properties;
use newer::RawResult;
pub use open::{Opened, Survey, open, survey};
pub use table::Api;

/// Something the platform refused, and Forebay goes on without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// Pages cannot be flagged for GPUDirect RDMA.
    Rdma(RawResult),
    /// Pages cannot be exported as file descriptors.
    Shareable(RawResult),
    /// The driver has no event over a whole context.
    NoContextEvents,
    /// It has one and refuses it: each such fence waits for the context.
    ContextEventsRefused(RawResult),
    /// There is no virtual memory management: plain segments serve.
    PlainSegments(RawResult),
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, why) = match *self {
            Fallback::Rdma(why) => (
                "memory is made without the GPUDirect RDMA flag: network cards cannot register it",
                why,
            ),
            Fallback::Shareable(why) => {
                ("memory cannot be exported to other processes as file descriptors", why)
            }
            Fallback::NoContextEvents => {
                return f.write_str(
                    "the driver has no event over a whole context (CUDA 12.5 brought it): \
                     forebay_free waits for the default stream and for streams that Forebay \
                     has served; set FOREBAY_FREE=sync if other streams use the memory",
                );
            }
            Fallback::ContextEventsRefused(why) => (
                "events over a whole context are refused: each such fence waits for the device",
                why,
            ),
            Fallback::PlainSegments(why) => (
                "there is no virtual memory management: memory comes from plain allocations, \
                 which cannot move, so fragmentation can fail a request",
                why,
            ),
        };
        if why == codes::SUCCESS {
            f.write_str(what)
        } else {
            write!(f, "{what} ({})", codes::sentence(why))
        }
    }
}

/// One device of NVIDIA's. See the room's page.
pub struct CudaDriver {
    api: Arc<Api>,
    /// CUDA's name of the device.
    device: cust_raw::CUdevice,
    /// The user's: `FOREBAY_DEVICE`.
    ordinal: i32,
    info: DeviceInfo,
    /// The driver's CUDA version, as CUDA counts: 12080 is 12.8.
    version: i32,
    contexts: Contexts,
    properties: Properties,
    /// Devices that can be given access to this one's memory, one bit each.
    reachable: u64,
    /// Devices that have been given access to something.
    opened: AtomicU64,
    peers: Mutex<peers::Peers>,
    context_events_refused: AtomicBool,
    fallbacks: Mutex<Vec<Fallback>>,
    /// What trials hold that the driver has not taken back.
    trials: Mutex<Vec<open::Trial>>,
    /// Imported pages that are not used and CUDA has not taken back.
    refused_pages: Mutex<Vec<u64>>,
    /// Objects of graphs that no graph took and CUDA has not taken back.
    objects: Mutex<Vec<usize>>,
}

impl CudaDriver {
    /// What was refused so far, in order.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The driver's CUDA version: 12080 is 12.8.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The entry points, which all devices share.
    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// Whether calls run in the device's primary context; `None` before the first that needs one.
    pub fn uses_primary_context(&self) -> Option<bool> {
        self.contexts.uses_primary()
    }

    /// Whether the context that calls run in is gone. Asks the driver, and disturbs no capture.
    pub fn is_lost(&self) -> bool {
        let asked = self.check_alive(Call::StreamCheck);
        matches!(asked, Err(DriverError { code: Code::ContextLost, .. }))
    }

    /// Notes a fallback, and says so once.
    fn announce(&self, fallback: Fallback) {
        let mut list = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |known: &Fallback| std::mem::discriminant(known) == std::mem::discriminant(&fallback);
        if !list.iter().any(same) {
            list.push(fallback);
            drop(list);
            tracing::warn!(device = self.ordinal, "{fallback}");
        }
    }

    /// An error, with the driver's own words in the log where the code keeps only a number.
    #[cold]
    fn failed(&self, call: Call, result: RawResult) -> DriverError {
        let code = codes::code(call, result);
        if matches!(code, Code::Other(_)) {
            tracing::warn!(call = call.name(), "{}", codes::sentence(result));
        }
        DriverError { call, code }
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        self.forget_peers();
        self.end_objects();
        if !self.end_trials() {
            tracing::warn!(device = self.ordinal, "memory of a trial is still held");
        }
    }
}

/// After the driver's shutdown nothing is left to give back.
fn given_back(result: DriverResult<()>) -> DriverResult<()> {
    match result {
        Err(DriverError { code: Code::ShutDown, .. }) => Ok(()),
        other => other,
    }
}

impl Driver for CudaDriver {
    fn backend(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn together(&self, f: &mut dyn FnMut()) {
        self.contexts.within(f);
    }

    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        self.free_and_total()
    }

    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        self.reserve_addresses(bytes)
    }

    fn unreserve(&self, address: usize, bytes: usize) -> DriverResult<()> {
        given_back(self.free_addresses(address, bytes))
    }

    fn create(&self, bytes: usize) -> DriverResult<PageHandle> {
        self.create_page(bytes)
    }

    fn release(&self, page: PageHandle) -> DriverResult<()> {
        given_back(self.release_page(page))
    }

    fn map(&self, address: usize, bytes: usize, page: PageHandle) -> DriverResult<()> {
        self.map_pages(address, bytes, &[page]).map_err(|(_, error)| error)
    }

    fn map_run(
        &self,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> Result<(), (usize, DriverError)> {
        self.map_pages(address, page_bytes, pages)
    }

    fn unmap(&self, address: usize, bytes: usize) -> DriverResult<()> {
        given_back(self.unmap_pages(address, bytes))
    }

    fn set_access(&self, address: usize, bytes: usize, peers: &[u32]) -> DriverResult<()> {
        self.open_range(address, bytes, peers)
    }

    fn can_access_peer(&self, device: u32) -> bool {
        1u64.checked_shl(device).is_some_and(|bit| self.reachable & bit != 0)
    }

    fn export(&self, page: PageHandle) -> DriverResult<OwnedFd> {
        self.export_page(page)
    }

    fn import(&self, fd: BorrowedFd<'_>, _bytes: usize) -> DriverResult<ImportedPage> {
        self.import_page(fd)
    }

    fn open_foreign(&self, address: usize, bytes: usize, owner: u32) -> DriverResult<()> {
        self.open_imported(address, bytes, owner)
    }

    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize> {
        self.allocate_plain(bytes)
    }

    fn free_plain(&self, address: usize) -> DriverResult<()> {
        given_back(self.release_plain(address))
    }

    fn host_alloc(&self, bytes: usize) -> DriverResult<usize> {
        self.allocate_host(Call::HostAlloc, bytes)
    }

    fn host_free(&self, address: usize) -> DriverResult<()> {
        given_back(self.release_host(Call::HostFree, address))
    }

    fn stream_create(&self) -> DriverResult<StreamHandle> {
        self.make_stream()
    }

    fn stream_destroy(&self, stream: StreamHandle) -> DriverResult<()> {
        given_back(self.end_stream(stream))
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> DriverResult<()> {
        self.wait_for_stream(stream)
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.wait_for_context(Call::StreamSynchronize)
    }

    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        self.queue_wait(stream, event)
    }

    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()> {
        self.check_stream(stream)
    }

    fn stream_id(&self, stream: StreamHandle) -> Option<u64> {
        self.id_of_stream(stream)
    }

    fn stream_capturing(&self, stream: StreamHandle) -> bool {
        self.stream_captures(stream)
    }

    fn on_graph_release(&self, graph: u64, call: OnGraphEnd, word: usize) -> DriverResult<()> {
        self.call_after_graph(graph, call, word)
    }

    fn copy(&self, to: usize, from: usize, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        self.queue_copy(to, from, bytes, stream)
    }

    fn fill(&self, to: usize, value: u8, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        self.queue_fill(to, value, bytes, stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.make_event()
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        given_back(self.end_event(event))
    }

    fn event_record(&self, event: EventHandle, scope: Scope) -> DriverResult<()> {
        self.mark(event, scope)
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.has_passed(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.wait_for_event(event)
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("ordinal", &self.ordinal)
            .field("info", &self.info)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
