//! Sets the shared library's SONAME, and puts the `libforebay.so.0` link beside it.
//!
//! A program linked with `-lforebay` records the SONAME, so it can only start where
//! a file of that name exists; plain `cargo build` would leave none.

use std::path::{Path, PathBuf};

const SONAME: &str = "libforebay.so.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,{SONAME}");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
    let Some(profile_dir) = profile_dir() else { return };
    link_soname(&profile_dir);
}

/// `target/<profile>`, three levels above `OUT_DIR` (`<profile>/build/<pkg>/out`).
fn profile_dir() -> Option<PathBuf> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?);
    out.ancestors().nth(3).map(Path::to_path_buf)
}

fn link_soname(dir: &Path) {
    let link = dir.join(SONAME);
    // The target does not exist yet on a first build: a dangling link is right.
    if std::fs::symlink_metadata(&link).is_err()
        && let Err(e) = std::os::unix::fs::symlink("libforebay.so", &link)
    {
        println!("cargo:warning=cannot make {}: {e}", link.display());
    }
}
