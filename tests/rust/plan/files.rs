//! Plans in bytes: there and back, and everything that can be wrong with them.

#[path = "../../../fuzz/src/plan.rs"]
mod body;

use crate::random::{Random, seed};
use forebay::error::{Error, Status};
use forebay::plan::{Buffer, Options, Plan, solve};

fn plan() -> Plan {
    let fixed = Buffer { alignment: 64, fixed: Some(64), ..Buffer::new(11, 2, 6, 70) };
    let high = Buffer { birth: u64::MAX - 1, death: u64::MAX, ..Buffer::new(u64::MAX, 0, 0, 9) };
    let some = [Buffer::new(5, 0, 3, 32), fixed, Buffer::new(2, 1, 4, 33), high];
    solve(&some, &Options::default()).expect("a plan")
}

/// The checksum as the format says it, written anew here.
fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 8;
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in &bytes[..end] {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    bytes[end..].copy_from_slice(&hash.to_le_bytes());
}

fn refused(bytes: &[u8]) -> Error {
    let error = Plan::from_bytes(bytes).expect_err("not a plan");
    assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    error
}

#[test]
fn there_and_back() {
    let plan = plan();
    let bytes = plan.to_bytes();
    assert_eq!(bytes.len(), 40 + 4 * 56 + 8);
    assert_eq!(bytes[..12], *b"FBPLAN\r\n\x01\0\0\0");
    let loaded = Plan::from_bytes(&bytes).expect("sound");
    assert_eq!(loaded, plan);
    assert_eq!(loaded.offset_of(11), Some(64));
    assert_eq!(loaded.to_bytes(), bytes);
    let empty = solve(&[], &Options::default()).expect("an empty plan");
    assert_eq!(Plan::from_bytes(&empty.to_bytes()), Ok(empty));
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    let bytes = plan().to_bytes();
    for length in 0..bytes.len() {
        refused(&bytes[..length]);
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            refused(&changed);
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    refused(&longer);
}

#[test]
fn a_sealed_lie_is_found_out() {
    let bytes = plan().to_bytes();
    let with = |at: usize, value: u64| {
        let mut changed = bytes.clone();
        changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
        seal(&mut changed);
        changed
    };
    assert_eq!(with(0, u64::from_le_bytes(*b"FBPLAN\r\n")), bytes, "seals as the library does");
    let row = |i: usize, field: usize| 40 + 56 * i + 8 * field;
    let cases = [
        (with(8, 2), "version 2"),
        (with(8, 1 | 5 << 32), "flags 0x5"),
        (with(16, u64::MAX), "cut short"),
        (with(16, 3), "cut short"),
        (with(24, 1), "the plan says that it takes 1"),
        (with(32, 1), "a bound of 1 bytes"),
        (with(32, 1 << 40), "a bound of"),
        (with(row(0, 2), 0), "empty lifetime"),
        (with(row(0, 3), 0), "size 0"),
        (with(row(0, 4), 3), "alignment 3"),
        (with(row(0, 0), 11), "id 11 is given to two"),
        (with(row(0, 6), 64), "overlap"),
        (with(row(1, 6), 128), "not at its fixed offset"),
        (with(row(2, 6), u64::MAX), "ends above"),
    ];
    for (changed, text) in cases {
        let error = refused(&changed);
        assert!(error.message().contains(text), "{error} does not say {text:?}");
    }
}

#[test]
fn the_fuzz_body_over_mutations() {
    let sealed = plan().to_bytes();
    let text = b"id,lower,upper,size,alignment,offset\n0,1,5,64,16,\nb,2,9,32,8,64\n".to_vec();
    body::read(&sealed);
    body::read(&text);
    let mut rng = Random(seed(8));
    for round in 0..20_000 {
        let mut bytes = if round % 2 == 0 { sealed.clone() } else { text.clone() };
        for _ in 0..1 + rng.below(4) {
            let (at, other) = (rng.below(bytes.len()), rng.below(bytes.len()));
            match rng.below(4) {
                0 => bytes[at] = rng.bits() as u8,
                1 => bytes.swap(at, other),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.extend_from_within(at.min(other)..at.max(other)),
            }
        }
        if round % 2 == 0 && bytes.len() > 8 && rng.one_in(2) {
            seal(&mut bytes);
        }
        body::read(&bytes);
    }
}
