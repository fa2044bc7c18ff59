//! Keeps the preload library loaded for the process's life: code of its own may be on a stack, and
//! addresses of its functions are in the program's tables.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,libforebay_preload.so");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
