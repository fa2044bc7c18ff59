//! What a program file is, and whether a preloaded library can reach it.
//!
//! Owns the way from a name to the file that the kernel will load (`PATH`, `#!` lines), and the
//! reasons why the dynamic loader would not load a preload library there. Reads files; runs
//! nothing, and maps nothing into this process. Cost: a file read for each look.

mod elf;
mod libraries;
mod privileges;

pub use elf::{Image, exports};
pub use libraries::{Found, closure};

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A program that the dynamic loader starts, so that a preload library is loaded with it.
#[derive(Debug)]
pub struct Program {
    /// The file that was asked for.
    pub file: PathBuf,
    /// Interpreters of `#!` lines on the way, outermost first; the last one is what is loaded.
    pub interpreters: Vec<PathBuf>,
    /// What is loaded.
    pub image: Image,
}

/// Why a program cannot be run with a preload library.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such file.
    Missing(String),
    /// The file cannot be executed.
    NotExecutable(String),
    /// It could run, but without the library.
    Unreachable(String),
}

impl Refusal {
    /// The sentence.
    pub fn sentence(&self) -> &str {
        match self {
            Refusal::Missing(text) | Refusal::NotExecutable(text) | Refusal::Unreachable(text) => {
                text
            }
        }
    }
}

/// `#!` lines may name scripts in turn; the kernel follows four.
const INTERPRETERS: usize = 4;

/// Looks at what `name` would start, with `path` as `PATH`.
pub fn look(name: &OsStr, path: &OsStr) -> Result<Program, Refusal> {
    let file = find(name, path)?;
    let mut interpreters = Vec::new();
    let mut current = file.clone();
    loop {
        executable(&current)?;
        privileges::check(&current)?;
        let Some((interpreter, argument)) = shebang(&current)? else { break };
        if interpreters.len() == INTERPRETERS {
            let text = format!("{}: too many interpreters", file.display());
            return Err(Refusal::NotExecutable(text));
        }
        current = interpreter;
        interpreters.push(current.clone());
        if current.file_name() == Some(OsStr::new("env"))
            && let Some(program) = argument.filter(|a| !a.as_bytes().starts_with(b"-"))
        {
            executable(&current)?;
            current = find(&program, path)?;
            interpreters.push(current.clone());
        }
    }
    let image = Image::read(&current)?;
    reachable(&current, &image)?;
    Ok(Program { file, interpreters, image })
}

/// The file that a shell would run.
fn find(name: &OsStr, path: &OsStr) -> Result<PathBuf, Refusal> {
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return if file.exists() {
            Ok(file)
        } else {
            Err(Refusal::Missing(format!("{}: no such file", file.display())))
        };
    }
    let files = std::env::split_paths(path).map(|dir| dir.join(name));
    let mut files = files.filter(|file| file.is_file());
    let found = files.find(|file| mode(file).is_some_and(|mode| mode & 0o111 != 0));
    found.ok_or_else(|| Refusal::Missing(format!("{}: not found in PATH", name.display())))
}

fn mode(file: &Path) -> Option<u32> {
    file.metadata().ok().map(|meta| meta.permissions().mode())
}

fn executable(file: &Path) -> Result<(), Refusal> {
    let told = |why: &str| Err(Refusal::NotExecutable(format!("{}: {why}", file.display())));
    match file.metadata() {
        Err(error) => told(&error.to_string()),
        Ok(meta) if meta.is_dir() => told("it is a folder"),
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => told("it is not executable"),
        Ok(_) => Ok(()),
    }
}

/// The interpreter of a `#!` line and its one argument, if the file begins with one.
fn shebang(file: &Path) -> Result<Option<(PathBuf, Option<OsString>)>, Refusal> {
    let told = |e: std::io::Error| Refusal::NotExecutable(format!("{}: {e}", file.display()));
    let mut head = Vec::new();
    std::fs::File::open(file).and_then(|f| f.take(256).read_to_end(&mut head)).map_err(told)?;
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii();
    let (name, rest) = match line.iter().position(u8::is_ascii_whitespace) {
        Some(at) => (&line[..at], line[at..].trim_ascii()),
        None => (line, &line[line.len()..]),
    };
    if name.is_empty() {
        let text = format!("{}: its #! line names no interpreter", file.display());
        return Err(Refusal::NotExecutable(text));
    }
    let argument = (!rest.is_empty()).then(|| OsString::from_vec(rest.to_vec()));
    Ok(Some((PathBuf::from(OsStr::from_bytes(name)), argument)))
}

/// Whether the loader that starts this image is one that the library works with.
fn reachable(file: &Path, image: &Image) -> Result<(), Refusal> {
    let told = |why: &str| Err(Refusal::Unreachable(format!("{}: {why}", file.display())));
    let Some(loader) = &image.loader else {
        return told("it is statically linked: no loader runs, so nothing can be preloaded");
    };
    if loader.contains("ld-musl") {
        return told("it runs on musl's loader, and the preload library needs glibc's");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(name: &str, text: &[u8], mode: u32) -> PathBuf {
        let file = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("its mode");
        file
    }

    fn path() -> OsString {
        std::env::var_os("PATH").unwrap_or_default()
    }

    #[test]
    fn a_program_in_path_is_found_with_its_loader() {
        let program = look(OsStr::new("sh"), &path()).expect("a shell");
        assert!(program.image.loader.expect("a loader").contains("ld-linux"));
        assert_eq!(program.interpreters, Vec::<PathBuf>::new());
    }

    #[test]
    fn scripts_lead_to_what_interprets_them() {
        let file = script("direct", b"#! /bin/sh -e\nexit 0\n", 0o755);
        let program = look(file.as_os_str(), &path()).expect("a script");
        assert_eq!(program.interpreters, [PathBuf::from("/bin/sh")]);
        let file = script("env", b"#!/usr/bin/env sh\n", 0o755);
        let program = look(file.as_os_str(), &path()).expect("a script");
        assert_eq!(program.interpreters.len(), 2);
        assert_eq!(program.interpreters[0], PathBuf::from("/usr/bin/env"));
        assert_eq!(program.interpreters[1].file_name(), Some(OsStr::new("sh")));
    }

    #[test]
    fn what_cannot_run_is_told_apart() {
        let missing = look(OsStr::new("/none/such"), &path());
        assert!(matches!(missing, Err(Refusal::Missing(_))), "{missing:?}");
        let missing = look(OsStr::new("no-such-program-here"), &path());
        assert!(matches!(missing, Err(Refusal::Missing(_))), "{missing:?}");
        let plain = script("plain", b"#!/bin/sh\n", 0o644);
        let refused = look(plain.as_os_str(), &path()).expect_err("no x bit");
        assert!(refused.sentence().contains("not executable"), "{refused:?}");
        let text = script("text", b"hello", 0o755);
        let refused = look(text.as_os_str(), &path()).expect_err("no program");
        assert!(refused.sentence().contains("neither"), "{refused:?}");
        let own = script("own", b"", 0o755);
        std::fs::write(&own, format!("#!{}\n", own.display())).expect("written");
        let refused = look(own.as_os_str(), &path()).expect_err("for ever");
        assert!(refused.sentence().contains("too many"), "{refused:?}");
    }

    #[test]
    fn set_user_id_programs_of_others_are_refused() {
        let Ok(program) = find(OsStr::new("su"), OsStr::new("/bin:/usr/bin")) else { return };
        let refused = privileges::judge(&program, 1000, 1000).expect_err("it is root's");
        assert!(refused.sentence().contains("set-user-ID"), "{refused:?}");
        assert!(privileges::judge(&program, 0, 0).is_ok());
    }
}
