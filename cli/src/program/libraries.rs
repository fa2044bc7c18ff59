//! The libraries that a program is loaded with, found as the loader finds them.
//!
//! Follows ld.so(8): a library's DT_RPATH (unless it has a DT_RUNPATH), `LD_LIBRARY_PATH`, its
//! DT_RUNPATH, the folders of `/etc/ld.so.conf`, then the usual ones. Close to it, not equal: the
//! loader's cache, its hardware folders and DT_RPATHs of what needs a library are left out, so a
//! library may be told as not found that the loader does find.

use super::Image;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// A library that is needed.
#[derive(Debug)]
pub struct Found {
    /// The name it is needed by.
    pub name: String,
    /// What it is; none: not found.
    pub image: Option<Image>,
}

/// The folders of a usual system.
const USUAL: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// All libraries that `program` needs, directly or not, in the loader's order. `library_path` is
/// the value of `LD_LIBRARY_PATH`.
pub fn closure(program: &Image, library_path: &str) -> Vec<Found> {
    let system = system_folders(Path::new("/etc/ld.so.conf"));
    let mut seen = HashSet::new();
    let mut found: Vec<Found> = Vec::new();
    let mut next = 0;
    let mut wanted = names(program, &mut seen);
    loop {
        for (name, folders) in wanted {
            let folders = folders.0.iter().cloned().chain(paths(library_path)).chain(folders.1);
            let file = locate(&name, folders.chain(system.iter().cloned()));
            let image = file.and_then(|file| Image::read(&file).ok());
            found.push(Found { name, image });
        }
        let Some(entry) = found.get(next) else { return found };
        next += 1;
        wanted = entry.image.as_ref().map(|i| names(i, &mut seen)).unwrap_or_default();
    }
}

/// Folders before `LD_LIBRARY_PATH`, and folders after it.
type Folders = (Vec<PathBuf>, Vec<PathBuf>);

/// What an image needs that was not needed before, and where it says to look.
fn names(image: &Image, seen: &mut HashSet<String>) -> Vec<(String, Folders)> {
    let origin = image.file.parent().unwrap_or(Path::new("."));
    let place = |dirs: &[String]| -> Vec<PathBuf> {
        let origin = origin.to_string_lossy();
        let named = |dir: &String| dir.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
        dirs.iter().map(|dir| PathBuf::from(named(dir))).collect()
    };
    let before = if image.runpath.is_empty() { place(&image.rpath) } else { Vec::new() };
    let after = place(&image.runpath);
    let fresh = image.needed.iter().filter(|name| seen.insert((*name).clone()));
    fresh.map(|name| (name.clone(), (before.clone(), after.clone()))).collect()
}

fn paths(list: &str) -> impl Iterator<Item = PathBuf> + '_ {
    list.split([':', ';']).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn locate(name: &str, mut folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_file());
    }
    folders.find_map(|dir| Some(dir.join(name)).filter(|file| file.is_file()))
}

/// The folders that `/etc/ld.so.conf` names, and the usual ones.
fn system_folders(conf: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    read_conf(conf, 0, &mut folders);
    folders.extend(USUAL.iter().map(PathBuf::from));
    folders
}

fn read_conf(conf: &Path, depth: u32, folders: &mut Vec<PathBuf>) {
    let Ok(text) = std::fs::read_to_string(conf) else { return };
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        match line.strip_prefix("include ") {
            Some(pattern) if depth < 4 => {
                // The one form in use: every .conf file of a folder.
                let dir = Path::new(pattern.trim()).parent().unwrap_or(Path::new("/"));
                let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
                let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
                files.sort();
                for file in files.iter().filter(|f| f.extension().is_some_and(|x| x == "conf")) {
                    read_conf(file, depth + 1, folders);
                }
            }
            _ if line.starts_with('/') => folders.push(PathBuf::from(line)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_libraries_are_found() {
        let own = std::env::current_exe().expect("this program");
        let image = Image::read(&own).expect("an ELF file");
        let found = closure(&image, "");
        let libc = found.iter().find(|f| f.name == "libc.so.6").expect("it is needed");
        assert!(libc.image.is_some());
        let mut names: Vec<&str> = found.iter().map(|f| f.name.as_str()).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "each is named once");
    }

    #[test]
    fn runpath_is_read_from_where_the_image_lies() {
        let image = Image {
            file: "/opt/app/bin/app".into(),
            needed: vec!["libx.so".into()],
            rpath: vec!["/old".into()],
            runpath: vec!["$ORIGIN/../lib".into(), "/abs".into()],
            ..Image::default()
        };
        let names = names(&image, &mut HashSet::new());
        let after = vec![PathBuf::from("/opt/app/bin/../lib"), PathBuf::from("/abs")];
        assert_eq!(names, [("libx.so".to_owned(), (Vec::new(), after))]);
        let closure = closure(&image, "");
        assert!(closure[0].image.is_none());
    }
}
