//! What the tests share: the libraries, opened once, one test at a time, no misuse at the end.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of each device.
pub const DEVICE_BYTES: usize = 256 << 20;

/// The folder of the staged libraries.
pub fn folder() -> PathBuf {
    let folder = std::env::var_os("FOREBAY_SIMULATED_RUNTIME");
    PathBuf::from(folder.expect("FOREBAY_SIMULATED_RUNTIME: run cargo xtask test cudart"))
}

/// Opens a library by path; the driver so that the runtime finds it by name.
fn open(name: &str) -> usize {
    let path = CString::new(folder().join(name).to_str().expect("is text")).expect("no zero");
    // SAFETY: a path that ends in a zero byte.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{name} cannot be opened");
    handle as usize
}

/// The runtime, on a driver with two devices unless the environment says otherwise.
pub fn runtime() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        let bytes = DEVICE_BYTES.to_string();
        // Queued work runs when it is waited for, so tests can see that it has not run before.
        for (name, value) in [
            ("FOREBAY_SIM_DEVICES", "2"),
            ("FOREBAY_SIM_MEMORY", &bytes),
            ("FOREBAY_SIM_SCHEDULE", "stepped"),
        ] {
            if std::env::var_os(name).is_none() {
                // SAFETY: no other test runs yet: all wait for this very cell.
                unsafe { std::env::set_var(name, value) };
            }
        }
        driver();
        open("libcudart.so.12")
    });
    handle as *mut c_void
}

/// The driver.
pub fn driver() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    *HANDLE.get_or_init(|| open("libcuda.so.1")) as *mut c_void
}

/// A function of a library.
pub fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let text = CString::new(name).expect("no zero");
    // SAFETY: an open library, a text that ends in a zero byte.
    let at = unsafe { libc::dlsym(library, text.as_ptr()) };
    assert!(!at.is_null(), "no {name}");
    at
}

