//! The CUDA backend under faults: the Nth call of the simulated driver fails, for every N.
//!
//! The scenarios are those of `faults`, here with every single call of CUDA's counted: contexts
//! pushed and popped, capture modes, questions, and the memory calls themselves. A call fails
//! once, or all do from then on until the fault is lifted, with the codes that CUDA may give;
//! undoing is made impossible besides; calls stall. After each run: contents of live blocks, the
//! pool's books, the thread's context and capture mode, then without faults the next calls, and
//! at the end nothing left by the simulation's count and nothing in its list of misuse.
//!
//! One process a scenario, one world a run. A sample of N by default, every N and many seeds of
//! the scheduler in the ignored tests. `FOREBAY_TEST_TRACE=1` prints each run. Cost: some 30 s.

#[path = "common/children.rs"]
mod children;
#[path = "common/device.rs"]
mod common;
#[path = "common/cuda.rs"]
mod cuda;
#[path = "cuda_faults/device.rs"]
mod device;
#[path = "cuda_faults/loss.rs"]
mod loss;
#[path = "faults/lost.rs"]
mod lost;
#[path = "cuda_faults/opening.rs"]
mod opening;
#[path = "cuda_faults/plain.rs"]
mod plain;
#[path = "faults/scenarios.rs"]
mod scenarios;
#[path = "faults/shared.rs"]
mod shared;
#[path = "faults/stage.rs"]
#[allow(dead_code, reason = "calls that were failed are not told by kind here")]
mod stage;

use cuda::Sim;
use device::{Device, Fault};
use forebay::pool::registry;
use scenarios::*;
use shared::{CAPTURE, EXPORT, PEERS};
use stage::{Scenario, Stage};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// The seed of the worlds' schedulers.
pub static SEED: AtomicU64 = AtomicU64::new(1);

/// All scenarios.
const ALL: [Scenario; 16] = [
    CREATE,
    SMALL,
    LARGE,
    GATHER,
    GATHER_WHEN_IDLE,
    TRIM,
    ASYNC,
    LITTLE_MEMORY,
    QUESTIONS,
    BUFFERS,
    STREAMS,
    DESTROY,
    MORE_SPACE,
    PEERS,
    EXPORT,
    CAPTURE,
];

const fn once(code: u32) -> Fault {
    Fault { nth: 1, verb: "fail", always: false, code, besides: &[] }
}

const fn for_ever(code: u32) -> Fault {
    Fault { always: true, ..once(code) }
}

const fn besides(statements: &'static [&'static str]) -> Fault {
    Fault { besides: statements, ..once(2) }
}

/// Ways for calls to fail. 2 is what runs out, 1 and 304 are what nobody expects, 999 and 801
/// refusals of the platform's.
const MODES: [Fault; 11] = [
    once(2),
    once(1),
    once(304),
    once(801),
    once(999),
    for_ever(2),
    for_ever(999),
    besides(&["fail cuMemUnmap always with 2"]),
    besides(&["fail cuMemRelease always with 999", "fail cuEventDestroy always with 999"]),
    besides(&["fail cuMemAddressFree always with 1", "fail cuEventQuery always with 999"]),
    besides(&[
        "fail cuEventCreate always with 2",
        "fail cuEventRecord always with 999",
        "fail cuCtxRecordEvent always with 999",
    ]),
];

/// Calls that take long.
const STALLS: Fault = Fault {
    nth: 0,
    verb: "fail",
    always: false,
    code: 0,
    besides: &["stall cuMemUnmap 2ms", "stall cuMemSetAccess 2ms", "stall any 500us #7"],
};

/// No scenario needs more calls than this.
const CALLS_MAX: u64 = 20_000;

/// Ends a stream's lanes in the stage's pool.
fn retire(stream: u64) -> bool {
    registry::retire_stream(stream).is_ok()
}

/// Nothing is left in the world, contexts included, and nothing was wrong in it.
fn check_world() {
    let sim = Sim::open();
    sim.assert_no_misuse();
    sim.assert_nothing_left();
    assert_eq!(sim.live("contexts"), 0, "a reference to the primary context is left");
}

