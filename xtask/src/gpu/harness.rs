//! The C harness, built by the C compiler alone: one program each, found beside its library.
//!
//! Owns which programs can run on a GPU, whose memory the CPU cannot touch. The others are skipped
//! by name.

use crate::{Outcome, proc};
use std::path::Path;

/// Sources that are no programs of the harness.
const LEFT_OUT: &[&str] = &["header_alone", "header_twice"];

/// Programs that run on host memory alone, and why.
const HOST_ONLY: &[(&str, &str)] =
    &[("share", "it expects a device without peers, and memory that a second process shares")];

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
        let reason = HOST_ONLY.iter().find(|(host, _)| *host == name).map_or("", |(_, why)| why);
        list.push_str(&format!("{name}\t{reason}\n"));
    }
    std::fs::write(to.join("list"), list).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_that_is_named_is_there() {
        let names = HOST_ONLY.iter().map(|(name, _)| name).chain(LEFT_OUT);
        for name in names {
            let file = proc::root().join("tests/c").join(format!("{name}.c"));
            assert!(file.is_file(), "{name}");
        }
    }
}
