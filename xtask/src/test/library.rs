//! What the built library and the header look like from outside.
//!
//! Owns the checks with `readelf`, `nm` and the C compilers: SONAME, what is needed at
//! load, what is exported, that the header compiles alone and twice as C and as
//! C++, and that a program linked with `-lforebay` starts.

use crate::report::Tally;
use crate::{Outcome, proc};
use std::path::{Path, PathBuf};
use std::process::Command;

const SONAME: &str = "libforebay.so.0";
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Uses the header alone, twice, and reads one macro and one function of it.
const HEADER_TWICE: &str = "#include <forebay.h>\n#include <forebay.h>\n\
    int main(void) { return forebay_version() == 0 ? 1 : FOREBAY_OK; }\n";
const HEADER_ALONE: &str = "#include <forebay.h>\n";
/// Allocates and frees through the shared library.
const LINKED: &str = "#include <forebay.h>\n#include <stdio.h>\n\
    int main(void) {\n\
    \x20   void *p = 0;\n\
    \x20   forebay_status status = forebay_malloc(&p, 4096);\n\
    \x20   if (status != FOREBAY_OK || p == 0 || forebay_free(p) != FOREBAY_OK) {\n\
    \x20       fprintf(stderr, \"%s\\n\", forebay_last_error());\n\
    \x20       return 1;\n\
    \x20   }\n\
    \x20   return 0;\n\
    }\n";

/// The compiler of an environment variable, or the usual one.
pub fn compiler(variable: &str, default: &str) -> Command {
    proc::program(std::env::var_os(variable).unwrap_or_else(|| default.into()))
}

/// A C file of these checks, written anew.
fn scratch(name: &str, text: &str) -> Outcome<PathBuf> {
    let file = proc::target_dir().join("xtask-c").join(name);
    proc::write(&file, text)?;
    Ok(file)
}

/// The header by itself, once and twice, in both languages with warnings as errors.
pub fn check_header(tally: &mut Tally) {
    for (language, variable, default, standard, ending) in
        [("c11", "CC", "cc", "-std=c11", "c"), ("cpp17", "CXX", "c++", "-std=c++17", "cpp")]
    {
        for (form, text) in [("alone", HEADER_ALONE), ("twice", HEADER_TWICE)] {
            let result = scratch(&format!("header_{form}.{ending}"), text).and_then(|file| {
                let mut cc = compiler(variable, default);
                cc.arg(standard).args(WARNINGS).args(["-fsyntax-only", "-Iinclude"]).arg(file);
                proc::capture(&mut cc).map(drop)
            });
            tally.check(&format!("c::header_{form}_{language}"), result);
        }
    }
}

/// Whether the C compiler can build programs with AddressSanitizer; else why not.
pub fn compiler_has_asan() -> Outcome<()> {
    let file = scratch("asan.c", "int main(void) { return 0; }\n")?;
    let mut cc = compiler("CC", "cc");
    cc.args(["-fsanitize=address", "-o"]).arg(file.with_extension("")).arg(&file);
    proc::capture(&mut cc).map(drop).map_err(|_| "the C compiler cannot build with it".to_owned())
}

/// Cargo's own shared library in `target/release`.
pub fn check_cargo_library(tally: &mut Tally) {
    let dir = proc::target_dir().join("release");
    let library = dir.join("libforebay.so");
    check_with(
        "c::cargo_dynamic_section",
        "readelf",
        &["-d", "--wide"],
        judge_dynamic,
        &library,
        tally,
    );
    check_with("c::cargo_exports", "nm", &["-D", "--defined-only"], judge_exports, &library, tally);
    tally.check("c::linked_program_starts", linked_program(&dir));
}

/// Shows what a program says of the library to `judge`.
pub fn check_with(
    name: &str,
    program: &str,
    arguments: &[&str],
    judge: fn(&str) -> Outcome<()>,
    library: &Path,
    tally: &mut Tally,
) {
    if proc::on_path(program).is_none() {
        return tally.skip(name, &format!("no {program} on PATH"));
    }
    let said = proc::capture(proc::program(program).args(arguments).arg(library));
    tally.check(name, said.and_then(|text| judge(&text)));
}

/// SONAME as promised, nothing of CUDA needed at load.
fn judge_dynamic(text: &str) -> Outcome<()> {
    let holds = |tag: &str, value: &str| text.lines().any(|l| l.contains(tag) && l.contains(value));
    if !holds("(SONAME)", &format!("[{SONAME}]")) {
        return Err(format!("SONAME is not {SONAME}"));
    }
    for library in ["libcuda", "libcudart"] {
        if holds("(NEEDED)", library) {
            return Err(format!("{library} is needed at load"));
        }
    }
    Ok(())
}

/// Functions of ours are exported, and nothing else (version nodes aside).
fn judge_exports(text: &str) -> Outcome<()> {
    let symbols: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [.., kind, name] = words[..] else {
                return None;
            };
            Some((kind, name))
        })
        .filter(|(kind, _)| *kind != "A")
        .collect();
    if symbols.is_empty() {
        return Err("nothing is exported".to_owned());
    }
    let foreign: Vec<&str> =
        symbols.iter().map(|s| s.1).filter(|name| !name.starts_with("forebay_")).collect();
    match foreign.len() {
        0 => Ok(()),
        _ => Err(format!("exported besides forebay_*: {}", foreign.join(", "))),
    }
}

/// Links a program with `-lforebay` and a run path, and starts it. The SONAME's file must be
/// beside the library for that; cargo's own search path is taken away.
fn linked_program(dir: &Path) -> Outcome<()> {
    let source = scratch("linked.c", LINKED)?;
    let program = source.with_extension("");
    let mut cc = compiler("CC", "cc");
    cc.args(["-std=c11", "-Iinclude", "-o"]).arg(&program).arg(&source);
    cc.arg(format!("-L{}", dir.display())).arg("-lforebay");
    cc.arg(format!("-Wl,-rpath,{}", dir.display()));
    proc::capture(&mut cc)?;
    proc::capture(proc::program(&program).env_remove("LD_LIBRARY_PATH")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dynamic_section_is_judged() {
        let good = " 0x1 (NEEDED)  Shared library: [libc.so.6]\n\
                     0xe (SONAME)  Library soname: [libforebay.so.0]\n";
        assert_eq!(judge_dynamic(good), Ok(()));
        assert!(judge_dynamic(&good.replace("so.0]", "so.1]")).is_err());
        assert!(judge_dynamic(&good.replace("libc.so.6", "libcudart.so.12")).is_err());
    }

    #[test]
    fn exports_are_judged() {
        let good = "0000 T forebay_free@@FOREBAY_0\n0000 A FOREBAY_0\n";
        assert_eq!(judge_exports(good), Ok(()));
        let told = judge_exports("0000 T forebay_free\n0000 T rust_eh_personality\n");
        assert!(told.is_err_and(|why| why.contains("rust_eh_personality")));
        assert!(judge_exports("").is_err());
    }
}
