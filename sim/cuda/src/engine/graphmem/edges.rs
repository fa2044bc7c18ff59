//! What the edges of a graph say about its memory.
//!
//! Owns nothing. Promises to find every node that touches memory of its own graph without an order
//! behind the allocation node and before the free node. Cost: O(nodes * nodes), once an
//! instantiation of a graph with memory nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::super::graph::{Node, NodeId};
use super::{GraphMemory, MemNode};

/// Nodes that touch memory of their own graph without being ordered behind its allocation node
/// and before its free node, and free nodes without an order behind the allocation.
pub(super) fn misordered(nodes: &BTreeMap<NodeId, Node>, table: &GraphMemory) -> Vec<String> {
    // What each node comes behind. Nodes depend on earlier ones only.
    let mut behind: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
    for (id, node) in nodes {
        let mut all: BTreeSet<NodeId> = node.deps.iter().copied().collect();
        for dep in &node.deps {
            all.extend(behind.get(dep).into_iter().flatten());
        }
        behind.insert(*id, all);
    }
    let comes_behind =
        |late: NodeId, early: NodeId| behind.get(&late).is_some_and(|all| all.contains(&early));
    let (mut allocs, mut frees) = (BTreeMap::new(), BTreeMap::new());
    for (id, node) in nodes {
        match &node.memory {
            Some(MemNode::Alloc(block)) => allocs.insert(block.at, *id),
            Some(MemNode::Free { at, .. }) => frees.insert(*at, *id),
            None => None,
        };
    }
    let mut wrong = Vec::new();
    for (at, free) in &frees {
        if allocs.get(at).is_some_and(|alloc| !comes_behind(*free, *alloc)) {
            wrong.push(format!("graph memory {at:#x}: its free node is not behind its allocation"));
        }
    }
    for (id, work) in nodes.iter().filter_map(|(id, node)| Some((*id, node.work()?))) {
        for (at, _) in work.reads.iter().chain(&work.writes).filter_map(|r| table.covering(r)) {
            if allocs.get(&at).is_some_and(|alloc| !comes_behind(id, *alloc)) {
                wrong.push(format!("{} is not behind the allocation of {at:#x}", work.label));
            }
            if frees.get(&at).is_some_and(|free| !comes_behind(*free, id)) {
                wrong.push(format!("{} is not before the free of {at:#x}", work.label));
            }
        }
    }
    wrong
}
