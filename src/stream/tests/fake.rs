//! A driver of events only: a test says by hand when work is done.
//!
//! Owns a list of events and what was recorded on them. Memory calls answer "not supported".
//! Makes no system call, so it runs under Miri.

use crate::driver::{
    Call, Code, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, PageHandle, Scope,
    StreamHandle,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// See the file's page.
#[derive(Debug)]
pub(crate) struct FakeDriver {
    info: DeviceInfo,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the work before each event's mark is done.
    events: BTreeMap<u64, bool>,
    last: u64,
    records: Vec<(EventHandle, Scope)>,
    waits: Vec<(StreamHandle, EventHandle)>,
}

impl FakeDriver {
    pub(crate) fn new() -> FakeDriver {
        let info = DeviceInfo {
            name: "events".to_owned(),
            total_bytes: 1 << 30,
            granularity: 2 << 20,
            context_events: true,
            host_accessible: false,
        };
        FakeDriver { info, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics inside")
    }

    /// The work before this event's mark is done now.
    pub(crate) fn pass(&self, event: EventHandle) {
        assert!(self.state().events.insert(event.0, true).is_some(), "a live event");
    }

    /// The work before all marks is done now.
    pub(crate) fn pass_all(&self) {
        self.state().events.values_mut().for_each(|done| *done = true);
    }

    /// All marks so far, oldest first.
    pub(crate) fn records(&self) -> Vec<(EventHandle, Scope)> {
        self.state().records.clone()
    }

    /// The event recorded last.
    pub(crate) fn last_record(&self) -> EventHandle {
        self.state().records.last().expect("something was recorded").0
    }

    /// All stream waits so far, oldest first.
    pub(crate) fn waits(&self) -> Vec<(StreamHandle, EventHandle)> {
        self.state().waits.clone()
    }

    /// Events that were created and not destroyed.
    pub(crate) fn live_events(&self) -> usize {
        self.state().events.len()
    }
}

fn unsupported<T>(call: Call) -> DriverResult<T> {
    Err(DriverError { call, code: Code::NotSupported })
}

impl Driver for FakeDriver {
    fn backend(&self) -> &'static str {
        "events"
    }
    fn device(&self) -> &DeviceInfo {
        &self.info
    }
    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        unsupported(Call::MemoryInfo)
    }
    fn reserve(&self, _bytes: usize) -> DriverResult<usize> {
        unsupported(Call::Reserve)
    }
    fn unreserve(&self, _address: usize, _bytes: usize) -> DriverResult<()> {
        unsupported(Call::Unreserve)
    }
    fn create(&self, _bytes: usize) -> DriverResult<PageHandle> {
        unsupported(Call::Create)
    }
    fn release(&self, _page: PageHandle) -> DriverResult<()> {
        unsupported(Call::Release)
    }
    fn map(&self, _address: usize, _bytes: usize, _page: PageHandle) -> DriverResult<()> {
        unsupported(Call::Map)
    }
    fn unmap(&self, _address: usize, _bytes: usize) -> DriverResult<()> {
        unsupported(Call::Unmap)
    }
    fn set_access(&self, _address: usize, _bytes: usize, _peers: &[u32]) -> DriverResult<()> {
        unsupported(Call::SetAccess)
    }
    fn alloc_plain(&self, _bytes: usize) -> DriverResult<usize> {
        unsupported(Call::AllocPlain)
    }
    fn free_plain(&self, _address: usize) -> DriverResult<()> {
        unsupported(Call::FreePlain)
    }
    fn stream_create(&self) -> DriverResult<StreamHandle> {
        unsupported(Call::StreamCreate)
    }
    fn stream_destroy(&self, _stream: StreamHandle) -> DriverResult<()> {
        unsupported(Call::StreamDestroy)
    }
    fn stream_synchronize(&self, _stream: StreamHandle) -> DriverResult<()> {
        unsupported(Call::StreamSynchronize)
    }
    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        self.state().waits.push((stream, event));
        Ok(())
    }
    fn stream_check(&self, _stream: StreamHandle) -> DriverResult<()> {
        Ok(())
    }
    fn copy(&self, _: usize, _: usize, _: usize, _: StreamHandle) -> DriverResult<()> {
        unsupported(Call::Copy)
    }
    fn fill(&self, _: usize, _: u8, _: usize, _: StreamHandle) -> DriverResult<()> {
        unsupported(Call::Fill)
    }
    fn event_create(&self) -> DriverResult<EventHandle> {
        let mut state = self.state();
        state.last += 1;
        let event = state.last;
        state.events.insert(event, true);
        Ok(EventHandle(event))
    }
    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        match self.state().events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(DriverError { call: Call::EventDestroy, code: Code::InvalidHandle }),
        }
    }
    fn event_record(&self, event: EventHandle, scope: Scope) -> DriverResult<()> {
        let mut state = self.state();
        let known = state.events.insert(event.0, false).is_some();
        assert!(known, "only live events are recorded");
        state.records.push((event, scope));
        Ok(())
    }
    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        let done = self.state().events.get(&event.0).copied();
        done.ok_or(DriverError { call: Call::EventQuery, code: Code::InvalidHandle })
    }
    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.pass(event);
        Ok(())
    }
}
