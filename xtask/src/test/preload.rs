//! Group `preload`: the preload library under unchanged programs, on the simulated driver and
//! runtimes.
//!
//! Owns the order: stage the driver and the runtime, run the tests, which compile and run C
//! programs, then the programs of [`super::reach`] in every form.

use super::runtime::stage_runtime;
use super::{Options, cargo, matrix};
use crate::proc;
use crate::report::Tally;

/// Runs the group.
pub fn run(options: Options) -> Tally {
    let mut tally = Tally::default();
    let staged = match stage_runtime() {
        Ok(staged) => staged,
        Err(why) => {
            tally.check("preload::stage", Err(why));
            return tally;
        }
    };
    let mut command = proc::cargo();
    command.args(["test", "--no-fail-fast", "--package", "forebay-preload", "--test", "*"]);
    command.env("FOREBAY_SIMULATED_DRIVER", staged.folder.join("libcuda.so.1"));
    command.env("FOREBAY_SIMULATED_RUNTIME", &staged.folder);
    command.args(["--", "--nocapture"]);
    if options.full {
        command.arg("--include-ignored");
    }
    cargo::run_counted(&mut command, &mut tally);
    matrix::run(&staged, &mut tally);
    tally
}
