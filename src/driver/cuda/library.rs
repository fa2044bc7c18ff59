//! The shared library `libcuda.so.1`: opened at run time, never linked.
//!
//! Owns the handle and the way from a name to an address. Promises that nothing is loaded before
//! [`Library::open`], that a driver which the program has loaded already is the one that is
//! found, and that the library stays loaded for the rest of the process (the driver cannot be
//! unloaded safely). Must not call the driver, save to ask it for addresses.
//! Cost: opening takes milliseconds at first, a look-up about a microsecond.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::newer;

/// The driver's name on every Linux. Not `libcuda.so`: that may be the toolkit's stub.
const SONAME: &CStr = c"libcuda.so.1";

/// The driver's library, loaded.
pub struct Library {
    handle: NonNull<c_void>,
    path: PathBuf,
    look_up: LookUp,
}

/// How addresses are found, best first.
#[derive(Clone, Copy)]
enum LookUp {
    /// By name and version, driver 12.0 and later.
    Second(newer::GetProcAddress),
    /// By name and version, driver 11.3 and later.
    First(GetProcAddressV1),
    /// By the exported symbol.
    Symbol,
}

type GetProcAddressV1 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> newer::RawResult;

// SAFETY: the handle is a name for the loader, which may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above; nothing here changes after `open`.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the driver: the file at `path`, or the system's. On failure the loader's words.
    pub fn open(path: Option<&Path>) -> Result<Library, String> {
        let asked = match path {
            Some(path) => CString::new(path.as_os_str().as_bytes())
                .map_err(|_| format!("the path {} holds a NUL byte", path.display()))?,
            None => SONAME.to_owned(),
        };
        // SAFETY: a NUL-terminated name; the library's constructors are the driver's own, which
        // every CUDA program runs.
        let handle = unsafe { libc::dlopen(asked.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else { return Err(loader_error()) };
        if path.is_some() {
            warn_of_another(handle);
        }
        let mut library = Library { handle, path: PathBuf::new(), look_up: LookUp::Symbol };
        library.path = library.file().unwrap_or_else(|| path.unwrap_or(Path::new("")).into());
        library.look_up = library.best_look_up();
        Ok(library)
    }

    /// The file that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The address of an entry point: by `base` name and the `version` that brought its present
    /// form, or, with a driver that has no such look-up, by its exported `symbol`.
    pub fn entry(&self, base: &CStr, version: c_int, symbol: &CStr) -> Option<NonNull<c_void>> {
        let mut found = std::ptr::null_mut();
        let result = match self.look_up {
            LookUp::Second(call) => {
                let mut status = 0;
                // SAFETY: the driver's own look-up; all out pointers are locals.
                unsafe { call(base.as_ptr(), &raw mut found, version, 0, &raw mut status) }
            }
            // SAFETY: as above.
            LookUp::First(call) => unsafe { call(base.as_ptr(), &raw mut found, version, 0) },
            LookUp::Symbol => return self.symbol(symbol),
        };
        if result == 0 { NonNull::new(found) } else { None }
    }

    /// The address of an exported symbol.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a live handle and a NUL-terminated name.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }

    /// The newest way that finds `cuInit`; a driver may export one that its version lacks.
    fn best_look_up(&mut self) -> LookUp {
        let second = self.symbol(c"cuGetProcAddress_v2").map(|address| {
            // SAFETY: the symbol of this name has this type, see `newer`.
            LookUp::Second(unsafe {
                std::mem::transmute::<NonNull<c_void>, newer::GetProcAddress>(address)
            })
        });
        let first = self.symbol(c"cuGetProcAddress").map(|address| {
            // SAFETY: the type of 11.3, as in `cust_raw::cuGetProcAddress`.
            LookUp::First(unsafe {
                std::mem::transmute::<NonNull<c_void>, GetProcAddressV1>(address)
            })
        });
        for look_up in [second, first].into_iter().flatten() {
            self.look_up = look_up;
            if self.entry(c"cuInit", 2000, c"cuInit").is_some() {
                return look_up;
            }
        }
        LookUp::Symbol
    }

    fn file(&self) -> Option<PathBuf> {
        let inside = self.symbol(c"cuInit")?;
        // SAFETY: all zeros is a valid `Dl_info`.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: an address inside the library, and a local to fill.
        if unsafe { libc::dladdr(inside.as_ptr(), &raw mut info) } == 0 || info.dli_fname.is_null()
        {
            return None;
        }
        // SAFETY: the loader's own NUL-terminated string; copied at once.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_path_buf();
        Some(std::fs::canonicalize(&path).unwrap_or(path))
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&self.path).finish()
    }
}

/// Two drivers in one process do not know each other's memory.
fn warn_of_another(ours: NonNull<c_void>) {
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    // SAFETY: loads nothing; the name is NUL-terminated.
    let loaded = unsafe { libc::dlopen(SONAME.as_ptr(), flags) };
    if !loaded.is_null() && loaded != ours.as_ptr() {
        tracing::warn!(
            "FOREBAY_CUDA_LIBRARY names another file than the libcuda.so.1 that this process has \
             loaded: memory of one driver means nothing to the other"
        );
    }
}

fn loader_error() -> String {
    // SAFETY: answers the thread's last loader error, NUL-terminated, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gave no reason".into();
    }
    // SAFETY: not null; copied before the next loader call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
