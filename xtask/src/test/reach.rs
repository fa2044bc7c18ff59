//! The programs of `tests/preload` and `examples/runtime`, one for each way to reach CUDA.
//!
//! Owns how each is compiled, linked and started. All print the lines of their `expected.txt`,
//! whatever stands between them and the driver. Writes only below `target`.

use super::library::compiler;
use super::runtime::Staged;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: &str = "tests/preload";
const EXAMPLE: &str = "examples/runtime";
const INCLUDE: &str = "-Isim/cudart/include";
const WARNINGS: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// The runtime of CUDA 13 starts on no older driver.
const DRIVER_13: (&str, &str) = ("FOREBAY_SIM_VERSION", "13000");

/// A program that is ready to start, and what reaches CUDA in it.
pub struct Reach {
    /// Its name among the others.
    pub name: &'static str,
    /// How it is started.
    pub command: Command,
}

/// What all these programs print.
pub fn expected() -> Outcome<String> {
    proc::read(format!("{PROGRAMS}/expected.txt"))
}

/// What the example prints.
pub fn example_expected() -> Outcome<String> {
    proc::read(format!("{EXAMPLE}/expected.txt"))
}

/// Compiles the programs below `target/NAME`, each linked with `first`, where one is given, before
/// CUDA.
pub fn build(staged: &Staged, name: &str, first: Option<&Path>) -> Outcome<Vec<Reach>> {
    let work = folder(name)?;
    let folder = &staged.folder;
    let checks: &[&str] = &["runtime.c", "runtime_main.c"];
    let one = |name: &str, sources: &[&str], flags: &[&str], with: &Path| -> Outcome<PathBuf> {
        let to = work.join(name);
        let mut cc = compiler("CC", "cc");
        cc.args(WARNINGS).args([INCLUDE, "-O1"]).args(flags);
        cc.args(sources.iter().map(|source| format!("{PROGRAMS}/{source}")));
        link_first(&mut cc, first);
        proc::capture(cc.arg(with).args(["-lpthread", "-ldl", "-o"]).arg(&to))?;
        Ok(to)
    };
    let (twelve, thirteen) = (folder.join("libcudart.so.12"), folder.join("libcudart.so.13"));
    let plugin = one("plugin.so", &["runtime.c"], &["-shared", "-fPIC"], &twelve)?;
    let host = one("plugin_host", &["plugin_host.c"], &[], Path::new("-ldl"))?;
    let plain = |name, path: PathBuf| Reach { name, command: proc::program(path) };
    let mut all = vec![
        plain("dynamic_12", one("runtime_12", checks, &[], &twelve)?),
        plain("dynamic_13", one("runtime_13", checks, &["-DCUDART_VERSION=13000"], &thirteen)?),
        plain("static", one("runtime_static", checks, &[], &staged.archive)?),
        plain("driver", one("driver", &["driver.c"], &[], &folder.join("libcuda.so.1"))?),
    ];
    let deep = &["deep"][..];
    for (name, words) in [("plugin", &[][..]), ("plugin_deep", deep), ("plugin_deep_kept", deep)] {
        let mut command = proc::program(&host);
        command.arg(&plugin).args(words);
        if name == "plugin_deep" {
            command.env("FOREBAY_DEEPBIND", "serve");
        }
        all.push(Reach { name, command });
    }
    Ok(ready(all, staged))
}

/// The program that finds every function by hand; nothing where there is no Python.
pub fn symbols(staged: &Staged) -> Vec<Reach> {
    if proc::on_path("python3").is_none() {
        return Vec::new();
    }
    let one = |name, library| {
        let mut command = proc::program("python3");
        command.arg(format!("{PROGRAMS}/symbols.py")).arg(library);
        Reach { name, command }
    };
    let all = vec![one("symbols_12", "libcudart.so.12"), one("symbols_13", "libcudart.so.13")];
    ready(all, staged)
}

/// The example, with the shared and with the static runtime.
pub fn example(staged: &Staged, name: &str, first: Option<&Path>) -> Outcome<Vec<Reach>> {
    let work = folder(name)?;
    let mut objects = Vec::new();
    for source in ["kernels", "inference"] {
        let to = work.join(format!("{source}.o"));
        let mut cc = compiler("CXX", "c++");
        cc.args(["-std=c++17", "-O1", "-c", INCLUDE]).args(&WARNINGS[1..]);
        proc::capture(cc.arg(format!("{EXAMPLE}/{source}.cpp")).arg("-o").arg(&to))?;
        objects.push(to);
    }
    let shared = staged.folder.join("libcudart.so.12");
    let mut all = Vec::new();
    for (name, library) in [("example_shared", &shared), ("example_static", &staged.archive)] {
        let to = work.join(name);
        let mut link = compiler("CXX", "c++");
        link.args(&objects);
        link_first(&mut link, first);
        proc::capture(link.arg(library).args(["-lpthread", "-ldl", "-o"]).arg(&to))?;
        all.push(Reach { name, command: proc::program(to) });
    }
    Ok(ready(all, staged))
}

fn folder(name: &str) -> Outcome<PathBuf> {
    let work = proc::target_dir().join(name);
    std::fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    Ok(work)
}

/// `-lNAME` of a library, kept also where nothing of it is used.
fn link_first(cc: &mut Command, first: Option<&Path>) {
    let Some(first) = first else { return };
    let name = first.file_stem().unwrap_or_default().to_string_lossy();
    let name = name.strip_prefix("lib").unwrap_or(&name).to_owned();
    cc.arg("-Wl,--no-as-needed").arg("-L").arg(first.parent().unwrap_or(first));
    cc.arg(format!("-l{name}"));
}

fn ready(mut all: Vec<Reach>, staged: &Staged) -> Vec<Reach> {
    for reach in &mut all {
        reach.command.env("LD_LIBRARY_PATH", &staged.folder);
        if reach.name.ends_with("13") {
            reach.command.env(DRIVER_13.0, DRIVER_13.1);
        }
    }
    all
}
