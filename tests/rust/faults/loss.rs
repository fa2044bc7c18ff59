//! The context is lost at the Nth driver call, for every N: one clear error, silent frees, accounts
//! that can be read, an end without driver calls; other pools go on.

use super::common::{self, MIB};
use super::lost::check_lost;
use super::scenarios::{ASYNC, GATHER, LARGE, MORE_SPACE, QUESTIONS, SMALL, TRIM};
use super::shared::{CAPTURE, EXPORT, PEERS};
use super::{CALLS_MAX, Scenario, Stage, alone};
use forebay::driver::faulty::{CallSet, Fault};
use forebay::driver::{Call, Code, Driver, StreamHandle};
use forebay::error::Status;
use forebay::pool::{Pool, capture, registry};
use std::sync::Arc;
use std::sync::mpsc;

fn lose(driver: &common::Watched, nth: u64) {
    driver.fail(Fault::from_then_on(CallSet::ALL, nth).with_code(Code::ContextLost));
}

/// One run that loses the context at call `nth`. Whether there was such a call.
fn run(scenario: &Scenario, nth: u64) -> bool {
    let mut stage = Stage::new(scenario);
    (scenario.prepare)(&mut stage);
    let driver = Arc::clone(&stage.driver.0);
    driver.reset_counts();
    driver.start_journal(CALLS_MAX as usize * 2);
    lose(&driver, nth);
    (scenario.act)(&mut stage);
    if driver.injected() == 0 {
        driver.clear_faults();
        return false;
    }
    let pool = stage.pool.take().expect("made before");
    check_lost(&pool, &stage.streams, &stage.live);
    let id = pool.into_handle() >> 48;
    registry::destroy(id).expect("no call is made");
    let gone = registry::destroy(id).expect_err("it is gone");
    assert_eq!(gone.status(), Status::InvalidPool);
    let journal = driver.stop_journal();
    let first = journal.iter().position(|entry| entry.result.is_err());
    assert_eq!(
        first,
        Some(journal.len() - 1),
        "{}: the last call is the one that failed, of {}",
        scenario.name,
        journal.len()
    );
    true
}

#[test]
fn a_context_lost_at_any_call_is_one_clear_error() {
    let _alone = alone();
    for scenario in
        [SMALL, LARGE, GATHER, TRIM, ASYNC, QUESTIONS, MORE_SPACE, PEERS, EXPORT, CAPTURE]
    {
        let mut nth = 1;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while run(&scenario, nth) {
                nth += 1;
            }
        }));
        if let Err(panic) = caught {
            eprintln!("scenario {}, context lost at call {nth}", scenario.name);
            std::panic::resume_unwind(panic);
        }
        assert!(nth > 3, "{}", scenario.name);
        println!("{}: lost at each of {} calls", scenario.name, nth - 1);
    }
}

#[test]
fn another_threads_magazines_hand_nothing_out_after_the_loss() {
    let _alone = alone();
    let (driver, pool) = common::small_pool(32 * MIB);
    let (healthy_driver, healthy) = common::small_pool(32 * MIB);
    let (id, healthy_id) = (pool.id(), healthy.id());
    let (go, wait) = mpsc::channel::<()>();
    let (ready, is_ready) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let pools = [id, healthy_id].map(|id| Pool::from_number(id).expect("alive"));
            let mut kept = Vec::new();
            for pool in &pools {
                let blocks: Vec<usize> =
                    (0..64).map(|_| pool.alloc(4096, 0).expect("fits")).collect();
                for &block in &blocks[1..] {
                    pool.dealloc(block, 0).expect("live");
                }
                kept.push(blocks[0]);
            }
            ready.send(()).expect("waited for");
            wait.recv().expect("told");
            // This thread was nowhere near the failing call.
            let refused = pools[0].alloc(4096, 0).expect_err("a magazine is full of lost memory");
            assert_eq!(refused.status(), Status::ContextLost);
            let healthy = pools[1].alloc(4096, 0).expect("the other pool's context is there");
            pools[1].dealloc(healthy, 0).expect("live");
            pools[1].dealloc(kept[1], 0).expect("live");
            pools[0].dealloc(kept[0], 0).expect("a silent success");
            let again = pools[0].alloc(4096, 0).expect_err("still lost");
            assert_eq!(again.status(), Status::ContextLost);
        });
        is_ready.recv().expect("the thread is there");
        lose(&driver, 1);
        let refused = pool.alloc(8 * MIB, 0).expect_err("the driver is needed");
        assert_eq!(refused.status(), Status::ContextLost);
        go.send(()).expect("it waits");
        other.join().expect("no panic");
    });
    let calls = driver.total();
    // What concerns every pool of the process is not held up by the lost one.
    let stream = healthy_driver.stream_create().expect("a stream").0;
    healthy.alloc(100, stream).and_then(|b| healthy.dealloc(b, stream)).expect("a stream");
    registry::retire_stream(stream).expect("the lost pool has nothing to say");
    healthy_driver.stream_destroy(StreamHandle(stream)).expect("live");
    let number = capture::begin(0).expect("the healthy pool's default stream");
    capture::end(number).expect("open");
    capture::release(number).expect("ended");
    registry::destroy(pool.into_handle() >> 48).expect("no call is made");
    assert_eq!(driver.total(), calls);
    common::end(&healthy_driver, healthy, &[]);
}

#[test]
fn a_pool_is_not_made_in_a_lost_context() {
    let _alone = alone();
    let driver = common::plain_device(32 * MIB);
    let mut settings = common::settings(&driver);
    settings.reserve = 4 << 20;
    for nth in 1..6 {
        driver.clear_faults();
        lose(&driver, nth);
        let shared = Arc::clone(&driver) as Arc<dyn forebay::driver::Driver>;
        let refused = Pool::with_driver(shared, settings.clone()).expect_err("lost");
        assert_eq!(refused.status(), Status::ContextLost, "call {nth}: {refused}");
    }
    assert!(driver.count(Call::Reserve) > 0);
}
