//! Groups grow and shrink while sequences run.
//!
//! A group's configured blocks are the most that it can have; which of them there are is said
//! here. Promises that the numbers of blocks never change, that none at or above
//! [`Bounds::needed`] is held, read or given out, and that a group that shrinks gives nothing out
//! above its new end: it is done when the sequences there end and their fences pass.

use super::error::{KvError, Result};
use super::{Core, Fence, Group, KvCache};

/// Which blocks of a group there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Blocks below this number may be given out.
    pub open: u32,
    /// Blocks from this number on are nobody's: nothing reads or writes them. Equal to `open` once
    /// all above has drained.
    pub needed: u32,
    /// Blocks from `open` on that are held, or whose fence has not passed.
    pub draining: u32,
}

impl KvCache {
    /// Makes blocks `0 .. blocks` those of a group that there are. Prefixes above that nobody uses
    /// are given up; nothing new is put there. Memory for the blocks is the caller's affair: there
    /// before a group grows, and kept below [`Bounds::needed`]. Errors, with nothing changed: no
    /// such group, fewer than 2 blocks or more than were configured; memory stands behind the
    /// blocks, whose own resize it is then.
    pub fn resize(&self, group: u32, blocks: u32) -> Result<Bounds> {
        if self.has_memory() {
            return Err(KvError::Unsupported(
                "memory stands behind the cache: its groups are resized there",
            ));
        }
        self.resize_behind(group, blocks)
    }

    /// As [`KvCache::resize`], for who puts memory behind the blocks.
    pub(crate) fn resize_behind(&self, group: u32, blocks: u32) -> Result<Bounds> {
        self.with(|core| {
            let Core { config, groups, events, .. } = core;
            let found = groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            if !(2..=config.groups[group as usize].blocks).contains(&blocks) {
                return Err(LENGTHS);
            }
            found.resize(blocks, events);
            Ok(Core::bounds(found))
        })
    }

    /// Whether memory stands behind the blocks.
    pub fn has_memory(&self) -> bool {
        self.core.lock().memory
    }

    /// Whether a group can have so many blocks.
    pub(crate) fn may_have(&self, group: u32, blocks: u32) -> bool {
        let core = self.core.lock();
        let most = core.config.groups.get(group as usize).map_or(0, |group| group.blocks);
        (2..=most).contains(&blocks)
    }

    /// Fences up to this one were made by who puts memory behind the blocks.
    pub(crate) fn fence_made(&self, fence: Fence) {
        let mut core = self.core.lock();
        core.made = core.made.max(fence);
    }

    /// The groups.
    pub fn groups(&self) -> Vec<Group> {
        self.core.lock().config.groups.clone()
    }

    /// Somebody puts memory behind the first blocks of each group, as many as `initial` says: as
    /// [`KvCache::resize`] for all groups, or none. Errors: a number of blocks that a group cannot
    /// have, a cache in use, or one behind which memory stands. Answers the highest fence that has
    /// passed: those to come must be above.
    pub fn begin_memory(&self, initial: &[u32]) -> Result<Fence> {
        self.with(|core| {
            let Core { config, groups, events, sequences, .. } = core;
            let most = |(blocks, group): (&u32, &Group)| (2..=group.blocks).contains(blocks);
            if initial.len() != groups.len() || !initial.iter().zip(&config.groups).all(most) {
                return Err(LENGTHS);
            }
            let counts = groups.iter().map(|blocks| blocks.counts());
            let used = counts.map(|counts| counts.used + counts.quarantined).any(|held| held > 0);
            let passed = groups.iter().map(|blocks| blocks.passed()).max().unwrap_or(0);
            if core.memory || passed > i64::MAX as u64 || used || sequences.count() > 0 {
                return Err(KvError::Unsupported(
                    "memory comes before the first sequence, and once: the cache is in use",
                ));
            }
            (core.memory, core.made) = (true, passed);
            for (blocks, &end) in groups.iter_mut().zip(initial) {
                // The memory is new: what prefixes held is not in it.
                blocks.clear(events);
                blocks.resize(end, events);
            }
            Ok(passed)
        })
    }

    /// No memory stands behind the blocks any more: all that were configured are there again, and
    /// all prefixes are given up.
    pub fn end_memory(&self) {
        self.with(|core| {
            let Core { config, groups, events, .. } = core;
            for (blocks, group) in groups.iter_mut().zip(&config.groups) {
                blocks.clear(events);
                blocks.resize(group.blocks, events);
            }
            core.memory = false;
        });
    }

    /// Which blocks of a group there are.
    pub fn bounds(&self, group: u32) -> Result<Bounds> {
        let mut core = self.core.lock();
        core.groups.get_mut(group as usize).map(Core::bounds).ok_or(NO_GROUP)
    }
}

impl Core {
    /// Where memory stands behind the blocks its fences alone may be waited for: pages would go
    /// under work that runs when one is made later under a number that has been named before.
    #[inline]
    pub(super) fn check_fence(&self, after: Fence) -> Result<()> {
        if self.memory && after > self.made {
            return Err(KvError::OutOfRange("no such fence was made by the cache's memory"));
        }
        Ok(())
    }

    fn bounds(blocks: &mut super::blocks::Blocks) -> Bounds {
        Bounds { open: blocks.end(), needed: blocks.needed(), draining: blocks.draining() }
    }

    /// What a change left above the end of a group that shrinks, and of prefixes that went.
    #[inline]
    pub(super) fn drain(&mut self) {
        for blocks in &mut self.groups {
            blocks.drain(&mut self.events);
        }
        if let Some(hybrid) = &self.hybrid {
            hybrid.part(&mut self.groups, &mut self.events);
        }
    }
}

const LENGTHS: KvError =
    KvError::OutOfRange("a group has 2 blocks at least, and as many as were configured at most");
const NO_GROUP: KvError = KvError::OutOfRange("the cache has no such group");
