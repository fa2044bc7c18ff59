//! `bench pool`: what a pair of calls costs through the shipped shared library, beside its peers.
//!
//! Owns the list of rows, their targets and the verdicts. Promises that every figure comes from
//! the C harness in `benches/pool`, through `dlopen`, defaults on, as the least over several
//! interleaved processes; a row that failed is an error with its output, never left out.
//! Must not: time anything itself. Cost: about four minutes, `quick` about one.

pub(super) mod process;
pub(super) mod samples;

use process::{Ended, Programs};
use samples::Samples;

use super::Row;
use crate::Outcome;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Processes a row runs in. Machines have speed states 1.5 apart that last for seconds, so the
/// processes of one row are spread over the whole run.
const PROCESSES: usize = 5;
const PROCESSES_QUICK: usize = 3;

/// Rounds added to the full run while it is younger than this: a busy machine, where the least
/// needs more tries, also takes longer, so the time is bounded and not the tries.
const ROUNDS_ADDED: usize = 2;
const AGE_FOR_MORE: Duration = Duration::from_secs(180);

/// Further processes for a row of two threads that a busy machine never let run side by side.
const RETRIES: usize = 12;

/// The peers: the door the harness knows each by.
const PEERS: [&str; 3] = ["glibc", "mimalloc", "tlsf"];

/// `forebay_alloc` on a stream, and `forebay_malloc`.
const BOTH: &[&str] = &["pool", "malloc"];
const POOL: &[&str] = &["pool"];
const MALLOC: &[&str] = &["malloc"];
const EMPTY: &[&str] = &["empty"];
const HANDLE: &[&str] = &["handle"];

/// A row of the harness and what is asked of it.
struct Spec {
    /// The harness's name of the row.
    row: &'static str,
    /// The doors it is measured through.
    doors: &'static [&'static str],
    /// Most nanoseconds a pair may take; none where the row is information.
    target: Option<f64>,
    /// Whether the peers run it too.
    peers: bool,
    /// Whether it is part of the quick run.
    quick: bool,
}

