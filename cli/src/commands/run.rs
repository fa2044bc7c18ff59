//! `forebay run`: an unchanged program with the preload library, or what that would do.
//!
//! Owns the environment that the program gets, and the refusals: what the loader would start
//! without the library is not started at all. On success the program replaces this process, so
//! signals and its exit status are its own. Exit codes otherwise are those of env(1): 125 when
//! the library cannot be preloaded, 126 when the program cannot be run, 127 when it is not there.

use super::{Failure, say};
use crate::args::RunArgs;
use crate::program::{self, Image, Program, Refusal};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PRELOAD: &str = "libforebay_preload.so";
const POOL: &str = "libforebay.so.0";

/// Runs the command. Returns only where the program was not started.
pub fn run(args: &RunArgs) -> Result<bool, Failure> {
    let preload = library(args.library.as_deref())?;
    let [name, rest @ ..] = &args.program[..] else { return Ok(false) };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = program::look(name, &path).map_err(refused)?;
    if args.dry_run {
        return tell(&program, &preload);
    }
    let mut command = Command::new(&program.file);
    command.arg0(name).args(rest).env("LD_PRELOAD", with_preload(&preload)?);
    for (variable, value) in environment(args)? {
        command.env(variable, value);
    }
    let error = command.exec();
    Err(Failure::Code(126, format!("{}: {error}", program.file.display())))
}

fn refused(refusal: Refusal) -> Failure {
    let code = match refusal {
        Refusal::Missing(_) => 127,
        Refusal::NotExecutable(_) => 126,
        Refusal::Unreachable(_) => 125,
    };
    Failure::Code(code, refusal.sentence().to_owned())
}

/// What the options set.
fn environment(args: &RunArgs) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let mut set: Vec<(&str, OsString)> = Vec::new();
    let texts = [
        ("FOREBAY_LIMIT", &args.limit),
        ("FOREBAY_RESERVE", &args.reserve),
        ("FOREBAY_FREE", &args.free),
    ];
    set.extend(texts.iter().filter_map(|(name, v)| v.as_ref().map(|v| (*name, v.into()))));
    if args.stats {
        set.push(("FOREBAY_STATS", "1".into()));
    }
    if let Some(file) = &args.trace {
        let told = |e: std::io::Error| Failure::Code(125, format!("{}: {e}", file.display()));
        // Made now: a place that cannot be written is told before the program starts. What is
        // there stays: the library then writes beside it.
        let mut open = std::fs::OpenOptions::new();
        open.write(true).create(true).truncate(false).open(file).map_err(told)?;
        set.push(("FOREBAY_PRELOAD_TRACE", std::path::absolute(file).map_err(told)?.into()));
    }
    Ok(set)
}

/// The preload library as an absolute path, with the pool's beside it.
fn library(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let candidates = match named {
        Some(file) => vec![file.to_owned()],
        None => beside_this_command(),
    };
    let Some(file) = candidates.iter().find(|file| file.is_file()) else {
        let places: Vec<String> = candidates.iter().map(|c| c.display().to_string()).collect();
        let text = format!(
            "no preload library at {}; --library names it, `cargo build --release -p \
             forebay-preload` builds it",
            places.join(" or ")
        );
        return Err(Failure::Code(125, text));
    };
    let told = |e: std::io::Error| Failure::Code(125, format!("{}: {e}", file.display()));
    let file = file.canonicalize().map_err(told)?;
    let pool = file.with_file_name(POOL);
    if !pool.is_file() {
        let text = format!("{} is missing: the preload library needs it there", pool.display());
        return Err(Failure::Code(125, text));
    }
    Ok(file)
}

fn beside_this_command() -> Vec<PathBuf> {
    let Ok(own) = std::env::current_exe() else { return vec![PRELOAD.into()] };
    let dir = own.parent().unwrap_or(Path::new("/")).to_owned();
    let lib = dir.parent().unwrap_or(Path::new("/")).to_owned();
    // The library folders of an installation: most systems', Fedora's and its like, Debian's.
    let debian = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    let installed = ["lib", "lib64", &debian].map(|name| lib.join(name).join(PRELOAD));
    std::iter::once(dir.join(PRELOAD)).chain(installed).collect()
}

/// `LD_PRELOAD` with the library in front of what is there already.
fn with_preload(file: &Path) -> Result<OsString, Failure> {
    if file.as_os_str().as_bytes().iter().any(|b| b": \t\n$".contains(b)) {
        let text = format!(
            "{}: the loader cuts LD_PRELOAD at blanks and colons and replaces $; put the library \
             elsewhere",
            file.display()
        );
        return Err(Failure::Code(125, text));
    }
    let mut value = file.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Ok(value)
}

/// The dry run: what is loaded, and which of its imports the library would take.
fn tell(program: &Program, preload: &Path) -> Result<bool, Failure> {
    let told = |text: String| Failure::Code(125, text);
    let hooks: BTreeSet<String> = program::exports(preload).map_err(told)?.into_iter().collect();
    say(format_args!("program   {}", program.file.display()))?;
    for interpreter in &program.interpreters {
        say(format_args!("          run by {}", interpreter.display()))?;
    }
    say(format_args!("preload   {} ({} names)", preload.display(), hooks.len()))?;
    let mut taken = hooked(&program.image, &hooks)?;
    let library_path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    for library in program::closure(&program.image, &library_path) {
        match &library.image {
            Some(image) => taken |= hooked(image, &hooks)?,
            None => say(format_args!("not found {}", library.name))?,
        }
    }
    if !taken {
        say("nothing is imported by name; what the program loads later is hooked as it asks")?;
    }
    Ok(true)
}

/// One line for an image that imports or carries something of CUDA's.
fn hooked(image: &Image, hooks: &BTreeSet<String>) -> Result<bool, Failure> {
    let of_cuda = |name: &&String| name.starts_with("cu");
    let imports: Vec<&str> =
        image.imports.iter().filter(|name| hooks.contains(*name)).map(String::as_str).collect();
    let (cuda, look_ups): (Vec<&str>, Vec<&str>) =
        imports.iter().partition(|name| name.starts_with("cu") && !name.contains("ProcAddress"));
    let carried = image.locals.iter().filter(of_cuda).any(|name| hooks.contains(name));
    let file = image.file.display();
    if !cuda.is_empty() {
        say(format_args!("hooked    {file}: {}", cuda.join(", ")))?;
    }
    if carried {
        say(format_args!("static    {file}: it carries a CUDA runtime, hooked below it"))?;
    }
    if (carried || !cuda.is_empty()) && !look_ups.is_empty() {
        say(format_args!("look-ups  {file}: {}", look_ups.join(", ")))?;
    }
    Ok(carried || !cuda.is_empty())
}
