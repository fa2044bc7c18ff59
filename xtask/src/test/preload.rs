//! Group `preload`: the preload library under unchanged programs, on the simulated driver.
//!
//! Owns the order: stage the driver and the runtime, then run the tests, which compile and run C
//! programs.

use super::runtime::stage_runtime;
use super::{Options, cargo};
use crate::proc;
use crate::report::Tally;

/// Runs the group.
pub fn run(options: Options) -> Tally {
    let mut tally = Tally::default();
    let folder = match stage_runtime() {
        Ok(staged) => staged.folder,
        Err(why) => {
            tally.check("preload::stage", Err(why));
            return tally;
        }
    };
    let mut command = proc::cargo();
    command.args(["test", "--no-fail-fast", "--package", "forebay-preload", "--test", "preload"]);
    command.env("FOREBAY_SIMULATED_DRIVER", folder.join("libcuda.so.1"));
    command.env("FOREBAY_SIMULATED_RUNTIME", &folder);
    command.args(["--", "--nocapture"]);
    if options.full {
        command.arg("--include-ignored");
    }
    cargo::run_counted(&mut command, &mut tally);
    tally
}
