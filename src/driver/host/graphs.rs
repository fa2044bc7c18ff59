//! Graphs as far as a memory pool meets them: which stream captures, and when a graph ends.
//!
//! Owns two lists that tests fill. There are no graphs here: a stream that "captures" runs its
//! work as ever, and a graph ends when a test says so. Must not call out with its lock held.
//! Cost: a lock and a walk.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::{OnGraphEnd, StreamHandle};

#[derive(Default)]
pub(super) struct Graphs {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    capturing: Vec<StreamHandle>,
    watched: Vec<(u64, OnGraphEnd, usize)>,
}

impl Graphs {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_capturing(&self, stream: StreamHandle, capturing: bool) {
        let mut lists = self.lists();
        lists.capturing.retain(|&other| other != stream);
        if capturing {
            lists.capturing.push(stream);
        }
    }

    pub(super) fn is_capturing(&self, stream: StreamHandle) -> bool {
        self.lists().capturing.contains(&stream)
    }

    pub(super) fn on_end(&self, graph: u64, call: OnGraphEnd, word: usize) {
        self.lists().watched.push((graph, call, word));
    }

    /// Calls what waits for the graph's end; says how many.
    pub(super) fn end(&self, graph: u64) -> usize {
        let ended: Vec<_> = {
            let mut lists = self.lists();
            let (ended, left) = lists.watched.drain(..).partition(|&(other, ..)| other == graph);
            lists.watched = left;
            ended
        };
        for &(_, call, word) in &ended {
            // SAFETY: whoever asked for the call promised that it may be made with this word.
            unsafe { call(std::ptr::with_exposed_provenance_mut(word)) };
        }
        ended.len()
    }
}
