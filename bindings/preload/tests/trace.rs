//! `FOREBAY_PRELOAD_TRACE`: what a program allocated and freed, as `forebay replay` reads it.

mod common;

use common::{built, ends_well, forebay, linked, preloaded, preloaded_with, runtimes, text};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fresh place for a trace.
fn place(name: &str) -> PathBuf {
    let file = built().scratch.join(name);
    let _absent = std::fs::remove_file(&file);
    file
}

/// What `forebay replay` says of a trace: events, peak live bytes, bytes that it never frees, and
/// bytes that leaked.
fn replayed(file: &Path) -> [u64; 4] {
    let output = forebay()
        .args(["replay", "--backend", "host", "--json"])
        .arg(file)
        .output()
        .expect("it starts");
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}{errors}", file.display());
    ["events", "peak_live_bytes", "left_by_trace_bytes", "leaked_bytes"].map(|name| {
        let key = format!("\"{name}\":");
        let rest = out.split(&key).nth(1).unwrap_or_else(|| panic!("no {name} in {out}"));
        let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|d| d.parse().ok()).unwrap_or_else(|| panic!("{name} in {out}"))
    })
}

/// The two numbers that the program prints: events and peak.
fn printed(out: &str) -> [u64; 2] {
    let mut numbers = out.split_whitespace().map(|n| n.parse().expect("a number"));
    std::array::from_fn(|_| numbers.next().expect("two numbers"))
}

/// The environment of a preloaded program, for one that `forebay run` starts.
fn environment_of(from: &Command, to: &mut Command) {
    for (name, value) in from.get_envs().filter(|(name, _)| *name != "LD_PRELOAD") {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
}

#[test]
fn a_program_under_forebay_run_is_replayed_to_the_same_figures() {
    let program = linked("traced.c", "traced");
    // Passed on, the driver names what is wrong with some frees: pairs only.
    for (enabled, what) in [("1", &["all"][..]), ("0", &["many", "500"])] {
        let file = place(&format!("traced_{enabled}.csv"));
        let mut run = forebay();
        run.args(["run", "--library"]).arg(&built().preload).arg("--trace").arg(&file);
        environment_of(&preloaded(&program), &mut run);
        let (out, errors) =
            ends_well(run.env("FOREBAY_ENABLE", enabled).arg("--").arg(&program).args(what));
        assert_eq!(errors, "");
        let [events, peak] = printed(out.trim_end_matches("well\n"));
        assert_eq!(replayed(&file), [events, peak, 0, 0], "FOREBAY_ENABLE={enabled}");
        let trace = std::fs::read_to_string(&file).expect("a trace");
        let kinds = ["cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocFromPoolAsync"];
        for name in kinds.iter().filter(|_| enabled == "1") {
            assert_eq!(
                trace.matches(&format!(",0,{name}\n")).count()
                    + trace.matches(&format!(",1,{name}\n")).count(),
                1,
                "{name}"
            );
        }
        assert!(trace.contains(",f,1,,0,cuMemFree_v2\n"), "freed after the trace's own end");
        assert!(!trace.contains("not seen"), "an address is freed before it is given again");
        if enabled == "1" {
            let rows = |end: &str| trace.matches(end).count();
            assert_eq!(rows(",1,cuMemAllocAsync\n"), 50 + 9000, "on the stream that was named");
            assert_eq!(rows(",0,cuMemAllocAsync\n"), 0);
            assert_eq!(rows(",1,cuMemFreeAsync\n"), 34 + 1 + 9000);
        }
    }
}

#[test]
fn calls_by_the_runtimes_names_are_traced_once() {
    let Some(folder) = runtimes() else { return };
    let program = common::with_runtime("five.c", "five_traced", &folder, 12, &[]);
    let file = place("five.csv");
    ends_well(preloaded_with(&folder, &program).env("FOREBAY_PRELOAD_TRACE", &file));
    assert_eq!(replayed(&file), [10, 25000, 0, 0]);
    let trace = std::fs::read_to_string(&file).expect("a trace");
    assert_eq!(trace.matches(",0,cudaMalloc\n").count(), 4, "{trace}");
    assert_eq!(trace.matches(",0,cuMemAlloc_v2\n").count(), 1, "{trace}");
    assert_eq!(trace.matches(",0,cudaFree\n").count(), 5, "{trace}");
}

/// A killed process has written what it did: all of it, once the writer had its turn.
#[test]
fn a_killed_program_leaves_its_trace() {
    let file = place("killed.csv");
    let mut command = preloaded(linked("traced.c", "killed"));
    command.arg("wait").env("FOREBAY_PRELOAD_TRACE", &file).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = Vec::new();
    let out = child.stdout.as_mut().expect("piped");
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).expect("a pipe"), 1, "it ended early");
        line.push(byte[0]);
    }
    let [events, peak] = printed(&text(&line));
    // The last block is freed at the end only, which does not come.
    let rows = events as usize - 1;
    let start = Instant::now();
    let mut seen = 0;
    while seen < rows + 1 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
        seen = std::fs::read_to_string(&file).map_or(0, |trace| trace.lines().count());
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let [replayed_events, replayed_peak, left, leaked] = replayed(&file);
    // A replay frees what the trace leaves.
    assert!([rows as u64, events].contains(&replayed_events), "{replayed_events} of {rows}");
    assert_eq!([replayed_peak, left, leaked], [peak, 3000, 0]);
}

