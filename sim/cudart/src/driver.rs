//! The driver: found as NVIDIA's runtime finds it, and a table of its functions.
//!
//! `dlopen("libcuda.so.1")`, `dlsym("cuGetProcAddress_v2")` or the first form, then each line of
//! `requests_12.txt` or `requests_13.txt` in its order, by name, version and flags: all that the
//! real one asks for but export tables. The table keeps
//! what this library calls; a function that was not found answers 36 when it is called. Promises
//! that no function is asked for that is not in the list. The table never changes once made.

use crate::types::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

const REQUESTS_12: &str = include_str!("requests_12.txt");
const REQUESTS_13: &str = include_str!("requests_13.txt");

/// Name, version, flags, and what the driver answered.
type Found = BTreeMap<(&'static str, i32, u64), *mut c_void>;
type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> Code;
type GetProcAddressV1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> Code;

/// The version that this build of the runtime says, such as 12090.
#[cfg(not(test))]
pub fn version() -> i32 {
    unsafe extern "C" {
        static forebay_simcudart_version: i32;
    }
    // SAFETY: a constant of `version.c`, which `cargo xtask` links in.
    unsafe { forebay_simcudart_version }
}

/// The version; tests of this crate have no `version.c`.
#[cfg(test)]
pub fn version() -> i32 {
    12_090
}

/// Whether this is the runtime of CUDA 13.
pub fn is_13() -> bool {
    version() >= 13_000
}

/// The driver's functions, found once; nothing when there is no driver.
pub fn library() -> Option<&'static Driver> {
    static LIBRARY: OnceLock<Option<Driver>> = OnceLock::new();
    LIBRARY.get_or_init(open).as_ref()
}

fn open() -> Option<Driver> {
    // SAFETY: constant texts; the library stays open for the life of the process.
    let (newest, first) = unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return None;
        }
        let find = |name: &CStr| libc::dlsym(library, name.as_ptr());
        (find(c"cuGetProcAddress_v2"), find(c"cuGetProcAddress"))
    };
    let list = || requests(if is_13() { REQUESTS_13 } else { REQUESTS_12 });
    let mut found = Found::new();
    if !newest.is_null() {
        // SAFETY: the address is that of the function of this name.
        let ask: GetProcAddress = unsafe { std::mem::transmute(newest) };
        let mut said = 0;
        // SAFETY: a text that ends in a zero byte, places of this frame.
        found = look_up(list(), |name, to, version, flags| unsafe {
            ask(name.as_ptr(), to, version, flags, &mut said)
        });
    }
    // A driver of before CUDA 12 has the first form, or hides the second and answers nothing by it.
    if found.is_empty() && !first.is_null() {
        // SAFETY: the address is that of the function of this name.
        let ask: GetProcAddressV1 = unsafe { std::mem::transmute(first) };
        // SAFETY: as above.
        found = look_up(list(), |name, to, version, flags| unsafe {
            ask(name.as_ptr(), to, version, flags)
        });
    }
    (!found.is_empty()).then(|| Driver::from_found(&found))
}

/// Asks for each line of a list.
fn look_up(
    list: impl Iterator<Item = (&'static str, i32, u64)>,
    mut ask: impl FnMut(&CStr, &mut *mut c_void, i32, u64) -> Code,
) -> Found {
    let mut found = Found::new();
    for (name, version, flags) in list {
        let Ok(text) = CString::new(name) else { continue };
        let mut at = std::ptr::null_mut();
        if ask(&text, &mut at, version, flags) == SUCCESS && !at.is_null() {
            found.insert((name, version, flags), at);
        }
    }
    found
}

/// The lines of a list of requests.
fn requests(text: &'static str) -> impl Iterator<Item = (&'static str, i32, u64)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    })
}

