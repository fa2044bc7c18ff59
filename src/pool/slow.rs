//! What the hot path leaves over: first use, misses, extents, special blocks, wrong use.
//!
//! Promises: every wrong pointer is answered with its own error and changes nothing; a free
//! of a live block never fails for want of memory. Cost: a miss takes the core's lock once.

#[cfg(test)]
mod tests;

use super::cache::{self, LaneCache};
use super::core::{Core, Extent, REQUEST_MAX, Side};
use super::hot::{SYNC_STREAM, is_sound, slot_in_table};
use super::ladder::{self, Refusal};
use super::order::stream_name;
use super::record::Event;
use super::wipes::Place;
use super::{Shared, registry};
use super::{devices, world};
use crate::base::sync::atomic::Ordering;
use crate::base::units::{MIB, QUANTUM, QUANTUM_SHIFT, UNIT_SHIFT};
use crate::config::FreeMode;
use crate::driver::Call;
use crate::error::{Error, Result, Status, set_last};
use crate::heap::NodeId;
use crate::slab::Round;
use crate::slab::class::{SLOT_MAX, class_aligned, slot_bytes, slot_of};
use crate::slab::marks::{Descriptor, SPECIAL};
use crate::stream::LaneId;
use std::ffi::c_void;

/// The largest alignment that may be asked for.
pub const ALIGN_MAX: usize = 2 * MIB;

/// Turns a result into a status, keeping the message; a panic becomes
/// [`Status::Internal`].
pub fn guarded(f: impl FnOnce() -> Result<()>) -> Status {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    let error = match caught {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(error)) => error,
        Err(panic) => {
            let what = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned());
            let what = what.unwrap_or_else(|| "no message".to_owned());
            Error::new(Status::Internal, format!("a defect in Forebay was caught: {what}"))
        }
    };
    set_last(error.message());
    error.status()
}

/// The whole of an allocation that the hot path could not serve.
///
/// # Safety
/// `out` is null or valid for a pointer's write.
#[cold]
#[inline(never)]
pub unsafe extern "C" fn alloc(
    pool: u64,
    out: *mut *mut c_void,
    bytes: usize,
    align: usize,
    stream: u64,
) -> Status {
    guarded(|| {
        if out.is_null() {
            return Err(Error::new(Status::InvalidArgument, "the pointer for the result is NULL"));
        }
        let result = checked_request(bytes, align).and_then(|()| match bytes {
            0 => world::check_world().map(|()| 0),
            _ => alloc_block(pool, bytes, align, stream),
        });
        let address = *result.as_ref().unwrap_or(&0);
        // SAFETY: not null, and valid for the write as promised.
        unsafe { *out = address as *mut c_void };
        result.map(|_| ())
    })
}

fn checked_request(bytes: usize, align: usize) -> Result<()> {
    if align != 0 && (!align.is_power_of_two() || align > ALIGN_MAX) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("alignment {align} is not a power of two up to 2 MiB"),
        ));
    }
    if bytes > REQUEST_MAX {
        return Err(Error::new(
            Status::OutOfMemory,
            format!("{bytes} bytes were requested; no device has more than 2^40"),
        ));
    }
    Ok(())
}

/// This thread's cache for a lane. One pointer, so that it stays in a register: a larger result
/// goes through memory, and read back wider than it was written it costs more than the look-up.
#[derive(Clone, Copy)]
struct Found(*mut LaneCache);

impl Found {
    fn shared(self) -> &'static Shared {
        // SAFETY: lane caches are never unmapped; this field of a live one does not change, and
        // `ladder::checked` tells under the lock if it is live no more.
        unsafe { (*self.0).pool }
    }

    /// The lane's key.
    fn key(self) -> u64 {
        // SAFETY: as in `shared`.
        unsafe { (*self.0).key }
    }

    /// Whether an address lies in the pool's first reservation.
    fn covers(self, address: usize) -> bool {
        // SAFETY: as in `shared`.
        unsafe { address.wrapping_sub((*self.0).base) < (*self.0).len }
    }
}

/// This thread's cache for the stream's lane.
#[inline(always)]
fn find(pool: u64, stream: u64) -> Result<Found> {
    world::check_world()?;
    let thread = cache::current();
    let key = pool ^ stream;
    // SAFETY: this thread's own cache; read between enter and leave.
    unsafe {
        if is_sound(pool, stream) && cache::enter(thread) {
            let entry = (*thread).table[slot_in_table(key)];
            let hit = entry.key == key;
            if hit {
                (*thread).last = entry;
            }
            cache::leave(thread);
            if hit && !entry.lane.is_null() {
                return Ok(Found(entry.lane));
            }
        }
    }
    find_miss(pool, stream)
}

