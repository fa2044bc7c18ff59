//! The driver: one trait between the pool and the machine, and its contract.
//!
//! The pool asks a driver for five things: address space, pages, mappings, streams
//! with events, and plain allocations (the fallback where there is no virtual memory
//! management, and the baseline that the demo compares with). Backends are siblings of
//! the same shape: [`host`] (memfd and mmap, no GPU needed) and [`faulty`] (wraps any
//! driver: counts, journals, fails on demand).
//!
//! # Contract
//!
//! *Units.* Every length is in bytes. Lengths of pages, mappings, access changes and
//! reservations are multiples of [`DeviceInfo::granularity`]; so are their addresses.
//!
//! *Atomicity.* A call either does all it says or fails and changes nothing. There are two
//! exceptions: [`Driver::set_access`] may leave part of its range accessible when it fails;
//! unmapping the range is then the way back. And [`Driver::map_run`] is a sequence of maps.
//! A sequence of calls is not atomic: whoever needs that rolls back (room `vmem`).
//!
//! *Pages.* [`Driver::create`] makes a page that is mapped nowhere. A page may be released
//! while mapped: its memory lives on until the last mapping goes. The pool never maps
//! one page twice.
//!
//! *Mappings.* [`Driver::map`] needs a reserved range without a mapping in it and leaves it
//! inaccessible until [`Driver::set_access`]. [`Driver::unmap`] takes a range that covers whole
//! mappings, one or several adjacent ones. **Unmap is not a fence**: work already queued
//! that touches the range then faults or corrupts. The caller waits first.
//!
//! *Blocking.* `create`, `release`, `map` (each of a run), `unmap` and `set_access` may take
//! tens to hundreds of microseconds and may serialise with other threads' calls, but never
//! wait for queued work. [`Driver::alloc_plain`] and [`Driver::free_plain`] may wait for the
//! whole device, as `cudaMalloc` and `cudaFree` do. [`Driver::event_synchronize`] and
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
//! *After failure.* A failed call may be repeated. [`Code::ShutDown`] is final: every later
//! call answers it too, and the pool then stops calling.
//!
//! *Threads.* All methods may be called from any thread at once.

pub mod faulty;
pub mod host;

use std::fmt;

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
}

impl Call {
    /// Every kind, in numeric order.
    pub const ALL: [Call; 22] = [
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
        }
    }
}

/// Why a driver call failed, in terms the pool acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Code {
    /// The device has no memory left. `create` and `alloc_plain` only.
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
    /// The driver has been shut down; final.
    ShutDown,
    /// Anything else, with the backend's own number.
    Other(u32),
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
        write!(f, "driver call {} failed: {:?}", self.call.name(), self.code)
    }
}

impl std::error::Error for DriverError {}

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A physical page. Has no address until it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct PageHandle(pub u64);

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

    /// Makes a mapped range readable and writable by the device and its peers.
    fn set_access(&self, address: usize, bytes: usize) -> DriverResult<()>;

    /// One plain allocation (`cudaMalloc`'s kind), zero addresses never.
    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize>;

    /// Frees a plain allocation.
    fn free_plain(&self, address: usize) -> DriverResult<()>;

    /// A new stream.
    fn stream_create(&self) -> DriverResult<StreamHandle>;

    /// Destroys a stream once its queued work is done; returns at once. The handle may be
    /// given out again later.
    fn stream_destroy(&self, stream: StreamHandle) -> DriverResult<()>;

    /// Waits for all work queued on the stream.
    fn stream_synchronize(&self, stream: StreamHandle) -> DriverResult<()>;

    /// Makes later work of `stream` wait for `event`'s present mark.
    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()>;

    /// `Ok` when the handle names a stream of this device.
    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()>;

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
