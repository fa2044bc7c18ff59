//! Group `torch`: PyTorch itself, its CUDA wheel unmodified, on the simulated driver and runtime.
//!
//! Owns the wheels' pins, what stands in for NVIDIA's other libraries ([`stubs`]), what the
//! viewer's test needs ([`viewer`]), and the runs of `tests/torch/test_*.py`, each file a process;
//! with `--full` all of them once more with a newer PyTorch. A run passes when its tests do and the
//! simulated driver has seen no misuse. What is fetched and made goes below `target`; what the
//! package index is not there for is skipped by name.

mod stubs;
mod viewer;

use super::library::compiler;
use super::runtime::{Staged, stage_runtime};
use super::{Options, matrix};
use crate::report::Tally;
use crate::wheels::{self, Missing};
use crate::{Outcome, proc, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A PyTorch: its pins, and the folders below `target/torch` of its wheel and of the stand-ins.
struct Edition {
    pins: &'static str,
    site: &'static str,
    stubs: &'static str,
}
const EDITION: Edition = Edition {
    pins: include_str!("../../../tests/torch/requirements.txt"),
    site: "site",
    stubs: "stubs",
};
const NEWEST: Edition = Edition {
    pins: include_str!("../../../tests/torch/newest.txt"),
    site: "site-newest",
    stubs: "stubs-newest",
};
/// Models to run, for every edition.
const MODELS: &str = include_str!("../../../tests/torch/extra.txt");
/// The C++ part of `forebay.torch`, as the Python package carries it.
const COMPANION: &str = "bindings/torch/companion.cpp";
/// No file of tests takes longer.
const LIMIT: Duration = Duration::from_secs(300);

/// What a run needs.
pub struct Site {
    /// The wheel, installed.
    packages: PathBuf,
    /// The models, installed, if they are there.
    models: Option<PathBuf>,
    /// Stand-ins for NVIDIA's libraries.
    stubs: PathBuf,
    staged: Staged,
    preload: PathBuf,
}

/// Runs the group.
pub fn run(options: Options) -> Tally {
    let mut tally = Tally::default();
    let models = told("extra", fetch("extra", MODELS), &mut tally);
    let editions: &[Edition] = if options.full { &[EDITION, NEWEST] } else { &[EDITION] };
    for edition in editions {
        let fetched = fetch(edition.site, edition.pins);
        let Some(packages) = told(edition.site, fetched, &mut tally) else { continue };
        match stage_edition(edition, packages, models.clone(), matrix::stage) {
            Ok(site) => files(&site, &mut tally),
            Err(why) => tally.check("torch::stage", Err(why)),
        }
    }
    tally
}

/// The folder of packages with PyTorch's wheel, fetched first where it is not there yet.
pub fn wheel() -> Result<PathBuf, Missing> {
    fetch(EDITION.site, EDITION.pins)
}

/// Pinned wheels in a folder below `target/torch`.
fn fetch(folder: &str, pins: &str) -> Result<PathBuf, Missing> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Missing::Unreachable("its pins are for x86-64".to_owned()));
    }
    let packages = proc::target_dir().join("torch").join(folder);
    // Their modules are compiled as they are imported: most never are.
    let flags = ["--no-compile"];
    wheels::fetched(tools::install_pinned_with(&packages, pins, &flags, || Ok(())))?;
    Ok(packages)
}

/// What was fetched; nothing, and why by name, where it was not.
fn told(what: &str, fetched: Result<PathBuf, Missing>, tally: &mut Tally) -> Option<PathBuf> {
    let name = format!("torch::fetch_{}", what.replace('-', "_"));
    match fetched {
        Ok(packages) => return Some(packages),
        Err(Missing::Unreachable(why)) => tally.skip(&name, &why),
        Err(Missing::Failed(why)) => tally.check(&name, Err(why)),
    }
    None
}

/// Stages what Python needs to run PyTorch with Forebay; `library` builds the libraries and answers
/// the preload library's file, beside which the other lies.
pub fn stage(packages: PathBuf, library: impl FnOnce() -> Outcome<PathBuf>) -> Outcome<Site> {
    stage_edition(&EDITION, packages, None, library)
}

