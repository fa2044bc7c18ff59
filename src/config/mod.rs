//! Settings: what the `FOREBAY_*` variables say, checked once and then left alone.
//!
//! Owns [`Config`] (one field per variable, same name without the prefix), its defaults
//! and the report of what could not be understood. The table of variables is in [`table`],
//! the grammar of values in [`parse`]. Promises that a wrong value never takes effect: the
//! default holds, the variable is named once, and under `FOREBAY_STRICT=1`
//! [`Config::from_env`] fails. Must not talk to a driver: percentages and dependent
//! defaults become bytes when the caller states the device's size. Cost: a pass over the
//! environment; meant for start-up and pool creation, never for an allocation.

pub mod parse;
pub mod table;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result, Status};
pub use parse::Size;
pub use table::{VARIABLES, Variable};

const MIB: u64 = 1 << 20;
/// Bytes left to other users of the device unless `FOREBAY_HEADROOM` says otherwise.
const HEADROOM_DEFAULT_BYTES: u64 = 512 * MIB;
/// Upper bound of the default budget of caches and quarantine, in bytes.
const CACHE_DEFAULT_MAX_BYTES: u64 = 64 * MIB;
/// Characters of a value that a report repeats; the rest of a long one helps nobody.
const SHOWN_CHARS: usize = 64;
/// Names longer than this get no suggestion: they are no slip of the finger.
const NAME_MAX_BYTES: usize = 64;

/// Which driver to use (`FOREBAY_BACKEND`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// CUDA, and an error where there is none; never host memory by surprise.
    #[default]
    Auto,
    /// The CUDA driver.
    Cuda,
    /// Host memory behind the same interface, for tests and machines without a GPU.
    Host,
}

/// What is printed about live blocks when a pool or the process ends (`FOREBAY_LEAKS`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Leaks {
    /// Nothing.
    #[default]
    Off,
    /// Count and bytes.
    Summary,
    /// Every block.
    Full,
}

/// Checks that cost time or memory (`FOREBAY_DEBUG`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DebugChecks {
    /// Fill freed memory with a pattern.
    pub poison: bool,
    /// Leave an inaccessible granule behind every extent.
    pub guard: bool,
    /// Check every stream handle with the driver.
    pub streams: bool,
}

/// When pages may move to another address (`FOREBAY_MOVE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Move {
    /// Whenever their fences have passed.
    #[default]
    Always,
    /// Only while the device runs nothing of ours.
    Idle,
    /// Never.
    Never,
}

/// What `forebay_free` does about work still queued (`FOREBAY_FREE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreeMode {
    /// The block waits in quarantine for a fence over all work that could touch it.
    #[default]
    Deferred,
    /// The call waits for the device, as `cudaFree` may.
    Sync,
    /// The block follows the default stream's order alone.
    Stream,
}

/// How one stream may take what another freed (`FOREBAY_REUSE`); names and meanings are
/// those of the `cudaMemPoolReuse*` attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reuse {
    /// Reuse along event dependencies that the program made itself.
    pub follow_event_dependencies: bool,
    /// Reuse what has already finished.
    pub opportunistic: bool,
    /// Make the taking stream wait for the freeing one.
    pub internal_dependencies: bool,
}

impl Reuse {
    /// No reuse between streams.
    pub const NONE: Reuse = Reuse {
        follow_event_dependencies: false,
        opportunistic: false,
        internal_dependencies: false,
    };
}

impl Default for Reuse {
    fn default() -> Reuse {
        Reuse { follow_event_dependencies: true, opportunistic: true, internal_dependencies: false }
    }
}

/// How much is logged. The numbers are those given to a log callback.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum LogLevel {
    /// Nothing.
    #[default]
    Off = 0,
    /// Failures.
    Error = 1,
    /// What is wrong but survivable.
    Warn = 2,
    /// Milestones.
    Info = 3,
    /// Decisions of the slow paths.
    Debug = 4,
    /// Everything.
    Trace = 5,
}

/// Level and place of the log (`FOREBAY_LOG`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogSetting {
    /// How much.
    pub level: LogLevel,
    /// File to append to; standard error when `None`.
    pub file: Option<PathBuf>,
}

