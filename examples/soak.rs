//! Compressed continuous inference for as long as asked; fails when memory is not flat.
//!
//! `soak --seconds N [--seed S]`: prints a line a second (time, operations, live, mapped,
//! trapped and resident bytes) and a summary. Exits with 0 when the medians of mapped and
//! resident bytes grew by 2 % at most between the second and the last quarter, the accounts
//! summed all the time and nothing was left; with 1 when not; with 2 on wrong use.

use std::process::ExitCode;

#[path = "../tests/rust/common/soak.rs"]
mod soak;

fn options() -> Option<soak::Options> {
    let mut options = soak::Options { seconds: 60, seed: 1, verbose: true };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?.parse().ok()?;
        match word.as_str() {
            "--seconds" => options.seconds = value,
            "--seed" => options.seed = value,
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: soak [--seconds N] [--seed S]");
        return ExitCode::from(2);
    };
    println!("{} s, seed {}", options.seconds, options.seed);
    match soak::run(options) {
        Ok(summary) => {
            println!(
                "{} operations, {} requests; mapped {} -> {} B, resident {} -> {} B: flat",
                summary.operations,
                summary.requests,
                summary.mapped.0,
                summary.mapped.1,
                summary.resident.0,
                summary.resident.1
            );
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("soak failed: {why}");
            ExitCode::from(1)
        }
    }
}
