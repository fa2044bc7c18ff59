//! NVIDIA's CUDA runtimes on the simulated driver, under the preload library: what they ask of
//! `cuGetProcAddress`, and what they are given.
//!
//! A runtime looks its functions up, and then has the driver prove whose it is, which the simulated
//! one does not: `cuGetExportTable` answers 500 (not found), and so does the runtime from then on.
//! Nothing more is asked of it here. Owns the list of runtimes, and of what each must ask for.
//! Files are fetched below `target`, and never copied from there.

use super::library::compiler;
use super::matrix::{self, counted};
use crate::report::Tally;
use crate::{Outcome, proc, tools};
use std::path::{Path, PathBuf};

const PINS: &str = include_str!("../../../tests/clients/runtimes.txt");
const PROGRAM: &str = "tests/preload/runtime_open.c";
const RECORDER: &str = "tests/preload/recorder.c";
const FLAGS: [&str; 6] = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2"];
const PRELOAD: &str = "libforebay_preload.so";

/// A runtime: its package's name and version, and where its files lie in it.
struct Runtime {
    pin: &'static str,
    folder: &'static str,
    shared: &'static str,
    is_static: bool,
    /// The driver's version that it runs on.
    driver: &'static str,
}

const RUNTIMES: &[Runtime] = &[
    Runtime {
        pin: "nvidia-cuda-runtime-cu11==11.8.89",
        folder: "nvidia/cuda_runtime/lib",
        shared: "libcudart.so.11.0",
        is_static: false,
        driver: "11080",
    },
    Runtime {
        pin: "nvidia-cuda-runtime-cu12==12.4.127",
        folder: "nvidia/cuda_runtime/lib",
        shared: "libcudart.so.12",
        is_static: false,
        driver: "12040",
    },
    Runtime {
        pin: "nvidia-cuda-runtime-cu12==12.9.79",
        folder: "nvidia/cuda_runtime/lib",
        shared: "libcudart.so.12",
        is_static: true,
        driver: "12090",
    },
    Runtime {
        pin: "nvidia-cuda-runtime==13.5.37",
        folder: "nvidia/cu13/lib",
        shared: "libcudart.so.13",
        is_static: true,
        driver: "13050",
    },
];

/// `NAME VERSION FLAGS SYMBOL`: what every one of these runtimes asks for of what the preload
/// library stands before, and its function for it.
const ASKED: &[&str] = &[
    "cuMemAlloc 3020 0 cuMemAlloc_v2",
    "cuMemFree 3020 0 cuMemFree_v2",
    "cuMemAllocPitch 3020 0 cuMemAllocPitch_v2",
    "cuMemAllocManaged 6000 0 cuMemAllocManaged",
    "cuMemHostAlloc 2020 0 cuMemHostAlloc",
    "cuMemAllocAsync 11020 0 cuMemAllocAsync",
    "cuMemAllocAsync 11020 2 cuMemAllocAsync_ptsz",
    "cuMemFreeAsync 11020 0 cuMemFreeAsync",
    "cuMemFreeAsync 11020 2 cuMemFreeAsync_ptsz",
    "cuMemAllocFromPoolAsync 11020 0 cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync 11020 2 cuMemAllocFromPoolAsync_ptsz",
    "cuMemGetInfo 3020 0 cuMemGetInfo_v2",
    "cuMemGetAddressRange 3020 0 cuMemGetAddressRange_v2",
    "cuPointerGetAttribute 4000 0 cuPointerGetAttribute",
    "cuPointerGetAttributes 7000 0 cuPointerGetAttributes",
    "cuIpcGetMemHandle 4010 0 cuIpcGetMemHandle",
    "cuIpcCloseMemHandle 4010 0 cuIpcCloseMemHandle",
    "cuDevicePrimaryCtxRetain 7000 0 cuDevicePrimaryCtxRetain",
];

/// Runs every runtime in every form that its wheel has.
pub fn run(driver: &Path, library: &Path, tally: &mut Tally) {
    let programs = compile_recorder().and_then(|recorder| {
        let open = compile("runtime_open", &[])?;
        Ok((recorder, open, exported(library)?))
    });
    let (recorder, open, exported) = match programs {
        Ok(programs) => programs,
        Err(why) => return tally.check("clients::recorder", Err(why)),
    };
    for runtime in RUNTIMES {
        let name = runtime.pin.replace("==", "_").replace("nvidia-cuda-runtime", "cudart");
        let files = place(runtime).join(runtime.folder);
        let shared = files.join(runtime.shared);
        let ask = |program: &Path, library_named: Option<&Path>| {
            let mut command = proc::program(program);
            command.args(library_named);
            let mut both = recorder.as_os_str().to_owned();
            both.push(":");
            both.push(library);
            matrix::preload(&mut command, Path::new(&both));
            command.env("LD_LIBRARY_PATH", driver).env("FOREBAY_SIM_VERSION", runtime.driver);
            let record = program.with_extension("record");
            judge(&mut command, &record, &exported)
        };
        tally.check(&format!("clients::{name}_shared"), ask(&open, Some(&shared)));
        if runtime.is_static {
            let archive = files.join("libcudart_static.a");
            let linked = archive.to_str().ok_or("a path in UTF-8".to_owned()).and_then(|archive| {
                let with = ["-DLINKED", archive, "-lpthread", "-ldl", "-lrt"];
                compile(&format!("runtime_linked_{}", runtime.driver), &with)
            });
            let result = linked.and_then(|program| ask(&program, None));
            tally.check(&format!("clients::{name}_static"), result);
        }
    }
}

