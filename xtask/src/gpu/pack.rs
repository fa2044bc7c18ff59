//! The pack: a folder with all that `run.sh` needs, built here.
//!
//! Owns the folder's form: `bin` (the `forebay` command, the probe), `lib` (the shared library
//! under its file name and its SONAME, and the preload library), `c` (the harness), `runtime`
//! (programs on CUDA's runtime), `traces`, `run.sh`, `version`. Promises
//! that nothing in it refers to this machine's folders. Replaces what a folder held before.

use super::{harness, runtime};
use crate::test::Staged;
use crate::{Outcome, proc};
use std::path::Path;

const SONAME: &str = "libforebay.so.0";
const PRELOAD: &str = "libforebay_preload.so";
const SCRIPT: &str = include_str!("run.sh");

/// Builds everything and fills the folder.
pub fn pack(dir: &Path, staged: &Staged) -> Outcome<()> {
    let mut cargo = proc::cargo();
    cargo.args(["build", "--release", "--package", "forebay", "--package", "forebay-preload"]);
    cargo.arg("--lib");
    cargo.args(["--package", "forebay-cli", "--package", "forebay_probe", "--bins"]);
    proc::run(&mut cargo)?;
    for part in ["bin", "lib", "c", "runtime", "traces"] {
        let folder = dir.join(part);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let release = proc::target_dir().join("release");
    for name in ["forebay", "forebay_probe"] {
        copy(&release.join(name), &dir.join("bin").join(name))?;
    }
    copy(&release.join("libforebay.so"), &dir.join("lib/libforebay.so"))?;
    copy(&release.join("libforebay.so"), &dir.join("lib").join(SONAME))?;
    copy(&release.join(PRELOAD), &dir.join("lib").join(PRELOAD))?;
    runtime::build(&dir.join("runtime"), staged)?;
    harness::build(&dir.join("c"), &dir.join("lib"))?;
    for trace in proc::files("tests/traces", &["gz"]) {
        let name = trace.file_name().unwrap_or_default();
        copy(&proc::root().join(&trace), &dir.join("traces").join(name))?;
    }
    std::fs::write(dir.join("version"), version()).map_err(|e| format!("version: {e}"))?;
    let script = dir.join("run.sh");
    std::fs::write(&script, SCRIPT).map_err(|e| format!("{}: {e}", script.display()))?;
    proc::capture(proc::program("chmod").arg("+x").arg(&script)).map(drop)?;
    println!("packed {} ({} MiB)", dir.display(), bytes(dir) >> 20);
    Ok(())
}

/// What was packed: the commit, and whether files were changed since.
fn version() -> String {
    let mut git = proc::program("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12"]);
    proc::capture(&mut git).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Copies a file without its symbols for debuggers, where `strip` is there.
fn copy(from: &Path, to: &Path) -> Outcome<()> {
    let program = from.extension().is_none_or(|ending| ending == "so");
    if program && proc::on_path("strip").is_some() {
        let mut strip = proc::program("strip");
        return proc::capture(strip.arg("--strip-debug").arg("-o").arg(to).arg(from)).map(drop);
    }
    std::fs::copy(from, to).map(drop).map_err(|e| format!("{}: {e}", from.display()))
}

fn bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |path: &Path| match path.is_dir() {
        true => bytes(path),
        false => path.metadata().map_or(0, |meta| meta.len()),
    };
    entries.flatten().map(|entry| size(&entry.path())).sum()
}