/// One run under a fault. Answers whether the run had a call of that number.
fn run(scenario: &Scenario, fault: Fault) -> bool {
    let mut stage = Stage::new(scenario);
    (scenario.prepare)(&mut stage);
    stage.check();
    stage.driver.arm(fault);
    (scenario.act)(&mut stage);
    let calls = stage.driver.calls();
    stage.driver.own(|_| stage.check());
    stage.driver.clear_faults();
    stage.finish();
    check_world();
    device::check_journal(fault);
    fault.nth > 0 && calls >= fault.nth
}

/// [`run`], naming the run when it panics.
fn run_named(scenario: &Scenario, fault: Fault) -> bool {
    let seed = SEED.load(Ordering::Relaxed);
    if std::env::var_os("FOREBAY_TEST_TRACE").is_some() {
        eprintln!("run: {} {fault:?} seed {seed}", scenario.name);
    }
    catch_unwind(AssertUnwindSafe(|| run(scenario, fault))).unwrap_or_else(|panic| {
        eprintln!("scenario {}: {fault:?}, seed {seed}", scenario.name);
        resume_unwind(panic)
    })
}

/// Runs of a scenario: every `stride`th call, each mode beginning elsewhere.
fn sweep(scenario: &Scenario, modes: &[Fault], stride: u64) -> u64 {
    let mut runs = 0;
    for (i, mode) in modes.iter().enumerate() {
        let mut nth = 1 + (i as u64 * 5 + SEED.load(Ordering::Relaxed)) % stride;
        while run_named(scenario, Fault { nth, ..*mode }) {
            nth += stride;
            runs += 1;
            assert!(nth < CALLS_MAX, "{}: {mode:?} never ends", scenario.name);
        }
    }
    runs
}

/// What a child is to do: `scenario|kind|stride|seeds`.
const TASK: &str = "FOREBAY_TEST_TASK";

/// The bodies of child processes; does nothing in any other.
#[test]
fn child_process() {
    if children::scenario().is_none() {
        return;
    }
    let task = std::env::var(TASK).expect("the parent says");
    let mut words = task.split('|');
    let mut next = || words.next().expect("four words");
    let (name, kind) = (next(), next());
    let mut number = || next().parse::<u64>().expect("a number");
    let (stride, seeds) = (number(), number());
    let scenario = ALL.iter().find(|s| s.name == name);
    let mut runs = 0;
    for seed in 1..=seeds {
        SEED.store(seed, Ordering::Relaxed);
        let scenario = || scenario.expect("a scenario of this name");
        runs += match kind {
            "fail" => sweep(scenario(), &MODES, stride),
            "every" => sweep(scenario(), &[MODES[0], MODES[4], MODES[6], MODES[7]], stride),
            "seeds" => sweep(scenario(), &[MODES[seed as usize % MODES.len()]], stride),
            "stall" => u64::from(!run_named(scenario(), STALLS)),
            "lose" => loss::sweep(scenario(), stride),
            "open" => opening::sweep(stride),
            "plain" => plain::sweep(stride),
            other => panic!("no kind {other}"),
        };
    }
    device::drop_journal();
    println!("{name}, {kind}: {runs} runs of {seeds} seeds");
    assert!(runs > 0, "no run at all");
    println!("scenario done");
}

/// A child with this task, in worlds with these settings besides.
fn child(name: &str, kind: &str, stride: u64, seeds: u64, world: &str) {
    let library = cuda::library().to_str().expect("UTF-8");
    let task = format!("{name}|{kind}|{stride}|{seeds}");
    let vars = [
        // Captures concern the default pool too: host memory, no thread that calls its driver.
        ("FOREBAY_BACKEND", "host"),
        ("FOREBAY_KEEPER", "0"),
        ("FOREBAY_LOG", "off"),
        (cuda::LIBRARY, library),
        (TASK, &task),
        ("FOREBAY_TEST_WORLD", world),
    ];
    let output = children::child("child_process", "faults", &vars);
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let well = output.status.success() && told.contains("scenario done");
    assert!(well, "{task}: {:?}\n{told}\n{errors}", output.status);
    print!(
        "{}",
        told.lines()
            .filter(|line| line.contains(" runs of "))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    );
}

