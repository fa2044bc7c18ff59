//! The log: `tracing` events as lines for a file, standard error and a C callback.
//!
//! Owns the process's log setting, the callback, and a small `tracing::Subscriber` that is
//! installed only once a log is asked for, and only where the program has none. Promises
//! one line per event, `level target: message key=value`, at most [`LINE_BYTES`] with its
//! end; no panic; no allocation of its own per event; no event of a thread while that
//! thread is in here already. Must not sit on a hot path: only slow ones emit events. Cost
//! of an event that is not wanted: the one relaxed load of `tracing`'s own level. Of one
//! that is: formatting and a write.
//!
//! There is no `tracing-subscriber` here: a C host needs one format and two places, and the
//! library's list of dependencies stays as short as was asked. Spans are not shown, since
//! each line must stand for itself.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::config::{self, Config, LogLevel};
use crate::error::{Error, Result, Status};

/// Longest line in bytes, with its newline or NUL. A longer one ends in `...`.
pub const LINE_BYTES: usize = 1024;
/// What a callback receives while `FOREBAY_LOG` is off.
const CALLBACK_LEVEL: LogLevel = LogLevel::Info;
const ELLIPSIS: &[u8] = b"...";

/// A C function that receives log lines: its context, the level (1 error, 2 warn, 3 info,
/// 4 debug, 5 trace) and the line without a newline, valid during the call only.
pub type Callback = unsafe extern "C" fn(*mut c_void, i32, *const c_char);

/// A callback with its context.
struct Registered {
    call: Callback,
    context: *mut c_void,
}

// SAFETY: the context is only handed back to the callback; whoever called `set_callback`
// promised that both may be used from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above; the fields are never written after construction.
unsafe impl Sync for Registered {}

/// Read-held during a call, so that replacing a callback waits for the calls under way.
static CALLBACK: RwLock<Option<Registered>> = RwLock::new(None);
static HAS_CALLBACK: AtomicBool = AtomicBool::new(false);
/// The level of `FOREBAY_LOG`, for file or standard error.
static LOG_LEVEL: AtomicU8 = AtomicU8::new(0);
/// The most that anyone wants. Nobody orders other memory by it, so relaxed will do.
static MAX_LEVEL: AtomicU8 = AtomicU8::new(0);
/// The file, once one is open.
static FILE: OnceLock<File> = OnceLock::new();
/// Serialises changes of the setting. Never held while a callback or `tracing` runs.
static CHANGE: Mutex<()> = Mutex::new(());
/// Whether our subscriber is the process's; empty until that was tried.
static INSTALLED: OnceLock<bool> = OnceLock::new();

