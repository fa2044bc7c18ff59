//! Buffers as ranges of cliques, split into parts that do not meet.
//!
//! A sweep over births and deaths closes a maximal clique at the first death after a birth. Each
//! lifetime then becomes the half-open range of cliques it is in; two ranges overlap exactly when
//! the lifetimes do. Where no range crosses the border between two cliques, the instance falls
//! into parts that share nothing but the height. Owns no bound (see `bounds`). Cost: O(n log n)
//! time, 48 bytes a buffer.

use super::Buffer;

/// No fixed offset.
pub(super) const FREE: u64 = u64::MAX;

/// A buffer, its lifetime a range of cliques of its part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// First clique it is in.
    pub(super) first: u32,
    /// The clique after the last it is in; above `first`.
    pub(super) end: u32,
    /// Bytes.
    pub(super) size: u64,
    /// A power of two.
    pub(super) align: u64,
    /// The fixed offset, or [`FREE`].
    pub(super) fixed: u64,
    /// Its place in the caller's list.
    pub(super) source: u32,
}

/// Buffers whose cliques hang together.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The buffers; those with the lower first clique come first.
    pub(super) items: Vec<Item>,
    /// How many cliques there are.
    pub(super) cliques: u32,
    /// Places in `items` of those with a fixed offset, lowest offset first.
    pub(super) fixed: Vec<u32>,
}

/// Renumbers and splits. Buffers must have passed [`super::buffer::check`].
pub(super) fn prepare(buffers: &[Buffer]) -> Vec<Part> {
    let mut ends: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * buffers.len());
    for (i, b) in buffers.iter().enumerate() {
        ends.push((b.birth, true, i as u32));
        ends.push((b.death, false, i as u32));
    }
    // At equal times deaths come first: what dies then does not meet what is born.
    ends.sort_unstable();
    let mut parts = Vec::new();
    let mut items: Vec<Item> = Vec::new();
    let mut place = vec![0u32; buffers.len()];
    let (mut clique, mut grew, mut live) = (0u32, false, 0usize);
    for (_, born, source) in ends {
        if born {
            let b = &buffers[source as usize];
            place[source as usize] = items.len() as u32;
            items.push(Item {
                first: clique,
                end: clique,
                size: b.size,
                align: b.alignment,
                fixed: b.fixed.unwrap_or(FREE),
                source,
            });
            (grew, live) = (true, live + 1);
            continue;
        }
        if grew {
            (clique, grew) = (clique + 1, false);
        }
        items[place[source as usize] as usize].end = clique;
        live -= 1;
        if live == 0 {
            parts.push(Part::new(std::mem::take(&mut items), clique));
            clique = 0;
        }
    }
    debug_assert!(items.is_empty(), "every birth has its death");
    parts
}

impl Part {
    fn new(items: Vec<Item>, cliques: u32) -> Part {
        debug_assert!(items.iter().all(|i| i.first < i.end && i.end <= cliques));
        let mut fixed: Vec<u32> =
            (0..items.len() as u32).filter(|&i| items[i as usize].fixed != FREE).collect();
        fixed.sort_unstable_by_key(|&i| (items[i as usize].fixed, i));
        Part { items, cliques, fixed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_exactly_when_lifetimes_do() {
        let mut random = super::super::random::Random::new(3, 0);
        for round in 0..200 {
            let buffers: Vec<Buffer> = (0..2 + round % 20)
                .map(|id| {
                    let birth = random.bits() % 30;
                    Buffer::new(id, birth, birth + 1 + random.bits() % 9, 1)
                })
                .collect();
            let parts = prepare(&buffers);
            let mut at = vec![None; buffers.len()];
            for (p, part) in parts.iter().enumerate() {
                for item in &part.items {
                    assert!(at[item.source as usize].replace((p, item)).is_none(), "placed once");
                }
            }
            for (i, a) in buffers.iter().enumerate() {
                for (j, b) in buffers.iter().enumerate() {
                    let ((p, x), (q, y)) = (at[i].expect("kept"), at[j].expect("kept"));
                    let overlap = p == q && x.first < y.end && y.first < x.end;
                    assert_eq!(overlap, a.meets(b), "round {round}: {a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn parts_share_no_moment() {
        let b = |id, birth, death| Buffer::new(id, birth, death, 1);
        let parts = prepare(&[b(0, 0, 5), b(1, 4, 9), b(2, 9, 12), b(3, 20, 21)]);
        let sizes: Vec<(usize, u32)> = parts.iter().map(|p| (p.items.len(), p.cliques)).collect();
        assert_eq!(sizes, [(2, 1), (1, 1), (1, 1)]);
    }
}
