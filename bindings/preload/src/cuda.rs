//! Numbers and types of CUDA's driver API, as `cuda.h` of 12.9 has them.
//!
//! Owns no behaviour. Handles are words here: this library only passes them on.

use std::ffi::c_int;

/// `CUresult`, read as a number: a newer driver's codes are values too.
pub type Result = c_int;
/// `CUdeviceptr`.
pub type DevicePtr = u64;
/// `CUcontext`, `CUstream`, `CUgraph`, `CUmemoryPool` and other handles.
pub type Handle = usize;
/// `CUdevice`.
pub type Device = c_int;

pub const SUCCESS: Result = 0;
pub const INVALID_VALUE: Result = 1;
pub const OUT_OF_MEMORY: Result = 2;
pub const NOT_INITIALIZED: Result = 3;
pub const DEINITIALIZED: Result = 4;
pub const INVALID_DEVICE: Result = 101;
pub const INVALID_CONTEXT: Result = 201;
pub const MAP_FAILED: Result = 205;
pub const INVALID_HANDLE: Result = 400;
pub const NOT_FOUND: Result = 500;
pub const NOT_READY: Result = 600;
pub const PEER_ACCESS_UNSUPPORTED: Result = 217;
pub const TOO_MANY_PEERS: Result = 711;
pub const NOT_SUPPORTED: Result = 801;

/// `CU_STREAM_LEGACY`: the legacy default stream by name.
pub const STREAM_LEGACY: Handle = 1;
/// `CU_STREAM_PER_THREAD`: the calling thread's default stream.
pub const STREAM_PER_THREAD: Handle = 2;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
pub const PROC_PER_THREAD: u64 = 2;

/// `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT`: what rows of pitched memory start at.
pub const ATTRIBUTE_TEXTURE_ALIGNMENT: c_int = 14;

/// `CU_POINTER_ATTRIBUTE_*`.
pub mod pointer {
    pub const CONTEXT: i32 = 1;
    pub const SYNC_MEMOPS: i32 = 6;
    pub const BUFFER_ID: i32 = 7;
    pub const IS_LEGACY_IPC_CAPABLE: i32 = 10;
    pub const RANGE_START: i32 = 11;
    pub const RANGE_SIZE: i32 = 12;
}
