//! The command itself: exit codes, output, and what is said of bad input.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const SIX: &str = "step,ev,id,bytes,stream,op\n0,a,0,1000,0,\n0,a,1,3145728,0,\n1,f,0,,,\n\
    1,a,2,1500000,0,\n2,f,1,,,\n2,f,2,,,\n";

/// Runs `forebay` with no variable of its own set but `vars`.
fn forebay(args: &[&str], vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.envs(vars.iter().copied()).args(args).output().expect("the command starts")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// A trace in a file of the test's own.
fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("the target folder is writable");
    path
}

#[test]
fn replay_prints_one_object_and_nothing_else() {
    let path = file("six.csv", SIX);
    let path = path.to_str().expect("UTF-8");
    let done = forebay(&["replay", path, "--backend", "host", "--json"], &[]);
    // Standard error is no terminal here: no progress may appear.
    assert_eq!(err(&done), "");
    assert!(done.status.success());
    let json: Value = serde_json::from_str(&out(&done)).expect("one JSON object");
    assert_eq!(json["events"], 6);
    assert_eq!(json["peak_live_bytes"], 4_645_728);
    assert_eq!(json["leaked_bytes"], 0);
    assert_eq!(json["trace"], path);
    // Twice the peak, rounded up to pages of 2 MiB, and 1 GiB.
    assert_eq!(json["device_bytes"], (10 << 20) + (1 << 30));
    assert!(json["peak_mapped_bytes"].as_u64() >= Some(4_645_728));
    assert!(json["driver_calls"].as_u64() > Some(0));
    assert!(json.get("smallest_device_bytes").is_none());
}

#[test]
fn replay_finds_the_smallest_device() {
    let path = file("small.csv", SIX);
    let path = path.to_str().expect("UTF-8");
    let args = ["replay", path, "--backend", "host", "--smallest-device", "--json"];
    let json: Value = serde_json::from_str(&out(&forebay(&args, &[]))).expect("JSON");
    let smallest = json["smallest_device_bytes"].as_u64().expect("a number");
    assert!(smallest >= 4_645_728, "{smallest}");
    assert!(smallest <= 8 << 20, "{smallest}");
    assert_eq!(smallest % (2 << 20), 0);
}

