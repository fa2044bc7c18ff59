//! What the driver's result numbers mean: to the pool, and to people.
//!
//! Owns the one place where a number becomes a [`Code`], and the names with advice. Promises that
//! any number is understood: one that is not listed passes as [`Code::Other`]. Must not call
//! the driver. Cost: a few compares on failure only.

use super::newer::{self, RawResult};
use super::table::MISSING;
use crate::driver::{Call, Code, DriverError, DriverResult};

/// `CUDA_SUCCESS`.
pub const SUCCESS: RawResult = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: RawResult = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: RawResult = 2;
/// `CUDA_ERROR_DEINITIALIZED`.
pub const DEINITIALIZED: RawResult = 4;
/// `CUDA_ERROR_STUB_LIBRARY`.
pub const STUB_LIBRARY: RawResult = 34;
/// `CUDA_ERROR_NO_DEVICE`.
pub const NO_DEVICE: RawResult = 100;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub const INVALID_CONTEXT: RawResult = 201;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: RawResult = 400;
/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: RawResult = 600;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
pub const CONTEXT_IS_DESTROYED: RawResult = 709;
/// `CUDA_ERROR_TOO_MANY_PEERS`.
pub const TOO_MANY_PEERS: RawResult = 711;
/// `CUDA_ERROR_NOT_PERMITTED`.
pub const NOT_PERMITTED: RawResult = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: RawResult = 801;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub const CAPTURE_UNSUPPORTED: RawResult = 900;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: the legacy stream, while a stream beside it captures.
pub const CAPTURE_IMPLICIT: RawResult = 906;
/// `CUDA_ERROR_UNKNOWN`.
pub const UNKNOWN: RawResult = 999;

/// The meaning of a result to the pool.
#[inline]
pub fn check(call: Call, result: RawResult) -> DriverResult<()> {
    if result == SUCCESS { Ok(()) } else { Err(DriverError { call, code: code(call, result) }) }
}

/// The meaning of a failing result.
#[cold]
pub fn code(call: Call, result: RawResult) -> Code {
    match result {
        INVALID_VALUE => Code::InvalidValue,
        OUT_OF_MEMORY => match call {
            Call::Reserve => Code::NoAddressSpace,
            Call::Map | Call::Unmap | Call::SetAccess => Code::MappingLimit,
            _ => Code::OutOfMemory,
        },
        DEINITIALIZED => Code::ShutDown,
        INVALID_CONTEXT | CONTEXT_IS_DESTROYED => Code::ContextLost,
        sticky if is_sticky(sticky) => {
            tracing::error!(call = call.name(), "{}", sentence(sticky));
            Code::ContextLost
        }
        INVALID_HANDLE => Code::InvalidHandle,
        TOO_MANY_PEERS => Code::TooManyPeers,
        NOT_SUPPORTED | MISSING => Code::NotSupported,
        other => Code::Other(other),
    }
}

/// Whether a result means that every later call in the context answers the same: a kernel has
/// failed, or the device has.
pub const fn is_sticky(result: RawResult) -> bool {
    matches!(
        result,
        214 | newer::CONTAINED | 700 | 702 | 710 | 714..=719 | newer::TENSOR_MEMORY_LEAK
    )
}

