//! What went wrong in other libraries that stand between programs and CUDA, each with its source;
//! `docs/preload.md` lists them all, with the tests of the other files that show some of them.

mod common;

use common::{both, built, compile, ends_well, linked, preloaded, text};
use std::path::PathBuf;
use std::process::Command;

/// What the program prints, which must be the same with this library and without it.
fn prints_the_same(run: impl Fn() -> Command) -> String {
    let (with, _) = told(&mut run());
    let (without, _) = told(run().env_remove("LD_PRELOAD"));
    let differs = with.lines().zip(without.lines()).find(|(with, without)| with != without);
    assert_eq!(differs, None, "preloaded, and not");
    assert_eq!(with.lines().count(), without.lines().count());
    with
}

/// Runs a program to a good end, whatever it misuses; its two outputs.
fn told(command: &mut Command) -> (String, String) {
    let output = command.output().expect("it starts");
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.ends_with("well\n"), "{command:?}: {out}{errors}");
    (out, errors)
}

/// HAMi-core#233, nvshare#11, vcuda-controller#20, gpu-manager#139 and #169: each name by each
/// version and flag is the form that the driver has for it, on drivers old and new.
#[test]
fn each_name_leads_to_the_form_that_was_asked_for() {
    let program = compile("forms.c", "forms", &["-rdynamic", "-ldl"]);
    for version in ["11010", "11020", "11040", "11080", "12000", "12040", "12080", "13000"] {
        let answers = prints_the_same(|| {
            let mut run = preloaded(&program);
            run.env("FOREBAY_SIM_VERSION", version);
            run
        });
        assert!(answers.contains("cuMemAlloc 3020 0: "), "{version}");
    }
}

