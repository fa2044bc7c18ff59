//! The engine alone, over a memory that is a table of numbers: order, lateness, faults.

mod captures;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::host::{HostCall, HostTarget, in_callback};
use super::stream::{Caller, LEGACY, NON_BLOCKING, PER_THREAD};
use super::*;

const CONTEXT: Context = 0xC0;

/// A memory in which one range may be forbidden.
#[derive(Default)]
struct Table {
    forbidden: Mutex<Option<Range>>,
}

impl MemoryCheck for Table {
    fn guarded(
        &self,
        reads: &[Range],
        writes: &[Range],
        body: &mut dyn FnMut(View<'_>),
    ) -> Result<(), RangeFault> {
        let forbidden = *self.forbidden.lock().unwrap();
        for (ranges, write) in [(reads, false), (writes, true)] {
            if let Some(range) = ranges.iter().find(|r| Some(**r) == forbidden) {
                return Err(RangeFault { range: *range, write, why: "unmapped".into() });
            }
        }
        body(&|at| at);
        Ok(())
    }

    fn free(&self, _at: u64) {}
}

struct Rig {
    engine: Arc<Engine>,
    memory: Arc<Table>,
    clock: Arc<Clock>,
    misuse: Arc<Mutex<Vec<String>>>,
    log: Arc<Mutex<Vec<u32>>>,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig::with(Options { seed, idle_ms: 0, ..Options::default() })
    }

    fn with(options: Options) -> Rig {
        let memory = Arc::new(Table::default());
        let misuse = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&misuse);
        let report: Misuse = Arc::new(move |_, text| sink.lock().unwrap().push(text));
        let clock = Arc::new(Clock::default());
        let checked = Arc::clone(&memory) as Arc<dyn MemoryCheck>;
        let engine = Engine::with(options, checked, Arc::clone(&clock), report);
        Rig { engine, memory, clock, misuse, log: Arc::default() }
    }

    fn stream(&self, flags: u32) -> Uid {
        let handle = self.engine.create_stream(CONTEXT, 0, flags, 0).unwrap();
        self.uid(handle)
    }

    fn uid(&self, handle: u64) -> Uid {
        let caller = Caller { context: Some(CONTEXT), device: 0, per_thread: false };
        self.engine.stream(handle, caller).unwrap().uid
    }

    fn event(&self) -> u64 {
        self.engine.create_event(CONTEXT, 0).unwrap()
    }

    /// An item that writes `mark` into the log.
    fn item(&self, mark: u32) -> Action {
        let log = Arc::clone(&self.log);
        work(move || log.lock().unwrap().push(mark))
    }

    fn queue(&self, uid: Uid, mark: u32) {
        self.engine.submit(uid, self.item(mark), 1.0).unwrap();
    }

    fn count(&self, name: &str) -> u64 {
        self.engine.counts().iter().find(|(n, _)| *n == name).unwrap().1
    }

    fn drain(&self) -> Vec<u32> {
        self.engine.wait(CONTEXT, &self.engine.context_tail(CONTEXT)).unwrap();
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

fn work(body: impl Fn() + Send + Sync + 'static) -> Action {
    ranged(Vec::new(), body)
}

fn ranged(writes: Vec<Range>, body: impl Fn() + Send + Sync + 'static) -> Action {
    let body: Body = Arc::new(move |_| {
        body();
        Ok(())
    });
    Action::Work(Work { label: "test", kind: Kind::Memcpy, reads: Vec::new(), writes, body })
}

fn position(order: &[u32], mark: u32) -> usize {
    order.iter().position(|m| *m == mark).unwrap_or_else(|| panic!("{mark} in {order:?}"))
}

#[test]
fn independent_streams_run_out_of_order_and_one_stream_never_does() {
    let mut inverted = 0;
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (a, b) = (rig.stream(0), rig.stream(NON_BLOCKING));
        for i in 0..6 {
            rig.queue(a, i);
            rig.queue(b, 100 + i);
        }
        let order = rig.drain();
        let of_a: Vec<u32> = order.iter().copied().filter(|m| *m < 100).collect();
        let of_b: Vec<u32> = order.iter().copied().filter(|m| *m >= 100).collect();
        assert_eq!(of_a, [0, 1, 2, 3, 4, 5], "seed {seed}");
        assert_eq!(of_b, [100, 101, 102, 103, 104, 105], "seed {seed}");
        inverted += usize::from((0..6).any(|i| position(&order, 100 + i) < position(&order, i)));
    }
    assert!(inverted > 0, "no seed of 20 showed an inversion");
    assert!(inverted < 20 || cfg!(miri), "every seed inverted: is the order really drawn?");
}

