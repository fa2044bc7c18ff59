//! The driver: one trait between the pool and the machine, and its contract.
//!
//! The pool asks a driver for six things: address space, pages, mappings, streams
//! with events, pages shared with other devices and processes, and plain allocations (the
//! fallback where there is no virtual memory management, and the baseline that the demo
//! compares with). Backends are siblings of the same shape: [`cuda`] (NVIDIA's driver API, loaded
//! at run time), [`host`] (memfd and mmap, no GPU needed), [`segments`] (plain allocations under a
//! driver without virtual memory) and [`faulty`] (wraps any driver: counts, journals, fails on
//! demand). [`fuse`] stops a pool's calls once the context is lost.
//!
//! # Contract
//!
//! *Units.* Every length is in bytes. Lengths of pages, mappings, access changes and
//! reservations are multiples of [`DeviceInfo::granularity`]; so are their addresses.
//!
//! *Atomicity.* A call either does all it says or fails and changes nothing. There are two
//! exceptions. When [`Driver::set_access`] fails, part of its range may have changed, to what was
//! asked and to nothing else; the own device's access is never taken away. And
//! [`Driver::map_run`] is a sequence of maps. A sequence of calls is not atomic: whoever needs
//! that rolls back (room `vmem`).
//!
//! *Pages.* [`Driver::create`] makes a page that is mapped nowhere. A page may be released
//! while mapped: its memory lives on until the last mapping goes. The pool never maps
//! one page twice. [`Driver::export`] makes a descriptor that names the page in other processes,
//! where [`Driver::import`] makes a page of it. The memory lives until every process has let go
//! of it: descriptors, pages and mappings.
//!
//! *Mappings.* [`Driver::map`] needs a reserved range without a mapping in it and leaves it
//! inaccessible until [`Driver::set_access`]. [`Driver::unmap`] takes a range that covers whole
//! mappings, one or several adjacent ones. **Unmap is not a fence**: work already queued
//! that touches the range then faults or corrupts. The caller waits first.
//!
//! *Peers.* After [`Driver::set_access`] the own device and exactly the `peers` named have access:
//! at most [`PEERS_MAX`] others, each of which [`Driver::can_access_peer`]. A peer left out loses
//! what it had.
//!
//! *Blocking.* `create`, `release`, `map` (each of a run), `unmap` and `set_access` may take
//! tens to hundreds of microseconds and may serialise with other threads' calls, but never
//! wait for queued work. [`Driver::alloc_plain`] and [`Driver::free_plain`] may wait for the
//! whole device, as `cudaMalloc` and `cudaFree` do, and so may [`Driver::host_alloc`] and
//! [`Driver::host_free`]. [`Driver::event_synchronize`] and
//! [`Driver::stream_synchronize`] wait for the work they name. Everything else returns at once.
//!
//! *Streams and events.* Work of one stream runs in the order it was queued; streams are
//! not ordered among each other, save by [`Driver::stream_wait`]. [`Driver::event_record`] marks a
//! point: of one stream, or of the whole context (all streams of the device, all work
//! queued so far). Recording an event again moves its mark. [`Driver::event_query`] is true once
//! all
//! work before the mark has finished; an event never recorded has passed.
//!
//! *Addresses.* [`Driver::copy`] and [`Driver::fill`] trust theirs: the caller keeps the ranges
//! accessible, and unused by others, until the work is done.
//!
//! *Captures.* Calls may be made while any stream captures a graph, by any thread, without
//! harm to the capture; the backend sees to it. Those that record, query or wait on the capturing
//! stream itself are the caller's to avoid.
//!
//! *After failure.* A failed call may be repeated. [`Code::ShutDown`] and [`Code::ContextLost`]
//! are final: every later call answers the same, and the pool then stops calling. Only calls that
//! give something back may succeed after a shutdown, which has taken everything.
//!
//! *Threads.* All methods may be called from any thread at once.

pub mod cuda;
pub mod faulty;
pub mod fuse;
pub mod host;
pub mod segments;

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The most devices beside the own one that a mapping can be open to: CUDA's limit, beyond which
/// opening access fails.
pub const PEERS_MAX: usize = 8;

/// The kinds of driver call, as counted, journaled and failed by [`faulty`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "each names the trait method of the same name")]
pub enum Call {
    Reserve,
    Unreserve,
    Create,
    Release,
    Map,
    Unmap,
    SetAccess,
    AllocPlain,
    FreePlain,
    MemoryInfo,
    StreamCreate,
    StreamDestroy,
    StreamSynchronize,
    StreamWait,
    StreamCheck,
    EventCreate,
    EventDestroy,
    EventRecord,
    EventQuery,
    EventSynchronize,
    Copy,
    Fill,
    Export,
    Import,
    CanAccessPeer,
    StreamCapturing,
    OnGraphRelease,
    HostAlloc,
    HostFree,
}

