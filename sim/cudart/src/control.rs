//! The `forebay_simcudart_*` functions beside CUDA's: bodies for kernels, and counts of launches.
//!
//! Callable from any thread; none of them starts the driver.

use crate::launch::Launch;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A kernel's body for the CPU: its arguments, as a launch has them, and its shape.
pub type Body = unsafe extern "C" fn(*mut *mut c_void, *const Launch);

/// A body, and how wide the kernel's arguments are.
#[derive(Clone, Debug)]
pub struct Bodied {
    pub body: Body,
    pub sizes: Vec<usize>,
}

#[derive(Default)]
struct Table {
    bodies: BTreeMap<String, Bodied>,
    launches: BTreeMap<String, u64>,
}

static TABLE: Mutex<Table> =
    Mutex::new(Table { bodies: BTreeMap::new(), launches: BTreeMap::new() });

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel's body, if it has one.
pub fn body_of(name: &str) -> Option<Bodied> {
    table().bodies.get(name).cloned()
}

/// Counts a launch that the driver has taken.
pub fn launched(name: &str) {
    let mut table = table();
    match table.launches.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(table.launches.insert(name.to_owned(), 1)),
    }
}

/// Widest argument, as CUDA has it.
const ARGUMENT_MAX: usize = 4096;

/// Gives the kernel of this name, as the program registers it, a body that launches from now on
/// run in stream order; a null body takes it away. `sizes` are the bytes of each argument. 0,
/// or 1 if a name or a size cannot be.
///
/// # Safety
///
/// `name` ends in a zero byte; `count` sizes can be read; the body reads no argument beyond its
/// size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_simcudart_kernel(
    name: *const c_char,
    body: Option<Body>,
    sizes: *const usize,
    count: usize,
) -> i32 {
    if name.is_null() || (sizes.is_null() && count > 0) {
        return 1;
    }
    // SAFETY: not null; the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let sizes = match count {
        0 => Vec::new(),
        // SAFETY: not null; the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(sizes, count) }.to_vec(),
    };
    if name.is_empty() || sizes.iter().any(|size| *size == 0 || *size > ARGUMENT_MAX) {
        return 1;
    }
    let mut table = table();
    match body {
        Some(body) => table.bodies.insert(name, Bodied { body, sizes }),
        None => table.bodies.remove(&name),
    };
    0
}

/// How often the kernel of this name was launched or captured.
///
/// # Safety
///
/// `name` is null or ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_simcudart_launches(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: not null; the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    table().launches.get(name.as_ref()).copied().unwrap_or(0)
}

/// Answers 1: this is the simulated runtime. NVIDIA's has no such function.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_simcudart_is_simulated() -> i32 {
    1
}
