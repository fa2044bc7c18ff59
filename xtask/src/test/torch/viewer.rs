//! What the viewer's test needs besides PyTorch's `MemoryViz.js`: d3 and a browser, from npm.
//!
//! Owns their pins and the folders below `target/torch/viewer`. Promises that what runs is what is
//! pinned, that nothing is fetched where `TEST_VIEWER` names no viewer, and nothing again while the
//! pins are the same. A d3 beside the viewer, a browser on `PATH` or in `TEST_BROWSER` comes first.
//! Needs npm, tar, and Node, which comes with npm, for what is packed with Brotli.

use crate::wheels::Missing;
use crate::{Outcome, proc};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A package of npm: folder, name and version, SHA-256 of its archive.
struct Pin {
    folder: &'static str,
    package: &'static str,
    sum: &'static str,
}
/// The version that the viewer names, 240 kB.
const D3: Pin = Pin {
    folder: "d3",
    package: "d3@5.16.0",
    sum: "2e46da2089b9483a01f4cea7d27d62d463a31348ddd3c309a9a5dc2cb4568cfa",
};
/// Chromium 153 for x86-64, 67 MB, 215 MB unpacked; starts without root and without a screen.
const CHROMIUM: Pin = Pin {
    folder: "chromium",
    package: "@sparticuz/chromium@153.0.0",
    sum: "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0",
};
/// Browsers that are taken from `PATH`.
const BROWSERS: [&str; 6] = [
    "chromium-headless-shell",
    "chrome-headless-shell",
    "headless_shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];
/// Unpacks Brotli: each two arguments are from where and to where.
const UNPACK: &str = "\
const fs = require('fs'), zlib = require('zlib'), files = process.argv.slice(1);
for (let i = 0; i < files.length; i += 2)
  fs.writeFileSync(files[i + 1], zlib.brotliDecompressSync(fs.readFileSync(files[i])));
";
/// Starts Chromium with the libraries beside it, which small systems have not.
const START: &str = "\
#!/bin/sh
here=$(dirname \"$0\")
LD_LIBRARY_PATH=\"$here/lib\" exec \"$here/chromium\" \"$@\"
";

/// Names to the test what it needs, fetched first where that is not there yet. Where `TEST_VIEWER`
/// names no viewer the test is left as it is, and says so.
pub fn give(python: &mut Command) -> Result<(), Missing> {
    let Some(named) = std::env::var_os("TEST_VIEWER").filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let named = proc::root().join(named);
    let viewer = if named.is_dir() { named.join("MemoryViz.js") } else { named };
    if !viewer.is_file() {
        return Err(Missing::Failed(format!("TEST_VIEWER: no {}", viewer.display())));
    }
    let beside = viewer.with_file_name("d3.js");
    let d3 = match beside.is_file() {
        true => beside,
        false => package(&D3, |_| Ok(()))?.join("package/dist/d3.js"),
    };
    let named = std::env::var_os("TEST_BROWSER").filter(|name| !name.is_empty());
    let there = named.map(PathBuf::from).or_else(|| BROWSERS.into_iter().find_map(proc::on_path));
    let browser = match there {
        Some(browser) => browser,
        None if cfg!(target_arch = "x86_64") => package(&CHROMIUM, unpack)?.join("start"),
        None => return Err(Missing::Unreachable("no Chromium is on PATH".to_owned())),
    };
    python.env("TEST_VIEWER", viewer).env("TEST_D3", d3).env("TEST_BROWSER", browser);
    Ok(())
}

/// A package's folder, fetched first; `unpack` does what is to be done in it once.
fn package(pin: &Pin, unpack: impl FnOnce(&Path) -> Outcome<()>) -> Result<PathBuf, Missing> {
    let folder = proc::target_dir().join("torch").join("viewer").join(pin.folder);
    let stamp = folder.join("pins.txt");
    let pins = format!("{} {}\n", pin.package, pin.sum);
    if std::fs::read_to_string(&stamp).is_ok_and(|there| there == pins) {
        return Ok(folder);
    }
    let archive = archive(pin, &folder)?;
    let mut tar = proc::program("tar");
    proc::capture(tar.arg("-xzf").arg(archive).arg("-C").arg(&folder))
        .and_then(|_| unpack(&folder))
        .and_then(|()| proc::write(&stamp, &pins))
        .map_err(Missing::Failed)?;
    Ok(folder)
}

/// Fetches a package's archive into an empty folder, and looks at its sum.
fn archive(pin: &Pin, folder: &Path) -> Result<PathBuf, Missing> {
    if proc::on_path("npm").is_none() {
        return Err(Missing::Unreachable("no npm on PATH".to_owned()));
    }
    println!("fetching {} into {}", pin.package, folder.display());
    let told = |e: std::io::Error| Missing::Failed(format!("{}: {e}", folder.display()));
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(told)?;
    }
    std::fs::create_dir_all(folder).map_err(told)?;
    let mut npm = proc::program("npm");
    npm.args(["pack", "--silent", "--ignore-scripts", pin.package, "--pack-destination"]);
    let packed = proc::capture(npm.arg(folder)).map_err(|why| {
        let first = why.lines().next().unwrap_or_default();
        Missing::Unreachable(format!("npm gives no {}: {first}", pin.package))
    })?;
    let archive = folder.join(packed.trim());
    let sums = proc::capture(proc::program("sha256sum").arg(&archive)).map_err(Missing::Failed)?;
    match is_of(&sums, pin.sum) {
        true => Ok(archive),
        false => Err(Missing::Failed(format!("{}: its sum is not the pinned one", pin.package))),
    }
}

/// Whether a line of `sha256sum` tells this sum.
fn is_of(line: &str, sum: &str) -> bool {
    line.split_whitespace().next().is_some_and(|first| first == sum)
}

/// Chromium and its libraries out of their packing, and what starts it.
fn unpack(folder: &Path) -> Outcome<()> {
    let packed = folder.join("package").join("bin");
    let mut node = proc::program("node");
    node.args(["-e", UNPACK]);
    for (from, to) in [
        ("chromium.br", "chromium"),
        ("al2023.tar.br", "libraries.tar"),
        ("swiftshader.tar.br", "drawing.tar"),
    ] {
        node.arg(packed.join(from)).arg(folder.join(to));
    }
    proc::capture(&mut node)?;
    for archive in ["libraries.tar", "drawing.tar"] {
        let mut tar = proc::program("tar");
        proc::capture(tar.arg("-xf").arg(folder.join(archive)).arg("-C").arg(folder))?;
    }
    proc::write(folder.join("start"), START)?;
    for program in ["chromium", "start"] {
        let file = folder.join(program);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    proc::capture(proc::program(folder.join("start")).arg("--version")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_the_pinned_one_or_not() {
        assert!(is_of("abc  /some/file.tgz\n", "abc"));
        assert!(!is_of("abcd  /some/file.tgz\n", "abc"));
        assert!(!is_of("", "abc"));
    }

    #[test]
    fn pins_are_exact_versions_with_sums() {
        for pin in [D3, CHROMIUM] {
            let (_, version) = pin.package.rsplit_once('@').expect("a version");
            assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
            assert_eq!(pin.sum.len(), 64);
            assert!(pin.sum.bytes().all(|b| b.is_ascii_hexdigit()));
        }
    }
}
