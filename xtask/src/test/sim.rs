//! The simulated CUDA driver: builds it, stages it, runs its tests, prints what they showed.
//!
//! Owns `target/sim`, a folder that holds `libcuda.so.1` and nothing else, away from the product,
//! so that no search path can shadow a real driver by accident. Every group that needs the
//! library takes it from [`stage_sim`]. Owns the list of rows as well: rules of the driver that
//! a test showed in this very run, each with its source.

use super::library::check_with;
use super::{Options, cargo};
use crate::report::Tally;
use crate::{Outcome, proc};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PACKAGE: &str = "forebay_simcuda";
const SONAME: &str = "libcuda.so.1";
/// The page that lists what is only assumed of the real driver.
const ASSUMPTIONS: &str = "docs/gpu-verification.md";

/// Builds the simulated driver and puts it at `target/sim/libcuda.so.1`; answers the folder.
/// A run that is under way keeps the file it has: the new one takes its name.
pub fn stage_sim() -> Outcome<PathBuf> {
    let mut build = proc::cargo();
    build.args(["build", "--package", PACKAGE, "--lib"]);
    proc::run(&mut build)?;
    let built = proc::target_dir().join("debug").join("libforebay_simcuda.so");
    let dir = proc::target_dir().join("sim");
    let told = |what: &Path, e: std::io::Error| format!("{}: {e}", what.display());
    std::fs::create_dir_all(&dir).map_err(|e| told(&dir, e))?;
    let fresh = proc::target_dir().join("libcuda.so.1.staging");
    std::fs::copy(&built, &fresh).map_err(|e| told(&built, e))?;
    let staged = dir.join(SONAME);
    std::fs::rename(&fresh, &staged).map_err(|e| told(&staged, e))?;
    Ok(dir)
}

/// Runs the group.
pub fn run(options: Options) -> Tally {
    let mut tally = Tally::default();
    let staged = match stage_sim() {
        Ok(dir) => dir.join(SONAME),
        Err(why) => {
            tally.check("sim::stage", Err(why));
            return tally;
        }
    };
    println!("staged {}", staged.display());
    check_with("sim::soname", "readelf", &["-d", "--wide"], judge_soname, &staged, &mut tally);
    check_with("sim::exports", "nm", &["-D", "--defined-only"], judge_exports, &staged, &mut tally);
    let rows = proc::target_dir().join("xtask-sim").join("rows");
    if let Err(why) = proc::write(&rows, "") {
        tally.check("sim::rows", Err(why));
        return tally;
    }
    let mut command = proc::cargo();
    command
        .args(["test", "--no-fail-fast", "--package", PACKAGE, "--lib", "--test", "*"])
        .env("FOREBAY_SIMULATED_DRIVER", &staged)
        .env("FOREBAY_SIMULATED_ROWS", &rows);
    if options.full {
        command.args(["--", "--include-ignored"]);
    }
    cargo::run_counted(&mut command, &mut tally);
    match proc::read(&rows) {
        Ok(text) => {
            println!("\n{}", list_of_rows(&text));
            let page = proc::read(ASSUMPTIONS);
            tally.check("sim::assumptions", page.and_then(|page| judge_assumptions(&text, &page)));
        }
        Err(why) => tally.check("sim::rows", Err(why)),
    }
    tally
}

/// Rules that no source settles stand on the page about verification, each as a row of its own.
fn judge_assumptions(rows: &str, page: &str) -> Outcome<()> {
    let mut missing: Vec<&str> = rows
        .lines()
        .filter_map(|line| line.strip_suffix("\tassumption"))
        .filter(|row| !page.lines().any(|line| line.starts_with(&format!("| {row} |"))))
        .collect();
    missing.sort_unstable();
    missing.dedup();
    match missing.len() {
        0 => Ok(()),
        n => Err(format!("{n} not in {ASSUMPTIONS}: {}", missing.join("; "))),
    }
}

fn judge_soname(text: &str) -> Outcome<()> {
    let line = text.lines().find(|l| l.contains("(SONAME)")).unwrap_or_default();
    if line.contains(&format!("[{SONAME}]")) {
        Ok(())
    } else {
        Err(format!("SONAME is not {SONAME}: {line}"))
    }
}

/// Functions of CUDA and of the simulation are exported, and nothing else.
fn judge_exports(text: &str) -> Outcome<()> {
    let names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().last()).collect();
    let known = |name: &str| {
        let driver = name.strip_prefix("cu").and_then(|rest| rest.chars().next());
        driver.is_some_and(char::is_uppercase) || name.starts_with("forebay_sim_")
    };
    let foreign: Vec<&str> = names.iter().copied().filter(|name| !known(name)).collect();
    match (names.is_empty(), foreign.is_empty()) {
        (true, _) => Err("nothing is exported".to_owned()),
        (_, true) => Ok(()),
        _ => Err(format!("exported besides cu* and forebay_sim_*: {}", foreign.join(", "))),
    }
}

/// The rows by source, each once.
fn list_of_rows(text: &str) -> String {
    let mut by_source: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let (row, source) = line.split_once('\t').unwrap_or((line, "no source"));
        by_source.entry(source).or_default().push(row);
    }
    let mut out = String::new();
    let mut all = 0;
    for (source, rows) in &mut by_source {
        rows.sort_unstable();
        rows.dedup();
        all += rows.len();
        out.push_str(&format!("{source}\n"));
        for row in rows {
            out.push_str(&format!("  {row}\n"));
        }
    }
    format!("Rules of the driver that this run showed, by source:\n{out}{all} rows\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_listed_once_by_source() {
        let text = "b\tH\na\tH\nb\tH\nc\tI: x#1\n";
        let told = list_of_rows(text);
        assert!(told.ends_with("H\n  a\n  b\nI: x#1\n  c\n3 rows\n"), "{told}");
    }

    #[test]
    fn an_assumption_must_stand_on_the_page() {
        let rows = "a\tassumption\nb\tH\nc\tassumption\n";
        assert_eq!(judge_assumptions(rows, "| a | x |\n| c | y |\n"), Ok(()));
        let told = judge_assumptions(rows, "| a | x |\nc\n| b | y |\n");
        assert!(told.is_err_and(|why| why.starts_with("1 not in") && why.ends_with(": c")));
    }

    #[test]
    fn exports_and_soname_are_judged() {
        assert_eq!(judge_exports("00 T cuInit\n00 T forebay_sim_step\n"), Ok(()));
        assert!(judge_exports("00 T cuInit\n00 T curl_easy_init\n").is_err());
        assert!(judge_exports("").is_err());
        assert_eq!(judge_soname(" 0xe (SONAME)  Library soname: [libcuda.so.1]\n"), Ok(()));
        assert!(judge_soname(" 0xe (SONAME)  Library soname: [libcuda.so]\n").is_err());
    }
}