/// A function of the table, if the driver has it.
fn entry<F: Copy>(found: &Found, name: &'static str, version: i32, flags: u64) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let at = found.get(&(name, version, flags))?;
    // SAFETY: as wide as a pointer, and the driver gave it for a function of this name and version,
    // whose type the table below writes down.
    Some(unsafe { std::mem::transmute_copy(at) })
}

/// What the driver's code means.
fn answer(code: Code) -> Answer {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

macro_rules! table {
    (
        single { $($name:ident($($arg:ident: $kind:ty),*) = $asked:literal, $since:literal;)* }
        paired { $($pair:ident($($parg:ident: $pkind:ty),*)
            = $pasked:literal, $psince:literal, $powns:literal;)* }
    ) => {
        /// The driver's functions. Those in pairs have the per-thread form second.
        pub struct Driver {
            $($name: Option<unsafe extern "C" fn($($kind),*) -> Code>,)*
            $($pair: [Option<unsafe extern "C" fn($($pkind),*) -> Code>; 2],)*
        }

        impl Driver {
            fn from_found(found: &Found) -> Driver {
                Driver {
                    $($name: entry(found, $asked, $since, 0),)*
                    $($pair: [
                        entry(found, $pasked, $psince, 0),
                        entry(found, $pasked, $powns, 2),
                    ],)*
                }
            }

            $(
                /// The driver's function; 36 if it has none.
                ///
                /// # Safety
                ///
                /// As the driver's header has it.
                pub unsafe fn $name(&self, $($arg: $kind),*) -> Answer {
                    let call = self.$name.ok_or(ERROR_CALL_REQUIRES_NEWER_DRIVER)?;
                    // SAFETY: the caller's promise.
                    answer(unsafe { call($($arg),*) })
                }
            )*
            $(
                /// The driver's function, `own` for the per-thread form; 36 if it has none.
                ///
                /// # Safety
                ///
                /// As the driver's header has it.
                #[allow(clippy::too_many_arguments, reason = "the driver's own")]
                pub unsafe fn $pair(&self, own: bool, $($parg: $pkind),*) -> Answer {
                    let call = self.$pair[usize::from(own)];
                    let call = call.ok_or(ERROR_CALL_REQUIRES_NEWER_DRIVER)?;
                    // SAFETY: the caller's promise.
                    answer(unsafe { call($($parg),*) })
                }
            )*
        }
    };
}

table! {
    single {
        cuInit(flags: u32) = "cuInit", 2000;
        cuGetProcAddress(name: *const c_char, to: *mut *mut c_void, version: i32, flags: u64,
            status: *mut u32) = "cuGetProcAddress", 12000;
        cuDriverGetVersion(version: *mut i32) = "cuDriverGetVersion", 2020;
        cuDeviceGetCount(count: *mut i32) = "cuDeviceGetCount", 2000;
        cuDeviceGetName(name: *mut c_char, len: i32, device: i32) = "cuDeviceGetName", 2000;
        cuDeviceTotalMem(bytes: *mut usize, device: i32) = "cuDeviceTotalMem", 3020;
        cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32)
            = "cuDeviceGetAttribute", 2000;
        cuDeviceGetP2PAttribute(value: *mut i32, attribute: u32, from: i32, to: i32)
            = "cuDeviceGetP2PAttribute", 8000;
        cuDeviceGetByPCIBusId(device: *mut i32, id: *const c_char)
            = "cuDeviceGetByPCIBusId", 4010;
        cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32)
            = "cuDeviceGetPCIBusId", 4010;
        cuDeviceGetUuid(uuid: *mut u8, device: i32) = "cuDeviceGetUuid", 9020;
        cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32)
            = "cuDeviceCanAccessPeer", 4000;
        cuDeviceGetDefaultMemPool(pool: *mut Pool, device: i32)
            = "cuDeviceGetDefaultMemPool", 11020;
        cuDeviceSetMemPool(device: i32, pool: Pool) = "cuDeviceSetMemPool", 11020;
        cuDeviceGetMemPool(pool: *mut Pool, device: i32) = "cuDeviceGetMemPool", 11020;
        cuDevicePrimaryCtxRetain(context: *mut Context, device: i32)
            = "cuDevicePrimaryCtxRetain", 7000;
        cuDevicePrimaryCtxRelease(device: i32) = "cuDevicePrimaryCtxRelease", 7000;
        cuDevicePrimaryCtxSetFlags(device: i32, flags: u32)
            = "cuDevicePrimaryCtxSetFlags", 11000;
        cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32)
            = "cuDevicePrimaryCtxGetState", 7000;
        cuDevicePrimaryCtxReset(device: i32) = "cuDevicePrimaryCtxReset", 7000;
        cuCtxSetCurrent(context: Context) = "cuCtxSetCurrent", 4000;
        cuCtxGetCurrent(context: *mut Context) = "cuCtxGetCurrent", 4000;
        cuCtxGetFlags(flags: *mut u32) = "cuCtxGetFlags", 7000;
        cuCtxGetDevice(device: *mut i32) = "cuCtxGetDevice", 2000;
        cuCtxGetLimit(value: *mut usize, limit: u32) = "cuCtxGetLimit", 3010;
        cuCtxSetLimit(limit: u32, value: usize) = "cuCtxSetLimit", 3010;
        cuCtxGetCacheConfig(config: *mut u32) = "cuCtxGetCacheConfig", 3020;
        cuCtxSetCacheConfig(config: u32) = "cuCtxSetCacheConfig", 3020;
        cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32)
            = "cuCtxGetStreamPriorityRange", 5050;
        cuCtxSynchronize() = "cuCtxSynchronize", 2000;
        cuCtxResetPersistingL2Cache() = "cuCtxResetPersistingL2Cache", 11000;
        cuCtxEnablePeerAccess(context: Context, flags: u32) = "cuCtxEnablePeerAccess", 4000;
        cuCtxDisablePeerAccess(context: Context) = "cuCtxDisablePeerAccess", 4000;
        cuModuleLoadData(module: *mut u64, image: *const c_char) = "cuModuleLoadData", 2000;
        cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char)
            = "cuModuleGetFunction", 2000;
        cuMemGetInfo(free: *mut usize, total: *mut usize) = "cuMemGetInfo", 3020;
        cuMemAlloc(to: *mut u64, bytes: usize) = "cuMemAlloc", 3020;
        cuMemAllocPitch(to: *mut u64, pitch: *mut usize, width: usize, height: usize, unit: u32)
            = "cuMemAllocPitch", 3020;
        cuMemAllocManaged(to: *mut u64, bytes: usize, flags: u32) = "cuMemAllocManaged", 6000;
        cuMemFree(at: u64) = "cuMemFree", 3020;
        cuMemFreeHost(at: *mut c_void) = "cuMemFreeHost", 2000;
        cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: u32)
            = "cuMemHostAlloc", 2020;
        cuMemHostGetDevicePointer(to: *mut u64, host: *mut c_void, flags: u32)
            = "cuMemHostGetDevicePointer", 3020;
        cuMemHostGetFlags(flags: *mut u32, host: *mut c_void) = "cuMemHostGetFlags", 2030;
        cuMemHostRegister(host: *mut c_void, bytes: usize, flags: u32)
            = "cuMemHostRegister", 6050;
        cuMemHostUnregister(host: *mut c_void) = "cuMemHostUnregister", 4000;
        cuPointerGetAttributes(count: u32, attributes: *const u32, to: *mut *mut c_void, at: u64)
            = "cuPointerGetAttributes", 7000;
        cuMemPoolTrimTo(pool: Pool, keep: usize) = "cuMemPoolTrimTo", 11020;
        cuMemPoolSetAttribute(pool: Pool, attribute: u32, value: *mut c_void)
            = "cuMemPoolSetAttribute", 11020;
        cuMemPoolGetAttribute(pool: Pool, attribute: u32, value: *mut c_void)
            = "cuMemPoolGetAttribute", 11020;
        cuMemPoolSetAccess(pool: Pool, map: *const c_void, count: usize)
            = "cuMemPoolSetAccess", 11020;
        cuMemPoolGetAccess(flags: *mut u32, pool: Pool, location: *const Location)
            = "cuMemPoolGetAccess", 11020;
        cuMemPoolCreate(pool: *mut Pool, properties: *const c_void) = "cuMemPoolCreate", 11020;
        cuMemPoolDestroy(pool: Pool) = "cuMemPoolDestroy", 11020;
        cuIpcGetMemHandle(handle: *mut IpcHandle, at: u64) = "cuIpcGetMemHandle", 4010;
        cuIpcOpenMemHandle(to: *mut u64, handle: IpcHandle, flags: u32)
            = "cuIpcOpenMemHandle", 11000;
        cuIpcCloseMemHandle(at: u64) = "cuIpcCloseMemHandle", 4010;
        cuEventCreate(event: *mut Event, flags: u32) = "cuEventCreate", 2000;
        cuEventQuery(event: Event) = "cuEventQuery", 2000;
        cuEventSynchronize(event: Event) = "cuEventSynchronize", 2000;
        cuEventDestroy(event: Event) = "cuEventDestroy", 4000;
        cuEventElapsedTime(ms: *mut f32, start: Event, end: Event) = "cuEventElapsedTime", 2000;
        cuStreamCreate(stream: *mut Stream, flags: u32) = "cuStreamCreate", 2000;
        cuStreamCreateWithPriority(stream: *mut Stream, flags: u32, priority: i32)
            = "cuStreamCreateWithPriority", 5050;
        cuStreamDestroy(stream: Stream) = "cuStreamDestroy", 4000;
        cuThreadExchangeStreamCaptureMode(mode: *mut u32)
            = "cuThreadExchangeStreamCaptureMode", 10010;
        cuGraphCreate(graph: *mut Graph, flags: u32) = "cuGraphCreate", 10000;
        cuGraphDestroy(graph: Graph) = "cuGraphDestroy", 10000;
        cuGraphClone(copy: *mut Graph, graph: Graph) = "cuGraphClone", 10000;
        cuGraphNodeGetType(node: Node, kind: *mut u32) = "cuGraphNodeGetType", 10000;
        cuGraphGetNodes(graph: Graph, nodes: *mut Node, count: *mut usize)
            = "cuGraphGetNodes", 10000;
        cuGraphGetEdges(graph: Graph, from: *mut Node, to: *mut Node, count: *mut usize)
            = "cuGraphGetEdges", 10000;
        cuGraphInstantiateWithFlags(exec: *mut Exec, graph: Graph, flags: u64)
            = "cuGraphInstantiateWithFlags", 11040;
        cuGraphExecGetFlags(exec: Exec, flags: *mut u64) = "cuGraphExecGetFlags", 12000;
        cuGraphExecDestroy(exec: Exec) = "cuGraphExecDestroy", 10000;
        cuGraphAddMemAllocNode(node: *mut Node, graph: Graph, after: *const Node, count: usize,
            parameters: *mut c_void) = "cuGraphAddMemAllocNode", 11040;
        cuGraphMemAllocNodeGetParams(node: Node, parameters: *mut c_void)
            = "cuGraphMemAllocNodeGetParams", 11040;
        cuGraphAddMemFreeNode(node: *mut Node, graph: Graph, after: *const Node, count: usize,
            at: u64) = "cuGraphAddMemFreeNode", 11040;
        cuGraphMemFreeNodeGetParams(node: Node, at: *mut u64)
            = "cuGraphMemFreeNodeGetParams", 11040;
        cuDeviceGraphMemTrim(device: i32) = "cuDeviceGraphMemTrim", 11040;
        cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: *mut c_void)
            = "cuDeviceGetGraphMemAttribute", 11040;
        cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: *mut c_void)
            = "cuDeviceSetGraphMemAttribute", 11040;
        cuUserObjectCreate(object: *mut u64, data: *mut c_void, destroy: HostFn, references: u32,
            flags: u32) = "cuUserObjectCreate", 11030;
        cuUserObjectRetain(object: u64, count: u32) = "cuUserObjectRetain", 11030;
        cuUserObjectRelease(object: u64, count: u32) = "cuUserObjectRelease", 11030;
        cuGraphRetainUserObject(graph: Graph, object: u64, count: u32, flags: u32)
            = "cuGraphRetainUserObject", 11030;
        cuGraphReleaseUserObject(graph: Graph, object: u64, count: u32)
            = "cuGraphReleaseUserObject", 11030;
    }
    paired {
        cuMemAllocAsync(to: *mut u64, bytes: usize, stream: Stream)
            = "cuMemAllocAsync", 11020, 11020;
        cuMemAllocFromPoolAsync(to: *mut u64, bytes: usize, pool: Pool, stream: Stream)
            = "cuMemAllocFromPoolAsync", 11020, 11020;
        cuMemFreeAsync(at: u64, stream: Stream) = "cuMemFreeAsync", 11020, 11020;
        cuMemcpy(to: u64, from: u64, bytes: usize) = "cuMemcpy", 4000, 7000;
        cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Stream)
            = "cuMemcpyAsync", 4000, 7000;
        cuMemcpyPeer(to: u64, to_context: Context, from: u64, from_context: Context, bytes: usize)
            = "cuMemcpyPeer", 4000, 7000;
        cuMemcpyPeerAsync(to: u64, to_context: Context, from: u64, from_context: Context,
            bytes: usize, stream: Stream) = "cuMemcpyPeerAsync", 4000, 7000;
        cuMemcpyHtoD(to: u64, from: u64, bytes: usize) = "cuMemcpyHtoD", 3020, 7000;
        cuMemcpyHtoDAsync(to: u64, from: u64, bytes: usize, stream: Stream)
            = "cuMemcpyHtoDAsync", 3020, 7000;
        cuMemcpyDtoH(to: u64, from: u64, bytes: usize) = "cuMemcpyDtoH", 3020, 7000;
        cuMemcpyDtoHAsync(to: u64, from: u64, bytes: usize, stream: Stream)
            = "cuMemcpyDtoHAsync", 3020, 7000;
        cuMemcpyDtoD(to: u64, from: u64, bytes: usize) = "cuMemcpyDtoD", 3020, 7000;
        cuMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: Stream)
            = "cuMemcpyDtoDAsync", 3020, 7000;
        cuMemcpy2DUnaligned(rows: *const Rows) = "cuMemcpy2DUnaligned", 3020, 7000;
        cuMemcpy2DAsync(rows: *const Rows, stream: Stream) = "cuMemcpy2DAsync", 3020, 7000;
        cuMemsetD8(to: u64, value: u8, bytes: usize) = "cuMemsetD8", 3020, 7000;
        cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Stream)
            = "cuMemsetD8Async", 3020, 7000;
        cuMemsetD2D8(to: u64, pitch: usize, value: u8, width: usize, height: usize)
            = "cuMemsetD2D8", 3020, 7000;
        cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, height: usize,
            stream: Stream) = "cuMemsetD2D8Async", 3020, 7000;
        cuLaunchKernel(function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
            block_y: u32, block_z: u32, shared: u32, stream: Stream, arguments: *mut *mut c_void,
            extra: *mut *mut c_void) = "cuLaunchKernel", 4000, 7000;
        cuLaunchHostFunc(stream: Stream, function: HostFn, data: *mut c_void)
            = "cuLaunchHostFunc", 10000, 10000;
        cuEventRecord(event: Event, stream: Stream) = "cuEventRecord", 2000, 7000;
        cuEventRecordWithFlags(event: Event, stream: Stream, flags: u32)
            = "cuEventRecordWithFlags", 11010, 11010;
        cuStreamGetPriority(stream: Stream, priority: *mut i32)
            = "cuStreamGetPriority", 5050, 7000;
        cuStreamGetFlags(stream: Stream, flags: *mut u32) = "cuStreamGetFlags", 5050, 7000;
        cuStreamGetId(stream: Stream, id: *mut u64) = "cuStreamGetId", 12000, 12000;
        cuStreamGetDevice(stream: Stream, device: *mut i32) = "cuStreamGetDevice", 12080, 12080;
        cuStreamWaitEvent(stream: Stream, event: Event, flags: u32)
            = "cuStreamWaitEvent", 3020, 7000;
        cuStreamAddCallback(stream: Stream, function: *mut c_void, data: *mut c_void, flags: u32)
            = "cuStreamAddCallback", 5000, 7000;
        cuStreamSynchronize(stream: Stream) = "cuStreamSynchronize", 2000, 7000;
        cuStreamQuery(stream: Stream) = "cuStreamQuery", 2000, 7000;
        cuGraphUpload(exec: Exec, stream: Stream) = "cuGraphUpload", 11010, 11010;
        cuGraphLaunch(exec: Exec, stream: Stream) = "cuGraphLaunch", 10000, 10000;
        cuGraphInstantiateWithParams(exec: *mut Exec, graph: Graph, parameters: *mut c_void)
            = "cuGraphInstantiateWithParams", 12000, 12000;
        cuStreamBeginCapture(stream: Stream, mode: u32) = "cuStreamBeginCapture", 10010, 10010;
        cuStreamEndCapture(stream: Stream, graph: *mut Graph)
            = "cuStreamEndCapture", 10000, 10000;
        cuStreamIsCapturing(stream: Stream, status: *mut u32)
            = "cuStreamIsCapturing", 10000, 10000;
        cuStreamGetCaptureInfo(stream: Stream, status: *mut u32, id: *mut u64, graph: *mut Graph,
            nodes: *mut *const Node, count: *mut usize)
            = "cuStreamGetCaptureInfo", 11030, 11030;
        cuStreamGetCaptureInfo_v3(stream: Stream, status: *mut u32, id: *mut u64,
            graph: *mut Graph, nodes: *mut *const Node, edges: *mut *const c_void,
            count: *mut usize) = "cuStreamGetCaptureInfo", 12030, 12030;
        cuStreamUpdateCaptureDependencies(stream: Stream, nodes: *mut Node, count: usize,
            flags: u32) = "cuStreamUpdateCaptureDependencies", 11030, 11030;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_have_the_allocation_functions_with_the_same_versions() {
        for list in [REQUESTS_12, REQUESTS_13] {
            let all: Vec<_> = requests(list).collect();
            assert_eq!(all.len(), list.lines().count() - 1);
            for wanted in [
                ("cuMemAlloc", 3020, 0),
                ("cuMemFree", 3020, 0),
                ("cuMemAllocAsync", 11020, 0),
                ("cuMemAllocAsync", 11020, 2),
                ("cuMemFreeAsync", 11020, 2),
                ("cuIpcOpenMemHandle", 11000, 0),
            ] {
                assert!(all.contains(&wanted), "{wanted:?}");
            }
        }
    }

    #[test]
    fn every_function_of_the_table_is_asked_for() {
        let mut all = Found::new();
        for (name, version, flags) in requests(REQUESTS_12) {
            all.insert((name, version, flags), std::ptr::dangling_mut());
        }
        let driver = Driver::from_found(&all);
        // SAFETY: a table of options that are as wide as pointers.
        let words = unsafe {
            let at = std::ptr::from_ref(&driver).cast::<usize>();
            std::slice::from_raw_parts(at, size_of::<Driver>() / size_of::<usize>())
        };
        assert_eq!(words.iter().filter(|word| **word == 0).count(), 0);
    }
}
