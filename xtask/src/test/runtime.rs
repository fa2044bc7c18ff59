//! The simulated CUDA runtime: builds it and stages its three forms beside the simulated driver.
//!
//! Owns how `libforebay_simcudart.a` becomes `libcudart.so.12` and `libcudart.so.13`, each with its
//! SONAME and version node, and `libcudart_static.a`, one object in which everything but
//! CUDA's functions is local. The static form is put in a folder of its own, so that `-lcudart`
//! never takes it by accident.

use super::sim::stage_sim;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};

const PACKAGE: &str = "forebay_simcudart";
const SOURCE: &str = "sim/cudart/src/version.c";

/// Major version, and what `cudaRuntimeGetVersion` says.
const FORMS: [(u32, u32); 2] = [(12, 12_090), (13, 13_000)];

/// Where the staged files lie.
pub struct Staged {
    /// `libcuda.so.1`, `libcudart.so.12` and `libcudart.so.13`.
    pub folder: PathBuf,
    /// `libcudart_static.a`, of CUDA 12.
    pub archive: PathBuf,
}

/// Builds and stages the driver and the runtime.
pub fn stage_runtime() -> Outcome<Staged> {
    let folder = stage_sim()?;
    let mut build = proc::cargo();
    build.args(["build", "--package", PACKAGE, "--lib"]);
    proc::run(&mut build)?;
    let built = proc::target_dir().join("debug").join("libforebay_simcudart.a");
    let work = proc::target_dir().join("sim-static");
    let told = |what: &Path, e: std::io::Error| format!("{}: {e}", what.display());
    std::fs::create_dir_all(&work).map_err(|e| told(&work, e))?;
    for (major, version) in FORMS {
        let object = work.join(format!("version_{major}.o"));
        compile_version(version, &object)?;
        let fresh = work.join(format!("libcudart.so.{major}"));
        link_shared(major, &object, &built, &fresh)?;
        // A run that is under way keeps the file it has: the new one takes its name.
        let staged = folder.join(format!("libcudart.so.{major}"));
        std::fs::rename(&fresh, &staged).map_err(|e| told(&staged, e))?;
    }
    let archive = link_static(&work, &built, &folder.join("libcudart.so.12"))?;
    Ok(Staged { folder, archive })
}

fn compile_version(version: u32, object: &Path) -> Outcome<()> {
    let mut cc = super::library::compiler("CC", "cc");
    cc.args(["-std=c11", "-O1", "-fPIC", "-c", SOURCE, "-o"]).arg(object);
    proc::capture(cc.arg(format!("-DFOREBAY_SIMCUDART_VERSION={version}"))).map(drop)
}

fn link_shared(major: u32, object: &Path, built: &Path, to: &Path) -> Outcome<()> {
    let mut cc = super::library::compiler("CC", "cc");
    cc.args(["-shared", "-o"]).arg(to).arg(object);
    cc.arg("-Wl,--whole-archive").arg(built).arg("-Wl,--no-whole-archive");
    cc.arg(format!("-Wl,--version-script=sim/cudart/exports_{major}.map"));
    cc.arg(format!("-Wl,-soname,libcudart.so.{major}"));
    cc.args(["-Wl,-z,nodelete", "-Wl,--gc-sections", "-lpthread", "-ldl"]);
    proc::capture(&mut cc).map(drop)
}

/// One object of all that CUDA's functions need, with those names global and no other; they are
/// the names that the shared form exports.
fn link_static(work: &Path, built: &Path, shared: &Path) -> Outcome<PathBuf> {
    let table = proc::capture(proc::program("nm").args(["-D", "--defined-only"]).arg(shared))?;
    let names = exported(&table);
    if names.is_empty() {
        return Err(format!("{}: exports nothing", shared.display()));
    }
    let (keep, asked) = (work.join("keep.txt"), work.join("undefined.txt"));
    proc::write(&keep, &(names.join("\n") + "\n"))?;
    let asked_for: String = names.iter().map(|name| format!("--undefined={name}\n")).collect();
    proc::write(&asked, &asked_for)?;
    let (all, one) = (work.join("all.o"), work.join("libcudart_static.o"));
    let mut ld = proc::program("ld");
    ld.args(["-r", "-x", "--gc-sections", "-o"]).arg(&all).arg(work.join("version_12.o"));
    proc::capture(ld.arg(format!("@{}", asked.display())).arg(built))?;
    let mut objcopy = proc::program("objcopy");
    // Bitcode in the standard library's objects is of no use to a linker, and some cannot read it.
    objcopy.args(["--strip-debug", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    objcopy.arg(format!("--keep-global-symbols={}", keep.display()));
    proc::capture(objcopy.arg(&all).arg(&one))?;
    let archive = work.join("libcudart_static.a");
    let fresh = work.join("staging.a");
    let told = |e: std::io::Error| format!("{}: {e}", archive.display());
    if fresh.exists() {
        std::fs::remove_file(&fresh).map_err(told)?;
    }
    proc::capture(proc::program("ar").arg("rcs").arg(&fresh).arg(&one))?;
    std::fs::rename(&fresh, &archive).map_err(told)?;
    Ok(archive)
}

/// The functions in `nm`'s table, without their versions.
pub fn exported(table: &str) -> Vec<String> {
    let names = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "T", name] = words[..] else {
            return None;
        };
        Some(name.split('@').next().unwrap_or(name).to_owned())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::exported;

    #[test]
    fn functions_are_read_without_their_versions() {
        let table = "0045 T cudaMalloc@@libcudart.so.12\n0000 A libcudart.so.12\n0046 T cudaFree\n";
        assert_eq!(exported(table), ["cudaMalloc", "cudaFree"]);
    }
}
