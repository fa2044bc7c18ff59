//! Group `torch`: PyTorch itself, its CUDA wheel unmodified, on the simulated driver and runtime.
//!
//! Owns the wheels' pins, what stands in for NVIDIA's other libraries ([`stubs`]), and the runs of
//! `tests/torch/test_*.py`, each file a process; with `--full` all of them once more with a newer
//! PyTorch. A run passes when its tests do and the simulated driver has seen no misuse. What is
//! fetched and made goes below `target`; what the package index is not there for is skipped by
//! name.

mod stubs;

use super::library::compiler;
use super::runtime::{Staged, stage_runtime};
use super::{Options, matrix};
use crate::report::Tally;
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
struct Site {
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
    if !cfg!(target_arch = "x86_64") {
        tally.skip("torch", "its pins are for x86-64");
        return tally;
    }
    let models = fetch("extra", MODELS, &mut tally);
    let editions: &[Edition] = if options.full { &[EDITION, NEWEST] } else { &[EDITION] };
    for edition in editions {
        let Some(packages) = fetch(edition.site, edition.pins, &mut tally) else { continue };
        match stage(edition, packages, models.clone()) {
            Ok(site) => files(&site, &mut tally),
            Err(why) => tally.check("torch::stage", Err(why)),
        }
    }
    tally
}

/// Pinned wheels in a folder below `target/torch`; none where they cannot be had.
fn fetch(folder: &str, pins: &str, tally: &mut Tally) -> Option<PathBuf> {
    let packages = proc::target_dir().join("torch").join(folder);
    // Their modules are compiled as they are imported: most never are.
    let Err(why) = tools::install_pinned_with(&packages, pins, &["--no-compile"], || Ok(())) else {
        return Some(packages);
    };
    let name = format!("torch::fetch_{}", folder.replace('-', "_"));
    // No fault of anyone's here if the index is not there at all.
    match tools::index_answers() {
        Ok(()) => tally.check(&name, Err(why)),
        Err(why) => tally.skip(&name, &format!("the package index cannot be reached: {why}")),
    }
    None
}

fn stage(edition: &Edition, packages: PathBuf, models: Option<PathBuf>) -> Outcome<Site> {
    let staged = stage_runtime()?;
    let stubs = proc::target_dir().join("torch").join(edition.stubs);
    stubs::make(&packages.join("torch").join("lib"), edition.pins, &stubs)?;
    let preload = matrix::stage()?;
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
fn python(site: &Site, report: &Path) -> Command {
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
