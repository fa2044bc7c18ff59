//! What owners and operators do to a pool: limits, trim, uses, pins, captures, streams' end.
//!
//! Promises: each call either does what it says or changes nothing and says why. None is
//! hot. Calls that must stop other threads' hot paths do so through the registry.

use super::core::Core;
use super::registry::{self, with_threads_stopped};
use super::slow::Located;
use super::{HANDLE_SHIFT, OnOutOfMemory, OnUnmap, Pool, Shared};
use super::{devices, world};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::units::QUANTUM;
use crate::driver::{Code, DriverError, DriverResult, Scope, StreamHandle};
use crate::error::{Error, Result, Status};
use crate::slab::class::slot_bytes;
use crate::slab::marks::SPECIAL;
use crate::stream::LaneId;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// A capture as a pool knows it.
#[derive(Clone, Copy, Debug)]
pub struct Capture {
    /// The lane of its memory.
    pub lane: LaneId,
    key: u64,
    before: Option<LaneId>,
    open: bool,
}

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
        Code::OutOfMemory | Code::NoAddressSpace => Status::OutOfMemory,
        Code::MappingLimit => Status::MappingLimit,
        Code::InvalidHandle => Status::InvalidStream,
        Code::ShutDown => Status::ShutDown,
        Code::NotSupported => Status::Unsupported,
        Code::TooManyPeers => Status::TooManyPeers,
        Code::ContextLost => Status::ContextLost,
        Code::InvalidValue | Code::Other(_) => Status::Driver,
    };
    Error::new(status, error.to_string())
}

/// Waits for all work queued on the pool's device so far. No lock is held meanwhile.
pub fn synchronize(shared: &'static Shared, id: u64) -> Result<()> {
    let (driver, streams) = shared
        .with_core(id, |core| (std::sync::Arc::clone(core.driver()), core.lanes.streams()))?;
    if !driver.device().context_events {
        let waited = match driver.synchronize() {
            Err(DriverError { code: Code::NotSupported, .. }) => {
                streams.iter().try_for_each(|&s| driver.stream_synchronize(s))
            }
            waited => waited,
        };
        return waited.map_err(driver_error);
    }
    let event = shared.with_core(id, |core| core.lanes.event(&*driver))?.map_err(driver_error)?;
    let recorded = driver.event_record(event, Scope::Context);
    let waited = recorded.and_then(|()| driver.event_synchronize(event));
    shared.with_core(id, |core| core.lanes.give_event(event))?;
    waited.map_err(driver_error)
}

impl Core {
    /// Ends the lane of a stream that will be destroyed.
    pub fn retire(&mut self, key: u64) -> Result<()> {
        let Some(lane) = self.lanes.find(key) else { return Ok(()) };
        self.flush_depot(lane);
        let retired = self.lanes.retire(&*self.driver.0, lane).map_err(driver_error)?;
        if !retired {
            return Err(Error::new(
                Status::Busy,
                "a stream cannot be retired while a graph capture is open; end the capture first",
            ));
        }
        self.retired.push(lane);
        self.settle();
        Ok(())
    }

    /// Gives all memory back to the driver, for the pool's end.
    pub fn close_memory(&mut self) -> DriverResult<()> {
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

    /// Retries what failed to be undone before. Answers whether anything is still stuck.
    pub fn recover(&mut self) -> bool {
        for granule in self.vmem.recover() {
            self.heap.unstrand(granule);
        }
        self.vmem.stuck() > 0
    }
}

impl Pool {
    /// Notes that work on `stream` uses the block too: its memory is reused only after the
    /// work queued on that stream when the block is freed.
    pub fn record_use(&self, address: usize, stream: u64) -> Result<()> {
        self.with_core(|core| {
            let lane = core.lane((self.id << HANDLE_SHIFT) ^ stream, stream)?;
            core.record_use(address, lane)
        })?
    }

