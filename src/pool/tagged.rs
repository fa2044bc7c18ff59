//! Tags with granules of their own: blocks that can be put to sleep apart from all others.
//!
//! Owns which tags of a pool are suspendable, and in what state each is: **awake**, **falling**
//! asleep, **asleep**, or **waking** ([`super::suspend`] goes from one to the next). Promises:
//!
//! - a block allocated under such a tag shares its granules with blocks of that tag alone, slots
//!   and extents alike;
//! - while a tag is not awake nothing is allocated under it, pinned or exported of it, and its
//!   granules stay as they are; what is freed while it falls or wakes is freed when that is over;
//! - what is freed asleep loses its kept contents at once.
//!
//! Slots of such a tag lie in slabs of a lane of the tag's, which orders nothing: they go back to
//! their slab once the stamp of their free has passed, and no thread's cache keeps them. A thread
//! that allocates under such a tag has its hot path closed meanwhile.
//!
//! Runs under the core's lock. Cost: an allocation or a free takes the lock, and a new block of
//! less than a granule may take a whole one.

use super::cache::LaneCache;
mod frees;

use super::copier::{Contents, Copier};
use super::core::Core;
use super::ladder::Refusal;
use super::slow::hand_out;
use super::wipes::Place;
use super::{Pool, registry, report};
use crate::base::sync::atomic::{AtomicU32, Ordering};
use crate::base::units::{QUANTUM, QUANTUM_SHIFT};
use crate::driver::DriverResult;
use crate::error::{Error, Result, Status};
use crate::heap::NodeId;
use crate::slab::Round;
use crate::slab::class::slot_bytes;
use crate::slab::marks::Descriptor;
use crate::stream::{LaneId, LaneKind, Stamp};
use std::collections::BTreeMap;

/// Where a suspendable tag's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// On the device.
    #[default]
    Awake,
    /// On the device; about to go.
    Falling,
    /// Nowhere, or in host memory.
    Asleep,
    /// About to be on the device again.
    Waking,
}

/// Live bytes of a tag that is asleep, as the accounts would have them awake.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is named for what it counts")]
pub struct Away {
    pub slots: u64,
    pub extents: u64,
    pub requested: u64,
    pub blocks: u64,
    pub host: u64,
}

impl Away {
    /// A block is freed.
    fn forget(&mut self, place: Place, bytes: u64, requested: u64) {
        self.blocks -= 1;
        match place {
            Place::Slot(_) => self.slots -= bytes,
            Place::Extent(_) => {
                self.extents -= bytes;
                self.requested -= requested;
            }
        }
    }
}

/// A block that was freed while its tag was falling asleep or waking.
#[derive(Debug)]
struct Late {
    place: Place,
    address: usize,
    bytes: usize,
    stamp: Stamp,
    /// What it waits for if the tag is asleep then.
    captures: Vec<LaneId>,
}

/// A suspendable tag of one pool.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    /// The lane of its slabs.
    lane: LaneId,
    pub(super) state: State,
    /// Contents in host memory, by the first quantum of their place.
    pub(super) saved: BTreeMap<u32, Contents>,
    pub(super) away: Away,
    late: Vec<Late>,
    /// Slots whose free has passed meanwhile.
    late_rounds: Vec<Round>,
    /// Granules whose pages should be gone and are still mapped.
    pub(super) stuck: Vec<u32>,
}

/// The suspendable tags of a pool.
#[derive(Debug, Default)]
pub struct Tagged {
    pub(super) tags: BTreeMap<u8, Sleeper>,
    /// How many are falling or waking.
    pub(super) moving: usize,
    /// What the driver has not taken back yet.
    pub(super) copiers: Vec<Copier>,
}

/// In how many pools each tag is suspendable, or being declared.
static DECLARED: [AtomicU32; 128] = [const { AtomicU32::new(0) }; 128];

/// Whether a tag is suspendable in some pool. Cost: a load.
pub fn is_declared(tag: u32) -> bool {
    DECLARED.get(tag as usize).is_some_and(|count| count.load(Ordering::Relaxed) > 0)
}

