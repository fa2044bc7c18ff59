//! Launches of kernels.
//!
//! Four ways, by the kernel's name. With a body (`control`): a host function of the stream, which
//! calls it on arguments that were copied at the launch; in a capture the graph holds the copy. A
//! name that the driver's own kernels have: the driver's launch, with its checks. Fills and spins
//! of PyTorch's (`torch`): fills of the driver's, and a body. Any other: a launch that touches
//! nothing, so the stream has an entry and a graph a node.
//! Promises that a launch's shape is checked alike in all four. A body whose context fails before
//! its turn is not called, and its copy of the arguments is not freed.

use crate::control::{self, Bodied};
use crate::driver::Driver;
use crate::entry::{export, place};
use crate::function::resident;
use crate::module;
use crate::state;
use crate::torch::{self, Known};
use crate::types::*;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, PoisonError};

/// Most threads of a block, and of it in z; most blocks in x, and in y and z: CUDA's programming
/// guide, technical specifications of all compute capabilities of today.
const BLOCK_MAX: u64 = 1024;
const BLOCK_Z_MAX: u32 = 64;
const GRID_X_MAX: u32 = i32::MAX.unsigned_abs();
const GRID_YZ_MAX: u32 = 65_535;
/// Dynamic shared memory of a block, unless the program has asked for more.
const SHARED_MAX: u32 = 48 << 10;
/// Kernels that the simulated driver has bodies of: see its documentation.
const OF_DRIVER: &[&str] = &[FILL, "add_u32", "copy_u32", "checksum_u64", "spin_until"];
/// Fills words; does nothing when there are none.
pub const FILL: &str = "fill_u32";
/// `cudaGraphUserObjectMove`.
const MOVE: u32 = 1;
/// `cudaUserObjectNoDestructorSync`.
const NO_DESTRUCTOR_SYNC: u32 = 1;

/// What a body is told of its launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: usize,
    /// The stream, as the program named it.
    pub stream: Stream,
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Stream,
    attributes: *const c_void,
    count: u32,
}

/// A body with its own copy of the arguments.
struct Call {
    bodied: Bodied,
    launch: Launch,
    /// Each argument begins at a multiple of 16 bytes.
    bytes: Vec<u128>,
}

impl Call {
    /// Copies the arguments.
    ///
    /// # Safety
    ///
    /// There is a place for each size of the body, as wide as it says.
    unsafe fn new(
        bodied: Bodied,
        launch: Launch,
        arguments: *mut *mut c_void,
    ) -> Result<Call, Code> {
        let units: usize = bodied.sizes.iter().map(|size| size.div_ceil(16)).sum();
        let mut bytes = vec![0u128; units];
        let mut at = 0;
        for (i, size) in bodied.sizes.iter().enumerate() {
            if arguments.is_null() {
                return Err(ERROR_INVALID_VALUE);
            }
            // SAFETY: the caller's promise; within `bytes` by the sum above.
            unsafe {
                let from = *arguments.add(i);
                if from.is_null() {
                    return Err(ERROR_INVALID_VALUE);
                }
                let to = bytes.as_mut_ptr().add(at).cast::<u8>();
                to.copy_from_nonoverlapping(from.cast(), *size);
            }
            at += size.div_ceil(16);
        }
        Ok(Call { bodied, launch, bytes })
    }

    /// Calls the body on a copy of its own: a kernel may change its arguments, which no other
    /// launch of a graph sees, and launches of one graph's copies may run side by side.
    fn run(&self) {
        let mut bytes = self.bytes.clone();
        let base = bytes.as_mut_ptr();
        let mut at = 0;
        let mut arguments = Vec::with_capacity(self.bodied.sizes.len() + 1);
        for size in &self.bodied.sizes {
            // SAFETY: within `bytes`, as they were laid out.
            arguments.push(unsafe { base.add(at) }.cast::<c_void>());
            at += size.div_ceil(16);
        }
        // SAFETY: whoever gave the body promised that it takes these arguments.
        unsafe { (self.bodied.body)(arguments.as_mut_ptr(), &self.launch) };
    }
}

