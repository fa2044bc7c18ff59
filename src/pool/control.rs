//! What owners and operators do to a pool: limits, trim, uses, pins, streams' end.
//!
//! Promises: each call either does what it says or changes nothing and says why. None is
//! hot. Calls that must stop other threads' hot paths do so through the registry.

use super::core::Core;
use super::registry::{self, with_threads_stopped};
use super::slow::Located;
use super::{HANDLE_SHIFT, OnOutOfMemory, OnUnmap, Pool, Shared};
use crate::base::sync::atomic::Ordering;
use crate::base::units::QUANTUM;
use crate::driver::{Code, DriverError, DriverResult, EventHandle, Scope, StreamHandle};
use crate::error::{Error, Result, Status};
use crate::slab::class::slot_bytes;
use crate::slab::marks::SPECIAL;
use crate::stream::LaneId;
use std::ffi::c_void;

/// Tells the owner that memory is about to lose its place. The core is locked: the
/// callback must not call Forebay.
pub fn tell_unmapped(id: u64, address: usize, bytes: usize) {
    let Ok(shared) = registry::pool(id) else { return };
    if let Some((call, context)) = shared.hooks().on_unmap {
        // SAFETY: the owner promised a callable function for this context.
        unsafe { call(context as *mut c_void, address as *mut c_void, bytes) };
    }
}

/// A driver's refusal as an error of the ABI.
pub fn driver_error(error: DriverError) -> Error {
    let status = match error.code {
        Code::ContextLost => return super::loss::lost(),
        Code::OutOfMemory | Code::NoAddressSpace => Status::OutOfMemory,
        Code::MappingLimit => Status::MappingLimit,
        Code::InvalidHandle => Status::InvalidStream,
        Code::ShutDown => Status::ShutDown,
        Code::NotSupported => Status::Unsupported,
        Code::TooManyPeers => Status::TooManyPeers,
        Code::InvalidValue | Code::Other(_) => Status::Driver,
    };
    Error::new(status, error.to_string())
}

/// Waits for all work queued on the pool's device so far. No lock is held meanwhile. False: a
/// capture is open, and nothing was waited for. Without events over a whole context a capture that
/// begins meanwhile is not seen, and the wait may end it.
pub fn synchronize(shared: &'static Shared, id: u64) -> Result<bool> {
    let (driver, streams, event) = shared.with_core(id, |core| {
        let driver = std::sync::Arc::clone(core.driver());
        let streams = core.lanes.streams();
        // In one hold of the lock with the look: a capture begins after the event or is seen.
        let event = match core.lanes.open_captures() {
            0 => Some(core.mark_context()),
            _ => None,
        };
        (driver, streams, event)
    })?;
    let Some(event) = event else { return Ok(false) };
    let Some(event) = event.map_err(driver_error)? else {
        let waited = match driver.synchronize() {
            Err(DriverError { code: Code::NotSupported, .. }) => {
                streams.iter().try_for_each(|&s| driver.stream_synchronize(s))
            }
            waited => waited,
        };
        return waited.map(|()| true).map_err(driver_error);
    };
    let waited = driver.event_synchronize(event);
    if let Err(gone) = shared.with_core(id, |core| core.lanes.give_event(event)) {
        // The pool has ended meanwhile, and its other events with it.
        super::core::note(driver.event_destroy(event), "an event was not destroyed");
        return Err(gone);
    }
    waited.map(|()| true).map_err(driver_error)
}

impl Core {
    /// An event recorded behind all work of the context; `None`: the device has none such.
    fn mark_context(&mut self) -> DriverResult<Option<EventHandle>> {
        let driver = std::sync::Arc::clone(&self.driver.0);
        if !driver.device().context_events {
            return Ok(None);
        }
        let event = self.lanes.event(&*driver)?;
        if let Err(error) = driver.event_record(event, Scope::Context) {
            self.lanes.give_event(event);
            return Err(error);
        }
        Ok(Some(event))
    }

    /// Ends the lane of a stream that will be destroyed.
    pub fn retire(&mut self, key: u64) -> Result<()> {
        let Some(lane) = self.lanes.find(key) else { return Ok(()) };
        if self.fuse.is_blown() {
            // Nothing of the lane's is handed out any more.
            return Ok(());
        }
        self.flush_depot(lane);
        let retired = self.lanes.retire(&*self.driver.0, lane).map_err(driver_error)?;
        if !retired {
            return Err(Error::new(
                Status::Busy,
                "a stream cannot be retired while a graph capture is open; end the capture first",
            ));
        }
        self.retired.push(lane);
        self.stream_ids.remove(&lane);
        self.settle();
        Ok(())
    }

