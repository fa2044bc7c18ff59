//! The command line.
//!
//! Owns names, help and the bounds of arguments; a value outside its bounds is refused with
//! the accepted form. Must not read the environment or touch a device. Cost: none.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use forebay::config::Backend;
use forebay::config::parse::Size;

/// The forebay command.
#[derive(Parser, Debug)]
#[command(name = "forebay", version, about = "Look into and try the Forebay memory pool")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Say which device a pool would use here, with which limits, and why
    Doctor(DoctorArgs),
    /// Run an unchanged CUDA program with the pool behind its device allocations
    Run(RunArgs),
    /// Play recorded allocations through the pool and report what happened
    Replay(ReplayArgs),
    /// Give offsets to buffers whose lifetimes are known, as low as possible or under a capacity
    Plan(PlanArgs),
    /// Play a real model's trace through the pool and beside two simpler allocators
    Demo(DemoArgs),
}

/// A backend, as named on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BackendName {
    /// Host memory behind the same interface
    Host,
    /// The CUDA driver
    Cuda,
}

impl From<BackendName> for Backend {
    fn from(name: BackendName) -> Backend {
        match name {
            BackendName::Host => Backend::Host,
            BackendName::Cuda => Backend::Cuda,
        }
    }
}

/// `forebay doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Which backend to look at [default: what FOREBAY_BACKEND says]
    #[arg(long, value_enum)]
    pub backend: Option<BackendName>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `forebay run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Hard limit of the pool, as FOREBAY_LIMIT
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub limit: Option<String>,
    /// Memory mapped at start, as FOREBAY_RESERVE
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub reserve: Option<String>,
    /// What cudaFree means, as FOREBAY_FREE
    #[arg(long, value_name = "MEANING", value_parser = ["deferred", "sync", "stream"])]
    pub free: Option<String>,
    /// Print at exit what was served and what was passed through
    #[arg(long)]
    pub stats: bool,
    /// Record every device allocation in FILE, which `forebay replay` reads
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The preload library [default: the one beside this command, or in the lib folder beside its]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Say what would be hooked, and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}

/// `forebay replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// Traces: alloc CSV or RMM's logging CSV, plain or gzipped
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Which backend to use [default: what FOREBAY_BACKEND says]
    #[arg(long, value_enum)]
    pub backend: Option<BackendName>,
    /// Size of the device [default: FOREBAY_LIMIT; else, on the host backend, twice the
    /// trace's peak and 1 GiB more; else the whole device]
    #[arg(long, value_name = "SIZE", value_parser = device_bytes)]
    pub device_bytes: Option<u64>,
    /// Threads; each plays the whole trace against one shared pool, on a device N times as big
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Also find the smallest device on which the trace finishes, by bisection
    #[arg(long)]
    pub smallest_device: bool,
    /// Write every block after its allocation (ns_per_event then covers the queueing of it)
    #[arg(long)]
    pub touch: bool,
    /// Print one JSON object a trace, each on a line
    #[arg(long)]
    pub json: bool,
    /// Show no progress (it is shown only on a terminal)
    #[arg(long)]
    pub no_progress: bool,
    /// Events between two readings of the pool's figures
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub stats_every: u32,
}

/// What the colours of a plan's picture tell.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    /// How large a buffer is
    Size,
    /// Which tag it has
    Tag,
}

/// `forebay plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Buffers: CSV with columns id,lower,upper,size (more: alignment, offset for a fixed one), or
    /// an alloc CSV with --step; plain or gzipped
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Of an alloc CSV, the step whose buffers are planned
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// The most bytes that the plan may take [default: as few as possible]
    #[arg(long, value_name = "SIZE", value_parser = device_bytes)]
    pub capacity: Option<u64>,
    /// Least alignment of every buffer, a power of two
    #[arg(long, value_name = "BYTES", default_value_t = 1, value_parser = power_of_two)]
    pub alignment: u64,
    /// Seconds that the search may take; the plan then depends on the machine's speed
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub time: Option<f64>,
    /// Effort that the search may take, about a microsecond each: the same plan everywhere
    #[arg(long, value_name = "N", default_value_t = 5_000_000, conflicts_with = "time")]
    pub effort: u64,
    /// Where random choices begin
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Searchers side by side, with random choices of their own
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub searchers: u32,
    /// Write a picture of the plan: time across, offset up
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// What the picture's colours tell: sizes, or tags (a table's column tag, an alloc CSV's op)
    #[arg(long, value_enum, requires = "svg", default_value_t = Colour::Size)]
    pub colour: Colour,
    /// Write the plan: a table if the name ends in .csv, else the form that forebay_plan_load reads
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Show no progress (it is shown only on a terminal)
    #[arg(long)]
    pub no_progress: bool,
}

/// `forebay demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Another trace than the built-in one
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,
    /// Which backend to use
    #[arg(long, value_enum, default_value_t = BackendName::Host)]
    pub backend: BackendName,
    /// Show no progress (it is shown only on a terminal)
    #[arg(long)]
    pub no_progress: bool,
}

/// A size as the `FOREBAY_*` variables take it; handed on as it was written.
fn size(text: &str) -> Result<String, String> {
    match Size::parse(text) {
        Some(Size::Bytes(0)) | None => Err("accepted: 4096, 512M, 1.5GiB or 80%".into()),
        Some(_) => Ok(text.to_owned()),
    }
}

/// A positive number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 && value <= 1e6 => Ok(value),
        _ => Err("accepted: a number of seconds above 0, up to 1000000".into()),
    }
}

/// An alignment.
fn power_of_two(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(value) if value.is_power_of_two() => Ok(value),
        _ => Err("accepted: 1, 2, 4, 8 and so on, in bytes".into()),
    }
}

/// A device's size: the grammar of `FOREBAY_*` sizes, shares of a device left out.
fn device_bytes(text: &str) -> Result<u64, String> {
    match Size::parse(text) {
        Some(Size::Bytes(0)) => Err("a device of 0 bytes holds nothing".to_string()),
        Some(Size::Bytes(bytes)) => Ok(bytes),
        Some(Size::Percent(_)) => {
            Err("a share of a device says nothing here; accepted: 512M, 1.5GiB, 4096".to_string())
        }
        None => Err("accepted: bytes (4096), or K M G T, KiB MiB GiB TiB (512M, 1.5GiB)".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn device_sizes_follow_the_grammar_of_the_variables() {
        assert_eq!(device_bytes("512M"), Ok(512 << 20));
        assert_eq!(device_bytes("20GiB"), Ok(20 << 30));
        assert_eq!(device_bytes("4096"), Ok(4096));
        for bad in ["0", "80%", "12 apples", "-1", ""] {
            assert!(device_bytes(bad).is_err(), "{bad}");
        }
    }
}