macro_rules! functions {
    ($of:ident: $(fn $name:ident($($arg:ident: $kind:ty),*) -> $back:ty;)*) => {
        $(
            #[allow(clippy::too_many_arguments, reason = "CUDA's own")]
            pub fn $name($($arg: $kind),*) -> $back {
                let at = symbol($of(), stringify!($name));
                // SAFETY: the header's type; the tests give places that fit.
                unsafe {
                    let call: unsafe extern "C" fn($($kind),*) -> $back = std::mem::transmute(at);
                    call($($arg),*)
                }
            }
        )*
    };
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Dim3(pub u32, pub u32, pub u32);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PitchedPtr(pub u64, pub usize, pub usize, pub usize);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent(pub usize, pub usize, pub usize);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointerAttributes {
    pub kind: u32,
    pub device: i32,
    pub device_pointer: u64,
    pub host_pointer: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProps {
    pub kind: u32,
    pub handles: u32,
    pub location: [i32; 2],
    pub security: u64,
    pub max: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

impl PoolProps {
    /// Pinned memory of a device.
    pub fn of(device: i32) -> PoolProps {
        PoolProps {
            kind: 1,
            handles: 0,
            location: [1, device],
            security: 0,
            max: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocNode {
    pub pool: PoolProps,
    pub access: *const [u32; 3],
    pub access_count: usize,
    pub bytes: usize,
    pub at: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

#[repr(C)]
pub struct LaunchConfig {
    pub grid: Dim3,
    pub block: Dim3,
    pub shared: usize,
    pub stream: u64,
    pub attributes: u64,
    pub count: u32,
}

pub type HostFn = unsafe extern "C" fn(*mut c_void);
pub type Body = unsafe extern "C" fn(*mut *mut c_void, *const c_void);
type Void = *mut c_void;

functions! { runtime:
    fn cudaRuntimeGetVersion(to: *mut i32) -> i32;
    fn cudaDriverGetVersion(to: *mut i32) -> i32;
    fn cudaGetLastError() -> i32;
    fn cudaPeekAtLastError() -> i32;
    fn cudaGetErrorName(code: i32) -> *const c_char;
    fn cudaGetErrorString(code: i32) -> *const c_char;
    fn cudaGetDeviceCount(to: *mut i32) -> i32;
    fn cudaSetDevice(device: i32) -> i32;
    fn cudaGetDevice(to: *mut i32) -> i32;
    fn cudaInitDevice(device: i32, device_flags: u32, flags: u32) -> i32;
    fn cudaGetDeviceProperties_v2(to: *mut u8, device: i32) -> i32;
    fn cudaDeviceGetAttribute(to: *mut i32, attribute: u32, device: i32) -> i32;
    fn cudaDeviceGetPCIBusId(to: *mut c_char, len: i32, device: i32) -> i32;
    fn cudaDeviceGetByPCIBusId(to: *mut i32, id: *const c_char) -> i32;
    fn cudaDeviceCanAccessPeer(to: *mut i32, device: i32, peer: i32) -> i32;
    fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) -> i32;
    fn cudaDeviceDisablePeerAccess(peer: i32) -> i32;
    fn cudaDeviceGetLimit(to: *mut usize, limit: u32) -> i32;
    fn cudaDeviceSetLimit(limit: u32, value: usize) -> i32;
    fn cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32;
    fn cudaSetDeviceFlags(flags: u32) -> i32;
    fn cudaGetDeviceFlags(to: *mut u32) -> i32;
    fn cudaDeviceSynchronize() -> i32;
    fn cudaDeviceReset() -> i32;
    fn cudaGetDriverEntryPoint(name: *const c_char, to: *mut Void, flags: u64, said: *mut u32)
        -> i32;
    fn cudaGetDriverEntryPoint_ptsz(name: *const c_char, to: *mut Void, flags: u64,
        said: *mut u32) -> i32;
    fn cudaGetDriverEntryPointByVersion(name: *const c_char, to: *mut Void, version: u32,
        flags: u64, said: *mut u32) -> i32;
    fn cudaMalloc(to: *mut u64, bytes: usize) -> i32;
    fn cudaFree(at: u64) -> i32;
    fn cudaMallocPitch(to: *mut u64, pitch: *mut usize, width: usize, height: usize) -> i32;
    fn cudaMalloc3D(to: *mut PitchedPtr, extent: Extent) -> i32;
    fn cudaMallocManaged(to: *mut u64, bytes: usize, flags: u32) -> i32;
    fn cudaMallocHost(to: *mut Void, bytes: usize) -> i32;
    fn cudaHostAlloc(to: *mut Void, bytes: usize, flags: u32) -> i32;
    fn cudaFreeHost(at: Void) -> i32;
    fn cudaHostRegister(at: Void, bytes: usize, flags: u32) -> i32;
    fn cudaHostUnregister(at: Void) -> i32;
    fn cudaHostGetDevicePointer(to: *mut u64, at: Void, flags: u32) -> i32;
    fn cudaHostGetFlags(to: *mut u32, at: Void) -> i32;
    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> i32;
    fn cudaPointerGetAttributes(to: *mut PointerAttributes, at: u64) -> i32;
    fn cudaMemcpy(to: u64, from: u64, bytes: usize, kind: u32) -> i32;
    fn cudaMemcpyAsync(to: u64, from: u64, bytes: usize, kind: u32, stream: u64) -> i32;
    fn cudaMemcpy2D(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize,
        height: usize, kind: u32) -> i32;
    fn cudaMemcpy2DAsync(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize,
        height: usize, kind: u32, stream: u64) -> i32;
    fn cudaMemcpyPeer(to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize) -> i32;
    fn cudaMemcpyPeerAsync(to: u64, to_device: i32, from: u64, from_device: i32, bytes: usize,
        stream: u64) -> i32;
    fn cudaMemset(to: u64, value: i32, bytes: usize) -> i32;
    fn cudaMemsetAsync(to: u64, value: i32, bytes: usize, stream: u64) -> i32;
    fn cudaMemsetAsync_ptsz(to: u64, value: i32, bytes: usize, stream: u64) -> i32;
    fn cudaMemset2D(to: u64, pitch: usize, value: i32, width: usize, height: usize) -> i32;
    fn cudaMemset2DAsync(to: u64, pitch: usize, value: i32, width: usize, height: usize,
        stream: u64) -> i32;
    fn cudaMemcpyToSymbol(symbol: u64, from: u64, bytes: usize, offset: usize, kind: u32) -> i32;
    fn cudaMemcpyFromSymbol(to: u64, symbol: u64, bytes: usize, offset: usize, kind: u32) -> i32;
    fn cudaMemcpyToSymbolAsync(symbol: u64, from: u64, bytes: usize, offset: usize, kind: u32,
        stream: u64) -> i32;
    fn cudaGetSymbolAddress(to: *mut u64, symbol: u64) -> i32;
    fn cudaGetSymbolSize(to: *mut usize, symbol: u64) -> i32;
    fn cudaMallocAsync(to: *mut u64, bytes: usize, stream: u64) -> i32;
    fn cudaMallocFromPoolAsync(to: *mut u64, bytes: usize, pool: u64, stream: u64) -> i32;
    fn cudaFreeAsync(at: u64, stream: u64) -> i32;
    fn cudaDeviceGetDefaultMemPool(to: *mut u64, device: i32) -> i32;
    fn cudaDeviceGetMemPool(to: *mut u64, device: i32) -> i32;
    fn cudaDeviceSetMemPool(device: i32, pool: u64) -> i32;
    fn cudaMemPoolCreate(to: *mut u64, props: *const PoolProps) -> i32;
    fn cudaMemPoolDestroy(pool: u64) -> i32;
    fn cudaMemPoolTrimTo(pool: u64, keep: usize) -> i32;
    fn cudaMemPoolSetAttribute(pool: u64, attribute: u32, value: *mut u64) -> i32;
    fn cudaMemPoolGetAttribute(pool: u64, attribute: u32, value: *mut u64) -> i32;
    fn cudaIpcGetMemHandle(to: *mut IpcHandle, at: u64) -> i32;
    fn cudaIpcOpenMemHandle(to: *mut u64, handle: IpcHandle, flags: u32) -> i32;
    fn cudaIpcCloseMemHandle(at: u64) -> i32;
    fn cudaStreamCreate(to: *mut u64) -> i32;
    fn cudaStreamCreateWithFlags(to: *mut u64, flags: u32) -> i32;
    fn cudaStreamCreateWithPriority(to: *mut u64, flags: u32, priority: i32) -> i32;
    fn cudaStreamDestroy(stream: u64) -> i32;
    fn cudaStreamQuery(stream: u64) -> i32;
    fn cudaStreamQuery_ptsz(stream: u64) -> i32;
    fn cudaStreamSynchronize(stream: u64) -> i32;
    fn cudaStreamSynchronize_ptsz(stream: u64) -> i32;
    fn cudaStreamWaitEvent(stream: u64, event: u64, flags: u32) -> i32;
    fn cudaStreamGetFlags(stream: u64, to: *mut u32) -> i32;
    fn cudaStreamGetPriority(stream: u64, to: *mut i32) -> i32;
    fn cudaStreamAddCallback(stream: u64, call: *const c_void, data: Void, flags: u32) -> i32;
    fn cudaLaunchHostFunc(stream: u64, call: Option<HostFn>, data: Void) -> i32;
    fn cudaEventCreate(to: *mut u64) -> i32;
    fn cudaEventCreateWithFlags(to: *mut u64, flags: u32) -> i32;
    fn cudaEventRecord(event: u64, stream: u64) -> i32;
    fn cudaEventQuery(event: u64) -> i32;
    fn cudaEventSynchronize(event: u64) -> i32;
    fn cudaEventElapsedTime(to: *mut f32, start: u64, end: u64) -> i32;
    fn cudaEventDestroy(event: u64) -> i32;
    fn cudaStreamBeginCapture(stream: u64, mode: u32) -> i32;
    fn cudaStreamEndCapture(stream: u64, to: *mut u64) -> i32;
    fn cudaStreamIsCapturing(stream: u64, to: *mut u32) -> i32;
    fn cudaStreamGetCaptureInfo_v2(stream: u64, status: *mut u32, id: *mut u64, graph: *mut u64,
        nodes: *mut *const u64, count: *mut usize) -> i32;
    fn cudaGraphCreate(to: *mut u64, flags: u32) -> i32;
    fn cudaGraphAddMemAllocNode(to: *mut u64, graph: u64, after: *const u64, count: usize,
        parameters: *mut AllocNode) -> i32;
    fn cudaGraphMemAllocNodeGetParams(node: u64, parameters: *mut AllocNode) -> i32;
    fn cudaGraphAddMemFreeNode(to: *mut u64, graph: u64, after: *const u64, count: usize, at: u64)
        -> i32;
    fn cudaGraphMemFreeNodeGetParams(node: u64, at: *mut u64) -> i32;
    fn cudaDeviceGraphMemTrim(device: i32) -> i32;
    fn cudaDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: *mut u64) -> i32;
    fn cudaDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: *mut u64) -> i32;
    fn cudaGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> i32;
    fn cudaGraphGetEdges(graph: u64, from: *mut u64, to: *mut u64, count: *mut usize) -> i32;
    fn cudaGraphGetRootNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> i32;
    fn cudaGraphNodeGetDependencies(node: u64, nodes: *mut u64, count: *mut usize) -> i32;
    fn cudaGraphNodeGetDependentNodes(node: u64, nodes: *mut u64, count: *mut usize) -> i32;
    fn cudaGraphDebugDotPrint(graph: u64, path: *const c_char, flags: u32) -> i32;
    fn cudaGraphNodeGetType(node: u64, to: *mut u32) -> i32;
    fn cudaGraphInstantiate(to: *mut u64, graph: u64, flags: u64) -> i32;
    fn cudaGraphLaunch(exec: u64, stream: u64) -> i32;
    fn cudaGraphExecDestroy(exec: u64) -> i32;
    fn cudaGraphDestroy(graph: u64) -> i32;
    fn cudaUserObjectCreate(to: *mut u64, data: Void, destroy: Option<HostFn>, count: u32,
        flags: u32) -> i32;
    fn cudaGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) -> i32;
    fn __cudaRegisterFatBinary(binary: Void) -> u64;
    fn __cudaUnregisterFatBinary(handle: u64) -> ();
    fn __cudaRegisterFunction(handle: u64, function: u64, device: Void, name: *const c_char,
        threads: i32, a: Void, b: Void, c: Void, d: Void, e: Void) -> ();
    fn __cudaRegisterVar(handle: u64, variable: u64, address: Void, name: *const c_char,
        external: i32, bytes: usize, constant: i32, global: i32) -> ();
    fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared: usize, stream: u64) -> u32;
    fn __cudaPopCallConfiguration(grid: *mut Dim3, block: *mut Dim3, shared: *mut usize,
        stream: *mut u64) -> i32;
    fn cudaLaunchKernel(function: u64, grid: Dim3, block: Dim3, arguments: *mut Void,
        shared: usize, stream: u64) -> i32;
    fn cudaLaunchCooperativeKernel(function: u64, grid: Dim3, block: Dim3, arguments: *mut Void,
        shared: usize, stream: u64) -> i32;
    fn cudaLaunchKernelExC(config: *const LaunchConfig, function: u64, arguments: *mut Void)
        -> i32;
    fn cudaFuncGetAttributes(to: *mut [i32; 36], function: u64) -> i32;
    fn cudaFuncSetAttribute(function: u64, attribute: u32, value: i32) -> i32;
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(to: *mut i32, function: u64, threads: i32,
        shared: usize) -> i32;
    fn cudaMallocArray() -> i32;
    fn cudaGetDeviceProperties(to: *mut u8, device: i32) -> i32;
    fn forebay_simcudart_kernel(name: *const c_char, body: Option<Body>, sizes: *const usize,
        count: usize) -> i32;
    fn forebay_simcudart_launches(name: *const c_char) -> u64;
}

functions! { driver:
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32;
    fn cuCtxGetCurrent(to: *mut u64) -> i32;
    fn cuCtxSetCurrent(context: u64) -> i32;
    fn cuCtxCreate_v2(to: *mut u64, flags: u32, device: i32) -> i32;
    fn cuCtxDestroy_v2(context: u64) -> i32;
    fn forebay_sim_report(buffer: *mut c_char, length: usize) -> usize;
}

/// The driver's report.
pub fn report() -> String {
    let mut text = vec![0u8; forebay_sim_report(std::ptr::null_mut(), 0) + 4096];
    forebay_sim_report(text.as_mut_ptr().cast(), text.len());
    let end = text.iter().position(|b| *b == 0).expect("ends in a zero byte");
    String::from_utf8(text[..end].to_vec()).expect("is text")
}

fn misuse() -> String {
    let report = report();
    let at = report.find("\"misuse\"").expect("lists misuse");
    report[at..].split("\"settings_error\"").next().expect("a part").to_owned()
}

/// One test's turn: the thread's device is 0 and its last error none; at the end nothing was
/// misused, unless the test says that it means to.
pub struct Turn {
    _one: MutexGuard<'static, ()>,
    before: Option<String>,
}

/// Waits for this test's turn.
pub fn turn() -> Turn {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    runtime();
    assert_eq!(cudaSetDevice(0), 0);
    cudaGetLastError();
    Turn { _one: one, before: Some(misuse()) }
}

impl Turn {
    /// This test does what must not be done.
    pub fn misuses(&mut self) {
        self.before = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && !std::thread::panicking()
        {
            assert_eq!(&misuse(), before);
        }
    }
}

/// Registers a kernel under an address of its own.
pub fn register(name: &CStr, address: &'static u8) -> (u64, u64) {
    let binary = __cudaRegisterFatBinary(std::ptr::null_mut());
    let function = std::ptr::from_ref(address) as u64;
    let none = std::ptr::null_mut();
    __cudaRegisterFunction(binary, function, none, name.as_ptr(), -1, none, none, none, none, none);
    (binary, function)
}

/// Registers a variable of 16 bytes under an address of its own.
pub fn variable(address: &'static u8) -> (u64, u64) {
    let binary = __cudaRegisterFatBinary(std::ptr::null_mut());
    let symbol = std::ptr::from_ref(address) as u64;
    let none = std::ptr::null_mut();
    __cudaRegisterVar(binary, symbol, none, c"variable".as_ptr(), 0, 16, 0, 0);
    (binary, symbol)
}

/// Device memory with these words.
pub fn device_words(words: &[u32]) -> u64 {
    let mut at = 0;
    assert_eq!(cudaMalloc(&mut at, size_of_val(words)), 0);
    assert_eq!(cudaMemcpy(at, words.as_ptr() as u64, size_of_val(words), 1), 0);
    at
}

/// What device memory holds.
pub fn words_of(at: u64, count: usize) -> Vec<u32> {
    let mut words = vec![0u32; count];
    assert_eq!(cudaMemcpy(words.as_mut_ptr() as u64, at, count * 4, 2), 0);
    words
}

/// Pinned memory of so many words, all 0.
pub fn pinned(count: usize) -> &'static mut [u32] {
    let mut at = std::ptr::null_mut();
    assert_eq!(cudaMallocHost(&mut at, count * 4), 0);
    // SAFETY: as large as asked for; the tests free it last.
    let words = unsafe { std::slice::from_raw_parts_mut(at.cast::<u32>(), count) };
    words.fill(0);
    words
}

/// A stream that does not block.
pub fn stream() -> u64 {
    let mut stream = 0;
    assert_eq!(cudaStreamCreateWithFlags(&mut stream, 1), 0);
    stream
}
