//! Lower bounds of the height.
//!
//! Owns the one bound that costs a sweep: the largest clique load, and its strengthening by the
//! alignment that all buffers share. Promises that no plan is lower. Cost: O(n + cliques).

use super::prepare::{FREE, Part};
use super::{Buffer, align_up};

/// A lower bound of a part's height, in bytes.
///
/// With a common alignment g all offsets are multiples of g, so in a clique every buffer but the
/// topmost takes its size rounded up to g.
pub(super) fn lower(part: &Part) -> u64 {
    let g = grain(part);
    let mut change = vec![(0i128, 0i128); part.cliques as usize + 1];
    let (mut slack_max, mut top_max) = (0, 0);
    for item in &part.items {
        let rounded = align_up(item.size, g);
        slack_max = slack_max.max(rounded - item.size);
        if item.fixed != FREE {
            top_max = top_max.max(item.fixed + item.size);
        }
        for (at, sign) in [(item.first, 1), (item.end, -1)] {
            change[at as usize].0 += sign * i128::from(item.size);
            change[at as usize].1 += sign * i128::from(rounded);
        }
    }
    let (mut load, mut load_max, mut rounded, mut rounded_max) = (0, 0, 0, 0);
    for (plain, up) in change {
        load += plain;
        rounded += up;
        load_max = load_max.max(load);
        rounded_max = rounded_max.max(rounded);
    }
    // Sums are at most 2^62, as `buffer::check` sees to.
    (load_max as u64).max((rounded_max as u64).saturating_sub(slack_max)).max(top_max)
}

/// The alignment that all buffers of the part share.
pub(super) fn grain(part: &Part) -> u64 {
    part.items.iter().map(|i| i.align).min().unwrap_or(1)
}

/// A moment at which the live sizes are largest, and their sum.
pub(super) fn peak(buffers: &[Buffer]) -> (u64, u64) {
    let mut ends: Vec<(u64, bool, u64)> =
        buffers.iter().flat_map(|b| [(b.birth, true, b.size), (b.death, false, b.size)]).collect();
    ends.sort_unstable();
    let (mut live, mut most) = (0, (0, 0));
    for (time, born, size) in ends {
        live = if born { live + size } else { live - size };
        if live > most.1 {
            most = (time, live);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::super::prepare::prepare;
    use super::*;

    #[test]
    fn the_largest_clique_counts_and_a_shared_alignment_too() {
        let b = |id, birth, death, size| Buffer::new(id, birth, death, size);
        let plain = [b(0, 0, 3, 10), b(1, 2, 5, 20), b(2, 4, 6, 25), b(3, 5, 7, 1)];
        assert_eq!(lower(&prepare(&plain)[0]), 45);
        assert_eq!(peak(&plain), (4, 45));
        let aligned = plain.map(|x| Buffer { alignment: 16, ..x });
        // 20 and 25 both round up to 32; one of them is on top and keeps its size. The bound
        // allows the most that any buffer's rounding adds.
        assert_eq!(lower(&prepare(&aligned)[0]), 64 - 15);
        let fixed = [Buffer { fixed: Some(1000), ..plain[0] }, plain[1]];
        assert_eq!(lower(&prepare(&fixed)[0]), 1010);
    }
}
