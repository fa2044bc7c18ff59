//! The table of the driver's entry points that Forebay calls.
//!
//! Owns one row an entry point: its base name, the CUDA version that brought the form used here,
//! its exported symbol, its arguments in `cust_raw`'s types. Promises: a missing entry point is
//! the answer [`MISSING`] when it is called, never a panic; results are numbers, never the
//! crate's enum; once the driver has said that it is shut down, nothing is called any more.
//! Must not interpret results. Cost a call: two loads, a branch, an indirect call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use cust_raw::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUhostFn, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUstream, CUuserObject,
};

use super::codes;
use super::library::Library;
use super::newer::{self, RawResult};

/// The answer of an entry point that this driver does not have; no result of CUDA's.
pub const MISSING: RawResult = u32::MAX;

/// Declares the table: for each row the field, its look-up and its call.
macro_rules! entry_points {
    ($($(#[$doc:meta])* $name:ident = $base:literal, $version:literal, $symbol:literal,
       ($($arg:ident: $type:ty),*);)*) => {
        /// A loaded driver.
        pub struct Api {
            library: Library,
            shut_down: AtomicBool,
            $($name: Option<unsafe extern "C" fn($($type),*) -> RawResult>,)*
            ctx_record_event: Option<newer::CtxRecordEvent>,
        }

        impl Api {
            /// Looks all entry points up. None has to be there.
            pub fn new(library: Library) -> Api {
                $(let $name = library.entry($base, $version, $symbol).map(|address| {
                    // SAFETY: the entry point of this name and version has this type: the row
                    // repeats `cust_raw`'s declaration, with enums as the numbers they are.
                    unsafe {
                        std::mem::transmute::<
                            NonNull<c_void>,
                            unsafe extern "C" fn($($type),*) -> RawResult,
                        >(address)
                    }
                });)*
                let since = newer::CTX_RECORD_EVENT_SINCE;
                let name = c"cuCtxRecordEvent";
                let ctx_record_event = library.entry(name, since, name).map(|address| {
                    // SAFETY: see `newer`.
                    unsafe {
                        std::mem::transmute::<NonNull<c_void>, newer::CtxRecordEvent>(address)
                    }
                });
                Api { library, shut_down: AtomicBool::new(false), $($name,)* ctx_record_event }
            }

            /// Base names of entry points that this driver lacks.
            pub fn missing(&self) -> Vec<&'static CStr> {
                let mut list = Vec::new();
                $(if self.$name.is_none() { list.push($base); })*
                if self.ctx_record_event.is_none() {
                    list.push(c"cuCtxRecordEvent");
                }
                list
            }

            $($(#[$doc])*
            ///
            /// # Safety
            /// As CUDA says of the function: pointers are valid, handles are live.
            #[inline]
            #[allow(clippy::too_many_arguments, reason = "the driver's own signature")]
            pub unsafe fn $name(&self, $($arg: $type),*) -> RawResult {
                let Some(call) = self.$name else { return MISSING };
                if self.is_shut_down() {
                    return codes::DEINITIALIZED;
                }
                // SAFETY: as the caller promised.
                self.seen(unsafe { call($($arg),*) })
            })*
        }
    };
}

entry_points! {
    /// Initialises the driver; may be repeated.
    init = c"cuInit", 2000, c"cuInit", (flags: c_uint);
    /// The driver's CUDA version: 1000 * major + 10 * minor.
    driver_get_version = c"cuDriverGetVersion", 2020, c"cuDriverGetVersion",
        (version: *mut c_int);
    /// How many devices there are.
    device_get_count = c"cuDeviceGetCount", 2000, c"cuDeviceGetCount", (count: *mut c_int);
    /// The device of a number from 0.
    device_get = c"cuDeviceGet", 2000, c"cuDeviceGet", (device: *mut CUdevice, ordinal: c_int);
    /// A device's name.
    device_get_name = c"cuDeviceGetName", 2000, c"cuDeviceGetName",
        (name: *mut c_char, len: c_int, device: CUdevice);
    /// One attribute of a device.
    device_get_attribute = c"cuDeviceGetAttribute", 2000, c"cuDeviceGetAttribute",
        (value: *mut c_int, attribute: c_uint, device: CUdevice);
    /// A device's memory in bytes.
    device_total_mem = c"cuDeviceTotalMem", 3020, c"cuDeviceTotalMem_v2",
        (bytes: *mut usize, device: CUdevice);
    /// Whether `device` can reach memory of `peer`.
    device_can_access_peer = c"cuDeviceCanAccessPeer", 4000, c"cuDeviceCanAccessPeer",
        (can: *mut c_int, device: CUdevice, peer: CUdevice);
    /// Takes a reference to the primary context, making it if need be.
    primary_ctx_retain = c"cuDevicePrimaryCtxRetain", 7000, c"cuDevicePrimaryCtxRetain",
        (context: *mut CUcontext, device: CUdevice);
    /// Gives the reference back.
    primary_ctx_release = c"cuDevicePrimaryCtxRelease", 11000, c"cuDevicePrimaryCtxRelease_v2",
        (device: CUdevice);
    /// Whether the primary context exists.
    primary_ctx_get_state = c"cuDevicePrimaryCtxGetState", 7000, c"cuDevicePrimaryCtxGetState",
        (device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    /// This thread's context.
    ctx_get_current = c"cuCtxGetCurrent", 4000, c"cuCtxGetCurrent", (context: *mut CUcontext);
    /// The device of this thread's context.
    ctx_get_device = c"cuCtxGetDevice", 2000, c"cuCtxGetDevice", (device: *mut CUdevice);
    /// A number that no other context of the process ever has; null: this thread's context.
    ctx_get_id = c"cuCtxGetId", 12000, c"cuCtxGetId", (context: CUcontext, id: *mut u64);
    /// Makes a context this thread's, until it is popped.
    ctx_push_current = c"cuCtxPushCurrent", 4000, c"cuCtxPushCurrent_v2", (context: CUcontext);
    /// Brings the context below back.
    ctx_pop_current = c"cuCtxPopCurrent", 4000, c"cuCtxPopCurrent_v2",
        (context: *mut CUcontext);
    /// Waits for all work of this thread's context.
    ctx_synchronize = c"cuCtxSynchronize", 2000, c"cuCtxSynchronize", ();
    /// Exchanges this thread's stream capture mode.
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode", 10010,
        c"cuThreadExchangeStreamCaptureMode", (mode: *mut c_uint);
    /// The mapping unit.
    mem_get_granularity = c"cuMemGetAllocationGranularity", 10020,
        c"cuMemGetAllocationGranularity",
        (bytes: *mut usize, what: *const CUmemAllocationProp, option: c_uint);
    /// Reserves addresses.
    mem_address_reserve = c"cuMemAddressReserve", 10020, c"cuMemAddressReserve",
        (address: *mut CUdeviceptr, bytes: usize, align: usize, hint: CUdeviceptr, flags: u64);
    /// Gives addresses back.
    mem_address_free = c"cuMemAddressFree", 10020, c"cuMemAddressFree",
        (address: CUdeviceptr, bytes: usize);
    /// Creates physical memory.
    mem_create = c"cuMemCreate", 10020, c"cuMemCreate",
        (page: *mut CUmemGenericAllocationHandle, bytes: usize,
         what: *const CUmemAllocationProp, flags: u64);
    /// Drops a reference to physical memory.
    mem_release = c"cuMemRelease", 10020, c"cuMemRelease", (page: CUmemGenericAllocationHandle);
    /// Maps physical memory.
    mem_map = c"cuMemMap", 10020, c"cuMemMap",
        (address: CUdeviceptr, bytes: usize, offset: usize,
         page: CUmemGenericAllocationHandle, flags: u64);
    /// Removes mappings.
    mem_unmap = c"cuMemUnmap", 10020, c"cuMemUnmap", (address: CUdeviceptr, bytes: usize);
    /// Sets who may use mapped memory.
    mem_set_access = c"cuMemSetAccess", 10020, c"cuMemSetAccess",
        (address: CUdeviceptr, bytes: usize, rights: *const CUmemAccessDesc, count: usize);
    /// Makes a handle of physical memory for other processes.
    mem_export = c"cuMemExportToShareableHandle", 10020, c"cuMemExportToShareableHandle",
        (out: *mut c_void, page: CUmemGenericAllocationHandle, kind: c_uint, flags: u64);
    /// Physical memory of another process's handle.
    mem_import = c"cuMemImportFromShareableHandle", 10020, c"cuMemImportFromShareableHandle",
        (page: *mut CUmemGenericAllocationHandle, handle: *mut c_void, kind: c_uint);
    /// What physical memory was made with.
    mem_get_properties = c"cuMemGetAllocationPropertiesFromHandle", 10020,
        c"cuMemGetAllocationPropertiesFromHandle",
        (what: *mut CUmemAllocationProp, page: CUmemGenericAllocationHandle);
    /// A plain allocation.
    mem_alloc = c"cuMemAlloc", 3020, c"cuMemAlloc_v2", (address: *mut CUdeviceptr, bytes: usize);
    /// Its end.
    mem_free = c"cuMemFree", 3020, c"cuMemFree_v2", (address: CUdeviceptr);
    /// Free and total bytes.
    mem_get_info = c"cuMemGetInfo", 3020, c"cuMemGetInfo_v2",
        (free: *mut usize, total: *mut usize);
    /// Page-locked host memory.
    mem_host_alloc = c"cuMemHostAlloc", 2020, c"cuMemHostAlloc",
        (address: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Its end.
    mem_free_host = c"cuMemFreeHost", 2000, c"cuMemFreeHost", (address: *mut c_void);
    /// Queues a copy.
    memcpy_async = c"cuMemcpyAsync", 4000, c"cuMemcpyAsync",
        (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Queues a fill.
    memset_async = c"cuMemsetD8Async", 3020, c"cuMemsetD8Async",
        (to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    /// A new stream.
    stream_create = c"cuStreamCreate", 2000, c"cuStreamCreate",
        (stream: *mut CUstream, flags: c_uint);
    /// Its end, once its work is done.
    stream_destroy = c"cuStreamDestroy", 4000, c"cuStreamDestroy_v2", (stream: CUstream);
    /// Waits for a stream.
    stream_synchronize = c"cuStreamSynchronize", 2000, c"cuStreamSynchronize",
        (stream: CUstream);
    /// Makes a stream wait for an event.
    stream_wait_event = c"cuStreamWaitEvent", 3020, c"cuStreamWaitEvent",
        (stream: CUstream, event: CUevent, flags: c_uint);
    /// Whether a graph capture is open on a stream.
    stream_is_capturing = c"cuStreamIsCapturing", 10000, c"cuStreamIsCapturing",
        (stream: CUstream, status: *mut c_uint);
    /// A stream's context.
    stream_get_ctx = c"cuStreamGetCtx", 9020, c"cuStreamGetCtx",
        (stream: CUstream, context: *mut CUcontext);
    /// A number that no other stream of the process ever has.
    stream_get_id = c"cuStreamGetId", 12000, c"cuStreamGetId",
        (stream: CUstream, id: *mut u64);
    /// An object whose end calls a function, with so many references.
    user_object_create = c"cuUserObjectCreate", 11030, c"cuUserObjectCreate",
        (object: *mut CUuserObject, word: *mut c_void, call: CUhostFn, count: c_uint,
         flags: c_uint);
    /// Gives references to it back.
    user_object_release = c"cuUserObjectRelease", 11030, c"cuUserObjectRelease",
        (object: CUuserObject, count: c_uint);
    /// Hands references to it to a graph.
    graph_retain_user_object = c"cuGraphRetainUserObject", 11030, c"cuGraphRetainUserObject",
        (graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
    /// A new event.
    event_create = c"cuEventCreate", 2000, c"cuEventCreate", (event: *mut CUevent, flags: c_uint);
    /// Its end.
    event_destroy = c"cuEventDestroy", 4000, c"cuEventDestroy_v2", (event: CUevent);
    /// Marks a point of a stream.
    event_record = c"cuEventRecord", 2000, c"cuEventRecord", (event: CUevent, stream: CUstream);
    /// Whether the point has been reached.
    event_query = c"cuEventQuery", 2000, c"cuEventQuery", (event: CUevent);
    /// Waits for it.
    event_synchronize = c"cuEventSynchronize", 2000, c"cuEventSynchronize", (event: CUevent);
}

impl Api {
    /// The library behind the table.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Whether the driver has said that it is shut down. Final.
    #[inline]
    pub fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Relaxed)
    }

    /// Whether the driver can mark all work of a context.
    pub fn has_context_events(&self) -> bool {
        self.ctx_record_event.is_some()
    }

    /// Marks all work of a context.
    ///
    /// # Safety
    /// Both handles are live and belong together; no stream of the context captures.
    pub unsafe fn ctx_record_event(&self, context: CUcontext, event: CUevent) -> RawResult {
        let Some(call) = self.ctx_record_event else { return MISSING };
        if self.is_shut_down() {
            return codes::DEINITIALIZED;
        }
        // SAFETY: as the caller promised.
        self.seen(unsafe { call(context, event) })
    }

    #[inline]
    fn seen(&self, result: RawResult) -> RawResult {
        if result == codes::DEINITIALIZED {
            self.shut_down.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("library", &self.library).finish_non_exhaustive()
    }
}
