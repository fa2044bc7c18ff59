//! The planner's input, and what is wrong with it.
//!
//! Owns the limits that make all later arithmetic safe: sizes and paddings of all buffers together
//! stay at or below [`BYTES_MAX`], and so does every fixed offset's end. Promises that an error
//! names the buffer by its id and says what is accepted. Must not change the input. Cost: one
//! pass, and a sort of the ids where they do not grow.

use crate::error::{Error, Result, Status};

/// The most bytes that all sizes and alignments together may come to, and the highest end of a
/// fixed offset: 2^62.
pub const BYTES_MAX: u64 = 1 << 62;
/// The most buffers of one plan.
pub const BUFFERS_MAX: usize = 1 << 28;

/// A buffer to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The caller's own number; no other buffer has it.
    pub id: u64,
    /// The time from which it is wanted.
    pub birth: u64,
    /// The time from which it is not wanted any more; above `birth`.
    pub death: u64,
    /// Bytes, not 0.
    pub size: u64,
    /// Its offset is a multiple of this power of two; 1 for any offset.
    pub alignment: u64,
    /// Where it must lie, if that is settled already: a multiple of `alignment`.
    pub fixed: Option<u64>,
}

impl Buffer {
    /// A buffer that may lie anywhere.
    pub fn new(id: u64, birth: u64, death: u64, size: u64) -> Buffer {
        Buffer { id, birth, death, size, alignment: 1, fixed: None }
    }

    /// Whether the two live at one moment.
    pub fn meets(&self, other: &Buffer) -> bool {
        self.birth < other.death && other.birth < self.death
    }
}

fn bad(text: String) -> Error {
    Error::new(Status::InvalidArgument, text)
}

/// Checks all buffers; the error names the first one that is wrong.
///
/// # Errors
/// [`Status::InvalidArgument`]: an empty lifetime, size 0, an alignment that is no power of two, a
/// fixed offset off its alignment, an id given twice, more than [`BYTES_MAX`] bytes in all.
pub fn check(buffers: &[Buffer]) -> Result<()> {
    if buffers.len() > BUFFERS_MAX {
        return Err(bad(format!("{} buffers; at most {BUFFERS_MAX}", buffers.len())));
    }
    let mut sum = 0u64;
    for b in buffers {
        check_one(b)?;
        // Both are at most BYTES_MAX, so this cannot overflow.
        sum += b.size + (b.alignment - 1);
        if sum > BYTES_MAX {
            return Err(bad(format!(
                "the sizes up to buffer {} come to more than 2^62 bytes with their alignments: \
                 give sizes in larger units",
                b.id
            )));
        }
    }
    check_ids(buffers)
}

fn check_one(b: &Buffer) -> Result<()> {
    let Buffer { id, birth, death, size, alignment, fixed } = *b;
    if death < birth {
        return Err(bad(format!("buffer {id} dies at {death}, before its birth at {birth}")));
    }
    if death == birth {
        return Err(bad(format!(
            "buffer {id} has an empty lifetime: birth and death are {birth}; a death is the \
             first time at which it is not wanted"
        )));
    }
    if size == 0 {
        return Err(bad(format!("buffer {id} has size 0: leave it out")));
    }
    if !alignment.is_power_of_two() {
        return Err(bad(format!(
            "buffer {id} has alignment {alignment}: a power of two is accepted, 1 for any offset"
        )));
    }
    if size > BYTES_MAX || alignment > BYTES_MAX {
        return Err(bad(format!("buffer {id}: size or alignment is above 2^62 bytes")));
    }
    match fixed {
        Some(at) if at % alignment != 0 => Err(bad(format!(
            "buffer {id} is fixed at offset {at}, which is no multiple of its alignment {alignment}"
        ))),
        Some(at) if at > BYTES_MAX - size => {
            Err(bad(format!("buffer {id} is fixed at offset {at} and ends above 2^62 bytes")))
        }
        _ => Ok(()),
    }
}

fn check_ids(buffers: &[Buffer]) -> Result<()> {
    if buffers.windows(2).all(|pair| pair[0].id < pair[1].id) {
        return Ok(());
    }
    let mut ids: Vec<u64> = buffers.iter().map(|b| b.id).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(bad(format!("id {} is given to two buffers", pair[0]))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_buffer_is_named_with_what_is_accepted() {
        let good = Buffer::new(7, 1, 3, 64);
        let cases: [(Buffer, &str); 8] = [
            (Buffer { death: 1, ..good }, "buffer 7 has an empty lifetime"),
            (Buffer { death: 0, ..good }, "buffer 7 dies at 0, before its birth at 1"),
            (Buffer { size: 0, ..good }, "buffer 7 has size 0"),
            (Buffer { alignment: 0, ..good }, "buffer 7 has alignment 0"),
            (Buffer { alignment: 24, ..good }, "buffer 7 has alignment 24"),
            (Buffer { alignment: 64, fixed: Some(32), ..good }, "no multiple of its alignment 64"),
            (Buffer { fixed: Some(u64::MAX), ..good }, "ends above 2^62"),
            (Buffer { size: u64::MAX, ..good }, "above 2^62"),
        ];
        for (wrong, text) in cases {
            let error = check(&[Buffer::new(1, 0, 9, 1), wrong]).expect_err(text);
            assert_eq!(error.status(), Status::InvalidArgument);
            assert!(error.message().contains(text), "{error} does not say {text:?}");
        }
        assert_eq!(check(&[good]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn ids_are_given_once_and_sums_stay_in_bounds() {
        let at = |id| Buffer::new(id, 0, 1, 1 << 61);
        let twice = [at(5), Buffer::new(3, 0, 1, 1), Buffer::new(5, 2, 3, 1)];
        assert!(check(&twice).expect_err("twice").message().contains("id 5"));
        assert_eq!(check(&[at(0), at(1)]), Ok(()));
        let over = check(&[at(0), at(1), Buffer::new(9, 7, 8, 1)]).expect_err("over");
        assert!(over.message().contains("up to buffer 9"), "{over}");
    }
}
