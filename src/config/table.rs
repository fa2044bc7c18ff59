//! The table of variables: the one place that says what can be set and how.
//!
//! Owns [`VARIABLES`]. The parser, the messages and the table in `docs/configuration.md`
//! all come from it, so they cannot disagree (a test compares the document). Must not hold
//! defaults as values: those are [`Config::default`]'s, and a test reads each default's text
//! back. Cost: a linear search over some twenty names.

use super::parse::{self, SIZE_FORM, Size};
use super::{Backend, Config, FreeMode, Leaks, Move};
use std::path::{Path, PathBuf};

const SWITCH_FORM: &str = "1, true, on, yes or 0, false, off, no";
const DURATION_FORM: &str = "a duration such as 10s or 500ms, or plain milliseconds";
const POSITIVE_SIZE_FORM: &str = "a size above 0 such as 4096, 512M, 1.5GiB or 80%";

const BYTES_FORM: &str = "a size such as 4096, 512K or 1.5GiB";
const NAMES_FORM: &str = "names of programs, with commas between them";

/// One `FOREBAY_*` variable.
#[derive(Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it accepts, in words.
    pub accepted: &'static str,
    /// What holds when it is unset or refused, in words.
    pub default: &'static str,
    /// What it does, in one line.
    pub meaning: &'static str,
    /// Sets the field, or answers `None` and leaves it as it was.
    set: fn(&mut Config, &str) -> Option<()>,
}

impl Variable {
    /// Sets this variable's field of `config` from `value`; `None`, and nothing changed,
    /// when the value is malformed.
    pub fn apply(&self, config: &mut Config, value: &str) -> Option<()> {
        (self.set)(config, value)
    }
}

impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The variable of this exact name.
pub fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| variable.name == name)
}

/// Whether a `FOREBAY_` name belongs to the project's build, tests, benches, traces, simulated
/// driver or Python package, which share the prefix but set nothing here.
pub fn is_foreign(name: &str) -> bool {
    const NAMES: [&str; 4] =
        ["FOREBAY_TRACES", "FOREBAY_LIBRARY", "FOREBAY_CARGO_TARGET_DIR", "FOREBAY_SYSTEM_TOOLS"];
    NAMES.contains(&name)
        || name.starts_with("FOREBAY_SIM")
        || name.starts_with("FOREBAY_BENCH_")
        || name.starts_with("FOREBAY_TEST_")
}

/// The table in Markdown, as `docs/configuration.md` holds it.
pub fn markdown() -> String {
    let mut text = String::from("| variable | accepted | default | meaning |\n|---|---|---|---|\n");
    for Variable { name, accepted, default, meaning, .. } in VARIABLES {
        text += &format!("| `{name}` | {accepted} | {default} | {meaning} |\n");
    }
    text
}

/// A row of the table; the last two arguments name the field and its parser.
macro_rules! variable {
    ($name:literal, $accepted:expr, $default:literal, $meaning:literal,
     $field:ident = $parser:expr) => {
        Variable {
            name: $name,
            accepted: $accepted,
            default: $default,
            meaning: $meaning,
            set: |config, text| {
                config.$field = $parser(text)?;
                Some(())
            },
        }
    };
}

/// A row of a variable that the preload library reads by itself: only its form is checked here.
macro_rules! preload {
    ($name:literal, $accepted:expr, $default:literal, $meaning:literal, $parser:expr) => {
        Variable {
            name: $name,
            accepted: $accepted,
            default: $default,
            meaning: $meaning,
            set: |_, text| $parser(text).map(|_| ()),
        }
    };
}

