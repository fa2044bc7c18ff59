//! Commands that build one program of the project and run it: `demo`, `soak`.
//!
//! Owns which program that is and with which backend. Holds no logic of its own.

use crate::args::Args;
use crate::bench::on_simulated;
use crate::test::stage_sim;
use crate::{Outcome, proc};
use std::path::PathBuf;

/// Builds the `forebay` command in release form; its path.
pub fn build_command() -> Outcome<PathBuf> {
    let mut cargo = proc::cargo();
    cargo.args(["build", "--release", "--package", "forebay-cli"]);
    proc::run(&mut cargo)?;
    Ok(proc::target_dir().join("release/forebay"))
}

/// `cargo xtask demo`: the demo of the `forebay` command, on host memory, then the same on the
/// simulated CUDA driver. With arguments: the command's own demo, with these.
pub fn demo(args: Args) -> Outcome<()> {
    let forebay = build_command()?;
    let own = args.pass_on();
    proc::run(proc::program(&forebay).arg("demo").args(&own))?;
    if !own.is_empty() {
        return Ok(());
    }
    println!(
        "\nThe same through the CUDA backend, on the simulated driver (no GPU is involved):\n"
    );
    let folder = stage_sim()?;
    let mut demo = proc::program(&forebay);
    proc::run(demo.args(["demo", "--backend", "cuda"]).envs(on_simulated(&folder)))
}

/// `cargo xtask soak`: the soak program, in release form.
pub fn soak(mut args: Args) -> Outcome<()> {
    let seconds = args.seconds("--seconds", 3600)?;
    args.finish()?;
    let mut cargo = proc::cargo();
    cargo.args(["run", "--release", "--example", "soak", "--", "--seconds"]);
    proc::run(cargo.arg(seconds.to_string()))
}
