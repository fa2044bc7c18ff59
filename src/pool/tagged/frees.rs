//! Blocks of suspendable tags that are freed while the tag is not awake, and granules that go.
//!
//! Owns what happens to them: freed asleep, a block is gone at once with its kept contents, unless
//! a graph still uses its memory; freed while the tag falls or wakes, it waits until that is over.
//! Runs under the core's lock. Cost: as other frees; a sweep looks at all of a tag's granules.

use super::{Late, Sleeper, State};
use crate::base::units::QUANTUM_SHIFT;
use crate::heap::NodeId;
use crate::pool::core::{Core, Extent, Side};
use crate::pool::wipes::{Place, Unwiped};
use crate::slab::Round;
use crate::stream::{LaneId, Stamp};

impl Core {
    /// Frees a block of a tag that is not awake, on `lane`; its owner's lane matters to captures.
    pub(in crate::pool) fn free_away(
        &mut self,
        (address, bytes): (usize, usize),
        place: Place,
        (lane, owner): (LaneId, LaneId),
        side: &Side,
    ) {
        let tag = self.ground_of_place(place);
        let requested = match place {
            Place::Slot(_) => 0,
            Place::Extent(node) => Extent::from_word(self.heap.word(node)).bytes as u64,
        };
        let state = self.tagged.state(tag);
        let Some(sleeper) = self.tagged.tags.get_mut(&tag) else { return };
        if state != State::Falling {
            sleeper.away.forget(place, bytes as u64, requested);
        }
        let is_capture = |lane: &LaneId| self.lanes.is_capture(*lane);
        let users = [lane, owner].into_iter().chain(side.uses.iter().copied());
        let captures: Vec<LaneId> = users.filter(is_capture).collect();
        if state == State::Asleep {
            let stamp = self.away_stamp(&captures);
            match place {
                Place::Slot(round) => self.give_passed(round, stamp, bytes as u64),
                Place::Extent(node) => self.free_extent(node, stamp),
            }
            return;
        }
        let stamp = self.free_stamp(lane, owner, &side.uses, bytes as u64);
        match place {
            Place::Slot(_) => self.pending_bytes += bytes as u64,
            Place::Extent(node) => {
                self.forget_extent(node);
                self.shares.hold(address, bytes as u64);
            }
        }
        if let Some(sleeper) = self.tagged.tags.get_mut(&tag) {
            sleeper.late.push(Late { place, address, bytes, stamp, captures });
        }
    }

    /// What a block waits for that is freed asleep: no stream reaches it. Graphs will when it is
    /// awake: its own, if it is a capture's, and those that use it or that free it.
    fn away_stamp(&mut self, captures: &[LaneId]) -> Stamp {
        let stamps: Vec<Stamp> = captures.iter().map(|&lane| self.lanes.stamp(lane, 0)).collect();
        if stamps.is_empty() { Stamp::CLEAN } else { self.lanes.join(&stamps) }
    }

    /// Puts a slot into its slab, once `stamp` has passed.
    pub(in crate::pool) fn give_passed(&mut self, round: Round, stamp: Stamp, bytes: u64) {
        if self.lanes.passed(stamp) {
            self.give(round);
        } else {
            self.wait_for(stamp, round, bytes);
        }
    }

    /// Bytes of slots that are pending in memory that is away.
    pub(in crate::pool) fn pending_away(&self) -> u64 {
        let asleep = |round: &Round| {
            let tag = self.ground_of_place(Place::Slot(*round));
            tag != 0 && self.heap.is_asleep(tag)
        };
        if self.tagged.tags.is_empty() {
            return 0;
        }
        let rounds = self.pending.iter().flat_map(|batch| &batch.rounds);
        let pending: u64 =
            rounds.filter(|round| asleep(round)).map(|&round| self.slot_bytes_of(round)).sum();
        let late = self.tagged.tags.values().flat_map(|sleeper| &sleeper.late);
        let late = late.filter(|late| matches!(late.place, Place::Slot(round) if asleep(&round)));
        pending + late.map(|late| late.bytes as u64).sum::<u64>()
    }

    /// Bytes of extents that are held until their tag is awake, in memory that is away.
    pub(in crate::pool) fn held_away(&self) -> u64 {
        let late = self.tagged.tags.iter().flat_map(|(&tag, sleeper)| {
            sleeper.late.iter().filter(move |_| self.heap.is_asleep(tag))
        });
        let extents = late.filter(|late| matches!(late.place, Place::Extent(_)));
        extents.map(|late| late.bytes as u64).sum()
    }

