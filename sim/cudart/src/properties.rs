//! The structure of all that is known of a device, in the layouts of CUDA 12 and CUDA 13.
//!
//! One table lists the fields in order; places follow from their sizes, as a C compiler lays them
//! out. Every value is an attribute that the driver answers; what it does not know is 0.

use crate::driver::{self, Driver};
use crate::entry::{export, place};
use crate::state;
use crate::types::*;
use std::ffi::c_void;

/// What a field holds.
#[derive(Clone, Copy)]
enum Field {
    /// The name, 256 bytes.
    Name,
    /// The identity, 16 bytes.
    Uuid,
    /// That many bytes of 0.
    Bytes(usize),
    /// All memory, in eight bytes.
    Total,
    /// An attribute in four bytes.
    Int(u32),
    /// An attribute in eight bytes.
    Size(u32),
    /// An attribute in four bytes, of CUDA 12 only.
    Int12(u32),
    /// An attribute in four bytes, of CUDA 13 only.
    Int13(u32),
    /// That many words of 0, of CUDA 12.
    Rest12(usize),
    /// That many words of 0, of CUDA 13.
    Rest13(usize),
}
use Field::{Bytes, Int, Int12, Int13, Name, Rest12, Rest13, Size, Total, Uuid};

/// The fields, by the driver's attributes.
#[rustfmt::skip]
const FIELDS: &[Field] = &[
    Name, Uuid, Bytes(8), Bytes(4), Total,
    Size(8), Int(12), Int(10), Size(11), Int(1),
    Int(2), Int(3), Int(4), Int(5), Int(6), Int(7),
    Int12(13), Size(9), Int(75), Int(76), Size(14), Size(51),
    Int12(15), Int(16), Int12(17), Int(18), Int(19), Int12(20),
    Int(21), Int(77), Int12(69), Int(22), Int(23), Int(73), Int(74),
    Int(70), Int(71), Int(72), Int(45), Int(46), Int(24), Int(25), Int(26),
    Int(47), Int(48), Int(49), Int(52), Int(42), Int(43), Int(27), Int(28), Int(29),
    Int(53), Int(54), Int(55), Int(56), Int(57), Int(58), Int(59), Int(60),
    Int(61), Int(62), Int(63), Int(64), Int(65), Int(66), Int(67), Int(68),
    Size(30), Int(31), Int(32), Int(33), Int(34), Int(50), Int(35), Int(40), Int(41),
    Int12(36), Int(37), Int(38), Int(108), Int(39), Int(78), Int(79), Int(80),
    Size(81), Int(82), Int(83), Int(84), Int(85), Int(86), Int12(87),
    Int(88), Int(89), Int(90), Int(91), Int(95), Int12(96), Size(97),
    Int(100), Int(101), Int(106), Int(109), Size(111), Int(99), Int(112), Int(113), Int(114),
    Int(115), Int(116), Int(117), Int(118), Int(119), Int(121), Int(125), Int(120), Int(129),
    Int13(130), Int13(131), Int13(133), Int13(134), Int13(139), Int13(140), Int13(143),
    Rest12(63), Rest13(56),
];

/// A field's width and alignment; nothing where this layout lacks it.
fn shape(field: Field, is_13: bool) -> Option<(usize, usize)> {
    match field {
        Name => Some((256, 1)),
        Uuid => Some((16, 1)),
        // The device's mask, after the eight bytes before it, is a number.
        Bytes(width) => Some((width, if width == 4 { 4 } else { 1 })),
        Total | Size(_) => Some((8, 8)),
        Int(_) => Some((4, 4)),
        Int12(_) => (!is_13).then_some((4, 4)),
        Int13(_) => is_13.then_some((4, 4)),
        Rest12(words) => (!is_13).then_some((4 * words, 4)),
        Rest13(words) => is_13.then_some((4 * words, 4)),
    }
}

