//! What `cust_raw` 0.11.3 (the API of CUDA 11.4) does not declare.
//!
//! Each line names the header it was checked against and the version that brought it. Names,
//! types and numbers are NVIDIA's; `cuda.h` and `cudaTypedefs.h` are those of the package
//! `nvidia-cuda-runtime-cu12` 12.9.79.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cust_raw::{CUcontext, CUevent};

/// A result as a number. Never `cust_raw::CUresult`: a newer driver answers numbers that the
/// enum does not have.
pub type RawResult = u32;

/// `cuGetProcAddress_v2`, CUDA 12.0 (`cudaTypedefs.h`, `PFN_cuGetProcAddress_v12000`): symbol,
/// where to put the address, CUDA version, flags (`cuuint64_t`), where to put the status.
pub type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> RawResult;

/// `cuCtxRecordEvent`, CUDA 12.5 (`cuda.h`, `PFN_cuCtxRecordEvent_v12050`): marks all work of a
/// context. Fails, and invalidates the capture, while a stream of the context captures.
pub type CtxRecordEvent = unsafe extern "C" fn(CUcontext, CUevent) -> RawResult;

/// The version that brought `cuCtxRecordEvent`, as `cuDriverGetVersion` counts.
pub const CTX_RECORD_EVENT_SINCE: c_int = 12050;

/// `CUDA_ERROR_DEVICE_UNAVAILABLE`, CUDA 12 (`cuda.h`).
pub const DEVICE_UNAVAILABLE: RawResult = 46;

/// `CUDA_ERROR_CONTAINED`, CUDA 12 (`cuda.h`): a hardware error that left other processes alone.
pub const CONTAINED: RawResult = 226;

/// `CUDA_ERROR_TENSOR_MEMORY_LEAK`, CUDA 12 (`cuda.h`).
pub const TENSOR_MEMORY_LEAK: RawResult = 721;

/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`, CUDA 12 (`cuda.h`).
pub const MPS_CLIENT_TERMINATED: RawResult = 810;
