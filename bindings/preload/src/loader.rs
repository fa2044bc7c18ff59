//! The loader behind our own `dlsym`: the real one, the driver, and who is calling.
//!
//! Owns the real `dlsym`'s address and the driver's handle. Promises that nothing of `std` that
//! allocates or locks runs before the real `dlsym` is known, and that the driver's own entry
//! points are found, never ours. Cost: a look-up takes about a microsecond; each is kept.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The real `dlsym`; 0: not known yet. Read by the naked hook.
pub static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Versions that C libraries have given `dlsym`: glibc 2.34, its first on x86-64, on aarch64.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

/// The real `dlsym`, or that of the next library which stands in its way.
pub fn real_dlsym() -> Option<Dlsym> {
    let mut address = REAL_DLSYM.load(Ordering::Relaxed);
    if address == 0 {
        for version in VERSIONS {
            // SAFETY: NUL-terminated names; RTLD_NEXT is relative to this library.
            let found =
                unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            if !found.is_null() {
                address = found as usize;
                break;
            }
        }
        REAL_DLSYM.store(address, Ordering::Relaxed);
    }
    if address == 0 {
        return None;
    }
    // SAFETY: the symbol of this name has this type.
    Some(unsafe { std::mem::transmute::<usize, Dlsym>(address) })
}

/// The address of a symbol of a library, by the real `dlsym`; 0: it has none.
pub fn symbol(handle: *mut c_void, name: &CStr) -> usize {
    match real_dlsym() {
        // SAFETY: a live handle and a NUL-terminated name.
        Some(dlsym) => unsafe { dlsym(handle, name.as_ptr()) as usize },
        None => 0,
    }
}

/// The driver's handle; 0: not loaded yet.
static DRIVER: AtomicUsize = AtomicUsize::new(0);

/// The driver, if the program has loaded it. `load`: or if it can be loaded now.
pub fn driver(load: bool) -> *mut c_void {
    let known = DRIVER.load(Ordering::Acquire);
    if known != 0 {
        return known as *mut c_void;
    }
    // SAFETY: `getenv` answers NULL or text that lives until the environment changes.
    let named = unsafe { libc::getenv(c"FOREBAY_CUDA_LIBRARY".as_ptr()) };
    let names = [named.cast_const(), c"libcuda.so.1".as_ptr()];
    let modes: &[c_int] = if load { &[libc::RTLD_NOLOAD, 0] } else { &[libc::RTLD_NOLOAD] };
    for mode in modes {
        for name in names.iter().filter(|name| !name.is_null()) {
            // SAFETY: NUL-terminated; the driver's constructors are what every CUDA program runs.
            let handle = unsafe { libc::dlopen(*name, libc::RTLD_NOW | mode) };
            if !handle.is_null() {
                DRIVER.store(handle as usize, Ordering::Release);
                return handle;
            }
        }
    }
    std::ptr::null_mut()
}

/// The file name, without folders, of the object that an address lies in; empty: none.
pub fn object_of(address: usize) -> &'static [u8] {
    // SAFETY: all zeros is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; `info` is a local.
    let found = unsafe { libc::dladdr(address as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return b"";
    }
    // SAFETY: the loader's own text, which lives as long as the object is loaded. Objects that
    // matter here, the driver's and Forebay's, are never unloaded; others' names are compared
    // at once and not kept.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Whether an address is code of the driver.
pub fn is_driver(address: usize) -> bool {
    let name = object_of(address);
    [&b"libcuda.so"[..], b"libnvidia-", b"libdxcore"].iter().any(|own| name.starts_with(own))
}

/// Whether an address is code of the driver, of the pool or of a copy of this library: such a
/// caller gets the driver's own entry points.
pub fn is_excluded(caller: usize) -> bool {
    is_driver(caller) || object_of(caller).starts_with(b"libforebay")
}

/// Whether an address is code of this library.
pub fn is_own(address: usize) -> bool {
    // SAFETY: all zeros is a valid `Dl_info`.
    let (mut a, mut b): (libc::Dl_info, libc::Dl_info) = unsafe { std::mem::zeroed() };
    let own = is_own as fn(usize) -> bool as *const c_void;
    // SAFETY: any address may be asked about; the two are locals.
    let found = unsafe {
        libc::dladdr(address as *const c_void, &raw mut a) != 0
            && libc::dladdr(own, &raw mut b) != 0
    };
    found && a.dli_fbase == b.dli_fbase
}

/// The driver's version, e.g. 12080; 0: not known.
pub fn driver_version() -> c_int {
    type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut version = 0;
    let found = symbol(driver(true), c"cuDriverGetVersion");
    if found != 0 {
        // SAFETY: the symbol of this name has this type; a local to fill.
        unsafe { std::mem::transmute::<usize, Get>(found)(&raw mut version) };
    }
    version
}

/// Says something once, in one line on standard error.
pub fn say_once(said: &std::sync::atomic::AtomicBool, text: &str) {
    if said.swap(true, Ordering::Relaxed) {
        return;
    }
    let line = format!("forebay: {text}\n");
    // SAFETY: a buffer of this length. A closed standard error does not matter.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}
