//! Who is told of each block that comes and goes: a recorder of PyTorch's history.
//!
//! Owns the one function that is told. Promises that it is called with no lock of the pool's held,
//! before a free and after an allocation, so that no two blocks are seen at one address. Cost
//! while there is none: one load.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What is told. The numbers are the C ABI's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Kind {
    /// A block has come.
    Alloc = 0,
    /// A block is about to go.
    Free = 1,
    /// A request has failed for memory; there is no address.
    OutOfMemory = 2,
}

/// The function: its word, what happened, address, bytes, device, stream.
pub type Watcher = unsafe extern "C" fn(*mut c_void, i32, *mut c_void, usize, i32, *mut c_void);

struct Set {
    call: Watcher,
    word: usize,
}

static WATCHER: Mutex<Option<Set>> = Mutex::new(None);
static ANY: AtomicBool = AtomicBool::new(false);

/// Sets the function, or none. It may be called once more by a call that is under way.
pub fn set(watcher: Option<(Watcher, usize)>) {
    ANY.store(watcher.is_some(), Ordering::Release);
    let set = watcher.map(|(call, word)| Set { call, word });
    *WATCHER.lock().unwrap_or_else(PoisonError::into_inner) = set;
}

/// Tells it.
pub fn tell(kind: Kind, address: usize, bytes: usize, device: i32, stream: u64) {
    if !ANY.load(Ordering::Acquire) {
        return;
    }
    let watcher = WATCHER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((call, word)) = watcher.as_ref().map(|set| (set.call, set.word)) else { return };
    drop(watcher);
    let (word, address, stream) = (word as *mut c_void, address as *mut c_void, stream as usize);
    // SAFETY: whoever set it promised that it stays callable with its word.
    unsafe { call(word, kind as i32, address, bytes, device, stream as *mut c_void) };
}