/// A number's name without `CUDA_ERROR_`, and what to do about it; `None` for one unknown here.
pub fn describe(result: RawResult) -> Option<(&'static str, &'static str)> {
    const STICKY: &str = "work of the program did this, and its context is unusable from now on: \
                          every call answers so until the process restarts; look for the kernel \
                          with compute-sanitizer";
    const HARDWARE: &str = "the device has failed; see dmesg and nvidia-smi";
    const SETUP: &str = "the installed driver and this process do not fit; see nvidia-smi";
    const CAPTURE: &str = "a graph capture is open: declare captures with forebay_capture_begin";
    Some(match result {
        INVALID_VALUE => ("INVALID_VALUE", "an argument is wrong"),
        OUT_OF_MEMORY => ("OUT_OF_MEMORY", "no memory or no mapping is left"),
        3 => ("NOT_INITIALIZED", "CUDA cannot be used in a forked child: fork before first use"),
        DEINITIALIZED => ("DEINITIALIZED", "the process is ending"),
        STUB_LIBRARY => (
            "STUB_LIBRARY",
            "this libcuda is the toolkit's stub: install the driver, and keep \
              the stubs folder out of LD_LIBRARY_PATH",
        ),
        newer::DEVICE_UNAVAILABLE => {
            ("DEVICE_UNAVAILABLE", "another process has the device to itself (compute mode)")
        }
        NO_DEVICE => (
            "NO_DEVICE",
            "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES, and in \
              containers start with --gpus all",
        ),
        101 => ("INVALID_DEVICE", "there is no device of this number"),
        INVALID_CONTEXT => ("INVALID_CONTEXT", "the CUDA context is gone"),
        214 => ("ECC_UNCORRECTABLE", HARDWARE),
        newer::CONTAINED => ("CONTAINED", HARDWARE),
        INVALID_HANDLE => ("INVALID_HANDLE", "the handle is of another context or destroyed"),
        500 => ("NOT_FOUND", "the driver does not know it"),
        700 => ("ILLEGAL_ADDRESS", STICKY),
        702 => ("LAUNCH_TIMEOUT", STICKY),
        CONTEXT_IS_DESTROYED => ("CONTEXT_IS_DESTROYED", "the CUDA context is gone"),
        710 => ("ASSERT", STICKY),
        TOO_MANY_PEERS => ("TOO_MANY_PEERS", "a device has at most 8 peers"),
        712 => ("HOST_MEMORY_ALREADY_REGISTERED", "the memory is pinned already"),
        714 => ("HARDWARE_STACK_ERROR", STICKY),
        715 => ("ILLEGAL_INSTRUCTION", STICKY),
        716 => ("MISALIGNED_ADDRESS", STICKY),
        717 => ("INVALID_ADDRESS_SPACE", STICKY),
        718 => ("INVALID_PC", STICKY),
        719 => ("LAUNCH_FAILED", STICKY),
        newer::TENSOR_MEMORY_LEAK => ("TENSOR_MEMORY_LEAK", STICKY),
        NOT_PERMITTED => ("NOT_PERMITTED", "the system or container forbids it"),
        NOT_SUPPORTED => ("NOT_SUPPORTED", "this driver or device cannot do it"),
        802 => ("SYSTEM_NOT_READY", "start the fabric manager (nvidia-fabricmanager)"),
        803 => ("SYSTEM_DRIVER_MISMATCH", SETUP),
        804 => ("COMPAT_NOT_SUPPORTED_ON_DEVICE", SETUP),
        newer::MPS_CLIENT_TERMINATED => ("MPS_CLIENT_TERMINATED", "the MPS server ended us"),
        CAPTURE_UNSUPPORTED => ("STREAM_CAPTURE_UNSUPPORTED", CAPTURE),
        901 => ("STREAM_CAPTURE_INVALIDATED", CAPTURE),
        CAPTURE_IMPLICIT => ("STREAM_CAPTURE_IMPLICIT", CAPTURE),
        907 => ("CAPTURED_EVENT", CAPTURE),
        UNKNOWN => ("UNKNOWN", "see dmesg; in containers and WSL2, check the device nodes"),
        MISSING => ("no such entry point", "this driver is older than the call"),
        _ => return None,
    })
}

/// A result as a sentence: number, name and what to do.
pub fn sentence(result: RawResult) -> String {
    match describe(result) {
        Some((name, advice)) if result == MISSING => format!("{name}: {advice}"),
        Some((name, advice)) => format!("CUDA error {result} (CUDA_ERROR_{name}): {advice}"),
        None => format!("CUDA error {result}, which this version does not know"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_means_what_the_call_lacks() {
        let code = |call| code(call, OUT_OF_MEMORY);
        assert_eq!(code(Call::Reserve), Code::NoAddressSpace);
        assert_eq!(code(Call::Create), Code::OutOfMemory);
        assert_eq!(code(Call::AllocPlain), Code::OutOfMemory);
        assert_eq!(code(Call::EventCreate), Code::OutOfMemory);
        for call in [Call::Map, Call::Unmap, Call::SetAccess] {
            assert_eq!(code(call), Code::MappingLimit);
        }
    }

    #[test]
    fn numbers_have_their_meaning_and_unknown_ones_pass() {
        let cases = [
            (1, Code::InvalidValue),
            (4, Code::ShutDown),
            (201, Code::ContextLost),
            (709, Code::ContextLost),
            (400, Code::InvalidHandle),
            (711, Code::TooManyPeers),
            (801, Code::NotSupported),
            (MISSING, Code::NotSupported),
            (900, Code::Other(900)),
            (700, Code::ContextLost),
            (714, Code::ContextLost),
            (719, Code::ContextLost),
            (720, Code::Other(720)),
            (800, Code::Other(800)),
            (999, Code::Other(999)),
            (4242, Code::Other(4242)),
        ];
        for (result, expected) in cases {
            let error = check(Call::Create, result).expect_err("a failure");
            assert_eq!((error.call, error.code), (Call::Create, expected), "{result}");
        }
        assert_eq!(check(Call::Create, 0), Ok(()));
    }

    #[test]
    fn sentences_name_number_and_advice() {
        assert!(sentence(700).contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert!(sentence(700).contains("compute-sanitizer"));
        assert!(sentence(4242).contains("4242"));
        for (result, name) in [(2, "OUT_OF_MEMORY"), (100, "NO_DEVICE"), (803, "MISMATCH")] {
            assert!(sentence(result).contains(name), "{result}");
        }
    }
}
