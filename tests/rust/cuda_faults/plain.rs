//! Plain segments under faults: where there is no virtual memory management, and page-locked host
//! memory. The Nth call fails, for every N, from the pool's making to its end.

use super::common::Block;
use super::cuda::{self, Sim};
use super::device::new_world;
use super::{check_world, cuda::library};
use forebay::config::Config;
use forebay::driver::Driver;
use forebay::driver::cuda::pinned::{self, PinnedDriver};
use forebay::driver::segments::SegmentDriver;
use forebay::pool::{Pool, Settings, registry};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

const MIB: usize = 1 << 20;
const TOTAL_BYTES: usize = 128 * MIB;
const GRANULE: usize = 2 * MIB;

/// The memory that the pool lies over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    /// The device's, in plain allocations.
    Plain,
    /// The host's, page-locked.
    Pinned,
}

fn open(memory: Memory) -> Arc<dyn Driver> {
    let opened = forebay::driver::cuda::open(Some(library()), 0).expect("a device");
    match memory {
        Memory::Plain => opened.driver(),
        Memory::Pinned => {
            let pinned = Arc::new(PinnedDriver::new(Arc::clone(opened.device())));
            Arc::new(SegmentDriver::new(pinned, pinned::SEGMENT_BYTES))
        }
    }
}

fn make_pool(driver: &Arc<dyn Driver>) -> Result<Pool, forebay::error::Error> {
    let mut settings = Settings::resolve(&Config::default(), (TOTAL_BYTES / 2) as u64, true);
    settings.keeper = false;
    settings.oom_wait = std::time::Duration::ZERO;
    Pool::with_driver(Arc::clone(driver), settings)
}

/// What a program does; each step may fail.
fn act(pool: &Pool, live: &mut Vec<Block>) {
    for (i, bytes) in [3000, 300 << 10, 5 * MIB, 34 * MIB, 5 * MIB].into_iter().enumerate() {
        if let Ok(address) = pool.alloc(bytes, 0) {
            live.push(Block::new(address, bytes, 0, i as u64));
        }
        let block = live.first().copied();
        if let Some(block) = block.filter(|_| i % 2 == 1) {
            block.check();
            if pool.dealloc(block.address, 0).is_ok() {
                live.remove(0);
            }
        }
    }
    // Nothing that is asked of it comes back before the pool's end.
    let _ = pool.trim(0);
}

/// One run; whether it had so many calls.
fn run(memory: Memory, nth: u64, always: bool, code: u32) -> bool {
    let more = if memory == Memory::Plain { "refuse = vmm=801" } else { "" };
    let sim = new_world(TOTAL_BYTES, GRANULE, more);
    sim.ok("cuInit", &[0]);
    let driver = open(memory);
    let before = sim.total_calls();
    match always {
        true => sim.script(&format!("fail any from #{nth} always with {code}")),
        false => sim.script(&format!("fail any #{nth} once with {code}")),
    }
    let mut live = Vec::new();
    let pool = make_pool(&driver);
    if let Ok(pool) = &pool {
        act(pool, &mut live);
    }
    live.iter().for_each(|block| block.check());
    let mut ended = false;
    let mut pool = match pool {
        // The pool's end may fail too, and be repeated.
        Ok(pool) if live.is_empty() || nth.is_multiple_of(2) => {
            let id = pool.into_handle() >> 48;
            ended = registry::destroy(id).is_ok();
            live.clear();
            if ended { None } else { Some(id) }
        }
        Ok(pool) => Some(pool.into_handle() >> 48),
        Err(error) => {
            assert!(!error.message().is_empty());
            None
        }
    };
    let calls = sim.total_calls() - before;
    lift(sim, always);
    if pool.is_none() && !ended {
        pool = Some(make_pool(&driver).expect("no fault any more").into_handle() >> 48);
    }
    if let Some(id) = pool {
        if let Ok(pool) = Pool::from_number(id)
            && let Ok(block) = pool.alloc(4 * MIB, 0)
        {
            pool.dealloc(block, 0).expect("live");
        }
        live.iter().for_each(|block| block.check());
        registry::destroy(id).expect("no fault any more");
    }
    drop(driver);
    check_world();
    calls >= nth
}

/// Lifts the fault; the thread is as it was, unless the way back was barred for good.
fn lift(sim: Sim, always: bool) {
    sim.script("");
    while always && cuda::current_context(sim) != 0 {
        sim.get("cuCtxPopCurrent_v2", &[]);
    }
    if always {
        let mut global = 0u32;
        sim.ok("cuThreadExchangeStreamCaptureMode", &[&raw mut global as usize]);
    }
    assert_eq!(cuda::current_context(sim), 0, "the thread's context was changed");
    assert_eq!(cuda::capture_mode(sim), 0, "the thread's capture mode was changed");
}

/// Every `stride`th call.
pub fn sweep(stride: u64) -> u64 {
    let mut runs = 0;
    for memory in [Memory::Plain, Memory::Pinned] {
        for (always, code) in [(false, 2), (false, 999), (false, 1), (true, 2), (true, 999)] {
            let mut nth = 1;
            loop {
                let run = || run(memory, nth, always, code);
                let more = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                    eprintln!("{memory:?}: call {nth}, for ever: {always}, with {code}");
                    resume_unwind(panic)
                });
                if !more {
                    break;
                }
                nth += stride;
                runs += 1;
            }
        }
    }
    runs
}
