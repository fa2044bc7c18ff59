//! Builds the allocators' programs and starts them.
//!
//! Owns the compilers' calls, the environment of a measured process, and the traces in the form
//! that the programs read. What peers need is fetched as pinned wheels ([`crate::wheels`]); a
//! program that cannot be built is kept with the reason, and its allocators are skipped. Writes
//! only below `target`.

use super::super::traces;
use super::play::{Given, Played};
use super::{ALLOCATORS, Allocator, OURS};
use crate::test::{Staged, compiler, onnxruntime_library, stage_runtime, torch_wheel};
use crate::wheels::{self, Missing};
use crate::{Outcome, proc};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &str = "benches/allocators";
const PEERS_MANIFEST: &str = "benches/peers/Cargo.toml";
/// Variables with these beginnings would change what is measured.
const REMOVED: [&str; 7] =
    ["FOREBAY_", "MIMALLOC_", "MALLOC_", "GLIBC_", "LD_", "PYTORCH_", "ORT_"];
const FLAGS: [&str; 6] = ["-O3", "-DNDEBUG", "-Wall", "-Wextra", "-Werror", "-rdynamic"];

/// The programs of one run.
pub struct Programs {
    /// By name; or why it is not there.
    built: BTreeMap<&'static str, Result<PathBuf, Missing>>,
    folder: PathBuf,
    libraries: PathBuf,
    staged: Staged,
    /// Peak live bytes of each trace.
    peaks: std::sync::OnceLock<BTreeMap<String, u64>>,
}

impl Programs {
    /// Builds everything from the tree as it is, and fetches what peers need.
    ///
    /// Errors: the simulation, Forebay or its program cannot be built.
    pub fn build() -> Outcome<Programs> {
        let staged = stage_runtime()?;
        let folder = proc::target_dir().join("bench").join("allocators");
        let libraries = folder.join("lib");
        let told = |e: std::io::Error| format!("{}: {e}", libraries.display());
        std::fs::create_dir_all(&libraries).map_err(told)?;
        let mut cargo = proc::cargo();
        cargo.args(["build", "--release", "--lib", "--package", "forebay"]);
        proc::capture(&mut cargo)?;
        let mut programs = Programs {
            built: BTreeMap::new(),
            folder,
            libraries,
            staged,
            peaks: std::sync::OnceLock::new(),
        };
        for (name, build) in BUILDS {
            let built = build(&programs);
            programs.built.insert(name, built);
        }
        match &programs.built["forebay"] {
            Ok(_) => Ok(programs),
            Err(missing) => Err(missing.why().to_owned()),
        }
    }

