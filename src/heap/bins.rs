//! Runs by length: one bin a length up to 256 MiB, an ordered map above.
//!
//! Owns the search structure of runs; a run is named by its first piece, whose `run` field
//! is the length. Inside a bin the runs form a pairing heap by address (links in the nodes), so
//! the lowest is at hand. A two-level bitmap finds the shortest non-empty bin that
//! suffices. Cost: insert and search O(1); remove O(log n) amortised in the runs of equal
//! length, which are few.

use super::nodes::{NIL, NodeId, Nodes};
use std::collections::BTreeMap;

/// The longest run that has a bin of its own, in quanta (256 MiB). Fewer under Miri, which takes
/// seconds to make so many.
const BIN_MAX: u32 = if cfg!(miri) { 256 } else { 16 * 1024 };
const WORDS: usize = (BIN_MAX as usize + 1).div_ceil(64);
const SUMMARY: usize = WORDS.div_ceil(64);

/// The index of runs.
#[derive(Debug)]
pub struct Bins {
    roots: Vec<NodeId>,
    words: [u64; WORDS],
    summary: [u64; SUMMARY],
    long: BTreeMap<(u32, u32), NodeId>,
}

impl Bins {
    /// No runs.
    pub fn new() -> Bins {
        Bins {
            roots: vec![NIL; BIN_MAX as usize + 1],
            words: [0; WORDS],
            summary: [0; SUMMARY],
            long: BTreeMap::new(),
        }
    }

    /// Adds the run at `head`, of the length in its `run` field.
    pub fn insert(&mut self, nodes: &mut Nodes, head: NodeId) {
        let run = nodes[head].run;
        debug_assert!(run > 0);
        if run > BIN_MAX {
            self.long.insert((run, nodes[head].off), head);
            return;
        }
        let n = &mut nodes[head];
        n.child = NIL;
        n.sibling = NIL;
        n.up = NIL;
        let bin = run as usize;
        let root = self.roots[bin];
        if root == NIL {
            self.roots[bin] = head;
            self.words[bin / 64] |= 1 << (bin % 64);
            self.summary[bin / 4096] |= 1 << (bin / 64 % 64);
        } else {
            self.roots[bin] = meld(nodes, root, head);
        }
    }

    /// Takes the run at `head` out; its `run` field must be as inserted.
    pub fn remove(&mut self, nodes: &mut Nodes, head: NodeId) {
        let run = nodes[head].run;
        if run > BIN_MAX {
            let gone = self.long.remove(&(run, nodes[head].off));
            debug_assert_eq!(gone, Some(head));
            return;
        }
        let bin = run as usize;
        let root = self.roots[bin];
        debug_assert!(root != NIL);
        let children = nodes[head].child;
        let new_root = if root == head {
            if children == NIL { NIL } else { merge_pairs(nodes, children) }
        } else {
            detach(nodes, head);
            if children == NIL {
                root
            } else {
                let sub = merge_pairs(nodes, children);
                meld(nodes, root, sub)
            }
        };
        self.roots[bin] = new_root;
        if new_root == NIL {
            self.words[bin / 64] &= !(1 << (bin % 64));
            if self.words[bin / 64] == 0 {
                self.summary[bin / 4096] &= !(1 << (bin / 64 % 64));
            }
        }
    }

