//! The fault-injecting driver: wraps any driver, counts its calls, fails them on demand.
//!
//! Owns the counters, the script of faults and the journal. Promises that every call is
//! counted by kind, that a call the script fails never reaches the wrapped driver, and that
//! everything else passes through unchanged. It must not invent results.
//! Cost: one relaxed addition and one relaxed load a call while there is neither
//! script nor journal; else one lock, and a run of maps goes page by page.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Call, Code, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, ImportedPage,
    OnGraphEnd, PageHandle, Scope, StreamHandle,
};

const KINDS: usize = Call::ALL.len();

/// A set of kinds of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallSet(u32);

impl CallSet {
    /// Every kind.
    pub const ALL: CallSet = CallSet((1 << KINDS) - 1);

    /// The kinds that change memory: address space, pages, mappings, plain allocations.
    pub const MEMORY: CallSet = CallSet::of(&[
        Call::Reserve,
        Call::Unreserve,
        Call::Create,
        Call::Release,
        Call::Map,
        Call::Unmap,
        Call::SetAccess,
        Call::AllocPlain,
        Call::FreePlain,
    ]);

    /// These kinds.
    pub const fn of(calls: &[Call]) -> CallSet {
        let mut bits = 0;
        let mut i = 0;
        while i < calls.len() {
            bits |= 1 << calls[i] as u32;
            i += 1;
        }
        CallSet(bits)
    }

    /// Whether the kind is in the set.
    pub const fn contains(self, call: Call) -> bool {
        self.0 & (1 << call as u32) != 0
    }
}

/// How often a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// The Nth call only.
    Once,
    /// The Nth call and all later ones.
    FromThenOn,
}

/// One line of a script of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The kinds that are counted and failed.
    pub calls: CallSet,
    /// Which call of those kinds, counted from 1 since the fault was set; 0 means 1.
    pub nth: u64,
    /// Once, or from then on.
    pub times: Times,
    /// The code to fail with; `None` means [`default_code`] of the call.
    pub code: Option<Code>,
}

impl Fault {
    /// Fails the `nth` call of these kinds, once, with the call's default code.
    pub const fn once(calls: CallSet, nth: u64) -> Fault {
        Fault { calls, nth, times: Times::Once, code: None }
    }

    /// Fails the `nth` call of these kinds and all later ones, with the call's default code.
    pub const fn from_then_on(calls: CallSet, nth: u64) -> Fault {
        Fault { calls, nth, times: Times::FromThenOn, code: None }
    }

    /// The same fault with another code.
    pub const fn with_code(self, code: Code) -> Fault {
        Fault { code: Some(code), ..self }
    }
}

/// The failure that a real driver most likely gives for this call.
pub const fn default_code(call: Call) -> Code {
    match call {
        Call::Reserve => Code::NoAddressSpace,
        Call::Create | Call::AllocPlain | Call::HostAlloc => Code::OutOfMemory,
        Call::Map | Call::Unmap | Call::SetAccess => Code::MappingLimit,
        _ => Code::Other(UNKNOWN_ERROR),
    }
}

/// CUDA's number for an error without a name of its own.
const UNKNOWN_ERROR: u32 = 999;

/// One call as the journal keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Which call.
    pub call: Call,
    /// Its arguments in order, then zeros. [`Scope::Context`] is `u64::MAX`.
    pub args: [u64; 4],
    /// What it answered: the handle, address, free bytes or truth value; 0 for `()`.
    pub result: Result<u64, Code>,
}

