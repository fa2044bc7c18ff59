//! Plans by number, for programs that hold them through the C API.
//!
//! Owns every such plan until it is let go. Promises that a number is never given twice, so that
//! a stale one is an error and nothing else, and that a plan in use stays while it is used. Cost:
//! a short lock a call.

use super::Plan;
use crate::error::{Error, Result, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Plans {
    last: u64,
    live: BTreeMap<u64, Arc<Plan>>,
}

static PLANS: Mutex<Plans> = Mutex::new(Plans { last: 0, live: BTreeMap::new() });

fn plans() -> MutexGuard<'static, Plans> {
    // The map is whole after every statement, so a panic elsewhere leaves it sound.
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unknown(number: u64) -> Error {
    let text = format!("no plan has the handle {number:#x}: it was never made, or destroyed");
    Error::new(Status::InvalidArgument, text)
}

/// Keeps a plan; its number, never 0.
pub fn keep(plan: Plan) -> u64 {
    let mut plans = plans();
    plans.last += 1;
    let number = plans.last;
    plans.live.insert(number, Arc::new(plan));
    number
}

/// The plan with this number.
///
/// # Errors
/// [`Status::InvalidArgument`] when there is none.
pub fn get(number: u64) -> Result<Arc<Plan>> {
    plans().live.get(&number).cloned().ok_or_else(|| unknown(number))
}

/// Lets a plan go.
///
/// # Errors
/// [`Status::InvalidArgument`] when there is none of this number.
pub fn let_go(number: u64) -> Result<()> {
    let gone = plans().live.remove(&number);
    gone.map(drop).ok_or_else(|| unknown(number))
}
