//! Prefixes of models that have layers with a window beside layers of full attention.
//!
//! The groups of full attention know prefixes by parent and tokens. A group with a window adds to
//! each registered block of the first of them (the *anchor*) at most one block of its own, its
//! *companion* ([`super::blocks`]). Promises that a hit ends where the next token finds all that
//! each window shows it, and nowhere later than in the groups of full attention; that companions go
//! with their anchor before the call ends that forgets it, so none is ever found behind an anchor
//! that holds other tokens. Cost: some stores a block and group.

use super::blocks::{Blocks, Link, NONE, NULL};
use super::error::Result;
use super::events::Events;
use super::hash::{Digest, Hashing};
use super::sequence::Sequence;
use super::{Fence, Group};

/// A group with a window.
#[derive(Debug)]
struct Window {
    group: usize,
    /// Blocks before a hit's end that a token behind it sees.
    seen: usize,
    /// While a prefix is looked for: blocks at its end so far whose companions are there.
    run: usize,
}

/// Which groups have windows beside prefixes, and where their anchors are.
#[derive(Debug)]
pub(super) struct Hybrid {
    anchor: usize,
    windows: Vec<Window>,
}

impl Hybrid {
    /// `None`: no group has a window, or none is of full attention.
    pub(super) fn new(groups: &[Group]) -> Option<Hybrid> {
        let anchor = groups.iter().position(|group| group.geometry.window() == 0)?;
        let with_window =
            groups.iter().enumerate().filter(|(_, group)| group.geometry.window() > 0);
        let windows: Vec<Window> = with_window
            .map(|(at, Group { geometry, .. })| {
                let seen = (geometry.window() - 1).div_ceil(geometry.block_tokens) as usize;
                Window { group: at, seen, run: 0 }
            })
            .collect();
        (!windows.is_empty()).then_some(Hybrid { anchor, windows })
    }

    /// Tells the groups what they are to each other.
    pub(super) fn tie(&self, groups: &mut [Blocks]) -> Result<()> {
        let anchors = groups[self.anchor].all.len() as u32;
        groups[self.anchor].lead()?;
        self.windows.iter().try_for_each(|window| groups[window.group].accompany(anchors))
    }

    /// Group of the anchors.
    pub(super) fn anchor(&self) -> usize {
        self.anchor
    }

    /// The groups with windows.
    pub(super) fn windows(&self) -> impl Iterator<Item = usize> + '_ {
        self.windows.iter().map(|window| window.group)
    }

    /// Whether an anchor has a companion in each group with a window.
    pub(super) fn is_complete(&self, groups: &[Blocks], anchor: u32) -> bool {
        self.windows().all(|group| groups[group].companion(anchor).is_some())
    }

    /// Gives an empty sequence the longest prefix, in whole blocks, that all groups have; answers
    /// how many.
    pub(super) fn attach<'a>(
        &mut self,
        groups: &mut [Blocks],
        found: &mut Sequence,
        hashing: Hashing,
        prompt: impl Iterator<Item = &'a [i32]>,
    ) -> usize {
        let mut digest = hashing.root(found.salt);
        let (mut count, mut full) = (0, 0);
        self.windows.iter_mut().for_each(|window| window.run = 0);
        // Nothing is held on the way: what lies behind the end that is found is not used by this.
        for tokens in prompt {
            digest = hashing.link(&digest, tokens);
            let Some(anchor) = self.follow(groups, found, &digest, tokens) else { break };
            count += 1;
            let mut enough = true;
            for window in &mut self.windows {
                let there = groups[window.group].companion(anchor).is_some();
                window.run = if there { window.run + 1 } else { 0 };
                enough &= window.run >= window.seen.min(count);
            }
            if enough {
                full = count;
            }
        }
        self.hold(groups, found, full);
        full
    }

    /// Notes the block of these tokens in every group of full attention, or in none; answers the
    /// anchor.
    fn follow(
        &self,
        groups: &[Blocks],
        found: &mut Sequence,
        digest: &Digest,
        tokens: &[i32],
    ) -> Option<u32> {
        let salt = found.salt;
        for (at, blocks) in groups.iter().enumerate().filter(|(_, blocks)| blocks.keeps_tokens()) {
            let parent = found.tables[at].blocks.last().copied().unwrap_or(NONE);
            let block = blocks.find(Link { parent, salt, tokens, digest })?;
            // What is behind the others' last block is cut off when the end is known.
            found.tables[at].blocks.push(block);
        }
        found.tables[self.anchor].blocks.last().copied()
    }

    /// Gives the sequence the first `full` of the blocks that were noted, and their companions as
    /// far as they are seen.
    fn hold(&self, groups: &mut [Blocks], found: &mut Sequence, full: usize) {
        for (blocks, table) in groups.iter_mut().zip(&mut found.tables) {
            table.blocks.truncate(full);
            table.blocks.iter().for_each(|&block| blocks.reuse(block, found.priority));
        }
        for window in &self.windows {
            let trimmed = full.saturating_sub(window.seen);
            let blocks = &mut groups[window.group];
            let [anchors, table] = found
                .tables
                .get_disjoint_mut([self.anchor, window.group])
                .expect("a group with a window has no anchors");
            table.blocks.resize(trimmed, NULL);
            table.trimmed = trimmed as u32;
            for &anchor in &anchors.blocks[trimmed..] {
                let block = blocks.companion(anchor).expect("it was there on the way");
                blocks.reuse(block, found.priority);
                table.blocks.push(block);
            }
        }
    }

    /// Makes the blocks of a sequence's `at`th place companions of its anchor there, which is
    /// registered. With `dedupe`, a block whose anchor has one is freed behind `after` for that.
    pub(super) fn pair(
        &self,
        groups: &mut [Blocks],
        found: &mut Sequence,
        at: usize,
        (dedupe, after): (bool, Fence),
        events: &mut Events,
    ) {
        let anchor = found.tables[self.anchor].blocks[at];
        let digest = *groups[self.anchor].digest(anchor);
        for group in self.windows() {
            let blocks = &mut groups[group];
            let table = &mut found.tables[group];
            let block = table.blocks[at];
            if block == NULL || blocks.is_companion(block) {
                continue;
            }
            match blocks.companion(anchor) {
                None => blocks.join(block, anchor, digest, events),
                // Nothing continues it: whoever else holds the block is not concerned.
                Some(other) if dedupe => {
                    blocks.reuse(other, found.priority);
                    blocks.release(block, after);
                    table.blocks[at] = other;
                    table.changed = table.changed.min(at as u32);
                }
                Some(_) => {}
            }
        }
    }

    /// Lets the companions of forgotten anchors go.
    #[inline]
    pub(super) fn part(&self, groups: &mut [Blocks], events: &mut Events) {
        let Some(left) = groups[self.anchor].left() else { return };
        for group in self.windows() {
            left.iter().for_each(|&anchor| groups[group].leave(anchor, events));
        }
        groups[self.anchor].parted(left);
    }

    /// What is wrong with companions.
    pub(super) fn audit(&self, groups: &[Blocks]) -> std::result::Result<(), String> {
        self.windows().try_for_each(|group| groups[group].audit_companions(&groups[self.anchor]))
    }
}
