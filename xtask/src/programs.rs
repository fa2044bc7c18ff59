//! Commands that build one program of the project and run it: `demo`, `soak`.
//!
//! Owns which program that is and with which backend. Holds no logic of its own.

use crate::args::Args;
use crate::{Outcome, proc};
use std::path::PathBuf;

/// Builds the `forebay` command in release form; its path.
pub fn build_command() -> Outcome<PathBuf> {
    let mut cargo = proc::cargo();
    cargo.args(["build", "--release", "--package", "forebay-cli"]);
    proc::run(&mut cargo)?;
    Ok(proc::target_dir().join("release/forebay"))
}

/// `cargo xtask demo`: the demo of the `forebay` command, on host memory.
pub fn demo(args: Args) -> Outcome<()> {
    let forebay = build_command()?;
    proc::run(proc::program(forebay).arg("demo").args(args.pass_on()))
}

/// `cargo xtask soak`: the soak program, in release form.
pub fn soak(mut args: Args) -> Outcome<()> {
    let seconds = args.seconds("--seconds", 3600)?;
    args.finish()?;
    let mut cargo = proc::cargo();
    cargo.args(["run", "--release", "--example", "soak", "--", "--seconds"]);
    proc::run(cargo.arg(seconds.to_string()))
}
