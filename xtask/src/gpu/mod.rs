//! `cargo xtask gpu`: what can be checked only on a machine with an NVIDIA GPU.
//!
//! Owns three ways to one script, `run.sh` beside this file: pack everything for another machine
//! (`--pack DIR`), run it here (no argument), run it here on the simulated driver (`--simulated`),
//! which proves the script and says nothing about a GPU. Promises that the script which runs on a
//! GPU is the one that ran on the simulation, and that nothing of the simulation is in the pack.
//! What each row of `docs/gpu-verification.md` needs
//! is a step of it.

mod harness;
mod pack;
mod runtime;

use crate::args::Args;
use crate::test::stage_runtime;
use crate::{Outcome, proc};
use std::path::PathBuf;

/// The command's form.
pub const USAGE: &str = "gpu [--pack DIR | --simulated] [--out DIR]";

/// Packs, and runs unless it is only to pack.
pub fn run(mut args: Args) -> Outcome<()> {
    let packed = args.value("--pack")?.map(PathBuf::from);
    let simulated = args.flag("--simulated");
    let out = args.value("--out")?.map(PathBuf::from);
    args.finish()?;
    if packed.is_some() && (simulated || out.is_some()) {
        return Err(format!("--pack only packs: {USAGE}"));
    }
    let dir = proc::root().join(packed.clone().unwrap_or_else(|| proc::target_dir().join("gpu")));
    let staged = stage_runtime()?;
    pack::pack(&dir, &staged)?;
    if packed.is_some() {
        println!("packed: copy {} to the machine and start run.sh there", dir.display());
        return Ok(());
    }
    let out = proc::root().join(out.unwrap_or_else(|| proc::target_dir().join("gpu-results")));
    let mut script = proc::program("bash");
    script.arg(dir.join("run.sh")).arg("--out").arg(&out);
    // The loader's path is the machine's own: nothing of cargo's may stand before a real driver.
    script.env_remove("LD_LIBRARY_PATH");
    if simulated {
        script.arg("--simulated").arg(&staged.folder);
    }
    let status = script.status().map_err(|e| format!("bash: {e}"))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(NO_DRIVER) => Err(NO_DRIVER_TEXT.to_owned()),
        _ => Err(format!("a step failed: see {}", out.join("gpu.json").display())),
    }
}

/// The script's exit status without a driver.
const NO_DRIVER: i32 = 3;
const NO_DRIVER_TEXT: &str = "no usable NVIDIA GPU here. Either pack for a machine that has one \
    (cargo xtask gpu --pack DIR, copy DIR there, start DIR/run.sh), or run the same script on \
    the simulated driver (cargo xtask gpu --simulated)";