#[cold]
#[inline(never)]
fn find_miss(pool: u64, stream: u64) -> Result<Found> {
    let thread = registry::enrol()?;
    Ok(Found(registry::lane_cache(thread, pool, stream)?.0))
}

/// How often a cache that another thread took away meanwhile is looked up again.
const LOOKS: u32 = 16;

fn alloc_block(pool: u64, bytes: usize, align: usize, stream: u64) -> Result<usize> {
    let mut found = find(pool, stream)?;
    for _ in 0..LOOKS {
        if let Some(address) = alloc_from(found, bytes, align, stream)? {
            return Ok(address);
        }
        found = find_miss(pool, stream)?;
    }
    Err(super::core::unknown_stream(stream))
}

#[inline(always)]
fn alloc_from(found: Found, bytes: usize, align: usize, stream: u64) -> Result<Option<usize>> {
    let (thread, key) = (cache::current(), found.key());
    let id = key_pool(key, stream);
    // SAFETY: this thread's own cache.
    let tag = unsafe { (*thread).tag } as u8;
    let class = if align > QUANTUM { None } else { class_aligned(bytes, align.max(1)) };
    let taken = ladder::climb(found.shared(), id, bytes, |core, fit| {
        // SAFETY: the core is locked and the cache came from this thread's table.
        let cache = unsafe { ladder::checked(found.0, key, thread)? };
        core.misses += 1;
        if core.fuse.is_blown() {
            return Err(Refusal::Driver(super::loss::lost_call(Call::StreamCheck)));
        }
        if core.settings.debug.streams {
            core.check_lane(cache.id as LaneId)?;
        }
        let address = match class.filter(|_| bytes <= SLOT_MAX) {
            class if core.tagged.has(tag) => core.take_tagged(cache, class, (bytes, align), tag)?,
            Some(class) => {
                let round = core.take_slot(cache, class)?;
                hand_out(core, cache, class, round, bytes, tag)
            }
            None => core.take_extent(cache, bytes, align, tag, fit)?,
        };
        if core.settings.keeps_records() {
            core.watch(address, bytes);
        }
        core.note_event(|| alloc_event(address, (bytes, align), stream, tag));
        Ok(address)
    });
    match taken {
        // A cache taken away meanwhile may be another pool's, and pool and key read of it those
        // of two: if the caller's pool is gone, the next look says so.
        Err(error) if error.status() == Status::InvalidPool => Ok(None),
        other => other,
    }
}

fn alloc_event(address: usize, (bytes, align): (usize, usize), stream: u64, tag: u8) -> Event {
    let stream = stream_name(stream);
    Event::Alloc { address, bytes: bytes as u64, align: align as u64, stream, tag }
}

/// A pool's number out of a lane key.
fn key_pool(key: u64, stream: u64) -> u64 {
    (key ^ stream) >> super::HANDLE_SHIFT
}

