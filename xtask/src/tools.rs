//! CMake and Ninja for the C tests: two pinned wheels from PyPI in `target/tools`.
//!
//! Owns the versions and their checksums. Promises that what runs is what is pinned, that
//! nothing outside `target` is touched, and that no network is needed once they are
//! there. With `FOREBAY_SYSTEM_TOOLS=1` those on `PATH` are taken. Needs Python 3; brings pip along
//! where Python has none.

use crate::args::Args;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};

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
const PIP_WHEEL: &str = "pip-24.3.1-py3-none-any.whl";
const PIP_SHA256: &str = "3790624780082365f47549d032f3770eeb2b1e8bd1f7b2e02dace1afa361b4ed";

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
    let stamp = dir.join("pins.txt");
    let there = std::fs::read_to_string(&stamp).is_ok_and(|pins| pins == REQUIREMENTS);
    if !(there && tools.cmake.is_file() && tools.ninja.is_file()) {
        fetch(&dir)?;
        proc::capture(proc::program(&tools.cmake).arg("--version"))?;
        proc::capture(proc::program(&tools.ninja).arg("--version"))?;
        proc::write(&stamp, REQUIREMENTS)?;
    }
    Ok(tools)
}

fn from_path() -> Outcome<Tools> {
    let find = |name: &str| {
        proc::on_path(name).ok_or_else(|| format!("FOREBAY_SYSTEM_TOOLS=1, but no {name} on PATH"))
    };
    Ok(Tools { cmake: find("cmake")?, ctest: find("ctest")?, ninja: find("ninja")? })
}

fn fetch(dir: &Path) -> Outcome<()> {
    println!("fetching CMake and Ninja into {}", dir.display());
    if dir.exists() {
        std::fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let list = dir.join("requirements.txt");
    proc::write(&list, REQUIREMENTS)?;
    let mut pip = proc::program("python3");
    if proc::capture(proc::program("python3").args(["-m", "pip", "--version"])).is_ok() {
        pip.args(["-m", "pip"]);
    } else {
        pip.arg(fetch_pip(dir)?.join("pip"));
    }
    pip.args([
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--disable-pip-version-check",
    ])
    .args(["--only-binary", ":all:", "--target"])
    .arg(dir)
    .arg("--requirement")
    .arg(&list);
    proc::capture(&mut pip).map(drop).map_err(|e| {
        format!("CMake and Ninja cannot be fetched (FOREBAY_SYSTEM_TOOLS=1 takes your own): {e}")
    })
}

/// pip's wheel, which Python can run as it is.
fn fetch_pip(dir: &Path) -> Outcome<PathBuf> {
    let wheel = dir.join(PIP_WHEEL);
    let mut python = proc::program("python3");
    python.args(["-c", FETCH_PIP, PIP_WHEEL, PIP_SHA256]).arg(&wheel);
    proc::capture(&mut python).map_err(|e| format!("no pip, and it cannot be fetched: {e}"))?;
    Ok(wheel)
}
