//! Settings as a program meets them: every kind of value, what is refused and how it is
//! said, and the document that must say the same as the code. What needs an environment or
//! a log of its own is in [`process`].

#[path = "configuration/process.rs"]
mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::config::{
    Backend, Config, DebugChecks, FreeMode, Leaks, LogLevel, LogSetting, Move, Problem, Reuse, Size,
};
use forebay::error::Status;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn read(vars: &[(&str, &str)]) -> (Config, Vec<Problem>) {
    Config::from_vars(vars.iter().copied())
}

/// The settings of variables that must all be accepted.
fn accepted(vars: &[(&str, &str)]) -> Config {
    let (config, problems) = read(vars);
    assert_eq!(problems, [], "{vars:?}");
    config
}

/// The one problem of one variable whose value must be refused, leaving all defaults.
fn refused(name: &str, value: &str) -> Problem {
    let (config, mut problems) = read(&[(name, value)]);
    assert_eq!(config, Config::default(), "{name}={value:?}");
    assert_eq!(problems.len(), 1, "{name}={value:?}: {problems:?}");
    let problem = problems.remove(0);
    assert_eq!(problem.variable, name);
    assert!(!problem.unknown);
    problem
}

#[test]
fn an_empty_environment_gives_the_defaults() {
    let config = accepted(&[("PATH", "/bin"), ("FOREBAY", "x"), ("forebay_limit", "x")]);
    assert_eq!(config, Config::default());
    assert_eq!(config.oom_wait_ms, 1000);
    assert_eq!(config.keeper_budget_ms, 100);
    assert!(config.keeper && config.host_context_events && !config.strict);
    assert!(config.reuse.follow_event_dependencies && config.reuse.opportunistic);
    assert!(!config.reuse.internal_dependencies);
}

#[test]
fn sizes() {
    let values = [
        ("4096", Size::Bytes(4096)),
        ("4096B", Size::Bytes(4096)),
        ("1", Size::Bytes(1)),
        ("512M", Size::Bytes(512 * MIB)),
        ("512m", Size::Bytes(512 * MIB)),
        ("20GiB", Size::Bytes(20 * GIB)),
        ("20gib", Size::Bytes(20 * GIB)),
        ("1.5GiB", Size::Bytes(3 * GIB / 2)),
        ("0.5k", Size::Bytes(512)),
        ("2G", Size::Bytes(2 * GIB)),
        ("3T", Size::Bytes(3 * TIB)),
        ("7 KiB", Size::Bytes(7 * KIB)),
        ("  80%\t", Size::Percent(80_000)),
        ("12.5%", Size::Percent(12_500)),
        ("0.001 %", Size::Percent(1)),
        ("100%", Size::Percent(100_000)),
        ("18446744073709551615", Size::Bytes(u64::MAX)),
        ("16777215.999T", Size::Bytes(18446744072610039988)),
        // A fraction of a byte is dropped: 0.3 KiB is 307.2.
        ("0.3K", Size::Bytes(307)),
    ];
    for (text, size) in values {
        assert_eq!(accepted(&[("FOREBAY_LIMIT", text)]).limit, Some(size), "{text:?}");
    }
    // Separated by bars; the first is empty.
    let wrong = "| |12 apples|apples|G|%|.|.5G|5.G|1.5|1.5B|1..5G|1.2.3G|-1|+1|1e9|0x10|20GB|20Gi\
                 |1G 2|1,5G|101%|100.001%|80 percent|80%%|18446744073709551616|16777216T\
                 |99999999999999999999999%|1.1234567890G|1.0001%|٣G|1 G iB|none";
    for text in wrong.split('|') {
        let problem = refused("FOREBAY_LIMIT", text);
        assert!(problem.accepted.contains("4096, 512M, 1.5GiB or 80%"), "{problem:?}");
    }
    for text in ["0", "0%", "0.0G", "0.0001K"] {
        refused("FOREBAY_LIMIT", text);
        refused("FOREBAY_SOFT_LIMIT", text);
    }
    for name in ["FOREBAY_RESERVE", "FOREBAY_HEADROOM", "FOREBAY_CACHE"] {
        accepted(&[(name, "0")]);
        refused(name, "much");
    }
    assert_eq!(accepted(&[("FOREBAY_RESERVE", "1%")]).reserve, Size::Percent(1000));
    assert_eq!(accepted(&[("FOREBAY_HEADROOM", "0")]).headroom, Some(Size::Bytes(0)));
    let threshold = accepted(&[("FOREBAY_RELEASE_THRESHOLD", "3K")]).release_threshold;
    assert_eq!(threshold, Some(Size::Bytes(3 * KIB)));
    assert_eq!(accepted(&[("FOREBAY_CACHE", "1M")]).cache, Some(Size::Bytes(MIB)));
    assert_eq!(accepted(&[("FOREBAY_SOFT_LIMIT", "1M")]).soft_limit, Some(Size::Bytes(MIB)));
}