fn stage_edition(
    edition: &Edition,
    packages: PathBuf,
    models: Option<PathBuf>,
    library: impl FnOnce() -> Outcome<PathBuf>,
) -> Outcome<Site> {
    let staged = stage_runtime()?;
    let stubs = proc::target_dir().join("torch").join(edition.stubs);
    stubs::make(&packages.join("torch").join("lib"), edition.pins, &stubs)?;
    let preload = library()?;
    companion(&preload)?;
    Ok(Site { packages, models, stubs, staged, preload })
}

/// Compiles the C++ part beside the library, where the Python package looks for it.
fn companion(library: &Path) -> Outcome<()> {
    let mut cxx = compiler("CXX", "c++");
    cxx.args([
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-O2",
        "-fPIC",
        "-shared",
    ]);
    cxx.args(["-fvisibility=hidden", "-Iinclude", "-o"]);
    cxx.arg(library.with_file_name("libforebay_torch.so")).arg(COMPANION);
    proc::capture(cxx.args(["-Wl,-z,nodelete", "-ldl"])).map(drop)
}

/// Runs each file of tests.
fn files(site: &Site, tally: &mut Tally) {
    let all: Vec<PathBuf> = proc::files("tests/torch", &["py"])
        .into_iter()
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("test_")))
        .collect();
    if all.is_empty() {
        return tally.check("torch::files", Err("tests/torch has no tests".to_owned()));
    }
    for file in all {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name == "test_models" && site.models.is_none() {
            tally.skip("torch::test_models", "the models could not be fetched");
            continue;
        }
        let report = proc::target_dir().join("torch").join(format!("{name}.json"));
        let _missing = std::fs::remove_file(&report);
        let mut seen = Tally::default();
        let mut python = python(site, &report);
        python.arg(&file);
        if name == "test_viewer" {
            match viewer::give(&mut python) {
                Ok(()) => {}
                Err(Missing::Unreachable(why)) => {
                    tally.skip("torch::test_viewer", &why);
                    continue;
                }
                Err(Missing::Failed(why)) => {
                    tally.check("torch::test_viewer", Err(why));
                    continue;
                }
            }
        }
        let end = proc::stream(&mut python, Some(LIMIT), |line| seen.add_unittest_line(line));
        let told = seen.failed > 0;
        // A file whose tests are all skipped has told so by name.
        let some = seen.passed + seen.skipped > 0;
        *tally += seen;
        let ended = match end {
            Ok(proc::End::Success) if some => misuse(&report),
            Ok(_) if told => continue,
            Ok(end) => Err(format!("its tests ended as {end:?}, without a count")),
            Err(why) => Err(why),
        };
        tally.check(&format!("torch::{name}_ends_well"), ended);
    }
}

/// Python with the wheel, on the simulated machine, the package from its sources.
pub fn python(site: &Site, report: &Path) -> Command {
    let mut python = proc::program("python3");
    let join = |dirs: &[&Path]| std::env::join_paths(dirs).unwrap_or_default();
    let root = proc::root();
    python
        .env_remove("FOREBAY_BACKEND")
        .env("PYTHONPATH", join(&[&site.packages, &root.join("bindings/python")]))
        .env("LD_LIBRARY_PATH", join(&[&site.stubs, &site.staged.folder]))
        .env("FOREBAY_LIBRARY", site.preload.with_file_name("libforebay.so.0"))
        .env("TEST_PRELOAD_LIBRARY", &site.preload)
        .env("TEST_MODELS", site.models.clone().unwrap_or_default())
        .env("FOREBAY_HEADROOM", "0")
        .env("FOREBAY_SIM_VERSION", "13000")
        .env("FOREBAY_SIM_MEMORY", "1GiB")
        .env("FOREBAY_SIM_REPORT", report);
    python
}

/// The simulated driver saw none. A file that only starts other programs has no report: what those
/// misuse is on their standard error, which the file looks at.
fn misuse(report: &Path) -> Outcome<()> {
    if !report.exists() {
        return Ok(());
    }
    let text = std::fs::read_to_string(report).map_err(|e| format!("{}: {e}", report.display()))?;
    let read: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    match read["misuse"].as_array() {
        Some(all) if all.is_empty() => Ok(()),
        Some(all) => Err(format!("{} misuses, the first: {}", all.len(), all[0])),
        None => Err(format!("{}: no list of misuse", report.display())),
    }
}
