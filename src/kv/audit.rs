//! The whole of a cache's accounts held against each other, and what is left at its end.
//!
//! Promises to find any reference too many or too few, any block in two states, any prefix whose
//! beginning could go before it, any window's block that stands for a prefix that is not there.
//! Cost: all blocks and all tables, under the lock.

use super::blocks::NULL;
use super::sequence::Seq;
use super::{Core, KvCache};

/// What was still held when a cache ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// Open sequences and their tokens.
    pub sequences: Vec<(Seq, u32)>,
    /// Copies that were never said to be made.
    pub copies: u32,
    /// References that the raw level holds.
    pub raw_references: u64,
}

impl Leaks {
    /// Whether nothing was left.
    pub fn is_empty(&self) -> bool {
        *self == Leaks::default()
    }
}

impl KvCache {
    /// Audits everything. The text says what is wrong first.
    pub fn check(&self) -> Result<(), String> {
        self.core.lock().check()
    }

    /// Ends the cache; tells what was still held.
    pub fn into_leaks(self) -> Leaks {
        self.leaks()
    }

    /// What is held: what would be left if the cache ended now.
    pub fn leaks(&self) -> Leaks {
        let core = self.core.lock();
        let sequences = core.sequences.iter().map(|(seq, found)| (seq, found.len)).collect();
        let raw = core.groups.iter().flat_map(|blocks| &blocks.all).filter(|block| block.raw);
        Leaks {
            sequences,
            copies: core.pending.count() as u32,
            raw_references: raw.map(|block| u64::from(block.refs)).sum(),
        }
    }
}

impl Core {
    fn check(&self) -> Result<(), String> {
        for (at, blocks) in self.groups.iter().enumerate() {
            let mut refs = vec![0u32; blocks.all.len()];
            for (seq, found) in self.sequences.iter() {
                let table = &found.tables[at];
                let geometry = &self.config.groups[at].geometry;
                let need = geometry.blocks_for(found.len) as usize;
                if table.blocks.len() < need || found.committed > found.len {
                    return Err(format!("{seq:?} has {} blocks of {need}", table.blocks.len()));
                }
                for (index, &block) in table.blocks.iter().enumerate() {
                    if (block == NULL) != ((index as u32) < table.trimmed) {
                        return Err(format!("{seq:?}: entry {index} is {block}"));
                    }
                    refs[block as usize] += u32::from(block != NULL);
                }
            }
            for held in self.pending.iter().filter(|held| held.job.group as usize == at) {
                refs[held.job.to as usize] += 1;
                held.from.iter().for_each(|&block| refs[block as usize] += 1);
            }
            for (id, block) in blocks.all.iter().enumerate().filter(|(_, block)| block.raw) {
                if refs[id] > 0 {
                    return Err(format!(
                        "group {at}: block {id} is the raw level's and a sequence's"
                    ));
                }
                refs[id] = block.refs;
            }
            blocks.audit(&refs)?;
        }
        self.hybrid.as_ref().map_or(Ok(()), |hybrid| hybrid.audit(&self.groups))
    }
}
