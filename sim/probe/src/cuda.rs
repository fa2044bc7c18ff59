//! The CUDA driver, opened at run time: the functions that the probe calls, by name.
//!
//! Owns the table and `cuda.h`'s types as C has them. Promises that a function which the driver
//! lacks is an answer ([`ABSENT`]) and not an end of the program. It shares nothing with the
//! simulated driver, so what the two agree on was written twice. Cost: one `dlsym` a function.

#![allow(non_snake_case, reason = "functions keep the names that cuda.h gives them")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;

/// What a function that the driver does not have answers.
pub const ABSENT: u32 = 0xFFFF_FFFF;
/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`.
pub const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
pub const PER_THREAD: u64 = 2;
/// `CU_EVENT_DISABLE_TIMING`.
pub const NO_TIMING: u32 = 2;

/// `CUmemLocation`: a type (1 device, 2 host, 3 NUMA node, 4 the nearest one) and a number.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Location {
    /// The type.
    pub kind: u32,
    /// The device's ordinal or the node.
    pub id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Properties {
    /// 1: pinned.
    pub kind: u32,
    /// 1 descriptor, 2 and 4 Windows, 8 fabric.
    pub handle_types: u32,
    /// Where the memory lies.
    pub location: Location,
    /// Windows only.
    pub metadata: u64,
    /// 1 asks for compressible memory.
    pub compression: u8,
    /// 1 asks for memory that network cards reach.
    pub rdma: u8,
    /// A bit mask of intended uses.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Whose access is meant.
    pub location: Location,
    /// 0 none, 1 read, 3 read and write.
    pub flags: u32,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: properties of a memory pool, rights, and what is allocated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocNode {
    /// 1: pinned.
    pub kind: u32,
    /// 0: not shared.
    pub handle_types: u32,
    /// Where the memory lies.
    pub location: Location,
    /// Windows only.
    pub security: u64,
    /// 0.
    pub bytes_max: usize,
    /// Zero, with the usage in front.
    pub reserved: [u8; 56],
    /// Rights of other devices.
    pub access: *const Access,
    /// How many.
    pub access_count: usize,
    /// Bytes.
    pub bytes: usize,
    /// Written: the address.
    pub at: u64,
}

const _: () = assert!(size_of::<AllocNode>() == 120);

impl Default for AllocNode {
    fn default() -> AllocNode {
        AllocNode {
            kind: 0,
            handle_types: 0,
            location: Location::default(),
            security: 0,
            bytes_max: 0,
            reserved: [0; 56],
            access: std::ptr::null(),
            access_count: 0,
            bytes: 0,
            at: 0,
        }
    }
}

/// `CUipcMemHandle`.
pub type IpcHandle = [u8; 64];
/// A function that a stream runs on the host.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);
/// A stream's callback.
pub type Callback = unsafe extern "C" fn(u64, u32, *mut c_void);

/// Declares the table and, for each function, a method of the same name.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $kind:ty),*);)*) => {
        #[derive(Default)]
        struct Table {
            $($name: Option<unsafe extern "C" fn($($kind),*) -> u32>,)*
        }

        impl Table {
            fn fill(&mut self, find: impl Fn(&CStr) -> *mut c_void) {
                $(
                    let found = find($symbol);
                    if !found.is_null() {
                        // SAFETY: the driver's function of this name has this type (cuda.h).
                        self.$name = Some(unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($kind),*) -> u32,
                            >(found)
                        });
                    }
                )*
            }
        }

        impl Driver {
            $(
                #[allow(clippy::too_many_arguments, reason = "cuda.h's arguments")]
                #[allow(dead_code, reason = "a table may hold more than the rules call")]
                pub fn $name(&self, $($arg: $kind),*) -> u32 {
                    match self.table.$name {
                        // SAFETY: the arguments are what a rule says, on purpose also what the
                        // driver has to refuse; a rule runs in a process of its own, whose
                        // crash is an outcome that is told.
                        Some(function) => unsafe { function($($arg),*) },
                        None => ABSENT,
                    }
                }
            )*

            /// Functions of the table that this driver lacks.
            pub fn lacks(&self) -> Vec<&'static str> {
                let mut found = Vec::new();
                $(
                    if self.table.$name.is_none() {
                        found.push($symbol.to_str().unwrap_or_default());
                    }
                )*
                found
            }
        }
    };
}

functions! {
    cuInit = c"cuInit"(flags: u32);
    cuDriverGetVersion = c"cuDriverGetVersion"(version: *mut i32);
    cuGetProcAddress = c"cuGetProcAddress"
        (symbol: *const c_char, to: *mut *mut c_void, version: i32, flags: u64);
    cuGetProcAddress_v2 = c"cuGetProcAddress_v2"
        (symbol: *const c_char, to: *mut *mut c_void, version: i32, flags: u64, status: *mut u32);
    cuGetErrorName = c"cuGetErrorName"(code: u32, text: *mut *const c_char);
    cuDeviceGetCount = c"cuDeviceGetCount"(count: *mut i32);
    cuDeviceGet = c"cuDeviceGet"(device: *mut i32, ordinal: i32);
    cuDeviceGetName = c"cuDeviceGetName"(name: *mut c_char, length: i32, device: i32);
    cuDeviceTotalMem = c"cuDeviceTotalMem_v2"(bytes: *mut usize, device: i32);
    cuDeviceGetAttribute = c"cuDeviceGetAttribute"(value: *mut i32, attribute: u32, device: i32);
    cuDeviceCanAccessPeer = c"cuDeviceCanAccessPeer"(can: *mut i32, device: i32, peer: i32);
    cuDeviceGetP2PAttribute = c"cuDeviceGetP2PAttribute"
        (value: *mut i32, attribute: u32, from: i32, to: i32);
    cuDeviceGetDefaultMemPool = c"cuDeviceGetDefaultMemPool"(pool: *mut u64, device: i32);
    cuDevicePrimaryCtxRetain = c"cuDevicePrimaryCtxRetain"(context: *mut u64, device: i32);
    cuDevicePrimaryCtxRelease = c"cuDevicePrimaryCtxRelease_v2"(device: i32);
    cuDevicePrimaryCtxReset = c"cuDevicePrimaryCtxReset_v2"(device: i32);
    cuDevicePrimaryCtxGetState = c"cuDevicePrimaryCtxGetState"
        (device: i32, flags: *mut u32, active: *mut i32);
    cuCtxCreate = c"cuCtxCreate_v2"(context: *mut u64, flags: u32, device: i32);
    cuCtxDestroy = c"cuCtxDestroy_v2"(context: u64);
    cuCtxSetCurrent = c"cuCtxSetCurrent"(context: u64);
    cuCtxGetCurrent = c"cuCtxGetCurrent"(context: *mut u64);
    cuCtxPushCurrent = c"cuCtxPushCurrent_v2"(context: u64);
    cuCtxPopCurrent = c"cuCtxPopCurrent_v2"(context: *mut u64);
    cuCtxGetDevice = c"cuCtxGetDevice"(device: *mut i32);
    cuCtxGetId = c"cuCtxGetId"(context: u64, id: *mut u64);
    cuCtxSynchronize = c"cuCtxSynchronize"();
    cuCtxGetLimit = c"cuCtxGetLimit"(value: *mut usize, limit: u32);
    cuCtxGetStreamPriorityRange = c"cuCtxGetStreamPriorityRange"
        (least: *mut i32, greatest: *mut i32);
    cuCtxEnablePeerAccess = c"cuCtxEnablePeerAccess"(context: u64, flags: u32);
    cuCtxDisablePeerAccess = c"cuCtxDisablePeerAccess"(context: u64);
    cuCtxRecordEvent = c"cuCtxRecordEvent"(context: u64, event: u64);
    cuCtxWaitEvent = c"cuCtxWaitEvent"(context: u64, event: u64);
    cuMemGetInfo = c"cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    cuMemAlloc = c"cuMemAlloc_v2"(at: *mut u64, bytes: usize);
    cuMemFree = c"cuMemFree_v2"(at: u64);
    cuMemAllocPitch = c"cuMemAllocPitch_v2"
        (at: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32);
    cuMemAllocManaged = c"cuMemAllocManaged"(at: *mut u64, bytes: usize, flags: u32);
    cuMemHostAlloc = c"cuMemHostAlloc"(at: *mut *mut c_void, bytes: usize, flags: u32);
    cuMemFreeHost = c"cuMemFreeHost"(at: *mut c_void);
    cuMemHostGetDevicePointer = c"cuMemHostGetDevicePointer_v2"
        (to: *mut u64, at: *mut c_void, flags: u32);
    cuMemHostGetFlags = c"cuMemHostGetFlags"(flags: *mut u32, at: *mut c_void);
    cuMemHostRegister = c"cuMemHostRegister_v2"(at: *mut c_void, bytes: usize, flags: u32);
    cuMemHostUnregister = c"cuMemHostUnregister"(at: *mut c_void);
    cuMemGetAddressRange = c"cuMemGetAddressRange_v2"(base: *mut u64, size: *mut usize, at: u64);
    cuMemGetAllocationGranularity = c"cuMemGetAllocationGranularity"
        (size: *mut usize, prop: *const Properties, option: u32);
    cuMemAddressReserve = c"cuMemAddressReserve"
        (at: *mut u64, size: usize, alignment: usize, hint: u64, flags: u64);
    cuMemAddressFree = c"cuMemAddressFree"(at: u64, size: usize);
    cuMemCreate = c"cuMemCreate"
        (handle: *mut u64, size: usize, prop: *const Properties, flags: u64);
    cuMemRelease = c"cuMemRelease"(handle: u64);
    cuMemMap = c"cuMemMap"(at: u64, size: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap = c"cuMemUnmap"(at: u64, size: usize);
    cuMemSetAccess = c"cuMemSetAccess"
        (at: u64, size: usize, access: *const Access, count: usize);
    cuMemGetAccess = c"cuMemGetAccess"(flags: *mut u64, location: *const Location, at: u64);
    cuMemRetainAllocationHandle = c"cuMemRetainAllocationHandle"
        (handle: *mut u64, at: *mut c_void);
    cuMemGetAllocationPropertiesFromHandle = c"cuMemGetAllocationPropertiesFromHandle"
        (prop: *mut Properties, handle: u64);
    cuMemExportToShareableHandle = c"cuMemExportToShareableHandle"
        (to: *mut c_void, handle: u64, kind: u32, flags: u64);
    cuMemImportFromShareableHandle = c"cuMemImportFromShareableHandle"
        (handle: *mut u64, from: *mut c_void, kind: u32);
    cuMemGetHandleForAddressRange = c"cuMemGetHandleForAddressRange"
        (to: *mut c_void, at: u64, size: usize, kind: u32, flags: u64);
    cuIpcGetMemHandle = c"cuIpcGetMemHandle"(handle: *mut IpcHandle, at: u64);
    cuIpcOpenMemHandle = c"cuIpcOpenMemHandle_v2"(at: *mut u64, handle: IpcHandle, flags: u32);
    cuIpcCloseMemHandle = c"cuIpcCloseMemHandle"(at: u64);
    cuPointerGetAttribute = c"cuPointerGetAttribute"(to: *mut c_void, attribute: u32, at: u64);
    cuPointerSetAttribute = c"cuPointerSetAttribute"(from: *const c_void, attribute: u32, at: u64);
    cuPointerGetAttributes = c"cuPointerGetAttributes"
        (count: u32, attributes: *const u32, to: *const *mut c_void, at: u64);
    cuMemAllocAsync = c"cuMemAllocAsync"(at: *mut u64, bytes: usize, stream: u64);
    cuMemFreeAsync = c"cuMemFreeAsync"(at: u64, stream: u64);
    cuMemPoolGetAttribute = c"cuMemPoolGetAttribute"(pool: u64, attribute: u32, to: *mut c_void);
    cuMemPoolSetAttribute = c"cuMemPoolSetAttribute"(pool: u64, attribute: u32, to: *mut c_void);
    cuMemcpyHtoD = c"cuMemcpyHtoD_v2"(to: u64, from: *const c_void, bytes: usize);
    cuMemcpyDtoH = c"cuMemcpyDtoH_v2"(to: *mut c_void, from: u64, bytes: usize);
    cuMemcpyDtoD = c"cuMemcpyDtoD_v2"(to: u64, from: u64, bytes: usize);
    cuMemcpyHtoDAsync = c"cuMemcpyHtoDAsync_v2"
        (to: u64, from: *const c_void, bytes: usize, stream: u64);
    cuMemcpyDtoHAsync = c"cuMemcpyDtoHAsync_v2"
        (to: *mut c_void, from: u64, bytes: usize, stream: u64);
    cuMemcpyDtoDAsync = c"cuMemcpyDtoDAsync_v2"(to: u64, from: u64, bytes: usize, stream: u64);
    cuMemsetD8 = c"cuMemsetD8_v2"(at: u64, value: u8, count: usize);
    cuMemsetD8Async = c"cuMemsetD8Async"(at: u64, value: u8, count: usize, stream: u64);
    cuMemsetD32Async = c"cuMemsetD32Async"(at: u64, value: u32, count: usize, stream: u64);
    cuStreamCreate = c"cuStreamCreate"(stream: *mut u64, flags: u32);
    cuStreamCreateWithPriority = c"cuStreamCreateWithPriority"
        (stream: *mut u64, flags: u32, priority: i32);
    cuStreamDestroy = c"cuStreamDestroy_v2"(stream: u64);
    cuStreamQuery = c"cuStreamQuery"(stream: u64);
    cuStreamSynchronize = c"cuStreamSynchronize"(stream: u64);
    cuStreamWaitEvent = c"cuStreamWaitEvent"(stream: u64, event: u64, flags: u32);
    cuStreamGetId = c"cuStreamGetId"(stream: u64, id: *mut u64);
    cuStreamGetPriority = c"cuStreamGetPriority"(stream: u64, priority: *mut i32);
    cuStreamAddCallback = c"cuStreamAddCallback"
        (stream: u64, callback: Option<Callback>, data: *mut c_void, flags: u32);
    cuLaunchHostFunc = c"cuLaunchHostFunc"
        (stream: u64, function: Option<HostFunction>, data: *mut c_void);
    cuStreamWaitValue32 = c"cuStreamWaitValue32_v2"(stream: u64, at: u64, value: u32, flags: u32);
    cuStreamWriteValue32 = c"cuStreamWriteValue32_v2"
        (stream: u64, at: u64, value: u32, flags: u32);
    cuStreamBeginCapture = c"cuStreamBeginCapture_v2"(stream: u64, mode: u32);
    cuStreamEndCapture = c"cuStreamEndCapture"(stream: u64, graph: *mut u64);
    cuStreamIsCapturing = c"cuStreamIsCapturing"(stream: u64, status: *mut u32);
    cuThreadExchangeStreamCaptureMode = c"cuThreadExchangeStreamCaptureMode"(mode: *mut u32);
    cuEventCreate = c"cuEventCreate"(event: *mut u64, flags: u32);
    cuEventDestroy = c"cuEventDestroy_v2"(event: u64);
    cuEventRecord = c"cuEventRecord"(event: u64, stream: u64);
    cuEventQuery = c"cuEventQuery"(event: u64);
    cuEventSynchronize = c"cuEventSynchronize"(event: u64);
    cuEventElapsedTime = c"cuEventElapsedTime"(ms: *mut f32, start: u64, end: u64);
    cuGraphCreate = c"cuGraphCreate"(graph: *mut u64, flags: u32);
    cuGraphClone = c"cuGraphClone"(copy: *mut u64, graph: u64);
    cuGraphGetNodes = c"cuGraphGetNodes"(graph: u64, nodes: *mut u64, count: *mut usize);
    cuGraphNodeGetType = c"cuGraphNodeGetType"(node: u64, kind: *mut u32);
    cuGraphAddMemAllocNode = c"cuGraphAddMemAllocNode"
        (node: *mut u64, graph: u64, after: *const u64, count: usize, wish: *mut AllocNode);
    cuGraphAddMemFreeNode = c"cuGraphAddMemFreeNode"
        (node: *mut u64, graph: u64, after: *const u64, count: usize, at: u64);
    cuDeviceGetGraphMemAttribute = c"cuDeviceGetGraphMemAttribute"
        (device: i32, attribute: u32, value: *mut c_void);
    cuDeviceGraphMemTrim = c"cuDeviceGraphMemTrim"(device: i32);
    cuGraphInstantiate = c"cuGraphInstantiateWithFlags"(exec: *mut u64, graph: u64, flags: u64);
    cuGraphLaunch = c"cuGraphLaunch"(exec: u64, stream: u64);
    cuGraphDestroy = c"cuGraphDestroy"(graph: u64);
    cuGraphExecDestroy = c"cuGraphExecDestroy"(exec: u64);
    cuUserObjectCreate = c"cuUserObjectCreate"
        (object: *mut u64, data: *mut c_void, end: Option<HostFunction>, count: u32, flags: u32);
    cuGraphRetainUserObject = c"cuGraphRetainUserObject"
        (graph: u64, object: u64, count: u32, flags: u32);
    cuModuleLoadData = c"cuModuleLoadData"(module: *mut u64, image: *const c_void);
    cuModuleGetFunction = c"cuModuleGetFunction"
        (function: *mut u64, module: u64, name: *const c_char);
    cuLaunchKernel = c"cuLaunchKernel"
        (function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
         block_z: u32, shared: u32, stream: u64, arguments: *mut *mut c_void,
         extra: *mut *mut c_void);
}

/// A shared library that stays open.
pub struct Library(*mut c_void);

// SAFETY: a handle of `dlopen`, which any thread may use.
unsafe impl Sync for Library {}
// SAFETY: as above.
unsafe impl Send for Library {}

impl Library {
    /// Opens a library by path or by a name that the loader finds.
    ///
    /// # Errors
    /// What the loader said.
    pub fn open(path: &Path) -> Result<Library, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| format!("{}: a zero byte in a path", path.display()))?;
        // SAFETY: the name ends in a zero byte; initialisers of the library may run.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if !handle.is_null() {
            return Ok(Library(handle));
        }
        // SAFETY: after a failed dlopen this is a text or null.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err(format!("{} cannot be loaded", path.display()));
        }
        // SAFETY: not null, and a text of the C library.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// A symbol's address, or null.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library and a text that ends in a zero byte.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

/// The driver. Its methods are `cuda.h`'s functions in the newest form that CUDA 12 has.
pub struct Driver {
    library: Library,
    table: Table,
}

impl Driver {
    /// Opens a driver; `libcuda.so.1` as the loader finds it, if no path is given.
    ///
    /// # Errors
    /// What the loader said.
    pub fn open(path: Option<&Path>) -> Result<Driver, String> {
        let library = Library::open(path.unwrap_or(Path::new("libcuda.so.1")))?;
        let mut table = Table::default();
        table.fill(|name| library.symbol(name));
        Ok(Driver { library, table })
    }

    /// Whether it says of itself that it is a simulation.
    pub fn is_simulated(&self) -> bool {
        !self.library.symbol(c"forebay_sim_is_simulated").is_null()
    }

    /// The name of an error, or its number.
    pub fn error(&self, code: u32) -> String {
        let mut text: *const c_char = std::ptr::null();
        if code == ABSENT {
            return "the driver has no such function".to_owned();
        }
        if self.cuGetErrorName(code, &raw mut text) != 0 || text.is_null() {
            return format!("{code}");
        }
        // SAFETY: the driver's own text, which lasts as long as the driver.
        format!("{code} ({})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }
}
