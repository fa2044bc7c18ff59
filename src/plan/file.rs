//! Plans kept in bytes: written once, loaded by every later process.
//!
//! ```text
//! 8 bytes  "FBPLAN\r\n"      tells a text-mode copy
//! u32      version, 1        u32  flags: 1 if a recorded step follows, 3 if that does with fences
//!                                 that may be left out, else 0
//! u64      number of buffers u64  height  u64  bound
//! then for each buffer: id, birth, death, size, alignment, fixed offset (2^64 - 1: none), offset
//! with flags 1 and 3, the step: lanes, then how many buffers, uses, fences
//!      each buffer: birth, death, size, alignment, tag << 32 | lane << 16 | lane of the free
//!      each use: place in the step << 16 | lane; each fence: time, from << 16 | to
//! u64      FNV-1a checksum of all bytes before
//! ```
//!
//! Files of before flag 2 was known do not tell whether anything else relies on a step's fences: of
//! these none is left out.
//!
//! All numbers are little-endian. Promises that any bytes give a plan or an error, that memory is
//! taken only for what is there, and that a plan loaded has been checked and verified as a new one
//! is. Must not trust the checksum for that. Cost: 56 bytes a buffer; loading verifies, O(n log n).

use super::fnv::fnv1a;
use super::recording::{Fence, Recorded};
use super::{Buffer, Plan, Recording};
use crate::error::{Error, Result, Status};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"FBPLAN\r\n";
const VERSION: u32 = 1;
const HEAD: usize = 40;
const ROW: usize = 56;
const TAIL: usize = 8;
const STEP_HEAD: usize = 32;
const STEP_ROW: usize = 40;
const NOT_FIXED: u64 = u64::MAX;
/// A recorded step follows.
const STEP: u32 = 1;
/// Its fences may be left out where reuse of planned bytes does not need them.
const FENCES_FREE: u32 = 2;

fn bad(text: String) -> Error {
    Error::new(Status::InvalidArgument, text)
}

impl Plan {
    /// The plan as bytes: the same plan, the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + ROW * self.buffers().len() + TAIL);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        let of_step = |r: &Recording| if r.keeps_fences { STEP } else { STEP | FENCES_FREE };
        let flags = self.recording().map_or(0, of_step);
        bytes.extend(flags.to_le_bytes());
        let head = [self.buffers().len() as u64, self.height(), self.bound()];
        bytes.extend(head.iter().flat_map(|number| number.to_le_bytes()));
        for (b, offset) in self.buffers().iter().zip(self.offsets()) {
            let fixed = b.fixed.unwrap_or(NOT_FIXED);
            let row = [b.id, b.birth, b.death, b.size, b.alignment, fixed, *offset];
            bytes.extend(row.iter().flat_map(|number| number.to_le_bytes()));
        }
        if let Some(recording) = self.recording() {
            bytes.extend(step_words(recording).into_iter().flat_map(u64::to_le_bytes));
        }
        bytes.extend(fnv1a(&bytes).to_le_bytes());
        bytes
    }

    /// The plan in `bytes`, verified.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] says what is wrong: not a plan, another version, cut short,
    /// altered, or buffers and offsets that are no plan.
    pub fn from_bytes(bytes: &[u8]) -> Result<Plan> {
        let count = check_head(bytes)?;
        let body = &bytes[HEAD..HEAD + ROW * count];
        let mut buffers = Vec::with_capacity(count);
        let mut offsets = Vec::with_capacity(count);
        for row in body.chunks_exact(ROW) {
            let field = |i: usize| number(row, 8 * i);
            buffers.push(Buffer {
                id: field(0),
                birth: field(1),
                death: field(2),
                size: field(3),
                alignment: field(4),
                fixed: Some(field(5)).filter(|at| *at != NOT_FIXED),
            });
            offsets.push(field(6));
        }
        let (height, bound) = (number(bytes, 24), number(bytes, 32));
        let plan = Plan::from_parts(buffers, offsets, bound)?;
        if plan.height() != height {
            let found = plan.height();
            return Err(bad(format!("the plan says that it takes {height} bytes; it is {found}")));
        }
        let flags = number(bytes, 12) as u32;
        if flags == 0 {
            return Ok(plan);
        }
        let mut step = read_step(&bytes[HEAD + ROW * count..bytes.len() - TAIL])?;
        step.keeps_fences = flags & FENCES_FREE == 0;
        let plan = plan.with_recording(Arc::new(step));
        plan.check_lanes()?;
        Ok(plan)
    }
}

