//! The runtime's own function that a caller would reach without this library.
//!
//! A process may hold several runtimes: a framework's, in its own scope, and another version by a
//! plugin. Owns the table of what was found for each place that calls. A function of another
//! library of `LD_PRELOAD` comes before the runtime's, as the loader would have it. What is found
//! stays loaded. Must not hold its lock while the loader works. Cost: a look into a table under a
//! lock; the first call from a place takes some microseconds.

use crate::cuda::Result;
use crate::loader;
use crate::lookup::RUNTIME;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first version of CUDA whose runtime makes a device's context current as it is chosen.
const KNOWN_SINCE: c_int = 12000;
/// What the table holds before it begins anew: code that is made at run time calls from ever new
/// places.
const PLACES_MAX: usize = 4096;
/// Runtimes that a program may have opened beside everything else, newest first.
const RUNTIMES: [&CStr; 3] = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0"];

/// A function of the runtime.
#[derive(Clone, Copy)]
pub struct Real {
    pub address: usize,
    /// Whether it is a runtime's whose ways are known; another library's has ways of its own.
    pub is_known: bool,
}

type Table = HashMap<(usize, usize), Real>;
static FOUND: Mutex<Option<Table>> = Mutex::new(None);

fn found() -> MutexGuard<'static, Option<Table>> {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The function of [`RUNTIME`] with this number that the code at `caller` means.
pub fn function(name: usize, caller: usize) -> Option<Real> {
    if let Some(real) = found().as_ref().and_then(|table| table.get(&(name, caller))) {
        return Some(*real);
    }
    let address = look(RUNTIME.get(name)?, caller)?;
    let real = Real { address, is_known: is_known(address) };
    let mut table = found();
    let table = table.get_or_insert_default();
    if table.len() >= PLACES_MAX {
        table.clear();
    }
    table.insert((name, caller), real);
    Some(real)
}

fn look(name: &CStr, caller: usize) -> Option<usize> {
    let foreign = |address: &usize| *address != 0 && !loader::is_own(*address);
    let next = Some(loader::symbol(libc::RTLD_NEXT, name)).filter(foreign);
    if let Some(next) = next
        && !is_runtime(next)
    {
        return Some(next);
    }
    // The caller's own libraries: two runtimes may be loaded, and it was linked with one.
    let own = open(caller).map(|handle| {
        let there = loader::symbol(handle, name);
        // SAFETY: the reference that `open` took.
        unsafe { libc::dlclose(handle) };
        there
    });
    own.filter(foreign).or(next).or_else(|| {
        RUNTIMES.iter().find_map(|runtime| {
            let handle = loaded(runtime);
            (!handle.is_null()).then(|| loader::symbol(handle, name)).filter(foreign)
        })
    })
}

fn loaded(name: &CStr) -> *mut c_void {
    // SAFETY: NUL-terminated; nothing is loaded.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
}

/// The object that an address lies in, by a reference of its own.
fn open(address: usize) -> Option<*mut c_void> {
    // SAFETY: all zeros is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; `info` is a local.
    let known = unsafe { libc::dladdr(address as *const c_void, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text; nothing is loaded.
    let handle = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

fn is_runtime(address: usize) -> bool {
    loader::object_of(address).starts_with(b"libcudart")
}

/// Whether a function is a runtime's of a version whose ways are known. Keeps it loaded.
fn is_known(address: usize) -> bool {
    type Version = unsafe extern "C" fn(*mut c_int) -> Result;
    let Some(handle) = open(address) else { return false };
    let found = loader::symbol(handle, c"cudaRuntimeGetVersion");
    if found == 0 || !is_runtime(address) {
        return false;
    }
    let mut version = 0;
    // SAFETY: the runtime's function of this name has this type, and starts nothing.
    let result = unsafe { std::mem::transmute::<usize, Version>(found)(&raw mut version) };
    result == 0 && version >= KNOWN_SINCE
}
