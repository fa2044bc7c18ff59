//! The preload library as programs meet it: C programs on the simulated driver, each a process of
//! its own, and programs that have nothing to do with CUDA.

mod common;
#[path = "cases/ipc.rs"]
mod ipc;

use common::{both, built, compile, ends_well, linked, preloaded, root, text};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

#[test]
fn a_linked_program_is_served_and_counted() {
    let program = linked("basic.c", "basic");
    let (_, errors) = ends_well(preloaded(&program).env("FOREBAY_STATS", "1"));
    assert!(errors.contains("forebay: cuMemAlloc_v2: 1 served, 2 passed on\n"), "{errors}");
    let (_, errors) = ends_well(&mut preloaded(&program));
    assert_eq!(errors, "");
}

#[test]
fn each_entry_does_its_duty() {
    let program = linked("entries.c", "entries");
    ends_well(&mut preloaded(&program));
    // NVIDIA/nccl#2332: the driver knows no range of mapped memory.
    ends_well(preloaded(&program).env("FOREBAY_SIM_ADDRESS_RANGE", "not_found"));
}

/// Either allocation, each free, on late streams, in several orders of the device's work.
#[test]
fn memory_is_reused_after_its_last_use() {
    let program = linked("orders.c", "orders");
    for free in ["deferred", "sync"] {
        for seed in ["1", "2", "3"] {
            let mut run = preloaded(&program);
            ends_well(run.env("FOREBAY_FREE", free).env("FOREBAY_SIM_SEED", seed));
        }
    }
    ends_well(preloaded(&program).arg("stream").env("FOREBAY_FREE", "stream"));
}

/// The canary of the test above: frees that follow the default stream alone, under streams that do
/// not, are found out.
#[test]
fn memory_that_is_reused_too_early_is_seen() {
    let mut run = preloaded(linked("orders.c", "orders_canary"));
    let output = run.env("FOREBAY_FREE", "stream").output().expect("it starts");
    let errors = text(&output.stderr);
    assert!(!output.status.success() && errors.contains("words[i] is"), "{errors}");
}

/// Work on streams that no pool was told of, on another device's default stream, on more streams
/// than a pool has lanes for; and a free that must not wait.
#[test]
fn frees_wait_for_all_work_and_hold_nobody_up() {
    let program = linked("late.c", "late");
    for seed in ["1", "2", "3"] {
        let run = |what| {
            let mut run = preloaded(&program);
            run.arg(what).env("FOREBAY_SIM_SEED", seed);
            run
        };
        for (variable, value) in
            [("VERSION", "12080"), ("VERSION", "12020"), ("CONTEXT_EVENTS", "0")]
        {
            let mut early = run("early");
            early.env("FOREBAY_SIM_MEMORY", "32MiB");
            ends_well(early.env(format!("FOREBAY_SIM_{variable}"), value));
        }
        for device in ["0", "1"] {
            let mut peers = run("peers");
            peers.env("FOREBAY_SIM_MEMORY", "32MiB");
            ends_well(peers.env("FOREBAY_DEVICE", device));
        }
        ends_well(&mut run("threads"));
        ends_well(&mut run("batches"));
    }
    for version in ["12080", "12020"] {
        let mut unheld = preloaded(&program);
        unheld.arg("unheld").env("FOREBAY_SIM_SCHEDULE", "stepped");
        ends_well(unheld.env("FOREBAY_SIM_VERSION", version));
        let mut barrier = preloaded(&program);
        barrier.arg("barrier").env("FOREBAY_FREE", "sync");
        barrier.env("FOREBAY_SIM_SCHEDULE", "stepped");
        ends_well(barrier.env("FOREBAY_SIM_VERSION", version));
    }
    ends_well(preloaded(&program).arg("many"));
    let mut slow = preloaded(&program);
    slow.arg("forked").env("FOREBAY_SIM_REAL_DELAYS", "1");
    ends_well(slow.env("FOREBAY_SIM_FAULTS", "stall cuMemAddressReserve 1000ms"));
}

#[test]
fn threads_share_the_pool() {
    let program = linked("stress.c", "stress");
    for seed in ["1", "2", "3", "4"] {
        let mut run = preloaded(&program);
        ends_well(run.arg(seed).env("FOREBAY_SIM_SEED", seed).env("FOREBAY_SIM_MEMORY", "1GiB"));
    }
}