#[test]
fn sizes_resolve_and_print() {
    assert_eq!(Size::Percent(80_000).resolve(1000), 800);
    assert_eq!(Size::Percent(33_333).resolve(1000), 333);
    assert_eq!(Size::Percent(100_000).resolve(u64::MAX), u64::MAX);
    assert_eq!(Size::Percent(u32::MAX).resolve(10), 10);
    assert_eq!(Size::Percent(50_000).resolve(u64::MAX), u64::MAX / 2);
    assert_eq!(Size::Bytes(5).resolve(1), 5);
    let printed = [
        (Size::Bytes(0), "0"),
        (Size::Bytes(1023), "1023"),
        (Size::Bytes(1536 * MIB), "1536MiB"),
        (Size::Bytes(2 * TIB), "2TiB"),
        (Size::Percent(80_000), "80%"),
        (Size::Percent(12_500), "12.5%"),
        (Size::Percent(1), "0.001%"),
        (Size::Percent(0), "0%"),
    ];
    for (size, text) in printed {
        assert_eq!(size.to_string(), text);
        assert_eq!(text.parse::<Size>(), Ok(size));
    }
    let error = "12 apples".parse::<Size>().expect_err("no size");
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().starts_with("\"12 apples\" is not a size such as "), "{error}");
}

#[test]
fn durations_and_numbers() {
    let values = [
        ("0", Duration::ZERO),
        ("250", Duration::from_millis(250)),
        ("500ms", Duration::from_millis(500)),
        (" 500 MS ", Duration::from_millis(500)),
        ("10s", Duration::from_secs(10)),
        ("10 S", Duration::from_secs(10)),
    ];
    for (text, duration) in values {
        assert_eq!(accepted(&[("FOREBAY_DECAY", text)]).decay, duration, "{text:?}");
    }
    for text in ["", "s", "ms", "1.5s", "-1", "10m", "10 s s", "soon", "18446744073709551616"] {
        refused("FOREBAY_DECAY", text);
    }
    assert_eq!(accepted(&[("FOREBAY_OOM_WAIT_MS", "0")]).oom_wait_ms, 0);
    assert_eq!(accepted(&[("FOREBAY_OOM_WAIT_MS", "2s")]).oom_wait_ms, 2000);
    assert_eq!(accepted(&[("FOREBAY_OOM_WAIT_MS", "4294967295")]).oom_wait_ms, u32::MAX);
    refused("FOREBAY_OOM_WAIT_MS", "4294967296");
    refused("FOREBAY_OOM_WAIT_MS", "18446744073709551615s");
    assert_eq!(accepted(&[("FOREBAY_KEEPER_BUDGET_MS", "1000")]).keeper_budget_ms, 1000);
    refused("FOREBAY_KEEPER_BUDGET_MS", "1001");
    assert_eq!(accepted(&[("FOREBAY_DEVICE", "7")]).device, 7);
    for text in ["", "-1", "+1", "1.0", "gpu0", "2147483648"] {
        refused("FOREBAY_DEVICE", text);
    }
    assert_eq!(accepted(&[("FOREBAY_HOST_EVENT_NS", "700")]).host_event_ns, 700);
    for text in ["", "1000000001", "1us"] {
        refused("FOREBAY_HOST_EVENT_NS", text);
    }
}

#[test]
fn switches() {
    for (texts, value) in
        [(["1", "true", "ON", " yes "], true), (["0", "False", "off", "no"], false)]
    {
        for text in texts {
            assert_eq!(accepted(&[("FOREBAY_KEEPER", text)]).keeper, value, "{text:?}");
            assert_eq!(accepted(&[("FOREBAY_SCRUB", text)]).scrub, value, "{text:?}");
            assert_eq!(accepted(&[("FOREBAY_BACKTRACE", text)]).backtrace, value, "{text:?}");
            assert_eq!(accepted(&[("FOREBAY_STRICT", text)]).strict, value, "{text:?}");
            let config = accepted(&[("FOREBAY_HOST_CONTEXT_EVENTS", text)]);
            assert_eq!(config.host_context_events, value, "{text:?}");
        }
    }
    for text in ["", "2", "maybe", "y", "onn"] {
        refused("FOREBAY_KEEPER", text);
        refused("FOREBAY_STRICT", text);
    }
}

