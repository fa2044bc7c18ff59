//! Stand-ins for NVIDIA's libraries that PyTorch's wheel links to, made from the wheel itself.
//!
//! Owns what is made and where. What the wheel's libraries ask of each other library is read from
//! their dynamic symbols: a symbol's version names the library that has it, one without a version
//! goes by its prefix. Every function answers 1, which is an error in each of these interfaces, but
//! for the few of `sim/libraries`. Promises that nothing of NVIDIA's is fetched, and that nothing
//! is made again while the wheel and the sources are the same.

use super::super::library::compiler;
use crate::{Outcome, proc};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Those that the simulation has itself.
const SIMULATED: &[&str] = &["libcudart.so.13", "libcuda.so.1"];
/// Beginnings of names without a version, longest first where one begins another.
const PREFIXES: &[(&str, &str)] = &[
    ("cusparseLt", "libcusparseLt.so"),
    ("cuFile", "libcufile.so"),
    ("nccl", "libnccl.so"),
    ("nvshmem", "libnvshmem_host.so"),
    ("curand", "libcurand.so"),
];
/// Libraries with a source of ours, and the SONAME that each is linked as.
const SOURCES: &[(&str, &str)] = &[
    ("sim/libraries/nvml.c", "libnvidia-ml.so.1"),
    ("sim/libraries/cublas.c", "libcublas.so.13"),
    ("sim/libraries/cublas.c", "libcublasLt.so.13"),
];
/// Functions that answer a number other than 1: cuDNN's must be the one that the wheel was built
/// with, or PyTorch refuses it.
const NUMBERS: &[(&str, u64)] = &[
    ("cudnnGetCudartVersion", 13_000),
    ("cudnnGetVersion", 92_000),
    ("cublasLtGetVersion", 130_000),
];
/// Grows when what is made changes.
const EDITION: u32 = 1;

/// Functions by library, each with its version or none.
type Needs = BTreeMap<String, BTreeMap<String, String>>;

/// Makes all of them in `folder` for the wheel's libraries in `lib`, unless they are there.
pub fn make(lib: &Path, pins: &str, folder: &Path) -> Outcome<()> {
    let mut recipe = format!("{EDITION}\n{pins}");
    for (source, _) in SOURCES {
        recipe.push_str(&proc::read(source)?);
    }
    let stamp = folder.join("recipe.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
        return Ok(());
    }
    println!("making stand-ins for NVIDIA's libraries in {}", folder.display());
    let told = |e: std::io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(told)?;
    }
    std::fs::create_dir_all(folder).map_err(told)?;
    let mut needs = needs(lib)?;
    needs.entry("libnvidia-ml.so.1".to_owned()).or_default();
    for (soname, functions) in &needs {
        link(soname, functions, folder)?;
    }
    proc::write(&stamp, &recipe)
}

fn is_nvidias(soname: &str) -> bool {
    ["libcu", "libnv", "libnccl"].iter().any(|start| soname.starts_with(start))
}

/// The shared libraries of a folder.
fn libraries(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let is_library = |p: &PathBuf| p.to_string_lossy().contains(".so") && p.is_file();
    let mut all: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(is_library).collect();
    all.sort();
    Ok(all)
}

/// What the libraries of a folder need of NVIDIA's that the simulation has not.
fn needs(lib: &Path) -> Outcome<Needs> {
    let (mut needs, mut owners, mut wanted) = (Needs::new(), BTreeMap::new(), Vec::new());
    for library in libraries(lib)? {
        let read =
            |flags: &[&str]| proc::capture(proc::program("readelf").args(flags).arg(&library));
        for soname in needed(&read(&["-d", "--wide"])?) {
            needs.entry(soname).or_default();
        }
        owners.extend(versions(&read(&["-V", "--wide"])?));
        let mut nm = proc::program("nm");
        let table = proc::capture(nm.args(["-D", "--undefined-only"]).arg(&library))?;
        wanted.extend(undefined(&table));
    }
    needs.retain(|soname, _| is_nvidias(soname) && !SIMULATED.contains(&soname.as_str()));
    for (name, version) in wanted {
        if let Some(soname) = owner(&name, &version, &owners, &needs)
            && let Some(functions) = needs.get_mut(&soname)
        {
            functions.insert(name, version);
        }
    }
    Ok(needs)
}

/// The library that has a function.
fn owner(
    name: &str,
    version: &str,
    owners: &BTreeMap<String, String>,
    needs: &Needs,
) -> Option<String> {
    if !version.is_empty() {
        return owners.get(version).cloned();
    }
    let start = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix))?.1;
    needs.keys().find(|soname| soname.starts_with(start)).cloned()
}

/// The SONAMEs in the dynamic section as `readelf -d` prints it.
fn needed(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    let inside = |line: &str| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned());
    lines.filter_map(inside).collect()
}

/// Versions and the libraries they are asked of, as `readelf -V` prints them.
fn versions(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut file = String::new();
    let word = |line: &str, mark: &str| {
        Some(line.split_once(mark)?.1.split_whitespace().next()?.to_owned())
    };
    for line in text.lines() {
        if let Some(name) = word(line, "File: ") {
            file = name;
        } else if let Some(name) = word(line, "Name: ")
            && is_nvidias(&file)
        {
            found.insert(name, file.clone());
        }
    }
    found
}

