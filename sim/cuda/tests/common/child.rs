//! Tests that need a process of their own: the test program runs itself again. Those of the
//! simulated driver and of the simulated runtime share this file.
//!
//! `#[test] fn x() { let Some(out) = child::run("x", &[...]) else { in_child(); return }; ... }`
//! runs the same test in a new process, where `run` answers nothing.

use std::process::{Command, Output};

const VARIABLE: &str = "FOREBAY_SIMULATED_CHILD";

/// Runs this test again in a process with these variables; `None` in that process.
pub fn run(test: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if std::env::var(VARIABLE).is_ok_and(|name| name == test) {
        return None;
    }
    let program = std::env::current_exe().expect("a test program has a path");
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_SIM_")) {
        command.env_remove(name);
    }
    command.env(VARIABLE, test).envs(variables.iter().copied());
    Some(command.output().expect("the test program starts"))
}

/// The standard output, once the child ended with this exit status.
pub fn ended(output: &Output, status: i32) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "output:\n{out}\n{err}");
    // A name that is no test's would also end well.
    assert!(out.contains("running 1 test"), "output:\n{out}\n{err}");
    out
}

/// A file of this process for a test to write, under the system's folder for such.
pub fn scratch(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("forebay-simulated-{}-{name}", std::process::id()))
}