/// Before CUDA 12.5 no event covers a context: streams are known from their making.
#[test]
fn memory_is_reused_after_its_last_use_without_context_events() {
    let program = linked("orders.c", "orders_old");
    ends_well(preloaded(&program).env("FOREBAY_SIM_VERSION", "12020"));
    ends_well(preloaded(&program).env("FOREBAY_SIM_CONTEXT_EVENTS", "0"));
}

#[test]
fn contexts_end_and_old_addresses_with_them() {
    ends_well(&mut preloaded(linked("contexts.c", "contexts")));
}

#[test]
fn captures_pass_through_and_frees_beside_them_wait() {
    ends_well(&mut preloaded(linked("captures.c", "captures")));
}

/// Captured allocations and frees stay nodes of the driver's graphs, on late streams, in several
/// orders of the device's work; the program sees the same without the preload library.
#[test]
fn captured_allocations_stay_the_driver_s() {
    let program = linked("nodes.c", "nodes");
    ends_well(preloaded(&program).env_remove("LD_PRELOAD"));
    for seed in ["1", "2", "3", "4", "5"] {
        ends_well(preloaded(&program).env("FOREBAY_SIM_SEED", seed));
    }
}

#[test]
fn each_call_is_counted_once() {
    let program = linked("counted.c", "counted");
    ends_well(preloaded(&program).env_remove("LD_PRELOAD"));
    ends_well(&mut preloaded(&program));
}

/// The same through CUDA's runtime, the simulated one, where `cargo xtask test preload` names it.
#[test]
fn captured_allocations_of_the_runtime_stay_the_driver_s() {
    let Some(runtime) = std::env::var_os("FOREBAY_SIMULATED_RUNTIME").map(PathBuf::from) else {
        println!("skipped: FOREBAY_SIMULATED_RUNTIME names no folder with libcudart.so.12");
        return;
    };
    let library = runtime.join("libcudart.so.12");
    let headers = format!("-I{}", root().join("sim/cudart/include").display());
    let more = [headers.as_str(), library.to_str().expect("UTF-8"), "-Wl,--allow-shlib-undefined"];
    let program = compile("runtime_nodes.c", "runtime_nodes", &more);
    let folders = |command: &mut Command| {
        let own = built().driver.parent().expect("a folder").as_os_str().to_owned();
        let path: OsString =
            [own.as_os_str(), ":".as_ref(), runtime.as_os_str()].into_iter().collect();
        command.env("LD_LIBRARY_PATH", path);
    };
    for seed in ["1", "2", "3"] {
        let mut run = preloaded(&program);
        folders(&mut run);
        ends_well(run.env("FOREBAY_SIM_SEED", seed));
        ends_well(run.env_remove("LD_PRELOAD"));
    }
}

/// A pool that is made while a capture begins; a capture that makes none; streams that are
/// destroyed while they capture, or another does.
#[test]
fn captures_race_with_pools_and_streams() {
    let program = linked("races.c", "races");
    let mut made = preloaded(&program);
    made.arg("made").env("FOREBAY_SIM_REAL_DELAYS", "1");
    ends_well(made.env("FOREBAY_SIM_FAULTS", "stall cuStreamBeginCapture 400ms"));
    ends_well(preloaded(&program).arg("unmade"));
    // The pool goes on, though it asks about the stream that is gone.
    let taken = preloaded(&program).arg("taken").output().expect("it starts");
    assert!(taken.status.success(), "{taken:?}");
    for seed in ["1", "2", "3", "4"] {
        ends_well(preloaded(&program).arg("destroyed").env("FOREBAY_SIM_SEED", seed));
    }
}

/// What ends while a capture is open: contexts, pools, streams of other contexts; and pools that
/// are made beside one.
#[test]
fn captures_outlive_what_ends_beside_them() {
    let program = linked("ended.c", "ended");
    for what in ["later", "beside", "told"] {
        let (_, errors) = ends_well(preloaded(&program).arg(what));
        assert_eq!(errors, "", "{what}");
    }
    // These ask about streams that are gone.
    for what in ["reset", "context", "at once"] {
        let output = preloaded(&program).arg(what).output().expect("it starts");
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out == "well\n", "{what}: {out}{errors}");
    }
}

