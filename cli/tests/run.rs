//! `forebay run`, with a stand-in for the preload library: what the program is started with, what
//! is refused and with which exit code, and what a dry run tells.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A folder of this test run with both libraries and two programs, built once.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("run");
        std::fs::create_dir_all(&dir).expect("a folder");
        let preload = "int cudaMalloc(void **p, unsigned long n) { return p == 0 || n == 7; }\n\
                       int cuMemAlloc_v2(void *p) { return p == 0; }\n";
        build(&dir, "libforebay_preload.so", preload, &["-shared", "-fPIC"]);
        build(&dir, "libforebay.so.0", "int forebay_nothing;\n", &["-shared", "-fPIC"]);
        let cudart = "int cudaMalloc(void **p, unsigned long n) { return p != 0 && n == 7; }\n";
        build(
            &dir,
            "libcudart.so.12",
            cudart,
            &["-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"],
        );
        let client = "extern int cudaMalloc(void **, unsigned long);\n\
                      int main(void) { void *p; return cudaMalloc(&p, 7); }\n";
        let lib = dir.join("libcudart.so.12");
        let lib = lib.to_str().expect("UTF-8");
        build(&dir, "client", client, &[lib, "-Wl,-rpath,$ORIGIN"]);
        dir
    })
}

fn build(dir: &Path, name: &str, text: &str, args: &[&str]) {
    let source = dir.join(format!("{name}.c"));
    std::fs::write(&source, text).expect("a source");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let done = cc.arg(&source).arg("-o").arg(dir.join(name)).args(args).output().expect("cc");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// `forebay run` with the stand-in, then what `args` say.
fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("run").arg("--library").arg(folder().join("libforebay_preload.so"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD").args(args).output().expect("the command starts")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_program_gets_its_arguments_the_library_and_the_settings() {
    let show = "echo \"$LD_PRELOAD|$FOREBAY_LIMIT|$FOREBAY_RESERVE|$FOREBAY_FREE|\
                $FOREBAY_STATS|$1|$0\"; exit 37";
    let options =
        ["--limit", "512M", "--reserve", "10%", "--free", "sync", "--stats", "--", "sh", "-c"];
    let done = run(&[&options[..], &[show, "zero", "--one"]].concat());
    let library = folder().join("libforebay_preload.so").canonicalize().expect("it is there");
    assert_eq!(out(&done), format!("{}|512M|10%|sync|1|--one|zero\n", library.display()));
    assert_eq!(done.status.code(), Some(37), "the program's own exit code");
    assert_eq!(err(&done), "");
    let named = run(&["cat", "/proc/self/cmdline"]);
    assert_eq!(out(&named), "cat\0/proc/self/cmdline\0", "under the name it was asked for");
    let done = run(&["sh", "-c", "echo $FOREBAY_LIMIT$FOREBAY_STATS$FOREBAY_PRELOAD_TRACE"]);
    assert_eq!(out(&done), "\n", "nothing is set that was not asked for");
}

#[test]
fn another_preload_library_keeps_its_place_behind() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("run").arg("--library").arg(folder().join("libforebay_preload.so"));
    let other = folder().join("libcudart.so.12");
    command.env("LD_PRELOAD", &other).args(["sh", "-c", "echo $LD_PRELOAD"]);
    let done = command.output().expect("it starts");
    let text = out(&done);
    let (first, second) = text.trim().split_once(':').expect("two libraries");
    assert!(first.ends_with("/libforebay_preload.so"), "{text}");
    assert_eq!(second, other.to_str().expect("UTF-8"));
}

#[test]
fn the_library_is_really_in_front() {
    // The client's own runtime answers 1 to a request of 7 bytes, and so does the stand-in; only
    // the stand-in refuses a NULL.
    assert_eq!(run(&[folder().join("client").to_str().expect("UTF-8")]).status.code(), Some(1));
    let maps = run(&["cat", "/proc/self/maps"]);
    assert!(out(&maps).contains("libforebay_preload.so"));
}

#[test]
fn exit_codes_tell_what_was_refused() {
    let cases: [(&[&str], i32, &str); 5] = [
        (&["no-such-program-here"], 127, "not found in PATH"),
        (&["/none/such"], 127, "no such file"),
        (&["/etc/passwd"], 126, "not executable"),
        (&["/tmp"], 126, "it is a folder"),
        (&["--trace", "/none/such/t.csv", "true"], 125, "/none/such/t.csv"),
    ];
    for (args, code, sentence) in cases {
        let done = run(args);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {done:?}");
        assert!(err(&done).contains(sentence), "{args:?}: {}", err(&done));
        assert_eq!(out(&done), "");
    }
    let done = run(&["--limit", "12 apples", "true"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(err(&done).contains("512M"), "{}", err(&done));
    let done = run(&[]);
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn a_missing_library_or_pool_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let done = command.args(["run", "--library", "/none/x.so", "true"]).output().expect("starts");
    assert_eq!(done.status.code(), Some(125));
    assert!(err(&done).contains("/none/x.so"), "{}", err(&done));
    let alone = folder().join("alone");
    std::fs::create_dir_all(&alone).expect("a folder");
    let library = alone.join("libforebay_preload.so");
    std::fs::copy(folder().join("libforebay_preload.so"), &library).expect("a copy");
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let done = command.args(["run", "--library"]).arg(&library).arg("true").output();
    let done = done.expect("it starts");
    assert_eq!(done.status.code(), Some(125));
    assert!(err(&done).contains("libforebay.so.0 is missing"), "{}", err(&done));
}

#[test]
fn an_installed_command_finds_the_library_of_its_prefix() {
    let debian = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    for folder_of_libraries in ["bin", "lib", "lib64", &debian] {
        let prefix = folder().join("prefix").join(folder_of_libraries.replace('/', "-"));
        let (bin, lib) = (prefix.join("bin"), prefix.join(folder_of_libraries));
        for dir in [&bin, &lib] {
            std::fs::create_dir_all(dir).expect("a folder");
        }
        let command = bin.join("forebay");
        std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &command).expect("a copy");
        for name in ["libforebay_preload.so", "libforebay.so.0"] {
            std::fs::copy(folder().join(name), lib.join(name)).expect("a copy");
        }
        let mut command = Command::new(command);
        command.env_remove("LD_PRELOAD").args(["run", "sh", "-c", "echo $LD_PRELOAD"]);
        let done = command.output().expect("it starts");
        let library = lib.canonicalize().expect("it is there").join("libforebay_preload.so");
        assert_eq!(out(&done), format!("{}\n", library.display()), "{}", err(&done));
    }
}

#[test]
fn a_place_that_the_loader_would_cut_is_refused() {
    let dir = folder().join("with blank");
    std::fs::create_dir_all(&dir).expect("a folder");
    for name in ["libforebay_preload.so", "libforebay.so.0"] {
        std::fs::copy(folder().join(name), dir.join(name)).expect("a copy");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let library = dir.join("libforebay_preload.so");
    let done = command.args(["run", "--library"]).arg(library).arg("true").output();
    let done = done.expect("it starts");
    assert_eq!(done.status.code(), Some(125));
    assert!(err(&done).contains("blanks"), "{}", err(&done));
}

#[test]
fn static_programs_are_refused_with_the_reason() {
    let source = folder().join("static.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a source");
    let program = folder().join("static");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let done = cc.arg(&source).args(["-static", "-o"]).arg(&program).output().expect("cc");
    if !done.status.success() {
        println!("SKIPPED: this compiler links no static programs");
        return;
    }
    let done = run(&[program.to_str().expect("UTF-8")]);
    assert_eq!(done.status.code(), Some(125));
    assert!(err(&done).contains("statically linked"), "{}", err(&done));
}

#[test]
fn a_dry_run_names_what_would_be_hooked_and_runs_nothing() {
    let client = folder().join("client");
    let done = run(&["--dry-run", client.to_str().expect("UTF-8")]);
    assert!(done.status.success(), "{done:?}");
    let text = out(&done);
    let line = text.lines().find(|l| l.starts_with("hooked")).expect("it imports cudaMalloc");
    assert!(line.ends_with("run/client: cudaMalloc"), "{line}");
    assert!(text.contains("preload   "), "{text}");
    assert!(!text.contains("not found"), "{text}");
    let script = folder().join("script");
    std::fs::write(&script, "#!/bin/sh\nexit 9\n").expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("its mode");
    let done = run(&["--dry-run", script.to_str().expect("UTF-8")]);
    assert_eq!(done.status.code(), Some(0));
    assert!(out(&done).contains("run by /bin/sh"), "{}", out(&done));
    assert!(out(&done).contains("nothing is imported by name"), "{}", out(&done));
    assert_eq!(run(&[script.to_str().expect("UTF-8")]).status.code(), Some(9));
}
