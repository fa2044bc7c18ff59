//! Group `torch`: what a tensor on the device costs over one on the CPU, in Python.
//!
//! Runs `benches/torch/empty.py` on PyTorch's own wheel over the simulated machine, with
//! PyTorch's allocator and with Forebay in its place, processes taking turns. What is judged is
//! what the device adds: the same call of Python's is in both. Where the wheel cannot be had,
//! the group is one row that says so and is not met. No figure here is a GPU's.

use super::Row;
use crate::test::{Site, compiler, stage_torch, torch_python, torch_wheel};
use crate::{Outcome, proc};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PROCESSES: usize = 7;
const PROCESSES_QUICK: usize = 5;
const PROGRAM: &str = "benches/torch/empty.py";
/// Answers what PyTorch asks the runtime for each tensor, in the place of the simulated one.
const QUIET: &str = "benches/torch/quiet.c";
const MODES: [&str; 2] = ["replaced", "native"];

/// Least and median by device and bytes, as the program names them.
type Figures = BTreeMap<(String, String), (f64, f64)>;

/// Measures all; `quick` runs fewer processes.
pub fn run(quick: bool) -> Outcome<Vec<Row>> {
    let packages = match torch_wheel() {
        Ok(packages) => packages,
        Err(missing) => {
            println!("SKIPPED torch: {}", missing.why());
            let name = format!("torch/skipped: {}", missing.why().lines().next().unwrap_or(""));
            return Ok(vec![Row::new(name, f64::NAN, "", Some(0.0))]);
        }
    };
    let site = stage_torch(packages, release)?;
    let quiet = quiet()?;
    let mut by_mode = [Vec::new(), Vec::new()];
    for process in 0..if quick { PROCESSES_QUICK } else { PROCESSES } {
        eprintln!("process {}", process + 1);
        for (mode, all) in MODES.iter().zip(&mut by_mode) {
            all.push(measure(&site, &quiet, mode)?);
        }
    }
    rows(&by_mode[0], &by_mode[1])
}

/// Builds both libraries as they ship; the preload library's file.
fn release() -> Outcome<PathBuf> {
    let mut cargo = proc::cargo();
    cargo.args(["build", "--release", "--lib", "--package", "forebay"]);
    proc::capture(cargo.args(["--package", "forebay-preload"]))?;
    Ok(proc::target_dir().join("release").join("libforebay_preload.so"))
}

fn quiet() -> Outcome<PathBuf> {
    let folder = proc::target_dir().join("bench");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let to = folder.join("libtorch_quiet.so");
    let mut cc = compiler("CC", "cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&to);
    proc::capture(cc.arg(QUIET)).map(|_| to)
}

fn measure(site: &Site, quiet: &Path, mode: &str) -> Outcome<Figures> {
    let report = proc::target_dir().join("bench").join("torch.json");
    let mut python = torch_python(site, &report);
    python.env("FOREBAY_SIM_MEMORY", "64GiB").env("FOREBAY_SIM_POISON", "none");
    python.env("LD_PRELOAD", quiet);
    figures(&proc::capture(python.args([PROGRAM, mode]))?)
}

/// `DEVICE BYTES LEAST MEDIAN` lines.
fn figures(text: &str) -> Outcome<Figures> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [device, bytes, least, median] = words[..] else { return None };
        let figures = (least.parse().ok()?, median.parse().ok()?);
        Some(((device.to_owned(), bytes.to_owned()), figures))
    };
    let all: Option<Figures> = text.lines().map(line).collect();
    all.filter(|all| !all.is_empty()).ok_or_else(|| format!("not lines of figures: {text}"))
}

/// What the device adds over the CPU, ours beside PyTorch's own: the least of all processes, and
/// the median over the processes of what the medians differ by.
fn rows(ours: &[Figures], natives: &[Figures]) -> Outcome<Vec<Row>> {
    let sizes: Vec<String> = ours.iter().flat_map(|f| f.keys()).map(|(_, b)| b.clone()).collect();
    let sizes: std::collections::BTreeSet<String> = sizes.into_iter().collect();
    let mut rows = Vec::new();
    for bytes in sizes {
        let of = |all: &[Figures], device: &str| -> Outcome<Vec<(f64, f64)>> {
            let key = (device.to_owned(), bytes.clone());
            let found: Option<Vec<_>> = all.iter().map(|f| f.get(&key).copied()).collect();
            found.ok_or_else(|| format!("no line of {device} {bytes}"))
        };
        let least = |all: &[(f64, f64)]| all.iter().fold(f64::INFINITY, |m, (ns, _)| m.min(*ns));
        let adds = |all: &[Figures]| -> Outcome<(f64, f64, f64)> {
            let (device, cpu) = (of(all, "cuda")?, of(all, "cpu")?);
            let mut differences: Vec<f64> =
                device.iter().zip(&cpu).map(|(a, b)| a.1 - b.1).collect();
            differences.sort_by(f64::total_cmp);
            let median = differences.get(differences.len() / 2).copied().unwrap_or(f64::NAN);
            Ok((least(&device) - least(&cpu), median, least(&cpu)))
        };
        let (own, native) = (adds(ours)?, adds(natives)?);
        let mut least =
            Row::new(format!("torch/empty {bytes} adds, least"), own.0, "ns", Some(native.0));
        least.peers.insert("native".into(), native.0);
        least.peers.insert("the CPU's tensor".into(), own.2);
        let mut median =
            Row::new(format!("torch/empty {bytes} adds, median"), own.1, "ns", Some(native.1));
        median.peers.insert("native".into(), native.1);
        rows.extend([least, median]);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_adds_is_judged_by_what_pytorchs_own_adds() {
        let process = |cuda: f64, cpu: f64| {
            figures(&format!("cuda 4096 {cuda} {}\ncpu 4096 {cpu} {cpu}\n", cuda + 5.0))
                .expect("figures")
        };
        let ours = [process(1500.0, 1200.0), process(1400.0, 1150.0)];
        let natives = [process(2500.0, 1210.0), process(2400.0, 1200.0)];
        let rows = rows(&ours, &natives).expect("all lines");
        assert_eq!(rows[0].name, "torch/empty 4096 adds, least");
        assert_eq!((rows[0].value, rows[0].target, rows[0].met), (250.0, Some(1200.0), Some(true)));
        assert_eq!((rows[1].value, rows[1].target), (305.0, Some(1295.0)));
        assert_eq!(rows[0].peers["the CPU's tensor"], 1150.0);
        assert!(figures("cuda 1 2\n").is_err());
        assert!(super::rows(&[figures("cuda 1 2 3\n").expect("a line")], &natives).is_err());
    }
}
