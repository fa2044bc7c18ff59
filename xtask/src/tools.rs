//! CMake and Ninja for the C tests, and what builds the Python package: pinned wheels from PyPI
//! in `target/tools`.
//!
//! Owns the versions and their checksums, and the way to install pinned wheels. Promises that what
//! runs is what is pinned, that
//! nothing outside `target` is touched, and that no network is needed once they are
//! there. With `FOREBAY_SYSTEM_TOOLS=1` those on `PATH` are taken. Needs Python 3; brings pip along
//! where Python has none.

use crate::args::Args;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The two programs.
pub struct Tools {
    /// `cmake`, at least 3.20.
    pub cmake: PathBuf,
    /// `ctest`, of the same version.
    pub ctest: PathBuf,
    /// `ninja`.
    pub ninja: PathBuf,
}

/// The wheels, for x86-64 and ARM64 Linux.
const REQUIREMENTS: &str = "\
cmake==3.31.6 \
--hash=sha256:1c8b05df0602365da91ee6a3336fe57525b137706c4ab5675498f662ae1dbcec \
--hash=sha256:42d9883b8958da285d53d5f69d40d9650c2d1bcf922d82b3ebdceb2b3a7d4521
ninja==1.11.1.4 \
--hash=sha256:096487995473320de7f65d622c3f1d16c3ad174797602218ca8c967f51ec38a0 \
--hash=sha256:d3090d4488fadf6047d0d7a1db0c9643a8d391f0d94729554dbb89b5bdc769d7
";

/// What builds the Python package, besides CMake and Ninja.
const PYTHON_BUILD: &str = "\
scikit-build-core==0.11.6 \
--hash=sha256:ce6d8fe64e6b4c759ea0fb95d2f8a68f60d2df31c2989838633b8ec930736360
packaging==25.0 \
--hash=sha256:29572ef2b1f17581046b3a2227d5c611fb25ec70ca1ba8554b24b0e69331a484
pathspec==0.12.1 \
--hash=sha256:a0d503e138a4c123b27490a4f7beda6a01c6f288df0e4a8b79c7eb0dc7b4cc08
";

/// Finds pip's own wheel in the package index (the one pip's settings name), checks its sum,
/// and stores it. Arguments: file name, sha256, where to store it.
const FETCH_PIP: &str = r#"
import hashlib, os, re, ssl, sys, urllib.parse, urllib.request
name, wanted, target = sys.argv[1:]
index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
tls = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
page = urllib.request.urlopen(index, context=tls, timeout=60).read().decode()
link = next(h for h in re.findall(r'href="([^"]+)"', page) if name in h)
data = urllib.request.urlopen(urllib.parse.urljoin(index, link), context=tls, timeout=60).read()
if hashlib.sha256(data).hexdigest() != wanted:
    sys.exit(name + ": the checksum differs from the pinned one")
open(target, "wb").write(data)
"#;
/// Asks the package index for pip's page.
const ASK_INDEX: &str = r#"
import os, ssl, urllib.request
index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
tls = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
urllib.request.urlopen(index, context=tls, timeout=60).read(1)
"#;
const PIP_WHEEL: &str = "pip-24.3.1-py3-none-any.whl";
const PIP_SHA256: &str = "3790624780082365f47549d032f3770eeb2b1e8bd1f7b2e02dace1afa361b4ed";

/// How often a transfer is tried, and the pause between.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_secs(5);

/// `cargo xtask tools`: makes them be there and says where they are.
pub fn run(args: Args) -> Outcome<()> {
    args.finish()?;
    let tools = ensure()?;
    println!("cmake {}\nninja {}", tools.cmake.display(), tools.ninja.display());
    Ok(())
}

/// The tools, fetched first where they are not there yet.
pub fn ensure() -> Outcome<Tools> {
    if std::env::var("FOREBAY_SYSTEM_TOOLS").is_ok_and(|v| v == "1") {
        return from_path();
    }
    let dir = proc::target_dir().join("tools");
    let tools = Tools {
        cmake: dir.join("cmake/data/bin/cmake"),
        ctest: dir.join("cmake/data/bin/ctest"),
        ninja: dir.join("bin/ninja"),
    };
    install_pinned(&dir, REQUIREMENTS, || {
        proc::capture(proc::program(&tools.cmake).arg("--version"))?;
        proc::capture(proc::program(&tools.ninja).arg("--version")).map(drop)
    })
    .map_err(|e| {
        format!("CMake and Ninja cannot be fetched (FOREBAY_SYSTEM_TOOLS=1 takes your own): {e}")
    })?;
    Ok(tools)
}

