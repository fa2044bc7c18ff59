//! Manifests: the packages asked for are real dependencies with a real use, every dependency
//! has its line in `docs/decisions.md`, and every member denies missing documentation.
//!
//! Owns the list of packages asked for. Reads `Cargo.toml` files; resolves nothing.

use super::{Source, Violation, lex};
use crate::{Outcome, proc, source};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Packages that must be dependencies, and whether some `.rs` file must use them yet. `cust`
/// comes to use with the CUDA driver; until then only its build is in place.
const ASKED_FOR: &[(&str, bool)] =
    &[("cust", false), ("libc", true), ("cbindgen", true), ("once_cell", true), ("tracing", true)];

/// Tables of a manifest that hold dependencies.
const TABLES: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

/// A parsed manifest.
pub struct Manifest {
    /// Its name from the root.
    pub path: PathBuf,
    /// Its contents.
    pub table: Table,
}

/// The manifests of the workspace, the root's first.
pub fn read_manifests() -> Outcome<Vec<Manifest>> {
    let root = read_manifest(Path::new("Cargo.toml"))?;
    let members: Vec<String> = root
        .table
        .get("workspace")
        .and_then(|w| w.get("members"))
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default();
    let mut all = vec![root];
    for member in members.iter().filter(|m| *m != ".") {
        all.push(read_manifest(&Path::new(member).join("Cargo.toml"))?);
    }
    Ok(all)
}

fn read_manifest(path: &Path) -> Outcome<Manifest> {
    let table =
        proc::read(path)?.parse::<Table>().map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Manifest { path: path.to_path_buf(), table })
}

/// Checks that the workspace denies missing documentation and every member inherits that.
pub fn check_lints(manifests: &[Manifest]) -> Vec<Violation> {
    let mut found = Vec::new();
    let Some(root) = manifests.first() else {
        return found;
    };
    let level = root
        .table
        .get("workspace")
        .and_then(|w| w.get("lints"))
        .and_then(|l| l.get("rust"))
        .and_then(|r| r.get("missing_docs"))
        .map(|l| l.get("level").unwrap_or(l))
        .and_then(Value::as_str);
    if !matches!(level, Some("deny" | "forbid")) {
        let message = "workspace.lints.rust.missing_docs is not \"deny\"";
        found.push(Violation::new(&root.path, 0, message));
    }
    for manifest in manifests {
        let inherits =
            manifest.table.get("lints").and_then(|l| l.get("workspace")).and_then(Value::as_bool);
        if inherits != Some(true) {
            let message = "does not inherit the workspace's lints: [lints] workspace = true";
            found.push(Violation::new(&manifest.path, 0, message));
        }
    }
    found
}

/// Checks dependencies against the list asked for, the sources and the written decisions.
pub fn check(manifests: &[Manifest], files: &[Source], decisions: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let named = dependencies(manifests);
    let root = Path::new("Cargo.toml");
    for (package, must_be_used) in ASKED_FOR {
        if !named.contains_key(*package) {
            let message = format!("{package} is asked for and is no dependency");
            found.push(Violation::new(root, 0, message));
        } else if *must_be_used && !is_used(package, files, &mut found) {
            let message = format!("{package} is a dependency that no .rs file uses");
            found.push(Violation::new(root, 0, message));
        }
    }
    for (package, manifest) in &named {
        if !has_line(decisions, package) {
            let message = format!("{package} has no line in docs/decisions.md");
            found.push(Violation::new(manifest, 0, message));
        }
    }
    found
}

/// Every dependency that comes from outside, with the first manifest that names it.
fn dependencies(manifests: &[Manifest]) -> BTreeMap<String, PathBuf> {
    let mut named = BTreeMap::new();
    for manifest in manifests {
        let mut places = vec![&manifest.table];
        if let Some(targets) = manifest.table.get("target").and_then(Value::as_table) {
            places.extend(targets.values().filter_map(Value::as_table));
        }
        for table in places.iter().flat_map(|p| TABLES.iter().filter_map(|t| p.get(*t))) {
            for (name, value) in table.as_table().into_iter().flatten() {
                if value.get("path").is_none() {
                    let package = value.get("package").and_then(Value::as_str).unwrap_or(name);
                    named.entry(package.to_owned()).or_insert_with(|| manifest.path.clone());
                }
            }
        }
    }
    named
}

/// Whether some file has a path that starts with the package's name.
fn is_used(package: &str, files: &[Source], found: &mut Vec<Violation>) -> bool {
    let name = package.replace('-', "_");
    files.iter().filter(|f| f.text.contains(&name)).any(|file| {
        let mut used = false;
        let Some(tokens) = lex(file, found) else {
            return false;
        };
        source::walk(tokens, &mut |list, i, _| {
            used |=
                source::ident(list, i).as_deref() == Some(&name) && source::path_sep(list, i + 1);
        });
        used
    })
}

/// Whether the name stands in the text as a word of its own.
fn has_line(text: &str, package: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(package).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(part)
            && !text[at + package.len()..].chars().next().is_some_and(part)
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn manifest(path: &str, text: &str) -> Manifest {
        Manifest { path: PathBuf::from(path), table: text.parse().expect("is TOML") }
    }

    #[test]
    fn missing_and_unused_packages_are_found() {
        let root = manifest(
            "Cargo.toml",
            "[dependencies]\ncust = { version = \"0.3\", optional = true }\nlibc = \"0.2\"\n\
             once_cell = \"1\"\n[target.'cfg(loom)'.dependencies]\ntracing = \"0.1\"\n\
             mine = { path = \"mine\" }\n",
        );
        let code = "fn f() { libc::getpid(); tracing::info!(\"x\"); }\n// once_cell::sync\n";
        let decisions = "cust, libc, once_cell and tracing-core";
        let found = check(&[root], &[sample("src/a.rs", code)], decisions);
        let messages: Vec<&str> = found.iter().map(|v| v.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "cbindgen is asked for and is no dependency",
                "once_cell is a dependency that no .rs file uses",
                "tracing has no line in docs/decisions.md",
            ]
        );
    }

    #[test]
    fn members_must_inherit_the_lint() {
        let deny = "[workspace.lints.rust]\nmissing_docs = \"deny\"\n[lints]\nworkspace = true\n";
        let good = manifest("Cargo.toml", deny);
        let bare = manifest("cli/Cargo.toml", "[package]\nname = \"x\"\n");
        assert_eq!(check_lints(&[good, bare]).len(), 1);
        let warn = manifest("Cargo.toml", &deny.replace("deny", "warn"));
        assert_eq!(check_lints(&[warn]).len(), 1);
    }
}