/// Each field of a layout with its place and width; the whole structure's size.
fn layout(is_13: bool) -> (Vec<(Field, usize, usize)>, usize) {
    let mut fields = Vec::with_capacity(FIELDS.len());
    let mut at = 0usize;
    for field in FIELDS {
        if let Some((width, alignment)) = shape(*field, is_13) {
            at = at.next_multiple_of(alignment);
            fields.push((*field, at, width));
            at += width;
        }
    }
    (fields, at.next_multiple_of(8))
}

fn number(driver: &Driver, attribute: u32, device: i32) -> i32 {
    let mut value = 0;
    // SAFETY: a place of this frame.
    match unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) } {
        Ok(()) => value,
        Err(_) => 0,
    }
}

/// The bytes of a device's structure.
fn bytes(driver: &Driver, device: i32, is_13: bool) -> Result<Vec<u8>, Code> {
    let (fields, size) = layout(is_13);
    let mut all = vec![0u8; size];
    for (field, at, width) in fields {
        let to = &mut all[at..at + width];
        match field {
            // SAFETY: `width` bytes that may be written.
            Name => unsafe {
                driver.cuDeviceGetName(to.as_mut_ptr().cast(), width as i32, device)?;
            },
            // SAFETY: sixteen bytes that may be written.
            Uuid => unsafe { driver.cuDeviceGetUuid(to.as_mut_ptr(), device)? },
            Total => {
                let mut total = 0usize;
                // SAFETY: a place of this frame.
                unsafe { driver.cuDeviceTotalMem(&mut total, device)? };
                to.copy_from_slice(&total.to_ne_bytes());
            }
            Int(attribute) | Int12(attribute) | Int13(attribute) => {
                to.copy_from_slice(&number(driver, attribute, device).to_ne_bytes());
            }
            Size(attribute) => {
                let value = u64::from(number(driver, attribute, device).max(0).unsigned_abs());
                to.copy_from_slice(&value.to_ne_bytes());
            }
            Bytes(_) | Rest12(_) | Rest13(_) => {}
        }
    }
    Ok(all)
}

unsafe fn write(to: *mut c_void, device: i32, is_13: bool) -> Answer {
    let to = place(to)?;
    let driver = state::driver()?;
    state::checked(driver, device)?;
    let all = bytes(driver, device, is_13)?;
    // SAFETY: the caller's promise: a place for the structure of this layout.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(all.as_ptr(), all.len()) };
    Ok(())
}

export! {
    /// All of a device: CUDA 13's layout in its runtime. In that of CUDA 12 this name belongs to
    /// the form of CUDA 11, which headers of 12 never call.
    fn cudaGetDeviceProperties(properties: *mut c_void, device: i32) {
        match driver::is_13() {
            true => write(properties, device, true),
            false => Err(ERROR_NOT_SUPPORTED),
        }
    }

    /// All of a device, in CUDA 12's layout.
    fn cudaGetDeviceProperties_v2(properties: *mut c_void, device: i32) {
        write(properties, device, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(is_13: bool, attribute: u32) -> Option<usize> {
        let found = layout(is_13).0.into_iter().find(|(field, ..)| {
            matches!(field, Int(a) | Size(a) | Int12(a) | Int13(a) if *a == attribute)
        });
        found.map(|(_, at, _)| at)
    }

    #[test]
    fn the_layouts_are_those_of_the_headers() {
        assert_eq!(layout(false).1, 1032);
        assert_eq!(layout(true).1, 1008);
        for (attribute, place) in
            [(8, 296), (12, 304), (10, 308), (1, 320), (2, 324), (5, 336), (75, 360), (16, 384)]
        {
            assert_eq!(at(true, attribute), Some(place), "{attribute}");
        }
        for (attribute, place) in
            [(33, 568), (34, 572), (50, 576), (41, 588), (38, 596), (39, 604), (81, 624), (97, 672)]
        {
            assert_eq!(at(true, attribute), Some(place), "{attribute}");
        }
        assert_eq!(at(false, 13), Some(348));
        assert_eq!(at(true, 13), None);
    }
}
