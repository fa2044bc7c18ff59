//! The list of misuse: what a program did that the real driver leaves undefined, or that can
//! only be a mistake.
//!
//! A call that answers an error as documented is not misuse; a release of a handle that never
//! was, work that ran into unmapped memory, and a mistake of the simulation itself are. A list
//! that is not empty fails a test. A leaf lock: may be taken under any other.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kind: the handle of a destroyed context is passed.
pub const DESTROYED_CONTEXT: &str = "use of a destroyed context";
/// Kind: the simulation itself is wrong.
pub const MISTAKE: &str = "mistake of the simulation";
/// Kind: the host, not the simulated machine, ran out of something.
pub const HOST_LIMIT: &str = "limit of the host";

/// Most entries that are kept; the rest is only counted.
const ENTRIES_MAX: usize = 1000;

/// One thing done wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misuse {
    /// What kind, a few words that stay the same, such as `release of an unknown handle`.
    pub kind: String,
    /// The whole story: which call, which range, which stream.
    pub text: String,
}

#[derive(Default)]
struct List {
    entries: Vec<Misuse>,
    more: u64,
}

static LIST: Mutex<List> = Mutex::new(List { entries: Vec::new(), more: 0 });

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records one.
pub fn record(kind: &str, text: impl Into<String>) {
    let mut list = list();
    if list.entries.len() < ENTRIES_MAX {
        list.entries.push(Misuse { kind: kind.to_owned(), text: text.into() });
    } else {
        list.more += 1;
    }
}

/// All that was recorded since the world began, and how many more were only counted.
pub fn all() -> (Vec<Misuse>, u64) {
    let list = list();
    (list.entries.clone(), list.more)
}

/// Forgets all.
pub fn clear() {
    *list() = List::default();
}
