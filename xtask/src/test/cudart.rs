//! Group `cudart`: the simulated CUDA runtime, and programs that reach it by every way.
//!
//! Owns the order: stage the runtime, look at its files, run its tests, then build the programs of
//! `tests/preload` and `examples/runtime` against the shared and the static form and compare what
//! they print with `expected.txt`. Writes only below `target`.

use super::library::{check_with, compiler};
use super::runtime::{Staged, exported, stage_runtime};
use super::{Options, cargo};
use crate::report::Tally;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "forebay_simcudart";
const PROGRAMS: &str = "tests/preload";
const EXAMPLE: &str = "examples/runtime";
const INCLUDE: &str = "-Isim/cudart/include";
const WARNINGS: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// The runtime of CUDA 13 starts on no older driver.
const DRIVER_13: (&str, &str) = ("FOREBAY_SIM_VERSION", "13000");

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
    match build(&staged) {
        Ok(programs) => compare(&staged, &programs, &mut tally),
        Err(why) => tally.check("cudart::build", Err(why)),
    }
    example(&staged, &mut tally);
    tally
}

/// The example, with the shared and with the static form.
fn example(staged: &Staged, tally: &mut Tally) {
    let expected = proc::read(format!("{EXAMPLE}/expected.txt"));
    let objects = example_objects();
    let forms =
        [("shared", staged.folder.join("libcudart.so.12")), ("static", staged.archive.clone())];
    for (name, library) in forms {
        let result = objects.clone().and_then(|objects| {
            let to = proc::target_dir().join("xtask-cudart").join(format!("inference_{name}"));
            let mut link = compiler("CXX", "c++");
            link.args(&objects).arg(&library).args(["-lpthread", "-ldl", "-o"]).arg(&to);
            proc::capture(&mut link)?;
            let mut run = proc::program(&to);
            run.env("LD_LIBRARY_PATH", &staged.folder).env("FOREBAY_SIM_LEAKS", "1");
            prints(&mut run, &expected.clone()?)
        });
        tally.check(&format!("cudart::example_{name}"), result);
    }
}

fn example_objects() -> Outcome<Vec<PathBuf>> {
    let work = proc::target_dir().join("xtask-cudart");
    let compile = |name: &&str| {
        let to = work.join(format!("{name}.o"));
        let mut cc = compiler("CXX", "c++");
        cc.args(["-std=c++17", "-O1", "-c", INCLUDE]).args(&WARNINGS[1..]);
        proc::capture(cc.arg(format!("{EXAMPLE}/{name}.cpp")).arg("-o").arg(&to))?;
        Ok(to)
    };
    ["kernels", "inference"].iter().map(compile).collect()
}

/// The programs of `tests/preload`, built.
struct Programs {
    dynamic_12: PathBuf,
    dynamic_13: PathBuf,
    fixed: PathBuf,
    driver: PathBuf,
    plugin: PathBuf,
    host: PathBuf,
}

fn build(staged: &Staged) -> Outcome<Programs> {
    let work = proc::target_dir().join("xtask-cudart");
    std::fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let folder = &staged.folder;
    let checks: &[&str] = &["runtime.c", "runtime_main.c"];
    let one = |name: &str, sources: &[&str], flags: &[&str], with: &Path| -> Outcome<PathBuf> {
        let to = work.join(name);
        let mut cc = compiler("CC", "cc");
        cc.args(WARNINGS).args([INCLUDE, "-O1"]).args(flags);
        cc.args(sources.iter().map(|source| format!("{PROGRAMS}/{source}")));
        proc::capture(cc.arg(with).args(["-lpthread", "-ldl", "-o"]).arg(&to))?;
        Ok(to)
    };
    let runtime_12 = folder.join("libcudart.so.12");
    Ok(Programs {
        dynamic_12: one("runtime_12", checks, &[], &runtime_12)?,
        dynamic_13: one(
            "runtime_13",
            checks,
            &["-DCUDART_VERSION=13000"],
            &folder.join("libcudart.so.13"),
        )?,
        fixed: one("runtime_static", checks, &[], &staged.archive)?,
        driver: one("driver", &["driver.c"], &[], &folder.join("libcuda.so.1"))?,
        plugin: one("plugin.so", &["runtime.c"], &["-shared", "-fPIC"], &runtime_12)?,
        host: one("plugin_host", &["plugin_host.c"], &[], Path::new("-ldl"))?,
    })
}

/// Runs every program; all print the lines of `expected.txt`, and misuse nothing.
fn compare(staged: &Staged, programs: &Programs, tally: &mut Tally) {
    let plugin = |words: &[&str]| {
        let mut command = proc::program(&programs.host);
        command.arg(&programs.plugin).args(words);
        command
    };
    let symbols = |library: &str| {
        let mut command = proc::program("python3");
        command.arg(format!("{PROGRAMS}/symbols.py")).arg(library);
        command
    };
    let mut thirteen = proc::program(&programs.dynamic_13);
    thirteen.env(DRIVER_13.0, DRIVER_13.1);
    let mut symbols_13 = symbols("libcudart.so.13");
    symbols_13.env(DRIVER_13.0, DRIVER_13.1);
    let mut runs = vec![
        ("dynamic_12", proc::program(&programs.dynamic_12)),
        ("dynamic_13", thirteen),
        ("static", proc::program(&programs.fixed)),
        ("driver", proc::program(&programs.driver)),
        ("plugin", plugin(&[])),
        ("plugin_deep", plugin(&["deep"])),
    ];
    if proc::on_path("python3").is_some() {
        runs.push(("symbols_12", symbols("libcudart.so.12")));
        runs.push(("symbols_13", symbols_13));
    } else {
        tally.skip("cudart::symbols", "no python3 on PATH");
    }
    let expected = proc::read(format!("{PROGRAMS}/expected.txt"));
    for (name, mut command) in runs {
        command.env("LD_LIBRARY_PATH", &staged.folder);
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
