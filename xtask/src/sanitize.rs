//! `cargo xtask sanitize`: what needs a nightly toolchain.
//!
//! Miri on the rooms that call no system, ThreadSanitizer on the multithreaded tests, the fuzz
//! targets for a minute each. Promises that what cannot run here is printed as skipped, with
//! the reason, and never counted as passed; and that all of it ends within `--seconds`.

use crate::args::Args;
use crate::proc::End;
use crate::report::Tally;
use crate::{Outcome, proc};
use std::process::Command;
use std::time::{Duration, Instant};

/// The command's form.
pub const USAGE: &str = "sanitize [--seconds N]";

/// Rooms that Miri runs: they make no system call.
const PURE_ROOMS: &[&str] = &["heap::", "slab::", "stream::", "base::", "config::"];
/// The test program with many threads and streams.
const THREADED_TEST: &str = "streams";
/// The one target that ThreadSanitizer is run for.
const TSAN_TARGET: &str = "x86_64-unknown-linux-gnu";
/// Seconds a fuzz target runs.
const FUZZ_SECONDS: u64 = 60;
/// A fuzz target with this in its name holds a planted fault that must be found.
const CANARY: &str = "canary";

/// Time left for all checks together.
struct Clock {
    end: Instant,
}

impl Clock {
    /// What is left; nothing once it is used up.
    fn left(&self) -> Option<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        (left > Duration::ZERO).then_some(left)
    }
}

/// Runs all checks; an error when one failed.
pub fn run(mut args: Args) -> Outcome<()> {
    let seconds = args.seconds("--seconds", 3600)?;
    args.finish()?;
    let clock = Clock { end: Instant::now() + Duration::from_secs(seconds) };
    let mut tally = Tally::default();
    if let Err(why) = has_nightly() {
        for name in ["miri", "thread_sanitizer", "fuzz"] {
            tally.skip(name, &why);
        }
    } else {
        miri(&clock, &mut tally);
        thread_sanitizer(&clock, &mut tally);
        fuzz(&clock, &mut tally);
    }
    tally.close("checks")
}

fn has_nightly() -> Outcome<()> {
    proc::capture(nightly("rustc").arg("--version"))
        .map(drop)
        .map_err(|_| "no nightly toolchain (rustup run nightly rustc)".to_owned())
}

/// A program of the nightly toolchain, with the settings of this one taken away.
fn nightly(name: &str) -> Command {
    let mut command = proc::program("rustup");
    command.args(["run", "nightly", name]);
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = tools_dir().join("bin");
    let folders = std::iter::once(tools).chain(std::env::split_paths(&path));
    if let Ok(joined) = std::env::join_paths(folders) {
        command.env("PATH", joined);
    }
    command
}

/// Adds toolchain components; an error with the reason when they cannot be had.
fn add_components(names: &[&str]) -> Outcome<()> {
    let mut command = proc::program("rustup");
    command.args(["component", "add", "--toolchain", "nightly"]).args(names);
    proc::capture(&mut command)
        .map(drop)
        .map_err(|_| format!("rustup cannot add {}", names.join(" and ")))
}

/// Runs a `cargo test` kind of command and counts its tests under `name`.
fn counted(name: &str, command: &mut Command, clock: &Clock, tally: &mut Tally) {
    let Some(left) = clock.left() else {
        return tally.skip(name, "no time left for it");
    };
    println!("$ {}", proc::describe(command));
    let mut seen = Tally::default();
    let end = proc::stream(command, Some(left), |line| seen.add_cargo_line(line));
    let (passed, failed) = (seen.passed, seen.failed);
    *tally += seen;
    match end {
        Ok(End::Success) if passed == 0 => tally.skip(name, "it has no tests"),
        Ok(End::Success) => {}
        Ok(End::TimedOut) => tally.skip(name, "it did not end within the time given"),
        Ok(End::Failure) if failed > 0 => {}
        Ok(End::Failure) => tally.check(name, Err("it failed without a count".into())),
        Err(why) => tally.check(name, Err(why)),
    }
}

fn miri(clock: &Clock, tally: &mut Tally) {
    if let Err(why) = add_components(&["miri", "rust-src"]) {
        return tally.skip("miri", &why);
    }
    let mut command = nightly("cargo");
    command
        .args(["miri", "test", "--lib", "--"])
        .args(PURE_ROOMS)
        .env("CARGO_TARGET_DIR", proc::target_dir().join("miri"))
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("PROPTEST_CASES", "4");
    counted("miri", &mut command, clock, tally);
}

