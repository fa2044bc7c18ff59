//! Replay and comparators on small traces whose figures are worked out by hand.

use std::sync::{Arc, Mutex};

use forebay::driver::Call;
use forebay::driver::host::{HostDriver, HostOptions};
use forebay_cli::baseline::direct::Direct;
use forebay_cli::baseline::size_class::SizeClass;
use forebay_cli::progress::Progress;
use forebay_cli::replay::{Options, Search, run, run_threads, smallest_device, warmup_events};
use forebay_cli::target::{SharedTarget, Target, TargetError, TargetStats};
use forebay_cli::trace::{Trace, parse_bytes};

const MIB: u64 = 1 << 20;
const EVERY: Options = Options { touch: false, stats_every: 1 };

/// Six events: 1000 B and 3 MiB, the first freed, 1,500,000 B, then both freed.
/// Live: 1000, 3146728, 3145728, 4645728, 1500000, 0.
fn six() -> Trace {
    let text = "step,ev,id,bytes,stream,op\n0,a,0,1000,0,\n0,a,1,3145728,0,\n1,f,0,,,\n\
        1,a,2,1500000,0,\n2,f,1,,,\n2,f,2,,,\n";
    parse_bytes("six", text.as_bytes()).expect("sound")
}

/// A device that only counts: a cap on live bytes, and a list of what was freed where.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<CounterState>>);

#[derive(Default)]
struct CounterState {
    cap: u64,
    blocks: std::collections::HashMap<u64, u64>,
    given: u64,
    stats: TargetStats,
    streams: Vec<u32>,
}

impl Counter {
    fn new(cap: u64) -> Counter {
        let counter = Counter::default();
        counter.0.lock().expect("sound").cap = cap;
        counter
    }
}

impl Target for Counter {
    fn alloc(&mut self, bytes: u64, stream: u32) -> Result<u64, TargetError> {
        let mut state = self.0.lock().expect("sound");
        if state.stats.requested_bytes + bytes > state.cap {
            return Err(TargetError { oom: true, text: "no room".to_string() });
        }
        state.given += 1;
        let address = state.given * 0x1000;
        state.blocks.insert(address, bytes);
        state.streams.push(stream);
        state.stats.requested_bytes += bytes;
        state.stats.live_bytes += bytes;
        state.stats.calls.add(Call::AllocPlain, 1);
        state.stats.trapped_bytes = state.stats.requested_bytes / 10;
        let live = state.stats.live_bytes;
        state.stats.peak_mapped_bytes = state.stats.peak_mapped_bytes.max(live);
        Ok(address)
    }

    fn free(&mut self, address: u64, _stream: u32) -> Result<(), TargetError> {
        let mut state = self.0.lock().expect("sound");
        let Some(bytes) = state.blocks.remove(&address) else {
            return Err(TargetError::other("not live"));
        };
        state.stats.requested_bytes -= bytes;
        state.stats.live_bytes -= bytes;
        state.stats.pages_moved += 1;
        state.stats.trapped_bytes = state.stats.requested_bytes / 10;
        Ok(())
    }

    fn touch(&mut self, _: u64, _: u64, _: u32) -> Result<(), TargetError> {
        Err(TargetError::other("nothing to touch"))
    }

    fn stats(&self) -> TargetStats {
        self.0.lock().expect("sound").stats
    }
}

impl SharedTarget for Counter {
    fn share(&self) -> Result<Counter, TargetError> {
        Ok(self.clone())
    }
}