#[test]
fn words_and_lists() {
    let backend = |text| accepted(&[("FOREBAY_BACKEND", text)]).backend;
    assert_eq!(
        ["auto", "CUDA", " host"].map(backend),
        [Backend::Auto, Backend::Cuda, Backend::Host]
    );
    let leaks = |text| accepted(&[("FOREBAY_LEAKS", text)]).leaks;
    assert_eq!(["off", "summary", "full"].map(leaks), [Leaks::Off, Leaks::Summary, Leaks::Full]);
    let moves = |text| accepted(&[("FOREBAY_MOVE", text)]).r#move;
    assert_eq!(["1", "idle", "0"].map(moves), [Move::Always, Move::Idle, Move::Never]);
    let free = |text| accepted(&[("FOREBAY_FREE", text)]).free;
    let modes = [FreeMode::Deferred, FreeMode::Sync, FreeMode::Stream];
    assert_eq!(["deferred", "sync", "stream"].map(free), modes);
    for name in ["FOREBAY_BACKEND", "FOREBAY_LEAKS", "FOREBAY_MOVE", "FOREBAY_FREE"] {
        for text in ["", "cuda,host", "rocm", "2"] {
            refused(name, text);
        }
    }

    let debug = |text| accepted(&[("FOREBAY_DEBUG", text)]).debug;
    let checks = |poison, guard, streams| DebugChecks { poison, guard, streams };
    assert_eq!(debug("none"), checks(false, false, false));
    assert_eq!(debug("poison"), checks(true, false, false));
    assert_eq!(debug("Streams , poison"), checks(true, false, true));
    assert_eq!(debug("poison,guard,streams,guard"), checks(true, true, true));
    let reuse = |text| accepted(&[("FOREBAY_REUSE", text)]).reuse;
    assert_eq!(reuse("none"), Reuse::NONE);
    assert_eq!(reuse("opportunistic"), Reuse { opportunistic: true, ..Reuse::NONE });
    let all = "internal_dependencies,follow_event_dependencies,opportunistic";
    assert_eq!(reuse(all), Reuse { internal_dependencies: true, ..Reuse::default() });
    for name in ["FOREBAY_DEBUG", "FOREBAY_REUSE"] {
        for text in ["", ",", "poison,", "none,poison", "poison guard", "all"] {
            refused(name, text);
        }
    }
}

#[test]
fn log_settings() {
    let log = |text| accepted(&[("FOREBAY_LOG", text)]).log;
    let setting = |level, file: Option<&str>| LogSetting { level, file: file.map(PathBuf::from) };
    assert_eq!(log("off"), setting(LogLevel::Off, None));
    assert_eq!(log("error"), setting(LogLevel::Error, None));
    assert_eq!(log("WARN"), setting(LogLevel::Warn, None));
    assert_eq!(log("info, run.log"), setting(LogLevel::Info, Some("run.log")));
    assert_eq!(log("debug,a,b.log"), setting(LogLevel::Debug, Some("a,b.log")));
    assert_eq!(log("trace"), setting(LogLevel::Trace, None));
    for text in ["", "info,", "info, ", ",run.log", "loud", "run.log", "6"] {
        refused("FOREBAY_LOG", text);
    }
}

#[test]
fn bytes_depend_on_the_device() {
    let plain = Config::default();
    assert_eq!(plain.headroom_bytes(80 * GIB, false), 512 * MIB);
    assert_eq!(plain.headroom_bytes(80 * GIB, true), 0);
    assert_eq!(plain.headroom_bytes(100, false), 100);
    assert_eq!(plain.limit_bytes(80 * GIB, false), 80 * GIB - 512 * MIB);
    assert_eq!(plain.limit_bytes(80 * GIB, true), 80 * GIB);
    assert_eq!(plain.soft_limit_bytes(GIB), None);
    assert_eq!(plain.reserve_bytes(GIB), 0);
    assert_eq!(plain.release_threshold_bytes(GIB), u64::MAX);
    assert_eq!(plain.cache_bytes(80 * GIB, 80 * GIB), 64 * MIB);
    assert_eq!(plain.cache_bytes(80 * GIB, 64 * MIB), MIB);

    let set = accepted(&[
        ("FOREBAY_LIMIT", "80%"),
        ("FOREBAY_SOFT_LIMIT", "50%"),
        ("FOREBAY_RESERVE", "10%"),
        ("FOREBAY_HEADROOM", "1%"),
        ("FOREBAY_CACHE", "2%"),
        ("FOREBAY_DECAY", "1s"),
    ]);
    assert_eq!(set.limit_bytes(1000, false), 800);
    assert_eq!(set.soft_limit_bytes(1000), Some(500));
    assert_eq!(set.reserve_bytes(1000), 100);
    assert_eq!(set.headroom_bytes(1000, true), 10);
    assert_eq!(set.cache_bytes(1000, 800), 20);
    assert_eq!(set.release_threshold_bytes(1000), 0);
    assert_eq!(accepted(&[("FOREBAY_LIMIT", "9T")]).limit_bytes(GIB, false), GIB);
}