/// All settings. One field per variable; [`table::VARIABLES`] says what each means.
///
/// Built by [`Config::from_env`] or [`Config::from_vars`]; not changed after that (a pool
/// with options of its own changes a copy before it starts). `None` means a default that
/// depends on the device; the methods work it out.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "each field is the variable of the same name, see VARIABLES")]
pub struct Config {
    pub backend: Backend,
    pub device: i32,
    pub limit: Option<Size>,
    pub soft_limit: Option<Size>,
    pub reserve: Size,
    pub headroom: Option<Size>,
    pub release_threshold: Option<Size>,
    pub decay: Duration,
    pub cache: Option<Size>,
    pub oom_wait_ms: u32,
    pub keeper: bool,
    pub keeper_budget_ms: u32,
    pub ahead: Size,
    pub leaks: Leaks,
    pub backtrace: bool,
    pub debug: DebugChecks,
    pub scrub: bool,
    pub strict: bool,
    pub log: LogSetting,
    pub r#move: Move,
    pub free: FreeMode,
    pub reuse: Reuse,
    pub cuda_library: Option<PathBuf>,
    pub host_event_ns: u32,
    pub host_context_events: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            backend: Backend::Auto,
            device: 0,
            limit: None,
            soft_limit: None,
            reserve: Size::Bytes(0),
            headroom: None,
            release_threshold: None,
            decay: Duration::ZERO,
            cache: None,
            oom_wait_ms: 1000,
            keeper: true,
            keeper_budget_ms: 100,
            ahead: Size::Bytes(0),
            leaks: Leaks::Off,
            backtrace: false,
            debug: DebugChecks::default(),
            scrub: false,
            strict: false,
            log: LogSetting::default(),
            r#move: Move::Always,
            free: FreeMode::Deferred,
            reuse: Reuse::default(),
            cuda_library: None,
            host_event_ns: 0,
            host_context_events: true,
        }
    }
}

/// One variable that could not be followed, and what would be accepted instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The variable's name as found.
    pub variable: String,
    /// Its value as found, escaped and shortened for display.
    pub value: String,
    /// The accepted form; for an unknown name, the name that was probably meant.
    pub accepted: String,
    /// Whether the name itself is unknown.
    pub unknown: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { variable, value, accepted, unknown } = self;
        if *unknown {
            write!(f, "{variable} is not a variable of Forebay and is ignored; {accepted}")
        } else {
            write!(f, "{variable}={value} is refused, the default holds; accepted: {accepted}")
        }
    }
}

impl Config {
    /// The settings in the process's environment.
    ///
    /// Each problem is reported the first time its variable is seen: one line on standard
    /// error and one `tracing` warning. Thread-safe.
    ///
    /// # Errors
    /// [`Status::Config`] naming every problem, when `FOREBAY_STRICT` is on.
    pub fn from_env() -> Result<Config> {
        let (config, problems) = Config::from_vars(std::env::vars_os());
        report(&problems);
        if config.strict && !problems.is_empty() {
            let list: Vec<String> = problems.iter().map(Problem::to_string).collect();
            let text = format!("FOREBAY_STRICT is on and settings are wrong: {}", list.join("; "));
            return Err(Error::new(Status::Config, text));
        }
        Ok(config)
    }

    /// The settings in `vars`, and what was wrong with them sorted by name. Looks at names
    /// that start with `FOREBAY_` and at nothing else; of a name given twice the last counts.
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> (Config, Vec<Problem>)
    where
        N: AsRef<OsStr>,
        V: AsRef<OsStr>,
    {
        let ours: BTreeMap<String, V> = vars
            .into_iter()
            .map(|(name, value)| (name.as_ref().to_string_lossy().into_owned(), value))
            .filter(|(name, _)| name.starts_with("FOREBAY_") && !table::is_foreign(name))
            .collect();
        let mut config = Config::default();
        let mut problems = Vec::new();
        for (name, value) in &ours {
            let value = value.as_ref();
            let Some(variable) = table::find(name) else {
                problems.push(unknown(name, value));
                continue;
            };
            // No value in the grammar needs other than UTF-8, so other bytes are malformed.
            if value.to_str().and_then(|text| variable.apply(&mut config, text)).is_none() {
                problems.push(problem(variable.name, show(value), variable.accepted.to_string()));
            }
        }
        config.check_relations(&mut problems);
        problems.sort_by(|a, b| a.variable.cmp(&b.variable));
        (config, problems)
    }

    /// Drops settings that contradict `limit`. Only like is compared with like here: bytes
    /// against a percentage can be judged only once the device is known.
    fn check_relations(&mut self, problems: &mut Vec<Problem>) {
        let Some(limit) = self.limit else { return };
        let quoted = |size: Size| format!("\"{size}\"");
        let accepted = format!("at most FOREBAY_LIMIT, which is {limit}");
        if let Some(soft) = self.soft_limit.filter(|soft| soft.surely_exceeds(limit)) {
            problems.push(problem("FOREBAY_SOFT_LIMIT", quoted(soft), accepted.clone()));
            self.soft_limit = None;
        }
        if self.reserve.surely_exceeds(limit) {
            problems.push(problem("FOREBAY_RESERVE", quoted(self.reserve), accepted));
            self.reserve = Size::Bytes(0);
        }
    }

