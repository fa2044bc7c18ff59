//! Lengths and their arithmetic: one place for the constants every room shares.
//!
//! Promises that rounding never wraps: the checked forms answer `None`. Cost: none.

/// 1 KiB in bytes.
pub const KIB: usize = 1 << 10;
/// 1 MiB in bytes.
pub const MIB: usize = 1 << 20;
/// 1 GiB in bytes.
pub const GIB: usize = 1 << 30;

/// log2 of [`QUANTUM`].
pub const QUANTUM_SHIFT: u32 = 14;
/// The heap's unit of length and place: 16 KiB.
///
/// 4 KiB and 16 KiB fill a device equally well on real traces, 64 KiB does not; 16 KiB keeps
/// the descriptor table at 0.05 % of the device.
pub const QUANTUM: usize = 1 << QUANTUM_SHIFT;

/// log2 of [`UNIT`].
pub const UNIT_SHIFT: u32 = 8;
/// What every address is aligned to, as `cudaMalloc` guarantees: 256 B.
pub const UNIT: usize = 1 << UNIT_SHIFT;

/// `value` rounded up to a multiple of `to` (a power of two); `None` on overflow.
pub const fn round_up(value: usize, to: usize) -> Option<usize> {
    debug_assert!(to.is_power_of_two());
    match value.checked_add(to - 1) {
        Some(sum) => Some(sum & !(to - 1)),
        None => None,
    }
}

/// `value` rounded down to a multiple of `to` (a power of two).
pub const fn round_down(value: usize, to: usize) -> usize {
    debug_assert!(to.is_power_of_two());
    value & !(to - 1)
}

/// Bytes as people read them, e.g. `"1.50 GiB"`.
pub fn human(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut name = 0;
    while value >= 1024.0 && name + 1 < NAMES.len() {
        value /= 1024.0;
        name += 1;
    }
    if name == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", NAMES[name]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding() {
        assert_eq!(round_up(0, 256), Some(0));
        assert_eq!(round_up(1, 256), Some(256));
        assert_eq!(round_up(256, 256), Some(256));
        assert_eq!(round_up(usize::MAX, 256), None);
        assert_eq!(round_down(511, 256), 256);
    }

    #[test]
    fn human_sizes() {
        assert_eq!(human(12), "12 B");
        assert_eq!(human(1536), "1.50 KiB");
        assert_eq!(human(3 << 30), "3.00 GiB");
    }
}