    /// Gives all memory back to the driver, for the pool's end.
    pub fn close_memory(&mut self) -> DriverResult<()> {
        self.give_up_imports();
        self.close_copiers()?;
        self.vmem.close()
    }

    /// Pins or unpins the granules of a block.
    pub fn pin_granules(&mut self, address: usize, bytes: usize, pin: bool) {
        let Some((quantum, _)) = self.quantum(address) else { return };
        let per = self.heap.per_granule();
        let last = self.quantum(address + bytes - 1).map_or(quantum, |(q, _)| q);
        self.vmem.pin(quantum / per, last / per + 1, pin);
    }

    /// The block at `address`, marked as special: its free will look at the side table.
    /// Answers its length in bytes.
    pub(super) fn mark_special(&mut self, address: usize) -> Result<usize> {
        match self.locate(address)? {
            Located::Slot { class, round, .. } => {
                let mark = self.marks.mark(round.mark());
                let set = mark.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |m| {
                    (m != 0).then_some(m | SPECIAL)
                });
                if set.is_err() {
                    return Err(Error::new(
                        Status::DoubleFree,
                        format!("the block at {address:#x} was freed meanwhile"),
                    ));
                }
                Ok(slot_bytes(class))
            }
            Located::Extent { node } => {
                let word = self.heap.word(node) | u64::from(SPECIAL);
                self.heap.set_word(node, word);
                let (_, len, _) = self.heap.block(node);
                Ok(len as usize * QUANTUM)
            }
            Located::Imported { bytes } => Ok(bytes),
        }
    }

    /// Notes that work on `lane` uses the block.
    pub fn record_use(&mut self, address: usize, lane: LaneId) -> Result<()> {
        self.mark_special(address)?;
        let uses = &mut self.side.entry(address).or_default().uses;
        if !uses.contains(&lane) {
            uses.push(lane);
        }
        Ok(())
    }

    /// Sets the limits in bytes; `None` leaves one as it is.
    pub fn set_limits(&mut self, hard: Option<u64>, soft: Option<u64>) -> Result<()> {
        let total = self.driver.0.device().total_bytes as u64;
        let new_hard = hard.unwrap_or(self.settings.limit);
        let new_soft = soft.or(self.settings.soft_limit);
        if new_hard > total || new_hard < self.vmem.granule() as u64 {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("a hard limit of {new_hard} bytes is not between one granule and {total}"),
            ));
        }
        if soft.is_some_and(|soft| soft > new_hard) {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("the soft limit is above the hard limit of {new_hard} bytes"),
            ));
        }
        if self.vmem.pages() as u64 * self.vmem.granule() as u64 > new_hard {
            self.flush_depots();
            self.trim(new_hard).map_err(driver_error)?;
        }
        self.settings.limit = new_hard;
        self.settings.soft_limit = new_soft.map(|soft| soft.min(new_hard));
        self.poke_above_soft();
        Ok(())
    }

    /// Whether [`Core::recover`] has something to retry.
    pub fn troubled(&self) -> bool {
        self.vmem.troubled() || self.tagged.troubled()
    }

    /// Retries what failed to be undone before, unless a capture is open: nothing is unmapped
    /// then, nor, unless pages may move at any time, while the device works. Does not wait. Answers
    /// whether anything is still stuck.
    pub fn recover(&mut self) -> bool {
        // Copies that are under way may reach memory that would be unmapped.
        if self.lanes.open_captures() == 0 && self.try_close_copiers() {
            let (stock, mut any) = (self.vmem.stock(), false);
            let unmap = self.vmem.troubled() && self.may_unmap_now().unwrap_or(false);
            for granule in self.vmem.recover(unmap) {
                if self.tagged.unstrand(granule) {
                    any = true;
                } else {
                    self.heap.unstrand(granule);
                }
            }
            if any {
                self.give_up_pages(self.vmem.stock().saturating_sub(stock));
            }
            if self.shares.any_leaving() {
                self.record_leaving();
                self.settle();
            }
        }
        self.troubled()
    }
}

impl Pool {
    /// Retires a stream of the pool's device in all pools, then destroys it. What cannot be
    /// destroyed is not retired.
    pub fn destroy_stream(&self, stream: u64) -> Result<()> {
        // Both are names of the default stream.
        if stream <= 1 {
            return Err(Error::new(
                Status::InvalidArgument,
                "the default stream cannot be destroyed",
            ));
        }
        let driver = self.driver()?;
        let handle = StreamHandle(stream);
        driver.stream_check(handle).map_err(driver_error)?;
        registry::retire_stream(stream)?;
        driver.stream_destroy(handle).map_err(driver_error)
    }

