//! Which fences of a step its plan needs: those that order reuse of bytes.
//!
//! A program records fences for what it wants ordered; a step by the plan issues one again only
//! where buffers that share bytes are kept apart by it. A **need** is: all work of one lane up to a
//! time comes before the work of another from a time on. A **chain** meets it: fences in their
//! order, from the one lane to the other, the first at or after the one time and the last at or
//! before the other. For each two buffers that share bytes, all work on the first comes before
//! all work on the second: on the buffers' own lanes from birth to death, and on each lane
//! that a told fence binds to a buffer's life, as [`Work`] has it.
//!
//! Needs are looked at in the order of the times that they begin at. One that the fences chosen so
//! far do not meet gets the chain that adds the fewest, of these the latest; between two lanes,
//! where a chain is one fence, no choice is smaller. With more lanes each fence goes at last that
//! the others make superfluous, and what a transitive reduction of all that is ordered leaves is
//! taken if it is less. Promises that all needs are met, which is looked at once more by another
//! way.
//!
//! A buffer that other lanes were told to use, or that is freed on another one, has work on lanes
//! that no fence bounds: a step with such a buffer keeps all its fences. So does one with a buffer
//! that outlives it, since nobody knows on which lane that ends, and one that says so itself: what
//! was freed in it without being born in it relies on fences too.
//!
//! Owns nothing. Cost: O(n log n) and the pairs that share bytes, of which [`PAIRS_MAX`] are looked
//! at, each lane that works on the first counted; with three lanes or more a look at the fences
//! between the two times for a need, [`LOOKS_MAX`] in all: beyond either, all are kept. Where
//! to drop superfluous ones would take more looks than that, they stay.

use super::recording::{Fence, NEVER, Recorded, Recording};
use super::work::Work;
use std::collections::BTreeMap;

/// How many fences are looked at to choose some, and to drop some of these.
const LOOKS_MAX: usize = 1 << 26;
/// How many pairs of buffers that share bytes are looked at: some tenths of a second.
const PAIRS_MAX: usize = 1 << 23;

/// Work of lane `from` up to `death` comes before that of lane `to` from `birth` on: the death of a
/// buffer and the birth of another, or where work on them ends and begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Need {
    birth: u64,
    death: u64,
    from: u16,
    to: u16,
}

impl Recording {
    /// For each fence whether a step by the plan needs it. `offsets` are the plan's, by place;
    /// [`u64::MAX`] for a buffer that is not planned. The plan's order has been checked.
    pub fn needed_fences(&self, offsets: &[u64]) -> Vec<bool> {
        debug_assert_eq!(offsets.len(), self.births.len());
        if self.lanes < 2 || self.fences.is_empty() || self.keeps_fences || self.strays() {
            return self.all();
        }
        self.fewest(offsets, PAIRS_MAX)
    }

    /// For each buffer whether fences bind work of other lanes to its life, which may use it
    /// although no use was told.
    pub fn untold_work(&self) -> Vec<bool> {
        if self.lanes < 2 || self.fences.is_empty() {
            // Nothing is bound to a life by a fence; what uses tell is asked elsewhere.
            return vec![false; self.births.len()];
        }
        let work = Work::new(self);
        (0..self.births.len()).map(|at| work.is_untold(at)).collect()
    }

    fn all(&self) -> Vec<bool> {
        self.fences.iter().map(|f| f.from != f.to).collect()
    }

    /// Whether work on a buffer may be on another lane than that of its birth.
    fn strays(&self) -> bool {
        let home = |at: u32| self.births[at as usize].lane;
        self.births.iter().any(|b| b.end_lane != b.lane || b.death == NEVER)
            || self.uses.iter().any(|&(at, lane)| lane != home(at))
    }

    /// The fences that meet the needs; all, where more than `most` pairs share bytes or the choice
    /// would take too long.
    fn fewest(&self, offsets: &[u64], most: usize) -> Vec<bool> {
        let all = || self.all();
        let Some(needs) = self.needs(offsets, most) else { return all() };
        let Some(mut chosen) = self.choose(&needs) else { return all() };
        if self.lanes > 2 && self.prune(&needs, &mut chosen) {
            // The other way round: from a reduction of all that is ordered.
            let mut reduced = all();
            let mut ordered = self.ordered();
            ordered.extend(&needs);
            ordered.sort_by_key(|need| need.birth);
            let pruned = self.prune(&ordered, &mut reduced);
            let pruned = pruned && self.prune(&needs, &mut reduced);
            if pruned && count(&reduced) < count(&chosen) {
                chosen = reduced;
            }
        }
        // A step without one of its fences would corrupt: one too many costs a microsecond.
        if self.met(&needs, &chosen) { chosen } else { all() }
    }

