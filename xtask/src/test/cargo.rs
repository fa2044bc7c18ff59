//! The groups that `cargo test` runs: unit, rust, model, cli.
//!
//! Owns which targets belong to which group. Promises that a build that fails, or a test
//! program that dies, counts as a failure even though it prints no summary.

use super::Options;
use crate::report::Tally;
use crate::{Outcome, proc};
use std::process::Command;

/// Tests inside the sources of all members, and the examples in the documentation.
pub fn unit(options: Options) -> Tally {
    let mut tally = Tally::default();
    cargo_test(&["--workspace", "--lib", "--bins"], options, &mut tally);
    cargo_test(&["--workspace", "--doc"], options, &mut tally);
    tally
}

/// Integration tests of the library, the random ones among them.
pub fn integration(options: Options) -> Tally {
    members_tests("forebay", options)
}

/// Tests of the `forebay` command as a program.
pub fn cli(options: Options) -> Tally {
    members_tests("forebay-cli", options)
}

fn members_tests(package: &str, options: Options) -> Tally {
    let mut tally = Tally::default();
    match tests_of(package) {
        Ok(names) if names.is_empty() => {
            tally.skip(&format!("tests of {package}"), "it has no test programs");
        }
        Ok(names) => {
            let mut what = vec!["--package", package];
            what.extend(names.iter().flat_map(|name| ["--test", name]));
            cargo_test(&what, options, &mut tally);
        }
        Err(why) => tally.check(&format!("tests of {package}"), Err(why)),
    }
    tally
}

/// The package's test programs, those of group `cuda` apart.
fn tests_of(package: &str) -> Outcome<Vec<String>> {
    let mut cargo = proc::cargo();
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&proc::capture(&mut cargo)?)
        .map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let targets = packages
        .iter()
        .filter(|p| p["name"] == package)
        .flat_map(|p| p["targets"].as_array().into_iter().flatten());
    let tests =
        targets.filter(|t| t["kind"].as_array().is_some_and(|k| k.iter().any(|k| k == "test")));
    let names = tests.filter_map(|t| t["name"].as_str().map(str::to_owned));
    Ok(names.filter(|name| !super::cuda::TESTS.contains(&name.as_str())).collect())
}

fn cargo_test(what: &[&str], options: Options, tally: &mut Tally) {
    let mut command = proc::cargo();
    command.args(["test", "--no-fail-fast"]).args(what);
    if options.full && !what.contains(&"--doc") {
        command.args(["--", "--include-ignored"]);
    }
    run_counted(&mut command, tally);
}

/// Runs a `cargo test` command, passes its output on and adds its counts.
pub fn run_counted(command: &mut Command, tally: &mut Tally) {
    println!("$ {}", proc::describe(command));
    let mut seen = Tally::default();
    let end = proc::stream(command, None, |line| seen.add_cargo_line(line));
    let uncounted = match end {
        Ok(proc::End::Success) => None,
        Ok(_) if seen.failed > 0 => None,
        Ok(_) => Some("it failed without a count: a build error, or a program that died".into()),
        Err(why) => Some(why),
    };
    *tally += seen;
    if let Some(why) = uncounted {
        tally.check(&proc::describe(command), Err(why));
    }
}

/// Model checks: every interleaving under loom, many schedules under shuttle. They are tests
/// whose name starts with `loom_` or `shuttle_`, built with that `cfg` in a folder
/// of their own.
pub fn model(_options: Options) -> Tally {
    let mut tally = Tally::default();
    for checker in ["loom", "shuttle"] {
        let prefix = format!("fn {checker}_");
        let present = proc::files("src", &["rs"])
            .iter()
            .any(|file| proc::read(file).is_ok_and(|text| text.contains(&prefix)));
        if !present {
            tally.skip(checker, &format!("src has no test named {checker}_*"));
            continue;
        }
        let mut command = proc::cargo();
        command
            .args(["test", "--release", "--lib", &format!("{checker}_")])
            .env("CARGO_TARGET_DIR", proc::target_dir().join(checker))
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .env("RUSTFLAGS", format!("--cfg {checker}"));
        run_counted(&mut command, &mut tally);
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_without_a_count_is_one_failure() {
        let mut tally = Tally::default();
        run_counted(proc::program("sh").args(["-c", "exit 101"]), &mut tally);
        assert_eq!(tally, Tally { passed: 0, failed: 1, skipped: 0 });
        run_counted(&mut proc::program("no-such-program-here"), &mut tally);
        assert_eq!(tally.failed, 2);
    }

    #[test]
    fn a_command_with_a_count_is_counted_once() {
        let mut tally = Tally::default();
        let line = "echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101";
        run_counted(proc::program("sh").args(["-c", line]), &mut tally);
        assert_eq!(tally, Tally { passed: 2, failed: 1, skipped: 0 });
    }
}
