//! What the tests share: the library opened by path, one world at a time, rows, misuse.
//!
//! A test starts with [`Sim::start`], calls with [`cu!`](crate::cu), and ends with no misuse
//! unless it says which it provokes. The library is the built shared object, opened as a program
//! would; only the functions' types come from the crate.

#![allow(dead_code, unused_macros, unused_imports, reason = "each test program uses a part")]

pub mod child;

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The library's path: `FOREBAY_SIMULATED_DRIVER`, or what cargo built beside this program.
pub fn library_path() -> PathBuf {
    if let Some(path) = std::env::var_os("FOREBAY_SIMULATED_DRIVER") {
        return PathBuf::from(path);
    }
    let program = std::env::current_exe().expect("a test program has a path");
    program.with_file_name("libforebay_simcuda.so")
}

fn library() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let path = library_path();
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte");
        // SAFETY: opening a library of ours, whose constructors do nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot open {}", path.display());
        handle as usize
    });
    *handle as *mut c_void
}

/// The address of an exported function; null when there is none.
pub fn symbol(name: &str) -> *mut c_void {
    let name = CString::new(name).expect("no zero byte");
    // SAFETY: the handle is open for good.
    unsafe { libc::dlsym(library(), name.as_ptr()) }
}

/// The function of that name in the opened library, with the type of `like`.
pub fn same<F: Copy>(_like: F, name: &str) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a function pointer");
    let found = symbol(name);
    assert!(!found.is_null(), "the library has no {name}");
    // SAFETY: a function pointer of the crate's own function of that name, built from the same
    // source as the library.
    unsafe { std::mem::transmute_copy(&found) }
}

/// Calls a function of the opened library: `cu!(cuInit(0))`, answers its code.
#[macro_export]
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let like: unsafe extern "C" fn($($crate::hole!($arg)),*) -> _ =
            forebay_simcuda::exports::$name;
        let function = $crate::common::same(like, stringify!($name));
        #[allow(
            unused_unsafe,
            clippy::macro_metavars_in_unsafe,
            reason = "some exported functions are safe; arguments are a test's own expressions"
        )]
        // SAFETY: a test passes what it means to pass; places are its own variables.
        unsafe { function($($arg),*) }
    }};
}

/// A type to be inferred, for each argument of a call.
#[macro_export]
macro_rules! hole {
    ($_arg:expr) => {
        _
    };
}

/// Says that a row of the reference was shown: the text and where it comes from. The list that
/// `cargo xtask test sim` prints is made of these.
pub fn row(text: &str, source: &str) {
    println!("row: {text} [{source}]");
    if let Some(path) = std::env::var_os("FOREBAY_SIMULATED_ROWS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let line = format!("{text}\t{source}\n");
        file.and_then(|mut f| f.write_all(line.as_bytes())).expect("the list of rows");
    }
}

/// One world of a test; other tests wait until it is gone.
pub struct Sim {
    expected: Vec<String>,
    forgiven: bool,
    _turn: MutexGuard<'static, ()>,
}

impl Sim {
    /// A new world with these settings, `cuInit` called.
    pub fn start(settings: &str) -> Sim {
        let sim = Sim::configured(settings);
        assert_eq!(cu!(cuInit(0)), 0, "cuInit");
        sim
    }

    /// A new world with these settings; `cuInit` not called.
    pub fn configured(settings: &str) -> Sim {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let text = CString::new(settings).expect("no zero byte");
        assert_eq!(cu!(forebay_sim_configure(text.as_ptr())), 0, "settings");
        Sim { expected: Vec::new(), forgiven: false, _turn: turn }
    }

    /// Says that the test provokes this kind of misuse; it fails if that does not happen.
    pub fn expect_misuse(&mut self, kind: &str) {
        self.expected.push(kind.to_owned());
    }

    /// Says that the test may provoke any misuse but a mistake of the simulation itself.
    pub fn forgive_misuse(&mut self) {
        self.forgiven = true;
    }

    /// Sets the script of faults.
    pub fn script(&self, text: &str) {
        let text = CString::new(text).expect("no zero byte");
        assert_eq!(cu!(forebay_sim_script(text.as_ptr())), 0, "script");
    }

    /// The report.
    pub fn report(&self) -> serde_json::Value {
        report()
    }

    /// A live count of the report, such as `contexts`; 0 when it is not there.
    pub fn live(&self, name: &str) -> u64 {
        report()["live"][name].as_u64().unwrap_or(0)
    }

    /// How often a call was made.
    pub fn calls(&self, name: &str) -> u64 {
        report()["calls"][name].as_u64().unwrap_or(0)
    }

    /// Virtual microseconds since the world began.
    pub fn time_us(&self) -> f64 {
        report()["time_us"].as_f64().expect("a time")
    }

    /// Kinds of misuse so far.
    pub fn misuse(&self) -> Vec<String> {
        let report = report();
        let list = report["misuse"].as_array().expect("a list").clone();
        list.iter().map(|m| m["kind"].as_str().expect("a kind").to_owned()).collect()
    }

    /// The primary context of a device, retained and current.
    pub fn primary(&self, device: i32) -> u64 {
        let mut context = 0;
        assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context, device)), 0);
        assert_eq!(cu!(cuCtxSetCurrent(context)), 0);
        context
    }
}

/// The report as JSON.
pub fn report() -> serde_json::Value {
    let mut buffer = vec![0u8; 1];
    loop {
        let at = buffer.as_mut_ptr().cast::<c_char>();
        let needed = cu!(forebay_sim_report(at, buffer.len()));
        if needed <= buffer.len() {
            buffer.truncate(needed - 1);
            return serde_json::from_slice(&buffer).expect("the report is JSON");
        }
        buffer.resize(needed + 4096, 0);
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let report = report();
        let mut expected = self.expected.clone();
        let mut unexpected = Vec::new();
        for m in report["misuse"].as_array().expect("a list") {
            let kind = m["kind"].as_str().expect("a kind");
            if self.expected.iter().any(|e| e == kind) {
                expected.retain(|e| e != kind);
            } else if !self.forgiven || kind == "mistake of the simulation" {
                unexpected.push(m.to_string());
            }
        }
        assert!(unexpected.is_empty(), "misuse: {}", unexpected.join("\n"));
        assert!(expected.is_empty(), "misuse that did not happen: {expected:?}");
    }
}
