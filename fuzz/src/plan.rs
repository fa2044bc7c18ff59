//! The readers of plans and instances: any bytes give what can be used, or an error that says why.

use forebay::plan::recording::{Fence, NEVER, Recorded, Recording};
use forebay::plan::{Options, Plan, csv, verify};

/// Reads `bytes` as a kept plan and as an instance; and as changes to a kept plan of three lanes.
pub fn read(bytes: &[u8]) {
    read_plan(bytes);
    read_plan(&altered(bytes));
    let text = String::from_utf8_lossy(bytes);
    match csv::read(&text) {
        Ok(instance) => {
            let names = instance.names.len();
            assert!(names == 0 || names == instance.buffers.len(), "a name each");
            assert!(instance.buffers.iter().all(|b| b.size > 0 && b.birth < b.death));
        }
        Err(error) => assert!(error.message().contains("line ") || !error.message().is_empty()),
    }
}

/// Reads `bytes` as a kept plan.
fn read_plan(bytes: &[u8]) {
    let plan = match Plan::from_bytes(bytes) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(!error.message().is_empty(), "an error says what is wrong");
            return;
        }
    };
    let height = verify::verify(plan.buffers(), plan.offsets());
    assert_eq!(height, Ok(plan.height()), "a plan that was loaded is one");
    assert!(plan.bound() <= plan.height(), "a bound is below");
    assert_eq!(plan.to_bytes(), bytes, "the same plan, the same bytes");
    assert_eq!(plan.check_lanes(), Ok(()), "a step that was loaded keeps its order");
    if let Some(step) = plan.recording() {
        let at = |id| plan.offset_of(id).unwrap_or(u64::MAX);
        let offsets: Vec<u64> = (0..step.births.len() as u64).map(at).collect();
        fewer_fences_suffice(&plan, step, &step.needed_fences(&offsets));
    }
}

/// The same plan with those fences alone is one: what is left out ordered nothing that it uses.
fn fewer_fences_suffice(plan: &Plan, step: &Recording, needed: &[bool]) {
    assert_eq!(needed.len(), step.fences.len(), "an answer for each fence");
    let kept = step.fences.iter().zip(needed).filter(|(_, needed)| **needed);
    let fences = kept.map(|(fence, _)| *fence).collect();
    let less = Recording { fences, ..step.clone() };
    let bytes = plan.to_bytes();
    let tail = 32 + 40 * step.births.len() + 8 * step.uses.len() + 16 * step.fences.len();
    let mut file = bytes[..bytes.len() - 8 - tail].to_vec();
    file.extend(words(&less).into_iter().flat_map(u64::to_le_bytes));
    file.extend([0; 8]);
    seal(&mut file);
    assert!(Plan::from_bytes(&file).is_ok(), "fences that are needed were left out of {step:?}");
}

/// A step as the format has it.
fn words(step: &Recording) -> Vec<u64> {
    let lists = [step.births.len(), step.uses.len(), step.fences.len()];
    let mut words = vec![u64::from(step.lanes)];
    words.extend(lists.map(|length| length as u64));
    for b in &step.births {
        let lanes = u64::from(b.lane) << 16 | u64::from(b.end_lane);
        words.extend([b.birth, b.death, b.size, b.alignment, u64::from(b.tag) << 32 | lanes]);
    }
    words.extend(step.uses.iter().map(|&(at, lane)| u64::from(at) << 16 | u64::from(lane)));
    let fence = |f: &Fence| [f.time, u64::from(f.from) << 16 | u64::from(f.to)];
    words.extend(step.fences.iter().flat_map(fence));
    words
}

/// A kept plan of a step of three lanes, with uses, fences, and a buffer that outlives it.
pub fn lanes() -> Vec<u8> {
    let born = |birth, death, size, lane, end_lane| Recorded {
        birth,
        death,
        size,
        alignment: 1,
        tag: 3,
        lane,
        end_lane,
    };
    let fence = |time, from, to| Fence { time, from, to };
    let step = Recording {
        lanes: 3,
        births: vec![
            born(0, 2, 64, 0, 0),
            born(5, 8, 64, 1, 1),
            born(6, NEVER, 32, 2, 2),
            born(12, 13, 64, 2, 2),
            born(16, 18, 48, 0, 1),
        ],
        uses: vec![(1, 2), (3, 1)],
        fences: vec![
            fence(1, 0, 1),
            fence(3, 0, 1),
            fence(4, 0, 1),
            fence(9, 1, 2),
            fence(10, 2, 2),
            fence(14, 2, 0),
            fence(15, 1, 0),
        ],
        ..Recording::default()
    };
    step.plan(&Options { effort: 100, ..Options::default() }).expect("a plan").to_bytes()
}

/// Writes the checksum as the format says it.
pub fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 8;
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in &bytes[..end] {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    bytes[end..].copy_from_slice(&hash.to_le_bytes());
}

/// [`lanes`] with one byte set for each three bytes of `changes` (its place, of which the most are
/// in the step, and its value), and sealed: behind the checksum nothing guesses its way.
pub fn altered(changes: &[u8]) -> Vec<u8> {
    let mut bytes = lanes();
    let (head, room) = (40 + 4 * 56, bytes.len() - 8);
    for change in changes.chunks_exact(3).take(8) {
        let at = usize::from(change[0]) << 8 | usize::from(change[1]);
        let at = if change[0] < 32 { at % room } else { head + at % (room - head) };
        bytes[at] = change[2];
    }
    seal(&mut bytes);
    bytes
}