/// Strides by which a sample stays small: scenarios with more calls are looked at more rarely.
macro_rules! sampled {
    ($($test:ident: $scenario:ident, $stride:literal;)*) => {
        $(
            mod $test {
                use super::*;

                #[test]
                fn a_sample_of_calls_fails() {
                    child($scenario.name, "fail", $stride, 1, "");
                }

                #[test]
                fn a_sample_of_calls_fails_under_other_seeds() {
                    child($scenario.name, "seeds", 8 * $stride, 3, "schedule = late");
                }

                #[test]
                #[ignore = "every call: up to a minute"]
                fn every_call_fails() {
                    child($scenario.name, "every", 1, 1, "");
                }

                #[test]
                #[ignore = "a hundred seeds of the scheduler: half a minute"]
                fn calls_fail_under_many_seeds() {
                    child($scenario.name, "seeds", 4 * $stride, 100, "schedule = late");
                }
            }
        )*

        #[test]
        fn every_scenario_is_sampled() {
            let sampled = [$($scenario.name),*];
            assert_eq!(sampled, ALL.map(|scenario| scenario.name));
        }
    };
}

sampled! {
    create_pool: CREATE, 7;
    small_blocks: SMALL, 53;
    large_blocks: LARGE, 31;
    gather_pages: GATHER, 11;
    gather_only_while_idle: GATHER_WHEN_IDLE, 11;
    trim_and_limits: TRIM, 17;
    async_streams: ASYNC, 61;
    late_frees_in_little_memory: LITTLE_MEMORY, 61;
    synchronous_frees_and_questions: QUESTIONS, 11;
    sets_of_buffers: BUFFERS, 11;
    streams_of_c_programs: STREAMS, 7;
    destroy_pool: DESTROY, 7;
    second_reservation: MORE_SPACE, 31;
    peers_of_mapped_memory: PEERS, 17;
    exports_and_imports: EXPORT, 17;
    captures_and_their_graphs: CAPTURE, 43;
}

/// Opening under faults; the stride leaves all of it.
#[test]
fn opening_fails_clearly_or_steps_down() {
    child("open", "open", 1, 1, "");
}

/// No virtual memory, and page-locked host memory: every call.
#[test]
fn plain_segments_survive_failed_calls() {
    child("plain", "plain", 1, 1, "");
}

macro_rules! lost {
    ($($test:ident: $scenario:ident, $stride:literal;)*) => {
        mod lost_context {
            use super::*;
            $(
                mod $test {
                    use super::*;

                    #[test]
                    fn at_a_sample_of_calls() {
                        child($scenario.name, "lose", $stride, 1, "");
                    }

                    #[test]
                    #[ignore = "at every call: half a minute"]
                    fn at_every_call() {
                        child($scenario.name, "lose", 1, 1, "");
                    }
                }
            )*
        }
    };
}

lost! {
    small_blocks: SMALL, 53;
    large_blocks: LARGE, 31;
    gather_pages: GATHER, 11;
    trim_and_limits: TRIM, 11;
    async_streams: ASYNC, 61;
    synchronous_frees_and_questions: QUESTIONS, 17;
    second_reservation: MORE_SPACE, 31;
    peers_of_mapped_memory: PEERS, 17;
    exports_and_imports: EXPORT, 17;
    captures_and_their_graphs: CAPTURE, 31;
}

/// Stalls change nothing but the time, on the virtual clock as on the real one.
#[test]
fn calls_that_take_long() {
    for scenario in ALL {
        child(scenario.name, "stall", 1, 1, "");
    }
    let real = "real_delays = 1\nprofile = a100\nvariation = 1";
    for scenario in [SMALL, ASYNC] {
        child(scenario.name, "stall", 1, 1, real);
    }
}