#[test]
fn the_figures_are_those_of_the_events() {
    let trace = six();
    let mut target = Counter::new(u64::MAX);
    let outcome = run(&trace, &mut target, EVERY, &mut Progress::hidden()).expect("plays");
    assert_eq!((outcome.events, outcome.peak_live_bytes), (6, 4_645_728));
    // Warm-up is the first two events: two calls; one more follows. Frees "move" a page.
    assert_eq!(warmup_events(6), 2);
    assert_eq!(outcome.end.calls.total(), 3);
    assert_eq!(outcome.calls_after_warmup(), 1);
    assert_eq!((outcome.end.pages_moved, outcome.moved_after_warmup()), (3, 3));
    // A tenth of the live bytes after each event: 100, 314672, 314572, 464572, 150000, 0.
    assert_eq!(outcome.watch.trapped_peak_bytes, 464_572);
    assert_eq!(outcome.watch.trapped_mean_bytes(), 1_243_916 / 6);
    assert_eq!((outcome.leaked_bytes, outcome.left_bytes), (0, 0));
}

#[test]
fn json_has_the_promised_fields() {
    let outcome =
        run(&six(), &mut SizeClass::new(), EVERY, &mut Progress::hidden()).expect("plays");
    let json = outcome.json("six", 7, Some(9));
    let fields: Vec<&str> =
        json.as_object().expect("an object").keys().map(String::as_str).collect();
    let promised = [
        "device_bytes",
        "driver_calls",
        "driver_calls_after_warmup",
        "driver_calls_by_kind",
        "events",
        "leaked_bytes",
        "left_by_trace_bytes",
        "ns_per_event",
        "ns_per_event_after_warmup",
        "pages_moved",
        "pages_moved_after_first_third",
        "peak_live_bytes",
        "peak_mapped_bytes",
        "smallest_device_bytes",
        "threads",
        "trace",
        "trapped_mean_bytes",
        "trapped_peak_bytes",
    ];
    assert_eq!(fields, promised);
    assert_eq!(json["trace"], "six");
    assert_eq!(json["smallest_device_bytes"], 9);
    assert!(outcome.json("six", 7, None).get("smallest_device_bytes").is_none());
    // 1000 B: a segment of 2 MiB. 3 MiB: 4 MiB. 1,500,000 B: 2 MiB more, of another class.
    assert_eq!(json["peak_mapped_bytes"], 8 * MIB);
    assert_eq!(json["driver_calls_by_kind"], serde_json::json!({"alloc_plain": 3}));
    // Trapped while the block of 1000 B (class of 1024 B) is live: twice of six samples.
    assert_eq!(json["trapped_peak_bytes"], 2 * MIB - 1024);
    assert_eq!(json["trapped_mean_bytes"], 2 * (2 * MIB - 1024) / 6);
}

#[test]
fn one_driver_allocation_a_request_maps_what_is_live() {
    let options = HostOptions { total_bytes: 64 << 20, ..HostOptions::default() };
    let driver = Arc::new(HostDriver::new(options).expect("a host device"));
    let mut direct = Direct::new(driver.clone());
    let touching = Options { touch: true, stats_every: 1 };
    let outcome = run(&six(), &mut direct, touching, &mut Progress::hidden()).expect("plays");
    // In units of 512 B: 3145728 is whole, 1500000 becomes 1500160.
    assert_eq!(outcome.end.peak_mapped_bytes, 3_145_728 + 1_500_160);
    assert_eq!(outcome.end.calls.of(Call::AllocPlain), 3);
    assert_eq!(outcome.end.calls.of(Call::FreePlain), 3);
    assert_eq!(outcome.calls_after_warmup(), 4);
    assert_eq!((outcome.watch.trapped_peak_bytes, outcome.leaked_bytes), (0, 0));
    assert_eq!(driver.census().plain_allocs, 0);
}

#[test]
fn what_the_trace_leaves_is_freed_and_told_apart_from_leaks() {
    let text = "step,ev,id,bytes,stream,op\n0,a,0,1000,0,\n0,a,1,500,0,\n0,f,0,,,\n";
    let trace = parse_bytes("left", text.as_bytes()).expect("sound");
    let mut target = Counter::new(u64::MAX);
    let outcome = run(&trace, &mut target, EVERY, &mut Progress::hidden()).expect("plays");
    assert_eq!((outcome.left_bytes, outcome.leaked_bytes), (500, 0));
    assert_eq!(target.stats().live_bytes, 0);
}

