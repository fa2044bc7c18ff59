//! Gives the shared library the real driver's SONAME, `libcuda.so.1`, so that a program's
//! `dlopen("libcuda.so.1")` takes it from the folder that a test names.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
    // As in the real driver, the addresses that its tables hold are its own functions, also where
    // a preloaded library exports the same names.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-Bsymbolic");
}
