//! The floors: a room of `src/` uses only rooms on lower floors, or itself.
//!
//! Owns the table of floors. Finds every `crate::room` and every chain of `super::` that leaves
//! its room, in code and in macro bodies. Code that only tests compile may use anything.

use super::{Source, Violation, lex};
use crate::source::{group, ident, line, path_sep, punct, walk};
use proc_macro2::{Delimiter, TokenTree};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Room and floor. Rooms of the same floor do not know each other.
const FLOORS: &[(&str, u32)] = &[
    ("error", 0),
    ("base", 1),
    ("config", 2),
    ("driver", 2),
    ("logging", 3),
    ("vmem", 3),
    ("stream", 3),
    ("heap", 4),
    ("slab", 5),
    ("pool", 6),
    ("cust", 7),
    ("kv", 7),
    ("plan", 7),
    ("quant", 7),
    ("offload", 7),
    ("torch", 7),
    ("step", 8),
    ("paged", 8),
    ("telemetry", 8),
    ("abi", 9),
];

fn floor(room: &str) -> Option<u32> {
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

/// Checks all files of `src/`, save `lib.rs`, which joins the rooms.
pub fn check(files: &[Source]) -> Vec<Violation> {
    let mut found = Vec::new();
    let test_modules = test_modules(files);
    for file in files.iter().filter(|f| f.path.starts_with("src")) {
        if test_modules.contains(&file.path) {
            continue;
        }
        let Some((room, depth)) = place(&file.path) else {
            continue;
        };
        let Some(own) = floor(&room) else {
            let message = format!("room {room} has no floor: add it to FLOORS in {}", file!());
            found.push(Violation::new(&file.path, 0, message));
            continue;
        };
        let Some(tokens) = lex(file, &mut found) else {
            continue;
        };
        walk(tokens, &mut |list, i, inline| {
            for (used, line) in rooms_used(list, i, depth + inline) {
                if used == room {
                    continue;
                }
                let message = match floor(&used) {
                    Some(other) if other < own => continue,
                    Some(other) => format!(
                        "room {room} (floor {own}) uses room {used} (floor {other}): \
                         only lower floors are allowed"
                    ),
                    // A type reached through the crate's root hides the room it comes from.
                    None if used.starts_with(char::is_uppercase) => {
                        format!("crate::{used}: name the room it comes from")
                    }
                    None => continue,
                };
                found.push(Violation::new(&file.path, line, message));
            }
        });
    }
    found
}

/// A file's room and how many modules deep it lies; nothing for the crate's root.
fn place(path: &Path) -> Option<(String, usize)> {
    let mut parts: Vec<String> =
        path.with_extension("").iter().skip(1).map(|p| p.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    let room = parts.first()?.clone();
    if room == "lib" { None } else { Some((room, parts.len())) }
}

/// The rooms named by a path that starts at token `i`, each with its line.
fn rooms_used(list: &[TokenTree], i: usize, depth: usize) -> Vec<(String, usize)> {
    let after = match ident(list, i).as_deref() {
        Some("crate") if path_sep(list, i + 1) => i + 3,
        Some("super") if path_sep(list, i + 1) && !continues_path(list, i) => {
            let mut next = i;
            let mut levels = 0;
            while ident(list, next).as_deref() == Some("super") && path_sep(list, next + 1) {
                levels += 1;
                next += 3;
            }
            if levels < depth {
                return Vec::new();
            }
            next
        }
        _ => return Vec::new(),
    };
    if let Some(name) = ident(list, after) {
        return vec![(name, line(list, after))];
    }
    let Some(inside) = group(list, after, Delimiter::Brace) else {
        return Vec::new();
    };
    let inside: Vec<TokenTree> = inside.stream().into_iter().collect();
    (0..inside.len())
        .filter(|&j| j == 0 || punct(&inside, j - 1, ','))
        .filter_map(|j| ident(&inside, j).map(|name| (name, line(&inside, j))))
        .collect()
}

/// Whether the token at `i` is not the first of its path.
fn continues_path(list: &[TokenTree], i: usize) -> bool {
    i >= 2 && path_sep(list, i - 2)
}

/// Files that a `#[cfg(test)] mod name;` names.
fn test_modules(files: &[Source]) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    for file in files {
        let Ok(tokens) = crate::source::tokens(&file.text) else {
            continue;
        };
        let list: Vec<TokenTree> = tokens.into_iter().collect();
        for i in 0..list.len() {
            let taken = crate::source::test_only_item(&list, i);
            let end = i + taken;
            if taken < 3 || !punct(&list, end - 1, ';') {
                continue;
            }
            let is_module = ident(&list, end - 3).as_deref() == Some("mod");
            if let (true, Some(name)) = (is_module, ident(&list, end - 2)) {
                all.extend(module_files(&file.path, &name, files));
            }
        }
    }
    all
}

/// The file of module `name` declared in `parent`, and all files below it.
fn module_files(parent: &Path, name: &str, files: &[Source]) -> Vec<PathBuf> {
    let holds_folder = ["mod.rs", "lib.rs", "main.rs"].iter().any(|f| parent.ends_with(f));
    let dir = if holds_folder {
        parent.parent().unwrap_or(Path::new("")).join(name)
    } else {
        parent.with_extension("").join(name)
    };
    let file = dir.with_extension("rs");
    files
        .iter()
        .map(|f| f.path.clone())
        .filter(|path| *path == file || path.starts_with(&dir))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&[sample(path, text)]).iter().map(|v| v.line).collect()
    }

    #[test]
    fn a_room_above_is_found_in_every_form() {
        let text = "use crate::base::bits;\nuse crate::pool::Pool;\n\
            use crate::{error::Error, slab::{Slab, heap}, abi};\n\
            fn f() { crate::heap::g(); vec![crate::stream::H]; crate::vmem::x() }\n";
        assert_eq!(lines("src/vmem/map.rs", text), [2, 3, 3, 4, 4]);
        assert_eq!(lines("src/abi/mod.rs", text), [0usize; 0]);
    }

    #[test]
    fn siblings_do_not_know_each_other() {
        assert_eq!(lines("src/stream/mod.rs", "use crate::vmem::Pages;"), [1]);
        assert_eq!(lines("src/kv/mod.rs", "use crate::plan::Plan;"), [1]);
    }

    #[test]
    fn super_chains_are_followed_to_the_root() {
        assert_eq!(lines("src/heap/mod.rs", "use super::pool::Pool;"), [1]);
        assert_eq!(lines("src/heap/gather.rs", "use super::pool_like;"), [0usize; 0]);
        assert_eq!(lines("src/heap/gather.rs", "use super::super::pool::Pool;"), [1]);
        let inline = "mod inner {\n use super::super::pool::Pool;\n}";
        assert_eq!(lines("src/heap/mod.rs", inline), [2]);
        assert_eq!(lines("src/heap/mod.rs", "mod inner { use super::slab; }"), [0usize; 0]);
    }

    #[test]
    fn tests_may_use_anything() {
        let text = "#[cfg(test)]\nmod tests { use crate::pool::Pool; }\n";
        assert_eq!(lines("src/base/mod.rs", text), [0usize; 0]);
        let files = [
            sample("src/base/mod.rs", "#[cfg(test)]\nmod model;"),
            sample("src/base/model.rs", "use crate::pool::Pool;"),
        ];
        assert_eq!(check(&files), []);
        assert_eq!(check(&files[1..]).len(), 1);
    }

    #[test]
    fn a_room_without_a_floor_is_found() {
        assert_eq!(lines("src/attic/mod.rs", ""), [0]);
        assert_eq!(lines("src/lib.rs", "use crate::pool::Pool;"), [0usize; 0]);
    }

    #[test]
    fn a_type_reached_through_the_root_is_found() {
        assert_eq!(lines("src/heap/mod.rs", "use crate::Pool;\nuse crate::ensure;"), [1]);
    }

    #[test]
    fn the_crate_keyword_of_a_visibility_is_no_path() {
        assert_eq!(lines("src/base/mod.rs", "pub(crate) fn f() {}"), [0usize; 0]);
    }
}