    /// The shortest non-empty bin of at least `len`.
    #[inline]
    fn first_bin(&self, len: usize) -> Option<usize> {
        let word = len / 64;
        let here = self.words[word] & (!0 << (len % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let mut block = word / 64;
        let mut mask = match word % 64 {
            63 => 0,
            bit => self.summary[block] & (!0 << (bit + 1)),
        };
        loop {
            if mask != 0 {
                let word = block * 64 + mask.trailing_zeros() as usize;
                return Some(word * 64 + self.words[word].trailing_zeros() as usize);
            }
            block += 1;
            if block == SUMMARY {
                return None;
            }
            mask = self.summary[block];
        }
    }

    /// The lowest of the shortest runs of at least `len` quanta up to 256 MiB.
    #[inline(always)]
    pub fn best(&self, len: u32) -> Option<NodeId> {
        if len > BIN_MAX {
            return None;
        }
        self.first_bin(len as usize).map(|bin| self.roots[bin])
    }

    /// Calls `f` with runs of at least `len` quanta, shortest first and lowest first within
    /// a length (only the first of a length is sure to be the lowest), until it answers or
    /// `limit` runs were seen.
    #[inline]
    pub fn visit<R>(
        &self,
        nodes: &Nodes,
        len: u32,
        limit: usize,
        mut f: impl FnMut(NodeId) -> Option<R>,
    ) -> Option<R> {
        let mut left = limit;
        let mut from = len as usize;
        while from <= BIN_MAX as usize {
            let Some(bin) = self.first_bin(from) else { break };
            let root = self.roots[bin];
            if let Some(answer) = f(root) {
                return Some(answer);
            }
            left -= 1;
            if left == 0 {
                return None;
            }
            if let Some(answer) = visit_below(nodes, root, &mut left, &mut f) {
                return Some(answer);
            }
            if left == 0 {
                return None;
            }
            from = bin + 1;
        }
        for &head in self.long.range((len, 0)..).map(|(_, head)| head) {
            if let Some(answer) = f(head) {
                return Some(answer);
            }
            left -= 1;
            if left == 0 {
                return None;
            }
        }
        None
    }
}

/// The heap below `root`, in no particular order.
#[cold]
fn visit_below<R>(
    nodes: &Nodes,
    root: NodeId,
    left: &mut usize,
    f: &mut impl FnMut(NodeId) -> Option<R>,
) -> Option<R> {
    let mut open = vec![nodes[root].child];
    while let Some(mut node) = open.pop() {
        while node != NIL {
            if let Some(answer) = f(node) {
                return Some(answer);
            }
            *left -= 1;
            if *left == 0 {
                return None;
            }
            if nodes[node].child != NIL {
                open.push(nodes[node].child);
            }
            node = nodes[node].sibling;
        }
    }
    None
}

/// Two heaps become one; answers its root.
fn meld(nodes: &mut Nodes, a: NodeId, b: NodeId) -> NodeId {
    let (top, sub) = if nodes[a].off < nodes[b].off { (a, b) } else { (b, a) };
    let first = nodes[top].child;
    nodes[sub].sibling = first;
    nodes[sub].up = top;
    if first != NIL {
        nodes[first].up = sub;
    }
    nodes[top].child = sub;
    nodes[top].sibling = NIL;
    nodes[top].up = NIL;
    top
}

/// Cuts a node that is not the root off its heap; its children stay with it.
fn detach(nodes: &mut Nodes, node: NodeId) {
    let (up, sibling) = (nodes[node].up, nodes[node].sibling);
    debug_assert!(up != NIL);
    if nodes[up].child == node {
        nodes[up].child = sibling;
    } else {
        debug_assert_eq!(nodes[up].sibling, node);
        nodes[up].sibling = sibling;
    }
    if sibling != NIL {
        nodes[sibling].up = up;
    }
}

/// The standard two passes over a list of siblings; answers the one root.
fn merge_pairs(nodes: &mut Nodes, first: NodeId) -> NodeId {
    // Pass one: meld neighbours; the results form a stack through `sibling`.
    let mut stack = NIL;
    let mut node = first;
    while node != NIL {
        let second = nodes[node].sibling;
        let (merged, next) = if second == NIL {
            (node, NIL)
        } else {
            let next = nodes[second].sibling;
            (meld(nodes, node, second), next)
        };
        nodes[merged].sibling = stack;
        stack = merged;
        node = next;
    }
    // Pass two: meld the stack.
    let mut root = stack;
    let mut rest = nodes[root].sibling;
    while rest != NIL {
        let next = nodes[rest].sibling;
        root = meld(nodes, root, rest);
        rest = next;
    }
    nodes[root].sibling = NIL;
    nodes[root].up = NIL;
    root
}
