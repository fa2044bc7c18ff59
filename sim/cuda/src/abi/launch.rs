//! Modules and kernels: a few named kernels with a body for the CPU.
//!
//! A module's image is text: PTX whose `.entry` names are kernels of this list, or just their
//! names. A name that is not in the list is a function that is not found (500); binary images
//! are refused (209). Launches check what the driver checks; one kernel is one item of queued
//! work, whatever its grid.

use super::device::place;
use super::stream::{pair, stream};
use crate::call;
use crate::engine::bytes::{self, Rows, Side};
use crate::engine::{Action, Body, Kind, Range, Test, Work};
use crate::entry::{Call, enter};
use crate::misuse;
use crate::types::*;
use crate::world::{ContextState, World};
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// This file's part of the table of calls.
pub(super) static CALLS: &[Call] = &[
    call!(cuModuleLoadData, 2000).unsafe_in_capture(),
    call!(cuModuleLoadDataEx, 2010).unsafe_in_capture(),
    call!(cuModuleGetFunction, 2000),
    call!(cuModuleUnload, 2000).unsafe_in_capture(),
    call!(cuLaunchKernel, 4000),
    call!(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000).per_thread(),
    call!(cuLaunchKernelEx, 11060),
    call!(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060).per_thread(),
];

/// Most threads of a block and blocks in y and z, of every device of the last ten years.
const BLOCK_MAX: u64 = 1024;
const GRID_YZ_MAX: u32 = 65_535;
/// Dynamic shared memory that a block may have, without asking for more.
const SHARED_MAX: u32 = 48 << 10;
const HANDLE_BASE: u64 = 0x734d_0000_0000;
const HANDLE_STEP: u64 = 0x40;

/// The kernels there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kernel {
    /// `fill_u32(u32 *to, u32 value, u64 count)`.
    FillU32,
    /// `add_u32(u32 *to, u32 value, u64 count)`.
    AddU32,
    /// `copy_u32(u32 *to, const u32 *from, u64 count)`.
    CopyU32,
    /// `checksum_u64(const u64 *from, u64 count, u64 *to)`: the values' sum, each times its
    /// place counted from 1, all modulo 2^64.
    ChecksumU64,
    /// `spin_until(const u32 *at, u32 value)`: ends when the word is `value`.
    SpinUntil,
}

const KERNELS: &[(&str, Kernel)] = &[
    ("fill_u32", Kernel::FillU32),
    ("add_u32", Kernel::AddU32),
    ("copy_u32", Kernel::CopyU32),
    ("checksum_u64", Kernel::ChecksumU64),
    ("spin_until", Kernel::SpinUntil),
];

/// A loaded module.
struct Module {
    handle: CUmodule,
    context: Arc<ContextState>,
    /// Names of its entries, known or not.
    names: Vec<String>,
    functions: Vec<(CUfunction, Kernel)>,
}

/// Modules of all worlds; those of an ended one are dropped when the next module is loaded.
static MODULES: Mutex<(Vec<Module>, u64)> = Mutex::new((Vec::new(), 0));

fn modules() -> MutexGuard<'static, (Vec<Module>, u64)> {
    MODULES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names in an image: PTX entries, or words.
fn names(image: &str) -> Vec<String> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    if image.contains(".entry") {
        let after = image.split(".entry").skip(1);
        return after.map(|t| t.trim_start().chars().take_while(|c| word(*c)).collect()).collect();
    }
    image.split(|c| !word(c)).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

unsafe fn load(name: &'static str, module: *mut CUmodule, image: *const c_void) -> CUresult {
    enter(name, String::new, |world| {
        let to = place(module)?;
        if image.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; CUDA asks the caller for an image, and a binary one ends this at its
        // magic number's first bytes or a zero byte soon after.
        let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
        let text = text.to_str().map_err(|_| CUDA_ERROR_NO_BINARY_FOR_GPU)?;
        if text.contains(|c: char| c.is_control() && !c.is_whitespace()) {
            return Err(CUDA_ERROR_NO_BINARY_FOR_GPU);
        }
        let names = names(text);
        if names.is_empty() {
            return Err(CUDA_ERROR_INVALID_PTX);
        }
        let context = world.current_context()?;
        let mut list = modules();
        list.0.retain(|m| !m.context.is_destroyed());
        list.1 += 1;
        let handle = HANDLE_BASE + list.1 * HANDLE_STEP;
        list.0.push(Module { handle, context, names, functions: Vec::new() });
        // SAFETY: not null; CUDA asks the caller for a writable place.
        unsafe { *to = handle };
        Ok(())
    })
}

/// Loads a module into the current context.
///
/// # Safety
///
/// `module` is null or a place for a handle; `image` is null or a module's image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { load("cuModuleLoadData", module, image) }
}

/// Loads a module; compiler options are not looked at.
///
/// # Safety
///
/// `module` is null or a place for a handle; `image` is null or a module's image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { load("cuModuleLoadDataEx", module, image) }
}

