//! The planner's random numbers: reproducible from a seed, the same on every machine.
//!
//! Owns one word of state. Must not be used where an adversary matters. Cost: about 1 ns.

/// A generator: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The generator number `stream` of `seed`; any two streams differ.
    pub(super) fn new(seed: u64, stream: u64) -> Random {
        let mut first = Random(seed);
        let start = first.bits();
        Random(start ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in [low, high).
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// One of the values.
    pub(super) fn pick<T: Copy, const N: usize>(&mut self, values: [T; N]) -> T {
        values[(self.bits() % N as u64) as usize]
    }
}
