//! The simulated CUDA driver, for tests of the CUDA backend: where it is, and its controls.
//!
//! The library is the one that `FOREBAY_SIMULATED_DRIVER` names (`cargo xtask test` stages it), or
//! what `cargo build --package forebay_simcuda` makes. Raw calls stand for what a program does
//! beside Forebay: contexts, streams and captures of its own.
#![allow(dead_code, reason = "each test program uses its part")]

use serde_json::Value;
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The variable that names the library.
pub const LIBRARY: &str = "FOREBAY_SIMULATED_DRIVER";

/// The simulated driver's file, built if it has to be.
pub fn library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os(LIBRARY) {
        Some(path) => path.into(),
        None => build(),
    })
}

fn build() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "forebay_simcuda", "--message-format=json"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let files = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut made = files
        .filter(|m| m["target"]["name"] == "forebay_simcuda")
        .flat_map(|m| m["filenames"].as_array().cloned().unwrap_or_default());
    let library = made.find(|f| f.as_str().is_some_and(|f| f.ends_with(".so")));
    PathBuf::from(library.expect("a shared library").as_str().expect("a path"))
}

/// The driver, opened in this process.
#[derive(Clone, Copy)]
pub struct Sim {
    handle: *mut c_void,
}

// SAFETY: a name for the loader.
unsafe impl Send for Sim {}
// SAFETY: as above.
unsafe impl Sync for Sim {}

impl Sim {
    /// Opens the library; the same for all callers.
    pub fn open() -> Sim {
        let name = CString::new(library().as_os_str().as_encoded_bytes()).expect("no NUL");
        // SAFETY: a library of the project's own, whose constructors do nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot open {}", library().display());
        Sim { handle }
    }

    fn symbol(self, name: &str) -> *mut c_void {
        let text = CString::new(name).expect("no NUL");
        // SAFETY: an open handle.
        let found = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        assert!(!found.is_null(), "the simulated driver has no {name}");
        found
    }

    /// Calls an exported function with arguments that are numbers or pointers.
    pub fn call(self, name: &str, args: &[usize]) -> u32 {
        type Word = usize;
        let f = self.symbol(name);
        // SAFETY: functions of CUDA's ABI take such arguments in order and answer an int; each
        // test passes what the function of that name wants.
        unsafe {
            match *args {
                [] => std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(f)(),
                [a] => std::mem::transmute::<*mut c_void, extern "C" fn(Word) -> u32>(f)(a),
                [a, b] => {
                    std::mem::transmute::<*mut c_void, extern "C" fn(Word, Word) -> u32>(f)(a, b)
                }
                [a, b, c] => std::mem::transmute::<
                    *mut c_void,
                    extern "C" fn(Word, Word, Word) -> u32,
                >(f)(a, b, c),
                [a, b, c, d] => {
                    let f = std::mem::transmute::<
                        *mut c_void,
                        extern "C" fn(Word, Word, Word, Word) -> u32,
                    >(f);
                    f(a, b, c, d)
                }
                [a, b, c, d, e] => {
                    type Five = extern "C" fn(Word, Word, Word, Word, Word) -> u32;
                    std::mem::transmute::<*mut c_void, Five>(f)(a, b, c, d, e)
                }
                _ => panic!("{name}: more arguments than tests need"),
            }
        }
    }

    /// Launches a kernel of one block with arguments of a word each.
    pub fn launch(self, function: usize, stream: usize, words: &mut [u64]) -> u32 {
        type Launch = extern "C" fn(
            usize,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            usize,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> u32;
        // SAFETY: the entry point of this name has this type.
        let launch =
            unsafe { std::mem::transmute::<*mut c_void, Launch>(self.symbol("cuLaunchKernel")) };
        let mut places: Vec<*mut c_void> =
            words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let none = std::ptr::null_mut();
        launch(function, 1, 1, 1, 32, 1, 1, 0, stream, places.as_mut_ptr(), none)
    }

    /// A call that must succeed.
    pub fn ok(self, name: &str, args: &[usize]) {
        assert_eq!(self.call(name, args), 0, "{name}");
    }

    /// A call that must succeed and whose first argument is where its answer goes.
    pub fn get(self, name: &str, rest: &[usize]) -> usize {
        let mut answer = 0usize;
        let mut args = vec![&raw mut answer as usize];
        args.extend(rest);
        self.ok(name, &args);
        answer
    }

    /// A new world with these settings (`name = value` lines).
    pub fn configure(self, settings: &str) {
        let text = CString::new(settings).expect("no NUL");
        self.ok("forebay_sim_configure", &[text.as_ptr() as usize]);
    }

    /// Sets the script of faults.
    pub fn script(self, script: &str) {
        let text = CString::new(script).expect("no NUL");
        self.ok("forebay_sim_script", &[text.as_ptr() as usize]);
    }

    /// What the driver counted, holds, and was misused for.
    pub fn report(self) -> Value {
        // SAFETY: the control function of this name has this type.
        let report = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_char, usize) -> usize>(
                self.symbol("forebay_sim_report"),
            )
        };
        let mut buffer = vec![0u8; 1 << 16];
        loop {
            let needed = report(buffer.as_mut_ptr().cast(), buffer.len());
            if needed <= buffer.len() {
                buffer.truncate(needed - 1);
                return serde_json::from_slice(&buffer).expect("the report is JSON");
            }
            buffer.resize(needed + 4096, 0);
        }
    }

    /// How often a call was made.
    pub fn calls(self, name: &str) -> u64 {
        self.report()["calls"][name].as_u64().unwrap_or(0)
    }

    /// How many calls were made in all.
    pub fn total_calls(self) -> u64 {
        let report = self.report();
        let calls = report["calls"].as_object().expect("counts");
        calls.values().filter_map(Value::as_u64).sum()
    }

    /// How many of something there are now.
    pub fn live(self, name: &str) -> u64 {
        let report = self.report();
        let live = report["live"].as_object().expect("counts");
        live.get(name)
            .unwrap_or_else(|| panic!("no count {name} in {live:?}"))
            .as_u64()
            .expect("a count")
    }

    /// Fails when something that Forebay made is still there. Contexts are the caller's affair.
    pub fn assert_nothing_left(self) {
        let report = self.report();
        let live = report["live"].as_object().expect("counts");
        let others = ["contexts", "host_mappings", "resident_bytes", "unpoisoned_bytes"];
        let ours = |name: &str| !others.contains(&name);
        let left: Vec<_> =
            live.iter().filter(|(name, n)| ours(name) && n.as_u64() != Some(0)).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// Fails when the driver was misused.
    pub fn assert_no_misuse(self) {
        let report = self.report();
        let misuse = report["misuse"].as_array().expect("a list");
        assert!(misuse.is_empty(), "misuse: {misuse:#?}");
    }
}

/// Makes a context of a device, current on this thread.
pub fn make_context(sim: Sim, device: usize) -> usize {
    sim.get("cuCtxCreate_v2", &[0, device])
}

/// This thread's context.
pub fn current_context(sim: Sim) -> usize {
    sim.get("cuCtxGetCurrent", &[])
}

/// This thread's capture mode, left as it is.
pub fn capture_mode(sim: Sim) -> u32 {
    let mut mode = 2u32;
    let at = &raw mut mode as usize;
    sim.ok("cuThreadExchangeStreamCaptureMode", &[at]);
    let own = mode;
    sim.ok("cuThreadExchangeStreamCaptureMode", &[at]);
    own
}
