//! Group `preload`: what the preload library costs an unchanged program, and what it saves.
//!
//! Two sources, both on the simulated driver and runtime. `benches/preload/pair.c` times hot pairs
//! by the driver's names, by the runtime's, and by the pool's own functions, in one process, the
//! doors taking turns; several processes run. And `examples/runtime` runs with and without the
//! library under the modelled cost of an A100's driver. No figure here is a GPU's.

use super::{Row, number, on_simulated};
use crate::test::{self, Staged, stage_runtime};
use crate::{Outcome, proc};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROCESSES: usize = 7;
const PROCESSES_QUICK: usize = 5;
/// Nanoseconds that a pair may take more than by the pool's own functions.
const ADDED_MOST: f64 = 15.0;
/// Runs of the example, of which the median counts: its threads' order differs.
const RUNS: usize = 3;
/// A door, and the pool's own functions of the same meaning.
const DOORS: [(&str, &str); 4] = [
    ("runtime", "direct"),
    ("driver", "direct"),
    ("runtime-async", "direct-async"),
    ("driver-async", "direct-async"),
];

/// Least and median of each door.
type Doors = BTreeMap<String, (f64, f64)>;

/// Measures all; `quick` runs fewer processes.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let staged = stage_runtime()?;
    let mut build = proc::cargo();
    build.args(["build", "--release", "--lib", "--package", "forebay"]);
    proc::capture(build.args(["--package", "forebay-preload"]))?;
    let release = proc::target_dir().join("release");
    let pair = compile(&staged.folder)?;
    let processes = if quick { PROCESSES_QUICK } else { PROCESSES };
    let mut measured = Vec::new();
    for _ in 0..processes {
        let mut command = preloaded(&pair, &staged.folder, Some(&release));
        command.arg(release.join("libforebay.so.0"));
        measured.push(doors(&proc::capture(&mut command)?)?);
    }
    let mut rows = pairs(&measured)?;
    rows.extend(example(&staged, &release)?);
    Ok(rows)
}

/// A program on the simulated driver, with the library of a folder in front of it.
fn preloaded(program: &Path, driver: &Path, library: Option<&Path>) -> Command {
    let mut command = proc::program(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.env_remove("FOREBAY_BACKEND").envs(on_simulated(driver)).env_remove("LD_PRELOAD");
    if let Some(folder) = library {
        command.env("LD_PRELOAD", folder.join("libforebay_preload.so"));
    }
    command
}

fn compile(folder: &Path) -> Outcome<PathBuf> {
    let work = proc::target_dir().join("bench");
    std::fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let to = work.join("preload-pair");
    let mut cc = proc::program(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"]);
    cc.args(["-Isim/cudart/include", "-Itests/preload", "benches/preload/pair.c", "-o"]).arg(&to);
    cc.arg(folder.join("libcudart.so.12")).arg(folder.join("libcuda.so.1")).arg("-ldl");
    proc::capture(cc.arg("-Wl,--allow-shlib-undefined"))?;
    Ok(to)
}

fn doors(text: &str) -> Outcome<Doors> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [door, least, median] = words[..] else { return None };
        Some((door.to_owned(), (least.parse().ok()?, median.parse().ok()?)))
    };
    let doors: Option<Doors> = text.lines().map(line).collect();
    doors.filter(|doors| !doors.is_empty()).ok_or_else(|| format!("not lines of figures: {text}"))
}