/// Names and versions in `nm`'s table.
fn undefined(table: &str) -> Vec<(String, String)> {
    let words = table.lines().filter_map(|line| line.split_whitespace().last());
    let split = |word: &str| match word.split_once('@') {
        Some((name, version)) => (name.to_owned(), version.trim_start_matches('@').to_owned()),
        None => (word.to_owned(), String::new()),
    };
    words.map(split).collect()
}

/// The text of a stand-in; `ours` are defined elsewhere.
fn source(functions: &BTreeMap<String, String>, ours: &[String]) -> String {
    let mut text = String::new();
    for name in functions.keys().filter(|name| !ours.contains(name)) {
        let says = ["Error", "Status"].iter().any(|what| {
            ["String", "Name"].iter().any(|how| {
                name.to_lowercase().contains(&format!(
                    "get{}{}",
                    what.to_lowercase(),
                    how.to_lowercase()
                ))
            })
        });
        let number = NUMBERS.iter().find(|(known, _)| known == name).map_or(1, |(_, n)| *n);
        text.push_str(&match says || name == "ncclGetLastError" {
            true => format!("const char *{name}(void) {{ return \"a stand-in of the tests\"; }}\n"),
            false => format!("long {name}(void) {{ return {number}; }}\n"),
        });
    }
    text
}

/// Compiles and links one library.
fn link(soname: &str, functions: &BTreeMap<String, String>, folder: &Path) -> Outcome<()> {
    let object = folder.join(format!("{soname}.o"));
    let own = SOURCES.iter().find(|(_, name)| *name == soname).map(|(source, _)| *source);
    let mut cc = compiler("CC", "cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.join(soname));
    cc.arg(format!("-Wl,-soname,{soname}"));
    let mut ours = Vec::new();
    if let Some(own) = own {
        let mut compile = compiler("CC", "cc");
        compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-c", own, "-o"]);
        proc::capture(compile.arg(&object))?;
        let table = proc::capture(proc::program("nm").arg("--defined-only").arg(&object))?;
        ours = super::super::runtime::exported(&table);
        cc.arg(&object);
    }
    let text = folder.join(format!("{soname}.c"));
    proc::write(&text, &source(functions, &ours))?;
    // Stubs are called with arguments that they do not look at.
    cc.arg("-w").arg(&text).arg("-ldl");
    let script = map(functions);
    if !script.is_empty() {
        let map = folder.join(format!("{soname}.map"));
        proc::write(&map, &script)?;
        cc.arg(format!("-Wl,--version-script={}", map.display()));
    }
    proc::capture(&mut cc).map(drop)
}

/// A version script with a node for each version that is asked for.
fn map(functions: &BTreeMap<String, String>) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version) in functions.iter().filter(|(_, version)| !version.is_empty()) {
        nodes.entry(version).or_default().push(name);
    }
    nodes.iter().map(|(v, names)| format!("{v} {{ global: {}; }};\n", names.join("; "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_goes_to_the_library_that_its_version_names() {
        let text = " 0x0020: Version: 1  File: libcublas.so.13  Cnt: 1\n\
                    \x20 0x0030:   Name: libcublas.so.13  Flags: none  Version: 4\n\
                    \x20 0x0040: Version: 1  File: libc.so.6  Cnt: 1\n\
                    \x20 0x0050:   Name: GLIBC_2.14  Flags: none  Version: 3\n\
                    \x20 0x0060: Version: 1  File: libnvshmem_host.so.3  Cnt: 1\n\
                    \x20 0x0070:   Name: NVSHMEM  Flags: none  Version: 2\n";
        let owners = versions(text);
        let needs = Needs::from([("libnccl.so.2".to_owned(), BTreeMap::new())]);
        let of = |name: &str, version: &str| owner(name, version, &owners, &needs);
        assert_eq!(of("cublasCreate_v2", "libcublas.so.13").as_deref(), Some("libcublas.so.13"));
        assert_eq!(of("nvshmem_malloc", "NVSHMEM").as_deref(), Some("libnvshmem_host.so.3"));
        assert_eq!(of("memcpy", "GLIBC_2.14"), None);
        assert_eq!(of("ncclSend", "").as_deref(), Some("libnccl.so.2"));
        assert_eq!(of("malloc", ""), None);
        assert_eq!(
            needed(" 0x1 (NEEDED)  Shared library: [libcublas.so.13]\n"),
            ["libcublas.so.13"]
        );
    }

    #[test]
    fn stand_ins_answer_errors_and_texts() {
        let functions: BTreeMap<String, String> = [
            ("cudnnGetErrorString", "libcudnn.so.9"),
            ("cublasCreate_v2", "libcublas.so.13"),
            ("cufftExec", ""),
        ]
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .into();
        let text = source(&functions, &["cublasCreate_v2".to_owned()]);
        assert!(text.contains("const char *cudnnGetErrorString(void)"), "{text}");
        assert!(text.contains("long cufftExec(void) { return 1; }"), "{text}");
        assert!(!text.contains("cublasCreate_v2"), "{text}");
        let script = map(&functions);
        assert!(script.contains("libcudnn.so.9 { global: cudnnGetErrorString; };"), "{script}");
        assert!(!script.contains("cufftExec"));
    }
}
