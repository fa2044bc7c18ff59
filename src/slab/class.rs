//! Size classes: multiples of 256 B, four a doubling up to 4 KiB, eight above, to 256 KiB.
//!
//! Owns two tables that the hot path reads: size to class (1 KiB) and class to
//! reciprocal. Promises that `slot_of` divides exactly for every offset inside a slab.

/// Slots end at this many bytes; larger blocks are extents.
pub const SLOT_MAX: usize = 256 << 10;

/// Room for all classes; class 0 is "no class".
pub const CLASSES: usize = 64;

/// How many units of 256 B a slot of each class has; 0 for unused numbers.
const UNITS: ([u16; CLASSES], usize) = build();

/// One past the highest class.
pub const CLASS_END: usize = UNITS.1;

const fn build() -> ([u16; CLASSES], usize) {
    let mut units = [0u16; CLASSES];
    let mut n = 1;
    let mut u = 1u16;
    while u <= 8 {
        // 256 B to 2 KiB in steps of 256 B.
        units[n] = u;
        n += 1;
        u += 1;
    }
    u = 10;
    while u <= 16 {
        // Four a doubling to 4 KiB.
        units[n] = u;
        n += 1;
        u += 2;
    }
    let mut base = 16u16;
    while base < 1024 {
        // Eight a doubling to 256 KiB.
        let mut k = 1;
        while k <= 8 {
            units[n] = base + base / 8 * k;
            n += 1;
            k += 1;
        }
        base *= 2;
    }
    (units, n)
}

/// What the hot path needs to know of a class.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ClassInfo {
    /// ceil(2^31 / units): exact division of offsets below 2^17 units.
    pub magic: u32,
    /// Slot length in units of 256 B; 0 for no class.
    pub units: u32,
}

/// By class.
pub static INFO: [ClassInfo; CLASSES] = {
    let mut table = [ClassInfo { magic: 0, units: 0 }; CLASSES];
    let mut c = 1;
    while c < CLASS_END {
        let units = UNITS.0[c] as u64;
        table[c] = ClassInfo { magic: (1u64 << 31).div_ceil(units) as u32, units: units as u32 };
        c += 1;
    }
    table
};

/// Class by (size - 1) / 256.
pub static BY_SIZE: [u8; 1024] = {
    let mut table = [0u8; 1024];
    let mut c = 1;
    let mut i = 0;
    while i < 1024 {
        while (UNITS.0[c] as usize) < i + 1 {
            c += 1;
        }
        table[i] = c as u8;
        i += 1;
    }
    table
};

/// The class for a size in `1..=SLOT_MAX`.
#[inline]
pub fn class_of(bytes: usize) -> usize {
    debug_assert!((1..=SLOT_MAX).contains(&bytes));
    usize::from(BY_SIZE[(bytes - 1) >> 8])
}

/// The smallest class for `bytes` whose slots all start at multiples of `align` bytes (a
/// power of two, at most a quantum). `None`: no class does; take an extent.
pub fn class_aligned(bytes: usize, align: usize) -> Option<usize> {
    if bytes > SLOT_MAX {
        return None;
    }
    (class_of(bytes)..CLASS_END).find(|&c| slot_bytes(c).is_multiple_of(align))
}

/// Bytes of a slot.
#[inline]
pub fn slot_bytes(class: usize) -> usize {
    (INFO[class].units as usize) << 8
}

/// Slot number of a unit offset inside a slab, and whether the offset is the slot's start.
#[inline(always)]
pub fn slot_of(class: usize, unit: u32) -> (u32, bool) {
    let info = &INFO[class & (CLASSES - 1)];
    let slot = ((u64::from(unit) * u64::from(info.magic)) >> 31) as u32;
    (slot, slot * info.units == unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_as_documented() {
        assert_eq!(CLASS_END, 61);
        assert_eq!(slot_bytes(1), 256);
        assert_eq!(slot_bytes(8), 2048);
        assert_eq!(slot_bytes(12), 4096);
        assert_eq!(slot_bytes(60), SLOT_MAX);
        assert_eq!(class_of(4096), 12);
        assert_eq!(class_of(4097), 13);
        assert_eq!(slot_bytes(13), 4608);
    }

    #[test]
    fn every_size_fits_its_class_and_no_smaller_one() {
        let step = if cfg!(miri) { 640 } else { 64 };
        for bytes in (1..=SLOT_MAX).step_by(step) {
            let c = class_of(bytes);
            assert!(slot_bytes(c) >= bytes);
            assert!(c == 1 || slot_bytes(c - 1) < bytes);
        }
    }

    #[test]
    fn division_is_exact_for_every_offset_in_a_slab() {
        let step = if cfg!(miri) { 97 } else { 1 };
        for class in 1..CLASS_END {
            for unit in (0..8192).step_by(step) {
                let (slot, start) = slot_of(class, unit);
                let units = slot_bytes(class) as u32 >> 8;
                assert_eq!((slot, start), (unit / units, unit.is_multiple_of(units)));
            }
        }
    }

    #[test]
    fn aligned_classes() {
        assert_eq!(slot_bytes(class_aligned(300, 4096).expect("one")), 4096);
        assert_eq!(slot_bytes(class_aligned(5000, 4096).expect("one")), 8192);
        assert_eq!(class_aligned(SLOT_MAX + 1, 256), None);
    }
}