    /// Keeps a slot of a tag that falls or wakes until that is over. False: it is of none.
    #[cold]
    pub(in crate::pool) fn give_later(&mut self, round: Round) -> bool {
        let tag = self.tagged.of_lane(self.slabs.slab(self.slabs.of(round)).lane);
        let moves = matches!(self.tagged.state(tag), State::Falling | State::Waking);
        match self.tagged.tags.get_mut(&tag).filter(|_| moves) {
            Some(sleeper) => {
                sleeper.late_rounds.push(round);
                true
            }
            None => false,
        }
    }

    /// Frees what was freed while the tag fell or woke. It is awake or asleep now.
    pub(in crate::pool) fn finish_late(&mut self, tag: u8) {
        let Some(sleeper) = self.tagged.tags.get_mut(&tag) else { return };
        let asleep = sleeper.state == State::Asleep;
        let late = std::mem::take(&mut sleeper.late);
        for round in std::mem::take(&mut sleeper.late_rounds) {
            self.give(round);
        }
        for Late { place, address, bytes, stamp, captures } in late {
            match place {
                Place::Slot(round) if asleep => {
                    self.pending_bytes -= bytes as u64;
                    let stamp = self.away_stamp(&captures);
                    self.give_passed(round, stamp, bytes as u64);
                }
                Place::Extent(node) if asleep => {
                    self.shares.unhold(address, bytes as u64);
                    let stamp = self.away_stamp(&captures);
                    self.return_extent(node, stamp);
                }
                place if self.settings.wipes() => {
                    self.unwiped.push(Unwiped { address, bytes, stamp, used: true, place });
                }
                Place::Slot(round) => {
                    self.pending_bytes -= bytes as u64;
                    self.wait_for(stamp, round, bytes as u64);
                }
                Place::Extent(node) => {
                    self.shares.unhold(address, bytes as u64);
                    self.return_extent(node, stamp);
                }
            }
        }
    }

    /// Gives a block back to the heap; of a tag that is asleep its kept contents go too, and pages
    /// that are still mapped there stay nobody's.
    pub(in crate::pool) fn return_block(&mut self, node: NodeId, stamp: Stamp) {
        let tag = self.heap.ground_of(node);
        if tag == 0 || !self.heap.is_asleep(tag) {
            self.heap.free(node, stamp, &self.lanes);
            return;
        }
        let (off, _, _) = self.heap.block(node);
        if let Some(sleeper) = self.tagged.tags.get_mut(&tag)
            && self.lanes.passed(stamp)
            && let Some(contents) = sleeper.saved.remove(&off)
        {
            sleeper.away.host -= contents.len() as u64;
        }
        self.heap.free(node, stamp, &self.lanes);
        self.strand_left(tag);
    }

    /// Pages that are still mapped at granules which are the tag's no more are nobody's.
    pub(in crate::pool) fn strand_left(&mut self, tag: u8) {
        let Some(sleeper) = self.tagged.tags.get_mut(&tag) else { return };
        if sleeper.stuck.is_empty() {
            return;
        }
        let (heap, mut left) = (&self.heap, Vec::new());
        sleeper.stuck.retain(|&granule| {
            let own = heap.is_ground(tag, granule);
            left.extend((!own).then_some(granule));
            own
        });
        left.into_iter().for_each(|granule| self.heap.strand(granule, 1));
    }

    /// What stamps kept of the tags' granules, and keep no more, is everyone's again.
    pub(in crate::pool) fn sweep_tags(&mut self) {
        let still = |(_, sleeper): &(&u8, &Sleeper)| {
            !matches!(sleeper.state, State::Falling | State::Waking)
        };
        let tags: Vec<u8> = self.tagged.tags.iter().filter(still).map(|(&tag, _)| tag).collect();
        tags.into_iter().for_each(|tag| self.sweep_tag(tag));
    }

    /// The same for one, with what is kept of such granules.
    pub(in crate::pool) fn sweep_tag(&mut self, tag: u8) {
        self.heap.sweep(tag, &self.lanes);
        self.strand_left(tag);
        let (heap, per) = (&self.heap, self.heap.per_granule());
        if let Some(sleeper) = self.tagged.tags.get_mut(&tag)
            && sleeper.state == State::Asleep
        {
            sleeper.saved.retain(|&off, contents| {
                let last = off + (contents.len() >> QUANTUM_SHIFT) as u32 - 1;
                (off / per..=last / per).all(|granule| heap.is_ground(tag, granule))
            });
            sleeper.away.host = sleeper.saved.values().map(|kept| kept.len() as u64).sum();
        }
    }
}
