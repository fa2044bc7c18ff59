//! The runtime's names under the preload library, with both simulated runtimes.

mod common;

use common::{both, built, compile, ends_well, preloaded, preloaded_with, runtimes, with_runtime};

const MAJORS: [u32; 2] = [12, 13];

#[test]
fn calls_answered_early_are_as_the_runtimes_own() {
    let Some(folder) = runtimes() else { return };
    for major in MAJORS {
        let program = with_runtime("fast.c", &format!("fast_{major}"), &folder, major, &[]);
        for what in ["counts", "errors", "devices", "threads", "pools"] {
            ends_well(preloaded_with(&folder, &program).arg(what));
            ends_well(preloaded_with(&folder, &program).arg(what).env("FOREBAY_DEVICE", "1"));
        }
        let faults = "lose cuCtxSynchronize with 700 #1";
        ends_well(preloaded_with(&folder, &program).arg("lost").env("FOREBAY_SIM_FAULTS", faults));
        let mut waits = preloaded_with(&folder, &program);
        waits.arg("lost-free").env("FOREBAY_FREE", "sync");
        ends_well(waits.env("FOREBAY_SIM_FAULTS", faults));
    }
}

/// What is freed early is nobody's while other streams still work on it.
#[test]
fn memory_that_is_freed_early_is_reused_after_its_last_use() {
    let Some(folder) = runtimes() else { return };
    for major in MAJORS {
        let name = format!("runtime_orders_{major}");
        let program = with_runtime("runtime_orders.c", &name, &folder, major, &[]);
        for seed in ["1", "2", "3"] {
            let mut run = preloaded_with(&folder, &program);
            run.env("FOREBAY_SIM_MEMORY", "32MiB");
            ends_well(run.env("FOREBAY_SIM_SEED", seed));
            ends_well(run.env_remove("LD_PRELOAD"));
        }
    }
}

/// The library learns of a device by the context that `cudaSetDevice` makes current.
#[test]
fn a_device_that_is_set_has_its_context_current() {
    let Some(folder) = runtimes() else { return };
    for major in MAJORS {
        let program = with_runtime("set_device.c", &format!("set_{major}"), &folder, major, &[]);
        ends_well(&mut preloaded_with(&folder, &program));
        ends_well(preloaded_with(&folder, &program).env_remove("LD_PRELOAD"));
    }
}

/// ZLUDA#404, THAPI#276, cccl#7063: the order of ends, with the library and without it.
#[test]
fn after_its_end_the_runtime_says_so_itself() {
    let Some(folder) = runtimes() else { return };
    for major in MAJORS {
        let program = with_runtime("fast.c", &format!("fast_exit_{major}"), &folder, major, &[]);
        ends_well(preloaded_with(&folder, &program).arg("exit"));
        ends_well(preloaded_with(&folder, &program).arg("exit").env("FOREBAY_STATS", "1"));
        ends_well(preloaded_with(&folder, &program).arg("exit").env("FOREBAY_ENABLE", "0"));
    }
}

/// sglang#36643 and the frameworks' wheels: the runtime is an extension's, not the program's,
/// and there may be two.
#[test]
fn each_plugin_reaches_its_own_runtime() {
    let Some(folder) = runtimes() else { return };
    let plugin = |major: u32| {
        let name = format!("libown_{major}.so");
        with_runtime("own.c", &name, &folder, major, &["-DPLUGIN", "-shared", "-fPIC"])
    };
    let host = compile("own.c", "own", &["-ldl"]);
    let (twelve, thirteen) = (plugin(12), plugin(13));
    for run in [vec![&twelve], vec![&thirteen], vec![&twelve, &thirteen]] {
        ends_well(preloaded_with(&folder, &host).args(&run));
        ends_well(preloaded_with(&folder, &host).args(&run).env_remove("LD_PRELOAD"));
    }
    let linked = with_runtime("own.c", "own_linked", &folder, 12, &["-DLINKED", "-ldl"]);
    ends_well(preloaded_with(&folder, &linked).arg(&thirteen));
    ends_well(preloaded_with(&folder, &linked).arg(&thirteen).env_remove("LD_PRELOAD"));
}

/// torch_memory_saver#64: another library of `LD_PRELOAD` that stands before `cudaMalloc`.
#[test]
fn another_librarys_cuda_malloc_keeps_its_calls() {
    let Some(folder) = runtimes() else { return };
    let program = with_runtime("five.c", "five", &folder, 12, &[]);
    let between = compile("between.c", "libbetween.so", &["-shared", "-fPIC", "-ldl"]);
    let ours = &built().preload;
    for order in [both(ours, &between), both(&between, ours)] {
        let output = preloaded_with(&folder, &program).env("LD_PRELOAD", order).output();
        let output = output.expect("it starts");
        assert_eq!(common::text(&output.stdout), "well\nbetween 5\n", "{output:?}");
    }
}

#[test]
fn a_weak_name_without_a_runtime_is_answered() {
    let program = compile("weak.c", "weak", &[]);
    ends_well(&mut preloaded(&program));
    ends_well(preloaded(&program).env_remove("LD_PRELOAD"));
}
