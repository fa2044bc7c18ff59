//! Which functions this driver has: by name, version and flags, as `cuGetProcAddress` looks
//! them up.
//!
//! Owns the search. A function that the settings take away, or whose CUDA version is newer than
//! the driver's, is not found here. (It stays visible to `dlsym`, since a library's table cannot
//! change while it runs, and answers 801 there; a function that is too new does too.)

use crate::entry::{self, Call};
use crate::settings::Settings;

/// What `cuGetProcAddress` found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The function's address.
    Function(*const ()),
    /// No such name, in no version.
    NoSymbol,
    /// The name is known, but only in versions newer than asked for.
    TooNew,
}

/// Whether the driver of these settings has the function.
pub fn has(settings: &Settings, call: &Call) -> bool {
    let taken = settings.without.iter().any(|n| n == call.name || n == call.asked);
    let events =
        settings.context_events || !matches!(call.asked, "cuCtxRecordEvent" | "cuCtxWaitEvent");
    !taken && events && call.since <= settings.version
}

/// Finds the newest form of `name` that is no newer than `version`; the per-thread form if it
/// is asked for and there is one.
pub fn search(settings: &Settings, name: &str, version: u32, per_thread: bool) -> Found {
    let known = entry::calls().filter(|c| c.asked == name && has(settings, c));
    let mut any = false;
    let mut best: Option<&Call> = None;
    for call in known {
        any = true;
        if call.since > version || (call.per_thread && !per_thread) {
            continue;
        }
        let rank = |c: &Call| (c.since, c.per_thread == per_thread);
        if best.is_none_or(|b| rank(call) > rank(b)) {
            best = Some(call);
        }
    }
    match best {
        Some(call) => Found::Function(call.address.0),
        None if any => Found::TooNew,
        None => Found::NoSymbol,
    }
}