/// HAMi-core#233: a form that a newer driver has, and nobody knew when this was written.
#[test]
fn a_newer_form_is_the_drivers() {
    let folder = built().scratch.join("newer-driver");
    std::fs::create_dir_all(&folder).expect("a folder");
    let shared = ["-DDRIVER", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    compile("newer.c", "newer-driver/libcuda.so.1", &shared);
    let program = compile("newer.c", "newer", &["-rdynamic", "-ldl"]);
    ends_well(preloaded(&program).env("LD_LIBRARY_PATH", &folder));
}

/// Functions that drivers of CUDA 11.1 do not have.
const NEWER: [&str; 6] = [
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuCtxRecordEvent",
];

/// The folder of a driver whose symbols these names are not: each is changed in its table of names.
fn driver_without(names: &[&str]) -> PathBuf {
    let folder = built().scratch.join("older-driver");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut driver = std::fs::read(&built().driver).expect("the driver");
    for name in names {
        let entry = format!("\0{name}\0").into_bytes();
        let mut from = 0;
        while let Some(at) = driver[from..].windows(entry.len()).position(|bytes| bytes == entry) {
            driver[from + at + 1] = b'z';
            from += at + entry.len() - 1;
        }
        assert!(from > 0, "the driver has {name}");
    }
    std::fs::write(folder.join("libcuda.so.1"), driver).expect("it can be written");
    folder
}

/// HAMi#27: on a driver without stream-ordered memory its names are not there, by any way to look
/// them up, and nothing of this library needs them.
#[test]
fn a_driver_may_lack_functions() {
    let older = driver_without(&NEWER);
    let lacking = linked("lacking.c", "lacking");
    let answers = prints_the_same(|| {
        let mut run = preloaded(&lacking);
        run.args(NEWER).env("LD_LIBRARY_PATH", &older);
        run.env("FOREBAY_SIM_WITHOUT", NEWER.join(","));
        run
    });
    for name in NEWER {
        let line = format!("{name}: handle 0, global 0, asked 0 1 0");
        assert!(answers.contains(&line), "{line}: {answers}");
    }
    assert!(answers.contains("cuMemAllocManaged: handle 1, global 1, asked 0 0 1"), "{answers}");

    let basic = linked("basic.c", "basic_lacking");
    ends_well(preloaded(&basic).env("FOREBAY_SIM_WITHOUT", NEWER.join(",")));
    ends_well(preloaded(&basic).env("FOREBAY_SIM_VERSION", "11010").env("LD_LIBRARY_PATH", older));
}

/// nvshare#21: a version of `dlsym` that the C library of another machine lacks; HAMi#27,
/// sglang#36643: names of CUDA that are not there. Neither is asked of the loader.
#[test]
fn no_name_of_cuda_and_no_version_of_dlsym_is_needed() {
    let Ok(needed) =
        Command::new("nm").args(["-D", "--undefined-only"]).arg(&built().preload).output()
    else {
        return println!("skipped: no nm");
    };
    let needed = text(&needed.stdout);
    assert!(needed.contains(" dlvsym@"), "{needed}");
    for line in needed.lines() {
        let name = line.split_whitespace().last().unwrap_or_default();
        assert!(!name.starts_with("dlsym") && !name.starts_with("cu"), "{line}");
    }
}

fn names() -> [PathBuf; 3] {
    let library = |name| compile("names_library.c", name, &["-shared", "-fPIC", "-ldl"]);
    let program = compile("names.c", "names", &["-rdynamic", "-ldl"]);
    [program, library("libnames.so"), library("libnvidia-names.so")]
}

/// HAMi-core#215, vgpu-manager#89: cuDNN's names; HAMi-core#326: the driver's own look-ups;
/// HAMi#2903: look-ups of many threads; HAMi-core#52, HAMi#1834: before `cuInit`.
#[test]
fn look_ups_are_answered_as_without_us() {
    let [program, library, of_driver] = names();
    for what in ["others", "driver", "threads", "early"] {
        let run = || {
            let mut run = preloaded(&program);
            run.arg(what).args([&library, &of_driver]);
            run
        };
        ends_well(&mut run());
        ends_well(run().env_remove("LD_PRELOAD"));
    }
}

/// HAMi-core#321, #217, #281: addresses of others, of every kind, freed and asked about;
/// HAMi-core#172, #187, #188: threads without a context; blocks of the program's own, used wrongly.
#[test]
fn what_is_not_the_pools_is_answered_as_without_us() {
    let program = linked("plain.c", "plain");
    for (what, enabled) in [("foreign", "1"), ("foreign", "0"), ("bare", "1"), ("own", "1")] {
        let answers = prints_the_same(|| {
            let mut run = preloaded(&program);
            run.arg(what).env("FOREBAY_ENABLE", enabled);
            run
        });
        assert!(answers.lines().count() > 10, "{answers}");
    }
}

/// HAMi-core#306: an allocation leaked when a call after it failed. Each call that the pool makes
/// fails, one after another, and for ever.
#[test]
fn a_failing_call_loses_no_memory() {
    let program = linked("faulted.c", "faulted");
    let mut seen = 0;
    let calls = [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAddressReserve",
        "cuEventCreate",
        "cuCtxRecordEvent",
    ];
    for call in calls {
        for number in 1..=3 {
            for code in ["2", "999"] {
                let faults = format!("fail {call} with {code} #{number}");
                let (out, _) = ends_well(preloaded(&program).env("FOREBAY_SIM_FAULTS", &faults));
                seen += usize::from(!out.starts_with("0 failed"));
            }
        }
    }
    println!("{seen} runs in which the program was told of the failure");
}

/// rust-lang/rust#91979, hegel-rust#387: a library of Rust's that is closed and has thread-locals.
#[test]
fn closing_the_library_leaves_it_loaded() {
    let program = linked("closed.c", "closed");
    let mut run = preloaded(&program);
    ends_well(run.env_remove("LD_PRELOAD").arg(&built().preload));
}

/// torch_memory_saver#33, #64: a list with entries that are not there.
#[test]
fn other_entries_of_the_list_may_be_missing() {
    let program = linked("basic.c", "basic_listed");
    for list in ["/no/such.so:OURS", "OURS /no/such.so", ":OURS:", "OURS:OURS"] {
        let list = list.replace("OURS", built().preload.to_str().expect("UTF-8"));
        let (_, errors) = ends_well(preloaded(&program).env("LD_PRELOAD", &list));
        assert!(!errors.contains("forebay:"), "{errors}");
    }
}

/// torch_memory_saver#4: two layers that both want the device's pages; openucx/ucx#4540: a cache of
/// what kind of memory lies where, fed by a layer of its own.
#[test]
fn another_layer_sees_every_call_or_none() {
    let program = linked("layered.c", "layered");
    let layer = compile("layer.c", "liblayer.so", &["-shared", "-fPIC", "-ldl"]);
    let ours = &built().preload;
    // What is below that size is not the pool's: half of the calls go on to the driver.
    for least in ["0", "64K"] {
        for (order, list) in [("first", both(&layer, ours)), ("last", both(ours, &layer))] {
            let mut run = preloaded(&program);
            run.args([order, least]).env("FOREBAY_PRELOAD_MIN", least);
            ends_well(run.env("LD_PRELOAD", list));
        }
    }
}

/// torch_memory_saver#88: other physical memory under an address that a network card knows.
#[test]
fn a_live_block_keeps_its_physical_memory() {
    ends_well(&mut preloaded(linked("moved.c", "moved")));
}