    /// The needs of a plan, in the order of the times that they begin at; of one such time and two
    /// lanes the latest. None: more than `most` pairs share bytes.
    fn needs(&self, offsets: &[u64], most: usize) -> Option<Vec<Need>> {
        let work = Work::new(self);
        let mut placed: Vec<(u64, u64, u32)> = (0u32..)
            .zip(self.births.iter().zip(offsets))
            .filter(|(_, (b, offset))| b.death != NEVER && **offset != u64::MAX)
            .map(|(i, (b, offset))| (*offset, *offset + b.size, i))
            .collect();
        placed.sort_unstable();
        // Up to when each lane works on the bytes of a buffer before that has them.
        let mut latest: BTreeMap<(u32, u16), u64> = BTreeMap::new();
        let mut pairs = 0;
        for (i, &(_, end, a)) in placed.iter().enumerate() {
            for &(_, _, b) in placed[i + 1..].iter().take_while(|next| next.0 < end) {
                let (first, then) = (a.min(b), a.max(b));
                let ends = &work.ends[first as usize];
                pairs += ends.len();
                if pairs > most {
                    return None;
                }
                for &(from, until) in ends {
                    let known = latest.entry((then, from)).or_default();
                    *known = until.max(*known);
                }
            }
        }
        let mut needs: BTreeMap<(u64, u16, u16), u64> = BTreeMap::new();
        // A step issues no fence behind its last birth.
        let last = self.births.last().map_or(0, |b| b.birth);
        let mut pairs = 0;
        for (&(then, from), &until) in &latest {
            let begins = work.begins[then as usize].iter();
            pairs += begins.len();
            if pairs > most {
                return None;
            }
            let begins = begins.filter(|(lane, since)| *lane != from && *since <= last);
            for &(to, since) in begins {
                let known = needs.entry((since, to, from)).or_default();
                *known = until.max(*known);
            }
        }
        let need = |((birth, to, from), death)| Need { birth, death, from, to };
        Some(needs.into_iter().map(need).collect())
    }

    /// Fences that meet all needs; nothing where that takes too long to find.
    fn choose(&self, needs: &[Need]) -> Option<Vec<bool>> {
        let lanes = usize::from(self.lanes);
        let pair = |from: u16, to: u16| usize::from(from) * lanes + usize::from(to);
        let mut direct: Vec<Vec<u32>> = vec![Vec::new(); lanes * lanes];
        for (f, i) in self.fences.iter().zip(0u32..) {
            direct[pair(f.from, f.to)].push(i);
        }
        let mut chosen = vec![false; self.fences.len()];
        // The latest fence chosen from lane to lane, as its time.
        let mut last = vec![0u64; lanes * lanes];
        let mut looks = 0;
        for need in needs {
            if last[pair(need.from, need.to)] >= need.death {
                continue;
            }
            let chain = if lanes == 2 {
                let list = &direct[pair(need.from, need.to)];
                let past = list.partition_point(|&i| self.fences[i as usize].time <= need.birth);
                vec![list[past.checked_sub(1)?] as usize]
            } else {
                self.chain(*need, &chosen, &mut looks)?
            };
            for i in chain {
                let Fence { time, from, to } = self.fences[i];
                chosen[i] = true;
                let time = time.max(last[pair(from, to)]);
                last[pair(from, to)] = time;
            }
        }
        Some(chosen)
    }

