//! What the search knows of a part before it starts.
//!
//! Lengths become 32-bit multiples of one unit: the greatest that divides all sizes and fixed
//! offsets and is a multiple of, or divides, every alignment. Where the capacities asked for are
//! multiples of the shared alignment, sizes are rounded up to it first: no plan under such a
//! capacity is lost, and bounds get sharper. Owns nothing that changes. Cost: O(n^2) time and
//! memory for the lists of who lives beside whom.

use super::super::align_up;
use super::super::bounds::grain;
use super::super::prepare::{FREE, Part};
use super::BUFFERS_MAX;
use super::set::{BITS, Set};

/// A length, in units.
pub(super) type Len = u32;
/// No job, no clique, no offset.
pub(super) const NONE: u32 = u32::MAX;
/// Lengths stay below this, so that two add up without overflow.
const LEN_MAX: u64 = 1 << 30;

/// A buffer, as the search sees it.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) first: u32,
    pub(super) end: u32,
    pub(super) size: Len,
    /// A power of two, 1 where the unit sees to it.
    pub(super) align: Len,
    /// The fixed offset, or [`NONE`].
    pub(super) fixed: Len,
    /// Its cliques.
    pub(super) range: Set,
    /// Those that live at one moment with it.
    pub(super) rivals: Vec<u32>,
    /// One of the same range, size and alignment that goes below it, or [`NONE`].
    pub(super) twin: u32,
}

impl Job {
    /// The lowest offset at or above `at` that is aligned.
    #[inline]
    pub(super) fn align(&self, at: Len) -> Len {
        (at + self.align - 1) & !(self.align - 1)
    }
}

/// A part, as the search sees it.
#[derive(Clone, Debug)]
pub(in super::super) struct Jobs {
    pub(super) jobs: Vec<Job>,
    /// The jobs of each clique.
    pub(super) members: Vec<Vec<u32>>,
    /// The sum of sizes of each clique.
    pub(super) loads: Vec<u64>,
    /// Cliques that share a bit of a set: 2 to this power.
    shift: u32,
    unit: u64,
    /// The most bytes that rounding added to a size.
    slack: u64,
}

impl Jobs {
    /// Reads a part for searches under capacities up to `capacity_max` bytes; `rounded` says
    /// that all of them are multiples of the shared alignment. Nothing when the part is beyond
    /// what the search is for: too many buffers, or lengths of too many units.
    pub(in super::super) fn new(part: &Part, capacity_max: u64, rounded: bool) -> Option<Jobs> {
        let n = part.items.len();
        if n == 0 || n > BUFFERS_MAX {
            return None;
        }
        let g = if rounded { grain(part) } else { 1 };
        let sizes: Vec<u64> = part.items.iter().map(|i| align_up(i.size, g)).collect();
        let unit = unit(part, &sizes);
        let top = (capacity_max / unit).max(sizes.iter().max().map_or(0, |s| s / unit));
        if top >= LEN_MAX {
            return None;
        }
        // An alignment above every capacity leaves offset 0 only; so does this one.
        let align_max = (top + 1).next_power_of_two();
        let fixed_max = part.fixed.last().map_or(0, |&f| part.items[f as usize].fixed / unit);
        if fixed_max > top {
            return None;
        }
        let cliques = part.cliques;
        let shift = (0..).find(|s| (cliques - 1) >> s < BITS)?;
        let mut jobs: Vec<Job> = Vec::with_capacity(n);
        let mut members = vec![Vec::new(); cliques as usize];
        let mut loads = vec![0; cliques as usize];
        for ((item, size), job) in part.items.iter().zip(&sizes).zip(0u32..) {
            for s in item.first..item.end {
                members[s as usize].push(job);
                loads[s as usize] += size / unit;
            }
            jobs.push(Job {
                first: item.first,
                end: item.end,
                size: (size / unit) as Len,
                align: (item.align / unit).clamp(1, align_max) as Len,
                fixed: if item.fixed == FREE { NONE } else { (item.fixed / unit) as Len },
                range: Set::span(item.first >> shift, (item.end - 1) >> shift),
                rivals: Vec::new(),
                twin: NONE,
            });
        }
        let added = part.items.iter().zip(&sizes).map(|(item, size)| size - item.size);
        let slack = added.max().unwrap_or(0);
        let mut all = Jobs { jobs, members, loads, shift, unit, slack };
        all.pair_up();
        Some(all)
    }

