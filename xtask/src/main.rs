//! The project's own commands: `cargo xtask COMMAND`.
//!
//! Owns what a contributor or a build machine types: the header, the checks of style and
//! floors, the test groups, the benches, the demo. Promises plain text on standard output and
//! a nonzero exit status whenever something failed. Holds no logic of the library, and
//! needs no network save the first time the C tests fetch CMake and Ninja.

mod args;
mod bench;
mod gpu;
mod header;
mod proc;
mod programs;
mod report;
mod sanitize;
mod source;
mod test;
mod tidy;
mod tools;

use args::Args;
use std::process::ExitCode;

/// What a command answers: a value, or the sentence that says what went wrong.
pub type Outcome<T> = Result<T, String>;

struct Command {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(Args) -> Outcome<()>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "test",
        usage: test::USAGE,
        about: "runs the tests, all or one group of them",
        run: test::run,
    },
    Command {
        name: "tidy",
        usage: "tidy",
        about: "checks floors, sizes, unsafe code, dependencies",
        run: tidy::run,
    },
    Command {
        name: "header",
        usage: "header [--check]",
        about: "writes include/forebay.h, or says whether it is up to date",
        run: header::run,
    },
    Command {
        name: "bench",
        usage: bench::USAGE,
        about: "measures, prints a table, writes it as JSON if asked",
        run: bench::run,
    },
    Command {
        name: "demo",
        usage: "demo [WORKLOAD...] | demo kv [--requests N] [--blocks N] [--batch N]",
        about: "replays a real model's trace on host memory and compares; kv: serves requests",
        run: programs::demo,
    },
    Command {
        name: "soak",
        usage: "soak [--seconds N]",
        about: "runs a continuous inference load (default 3600 s), checks that memory stays flat",
        run: programs::soak,
    },
    Command {
        name: "sanitize",
        usage: sanitize::USAGE,
        about: "Miri, ThreadSanitizer and fuzz targets, where a nightly toolchain is there",
        run: sanitize::run,
    },
    Command {
        name: "gpu",
        usage: gpu::USAGE,
        about: "checks the CUDA side on a GPU, packs that for another machine, or simulates it",
        run: gpu::run,
    },
    Command {
        name: "tools",
        usage: "tools",
        about: "fetches CMake and Ninja into target/tools, if they are not there yet",
        run: tools::run,
    },
];

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let asked_for_help = words.is_empty() || words.iter().any(|w| w == "--help" || w == "-h");
    let name = if words.is_empty() { String::new() } else { words.remove(0) };
    let command = COMMANDS.iter().find(|c| c.name == name);
    if asked_for_help || name == "help" {
        print_help(command);
        return ExitCode::SUCCESS;
    }
    let Some(command) = command else {
        eprintln!("cargo xtask: no command {name:?}; see cargo xtask --help");
        return ExitCode::from(2);
    };
    match (command.run)(Args::new(words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cargo xtask {name}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn print_help(one: Option<&Command>) {
    if let Some(command) = one {
        println!("cargo xtask {}\n\n{}", command.usage, command.about);
        return;
    }
    println!("cargo xtask COMMAND\n");
    for command in COMMANDS {
        println!("  {}\n      {}", command.usage, command.about);
    }
}
