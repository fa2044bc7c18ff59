//! Which pages stand behind a group's first blocks: arithmetic alone.
//!
//! A group's elements lie in stretches: one of all blocks, or one a layer, each long enough for
//! the most blocks that there can be, so that no address depends on how many there are. Behind the
//! first `n` blocks stand the pages that the first `n` blocks' part of any stretch touches; two
//! stretches may share a page. Cost: a stretch costs some operations.

use crate::kv::{Geometry, Layout, Order};
use crate::pool::regions::Row;

/// Where a group lies in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes from the region's base to the group's first element; whole pages.
    pub offset: u64,
    pub layout: Layout,
    /// Stretches, bytes from one to the next, and bytes of a block in each.
    stretches: u32,
    stride: u64,
    block: u64,
}

impl Place {
    pub(super) fn new(offset: u64, geometry: &Geometry, layout: Layout) -> Place {
        let (stretches, stride) = match geometry.order {
            Order::BlockOuter => (1, layout.total_bytes),
            Order::LayerOuter => (geometry.layers, layout.layer_stride),
        };
        Place { offset, layout, stretches, stride, block: layout.block_stride }
    }

    /// How many pieces a block lies in, and the bytes of each.
    pub(super) fn pieces(&self) -> (u32, u64) {
        (self.stretches, self.block)
    }

    /// From the region's base to a block's piece in a stretch.
    pub(super) fn piece(&self, block: u32, stretch: u32) -> u64 {
        self.offset + u64::from(stretch) * self.stride + u64::from(block) * self.block
    }

    /// Bytes of the group's part of the region: whole pages.
    pub(super) fn bytes(&self, granule: u64) -> Option<u64> {
        self.layout.total_bytes.checked_next_multiple_of(granule)
    }

    /// The rows of pages behind the first `blocks` blocks, in order, none touching another.
    pub(super) fn rows(&self, blocks: u32, granule: u64) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        if blocks == 0 {
            return rows;
        }
        for stretch in 0..u64::from(self.stretches) {
            let start = self.offset + stretch * self.stride;
            let end = start + u64::from(blocks) * self.block;
            let (first, end) = ((start / granule) as u32, end.div_ceil(granule) as u32);
            match rows.last_mut() {
                Some(row) if row.first + row.len >= first => row.len = end - row.first,
                _ => rows.push(Row { first, len: end - first }),
            }
        }
        rows
    }
}

/// The part of `all` that is not in `without`; both in order, none touching another.
pub(super) fn difference(all: &[Row], without: &[Row]) -> Vec<Row> {
    let mut rest = Vec::new();
    let mut holes = without.iter().peekable();
    for row in all {
        let (mut at, end) = (row.first, row.first + row.len);
        while at < end {
            match holes.peek() {
                Some(hole) if hole.first + hole.len <= at => _ = holes.next(),
                Some(hole) if hole.first < end => {
                    if hole.first > at {
                        rest.push(Row { first: at, len: hole.first - at });
                    }
                    at = hole.first + hole.len;
                }
                _ => {
                    rest.push(Row { first: at, len: end - at });
                    at = end;
                }
            }
        }
    }
    rest
}

/// All that is in either; both in order, none touching another.
pub(super) fn union(one: &[Row], other: &[Row]) -> Vec<Row> {
    let mut all: Vec<Row> = one.iter().chain(other).copied().collect();
    all.sort_unstable_by_key(|row| row.first);
    let mut merged: Vec<Row> = Vec::with_capacity(all.len());
    for row in all {
        match merged.last_mut() {
            Some(last) if last.first + last.len >= row.first => {
                last.len = last.len.max(row.first + row.len - last.first);
            }
            _ => merged.push(row),
        }
    }
    merged
}

/// Pages of all rows.
pub(super) fn pages(rows: &[Row]) -> u64 {
    rows.iter().map(|row| u64::from(row.len)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Content, Element};

    const PAGE: u64 = 2 << 20;

    fn place(order: Order, layers: u32, tokens: u32, offset: u64, blocks: u32) -> Place {
        let geometry = Geometry {
            layers,
            heads: 8,
            key_size: 128,
            value_size: 128,
            block_tokens: tokens,
            element: Element::Bf16,
            content: Content::Attention { window: 0 },
            order,
        };
        Place::new(offset, &geometry, geometry.layout(blocks).expect("it fits"))
    }

    fn row(first: u32, len: u32) -> Row {
        Row { first, len }
    }

    #[test]
    fn sixteen_tokens_of_llama3_8b_are_a_page_of_their_own() {
        let llama = place(Order::BlockOuter, 32, 16, 3 * PAGE, 100);
        assert_eq!(llama.rows(0, PAGE), []);
        assert_eq!(llama.rows(1, PAGE), [row(3, 1)]);
        assert_eq!(llama.rows(100, PAGE), [row(3, 100)]);
        assert_eq!(llama.bytes(PAGE), Some(100 * PAGE));
    }

    #[test]
    fn layers_outside_need_a_row_each_and_share_pages_between_them() {
        // A layer's block is 64 KiB, its stretch of 100 blocks three pages and an eighth.
        let layers = place(Order::LayerOuter, 3, 16, 0, 100);
        assert_eq!(layers.layout.layer_stride, 100 * (64 << 10));
        assert_eq!(layers.rows(1, PAGE), [row(0, 1), row(3, 1), row(6, 1)]);
        assert_eq!(layers.rows(32, PAGE), [row(0, 1), row(3, 2), row(6, 2)]);
        // From 96 blocks on they touch.
        assert_eq!(layers.rows(96, PAGE), [row(0, 10)]);
        assert_eq!(layers.rows(100, PAGE), [row(0, 10)]);
        let small = place(Order::LayerOuter, 8, 16, 0, 4);
        assert_eq!(small.rows(1, PAGE), [row(0, 1)], "all layers in one page");
    }

    #[test]
    fn growing_adds_what_is_not_there_yet() {
        for order in [Order::BlockOuter, Order::LayerOuter] {
            for (layers, tokens) in [(3, 16), (8, 1), (5, 7), (1, 16)] {
                let place = place(order, layers, tokens, PAGE, 90);
                let mut sum = 0;
                let mut before = Vec::new();
                for blocks in [0, 1, 2, 17, 31, 32, 33, 64, 89, 90] {
                    let rows = place.rows(blocks, PAGE);
                    let more = difference(&rows, &before);
                    assert_eq!(difference(&before, &rows), [], "growing gives nothing back");
                    sum += pages(&more);
                    assert_eq!(sum, pages(&rows), "{order:?} {layers} {tokens} {blocks}");
                    before = rows;
                }
                let end = PAGE + place.layout.total_bytes;
                assert_eq!(sum, end.div_ceil(PAGE) - 1);
            }
        }
    }

    #[test]
    fn differences_are_exact() {
        let all = [row(0, 5), row(10, 5)];
        assert_eq!(difference(&all, &[]), all);
        assert_eq!(difference(&all, &all), []);
        assert_eq!(difference(&all, &[row(1, 2), row(4, 8)]), [row(0, 1), row(3, 1), row(12, 3)]);
        assert_eq!(difference(&[row(3, 1)], &[row(0, 9)]), []);
        assert_eq!(union(&[row(0, 2), row(6, 1)], &[row(2, 1), row(5, 1)]), [row(0, 3), row(5, 2)]);
        assert_eq!(union(&[row(0, 9)], &[row(3, 1)]), [row(0, 9)]);
    }
}
