//! Group `peers`: Forebay beside the allocators that GPU programs use, all measured in one run.
//!
//! Each allocator is a program of its own over the same simulated device, in the same loops, on the
//! same loads and traces (`benches/allocators`). Times are thread CPU time, the processes of all
//! allocators taking turns; memory, driver calls and the smallest device are exact and played
//! once. Owns which allocator has which rows, and the targets. An allocator that cannot be had
//! is a row that says so, and whatever is judged by it is missed.

mod page;
mod play;
mod programs;
mod rows;

pub use page::write;

use super::Row;
use super::pool::process;
use crate::Outcome;
use crate::wheels::Missing;
use play::{Figures, Played};
use programs::Programs;

const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 3;

/// What an allocator is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    /// Blocks of many sizes; else only those of one.
    mixed: bool,
    /// Memory taken from the device as it goes, and the calls for it.
    usage: bool,
    /// The smallest device.
    fits: bool,
    /// Also with events that cost something: it records them, or is ours.
    events: bool,
}

const ALL: Asked = Asked { mixed: true, usage: true, fits: true, events: false };
const RMM: Asked = Asked { events: true, ..ALL };

/// An allocator: its name in the rows, and the program that has it.
struct Allocator {
    name: &'static str,
    program: &'static str,
    asked: Asked,
}

const fn allocator(name: &'static str, program: &'static str, asked: Asked) -> Allocator {
    Allocator { name, program, asked }
}

const OURS: &str = "forebay";

const ALLOCATORS: &[Allocator] = &[
    allocator(OURS, "forebay", RMM),
    allocator("torch", "torch", ALL),
    allocator("torch-expandable", "torch", ALL),
    allocator("rmm-pool", "rmm", RMM),
    // It takes all that it is given at the start, and never more.
    allocator("rmm-arena", "rmm", Asked { usage: false, ..ALL }),
    allocator("rmm-binning", "rmm", RMM),
    allocator("rmm-binning-small", "rmm", RMM),
    // Blocks of one size.
    allocator("rmm-fixed", "rmm", Asked { mixed: false, usage: false, fits: false, ..RMM }),
    allocator("cub", "cub", RMM),
    allocator("ort-bfc", "ort", ALL),
    // Host memory.
    allocator("mimalloc", "inband", Asked { usage: false, fits: false, ..ALL }),
    // All at the start, too.
    allocator("tlsf", "inband", Asked { usage: false, ..ALL }),
];

/// A load: its name in the rows, what the programs call it, and what an event costs in it.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    what: &'static str,
    event_ns: u32,
    quick: bool,
    /// Whether memory and calls are counted for it too.
    counted: bool,
}

const fn load(name: &'static str, what: &'static str, quick: bool) -> Load {
    Load { name, what, event_ns: 0, quick, counted: true }
}

impl Load {
    /// The same with the events of group `pool`'s rows: 0.7 us each.
    const fn with_events(self, name: &'static str) -> Load {
        Load { name, event_ns: 700, counted: false, ..self }
    }

    /// The same for time alone: to count takes those that walk lists a minute.
    const fn time_alone(self) -> Load {
        Load { counted: false, ..self }
    }

    /// Whether an allocator has it.
    fn is_for(&self, one: &Allocator) -> bool {
        (one.asked.mixed || self.what == HOT) && (one.asked.events || self.event_ns == 0)
    }
}

const HOT: &str = "hot";
const HOT_LOAD: Load = load(HOT, HOT, true).time_alone();
const JUDGED_LOAD: Load = load("mixed-10000", "mixed:10000", true);

const LOADS: &[Load] = &[
    HOT_LOAD,
    load("mixed-256", "mixed:256", false),
    load("mixed-4096", "mixed:4096", true),
    JUDGED_LOAD,
    load("mixed-16384", "mixed:16384", false),
    load("mixed-100000", "mixed:100000", false).time_alone(),
    HOT_LOAD.with_events("hot+events"),
    JUDGED_LOAD.with_events("mixed-10000+events"),
];

/// Our time over a peer's: load, peer, the most it may be.
const TIMES: &[(&str, &str, f64)] = &[
    (HOT, "torch", 1.0 / 20.0),
    (HOT, "rmm-fixed", 1.0 / 3.0),
    (HOT, "mimalloc", 1.5),
    ("mixed-10000", "torch", 1.0 / 20.0),
    ("mixed-10000", "rmm-pool", 1.0 / 20.0),
    ("mixed-10000", "rmm-binning", 1.0 / 3.0),
    ("mixed-10000", "rmm-binning-small", 1.0 / 3.0),
    ("hot+events", "rmm-fixed", 1.0 / 3.0),
    ("mixed-10000+events", "rmm-binning", 1.0 / 3.0),
    ("mixed-10000+events", "rmm-binning-small", 1.0 / 3.0),
];
/// What our smallest device may be above the best peer's, in hundredths of peak live bytes.
const SMALLEST_POINTS: f64 = 0.2;

/// Measures all; `quick`: fewer loads and processes, the repository's own traces.
///
/// Errors: Forebay's own program or the simulated driver cannot be built or fails.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let programs = Programs::build()?;
    println!("{}", process::machine());
    let loads: Vec<Load> = LOADS.iter().copied().filter(|l| l.quick || !quick).collect();
    let mut figures = Figures::default();
    for (name, why) in programs.missing() {
        println!("SKIPPED {name}: {}", why.why());
        let short = match why {
            Missing::Unreachable(why) => why.clone(),
            Missing::Failed(_) => "it could not be fetched or built".to_owned(),
        };
        figures.skipped.insert(name.to_owned(), short);
    }
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    play::times(&programs, &loads, rounds, &mut figures);
    println!("load average after the last timed process: {}", process::load_average());
    let mut played: Vec<Played> = loads
        .iter()
        .filter(|load| load.counted)
        .map(|load| Played::load(load.name, load.what))
        .collect();
    played.extend(programs.traces(quick)?);
    play::memory(&programs, &played, &mut figures);
    match figures.failed.iter().find(|(name, _)| name.starts_with(OURS)) {
        Some((name, why)) => Err(format!("{name}: {why}")),
        None => Ok(rows::rows(&loads, &played, &figures)),
    }
}
