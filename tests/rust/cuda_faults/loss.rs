//! The context is lost at the Nth call, for every N: one clear error, silent frees, accounts that
//! can be read, an end without driver calls.
//!
//! A lost context says so at the next call that looks at it, which need not be the call that lost
//! it. What the program had on the device is gone with it, so nothing is asked of what is left.

use super::cuda::Sim;
use super::device::Fault;
use super::lost::check_lost;
use super::stage::{Scenario, Stage};
use forebay::error::Status;
use forebay::pool::registry;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const fn lost(verb: &'static str, code: u32) -> Fault {
    Fault { nth: 1, verb, always: false, code, besides: &[] }
}

/// A context that fails for good, and answers that mean it is gone.
const LOSSES: [Fault; 4] =
    [lost("lose", 700), lost("lose", 719), lost("fail", 709), lost("fail", 201)];

/// One run. Whether there was such a call.
fn run(scenario: &Scenario, fault: Fault) -> bool {
    let mut stage = Stage::new(scenario);
    (scenario.prepare)(&mut stage);
    stage.driver.arm(fault);
    (scenario.act)(&mut stage);
    let calls = stage.driver.calls();
    stage.driver.clear_faults();
    match stage.pool().memory_info() {
        // There was no context to lose, or its loss was nobody's error.
        Ok(_) => {
            stage.check();
            stage.finish();
        }
        Err(error) => {
            assert_eq!(error.status(), Status::ContextLost, "{error}");
            end_lost(stage);
        }
    }
    assert_eq!(Sim::open().live("contexts"), 0, "the primary context is held");
    calls >= fault.nth
}

fn end_lost(mut stage: Stage) {
    let sim = stage.driver.sim();
    let before = sim.total_calls();
    let pool = stage.pool.take().expect("made before");
    check_lost(&pool, &stage.streams, &stage.live);
    registry::destroy(pool.into_handle() >> 48).expect("no call is made");
    assert_eq!(sim.total_calls(), before, "a lost context was called");
    sim.assert_no_misuse();
}

/// Runs of a scenario: every `stride`th call.
pub fn sweep(scenario: &Scenario, stride: u64) -> u64 {
    let mut runs = 0;
    for (i, loss) in LOSSES.into_iter().enumerate() {
        let mut fault = Fault { nth: 1 + i as u64 % stride, ..loss };
        loop {
            let more = catch_unwind(AssertUnwindSafe(|| run(scenario, fault)));
            let more = more.unwrap_or_else(|panic| {
                eprintln!("scenario {}: {fault:?}", scenario.name);
                resume_unwind(panic)
            });
            if !more {
                break;
            }
            fault.nth += stride;
            runs += 1;
        }
    }
    runs
}