pub(super) fn hand_out(
    core: &Core,
    cache: &LaneCache,
    class: usize,
    round: Round,
    bytes: usize,
    tag: u8,
) -> usize {
    core.marks.mark(round.mark()).store(tag, Ordering::Relaxed);
    let allocs = &cache.mags[class].allocs;
    allocs.store(allocs.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    let requested = cache.requested.load(Ordering::Relaxed) + bytes as u64;
    cache.requested.store(requested, Ordering::Relaxed);
    core.slot_address(round)
}

/// The whole of a free that the hot path could not serve.
#[cold]
#[inline(never)]
pub extern "C" fn dealloc(pool: u64, address: usize, stream: u64) -> Status {
    guarded(|| {
        if address == 0 {
            return Ok(());
        }
        match world::check_world() {
            Err(e) if e.status() == Status::ShutDown => return Ok(()),
            other => other?,
        }
        free_anywhere(pool, address, stream).or_else(forgive_lost)
    })
}

/// What lay in a lost context or a driver that is shut down is gone; nothing can be done with the
/// address any more.
#[cold]
fn forgive_lost(error: Error) -> Result<()> {
    match error.status() {
        Status::ContextLost | Status::ShutDown => Ok(()),
        _ => Err(error),
    }
}

#[inline(always)]
fn free_anywhere(pool: u64, address: usize, stream: u64) -> Result<()> {
    // A free makes no default pool: the block may be another's, or nobody's.
    if pool != 0 || devices::default_made().is_some() {
        match find(pool, stream) {
            Ok(found) if found.covers(address) => {
                return free_block(pool, found, address, stream);
            }
            Ok(_) => {}
            // The default pool's context is lost; the block may be another pool's.
            Err(e) if pool == 0 && e.status() == Status::ContextLost => {}
            Err(e) => return Err(e),
        }
    }
    let pool = owning_pool(pool, address)?;
    free_block(pool, find(pool, stream)?, address, stream)
}

/// The handle of the pool to free into: as given, or found by address for the default.
fn owning_pool(pool: u64, address: usize) -> Result<u64> {
    if pool != 0 {
        registry::pool(registry::pool_number(pool)?)?;
        return Ok(pool);
    }
    // The default pool's own addresses are checked again under its lock.
    if let Some(id) = devices::default_made()
        && registry::pool(id)?.with_core(id, |core| core.quantum(address).is_some())?
    {
        return Ok(0);
    }
    Ok(registry::pool_of(address)? << super::HANDLE_SHIFT)
}

fn free_block(pool: u64, mut found: Found, address: usize, stream: u64) -> Result<()> {
    for _ in 0..LOOKS {
        if free_into(found, address, stream)? {
            return Ok(());
        }
        // Whose block it is was judged by a cache that was going away.
        let pool = owning_pool(pool, address)?;
        found = find_miss(pool, stream)?;
    }
    Err(super::core::unknown_stream(stream))
}

/// False: the cache is another's by now, or its pool's end has come (which the next look
/// tells); nothing was freed.
#[inline(always)]
fn free_into(found: Found, address: usize, stream: u64) -> Result<bool> {
    let (thread, shared, key) = (cache::current(), found.shared(), found.key());
    let id = key_pool(key, stream);
    let mut mode = if stream == SYNC_STREAM { shared.free_mode() } else { FreeMode::Deferred };
    if mode == FreeMode::Sync {
        let located = shared.with_core(id, |core| {
            // SAFETY: the core is locked and the cache came from this thread's table.
            let ours = unsafe { ladder::checked(found.0, key, thread) }.is_ok();
            ours.then(|| core.locate(address).map(|_| ()))
        });
        match located {
            Ok(Some(located)) => located?,
            Ok(None) => return Ok(false),
            Err(error) if error.status() == Status::InvalidPool => return Ok(false),
            Err(error) => return Err(error),
        }
        // While a capture is open nothing may wait for the device: the block waits instead.
        if !super::control::synchronize(shared, id)? {
            mode = FreeMode::Deferred;
        }
    }
    let mut guard = shared.core.lock();
    let Some(core) = shared.open_core(&mut guard, id) else {
        return Ok(false);
    };
    // SAFETY: the core is locked and the cache came from this thread's table.
    let Ok(cache) = (unsafe { ladder::checked(found.0, key, thread) }) else {
        return Ok(false);
    };
    if core.settings.debug.streams {
        match core.check_lane(cache.id as LaneId) {
            Ok(()) => {}
            Err(Refusal::Capturing(stream)) => return Err(super::capture::undeclared(stream)),
            Err(Refusal::Reused(stream)) => return Err(super::core::reused_stream(stream)),
            Err(_) => return Err(super::core::unknown_stream(stream)),
        }
    }
    core.free_at(cache, address, mode)?;
    core.note_event(|| Event::Free { address, stream: stream_name(stream) });
    Ok(true)
}

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// A slot of a slab.
    Slot {
        /// Its class.
        class: usize,
        /// Itself.
        round: Round,
        /// Its slab's lane.
        lane: LaneId,
    },
    /// An extent.
    Extent {
        /// Its node.
        node: NodeId,
    },
    /// Another process's memory.
    Imported {
        /// Its length in bytes.
        bytes: usize,
    },
}