/// The file is a pipe that nobody reads until the program has done far more than the ring holds.
#[test]
fn a_full_ring_loses_events_and_tells_how_many() {
    let pairs = 200_000_u64;
    let pipe = place("slow.fifo");
    let path = std::ffi::CString::new(pipe.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::File::open(pipe).expect("a pipe")
    });
    let mut command = preloaded(linked("traced.c", "slow"));
    command.args(["many", &pairs.to_string()]).env("FOREBAY_PRELOAD_TRACE", &pipe);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut pipe = reader.join().expect("it opens");
    let mut said = [0; 64];
    let mut out = Vec::new();
    while !out.ends_with(b"well\n") {
        let n = child.stdout.as_mut().expect("piped").read(&mut said).expect("a pipe");
        assert!(n > 0, "it ended early: {}", text(&out));
        out.extend_from_slice(&said[..n]);
    }
    let mut trace = String::new();
    pipe.read_to_string(&mut trace).expect("text");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let file = place("slow.csv");
    std::fs::write(&file, &trace).expect("a copy");
    let rows = trace.lines().count() as u64 - 1;
    let made_up = trace.matches(",free not seen\n").count() as u64;
    let errors = text(&output.stderr);
    let lost: u64 = errors
        .split(" of ")
        .next()
        .and_then(|text| text.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no count in {errors:?}"));
    let unmatched: u64 = errors
        .split(" frees of memory")
        .next()
        .and_then(|text| text.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    assert!(lost > 0 && errors.lines().count() == 1, "{errors}");
    assert_eq!(rows - made_up + lost + unmatched, 2 * pairs + 2, "{errors}");
    assert!(trace.contains(" events lost before)\n"), "the file tells where");
    let [events, _, _, leaked] = replayed(&file);
    assert!(events >= rows && leaked == 0, "{events} of {rows}, {leaked} leaked");
}

#[test]
fn a_place_that_cannot_be_written_is_told_once() {
    let program = linked("traced.c", "unwritable");
    for file in ["/no/such/folder/t.csv", "/dev/full"] {
        let (out, errors) = ends_well(preloaded(&program).env("FOREBAY_PRELOAD_TRACE", file));
        assert!(printed(&out)[0] > 1000, "{out}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(file) && errors.contains("nothing is traced"), "{errors}");
    }
}

/// A file that holds something, and one that another process writes, are left alone.
#[test]
fn each_process_has_a_trace_of_its_own() {
    let file = place("kept.csv");
    std::fs::write(&file, "what was there\n").expect("a file");
    let mut command = preloaded(linked("traced.c", "kept"));
    command.args(["many", "3"]).env("FOREBAY_PRELOAD_TRACE", &file);
    let child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let own = PathBuf::from(format!("{}.{}", file.display(), child.id()));
    assert!(child.wait_with_output().expect("it ends").status.success());
    assert_eq!(std::fs::read_to_string(&file).expect("kept"), "what was there\n");
    assert_eq!(replayed(&own), [8, 7096, 0, 0]);
}

#[test]
fn no_thread_and_no_file_without_an_allocation() {
    let file = place("absent.csv");
    let program = common::compile("absent.c", "absent_traced", &["-ldl"]);
    ends_well(
        preloaded(&program).env_remove("LD_LIBRARY_PATH").env("FOREBAY_PRELOAD_TRACE", &file),
    );
    assert!(!file.exists());
}
