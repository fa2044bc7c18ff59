//! Group `cudart`: the simulated CUDA runtime, and programs that reach it by every way.
//!
//! Owns the order: stage the runtime, look at its files, run its tests, then compare what the
//! programs of [`reach`] print with their `expected.txt`. Writes only below `target`.

use super::library::check_with;
use super::reach::{self, Reach};
use super::runtime::{exported, stage_runtime};
use super::{Options, cargo};
use crate::report::Tally;
use crate::{Outcome, proc};
use std::process::Command;

const PACKAGE: &str = "forebay_simcudart";
/// Where its programs are compiled to.
const WORK: &str = "xtask-cudart";

/// Runs the group.
pub fn run(options: Options) -> Tally {
    let mut tally = Tally::default();
    let staged = match stage_runtime() {
        Ok(staged) => staged,
        Err(why) => {
            tally.check("cudart::stage", Err(why));
            return tally;
        }
    };
    println!("staged {} and {}", staged.folder.display(), staged.archive.display());
    for (major, judge) in [(12, judge_12 as fn(&str) -> Outcome<()>), (13, judge_13)] {
        let library = staged.folder.join(format!("libcudart.so.{major}"));
        let name = format!("cudart::exports_{major}");
        check_with(&name, "nm", &["-D", "--defined-only"], judge, &library, &mut tally);
        let name = format!("cudart::needs_no_cuda_{major}");
        check_with(&name, "readelf", &["-d", "--wide"], judge_needs, &library, &mut tally);
    }
    let name = "cudart::static_globals";
    check_with(name, "nm", &["--defined-only"], judge_archive, &staged.archive, &mut tally);
    let mut command = proc::cargo();
    command.args(["test", "--no-fail-fast", "--package", PACKAGE]);
    command.env("FOREBAY_SIMULATED_RUNTIME", &staged.folder);
    if options.full {
        command.args(["--", "--include-ignored"]);
    }
    cargo::run_counted(&mut command, &mut tally);
    let expected = reach::expected();
    compare(reach::build(&staged, WORK, None), &expected, &mut tally);
    let symbols = reach::symbols(&staged);
    if symbols.is_empty() {
        tally.skip("cudart::symbols", "no python3 on PATH");
    }
    compare(Ok(symbols), &expected, &mut tally);
    let mut example = reach::example(&staged, WORK, None);
    for reach in example.iter_mut().flatten() {
        reach.command.env("FOREBAY_SIM_LEAKS", "1");
    }
    compare(example, &reach::example_expected(), &mut tally);
    tally
}

/// Runs every program; all print the lines that are expected, and misuse nothing.
fn compare(runs: Outcome<Vec<Reach>>, expected: &Outcome<String>, tally: &mut Tally) {
    let runs = match runs {
        Ok(runs) => runs,
        Err(why) => return tally.check("cudart::build", Err(why)),
    };
    for Reach { name, mut command } in runs {
        let result = expected.clone().and_then(|expected| prints(&mut command, &expected));
        tally.check(&format!("cudart::{name}"), result);
    }
}

fn prints(command: &mut Command, expected: &str) -> Outcome<()> {
    let output = command.output().map_err(|e| format!("{}: {e}", proc::describe(command)))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() && told == expected && errors.is_empty() {
        true => Ok(()),
        false => Err(format!("{}\n{told}{errors}", output.status)),
    }
}

fn judge_12(table: &str) -> Outcome<()> {
    judge_exports(table, 12, "cudaGetDeviceProperties_v2", "cudaLogsCurrent")
}

fn judge_13(table: &str) -> Outcome<()> {
    judge_exports(table, 13, "cudaLogsCurrent", "cudaGetDeviceProperties_v2")
}

/// Functions of the runtime under its version and nothing else; of two forms' own names, the one.
fn judge_exports(table: &str, major: u32, own: &str, other: &str) -> Outcome<()> {
    let node = format!("@@libcudart.so.{major}");
    let unversioned = table.lines().find(|line| line.contains(" T ") && !line.ends_with(&node));
    if let Some(line) = unversioned {
        return Err(format!("not under the version {node}: {line}"));
    }
    let names = exported(table);
    let ours = |name: &str| {
        ["cuda", "__cuda", "forebay_simcudart_"].iter().any(|start| name.starts_with(start))
    };
    let has = |name: &str| names.iter().any(|n| n == name);
    if let Some(foreign) = names.iter().find(|name| !ours(name)) {
        return Err(format!("exported: {foreign}"));
    }
    match has("cudaMalloc") && has("cudaMallocAsync_ptsz") && has(own) && !has(other) {
        true => Ok(()),
        false => Err(format!("not the functions of CUDA {major}")),
    }
}

/// No library of CUDA is needed at load.
fn judge_needs(text: &str) -> Outcome<()> {
    match text.lines().find(|line| line.contains("(NEEDED)") && line.contains("cuda")) {
        Some(line) => Err(format!("needs CUDA: {line}")),
        None => Ok(()),
    }
}

/// The archive's only global names are functions of the runtime.
fn judge_archive(table: &str) -> Outcome<()> {
    let global = |line: &&str| {
        let kind = line.split_whitespace().nth(1).unwrap_or_default();
        kind.chars().all(|c| c.is_ascii_uppercase()) && !kind.is_empty() || kind == "u"
    };
    let names: Vec<&str> =
        table.lines().filter(global).filter_map(|l| l.split_whitespace().last()).collect();
    let foreign = names.iter().find(|name| {
        !["cuda", "__cuda", "forebay_simcudart_"].iter().any(|start| name.starts_with(start))
    });
    match (names.contains(&"cudaMalloc"), foreign) {
        (true, None) => Ok(()),
        (false, _) => Err("no cudaMalloc".to_owned()),
        (true, Some(name)) => Err(format!("global: {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_judged_by_version_and_name() {
        let good = "01 T cudaMalloc@@libcudart.so.12\n02 T cudaMallocAsync_ptsz@@libcudart.so.12\n\
                    03 T cudaGetDeviceProperties_v2@@libcudart.so.12\n00 A libcudart.so.12\n";
        assert_eq!(judge_12(good), Ok(()));
        assert!(judge_13(&good.replace("so.12", "so.13")).is_err());
        assert!(judge_12(&good.replace("@@libcudart.so.12", "")).is_err());
        assert!(judge_12(&(good.to_owned() + "04 T rust_panic@@libcudart.so.12\n")).is_err());
    }

    #[test]
    fn an_archive_with_other_global_names_is_found() {
        let good = "01 T cudaMalloc\n02 t _ZN4core\n";
        assert_eq!(judge_archive(good), Ok(()));
        assert!(judge_archive(&(good.to_owned() + "03 W rust_eh_personality\n")).is_err());
        assert!(judge_archive("02 t _ZN4core\n").is_err());
    }
}
