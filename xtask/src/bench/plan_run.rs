//! Group `plan-run`: what an allocation costs by its plan, beside the pool's.
//!
//! Builds the shared library and the C harness in `benches/plan_run`, takes a step of each of the
//! repository's traces with `forebay plan`, and runs each in several processes, interleaved. Owns
//! the target: nanoseconds an allocation by plan, harness included, of the row whose allocations
//! are timed alone. Promises that every other figure is shown and not judged. Must not time
//! anything itself. Cost: a minute, `quick` some seconds.

use super::{Row, traces};
use crate::{Outcome, proc, programs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Nanoseconds an allocation by plan.
const PLAN_NS: f64 = 8.0;
const PROCESSES: usize = 5;
const PROCESSES_QUICK: usize = 2;
/// The step whose allocations are timed alone.
const BATCH: &str = "batch-1000";
/// Steps of the repository's traces: in the middle, where a step is like the next.
const STEP: &str = "200";

/// Name and what, to (least, median) of each process.
type Samples = BTreeMap<(String, String), Vec<(f64, f64)>>;

/// Measures all; `quick` in fewer processes.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let forebay = programs::build_command()?;
    let harness = harness()?;
    let library = proc::target_dir().join("release/libforebay.so");
    let steps = steps(&forebay)?;
    println!("ns of thread CPU time an allocation; harness and frees included, unless named alloc");
    let mut samples = Samples::new();
    for _ in 0..if quick { PROCESSES_QUICK } else { PROCESSES } {
        for (name, file) in &steps {
            let mut command = proc::program(&harness);
            command.arg(&library).arg(name).args(file);
            let said = proc::capture(&mut command)?;
            for line in said.lines() {
                let (key, figure) = parse(line).ok_or_else(|| format!("no figure: {line}"))?;
                samples.entry(key).or_default().push(figure);
            }
        }
    }
    Ok(steps.iter().flat_map(|(name, _)| rows(name, &samples)).collect())
}

/// Builds the harness.
fn harness() -> Outcome<PathBuf> {
    proc::capture(proc::cargo().args(["build", "--release", "--package", "forebay"]))?;
    let target = proc::target_dir().join("bench");
    std::fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    let harness = target.join("plan-run-harness");
    let mut compiler = proc::program(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Iinclude", "-o"]).arg(&harness);
    proc::capture(compiler.args(["benches/plan_run/main.c", "-ldl"]))?;
    Ok(harness)
}

/// The batch, and a step of each trace as a table.
fn steps(forebay: &Path) -> Outcome<Vec<(String, Option<PathBuf>)>> {
    let mut steps = vec![(BATCH.to_owned(), None)];
    for (name, trace) in traces::traces(true) {
        let table = proc::target_dir().join("bench").join(format!("{name}.step.csv"));
        let mut command = proc::program(forebay);
        command.arg("plan").arg(&trace).args(["--step", STEP, "--alignment", "512", "--json"]);
        proc::capture(command.arg("--out").arg(&table))?;
        steps.push((name, Some(table)));
    }
    Ok(steps)
}

/// `NAME WHAT LEAST MEDIAN`.
fn parse(line: &str) -> Option<((String, String), (f64, f64))> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, what, least, median] = words[..] else { return None };
    let figure = (least.parse().ok()?, median.parse().ok()?);
    Some(((name.to_owned(), what.to_owned()), figure))
}

/// The rows of a step: the least of all processes, the median of their medians.
fn rows(name: &str, samples: &Samples) -> Vec<Row> {
    let all = |what: &str| samples.get(&(name.to_owned(), what.to_owned()));
    let least = |what: &str| Some(all(what)?.iter().map(|f| f.0).fold(f64::MAX, f64::min));
    let mut rows = Vec::new();
    let mut add = |what: &str, unit: &str, target: Option<f64>, peers: &[&str]| {
        let Some(figure) = least(what) else { return };
        let mut row = Row::new(format!("plan-run/{name}/{what}"), figure, unit, target);
        let others = peers.iter().filter_map(|peer| Some(((*peer).to_owned(), least(peer)?)));
        row.peers = others.collect();
        rows.push(row);
    };
    add("plan-alloc", "ns", Some(PLAN_NS), &["empty-alloc", "hot"]);
    add("plan", "ns", None, &["pool", "hot", "empty"]);
    add("plan-bytes", "bytes", None, &["pool-bytes"]);
    let medians = all("plan").map(|figures| {
        let mut medians: Vec<f64> = figures.iter().map(|f| f.1).collect();
        medians.sort_by(f64::total_cmp);
        medians[medians.len() / 2]
    });
    let median = |ns| Row::new(format!("plan-run/{name}/plan median"), ns, "ns", None);
    rows.extend(medians.map(median));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_processes_become_rows() {
        let mut samples = Samples::new();
        for line in ["b plan 9.5 11", "b plan 9 10", "b empty 3 3.5", "b pool 20 21"] {
            let (key, figure) = parse(line).expect("a figure");
            samples.entry(key).or_default().push(figure);
        }
        assert_eq!(parse("b plan 9.5"), None);
        let rows = rows("b", &samples);
        let shown: Vec<_> = rows.iter().map(|r| (r.name.as_str(), r.value, r.met)).collect();
        assert_eq!(shown, [("plan-run/b/plan", 9.0, None), ("plan-run/b/plan median", 11.0, None)]);
        assert_eq!(rows[0].peers["pool"], 20.0);
        samples.insert(("b".into(), "plan-alloc".into()), vec![(8.5, 9.0)]);
        assert_eq!(super::rows("b", &samples)[0].met, Some(false));
    }
}