thread_local! {
    /// Whether this thread is emitting a line. Has no destructor, so it outlives all others.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Starts the log that `config` asks for, if it asks or if a callback is registered.
/// Answers whether Forebay's own subscriber receives this process's events: not when
/// nobody wants them, nor when the program has set a global subscriber, which then gets
/// them itself.
///
/// The first setting that is not off holds for the life of the process. A file that cannot
/// be opened is named on standard error, which then takes the log. Thread-safe.
pub fn init(config: &Config) -> bool {
    let wanted = config.log.level;
    if wanted != LogLevel::Off {
        let guard = change();
        if LOG_LEVEL.load(Ordering::Relaxed) == LogLevel::Off as u8 {
            if let Some(path) = &config.log.file {
                open(path);
            }
            LOG_LEVEL.store(wanted as u8, Ordering::Relaxed);
        }
        drop(guard);
    }
    if wanted == LogLevel::Off && !HAS_CALLBACK.load(Ordering::Relaxed) {
        return INSTALLED.get().copied().unwrap_or(false);
    }
    refresh();
    install()
}

/// Registers the callback that receives every line besides the file, or removes it with
/// `None`. It gets the level of `FOREBAY_LOG`, or info and above while that is off; on
/// several threads at once; and no line that is emitted while the callback itself is being
/// changed. Once this returns, the previous callback is not running and not called again.
///
/// # Errors
/// [`Status::Busy`] when called from inside a callback; nothing is changed then.
///
/// # Safety
/// Until it is replaced, the function must be callable from any thread with this context,
/// and must not unwind.
pub unsafe fn set_callback(callback: Option<(Callback, *mut c_void)>) -> Result<()> {
    if INSIDE.get() {
        let text = "the log callback cannot be changed from inside itself";
        return Err(Error::new(Status::Busy, text));
    }
    let guard = change();
    let registered = callback.map(|(call, context)| Registered { call, context });
    let present = registered.is_some();
    *CALLBACK.write().unwrap_or_else(PoisonError::into_inner) = registered;
    HAS_CALLBACK.store(present, Ordering::Relaxed);
    drop(guard);
    refresh();
    if present {
        install();
    }
    Ok(())
}

fn change() -> MutexGuard<'static, ()> {
    CHANGE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(path: &Path) {
    match OpenOptions::new().append(true).create(true).open(path) {
        Ok(file) => {
            // Taken already only if a second opener broke the `CHANGE` lock's promise; the
            // first file then stays.
            let _first = FILE.set(file);
        }
        Err(error) => {
            let path = path.display();
            let text = format!("FOREBAY_LOG: {path} cannot be opened ({error}); logging here");
            let _closed = writeln!(std::io::stderr(), "forebay: {text}");
        }
    }
}

/// Works out the highest level wanted, and tells `tracing` when it changed.
fn refresh() {
    let guard = change();
    let log = LOG_LEVEL.load(Ordering::Relaxed);
    let callback = if HAS_CALLBACK.load(Ordering::Relaxed) { CALLBACK_LEVEL as u8 } else { 0 };
    let max = if log == 0 { callback } else { log };
    let before = MAX_LEVEL.swap(max, Ordering::Relaxed);
    drop(guard);
    if before != max && INSTALLED.get() == Some(&true) {
        // `tracing` keeps the answer of `max_level_hint` in an atomic of its own.
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Makes our subscriber the global one unless there is one; tried once.
fn install() -> bool {
    let mut fresh = false;
    let installed = *INSTALLED.get_or_init(|| {
        fresh = tracing::subscriber::set_global_default(Lines).is_ok();
        fresh
    });
    if fresh {
        // The level may have changed between the hint's reading and now.
        tracing::callsite::rebuild_interest_cache();
        // Settings are read before the log can start. What was wrong with them has been on
        // standard error; a file or a callback gets it here.
        for problem in config::reported() {
            emit(Level::WARN, "forebay::config", false, |line| {
                // A full line is cut, which is no failure.
                let _cut = write!(line, "{problem}");
            });
        }
    }
    installed
}

/// Formats one line and sends it to everyone who wants its level. `stderr` says whether
/// standard error counts.
fn emit(level: Level, target: &str, stderr: bool, fill: impl FnOnce(&mut Line)) {
    if INSIDE.replace(true) {
        return;
    }
    let number = number(level);
    let mut line = Line::new();
    let _cut = write!(line, "{} {target}: ", word(level));
    fill(&mut line);
    if number <= LOG_LEVEL.load(Ordering::Relaxed) {
        // Whoever reads a log that cannot be written would not read a complaint either.
        let _lost = match FILE.get() {
            Some(mut file) => file.write_all(line.end(b'\n')),
            None if stderr => std::io::stderr().write_all(line.end(b'\n')),
            None => Ok(()),
        };
    }
    // Fails only while the callback is being changed; waiting then could hang a fork's child.
    if HAS_CALLBACK.load(Ordering::Relaxed)
        && number <= MAX_LEVEL.load(Ordering::Relaxed)
        && let Ok(callback) = CALLBACK.try_read()
        && let Some(Registered { call, context }) = &*callback
    {
        let text = line.end(0).as_ptr().cast::<c_char>();
        // SAFETY: `text` is the buffer of `line`, which lives on, and `end(0)` closed it with
        // the only NUL in it; function and context are what `set_callback`'s caller promised,
        // and cannot be replaced while this read lock is held.
        unsafe { call(*context, i32::from(number), text) };
    }
    INSIDE.set(false);
}

fn number(level: Level) -> u8 {
    let level = match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        Level::DEBUG => LogLevel::Debug,
        Level::TRACE => LogLevel::Trace,
    };
    level as u8
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The subscriber. Its state is the statics above: a process has one log.
struct Lines;

/// Whether an event could be Forebay's. A Rust program's own events are not for this log.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target().starts_with("forebay")
}

impl Subscriber for Lines {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // "Sometimes", since the level may change.
        if is_ours(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        number(*metadata.level()) <= MAX_LEVEL.load(Ordering::Relaxed) && is_ours(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match MAX_LEVEL.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Never asked for, since `enabled` refuses spans; any number but 0 is an identity.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        emit(*metadata.level(), metadata.target(), true, |line| {
            event.record(&mut Message(line));
            event.record(&mut Fields(line));
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Writes the message of an event.
struct Message<'a>(&'a mut Line);

impl Visit for Message<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _cut = write!(self.0, "{value:?}");
        }
    }
}

/// Writes ` key=value` for every other field; text is quoted.
struct Fields<'a>(&'a mut Line);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != "message" {
            let _cut = write!(self.0, " {}={value:?}", field.name());
        }
    }
}

/// One line in the making, on the stack: the log must work when memory is short.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
    cut: bool,
}

impl Line {
    fn new() -> Line {
        Line { bytes: [0; LINE_BYTES], length: 0, cut: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// The line with `end` behind it. May be called again with another end.
    fn end(&mut self, end: u8) -> &[u8] {
        self.bytes[self.length] = end;
        &self.bytes[..=self.length]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if self.cut {
                return Err(fmt::Error);
            }
            // One event is one line, and a C string has no NUL inside.
            let letter = if letter.is_control() { ' ' } else { letter };
            let room = LINE_BYTES - 1 - ELLIPSIS.len() - self.length;
            if letter.len_utf8() > room {
                self.push(ELLIPSIS);
                self.cut = true;
            } else {
                self.push(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line() {
        let mut line = Line::new();
        assert!(write!(line, "a\nb\0c\u{7f}é").is_ok());
        assert_eq!(line.end(b'\n'), "a b c é\n".as_bytes());
        assert_eq!(line.end(0), "a b c é\0".as_bytes());
    }

    #[test]
    fn a_long_line_is_cut_between_letters() {
        for lead in 0..3 {
            let mut line = Line::new();
            let text = "x".repeat(lead) + &"€".repeat(1000);
            assert!(write!(line, "{text}").is_err());
            assert!(write!(line, "more").is_err());
            let text = std::str::from_utf8(line.end(b'\n')).expect("whole letters");
            assert!(text.ends_with("€...\n"), "{text}");
            assert!(text.len() <= LINE_BYTES && text.len() > LINE_BYTES - 4);
        }
    }

    #[test]
    fn levels_have_their_numbers() {
        let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(all.map(number), [1, 2, 3, 4, 5]);
        assert_eq!(all.map(word), ["error", "warn", "info", "debug", "trace"]);
    }
}
