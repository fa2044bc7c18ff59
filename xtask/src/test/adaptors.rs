//! The C++ adaptors against the libraries that they are for, as others publish them: RMM in two
//! forms, CCCL in two, ONNX Runtime. Part of group `clients`.
//!
//! Owns how the programs of `tests/clients/cpp` are compiled and run, on the simulated machine.
//! What is fetched goes below `target/wheels` ([`crate::wheels`]); where the package index cannot
//! be reached, each is skipped by name.

use super::library::compiler;
use super::runtime::Staged;
use crate::report::Tally;
use crate::wheels::{self, Missing};
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};

const SOURCES: &str = "tests/clients/cpp";
const FLAGS: [&str; 6] = ["-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
const OURS: [&str; 4] = ["-Iinclude", "-Ibindings/cpp", "-Itests/cpp", "-Itests/clients"];

/// An adaptor's program: the check's name, its source, and what it is compiled with.
struct Program {
    name: &'static str,
    source: &'static str,
    arguments: fn(&Staged) -> Result<Vec<String>, Missing>,
    backend: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program { name: "rmm_25_4", source: "rmm", arguments: rmm_25, backend: "cuda" },
    Program { name: "rmm_26_10", source: "rmm", arguments: rmm_26, backend: "cuda" },
    Program { name: "cccl_2", source: "cccl", arguments: cccl_2, backend: "cuda" },
    Program { name: "cccl_3", source: "cccl", arguments: cccl_3, backend: "cuda" },
    Program { name: "onnxruntime_cpu", source: "onnxruntime", arguments: ort, backend: "host" },
    Program { name: "onnxruntime_cuda", source: "onnxruntime", arguments: ort, backend: "cuda" },
];

/// Compiles and runs every program; `library` is the folder of `libforebay.so.0`.
pub fn run(staged: &Staged, library: &Path, tally: &mut Tally) {
    for program in PROGRAMS {
        let name = format!("clients::{}", program.name);
        match (program.arguments)(staged) {
            Ok(arguments) => {
                let result = compile(program, library, &arguments)
                    .and_then(|binary| start(program, &binary, staged));
                tally.check(&name, result);
            }
            Err(Missing::Unreachable(why)) => tally.skip(&name, &why),
            Err(Missing::Failed(why)) => tally.check(&name, Err(why)),
        }
    }
}

fn compile(program: &Program, library: &Path, arguments: &[String]) -> Outcome<PathBuf> {
    let work = proc::target_dir().join("clients");
    std::fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let to = work.join(program.name);
    let mut cxx = compiler("CXX", "c++");
    cxx.args(FLAGS).args(OURS).arg("-o").arg(&to);
    cxx.arg(format!("{SOURCES}/{}.cpp", program.source)).args(arguments);
    cxx.arg(library.join("libforebay.so.0"));
    cxx.arg(format!("-Wl,-rpath,{}", library.display())).args(["-ldl", "-lpthread"]);
    proc::capture(&mut cxx).map(|_| to)
}

/// It ends well, says so, and nothing else is said: no misuse among it.
fn start(program: &Program, binary: &Path, staged: &Staged) -> Outcome<()> {
    let mut command = proc::program(binary);
    command.arg(program.backend).env("FOREBAY_BACKEND", program.backend);
    command.env("FOREBAY_HEADROOM", "0").env("FOREBAY_SIM_MEMORY", "1GiB");
    command.env("FOREBAY_LEAKS", "summary").env("LD_LIBRARY_PATH", &staged.folder);
    let output = command.output().map_err(|e| format!("{}: {e}", binary.display()))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() && told.starts_with("ok: ") && errors.is_empty() {
        true => Ok(()),
        false => Err(format!("{}\n{told}{errors}", output.status)),
    }
}

/// Folders of headers, as those of others are named: their warnings are theirs.
fn headers(base: &Path, folders: &[&str]) -> Vec<String> {
    let named = |f: &&str| ["-isystem".to_owned(), base.join(f).display().to_string()];
    folders.iter().flat_map(named).collect()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

/// Headers of CUDA 12 without its CCCL, and the simulated runtime.
fn cuda_12(staged: &Staged) -> Result<Vec<String>, Missing> {
    let cuda = wheels::site("cuda-12")?;
    let mut arguments =
        headers(&cuda, &["nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include"]);
    arguments.push(staged.folder.join("libcudart.so.12").display().to_string());
    Ok(arguments)
}

/// A wheel's library, found there again as the program starts.
fn linked(folder: &Path, file: &str) -> Vec<String> {
    let place = folder.join(file).display().to_string();
    vec![place, format!("-Wl,-rpath,{}", folder.display())]
}

fn rmm_25(staged: &Staged) -> Result<Vec<String>, Missing> {
    let site = wheels::site("rmm-25.4")?;
    let rapids = ["rapids/libcudacxx", "rapids/cub", "rapids/thrust", "rapids"];
    // Its bundled profiling header uses a limit of the system's without its header.
    let mut arguments = words(&["-std=c++17", "-include", "linux/limits.h"]);
    arguments.push("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE".to_owned());
    arguments.extend(headers(&site.join("librmm/include"), &[""]));
    arguments.extend(headers(&site.join("librmm/include"), &rapids));
    arguments.extend(headers(&site, &["rapids_logger/include"]));
    arguments.extend(cuda_12(staged)?);
    arguments.extend(linked(&site.join("rapids_logger/lib64"), "librapids_logger.so"));
    Ok(arguments)
}

fn rmm_26(staged: &Staged) -> Result<Vec<String>, Missing> {
    let site = wheels::site("rmm-26.10")?;
    let mut arguments = words(&["-std=c++20", "-include", "linux/limits.h"]);
    // Its library needs the logger and does not say where that is: the program names it too.
    arguments.push("-Wl,--no-as-needed".to_owned());
    let folders = ["librmm/include", "librmm/include/rapids", "rapids_logger/include"];
    arguments.extend(headers(&site, &folders));
    arguments.extend(cuda_12(staged)?);
    arguments.extend(linked(&site.join("librmm/lib64"), "librmm.so"));
    arguments.extend(linked(&site.join("rapids_logger/lib64"), "librapids_logger.so"));
    Ok(arguments)
}

fn cccl_2(staged: &Staged) -> Result<Vec<String>, Missing> {
    let mut arguments = words(&["-std=c++17"]);
    arguments.push("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE".to_owned());
    arguments.extend(headers(&wheels::site("cuda-12")?, &["nvidia/cuda_cccl/include"]));
    arguments.extend(cuda_12(staged)?);
    Ok(arguments)
}

/// The CCCL that the newest RMM brings along.
fn cccl_3(staged: &Staged) -> Result<Vec<String>, Missing> {
    let mut arguments = words(&["-std=c++17"]);
    arguments.extend(headers(&wheels::site("rmm-26.10")?, &["librmm/include/rapids"]));
    arguments.extend(cuda_12(staged)?);
    Ok(arguments)
}

fn ort(_staged: &Staged) -> Result<Vec<String>, Missing> {
    let library = onnxruntime_library()?;
    let mut arguments = words(&["-std=c++17"]);
    arguments.push(format!("-DONNXRUNTIME_LIBRARY=\"{}\"", library.display()));
    Ok(arguments)
}

/// ONNX Runtime's library in its wheel.
pub fn onnxruntime_library() -> Result<PathBuf, Missing> {
    let capi = wheels::site("onnxruntime")?.join("onnxruntime/capi");
    let told = |e: std::io::Error| Missing::Failed(format!("{}: {e}", capi.display()));
    let is_library = |p: &PathBuf| {
        let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("libonnxruntime.so")
    };
    let files = std::fs::read_dir(&capi).map_err(told)?.flatten().map(|e| e.path());
    let found = files.filter(is_library).max();
    found.ok_or_else(|| Missing::Failed(format!("no library in {}", capi.display())))
}
