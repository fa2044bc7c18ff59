//! Group `plan`: the static planner on public instances.
//!
//! Runs `forebay plan` on MiniMalloc's A to K under their capacity, five seeds each that no setting
//! was chosen by, on four large instances, and on steps of real models. Times are CPU seconds of
//! the planning thread, without reading the file. Owns the targets. The instances lie beside the
//! folder of `FOREBAY_TRACES`: `minimalloc/`, `idealloc/`, `plans/`.

use super::{Row, number};
use crate::{Outcome, proc, programs};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A to K fit in so many bytes.
const CAPACITY: &str = "1048576";
/// The load of C: the least it can do with.
const LOAD_OF_C: &str = "1039360";
/// Seconds for all medians of A to K together.
const SUM_S: f64 = 8.0;
/// Seconds after which a search under a capacity counts as failed.
const GIVE_UP_S: &str = "30";
/// Seconds for a step of a real model.
const STEP_S: f64 = 0.015;
const SEEDS: u64 = 5;
const FIRST_SEED: u64 = 70_001;

/// User seconds of minimalloc (commit 9f5cf810fec4) for the same, measured apart on a machine with
/// two cores, one run each. Shown beside; not measured again here.
const MINIMALLOC_S: [(&str, f64); 11] = [
    ("A", 8.357),
    ("B", 6.653),
    ("C", 1.345),
    ("D", 7.994),
    ("E", 5.980),
    ("F", 9.308),
    ("G", 1.887),
    ("H", 2.917),
    ("I", 6.451),
    ("J", 2.922),
    ("K", 1.175),
];

/// Large instances: file, effort that the search may take, height over bound at most, seconds.
/// The budget is effort, so that heights do not depend on what else the machine does.
const LARGE: [(&str, &str, f64, f64); 4] = [
    ("idealloc/benchmarks/somas_tensors/resnet50.csv", "1500000", 1.0, 0.5),
    ("idealloc/benchmarks/somas_tensors/pangu_2.6B.csv.gz", "1000000", 1.003, 1.0),
    ("idealloc/benchmarks/iopddl/G_1.csv", "1000000", 1.0, 1.0),
    ("idealloc/benchmarks/iopddl/Y_1.csv.gz", "1000000", 1.0, 1.0),
];

/// Measures all; `quick` takes one seed.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let data = data()?;
    let forebay = programs::build_command()?;
    let mut rows = Vec::new();
    let seeds = FIRST_SEED..FIRST_SEED + if quick { 1 } else { SEEDS };
    let mut peak = 0.0f64;
    let (mut sum, mut unsolved) = (0.0, 0);
    for (name, theirs) in MINIMALLOC_S {
        let file = data.join(format!("minimalloc/benchmarks/challenging/{name}.{CAPACITY}.csv"));
        let mut times = Vec::new();
        for seed in seeds.clone() {
            match plan(&forebay, &file, &["--capacity", CAPACITY, "--time", GIVE_UP_S], seed) {
                Ok(done) => {
                    times.push(number(&done, "cpu_seconds")?);
                    peak = peak.max(number(&done, "peak_memory_bytes")?);
                }
                Err(why) => {
                    println!("  {name}, seed {seed}: {why}");
                    unsolved += 1;
                    times.push(GIVE_UP_S.parse().unwrap_or(f64::MAX));
                }
            }
        }
        let middle = median(&mut times);
        sum += middle;
        let mut row = Row::new(format!("plan/capacity/{name}"), middle, "s", None);
        row.peers.insert("minimalloc (measured apart)".into(), theirs);
        rows.push(row);
    }
    rows.push(Row::new("plan/capacity/A to K", sum, "s", Some(SUM_S)));
    rows.push(Row::new("plan/capacity/unsolved", f64::from(unsolved), "runs", Some(0.0)));
    let c = data.join(format!("minimalloc/benchmarks/challenging/C.{CAPACITY}.csv"));
    let done = plan(&forebay, &c, &["--capacity", LOAD_OF_C, "--time", GIVE_UP_S], FIRST_SEED)?;
    rows.push(Row::new("plan/capacity/C at its load", number(&done, "cpu_seconds")?, "s", None));
    rows.push(Row::new("plan/capacity/peak memory", peak / MIB, "MiB", None));
    for (file, effort, most, seconds) in LARGE {
        let mut runs = Vec::new();
        for seed in seeds.clone() {
            runs.push(plan(&forebay, &data.join(file), &["--effort", effort], seed)?);
        }
        rows.extend(lowest(&name_of(Path::new(file)), &runs, most, Some(seconds))?);
    }
    for file in proc::files(&data.join("plans").to_string_lossy(), &["csv"]) {
        let file = proc::root().join(file);
        let mut runs = Vec::new();
        for seed in seeds.clone() {
            runs.push(plan(&forebay, &file, &[], seed)?);
        }
        rows.extend(lowest(&format!("steps/{}", name_of(&file)), &runs, 1.0, Some(STEP_S))?);
    }
    Ok(rows)
}

