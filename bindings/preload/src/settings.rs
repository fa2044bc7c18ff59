//! The preload library's own `FOREBAY_*` variables.
//!
//! Owns their reading, once, at the first CUDA call. The pool checks the same variables when it
//! starts and says which it refuses; here a refused value is the default. Must not speak.
//! Cost: a load, once read.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;

/// What the environment says.
pub struct Settings {
    /// Whether the pool serves this program at all.
    pub enabled: bool,
    /// Bytes below which an allocation is the driver's.
    pub min_bytes: usize,
    /// Whether counts are printed at exit.
    pub stats: bool,
    /// The file that allocations and frees are written to.
    pub trace: Option<PathBuf>,
    /// What legacy IPC handles of the pool's memory are.
    pub ipc: Ipc,
    /// Whether a free waits for the device (`FOREBAY_FREE=sync`).
    pub free_waits: bool,
}

/// `FOREBAY_IPC`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ipc {
    /// This library's.
    Emulate,
    /// The same, of blocks that share no page.
    Isolate,
    /// The driver's: all allocations are.
    Driver,
}

/// The settings, read at the first call.
pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(read)
}

fn raw(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: `getenv` answers NULL or NUL-terminated text, copied at once.
    unsafe {
        let text = libc::getenv(name.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text).to_bytes().to_vec())
    }
}

fn variable(name: &CStr) -> Option<String> {
    raw(name).map(|text| String::from_utf8_lossy(&text).trim().to_ascii_lowercase())
}

/// Whether plugins that are loaded with `RTLD_DEEPBIND` are to be served (`FOREBAY_DEEPBIND`) in a
/// program that is.
pub fn serves_deepbind() -> bool {
    variable(c"FOREBAY_DEEPBIND").as_deref() == Some("serve") && get().enabled
}

fn read() -> Settings {
    let switch = |name, default| match variable(name).as_deref() {
        Some("1" | "true" | "on" | "yes") => true,
        Some("0" | "false" | "off" | "no") => false,
        _ => default,
    };
    let names = program_names();
    let lists = |name: &CStr| {
        variable(name).map(|list| list.split(',').any(|one| names.iter().any(|n| n == one.trim())))
    };
    let wanted = lists(c"FOREBAY_PRELOAD_ONLY").unwrap_or(true);
    let refused = lists(c"FOREBAY_PRELOAD_NOT").unwrap_or(false);
    let word = |name, value| variable(name).as_deref() == Some(value);
    // Host memory is no device memory: a CUDA program gets none by surprise.
    let host = word(c"FOREBAY_BACKEND", "host");
    let ipc = match variable(c"FOREBAY_IPC").as_deref() {
        Some("isolate") => Ipc::Isolate,
        Some("driver") => Ipc::Driver,
        _ => Ipc::Emulate,
    };
    let driver = ipc == Ipc::Driver;
    Settings {
        enabled: switch(c"FOREBAY_ENABLE", true) && wanted && !refused && !host && !driver,
        min_bytes: variable(c"FOREBAY_PRELOAD_MIN").and_then(|t| bytes(&t)).unwrap_or(0),
        stats: switch(c"FOREBAY_STATS", false),
        trace: raw(c"FOREBAY_PRELOAD_TRACE")
            .filter(|path| !path.is_empty())
            .map(|path| OsString::from_vec(path).into()),
        ipc,
        free_waits: word(c"FOREBAY_FREE", "sync"),
    }
}

/// The program's names in lower case: its file's and that of its first argument.
fn program_names() -> Vec<String> {
    let base = |path: &OsStr| {
        let bytes = path.as_bytes();
        let name = bytes.rsplit(|&byte| byte == b'/').next().unwrap_or(bytes);
        String::from_utf8_lossy(name).to_ascii_lowercase()
    };
    let file = std::fs::read_link("/proc/self/exe").ok().map(|path| base(path.as_os_str()));
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let first = line.split(|&byte| byte == 0).next().unwrap_or_default();
    file.into_iter().chain([base(OsStr::from_bytes(first))]).collect()
}

/// A size in bytes: a number, with a fraction if a unit follows, which is a power of 1024.
fn bytes(text: &str) -> Option<usize> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (text.get(..digits)?, text.get(digits..)?.trim());
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    if shift == 0 {
        return number.parse().ok();
    }
    let value: f64 = number.parse().ok()?;
    let bytes = value * (1u64 << shift) as f64;
    (bytes < (1u64 << 50) as f64).then_some(bytes as usize)
}