impl Call {
    /// Every kind, in numeric order.
    pub const ALL: [Call; 29] = [
        Call::Reserve,
        Call::Unreserve,
        Call::Create,
        Call::Release,
        Call::Map,
        Call::Unmap,
        Call::SetAccess,
        Call::AllocPlain,
        Call::FreePlain,
        Call::MemoryInfo,
        Call::StreamCreate,
        Call::StreamDestroy,
        Call::StreamSynchronize,
        Call::StreamWait,
        Call::StreamCheck,
        Call::EventCreate,
        Call::EventDestroy,
        Call::EventRecord,
        Call::EventQuery,
        Call::EventSynchronize,
        Call::Copy,
        Call::Fill,
        Call::Export,
        Call::Import,
        Call::CanAccessPeer,
        Call::StreamCapturing,
        Call::OnGraphRelease,
        Call::HostAlloc,
        Call::HostFree,
    ];

    /// Lower-case name with underscores, e.g. `"set_access"`.
    pub const fn name(self) -> &'static str {
        match self {
            Call::Reserve => "reserve",
            Call::Unreserve => "unreserve",
            Call::Create => "create",
            Call::Release => "release",
            Call::Map => "map",
            Call::Unmap => "unmap",
            Call::SetAccess => "set_access",
            Call::AllocPlain => "alloc_plain",
            Call::FreePlain => "free_plain",
            Call::MemoryInfo => "memory_info",
            Call::StreamCreate => "stream_create",
            Call::StreamDestroy => "stream_destroy",
            Call::StreamSynchronize => "stream_synchronize",
            Call::StreamWait => "stream_wait",
            Call::StreamCheck => "stream_check",
            Call::EventCreate => "event_create",
            Call::EventDestroy => "event_destroy",
            Call::EventRecord => "event_record",
            Call::EventQuery => "event_query",
            Call::EventSynchronize => "event_synchronize",
            Call::Copy => "copy",
            Call::Fill => "fill",
            Call::Export => "export",
            Call::Import => "import",
            Call::CanAccessPeer => "can_access_peer",
            Call::StreamCapturing => "stream_capturing",
            Call::OnGraphRelease => "on_graph_release",
            Call::HostAlloc => "host_alloc",
            Call::HostFree => "host_free",
        }
    }
}

/// Why a driver call failed, in terms the pool acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Code {
    /// The device has no memory left (`host_alloc`: the machine, that can be pinned). `create`,
    /// `alloc_plain` and `host_alloc` only.
    OutOfMemory,
    /// No address range of this length is left. `reserve` only.
    NoAddressSpace,
    /// The platform's limit on mappings is reached. `map`, `unmap` and `set_access`.
    MappingLimit,
    /// An argument breaks the contract above: a defect in the caller.
    InvalidValue,
    /// The stream or event handle names nothing of this device.
    InvalidHandle,
    /// The backend cannot do this at all.
    NotSupported,
    /// More devices than a mapping can be open to. `set_access` only.
    TooManyPeers,
    /// The driver has been shut down; final.
    ShutDown,
    /// The device's context is gone, by a failed kernel or because the program destroyed it, and
    /// all its memory with it; final.
    ContextLost,
    /// Anything else, with the backend's own number.
    Other(u32),
}

impl Code {
    /// What happened, and what to do about it.
    pub const fn sentence(self) -> &'static str {
        match self {
            Code::OutOfMemory => "the device has no memory left",
            Code::NoAddressSpace => {
                "no address range of this length is left; look at ulimit -v and at other \
                 libraries that reserve device addresses"
            }
            Code::MappingLimit => {
                "no more mappings can be made; larger allocations, or fewer pools, need fewer"
            }
            Code::InvalidValue => "an argument breaks the driver's rules: a defect of Forebay's",
            Code::InvalidHandle => {
                "the stream or event belongs to another context or device, or is destroyed"
            }
            Code::NotSupported => "this driver, device or platform cannot do it",
            Code::TooManyPeers => "a mapping can be open to at most 8 other devices",
            Code::ShutDown => "the driver has been shut down: the process is ending",
            Code::ContextLost => {
                "the device's context is gone, and with it all its memory: keep the context \
                 alive for as long as pools are used, and do not reset the device"
            }
            Code::Other(_) => "the driver gave a number without a name here",
        }
    }
}

