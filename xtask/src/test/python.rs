//! Group `python`: the Python package, built by pip from another working directory.
//!
//! Owns the build (a wheel, by the package's own build backend at pinned versions), a look at the
//! wheel, its installation into a folder of its own, and the run of its tests on the host backend,
//! those of the preload library on the simulated driver.
//! Writes only below `target`. Without network at first use the group is skipped by name.

use super::{Options, stage_sim};
use crate::report::Tally;
use crate::{Outcome, proc, tools};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the group.
pub fn run(options: Options) -> Tally {
    let mut tally = Tally::default();
    let backend = match tools::python_build() {
        Ok(backend) => backend,
        Err(why) => {
            tally.skip("python", &format!("its build backend cannot be fetched: {why}"));
            return tally;
        }
    };
    let work = proc::target_dir().join("python");
    let wheel = build(&backend, &work);
    tally
        .check("python::wheel_from_another_folder", wheel.as_ref().map(drop).map_err(Clone::clone));
    let Ok(wheel) = wheel else { return tally };
    tally.check("python::wheel_is_for_every_python", judge_name(&wheel));
    let site = work.join("site");
    let installed = install(&wheel, &site);
    let usable = installed.is_ok();
    tally.check("python::install", installed);
    if usable {
        for tests in ["test_forebay.py", "test_kv.py"] {
            test(&site, tests, options.full, &mut tally);
        }
    }
    tally
}

/// Builds the wheel with a working directory that is not the repository's.
fn build(backend: &Path, work: &Path) -> Outcome<PathBuf> {
    let told = |e: std::io::Error| format!("{}: {e}", work.display());
    if work.exists() {
        std::fs::remove_dir_all(work).map_err(told)?;
    }
    std::fs::create_dir_all(work).map_err(told)?;
    let tools = tools::ensure()?;
    let mut pip = tools::pip(work)?;
    pip.args(["wheel", "--quiet", "--no-deps", "--no-build-isolation"])
        .args(["--disable-pip-version-check", "--wheel-dir", "."])
        .arg(proc::root().join("bindings/python"))
        .current_dir(work)
        .env("PYTHONPATH", backend)
        .env("PATH", path_with(&tools)?)
        .env("FOREBAY_CARGO_TARGET_DIR", proc::target_dir());
    proc::capture(&mut pip)?;
    let entries = std::fs::read_dir(work).map_err(told)?;
    let is_wheel = |p: &PathBuf| p.extension().is_some_and(|x| x == "whl");
    let found = entries.flatten().map(|e| e.path()).find(is_wheel);
    found.ok_or_else(|| format!("{}: no wheel", work.display()))
}

/// `PATH`, with the pinned CMake and Ninja in front.
fn path_with(tools: &tools::Tools) -> Outcome<std::ffi::OsString> {
    let mut dirs: Vec<PathBuf> = [&tools.cmake, &tools.ninja]
        .iter()
        .filter_map(|p| p.parent())
        .map(Path::to_owned)
        .collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    dirs.extend(std::env::split_paths(&path));
    std::env::join_paths(dirs).map_err(|e| e.to_string())
}

/// One wheel serves every Python 3 of this platform.
fn judge_name(wheel: &Path) -> Outcome<()> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let good = name.starts_with("forebay-") && name.contains("-py3-none-linux_");
    if good { Ok(()) } else { Err(format!("the wheel is called {name}")) }
}

fn install(wheel: &Path, site: &Path) -> Outcome<()> {
    let mut pip = tools::pip(site.parent().unwrap_or(site))?;
    pip.args(["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"])
        .arg("--target")
        .arg(site)
        .arg(wheel);
    proc::capture(&mut pip)?;
    for name in ["libforebay.so.0", "libforebay_preload.so", "libforebay_torch.so"] {
        let library = site.join("forebay/lib").join(name);
        if !library.symlink_metadata().is_ok_and(|m| m.is_file()) {
            return Err(format!("{} is no file", library.display()));
        }
    }
    Ok(())
}

/// Runs a file of tests; with `full` also those that fetch what they are compared with.
fn test(site: &Path, tests: &str, full: bool, tally: &mut Tally) {
    let simulated = match stage_sim() {
        Ok(folder) => folder.join("libcuda.so.1"),
        Err(why) => return tally.check("python::stage", Err(why)),
    };
    let mut python: Command = proc::program("python3");
    python.arg(proc::root().join("tests/python").join(tests)).env("PYTHONPATH", site);
    if full {
        python.env("VLLM_SOURCE", proc::target_dir().join("vllm-source"));
    }
    python.env_remove("LD_LIBRARY_PATH").env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("FOREBAY_SIMULATED_DRIVER", simulated);
    let mut seen = Tally::default();
    let end = proc::stream(&mut python, None, |line| seen.add_unittest_line(line));
    let told = seen.failed > 0;
    let some = seen.passed > 0;
    *tally += seen;
    match end {
        Ok(proc::End::Success) if some => {}
        Ok(_) if told => {}
        Ok(_) => tally.check("python::tests", Err("they failed without a count".into())),
        Err(why) => tally.check("python::tests", Err(why)),
    }
}