/// A size that does not depend on the device.
fn bytes(text: &str) -> Option<u64> {
    match Size::parse(text)? {
        Size::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

fn names(text: &str) -> Option<()> {
    text.split(',').all(|name| !name.trim().is_empty() && !name.contains('/')).then_some(())
}

fn file(text: &str) -> Option<()> {
    (!text.trim().is_empty() && !text.contains('\0')).then_some(())
}

fn ipc(text: &str) -> Option<()> {
    parse::word(text, &[("emulate", ()), ("isolate", ()), ("driver", ())])
}

fn deepbind(text: &str) -> Option<()> {
    parse::word(text, &[("keep", ()), ("serve", ())])
}

fn some_size(text: &str) -> Option<Option<Size>> {
    Size::parse(text).map(Some)
}

fn some_positive_size(text: &str) -> Option<Option<Size>> {
    parse::positive_size(text).map(Some)
}

fn device(text: &str) -> Option<i32> {
    i32::try_from(parse::integer(text)?).ok()
}

fn nanoseconds(text: &str) -> Option<u32> {
    let ns = u32::try_from(parse::integer(text)?).ok()?;
    (ns <= 1_000_000_000).then_some(ns)
}

fn backend(text: &str) -> Option<Backend> {
    let words = [("auto", Backend::Auto), ("cuda", Backend::Cuda), ("host", Backend::Host)];
    parse::word(text, &words)
}

/// A path that means the same wherever the program runs.
fn absolute_path(text: &str) -> Option<Option<PathBuf>> {
    let path = Path::new(text.trim());
    (path.is_absolute() && !text.contains('\0')).then(|| Some(path.to_path_buf()))
}

fn leaks(text: &str) -> Option<Leaks> {
    let words = [("off", Leaks::Off), ("summary", Leaks::Summary), ("full", Leaks::Full)];
    parse::word(text, &words)
}

fn moving(text: &str) -> Option<Move> {
    parse::word(text, &[("1", Move::Always), ("idle", Move::Idle), ("0", Move::Never)])
}

fn free(text: &str) -> Option<FreeMode> {
    let words =
        [("deferred", FreeMode::Deferred), ("sync", FreeMode::Sync), ("stream", FreeMode::Stream)];
    parse::word(text, &words)
}

/// Every variable that sets something, in the order the documentation shows.
pub const VARIABLES: &[Variable] = &[
    variable!(
        "FOREBAY_BACKEND",
        "auto, cuda or host",
        "auto",
        "Which driver. auto is CUDA or an error; host memory is used only when asked for.",
        backend = backend
    ),
    variable!(
        "FOREBAY_DEVICE",
        "a device number from 0",
        "0",
        "The device of the default pool.",
        device = device
    ),
    variable!(
        "FOREBAY_LIMIT",
        POSITIVE_SIZE_FORM,
        "the whole device less the headroom",
        "Hard limit of a pool; on the host backend also the device's size.",
        limit = some_positive_size
    ),
    variable!(
        "FOREBAY_SOFT_LIMIT",
        POSITIVE_SIZE_FORM,
        "none",
        "Mapped bytes above which idle memory goes back to the device early.",
        soft_limit = some_positive_size
    ),
    variable!(
        "FOREBAY_RESERVE",
        SIZE_FORM,
        "0",
        "Memory taken from the device when a pool is created.",
        reserve = Size::parse
    ),
    variable!(
        "FOREBAY_HEADROOM",
        SIZE_FORM,
        "512MiB, on the host backend 0",
        "Memory left to other users of the device when no limit is set.",
        headroom = some_size
    ),
    variable!(
        "FOREBAY_RELEASE_THRESHOLD",
        SIZE_FORM,
        "no bound while decay is 0, else 0",
        "Idle bytes that trimming and decay leave in the pool.",
        release_threshold = some_size
    ),
    variable!(
        "FOREBAY_DECAY",
        DURATION_FORM,
        "0",
        "Idle pages unused for so long go back to the device; 0 keeps them.",
        decay = parse::duration
    ),
    variable!(
        "FOREBAY_CACHE",
        SIZE_FORM,
        "the smaller of 64MiB and limit/64",
        "Budget of a pool's caches and quarantine together.",
        cache = some_size
    ),
    variable!(
        "FOREBAY_OOM_WAIT_MS",
        DURATION_FORM,
        "1000",
        "How long an allocation may wait for pending frees before it fails.",
        oom_wait_ms = |text| parse::millis(text, u32::MAX)
    ),
    variable!(
        "FOREBAY_KEEPER",
        SWITCH_FORM,
        "1",
        "Whether a background thread settles fences, recovers pages and trims.",
        keeper = parse::switch
    ),
    variable!(
        "FOREBAY_KEEPER_BUDGET_MS",
        "milliseconds from 0 to 1000",
        "100",
        "Time that the keeper may work in each second. Where work waits for it, it rests at most \
         a second after a look that took longer.",
        keeper_budget_ms = |text| parse::millis(text, 1000)
    ),
    variable!(
        "FOREBAY_AHEAD",
        SIZE_FORM,
        "0",
        "Most idle memory that the keeper maps ahead of a growing pool's demand; 0: none.",
        ahead = Size::parse
    ),
    variable!(
        "FOREBAY_LEAKS",
        "off, summary or full",
        "off",
        "What is printed about live blocks at pool destruction and at exit.",
        leaks = leaks
    ),
    variable!(
        "FOREBAY_BACKTRACE",
        SWITCH_FORM,
        "0",
        "Whether allocations keep their call site for leak reports.",
        backtrace = parse::switch
    ),
    variable!(
        "FOREBAY_DEBUG",
        "a list of poison, guard, streams, or none",
        "none",
        "Poison freed memory, guard granules behind extents, check each stream handle and capture.",
        debug = parse::debug
    ),
    variable!(
        "FOREBAY_SCRUB",
        SWITCH_FORM,
        "0",
        "Whether freed contents are cleared before the next owner sees the memory.",
        scrub = parse::switch
    ),
    variable!(
        "FOREBAY_STRICT",
        SWITCH_FORM,
        "0",
        "Whether a wrong variable makes initialisation fail.",
        strict = parse::switch
    ),
    variable!(
        "FOREBAY_LOG",
        "off, error, warn, info, debug or trace; then, if wanted, a comma and a file",
        "off",
        "Log level and place; without a file, standard error.",
        log = parse::log
    ),
    variable!(
        "FOREBAY_MOVE",
        "1, idle or 0",
        "1",
        "Whether idle pages may move: always, only while the device is idle, never.",
        r#move = moving
    ),
    variable!(
        "FOREBAY_FREE",
        "deferred, sync or stream",
        "deferred",
        "forebay_free: wait in quarantine, wait for the device, or follow the default stream.",
        free = free
    ),
    variable!(
        "FOREBAY_REUSE",
        "a list of follow_event_dependencies, opportunistic, internal_dependencies, or none",
        "follow_event_dependencies,opportunistic",
        "How a stream may take what another freed, as CUDA's cudaMemPoolReuse* attributes.",
        reuse = parse::reuse
    ),
    variable!(
        "FOREBAY_CUDA_LIBRARY",
        "an absolute path",
        "the libcuda.so.1 that the system's loader finds",
        "The CUDA driver's library, where the loader finds none or the wrong one.",
        cuda_library = absolute_path
    ),
    preload!(
        "FOREBAY_ENABLE",
        SWITCH_FORM,
        "1",
        "Preload library: whether a program's allocations come from the pool at all.",
        parse::switch
    ),
    preload!(
        "FOREBAY_PRELOAD_MIN",
        BYTES_FORM,
        "0",
        "Preload library: smaller allocations are the driver's.",
        bytes
    ),
    preload!(
        "FOREBAY_PRELOAD_ONLY",
        NAMES_FORM,
        "every program",
        "Preload library: the only programs, by file name, that it serves.",
        names
    ),
    preload!(
        "FOREBAY_PRELOAD_NOT",
        NAMES_FORM,
        "none",
        "Preload library: programs, by file name, that it leaves alone.",
        names
    ),
    preload!(
        "FOREBAY_IPC",
        "emulate, isolate or driver",
        "emulate",
        "Preload library: what cudaIpcGetMemHandle gives. emulate: handles that other preloaded \
         processes open. isolate: the same, and each allocation has whole pages of 2 MiB of its \
         own. driver: CUDA's handles; all allocations are CUDA's.",
        ipc
    ),
    preload!(
        "FOREBAY_DEEPBIND",
        "keep or serve",
        "keep",
        "Preload library: what becomes of RTLD_DEEPBIND in a program's dlopen. keep: it stays, and \
         a plugin so loaded reaches CUDA unseen. serve: it is taken off, so that the plugin is \
         served; names that it shares with the program are then the program's.",
        deepbind
    ),
    preload!(
        "FOREBAY_STATS",
        SWITCH_FORM,
        "0",
        "Preload library: print at exit how many calls it served and passed on, by name.",
        parse::switch
    ),
    preload!(
        "FOREBAY_PRELOAD_TRACE",
        "a file",
        "none",
        "Preload library: write every allocation and free to it, for forebay replay.",
        file
    ),
    variable!(
        "FOREBAY_HOST_EVENT_NS",
        "nanoseconds from 0 to 1000000000",
        "0",
        "Host backend: what recording an event costs.",
        host_event_ns = nanoseconds
    ),
    variable!(
        "FOREBAY_HOST_CONTEXT_EVENTS",
        SWITCH_FORM,
        "1",
        "Host backend: whether one event covers all streams; else frees wait for served streams.",
        host_context_events = parse::switch
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_prefixed() {
        for (index, variable) in VARIABLES.iter().enumerate() {
            assert!(variable.name.starts_with("FOREBAY_"), "{variable:?}");
            assert!(!is_foreign(variable.name), "{variable:?}");
            let first = VARIABLES.iter().position(|other| other.name == variable.name);
            assert_eq!(first, Some(index), "{variable:?}");
        }
        assert_eq!(VARIABLES.len(), 33);
    }

    #[test]
    fn written_defaults_are_the_defaults() {
        let mut in_words = Vec::new();
        for variable in VARIABLES {
            let mut config = Config::default();
            match variable.apply(&mut config, variable.default) {
                Some(()) => assert_eq!(config, Config::default(), "{variable:?}"),
                None => in_words.push(variable.name),
            }
        }
        let expected = [
            "FOREBAY_LIMIT",
            "FOREBAY_SOFT_LIMIT",
            "FOREBAY_HEADROOM",
            "FOREBAY_RELEASE_THRESHOLD",
            "FOREBAY_CACHE",
            "FOREBAY_CUDA_LIBRARY",
        ];
        assert_eq!(in_words, expected);
    }

    #[test]
    fn a_malformed_value_changes_nothing() {
        for variable in VARIABLES {
            // Names of programs may be almost anything.
            let names = ["_ONLY", "_NOT", "_TRACE"].iter().any(|end| variable.name.ends_with(end));
            let values = ["", " ", "12 apples", "none,poison", "-1", "\u{fffd}"];
            for value in &values[..if names { 2 } else { values.len() }] {
                let mut config = Config::default();
                assert_eq!(variable.apply(&mut config, value), None, "{variable:?}={value:?}");
                assert_eq!(config, Config::default(), "{variable:?}={value:?}");
            }
        }
    }

    #[test]
    fn cells_fit_a_markdown_table() {
        for Variable { name, accepted, default, meaning, .. } in VARIABLES {
            for cell in [name, accepted, default, meaning] {
                assert!(!cell.is_empty() && !cell.contains(['|', '\n']), "{name}: {cell:?}");
            }
        }
    }
}
