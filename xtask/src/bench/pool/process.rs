//! Builds what `bench pool` runs and runs it: the library, the peers, the C harness.
//!
//! Owns the command lines and the environment of a measured process: the product's and the
//! peers' own variables are taken out, so that defaults are measured. Promises that what a
//! failed program printed is in its error. Must not interpret the figures.

use crate::{Outcome, proc};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The harness's exit status for "the machine was too busy to measure this".
const EXIT_UNCERTIFIED: i32 = 3;

/// The crate of the peers; its own workspace, so that the product never builds it.
const PEERS_MANIFEST: &str = "benches/peers/Cargo.toml";

/// Variables with these beginnings would change what is measured.
const PREFIXES_REMOVED: [&str; 5] = ["FOREBAY_", "MIMALLOC_", "MALLOC_", "GLIBC_", "LD_PRELOAD"];

/// The programs of one bench run.
pub struct Programs {
    harness: PathBuf,
    library: PathBuf,
    peers: PathBuf,
}

/// How one process of the harness ended.
pub enum Ended {
    /// Its lines: row and door, least, median.
    Measured(Vec<(String, f64, f64)>),
    /// Its threads never ran side by side; with what it said.
    Uncertified(String),
    /// It failed; with what it said.
    Failed(String),
}

impl Programs {
    /// Builds all three from the tree as it is.
    pub fn build() -> Outcome<Self> {
        let target = proc::target_dir();
        let bench = target.join("bench");
        fs::create_dir_all(&bench).map_err(|e| format!("{}: {e}", bench.display()))?;
        proc::capture(proc::cargo().args(["build", "--release", "--package", "forebay"]))?;
        let mut peers = proc::cargo();
        peers.args(["build", "--release", "--manifest-path", PEERS_MANIFEST]);
        proc::capture(peers.env("CARGO_TARGET_DIR", bench.join("peers")))?;
        let harness = bench.join("pool-harness");
        proc::capture(&mut compiler(&harness))?;
        Ok(Self {
            harness,
            library: target.join("release/libforebay.so"),
            peers: bench.join("peers/release/libforebay_bench_peers.so"),
        })
    }

    /// Runs one row through one door (`ROW@DOOR`) in a process. The loads are drawn from
    /// `round`, so that no figure stands on one lucky placement.
    pub fn run(&self, request: &str, round: usize) -> Ended {
        self.run_on(request, round, None)
    }

    /// The same; with the folder of a simulated CUDA driver, on that driver.
    pub fn run_on(&self, request: &str, round: usize, simulated: Option<&Path>) -> Ended {
        let peer = request.ends_with("@mimalloc") || request.ends_with("@tlsf");
        let mut command = Command::new(&self.harness);
        for (name, _) in std::env::vars_os() {
            if PREFIXES_REMOVED.iter().any(|p| name.to_string_lossy().starts_with(p)) {
                command.env_remove(name);
            }
        }
        command.arg(if peer { &self.peers } else { &self.library }).arg(request);
        command.env("BENCH_ROUND", round.to_string());
        if let Some(folder) = simulated {
            command.env("BENCH_BACKEND", "cuda");
            command.envs(super::super::on_simulated(folder));
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(e) => return Ended::Failed(format!("{}: {e}", self.harness.display())),
        };
        let printed = String::from_utf8_lossy(&output.stdout);
        let said = format!("{printed}{}", String::from_utf8_lossy(&output.stderr));
        if output.status.code() == Some(EXIT_UNCERTIFIED) {
            return Ended::Uncertified(said);
        }
        let lines: Option<Vec<_>> = printed.lines().map(parse).collect();
        match lines {
            Some(lines) if output.status.success() && !lines.is_empty() => Ended::Measured(lines),
            _ => Ended::Failed(format!("{}\n{said}", output.status)),
        }
    }
}

/// `NAME LEAST MEDIAN`; none for anything else.
fn parse(line: &str) -> Option<(String, f64, f64)> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_string();
    let least: f64 = words.next()?.parse().ok()?;
    let median: f64 = words.next()?.parse().ok()?;
    let whole = words.next().is_none() && least.is_finite() && median.is_finite();
    whole.then_some((name, least, median))
}

/// The compiler's call for the harness: every C file of its folder at once.
fn compiler(harness: &Path) -> Command {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = proc::program(compiler);
    command.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Iinclude", "-o"]);
    command.arg(harness).args(proc::files("benches/pool", &["c"]));
    command.args(["-lm", "-ldl", "-lpthread"]);
    command
}

/// The machine in one line: processor, CPUs, load.
pub fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |text| text.trim_start_matches([' ', '\t', ':']));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{model}, {cpus} CPUs, load average {}", load_average())
}

/// The load averages of the last 1, 5 and 15 minutes.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_figures() {
        assert_eq!(parse("hot@pool 12.5 13"), Some(("hot@pool".to_string(), 12.5, 13.0)));
        for bad in ["", "hot@pool 12.5", "hot@pool 12.5 nan", "hot@pool a 13", "a 1 2 3"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
