//! Fail the Nth driver call of a suspend and of a resume, for every N: all or nothing, contents
//! kept, nothing lost.

use super::*;
use forebay::driver::Call;
use forebay::driver::faulty::{CallSet, Fault, Times};
use std::collections::BTreeSet;

/// A way for calls to fail: how often, and kinds that fail always besides.
type Mode = (Times, &'static [Call]);

const MODES: [Mode; 9] = [
    (Times::Once, &[]),
    (Times::FromThenOn, &[]),
    (Times::Once, &[Call::Unmap]),
    (Times::Once, &[Call::Map]),
    (Times::Once, &[Call::SetAccess, Call::Release]),
    (Times::Once, &[Call::HostFree, Call::StreamDestroy]),
    (Times::Once, &[Call::StreamSynchronize]),
    (Times::Once, &[Call::EventQuery, Call::EventSynchronize]),
    (Times::Once, &[Call::HostAlloc, Call::Copy]),
];

/// No run needs more calls.
const CALLS_MAX: u64 = 300;

/// Two tags, one awake all the while, with rows that have gaps between them.
struct Stage {
    g: Ground,
    kept: Vec<Block>,
    others: Vec<Block>,
}

impl Stage {
    fn new() -> Stage {
        let mut g = Ground::new(48, 2, |_| {});
        let (kv, other) = (g.tags[0], g.tags[1]);
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        for bytes in [600, 2 * GRANULE, 30_000, 3 * GRANULE + 7, 600, GRANULE] {
            kept.push(g.alloc(kv, bytes, 0).expect("no fault yet"));
            others.push(g.alloc(other, bytes, 0).expect("no fault yet"));
        }
        Stage { g, kept, others }
    }

    fn act(&self, wake: bool) -> Result<Report> {
        let mut report = Report::default();
        match wake {
            true => self.g.pool.resume(&[self.g.tags[0]], &mut report).map(|()| report),
            false => self.g.pool.suspend(&[self.g.tags[0]], Level::Offload),
        }
    }

    fn asleep(&self) -> bool {
        self.g.pool.is_suspended(self.g.tags[0]).expect("alive")
    }

    /// Contents that are there, and the books.
    fn check(&self) {
        self.others.iter().for_each(|block| block.check());
        if !self.asleep() {
            self.kept.iter().for_each(|block| block.check());
        }
        let stats = self.g.stats();
        assert_eq!(stats.live_blocks, 12);
        assert_eq!(stats.suspended_bytes > 0, self.asleep());
    }

    /// With the faults gone: what was stuck comes back, the tag sleeps and wakes, all is there.
    fn finish(self) {
        let g = &self.g;
        g.driver.inner().run_all();
        assert!(
            !g.pool.with_core(|core| core.recover()).expect("alive"),
            "all that was stuck is back"
        );
        let census = g.driver.inner().census();
        assert_eq!((census.host_allocs, census.streams, census.fds), (0, 0, 1));
        let stats = g.stats();
        assert_eq!(stats.stranded_pages, 0);
        self.check();
        if self.asleep() {
            let pages = stats.mapped_bytes - stats.stock_bytes - stats.idle_bytes;
            assert!(pages <= 12 * GRANULE as u64, "the sleeper holds no page: {stats:?}");
            self.act(true).expect("no fault");
        }
        self.check();
        self.act(false).expect("no fault");
        self.check();
        self.act(true).expect("no fault");
        self.check();
        for block in self.kept.into_iter().chain(self.others) {
            self.g.free(block);
        }
        self.g.stats();
        self.g.end(&[]);
    }
}

/// One run with call `nth` failing. Answers whether it had so many calls.
fn run(wake: bool, (times, besides): Mode, nth: u64, struck: &mut BTreeSet<Call>) -> bool {
    let stage = Stage::new();
    if wake {
        stage.act(false).expect("no fault yet");
    }
    stage.check();
    let driver = Arc::clone(&stage.g.driver);
    driver.reset_counts();
    driver.start_journal(CALLS_MAX as usize * 2);
    driver.fail(Fault { calls: CallSet::ALL, nth, times, code: None });
    if !besides.is_empty() {
        driver.fail(Fault::from_then_on(CallSet::of(besides), 1));
    }
    let done = stage.act(wake);
    let calls = driver.total();
    driver.clear_faults();
    let failed = driver.stop_journal().into_iter().filter(|entry| entry.result.is_err());
    struck.extend(failed.map(|entry| entry.call));
    // All or nothing.
    assert_eq!(stage.asleep(), wake != done.is_ok(), "{done:?}");
    if let Err(error) = &done {
        assert_ne!(error.status(), Status::Internal, "{error}");
        assert!(!error.message().is_empty());
    }
    stage.check();
    stage.finish();
    calls >= nth
}

fn sweep(wake: bool, kinds: &[Call]) {
    let (mut struck, mut runs) = (BTreeSet::new(), 0);
    for mode in MODES {
        let mut nth = 1;
        loop {
            let one = std::panic::AssertUnwindSafe(|| run(wake, mode, nth, &mut struck));
            match std::panic::catch_unwind(one) {
                Ok(true) => (nth, runs) = (nth + 1, runs + 1),
                Ok(false) => break,
                Err(panic) => {
                    eprintln!("resume {wake}, {mode:?}, call {nth}");
                    std::panic::resume_unwind(panic);
                }
            }
            assert!(nth < CALLS_MAX, "{mode:?} never ends");
        }
    }
    println!("{runs} runs, failed {struck:?}");
    kinds.iter().for_each(|kind| assert!(struck.contains(kind), "{kind:?} never failed"));
}

#[test]
fn each_call_of_a_suspend_fails() {
    let kinds = [
        Call::EventRecord,
        Call::EventSynchronize,
        Call::StreamCreate,
        Call::HostAlloc,
        Call::Copy,
        Call::StreamSynchronize,
        Call::HostFree,
        Call::StreamDestroy,
        Call::Unmap,
        Call::Map,
        Call::SetAccess,
        Call::Release,
    ];
    sweep(false, &kinds);
}

#[test]
fn each_call_of_a_resume_fails() {
    let kinds = [
        Call::Create,
        Call::Map,
        Call::SetAccess,
        Call::Unmap,
        Call::Release,
        Call::StreamCreate,
        Call::HostAlloc,
        Call::Copy,
        Call::StreamSynchronize,
        Call::HostFree,
        Call::StreamDestroy,
    ];
    sweep(true, &kinds);
}
