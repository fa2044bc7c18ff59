//! Plain segments: a driver without virtual memory management, made to look as if it had some.
//!
//! Wraps a driver whose `reserve`, `create` and `map` cannot be used, and builds them on its plain
//! allocations: a reservation is one allocation (a *segment*), backed from the start; a page is
//! a token that entitles to one granule of use; mapping it at an address only notes that. So the
//! whole pool works, with two differences that [`Driver::backed_reservations`] announces:
//!
//! - memory does not move: a page unmapped here and mapped there is other memory, so contents do
//!   not follow (the pool asks for that of idle memory only, whose contents are nobody's), and a
//!   request longer than any free run of its segment needs another segment;
//! - memory goes back to the device when its segment does, at the pool's end: trimming lowers
//!   what the pool counts as mapped, not what the device has lent.
//!
//! Promises the contract of [`crate::driver`] for all arguments, which it checks itself. Access by
//! peers and exported pages are not supported. Cost: one lock and a step in an ordered map a
//! memory call; a plain allocation a segment.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Call, Code, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, OnGraphEnd, PageHandle,
    Scope, StreamHandle,
};

/// A driver's plain allocations as reservations. See the room's page.
pub struct SegmentDriver<D: Driver + ?Sized> {
    inner: Arc<D>,
    info: DeviceInfo,
    segment_bytes: usize,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    segments: BTreeMap<usize, Segment>,
    pages: BTreeMap<u64, Page>,
    /// Address to length and page.
    mappings: BTreeMap<usize, (usize, u64)>,
    last_page: u64,
    page_bytes: usize,
    /// Allocations that could not serve and that the driver has not taken back yet.
    unfit: Vec<usize>,
}

struct Segment {
    bytes: usize,
    /// What the plain allocation is called: the segment is the aligned part of it.
    allocated: usize,
}

/// A token. Lives until it is both released and mapped nowhere.
struct Page {
    bytes: usize,
    mappings: u32,
    released: bool,
}

fn fail<T>(call: Call, code: Code) -> DriverResult<T> {
    Err(DriverError { call, code })
}

impl Tables {
    /// The pages mapped in a range of whole mappings; fails where it cuts one or has gaps.
    fn mapped(&self, call: Call, address: usize, end: usize) -> DriverResult<Vec<(usize, u64)>> {
        let mut found = Vec::new();
        let mut next = address;
        while next < end {
            match self.mappings.get(&next) {
                Some(&(bytes, page)) if next + bytes <= end => {
                    found.push((next, page));
                    next += bytes;
                }
                _ => return fail(call, Code::InvalidValue),
            }
        }
        Ok(found)
    }

    /// Whether a range lies in one segment.
    fn inside(&self, address: usize, end: usize) -> bool {
        let below = self.segments.range(..=address).next_back();
        below.is_some_and(|(base, segment)| end <= base + segment.bytes)
    }

    /// Whether some mapping touches the range.
    fn touched(&self, address: usize, end: usize) -> bool {
        let below = self.mappings.range(..end).next_back();
        below.is_some_and(|(base, (bytes, _))| base + bytes > address)
    }

    fn drop_if_gone(&mut self, id: u64) {
        if let Some(page) = self.pages.get(&id)
            && page.released
            && page.mappings == 0
        {
            self.page_bytes -= page.bytes;
            self.pages.remove(&id);
        }
    }
}

impl<D: Driver + ?Sized> SegmentDriver<D> {
    /// Wraps a driver. Segments are `segment_bytes` long unless a request needs more.
    pub fn new(inner: Arc<D>, segment_bytes: usize) -> SegmentDriver<D> {
        let info = inner.device().clone();
        let segment_bytes = segment_bytes.next_multiple_of(info.granularity);
        SegmentDriver { inner, info, segment_bytes, tables: Mutex::new(Tables::default()) }
    }

    /// The wrapped driver.
    pub fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of a well-formed range of whole granules.
    fn end_of(&self, call: Call, address: usize, bytes: usize) -> DriverResult<usize> {
        let mask = self.info.granularity - 1;
        if bytes == 0 || (address | bytes) & mask != 0 {
            return fail(call, Code::InvalidValue);
        }
        address.checked_add(bytes).ok_or(DriverError { call, code: Code::InvalidValue })
    }

    /// Gives back what could not serve; what the driver refuses is kept for the next time.
    fn free_unfit(&self) -> DriverResult<()> {
        let mut tables = self.tables();
        while let Some(&address) = tables.unfit.last() {
            self.inner.free_plain(address)?;
            tables.unfit.pop();
        }
        Ok(())
    }

    /// A plain allocation that holds an aligned segment: its name and the segment's address.
    fn allocate(&self, bytes: usize) -> DriverResult<(usize, usize)> {
        let granule = self.info.granularity;
        let refused = |error: DriverError| match error.code {
            Code::OutOfMemory => DriverError { call: Call::Reserve, code: Code::NoAddressSpace },
            code => DriverError { call: Call::Reserve, code },
        };
        self.free_unfit().map_err(refused)?;
        let exact = self.inner.alloc_plain(bytes).map_err(refused)?;
        if exact.is_multiple_of(granule) {
            return Ok((exact, exact));
        }
        self.tables().unfit.push(exact);
        self.free_unfit().map_err(refused)?;
        let longer = bytes.checked_add(granule);
        let longer = longer.ok_or(DriverError { call: Call::Reserve, code: Code::InvalidValue })?;
        let allocated = self.inner.alloc_plain(longer).map_err(refused)?;
        Ok((allocated, allocated.next_multiple_of(granule)))
    }
}

