//! The life of the process: how the runtime starts, resets, forks and ends.

use crate::child;
use crate::common::*;
use std::collections::BTreeSet;

fn active(device: i32) -> bool {
    let (mut flags, mut active) = (0, -1);
    assert_eq!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active), 0);
    active == 1
}

#[test]
fn a_context_is_made_by_the_first_call_that_needs_one() {
    let name = "life::a_context_is_made_by_the_first_call_that_needs_one";
    if let Some(output) = child::run(name, &[]) {
        child::ended(&output, 0);
        return;
    }
    let (mut count, mut device, mut context) = (0, 9, 9);
    assert_eq!((cudaGetDeviceCount(&mut count), count), (0, 2));
    assert_eq!((cudaGetDevice(&mut device), device), (0, 0));
    assert!(!active(0), "asking for devices makes no context");
    assert_eq!((cuCtxGetCurrent(&mut context), context), (0, 0));
    assert_eq!(cudaFree(0), 0);
    assert!(active(0) && !active(1));
    assert_eq!(cudaSetDevice(1), 0);
    assert!(active(1), "choosing a device makes its context");
}

#[test]
fn a_reset_device_begins_anew_for_every_thread() {
    let name = "life::a_reset_device_begins_anew_for_every_thread";
    if let Some(output) = child::run(name, &[]) {
        child::ended(&output, 0);
        return;
    }
    let mut at = 0;
    assert_eq!(cudaMalloc(&mut at, 4096), 0);
    let (asked, asks) = std::sync::mpsc::channel::<()>();
    let (told, tells) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        let mut at = 0;
        told.send(cudaMalloc(&mut at, 4096)).expect("is heard");
        asks.recv().expect("is told");
        told.send(cudaMalloc(&mut at, 4096)).expect("is heard");
    });
    assert_eq!(tells.recv(), Ok(0));
    assert_eq!(cudaDeviceReset(), 0);
    assert!(!active(0));
    assert!(report().contains("\"device_bytes\":0"), "{}", report());
    asked.send(()).expect("is heard");
    assert_eq!(tells.recv(), Ok(0), "its context was reset under it");
    other.join().expect("ends well");
    assert_eq!(cudaMalloc(&mut at, 4096), 0);
    assert!(active(0));
}

#[test]
fn a_reset_in_a_context_of_the_programs_own_ends_no_other() {
    let name = "life::a_reset_in_a_context_of_the_programs_own_ends_no_other";
    if let Some(output) = child::run(name, &[]) {
        child::ended(&output, 0);
        return;
    }
    let (mut kept, mut own, mut mine, mut flags) = (0, 0, 0, 0);
    assert_eq!(cudaMalloc(&mut kept, 4096), 0);
    assert_eq!((cudaGetDeviceFlags(&mut flags), flags), (0, 8), "it maps host memory");
    assert_eq!(cuCtxCreate_v2(&mut own, 1, 0), 0);
    assert_eq!((cudaGetDeviceFlags(&mut flags), flags), (0, 1), "as the program made it");
    static VARIABLE: u8 = 0;
    let (symbol, mut at) = (variable(&VARIABLE).1, 0);
    assert_eq!(cudaMalloc(&mut mine, 4096), 0);
    assert_eq!(cudaGetSymbolAddress(&mut at, symbol), 0);
    assert_eq!(cudaDeviceReset(), 0);
    assert!(active(0));
    assert_eq!(cudaFree(at), 1, "the runtime's own went");
    assert_eq!((cudaFree(mine), cudaFree(kept)), (0, 0));
    assert_eq!(cuCtxDestroy_v2(own), 0);
    assert_eq!(cudaSetDevice(0), 0);
    assert_eq!(cudaDeviceReset(), 0);
    assert!(!active(0));
    assert_eq!(cudaSetDeviceFlags(4), 0);
    assert!(active(0), "made ready with the flags");
    assert_eq!((cudaGetDeviceFlags(&mut flags), flags), (0, 12));
    assert_eq!(cudaSetDeviceFlags(3), 1, "two ways to wait");
}