    /// Allocators whose program is not there, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, &Missing)> {
        let why = |a: &Allocator| self.built.get(a.program)?.as_ref().err();
        ALLOCATORS.iter().filter_map(move |a| Some((a.name, why(a)?)))
    }

    /// What an allocator's program says in a mode.
    pub fn run(&self, one: &Allocator, mode: &str, what: &str, given: Given) -> Outcome<String> {
        let program = match self.built.get(one.program) {
            Some(Ok(program)) => program,
            Some(Err(missing)) => return Err(missing.why().to_owned()),
            None => return Err(format!("no program {}", one.program)),
        };
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if REMOVED.iter().any(|p| name.to_string_lossy().starts_with(p)) {
                command.env_remove(name);
            }
        }
        command.args([one.name, mode, what]).current_dir(&self.folder);
        let paths = [self.staged.folder.as_path(), &self.libraries];
        command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).unwrap_or_default());
        command.env("BENCH_ROUND", given.round.to_string());
        command.env("BENCH_EVENT_NS", given.event_ns.to_string());
        command.env("FOREBAY_BACKEND", "cuda").env("FOREBAY_HEADROOM", "0");
        command.env("FOREBAY_SIM_MEMORY", given.device).env("FOREBAY_SIM_POISON", "none");
        command.env("FOREBAY_SIM_PROFILE", "a100");
        // Asked by the harness alone, after each allocation.
        command.env("FOREBAY_SIM_COSTS", "cuMemGetInfo=0");
        if one.program == "torch" {
            command.env("FOREBAY_SIM_VERSION", "13000");
        }
        if one.name == "torch-expandable" {
            command.env("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
        }
        proc::capture(&mut command)
    }

    /// The traces in the programs' form.
    pub fn traces(&self, quick: bool) -> Outcome<Vec<Played>> {
        let mut cargo = proc::cargo();
        cargo.args(["build", "--release", "--package", "forebay-cli", "--example", "flat_trace"]);
        proc::capture(&mut cargo)?;
        let flatten = proc::target_dir().join("release/examples/flat_trace");
        let mut played = Vec::new();
        let mut peaks = BTreeMap::new();
        for (name, from) in traces::traces(quick) {
            let to = self.folder.join(format!("{name}.flat"));
            proc::capture(proc::program(&flatten).arg(&from).arg(&to))?;
            peaks.insert(name.clone(), peak_of(&to)?);
            played.push(Played { what: to.display().to_string(), name, trace: true });
        }
        let _ = self.peaks.set(peaks);
        Ok(played)
    }

    /// Peak live bytes of a trace.
    pub fn peak(&self, trace: &str) -> Outcome<u64> {
        let found = self.peaks.get().and_then(|peaks| peaks.get(trace)).copied();
        found.ok_or_else(|| format!("no trace {trace}"))
    }

    /// Compiles a program, unless it is there from the same sources by the same call.
    fn compile(&self, name: &str, arguments: &[String]) -> Result<PathBuf, Missing> {
        let to = self.folder.join(name);
        let mut cxx = compiler("CXX", "c++");
        cxx.args(FLAGS).arg("-o").arg(&to).arg(format!("{SOURCES}/{name}.cpp")).args(arguments);
        let mut recipe = proc::describe(&cxx);
        for source in [format!("{name}.cpp"), "bench.hpp".to_owned(), "quiet.hpp".to_owned()] {
            recipe += &proc::read(format!("{SOURCES}/{source}")).map_err(Missing::Failed)?;
        }
        let stamp = self.folder.join(format!("{name}.recipe"));
        if to.exists() && std::fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
            return Ok(to);
        }
        println!("compiling {name}");
        let made = proc::capture(&mut cxx).and_then(|_| proc::write(&stamp, &recipe));
        made.map_err(Missing::Failed).map(|()| to)
    }

    fn runtime(&self, major: u32) -> String {
        self.staged.folder.join(format!("libcudart.so.{major}")).display().to_string()
    }
}

type Build = fn(&Programs) -> Result<PathBuf, Missing>;
const BUILDS: &[(&str, Build)] = &[
    (OURS, forebay),
    ("inband", inband),
    ("torch", torch),
    ("rmm", rmm),
    ("cub", cub),
    ("ort", ort),
];

/// Folders of headers, as those of others are named: their warnings are theirs.
fn headers(base: &Path, folders: &[&str]) -> Vec<String> {
    folders
        .iter()
        .flat_map(|f| ["-isystem".to_owned(), base.join(f).display().to_string()])
        .collect()
}