/// On a driver of its own: the simulated one begins no capture into a graph.
#[test]
fn a_graph_that_is_captured_into_stays_the_programs() {
    let folder = built().scratch.join("into-driver");
    std::fs::create_dir_all(&folder).expect("a folder");
    let shared = ["-DDRIVER", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    let driver = compile("into.c", "into-driver/libcuda.so.1", &shared);
    let program = compile("into.c", "into", &[driver.to_str().expect("UTF-8")]);
    ends_well(preloaded(&program).env("LD_LIBRARY_PATH", &folder));
}

/// `cuMemPoolSetAccess` of the default memory pool, in whose place the pool is.
#[test]
fn peers_of_the_default_memory_pool_reach_the_pool() {
    let program = linked("access.c", "access");
    ends_well(&mut preloaded(&program));
    ends_well(preloaded(&program).env("FOREBAY_DEVICE", "1"));
    let more = linked("reach.c", "reach");
    for what in ["refused", "owed", "kept"] {
        ends_well(preloaded(&more).arg(what).env("FOREBAY_SIM_DEVICES", "3"));
    }
}

#[test]
fn a_waiting_free_in_a_failed_context_says_so() {
    let program = linked("sticky.c", "sticky");
    let run = || {
        let mut run = preloaded(&program);
        run.env("FOREBAY_SIM_FAULTS", "lose cuCtxSynchronize with 700 #1");
        run.env("FOREBAY_FREE", "sync");
        run
    };
    ends_well(&mut run());
    ends_well(run().env_remove("LD_PRELOAD"));
}

#[test]
fn each_device_has_its_pool_and_peers_reach_it() {
    let program = linked("devices.c", "devices");
    ends_well(&mut preloaded(&program));
    ends_well(preloaded(&program).env("FOREBAY_DEVICE", "1"));
}

/// nvshare#11, vcuda-controller#20, HAMi-core#215, #233, #326: every look-up, with and without us.
#[test]
fn every_way_to_a_function_is_the_same() {
    let program = compile("lookups.c", "lookups", &["-rdynamic", "-ldl"]);
    ends_well(&mut preloaded(&program));
    ends_well(preloaded(&program).env_remove("LD_PRELOAD"));
    for version in ["11020", "11040", "12000", "13000"] {
        let output = preloaded(&program).env("FOREBAY_SIM_VERSION", version).output();
        let output = output.expect("it starts");
        assert!(output.status.code().is_some(), "{version}: {output:?}");
    }
}

#[test]
fn the_next_library_is_the_next_of_the_caller() {
    let program = compile("next.c", "next", &["-rdynamic", "-ldl"]);
    ends_well(&mut preloaded(&program));
    ends_well(preloaded(&program).env_remove("LD_PRELOAD"));
}

#[test]
fn threads_forks_and_exits_end_quietly() {
    let program = linked("life.c", "life");
    for what in ["threads", "context", "fork", "exit"] {
        let (_, errors) = ends_well(preloaded(&program).arg(what));
        assert_eq!(errors, "", "{what}");
        let (_, errors) = ends_well(preloaded(&program).arg(what).env("FOREBAY_STATS", "1"));
        assert_eq!(errors.matches("cuMemAlloc_v2:").count(), 1, "{what}: {errors}");
    }
}

#[test]
fn the_environment_chooses_who_is_served() {
    let program = linked("switches.c", "switches");
    for (variable, value, served) in [
        ("FOREBAY_ENABLE", "1", "2"),
        ("FOREBAY_ENABLE", "0", "0"),
        ("FOREBAY_PRELOAD_MIN", "4K", "1"),
        ("FOREBAY_PRELOAD_MIN", "1MiB", "0"),
        ("FOREBAY_PRELOAD_ONLY", "other,switches", "2"),
        ("FOREBAY_PRELOAD_ONLY", "other", "0"),
        ("FOREBAY_PRELOAD_NOT", "other", "2"),
        ("FOREBAY_PRELOAD_NOT", "switches", "0"),
        ("FOREBAY_IPC", "driver", "0"),
        ("FOREBAY_BACKEND", "host", "0"),
    ] {
        let (_, errors) = ends_well(preloaded(&program).arg(served).env(variable, value));
        assert_eq!(errors, "", "{variable}={value}");
    }
    let (_, errors) =
        ends_well(preloaded(&program).arg("2").env("FOREBAY_PRELOAD_MIN", "4 apples"));
    assert!(errors.contains("FOREBAY_PRELOAD_MIN=\"4 apples\" is refused"), "{errors}");
}

/// Without the pool's library, or with one of another version, the driver serves and one line says
/// why.
#[test]
fn without_the_pool_the_driver_serves() {
    let program = linked("switches.c", "alone");
    let folder = built().scratch.join("alone-folder");
    std::fs::create_dir_all(&folder).expect("a folder");
    let copy = folder.join("libforebay_preload.so");
    std::fs::copy(&built().preload, &copy).expect("a copy");
    let (_, errors) = ends_well(preloaded(&program).arg("0").env("LD_PRELOAD", &copy));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("libforebay.so.0 is neither beside"), "{errors}");
}