/// A failed driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverError {
    /// Which call.
    pub call: Call,
    /// Why.
    pub code: Code,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.call.name();
        match self.code {
            // Numbers of CUDA's with names; those of the system are smaller.
            Code::Other(number) if number >= 200 => {
                write!(f, "driver call {call} failed: {}", cuda::codes::sentence(number))
            }
            Code::Other(number) => write!(f, "driver call {call} failed with code {number}"),
            code => write!(f, "driver call {call} failed: {}", code.sentence()),
        }
    }
}

impl std::error::Error for DriverError {}

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A physical page. Has no address until it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct PageHandle(pub u64);

/// A page that came by a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImportedPage {
    /// The page.
    pub page: PageHandle,
    /// The device whose memory it is, where that is known to be another than the own one.
    pub owner: Option<u32>,
}

/// A stream's handle, as the user's runtime knows it (a `cudaStream_t`, for one).
/// 0 is the default stream; it always exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct StreamHandle(pub u64);

/// An event's handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct EventHandle(pub u64);

/// What an event marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The work queued so far on one stream.
    Stream(StreamHandle),
    /// All work queued so far on the device. Only where [`DeviceInfo::context_events`].
    Context,
}

/// What [`Driver::on_graph_release`] calls, with the word that it was given.
pub type OnGraphEnd = unsafe extern "C" fn(*mut c_void);

/// What a driver knows of its device; fixed for the driver's life.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// For people, e.g. `"host memory (memfd)"`.
    pub name: String,
    /// The device's memory in bytes.
    pub total_bytes: usize,
    /// The mapping unit in bytes, a power of two (2 MiB on every NVIDIA part seen).
    pub granularity: usize,
    /// Whether [`Scope::Context`] is there.
    pub context_events: bool,
    /// Whether the CPU may touch the memory.
    pub host_accessible: bool,
}

/// One device's driver. See the room's contract above.
pub trait Driver: Send + Sync {
    /// The backend's name, e.g. `"host"`.
    fn backend(&self) -> &'static str;

    /// What is known of the device. Cost: none.
    fn device(&self) -> &DeviceInfo;

    /// (free, total) bytes of the device now, over all users of it.
    fn memory_info(&self) -> DriverResult<(usize, usize)>;

    /// Runs `f`, which makes several calls from this thread. What a backend does around every
    /// call of its own, it may do once around all of `f`. Must not be relied on for anything else.
    fn together(&self, f: &mut dyn FnMut()) {
        f();
    }

    /// `Some`: reservations are backed from the start, cost their length of device memory, and
    /// should be about so many bytes long. Pages are then tokens: memory neither moves with them
    /// nor goes back to the device before its reservation does. Cost: none.
    fn backed_reservations(&self) -> Option<usize> {
        None
    }

    /// Reserves address space, inaccessible and without memory. Aligned to the granularity.
    fn reserve(&self, bytes: usize) -> DriverResult<usize>;

    /// Gives a whole reservation back. Nothing may be mapped in it.
    fn unreserve(&self, address: usize, bytes: usize) -> DriverResult<()>;

    /// Creates a page of `bytes`. Contents are undefined.
    fn create(&self, bytes: usize) -> DriverResult<PageHandle>;

    /// Drops the caller's reference to a page.
    fn release(&self, page: PageHandle) -> DriverResult<()>;

    /// Maps the whole page at a reserved address.
    fn map(&self, address: usize, bytes: usize, page: PageHandle) -> DriverResult<()>;