fn from_path() -> Outcome<Tools> {
    let find = |name: &str| {
        proc::on_path(name).ok_or_else(|| format!("FOREBAY_SYSTEM_TOOLS=1, but no {name} on PATH"))
    };
    Ok(Tools { cmake: find("cmake")?, ctest: find("ctest")?, ninja: find("ninja")? })
}

/// A folder for `PYTHONPATH` with what builds the Python package, fetched first where it is not
/// there yet.
pub fn python_build() -> Outcome<PathBuf> {
    let dir = proc::target_dir().join("tools-python");
    install_pinned(&dir, PYTHON_BUILD, || Ok(()))?;
    Ok(dir)
}

/// `python3 -m pip`, or pip's own wheel where Python has none (kept in `dir`).
pub fn pip(dir: &Path) -> Outcome<Command> {
    let mut pip = proc::program("python3");
    if proc::capture(proc::program("python3").args(["-m", "pip", "--version"])).is_ok() {
        pip.args(["-m", "pip"]);
    } else {
        pip.arg(fetch_pip(dir)?.join("pip"));
    }
    Ok(pip)
}

/// Installs the wheels of `requirements` (with hashes) into `dir`, unless the same ones are
/// there; `works` says whether what was fetched can be used.
pub fn install_pinned(
    dir: &Path,
    requirements: &str,
    works: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    install_pinned_with(dir, requirements, &[], works)
}

/// [`install_pinned`] with more flags for pip.
pub fn install_pinned_with(
    dir: &Path,
    requirements: &str,
    flags: &[&str],
    works: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    let stamp = dir.join("pins.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|pins| pins == requirements) {
        return Ok(());
    }
    println!("fetching pinned wheels into {}", dir.display());
    again(|| fetch_pinned(dir, requirements, flags))?;
    works()?;
    proc::write(&stamp, requirements)
}

/// Fetches the wheels into an emptied folder.
fn fetch_pinned(dir: &Path, requirements: &str, flags: &[&str]) -> Outcome<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let list = dir.join("requirements.txt");
    proc::write(&list, requirements)?;
    let mut pip = pip(dir)?;
    pip.args(["install", "--quiet", "--no-deps", "--require-hashes"])
        .args(flags)
        .args(["--disable-pip-version-check", "--only-binary", ":all:", "--target"])
        .arg(dir)
        .arg("--requirement")
        .arg(&list);
    proc::capture(&mut pip).map(drop)
}

/// Runs what needs the network up to [`TRIES`] times, as long as it fails and the package index
/// answers; a transfer that broke off is no failure of ours. The last error.
fn again(fetch: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    tries(fetch, || index_answers().is_ok(), PAUSE)
}

fn tries(
    mut fetch: impl FnMut() -> Outcome<()>,
    answers: impl Fn() -> bool,
    pause: Duration,
) -> Outcome<()> {
    for _ in 1..TRIES {
        match fetch() {
            Err(why) if answers() => {
                println!("trying again: {}", why.lines().last().unwrap_or_default());
                std::thread::sleep(pause);
            }
            done => return done,
        }
    }
    fetch()
}

/// Whether the package index (the one pip's settings name) can be reached; else why not.
pub fn index_answers() -> Outcome<()> {
    let mut python = proc::program("python3");
    proc::capture(python.args(["-c", ASK_INDEX])).map(drop).map_err(|told| {
        let last = told.lines().last().unwrap_or("no python3");
        last.to_owned()
    })
}

/// pip's wheel, which Python can run as it is.
fn fetch_pip(dir: &Path) -> Outcome<PathBuf> {
    let wheel = dir.join(PIP_WHEEL);
    let mut python = proc::program("python3");
    python.args(["-c", FETCH_PIP, PIP_WHEEL, PIP_SHA256]).arg(&wheel);
    again(|| proc::capture(&mut python).map(drop))
        .map_err(|e| format!("no pip, and it cannot be fetched: {e}"))?;
    Ok(wheel)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a transfer is tried that fails so many times first, and whether it came.
    fn tried(failures: usize, answers: bool) -> (usize, bool) {
        let mut count = 0;
        let fetch = || {
            count += 1;
            if count > failures { Ok(()) } else { Err("broke off".to_owned()) }
        };
        let came = tries(fetch, || answers, Duration::ZERO).is_ok();
        (count, came)
    }

    #[test]
    fn a_transfer_is_tried_again_where_the_index_answers() {
        assert_eq!(
            [tried(0, true), tried(2, true), tried(3, true)],
            [(1, true), (3, true), (3, false)]
        );
        assert_eq!(tried(1, false), (1, false));
    }
}
