//! Random numbers for tests, from a seed that is printed and can be given again.
//!
//! Owns nothing. Equal seeds give equal numbers, on every machine.
#![allow(dead_code, reason = "each program uses its part")]

/// A seed: `FOREBAY_TEST_SEED` when set, to run a failure again; else `default`.
pub fn seed(default: u64) -> u64 {
    let given = std::env::var("FOREBAY_TEST_SEED").ok();
    let seed = given.map_or(default, |text| text.parse().expect("a number as the seed"));
    println!("seed: FOREBAY_TEST_SEED={seed}");
    seed
}

/// A small generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A size up to `2^log_most`, every doubling from 1 byte equally likely.
    pub fn size_to(&mut self, log_most: u32) -> usize {
        let top = 1usize << self.below(log_most as usize + 1);
        top / 2 + 1 + self.below(top.div_ceil(2))
    }

    /// A size between `least` and `most`, equally likely in every doubling.
    pub fn size_between(&mut self, least: usize, most: usize) -> usize {
        let (low, high) = ((least as f64).ln(), (most as f64).ln());
        let unit = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        (low + unit * (high - low)).exp() as usize
    }
}
