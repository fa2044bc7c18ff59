//! CUDA's types as the C ABI sees them, and the codes that this library itself answers.
//!
//! A handle is a number, never read through. Enumerations are `u32`, since a caller may pass any
//! value. The driver's codes are the runtime's, number for number.

use std::ffi::c_void;

/// `cudaError_t`, and `CUresult`.
pub type Code = i32;
/// What a body answers.
pub type Answer = Result<(), Code>;
/// `cudaStream_t`: 0 is the default stream, 1 the legacy one, 2 the thread's own.
pub type Stream = u64;
/// `cudaEvent_t`.
pub type Event = u64;
/// `cudaGraph_t`.
pub type Graph = u64;
/// `cudaGraphNode_t`.
pub type Node = u64;
/// `cudaGraphExec_t`.
pub type Exec = u64;
/// `cudaMemPool_t`.
pub type Pool = u64;
/// `CUcontext`.
pub type Context = u64;
/// A host function.
pub type HostFn = unsafe extern "C" fn(*mut c_void);

pub const SUCCESS: Code = 0;
pub const ERROR_INVALID_VALUE: Code = 1;
pub const ERROR_CUDART_UNLOADING: Code = 4;
pub const ERROR_INVALID_CONFIGURATION: Code = 9;
pub const ERROR_INVALID_PITCH_VALUE: Code = 12;
pub const ERROR_INVALID_SYMBOL: Code = 13;
pub const ERROR_INVALID_MEMCPY_DIRECTION: Code = 21;
pub const ERROR_INSUFFICIENT_DRIVER: Code = 35;
pub const ERROR_CALL_REQUIRES_NEWER_DRIVER: Code = 36;
pub const ERROR_MISSING_CONFIGURATION: Code = 52;
pub const ERROR_INVALID_DEVICE_FUNCTION: Code = 98;
pub const ERROR_INVALID_DEVICE: Code = 101;
pub const ERROR_OPERATING_SYSTEM: Code = 304;
pub const ERROR_NOT_FOUND: Code = 500;
pub const ERROR_PEER_ACCESS_NOT_ENABLED: Code = 705;
pub const ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: Code = 720;
pub const ERROR_NOT_SUPPORTED: Code = 801;
pub const ERROR_UNKNOWN: Code = 999;

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dim3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

impl Dim3 {
    /// How many points.
    pub fn count(self) -> u64 {
        u64::from(self.x).saturating_mul(self.y.into()).saturating_mul(self.z.into())
    }
}

/// `cudaExtent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `cudaPitchedPtr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PitchedPtr {
    pub ptr: u64,
    pub pitch: usize,
    pub xsize: usize,
    pub ysize: usize,
}

/// `cudaMemLocation`, and `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub type_: u32,
    pub id: i32,
}

/// `cudaIpcMemHandle_t`, and `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle {
    pub reserved: [u8; 64],
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub src_x: usize,
    pub src_y: usize,
    pub src_type: u32,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_type: u32,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

const _: () = assert!(size_of::<Rows>() == 128);