impl Entry {
    /// One JSON object on one line, without a line end.
    pub fn to_json(&self) -> String {
        let [a, b, c, d] = self.args;
        let call = self.call.name();
        match self.result {
            Ok(value) => format!(r#"{{"call":"{call}","args":[{a},{b},{c},{d}],"ok":{value}}}"#),
            Err(code) => {
                format!(r#"{{"call":"{call}","args":[{a},{b},{c},{d}],"error":"{code:?}"}}"#)
            }
        }
    }
}

struct Armed {
    fault: Fault,
    seen: u64,
}

#[derive(Default)]
struct State {
    faults: Vec<Armed>,
    journal: Vec<Entry>,
    journal_max: usize,
    lost: u64,
}

/// Set in `FaultyDriver::watch` while there are faults.
const FAULTS: u32 = 1;
/// Set in `FaultyDriver::watch` while the journal is kept.
const JOURNAL: u32 = 2;

/// A driver that counts, journals and fails calls. All methods may be called from any
/// thread; a count covers the calls that began before it was read.
pub struct FaultyDriver<D: Driver + ?Sized> {
    counts: [AtomicU64; KINDS],
    injected: AtomicU64,
    watch: AtomicU32,
    state: Mutex<State>,
    inner: Arc<D>,
}

impl<D: Driver + ?Sized> FaultyDriver<D> {
    /// Wraps a driver. Without a script it only counts.
    pub fn new(inner: Arc<D>) -> FaultyDriver<D> {
        FaultyDriver {
            counts: [const { AtomicU64::new(0) }; KINDS],
            injected: AtomicU64::new(0),
            watch: AtomicU32::new(0),
            state: Mutex::new(State::default()),
            inner,
        }
    }

    /// The wrapped driver.
    pub fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls of this kind since the start or the last reset, failed ones included.
    pub fn count(&self, call: Call) -> u64 {
        self.counts[call as usize].load(Ordering::Relaxed)
    }

    /// Calls of these kinds.
    pub fn count_of(&self, calls: CallSet) -> u64 {
        Call::ALL.iter().filter(|call| calls.contains(**call)).map(|call| self.count(*call)).sum()
    }

    /// Calls of every kind.
    pub fn total(&self) -> u64 {
        self.count_of(CallSet::ALL)
    }

    /// Sets all counts to 0, that of injected failures too. Faults keep theirs.
    pub fn reset_counts(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.injected.store(0, Ordering::Relaxed);
    }

    /// Calls that the script has failed.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// Adds a fault to the script; it counts calls from now on. Where several faults
    /// strike one call, the first set decides the code.
    pub fn fail(&self, fault: Fault) {
        let mut state = self.state();
        state.faults.push(Armed { fault, seen: 0 });
        self.watch.fetch_or(FAULTS, Ordering::Relaxed);
    }

    /// Empties the script.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.faults.clear();
        self.watch.fetch_and(!FAULTS, Ordering::Relaxed);
    }

    /// Starts an empty journal of at most `entries_max` calls; later calls are not kept but
    /// counted by [`FaultyDriver::journal_lost`].
    pub fn start_journal(&self, entries_max: usize) {
        let mut state = self.state();
        state.journal.clear();
        state.journal_max = entries_max;
        state.lost = 0;
        self.watch.fetch_or(JOURNAL, Ordering::Relaxed);
    }

    /// Stops the journal and hands it over. Calls of several threads are in the
    /// order in which they ended.
    pub fn stop_journal(&self) -> Vec<Entry> {
        let mut state = self.state();
        self.watch.fetch_and(!JOURNAL, Ordering::Relaxed);
        std::mem::take(&mut state.journal)
    }

    /// Calls that the last journal had no room for.
    pub fn journal_lost(&self) -> u64 {
        self.state().lost
    }

    /// The journal so far as JSON lines.
    pub fn journal_text(&self) -> String {
        let mut text = String::new();
        for entry in &self.state().journal {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{}", entry.to_json());
        }
        text
    }

    /// Counts the call for every fault and says what the script does with it.
    fn verdict(&self, call: Call) -> Option<Code> {
        let mut verdict = None;
        for armed in &mut self.state().faults {
            if !armed.fault.calls.contains(call) {
                continue;
            }
            armed.seen += 1;
            let nth = armed.fault.nth.max(1);
            let strikes = match armed.fault.times {
                Times::Once => armed.seen == nth,
                Times::FromThenOn => armed.seen >= nth,
            };
            if strikes && verdict.is_none() {
                verdict = Some(armed.fault.code.unwrap_or(default_code(call)));
            }
        }
        verdict
    }

    #[inline]
    fn call<T: Answer>(
        &self,
        call: Call,
        args: [u64; 4],
        run: impl FnOnce(&D) -> DriverResult<T>,
    ) -> DriverResult<T> {
        self.counts[call as usize].fetch_add(1, Ordering::Relaxed);
        let watch = self.watch.load(Ordering::Relaxed);
        if watch == 0 {
            return run(&self.inner);
        }
        self.watched_call(watch, call, args, run)
    }

    #[cold]
    fn watched_call<T: Answer>(
        &self,
        watch: u32,
        call: Call,
        args: [u64; 4],
        run: impl FnOnce(&D) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let verdict = if watch & FAULTS != 0 { self.verdict(call) } else { None };
        let result = match verdict {
            Some(code) => {
                self.injected.fetch_add(1, Ordering::Relaxed);
                Err(DriverError { call, code })
            }
            None => run(&self.inner),
        };
        if watch & JOURNAL != 0 {
            let answer = result.as_ref().map(Answer::number).map_err(|error| error.code);
            let mut state = self.state();
            if state.journal.len() < state.journal_max {
                state.journal.push(Entry { call, args, result: answer });
            } else {
                state.lost += 1;
            }
        }
        result
    }
}

/// A call's answer as the journal's number.
trait Answer {
    fn number(&self) -> u64;
}

impl Answer for () {
    fn number(&self) -> u64 {
        0
    }
}

impl Answer for bool {
    fn number(&self) -> u64 {
        u64::from(*self)
    }
}

impl Answer for usize {
    fn number(&self) -> u64 {
        *self as u64
    }
}

impl Answer for (usize, usize) {
    fn number(&self) -> u64 {
        self.0 as u64
    }
}

impl Answer for PageHandle {
    fn number(&self) -> u64 {
        self.0
    }
}

impl Answer for ImportedPage {
    fn number(&self) -> u64 {
        self.page.0
    }
}

impl Answer for StreamHandle {
    fn number(&self) -> u64 {
        self.0
    }
}

impl Answer for OwnedFd {
    fn number(&self) -> u64 {
        u64::from(self.as_raw_fd().unsigned_abs())
    }
}

impl Answer for EventHandle {
    fn number(&self) -> u64 {
        self.0
    }
}

fn range(address: usize, bytes: usize) -> [u64; 4] {
    [address as u64, bytes as u64, 0, 0]
}

fn one(number: u64) -> [u64; 4] {
    [number, 0, 0, 0]
}

impl<D: Driver + ?Sized> Driver for FaultyDriver<D> {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        self.call(Call::MemoryInfo, [0; 4], |d| d.memory_info())
    }

