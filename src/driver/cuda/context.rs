//! The context that a device's calls run in, and the way in and out of it.
//!
//! Owns the choice of context, made once at the first call that needs one: the caller's, when
//! this thread has one of the device current; else the device's primary context, which the CUDA
//! runtime uses too. Promises that a call leaves the thread's current context and capture mode
//! as it found them, and that no primary context is made beside one that the caller works in.
//!
//! A device can have several contexts. One driver object works in one of them: events and
//! streams of another are refused ([`super::CudaDriver::contract`]). Memory mapped here is
//! accessible in all of them, as CUDA grants access by device.
//!
//! A context ends when the program destroys it, or resets the device (`cudaDeviceReset`,
//! `cuDevicePrimaryCtxReset`); a primary one is then made anew under the same handle by whoever
//! uses the device next. Events, streams and memory of before are gone, and using their handles is
//! undefined, so the context's number is looked at on the way in (`cuCtxGetId`, CUDA 12.0): another
//! one is a lost context. What was seen holds for [`FRESH`], less than a context takes to be made:
//! until then the number cannot be another. Where the driver has no such number, its answers about
//! our own events tell.
//!
//! Cost a call: one look at the thread's context, and once in [`FRESH`] one at its number; where
//! the context is another, a push and a pop; where captures could object, two exchanges of the
//! capture mode. Each is a driver call that waits for nothing; [`Contexts::within`] makes them
//! once for several calls.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cust_raw::{CUcontext, CUdevice};
use once_cell::sync::OnceCell;

use super::codes::{self, check};
use super::newer::RawResult;
use super::table::{Api, MISSING};
use crate::driver::{Call, Code, DriverError, DriverResult};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// How long a look at the context's number holds. To reset a device and to make its context anew
/// takes a driver tens of milliseconds at the least.
const FRESH: Duration = Duration::from_millis(10);

/// The context of one device.
#[derive(Debug)]
pub(super) struct Contexts {
    api: Arc<Api>,
    device: CUdevice,
    chosen: OnceCell<Chosen>,
    /// The chosen context's number, once asked for.
    id: OnceCell<u64>,
    /// When this was made.
    born: Instant,
    /// When the number was last seen to be the same, in nanoseconds since then; 0: never.
    seen: AtomicU64,
}

thread_local! {
    /// The address of the [`Contexts`] that this thread is inside of for several calls; 0: none.
    static WITHIN: Cell<usize> = const { Cell::new(0) };
}

/// Puts [`WITHIN`] back, also when a panic passes.
struct Restore(usize);

impl Drop for Restore {
    fn drop(&mut self) {
        WITHIN.set(self.0);
    }
}

/// The context in use, as a number.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    context: usize,
    /// Whether we hold a reference to it: it is the primary context.
    retained: bool,
}

/// Inside the context. Leaving restores the thread's own.
pub(super) struct Inside<'a> {
    api: &'a Api,
    context: CUcontext,
    pushed: bool,
    /// The thread's own capture mode, where it was exchanged.
    mode: Option<u32>,
}

impl Inside<'_> {
    /// The context.
    pub(super) fn context(&self) -> CUcontext {
        self.context
    }

    /// The meaning of a call's result. "No context" means a lost one only if the thread still has
    /// it: at a thread's end CUDA may have forgotten what was current there.
    #[inline]
    pub(super) fn check(&self, call: Call, result: RawResult) -> DriverResult<()> {
        if result == codes::INVALID_CONTEXT && !self.is_current() {
            return Err(DriverError { call, code: Code::Other(result) });
        }
        check(call, result)
    }

    #[cold]
    fn is_current(&self) -> bool {
        let mut context = std::ptr::null_mut();
        // SAFETY: a local to fill.
        let result = unsafe { self.api.ctx_get_current(&raw mut context) };
        result == codes::SUCCESS && context == self.context
    }
}

