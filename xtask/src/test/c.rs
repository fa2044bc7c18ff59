//! Group `c`: the C and C++ programs, through CMake, plain and under AddressSanitizer.
//!
//! Owns the order: build the library with cargo, look at it and at the header, configure and
//! run `ctest` (which also runs some programs under Valgrind, and builds the consumer project
//! against an installation, whose preload library serves a program on the simulated CUDA), then
//! the C and C++ programs once more with AddressSanitizer.
//! Writes only below `target`.

use super::runtime::stage_runtime;
use super::{Options, library};
use crate::report::Tally;
use crate::tools::{self, Tools};
use crate::{Outcome, proc};
use std::path::Path;

/// Tests of the library's files, which a sanitizer in the programs cannot change.
const NOT_SANITIZED: &str = "^(valgrind|consumer|exports|dynamic)_";

/// Runs the group.
pub fn run(_options: Options) -> Tally {
    let mut tally = Tally::default();
    let mut cargo = proc::cargo();
    // What CMake asks for: with another set of packages the library would be built once more.
    cargo.args(["build", "--release", "--package", "forebay", "--lib"]);
    cargo.args(["--package", "forebay-preload", "--package", "forebay-cli", "--bins"]);
    let built = proc::run(&mut cargo);
    let has_library = built.is_ok();
    tally.check("c::cargo_build", built);
    library::check_header(&mut tally);
    if has_library {
        library::check_cargo_library(&mut tally);
    } else {
        tally.skip("c::library", "it did not build");
    }
    match tools::ensure() {
        Ok(tools) => with_cmake(&tools, &mut tally),
        Err(why) => tally.check("c::tools", Err(why)),
    }
    tally
}

fn with_cmake(tools: &Tools, tally: &mut Tally) {
    let build = proc::target_dir().join("cmake");
    match stage_runtime() {
        Ok(staged) => {
            let simulated = format!("-DFOREBAY_SIMULATED={}", staged.folder.display());
            build_and_test(tools, &build, "c::cmake_build", &[&simulated], None, tally);
        }
        Err(why) => tally.check("c::stage", Err(why)),
    }
    if let Err(why) = library::compiler_has_asan() {
        return tally.skip("c::address_sanitizer", &why);
    }
    println!("with AddressSanitizer:");
    let build = proc::target_dir().join("cmake-asan");
    let setting = ["-DFOREBAY_SANITIZE=address"];
    build_and_test(tools, &build, "c::asan_build", &setting, Some(NOT_SANITIZED), tally);
}

fn build_and_test(
    tools: &Tools,
    build: &Path,
    name: &str,
    settings: &[&str],
    leave_out: Option<&str>,
    tally: &mut Tally,
) {
    let built = cmake(tools, build, settings);
    let usable = built.is_ok();
    tally.check(name, built);
    if usable {
        ctest(tools, build, leave_out, tally);
    } else {
        tally.skip("c::harness", "it did not build");
    }
}

/// Configures and builds; cargo's output is shared with the build before.
fn cmake(tools: &Tools, build: &Path, settings: &[&str]) -> Outcome<()> {
    let mut configure = proc::program(&tools.cmake);
    configure.arg("-S").arg(proc::root()).arg("-B").arg(build).args(["-G", "Ninja"]);
    configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", tools.ninja.display()));
    configure.arg(format!("-DFOREBAY_CARGO_TARGET_DIR={}", proc::target_dir().display()));
    configure.arg("-DCMAKE_BUILD_TYPE=RelWithDebInfo").args(settings);
    proc::capture(&mut configure)?;
    proc::capture(proc::program(&tools.cmake).arg("--build").arg(build)).map(drop)
}

/// Runs the tests of a build folder and adds their counts.
fn ctest(tools: &Tools, build: &Path, leave_out: Option<&str>, tally: &mut Tally) {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    let mut command = proc::program(&tools.ctest);
    command.args(["--output-on-failure", "--no-tests=error", "--test-dir"]).arg(build);
    command.args(["--parallel", &jobs.to_string()]).env_remove("LD_LIBRARY_PATH");
    if let Some(pattern) = leave_out {
        command.args(["--exclude-regex", pattern]);
    }
    let mut seen = Tally::default();
    let end = proc::stream(&mut command, None, |line| seen.add_ctest_line(line));
    let told = seen.failed > 0;
    *tally += seen;
    match end {
        Ok(proc::End::Success) => {}
        Ok(_) if told => {}
        Ok(_) => tally.check("c::ctest", Err("it failed without a count".into())),
        Err(why) => tally.check("c::ctest", Err(why)),
    }
}
