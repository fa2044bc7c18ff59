//! Work of peers on this device's memory, for fences over all work.
//!
//! An event over a context marks that context's work alone; a device that has been given access
//! works in contexts of its own. Promises that a mark made here passes only after the work that
//! each such device had queued in its primary context, where it has one. Work in other contexts
//! of a peer is not seen. Must not touch a peer that captures: the mark fails then, as it does
//! for the own device.
//!
//! Owns one stream of the own context that does nothing but wait, and for each peer a reference to
//! its primary context and an event there; all live as long as the driver object. Cost: about
//! eight calls a peer and mark, none without peers.

use std::sync::atomic::Ordering;

use cust_raw::{CUcontext, CUdevice, CUevent, CUstream};

use super::context::Inside;
use super::memory::devices_of;
use super::{CudaDriver, codes};
use crate::driver::{Call, Code, DriverError, DriverResult, StreamHandle};

/// What is kept for marks over peers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: Vec<Peer>,
    /// Devices whose context is gone, and all work with it: one bit each.
    lost: u64,
    /// The stream that waits for all; 0 before its first use.
    waiting: usize,
}

/// A peer with a primary context.
#[derive(Clone, Copy, Debug)]
struct Peer {
    device: CUdevice,
    context: usize,
    event: usize,
}

impl Peers {
    /// A peer whose context is gone does nothing any more; the own device goes on without it.
    fn lose(&mut self, device: CUdevice, error: DriverError) -> DriverResult<()> {
        if !is_gone(error) {
            return Err(error);
        }
        tracing::warn!(device, %error, "a peer's context is gone; fences leave it out");
        self.lost |= 1 << device;
        Ok(())
    }
}

fn is_gone(error: DriverError) -> bool {
    matches!(error.code, Code::ContextLost | Code::Other(codes::INVALID_CONTEXT))
}

impl Peer {
    fn context(self) -> CUcontext {
        std::ptr::with_exposed_provenance_mut(self.context)
    }

    fn event(self) -> CUevent {
        std::ptr::with_exposed_provenance_mut(self.event)
    }
}

/// A context that is current until this is dropped.
struct Entered<'a>(&'a CudaDriver);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: a local to fill; takes off what was pushed.
        let result = unsafe { self.0.api.ctx_pop_current(&raw mut popped) };
        if !matches!(result, codes::SUCCESS | codes::DEINITIALIZED) {
            tracing::error!("a peer's context stays current: {}", codes::sentence(result));
        }
    }
}

impl CudaDriver {
    /// Makes `event`, just recorded over the own context, pass after the peers' work too.
    pub(super) fn mark_peers(
        &self,
        inside: &Inside<'_>,
        call: Call,
        event: CUevent,
    ) -> DriverResult<()> {
        let opened = self.opened.load(Ordering::Relaxed);
        if opened == 0 {
            return Ok(());
        }
        let mut peers = self.peers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut marked = Vec::new();
        for device in devices_of(opened & !peers.lost) {
            marked.extend(self.mark_device(&mut peers, inside, call, device)?);
        }
        if marked.is_empty() {
            return Ok(());
        }
        let waiting = self.waiting_stream(&mut peers, inside, call)?;
        for one in std::iter::once(event).chain(marked) {
            // SAFETY: a stream of the own context, and live events.
            inside.check(call, unsafe { self.api.stream_wait_event(waiting, one, 0) })?;
        }
        // SAFETY: as above; the event is of the own context.
        inside.check(call, unsafe { self.api.event_record(event, waiting) })
    }

    /// Waits for the peers' work, where no event can be recorded over a context.
    pub(super) fn wait_for_peers(&self, call: Call) -> DriverResult<()> {
        let opened = self.opened.load(Ordering::Relaxed);
        if opened == 0 {
            return Ok(());
        }
        let inside = self.contexts.enter(call, true)?;
        let mut peers = self.peers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for device in devices_of(opened & !peers.lost) {
            let waited = self.peer(&mut peers, &inside, call, device).and_then(|peer| {
                let Some(peer) = peer else { return Ok(()) };
                let _entered = self.enter_peer(&inside, call, peer.context())?;
                // SAFETY: no arguments; inside the peer's context.
                inside.check(call, unsafe { self.api.ctx_synchronize() })
            });
            waited.or_else(|error| peers.lose(device, error))?;
        }
        Ok(())
    }

