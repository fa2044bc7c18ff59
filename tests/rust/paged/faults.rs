//! Fail the Nth driver call, for every N, once and for ever, while a cache grows, shrinks, copies,
//! sends its tables, and holds contiguous sequences: nothing live changes, nothing is lost, and
//! once the faults are gone the next calls work.

use crate::device::{self, Watched, check_books};
use crate::{bind, block_holds, blocks_of, small, write_block};
use forebay::driver::faulty::{CallSet, Fault, Times};
use forebay::driver::host::HostOptions;
use forebay::driver::{Call, Code, Driver, StreamHandle};
use forebay::error::Status;
use forebay::kv::{self, Geometry, NO_FENCE, Open, Order, Seq, Tokens};
use forebay::paged::contiguous::{ContiguousConfig, ContiguousKv};
use forebay::paged::tables::Table;
use forebay::paged::{KvMemory, MemoryConfig, MemoryError};
use forebay::pool::Pool;
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE: usize = 64 << 10;

/// What a run is over.
struct Stage {
    driver: Arc<Watched>,
    pool: Pool,
    stream: u64,
    geometry: Geometry,
    memory: Option<KvMemory>,
    contiguous: Option<ContiguousKv>,
    /// Sequences of the cache, and the value that their blocks hold.
    live: Vec<(Seq, u8)>,
    /// Sequences whose contents are nobody's.
    others: Vec<Seq>,
    made: u8,
    /// Contiguous sequences, tokens that are written, and their value.
    ranges: Vec<(Seq, u32, u8)>,
}

fn refused(error: &MemoryError) {
    assert_ne!(error.status(), Status::Internal, "{error}");
    assert!(!error.to_string().is_empty());
}

impl Stage {
    fn new(order: Order, scrub: bool) -> Stage {
        let options = HostOptions {
            total_bytes: 64 * PAGE,
            granularity: PAGE,
            deferred: true,
            ..HostOptions::default()
        };
        let driver = device::device(options);
        let mut settings = device::settings(&driver);
        settings.oom_wait = std::time::Duration::ZERO;
        settings.limit = (40 * PAGE) as u64;
        settings.scrub = scrub;
        let pool = device::pool(&driver, settings);
        let stream = driver.stream_create().expect("no fault yet").0;
        let geometry = small(order);
        let (live, ranges, others, made) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let (memory, contiguous) = (None, None);
        Stage { driver, pool, stream, geometry, memory, contiguous, live, others, made, ranges }
    }

    fn make_memory(&mut self) -> bool {
        let kv = kv::Config { prefixes: false, ..kv::Config::new(self.geometry, 60) };
        let made = KvMemory::new(&self.pool, MemoryConfig { kv, initial: vec![5] });
        made.inspect_err(refused).map(|memory| self.memory = Some(memory)).is_ok()
    }

    fn memory(&self) -> &KvMemory {
        self.memory.as_ref().expect("it was made")
    }

    /// A sequence whose blocks all hold a value; fewer if there are no blocks.
    fn sequence(&mut self, tokens: u32) {
        let memory = self.memory.as_ref().expect("it was made");
        let seq = memory.cache().open(Open::default()).expect("room");
        if memory.cache().append(seq, Tokens::Count(tokens)).is_err() {
            return memory.cache().free(&[seq], NO_FENCE).expect("open");
        }
        self.made += 1;
        let value = self.made;
        for block in blocks_of(memory.cache(), seq) {
            write_block(memory, &self.geometry, block, value);
        }
        self.live.push((seq, value));
    }

