//! Ever lower packings: which keys the skyline is packed by.
//!
//! A key is `length * ln(cliques) + size * ln(bytes) + bonus + noise`. Seven fixed pairs come
//! first; most instances are done with them. Then every third packing takes a fresh pair at random,
//! the others start from the best so far and give a bonus to each buffer that ended above the bound
//! ("squeaky wheel optimisation", Joslin and Clements, 1999). Owns the best packing found.
//! Promises the same packings for the same random numbers. Cost: a packing, and a sort of n keys.

use super::prepare::Part;
use super::random::Random;
use super::skyline::Packer;

/// Weights of length and size that come first, the best on real instances first.
const FIXED: [(f64, f64); 7] =
    [(1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (0.5, 1.0), (0.0, 1.0), (1.0, 0.2), (1.0, -0.2)];

/// A packing worth keeping.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// Its highest end, in bytes.
    pub(super) height: u64,
    /// An offset for each item of the part.
    pub(super) offsets: Vec<u64>,
}

/// Packs a part by one key after the other.
#[derive(Clone, Debug)]
pub(super) struct Minimiser<'p> {
    part: &'p Part,
    bound: u64,
    packer: Packer<'p>,
    /// Logarithms of length and size.
    logs: Vec<(f64, f64)>,
    keys: Vec<f64>,
    order: Vec<u32>,
    tried: usize,
    bonus: Vec<f64>,
    best: Option<Packed>,
    best_weights: (f64, f64),
    best_bonus: Vec<f64>,
}

impl<'p> Minimiser<'p> {
    /// A minimiser for `part`, whose height is at least `bound`.
    pub(super) fn new(part: &'p Part, bound: u64) -> Minimiser<'p> {
        let n = part.items.len();
        let log = |x: f64| x.ln();
        let logs = part.items.iter();
        Minimiser {
            part,
            bound,
            packer: Packer::new(part),
            logs: logs.map(|i| (log(f64::from(i.end - i.first)), log(i.size as f64))).collect(),
            keys: vec![0.0; n],
            order: Vec::with_capacity(n),
            tried: 0,
            bonus: vec![0.0; n],
            best: None,
            best_weights: FIXED[0],
            best_bonus: vec![0.0; n],
        }
    }

    /// How many items there are.
    pub(super) fn len(&self) -> usize {
        self.part.items.len()
    }

    /// The best packing so far.
    pub(super) fn best(&self) -> Option<&Packed> {
        self.best.as_ref()
    }

    /// Takes a packing that was found elsewhere, if it is better.
    pub(super) fn offer(&mut self, packed: Packed) {
        if self.best.as_ref().is_none_or(|best| packed.height < best.height) {
            self.best = Some(packed);
        }
    }

    /// The height of a packing found elsewhere.
    pub(super) fn height_of(&self, offsets: &[u64]) -> u64 {
        let tops = offsets.iter().zip(&self.part.items).map(|(at, item)| at + item.size);
        tops.max().unwrap_or(0)
    }

    /// Effort so far.
    pub(super) fn effort(&self) -> u64 {
        self.packer.effort()
    }

    /// Whether all fixed pairs have been tried: until then no random number is drawn.
    pub(super) fn warmed_up(&self) -> bool {
        self.tried >= FIXED.len()
    }

    /// Packs once more; whether that gave a lower packing.
    pub(super) fn turn(&mut self, random: &mut Random) -> bool {
        let weights = self.next_keys(random);
        let keys = &self.keys;
        let items = &self.part.items;
        self.order.clear();
        self.order.extend(0..items.len() as u32);
        self.order.sort_unstable_by(|&a, &b| {
            let (x, y) = (a as usize, b as usize);
            keys[x].total_cmp(&keys[y]).then(items[x].size.cmp(&items[y].size)).then(b.cmp(&a))
        });
        self.tried += 1;
        let give_up = self.best.as_ref().map_or(u64::MAX, |best| best.height);
        let Some(height) = self.packer.pack(&self.order, give_up) else {
            return false;
        };
        self.best = Some(Packed { height, offsets: self.packer.offsets().to_vec() });
        self.best_weights = weights;
        self.best_bonus.copy_from_slice(&self.bonus);
        true
    }

    /// Writes the next keys; the weights of length and size that they have.
    fn next_keys(&mut self, random: &mut Random) -> (f64, f64) {
        if let Some(&(length, size)) = FIXED.get(self.tried) {
            for (key, logs) in self.keys.iter_mut().zip(&self.logs) {
                *key = length * logs.0 + size * logs.1;
            }
            return (length, size);
        }
        let fresh = random.bits().is_multiple_of(3);
        let (weights, noise) = if fresh {
            self.bonus.fill(0.0);
            ((1.0, random.between(-0.2, 1.0)), random.pick([0.0, 0.05, 0.3]))
        } else {
            self.blame(random);
            (self.best_weights, random.pick([0.0, 0.02, 0.1]))
        };
        let parts = self.keys.iter_mut().zip(&self.logs).zip(&self.bonus);
        for ((key, logs), bonus) in parts {
            *key = weights.0 * logs.0 + weights.1 * logs.1 + bonus + noise * random.unit();
        }
        weights
    }

    /// A bonus for each buffer that the best packing has above the bound.
    fn blame(&mut self, random: &mut Random) {
        self.bonus.copy_from_slice(&self.best_bonus);
        let Some(best) = &self.best else {
            return;
        };
        for ((bonus, offset), item) in
            self.bonus.iter_mut().zip(&best.offsets).zip(&self.part.items)
        {
            if offset + item.size > self.bound {
                *bonus += random.between(0.2, 0.8);
            }
        }
    }
}
