//! The `forebay` command: `doctor`, `run`, `replay`, `plan`, `demo`.
//!
//! Owns the way from arguments to an exit code: 0 when all went well, 1 when something failed
//! (a sentence on standard error says what), 2 for wrong arguments; `run`
//! answers as its program does, or 125 to 127 as `env` would. Cost: none.

use std::process::ExitCode;

use clap::Parser;
use forebay_cli::args::{Cli, Command};
use forebay_cli::commands::{self, Failure};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Replay(args) => commands::replay::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Demo(args) => commands::demo::run(args),
    };
    match done {
        Ok(true) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Code(code, text)) => {
            commands::complain(text);
            ExitCode::from(code)
        }
        Err(Failure::Message(text)) => {
            commands::complain(text);
            ExitCode::FAILURE
        }
    }
}