    /// Bytes left to other users of a device of `total` bytes. `host` says whether it is the
    /// host backend's, which nobody else shares: nothing is left there unless set.
    pub fn headroom_bytes(&self, total: u64, host: bool) -> u64 {
        let default = if host { 0 } else { HEADROOM_DEFAULT_BYTES };
        self.headroom.map_or(default, |size| size.resolve(total)).min(total)
    }

    /// The hard limit in bytes on a device of `total` bytes: as set, else all but the
    /// headroom; never above `total`.
    pub fn limit_bytes(&self, total: u64, host: bool) -> u64 {
        match self.limit {
            Some(limit) => limit.resolve(total).min(total),
            None => total - self.headroom_bytes(total, host),
        }
    }

    /// The soft limit in bytes on a device of `total` bytes, if there is one.
    pub fn soft_limit_bytes(&self, total: u64) -> Option<u64> {
        self.soft_limit.map(|size| size.resolve(total))
    }

    /// Bytes to fill the reservoir with at start.
    pub fn reserve_bytes(&self, total: u64) -> u64 {
        self.reserve.resolve(total)
    }

    /// Idle bytes that decay and automatic trimming leave in place: as set, else everything
    /// (`u64::MAX`) while decay is off and nothing while it is on.
    pub fn release_threshold_bytes(&self, total: u64) -> u64 {
        let default = if self.decay.is_zero() { u64::MAX } else { 0 };
        self.release_threshold.map_or(default, |size| size.resolve(total))
    }

    /// Budget of caches and quarantine in bytes, for a pool whose hard limit is `limit`.
    pub fn cache_bytes(&self, total: u64, limit: u64) -> u64 {
        let default = CACHE_DEFAULT_MAX_BYTES.min(limit / 64);
        self.cache.map_or(default, |size| size.resolve(total))
    }
}

/// Problems reported so far in this process. Bounded by the environment's names.
static REPORTED: Mutex<Vec<Problem>> = Mutex::new(Vec::new());

/// Every problem that [`Config::from_env`] has reported in this process, for a log that
/// was opened afterwards.
pub fn reported() -> Vec<Problem> {
    REPORTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Says each problem once per variable and process.
fn report(problems: &[Problem]) {
    for problem in problems {
        {
            let mut seen = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.iter().any(|old| old.variable == problem.variable) {
                continue;
            }
            seen.push(problem.clone());
        }
        // The lock is gone by now: a subscriber may call back into this room. A closed
        // standard error must not stop the program, so the result does not matter.
        let _closed = writeln!(std::io::stderr(), "forebay: {problem}");
        tracing::warn!("{problem}");
    }
}

fn problem(variable: &str, value: String, accepted: String) -> Problem {
    Problem { variable: variable.to_string(), value, accepted, unknown: false }
}

fn unknown(name: &str, value: &OsStr) -> Problem {
    let accepted = match suggestion(name) {
        Some(near) => format!("did you mean {} ({})?", near.name, near.accepted),
        None => "docs/configuration.md lists the names".to_string(),
    };
    let variable = name.escape_debug().take(SHOWN_CHARS * 2).collect();
    Problem { variable, value: show(value), accepted, unknown: true }
}

/// A value on one line, quoted, at most [`SHOWN_CHARS`] characters of it.
fn show(value: &OsStr) -> String {
    let text = value.to_string_lossy();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{:?}...", &text[..cut]),
        None => format!("{text:?}"),
    }
}

/// The variable nearest to a misspelt name, when at most two edits away.
fn suggestion(name: &str) -> Option<&'static Variable> {
    if name.len() > NAME_MAX_BYTES {
        return None;
    }
    VARIABLES
        .iter()
        .map(|variable| (edits(name, variable.name), variable))
        .filter(|(distance, _)| *distance <= 2)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, variable)| variable)
}

/// Insertions, deletions and replacements of bytes that turn `a` into `b`.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance() {
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", ""), 3);
        assert_eq!(edits("limit", "limit"), 0);
        assert_eq!(edits("limt", "limit"), 1);
        assert_eq!(edits("limti", "limit"), 2);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn suggestions_are_near_or_absent() {
        let near = |name| suggestion(name).map(|variable| variable.name);
        assert_eq!(near("FOREBAY_LIMT"), Some("FOREBAY_LIMIT"));
        assert_eq!(near("FOREBAY_RESERV"), Some("FOREBAY_RESERVE"));
        assert_eq!(near("FOREBAY_SOFTLIMIT"), Some("FOREBAY_SOFT_LIMIT"));
        assert_eq!(near("FOREBAY_COLOUR"), None);
        assert_eq!(near(&format!("FOREBAY_{}", "X".repeat(100))), None);
    }

    #[test]
    fn values_are_shown_on_one_line_and_short() {
        assert_eq!(show(OsStr::new("a\nb\"")), r#""a\nb\"""#);
        let long = "é".repeat(100);
        assert_eq!(show(OsStr::new(&long)), format!("\"{}\"...", "é".repeat(64)));
    }
}