#[test]
fn an_event_orders_two_streams_in_every_seed() {
    for seed in 0..200 {
        let rig = Rig::new(seed);
        let (a, b) = (rig.stream(NON_BLOCKING), rig.stream(NON_BLOCKING));
        let event = rig.event();
        rig.queue(a, 1);
        rig.engine.record(event, a, 0).unwrap();
        rig.queue(a, 2);
        rig.engine.stream_wait(b, event, 0).unwrap();
        // Moving the mark later does not move the wait.
        rig.engine.record(event, a, 0).unwrap();
        rig.queue(b, 3);
        rig.engine.wait(CONTEXT, &rig.engine.tail(b)).unwrap();
        let order = rig.log.lock().unwrap().clone();
        assert!(position(&order, 1) < position(&order, 3), "seed {seed}: {order:?}");
    }
}

#[test]
fn the_wait_takes_the_mark_of_its_own_time() {
    // Were the wait to follow the second record, 2 would have run in every seed.
    let without_two = (0..50).filter(|seed| {
        let rig = Rig::new(*seed);
        let (a, b) = (rig.stream(NON_BLOCKING), rig.stream(NON_BLOCKING));
        let event = rig.event();
        rig.queue(a, 1);
        rig.engine.record(event, a, 0).unwrap();
        rig.engine.stream_wait(b, event, 0).unwrap();
        rig.queue(a, 2);
        rig.engine.record(event, a, 0).unwrap();
        rig.queue(b, 3);
        rig.engine.wait(CONTEXT, &rig.engine.tail(b)).unwrap();
        !rig.log.lock().unwrap().contains(&2)
    });
    assert!(without_two.count() > 10);
}

#[test]
fn an_event_never_recorded_holds_nobody_up() {
    let rig = Rig::with(Options { mode: Schedule::Stepped, ..Options::default() });
    let a = rig.stream(0);
    let event = rig.event();
    rig.engine.stream_wait(a, event, 0).unwrap();
    assert_eq!(rig.engine.event_points("query", event).unwrap(), []);
    rig.queue(a, 1);
    assert_eq!(rig.drain(), [1]);
}

#[test]
fn the_legacy_stream_meets_blocking_streams_and_not_others() {
    let mut overtaken = 0;
    for seed in 0..100 {
        let rig = Rig::new(seed);
        let (blocking, free) = (rig.stream(0), rig.stream(NON_BLOCKING));
        let (legacy, own) = (rig.uid(0), rig.uid(PER_THREAD));
        assert_eq!(legacy, rig.uid(LEGACY));
        rig.queue(blocking, 1);
        rig.queue(own, 2);
        rig.queue(free, 3);
        rig.queue(legacy, 10);
        rig.queue(blocking, 21);
        rig.queue(own, 22);
        rig.queue(free, 23);
        let order = rig.drain();
        for earlier in [1, 2] {
            assert!(position(&order, earlier) < position(&order, 10), "seed {seed}: {order:?}");
        }
        for later in [21, 22] {
            assert!(position(&order, 10) < position(&order, later), "seed {seed}: {order:?}");
        }
        let crossed = position(&order, 3) > position(&order, 10)
            || position(&order, 23) < position(&order, 10);
        overtaken += usize::from(crossed);
    }
    assert!(overtaken > 20, "non-blocking streams look ordered: {overtaken} of 100");
}

