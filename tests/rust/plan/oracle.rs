//! Slow answers that are right by inspection, and random instances.

use crate::random::Random;
use forebay::plan::Buffer;

/// Whether `offsets` are a plan: all pairs, every promise.
pub fn is_plan(buffers: &[Buffer], offsets: &[u64]) -> bool {
    let one = |b: &Buffer, at: u64| {
        at.is_multiple_of(b.alignment) && b.fixed.is_none_or(|fixed| fixed == at)
    };
    buffers.len() == offsets.len()
        && buffers.iter().zip(offsets).all(|(b, at)| one(b, *at))
        && (0..buffers.len()).all(|i| (0..i).all(|j| apart(buffers, offsets, i, j)))
}

fn apart(buffers: &[Buffer], offsets: &[u64], i: usize, j: usize) -> bool {
    let (a, b) = (&buffers[i], &buffers[j]);
    let in_time = a.death <= b.birth || b.death <= a.birth;
    in_time || offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i]
}

/// The highest end.
pub fn height(buffers: &[Buffer], offsets: &[u64]) -> u64 {
    buffers.iter().zip(offsets).map(|(b, at)| at + b.size).max().unwrap_or(0)
}

/// Whether any offsets at all fit under `capacity`: tries every one of every buffer.
pub fn fits(buffers: &[Buffer], capacity: u64) -> bool {
    fn place(buffers: &[Buffer], offsets: &mut Vec<u64>, capacity: u64) -> bool {
        let i = offsets.len();
        let Some(b) = buffers.get(i) else {
            return true;
        };
        let mut at = 0;
        while at + b.size <= capacity {
            offsets.push(at);
            let good = b.fixed.is_none_or(|fixed| fixed == at)
                && (0..i).all(|j| apart(buffers, offsets, i, j));
            if good && place(buffers, offsets, capacity) {
                return true;
            }
            offsets.pop();
            at += b.alignment;
        }
        false
    }
    place(buffers, &mut Vec::new(), capacity)
}

/// As [`fits`], for a few more buffers: places them from the bottom up in every order, each on top
/// of what is below it. Every solution that cannot be pushed down arises so.
pub fn fits_in_some_order(buffers: &[Buffer], capacity: u64) -> bool {
    fn next(buffers: &[Buffer], offsets: &mut [Option<u64>], from: u64, capacity: u64) -> bool {
        let mut left = false;
        for i in 0..buffers.len() {
            if offsets[i].is_some() {
                continue;
            }
            left = true;
            let b = &buffers[i];
            let under = (0..buffers.len()).filter(|j| buffers[*j].meets(b));
            let tops = under.filter_map(|j| Some(offsets[j]? + buffers[j].size));
            let top = tops.max().unwrap_or(0);
            let at = b.fixed.unwrap_or(top.next_multiple_of(b.alignment));
            if at < top || at < from || at + b.size > capacity {
                continue;
            }
            offsets[i] = Some(at);
            if next(buffers, offsets, at, capacity) {
                return true;
            }
            offsets[i] = None;
        }
        !left
    }
    next(buffers, &mut vec![None; buffers.len()], 0, capacity)
}

/// How random buffers look.
#[derive(Clone, Copy)]
pub struct Look {
    /// How many.
    pub count: usize,
    /// Births lie below this.
    pub times: usize,
    /// Sizes are 1 up to this.
    pub size_max: usize,
    /// Alignments are powers of two up to 2 to this power.
    pub align_power: usize,
    /// One in so many has a fixed offset below `fixed_max`; 0 for none.
    pub fixed_one_in: usize,
    /// See `fixed_one_in`.
    pub fixed_max: usize,
}

/// Random buffers; those with fixed offsets leave each other alone.
pub fn buffers(rng: &mut Random, look: Look) -> Vec<Buffer> {
    let mut all: Vec<Buffer> = Vec::new();
    for id in 0..look.count as u64 {
        let birth = rng.below(look.times) as u64;
        let death = birth + 1 + rng.below(look.times) as u64;
        let mut b = Buffer::new(id, birth, death, 1 + rng.below(look.size_max) as u64);
        b.alignment = 1 << rng.below(look.align_power + 1);
        if look.fixed_one_in > 0 && rng.one_in(look.fixed_one_in) {
            let at = rng.below(look.fixed_max) as u64 / b.alignment * b.alignment;
            let clear = |o: &Buffer| {
                let free = |from: u64| at + b.size <= from || from + o.size <= at;
                !o.meets(&b) || o.fixed.is_none_or(free)
            };
            b.fixed = all.iter().all(clear).then_some(at);
        }
        all.push(b);
    }
    all
}