/// Unloads a module: its functions are gone, their queued launches still complete.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    enter(
        "cuModuleUnload",
        || format!("module={module:#x}"),
        |_| {
            let mut list = modules();
            let at = list.0.iter().position(|m| m.handle == module);
            list.0.remove(at.ok_or(CUDA_ERROR_INVALID_HANDLE)?);
            Ok(())
        },
    )
}

/// A function of a module: 500 if there is none of that name.
///
/// # Safety
///
/// `function` is null or a place for a handle; `name` is null or ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    enter(
        "cuModuleGetFunction",
        || format!("module={module:#x}"),
        |_| {
            let to = place(function)?;
            if name.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: not null; CUDA asks the caller for a string that ends in a zero byte.
            let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
            let mut list = modules();
            let fresh = HANDLE_BASE + (list.1 + 1) * HANDLE_STEP;
            let module = list.0.iter_mut().find(|m| m.handle == module);
            let module = module.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            let known = KERNELS.iter().find(|(known, _)| *known == name);
            let (_, kernel) = known.ok_or(CUDA_ERROR_NOT_FOUND)?;
            if !module.names.iter().any(|n| n == name) {
                return Err(CUDA_ERROR_NOT_FOUND);
            }
            let made = module.functions.iter().find(|(_, k)| k == kernel).map(|(h, _)| *h);
            let handle = made.unwrap_or_else(|| {
                module.functions.push((fresh, *kernel));
                fresh
            });
            list.1 += u64::from(made.is_none());
            // SAFETY: not null; CUDA asks the caller for a writable place.
            unsafe { *to = handle };
            Ok(())
        },
    )
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// The stream.
    pub stream: CUstream,
    /// Attributes, which are not looked at.
    pub attributes: *const c_void,
    /// How many.
    pub count: u32,
}

/// Reads a kernel's arguments, which CUDA copies at the launch.
struct Arguments(*mut *mut c_void);

impl Arguments {
    /// One argument: 1 if it has no place.
    ///
    /// # Safety
    ///
    /// The caller gave as many places as the kernel has parameters, each readable.
    unsafe fn get<T: Copy>(&self, index: usize) -> Result<T, CUresult> {
        // SAFETY: the caller's promise.
        let at = unsafe { *self.0.add(index) };
        if at.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller's promise.
        Ok(unsafe { at.cast::<T>().read_unaligned() })
    }
}

/// What makes queued work out of a kernel's ranges and body.
struct Maker {
    name: &'static str,
    device: i32,
}

impl Maker {
    fn range(&self, start: u64, len: u64) -> Range {
        Range { start, len, device: self.device, copy: false }
    }

    fn work(&self, reads: Vec<Range>, writes: Vec<Range>, body: Body) -> Action {
        Action::Work(Work { label: self.name, kind: Kind::Kernel, reads, writes, body })
    }

    fn words(&self, kernel: Kernel, first: u64, value: u32, count: u64) -> Action {
        let to = self.range(first, count.saturating_mul(4));
        let rows = Rows::one(to.len);
        if kernel == Kernel::FillU32 {
            let fill = body(first, 4, move |view| {
                // SAFETY: the engine has checked the range and holds the map still; aligned.
                unsafe { bytes::fill(view, first, 0, rows, &value.to_ne_bytes()) };
            });
            return self.work(vec![], vec![to], fill);
        }
        let add = body(first, 4, move |view| {
            for at in (0..count).map(|i| first + i * 4) {
                // SAFETY: as above.
                unsafe {
                    let sum = (bytes::load(view, at, 4) as u32).wrapping_add(value);
                    bytes::store(view, at, 4, u64::from(sum));
                }
            }
        });
        self.work(vec![to], vec![to], add)
    }

    fn copy(&self, first: u64, from: u64, count: u64) -> Action {
        let rows = Rows::one(count.saturating_mul(4));
        let (reads, writes) = (self.range(from, rows.width), self.range(first, rows.width));
        let copy = body(first | from, 4, move |view| {
            let (to, from) = (Side::Mapped(first), Side::Mapped(from));
            // SAFETY: the engine has checked both ranges and holds the map still.
            unsafe { bytes::copy(view, (&to, 0), (&from, 0), rows) };
        });
        self.work(vec![reads], vec![writes], copy)
    }

    fn checksum(&self, first: u64, count: u64, to: u64) -> Action {
        let (reads, writes) = (self.range(first, count.saturating_mul(8)), self.range(to, 8));
        let sum = body(first | to, 8, move |view| {
            // SAFETY: the engine has checked both ranges and holds the map still; aligned.
            unsafe {
                let sum = (0..count).fold(0u64, |sum, i| {
                    let value = bytes::load(view, first + i * 8, 8);
                    sum.wrapping_add(value.wrapping_mul(i + 1))
                });
                bytes::store(view, to, 8, sum);
            }
        });
        self.work(vec![reads], vec![writes], sum)
    }

