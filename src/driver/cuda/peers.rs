//! Work of peers on this device's memory, for fences over all work.
//!
//! An event over a context marks that context's work alone; a device that has been given access
//! works in contexts of its own. Promises that a mark over all work has passed only once the work
//! has that each such device had queued in its primary context, where it has one: the mark is an
//! event there too, which is asked and awaited with the own one. Nothing of the own context waits
//! for a peer. Work in other contexts of a peer is not seen. Must not touch a peer that captures:
//! the mark fails then, as it does for the own device.
//!
//! A peer whose context fails is left out until it is reset. A reset ends the events there, and all
//! work before it: the context's number tells (see [`super::context`]), so that no handle of before
//! is used; where the driver has no such number, a bad handle does.
//!
//! Owns a reference to each peer's primary context, and for each event that has marked all work an
//! event a peer. Cost: about six calls a peer and mark and two a look, none without peers.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use cust_raw::{CUcontext, CUdevice, CUevent};

use super::context::Inside;
use super::memory::devices_of;
use super::{CudaDriver, codes};
use crate::driver::{Call, Code, DriverError, DriverResult, StreamHandle};

/// What is kept for marks over peers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: Vec<Peer>,
    /// Devices whose context has failed, and all work with it, until they are reset: one bit each.
    failed: u64,
    /// The parts of marks that lie in peers' contexts, by the own event's address.
    marks: HashMap<usize, Vec<Mark>>,
}

/// A peer with a primary context.
#[derive(Clone, Copy, Debug)]
struct Peer {
    device: CUdevice,
    context: usize,
    /// The context's number, where the driver has one: another after a reset.
    id: Option<u64>,
}

/// An event in a peer's context.
#[derive(Clone, Copy, Debug)]
struct Mark {
    device: CUdevice,
    event: usize,
    /// Part of the own event's present mark.
    set: bool,
}

impl Mark {
    fn event(self) -> CUevent {
        std::ptr::with_exposed_provenance_mut(self.event)
    }
}

fn is_gone(error: DriverError) -> bool {
    matches!(error.code, Code::ContextLost | Code::Other(codes::INVALID_CONTEXT))
}

impl Peer {
    fn context(self) -> CUcontext {
        std::ptr::with_exposed_provenance_mut(self.context)
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
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `event`'s mark, just recorded over the own context, one over the peers' work too.
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
        let key = event.expose_provenance();
        let mut peers = self.peers();
        let marks = peers.marks.entry(key).or_default();
        let before: Vec<i32> = marks.iter().filter(|m| m.set).map(|m| m.device).collect();
        marks.iter_mut().for_each(|mark| mark.set = false);
        let marked = devices_of(opened).try_for_each(|device| {
            self.at_peer(&mut peers, inside, call, device, |peers, peer| {
                self.mark_peer(inside, call, peer, peers.marks.entry(key).or_default())
            })
        });
        if marked.is_err() {
            // The mark that was there before still counts.
            let marks = peers.marks.entry(key).or_default();
            marks.iter_mut().for_each(|mark| mark.set |= before.contains(&mark.device));
        }
        marked
    }

    /// `event` marks one stream from now on.
    pub(super) fn unmark_peers(&self, event: CUevent) {
        if self.opened.load(Ordering::Relaxed) != 0
            && let Some(marks) = self.peers().marks.get_mut(&event.expose_provenance())
        {
            marks.iter_mut().for_each(|mark| mark.set = false);
        }
    }

