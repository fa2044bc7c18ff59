//! Blocks of a group with a window that go with registered blocks of another group.
//!
//! What a window's layers need of a prefix are its last blocks alone, so a window's blocks neither
//! continue each other nor are they in the index. The first group of full attention, whose blocks
//! are compared token by token, holds the *anchors*: for each, a group with a window knows at most
//! one *companion*, the block with the states of the same tokens. Promises that a companion has one
//! anchor, and that a companion that nobody uses can be given up at any time: nothing continues it.
//! That companions go when their anchor does is the caller's duty ([`Blocks::left`]).
//! Cost: some stores a call.

use super::super::error::{KvError, Result};
use super::super::events::{Event, Events};
use super::super::hash::Digest;
use super::{Blocks, Known, NONE, table};

/// Who goes with whom; empty in a group without a window.
#[derive(Debug, Default)]
pub(super) struct Companions {
    /// Each anchor's companion.
    of: Vec<u32>,
    /// Each companion's anchor.
    anchors: Vec<u32>,
}

impl Companions {
    /// Parts a companion from its anchor.
    pub(super) fn part(&mut self, id: u32) {
        let anchor = std::mem::replace(&mut self.anchors[id as usize], NONE);
        debug_assert_eq!(self.of[anchor as usize], id);
        self.of[anchor as usize] = NONE;
    }

    /// Parts all.
    pub(super) fn clear(&mut self) {
        self.of.fill(NONE);
        self.anchors.fill(NONE);
    }
}

/// Registered blocks that were forgotten, where other groups' blocks go with them.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub leads: bool,
    pub anchors: Vec<u32>,
}

impl Blocks {
    /// This group's blocks are companions of another's, which has `anchors` blocks.
    pub(in super::super) fn accompany(&mut self, anchors: u32) -> Result<()> {
        self.companions.of = table(anchors as usize, NONE)?;
        self.companions.anchors = table(self.all.len(), NONE)?;
        Ok(())
    }

    /// This group's blocks are anchors.
    pub(in super::super) fn lead(&mut self) -> Result<()> {
        self.left.leads = true;
        let room = self.left.anchors.try_reserve_exact(self.all.len());
        room.map_err(|_| KvError::NoMemory)
    }

    /// The companion of a registered anchor that can be hit.
    #[inline]
    pub(in super::super) fn companion(&self, anchor: u32) -> Option<u32> {
        let id = self.companions.of[anchor as usize];
        (id != NONE && id < self.end).then_some(id)
    }

    /// Whether the block is a companion.
    #[inline]
    pub(in super::super) fn is_companion(&self, id: u32) -> bool {
        self.all[id as usize].known == Known::Companion
    }

    /// Makes a block that somebody holds, and that is not known, an anchor's companion; the anchor
    /// must have none that can be hit.
    pub(in super::super) fn join(
        &mut self,
        id: u32,
        anchor: u32,
        digest: Digest,
        events: &mut Events,
    ) {
        debug_assert!(self.all[id as usize].refs > 0 && self.companion(anchor).is_none());
        debug_assert_eq!(self.all[id as usize].known, Known::No);
        // One above the end, which drains and is hit no more.
        let before = self.companions.of[anchor as usize];
        if before != NONE {
            self.give_up(before, events);
        }
        self.companions.of[anchor as usize] = id;
        self.companions.anchors[id as usize] = anchor;
        self.digests[id as usize] = digest;
        let block = &mut self.all[id as usize];
        (block.known, block.hit) = (Known::Companion, false);
        events.push(Event::Stored { group: self.group, block: id, digest });
    }

    /// Anchors that were forgotten since this was last emptied: their companions must go before
    /// another block is registered. The list is to be given back to [`Blocks::parted`].
    #[inline]
    pub(in super::super) fn left(&mut self) -> Option<Vec<u32>> {
        (!self.left.anchors.is_empty()).then(|| std::mem::take(&mut self.left.anchors))
    }

    /// The companions of these anchors are gone. The list's memory serves the next ones.
    pub(in super::super) fn parted(&mut self, mut anchors: Vec<u32>) {
        anchors.clear();
        self.left.anchors = anchors;
    }

    /// The anchor was forgotten: so is its companion, which is free if nobody uses it.
    pub(in super::super) fn leave(&mut self, anchor: u32, events: &mut Events) {
        let id = self.companions.of[anchor as usize];
        if id != NONE {
            self.give_up(id, events);
        }
    }

    /// What is wrong with companions, given the group of their anchors.
    pub(in super::super) fn audit_companions(
        &self,
        anchors: &Blocks,
    ) -> std::result::Result<(), String> {
        let group = self.group;
        if !anchors.left.anchors.is_empty() {
            return Err(format!("companions of {:?} were not parted", anchors.left.anchors));
        }
        let pairs = self.companions.of.iter().enumerate().filter(|(_, id)| **id != NONE);
        let mut count = 0;
        for (anchor, &id) in pairs {
            let wrong = |what| Err(format!("group {group}: {what}: {id} goes with {anchor}"));
            if self.companions.anchors[id as usize] != anchor as u32 || !self.is_companion(id) {
                return wrong("it does not know");
            }
            if anchors.all[anchor].known != Known::Tokens {
                return wrong("the anchor is not registered");
            }
            if anchors.digests[anchor] != self.digests[id as usize] {
                return wrong("it was another prefix's");
            }
            count += 1;
        }
        let known = self.all.iter().filter(|block| block.known == Known::Companion).count();
        let named = self.companions.anchors.iter().filter(|&&anchor| anchor != NONE).count();
        if known != count || named != count {
            return Err(format!("group {group}: {known} companions, {named} of {count} named"));
        }
        if self.all.iter().any(|block| block.known == Known::Tokens) {
            return Err(format!("group {group}: a window's block is known by its tokens"));
        }
        Ok(())
    }
}
