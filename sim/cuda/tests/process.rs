//! The life of a process: variables, fork, exit handlers, the report at exit.

mod common;
use common::{child, row};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

fn count() -> Result<i32, u32> {
    let mut count = 0;
    match cu!(cuDeviceGetCount(&raw mut count)) {
        0 => Ok(count),
        code => Err(code),
    }
}

#[test]
fn variables_make_the_world() {
    let report = child::scratch("report");
    let path = report.to_str().expect("a path");
    let variables = [("FOREBAY_SIM_DEVICES", "5"), ("FOREBAY_SIM_REPORT", path)];
    let Some(output) = child::run("variables_make_the_world", &variables) else {
        assert_eq!(cu!(cuInit(0)), 0);
        assert_eq!(count(), Ok(5));
        let mut context = 0;
        assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0, 4)), 0);
        assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
        assert_eq!(cu!(cuCtxDestroy_v2(context)), 201);
        assert_eq!(cu!(forebay_sim_is_simulated()), 1);
        return;
    };
    child::ended(&output, 0);
    let text = std::fs::read_to_string(&report).expect("the report");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["calls"]["cuCtxDestroy_v2"], 2);
    assert_eq!(json["misuse"][0]["kind"], "use of a destroyed context");
    assert_eq!(json["live"]["contexts"], 0);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("misuse: use of a destroyed context"), "{told}");
    std::fs::remove_file(report).expect("the report's file");
}

#[test]
fn a_setting_that_cannot_be_read_stops_init() {
    let variables = [("FOREBAY_SIM_FAULTS", "fail cuInit always")];
    let Some(output) = child::run("a_setting_that_cannot_be_read_stops_init", &variables) else {
        assert_eq!(cu!(cuInit(0)), 1);
        assert_eq!(count(), Err(3));
        return;
    };
    child::ended(&output, 0);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["FOREBAY_SIM_FAULTS", "line 1", "with CODE", "accepted is: fail CALL"] {
        assert!(told.contains(part), "{part} in {told}");
    }
}

/// Calls `see` in a forked child; its answer, at most 255, becomes the exit status.
fn in_fork(see: impl FnOnce() -> u32) -> u32 {
    // SAFETY: the child calls no function that may wait for a thread that was not forked, and
    // ends with `_exit`.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork");
        if pid == 0 {
            libc::_exit(see() as i32);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "the child ended by a signal");
        libc::WEXITSTATUS(status) as u32
    }
}

#[test]
fn a_forked_child_gets_3() {
    let report = child::scratch("fork");
    let path = report.to_str().expect("a path");
    let Some(output) = child::run("a_forked_child_gets_3", &[("FOREBAY_SIM_REPORT", path)]) else {
        assert_eq!(cu!(cuInit(0)), 0);
        assert_eq!(count(), Ok(1));
        assert_eq!(in_fork(|| count().err().unwrap_or(0)), 3);
        assert_eq!(in_fork(|| cu!(cuInit(0))), 3);
        assert_eq!(in_fork(|| cu!(forebay_sim_step(1))), 0);
        assert_eq!(in_fork(|| cu!(forebay_sim_script(c"fail any with 2".as_ptr())) as u32), 1);
        let mut version = 0;
        assert_eq!(in_fork(|| cu!(cuDriverGetVersion(&raw mut version))), 0);
        // A child's exit handlers write no report over the parent's.
        // SAFETY: the child only runs exit handlers.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::exit(0);
            }
            assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), 0), pid);
        }
        let path = std::env::var("FOREBAY_SIM_REPORT").expect("the variable");
        assert!(!std::path::Path::new(&path).exists(), "the child wrote the report");
        assert_eq!(count(), Ok(1));
        return;
    };
    child::ended(&output, 0);
    let text = std::fs::read_to_string(&report).expect("the parent's report");
    assert!(text.contains("\"cuDeviceGetCount\":2"), "{text}");
    std::fs::remove_file(report).expect("the report's file");
    row("in a forked child: 3", "assumption");
}

#[test]
fn a_fork_before_init_may_use_the_driver() {
    let Some(output) = child::run("a_fork_before_init_may_use_the_driver", &[]) else {
        // The world is there before cuInit: the version was asked for.
        let mut version = 0;
        assert_eq!(cu!(cuDriverGetVersion(&raw mut version)), 0);
        assert_eq!(in_fork(|| cu!(cuInit(0)) * 100 + count().err().unwrap_or(0)), 0);
        assert_eq!(cu!(cuInit(0)), 0);
        assert_eq!(count(), Ok(1));
        return;
    };
    child::ended(&output, 0);
    row("a fork before cuInit works in the child", "DESIGN");
}

/// What the two exit handlers saw, and the exit status they make of it.
static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn runs_first() {
    SEEN.store(10 + count().err().unwrap_or(0), Ordering::Relaxed);
}

extern "C" fn runs_last() {
    let (mut text, mut version) = (std::ptr::null(), 0);
    let harmless =
        cu!(cuGetErrorName(4, &raw mut text)) + cu!(cuDriverGetVersion(&raw mut version));
    let seen = SEEN.load(Ordering::Relaxed) + count().err().unwrap_or(0) + 100 * harmless;
    let again = cu!(cuInit(0));
    // SAFETY: ends the process here, with what was seen.
    unsafe { libc::_exit((seen * 10 + again) as i32) };
}

#[test]
fn after_exit_handlers_began_calls_answer_4() {
    let Some(output) = child::run("after_exit_handlers_began_calls_answer_4", &[]) else {
        // SAFETY: handlers of this program; they run in the reverse of this order.
        unsafe {
            libc::atexit(runs_last);
            assert_eq!(cu!(cuInit(0)), 0);
            libc::atexit(runs_first);
            libc::exit(0);
        }
    };
    // 10 + 0 from the first, 4 from the last; then 4 from cuInit.
    child::ended(&output, 144);
    row("after exit handlers began: 4", "I: vosen/ZLUDA#404");
}

#[test]
fn the_address_of_a_symbol_stays() {
    let before: *mut c_void = common::symbol("cuInit");
    let _sim = common::Sim::start("");
    assert_eq!(before, common::symbol("cuInit"));
}
