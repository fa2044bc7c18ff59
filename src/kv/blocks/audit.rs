//! The accounts of a group's blocks, held against their holders' and against each other.
//!
//! Changes nothing. Cost: a look at each block and list.

use super::{Blocks, Known, State};

impl Blocks {
    /// What is wrong with the accounts, given each block's references as its holders count them.
    pub(in super::super) fn audit(&self, refs: &[u32]) -> std::result::Result<(), String> {
        let counts = self.counts();
        let sum = 1 + counts.used + counts.free + counts.cached + counts.quarantined;
        if sum != counts.total {
            return Err(format!("group {}: {counts:?} do not sum up", self.group));
        }
        let closed = self.all.iter().filter(|block| block.state == State::Closed).count();
        if closed != self.closed as usize {
            return Err(format!("group {}: {closed} closed, {} counted", self.group, self.closed));
        }
        let mut seen = vec![None; self.all.len()];
        let clean = self.clean.iter().map(|&id| (id, State::Clean));
        let cached = self.queue.iter(&self.all).map(|id| (id, State::Cached));
        for (id, state) in clean.chain(cached) {
            if seen[id as usize].replace(state).is_some() {
                return Err(format!("group {}: block {id} is listed twice", self.group));
            }
        }
        let mut known = 0;
        for (id, block) in self.all.iter().enumerate() {
            let wrong = |what: &str| Err(format!("group {}: {what}: {id}: {block:?}", self.group));
            if block.refs != refs[id] {
                return wrong(&format!("{} references are held", refs[id]));
            }
            let listed = matches!(block.state, State::Clean | State::Cached);
            if seen[id] != listed.then_some(block.state)
                || (block.state == State::Used) != (refs[id] > 0)
            {
                return wrong("its state is not what it is in");
            }
            if (block.state == State::Closed || listed) && (id >= self.end as usize) == listed {
                return wrong("there or not");
            }
            let unknown = block.known == Known::No;
            if (block.state == State::Cached && unknown)
                || (matches!(block.state, State::Clean | State::Closed) && !unknown)
            {
                return wrong("known or not");
            }
            if listed && block.fence > self.passed {
                return wrong("its fence has not passed");
            }
            known += u32::from(matches!(block.known, Known::Tokens | Known::Raw));
            let Some(parent) = self.all.get(block.parent as usize) else { continue };
            if parent.known != Known::Tokens {
                return wrong("what it continues is not registered");
            }
            if block.refs > 0 && parent.refs == 0 {
                return wrong("what it continues is nobody's");
            }
            if block.state == State::Quarantined && parent.state == State::Cached {
                return wrong("what it continues could be given up");
            }
        }
        if known as usize != self.index.len() {
            return Err(format!(
                "group {}: {known} known, {} indexed",
                self.group,
                self.index.len()
            ));
        }
        Ok(())
    }
}