#[test]
fn a_destroyed_stream_completes_and_its_handle_serves_another() {
    let mut reused = 0;
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let handle = rig.engine.create_stream(CONTEXT, 0, 0, 0).unwrap();
        let old = rig.uid(handle);
        rig.queue(old, 1);
        let points = rig.engine.tail(old);
        rig.engine.destroy_stream(handle).unwrap();
        assert_eq!(rig.engine.destroy_stream(handle), Err(code::INVALID_HANDLE));
        assert!(rig.misuse.lock().unwrap()[0].contains("destroyed"));
        let next = rig.engine.create_stream(CONTEXT, 0, 0, 0).unwrap();
        if next == handle {
            reused += 1;
            assert_ne!(rig.uid(next), old);
        }
        assert_eq!(rig.count("pending"), 1, "work must outlive its stream");
        rig.engine.wait(CONTEXT, &points).unwrap();
        assert_eq!(*rig.log.lock().unwrap(), [1]);
    }
    assert!(reused > 5, "handles are not reused: {reused} of 20");
}

#[test]
fn late_work_waits_for_somebody_and_comes_by_itself_in_the_end() {
    let rig = Rig::new(3);
    let a = rig.stream(0);
    rig.queue(a, 1);
    assert!(rig.log.lock().unwrap().is_empty(), "ran inside the call that queued it");
    let mut calls = 0;
    while rig.log.lock().unwrap().is_empty() {
        rig.engine.tick();
        calls += 1;
        assert!(calls < 10_000);
    }
    let idle = Rig::with(Options { idle_ms: 1, ..Options::default() });
    let a = idle.stream(0);
    idle.queue(a, 1);
    while idle.log.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn stepped_runs_only_what_is_asked_for_and_eager_everything() {
    let rig = Rig::with(Options { mode: Schedule::Stepped, ..Options::default() });
    let a = rig.stream(0);
    (0..4).for_each(|i| rig.queue(a, i));
    (0..1000).for_each(|_| rig.engine.tick());
    assert_eq!(rig.count("pending"), 4);
    assert_eq!(rig.engine.step(3), 3);
    assert_eq!(*rig.log.lock().unwrap(), [0, 1, 2]);
    let rig = Rig::with(Options { mode: Schedule::Eager, ..Options::default() });
    let a = rig.stream(0);
    (0..4).for_each(|i| rig.queue(a, i));
    rig.engine.tick();
    assert_eq!(*rig.log.lock().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn one_seed_is_one_order() {
    let order = |seed| {
        let rig = Rig::new(seed);
        let streams: Vec<Uid> = (0..5).map(|_| rig.stream(NON_BLOCKING)).collect();
        for i in 0..40 {
            rig.queue(streams[i as usize % 5], i);
            rig.engine.tick();
        }
        rig.drain()
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
}

#[test]
fn a_wait_runs_what_a_spinning_item_needs() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (a, b) = (rig.stream(NON_BLOCKING), rig.stream(NON_BLOCKING));
        let flag = Arc::new(AtomicBool::new(false));
        let (seen, set) = (Arc::clone(&flag), Arc::clone(&flag));
        let Action::Work(spin) = rig.item(1) else { unreachable!() };
        let spin = Action::Until(spin, Arc::new(move |_| seen.load(Ordering::SeqCst)));
        rig.engine.submit(a, spin, 1.0).unwrap();
        rig.engine.submit(b, work(move || set.store(true, Ordering::SeqCst)), 1.0).unwrap();
        rig.engine.wait(CONTEXT, &rig.engine.tail(a)).unwrap();
        assert_eq!(*rig.log.lock().unwrap(), [1], "seed {seed}");
    }
}

#[test]
fn an_inaccessible_range_stops_the_item_and_sticks() {
    let rig = Rig::new(1);
    let a = rig.stream(0);
    let bad = Range { start: 0x1000, len: 16, device: 0, copy: false };
    *rig.memory.forbidden.lock().unwrap() = Some(bad);
    let log = Arc::clone(&rig.log);
    let item = ranged(vec![bad], move || log.lock().unwrap().push(1));
    rig.engine.submit(a, item, 1.0).unwrap();
    rig.queue(a, 2);
    let waited = rig.engine.wait(CONTEXT, &rig.engine.tail(a));
    assert_eq!(waited, Err(code::ILLEGAL_ADDRESS));
    assert_eq!(rig.engine.sticky(CONTEXT), Some(code::ILLEGAL_ADDRESS));
    assert!(rig.log.lock().unwrap().is_empty(), "nothing runs after a fault");
    let misuse = rig.misuse.lock().unwrap();
    assert_eq!(misuse.len(), 1);
    assert!(misuse[0].contains("writes 0x1000..0x1010: unmapped; stream 0x7351"), "{misuse:?}");
    assert_eq!(rig.engine.sticky(CONTEXT + 1), None);
}

static CALLED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn note_call(data: *mut c_void) {
    assert!(in_callback());
    // SAFETY: the tests give a leaked counter.
    let counter = unsafe { &*(data as *const AtomicUsize) };
    counter.fetch_add(1, Ordering::SeqCst);
    CALLED.fetch_add(1, Ordering::SeqCst);
}

fn counter() -> (&'static AtomicUsize, usize) {
    let counter: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    (counter, std::ptr::from_ref(counter) as usize)
}

#[test]
fn a_host_function_runs_in_its_place_on_another_thread() {
    for seed in 0..10 {
        let rig = Rig::new(seed);
        let a = rig.stream(0);
        let (count, data) = counter();
        rig.queue(a, 1);
        let call = HostCall { target: HostTarget::Function(note_call), data };
        rig.engine.submit(a, Action::Host(call), 0.0).unwrap();
        let log = Arc::clone(&rig.log);
        let after = work(move || log.lock().unwrap().push(count.load(Ordering::SeqCst) as u32));
        rig.engine.submit(a, after, 0.0).unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 0);
        assert_eq!(rig.drain(), [1, 1]);
        assert!(!in_callback());
    }
}

#[test]
fn context_events_cover_every_stream_and_hold_every_stream() {
    for seed in 0..50 {
        let rig = Rig::new(seed);
        let (a, b) = (rig.stream(0), rig.stream(NON_BLOCKING));
        let event = rig.event();
        rig.queue(a, 1);
        rig.queue(b, 2);
        rig.engine.record_context(event, CONTEXT, 0).unwrap();
        rig.queue(a, 3);
        let points = rig.engine.event_points("query", event).unwrap();
        assert!(!rig.engine.all_passed(&points));
        rig.engine.wait(CONTEXT, &points).unwrap();
        let seen = rig.log.lock().unwrap().clone();
        assert!(seen.contains(&1) && seen.contains(&2), "seed {seed}: {seen:?}");
        let (x, other) = (rig.stream(NON_BLOCKING), rig.event());
        rig.queue(x, 4);
        rig.engine.record(other, x, 0).unwrap();
        rig.engine.context_waits(other, CONTEXT).unwrap();
        let late = rig.stream(NON_BLOCKING);
        rig.queue(late, 5);
        let order = rig.drain();
        assert!(position(&order, 4) < position(&order, 5), "seed {seed}: {order:?}");
    }
}

#[test]
fn elapsed_time_is_virtual_and_needs_both_marks_passed() {
    let rig = Rig::new(1);
    let a = rig.stream(0);
    let (start, end) = (rig.event(), rig.event());
    assert_eq!(rig.engine.elapsed_ms(start, end), Err(code::INVALID_HANDLE));
    rig.clock.advance_ns(100_000);
    rig.engine.record(start, a, 0).unwrap();
    rig.engine.submit(a, rig.item(1), 1500.0).unwrap();
    rig.clock.advance_ns(1_000);
    rig.engine.record(end, a, 0).unwrap();
    assert_eq!(rig.engine.elapsed_ms(start, end), Err(code::NOT_READY));
    rig.drain();
    assert_eq!(rig.engine.elapsed_ms(start, end), Ok(1.5));
    assert_eq!(rig.clock.now_ns(), 1_600_000, "waiting takes the host to the work's end");
    let untimed = rig.engine.create_event(CONTEXT, event::DISABLE_TIMING).unwrap();
    assert_eq!(rig.engine.elapsed_ms(start, untimed), Err(code::INVALID_HANDLE));
    assert_eq!(rig.engine.create_event(CONTEXT, event::INTERPROCESS), Err(code::INVALID_VALUE));
}

/// A random program over 8 streams and 12 cells whose conflicts are all ordered by events; `skip`
/// leaves that wait out. Gives the cells after it, and those of the same program in order.
fn random_program(seed: u64, skip: Option<usize>) -> (Vec<u64>, Vec<u64>, usize) {
    const CELLS: usize = 12;
    let rig = Rig::new(seed);
    let mut rng = Rng::new(seed ^ 0xABCD);
    let streams: Vec<Uid> = (0..8).map(|_| rig.stream(NON_BLOCKING)).collect();
    let cells: Arc<Vec<AtomicU64>> = Arc::new((0..CELLS).map(|_| AtomicU64::new(0)).collect());
    let mut expected = vec![0u64; CELLS];
    let mut touched: Vec<BTreeMap<usize, bool>> = vec![BTreeMap::new(); CELLS];
    let mut waits = 0;
    for step in 1..=80u64 {
        let on = rng.below(8) as usize;
        let (from, to) = (rng.below(12) as usize, rng.below(12) as usize);
        let mut before: Vec<usize> = touched[to].keys().copied().collect();
        before.extend(touched[from].iter().filter(|(_, wrote)| **wrote).map(|(s, _)| *s));
        for other in before.into_iter().filter(|s| *s != on) {
            waits += 1;
            if skip == Some(waits) {
                continue;
            }
            let event = rig.event();
            rig.engine.record(event, streams[other], 0).unwrap();
            rig.engine.stream_wait(streams[on], event, 0).unwrap();
            rig.engine.destroy_event(event).unwrap();
        }
        let shared = Arc::clone(&cells);
        let copy = work(move || {
            let value = shared[from].load(Ordering::Relaxed).wrapping_mul(31).wrapping_add(step);
            shared[to].store(value, Ordering::Relaxed);
        });
        rig.engine.submit(streams[on], copy, 1.0).unwrap();
        rig.engine.tick();
        expected[to] = expected[from].wrapping_mul(31).wrapping_add(step);
        touched[to].clear();
        touched[to].insert(on, true);
        touched[from].entry(on).or_insert(false);
    }
    rig.drain();
    (cells.iter().map(|c| c.load(Ordering::Relaxed)).collect(), expected, waits)
}

#[test]
fn ordered_programs_give_what_the_program_order_gives() {
    for seed in 0..200 {
        let (found, expected, _) = random_program(seed, None);
        assert_eq!(found, expected, "seed {seed}");
    }
}

#[test]
fn a_missing_wait_is_seen() {
    // Most waits are implied by others; but each program has some without which it goes wrong.
    for seed in 0..10 {
        let waits = random_program(seed, None).2;
        let wrong = (1..=waits).filter(|skip| {
            let (found, expected, _) = random_program(seed, Some(*skip));
            found != expected
        });
        assert!(wrong.count() > 0, "seed {seed}: no wait of {waits} was needed");
    }
}