fn undeclare(tag: u8) {
    DECLARED[usize::from(tag)].fetch_sub(1, Ordering::Relaxed);
}

/// The pool ends: elsewhere its tags are as others are.
impl Drop for Tagged {
    fn drop(&mut self) {
        self.tags.keys().for_each(|&tag| undeclare(tag));
    }
}

/// The error of what needs the memory of a tag that is asleep.
#[cold]
pub fn asleep(tag: u8) -> Error {
    let name = report::tag_name(tag);
    Error::new(
        Status::Busy,
        format!("the tag \"{name}\" is suspended, or about to be: resume it first"),
    )
}

impl Tagged {
    /// Whether a tag is suspendable here.
    #[inline]
    pub fn has(&self, tag: u8) -> bool {
        !self.tags.is_empty() && self.tags.contains_key(&tag)
    }

    /// How many there are: each has a lane.
    pub fn lanes(&self) -> usize {
        self.tags.len()
    }

    /// The tag whose slabs lie in `lane`; 0: none's.
    pub fn of_lane(&self, lane: LaneId) -> u8 {
        let found = self.tags.iter().find(|(_, sleeper)| sleeper.lane == lane);
        found.map_or(0, |(&tag, _)| tag)
    }

    /// Whether a lane is that of a tag's slabs.
    #[inline]
    pub fn is_lane(&self, lane: LaneId) -> bool {
        !self.tags.is_empty() && self.of_lane(lane) != 0
    }

    /// Whether a tag (0: none) is suspendable and not awake.
    #[inline]
    pub fn is_away(&self, tag: u8) -> bool {
        tag != 0 && self.state(tag) != State::Awake
    }

    /// The state of a tag.
    pub fn state(&self, tag: u8) -> State {
        self.tags.get(&tag).map_or(State::Awake, |sleeper| sleeper.state)
    }

    /// Whether some tag is falling asleep or waking.
    #[inline]
    pub fn in_transit(&self) -> bool {
        self.moving > 0
    }

    /// Sets a tag's state.
    pub(super) fn set(&mut self, tag: u8, state: State) {
        let Some(sleeper) = self.tags.get_mut(&tag) else { return };
        let moves = |state| usize::from(matches!(state, State::Falling | State::Waking));
        self.moving = self.moving + moves(state) - moves(sleeper.state);
        sleeper.state = state;
    }

    /// Sums over all tags that are asleep.
    pub fn away(&self) -> Away {
        self.tags.values().fold(Away::default(), |sum, sleeper| Away {
            slots: sum.slots + sleeper.away.slots,
            extents: sum.extents + sleeper.away.extents,
            requested: sum.requested + sleeper.away.requested,
            blocks: sum.blocks + sleeper.away.blocks,
            host: sum.host + sleeper.away.host,
        })
    }

    /// Whether a copy of contents that was not awaited may be under way.
    pub(super) fn is_copying(&self) -> bool {
        self.copiers.iter().any(Copier::is_busy)
    }

    /// Whether [`Core::recover`] has something to retry of this file's.
    pub fn troubled(&self) -> bool {
        !self.copiers.is_empty()
    }

    /// A granule's page is unmapped at last. False: it is no tag's that is asleep.
    pub(super) fn unstrand(&mut self, granule: u32) -> bool {
        let mut any = false;
        for sleeper in self.tags.values_mut() {
            let before = sleeper.stuck.len();
            sleeper.stuck.retain(|&stuck| stuck != granule);
            any |= sleeper.stuck.len() < before;
        }
        any
    }
}

// ---- allocations -------------------------------------------------------------------------

impl Core {
    /// Answers whether the tag was not suspendable yet.
    fn declare(&mut self, tag: u8) -> Result<bool> {
        if self.tagged.has(tag) {
            return Ok(false);
        }
        if self.driver.0.backed_reservations().is_some() {
            return Err(Error::new(
                Status::Unsupported,
                "this device has no virtual memory management: memory that blocks lie in cannot be \
                 given back",
            ));
        }
        // Of pool 65,535: no stream's key here is the same, since none has bits above 48.
        let key = u64::MAX - u64::from(tag);
        let lane = self
            .lanes
            .open(key, LaneKind::Sync)
            .ok_or_else(|| Error::new(Status::Busy, "no lane is left for the tag's slabs"))?;
        self.heap.open_ground(tag);
        self.tagged.tags.insert(tag, Sleeper { lane, ..Sleeper::default() });
        Ok(true)
    }

