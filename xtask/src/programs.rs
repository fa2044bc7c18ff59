//! Commands that build one program of the project and run it: `demo`, `soak`.
//!
//! Owns which program that is and with which backend. Holds no logic of its own.

use crate::args::Args;
use crate::bench::on_simulated;
use crate::test::library::compiler;
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
    let own = args.pass_on();
    if own.first().is_some_and(|word| word == "kv") {
        return demo_kv(&own[1..]);
    }
    let forebay = build_command()?;
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

/// `cargo xtask demo kv`: the example of a paged KV cache, on the Azure conversation trace where
/// `FOREBAY_TRACES` has it as neighbour, else on the repository's own requests.
fn demo_kv(own: &[String]) -> Outcome<()> {
    let mut cargo = proc::cargo();
    proc::run(cargo.args(["build", "--release", "--package", "forebay", "--lib"]))?;
    let libraries = proc::target_dir().join("release");
    let program = proc::target_dir().join("xtask-kv-serve");
    let mut cc = compiler("CXX", "c++");
    cc.args(["-std=c++17", "-O2", "-Iinclude", "-Ibindings/cpp", "examples/kv/serve.cpp", "-o"]);
    cc.arg(&program).arg("-L").arg(&libraries).arg("-lforebay");
    cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
    proc::run(&mut cc)?;
    let traces = std::env::var_os("FOREBAY_TRACES").map(PathBuf::from).unwrap_or_default();
    let azure = traces.join("../traces/AzureLLMInferenceTrace_conv.csv");
    let (trace, more) = match azure.is_file() {
        true => (azure, &["--requests", "4000"][..]),
        false => (proc::root().join("examples/kv/requests.csv"), &[][..]),
    };
    println!("\nserving {}\n", trace.file_name().unwrap_or_default().to_string_lossy());
    let mut serve = proc::program(&program);
    serve.arg(trace).args(more).args(own).env("FOREBAY_BACKEND", "host");
    proc::run(&mut serve)?;
    println!(
        "\nEach value that attention read through the block table was the one computed for it; \
         blocks\nlet hold several times the requests that fit where each reserves the longest."
    );
    Ok(())
}

/// `cargo xtask soak`: the soak program, in release form.
pub fn soak(mut args: Args) -> Outcome<()> {
    let seconds = args.seconds("--seconds", 3600)?;
    args.finish()?;
    let mut cargo = proc::cargo();
    cargo.args(["run", "--release", "--example", "soak", "--", "--seconds"]);
    proc::run(cargo.arg(seconds.to_string()))
}
