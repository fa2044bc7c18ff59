//! What the tests of the preload library share: the files under test, programs compiled from
//! `tests/preload`, and the environment that they run in.
//!
//! The library, the pool and the driver are those of `cargo build`; `cargo xtask test preload`
//! builds them and names the driver in `FOREBAY_SIMULATED_DRIVER` and the folder of the runtimes in
//! `FOREBAY_SIMULATED_RUNTIME`.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const WARNINGS: [&str; 5] = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"];

/// The files under test, in one folder as they are installed.
pub struct Built {
    pub preload: PathBuf,
    pub pool: PathBuf,
    pub driver: PathBuf,
    /// Where programs are compiled to.
    pub scratch: PathBuf,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders up").to_path_buf()
}

pub fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        // All at once: apart, each would be built with other features of what they share.
        let packages = ["forebay", "forebay-preload", "forebay_simcuda", "forebay-cli"];
        cargo.args(["build", "--quiet", "--lib", "--bins"]);
        cargo.args(packages.iter().flat_map(|name| ["--package", name]));
        let output = cargo.current_dir(root()).output().expect("cargo starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let program = std::env::current_exe().expect("this program");
        let folder = program.ancestors().nth(2).expect("target/debug").to_path_buf();
        let scratch = folder.join("preload-tests");
        std::fs::create_dir_all(scratch.join("sim")).expect("a folder");
        let driver = scratch.join("sim").join("libcuda.so.1");
        let made = std::env::var_os("FOREBAY_SIMULATED_DRIVER")
            .map_or_else(|| folder.join("libforebay_simcuda.so"), PathBuf::from);
        let fresh = driver.with_extension("staging");
        std::fs::copy(&made, &fresh).expect("the driver is built");
        std::fs::rename(&fresh, &driver).expect("one folder");
        Built {
            preload: folder.join("libforebay_preload.so"),
            pool: folder.join("libforebay.so.0"),
            driver,
            scratch,
        }
    })
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles a file of `tests/preload` as `name`, with more arguments for the compiler.
pub fn compile(source: &str, name: &str, more: &[&str]) -> PathBuf {
    let file = root().join("tests/preload").join(source);
    let program = built().scratch.join(name);
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(WARNINGS).args(["-O2", "-o"]).arg(&program).arg(file).args(more).arg("-lpthread");
    let output = cc.output().expect("a C compiler");
    assert!(output.status.success(), "{source}: {}", text(&output.stderr));
    program
}

/// A program that is linked with the driver.
pub fn linked(source: &str, name: &str) -> PathBuf {
    let driver = built().driver.to_str().expect("UTF-8");
    compile(source, name, &[driver, "-Wl,--allow-shlib-undefined"])
}

/// The command of a preloaded program on a small simulated machine of two devices.
pub fn preloaded(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(variable);
        }
    }
    command
        .env("LD_PRELOAD", &built().preload)
        .env("LD_LIBRARY_PATH", built().driver.parent().expect("a folder"))
        .env("FOREBAY_HEADROOM", "0")
        .env("FOREBAY_SIM_MEMORY", "256MiB")
        .env("FOREBAY_SIM_DEVICES", "2");
    command
}

/// Runs it to a good end without misuse of the driver; answers what it wrote on standard error.
pub fn ends_well(command: &mut Command) -> (String, String) {
    let output: Output = command.output().expect("it starts");
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.ends_with("well\n"), "{command:?}: {out}{errors}");
    assert!(!errors.contains("misuse"), "{command:?}: {errors}");
    (out, errors)
}

/// The folder of the simulated runtimes; `None`: they are not staged.
pub fn runtimes() -> Option<PathBuf> {
    let folder = std::env::var_os("FOREBAY_SIMULATED_RUNTIME").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: FOREBAY_SIMULATED_RUNTIME names no folder of libcudart.so.12 and 13");
    }
    folder
}

/// A program that is linked with a simulated runtime and the driver.
pub fn with_runtime(source: &str, name: &str, folder: &Path, major: u32, more: &[&str]) -> PathBuf {
    let runtime = folder.join(format!("libcudart.so.{major}"));
    let version = format!("-DCUDART_VERSION={major}000");
    let include = format!("-I{}", root().join("sim/cudart/include").display());
    let driver = &built().driver;
    let libraries = [runtime.to_str().expect("UTF-8"), driver.to_str().expect("UTF-8")];
    let fixed = [&include[..], &version, "-Wl,--allow-shlib-undefined"];
    compile(source, name, &[&fixed[..], more, &libraries].concat())
}

/// The command of a preloaded program that finds the simulated runtimes, with a driver that is new
/// enough for both.
pub fn preloaded_with(folder: &Path, program: impl AsRef<Path>) -> Command {
    let mut command = preloaded(program);
    let driver = built().driver.parent().expect("a folder");
    let both = std::env::join_paths([driver, folder]).expect("no colon");
    command.env("LD_LIBRARY_PATH", both).env("FOREBAY_SIM_VERSION", "13000");
    command
}

/// The `forebay` command.
pub fn forebay() -> Command {
    Command::new(built().preload.with_file_name("forebay"))
}

/// Libraries joined as `LD_PRELOAD` has them.
pub fn both(a: &Path, b: &Path) -> std::ffi::OsString {
    let mut both = a.as_os_str().to_owned();
    both.push(":");
    both.push(b);
    both
}