    /// Allocates under a suspendable tag. Answers the address.
    pub fn take_tagged(
        &mut self,
        cache: &mut LaneCache,
        class: Option<usize>,
        (bytes, align): (usize, usize),
        tag: u8,
    ) -> std::result::Result<usize, Refusal> {
        if self.tagged.is_away(tag) {
            return Err(Refusal::Asleep(tag));
        }
        let lane = cache.id as LaneId;
        // A capture's block must know its capture, which a slot of the tag's slabs does not.
        if let Some(class) = class.filter(|_| !self.lanes.is_capture(lane)) {
            let round = self.tagged_slot(cache, class, tag)?;
            return Ok(hand_out(self, cache, class, round, bytes, tag));
        }
        let Ok(quanta) = u32::try_from(bytes.div_ceil(QUANTUM)) else {
            return Err(Refusal::AddressSpace);
        };
        let align = (align / QUANTUM).max(1) as u32;
        let node = self.place_tagged((quanta, align), cache, (tag, lane))?;
        Ok(self.begin_extent(node, lane, bytes, tag))
    }

    fn tagged_slot(
        &mut self,
        cache: &mut LaneCache,
        class: usize,
        tag: u8,
    ) -> std::result::Result<Round, Refusal> {
        let lane = self.tagged.tags[&tag].lane;
        if let Some(round) = self.one_slot(lane, class) {
            return Ok(round);
        }
        if !self.pending.is_empty()
            && self.settle()
            && let Some(round) = self.one_slot(lane, class)
        {
            return Ok(round);
        }
        let (mut quanta, least) = self.slabs.wanted(lane, class);
        loop {
            // Whoever gets a slot next may be any stream: its place must have passed for all.
            let placed = self.place_tagged((quanta, 1), cache, (tag, self.sync));
            // Placement may have settled slots into slabs; those come first.
            if let Some(round) = self.one_slot(lane, class) {
                if let Ok(node) = placed {
                    self.return_block(node, Stamp::CLEAN);
                }
                return Ok(round);
            }
            let opened = placed.and_then(|node| self.open_slab(node, lane, class));
            let refusal = match opened {
                Ok(()) => {
                    let round = self.one_slot(lane, class);
                    return Ok(round.expect("a new slab has slots"));
                }
                Err(refusal) => refusal,
            };
            quanta = match refusal {
                Refusal::Short { .. } if quanta > least => least,
                Refusal::AddressSpace if quanta > least => (quanta / 2).max(least),
                _ => return Err(refusal),
            };
        }
    }

    fn one_slot(&mut self, lane: LaneId, class: usize) -> Option<Round> {
        let mut found = None;
        self.slabs.take(lane, class, 1, |round| found = Some(round));
        found
    }

    /// Takes quanta for `lane` in granules of the tag's: there, or in new ones.
    fn place_tagged(
        &mut self,
        (quanta, align): (u32, u32),
        cache: &mut LaneCache,
        (tag, lane): (u8, LaneId),
    ) -> std::result::Result<NodeId, Refusal> {
        if let Some(node) = self.heap.take_in(tag, quanta, align, lane, &self.lanes) {
            return Ok(node);
        }
        if self.lanes.in_flight()
            && self.settle()
            && let Some(node) = self.heap.take_in(tag, quanta, align, lane, &self.lanes)
        {
            return Ok(node);
        }
        let per = self.heap.per_granule();
        let whole = quanta.checked_next_multiple_of(per).ok_or(Refusal::AddressSpace)?;
        let node = self.place_for(whole, align.max(per), cache, lane)?;
        // What is left over may hold pieces that the lane's own work was still to finish with.
        let stamp = match whole - quanta {
            0 => Stamp::CLEAN,
            _ if lane == self.sync => Stamp::CLEAN,
            left => self.lanes.stamp(lane, u64::from(left) << QUANTUM_SHIFT),
        };
        self.heap.dedicate(node, quanta, tag, stamp);
        Ok(node)
    }

