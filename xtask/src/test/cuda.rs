//! Group `cuda`: the CUDA backend, and programs of others, on the simulated driver.
//!
//! Owns the order: stage the driver, run the backend's tests, `forebay doctor`'s, then build and
//! run the programs of `tests/programs` with Forebay beside the crates that they use. Promises
//! that the library itself never links libcuda. Writes only below `target`.

use super::{Options, cargo, sim};
use crate::report::Tally;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};

/// Test programs, of any member, that only this group runs.
pub const TESTS: &[&str] = &["cuda", "cuda_faults"];

/// Runs the group.
pub fn run(options: Options) -> Tally {
    let mut tally = Tally::default();
    let folder = match sim::stage_sim() {
        Ok(folder) => folder,
        Err(why) => {
            tally.check("cuda::stage", Err(why));
            return tally;
        }
    };
    let staged = folder.join("libcuda.so.1");
    for (package, tests) in
        [("forebay", &["cuda", "cuda_faults", "driver_contract"][..]), ("forebay-cli", &["cuda"])]
    {
        let mut command = proc::cargo();
        command.args(["test", "--no-fail-fast", "--package", package]);
        command.args(tests.iter().flat_map(|test| ["--test", test]));
        command.env("FOREBAY_SIMULATED_DRIVER", &staged);
        if options.full {
            command.args(["--", "--include-ignored"]);
        }
        cargo::run_counted(&mut command, &mut tally);
    }
    for feature in ["", "cust"] {
        tally.check(&format!("cuda::links_no_cuda {feature}"), links_no_cuda(feature));
    }
    match toolkit(&staged) {
        Ok(toolkit) => {
            for name in ["cust", "cudarc"] {
                let binary = format!("with_{name}");
                tally.check(&format!("cuda::{binary}"), program(&binary, &toolkit, &folder));
            }
        }
        Err(why) => tally.check("cuda::toolkit", Err(why)),
    }
    tally
}

/// The shared library has no libcuda among what it needs, whatever the features.
fn links_no_cuda(feature: &str) -> Outcome<()> {
    let target = proc::target_dir().join("programs");
    let mut build = proc::cargo();
    build.args(["build", "--package", "forebay", "--lib", "--features", feature]);
    proc::run(build.env("CARGO_TARGET_DIR", &target))?;
    let library = target.join("debug").join("libforebay.so");
    let said = proc::capture(proc::program("readelf").args(["-d", "--wide"]).arg(&library))?;
    let needed = said.lines().find(|line| line.contains("(NEEDED)") && line.contains("cuda"));
    match needed {
        Some(line) => Err(format!("{} needs CUDA: {line}", library.display())),
        None => Ok(()),
    }
}

/// A folder laid out as a CUDA toolkit whose libcuda is the staged one: programs on cust link it.
pub fn toolkit(staged: &Path) -> Outcome<PathBuf> {
    let root = proc::target_dir().join("sim-toolkit");
    let stubs = root.join("lib64").join("stubs");
    let told = |e: std::io::Error| format!("{}: {e}", stubs.display());
    std::fs::create_dir_all(&stubs).map_err(told)?;
    let link = stubs.join("libcuda.so");
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(&link).map_err(told)?;
    }
    std::os::unix::fs::symlink(staged, &link).map_err(told)?;
    Ok(root)
}

/// Builds a program of `tests/programs`; where it lies. All with the same features, so that the
/// library is built once for them.
pub fn build_program(binary: &str, toolkit: &Path) -> Outcome<PathBuf> {
    let target = proc::target_dir().join("programs");
    let mut build = proc::cargo();
    build
        .args(["build", "--locked", "--manifest-path", "tests/programs/Cargo.toml"])
        .args(["--features", "cust,cudarc", "--bin", binary])
        .env("CARGO_TARGET_DIR", &target)
        .env("CUDA_LIBRARY_PATH", toolkit);
    proc::run(&mut build)?;
    Ok(target.join("debug").join(binary))
}

/// Builds a program and runs it on the staged driver: it ends well and misuses nothing.
fn program(binary: &str, toolkit: &Path, folder: &Path) -> Outcome<()> {
    let mut run = proc::program(build_program(binary, toolkit)?);
    run.env("LD_LIBRARY_PATH", folder)
        .env("FOREBAY_BACKEND", "cuda")
        .env("FOREBAY_HEADROOM", "0")
        .env("FOREBAY_SIM_MEMORY", "256MiB");
    let output = run.output().map_err(|e| format!("{}: {e}", proc::describe(&run)))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || told.trim() != "well" || errors.contains("misuse") {
        return Err(format!("{binary}: {}\n{told}{errors}", output.status));
    }
    Ok(())
}