impl Core {
    /// The live block that begins at `address`, or the error that says what is wrong.
    #[inline(always)]
    pub fn locate(&self, address: usize) -> Result<Located> {
        let Some((quantum, inside)) = self.quantum(address) else {
            return Err(foreign(address));
        };
        match self.marks.get(quantum) {
            Descriptor::Slab { marks, lane, index, class } => {
                let in_slab = (index as usize) << QUANTUM_SHIFT | inside;
                let unit = (in_slab >> UNIT_SHIFT) as u32;
                let (slot, starts) = slot_of(class, unit);
                if !starts || !in_slab.is_multiple_of(1 << UNIT_SHIFT) {
                    return Err(interior(address));
                }
                let round = Round::new(
                    quantum << (QUANTUM_SHIFT - UNIT_SHIFT) | (inside >> UNIT_SHIFT) as u32,
                    marks + slot,
                );
                if self.marks.mark(round.mark()).load(Ordering::Relaxed) == 0 {
                    return Err(double_free(address));
                }
                Ok(Located::Slot { class, round, lane })
            }
            Descriptor::Extent { node } if inside == 0 => Ok(Located::Extent { node }),
            Descriptor::Extent { .. } => Err(interior(address)),
            Descriptor::None if self.shares.is_held(address) => Err(double_free(address)),
            Descriptor::None if let Some((start, bytes)) = self.imported_at(address) => {
                if start == address {
                    Ok(Located::Imported { bytes })
                } else {
                    Err(interior(address))
                }
            }
            Descriptor::None if self.heap.live_at(quantum) => Err(interior(address)),
            Descriptor::None => Err(double_free(address)),
        }
    }