    // ---- what others ask -------------------------------------------------------------

    /// The suspendable tag whose granules a live block lies in; 0: none's.
    pub(super) fn ground_at(&self, address: usize) -> u8 {
        let Some((quantum, _)) = self.quantum(address) else { return 0 };
        match self.marks.get(quantum) {
            _ if self.tagged.tags.is_empty() => 0,
            Descriptor::Extent { node } => self.heap.ground_of(node),
            Descriptor::Slab { lane, .. } => self.tagged.of_lane(lane),
            Descriptor::None => 0,
        }
    }

    /// The same for a block by its place, live or freed.
    pub(super) fn ground_of_place(&self, place: Place) -> u8 {
        match place {
            Place::Slot(round) => self.tagged.of_lane(self.slabs.slab(self.slabs.of(round)).lane),
            Place::Extent(node) => self.heap.ground_of(node),
        }
    }

    /// Fails when the block's memory is taken away, or about to be.
    pub(super) fn check_awake(&self, address: usize) -> Result<()> {
        let tag = self.ground_at(address);
        if self.tagged.is_away(tag) { Err(asleep(tag)) } else { Ok(()) }
    }

    /// Fails while some tag falls asleep or wakes: its contents are being copied.
    pub fn check_settled(&self) -> Result<()> {
        if !self.tagged.in_transit() {
            return Ok(());
        }
        Err(Error::new(Status::Busy, "a tag of the pool is being suspended or resumed just now"))
    }

    /// Rounded live bytes of slots in a slab, and how many.
    pub(super) fn slab_live(&self, node: NodeId) -> Option<(u64, u64)> {
        let (off, _, _) = self.heap.block(node);
        let slab = self.slabs.slab(self.slabs.at(off)?);
        let marks = slab.marks..slab.marks + slab.slots;
        let live = |&mark: &u32| self.marks.mark(mark).load(Ordering::Relaxed) != 0;
        let count = marks.filter(live).count() as u64;
        Some((count * slot_bytes(usize::from(slab.class)) as u64, count))
    }

    /// The same without a wait: the core is locked. Answers whether none is left.
    pub(super) fn try_close_copiers(&mut self) -> bool {
        while let Some(copier) = self.tagged.copiers.last_mut() {
            match copier.close_if_done() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    tracing::warn!(%error, "what copied a tag's contents is still held");
                    return false;
                }
            }
            self.tagged.copiers.pop();
        }
        true
    }

    /// Closes copiers that could not be closed before; waits for them.
    pub(super) fn close_copiers(&mut self) -> DriverResult<()> {
        while let Some(copier) = self.tagged.copiers.last_mut() {
            copier.close()?;
            self.tagged.copiers.pop();
        }
        Ok(())
    }
}

impl Pool {
    /// Makes a tag suspendable: what is allocated under it from now on has granules of its own.
    /// Blocks that carry it already stay where they are, and are not suspended. For the pool's
    /// life.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no tag, and for 1, "untagged"; `Unsupported` where the device
    /// has no virtual memory management, or the kernel no `membarrier`.
    pub fn declare_suspendable(&self, tag: u8) -> Result<()> {
        if tag < 2 || !report::tag_exists(u32::from(tag)) {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "{tag} is no tag that can be suspended; make one with forebay_tag_create()"
                ),
            ));
        }
        registry::pool(self.id())?;
        // First: a thread whose hot path opens from now on sees it.
        DECLARED[usize::from(tag)].fetch_add(1, Ordering::Relaxed);
        let declared = registry::with_threads_stopped(self.id(), |core| core.declare(tag));
        let declared = declared.and_then(|declared| declared);
        if !matches!(declared, Ok(true)) {
            undeclare(tag);
        }
        declared.map(drop)
    }

    /// Fails when the block's memory is taken away, or about to be.
    pub(crate) fn check_awake(&self, address: usize) -> Result<()> {
        self.with_core(|core| core.check_awake(address))?
    }
}