    /// Live contents, the pool's books, and the cache's.
    fn check(&self) {
        if let Some(memory) = &self.memory {
            memory.cache().check().expect("the accounts");
            for &(seq, value) in &self.live {
                for block in blocks_of(memory.cache(), seq) {
                    assert!(block_holds(memory, &self.geometry, block, value), "{block}");
                }
            }
            let backed = memory.backed(0).expect("a group");
            let bounds = memory.cache().bounds(0).expect("a group");
            assert!(backed.backed >= bounds.needed.max(bounds.open), "{backed:?} {bounds:?}");
        }
        for &(seq, tokens, value) in &self.ranges {
            assert!(self.range(seq, tokens).into_iter().all(|at| {
                // SAFETY: the token has memory.
                unsafe { (at as *const u8).read() == value }
            }));
        }
        let stats = check_books(&self.driver, &self.pool);
        let paged = self.memory.as_ref().map_or(0, |m| m.backed(0).expect("a group").bytes);
        let ranges = self.contiguous.as_ref().map_or(0, |kv| {
            let stats = kv.stats();
            (stats.open_pages + stats.leaving_pages + stats.kept_pages) * PAGE as u64
        });
        assert_eq!(stats.region_bytes, paged + ranges, "{stats:?}");
    }

    /// An address in each token's keys and values.
    fn range(&self, seq: Seq, tokens: u32) -> Vec<usize> {
        let view = self.contiguous.as_ref().expect("made").view(seq, 0).expect("open");
        let sides = [view.keys, view.values.expect("attention")];
        let at = |token: u32| sides.map(|s| s.address + token as usize * s.token_stride as usize);
        (0..tokens).flat_map(at).collect()
    }

    /// Contiguous tokens are there and written.
    fn ensure(&mut self, seq: Seq, tokens: u32, value: u8) {
        let (done, result) = self.contiguous.as_ref().expect("made").ensure(&[(seq, tokens)]);
        if let Err(error) = result {
            assert_eq!(done, 0);
            return refused(&error);
        }
        for at in self.range(seq, tokens) {
            // SAFETY: the token has memory.
            unsafe { (at as *mut u8).write(value) };
        }
        self.ranges.retain(|&(other, ..)| other != seq);
        self.ranges.push((seq, tokens, value));
    }

    /// With the faults gone: all works, all that was stuck comes back, nothing is left.
    fn finish(mut self) {
        self.driver.inner().run_all();
        if self.memory.is_none() {
            assert!(self.make_memory(), "no fault any more");
        }
        self.check();
        if let Some(kv) = &self.contiguous {
            let seqs: Vec<Seq> = self.ranges.drain(..).map(|(seq, ..)| seq).collect();
            kv.free(&seqs, NO_FENCE).expect("open");
            kv.poll().expect("no fault any more");
            kv.release_kept().expect("no fault any more");
            assert_eq!(kv.stats().leaving_pages + kv.stats().kept_pages, 0);
        }
        let memory = self.memory();
        memory.run_copies(self.stream).expect("no fault any more");
        self.driver.inner().run_all();
        memory.poll().expect("no fault any more");
        memory.resize(0, 30).expect("no fault any more");
        self.check();
        let live: Vec<Seq> = self.live.drain(..).map(|(seq, _)| seq).collect();
        let cache = self.memory.as_ref().expect("made").cache();
        cache.free(&live, NO_FENCE).expect("open");
        cache.free(&self.others, NO_FENCE).expect("open");
        self.memory().resize(0, 2).expect("no fault any more");
        let backed = self.memory().backed(0).expect("a group");
        assert_eq!((backed.open, backed.backed), (2, 2));
        assert!(!self.pool.with_core(|core| core.recover()).expect("alive"), "all is back");
        self.check();
        self.contiguous = None;
        self.memory = None;
        assert_eq!(check_books(&self.driver, &self.pool).region_bytes, 0);
        device::end(&self.driver, self.pool, &[self.stream]);
    }
}

