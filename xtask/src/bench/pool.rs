//! `bench pool`: what a pair of calls costs through the shipped shared library, beside its peers.
//!
//! Owns the list of rows, their targets and the verdicts. Promises that every figure comes from
//! the C harness in `benches/pool`, through `dlopen`, defaults on, as the least over several
//! interleaved processes; a row that did not run is an error with its output, never left out.
//! Must not: time anything itself. Cost: about four minutes, `quick` about one.

mod process;
mod samples;

use process::{Ended, Programs};
use samples::Samples;

use super::Row;
use crate::Outcome;
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
/// Errors: a program that does not build; any row that did not run (the others are printed).
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let programs = Programs::build()?;
    let specs: Vec<&Spec> = SPECS.iter().filter(|s| s.quick || !quick).collect();
    let processes = if quick { PROCESSES_QUICK } else { PROCESSES };
    println!("{}", process::machine());
    println!(
        "{processes} interleaved processes a row; ns of thread CPU time a pair, harness \
         included; the least is judged\n"
    );
    let mut samples = Samples::default();
    let mut failures = measure(&programs, &requests(&specs, quick), processes, &mut samples);
    println!("load average after the last process: {}\n", process::load_average());
    let mut rows = Vec::new();
    for spec in &specs {
        for door in spec.doors {
            rows_of(spec, door, &samples, &mut rows, &mut failures);
        }
    }
    flatness(&samples, &mut rows);
    let rows = with_medians(rows, &samples);
    if failures.is_empty() {
        return Ok(rows);
    }
    print!("{}", super::table(&rows));
    Err(failures.join("\n"))
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

/// Runs each request once a round. Gives what failed: a request that failed is not tried again.
fn measure(
    programs: &Programs,
    requests: &[String],
    processes: usize,
    samples: &mut Samples,
) -> Vec<String> {
    let mut failures: Vec<(String, String)> = Vec::new();
    let mut uncertified: Vec<(String, String)> = Vec::new();
    for round in 0..processes {
        eprintln!("round {} of {processes}, load {}", round + 1, process::load_average());
        for request in requests {
            if failures.iter().any(|(failed, _)| failed == request) {
                continue;
            }
            match programs.run(request, round) {
                Ended::Measured(lines) => samples.add(lines),
                Ended::Uncertified(why) => uncertified.push((request.clone(), why)),
                Ended::Failed(why) => failures.push((request.clone(), why)),
            }
        }
    }
    for (request, why) in uncertified {
        if let Some(why) = retry(programs, &request, why, processes, samples) {
            failures.push((request, why));
        }
    }
    failures.into_iter().map(|(request, why)| format!("{request}: {why}")).collect()
}

/// Makes up for one process whose threads never ran side by side. Gives the reason if none of
/// the further processes did.
fn retry(
    programs: &Programs,
    request: &str,
    mut why: String,
    processes: usize,
    samples: &mut Samples,
) -> Option<String> {
    for extra in 0..RETRIES {
        match programs.run(request, processes + extra) {
            Ended::Measured(lines) => {
                samples.add(lines);
                return None;
            }
            Ended::Uncertified(again) => why = again,
            Ended::Failed(again) => return Some(again),
        }
    }
    Some(why)
}

/// The rows of the table that one request gives: one, save where the harness prints two lines.
fn rows_of(
    spec: &Spec,
    door: &str,
    samples: &Samples,
    rows: &mut Vec<Row>,
    failures: &mut Vec<String>,
) {
    let name = format!("{}@{door}", spec.row);
    if spec.row == "tail" {
        let high = samples.least(&format!("tail-p999@{door}"));
        rows.extend(high.map(|v| row(&format!("tail-p999@{door}"), v, spec.target)));
        let middle = samples.least(&format!("tail-p50@{door}"));
        rows.extend(middle.map(|v| row(&format!("tail-p50@{door}"), v, None)));
        return missing(high.is_none(), &name, failures);
    }
    if spec.row.starts_with("watched") {
        let off = samples.least(&format!("{}-off@{door}", spec.row));
        let on = samples.least(&format!("{}-on@{door}", spec.row));
        rows.extend(on.zip(off).map(|(on, off)| row(&name, on - off, spec.target)));
        return missing(on.is_none(), &name, failures);
    }
    let own = samples.least(&name);
    if let Some(value) = own {
        let mut row = row(&name, value, spec.target);
        if spec.peers && door != "empty" {
            let peer = |peer: &&str| {
                let name = format!("{}@{peer}", spec.row);
                samples.least(&name).map(|v| ((*peer).to_string(), v))
            };
            row.peers = PEERS.iter().filter_map(peer).collect();
        }
        rows.push(row);
    }
    missing(own.is_none(), &name, failures);
}

/// Makes sure that a row without a figure is told, whatever the reason.
fn missing(is: bool, name: &str, failures: &mut Vec<String>) {
    if is && !failures.iter().any(|line| line.starts_with(name)) {
        failures.push(format!("{name}: the harness printed no figure"));
    }
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
fn row(name: &str, value: f64, target: Option<f64>) -> Row {
    Row::new(name, value, "ns", target)
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
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        rows_of(&judged("hot-100", POOL, 20.0), "pool", &samples, &mut rows, &mut failures);
        rows_of(&judged("watched-hot", POOL, 3.0), "pool", &samples, &mut rows, &mut failures);
        rows_of(&judged("cross", POOL, 50.0), "pool", &samples, &mut rows, &mut failures);
        flatness(&samples, &mut rows);
        let short: Vec<_> = rows.iter().map(|r| (r.name.as_str(), r.value, r.met)).collect();
        assert_eq!(
            short,
            [
                ("hot-100@pool", 10.0, Some(true)),
                ("watched-hot@pool", 4.0, Some(false)),
                ("hot-flatness-of-2@pool", 1.3, Some(false)),
            ]
        );
        assert_eq!(failures, ["cross@pool: the harness printed no figure"]);
    }
}