fn work() -> PathBuf {
    proc::target_dir().join("clients")
}

/// Where a runtime's wheel is installed: a folder of its own.
fn place(runtime: &Runtime) -> PathBuf {
    work().join(runtime.pin.replace("==", "-"))
}

/// Fetches the runtimes that are not there yet.
pub fn fetch() -> Outcome<()> {
    for runtime in RUNTIMES {
        let pin = pin(runtime.pin).ok_or_else(|| format!("no pin of {}", runtime.pin))?;
        tools::install_pinned(&place(runtime), &pin, || Ok(()))?;
    }
    Ok(())
}

/// The lines of a package in the list of pins.
fn pin(name: &str) -> Option<String> {
    let mut lines = PINS.lines().skip_while(|line| !line.starts_with(name));
    let (first, second) = (lines.next()?, lines.next()?);
    Some(format!("{first}\n{second}\n"))
}

fn compile(name: &str, more: &[&str]) -> Outcome<PathBuf> {
    let to = work().join(name);
    let mut cc = compiler("CC", "cc");
    cc.args(FLAGS).arg("-o").arg(&to).arg(PROGRAM).args(more).arg("-ldl");
    std::fs::create_dir_all(work()).map_err(|e| format!("{}: {e}", work().display()))?;
    proc::capture(&mut cc)?;
    Ok(to)
}

fn compile_recorder() -> Outcome<PathBuf> {
    let to = work().join("librecorder.so");
    let mut cc = compiler("CC", "cc");
    cc.args(FLAGS).args(["-shared", "-fPIC", "-o"]).arg(&to).arg(RECORDER).arg("-ldl");
    std::fs::create_dir_all(work()).map_err(|e| format!("{}: {e}", work().display()))?;
    proc::capture(&mut cc)?;
    Ok(to)
}

/// The functions that the preload library exports.
fn exported(library: &Path) -> Outcome<Vec<String>> {
    let table = proc::capture(proc::program("nm").args(["-D", "--defined-only"]).arg(library))?;
    Ok(super::runtime::exported(&table))
}

/// The runtime starts, is refused, ends well; what it asked for is ours where it can be.
fn judge(command: &mut std::process::Command, to: &Path, exported: &[String]) -> Outcome<()> {
    proc::write(to, "")?;
    command.env("FOREBAY_TEST_RECORD", to);
    let output = command.output().map_err(|e| format!("{}: {e}", proc::describe(command)))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let (counts, rest) = counted(&errors);
    // 500: the driver's answer to the question for a table, and all that the runtime says.
    if !output.status.success() || told != "cudaFree(0) is 500\n" || !rest.is_empty() {
        return Err(format!("{}\n{told}{errors}", output.status));
    }
    if !counts.is_empty() {
        return Err(format!("no allocation is made, yet some are counted:\n{counts}"));
    }
    judge_record(&std::fs::read_to_string(to).map_err(|e| e.to_string())?, exported)
}

/// Every row of [`ASKED`] was asked for and is ours; nothing that the library has a function for
/// is the driver's; and no allocation is, by whatever name or version.
fn judge_record(record: &str, exported: &[String]) -> Outcome<()> {
    let mut ours = Vec::new();
    for line in record.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, version, flags, _, object, symbol] = words[..] else {
            return Err(format!("not a record: {line}"));
        };
        if object == PRELOAD {
            ours.push(format!("{name} {version} {flags} {symbol}"));
            continue;
        }
        let allocates = name.starts_with("cuMem") && name.contains("Alloc") || name == "cuMemFree";
        if allocates || exported.iter().any(|known| known == symbol) {
            return Err(format!("{line}: not the preload library's"));
        }
    }
    match ASKED.iter().find(|row| !ours.iter().any(|given| given == *row)) {
        Some(row) => Err(format!("{row}: not among what was given:\n{}", ours.join("\n"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> String {
        let line = |row: &&str| {
            let words: Vec<&str> = row.split(' ').collect();
            format!("{} {} {} 2 {PRELOAD} {}\n", words[0], words[1], words[2], words[3])
        };
        ASKED.iter().map(line).collect()
    }

    #[test]
    fn what_is_not_the_librarys_is_found() {
        let exported = ["cuMemFree_v2".to_owned()];
        assert_eq!(judge_record(&good(), &exported), Ok(()));
        let with = |line: &str| judge_record(&(good() + line), &exported);
        assert_eq!(with("cuMemcpy 4000 0 2 libcuda.so.1 cuMemcpy\n"), Ok(()));
        assert!(with("cuMemFree 3020 0 2 libcuda.so.1 cuMemFree_v2\n").is_err());
        assert!(with("cuMemAllocNew 14000 0 2 libcuda.so.1 cuMemAllocNew\n").is_err());
        let wrong = good().replace("cuMemAllocAsync_ptsz", "cuMemAllocAsync");
        assert!(judge_record(&wrong, &exported).is_err());
    }

    #[test]
    fn every_runtime_has_a_pin_of_its_own() {
        for runtime in RUNTIMES {
            let found = pin(runtime.pin).unwrap_or_default();
            assert!(found.contains("--hash=sha256:") && found.lines().count() == 2, "{found}");
        }
    }
}