/// Beginning, growing and shrinking with sequences that come and go.
fn resizing(stage: &mut Stage) {
    if stage.memory.is_none() && !stage.make_memory() {
        return;
    }
    stage.sequence(9);
    for blocks in [20, 50, 11] {
        let before = stage.memory().backed(0).expect("a group");
        match stage.memory().resize(0, blocks) {
            Ok(backed) => assert_eq!(backed.open, blocks),
            Err(error) => {
                refused(&error);
                let after = stage.memory().backed(0).expect("a group");
                if blocks > before.backed {
                    assert_eq!(after, before, "a refused growth changes nothing");
                }
            }
        }
        stage.sequence(30);
        stage.check();
    }
    let handle = StreamHandle(stage.stream);
    _ = stage.driver.inner().spin(handle, 0);
    if let Some((seq, value)) = stage.live.pop() {
        match stage.memory().fence(&[stage.stream]) {
            Ok(fence) => stage.memory().cache().free(&[seq], fence).expect("open"),
            Err(error) => {
                refused(&error);
                stage.live.push((seq, value));
            }
        }
    }
    for _ in 0..2 {
        _ = stage.memory().resize(0, 4).inspect_err(refused);
        stage.check();
        stage.driver.inner().run_all();
        _ = stage.memory().poll().inspect_err(refused);
    }
    _ = stage.memory().resize(0, 16).inspect_err(refused);
}

/// Forks that write, and tables.
fn sending(stage: &mut Stage) {
    for _ in 0..3 {
        let cache = stage.memory().cache();
        let (seq, value) = stage.live[0];
        let mut forks = [Seq::from_raw(0)];
        cache.fork(seq, 9, &mut forks).expect("room");
        let room = cache.append(forks[0], Tokens::Count(1)).is_ok();
        // The copy brings the value; what was shared has it.
        match stage.memory().run_copies(stage.stream) {
            Ok(_) if room => {
                stage.driver.inner().run_all();
                stage.live.push((forks[0], value));
            }
            Ok(_) => stage.others.push(forks[0]),
            Err(error) => {
                refused(&error);
                assert!(stage.memory().cache().stats().copies > 0, "the copies are not lost");
                stage.others.push(forks[0]);
            }
        }
        let seqs: Vec<Seq> = stage.live.iter().map(|&(seq, _)| seq).collect();
        _ = stage.memory().sync_table(0, &seqs, stage.stream).inspect_err(refused);
        _ = stage.memory().poll().inspect_err(refused);
        stage.check();
    }
}

fn contiguous(stage: &mut Stage) {
    if stage.contiguous.is_none() {
        return;
    }
    let kv = stage.contiguous.as_ref().expect("made");
    let seqs: Vec<Seq> = (0..3).filter_map(|_| kv.open().inspect_err(refused).ok()).collect();
    for &seq in &seqs {
        stage.ranges.push((seq, 0, 0));
    }
    for (value, tokens) in [(1, 10), (2, 30), (3, 60), (4, 160)] {
        for &seq in &seqs {
            stage.ensure(seq, tokens, value);
        }
        _ = stage.contiguous.as_ref().expect("made").poll().inspect_err(refused);
        stage.check();
    }
    let Some((seq, tokens, value)) = stage.ranges.pop() else { return };
    let kv = stage.contiguous.as_ref().expect("made");
    match kv.fence(&[stage.stream]) {
        Ok(fence) => kv.free(&[seq], fence).expect("open"),
        Err(error) => {
            refused(&error);
            stage.ranges.push((seq, tokens, value));
        }
    }
    if let Some((seq, tokens, _)) = stage.ranges.first_mut() {
        *tokens /= 3;
        kv.truncate(*seq, *tokens, NO_FENCE).expect("it holds them");
    }
    for _ in 0..2 {
        _ = kv.poll().inspect_err(refused);
        _ = kv.release_kept().inspect_err(refused);
    }
}

struct Mode {
    times: Times,
    code: Option<Code>,
    besides: &'static [Call],
}

const fn mode(times: Times, code: Option<Code>, besides: &'static [Call]) -> Mode {
    Mode { times, code, besides }
}

const MODES: [Mode; 7] = [
    mode(Times::Once, None, &[]),
    mode(Times::Once, Some(Code::Other(999)), &[]),
    mode(Times::FromThenOn, None, &[]),
    mode(Times::FromThenOn, Some(Code::Other(999)), &[]),
    mode(Times::Once, None, &[Call::Unmap]),
    mode(Times::Once, None, &[Call::Release, Call::Unreserve]),
    mode(Times::Once, None, &[Call::EventCreate, Call::EventQuery]),
];

