//! `forebay doctor` on the simulated CUDA driver: what it finds, and what it says where something
//! is missing.

#[path = "../../tests/rust/common/cuda.rs"]
mod cuda;

use serde_json::Value;
use std::process::{Command, Output};

/// Runs `forebay doctor` on CUDA with a simulated machine and no other variable of Forebay's.
fn doctor(args: &[&str], vars: &[(&str, &str)]) -> Output {
    let library = cuda::library();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.env("FOREBAY_CUDA_LIBRARY", library).env("FOREBAY_SIM_MEMORY", "1GiB");
    command.arg("doctor").args(args).envs(vars.iter().copied());
    command.output().expect("the command starts")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&out(output)).expect("one JSON object")
}

#[test]
fn a_usable_device_is_described() {
    let done = doctor(&["--json"], &[("FOREBAY_SIM_DEVICES", "2")]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(err(&done), "");
    let json = json(&done);
    let found = &json["cuda"];
    let library = cuda::library().canonicalize().expect("it is there");
    assert_eq!(found["library"].as_str(), library.to_str());
    assert_eq!(found["simulated"], true);
    assert_eq!(found["driver_version"], "12.8");
    assert_eq!(found["missing_entry_points"], Value::Array(Vec::new()));
    assert_eq!(found["fallbacks"], Value::Array(Vec::new()));
    assert_eq!(found["primary_context"], true);
    let devices = found["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[0]["compute_capability"], "9.0");
    assert_eq!(devices[0]["total_bytes"], 1u64 << 30);
    assert_eq!(devices[0]["virtual_memory"], true);
    assert_eq!(devices[0]["peers"], serde_json::json!([1]));
    // The default headroom, 512 MiB.
    assert_eq!(json["limits"]["hard_bytes"], 512 << 20);
    assert_eq!(json["device"]["granularity_bytes"], 2 << 20);
}

#[test]
fn as_text_it_says_that_there_is_no_gpu() {
    let done = doctor(&[], &[]);
    assert!(done.status.success(), "{done:?}");
    let text = out(&done);
    for words in [
        "Backend: auto (asked for by default, which means cuda)",
        "Driver:  CUDA 12.8, ",
        "This is the simulated driver of Forebay's tests: there is no GPU.",
        "compute capability 9.0, virtual memory, exports memory, GPUDirect RDMA",
        "Refused: nothing; memory is mapped page by page.",
        "It holds at most 512.0 MiB",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn what_is_refused_is_listed_with_what_happens_instead() {
    let done = doctor(&[], &[("FOREBAY_SIM_REFUSE", "vmm=801"), ("FOREBAY_SIM_VERSION", "12020")]);
    assert!(done.status.success(), "{done:?}");
    let text = out(&done);
    for words in [
        "It lacks cuCtxRecordEvent.",
        "Refused: the driver has no event over a whole context",
        "Refused: there is no virtual memory management",
        "Its memory is plain allocations of 256.0 MiB",
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
    let done = doctor(&["--json"], &[("FOREBAY_SIM_REFUSE", "rdma=999")]);
    let list = json(&done)["cuda"]["fallbacks"].as_array().expect("a list").clone();
    assert_eq!(list.len(), 1, "{list:?}");
    assert!(list[0].as_str().is_some_and(|line| line.contains("RDMA") && line.contains("999")));
}

#[test]
fn no_driver_and_no_device_fail_with_the_way_out() {
    let lost = [("FOREBAY_CUDA_LIBRARY", "/no/such/libcuda.so.1")];
    let done = doctor(&[], &lost);
    assert_eq!(done.status.code(), Some(1));
    assert!(err(&done).contains("FOREBAY_CUDA_LIBRARY=/no/such/libcuda.so.1"), "{}", err(&done));
    let done = doctor(&["--json"], &[("FOREBAY_SIM_REFUSE", "init=100")]);
    assert_eq!(done.status.code(), Some(1));
    let json = json(&done);
    assert_eq!(json["usable"], false);
    assert!(json["error"].as_str().is_some_and(|e| e.contains("CUDA_ERROR_NO_DEVICE")));
    assert!(json.get("cuda").is_none());
    let done = doctor(&[], &[("FOREBAY_DEVICE", "5")]);
    assert_eq!(done.status.code(), Some(1));
    assert!(out(&done).contains("GPU 0:"), "the devices that exist are shown: {}", out(&done));
    assert!(err(&done).contains("device 5 does not exist"), "{}", err(&done));
}