extern "C" fn at_exit() {
    let mut at = 0;
    let (malloc, free) = (cudaMalloc(&mut at, 64), cudaFree(64));
    let (mut device, mut version) = (0, 0);
    let (get, newest) = (cudaGetDevice(&mut device), cudaDriverGetVersion(&mut version));
    println!("at exit {malloc} {free} {get} {newest} {}", cudaDeviceSynchronize());
}

#[test]
fn after_the_runtimes_end_every_call_says_so() {
    let name = "life::after_the_runtimes_end_every_call_says_so";
    if let Some(output) = child::run(name, &[]) {
        let said = child::ended(&output, 0);
        assert!(said.contains("at exit 4 4 4 4 4"), "{said}");
        return;
    }
    // Registered before the runtime's own handler, so it runs after it.
    // SAFETY: a function of this program.
    assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
    assert_eq!(cudaFree(0), 0);
}

#[test]
fn a_forked_child_has_no_runtime() {
    let name = "life::a_forked_child_has_no_runtime";
    if let Some(output) = child::run(name, &[]) {
        child::ended(&output, 0);
        return;
    }
    assert_eq!(cudaFree(0), 0);
    // SAFETY: the child makes one call of the library and ends without unwinding.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let mut at = 0;
            libc::_exit(cudaMalloc(&mut at, 64));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        assert_eq!(libc::WEXITSTATUS(status), 3);
    }
}

#[test]
fn a_driver_that_is_too_old_is_refused() {
    let name = "life::a_driver_that_is_too_old_is_refused";
    if let Some(output) = child::run(name, &[("FOREBAY_SIM_VERSION", "11080")]) {
        child::ended(&output, 0);
        return;
    }
    let (mut count, mut version) = (0, 0);
    assert_eq!(cudaGetDeviceCount(&mut count), 35);
    assert_eq!(cudaFree(0), 35);
    assert_eq!((cudaDriverGetVersion(&mut version), version), (0, 11_080));
}

#[test]
fn a_failed_call_of_the_driver_is_the_programs_to_see() {
    let name = "life::a_failed_call_of_the_driver_is_the_programs_to_see";
    let faults = "fail cuMemAlloc #2 once with 2; fail cuDevicePrimaryCtxRetain #1 once with 999";
    if let Some(output) = child::run(name, &[("FOREBAY_SIM_FAULTS", faults)]) {
        child::ended(&output, 0);
        return;
    }
    let mut at = 0;
    assert_eq!(cudaMalloc(&mut at, 64), 999, "no context");
    assert_eq!(cudaMalloc(&mut at, 64), 0);
    assert_eq!(cudaMalloc(&mut at, 64), 2);
    assert_eq!(cudaGetLastError(), 2);
    assert_eq!(cudaMalloc(&mut at, 64), 0);
}

/// What a list of requests or a journal asks for: name, version, flags.
fn listed(text: &str) -> BTreeSet<(String, String, String)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    words.map(|w| (w[0].clone(), w[1].clone(), w[2].clone())).collect()
}

#[test]
fn the_driver_is_asked_for_the_functions_of_the_list_and_no_table() {
    let name = "life::the_driver_is_asked_for_the_functions_of_the_list_and_no_table";
    let journal = child::scratch("journal");
    let path = journal.to_str().expect("is text");
    if let Some(output) = child::run(name, &[("FOREBAY_SIM_JOURNAL", path)]) {
        child::ended(&output, 0);
        let text = std::fs::read_to_string(&journal).expect("a journal");
        std::fs::remove_file(&journal).expect("is there");
        assert!(!text.contains("cuGetExportTable"));
        let mut asked = BTreeSet::new();
        for line in text.lines().filter(|line| line.contains("\"cuGetProcAddress_v2\"")) {
            let part = |key: &str| {
                let at = line.find(key).expect("has the argument") + key.len();
                let end = line[at..].find([',', '"', '}']).expect("ends");
                line[at..at + end].trim_matches(['\\', ')']).to_owned()
            };
            asked.insert((part("Some(\\\""), part("version="), part("flags=")));
        }
        assert_eq!(asked, listed(include_str!("../../src/requests_12.txt")));
        return;
    }
    assert_eq!(cudaFree(0), 0);
}