#[test]
fn several_traces_give_a_line_each_and_a_bad_one_fails_alone() {
    let good = file("good.csv", SIX);
    let bad = file("bad.csv", "step,ev,id,bytes,stream,op\n0,f,3,,,\n");
    let (good, bad) = (good.to_str().expect("UTF-8"), bad.to_str().expect("UTF-8"));
    let done = forebay(&["replay", bad, good, good, "--backend", "host", "--json"], &[]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(out(&done).lines().count(), 2);
    let expected = "expected the free of a live block, found a free of id 3, which is not live";
    assert_eq!(err(&done), format!("forebay: {bad}:2: {expected}\n"));
}

#[test]
fn replay_with_threads_and_touch_plays_everything() {
    let path = file("threads.csv", SIX);
    let path = path.to_str().expect("UTF-8");
    let args = ["replay", path, "--backend", "host", "--threads", "3", "--touch", "--json"];
    let done = forebay(&args, &[]);
    assert_eq!(err(&done), "");
    let json: Value = serde_json::from_str(&out(&done)).expect("JSON");
    assert_eq!((&json["events"], &json["threads"]), (&18.into(), &3.into()));
    assert_eq!(json["leaked_bytes"], 0);
}

#[test]
fn a_device_too_small_is_an_error_that_names_the_event() {
    let path = file("oom.csv", SIX);
    let path = path.to_str().expect("UTF-8");
    let done = forebay(&["replay", path, "--backend", "host", "--device-bytes", "2M"], &[]);
    assert_eq!(done.status.code(), Some(1));
    let text = err(&done);
    assert!(text.starts_with(&format!("forebay: {path}: event 2 (allocate 3145728")), "{text}");
}

#[test]
fn host_memory_is_used_only_when_asked_for() {
    let path = file("auto.csv", SIX);
    let path = path.to_str().expect("UTF-8");
    for vars in [&[][..], &[("FOREBAY_BACKEND", "cuda")]] {
        let done = forebay(&["replay", path], vars);
        assert_eq!(done.status.code(), Some(1));
        assert!(err(&done).contains("FOREBAY_BACKEND=host"), "{}", err(&done));
    }
    assert!(forebay(&["replay", path], &[("FOREBAY_BACKEND", "host")]).status.success());
}

#[test]
fn wrong_arguments_are_refused_with_the_accepted_form() {
    let cases = [
        (&["replay"][..], "<TRACE>"),
        (&["replay", "x", "--device-bytes", "12 apples"], "(512M, 1.5GiB)"),
        (&["replay", "x", "--device-bytes", "80%"], "a share of a device says nothing here"),
        (&["replay", "x", "--threads", "0"], "0 is not in 1..=256"),
        (&["replay", "x", "--backend", "rocm"], "[possible values: host, cuda]"),
    ];
    for (args, expected) in cases {
        let done = forebay(args, &[]);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        assert!(err(&done).contains(expected), "{args:?}: {}", err(&done));
    }
    let both = forebay(&["replay", "x", "--smallest-device", "--threads", "2"], &[]);
    assert_eq!(both.status.code(), Some(1));
    assert!(err(&both).contains("leave --threads out"), "{}", err(&both));
}

#[test]
fn doctor_fails_where_no_pool_can_be_made_and_names_the_way_out() {
    let done = forebay(&["doctor"], &[]);
    assert_eq!(done.status.code(), Some(1));
    assert!(err(&done).contains("FOREBAY_BACKEND=host"), "{}", err(&done));
    let json = forebay(&["doctor", "--json"], &[]);
    assert_eq!(json.status.code(), Some(1));
    let json: Value = serde_json::from_str(&out(&json)).expect("JSON");
    assert_eq!((&json["usable"], &json["backend"]), (&false.into(), &"auto".into()));
}

#[test]
fn doctor_tells_the_limits_in_force_and_the_problems() {
    let vars = [("FOREBAY_BACKEND", "host"), ("FOREBAY_LIMIT", "1GiB"), ("FOREBAY_RESERVE", "x")];
    let done = forebay(&["doctor", "--json"], &vars);
    assert!(done.status.success());
    let json: Value = serde_json::from_str(&out(&done)).expect("JSON");
    assert_eq!(json["device"]["total_bytes"], 1 << 30);
    assert_eq!(json["device"]["granularity_bytes"], 2 << 20);
    assert_eq!(json["limits"]["hard_bytes"], 1 << 30);
    assert_eq!(json["limits"]["reserve_bytes"], 0);
    assert_eq!(json["limits"]["release_threshold_bytes"], Value::Null);
    let problems = json["problems"].as_array().expect("a list");
    assert_eq!(problems.len(), 1);
    assert!(problems[0].as_str().expect("text").starts_with("FOREBAY_RESERVE"), "{problems:?}");
    let text = out(&forebay(&["doctor"], &vars));
    assert!(text.contains("It holds at most 1024.0 MiB (FOREBAY_LIMIT="), "{text}");
}

#[test]
fn doctor_refuses_a_wrong_setting_under_strict() {
    let vars = [("FOREBAY_BACKEND", "host"), ("FOREBAY_STRICT", "1"), ("FOREBAY_LIMIT", "apples")];
    assert_eq!(forebay(&["doctor"], &vars).status.code(), Some(1));
}

#[test]
fn demo_ends_with_a_table_of_three_and_two_lines() {
    let path = file("demo.csv", SIX);
    let done = forebay(&["demo", path.to_str().expect("UTF-8")], &[]);
    assert_eq!(err(&done), "");
    assert!(done.status.success());
    let text = out(&done);
    let row = |label: &str| text.lines().find(|line| line.starts_with(label)).expect("a row");
    assert_eq!(row("events").split_whitespace().collect::<Vec<_>>(), ["events", "6", "6", "6"]);
    let leaked: Vec<_> = row("leaked").split_whitespace().collect();
    assert_eq!(leaked, ["leaked", "0", "bytes", "0", "bytes", "0", "bytes"]);
    let last: Vec<&str> = text.lines().rev().take(2).collect();
    assert!(last[1].starts_with("Memory: forebay finished on a device of 6.0 MiB"), "{text}");
    assert!(last[0].starts_with("Driver: "), "{text}");
    assert!(last[0].ends_with("one allocation a request makes 4 calls."), "{text}");
}