/// A row that a target is set for.
const fn judged(row: &'static str, doors: &'static [&'static str], target: f64) -> Spec {
    Spec { row, doors, target: Some(target), peers: false, quick: false }
}

/// A row that is printed and not judged.
const fn told(row: &'static str, doors: &'static [&'static str]) -> Spec {
    Spec { row, doors, target: None, peers: false, quick: false }
}

impl Spec {
    const fn beside_peers(mut self) -> Self {
        self.peers = true;
        self
    }

    const fn also_quick(mut self) -> Self {
        self.quick = true;
        self
    }
}

const SPECS: &[Spec] = &[
    told("hot-100", EMPTY).also_quick(),
    told("mixed-10k", EMPTY),
    judged("hot-100", BOTH, 20.0).beside_peers().also_quick(),
    judged("hot-10k", BOTH, 20.0).beside_peers().also_quick(),
    judged("hot-100k", BOTH, 20.0).also_quick(),
    judged("hot-1m", BOTH, 20.0),
    told("hot-10k", HANDLE),
    judged("mixed-10k", BOTH, 25.0).beside_peers().also_quick(),
    judged("mixed-100k", BOTH, 30.0).beside_peers(),
    told("ordered-1m", BOTH),
    judged("to-1mib-10k", BOTH, 55.0).beside_peers().also_quick(),
    judged("extents-10k", BOTH, 200.0).also_quick(),
    told("repeat-1mib", BOTH).beside_peers(),
    told("repeat-32", BOTH).beside_peers(),
    judged("turn-4", POOL, 25.0).also_quick(),
    judged("cross", POOL, 50.0).also_quick(),
    judged("own-hot", POOL, 20.0).also_quick(),
    judged("own-mixed", POOL, 30.0),
    judged("shared-hot", BOTH, 20.0).also_quick(),
    judged("shared-mixed", BOTH, 70.0),
    told("handover", EMPTY).also_quick(),
    judged("handover", BOTH, 50.0).also_quick(),
    judged("sync-4k-1", MALLOC, 45.0).also_quick(),
    judged("sync-64k-1", MALLOC, 45.0),
    judged("sync-mixed-1", MALLOC, 45.0),
    judged("sync-4k-4", MALLOC, 60.0).also_quick(),
    judged("sync-64k-4", MALLOC, 60.0),
    judged("sync-mixed-4", MALLOC, 60.0),
    told("tail", EMPTY),
    judged("tail", BOTH, 500.0).also_quick(),
    judged("watched-hot", BOTH, 3.0).also_quick(),
    judged("watched-mixed", BOTH, 3.0),
];

/// The rows whose spread is the flatness, and the most it may be.
const FLAT_ROWS: [&str; 4] = ["hot-100", "hot-10k", "hot-100k", "hot-1m"];
const FLATNESS_MAX: f64 = 1.2;

/// Measures every row (`quick`: fewer, in fewer processes) and gives them, medians among them.
///
/// Errors: a program that does not build; any row that failed (the others are printed). A row
/// that the machine was too busy for is told, has no number and misses its target.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let programs = Programs::build()?;
    let specs: Vec<&Spec> = SPECS.iter().filter(|s| s.quick || !quick).collect();
    let rounds = match quick {
        true => PROCESSES_QUICK..=PROCESSES_QUICK,
        false => PROCESSES..=PROCESSES + ROUNDS_ADDED,
    };
    println!("{}", process::machine());
    println!("ns of thread CPU time a pair, harness included; the least is judged");
    let mut samples = Samples::default();
    let untold = measure(&programs, &requests(&specs, quick), rounds, &mut samples);
    println!("load average after the last process: {}\n", process::load_average());
    let mut rows = Vec::new();
    for spec in &specs {
        rows.extend(spec.doors.iter().flat_map(|door| rows_of(spec, door, &samples)));
    }
    flatness(&samples, &mut rows);
    let rows = with_medians(rows, &samples);
    for (request, why) in &untold.uncertified {
        println!("{request}: not measured, the machine was too busy: {}", why.trim());
    }
    if untold.failed.is_empty() {
        return Ok(rows);
    }
    print!("{}", super::table(&rows));
    let line = |(request, why): &(String, String)| format!("{request}: {why}");
    Err(untold.failed.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Requests without a figure, and what the harness said.
#[derive(Default)]
struct Untold {
    /// The library, a peer or the harness failed.
    failed: Vec<(String, String)>,
    /// The machine was too busy for a row of two threads.
    uncertified: Vec<(String, String)>,
}

/// Puts the medians behind their rows and the group's name before all of them.
fn with_medians(rows: Vec<Row>, samples: &Samples) -> Vec<Row> {
    let mut all = Vec::new();
    for mut row in rows {
        let name = format!("pool/{}", row.name);
        let median = samples.median(&row.name);
        let median = median.map(|m| Row::new(format!("{name} median"), m, &row.unit, None));
        row.name = name;
        all.push(row);
        all.extend(median);
    }
    all
}

/// What to ask the harness for, in the order of one round. The quick run asks the peers for the
/// two rows that say most.
fn requests(specs: &[&Spec], quick: bool) -> Vec<String> {
    let mut list = Vec::new();
    for spec in specs {
        list.extend(spec.doors.iter().map(|door| format!("{}@{door}", spec.row)));
        if spec.peers && (!quick || spec.row == "hot-100" || spec.row == "mixed-10k") {
            list.extend(PEERS.iter().map(|peer| format!("{}@{peer}", spec.row)));
        }
    }
    list
}

/// Runs each request once a round; one that failed is not tried again. A request that was never
/// certified gets more tries at the end.
fn measure(
    programs: &Programs,
    requests: &[String],
    rounds: RangeInclusive<usize>,
    samples: &mut Samples,
) -> Untold {
    let mut untold = Untold::default();
    let (began, mut done) = (Instant::now(), 0);
    while done < *rounds.start() || (done < *rounds.end() && began.elapsed() < AGE_FOR_MORE) {
        eprintln!("round {}, load average {}", done + 1, process::load_average());
        for request in requests {
            if untold.failed.iter().any(|(failed, _)| failed == request) {
                continue;
            }
            match programs.run(request, done) {
                Ended::Measured(lines) => samples.add(lines),
                Ended::Uncertified(why) => untold.uncertified.push((request.clone(), why)),
                Ended::Failed(why) => untold.failed.push((request.clone(), why)),
            }
        }
        done += 1;
    }
    println!("{done} interleaved processes a row");
    untold.uncertified.sort();
    untold.uncertified.dedup_by(|again, first| again.0 == first.0);
    for (request, _) in &untold.uncertified {
        println!("{request}: {} of them certified", samples.runs(request));
    }
    untold.uncertified.retain(|(request, _)| samples.runs(request) == 0);
    for (request, why) in std::mem::take(&mut untold.uncertified) {
        retry(programs, request, why, done, samples, &mut untold);
    }
    untold
}

/// Tries again until one process is certified, or the tries are used up.
fn retry(
    programs: &Programs,
    request: String,
    mut why: String,
    round: usize,
    samples: &mut Samples,
    untold: &mut Untold,
) {
    for extra in 0..RETRIES {
        match programs.run(&request, round + extra) {
            Ended::Measured(lines) => return samples.add(lines),
            Ended::Uncertified(again) => why = again,
            Ended::Failed(again) => return untold.failed.push((request, again)),
        }
    }
    untold.uncertified.push((request, why));
}

/// The rows of the table that one row of the harness gives through one door. Without a figure
/// the value is not a number, and a target is missed.
fn rows_of(spec: &Spec, door: &str, samples: &Samples) -> Vec<Row> {
    let name = |suffix: &str| format!("{}{suffix}@{door}", spec.row);
    let least = |suffix: &str| samples.least(&name(suffix));
    if spec.row == "tail" {
        let high = row(&name("-p999"), least("-p999"), spec.target);
        return vec![high, row(&name("-p50"), least("-p50"), None)];
    }
    if spec.row.starts_with("watched") {
        let added = least("-on").zip(least("-off")).map(|(on, off)| on - off);
        return vec![row(&name(""), added, spec.target)];
    }
    let mut own = row(&name(""), least(""), spec.target);
    if spec.peers && door != "empty" {
        let peer = |peer: &&str| {
            let theirs = samples.least(&format!("{}@{peer}", spec.row));
            theirs.map(|value| ((*peer).to_string(), value))
        };
        own.peers = PEERS.iter().filter_map(peer).collect();
    }
    vec![own]
}

/// Largest over smallest of the hot rows, for each door that has them all.
fn flatness(samples: &Samples, rows: &mut Vec<Row>) {
    for door in BOTH {
        let hot: Vec<f64> =
            FLAT_ROWS.iter().filter_map(|row| samples.least(&format!("{row}@{door}"))).collect();
        let most = hot.iter().copied().fold(f64::MIN, f64::max);
        let least = hot.iter().copied().fold(f64::MAX, f64::min);
        if hot.len() < 2 || least <= 0.0 {
            continue;
        }
        let name = format!("hot-flatness-of-{}@{door}", hot.len());
        rows.push(Row::new(name, most / least, "x", Some(FLATNESS_MAX)));
    }
}

/// A row in nanoseconds, judged where it has a target.
fn row(name: &str, value: Option<f64>, target: Option<f64>) -> Row {
    Row::new(name, value.unwrap_or(f64::NAN), "ns", target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_run_asks_for_less_and_nothing_twice() {
        let all: Vec<&Spec> = SPECS.iter().collect();
        let full = requests(&all, false);
        let few: Vec<&Spec> = SPECS.iter().filter(|s| s.quick).collect();
        let quick = requests(&few, true);
        assert!(quick.len() < full.len());
        assert!(quick.iter().all(|r| full.contains(r)));
        let mut once = full.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), full.len());
    }

    #[test]
    fn least_and_difference_and_flatness_are_judged() {
        let mut samples = Samples::default();
        let line = |name: &str, least, median| (name.to_string(), least, median);
        samples.add(vec![line("hot-100@pool", 12.0, 13.0), line("hot-1m@pool", 13.0, 14.0)]);
        samples.add(vec![line("hot-100@pool", 10.0, 15.0)]);
        samples.add(vec![line("watched-hot-off@pool", 11.0, 11.5)]);
        samples.add(vec![line("watched-hot-on@pool", 15.0, 16.0)]);
        let mut rows = rows_of(&judged("hot-100", POOL, 20.0), "pool", &samples);
        rows.extend(rows_of(&judged("watched-hot", POOL, 3.0), "pool", &samples));
        rows.extend(rows_of(&judged("tail", POOL, 500.0), "pool", &samples));
        flatness(&samples, &mut rows);
        let short: Vec<_> =
            rows.iter().map(|r| (r.name.as_str(), format!("{:.2}", r.value), r.met)).collect();
        let wanted = [
            ("hot-100@pool", "10.00", Some(true)),
            ("watched-hot@pool", "4.00", Some(false)),
            ("tail-p999@pool", "NaN", Some(false)),
            ("tail-p50@pool", "NaN", None),
            ("hot-flatness-of-2@pool", "1.30", Some(false)),
        ];
        assert_eq!(short, wanted.map(|(name, value, met)| (name, value.to_string(), met)));
        assert_eq!((samples.runs("hot-100@pool"), samples.runs("watched-hot@pool")), (2, 1));
        assert_eq!(samples.runs("tail@pool"), 0);
    }
}
