//! The preload library under the programs of [`reach`], in every form: preloaded, and linked before
//! CUDA. They print what they print without it, and every allocation is counted by its function's
//! name as served by the pool or passed on to the driver.
//!
//! Owns the counts, each the number of such calls in the program's source.

use super::reach::{self, Reach};
use super::runtime::Staged;
use crate::report::Tally;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where its programs are compiled to.
const WORK: &str = "xtask-preload";

/// `NAME SERVED PASSED`: calls of `runtime.c`, `symbols.py` and `driver.c`. Pinned memory is asked
/// for twice each by pinned, async, pool and streams, and once by graph.
const CHECKS: &str = "\
cuMemAlloc_v2 8 0
cuMemFree_v2 10 1
cuMemAllocPitch_v2 2 0
cuMemAllocAsync 1 0
cuMemFreeAsync 2 0
cuMemAllocFromPoolAsync 1 0
cuMemAllocManaged 0 1
cuMemHostAlloc 0 9
";

/// Where a plugin's `dlsym` stays the C library's own: all calls are the driver's, and unseen.
const UNSEEN: &str = "";

/// Calls of the example: the weights, and of 3 workers each 4 buffers, 2 blocks for each of 6
/// requests, and 2 pinned buffers. First of all the second process's, which opens the weights.
const EXAMPLE: &str = "\
cuIpcOpenMemHandle_v2 1 0
cuIpcCloseMemHandle 1 0
cuMemAlloc_v2 13 0
cuMemFree_v2 13 0
cuMemAllocAsync 36 0
cuMemFreeAsync 36 0
cuMemHostAlloc 0 6
cuIpcGetMemHandle 1 0
";

/// How the preload library comes into a program.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Preloaded,
    Linked,
}

/// Runs every program in every form.
pub fn run(staged: &Staged, tally: &mut Tally) {
    let library = match stage() {
        Ok(library) => library,
        Err(why) => return tally.check("preload::stage", Err(why)),
    };
    for form in [Form::Preloaded, Form::Linked] {
        let (first, work, label) = match form {
            Form::Preloaded => (None, format!("{WORK}/preloaded"), "preloaded"),
            Form::Linked => (Some(library.as_path()), format!("{WORK}/linked"), "linked"),
        };
        let example = reach::example(staged, &work, first);
        let mut runs = reach::build(staged, &work, first);
        if let (Ok(runs), Form::Preloaded) = (&mut runs, form) {
            let symbols = reach::symbols(staged);
            if symbols.is_empty() {
                tally.skip("preload::symbols", "no python3 on PATH");
            }
            runs.extend(symbols);
        }
        match runs.and_then(|mut runs| {
            runs.extend(example?);
            Ok(runs)
        }) {
            Ok(runs) => {
                for reach in runs {
                    let name = format!("preload::{}_{label}", reach.name);
                    tally.check(&name, judge(reach, form, &library));
                }
            }
            Err(why) => tally.check(&format!("preload::build_{label}"), Err(why)),
        }
    }
}

/// Builds the preload library and the pool, one beside the other; where the first lies.
pub fn stage() -> Outcome<PathBuf> {
    let mut build = proc::cargo();
    build.args(["build", "--lib", "--package", "forebay", "--package", "forebay-preload"]);
    proc::run(&mut build)?;
    let library = proc::target_dir().join("debug").join("libforebay_preload.so");
    let pool = library.with_file_name("libforebay.so.0");
    match pool.exists() {
        true => Ok(library),
        false => Err(format!("{} is not there", pool.display())),
    }
}

/// Puts the library into a program's environment, as users do, on a small simulated machine.
pub fn preload(command: &mut Command, library: &Path) {
    served(command).env("LD_PRELOAD", library);
}

/// The pool's own settings for these runs.
fn served(command: &mut Command) -> &mut Command {
    command
        .env_remove("FOREBAY_BACKEND")
        .env("FOREBAY_HEADROOM", "0")
        .env("FOREBAY_SIM_MEMORY", "256MiB")
        .env("FOREBAY_STATS", "1")
}

fn judge(mut reach: Reach, form: Form, library: &Path) -> Outcome<()> {
    let command = &mut reach.command;
    match form {
        Form::Preloaded => preload(command, library),
        Form::Linked => {
            let given = command.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH");
            let mut path = given.and_then(|(_, path)| path).unwrap_or_default().to_owned();
            path.push(":");
            path.push(library.parent().unwrap_or(library));
            served(command).env("LD_LIBRARY_PATH", path);
        }
    }
    let is_example = reach.name.starts_with("example");
    let (expected, counts) = match (is_example, reach.name, form) {
        (true, ..) => (reach::example_expected()?, EXAMPLE),
        (_, "plugin_deep_kept", Form::Preloaded) => (reach::expected()?, UNSEEN),
        _ => (reach::expected()?, CHECKS),
    };
    let output = command.output().map_err(|e| format!("{}: {e}", proc::describe(command)))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let (found, rest) = counted(&errors);
    let quiet = rest.is_empty();
    match output.status.success() && told == expected && sorted(&found) == sorted(counts) && quiet {
        true => Ok(()),
        false => Err(format!("{}\n{told}{errors}expected:\n{expected}{counts}", output.status)),
    }
}

/// What `FOREBAY_STATS` printed as lines `NAME SERVED PASSED`, and all other lines.
pub fn counted(errors: &str) -> (String, Vec<&str>) {
    let mut counts: Vec<(&str, u64, u64)> = Vec::new();
    let mut rest = Vec::new();
    for line in errors.lines() {
        let Some((name, served, passed)) = count(line) else {
            rest.push(line);
            continue;
        };
        let name = drivers_name(name);
        match counts.iter_mut().find(|known| known.0 == name) {
            Some(known) => (known.1, known.2) = (known.1 + served, known.2 + passed),
            None => counts.push((name, served, passed)),
        }
    }
    let lines = counts.iter().map(|(name, served, passed)| format!("{name} {served} {passed}\n"));
    (lines.collect(), rest)
}

/// Lines in an order of their own: the first of a name may be the runtime's.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// The driver's function that a runtime's call, answered early, would have ended in.
fn drivers_name(name: &str) -> &str {
    match name {
        "cudaMalloc" => "cuMemAlloc_v2",
        "cudaFree" => "cuMemFree_v2",
        "cudaMallocAsync" => "cuMemAllocAsync",
        "cudaMallocAsync_ptsz" => "cuMemAllocAsync_ptsz",
        "cudaFreeAsync" => "cuMemFreeAsync",
        "cudaFreeAsync_ptsz" => "cuMemFreeAsync_ptsz",
        name => name,
    }
}

/// A line `forebay: NAME: N served, N passed on`.
fn count(line: &str) -> Option<(&str, u64, u64)> {
    let (name, numbers) = line.strip_prefix("forebay: ")?.split_once(": ")?;
    let (served, passed) = numbers.strip_suffix(" passed on")?.split_once(" served, ")?;
    Some((name, served.parse().ok()?, passed.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_other_lines_kept() {
        let errors = "forebay: cuMemAlloc_v2: 3 served, 1 passed on\nsimulated CUDA: misuse: x\n";
        let early = format!("{errors}forebay: cudaMalloc: 2 served, 0 passed on\n");
        assert_eq!(counted(&early).0, "cuMemAlloc_v2 5 1\n", "by whichever name");
        let (counts, rest) = counted(errors);
        assert_eq!(counts, "cuMemAlloc_v2 3 1\n");
        assert_eq!(rest, ["simulated CUDA: misuse: x"]);
        assert_eq!(count("forebay: device 0 stays the driver's: 3 served"), None);
    }
}