    /// Frees the block at `address` in the order of `cache`'s lane.
    pub fn free_at(&mut self, cache: &mut LaneCache, address: usize, mode: FreeMode) -> Result<()> {
        let lane = cache.id as LaneId;
        let asked = mode;
        // The caller has waited for the device, but not for what overwrites the block now.
        let mode = if self.settings.wipes() { FreeMode::Deferred } else { mode };
        let located = self.locate(address)?;
        self.check_no_plan_block(address)?;
        match located {
            Located::Slot { class, round, lane: owner } => {
                let mark = self.marks.mark(round.mark()).swap(0, Ordering::Relaxed);
                if mark == 0 {
                    return Err(double_free(address));
                }
                let frees = &cache.mags[class].frees;
                frees.store(frees.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                let bytes = slot_bytes(class);
                let side = self.end_special(address, bytes, mark);
                if self.tagged.is_away(self.tagged.of_lane(owner)) {
                    self.free_away((address, bytes), Place::Slot(round), (lane, lane), &side);
                    return Ok(());
                }
                if mark & SPECIAL != 0 && self.shares.is_lent(address) {
                    let stamp = self.free_stamp(lane, owner, &side.uses, bytes as u64);
                    self.hold_exported_slot(address, bytes as u64, stamp);
                    return Ok(());
                }
                let ordered = self.orders_wipe(lane, &side, asked);
                if !(ordered && self.wipe(address, bytes, lane)) {
                    let stamp = self.free_stamp(lane, owner, &side.uses, bytes as u64);
                    let block = (address, bytes);
                    self.hold_unwiped(block, (stamp, lane), !ordered, Place::Slot(round));
                    self.fence_slot(lane, &side.uses);
                    return Ok(());
                }
                self.free_slot(cache, class, round, owner, &side, mode);
            }
            Located::Extent { node } => self.free_extent_at(cache, node, address, (mode, asked)),
            Located::Imported { bytes } => self.free_import(address, bytes, lane, asked),
        }
        Ok(())
    }

    /// Frees the extent at `node`, which begins at `address`.
    #[inline(always)]
    fn free_extent_at(
        &mut self,
        cache: &mut LaneCache,
        node: NodeId,
        address: usize,
        (mode, asked): (FreeMode, FreeMode),
    ) {
        self.heap.expect_free(node);
        let lane = cache.id as LaneId;
        let extent = Extent::from_word(self.heap.word(node));
        let (_, len, _) = self.heap.block(node);
        let bytes = (len as usize) << QUANTUM_SHIFT;
        let side = self.end_special(address, bytes, extent.tag);
        // The orphans' lane is never a capture's.
        let own = extent.captive || !self.lanes.is_capture(extent.lane);
        let owner = if own { extent.lane } else { self.orphans };
        if self.tagged.is_away(self.heap.ground_of(node)) {
            self.free_away((address, bytes), Place::Extent(node), (lane, owner), &side);
            return;
        }
        // Who imports an exported block uses it until the export is closed.
        let lent = self.shares.is_lent(address);
        let ordered = self.orders_wipe(lane, &side, asked);
        let wiped = lent || ordered && self.wipe(address, bytes, lane);
        if mode == FreeMode::Sync && side.uses.is_empty() {
            self.free_extent(node, crate::stream::Stamp::CLEAN);
            return;
        }
        let stamp = self.free_stamp(lane, owner, &side.uses, bytes as u64);
        if wiped {
            self.free_extent(node, stamp);
        } else {
            let block = (address, bytes);
            self.hold_unwiped(block, (stamp, lane), !ordered, Place::Extent(node));
        }
        self.fence_uses(lane, &side.uses);
        self.fence_if_due(cache, bytes);
    }

    fn free_slot(
        &mut self,
        cache: &mut LaneCache,
        class: usize,
        round: Round,
        owner: LaneId,
        side: &Side,
        mode: FreeMode,
    ) {
        let lane = cache.id as LaneId;
        let bytes = slot_bytes(class) as u64;
        let captured = self.crosses_capture(lane, owner);
        if self.tagged.is_lane(owner) {
            // Its slabs' free slots are clean, and no cache keeps them.
            let stamp = match mode {
                FreeMode::Sync if side.uses.is_empty() => crate::stream::Stamp::CLEAN,
                _ => self.free_stamp(lane, lane, &side.uses, bytes),
            };
            self.give_passed(round, stamp, bytes);
            self.fence_slot(lane, &side.uses);
            return;
        }
        if !side.uses.is_empty() || captured {
            let stamp = self.free_stamp(lane, owner, &side.uses, bytes);
            if self.lanes.passed(stamp) {
                self.give_back(self.sync, &[round]);
            } else {
                self.wait_for(stamp, round, bytes);
                self.fence_slot(lane, &side.uses);
            }
            return;
        }
        if lane != self.sync || mode == FreeMode::Sync {
            self.keep_slot(cache, class, round);
            return;
        }
        if cache.batch.is_null() || self.caches_nothing() {
            // Blocks are watched, or what is asked is written down: none waits in the cache.
            let stamp = self.lanes.stamp(lane, bytes);
            self.wait_for(stamp, round, bytes);
            return;
        }
        self.make_room(cache);
        cache.push_open(class, round);
    }

    /// Records a fence behind freed extents when enough has gathered, where it is of use: on the
    /// sync lane always, elsewhere when another lane could take the memory; it has then mostly
    /// passed when one does. A large block does not wait for others.
    fn fence_if_due(&mut self, cache: &mut LaneCache, bytes: usize) {
        const LARGE: usize = 16 * MIB;
        const GATHERED: u64 = 32 << 20;
        const COUNT: u64 = 256;
        let lane = cache.id as LaneId;
        let (dirty, count) = self.lanes.dirty(lane);
        if lane == self.sync {
            let most = self.settings.cache / 4;
            if bytes >= LARGE || dirty >= most || count >= u64::from(cache.open_due) {
                self.record_lane(lane);
                self.settle();
            }
        } else if self.lanes.active() - self.tagged.lanes() > 3
            && (bytes >= LARGE || dirty >= GATHERED || count >= COUNT)
        {
            self.record_lane(lane);
        }
    }

    fn record_lane(&mut self, lane: LaneId) {
        let recorded = self.lanes.record(&*self.driver.0, lane);
        super::core::note(recorded.map(|_| ()), "a fence could not be recorded");
    }

    /// Takes what the side table has on a block that is being freed: recorded uses are
    /// answered, pins end.
    fn end_special(&mut self, address: usize, bytes: usize, mark: u8) -> Side {
        if mark & SPECIAL == 0 {
            return Side::default();
        }
        let side = self.side.remove(&address).unwrap_or_default();
        for _ in 0..side.pins {
            self.pin_granules(address, bytes, false);
        }
        side
    }
}

#[cold]
fn foreign(address: usize) -> Error {
    Error::new(Status::NotOwned, format!("address {address:#x} is not this pool's memory"))
}

#[cold]
fn interior(address: usize) -> Error {
    Error::new(
        Status::InteriorPointer,
        format!("address {address:#x} lies inside a block, not at its start"),
    )
}

#[cold]
fn double_free(address: usize) -> Error {
    Error::new(
        Status::DoubleFree,
        format!("no live block begins at {address:#x}: it was freed before"),
    )
}
