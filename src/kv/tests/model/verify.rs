//! What the tables say, and what the device holds there, against the model.

use super::super::super::*;
use super::{Live, World};

impl World {
    /// What the device holds, read through each sequence's tables, is the model's.
    pub(super) fn verify(&mut self) {
        self.cache.check().expect("the accounts");
        for at in 0..self.live.len() {
            let live = &self.live[at];
            let values = live.values();
            assert_eq!(self.cache.len(live.seq), Ok(live.tokens.len() as u32));
            for group in 0..self.groups.len() {
                let geometry = self.groups[group].geometry;
                let per_block = geometry.block_tokens as usize;
                let row = self.blocks_of(group, live.seq);
                let device = &self.device[group];
                if geometry.is_state() {
                    if !live.tokens.is_empty() {
                        assert_eq!(device[row[0] as usize], values);
                    }
                    continue;
                }
                for (token, value) in values.iter().enumerate() {
                    let block = row[token / per_block] as usize;
                    let gone = token / per_block < live.gone[group];
                    assert_eq!(block == 0, gone, "token {token} of group {group}");
                    if !gone {
                        assert_eq!(device[block][token % per_block], *value, "token {token}");
                    }
                }
                self.verify_exports(group, live);
            }
        }
        let stats = self.cache.stats();
        assert_eq!(stats.sequences as usize, self.live.len());
        for group in stats.groups {
            let Counts { total, used, free, cached, quarantined } = group.counts;
            assert_eq!(1 + used + free + cached + quarantined, total);
        }
        self.verify_bounds();
    }

    /// What lies above a group's bounds is nobody's: in no table, read by no work, in no copy.
    fn verify_bounds(&self) {
        for (group, stats) in self.cache.stats().groups.iter().enumerate() {
            let bounds = self.cache.bounds(group as u32).expect("it is there");
            let Bounds { open, needed, draining } = bounds;
            assert_eq!(
                (stats.closed, stats.draining),
                (self.closed(group, open) - draining, draining)
            );
            assert_eq!(needed > open, draining > 0, "{bounds:?}");
            let busy = &self.busy[group][needed as usize..];
            assert!(busy.iter().all(|&fence| fence <= self.passed), "{bounds:?}: {busy:?}");
            for live in &self.live {
                assert!(self.blocks_of(group, live.seq).iter().all(|&block| block < needed));
            }
            let jobs = self.copies.iter().flat_map(|(_, jobs)| jobs).map(|(job, _)| job);
            for job in jobs.filter(|job| job.group as usize == group) {
                assert!(job.from < needed && job.to < needed, "{job:?}: {bounds:?}");
            }
        }
    }

    fn closed(&self, group: usize, open: u32) -> u32 {
        self.groups[group].blocks - open
    }

    fn verify_exports(&self, group: usize, live: &Live) {
        if live.tokens.is_empty() {
            return;
        }
        let gone = live.gone[group];
        let mut csr = Csr::default();
        self.cache.csr(group as u32, &[live.seq], &mut csr).expect("it holds tokens");
        let per_block = self.groups[group].geometry.block_tokens as usize;
        let pages = csr.indices.len();
        let told = self.rows.borrow()[&(group, live.seq)][gone..][..pages].to_vec();
        assert_eq!(csr.indices, told, "group {group}");
        assert_eq!(csr.indptr, [0, pages as i32]);
        let len = (gone + pages) * per_block + csr.last_page_len[0] as usize - per_block;
        assert_eq!(len, live.tokens.len());
        let first = (gone * per_block).min(len);
        let mut slots = vec![0; len - first];
        self.cache.slots(group as u32, live.seq, first as u32, &mut slots).expect("they are there");
        let values = live.values();
        for (slot, (token, value)) in slots.iter().zip(values.iter().enumerate().skip(first)) {
            let block = csr.indices[token / per_block - gone] as usize;
            assert_eq!(*slot as usize, block * per_block + token % per_block);
            assert_eq!(self.device[group][block][token % per_block], *value);
        }
    }
}