#[test]
fn a_failure_names_the_event_and_frees_what_was_live() {
    let trace = six();
    let mut target = Counter::new(4_000_000);
    let error = run(&trace, &mut target, EVERY, &mut Progress::hidden()).expect_err("too small");
    assert_eq!(error.to_string(), "six: event 4 (allocate 1500000 bytes): no room");
    assert!(error.cause.oom);
    assert_eq!(target.stats().live_bytes, 0);
}

#[test]
fn an_empty_trace_plays() {
    let trace = parse_bytes("none", b"step,ev,id,bytes,stream,op\n").expect("sound");
    let mut target = Counter::new(0);
    let outcome = run(&trace, &mut target, EVERY, &mut Progress::hidden()).expect("plays");
    assert_eq!((outcome.events, outcome.peak_live_bytes), (0, 0));
    assert_eq!((outcome.ns_per_event(), outcome.ratio()), (0.0, 1.0));
}

#[test]
fn threads_share_one_target_and_all_must_finish() {
    let trace = six();
    let mut target = Counter::new(u64::MAX);
    let outcome =
        run_threads(&trace, &mut target, 4, EVERY, &mut Progress::hidden()).expect("plays");
    assert_eq!((outcome.events, outcome.threads), (24, 4));
    assert_eq!(outcome.end.calls.total(), 12);
    assert_eq!(outcome.calls_after_warmup(), 4);
    assert_eq!(outcome.leaked_bytes, 0);
    let peak = outcome.peak_live_bytes;
    assert!((4_645_728..=4 * 4_645_728).contains(&peak), "{peak}");
    let mut small = Counter::new(4 * 1000 + 3 * 3_145_728);
    let error = run_threads(&trace, &mut small, 4, EVERY, &mut Progress::hidden());
    assert!(error.expect_err("too small for four").cause.oom);
    assert_eq!(small.stats().live_bytes, 0);
}

#[test]
fn bisection_finds_the_smallest_device_to_a_page() {
    let trace = six();
    let search = Search { page_bytes: 4096, peak_mapped_bytes: 40 * MIB, options: EVERY };
    let mut tried = 0;
    let open = |bytes| {
        tried += 1;
        Ok(Counter::new(bytes))
    };
    let found = smallest_device(&trace, search, open, &mut Progress::hidden()).expect("found");
    assert_eq!(found, 4_645_728_u64.next_multiple_of(4096));
    assert!(tried <= 16, "{tried} replays for a range of 9106 pages");
}

#[test]
fn the_search_steps_up_when_the_uncapped_peak_does_not_suffice() {
    let trace = six();
    let search = Search { page_bytes: 4096, peak_mapped_bytes: 0, options: EVERY };
    // A target that needs a quarter more than is live.
    let open = |bytes: u64| Ok(Counter::new(bytes / 5 * 4));
    let found = smallest_device(&trace, search, open, &mut Progress::hidden()).expect("found");
    assert!(found / 5 * 4 >= 4_645_728, "{found}");
    assert!((found - 4096) / 5 * 4 < 4_645_728, "{found}");
    let hopeless = |_| Ok(Counter::new(1000));
    let error = smallest_device(&trace, search, hopeless, &mut Progress::hidden());
    assert!(error.expect_err("never").cause.oom);
}

#[test]
fn an_error_that_is_not_about_memory_ends_the_search() {
    let trace = six();
    let search = Search { page_bytes: 4096, peak_mapped_bytes: MIB, options: EVERY };
    let open = |_| -> Result<Counter, TargetError> { Err(TargetError::other("no driver")) };
    let error = smallest_device(&trace, search, open, &mut Progress::hidden());
    assert_eq!(error.expect_err("no driver").to_string(), "six: make the pool: no driver");
}
