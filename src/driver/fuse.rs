//! The fuse: a driver whose context is gone is called no more.
//!
//! Wraps any driver for one pool. Passes every call through until one answers
//! [`Code::ContextLost`]; then it is **blown**: it tells whoever asked to be told, once, and
//! answers every later call the same without making it. Must not decide what a pool does then.
//! Cost: one relaxed load and one indirect call more a call.

use super::{
    Call, Code, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, ImportedPage,
    OnGraphEnd, PageHandle, Scope, StreamHandle,
};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

type OnLoss = Box<dyn Fn() + Send + Sync>;

/// A driver that stops when the context is lost. All methods may be called from any thread.
pub struct Fuse {
    inner: Arc<dyn Driver>,
    blown: AtomicBool,
    on_loss: OnceLock<OnLoss>,
}

impl Fuse {
    /// Wraps a driver.
    pub fn new(inner: Arc<dyn Driver>) -> Fuse {
        Fuse { inner, blown: AtomicBool::new(false), on_loss: OnceLock::new() }
    }

    /// Whether the context is known to be gone.
    #[inline]
    pub fn is_blown(&self) -> bool {
        self.blown.load(Ordering::Relaxed)
    }

    /// Has `tell` called when the context is lost, by the thread that learnt it, whatever locks
    /// it holds: `tell` takes none and makes no driver call. At once if it is lost already. The
    /// first caller's counts.
    pub fn on_loss(&self, tell: impl Fn() + Send + Sync + 'static) {
        let set = self.on_loss.set(Box::new(tell)).is_ok();
        // With the fence in `blow`: one of the two sees what the other did.
        fence(Ordering::SeqCst);
        if set && self.is_blown() {
            self.tell();
        }
    }

    fn tell(&self) {
        if let Some(tell) = self.on_loss.get() {
            tell();
        }
    }

    #[inline]
    fn call<T>(
        &self,
        call: Call,
        run: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        if self.is_blown() {
            return Err(DriverError { call, code: Code::ContextLost });
        }
        let result = run(&*self.inner);
        if matches!(&result, Err(DriverError { code: Code::ContextLost, .. })) {
            self.blow(call);
        }
        result
    }

    #[cold]
    fn blow(&self, call: Call) {
        if !self.blown.swap(true, Ordering::SeqCst) {
            fence(Ordering::SeqCst);
            tracing::error!(call = call.name(), "the device's context is lost");
            self.tell();
        }
    }
}

impl std::fmt::Debug for Fuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fuse").field("blown", &self.is_blown()).finish_non_exhaustive()
    }
}

/// Methods that only pass through.
macro_rules! passed {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty, $call:ident;)*) => {
        $(
            #[inline]
            fn $name(&self, $($arg: $kind),*) -> DriverResult<$answer> {
                self.call(Call::$call, |driver| driver.$name($($arg),*))
            }
        )*
    };
}

impl Driver for Fuse {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn together(&self, f: &mut dyn FnMut()) {
        self.inner.together(f);
    }

    fn backed_reservations(&self) -> Option<usize> {
        self.inner.backed_reservations()
    }

    fn map_run(
        &self,
        address: usize,
        page_bytes: usize,
        pages: &[PageHandle],
    ) -> Result<(), (usize, DriverError)> {
        let mut done = 0;
        let mapped = self.call(Call::Map, |driver| {
            driver.map_run(address, page_bytes, pages).map_err(|(before, error)| {
                done = before;
                error
            })
        });
        mapped.map_err(|error| (done, error))
    }

    fn can_access_peer(&self, device: u32) -> bool {
        !self.is_blown() && self.inner.can_access_peer(device)
    }

    fn stream_id(&self, stream: StreamHandle) -> Option<u64> {
        if self.is_blown() { None } else { self.inner.stream_id(stream) }
    }

    fn stream_capturing(&self, stream: StreamHandle) -> bool {
        !self.is_blown() && self.inner.stream_capturing(stream)
    }

    passed! {
        memory_info() -> (usize, usize), MemoryInfo;
        reserve(bytes: usize) -> usize, Reserve;
        unreserve(address: usize, bytes: usize) -> (), Unreserve;
        create(bytes: usize) -> PageHandle, Create;
        release(page: PageHandle) -> (), Release;
        map(address: usize, bytes: usize, page: PageHandle) -> (), Map;
        unmap(address: usize, bytes: usize) -> (), Unmap;
        set_access(address: usize, bytes: usize, peers: &[u32]) -> (), SetAccess;
        export(page: PageHandle) -> OwnedFd, Export;
        import(fd: BorrowedFd<'_>, bytes: usize) -> ImportedPage, Import;
        open_foreign(address: usize, bytes: usize, owner: u32) -> (), SetAccess;
        alloc_plain(bytes: usize) -> usize, AllocPlain;
        free_plain(address: usize) -> (), FreePlain;
        host_alloc(bytes: usize) -> usize, HostAlloc;
        host_free(address: usize) -> (), HostFree;
        stream_create() -> StreamHandle, StreamCreate;
        stream_destroy(stream: StreamHandle) -> (), StreamDestroy;
        stream_synchronize(stream: StreamHandle) -> (), StreamSynchronize;
        synchronize() -> (), StreamSynchronize;
        stream_wait(stream: StreamHandle, event: EventHandle) -> (), StreamWait;
        stream_check(stream: StreamHandle) -> (), StreamCheck;
        copy(to: usize, from: usize, bytes: usize, stream: StreamHandle) -> (), Copy;
        fill(to: usize, value: u8, bytes: usize, stream: StreamHandle) -> (), Fill;
        event_create() -> EventHandle, EventCreate;
        event_destroy(event: EventHandle) -> (), EventDestroy;
        event_record(event: EventHandle, scope: Scope) -> (), EventRecord;
        event_query(event: EventHandle) -> bool, EventQuery;
        event_synchronize(event: EventHandle) -> (), EventSynchronize;
        on_graph_release(graph: u64, call: OnGraphEnd, word: usize)
            -> (), OnGraphRelease;
    }
}