    /// Promises that the block's pages do not move until [`Pool::unpin`] or its free. Counts.
    pub fn pin(&self, address: usize) -> Result<()> {
        self.with_core(|core| {
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
        with_threads_stopped(self.id, |core| {
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
            let own = stats.limit_bytes.saturating_sub(stats.live_bytes);
            let reach = free as u64 + stats.mapped_bytes - stats.live_bytes;
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
        })
    }

    fn begin_capture(&mut self, number: u64, key: u64, stream: u64) -> Result<()> {
        if self.captures.contains_key(&number) {
            // A pool made meanwhile began it already.
            return Ok(());
        }
        if self.captures.values().any(|c| c.key == key && c.open) {
            return Err(Error::new(
                Status::Busy,
                format!("a capture is open on stream {stream:#x} already"),
            ));
        }
        let handle = StreamHandle(stream);
        if self.driver.0.stream_check(handle).is_err() {
            return Err(super::core::unknown_stream(stream));
        }
        let Some((lane, before)) = self.lanes.capture_begin(key, handle) else {
            return Err(Error::new(Status::Busy, "no lane is left for a capture"));
        };
        self.captures.insert(number, Capture { lane, key, before, open: true });
        Ok(())
    }

    fn end_capture(&mut self, number: u64) -> Result<()> {
        let Some(capture) = self.captures.get_mut(&number).filter(|c| c.open) else {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("capture {number} is not open: it has ended already"),
            ));
        };
        capture.open = false;
        let (key, before) = (capture.key, capture.before);
        self.lanes.capture_end(key, before);
        Ok(())
    }

    fn release_capture(&mut self, number: u64) -> Result<()> {
        let Some(capture) = self.captures.get(&number).copied() else { return Ok(()) };
        if capture.open {
            return Err(Error::new(Status::Busy, "the capture is open; end it first"));
        }
        let released = self.lanes.capture_release(&*self.driver.0, capture.lane);
        if !released.map_err(driver_error)? {
            return Err(Error::new(Status::Busy, "another capture is open; end it first"));
        }
        self.captures.remove(&number);
        self.retired.push(capture.lane);
        self.settle();
        Ok(())
    }
}

/// Begins a graph capture on `stream`, in every pool. Answers its number.
pub fn capture_begin(stream: u64) -> Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    devices::default_pool()?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut done = Vec::new();
    // Known before the pools are asked: one that is made meanwhile begins it itself.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push((number, stream));
    for id in registry::live_pools() {
        let key = (id << HANDLE_SHIFT) ^ stream;
        let begin = |core: &mut Core| core.begin_capture(number, key, stream);
        match registry::without_caches(id, |lane| lane.key == key, begin).and_then(|r| r) {
            Ok(()) => done.push(id),
            // A stream belongs to one device; other devices' pools do not know it.
            Err(e) if e.status() == Status::InvalidStream => {}
            Err(e) => {
                for id in done {
                    let key = (id << HANDLE_SHIFT) ^ stream;
                    registry::without_caches(
                        id,
                        |lane| lane.key == key,
                        |core| {
                            core.end_capture(number)?;
                            core.release_capture(number)
                        },
                    )??;
                }
                forget_open(number);
                return Err(e);
            }
        }
    }
    if done.is_empty() {
        forget_open(number);
        return Err(super::core::unknown_stream(stream));
    }
    Ok(number)
}

/// Captures that are open in the process: number and stream.
static OPEN: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn forget_open(number: u64) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|&(open, _)| open != number);
}

/// Begins the open captures in a pool that is being made: its memory obeys them too.
pub fn begin_open_captures(core: &mut Core) {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (number, stream) in open {
        let key = (core.id << HANDLE_SHIFT) ^ stream;
        // Another device's stream is none of this pool's business.
        if let Err(error) = core.begin_capture(number, key, stream) {
            tracing::debug!(%error, "an open capture does not concern the new pool");
        }
    }
}

/// Ends a capture: its streams go back to their own lanes; its memory stays its own.
pub fn capture_end(number: u64) -> Result<()> {
    each_pool_with(number, |id, capture| {
        let end = |core: &mut Core| core.end_capture(number);
        registry::without_caches(id, |lane| lane.key == capture.key, end)?
    })?;
    forget_open(number);
    Ok(())
}

/// The capture's graph is gone: its memory is everyone's after the work queued so far.
pub fn capture_release(number: u64) -> Result<()> {
    each_pool_with(number, |id, capture| {
        let pool = registry::pool(id)?;
        let here = |lane: &super::cache::LaneCache| {
            std::ptr::eq(lane.pool, pool) && lane.id == u32::from(capture.lane)
        };
        registry::without_caches(id, here, |core| core.release_capture(number))?
    })
}

fn each_pool_with(number: u64, f: impl Fn(u64, Capture) -> Result<()>) -> Result<()> {
    world::check_world()?;
    let mut known = false;
    for id in registry::live_pools() {
        let capture =
            registry::pool(id)?.with_core(id, |core| core.captures.get(&number).copied())?;
        if let Some(capture) = capture {
            known = true;
            f(id, capture)?;
        }
    }
    if known {
        return Ok(());
    }
    Err(Error::new(
        Status::InvalidArgument,
        format!("{number} is no capture: never begun, or released"),
    ))
}