    /// What is known of a peer: `None` while it has no primary context, so no work there.
    fn peer(
        &self,
        peers: &mut Peers,
        inside: &Inside<'_>,
        call: Call,
        device: CUdevice,
    ) -> DriverResult<Option<Peer>> {
        if let Some(peer) = peers.known.iter().find(|peer| peer.device == device) {
            return Ok(Some(*peer));
        }
        let (mut flags, mut active) = (0, 0);
        // SAFETY: locals to fill.
        let asked =
            unsafe { self.api.primary_ctx_get_state(device, &raw mut flags, &raw mut active) };
        inside.check(call, asked)?;
        if active == 0 {
            return Ok(None);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: a local to fill. The reference is kept.
        inside.check(call, unsafe { self.api.primary_ctx_retain(&raw mut context, device) })?;
        let made = self.enter_peer(inside, call, context).and_then(|_entered| {
            const DISABLE_TIMING: u32 = 2;
            let mut event = std::ptr::null_mut();
            // SAFETY: a local to fill, in the peer's context.
            inside.check(call, unsafe { self.api.event_create(&raw mut event, DISABLE_TIMING) })?;
            Ok(event)
        });
        let event = made.inspect_err(|_| {
            // SAFETY: gives the reference back.
            unsafe { self.api.primary_ctx_release(device) };
        })?;
        let (context, event) = (context.expose_provenance(), event.expose_provenance());
        let peer = Peer { device, context, event };
        peers.known.push(peer);
        Ok(Some(peer))
    }

    /// Records over one peer's work; the event there, if it has work at all.
    fn mark_device(
        &self,
        peers: &mut Peers,
        inside: &Inside<'_>,
        call: Call,
        device: CUdevice,
    ) -> DriverResult<Option<CUevent>> {
        for again in [true, false] {
            let marked = self.peer(peers, inside, call, device).and_then(|peer| {
                let Some(peer) = peer else { return Ok(None) };
                self.mark_peer(inside, call, peer).map(|()| Some(peer.event()))
            });
            match marked {
                // Its context may have been reset, and our reference and event went with it.
                Err(error) if again && (is_gone(error) || error.code == Code::InvalidHandle) => {
                    peers.known.retain(|peer| peer.device != device);
                }
                Err(error) => return peers.lose(device, error).map(|()| None),
                Ok(event) => return Ok(event),
            }
        }
        Ok(None)
    }

    fn mark_peer(&self, inside: &Inside<'_>, call: Call, peer: Peer) -> DriverResult<()> {
        let _entered = self.enter_peer(inside, call, peer.context())?;
        if self.is_capturing(inside, call, StreamHandle(0))? {
            return Err(DriverError { call, code: Code::Other(codes::CAPTURE_UNSUPPORTED) });
        }
        // SAFETY: the event was made in this context.
        inside.check(call, unsafe { self.api.ctx_record_event(peer.context(), peer.event()) })
    }

    fn enter_peer(
        &self,
        inside: &Inside<'_>,
        call: Call,
        context: CUcontext,
    ) -> DriverResult<Entered<'_>> {
        // SAFETY: a context that a reference keeps alive.
        inside.check(call, unsafe { self.api.ctx_push_current(context) })?;
        Ok(Entered(self))
    }

    fn waiting_stream(
        &self,
        peers: &mut Peers,
        inside: &Inside<'_>,
        call: Call,
    ) -> DriverResult<CUstream> {
        const NON_BLOCKING: u32 = 1;
        if peers.waiting == 0 {
            let mut stream = std::ptr::null_mut();
            // SAFETY: a local to fill.
            inside.check(call, unsafe { self.api.stream_create(&raw mut stream, NON_BLOCKING) })?;
            peers.waiting = stream.expose_provenance();
        }
        Ok(std::ptr::with_exposed_provenance_mut(peers.waiting))
    }

    /// Gives back what is kept, as far as the driver takes it.
    pub(super) fn forget_peers(&mut self) {
        let peers = self.peers.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.api.is_shut_down() {
            return;
        }
        for peer in peers.known.drain(..) {
            // SAFETY: our event and our reference.
            unsafe {
                self.api.event_destroy(peer.event());
                self.api.primary_ctx_release(peer.device);
            }
        }
        if peers.waiting != 0 {
            // SAFETY: our stream, which is used no more.
            unsafe {
                self.api.stream_destroy(std::ptr::with_exposed_provenance_mut(peers.waiting));
            }
        }
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        self.forget_peers();
    }
}
