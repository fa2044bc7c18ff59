//! What is free, and why it is not usable: the heap's part of the pool's accounts.
//!
//! Changes nothing. Cost: a walk over all free pieces; for reports, not for the hot path.

use super::bins::Bins;
use super::{Counts, Heap, Kind, NIL};
use crate::stream::{LaneId, Lanes};

/// Free backed memory by state, in quanta. The four states are disjoint.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Account {
    /// Waits for a fence.
    pub pending: u64,
    /// Clean, in granules that something else still holds.
    pub trapped: u64,
    /// Clean whole granules.
    pub idle: u64,
    /// The longest row that `lane` could take now.
    pub largest: u32,
}

impl Heap {
    /// Sums up all free pieces; `largest` is for `lane`.
    pub fn account(&self, lanes: &Lanes, lane: LaneId) -> Account {
        let mut sum = Account::default();
        for bins in self.awake_bins() {
            let everyones = std::ptr::eq(bins, &raw const self.bins);
            let largest = sum.largest;
            self.account_runs(bins, &mut sum, lanes, lane);
            if !everyones {
                // A tag's own granules serve that tag alone.
                sum.largest = largest;
            }
        }
        sum
    }

    fn account_runs(&self, bins: &Bins, sum: &mut Account, lanes: &Lanes, lane: LaneId) {
        let granule = self.per_granule;
        bins.visit(&self.nodes, 1, usize::MAX, |head| -> Option<()> {
            let run_end = self.nodes[head].off + self.nodes[head].run;
            let (mut clean_start, mut take_start) = (self.nodes[head].off, self.nodes[head].off);
            let mut piece = head;
            loop {
                let n = &self.nodes[piece];
                let end = n.off + n.len;
                let stamp = self.nodes.stamp(piece);
                if !lanes.passed(stamp) {
                    sum.pending += u64::from(n.len);
                    sum.add_clean(clean_start, n.off, granule);
                    clean_start = end;
                }
                if lanes.takeable(stamp, lane) {
                    sum.largest = sum.largest.max(end - take_start);
                } else {
                    take_start = end;
                }
                if end == run_end {
                    sum.add_clean(clean_start, end, granule);
                    return None;
                }
                piece = n.next;
            }
        });
    }

    /// Free quanta in granules that are not idle: what fragmentation costs now, pending
    /// pieces included. Cost: none.
    pub fn trapped_quanta(&self) -> u64 {
        let Counts { live_quanta, backed_granules, idle_granules, asleep_quanta, .. } = self.counts;
        let held = (backed_granules - idle_granules) * u64::from(self.per_granule);
        held - (live_quanta - asleep_quanta)
    }

    /// Whether a quantum belongs to a block. A walk over all nodes: for error messages.
    pub fn live_at(&self, quantum: u32) -> bool {
        let mut node = self.nodes.first;
        while node != NIL {
            let n = &self.nodes[node];
            if n.off <= quantum && quantum < n.off + n.len {
                return n.kind == Kind::Live;
            }
            node = n.next;
        }
        false
    }

    /// Calls `f` with every live block: node, first quantum, length.
    pub fn each_live(&self, mut f: impl FnMut(super::NodeId, u32, u32)) {
        let mut node = self.nodes.first;
        while node != NIL {
            let n = &self.nodes[node];
            if n.kind == Kind::Live {
                f(node, n.off, n.len);
            }
            node = n.next;
        }
    }

    /// Checks every invariant of the room's page. For tests; panics with what is wrong.
    pub fn check(&self) {
        let mut node = self.nodes.first;
        let mut seen = Counts::default();
        let mut live = vec![0u16; self.live.len()];
        let mut gaps = 0;
        let (mut prev_end, mut prev_kind) = (0, Kind::Wall);
        while node != NIL {
            let n = &self.nodes[node];
            assert_eq!(n.off, prev_end, "nodes cover the space");
            let empty = matches!(n.kind, Kind::Wall | Kind::Border);
            assert_eq!(n.len == 0, empty, "only walls and borders are empty");
            match n.kind {
                Kind::Wall | Kind::Border | Kind::Guard | Kind::Foreign => {}
                Kind::Live => {
                    seen.live_quanta += u64::from(n.len);
                    for q in n.off..n.off + n.len {
                        live[(q / self.per_granule) as usize] += 1;
                    }
                }
                Kind::Free => {
                    if prev_kind != Kind::Free {
                        self.check_run(node);
                    }
                }
                Kind::Gap => {
                    assert!(prev_kind != Kind::Gap, "gaps are merged");
                    assert!(n.off.is_multiple_of(self.per_granule));
                    assert!(n.len.is_multiple_of(self.per_granule));
                    assert_eq!(self.gaps.get(&n.off), Some(&node), "gaps are indexed");
                    gaps += 1;
                }
                Kind::Stranded => {
                    seen.stranded_granules += u64::from(n.len / self.per_granule);
                }
            }
            (prev_end, prev_kind) = (n.off + n.len, n.kind);
            node = n.next;
        }
        assert_eq!(gaps, self.gaps.len());
        assert_eq!(live, self.live, "live quanta a granule");
        assert_eq!(seen.live_quanta, self.counts.live_quanta);
        assert_eq!(seen.stranded_granules, self.counts.stranded_granules);
        self.check_grounds();
    }

    fn check_run(&self, head: u32) {
        let run = self.nodes[head].run;
        let mut piece = head;
        let mut sum = 0;
        while self.nodes[piece].kind == Kind::Free {
            sum += self.nodes[piece].len;
            piece = self.nodes[piece].next;
        }
        assert_eq!(sum, run, "a run's length is the sum of its pieces");
        let bins = self.bins_of(head);
        let found = bins.visit(&self.nodes, run, usize::MAX, |h| (h == head).then_some(()));
        assert!(found.is_some(), "a run is in its bin");
    }
}

impl Account {
    /// A clean stretch: its whole granules are idle, its ends are trapped.
    fn add_clean(&mut self, start: u32, end: u32, granule: u32) {
        if start >= end {
            return;
        }
        let (first, last) = (start.div_ceil(granule), end / granule);
        let idle = u64::from(last.saturating_sub(first)) * u64::from(granule);
        self.idle += idle;
        self.trapped += u64::from(end - start) - idle;
    }
}