fn sweep(order: Order, prepare: fn(&mut Stage), act: fn(&mut Stage), kinds: &[Call]) {
    sweep_over((order, false), prepare, act, kinds);
}

/// Each call fails, once and for ever, with freed contents cleared or not.
fn sweep_over(
    (order, scrub): (Order, bool),
    prepare: fn(&mut Stage),
    act: fn(&mut Stage),
    kinds: &[Call],
) {
    let mut struck = BTreeSet::new();
    for (number, mode) in MODES.iter().enumerate() {
        for nth in 1.. {
            let caught = std::panic::AssertUnwindSafe(|| {
                let mut stage = Stage::new(order, scrub);
                prepare(&mut stage);
                stage.check();
                let driver = Arc::clone(&stage.driver);
                driver.reset_counts();
                driver.start_journal(4000);
                let calls = CallSet::ALL;
                driver.fail(Fault { calls, nth, times: mode.times, code: mode.code });
                if !mode.besides.is_empty() {
                    driver.fail(Fault::from_then_on(CallSet::of(mode.besides), 1));
                }
                act(&mut stage);
                let calls = driver.total();
                stage.check();
                driver.clear_faults();
                let failed = driver.stop_journal().into_iter().filter(|e| e.result.is_err());
                struck.extend(failed.map(|entry| entry.call));
                stage.finish();
                calls >= nth
            });
            match std::panic::catch_unwind(caught) {
                Ok(true) => assert!(nth < 2000, "mode {number} never ends"),
                Ok(false) => break,
                Err(panic) => {
                    eprintln!("mode {number}, call {nth}");
                    std::panic::resume_unwind(panic)
                }
            }
        }
    }
    for kind in kinds {
        assert!(struck.contains(kind), "{} never failed", kind.name());
    }
}

const KINDS: [Call; 5] = [Call::Create, Call::Map, Call::SetAccess, Call::Unmap, Call::EventRecord];

#[test]
fn growing_and_shrinking_blocks() {
    sweep(Order::BlockOuter, |_| {}, resizing, &KINDS);
}

#[test]
fn growing_and_shrinking_layers() {
    let made = |stage: &mut Stage| assert!(stage.make_memory());
    sweep(Order::LayerOuter, made, resizing, &KINDS);
}

#[test]
fn shrinking_with_contents_cleared() {
    let kinds = [Call::Unmap, Call::StreamCreate, Call::Fill, Call::StreamSynchronize];
    sweep_over((Order::LayerOuter, true), |_| {}, resizing, &kinds);
}

#[test]
fn copies_and_tables() {
    let prepare = |stage: &mut Stage| {
        assert!(stage.make_memory());
        stage.memory().resize(0, 20).expect("no fault yet");
        stage.sequence(9);
        let address = stage.pool.alloc(4096, 0).expect("no fault yet");
        let (rows, stride) = (8, 16);
        let (staging_bytes, staging_buffers) = (256, 6);
        let table = Table { group: 0, address, rows, stride, staging_bytes, staging_buffers };
        bind(stage.memory(), table).expect("no fault yet");
    };
    let kinds = [Call::Copy, Call::EventCreate, Call::EventRecord, Call::EventQuery];
    sweep(Order::BlockOuter, prepare, sending, &kinds);
    sweep(Order::LayerOuter, prepare, sending, &kinds);
}

#[test]
fn contiguous_sequences() {
    let prepare = |stage: &mut Stage| {
        assert!(stage.make_memory());
        let config = ContiguousConfig {
            groups: vec![stage.geometry],
            max_sequences: 4,
            max_tokens: 400,
            ahead_tokens: 12,
            keep_pages: 2,
        };
        let made = ContiguousKv::new(&stage.pool, config);
        stage.contiguous = Some(made.expect("nothing fails yet"));
    };
    let kinds = [Call::Reserve, Call::Create, Call::Map, Call::SetAccess, Call::Unmap];
    sweep(Order::BlockOuter, prepare, contiguous, &kinds);
    sweep(Order::LayerOuter, prepare, contiguous, &kinds);
}