/// A number that no other context of the process ever has, also not one that comes to be under
/// the same handle; null: of this thread's context. `None`: the driver has no such numbers.
#[inline]
pub(super) fn id_of(
    inside: &Inside<'_>,
    call: Call,
    context: CUcontext,
) -> DriverResult<Option<u64>> {
    let mut id = 0;
    // SAFETY: a local to fill; this thread's context, or a primary one that a reference keeps.
    match unsafe { inside.api.ctx_get_id(context, &raw mut id) } {
        // 801 is how a function that is missing behind its symbol answers.
        MISSING | codes::NOT_SUPPORTED => Ok(None),
        result => inside.check(call, result).map(|()| Some(id)),
    }
}

impl Contexts {
    pub(super) fn new(api: Arc<Api>, device: CUdevice) -> Contexts {
        let (born, seen) = (Instant::now(), AtomicU64::new(0));
        Contexts { api, device, chosen: OnceCell::new(), id: OnceCell::new(), born, seen }
    }

    /// Enters the context. `relaxed`: for calls that an open capture of this or another thread
    /// may forbid although they have nothing to do with it; not for queued work, which belongs
    /// to a capture when its stream does.
    pub(super) fn enter(&self, call: Call, relaxed: bool) -> DriverResult<Inside<'_>> {
        if self.api.is_shut_down() {
            return Err(DriverError { call, code: Code::ShutDown });
        }
        if WITHIN.get() == std::ptr::from_ref(self).addr()
            && let Some(chosen) = self.chosen.get()
        {
            let context = std::ptr::with_exposed_provenance_mut(chosen.context);
            return Ok(Inside { api: &self.api, context, pushed: false, mode: None });
        }
        let mode = if relaxed { self.relax(call)? } else { None };
        let mut inside =
            Inside { api: &self.api, context: std::ptr::null_mut(), pushed: false, mode };
        let current = self.current(call)?;
        let chosen = self.chosen.get_or_try_init(|| self.choose(call, current))?;
        inside.context = std::ptr::with_exposed_provenance_mut(chosen.context);
        if current != chosen.context {
            // SAFETY: the context was live when it was chosen; CUDA checks it again.
            check(call, unsafe { self.api.ctx_push_current(inside.context) })?;
            inside.pushed = true;
        }
        self.look(&inside, call)?;
        Ok(inside)
    }

    /// Whether this thread's context, the chosen one by its handle, is still the one that was
    /// chosen: else it is lost.
    fn look(&self, inside: &Inside<'_>, call: Call) -> DriverResult<()> {
        // Of before the look: the number may change as soon as it is read.
        let now = self.born.elapsed().as_nanos() as u64;
        let seen = self.seen.load(Ordering::Relaxed);
        if seen != 0 && now.saturating_sub(seen) < FRESH.as_nanos() as u64 {
            return Ok(());
        }
        if let Some(id) = id_of(inside, call, std::ptr::null_mut())?
            && *self.id.get_or_init(|| id) != id
        {
            return Err(DriverError { call, code: Code::ContextLost });
        }
        self.seen.store(now.max(1), Ordering::Relaxed);
        Ok(())
    }

    /// Runs `f` inside the context, relaxed: its calls find the thread prepared.
    pub(super) fn within(&self, f: &mut dyn FnMut()) {
        let here = std::ptr::from_ref(self).addr();
        if WITHIN.get() == here {
            return f();
        }
        // Where the context cannot be entered, each call says why.
        let Ok(inside) = self.enter(Call::EventQuery, true) else { return f() };
        let restore = Restore(WITHIN.replace(here));
        f();
        drop(restore);
        drop(inside);
    }

    /// Whether a context has been chosen, and whether it is the primary one.
    pub(super) fn uses_primary(&self) -> Option<bool> {
        self.chosen.get().map(|chosen| chosen.retained)
    }

    /// Exchanges the thread's capture mode; answers its own. Where that fails the call must not be
    /// made: it would invalidate an open capture.
    fn relax(&self, call: Call) -> DriverResult<Option<u32>> {
        let mut mode = RELAXED;
        // SAFETY: a local; exchanges this thread's own mode.
        match unsafe { self.api.exchange_capture_mode(&raw mut mode) } {
            MISSING => Ok(None),
            result => check(call, result).map(|()| Some(mode)),
        }
    }

    fn current(&self, call: Call) -> DriverResult<usize> {
        let mut context = std::ptr::null_mut();
        // SAFETY: a local to fill.
        match unsafe { self.api.ctx_get_current(&raw mut context) } {
            // What the program left current is gone, which says nothing of the pool's context.
            codes::INVALID_CONTEXT | codes::CONTEXT_IS_DESTROYED => Ok(0),
            result => check(call, result).map(|()| context.expose_provenance()),
        }
    }

    /// Chooses the context for good. Nothing is made when the caller has one of the device.
    fn choose(&self, call: Call, current: usize) -> DriverResult<Chosen> {
        if current == 0 || !self.is_ours(call)? {
            let primary = self.retain(call)?;
            tracing::debug!(device = self.device, "the primary context serves");
            return Ok(Chosen { context: primary, retained: true });
        }
        if self.primary_exists(call)? {
            let primary = self.retain(call)?;
            if primary == current {
                return Ok(Chosen { context: primary, retained: true });
            }
            self.release();
        }
        tracing::info!(
            device = self.device,
            "the calling thread's context serves, which is not the primary one: it must outlive \
             the pool, and streams of other contexts are refused"
        );
        Ok(Chosen { context: current, retained: false })
    }

    /// Whether the thread's context is one of this device. One that is destroyed is not.
    fn is_ours(&self, call: Call) -> DriverResult<bool> {
        let mut device: CUdevice = -1;
        // SAFETY: a local to fill.
        match unsafe { self.api.ctx_get_device(&raw mut device) } {
            codes::INVALID_CONTEXT | codes::CONTEXT_IS_DESTROYED => Ok(false),
            result => check(call, result).map(|()| device == self.device),
        }
    }

    fn primary_exists(&self, call: Call) -> DriverResult<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: locals to fill.
        let result =
            unsafe { self.api.primary_ctx_get_state(self.device, &raw mut flags, &raw mut active) };
        check(call, result).map(|()| active != 0)
    }

    fn retain(&self, call: Call) -> DriverResult<usize> {
        let mut context = std::ptr::null_mut();
        // SAFETY: a local to fill.
        check(call, unsafe { self.api.primary_ctx_retain(&raw mut context, self.device) })?;
        Ok(context.expose_provenance())
    }

    fn release(&self) {
        // SAFETY: gives back one reference that `retain` took.
        let release = || unsafe { self.api.primary_ctx_release(self.device) };
        // A driver before 11.0 lacks this form; the context then lives as long as the process.
        note(surely(release), "the primary context could not be released");
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        if self.uses_primary() == Some(true) && !self.api.is_shut_down() {
            self.release();
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: a local to fill; takes off what `enter` pushed.
            let pop = || unsafe { self.api.ctx_pop_current(&raw mut popped) };
            note(surely(pop), "the caller's context could not be restored");
        }
        if let Some(mut mode) = self.mode {
            // SAFETY: a local; restores this thread's own mode.
            let exchange = || unsafe { self.api.exchange_capture_mode(&raw mut mode) };
            note(surely(exchange), "the caller's capture mode could not be restored");
        }
    }
}

/// A way back, tried once more when it fails: a failed call has done nothing, and the thread
/// would stay in a state that is not its own.
fn surely(mut back: impl FnMut() -> RawResult) -> RawResult {
    match back() {
        codes::SUCCESS => codes::SUCCESS,
        _ => back(),
    }
}

fn note(result: RawResult, what: &str) {
    // 201: the thread is ending, and CUDA has forgotten what was current on it.
    let quiet = [codes::SUCCESS, codes::DEINITIALIZED, codes::INVALID_CONTEXT, MISSING];
    if !quiet.contains(&result) {
        tracing::error!("{what}: {}", codes::sentence(result));
    }
}
