//! Settings and log in a process of their own: reports, strict mode, and lines that arrive
//! in a file, on standard error and in a C callback.
//!
//! Each scenario runs in a child, this test program started again with
//! `FOREBAY_TEST_CHILD` naming it: an environment cannot be changed safely under other
//! threads, and a process has one subscriber.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

use forebay::config::{Config, Size};
use forebay::error::Status;
use forebay::logging as log;

use super::{GIB, accepted};

/// Runs one scenario of [`child_process`] with exactly these `FOREBAY_*` variables.
fn child(scenario: &str, vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command.args(["process::child_process", "--exact", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.envs(vars.iter().copied()).env("FOREBAY_TEST_CHILD", scenario);
    let output = command.output().expect("a child process");
    assert!(output.status.success(), "{scenario}: {output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("scenario done"), "{scenario}: {output:?}");
    output
}

/// The child's lines on standard error that Forebay wrote.
fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    let ours = |line: &&str| line.contains("forebay");
    text.lines().filter(ours).map(str::to_string).collect()
}

#[test]
fn problems_are_reported_once_by_name() {
    let vars = [("FOREBAY_LIMIT", "12 apples"), ("FOREBAY_LIMT", "1G")];
    let lines = lines(&child("lenient", &vars));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("forebay: FOREBAY_LIMIT=\"12 apples\" is refused"), "{lines:?}");
    assert!(lines[1].starts_with("forebay: FOREBAY_LIMT is not a variable"), "{lines:?}");
}

#[test]
fn strict_mode_fails_and_names_all() {
    let vars = [("FOREBAY_LIMIT", "12 apples"), ("FOREBAY_LIMT", "1G"), ("FOREBAY_STRICT", "1")];
    child("strict", &vars);
    child("strict-and-right", &[("FOREBAY_STRICT", "1"), ("FOREBAY_LIMIT", "1G")]);
}

#[test]
fn log_to_a_file_and_a_callback() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.log", std::process::id()));
    std::fs::write(&path, "kept\n").expect("a writable folder");
    let log = format!("info,{}", path.display());
    let output = child("file", &[("FOREBAY_LOG", &log), ("FOREBAY_LEAKS", "yes")]);
    let text = std::fs::read_to_string(&path).expect("the log");
    std::fs::remove_file(&path).expect("removable");
    let refused = "FOREBAY_LEAKS=\"yes\" is refused, the default holds; \
                   accepted: off, summary or full";
    let expected = format!(
        "kept\nwarn forebay::config: {refused}\n\
         info forebay::test: pages moved count=3 name=\"a b\" ok=true\n\
         error forebay::test: two lines\n\
         info forebay::test: to both\n"
    );
    assert_eq!(text, expected);
    // Standard error has the report and none of the log.
    assert_eq!(lines(&output), [format!("forebay: {refused}")]);
}

#[test]
fn log_to_standard_error() {
    let lines_of = |vars| lines(&child("stderr", vars));
    let expected = ["debug forebay::test: seen"];
    assert_eq!(lines_of(&[("FOREBAY_LOG", "debug")]), expected);
    let lines = lines_of(&[("FOREBAY_LOG", "debug,/no/such/folder/x.log")]);
    assert!(lines[0].starts_with("forebay: FOREBAY_LOG: /no/such/folder/x.log cannot be opened"));
    assert_eq!(lines[1..], expected);
}

#[test]
fn callback_without_a_log() {
    assert_eq!(lines(&child("callback", &[])), [""; 0]);
}

#[test]
fn no_subscriber_unless_asked_and_none_replaced() {
    child("off", &[]);
    assert_eq!(lines(&child("taken", &[("FOREBAY_LOG", "trace")])), [""; 0]);
}

/// Lines that the callback below received, with their levels.
static HEARD: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());

fn heard() -> Vec<(i32, String)> {
    std::mem::take(&mut HEARD.lock().expect("unpoisoned"))
}

unsafe extern "C" fn hear(context: *mut c_void, level: i32, message: *const c_char) {
    // SAFETY: the log promises a NUL-terminated line that is valid during the call.
    let text = unsafe { CStr::from_ptr(message) }.to_str().expect("UTF-8").to_string();
    assert_eq!(context as usize, 42);
    HEARD.lock().expect("unpoisoned").push((level, text));
    // Neither of these may come back here or block.
    tracing::error!(target: "forebay::test", "from inside the callback");
    // SAFETY: refused, since this is inside the callback.
    let error = unsafe { log::set_callback(None) }.expect_err("refused");
    assert_eq!(error.status(), Status::Busy);
}

