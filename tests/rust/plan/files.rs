//! Plans in bytes: there and back, and everything that can be wrong with them.

#[path = "../../../fuzz/src/plan.rs"]
mod body;

use crate::random::{Random, seed};
use body::seal;
use forebay::error::{Error, Status};
use forebay::plan::recording::{Fence, Recorded};
use forebay::plan::{Buffer, Options, Plan, Recording, solve};

fn plan() -> Plan {
    let fixed = Buffer { alignment: 64, fixed: Some(64), ..Buffer::new(11, 2, 6, 70) };
    let high = Buffer { birth: u64::MAX - 1, death: u64::MAX, ..Buffer::new(u64::MAX, 0, 0, 9) };
    let some = [Buffer::new(5, 0, 3, 32), fixed, Buffer::new(2, 1, 4, 33), high];
    solve(&some, &Options::default()).expect("a plan")
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
fn a_step_of_several_lanes_comes_back() {
    let bytes = body::lanes();
    // Four of five buffers are placed; then the step: head, births, uses, fences.
    assert_eq!(bytes.len(), 40 + 4 * 56 + 32 + 5 * 40 + 2 * 8 + 7 * 16 + 8);
    let plan = Plan::from_bytes(&bytes).expect("sound");
    assert_eq!(plan.to_bytes(), bytes);
    let step = plan.recording().expect("it has one");
    assert_eq!((step.lanes, step.births.len()), (3, 5));
    assert_eq!((step.uses.as_slice(), step.fences.len()), (&[(1, 2), (3, 1)][..], 7));
    assert_eq!((step.births[4].tag, step.births[4].lane, step.births[4].end_lane), (3, 0, 1));
    assert_eq!(body::altered(&[]), bytes);
}

/// A file does not tell whether fences may be left out unless it says so, as older ones do not.
#[test]
fn a_step_without_a_word_on_its_fences_keeps_them() {
    let bytes = body::lanes();
    assert_eq!(bytes[12..16], [3, 0, 0, 0]);
    let free = Plan::from_bytes(&bytes).expect("sound");
    assert_eq!(free.recording().map(|r| r.keeps_fences), Some(false));
    let mut old = bytes.clone();
    old[12] = 1;
    seal(&mut old);
    let kept = Plan::from_bytes(&old).expect("sound");
    assert_eq!(kept.recording().map(|r| r.keeps_fences), Some(true));
    assert_eq!(kept.to_bytes(), old);
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    for bytes in [plan().to_bytes(), body::lanes()] {
        every_change_is_noticed(&bytes);
    }
}

fn every_change_is_noticed(bytes: &[u8]) {
    for length in 0..bytes.len() {
        refused(&bytes[..length]);
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1 << bit;
            refused(&changed);
        }
    }
    let mut longer = bytes.to_vec();
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
        (with(8, 1 | 2 << 32), "flags 0x2"),
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
fn a_sealed_lie_about_lanes_is_found_out() {
    let bytes = body::lanes();
    let step = 40 + 4 * 56;
    let with = |at: usize, value: u64| {
        let mut changed = bytes.clone();
        changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
        seal(&mut changed);
        changed
    };
    let birth = |i: usize, field: usize| step + 32 + 40 * i + 8 * field;
    let used = |i: usize| step + 32 + 5 * 40 + 8 * i;
    let fence = |i: usize, field: usize| used(2) + 16 * i + 8 * field;
    let cases = [
        (with(step, 65), "65 lanes"),
        (with(step, 2), "on a lane that the step has not"),
        (with(step, 1 << 16), "cut short"),
        (with(step + 8, 4), "cut short"),
        (with(step + 24, u64::MAX), "cut short"),
        (with(birth(0, 2), 65), "not as it was recorded"),
        (with(birth(2, 1), 7), "4 of 5 recorded buffers"),
        (with(birth(3, 0), 99), "not in the order of their births"),
        (with(birth(2, 3), 3), "buffer 2 has alignment 3"),
        (placed_without_an_end(&bytes), "buffer 2 is not as it was recorded"),
        (with(birth(4, 4), 3 << 32 | 5), "on a lane that the step has not"),
        (with(used(0), 7 << 16), "a use of no buffer"),
        (with(used(0), 1 << 16 | 3), "a use of no buffer"),
        (with(fence(0, 0), 11), "the fences are not in their order"),
        (with(fence(6, 1), 1 << 16 | 3), "a fence of lanes 1 and 3"),
        // Bits that mean nothing are refused: they would be lost in the plan's bytes.
        (with(used(0), 1 << 48 | 1 << 16 | 2), "bits set above"),
        (with(fence(0, 1), 1 << 32 | 1), "bits set above"),
        // The only way from the second lane to the third.
        (with(fence(3, 1), 2 << 16 | 1), "no fence orders their lanes"),
    ];
    for (changed, text) in cases {
        let error = refused(&changed);
        assert!(error.message().contains(text), "{error} does not say {text:?}");
    }
}

/// In the place of a planned buffer the one that outlives the step: as many, but not the same.
fn placed_without_an_end(bytes: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    let mut put = |at: usize, value: u64| changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let row = 40 + 56 * 2;
    for (field, value) in [(0, 2), (1, 6), (2, u64::MAX), (3, 32), (6, 4096)] {
        put(row + 8 * field, value);
    }
    [24, 32].iter().for_each(|&at| put(at, 4096 + 32));
    seal(&mut changed);
    changed
}

/// As many events as are taken, and one more; and many buffers in the same bytes, which must not
/// be looked at two by two.
#[test]
fn a_long_step_is_checked_or_refused() {
    let fence = Fence { time: 0, from: 0, to: 1 };
    for (lanes, most) in [(1u16, 1 << 24), (64, 1 << 18)] {
        let fence = if lanes == 1 { Fence { to: 0, ..fence } } else { fence };
        let mut step = Recording { lanes, fences: vec![fence; most], ..Recording::default() };
        assert_eq!(step.check(), Ok(()));
        step.fences.push(fence);
        let refused = step.check().expect_err("one too many");
        let text = format!("{} buffers, uses and fences; at most {most} on {lanes}", most + 1);
        assert!(refused.message().contains(&text), "{refused}");
    }
    let born = |i: u64| Recorded {
        birth: 2 * i,
        death: 2 * i + 1,
        size: 512,
        alignment: 512,
        tag: 0,
        lane: 0,
        end_lane: 0,
    };
    let births: Vec<Recorded> = (0..200_000).map(born).collect();
    let uses = vec![(199_999, 1)];
    let plan = Recording { lanes: 2, births, uses, ..Recording::default() };
    let plan = plan.plan(&Options { effort: 100, ..Options::default() }).expect("a plan");
    assert_eq!(plan.height(), 512, "all share");
    assert_eq!(Plan::from_bytes(&plan.to_bytes()), Ok(plan));
}

#[test]
fn the_fuzz_body_over_changed_steps() {
    let mut rng = Random(seed(9));
    let mut read = 0;
    for _ in 0..20_000 {
        let changes: Vec<u8> = (0..3 * (1 + rng.below(4))).map(|_| rng.bits() as u8).collect();
        // Small numbers are lanes, times and counts that could be meant.
        let small = |(i, b): (usize, &u8)| if i % 3 == 2 && *b < 200 { *b % 20 } else { *b };
        let changes: Vec<u8> = changes.iter().enumerate().map(small).collect();
        body::read(&changes);
        read += usize::from(Plan::from_bytes(&body::altered(&changes)).is_ok());
    }
    assert!((500..15_000).contains(&read), "{read} of 20,000 are plans");
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
