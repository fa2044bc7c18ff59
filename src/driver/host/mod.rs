//! The host backend: a device made of ordinary memory, for tests and machines without a GPU.
//!
//! Owns a simulated device: pages are ranges of a memory file, a reservation is
//! inaccessible address space, map is a note, access is `mmap`, and a released page's
//! memory goes back to the machine at once. Streams are honest about order: work runs later, on
//! a worker thread, in its stream's order only. Promises the contract of [`crate::driver`]
//! and checks every argument: wrong use is an error that changes nothing. It must never read
//! or write device memory itself, save in queued copies and fills.
//! Cost: about one system call a memory call; record and query with nothing queued are
//! a few nanoseconds.
//!
//! Differences from a GPU, all on purpose: the default stream 0 is a stream like any other
//! (no implicit order with the rest); a copy or fill of memory that is not accessible
//! faults the process; queues have no limit of depth but memory; work still queued when
//! the driver is dropped is discarded.

mod events;
mod graphs;
mod memory;
mod pages;
mod queues;
mod ranges;
mod share;
mod space;
mod spare;
mod staging;
mod streams;
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::{
    Call, Code, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, ImportedPage,
    OnGraphEnd, PageHandle, Scope, StreamHandle,
};
use events::{Cell, Events};
use graphs::Graphs;
use memory::Memory;
use queues::Op;
use streams::Streams;

/// The host device's size when nothing else is said: 8 GiB. Memory is taken from the
/// machine only where it is touched.
pub const DEFAULT_DEVICE_BYTES: usize = 8 << 30;

/// The mapping unit when nothing else is said: 2 MiB, as on NVIDIA's devices.
pub const DEFAULT_GRANULARITY: usize = 2 << 20;

/// What a host device is like. The default is a device of [`DEFAULT_DEVICE_BYTES`] in granules
/// of [`DEFAULT_GRANULARITY`], with context events, no modelled cost, pageable memory, no
/// budget of mappings, and worker threads.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The device's memory in bytes: the cap on pages and plain allocations together.
    pub total_bytes: usize,
    /// The mapping unit in bytes: a power of two, at least the CPU's page size.
    pub granularity: usize,
    /// Whether [`Scope::Context`] is there.
    pub context_events: bool,
    /// Nanoseconds that each record and query spends busy, to stand for a real driver's.
    pub event_cost_ns: u32,
    /// Locks mapped memory (`mlock`) once it is accessible. Where the machine refuses, that
    /// is logged once and the memory stays pageable; [`Census::locked_bytes`] tells.
    pub pinned: bool,
    /// The most mappings at a time; more answer [`Code::MappingLimit`]. Without one the
    /// kernel's own limit holds (about 65,500 a process).
    pub mapping_budget: Option<usize>,
    /// How many other devices, numbered from 1, may be given access to the memory. There is none:
    /// what they may reach is recorded, and [`HostDriver::read_as_peer`] reads for them.
    pub peer_devices: u32,
    /// No worker threads: queued work runs only in [`HostDriver::step`], [`HostDriver::run_all`]
    /// and inside calls that wait for it, so that a test decides what is late.
    pub deferred: bool,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            total_bytes: DEFAULT_DEVICE_BYTES,
            granularity: DEFAULT_GRANULARITY,
            context_events: true,
            event_cost_ns: 0,
            pinned: false,
            mapping_budget: None,
            peer_devices: 0,
            deferred: false,
        }
    }
}

/// What a host device holds now; for leak checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Pages that hold memory: not released, or released and still mapped.
    pub pages: usize,
    /// Bytes of those pages, and of lent ones.
    pub page_bytes: usize,
    /// Pages that are gone here while another process still uses their memory.
    pub lent_pages: usize,
    /// Pages of other processes' (or other devices') memory.
    pub imported_pages: usize,
    /// Bytes of imported pages.
    pub imported_bytes: usize,
    /// Mappings.
    pub mappings: usize,
    /// Bytes of mappings that are locked in memory.
    pub locked_bytes: usize,
    /// Reservations.
    pub reservations: usize,
    /// Bytes reserved.
    pub reserved_bytes: usize,
    /// Plain allocations.
    pub plain_allocs: usize,
    /// Bytes of those, each rounded up to the CPU's page.
    pub plain_bytes: usize,
    /// Allocations that stand for page-locked host memory (they are not locked).
    pub host_allocs: usize,
    /// Bytes of those, each rounded up to the CPU's page.
    pub host_bytes: usize,
    /// Streams created and not gone; the default stream does not count. A destroyed
    /// stream counts until its work is done.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// File descriptors. The driver's own memory file is 1, for as long as the driver lives;
    /// each imported page keeps one.
    pub fds: usize,
}

impl Census {
    /// Whether nothing is left but what a fresh driver has.
    pub fn is_clean(&self) -> bool {
        *self == Census { fds: 1, ..Census::default() }
    }
}