/// A library by its file, found there again as the program starts.
fn linked(folder: &Path, file: &str) -> Vec<String> {
    let place = folder.join(file).display().to_string();
    vec![place, format!("-Wl,-rpath,{}", folder.display())]
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

fn forebay(programs: &Programs) -> Result<PathBuf, Missing> {
    let release = proc::target_dir().join("release");
    let mut arguments = words(&["-std=c++17", "-Iinclude", "-ldl"]);
    arguments.extend(linked(&release, "libforebay.so"));
    programs.compile("forebay", &arguments)
}

fn inband(programs: &Programs) -> Result<PathBuf, Missing> {
    let target = proc::target_dir().join("bench").join("peers");
    let mut cargo = proc::cargo();
    cargo.args(["build", "--release", "--manifest-path", PEERS_MANIFEST]);
    cargo.env("CARGO_TARGET_DIR", &target);
    proc::capture(&mut cargo).map_err(Missing::Failed)?;
    let mut arguments = words(&["-std=c++17", "-ldl"]);
    arguments.extend(linked(&target.join("release"), "libforebay_bench_peers.so"));
    programs.compile("inband", &arguments)
}

fn torch(programs: &Programs) -> Result<PathBuf, Missing> {
    let wheel = torch_wheel()?.join("torch");
    let cuda = wheels::site("cuda-13")?;
    let nvml = programs.libraries.join("libnvidia-ml.so.1");
    let mut cc = compiler("CC", "cc");
    cc.args(["-O2", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "sim/libraries/nvml.c"]);
    proc::capture(cc.arg("-o").arg(&nvml)).map_err(Missing::Failed)?;
    let mut arguments = words(&["-std=c++20"]);
    arguments.extend(headers(&wheel, &["include"]));
    arguments.extend(headers(&cuda, &["nvidia/cu13/include"]));
    arguments.extend(linked(&wheel.join("lib"), "libc10_cuda.so"));
    arguments.extend(linked(&wheel.join("lib"), "libc10.so"));
    arguments.push(programs.runtime(13));
    arguments.extend(words(&["-ldl", "-Wl,--allow-shlib-undefined"]));
    programs.compile("torch", &arguments)
}

fn rmm(programs: &Programs) -> Result<PathBuf, Missing> {
    let site = wheels::site("rmm-25.4")?;
    let cuda = wheels::site("cuda-12")?;
    let include = [
        "librmm/include",
        "librmm/include/rapids/libcudacxx",
        "librmm/include/rapids/cub",
        "librmm/include/rapids/thrust",
        "librmm/include/rapids",
        "rapids_logger/include",
    ];
    // Its bundled profiling header uses a limit of the system's without its header.
    let mut arguments = words(&["-std=c++17", "-include", "linux/limits.h"]);
    arguments.push("-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE".to_owned());
    arguments.extend(headers(&site, &include));
    arguments.extend(headers(&cuda, &CUDA_12));
    arguments.push(programs.runtime(12));
    arguments.extend(linked(&site.join("rapids_logger/lib64"), "librapids_logger.so"));
    arguments.extend(words(&["-ldl", "-lpthread"]));
    programs.compile("rmm", &arguments)
}

/// Headers of CUDA 12 in the wheels.
const CUDA_12: [&str; 2] = ["nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include"];

fn cub(programs: &Programs) -> Result<PathBuf, Missing> {
    let cuda = wheels::site("cuda-12")?;
    let mut arguments = words(&["-std=c++17"]);
    arguments.extend(headers(&cuda, &["nvidia/cuda_cccl/include"]));
    arguments.extend(headers(&cuda, &CUDA_12));
    arguments.push(programs.runtime(12));
    arguments.push("-ldl".to_owned());
    programs.compile("cub", &arguments)
}

fn ort(programs: &Programs) -> Result<PathBuf, Missing> {
    let library = onnxruntime_library()?;
    let mut arguments = words(&["-std=c++17", "-Itests/clients", "-ldl"]);
    arguments.push(format!("-DONNXRUNTIME_LIBRARY=\"{}\"", library.display()));
    programs.compile("ort", &arguments)
}

/// Peak live bytes of a flat trace.
fn peak_of(file: &Path) -> Outcome<u64> {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut sizes = BTreeMap::new();
    let (mut live, mut peak) = (0u64, 0u64);
    for record in bytes.get(8..).unwrap_or_default().chunks_exact(16) {
        let (id, size) = record.split_at(8);
        let size = u64::from_le_bytes(size.try_into().unwrap_or_default());
        let freed = if size == 0 { sizes.remove(id) } else { sizes.insert(id, size) };
        live = (live + size).saturating_sub(freed.unwrap_or(0));
        peak = peak.max(live);
    }
    if peak > 0 { Ok(peak) } else { Err(format!("{}: nothing is ever live", file.display())) }
}
