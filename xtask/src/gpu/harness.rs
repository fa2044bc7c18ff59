//! The C harness, built by the C compiler alone: one program each, found beside its library.
//!
//! Owns which programs can run where the CPU cannot touch device memory. The others say so by
//! name instead of crashing there.

use crate::{Outcome, proc};
use std::path::Path;

/// Sources that are no programs of the harness.
const LEFT_OUT: &[&str] = &["header_alone", "header_twice"];

/// Programs whose checks read or write device memory with the CPU, so that they run on host
/// memory alone. On the simulated driver without access for the CPU each of them crashes.
const HOST_ONLY: &[&str] = &[
    "basics",
    "buffers",
    "capture",
    "dlopen",
    "errors",
    "fork_child",
    "free_sync",
    "host_alloc",
    "limits",
    "oom",
    "pin",
    "pools",
    "record_use",
    "share",
    "streams",
    "threads",
    "trim",
];
/// What is told of them.
const HOST_ONLY_REASON: &str = "its checks touch device memory with the CPU";

/// Builds all programs into `to`, and a file `list`: a program a line, a tab, the reason why it
/// is not to be run.
pub fn build(to: &Path, library_dir: &Path) -> Outcome<()> {
    let told = |e: std::io::Error| format!("{}: {e}", to.display());
    std::fs::create_dir_all(to).map_err(told)?;
    let mut list = String::new();
    for file in proc::files("tests/c", &["c"]) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        let mut cc = proc::program(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=c11", "-O1", "-g0", "-UNDEBUG", "-Iinclude", "-o"]).arg(to.join(&name));
        cc.arg(&file).arg(format!("-L{}", library_dir.display())).arg("-lforebay");
        cc.args(["-Wl,-rpath,$ORIGIN/../lib", "-pthread", "-ldl"]);
        proc::capture(&mut cc)?;
        let reason = if HOST_ONLY.contains(&name.as_str()) { HOST_ONLY_REASON } else { "" };
        list.push_str(&format!("{name}\t{reason}\n"));
    }
    std::fs::write(to.join("list"), list).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_that_is_named_is_there() {
        let names = HOST_ONLY.iter().chain(LEFT_OUT);
        for name in names {
            let file = proc::root().join("tests/c").join(format!("{name}.c"));
            assert!(file.is_file(), "{name}");
        }
    }
}