/// A device in host memory. Dropping it joins its threads and frees all it has;
/// its addresses must not be used any more then.
pub struct HostDriver {
    // First, so that the workers are gone before the memory they write.
    streams: Streams,
    events: Events,
    memory: Memory,
    graphs: Graphs,
    info: DeviceInfo,
    event_cost: Duration,
}

impl HostDriver {
    /// Makes a device. Fails with [`Code::InvalidValue`] when the options contradict their
    /// documentation (the device holds one granule at least), with [`Code::Other`] and
    /// the error number when the system has no memory file.
    pub fn new(options: HostOptions) -> Result<HostDriver, DriverError> {
        let memory = Memory::new(&options)?;
        let info = DeviceInfo {
            name: "host memory (memfd)".to_owned(),
            total_bytes: options.total_bytes,
            granularity: options.granularity,
            context_events: options.context_events,
            host_accessible: true,
        };
        Ok(HostDriver {
            streams: Streams::new(options.deferred),
            events: Events::new(),
            memory,
            graphs: Graphs::default(),
            info,
            event_cost: Duration::from_nanos(u64::from(options.event_cost_ns)),
        })
    }

    /// What the device holds now.
    pub fn census(&self) -> Census {
        let streams = self.streams.live();
        let mut census = Census { streams, events: self.events.live(), ..Census::default() };
        self.memory.census(&mut census);
        census
    }

    /// Queues a delay of `ns` nanoseconds on the stream.
    pub fn spin(&self, stream: StreamHandle, ns: u64) -> DriverResult<()> {
        self.streams.queue(Call::StreamCheck, stream, Op::Delay { ns })
    }

    /// Queues a call of a host function, as `cudaLaunchHostFunc` does: `call` runs with `words`
    /// when all earlier work of the stream is done. It must not call this driver or panic.
    pub fn launch(
        &self,
        stream: StreamHandle,
        call: fn([usize; 4]),
        words: [usize; 4],
    ) -> DriverResult<()> {
        self.streams.queue(Call::StreamCheck, stream, Op::Call { call, words })
    }

    /// Stops the stream from starting operations, those queued before included; one that runs
    /// already ends. A hold is not work: with nothing queued the stream has passed.
    /// Waiting for held work waits until another thread lets it go. Destroying the stream
    /// lets it go too.
    pub fn hold(&self, stream: StreamHandle) -> DriverResult<()> {
        self.streams.set_held(stream, true)
    }

    /// Lets a held stream go on.
    pub fn unhold(&self, stream: StreamHandle) -> DriverResult<()> {
        self.streams.set_held(stream, false)
    }

    /// Waits for all work queued so far on every stream.
    pub fn quiesce(&self) {
        self.streams.quiesce();
    }

    /// Runs one operation now, on this thread, of a stream that `seed` chooses among those
    /// that may run; says which, `None` when none may. Meant for deferred devices, where
    /// equal seeds give equal runs.
    pub fn step(&self, seed: u64) -> Option<StreamHandle> {
        self.streams.step(seed)
    }

    /// Runs operations on this thread, oldest first, until none may run; says how many.
    pub fn run_all(&self) -> usize {
        self.streams.run_all()
    }

    /// Operations queued and not finished.
    pub fn outstanding(&self) -> usize {
        self.streams.outstanding()
    }

    /// The devices, beside the own one, that may use all of a range now; `None` where some of it
    /// is not mapped.
    pub fn peers_of(&self, address: usize, bytes: usize) -> Option<Vec<u32>> {
        self.memory.peers_of(address, bytes)
    }

    /// What device `device` would read at an address: [`Code::InvalidValue`] without access. The
    /// range stays mapped meanwhile.
    pub fn read_as_peer(&self, device: u32, address: usize, bytes: usize) -> DriverResult<Vec<u8>> {
        self.memory.read_as_peer(device, address, bytes)
    }

    /// Makes a stream say that it captures a graph, or no more. It goes on running its work.
    pub fn set_capturing(&self, stream: StreamHandle, capturing: bool) {
        self.graphs.set_capturing(stream, capturing);
    }

    /// Ends a graph: calls what [`Driver::on_graph_release`] was given for it. Says how many.
    pub fn end_graph(&self, graph: u64) -> usize {
        self.graphs.end(graph)
    }

    #[inline]
    fn event(&self, call: Call, event: EventHandle) -> DriverResult<&Cell> {
        self.events.get(event.0).ok_or(DriverError { call, code: Code::InvalidHandle })
    }

    #[inline]
    fn pay_for_event(&self) {
        if !self.event_cost.is_zero() {
            let start = Instant::now();
            while start.elapsed() < self.event_cost {
                std::hint::spin_loop();
            }
        }
    }
}

