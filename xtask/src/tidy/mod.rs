//! `cargo xtask tidy`: the checks that no compiler does.
//!
//! Owns the list of checks and the form of their report, `file:line: message`. Promises that
//! every violation is printed, not only the first. Reads files and changes none. Style that
//! rustfmt, rustc or clippy already check is left to them. Cost: one pass over all sources.

mod deps;
mod floors;
mod sizes;
mod unsafety;

use crate::args::Args;
use crate::proc;
use crate::report::Tally;
use crate::{Outcome, source};
use std::path::{Path, PathBuf};

/// One broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The file, named from the root.
    pub file: PathBuf,
    /// The line, counted from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong and what is asked.
    pub message: String,
}

impl Violation {
    fn new(file: &Path, line: usize, message: impl Into<String>) -> Violation {
        Violation { file: file.to_path_buf(), line, message: message.into() }
    }
}

/// A source file, read once for all checks.
pub struct Source {
    /// Its name from the root.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

/// Where Rust code lies. Only `src`, `cli`, `xtask` and `sim` fall under every rule.
const RUST_DIRS: &[&str] =
    &["src", "cli", "xtask", "sim", "tests", "benches", "examples", "bindings", "fuzz"];

/// Where C and C++ code lies.
const C_DIRS: &[&str] = &["include", "bindings", "tests", "benches", "examples", "sim"];

/// Written by `cargo xtask header`, so its form is cbindgen's.
const GENERATED: &[&str] = &["include/forebay.h"];

/// Runs all checks; an error when any rule is broken.
pub fn run(args: Args) -> Outcome<()> {
    args.finish()?;
    let rust = read_all(RUST_DIRS, &["rs"])?;
    let c = read_all(C_DIRS, &["c", "h", "cc", "cpp", "hpp"])?;
    let manifests = deps::read_manifests()?;
    let decisions = proc::read("docs/decisions.md").unwrap_or_default();
    let checks: [(&str, Vec<Violation>); 6] = [
        ("floors", floors::check(&rust)),
        ("sizes", sizes::check(&rust, &c)),
        ("words", sizes::forbidden_words(rust.iter().chain(&c))),
        ("unsafe", unsafety::check(&rust)),
        ("documentation", deps::check_lints(&manifests)),
        ("dependencies", deps::check(&manifests, &rust, &decisions)),
    ];
    let mut tally = Tally::default();
    let mut broken = 0;
    for (name, violations) in checks {
        for v in &violations {
            println!("{}:{}: {}", v.file.display(), v.line, v.message);
        }
        broken += violations.len();
        let result = match violations.len() {
            0 => Ok(()),
            n => Err(format!("{n} violations")),
        };
        tally.check(&format!("tidy::{name}"), result);
    }
    println!("{} Rust files, {} C and C++ files, {broken} violations", rust.len(), c.len());
    tally.close("checks")
}

fn read_all(dirs: &[&str], extensions: &[&str]) -> Outcome<Vec<Source>> {
    let mut all = Vec::new();
    for dir in dirs {
        for path in proc::files(dir, extensions) {
            let text = proc::read(&path)?;
            all.push(Source { path, text });
        }
    }
    Ok(all)
}

/// The part of the source that every rule covers: the library, the command, xtask, the simulated
/// driver and runtime, and the probe.
fn is_product(path: &Path) -> bool {
    const DIRS: [&str; 7] = [
        "src",
        "cli/src",
        "xtask/src",
        "bindings/preload/src",
        "sim/cuda/src",
        "sim/cudart/src",
        "sim/probe/src",
    ];
    DIRS.iter().any(|dir| path.starts_with(dir))
}

/// The tokens, or a violation that says why there are none.
fn lex(file: &Source, found: &mut Vec<Violation>) -> Option<proc_macro2::TokenStream> {
    match source::tokens(&file.text) {
        Ok(tokens) => Some(tokens),
        Err(why) => {
            found.push(Violation::new(&file.path, 0, format!("cannot be read as Rust: {why}")));
            None
        }
    }
}

#[cfg(test)]
fn sample(path: &str, text: &str) -> Source {
    Source { path: PathBuf::from(path), text: text.to_owned() }
}