    fn pair_up(&mut self) {
        for i in 0..self.jobs.len() {
            for j in 0..i {
                let (a, b) = (&self.jobs[j], &self.jobs[i]);
                if a.first >= b.end || b.first >= a.end {
                    continue;
                }
                let same = |x: &Job| (x.first, x.end, x.size, x.align, x.fixed);
                let twins = same(a) == same(b) && a.fixed == NONE;
                self.jobs[i].rivals.push(j as u32);
                self.jobs[j].rivals.push(i as u32);
                if twins {
                    // The nearest of the lower numbers: twins form a chain.
                    self.jobs[i].twin = j as u32;
                }
            }
        }
    }

    /// The least height of a plan, given that none takes `excluded` bytes or less.
    pub(in super::super) fn next_height(&self, excluded: u64) -> u64 {
        let next = (excluded / self.unit + 1) * self.unit;
        next.saturating_sub(self.slack).max(excluded + 1)
    }

    /// A capacity in units; whole units only.
    pub(super) fn capacity(&self, bytes: u64) -> Len {
        (bytes / self.unit).min(LEN_MAX) as Len
    }

    /// An offset in bytes.
    pub(super) fn bytes(&self, at: Len) -> u64 {
        u64::from(at) * self.unit
    }

    /// The set of one clique.
    #[inline]
    pub(super) fn one(&self, clique: u32) -> Set {
        Set::one(clique >> self.shift)
    }
}

/// The unit of length.
fn unit(part: &Part, sizes: &[u64]) -> u64 {
    let fixed = part.fixed.iter().map(|&f| part.items[f as usize].fixed);
    let shared = sizes.iter().copied().chain(fixed).fold(0, gcd);
    let two = 1u64 << shared.trailing_zeros();
    let align_max = part.items.iter().map(|i| i.align).max().unwrap_or(1);
    // An alignment that does not divide the unit must be a multiple of it.
    if align_max > two { two } else { shared }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::super::super::Buffer;
    use super::super::super::prepare::prepare;
    use super::*;

    fn jobs(list: &[(u64, u64)], capacity: u64, rounded: bool) -> Option<Jobs> {
        let buffers: Vec<Buffer> = (0..)
            .zip(list)
            .map(|(id, &(size, alignment))| Buffer { alignment, ..Buffer::new(id, 0, 2, size) })
            .collect();
        Jobs::new(&prepare(&buffers)[0], capacity, rounded)
    }

    #[test]
    fn the_unit_divides_everything_that_matters() {
        let plain = jobs(&[(96, 1), (48, 16)], 480, true).expect("small");
        assert_eq!((plain.unit, plain.jobs[0].size, plain.capacity(500)), (48, 2, 10));
        let aligned = jobs(&[(96, 1), (48, 64)], 480, true).expect("small");
        assert_eq!((aligned.unit, aligned.jobs[1].align), (16, 4));
        let rounded = jobs(&[(100, 64), (60, 64)], 640, true).expect("small");
        assert_eq!((rounded.unit, rounded.jobs[0].size), (64, 2));
        let exact = jobs(&[(100, 64), (60, 64)], 650, false).expect("small");
        assert_eq!((exact.unit, exact.jobs[0].size, exact.jobs[0].align), (4, 25, 16));
        let huge = jobs(&[(100, 1 << 40), (60, 1)], 200, false).expect("small");
        assert_eq!(huge.jobs[0].align(1), 64);
        assert!(jobs(&[(3, 1), (1 << 40, 1)], 1 << 41, true).is_none());
    }

    #[test]
    fn twins_form_a_chain() {
        let twins = jobs(&[(8, 1), (4, 1), (8, 1), (8, 1)], 100, true).expect("small");
        let before: Vec<u32> = twins.jobs.iter().map(|j| j.twin).collect();
        assert_eq!(before, [NONE, NONE, 0, 2]);
    }
}
