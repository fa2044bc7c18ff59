//! The last word on every plan: no overlap, every promise kept.
//!
//! Works on the caller's buffers and nothing else, so that a mistake anywhere in the planner cannot
//! hide in shared preparation. A sweep over births and deaths keeps what is live in an ordered map
//! by offset; a birth looks at its two neighbours. Owns nothing. Cost: O(n log n) time.

use super::Buffer;
use crate::error::{Error, Result, Status};
use std::collections::BTreeMap;

fn wrong(text: String) -> Error {
    Error::new(Status::InvalidArgument, text)
}

/// The height of `offsets`, if they are a plan for `buffers`. The buffers must have passed
/// [`super::buffer::check`].
///
/// # Errors
/// [`Status::InvalidArgument`] names the buffers that overlap, or the one that is off its
/// alignment or its fixed offset.
pub fn verify(buffers: &[Buffer], offsets: &[u64]) -> Result<u64> {
    if buffers.len() != offsets.len() {
        let (n, m) = (buffers.len(), offsets.len());
        return Err(wrong(format!("{n} buffers, but {m} offsets")));
    }
    let mut height = 0;
    for (b, offset) in buffers.iter().zip(offsets) {
        let id = b.id;
        if offset % b.alignment != 0 {
            let a = b.alignment;
            return Err(wrong(format!("buffer {id} is at {offset}, off its alignment {a}")));
        }
        if b.fixed.is_some_and(|fixed| fixed != *offset) {
            return Err(wrong(format!("buffer {id} is at {offset}, not at its fixed offset")));
        }
        let top = offset.checked_add(b.size);
        let top = top.ok_or_else(|| wrong(format!("buffer {id} ends above 2^64 bytes")))?;
        height = height.max(top);
    }
    let all: Vec<usize> = (0..buffers.len()).collect();
    sweep(buffers, offsets, &all)?;
    Ok(height)
}

/// Whether the buffers with fixed offsets leave each other alone.
///
/// # Errors
/// [`Status::InvalidArgument`] names the two that overlap.
pub fn check_fixed(buffers: &[Buffer]) -> Result<()> {
    let some: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].fixed.is_some()).collect();
    if some.is_empty() {
        return Ok(());
    }
    let offsets: Vec<u64> = buffers.iter().map(|b| b.fixed.unwrap_or(0)).collect();
    sweep(buffers, &offsets, &some)
}

/// Looks for two of `some` that overlap in time and place. Ends must not pass 2^64.
fn sweep(buffers: &[Buffer], offsets: &[u64], some: &[usize]) -> Result<()> {
    let mut ends: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * some.len());
    for &i in some {
        ends.push((buffers[i].birth, true, i));
        ends.push((buffers[i].death, false, i));
    }
    ends.sort_unstable();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, born, i) in ends {
        if !born {
            live.remove(&offsets[i]);
            continue;
        }
        let top = |j: usize| offsets[j] + buffers[j].size;
        let below = live.range(..=offsets[i]).next_back().filter(|(_, j)| top(**j) > offsets[i]);
        let above = live.range(offsets[i]..).next().filter(|(at, _)| **at < top(i));
        if let Some((_, &j)) = below.or(above) {
            return Err(overlap(&buffers[j], offsets[j], &buffers[i], offsets[i]));
        }
        live.insert(offsets[i], i);
    }
    Ok(())
}

fn overlap(a: &Buffer, at: u64, b: &Buffer, bt: u64) -> Error {
    wrong(format!(
        "buffers {} and {} overlap: both live at {}, in bytes {at} to {} and {bt} to {}",
        a.id,
        b.id,
        a.birth.max(b.birth),
        at + a.size,
        bt + b.size
    ))
}
