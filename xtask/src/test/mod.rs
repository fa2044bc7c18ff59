//! `cargo xtask test`: all tests in groups, with a summary.
//!
//! Owns the groups, their time budgets, and the closing line. A group over its budget is a
//! printed warning, never a failure: machines differ. What cannot run here is
//! printed as skipped by name and not counted as passed. All run on the host backend, the groups
//! `sim`, `cudart`, `cuda`, `preload`, `clients` and `torch` on the simulated driver.

mod c;
mod cargo;
mod clients;
mod cuda;
mod cudart;
pub mod library;
mod matrix;
mod preload;
mod probe;
mod python;
mod reach;
mod runtime;
mod runtimes;
mod sim;
mod torch;

pub use reach::example;
pub use runtime::{Staged, stage_runtime};
pub use sim::stage_sim;

use crate::Outcome;
use crate::args::Args;
use crate::report::Tally;
use std::time::Instant;

/// The command's form.
pub const USAGE: &str =
    "test [unit|rust|model|sim|probe|cudart|cuda|preload|clients|torch|c|python|cli] [--full]";

/// What the groups are told.
#[derive(Clone, Copy)]
pub struct Options {
    /// Also run what takes long: the tests marked ignored.
    pub full: bool,
}

struct Group {
    name: &'static str,
    /// Seconds that the group should take at most, on two cores with nothing built yet.
    budget: u64,
    /// Seconds more for the tests marked ignored.
    full: u64,
    run: fn(Options) -> Tally,
}

const GROUPS: &[Group] = &[
    Group { name: "unit", budget: 240, full: 0, run: cargo::unit },
    Group { name: "rust", budget: 600, full: 0, run: cargo::integration },
    Group { name: "model", budget: 300, full: 0, run: cargo::model },
    Group { name: "sim", budget: 300, full: 0, run: sim::run },
    Group { name: "probe", budget: 120, full: 0, run: probe::run },
    Group { name: "cudart", budget: 90, full: 0, run: cudart::run },
    Group { name: "cuda", budget: 420, full: 1200, run: cuda::run },
    Group { name: "preload", budget: 240, full: 0, run: preload::run },
    Group { name: "clients", budget: 180, full: 0, run: clients::run },
    Group { name: "torch", budget: 300, full: 0, run: torch::run },
    Group { name: "c", budget: 420, full: 0, run: c::run },
    Group { name: "python", budget: 120, full: 0, run: python::run },
    Group { name: "cli", budget: 180, full: 0, run: cargo::cli },
];

/// Runs one group or all; an error when anything failed.
pub fn run(mut args: Args) -> Outcome<()> {
    let options = Options { full: args.flag("--full") };
    let wanted = args.rest()?;
    if let Some(unknown) = wanted.iter().find(|w| !GROUPS.iter().any(|g| g.name == *w)) {
        return Err(format!("no test group {unknown:?}: {USAGE}"));
    }
    let mut results = Vec::new();
    for group in GROUPS.iter().filter(|g| wanted.is_empty() || wanted.iter().any(|w| w == g.name)) {
        let budget = group.budget + if options.full { group.full } else { 0 };
        println!("\n== {} (budget {budget} s)", group.name);
        let start = Instant::now();
        let tally = (group.run)(options);
        let seconds = start.elapsed().as_secs_f64();
        println!("{}: {seconds:.1} s of {budget} s", group.name);
        if seconds > budget as f64 {
            println!("warning: {} took longer than its budget", group.name);
        }
        results.push((group.name, tally, seconds));
    }
    println!("\n{}", summary(&results));
    let mut all = Tally::default();
    for (_, tally, _) in &results {
        all += *tally;
    }
    all.close("tests")
}

fn summary(results: &[(&str, Tally, f64)]) -> String {
    let mut text = format!(
        "{:8} {:>8} {:>8} {:>8} {:>9}\n",
        "group", "passed", "failed", "skipped", "seconds"
    );
    for (name, t, seconds) in results {
        let line =
            format!("{name:8} {:>8} {:>8} {:>8} {seconds:>9.1}\n", t.passed, t.failed, t.skipped);
        text.push_str(&line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_a_line_for_each_group() {
        let tally = Tally { passed: 3, failed: 1, skipped: 2 };
        let text = summary(&[("unit", tally, 1.25), ("c", Tally::default(), 0.0)]);
        let words: Vec<&str> = text.lines().nth(1).unwrap_or("").split_whitespace().collect();
        assert_eq!(words, ["unit", "3", "1", "2", "1.2"]);
        assert_eq!(text.lines().count(), 3);
    }
}