    fn spin(&self, first: u64, value: u32) -> Action {
        let test: Test = Arc::new(move |view| {
            // SAFETY: the engine has checked the range and holds the map still; an address that
            // is not aligned is not read, and told by the body.
            !first.is_multiple_of(4) || unsafe { bytes::load(view, first, 4) } as u32 == value
        });
        let (label, kind) = (self.name, Kind::Kernel);
        let (reads, writes) = (vec![self.range(first, 4)], vec![]);
        Action::Until(Work { label, kind, reads, writes, body: body(first, 4, |_| {}) }, test)
    }
}

/// The queued work of a launch.
///
/// # Safety
///
/// The arguments are those of the kernel.
unsafe fn work(maker: &Maker, kernel: Kernel, arguments: &Arguments) -> Result<Action, CUresult> {
    // SAFETY: the caller's promise.
    unsafe {
        let first: u64 = arguments.get(0)?;
        Ok(match kernel {
            Kernel::FillU32 | Kernel::AddU32 => {
                maker.words(kernel, first, arguments.get(1)?, arguments.get(2)?)
            }
            Kernel::CopyU32 => maker.copy(first, arguments.get(1)?, arguments.get(2)?),
            Kernel::ChecksumU64 => maker.checksum(first, arguments.get(1)?, arguments.get(2)?),
            Kernel::SpinUntil => maker.spin(first, arguments.get(1)?),
        })
    }
}

/// A body that first says whether its addresses are aligned.
fn body(
    addresses: u64,
    width: u64,
    run: impl Fn(crate::engine::View<'_>) + Send + Sync + 'static,
) -> Body {
    Arc::new(move |view| {
        if !addresses.is_multiple_of(width) {
            return Err(format!("an address is not a multiple of {width}"));
        }
        run(view);
        Ok(())
    })
}

fn check_shape(config: &LaunchConfig) -> Result<(), CUresult> {
    let threads: u64 = config.block.iter().map(|n| u64::from(*n)).product();
    let blocks: u64 = config.grid.iter().map(|n| u64::from(*n)).product();
    let wide = config.grid[1] > GRID_YZ_MAX || config.grid[2] > GRID_YZ_MAX;
    match threads == 0 || threads > BLOCK_MAX || blocks == 0 || wide || config.shared > SHARED_MAX {
        true => Err(CUDA_ERROR_INVALID_VALUE),
        false => Ok(()),
    }
}

fn find(world: &World, function: CUfunction) -> Result<(Kernel, u64), CUresult> {
    let list = modules();
    let found = list.0.iter().find_map(|m| {
        let kernel = m.functions.iter().find(|(h, _)| *h == function)?.1;
        world.contexts.contains_key(&m.context.id).then_some((kernel, m.context.id))
    });
    found.ok_or_else(|| {
        let text = format!("function {function:#x} is of no loaded module");
        misuse::record("a function that is not there", text);
        CUDA_ERROR_INVALID_HANDLE
    })
}

unsafe fn launch_with(
    name: &'static str,
    own: bool,
    config: LaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let handle = config.stream;
    enter(
        name,
        || format!("function={function:#x}, stream={handle:#x}"),
        |world| {
            check_shape(&config)?;
            if parameters.is_null() != extra.is_null() && parameters.is_null() {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            if parameters.is_null() || !extra.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let info = stream(world, handle, own)?;
            let (kernel, context) = find(world, function)?;
            if context != info.context {
                return Err(CUDA_ERROR_INVALID_HANDLE);
            }
            // SAFETY: not null; CUDA asks the caller for the kernel's arguments.
            let action = unsafe {
                work(&Maker { name, device: info.device }, kernel, &Arguments(parameters))?
            };
            world.engine.submit(info.uid, action, 2.0).map(|_| ())
        },
    )
}

#[expect(clippy::too_many_arguments, reason = "cuda.h's arguments and two more")]
unsafe fn launch(
    name: &'static str,
    own: bool,
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let grid = [grid_x, grid_y, grid_z];
    let block = [block_x, block_y, block_z];
    let attributes = std::ptr::null();
    let config = LaunchConfig { grid, block, shared, stream, attributes, count: 0 };
    // SAFETY: the caller's promise.
    unsafe { launch_with(name, own, config, function, parameters, extra) }
}

pair! {
    /// Launches a kernel.
    cuLaunchKernel, cuLaunchKernel_ptsz,
    launch(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    )
}

unsafe fn launch_ex(
    name: &'static str,
    own: bool,
    config: *const LaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    if config.is_null() {
        return enter(name, String::new, |_| Err(CUDA_ERROR_INVALID_VALUE));
    }
    // SAFETY: not null; CUDA asks the caller for the structure.
    unsafe { launch_with(name, own, *config, function, parameters, extra) }
}

pair! {
    /// Launches a kernel, with a structure for its shape and stream.
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
    launch_ex(
        config: *const LaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    )
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn names_are_found_in_ptx_and_in_lists() {
        let ptx = ".version 8.0\n.visible .entry fill_u32(\n.param .u64 a)\n{ ret; }\n\
                   .visible .entry other() { ret; }";
        assert_eq!(names(ptx), ["fill_u32", "other"]);
        assert_eq!(names("fill_u32, add_u32\n"), ["fill_u32", "add_u32"]);
        assert!(names(" ,\n").is_empty());
    }
}