/// torch_memory_saver#64: several libraries in LD_PRELOAD, in either order; a copy of our own too.
#[test]
fn two_preloaded_libraries_get_on() {
    let program = linked("basic.c", "basic_two");
    let lookups = compile("lookups.c", "lookups_two", &["-rdynamic", "-ldl"]);
    let other = compile("second.c", "libsecond.so", &["-shared", "-fPIC", "-ldl"]);
    let ours = &built().preload;
    ends_well(preloaded(&program).env("LD_PRELOAD", both(ours, &other)));
    ends_well(preloaded(&program).env("LD_PRELOAD", both(&other, ours)));
    ends_well(preloaded(&lookups).env("LD_PRELOAD", both(ours, &other)));
}

#[test]
fn plugins_loaded_deep_are_consistent() {
    compile("deep.c", "libplugin.so", &["-DPLUGIN", "-shared", "-fPIC", "-ldl"]);
    let driver = built().driver.to_str().expect("UTF-8");
    // The plugin is found by the program's own search path, which `dlopen` knows by its caller.
    let with = [driver, "-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN,--enable-new-dtags"];
    let program = compile("deep.c", "deep", &with);
    for (value, served) in [(None, 0), (Some("keep"), 0), (Some("serve"), 1), (Some("deep"), 0)] {
        let mut command = preloaded(&program);
        command.arg("libplugin.so").envs(value.map(|value| ("FOREBAY_DEEPBIND", value)));
        let (out, _) = ends_well(&mut command);
        assert_eq!(out, format!("served {served}\nwell\n"), "{value:?}");
    }
}

#[test]
fn a_machine_without_a_driver_stays_one() {
    let program = compile("absent.c", "absent", &["-ldl"]);
    let (_, errors) = ends_well(preloaded(&program).env_remove("LD_LIBRARY_PATH"));
    assert_eq!(errors, "");
}

/// One python start preloads some 30 processes: none may notice.
#[test]
fn programs_without_cuda_notice_nothing() {
    let script = "import ctypes, threading, subprocess; \
                  print(len(open('/proc/self/maps').read()) > 0, threading.active_count())";
    let programs: [(&str, &[&str]); 4] = [
        ("bash", &["-c", "exit 0"]),
        ("python3", &["-c", script]),
        ("git", &["--version"]),
        ("true", &[]),
    ];
    for (name, arguments) in programs {
        let run = |with: bool| {
            let mut command = preloaded(name);
            if !with {
                command.env_remove("LD_PRELOAD");
            }
            command.args(arguments).output()
        };
        let (Ok(with), Ok(without)) = (run(true), run(false)) else {
            println!("{name}: skipped, it is not installed");
            continue;
        };
        assert_eq!(text(&with.stdout), text(&without.stdout), "{name}");
        assert_eq!(text(&with.stderr), text(&without.stderr), "{name}");
        assert_eq!(with.status, without.status, "{name}");
        let time = |with| {
            let times = (0..9).map(|_| {
                let start = Instant::now();
                let _ended = run(with);
                start.elapsed()
            });
            times.min().unwrap_or_default().as_secs_f64()
        };
        let (with, without) = (time(true), time(false));
        println!("{name}: {:.2} ms, preloaded {:.2} times that", without * 1e3, with / without);
    }
}

#[test]
fn nothing_of_cuda_is_needed_and_only_its_names_are_exported() {
    let Ok(needed) = Command::new("readelf").args(["-dW"]).arg(&built().preload).output() else {
        return println!("skipped: no readelf");
    };
    let needed = text(&needed.stdout);
    assert!(needed.contains("NODELETE"), "{needed}");
    for library in ["libcuda", "libcudart", "libforebay.so"] {
        assert!(!needed.contains(library), "{needed}");
    }
    let exported = Command::new("nm").args(["-D", "--defined-only"]).arg(&built().preload).output();
    let exported = text(&exported.expect("nm is there where readelf is").stdout);
    for line in exported.lines() {
        let name = line.split_whitespace().last().unwrap_or_default();
        let known =
            name.starts_with("cu") || ["dlsym", "dlopen", "forebay_preload_count"].contains(&name);
        assert!(known && !name.contains('@'), "{line}");
    }
    assert!(exported.contains(" cuMemAllocAsync_ptsz\n"), "{exported}");
}

