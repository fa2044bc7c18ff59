//! Groups grow and shrink while sequences run.
//!
//! A group's configured blocks are the most that it can have; which of them there are is said
//! here. Promises that the numbers of blocks never change, that none at or above
//! [`Bounds::needed`] is held, read or given out, and that a group that shrinks gives nothing out
//! above its new end: it is done when the sequences there end and their fences pass.

use super::error::{KvError, Result};
use super::{Core, KvCache};

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
    /// such group, fewer than 2 blocks or more than were configured.
    pub fn resize(&self, group: u32, blocks: u32) -> Result<Bounds> {
        self.with(|core| {
            let Core { config, groups, events, .. } = core;
            let found = groups.get_mut(group as usize).ok_or(NO_GROUP)?;
            if !(2..=config.groups[group as usize].blocks).contains(&blocks) {
                return Err(KvError::OutOfRange(
                    "a group has 2 blocks at least, and as many as were configured at most",
                ));
            }
            found.resize(blocks, events);
            Ok(Core::bounds(found))
        })
    }

    /// Which blocks of a group there are.
    pub fn bounds(&self, group: u32) -> Result<Bounds> {
        let mut core = self.core.lock();
        core.groups.get_mut(group as usize).map(Core::bounds).ok_or(NO_GROUP)
    }
}

impl Core {
    fn bounds(blocks: &mut super::blocks::Blocks) -> Bounds {
        Bounds { open: blocks.end(), needed: blocks.needed(), draining: blocks.draining() }
    }

    /// What a change left above the end of a group that shrinks.
    #[inline]
    pub(super) fn drain(&mut self) {
        for blocks in &mut self.groups {
            blocks.drain(&mut self.events);
        }
    }
}

const NO_GROUP: KvError = KvError::OutOfRange("the cache has no such group");