impl<D: Driver + ?Sized> Drop for SegmentDriver<D> {
    fn drop(&mut self) {
        if let Err(error) = self.free_unfit() {
            tracing::warn!(%error, "a plain allocation could not be given back");
        }
    }
}

impl<D: Driver + ?Sized> Driver for SegmentDriver<D> {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        self.inner.memory_info()
    }

    fn together(&self, f: &mut dyn FnMut()) {
        self.inner.together(f);
    }

    fn backed_reservations(&self) -> Option<usize> {
        Some(self.segment_bytes)
    }

    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        self.end_of(Call::Reserve, 0, bytes)?;
        let (allocated, base) = self.allocate(bytes)?;
        self.tables().segments.insert(base, Segment { bytes, allocated });
        Ok(base)
    }

    fn unreserve(&self, address: usize, bytes: usize) -> DriverResult<()> {
        let call = Call::Unreserve;
        let end = self.end_of(call, address, bytes)?;
        let mut tables = self.tables();
        let allocated = match tables.segments.get(&address) {
            Some(segment) if segment.bytes == bytes => segment.allocated,
            _ => return fail(call, Code::InvalidValue),
        };
        if tables.touched(address, end) {
            return fail(call, Code::InvalidValue);
        }
        self.inner.free_plain(allocated).map_err(|e| DriverError { call, code: e.code })?;
        tables.segments.remove(&address);
        Ok(())
    }

    fn create(&self, bytes: usize) -> DriverResult<PageHandle> {
        let call = Call::Create;
        self.end_of(call, 0, bytes)?;
        let mut tables = self.tables();
        if bytes > self.info.total_bytes.saturating_sub(tables.page_bytes) {
            return fail(call, Code::OutOfMemory);
        }
        tables.last_page += 1;
        let id = tables.last_page;
        tables.pages.insert(id, Page { bytes, mappings: 0, released: false });
        tables.page_bytes += bytes;
        Ok(PageHandle(id))
    }

    fn release(&self, page: PageHandle) -> DriverResult<()> {
        let mut tables = self.tables();
        match tables.pages.get_mut(&page.0) {
            Some(found) if !found.released => found.released = true,
            _ => return fail(Call::Release, Code::InvalidHandle),
        }
        tables.drop_if_gone(page.0);
        Ok(())
    }

    fn map(&self, address: usize, bytes: usize, page: PageHandle) -> DriverResult<()> {
        let call = Call::Map;
        let end = self.end_of(call, address, bytes)?;
        let mut tables = self.tables();
        let fits = tables.inside(address, end) && !tables.touched(address, end);
        match tables.pages.get_mut(&page.0) {
            Some(found) if !found.released => {
                if !fits || found.bytes != bytes {
                    return fail(call, Code::InvalidValue);
                }
                found.mappings += 1;
            }
            _ => return fail(call, Code::InvalidHandle),
        }
        tables.mappings.insert(address, (bytes, page.0));
        Ok(())
    }

    fn unmap(&self, address: usize, bytes: usize) -> DriverResult<()> {
        let call = Call::Unmap;
        let end = self.end_of(call, address, bytes)?;
        let mut tables = self.tables();
        for (at, id) in tables.mapped(call, address, end)? {
            tables.mappings.remove(&at);
            if let Some(page) = tables.pages.get_mut(&id) {
                page.mappings -= 1;
            }
            tables.drop_if_gone(id);
        }
        Ok(())
    }

    /// Plain memory is accessible from the start; its peers are not ours to choose.
    fn set_access(&self, address: usize, bytes: usize, peers: &[u32]) -> DriverResult<()> {
        let call = Call::SetAccess;
        let end = self.end_of(call, address, bytes)?;
        self.tables().mapped(call, address, end)?;
        if peers.is_empty() { Ok(()) } else { fail(call, Code::NotSupported) }
    }

    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize> {
        self.inner.alloc_plain(bytes)
    }

    fn free_plain(&self, address: usize) -> DriverResult<()> {
        self.inner.free_plain(address)
    }

    fn host_alloc(&self, bytes: usize) -> DriverResult<usize> {
        self.inner.host_alloc(bytes)
    }

    fn host_free(&self, address: usize) -> DriverResult<()> {
        self.inner.host_free(address)
    }

    fn stream_create(&self) -> DriverResult<StreamHandle> {
        self.inner.stream_create()
    }

    fn stream_destroy(&self, stream: StreamHandle) -> DriverResult<()> {
        self.inner.stream_destroy(stream)
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> DriverResult<()> {
        self.inner.stream_synchronize(stream)
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.inner.synchronize()
    }

    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        self.inner.stream_wait(stream, event)
    }

    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()> {
        self.inner.stream_check(stream)
    }

    fn stream_id(&self, stream: StreamHandle) -> Option<u64> {
        self.inner.stream_id(stream)
    }

    fn stream_capturing(&self, stream: StreamHandle) -> bool {
        self.inner.stream_capturing(stream)
    }

    fn on_graph_release(&self, graph: u64, call: OnGraphEnd, word: usize) -> DriverResult<()> {
        self.inner.on_graph_release(graph, call, word)
    }

    fn copy(&self, to: usize, from: usize, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        self.inner.copy(to, from, bytes, stream)
    }

    fn fill(&self, to: usize, value: u8, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        self.inner.fill(to, value, bytes, stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.inner.event_create()
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.inner.event_destroy(event)
    }

    fn event_record(&self, event: EventHandle, scope: Scope) -> DriverResult<()> {
        self.inner.event_record(event, scope)
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.inner.event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.inner.event_synchronize(event)
    }
}
