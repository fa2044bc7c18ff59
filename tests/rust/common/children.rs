//! Child processes of a test program: the program itself, told what to do by its environment.
#![allow(dead_code, reason = "each test program uses its part")]

/// Runs the scenario `name` in a process of its own: this test program again, with the test
/// `test` alone, `FOREBAY_TEST_CHILD` naming the scenario, and exactly `vars` besides.
pub fn child(test: &str, name: &str, vars: &[(&str, &str)]) -> std::process::Output {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    for (variable, _) in std::env::vars_os() {
        let variable = variable.to_string_lossy().into_owned();
        if variable.starts_with("FOREBAY_") && !variable.starts_with("FOREBAY_TEST_") {
            command.env_remove(variable);
        }
    }
    command.envs(vars.iter().copied()).env("FOREBAY_TEST_CHILD", name);
    command.output().expect("a child process")
}

/// The scenario this process was started for, if it is a child.
pub fn scenario() -> Option<String> {
    std::env::var("FOREBAY_TEST_CHILD").ok()
}

/// For the first line of a test of this name: whether it was run, alone in a process of its own,
/// and there is nothing left to do. What a test does to the whole process (a capture that is open,
/// an address that is stale) meets no other test so.
#[track_caller]
pub fn apart(test: &str) -> bool {
    if scenario().as_deref() == Some(test) {
        return false;
    }
    let output = child(test, test, &[]);
    let told = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && told.contains("1 passed");
    assert!(passed, "{test}: {told}{}", String::from_utf8_lossy(&output.stderr));
    true
}