/// A range that an operation may name: not null, not around the end of the address space.
fn check_range(call: Call, address: usize, bytes: usize) -> DriverResult<()> {
    if address == 0 || address.checked_add(bytes).is_none() {
        return Err(DriverError { call, code: Code::InvalidValue });
    }
    Ok(())
}

impl Driver for HostDriver {
    fn backend(&self) -> &'static str {
        "host"
    }

    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        Ok(self.memory.info())
    }

    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        self.memory.reserve(bytes)
    }

    fn unreserve(&self, address: usize, bytes: usize) -> DriverResult<()> {
        self.memory.unreserve(address, bytes)
    }

    fn create(&self, bytes: usize) -> DriverResult<PageHandle> {
        self.memory.create(bytes)
    }

    fn release(&self, page: PageHandle) -> DriverResult<()> {
        self.memory.release(page)
    }

    fn map(&self, address: usize, bytes: usize, page: PageHandle) -> DriverResult<()> {
        self.memory.map(address, bytes, page)
    }

    /// One system call for each row of pages that lie side by side in the memory file, as
    /// those do that were created one after another.
    fn map_run(
        &self,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> Result<(), (usize, DriverError)> {
        self.memory.map_run(address, page_bytes, pages)
    }

    fn unmap(&self, address: usize, bytes: usize) -> DriverResult<()> {
        self.memory.unmap(address, bytes)
    }

    fn set_access(&self, address: usize, bytes: usize, peers: &[u32]) -> DriverResult<()> {
        self.memory.set_access(address, bytes, peers)
    }

    fn can_access_peer(&self, device: u32) -> bool {
        self.memory.is_peer(device)
    }

    fn export(&self, page: PageHandle) -> DriverResult<OwnedFd> {
        self.memory.export(page)
    }

    fn import(&self, fd: BorrowedFd<'_>, bytes: usize) -> DriverResult<ImportedPage> {
        self.memory.import(fd, bytes).map(|page| ImportedPage { page, owner: None })
    }

    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize> {
        self.memory.alloc_plain(bytes)
    }

    /// Waits for all queued work first, as `cudaFree` does.
    fn free_plain(&self, address: usize) -> DriverResult<()> {
        self.streams.quiesce();
        self.memory.free_plain(address)
    }

    fn host_alloc(&self, bytes: usize) -> DriverResult<usize> {
        self.memory.host_alloc(bytes)
    }

    fn host_free(&self, address: usize) -> DriverResult<()> {
        self.memory.host_free(address)
    }

    fn stream_create(&self) -> DriverResult<StreamHandle> {
        self.streams.create()
    }

    fn stream_destroy(&self, stream: StreamHandle) -> DriverResult<()> {
        self.streams.destroy(stream)
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> DriverResult<()> {
        self.streams.synchronize(stream)
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.streams.quiesce();
        Ok(())
    }

    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        let cell = self.event(Call::StreamWait, event)?;
        self.streams.wait_event(stream, cell)
    }

    #[inline]
    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()> {
        self.streams.check(stream)
    }

    fn stream_capturing(&self, stream: StreamHandle) -> bool {
        self.graphs.is_capturing(stream)
    }

    fn on_graph_release(&self, graph: u64, call: OnGraphEnd, word: usize) -> DriverResult<()> {
        self.graphs.on_end(graph, call, word);
        Ok(())
    }

    fn copy(&self, to: usize, from: usize, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        check_range(Call::Copy, to, bytes)?;
        check_range(Call::Copy, from, bytes)?;
        self.streams.queue(Call::Copy, stream, Op::Copy { to, from, bytes })
    }

    fn fill(&self, to: usize, value: u8, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        check_range(Call::Fill, to, bytes)?;
        if self.memory.pinned {
            self.stream_check(stream)?;
            // SAFETY: the caller keeps the range accessible, and uses it in no other way now.
            unsafe { sys::fill_bytes(to, value, bytes) };
            return Ok(());
        }
        self.streams.queue(Call::Fill, stream, Op::Fill { to, value, bytes })
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        let full = DriverError { call: Call::EventCreate, code: Code::NotSupported };
        self.events.create().map(EventHandle).ok_or(full)
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        if self.events.destroy(event.0) {
            return Ok(());
        }
        Err(DriverError { call: Call::EventDestroy, code: Code::InvalidHandle })
    }

    #[inline]
    fn event_record(&self, event: EventHandle, scope: Scope) -> DriverResult<()> {
        let cell = self.event(Call::EventRecord, event)?;
        if scope == Scope::Context && !self.info.context_events {
            return Err(DriverError { call: Call::EventRecord, code: Code::NotSupported });
        }
        self.pay_for_event();
        self.streams.record(cell, scope)
    }

    #[inline]
    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        let cell = self.event(Call::EventQuery, event)?;
        self.pay_for_event();
        Ok(self.streams.query(cell))
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        let cell = self.event(Call::EventSynchronize, event)?;
        self.streams.synchronize_event(cell);
        Ok(())
    }
}
