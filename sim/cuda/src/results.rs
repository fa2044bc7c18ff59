//! Result codes: numbers and names of CUDA 12.9's `cuda.h`, texts for people.
//!
//! A newer driver may answer codes that are not in this table; so may this one, when a
//! setting or a fault asks for it. Callers must take any number.

/// What a driver call answers.
pub type CUresult = u32;

macro_rules! results {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(#[doc = concat!($text, ".")] pub const $name: CUresult = $code;)*
        /// Code, name and text of every result.
        pub static RESULTS: &[(CUresult, &std::ffi::CStr, &std::ffi::CStr)] =
            &[$(($code, c_text(concat!(stringify!($name), "\0")),
                 c_text(concat!($text, "\0")))),*];
    };
}

/// A literal that ends in a zero byte, as a C string; empty if it does not.
const fn c_text(text: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

results! {
    CUDA_SUCCESS = 0, "no error";
    CUDA_ERROR_INVALID_VALUE = 1, "invalid argument";
    CUDA_ERROR_OUT_OF_MEMORY = 2, "out of memory";
    CUDA_ERROR_NOT_INITIALIZED = 3, "initialization error";
    CUDA_ERROR_DEINITIALIZED = 4, "driver shutting down";
    CUDA_ERROR_PROFILER_DISABLED = 5, "profiler disabled";
    CUDA_ERROR_PROFILER_NOT_INITIALIZED = 6, "profiler not initialized";
    CUDA_ERROR_PROFILER_ALREADY_STARTED = 7, "profiler already started";
    CUDA_ERROR_PROFILER_ALREADY_STOPPED = 8, "profiler already stopped";
    CUDA_ERROR_STUB_LIBRARY = 34, "stub library";
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46, "device unavailable";
    CUDA_ERROR_NO_DEVICE = 100, "no CUDA-capable device is detected";
    CUDA_ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    CUDA_ERROR_DEVICE_NOT_LICENSED = 102, "device not licensed";
    CUDA_ERROR_INVALID_IMAGE = 200, "invalid image";
    CUDA_ERROR_INVALID_CONTEXT = 201, "invalid device context";
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT = 202, "context already current";
    CUDA_ERROR_MAP_FAILED = 205, "mapping of buffer object failed";
    CUDA_ERROR_UNMAP_FAILED = 206, "unmap failed";
    CUDA_ERROR_ARRAY_IS_MAPPED = 207, "array is mapped";
    CUDA_ERROR_ALREADY_MAPPED = 208, "already mapped";
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209, "no binary for gpu";
    CUDA_ERROR_ALREADY_ACQUIRED = 210, "already acquired";
    CUDA_ERROR_NOT_MAPPED = 211, "not mapped";
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY = 212, "not mapped as array";
    CUDA_ERROR_NOT_MAPPED_AS_POINTER = 213, "not mapped as pointer";
    CUDA_ERROR_ECC_UNCORRECTABLE = 214, "ecc uncorrectable";
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215, "unsupported limit";
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE = 216, "context already in use";
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access unsupported";
    CUDA_ERROR_INVALID_PTX = 218, "invalid ptx";
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT = 219, "invalid graphics context";
    CUDA_ERROR_NVLINK_UNCORRECTABLE = 220, "nvlink uncorrectable";
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221, "jit compiler not found";
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222, "unsupported ptx version";
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223, "jit compilation disabled";
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = 224, "unsupported exec affinity";
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225, "unsupported devside sync";
    CUDA_ERROR_CONTAINED = 226, "contained";
    CUDA_ERROR_INVALID_SOURCE = 300, "invalid source";
    CUDA_ERROR_FILE_NOT_FOUND = 301, "file not found";
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "shared object symbol not found";
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303, "shared object init failed";
    CUDA_ERROR_OPERATING_SYSTEM = 304, "operating system";
    CUDA_ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    CUDA_ERROR_ILLEGAL_STATE = 401, "illegal state";
    CUDA_ERROR_LOSSY_QUERY = 402, "lossy query";
    CUDA_ERROR_NOT_FOUND = 500, "named symbol not found";
    CUDA_ERROR_NOT_READY = 600, "device not ready";
    CUDA_ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "launch out of resources";
    CUDA_ERROR_LAUNCH_TIMEOUT = 702, "launch timeout";
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703, "launch incompatible texturing";
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "cannot set while device is active in this process";
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    CUDA_ERROR_ASSERT = 710, "assert";
    CUDA_ERROR_TOO_MANY_PEERS = 711, "peer mapping resources exhausted";
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "host memory already registered";
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "host memory not registered";
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714, "hardware stack error";
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715, "illegal instruction";
    CUDA_ERROR_MISALIGNED_ADDRESS = 716, "misaligned address";
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717, "invalid address space";
    CUDA_ERROR_INVALID_PC = 718, "invalid pc";
    CUDA_ERROR_LAUNCH_FAILED = 719, "launch failed";
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, "cooperative launch too large";
    CUDA_ERROR_TENSOR_MEMORY_LEAK = 721, "tensor memory leak";
    CUDA_ERROR_NOT_PERMITTED = 800, "operation not permitted";
    CUDA_ERROR_NOT_SUPPORTED = 801, "operation not supported";
    CUDA_ERROR_SYSTEM_NOT_READY = 802, "system not ready";
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803, "system driver mismatch";
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "compat not supported on device";
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805, "mps connection failed";
    CUDA_ERROR_MPS_RPC_FAILURE = 806, "mps rpc failure";
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807, "mps server not ready";
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808, "mps max clients reached";
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED = 809, "mps max connections reached";
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810, "mps client terminated";
    CUDA_ERROR_CDP_NOT_SUPPORTED = 811, "cdp not supported";
    CUDA_ERROR_CDP_VERSION_MISMATCH = 812, "cdp version mismatch";
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous capture error";
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902, "stream capture merge";
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903, "stream capture unmatched";
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904, "stream capture unjoined";
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905, "stream capture isolation";
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906, "stream capture implicit";
    CUDA_ERROR_CAPTURED_EVENT = 907, "captured event";
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "stream capture wrong thread";
    CUDA_ERROR_TIMEOUT = 909, "timeout";
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910, "graph exec update failure";
    CUDA_ERROR_EXTERNAL_DEVICE = 911, "external device";
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912, "invalid cluster size";
    CUDA_ERROR_FUNCTION_NOT_LOADED = 913, "function not loaded";
    CUDA_ERROR_INVALID_RESOURCE_TYPE = 914, "invalid resource type";
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915, "invalid resource configuration";
    CUDA_ERROR_KEY_ROTATION = 916, "key rotation";
    CUDA_ERROR_UNKNOWN = 999, "unknown error";
}

/// The row of a code, if it has one.
pub fn row(
    code: CUresult,
) -> Option<&'static (CUresult, &'static std::ffi::CStr, &'static std::ffi::CStr)> {
    RESULTS.iter().find(|row| row.0 == code)
}
