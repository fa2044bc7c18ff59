//! Group `clients`: the preload library under clients of CUDA that others wrote, unmodified.
//!
//! Owns the clients, their counts and their pins: crates and wheels that use CUDA's driver, run on
//! the simulated one with and without the preload library, and NVIDIA's runtimes, which are asked
//! for nothing but their start ([`super::runtimes`]); and the C++ adaptors against the libraries
//! that they are for ([`super::adaptors`]). What is fetched goes below `target`; where
//! the package index cannot be reached, what needs it is skipped by name.

use super::matrix::{self, counted, preload};
use super::runtime::{Staged, stage_runtime};
use super::{Options, adaptors, cuda, runtimes};
use crate::report::Tally;
use crate::{Outcome, proc, tools};
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIREMENTS: &str = include_str!("../../../tests/clients/requirements.txt");
/// Starts a program with a folder of wheels as Python's own, so that its `.pth` files count.
/// Arguments: the folder, the program.
const START: &str = "import runpy, site, sys; site.addsitedir(sys.argv[1]); \
                     sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')";

/// What a client does under the preload library.
struct Client {
    name: &'static str,
    /// Bytes that the pool served of what it allocated, as the program itself adds them up;
    /// none where the program has memory of Forebay's too and says nothing but `well`.
    bytes: Option<u64>,
    /// `NAME SERVED PASSED`, each the number of such calls.
    counts: &'static str,
}

const CRATES: &[Client] = &[
    Client {
        name: "only_cust",
        bytes: Some(43_195_296),
        counts: "cuMemAlloc_v2 401 0\ncuMemFree_v2 401 1\ncuMemAllocAsync 20 0\n\
                 cuMemFreeAsync 20 0\ncuMemAllocManaged 0 1\n",
    },
    // The pool inside the program takes its pages from the driver, beside the preloaded one.
    Client {
        name: "with_cust",
        bytes: None,
        counts: "cuMemAlloc_v2 4 0\ncuMemFree_v2 4 0\ncuMemCreate 0 4\n",
    },
    Client {
        name: "only_cudarc",
        bytes: Some(23_871_480),
        counts: "cuMemAllocAsync 185 0\ncuMemFreeAsync 185 0\n",
    },
    Client {
        name: "with_cudarc",
        bytes: None,
        counts: "cuMemAllocAsync 102 0\ncuMemFreeAsync 102 0\ncuMemCreate 0 4\n",
    },
];

const WHEELS: &[Client] = &[
    Client {
        name: "with_bindings",
        bytes: Some(25_174_528),
        counts: "cuMemAlloc_v2 3 0\ncuMemFree_v2 4 1\ncuMemAllocPitch_v2 1 0\n\
                 cuMemAllocAsync 20 0\ncuMemFreeAsync 21 1\ncuMemAllocFromPoolAsync 1 1\n\
                 cuMemAllocManaged 0 1\ncuMemGetInfo_v2 1 0\n",
    },
    Client {
        name: "with_core",
        bytes: Some(23_068_672),
        counts: "cuMemFreeAsync 22 0\ncuMemAllocFromPoolAsync 22 0\ncuMemAllocHost_v2 0 22\n",
    },
    Client {
        name: "with_numba",
        bytes: Some(13_675_376),
        counts: "cuMemAlloc_v2 18 0\ncuMemFree_v2 18 0\ncuMemHostAlloc 0 24\n\
                 cuMemGetInfo_v2 0 1\n",
    },
];

/// Runs the group.
pub fn run(_options: Options) -> Tally {
    let mut tally = Tally::default();
    let staged = stage_runtime().and_then(|staged| Ok((staged, matrix::stage()?)));
    let (staged, library) = match staged {
        Ok(staged) => staged,
        Err(why) => {
            tally.check("clients::stage", Err(why));
            return tally;
        }
    };
    if let Some(folder) = library.parent() {
        adaptors::run(&staged, folder, &mut tally);
    }
    crates(&staged, &library, &mut tally);
    if !cfg!(target_arch = "x86_64") {
        tally.skip("clients::wheels", "their pins are for x86-64");
        return tally;
    }
    match fetch() {
        Ok(site) => {
            wheels(&site, &staged, &library, &mut tally);
            runtimes::run(&staged.folder, &library, &mut tally);
        }
        // No fault of anyone's here if the index is not there at all.
        Err(why) => match tools::index_answers() {
            Ok(()) => tally.check("clients::fetch", Err(why)),
            Err(why) => {
                let why = format!("the package index cannot be reached: {why}");
                tally.skip("clients::wheels", &why);
            }
        },
    }
    tally
}

/// All wheels, fetched first where they are not there yet; the folder of the clients'.
fn fetch() -> Outcome<PathBuf> {
    let site = proc::target_dir().join("clients").join("site");
    tools::install_pinned(&site, REQUIREMENTS, || Ok(()))?;
    runtimes::fetch()?;
    Ok(site)
}

fn crates(staged: &Staged, library: &Path, tally: &mut Tally) {
    let toolkit = match cuda::toolkit(&staged.folder.join("libcuda.so.1")) {
        Ok(toolkit) => toolkit,
        Err(why) => return tally.check("clients::toolkit", Err(why)),
    };
    for client in CRATES {
        match cuda::build_program(client.name, &toolkit) {
            Ok(binary) => both(client, || proc::program(&binary), staged, library, tally),
            Err(why) => tally.check(&format!("clients::{}", client.name), Err(why)),
        }
    }
}

fn wheels(site: &Path, staged: &Staged, library: &Path, tally: &mut Tally) {
    for client in WHEELS {
        let start = || {
            let mut python = proc::program("python3");
            python.args(["-c", START]).arg(site);
            python.arg(format!("tests/clients/{}.py", client.name));
            python.env("PYTHONPATH", proc::root().join("tests/clients"));
            python.env("PYTHONDONTWRITEBYTECODE", "1");
            python
        };
        both(client, start, staged, library, tally);
    }
}

/// Runs a client without the library and with it.
fn both(
    client: &Client,
    start: impl Fn() -> Command,
    staged: &Staged,
    library: &Path,
    tally: &mut Tally,
) {
    for preloaded in [false, true] {
        let mut command = start();
        if preloaded {
            preload(&mut command, library);
        } else {
            command.env("FOREBAY_BACKEND", "cuda").env("FOREBAY_HEADROOM", "0");
            command.env("FOREBAY_SIM_MEMORY", "256MiB");
        }
        command.env("LD_LIBRARY_PATH", &staged.folder);
        let label = if preloaded { "preloaded" } else { "plain" };
        let result = judge(client, &mut command, preloaded);
        tally.check(&format!("clients::{}_{label}", client.name), result);
    }
}

/// It ends well, says what was served, and nothing else is said: no misuse among it.
fn judge(client: &Client, command: &mut Command, preloaded: bool) -> Outcome<()> {
    let output = command.output().map_err(|e| format!("{}: {e}", proc::describe(command)))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected = match client.bytes {
        Some(bytes) => format!("served {}\nwell\n", if preloaded { bytes } else { 0 }),
        None => "well\n".to_owned(),
    };
    let (found, rest) = counted(&errors);
    let counts = if preloaded { client.counts } else { "" };
    match output.status.success() && told == expected && found == counts && rest.is_empty() {
        true => Ok(()),
        false => Err(format!("{}\n{told}{errors}expected:\n{expected}{counts}", output.status)),
    }
}