    /// Does `what` with each event in a peer's context that is part of `event`'s mark, until one
    /// answers false. A peer whose context is gone is passed over.
    pub(super) fn each_peer_mark(
        &self,
        event: CUevent,
        what: impl Fn(CUevent) -> DriverResult<bool>,
    ) -> DriverResult<bool> {
        if self.opened.load(Ordering::Relaxed) == 0 {
            return Ok(true);
        }
        let marks = self.peers().marks.get(&event.expose_provenance()).cloned();
        for mark in marks.into_iter().flatten().filter(|mark| mark.set) {
            if !self.is_there(&mut self.peers(), mark.device) {
                continue;
            }
            match what(mark.event()) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // The context has been reset: neither the event nor the work is there any more.
                Err(error) if error.code == Code::InvalidHandle => {}
                Err(error) => self.lose(&mut self.peers(), mark.device, error)?,
            }
        }
        Ok(true)
    }

    /// An event's end: those in peers' contexts end too.
    pub(super) fn forget_marks(&self, event: CUevent) {
        if self.opened.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut peers = self.peers();
        let marks = peers.marks.remove(&event.expose_provenance());
        for mark in marks.into_iter().flatten() {
            // In a context that is gone it is gone too.
            if self.is_there(&mut peers, mark.device) {
                // SAFETY: our event, used no more.
                unsafe { self.api.event_destroy(mark.event()) };
            }
        }
    }

    /// Waits for the peers' work, where no event can be recorded over a context.
    pub(super) fn wait_for_peers(&self, call: Call) -> DriverResult<()> {
        let opened = self.opened.load(Ordering::Relaxed);
        if opened == 0 {
            return Ok(());
        }
        let inside = self.contexts.enter(call, true)?;
        let mut peers = self.peers();
        devices_of(opened).try_for_each(|device| {
            self.at_peer(&mut peers, &inside, call, device, |_, peer| {
                let _entered = self.enter_peer(&inside, call, peer.context())?;
                // SAFETY: no arguments; inside the peer's context.
                inside.check(call, unsafe { self.api.ctx_synchronize() })
            })
        })
    }

    /// Does `what` at one peer, if it has any work. One that has been reset is looked at anew; one
    /// whose context fails is left out.
    fn at_peer(
        &self,
        peers: &mut Peers,
        inside: &Inside<'_>,
        call: Call,
        device: CUdevice,
        what: impl Fn(&mut Peers, Peer) -> DriverResult<()>,
    ) -> DriverResult<()> {
        let bit = 1 << device;
        for again in [peers.failed & bit == 0, false] {
            let done = self.peer(peers, inside, call, device).and_then(|peer| match peer {
                Some(peer) => what(peers, peer),
                None => Ok(()),
            });
            match done {
                // Its context may have been reset, and our event went with it.
                Err(error) if again && (is_gone(error) || error.code == Code::InvalidHandle) => {
                    self.forget(peers, device);
                }
                Err(error) => return self.lose(peers, device, error),
                Ok(()) => {
                    peers.failed &= !bit;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A peer whose context is gone does nothing any more; the own device goes on without it.
    fn lose(&self, peers: &mut Peers, device: CUdevice, error: DriverError) -> DriverResult<()> {
        if !is_gone(error) {
            return Err(error);
        }
        if peers.failed >> device & 1 == 0 {
            tracing::warn!(device, %error, "a peer's context is gone; fences leave it out");
        }
        peers.failed |= 1 << device;
        self.forget(peers, device);
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
        if self.is_there(peers, device)
            && let Some(peer) = peers.known.iter().find(|peer| peer.device == device)
        {
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
        let peer =
            Peer { device, context: context.expose_provenance(), id: self.id_of_primary(context) };
        peers.known.push(peer);
        Ok(Some(peer))
    }

    /// The number of a primary context that we hold a reference to.
    fn id_of_primary(&self, context: CUcontext) -> Option<u64> {
        let mut id = 0;
        // SAFETY: a local to fill; the handle of a primary context stays while it is retained.
        let asked = unsafe { self.api.ctx_get_id(context, &raw mut id) };
        (asked == codes::SUCCESS).then_some(id)
    }

    fn is_same(&self, peer: Peer) -> bool {
        // Where the driver has no numbers it cannot be told.
        peer.id.is_none() || self.id_of_primary(peer.context()) == peer.id
    }

    /// Whether a peer's context is the one that our events lie in. One that is not is forgotten.
    fn is_there(&self, peers: &mut Peers, device: CUdevice) -> bool {
        match peers.known.iter().find(|peer| peer.device == device) {
            Some(&peer) if self.is_same(peer) => true,
            Some(_) => {
                self.forget(peers, device);
                false
            }
            None => false,
        }
    }

    /// Gives back what is kept for a peer, as far as it is there.
    fn forget(&self, peers: &mut Peers, device: CUdevice) {
        let Some(at) = peers.known.iter().position(|peer| peer.device == device) else { return };
        let peer = peers.known.swap_remove(at);
        let live = peer.id.is_some() && self.is_same(peer);
        for marks in peers.marks.values_mut() {
            for mark in marks.extract_if(.., |mark| mark.device == device) {
                if live {
                    // SAFETY: our event, in a context that is there.
                    unsafe { self.api.event_destroy(mark.event()) };
                }
            }
        }
        // SAFETY: our reference: a reset leaves it counted.
        unsafe { self.api.primary_ctx_release(device) };
    }

    fn mark_peer(
        &self,
        inside: &Inside<'_>,
        call: Call,
        peer: Peer,
        marks: &mut Vec<Mark>,
    ) -> DriverResult<()> {
        const DISABLE_TIMING: u32 = 2;
        let _entered = self.enter_peer(inside, call, peer.context())?;
        if self.is_capturing(inside, call, StreamHandle(0))? {
            return Err(DriverError { call, code: Code::Other(codes::CAPTURE_UNSUPPORTED) });
        }
        let at = match marks.iter().position(|mark| mark.device == peer.device) {
            Some(at) => at,
            None => {
                let mut event = std::ptr::null_mut();
                // SAFETY: a local to fill, in the peer's context.
                let made = unsafe { self.api.event_create(&raw mut event, DISABLE_TIMING) };
                inside.check(call, made)?;
                let event = event.expose_provenance();
                marks.push(Mark { device: peer.device, event, set: false });
                marks.len() - 1
            }
        };
        let event = marks[at].event();
        // SAFETY: the event was made in this context.
        inside.check(call, unsafe { self.api.ctx_record_event(peer.context(), event) })?;
        marks[at].set = true;
        Ok(())
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

    /// Gives back what is kept, as far as the driver takes it.
    pub(super) fn forget_peers(&mut self) {
        let mut peers =
            std::mem::take(self.peers.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.api.is_shut_down() {
            return;
        }
        for Mark { device, event, .. } in peers.marks.drain().flat_map(|(_, marks)| marks) {
            let of = peers.known.iter().find(|peer| peer.device == device);
            if of.is_some_and(|&peer| self.is_same(peer)) {
                // SAFETY: our event, in a context that is there.
                unsafe { self.api.event_destroy(std::ptr::with_exposed_provenance_mut(event)) };
            }
        }
        for peer in peers.known.drain(..) {
            // SAFETY: our reference.
            unsafe { self.api.primary_ctx_release(peer.device) };
        }
    }
}