/// The other machine's form of the hook is built where that target is installed.
#[test]
fn the_hook_is_built_for_aarch64() {
    let target = "aarch64-unknown-linux-gnu";
    let installed = Command::new("rustc").args(["--print", "sysroot"]).output().ok();
    let sysroot = installed.map(|o| text(&o.stdout).trim().to_owned()).unwrap_or_default();
    if !Path::new(&sysroot).join("lib/rustlib").join(target).join("lib").is_dir() {
        return println!("skipped: rustup target {target} is not installed");
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["rustc", "--quiet", "--package", "forebay-preload", "--lib", "--target", target]);
    cargo.args(["--crate-type", "staticlib"]);
    let output = cargo.current_dir(root()).output().expect("cargo starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn what_others_know_of_a_blocks_place_holds() {
    ends_well(&mut preloaded(linked("pins.c", "pins")));
}

/// A pool's library of another ABI, or that lacks a function: the driver serves and one line says
/// why.
#[test]
fn a_pool_of_another_version_is_left_alone() {
    let exported = Command::new("nm").args(["-D", "--defined-only"]).arg(&built().pool).output();
    let Ok(exported) = exported else { return println!("skipped: no nm") };
    let exported = text(&exported.stdout);
    let names = exported.lines().filter_map(|line| line.split_whitespace().last());
    let others: String = names
        .filter(|name| name.starts_with("forebay_") && *name != "forebay_abi_version")
        .map(|name| format!("int {name}(void) {{ return 0; }}\n"))
        .collect();
    let version = "unsigned forebay_abi_version(void) { return 2; }\n";
    let program = linked("switches.c", "other_version");
    let folder = built().scratch.join("other-version");
    std::fs::create_dir_all(&folder).expect("a folder");
    let preload = folder.join("libforebay_preload.so");
    std::fs::copy(&built().preload, &preload).expect("a copy");
    for (source, why) in [(version.to_owned() + &others, "speaks ABI 2, not 1"), (others, "lacks")]
    {
        let file = folder.join("pool.c");
        std::fs::write(&file, source).expect("a source");
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-w", "-shared", "-fPIC", "-Wl,-soname,libforebay.so.0", "-o"]);
        let done = cc.arg(folder.join("libforebay.so.0")).arg(&file).output().expect("cc");
        assert!(done.status.success(), "{}", text(&done.stderr));
        let (_, errors) = ends_well(preloaded(&program).arg("0").env("LD_PRELOAD", &preload));
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(why) && errors.contains("driver's own"), "{errors}");
    }
}

/// Linked in front of the driver instead of preloaded.
#[test]
fn a_program_may_be_linked_with_the_library() {
    let [preload, driver] = [&built().preload, &built().driver].map(|p| p.to_str().expect("UTF-8"));
    let more = ["-Wl,--no-as-needed", preload, driver, "-Wl,--allow-shlib-undefined"];
    let program = compile("basic.c", "basic_linked", &more);
    let folders = [&built().preload, &built().driver].map(|p| p.parent().expect("a folder"));
    let mut run = preloaded(&program);
    run.env_remove("LD_PRELOAD");
    ends_well(run.env("LD_LIBRARY_PATH", std::env::join_paths(folders).expect("no colon")));
}

/// `forebay run` with everything as it is installed: the command in `bin`, the libraries in `lib`.
#[test]
fn forebay_run_finds_what_is_installed_beside_it() {
    let prefix = built().scratch.join("prefix");
    for folder in ["bin", "lib"] {
        std::fs::create_dir_all(prefix.join(folder)).expect("a folder");
    }
    let built_in = built().preload.parent().expect("a folder");
    for (name, folder) in
        [("forebay", "bin"), ("libforebay_preload.so", "lib"), ("libforebay.so.0", "lib")]
    {
        std::fs::copy(built_in.join(name), prefix.join(folder).join(name)).expect("a copy");
    }
    let program = linked("basic.c", "basic_installed");
    let mut run = preloaded(prefix.join("bin/forebay"));
    run.env_remove("LD_PRELOAD").args(["run", "--stats", "--limit", "64M", "--"]).arg(&program);
    let (_, errors) = ends_well(&mut run);
    assert!(errors.contains("forebay: cuMemAlloc_v2: 1 served, 2 passed on\n"), "{errors}");
    assert!(errors.contains("forebay: cuMemFree_v2: 1 served, 0 passed on\n"), "{errors}");
}