    /// Maps pages of `page_bytes` each at adjacent addresses from `address` up, in their
    /// order: the same as one [`Driver::map`] a page, which is what it does where a backend
    /// has nothing cheaper. Stops at the first page that fails.
    ///
    /// # Errors
    /// How many pages were mapped before, all of which stay mapped, and why the next was not.
    fn map_run(
        &self,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> Result<(), (usize, DriverError)> {
        for (done, &page) in pages.iter().enumerate() {
            self.map(address.wrapping_add(done * page_bytes), page_bytes, page)
                .map_err(|error| (done, error))?;
        }
        Ok(())
    }

    /// Removes the mappings in a range that covers whole mappings. Not a fence.
    fn unmap(&self, address: usize, bytes: usize) -> DriverResult<()>;

    /// Makes a range of whole mappings readable and writable by the own device and by `peers`
    /// (other devices' numbers, each once), and by no other. Cost: one call whatever the length.
    fn set_access(&self, address: usize, bytes: usize, peers: &[u32]) -> DriverResult<()>;

    /// Whether another device can be given access to this one's memory. False for the own number
    /// and for devices that do not exist. Cost: a look-up.
    fn can_access_peer(&self, device: u32) -> bool {
        let _ = device;
        false
    }

    /// A descriptor that names the page in another process; the caller owns it. Each call makes
    /// one more.
    fn export(&self, page: PageHandle) -> DriverResult<OwnedFd> {
        let _ = page;
        Err(DriverError { call: Call::Export, code: Code::NotSupported })
    }

    /// A page of `bytes` out of a descriptor that [`Driver::export`] made, in this process or in
    /// another; mapped nowhere yet. The descriptor may be closed afterwards. A descriptor that
    /// names no such page is [`Code::InvalidHandle`], one of a page in the memory of a device
    /// that the own one cannot reach [`Code::NotSupported`]; where a backend cannot tell its
    /// length, [`Driver::map`] is what fails.
    fn import(&self, fd: BorrowedFd<'_>, bytes: usize) -> DriverResult<ImportedPage> {
        let _ = (fd, bytes);
        Err(DriverError { call: Call::Import, code: Code::NotSupported })
    }

    /// As [`Driver::set_access`] for whole mappings of imported pages in the memory of the device
    /// `owner`: opens them to the own device, and to `owner` if that may be given access to the
    /// own one's memory. Fences over all work do not take `owner`'s in on that account.
    fn open_foreign(&self, address: usize, bytes: usize, owner: u32) -> DriverResult<()> {
        let _ = (address, bytes, owner);
        Err(DriverError { call: Call::SetAccess, code: Code::NotSupported })
    }

    /// One plain allocation (`cudaMalloc`'s kind), zero addresses never.
    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize>;

    /// Frees a plain allocation.
    fn free_plain(&self, address: usize) -> DriverResult<()>;

    /// Page-locked host memory, which [`Driver::copy`] reads and writes without the CPU's help.
    /// Readable and writable by the CPU; not the device's memory, and in none of its counts.
    fn host_alloc(&self, bytes: usize) -> DriverResult<usize> {
        let _ = bytes;
        Err(DriverError { call: Call::HostAlloc, code: Code::NotSupported })
    }

    /// Gives such memory back. The caller knows that no copy uses it any more.
    fn host_free(&self, address: usize) -> DriverResult<()> {
        let _ = address;
        Err(DriverError { call: Call::HostFree, code: Code::NotSupported })
    }

    /// A new stream.
    fn stream_create(&self) -> DriverResult<StreamHandle>;

    /// Destroys a stream once its queued work is done; returns at once. The handle may be
    /// given out again later.
    fn stream_destroy(&self, stream: StreamHandle) -> DriverResult<()>;

    /// Waits for all work queued on the stream.
    fn stream_synchronize(&self, stream: StreamHandle) -> DriverResult<()>;

    /// Waits for all work queued on the device, whatever its stream.
    fn synchronize(&self) -> DriverResult<()> {
        Err(DriverError { call: Call::StreamSynchronize, code: Code::NotSupported })
    }

    /// Makes later work of `stream` wait for `event`'s present mark.
    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()>;

    /// `Ok` when the handle names a stream of this device.
    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()>;

    /// A number that no other stream of the process ever has, for a live stream whose handle may
    /// have been another's; `None` where the driver has no such number, and for handles that
    /// name no stream.
    fn stream_id(&self, stream: StreamHandle) -> Option<u64> {
        let _ = stream;
        None
    }

    /// Whether the stream is capturing a graph now. False for handles that name no stream. Must
    /// not disturb the capture.
    fn stream_capturing(&self, stream: StreamHandle) -> bool {
        let _ = stream;
        false
    }

    /// Has `call` run with `word` once the graph (a `cudaGraph_t`) and everything instantiated
    /// from it are gone: a user object retained on the graph. It runs on a thread of the driver's
    /// and must make no driver call.
    fn on_graph_release(&self, graph: u64, call: OnGraphEnd, word: usize) -> DriverResult<()> {
        let _ = (graph, call, word);
        Err(DriverError { call: Call::OnGraphRelease, code: Code::NotSupported })
    }

    /// Queues a copy between device addresses.
    fn copy(&self, to: usize, from: usize, bytes: usize, stream: StreamHandle) -> DriverResult<()>;

    /// Queues a fill with one byte value.
    fn fill(&self, to: usize, value: u8, bytes: usize, stream: StreamHandle) -> DriverResult<()>;

    /// A new event, passed until recorded.
    fn event_create(&self) -> DriverResult<EventHandle>;

    /// Destroys an event.
    fn event_destroy(&self, event: EventHandle) -> DriverResult<()>;

    /// Moves the event's mark to now.
    fn event_record(&self, event: EventHandle, scope: Scope) -> DriverResult<()>;

    /// Whether all work before the mark is done.
    fn event_query(&self, event: EventHandle) -> DriverResult<bool>;

    /// Waits until [`Driver::event_query`] would say true.
    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()>;
}