fn listen() {
    // SAFETY: `hear` is callable from any thread; it only compares its context.
    unsafe { log::set_callback(Some((hear, 42 as *mut c_void))) }.expect("accepted");
}

/// Does nothing in an ordinary run: the tests above start it with a scenario.
#[test]
fn child_process() {
    let Ok(scenario) = std::env::var("FOREBAY_TEST_CHILD") else {
        return;
    };
    match scenario.as_str() {
        "lenient" => {
            for _ in 0..2 {
                assert_eq!(Config::from_env(), Ok(Config::default()));
            }
            assert_eq!(forebay::config::reported().len(), 2);
        }
        "strict" => {
            let error = Config::from_env().expect_err("strict");
            assert_eq!(error.status(), Status::Config);
            assert!(error.message().contains("FOREBAY_LIMIT=\"12 apples\""), "{error}");
            assert!(error.message().contains("did you mean FOREBAY_LIMIT"), "{error}");
        }
        "strict-and-right" => {
            let config = Config::from_env().expect("nothing wrong");
            assert_eq!(config.limit, Some(Size::Bytes(GIB)));
        }
        "file" => scenario_file(),
        "stderr" => {
            assert!(log::init(&Config::from_env().expect("lenient")));
            tracing::debug!(target: "forebay::test", "seen");
            tracing::trace!(target: "forebay::test", "too fine");
        }
        "callback" => scenario_callback(),
        "off" => {
            assert!(!log::init(&Config::from_env().expect("lenient")));
            let none = tracing::subscriber::NoSubscriber::default();
            assert!(tracing::subscriber::set_global_default(none).is_ok(), "the place is free");
        }
        "taken" => {
            let theirs = tracing::subscriber::NoSubscriber::default();
            tracing::subscriber::set_global_default(theirs).expect("the place is free");
            assert!(!log::init(&Config::from_env().expect("lenient")));
            listen();
            tracing::error!(target: "forebay::test", "not ours to show");
            assert_eq!(heard(), []);
        }
        other => panic!("no scenario {other}"),
    }
    println!("scenario done");
}

fn scenario_file() {
    let config = Config::from_env().expect("lenient");
    assert!(log::init(&config));
    tracing::info!(target: "forebay::test", count = 3, name = "a b", ok = true, "pages moved");
    tracing::debug!(target: "forebay::test", "too fine");
    tracing::error!(target: "someone::else", "not for this log");
    let _span = tracing::info_span!(target: "forebay::test", "span").entered();
    tracing::error!(target: "forebay::test", "two\nlines");
    listen();
    // A second start with other settings changes nothing.
    assert!(log::init(&accepted(&[("FOREBAY_LOG", "trace")])));
    tracing::debug!(target: "forebay::test", "still too fine");
    tracing::info!(target: "forebay::test", "to both");
    assert_eq!(heard(), [(3, "info forebay::test: to both".to_string())]);
}

fn scenario_callback() {
    let event = || {
        tracing::warn!(target: "forebay::test", bytes = 5u64, "low");
        tracing::debug!(target: "forebay::test", "too fine");
    };
    event();
    listen();
    let line = (2, "warn forebay::test: low bytes=5".to_string());
    for _ in 0..2 {
        event();
        assert_eq!(heard(), std::slice::from_ref(&line));
    }
    tracing::info!(target: "forebay::test", text = "x".repeat(5000), "long");
    let (level, long) = heard().remove(0);
    assert_eq!((level, long.len()), (3, log::LINE_BYTES - 1));
    assert!(long.ends_with("xxx..."));
    // SAFETY: nothing is registered by this.
    unsafe { log::set_callback(None) }.expect("accepted");
    event();
    assert_eq!(heard(), []);
    assert_eq!(
        tracing::level_filters::LevelFilter::current(),
        tracing::level_filters::LevelFilter::OFF
    );
    std::thread::scope(|scope| {
        listen();
        for _ in 0..4 {
            scope.spawn(event);
        }
    });
    assert_eq!(heard(), vec![line; 4]);
}
