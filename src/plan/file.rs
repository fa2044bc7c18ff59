//! Plans kept in bytes: written once, loaded by every later process.
//!
//! ```text
//! 8 bytes  "FBPLAN\r\n"      tells a text-mode copy
//! u32      version, 1        u32  flags, 0
//! u64      number of buffers u64  height  u64  bound
//! then for each buffer: id, birth, death, size, alignment, fixed offset (2^64 - 1: none), offset
//! u64      FNV-1a checksum of all bytes before
//! ```
//!
//! All numbers are little-endian. Promises that any bytes give a plan or an error, that memory is
//! taken only for what is there, and that a plan loaded has been checked and verified as a new one
//! is. Must not trust the checksum for that. Cost: 56 bytes a buffer; loading verifies, O(n log n).

use super::fnv::fnv1a;
use super::{Buffer, Plan};
use crate::error::{Error, Result, Status};

const MAGIC: [u8; 8] = *b"FBPLAN\r\n";
const VERSION: u32 = 1;
const HEAD: usize = 40;
const ROW: usize = 56;
const TAIL: usize = 8;
const NOT_FIXED: u64 = u64::MAX;

fn bad(text: String) -> Error {
    Error::new(Status::InvalidArgument, text)
}

impl Plan {
    /// The plan as bytes: the same plan, the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + ROW * self.buffers().len() + TAIL);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        let head = [self.buffers().len() as u64, self.height(), self.bound()];
        bytes.extend(head.iter().flat_map(|number| number.to_le_bytes()));
        for (b, offset) in self.buffers().iter().zip(self.offsets()) {
            let fixed = b.fixed.unwrap_or(NOT_FIXED);
            let row = [b.id, b.birth, b.death, b.size, b.alignment, fixed, *offset];
            bytes.extend(row.iter().flat_map(|number| number.to_le_bytes()));
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
        Ok(plan)
    }
}

/// Checks all but the buffers themselves; their number.
fn check_head(bytes: &[u8]) -> Result<usize> {
    if bytes.len() < HEAD + TAIL || bytes[..8] != MAGIC {
        return Err(bad(format!("these {} bytes are no plan file", bytes.len())));
    }
    let word = |at: usize| number(bytes, at) as u32;
    if word(8) != VERSION || word(12) != 0 {
        return Err(bad(format!(
            "a plan file of version {} with flags {:#x}; this library reads version {VERSION} \
             with none: make the plan again",
            word(8),
            word(12)
        )));
    }
    let count = number(bytes, 16);
    let room = ((bytes.len() - HEAD - TAIL) / ROW) as u64;
    if count > room || bytes.len() != HEAD + TAIL + ROW * count as usize {
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