    fn together(&self, f: &mut dyn FnMut()) {
        self.inner.together(f);
    }

    fn backed_reservations(&self) -> Option<usize> {
        self.inner.backed_reservations()
    }

    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        self.call(Call::Reserve, one(bytes as u64), |d| d.reserve(bytes))
    }

    fn unreserve(&self, address: usize, bytes: usize) -> DriverResult<()> {
        self.call(Call::Unreserve, range(address, bytes), |d| d.unreserve(address, bytes))
    }

    fn create(&self, bytes: usize) -> DriverResult<PageHandle> {
        self.call(Call::Create, one(bytes as u64), |d| d.create(bytes))
    }

    fn release(&self, page: PageHandle) -> DriverResult<()> {
        self.call(Call::Release, one(page.0), |d| d.release(page))
    }

    fn map(&self, address: usize, bytes: usize, page: PageHandle) -> DriverResult<()> {
        let args = [address as u64, bytes as u64, page.0, 0];
        self.call(Call::Map, args, |d| d.map(address, bytes, page))
    }

    /// Counts, fails and journals each page's map by itself; the wrapped driver sees a run as
    /// one only while nobody watches.
    fn map_run(
        &self,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> Result<(), (usize, DriverError)> {
        if self.watch.load(Ordering::Relaxed) != 0 {
            for (done, &page) in pages.iter().enumerate() {
                self.map(address.wrapping_add(done * page_bytes), page_bytes, page)
                    .map_err(|error| (done, error))?;
            }
            return Ok(());
        }
        let mapped = self.inner.map_run(address, page_bytes, pages);
        // The page that failed was tried, too.
        let tried = mapped.as_ref().map_or_else(|&(done, _)| done + 1, |()| pages.len());
        self.counts[Call::Map as usize].fetch_add(tried as u64, Ordering::Relaxed);
        mapped
    }

    fn unmap(&self, address: usize, bytes: usize) -> DriverResult<()> {
        self.call(Call::Unmap, range(address, bytes), |d| d.unmap(address, bytes))
    }

    fn set_access(&self, address: usize, bytes: usize, peers: &[u32]) -> DriverResult<()> {
        let args = [address as u64, bytes as u64, peers.len() as u64, 0];
        self.call(Call::SetAccess, args, |d| d.set_access(address, bytes, peers))
    }

    /// Counted, and never failed: it has no way to.
    fn can_access_peer(&self, device: u32) -> bool {
        self.counts[Call::CanAccessPeer as usize].fetch_add(1, Ordering::Relaxed);
        self.inner.can_access_peer(device)
    }

    fn export(&self, page: PageHandle) -> DriverResult<OwnedFd> {
        self.call(Call::Export, one(page.0), |d| d.export(page))
    }

    fn import(&self, fd: BorrowedFd<'_>, bytes: usize) -> DriverResult<ImportedPage> {
        let args = [u64::from(fd.as_raw_fd().unsigned_abs()), bytes as u64, 0, 0];
        self.call(Call::Import, args, |d| d.import(fd, bytes))
    }

    fn open_foreign(&self, address: usize, bytes: usize, owner: u32) -> DriverResult<()> {
        let args = [address as u64, bytes as u64, u64::from(owner), 0];
        self.call(Call::SetAccess, args, |d| d.open_foreign(address, bytes, owner))
    }

    fn alloc_plain(&self, bytes: usize) -> DriverResult<usize> {
        self.call(Call::AllocPlain, one(bytes as u64), |d| d.alloc_plain(bytes))
    }

    fn free_plain(&self, address: usize) -> DriverResult<()> {
        self.call(Call::FreePlain, one(address as u64), |d| d.free_plain(address))
    }

    fn host_alloc(&self, bytes: usize) -> DriverResult<usize> {
        self.call(Call::HostAlloc, one(bytes as u64), |d| d.host_alloc(bytes))
    }

    fn host_free(&self, address: usize) -> DriverResult<()> {
        self.call(Call::HostFree, one(address as u64), |d| d.host_free(address))
    }

    fn stream_create(&self) -> DriverResult<StreamHandle> {
        self.call(Call::StreamCreate, [0; 4], |d| d.stream_create())
    }

    fn stream_destroy(&self, stream: StreamHandle) -> DriverResult<()> {
        self.call(Call::StreamDestroy, one(stream.0), |d| d.stream_destroy(stream))
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> DriverResult<()> {
        self.call(Call::StreamSynchronize, one(stream.0), |d| d.stream_synchronize(stream))
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.call(Call::StreamSynchronize, [u64::MAX, 0, 0, 0], |d| d.synchronize())
    }

    fn stream_wait(&self, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        let args = [stream.0, event.0, 0, 0];
        self.call(Call::StreamWait, args, |d| d.stream_wait(stream, event))
    }

    #[inline]
    fn stream_check(&self, stream: StreamHandle) -> DriverResult<()> {
        self.call(Call::StreamCheck, one(stream.0), |d| d.stream_check(stream))
    }

    /// Never failed: it has no way to.
    fn stream_id(&self, stream: StreamHandle) -> Option<u64> {
        self.inner.stream_id(stream)
    }

    /// Counted, and never failed: it has no way to.
    fn stream_capturing(&self, stream: StreamHandle) -> bool {
        self.counts[Call::StreamCapturing as usize].fetch_add(1, Ordering::Relaxed);
        self.inner.stream_capturing(stream)
    }

    fn on_graph_release(&self, graph: u64, call: OnGraphEnd, word: usize) -> DriverResult<()> {
        let args = [graph, word as u64, 0, 0];
        self.call(Call::OnGraphRelease, args, |d| d.on_graph_release(graph, call, word))
    }

    fn copy(&self, to: usize, from: usize, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        let args = [to as u64, from as u64, bytes as u64, stream.0];
        self.call(Call::Copy, args, |d| d.copy(to, from, bytes, stream))
    }

    fn fill(&self, to: usize, value: u8, bytes: usize, stream: StreamHandle) -> DriverResult<()> {
        let args = [to as u64, u64::from(value), bytes as u64, stream.0];
        self.call(Call::Fill, args, |d| d.fill(to, value, bytes, stream))
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.call(Call::EventCreate, [0; 4], |d| d.event_create())
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.call(Call::EventDestroy, one(event.0), |d| d.event_destroy(event))
    }

    #[inline]
    fn event_record(&self, event: EventHandle, scope: Scope) -> DriverResult<()> {
        let place = match scope {
            Scope::Stream(stream) => stream.0,
            Scope::Context => u64::MAX,
        };
        self.call(Call::EventRecord, [event.0, place, 0, 0], |d| d.event_record(event, scope))
    }

    #[inline]
    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.call(Call::EventQuery, one(event.0), |d| d.event_query(event))
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.call(Call::EventSynchronize, one(event.0), |d| d.event_synchronize(event))
    }
}
