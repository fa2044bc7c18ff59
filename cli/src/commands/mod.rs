//! The commands: each takes its arguments, prints its result on standard output and answers
//! whether all went well.
//!
//! Owns no state. Must not print results on standard error, nor anything else on standard
//! output. Cost: the command's own.

pub mod demo;
pub mod doctor;
mod doctor_cuda;
pub mod plan;
pub mod replay;
pub mod run;
mod table;

use std::io::{self, Write};

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// A sentence for standard error.
    Message(String),
    /// A sentence for standard error, and the exit code that goes with it.
    Code(u8, String),
    /// The reader of standard output is gone: nothing more to say.
    Closed,
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Message(text)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Message(format!("cannot write the result: {error}")),
        }
    }
}

/// Prints a line on standard output.
fn say(line: impl std::fmt::Display) -> Result<(), Failure> {
    Ok(writeln!(io::stdout().lock(), "{line}")?)
}

/// Says on standard error what went wrong.
pub fn complain(text: impl std::fmt::Display) {
    // With standard error gone there is nowhere left to say it.
    let _ = writeln!(io::stderr().lock(), "forebay: {text}");
}