/// A recorded step as numbers.
fn step_words(r: &Recording) -> Vec<u64> {
    let mut words = vec![u64::from(r.lanes), r.births.len() as u64];
    words.extend([r.uses.len() as u64, r.fences.len() as u64]);
    for b in &r.births {
        let lanes = u64::from(b.lane) << 16 | u64::from(b.end_lane);
        words.extend([b.birth, b.death, b.size, b.alignment, u64::from(b.tag) << 32 | lanes]);
    }
    words.extend(r.uses.iter().map(|&(at, lane)| u64::from(at) << 16 | u64::from(lane)));
    let fence = |f: &Fence| [f.time, u64::from(f.from) << 16 | u64::from(f.to)];
    words.extend(r.fences.iter().flat_map(fence));
    words
}

/// The step in a file's last part.
fn read_step(bytes: &[u8]) -> Result<Recording> {
    let short = || bad("the plan file's step is cut short, or not whole".to_owned());
    if bytes.len() < STEP_HEAD {
        return Err(short());
    }
    let count = |at: usize| number(bytes, at) as usize;
    let (births, uses, fences) = (count(8), count(16), count(24));
    // Each count is below 2^61, where the sum of their bytes could not be this file's.
    let whole = [births, uses, fences].iter().all(|n| *n <= bytes.len())
        && bytes.len() == STEP_HEAD + STEP_ROW * births + 8 * uses + 16 * fences;
    let lanes = u16::try_from(number(bytes, 0)).map_err(|_| short())?;
    if !whole {
        return Err(short());
    }
    let (rows, rest) = bytes[STEP_HEAD..].split_at(STEP_ROW * births);
    let (users, waits) = rest.split_at(8 * uses);
    let low = |word: u64| (word >> 16) as u16;
    // Bits that mean nothing would be lost on the way back to bytes.
    let spare = users.chunks_exact(8).any(|row| number(row, 0) >> 48 != 0)
        || waits.chunks_exact(16).any(|row| number(row, 8) >> 32 != 0);
    if spare {
        return Err(
            bad("the plan file's step has a use or a fence with bits set above".to_owned()),
        );
    }
    let born = |row: &[u8]| {
        let word = number(row, 32);
        Recorded {
            birth: number(row, 0),
            death: number(row, 8),
            size: number(row, 16),
            alignment: number(row, 24),
            tag: (word >> 32) as u32,
            lane: low(word),
            end_lane: word as u16,
        }
    };
    let used = |row: &[u8]| ((number(row, 0) >> 16) as u32, number(row, 0) as u16);
    let wait = |row: &[u8]| Fence {
        time: number(row, 0),
        from: low(number(row, 8)),
        to: number(row, 8) as u16,
    };
    Ok(Recording {
        lanes,
        births: rows.chunks_exact(STEP_ROW).map(born).collect(),
        uses: users.chunks_exact(8).map(used).collect(),
        fences: waits.chunks_exact(16).map(wait).collect(),
        keeps_fences: true,
    })
}

/// Checks all but the buffers themselves; their number.
fn check_head(bytes: &[u8]) -> Result<usize> {
    if bytes.len() < HEAD + TAIL || bytes[..8] != MAGIC {
        return Err(bad(format!("these {} bytes are no plan file", bytes.len())));
    }
    let word = |at: usize| number(bytes, at) as u32;
    if word(8) != VERSION || ![0, STEP, STEP | FENCES_FREE].contains(&word(12)) {
        return Err(bad(format!(
            "a plan file of version {} with flags {:#x}; this library reads version {VERSION} \
             with flags 0, 1 or 3: make the plan again",
            word(8),
            word(12)
        )));
    }
    let count = number(bytes, 16);
    let room = ((bytes.len() - HEAD - TAIL) / ROW) as u64;
    if count > room || word(12) == 0 && bytes.len() != HEAD + TAIL + ROW * count as usize {
        return Err(bad(format!(
            "a plan file for {count} buffers, with {} bytes: cut short, or not whole",
            bytes.len()
        )));
    }
    let end = bytes.len() - TAIL;
    if fnv1a(&bytes[..end]) != number(bytes, end) {
        return Err(bad("the plan file's checksum does not match: it was altered".to_owned()));
    }
    Ok(count as usize)
}

/// The number that begins at byte `at`. The caller knows that it is there.
fn number(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
