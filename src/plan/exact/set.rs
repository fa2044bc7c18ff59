//! A set of cliques in 256 bits, for the reasons of bounds and failures.
//!
//! With more cliques than bits, neighbours share a bit: reasons then name more than is to blame,
//! which is safe and jumps back less far. Cost: four words an operation.

/// Bits of a set.
pub(super) const BITS: u32 = 256;

/// A set of cliques.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Set([u64; 4]);

impl Set {
    /// The set of the one bit.
    #[inline]
    pub(super) fn one(bit: u32) -> Set {
        let mut set = Set::default();
        set.0[bit as usize / 64] = 1 << (bit % 64);
        set
    }

    /// All bits from `first` up to, and with, `last`.
    pub(super) fn span(first: u32, last: u32) -> Set {
        (first..=last).fold(Set::default(), |set, bit| set | Set::one(bit))
    }

    /// Whether the two have a bit in common.
    #[inline]
    pub(super) fn meets(&self, other: &Set) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }
}

impl std::ops::BitOr for Set {
    type Output = Set;

    #[inline]
    fn bitor(mut self, other: Set) -> Set {
        self |= other;
        self
    }
}

impl std::ops::BitOrAssign for Set {
    #[inline]
    fn bitor_assign(&mut self, other: Set) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_meet_where_they_share_a_bit() {
        let a = Set::span(60, 130);
        assert!(a.meets(&Set::one(60)) && a.meets(&Set::one(130)) && a.meets(&Set::one(64)));
        assert!(!a.meets(&Set::one(59)) && !a.meets(&Set::one(131)));
        assert!((Set::one(255) | a).meets(&Set::span(200, 255)));
        assert!(!Set::default().meets(&Set::span(0, 255)));
    }
}