#[test]
fn settings_that_contradict_the_limit_are_refused() {
    let (config, problems) = read(&[
        ("FOREBAY_SOFT_LIMIT", "2G"),
        ("FOREBAY_RESERVE", "1025M"),
        ("FOREBAY_LIMIT", "1G"),
    ]);
    assert_eq!(config.limit, Some(Size::Bytes(GIB)));
    assert_eq!((config.soft_limit, config.reserve), (None, Size::Bytes(0)));
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    let expected = [
        "FOREBAY_RESERVE=\"1025MiB\" is refused, the default holds; \
         accepted: at most FOREBAY_LIMIT, which is 1GiB",
        "FOREBAY_SOFT_LIMIT=\"2GiB\" is refused, the default holds; \
         accepted: at most FOREBAY_LIMIT, which is 1GiB",
    ];
    assert_eq!(texts, expected);
    let (_, problems) = read(&[("FOREBAY_SOFT_LIMIT", "90%"), ("FOREBAY_LIMIT", "80%")]);
    assert_eq!(problems.len(), 1);
    // Equal is fine, and what needs the device's size to compare is left alone.
    accepted(&[("FOREBAY_RESERVE", "1G"), ("FOREBAY_LIMIT", "1024M")]);
    accepted(&[("FOREBAY_RESERVE", "99%"), ("FOREBAY_LIMIT", "1M")]);
}

#[test]
fn unknown_names_are_named_and_near_ones_suggested() {
    let (config, problems) = read(&[
        ("FOREBAY_LIMT", "1G"),
        ("FOREBAY_", "x"),
        ("FOREBAY_COLOUR", "blue"),
        ("FOREBAY_TRACES", "dir"),
        ("FOREBAY_LIBRARY", "file"),
        ("FOREBAY_CARGO_TARGET_DIR", "dir"),
        ("FOREBAY_SYSTEM_TOOLS", "1"),
        ("FOREBAY_BENCH_RUNS", "5"),
        ("FOREBAY_TEST_SEED", "1"),
        ("FOREBAY_limit", "1G"),
    ]);
    assert_eq!(config, Config::default());
    assert!(problems.iter().all(|problem| problem.unknown));
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    let unknown = "is not a variable of Forebay and is ignored;";
    let lists = "docs/configuration.md lists the names";
    assert_eq!(texts[0], format!("FOREBAY_ {unknown} {lists}"));
    assert_eq!(texts[1], format!("FOREBAY_COLOUR {unknown} {lists}"));
    let meant = format!("FOREBAY_LIMT {unknown} did you mean FOREBAY_LIMIT (a size above 0 such");
    assert!(texts[2].starts_with(&meant), "{}", texts[2]);
    assert_eq!(texts[3], format!("FOREBAY_limit {unknown} {lists}"));
    assert_eq!(texts.len(), 4);
}

#[cfg(unix)]
#[test]
fn bytes_that_are_no_text_are_refused() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let bad = OsStr::from_bytes(b"1\xffG");
    let (config, problems) = Config::from_vars([(OsStr::new("FOREBAY_LIMIT"), bad)]);
    assert_eq!(config, Config::default());
    assert_eq!(problems[0].value, "\"1\u{fffd}G\"");
    let (_, problems) = Config::from_vars([(OsStr::from_bytes(b"FOREBAY_\xff\n"), "1")]);
    assert_eq!(problems[0].variable, "FOREBAY_\u{fffd}\\n");
    assert!(problems[0].unknown);
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    std::fs::read_to_string(path).expect("docs/configuration.md")
}

#[test]
fn the_document_has_the_table_of_the_code() {
    let table: Vec<String> = document()
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.to_string() + "\n")
        .collect();
    let expected = forebay::config::table::markdown();
    assert_eq!(table.concat(), expected, "docs/configuration.md must hold:\n{expected}");
}

#[test]
fn the_examples_of_the_document_hold() {
    let text = document();
    let mut examples = 0;
    for block in text.split("```sh\n").skip(1) {
        let block = block.split("```").next().expect("a closed block");
        for assignment in block.split_whitespace().filter(|word| word.starts_with("FOREBAY_")) {
            let (name, value) = assignment.split_once('=').expect("an assignment");
            accepted(&[(name, value)]);
            examples += 1;
        }
    }
    assert!(examples >= 10, "{examples}");
    for (name, value) in [("FOREBAY_LIMIT", "12 apples"), ("FOREBAY_LIMT", "20GiB")] {
        let (_, problems) = read(&[(name, value)]);
        let line = format!("forebay: {}", problems[0]);
        assert!(text.contains(&line), "docs/configuration.md must say:\n{line}");
    }
}