fn thread_sanitizer(clock: &Clock, tally: &mut Tally) {
    let name = "thread_sanitizer";
    if !(cfg!(target_arch = "x86_64") && cfg!(target_os = "linux")) {
        return tally.skip(name, "only on x86-64 Linux");
    }
    if !proc::root().join(format!("tests/rust/{THREADED_TEST}.rs")).is_file() {
        let missing = format!("there is no test program {THREADED_TEST}");
        return tally.check(name, Err(missing));
    }
    if let Err(why) = add_components(&["rust-src"]) {
        return tally.skip(name, &why);
    }
    let mut command = nightly("cargo");
    command
        .args(["test", "-Zbuild-std", "--target", TSAN_TARGET, "--test", THREADED_TEST])
        .env("CARGO_TARGET_DIR", proc::target_dir().join("tsan"))
        .env("RUSTFLAGS", "-Zsanitizer=thread --cfg sanitize_thread")
        .env("TSAN_OPTIONS", "halt_on_error=1")
        .env("FOREBAY_LIMIT", "1GiB");
    counted(name, &mut command, clock, tally);
}

fn fuzz(clock: &Clock, tally: &mut Tally) {
    let targets: Vec<String> = proc::files("fuzz/fuzz_targets", &["rs"])
        .iter()
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()))
        .collect();
    if targets.is_empty() {
        return tally.check("fuzz", Err("fuzz/fuzz_targets holds no target".into()));
    }
    let no_tool = fetch_fuzz(clock).err();
    for target in targets {
        let name = format!("fuzz::{target}");
        if let Some(why) = &no_tool {
            tally.skip(&name, why);
            continue;
        }
        fuzz_one(&name, &target, clock, tally);
    }
}

/// cargo-fuzz of this version, installed into the project's own tools.
const FUZZ_TOOL: &str = "cargo-fuzz@0.13.2";

/// Makes cargo-fuzz available: as it is on PATH, or installed into `target/tools` once.
fn fetch_fuzz(clock: &Clock) -> Outcome<()> {
    if proc::capture(nightly("cargo").args(["fuzz", "--version"])).is_ok() {
        return Ok(());
    }
    let left = clock.left().ok_or("no time left to install cargo-fuzz")?;
    let mut install = nightly("cargo");
    install.args(["install", "--quiet", "--locked", "--root"]);
    install.arg(tools_dir()).arg(FUZZ_TOOL);
    println!("$ {}", proc::describe(&install));
    match proc::stream(&mut install, Some(left), |_| ())? {
        End::Success => Ok(()),
        _ => Err("no cargo-fuzz, and it could not be installed".into()),
    }
}

fn tools_dir() -> std::path::PathBuf {
    proc::root().join("target/tools")
}

fn fuzz_one(name: &str, target: &str, clock: &Clock, tally: &mut Tally) {
    let Some(left) = clock.left() else {
        return tally.skip(name, "no time left for it");
    };
    let mut command = nightly("cargo");
    // Without a line for each new input: thousands of them would hide what else was printed.
    let limit = format!("-max_total_time={FUZZ_SECONDS}");
    command.args(["fuzz", "run", target, "--", "-verbosity=0", "-print_final_stats=1", &limit]);
    command.env("FOREBAY_LIMIT", "1GiB");
    println!("$ {}", proc::describe(&command));
    let end = proc::stream(&mut command, Some(left), |_| ());
    match (end, target.contains(CANARY)) {
        (Err(why), _) => tally.check(name, Err(why)),
        (Ok(End::TimedOut), _) => tally.skip(name, "it did not end within the time given"),
        (Ok(End::Success), false) | (Ok(End::Failure), true) => tally.check(name, Ok(())),
        (Ok(End::Failure), false) => tally.check(name, Err("a fault was found".into())),
        (Ok(End::Success), true) => {
            tally.check(name, Err("the planted fault was not found".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(seconds: u64) -> Clock {
        Clock { end: Instant::now() + Duration::from_secs(seconds) }
    }

    fn after(script: &str, clock: &Clock) -> Tally {
        let mut tally = Tally::default();
        counted("x", proc::program("sh").args(["-c", script]), clock, &mut tally);
        tally
    }

    #[test]
    fn a_check_without_time_or_tests_is_skipped_and_not_passed() {
        let skipped = Tally { passed: 0, failed: 0, skipped: 1 };
        assert_eq!(after("exit 0", &clock(0)), skipped);
        assert_eq!(after("exit 0", &clock(600)), skipped);
    }

    #[test]
    fn a_check_that_dies_is_a_failure() {
        assert_eq!(after("exit 66", &clock(600)).failed, 1);
        let one = after("echo 'test result: ok. 1 passed; 0 failed'", &clock(600));
        assert_eq!(one, Tally { passed: 1, failed: 0, skipped: 0 });
    }
}