    /// The chain that meets a need with the fewest fences that are not chosen yet.
    fn chain(&self, need: Need, chosen: &[bool], looks: &mut usize) -> Option<Vec<usize>> {
        const NO_WAY: u32 = u32::MAX;
        let first = self.fences.partition_point(|f| f.time < need.death);
        let past = self.fences.partition_point(|f| f.time <= need.birth);
        *looks += past.saturating_sub(first);
        if *looks > LOOKS_MAX {
            return None;
        }
        // For each lane: how many more fences, and the chain's last one with the link before.
        let mut best = vec![(NO_WAY, usize::MAX); usize::from(self.lanes)];
        best[usize::from(need.from)].0 = 0;
        let mut links: Vec<(usize, usize)> = Vec::new();
        let some = self.fences.iter().zip(chosen).enumerate().take(past).skip(first);
        for (i, (&Fence { from, to, .. }, chosen)) in some {
            let (cost, link) = best[usize::from(from)];
            let there = best[usize::from(to)].0;
            if from == to || to == need.from || cost == NO_WAY {
                continue;
            }
            let cost = cost + u32::from(!chosen);
            if cost <= there {
                best[usize::from(to)] = (cost, links.len());
                links.push((i, link));
            }
        }
        let mut at = best[usize::from(need.to)].1;
        let mut found = Vec::new();
        while let Some(&(i, before)) = links.get(at) {
            found.push(i);
            at = before;
        }
        Some(found).filter(|chain| !chain.is_empty())
    }

    /// Drops each chosen fence, the earliest first, without which all needs are met. False: that
    /// would take too long, and nothing has changed.
    fn prune(&self, needs: &[Need], chosen: &mut [bool]) -> bool {
        let some: Vec<usize> = (0..chosen.len()).filter(|&i| chosen[i]).collect();
        let each = self.fences.len() + some.len() * usize::from(self.lanes) + needs.len();
        if some.len().saturating_mul(each) > LOOKS_MAX {
            return false;
        }
        for i in some {
            chosen[i] = false;
            chosen[i] = !self.met(needs, chosen);
        }
        true
    }

    /// Whether the chosen fences meet all needs.
    fn met(&self, needs: &[Need], chosen: &[bool]) -> bool {
        let mut seen = Seen::new(self.lanes);
        let mut fences = self.fences.iter().zip(chosen).filter(|(_, chosen)| **chosen).peekable();
        needs.iter().all(|need| {
            while let Some((fence, _)) = fences.next_if(|(f, _)| f.time <= need.birth) {
                seen.wait(fence);
            }
            seen.up_to(need.to, need.from) >= need.death
        })
    }

    /// All that the recorded fences order, bytes shared or not, as needs.
    fn ordered(&self) -> Vec<Need> {
        let mut deaths: Vec<Vec<u64>> = vec![Vec::new(); usize::from(self.lanes)];
        let dying = |b: &&Recorded| b.death != NEVER;
        for b in self.births.iter().filter(dying) {
            deaths[usize::from(b.end_lane)].push(b.death);
        }
        for &(at, lane) in &self.uses {
            let death = self.births[at as usize].death;
            deaths[usize::from(lane)].extend(Some(death).filter(|death| *death != NEVER));
        }
        deaths.iter_mut().for_each(|list| list.sort_unstable());
        let mut seen = Seen::new(self.lanes);
        let mut fences = self.fences.iter().peekable();
        let mut needs = Vec::new();
        for b in &self.births {
            while let Some(fence) = fences.next_if(|f| f.time <= b.birth) {
                seen.wait(fence);
            }
            for (from, list) in (0..self.lanes).zip(&deaths).filter(|(from, _)| *from != b.lane) {
                let behind = list.partition_point(|death| *death <= seen.up_to(b.lane, from));
                if let Some(&death) = list[..behind].last() {
                    needs.push(Need { birth: b.birth, death, from, to: b.lane });
                }
            }
        }
        needs
    }
}

fn count(chosen: &[bool]) -> usize {
    chosen.iter().filter(|chosen| **chosen).count()
}

/// Up to when each lane has waited for each other one, fence by fence.
pub(super) struct Seen {
    lanes: usize,
    times: Vec<u64>,
}

impl Seen {
    pub(super) fn new(lanes: u16) -> Seen {
        let lanes = usize::from(lanes);
        Seen { lanes, times: vec![0; lanes * lanes] }
    }

    /// A wait takes in what the lane waited for had waited for.
    pub(super) fn wait(&mut self, fence: &Fence) {
        let (from, to) = (usize::from(fence.from), usize::from(fence.to));
        for lane in 0..self.lanes {
            let waited = self.times[from * self.lanes + lane];
            let own = &mut self.times[to * self.lanes + lane];
            *own = waited.max(*own);
        }
        let own = &mut self.times[to * self.lanes + from];
        *own = fence.time.max(*own);
    }

    pub(super) fn up_to(&self, lane: u16, other: u16) -> u64 {
        self.times[usize::from(lane) * self.lanes + usize::from(other)]
    }
}

#[cfg(test)]
mod tests;