/// Runs a call once and ends it.
unsafe extern "C" fn run_once(call: *mut c_void) {
    // SAFETY: made by `Box::into_raw` for this one call.
    unsafe { Box::from_raw(call.cast::<Call>()) }.run();
}

/// Runs a call that a graph holds.
unsafe extern "C" fn run_kept(call: *mut c_void) {
    // SAFETY: the graph holds it until `drop_call`, and nothing writes to it.
    unsafe { (*call.cast::<Call>()).run() }
}

/// Ends a call, when no graph holds it any more.
unsafe extern "C" fn drop_call(call: *mut c_void) {
    // SAFETY: made by `Box::into_raw`, and given to the driver for this one call.
    drop(unsafe { Box::from_raw(call.cast::<Call>()) });
}

fn check(launch: &Launch, allowed: u32) -> Answer {
    let threads = launch.block.count();
    let Dim3 { x, y, z } = launch.grid;
    let wide = x > GRID_X_MAX || y > GRID_YZ_MAX || z > GRID_YZ_MAX;
    let deep = launch.block.z > BLOCK_Z_MAX;
    if threads == 0 || threads > BLOCK_MAX || launch.grid.count() == 0 || wide || deep {
        return Err(ERROR_INVALID_CONFIGURATION);
    }
    if launch.shared > SHARED_MAX.max(allowed) as usize {
        return Err(ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// Launches the kernel that the program means by this address.
unsafe fn launch(own: bool, function: u64, launch: Launch, arguments: *mut *mut c_void) -> Answer {
    let kernel = module::kernel(function)?;
    let driver = state::ready()?;
    check(&launch, kernel.shared)?;
    // SAFETY: the caller's promise.
    unsafe {
        match (control::body_of(&kernel.name), torch::known(&kernel.name)) {
            (Some(bodied), _) => with_body(driver, own, Call::new(bodied, launch, arguments)?),
            (None, Some(Known::Spin)) => {
                with_body(driver, own, Call::new(torch::spin(), launch, arguments)?)
            }
            (None, Some(Known::Fill(width))) => torch::fill(driver, own, &launch, width, arguments),
            (None, None) if OF_DRIVER.contains(&kernel.name.as_str()) => {
                of_driver(driver, own, &kernel.name, &launch, arguments)
            }
            (None, None) => {
                let (mut to, mut value, mut count) = (0u64, 0u32, 0u64);
                let mut none: [*mut c_void; 3] =
                    [(&raw mut to).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
                of_driver(driver, own, FILL, &launch, none.as_mut_ptr())
            }
        }
    }?;
    control::launched(&kernel.name);
    Ok(())
}

/// The same, where all blocks must be on the device at once: 720 for more than fit.
unsafe fn launch_together(
    own: bool,
    function: u64,
    shape: Launch,
    arguments: *mut *mut c_void,
) -> Answer {
    check(&shape, module::kernel(function)?.shared)?;
    if shape.grid.count() > resident(&shape)? {
        return Err(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    // SAFETY: the caller's promise.
    unsafe { launch(own, function, shape, arguments) }
}

unsafe fn with_body(driver: &Driver, own: bool, call: Call) -> Answer {
    let stream = call.launch.stream;
    let (mut status, mut id, mut graph, mut count) = (0, 0, 0, 0);
    let mut nodes = std::ptr::null();
    // A stream that cannot be asked is given the work all the same: the driver then says why not,
    // and ends a capture as the launch would have.
    // SAFETY: places of this frame.
    let _ = unsafe {
        driver.cuStreamGetCaptureInfo(
            own,
            stream,
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut count,
        )
    };
    let call = Box::into_raw(Box::new(call)).cast::<c_void>();
    if status == 0 {
        // SAFETY: the stream calls it once with this.
        let queued = unsafe { driver.cuLaunchHostFunc(own, stream, run_once, call) };
        if queued.is_err() {
            // SAFETY: the driver has refused it, so nothing else will.
            unsafe { drop_call(call) };
        }
        return queued;
    }
    let mut object = 0;
    // SAFETY: a place of this frame; the object ends the call.
    let made =
        unsafe { driver.cuUserObjectCreate(&mut object, call, drop_call, 1, NO_DESTRUCTOR_SYNC) };
    if made.is_err() {
        // SAFETY: no object was made that would end it.
        unsafe { drop_call(call) };
        return made;
    }
    // SAFETY: takes no pointer of this frame; the graph holds the call from here on.
    unsafe {
        if let Err(code) = driver.cuGraphRetainUserObject(graph, object, 1, MOVE) {
            let _ = driver.cuUserObjectRelease(object, 1);
            return Err(code);
        }
        driver.cuLaunchHostFunc(own, stream, run_kept, call)
    }
}

/// A function of the driver's module.
struct Loaded {
    context: Context,
    /// Which retain of the device's primary context it was made after.
    generation: u64,
    name: &'static str,
    function: u64,
}

static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// The driver's function of this name in the current context.
fn function_of(driver: &Driver, name: &str) -> Result<u64, Code> {
    let context = state::context(driver)?;
    let generation = state::generation(state::current_device(driver));
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.retain(|l| l.context != context || l.generation == generation);
    let known = |l: &&Loaded| l.context == context && l.name == name;
    if let Some(known) = loaded.iter().find(known) {
        return Ok(known.function);
    }
    let image = CString::new(OF_DRIVER.join(" ")).map_err(|_| ERROR_UNKNOWN)?;
    let mut module = 0;
    // SAFETY: places of this frame, texts that end in a zero byte.
    unsafe {
        state::uncaptured(driver, || driver.cuModuleLoadData(&mut module, image.as_ptr()))?;
        for known in OF_DRIVER {
            let text = CString::new(*known).map_err(|_| ERROR_UNKNOWN)?;
            let mut function = 0;
            driver.cuModuleGetFunction(&mut function, module, text.as_ptr().cast::<c_char>())?;
            loaded.push(Loaded { context, generation, name: known, function });
        }
    }
    loaded.iter().find(known).map(|l| l.function).ok_or(ERROR_INVALID_DEVICE_FUNCTION)
}

/// Launches the driver's own kernel of this name.
///
/// # Safety
///
/// The arguments are the kernel's.
pub unsafe fn of_driver(
    driver: &Driver,
    own: bool,
    name: &str,
    launch: &Launch,
    arguments: *mut *mut c_void,
) -> Answer {
    let function = function_of(driver, name)?;
    let (grid, block) = (launch.grid, launch.block);
    // The driver's kernels use no shared memory.
    // SAFETY: the caller's promise about the arguments.
    unsafe {
        driver.cuLaunchKernel(
            own,
            function,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z,
            0,
            launch.stream,
            arguments,
            std::ptr::null_mut(),
        )
    }
}

export! {
    /// Launches a kernel.
    pair own fn cudaLaunchKernel, cudaLaunchKernel_ptsz(
        function: u64, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize,
        stream: Stream,
    ) {
        launch(own, function, Launch { grid, block, shared, stream }, arguments)
    }

    /// Launches a kernel by its handle.
    pair own fn __cudaLaunchKernel, __cudaLaunchKernel_ptsz(
        function: u64, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize,
        stream: Stream,
    ) {
        launch(own, function, Launch { grid, block, shared, stream }, arguments)
    }

    /// Launches a kernel whose blocks may wait for each other.
    pair own fn cudaLaunchCooperativeKernel, cudaLaunchCooperativeKernel_ptsz(
        function: u64, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize,
        stream: Stream,
    ) {
        launch_together(own, function, Launch { grid, block, shared, stream }, arguments)
    }

    /// Launches a kernel, with a structure for its shape; attributes are not looked at.
    pair own fn cudaLaunchKernelExC, cudaLaunchKernelExC_ptsz(
        config: *const Config, function: u64, arguments: *mut *mut c_void,
    ) {
        let Config { grid, block, shared, stream, .. } = *place(config.cast_mut())?;
        launch(own, function, Launch { grid, block, shared, stream }, arguments)
    }
}