    /// Notes that work on `stream` uses the block too: its memory is reused only after the
    /// work queued on that stream when the block is freed.
    pub fn record_use(&self, address: usize, stream: u64) -> Result<()> {
        self.with_core(|core| {
            let lane = core.lane((self.id << HANDLE_SHIFT) ^ stream, stream)?;
            if core.settings.debug.streams
                && let Err(super::ladder::Refusal::Reused(stream)) = core.check_lane(lane)
            {
                return Err(super::core::reused_stream(stream));
            }
            core.record_use(address, lane)?;
            let stream = super::order::stream_name(stream);
            core.note_event(|| super::record::Event::Use { address, stream });
            Ok(())
        })?
    }

    /// Promises that the block's pages do not move until [`Pool::unpin`] or its free. Counts.
    pub fn pin(&self, address: usize) -> Result<()> {
        self.with_core(|core| {
            core.check_awake(address)?;
            let bytes = core.mark_special(address)?;
            core.side.entry(address).or_default().pins += 1;
            core.pin_granules(address, bytes, true);
            Ok(())
        })?
    }

    /// Takes one pin back.
    pub fn unpin(&self, address: usize) -> Result<()> {
        self.with_core(|core| {
            let bytes = core.block_bytes(address)?;
            match core.side.get_mut(&address) {
                Some(side) if side.pins > 0 => side.pins -= 1,
                _ => {
                    return Err(Error::new(
                        Status::InvalidArgument,
                        format!("the block at {address:#x} is not pinned"),
                    ));
                }
            }
            core.pin_granules(address, bytes, false);
            Ok(())
        })?
    }

    /// Bytes usable at `address`: the request rounded up.
    pub fn usable_size(&self, address: usize) -> Result<usize> {
        self.with_core(|core| core.block_bytes(address))?
    }

    /// Gives idle memory back to the device until the pool holds at most `keep` bytes.
    /// Caches of all threads are emptied first. Answers the bytes released.
    pub fn trim(&self, keep: u64) -> Result<u64> {
        super::capture::release_gone();
        with_threads_stopped(self.id, |core| {
            core.check_context()?;
            core.check_captures()?;
            core.flush_depots();
            core.settle();
            core.trim(keep).map_err(driver_error)
        })?
    }

    /// Changes the limits, in bytes; `None` leaves one as it is. A hard limit below what is
    /// held trims what is idle at once and holds for all that is asked from now on.
    pub fn set_limits(&self, hard: Option<u64>, soft: Option<u64>) -> Result<()> {
        self.with_core(|core| core.set_limits(hard, soft))?
    }

    /// Free and total bytes of the device: what this pool could still hand out counts as free.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.with_core(|core| {
            let (free, total) = core.driver.0.memory_info().map_err(driver_error)?;
            let stats = core.stats();
            // What others own, or may still look at, is nobody's to hand out.
            let imported = (core.vmem.imported_pages() * core.vmem.granule()) as u64;
            let lent = core.shares.held_bytes() - core.held_away();
            let held = stats.live_bytes + stats.region_bytes + lent;
            let own = stats.limit_bytes.saturating_sub(held);
            let reach = (free as u64 + stats.mapped_bytes).saturating_sub(imported + held);
            Ok((own.min(reach) as usize, total))
        })?
    }

    /// Sets the callback before memory loses its place. It runs with the pool locked and must
    /// not call Forebay.
    pub fn set_on_unmap(&self, hook: Option<(OnUnmap, usize)>) -> Result<()> {
        self.set_hooks(|hooks| hooks.on_unmap = hook)
    }

    /// Sets the callback before an allocation fails. It runs without locks and may free.
    pub fn set_on_out_of_memory(&self, hook: Option<(OnOutOfMemory, usize)>) -> Result<()> {
        self.set_hooks(|hooks| hooks.on_out_of_memory = hook)
    }

    fn set_hooks(&self, set: impl FnOnce(&mut super::Hooks)) -> Result<()> {
        let shared = registry::pool(self.id)?;
        // `on_unmap` runs with the core locked: once it is replaced it runs no more.
        let core = shared.core.lock();
        if core.as_ref().is_none_or(|core| core.id != self.id) {
            return Err(super::invalid_pool());
        }
        set(&mut shared.hooks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        Ok(())
    }

    /// The driver.
    pub fn driver(&self) -> Result<std::sync::Arc<dyn crate::driver::Driver>> {
        self.with_core(|core| std::sync::Arc::clone(core.driver()))
    }
}

impl Core {
    fn block_bytes(&self, address: usize) -> Result<usize> {
        Ok(match self.locate(address)? {
            Located::Slot { class, .. } => slot_bytes(class),
            Located::Extent { node } => self.heap.block(node).1 as usize * QUANTUM,
            Located::Imported { bytes } => bytes,
        })
    }
}