/// What each door adds: the least of all processes over the least of the pool's own, and the median
/// over the processes of what the medians differ by.
fn pairs(processes: &[Doors]) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for (door, own) in DOORS {
        let of = |name: &str| -> Outcome<Vec<(f64, f64)>> {
            let all: Option<Vec<_>> = processes.iter().map(|p| p.get(name).copied()).collect();
            all.ok_or_else(|| format!("no line of {name}"))
        };
        let (through, direct) = (of(door)?, of(own)?);
        let least = |all: &[(f64, f64)]| all.iter().fold(f64::INFINITY, |m, (ns, _)| m.min(*ns));
        let added = least(&through) - least(&direct);
        let mut row =
            Row::new(format!("preload/{door} adds, least"), added, "ns", Some(ADDED_MOST));
        row.peers.insert("the pair".into(), least(&through));
        row.peers.insert("direct".into(), least(&direct));
        rows.push(row);
        let differences = through.iter().zip(&direct).map(|(a, b)| a.1 - b.1).collect();
        let name = format!("preload/{door} adds, median");
        rows.push(Row::new(name, median(differences), "ns", Some(ADDED_MOST)));
    }
    Ok(rows)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The example's time in the driver, by the model; the peer is the same without the library.
fn example(staged: &Staged, release: &Path) -> Outcome<Vec<Row>> {
    let forms = test::example(staged, "bench-preload", None)?;
    let shared = forms.first().ok_or("the example was not built")?;
    let program = PathBuf::from(shared.command.get_program());
    let mut rows = Vec::new();
    for (what, field) in [("driver time", "time_us"), ("driver calls", "calls")] {
        let mut figures = [0.0; 2];
        for (figure, library) in figures.iter_mut().zip([Some(release), None]) {
            let runs: Outcome<Vec<f64>> =
                (0..RUNS).map(|_| reported(&program, &staged.folder, library, field)).collect();
            *figure = median(runs?);
        }
        let unit = if field == "calls" { "calls" } else { "us" };
        let mut row = Row::new(format!("preload/example/{what}"), figures[0], unit, None);
        row.peers.insert("without".into(), figures[1]);
        rows.push(row);
    }
    Ok(rows)
}

/// Runs the example once; what its driver reported, over its processes.
fn reported(program: &Path, driver: &Path, library: Option<&Path>, field: &str) -> Outcome<f64> {
    let folder = proc::target_dir().join("bench").join("preload-reports");
    let told = |e: std::io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(told)?;
    }
    std::fs::create_dir_all(&folder).map_err(told)?;
    let mut command = preloaded(program, driver, library);
    command.env("FOREBAY_SIM_PROFILE", "a100").env("FOREBAY_SIM_REPORT", folder.join("%p.json"));
    proc::capture(&mut command)?;
    let mut sum = 0.0;
    for entry in std::fs::read_dir(&folder).map_err(told)? {
        let text = proc::read(entry.map_err(told)?.path())?;
        let report: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| format!("the report: {e}"))?;
        let report = report.as_object().ok_or("the report is no object")?;
        sum += match report.get(field).and_then(serde_json::Value::as_object) {
            Some(calls) => calls.values().filter_map(serde_json::Value::as_f64).sum(),
            None => number(report, field)?,
        };
    }
    if sum > 0.0 { Ok(sum) } else { Err(format!("{} reported no {field}", program.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_door_adds_is_the_difference_to_its_own_meaning() {
        let process = |shift: f64| {
            let lines = format!(
                "direct {0} {1}\ndriver {2} {3}\nruntime {2} {3}\ndirect-async 5 6\n\
                 driver-async 9 10\nruntime-async 9 30\n",
                20.0 + shift,
                22.0 + shift,
                26.0 + shift,
                29.0 + shift
            );
            doors(&lines).expect("figures")
        };
        let rows = pairs(&[process(3.0), process(0.0), process(9.0)]).expect("all doors");
        assert_eq!((rows[0].value, rows[0].met), (6.0, Some(true)));
        assert_eq!((rows[1].value, rows[1].met), (7.0, Some(true)));
        assert_eq!((rows[5].value, rows[5].met), (24.0, Some(false)));
        assert_eq!(rows[0].peers["direct"], 20.0);
        assert!(pairs(&[doors("direct 1 2\n").expect("a line")]).is_err());
        assert!(doors("direct one two\n").is_err());
        assert!(doors("").is_err());
    }
}