const MIB: f64 = (1u64 << 20) as f64;

/// Where the instances are.
fn data() -> Outcome<PathBuf> {
    let traces = std::env::var_os("FOREBAY_TRACES").map(PathBuf::from).unwrap_or_default();
    let data = traces.parent().map(Path::to_path_buf).unwrap_or_default();
    if data.join("minimalloc").is_dir() && data.join("plans").is_dir() {
        return Ok(data);
    }
    Err("no instances: they are looked for beside the folder of FOREBAY_TRACES".to_owned())
}

/// The rows of an instance that was to be made as low as possible: the highest of all seeds,
/// the median time, the most memory.
fn lowest(
    name: &str,
    runs: &[Map<String, Value>],
    most: f64,
    seconds: Option<f64>,
) -> Outcome<Vec<Row>> {
    let (mut ratio, mut peak, mut times) = (0.0f64, 0.0f64, Vec::new());
    for run in runs {
        ratio = ratio.max(number(run, "height_bytes")? / number(run, "bound_bytes")?.max(1.0));
        peak = peak.max(number(run, "peak_memory_bytes")?);
        times.push(number(run, "cpu_seconds")?);
    }
    Ok(vec![
        Row::new(format!("plan/{name}/height over bound"), ratio, "x", Some(most)),
        Row::new(format!("plan/{name}/time"), median(&mut times), "s", seconds),
        Row::new(format!("plan/{name}/peak memory"), peak / MIB, "MiB", None),
    ])
}

/// What one run printed.
fn plan(forebay: &Path, file: &Path, more: &[&str], seed: u64) -> Outcome<Map<String, Value>> {
    let mut command = proc::program(forebay);
    command.arg("plan").arg(file).args(["--json", "--seed", &seed.to_string()]).args(more);
    let said = proc::capture(&mut command)?;
    let object = serde_json::from_str(&said).map_err(|e| format!("{}: {e}", file.display()))?;
    match object {
        Value::Object(object) => Ok(object),
        other => Err(format!("not an object: {other}")),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(".gz").trim_end_matches(".csv").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_worst_height_and_the_median_time_count() {
        let run = |height: u64, seconds: f64| {
            json!({"height_bytes": height, "bound_bytes": 1000, "cpu_seconds": seconds,
                   "peak_memory_bytes": 2097152})
            .as_object()
            .expect("an object")
            .clone()
        };
        let runs = [run(1000, 0.3), run(1004, 0.1), run(1000, 0.2)];
        let rows = lowest("x", &runs, 1.003, Some(0.25)).expect("complete");
        assert_eq!(rows[0].name, "plan/x/height over bound");
        assert_eq!((rows[0].value, rows[0].met), (1.004, Some(false)));
        assert_eq!((rows[1].value, rows[1].met), (0.2, Some(true)));
        assert_eq!((rows[2].value, rows[2].met), (2.0, None));
    }

    #[test]
    fn names_lose_their_endings() {
        assert_eq!(name_of(Path::new("a/pangu_2.6B.csv.gz")), "pangu_2.6B");
        assert_eq!(name_of(Path::new("G_1.csv")), "G_1");
    }
}
