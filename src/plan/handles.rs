//! Plans by number, for programs that hold them through the C API.
//!
//! Owns every such plan until it is let go. Promises that a number is never given twice, so that
//! a stale one is an error and nothing else, and that a plan in use stays while it is used. A
//! process that was forked while another thread held the lock gets an error, not a wait without
//! end. Cost: a short lock a call.

use super::Plan;
use crate::error::{Error, Result, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

struct Plans {
    last: u64,
    live: BTreeMap<u64, Arc<Plan>>,
}

static PLANS: Mutex<Plans> = Mutex::new(Plans { last: 0, live: BTreeMap::new() });

/// Milliseconds after which the lock's holder is taken to be a thread of before a fork: it is held
/// for microseconds.
const PATIENCE: u32 = 2000;

fn plans() -> Result<MutexGuard<'static, Plans>> {
    for turn in 0..PATIENCE {
        match PLANS.try_lock() {
            Ok(plans) => return Ok(plans),
            // The map is whole after every statement, so a panic elsewhere leaves it sound.
            Err(TryLockError::Poisoned(plans)) => return Ok(plans.into_inner()),
            Err(TryLockError::WouldBlock) if turn < 10 => std::thread::yield_now(),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err(Error::new(
        Status::Forked,
        "the plans' lock is not given back: this process was forked while another thread held it; \
         use plans before the fork or after exec",
    ))
}

fn unknown(number: u64) -> Error {
    let text = format!("no plan has the handle {number:#x}: it was never made, or destroyed");
    Error::new(Status::InvalidArgument, text)
}

/// Keeps a plan; its number, never 0.
///
/// # Errors
/// [`Status::Forked`] where the lock was held at a fork.
pub fn keep(plan: Plan) -> Result<u64> {
    let mut plans = plans()?;
    plans.last += 1;
    let number = plans.last;
    plans.live.insert(number, Arc::new(plan));
    Ok(number)
}

/// The plan with this number.
///
/// # Errors
/// [`Status::Forked`] as [`keep`]; [`Status::InvalidArgument`] when there is none.
pub fn get(number: u64) -> Result<Arc<Plan>> {
    plans()?.live.get(&number).cloned().ok_or_else(|| unknown(number))
}

/// Lets a plan go.
///
/// # Errors
/// [`Status::Forked`] as [`keep`]; [`Status::InvalidArgument`] when there is none of this number.
pub fn let_go(number: u64) -> Result<()> {
    let gone = plans()?.live.remove(&number);
    gone.map(drop).ok_or_else(|| unknown(number))
}
