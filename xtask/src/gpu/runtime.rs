//! Programs on CUDA's runtime and on the preload library, built by C and C++ compilers alone.
//!
//! Owns the folder `runtime` of the pack: programs that take whatever `libcudart.so.12` and
//! `libcuda.so.1` the loader finds, what they are to print, and the example's source for a machine
//! with `nvcc`. They are linked with the simulated libraries, of which nothing gets into the pack:
//! only names are recorded. `sample` has kernels as functions for the CPU, and runs on the
//! simulation alone.

use crate::test::Staged;
use crate::{Outcome, proc};
use std::path::Path;

const EXAMPLE: &str = "examples/runtime";
const PROGRAMS: &str = "tests/preload";

/// Builds all programs into `to`.
pub fn build(to: &Path, staged: &Staged) -> Outcome<()> {
    let told = |e: std::io::Error| format!("{}: {e}", to.display());
    let source = to.join("src");
    std::fs::create_dir_all(&source).map_err(told)?;
    let of = |folder: &str, names: &[&str]| -> Vec<String> {
        names.iter().map(|name| format!("{folder}/{name}")).collect()
    };
    let (c, cxx) = (("CC", "cc", "-std=gnu11"), ("CXX", "c++", "-std=c++17"));
    let (runtime, driver) = (&["libcudart.so.12"][..], &["libcuda.so.1"][..]);
    let both = &["libcudart.so.12", "libcuda.so.1"][..];
    let checks = of(PROGRAMS, &["runtime.c", "runtime_main.c"]);
    let programs = [
        ("calls", c, checks, runtime),
        ("nodes", c, of(PROGRAMS, &["runtime_nodes.c"]), runtime),
        ("set_device", c, of(PROGRAMS, &["set_device.c"]), both),
        ("driver_nodes", c, of(PROGRAMS, &["nodes.c"]), driver),
        ("driver_counted", c, of(PROGRAMS, &["counted.c"]), driver),
        ("sample", cxx, of(EXAMPLE, &["inference.cpp", "kernels.cpp"]), runtime),
    ];
    for (name, (variable, compiler, standard), sources, libraries) in programs {
        let mut cc = proc::program(std::env::var_os(variable).unwrap_or_else(|| compiler.into()));
        cc.args([standard, "-O1", "-g0", "-UNDEBUG", "-Isim/cudart/include", "-o"]);
        cc.arg(to.join(name)).args(&sources);
        cc.args(libraries.iter().map(|library| staged.folder.join(library)));
        cc.args(["-Wl,--allow-shlib-undefined", "-lpthread", "-ldl"]);
        proc::capture(&mut cc)?;
    }
    let keep = |from: &str, name: &Path| {
        let from = proc::root().join(from);
        std::fs::copy(&from, name).map(drop).map_err(|e| format!("{}: {e}", from.display()))
    };
    for name in ["inference.cpp", "kernels.cpp", "kernels.h"] {
        keep(&format!("{EXAMPLE}/{name}"), &source.join(name))?;
    }
    let printed = proc::read(format!("{EXAMPLE}/expected.txt"))?;
    std::fs::write(to.join("sample.txt"), &printed).map_err(told)?;
    keep(&format!("{PROGRAMS}/expected.txt"), &to.join("calls.txt"))
}
