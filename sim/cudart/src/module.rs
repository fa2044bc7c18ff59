//! What a program registers before `main`: its kernels and its variables.
//!
//! Code made by CUDA's compiler hands over a binary and the names in it, each with an address of
//! the host by which the program means it. Owns those names. Binaries are never read. Promises
//! that nothing here starts the driver.

use crate::entry::{export, place};
use crate::symbol;
use crate::types::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A registered kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The binary that it is of.
    pub binary: usize,
    /// Its name in the binary.
    pub name: String,
    /// Dynamic shared memory that a block may have, once the program has set it.
    pub shared: u32,
}

/// A registered variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// The binary that it is of.
    pub binary: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Where it lies.
    pub places: Vec<Place>,
}

/// A variable's memory in one context.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The context.
    pub context: Context,
    /// Which retain of its device's primary context it was made after.
    pub generation: u64,
    /// The address.
    pub at: u64,
}

/// All that is registered, by addresses of the host.
#[derive(Default)]
pub struct Registered {
    pub kernels: BTreeMap<usize, Kernel>,
    pub variables: BTreeMap<usize, Variable>,
    binaries: usize,
}

static REGISTERED: Mutex<Registered> =
    Mutex::new(Registered { kernels: BTreeMap::new(), variables: BTreeMap::new(), binaries: 0 });

/// The registered names, locked.
pub fn registered() -> MutexGuard<'static, Registered> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel by the address that the program has for it: 98 if there is none.
pub fn kernel(function: u64) -> Result<Kernel, Code> {
    let all = registered();
    all.kernels.get(&(function as usize)).cloned().ok_or(ERROR_INVALID_DEVICE_FUNCTION)
}

/// Registers a binary: a handle that names it from now on.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_binary: *mut c_void) -> *mut *mut c_void {
    let mut all = registered();
    all.binaries += 1;
    // Never followed; no binary has the number 0.
    (all.binaries * size_of::<*mut c_void>()) as *mut *mut c_void
}

/// All of a binary is registered.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

/// A binary's library goes away, with its kernels and variables.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(handle: *mut *mut c_void) {
    let mut all = registered();
    all.kernels.retain(|_, kernel| kernel.binary != handle as usize);
    let (gone, stay) = std::mem::take(&mut all.variables)
        .into_iter()
        .partition::<BTreeMap<_, _>, _>(|(_, variable)| variable.binary == handle as usize);
    all.variables = stay;
    drop(all);
    symbol::give_back(gone.values().flat_map(|variable| &variable.places));
}

/// A binary is ready at once.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char {
    1
}

/// Registers a kernel.
///
/// # Safety
///
/// `name` is null or ends in a zero byte.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "as compiled programs call it")]
pub unsafe extern "C" fn __cudaRegisterFunction(
    handle: *mut *mut c_void,
    function: *const c_char,
    _device_function: *mut c_char,
    name: *const c_char,
    _threads_max: i32,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_shape: *mut c_void,
    _grid_shape: *mut c_void,
    _warp: *mut i32,
) {
    if name.is_null() {
        return;
    }
    // SAFETY: not null; the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    let kernel = Kernel { binary: handle as usize, name, shared: 0 };
    registered().kernels.insert(function as usize, kernel);
}

/// Registers a variable of the device.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "as compiled programs call it")]
pub extern "C" fn __cudaRegisterVar(
    handle: *mut *mut c_void,
    variable: *mut c_char,
    _address: *mut c_char,
    _name: *const c_char,
    _external: i32,
    bytes: usize,
    _constant: i32,
    _global: i32,
) {
    let variable_of = Variable { binary: handle as usize, bytes, places: Vec::new() };
    registered().variables.insert(variable as usize, variable_of);
}

/// How a kernel is to be launched, between the two calls that compiled programs make.
#[derive(Clone, Copy, Debug)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Stream,
}

/// Launches whose arguments launch something themselves.
const NESTED_MAX: usize = 16;

thread_local! {
    static PUSHED: Cell<[Option<Configuration>; NESTED_MAX]> =
        const { Cell::new([None; NESTED_MAX]) };
}

/// Remembers a launch's shape for the thread. 0, or 1 when too many are remembered.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Stream,
) -> u32 {
    let mut pushed = PUSHED.get();
    let Some(free) = pushed.iter_mut().find(|p| p.is_none()) else {
        return 1;
    };
    *free = Some(Configuration { grid, block, shared, stream });
    PUSHED.set(pushed);
    0
}

export! {
    /// The shape that was remembered last: 52 if there is none.
    fn __cudaPopCallConfiguration(
        grid: *mut Dim3, block: *mut Dim3, shared: *mut usize, stream: *mut Stream,
    ) {
        let mut pushed = PUSHED.get();
        let last = pushed.iter_mut().rev().find(|p| p.is_some());
        let found = last.and_then(Option::take).ok_or(ERROR_MISSING_CONFIGURATION)?;
        PUSHED.set(pushed);
        *place(grid)? = found.grid;
        *place(block)? = found.block;
        *place(shared)? = found.shared;
        *place(stream)? = found.stream;
        Ok(())
    }

    /// A kernel's handle: here the address that the program has for it.
    fn __cudaGetKernel(to: *mut u64, function: u64) {
        kernel(function)?;
        *place(to)? = function;
        Ok(())
    }

    /// A kernel's handle.
    fn cudaGetKernel(to: *mut u64, function: u64) {
        kernel(function)?;
        *place(to)? = function;
        Ok(())
    }

    /// A kernel's function.
    fn cudaGetFuncBySymbol(to: *mut u64, function: u64) {
        kernel(function)?;
        *place(to)? = function;
        Ok(())
    }
}

/// Managed variables are not built: the program's pointer to one stays null.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterManagedVar() {}

/// Variables of the host need no device.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterHostVar() {}

/// Pointers to functions are not built.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterUnifiedTable() {}
