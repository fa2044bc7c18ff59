//! Which unplaced buffer fits between two cliques and has the largest key.
//!
//! ```text
//!   end                 A buffer is the point (first, end). It fits in [left, right) when
//!    |      . .         first >= left and end <= right: a corner of the plane. Nodes halve the
//!    |   .  . :---      points by first and end in turn; each keeps the box of its points and
//!    | . . .  | fit     the largest key in it. A leaf has at most 8 points.
//!    +--------+---- first
//! ```
//!
//! Owns the keys of what is unplaced; a key of 0 means placed. Keys differ, so answers do not
//! depend on the tree's shape. Cost: building O(n log n); taking a buffer out O(log n); a query
//! O(log n) mostly, since whole boxes inside the corner answer at once.

use super::prepare::Item;

const LEAF: usize = 8;

/// Lowest and highest `first`, lowest and highest `end`.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: (u32, u32),
    end: (u32, u32),
}

const NOWHERE: Span = Span { first: (u32::MAX, 0), end: (u32::MAX, 0) };

impl Span {
    fn joined(self, other: Span) -> Span {
        let join = |a: (u32, u32), b: (u32, u32)| (a.0.min(b.0), a.1.max(b.1));
        Span { first: join(self.first, other.first), end: join(self.end, other.end) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    first: u32,
    end: u32,
    item: u32,
    key: u32,
}

/// The tree: nodes 1 to 2 * leaves - 1, children of k are 2k and 2k + 1.
#[derive(Clone, Debug)]
pub(super) struct KdTree {
    leaves: usize,
    spans: Vec<Span>,
    keys: Vec<u32>,
    /// Points in the order of leaves; leaf k has those from `starts[k]` to `starts[k + 1]`.
    points: Vec<Point>,
    starts: Vec<u32>,
    /// Where an item's point is: (leaf, index in `points`).
    places: Vec<(u32, u32)>,
}

impl KdTree {
    /// The tree of a part's items, all keys 0.
    pub(super) fn new(items: &[Item]) -> KdTree {
        let leaves = items.len().div_ceil(LEAF).next_power_of_two();
        let mut points: Vec<Point> = (0u32..)
            .zip(items)
            .map(|(item, i)| Point { first: i.first, end: i.end, item, key: 0 })
            .collect();
        let mut starts = vec![0; leaves + 1];
        split(&mut points, 0, leaves, true, &mut starts);
        starts[leaves] = items.len() as u32;
        let mut tree = KdTree {
            leaves,
            spans: vec![NOWHERE; 2 * leaves],
            keys: vec![0; 2 * leaves],
            points,
            starts,
            places: vec![(0, 0); items.len()],
        };
        for leaf in 0..leaves {
            let mut span = NOWHERE;
            for at in tree.range(leaf) {
                let p = tree.points[at];
                tree.places[p.item as usize] = (leaf as u32, at as u32);
                span = span.joined(Span { first: (p.first, p.first), end: (p.end, p.end) });
            }
            tree.spans[leaves + leaf] = span;
        }
        for node in (1..leaves).rev() {
            tree.spans[node] = tree.spans[2 * node].joined(tree.spans[2 * node + 1]);
        }
        tree
    }

    fn range(&self, leaf: usize) -> std::ops::Range<usize> {
        self.starts[leaf] as usize..self.starts[leaf + 1] as usize
    }

    fn leaf_key(&self, leaf: usize) -> u32 {
        self.points[self.range(leaf)].iter().map(|p| p.key).max().unwrap_or(0)
    }

    /// Gives every item its key; 0 takes it out.
    pub(super) fn set_keys(&mut self, keys: &[u32]) {
        for point in &mut self.points {
            point.key = keys[point.item as usize];
        }
        for leaf in 0..self.leaves {
            self.keys[self.leaves + leaf] = self.leaf_key(leaf);
        }
        for node in (1..self.leaves).rev() {
            self.keys[node] = self.keys[2 * node].max(self.keys[2 * node + 1]);
        }
    }

    /// Takes an item out.
    pub(super) fn remove(&mut self, item: u32) {
        let (leaf, at) = self.places[item as usize];
        self.points[at as usize].key = 0;
        let mut node = self.leaves + leaf as usize;
        self.keys[node] = self.leaf_key(leaf as usize);
        while node > 1 {
            node /= 2;
            let key = self.keys[2 * node].max(self.keys[2 * node + 1]);
            if self.keys[node] == key {
                break;
            }
            self.keys[node] = key;
        }
    }

    /// The largest key among the items in [left, right); 0 when there is none.
    pub(super) fn largest(&self, left: u32, right: u32) -> u32 {
        let mut best = 0;
        self.search(1, left, right, &mut best);
        best
    }

    fn search(&self, node: usize, left: u32, right: u32, best: &mut u32) {
        let span = self.spans[node];
        if self.keys[node] <= *best || span.first.1 < left || span.end.0 > right {
            return;
        }
        if span.first.0 >= left && span.end.1 <= right {
            *best = self.keys[node];
        } else if node >= self.leaves {
            for p in &self.points[self.range(node - self.leaves)] {
                if p.key > *best && p.first >= left && p.end <= right {
                    *best = p.key;
                }
            }
        } else {
            let [near, far] = self.children(node);
            self.search(near, left, right, best);
            self.search(far, left, right, best);
        }
    }

    /// As [`KdTree::largest`], among the items that `accept` takes. Looks at single points
    /// where the other takes whole boxes.
    pub(super) fn largest_of(
        &self,
        left: u32,
        right: u32,
        accept: &mut dyn FnMut(u32) -> bool,
    ) -> u32 {
        let mut best = 0;
        let mut open = vec![1];
        while let Some(node) = open.pop() {
            let span = self.spans[node];
            if self.keys[node] <= best || span.first.1 < left || span.end.0 > right {
                continue;
            }
            if node < self.leaves {
                let [near, far] = self.children(node);
                open.extend([far, near]);
                continue;
            }
            for p in &self.points[self.range(node - self.leaves)] {
                if p.key > best && p.first >= left && p.end <= right && accept(p.item) {
                    best = p.key;
                }
            }
        }
        best
    }

    /// A node's children, the one with the larger key first.
    fn children(&self, node: usize) -> [usize; 2] {
        let (a, b) = (2 * node, 2 * node + 1);
        if self.keys[a] >= self.keys[b] { [a, b] } else { [b, a] }
    }
}

/// Spreads the points over `leaves` leaves that begin at leaf `at / width`, halving by `first` and
/// `end` in turn. `starts` receives where each leaf's points begin.
fn split(points: &mut [Point], base: u32, leaves: usize, by_first: bool, starts: &mut [u32]) {
    if leaves == 1 {
        starts[0] = base;
        return;
    }
    let middle = points.len() / 2;
    if points.len() > 1 {
        points.select_nth_unstable_by_key(middle, |p| {
            (if by_first { p.first } else { p.end }, p.item)
        });
    }
    let (low, high) = points.split_at_mut(middle);
    let (starts_low, starts_high) = starts.split_at_mut(leaves / 2);
    split(low, base, leaves / 2, !by_first, starts_low);
    split(high, base + middle as u32, leaves / 2, !by_first, starts_high);
}

#[cfg(test)]
mod tests {
    use super::super::prepare::FREE;
    use super::super::random::Random;
    use super::*;

    #[test]
    fn answers_as_a_scan_does() {
        let mut random = Random::new(11, 0);
        for round in 0..60 {
            let n = 1 + (random.bits() % 200) as usize;
            let items: Vec<Item> = (0..n)
                .map(|_| {
                    let first = (random.bits() % 40) as u32;
                    let end = first + 1 + (random.bits() % 12) as u32;
                    Item { first, end, size: 1, align: 1, fixed: FREE, source: 0 }
                })
                .collect();
            let mut tree = KdTree::new(&items);
            let mut keys: Vec<u32> = (1..=n as u32).collect();
            for i in (1..n).rev() {
                keys.swap(i, (random.bits() % (i as u64 + 1)) as usize);
            }
            tree.set_keys(&keys);
            for _ in 0..2 * n {
                let left = (random.bits() % 40) as u32;
                let right = left + 1 + (random.bits() % 20) as u32;
                let fits = |i: &usize| items[*i].first >= left && items[*i].end <= right;
                let scan = |odd: bool| {
                    let some = (0..n).filter(fits).filter(|i| !odd || i % 2 == 1);
                    some.map(|i| keys[i]).max().unwrap_or(0)
                };
                let found = tree.largest(left, right);
                assert_eq!(found, scan(false), "round {round}");
                let odd = tree.largest_of(left, right, &mut |item| item % 2 == 1);
                assert_eq!(odd, scan(true), "round {round}");
                if let Some(item) = keys.iter().position(|k| found > 0 && *k == found) {
                    keys[item] = 0;
                    tree.remove(item as u32);
                }
            }
        }
    }
}
