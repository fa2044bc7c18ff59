//! Names and texts of errors.
//!
//! Owns one row a code. The names are CUDA's; the texts are this library's own, where it says
//! more than the name does.

use crate::state;
use crate::types::*;
use std::ffi::{CStr, c_char};
use std::panic::catch_unwind;

/// Code, name.
const NAMES: &[(Code, &CStr)] = &[
    (0, c"cudaSuccess"),
    (1, c"cudaErrorInvalidValue"),
    (2, c"cudaErrorMemoryAllocation"),
    (3, c"cudaErrorInitializationError"),
    (4, c"cudaErrorCudartUnloading"),
    (5, c"cudaErrorProfilerDisabled"),
    (6, c"cudaErrorProfilerNotInitialized"),
    (7, c"cudaErrorProfilerAlreadyStarted"),
    (8, c"cudaErrorProfilerAlreadyStopped"),
    (9, c"cudaErrorInvalidConfiguration"),
    (12, c"cudaErrorInvalidPitchValue"),
    (13, c"cudaErrorInvalidSymbol"),
    (16, c"cudaErrorInvalidHostPointer"),
    (17, c"cudaErrorInvalidDevicePointer"),
    (18, c"cudaErrorInvalidTexture"),
    (19, c"cudaErrorInvalidTextureBinding"),
    (20, c"cudaErrorInvalidChannelDescriptor"),
    (21, c"cudaErrorInvalidMemcpyDirection"),
    (22, c"cudaErrorAddressOfConstant"),
    (23, c"cudaErrorTextureFetchFailed"),
    (24, c"cudaErrorTextureNotBound"),
    (25, c"cudaErrorSynchronizationError"),
    (26, c"cudaErrorInvalidFilterSetting"),
    (27, c"cudaErrorInvalidNormSetting"),
    (28, c"cudaErrorMixedDeviceExecution"),
    (31, c"cudaErrorNotYetImplemented"),
    (32, c"cudaErrorMemoryValueTooLarge"),
    (34, c"cudaErrorStubLibrary"),
    (35, c"cudaErrorInsufficientDriver"),
    (36, c"cudaErrorCallRequiresNewerDriver"),
    (37, c"cudaErrorInvalidSurface"),
    (43, c"cudaErrorDuplicateVariableName"),
    (44, c"cudaErrorDuplicateTextureName"),
    (45, c"cudaErrorDuplicateSurfaceName"),
    (46, c"cudaErrorDevicesUnavailable"),
    (49, c"cudaErrorIncompatibleDriverContext"),
    (52, c"cudaErrorMissingConfiguration"),
    (53, c"cudaErrorPriorLaunchFailure"),
    (65, c"cudaErrorLaunchMaxDepthExceeded"),
    (66, c"cudaErrorLaunchFileScopedTex"),
    (67, c"cudaErrorLaunchFileScopedSurf"),
    (68, c"cudaErrorSyncDepthExceeded"),
    (69, c"cudaErrorLaunchPendingCountExceeded"),
    (98, c"cudaErrorInvalidDeviceFunction"),
    (100, c"cudaErrorNoDevice"),
    (101, c"cudaErrorInvalidDevice"),
    (102, c"cudaErrorDeviceNotLicensed"),
    (103, c"cudaErrorSoftwareValidityNotEstablished"),
    (127, c"cudaErrorStartupFailure"),
    (200, c"cudaErrorInvalidKernelImage"),
    (201, c"cudaErrorDeviceUninitialized"),
    (205, c"cudaErrorMapBufferObjectFailed"),
    (206, c"cudaErrorUnmapBufferObjectFailed"),
    (207, c"cudaErrorArrayIsMapped"),
    (208, c"cudaErrorAlreadyMapped"),
    (209, c"cudaErrorNoKernelImageForDevice"),
    (210, c"cudaErrorAlreadyAcquired"),
    (211, c"cudaErrorNotMapped"),
    (212, c"cudaErrorNotMappedAsArray"),
    (213, c"cudaErrorNotMappedAsPointer"),
    (214, c"cudaErrorECCUncorrectable"),
    (215, c"cudaErrorUnsupportedLimit"),
    (216, c"cudaErrorDeviceAlreadyInUse"),
    (217, c"cudaErrorPeerAccessUnsupported"),
    (218, c"cudaErrorInvalidPtx"),
    (219, c"cudaErrorInvalidGraphicsContext"),
    (220, c"cudaErrorNvlinkUncorrectable"),
    (221, c"cudaErrorJitCompilerNotFound"),
    (222, c"cudaErrorUnsupportedPtxVersion"),
    (223, c"cudaErrorJitCompilationDisabled"),
    (224, c"cudaErrorUnsupportedExecAffinity"),
    (225, c"cudaErrorUnsupportedDevSideSync"),
    (226, c"cudaErrorContained"),
    (300, c"cudaErrorInvalidSource"),
    (301, c"cudaErrorFileNotFound"),
    (302, c"cudaErrorSharedObjectSymbolNotFound"),
    (303, c"cudaErrorSharedObjectInitFailed"),
    (304, c"cudaErrorOperatingSystem"),
    (400, c"cudaErrorInvalidResourceHandle"),
    (401, c"cudaErrorIllegalState"),
    (402, c"cudaErrorLossyQuery"),
    (500, c"cudaErrorSymbolNotFound"),
    (600, c"cudaErrorNotReady"),
    (700, c"cudaErrorIllegalAddress"),
    (701, c"cudaErrorLaunchOutOfResources"),
    (702, c"cudaErrorLaunchTimeout"),
    (703, c"cudaErrorLaunchIncompatibleTexturing"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled"),
    (705, c"cudaErrorPeerAccessNotEnabled"),
    (708, c"cudaErrorSetOnActiveProcess"),
    (709, c"cudaErrorContextIsDestroyed"),
    (710, c"cudaErrorAssert"),
    (711, c"cudaErrorTooManyPeers"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered"),
    (713, c"cudaErrorHostMemoryNotRegistered"),
    (714, c"cudaErrorHardwareStackError"),
    (715, c"cudaErrorIllegalInstruction"),
    (716, c"cudaErrorMisalignedAddress"),
    (717, c"cudaErrorInvalidAddressSpace"),
    (718, c"cudaErrorInvalidPc"),
    (719, c"cudaErrorLaunchFailure"),
    (720, c"cudaErrorCooperativeLaunchTooLarge"),
    (721, c"cudaErrorTensorMemoryLeak"),
    (800, c"cudaErrorNotPermitted"),
    (801, c"cudaErrorNotSupported"),
    (802, c"cudaErrorSystemNotReady"),
    (803, c"cudaErrorSystemDriverMismatch"),
    (804, c"cudaErrorCompatNotSupportedOnDevice"),
    (805, c"cudaErrorMpsConnectionFailed"),
    (806, c"cudaErrorMpsRpcFailure"),
    (807, c"cudaErrorMpsServerNotReady"),
    (808, c"cudaErrorMpsMaxClientsReached"),
    (809, c"cudaErrorMpsMaxConnectionsReached"),
    (810, c"cudaErrorMpsClientTerminated"),
    (811, c"cudaErrorCdpNotSupported"),
    (812, c"cudaErrorCdpVersionMismatch"),
    (900, c"cudaErrorStreamCaptureUnsupported"),
    (901, c"cudaErrorStreamCaptureInvalidated"),
    (902, c"cudaErrorStreamCaptureMerge"),
    (903, c"cudaErrorStreamCaptureUnmatched"),
    (904, c"cudaErrorStreamCaptureUnjoined"),
    (905, c"cudaErrorStreamCaptureIsolation"),
    (906, c"cudaErrorStreamCaptureImplicit"),
    (907, c"cudaErrorCapturedEvent"),
    (908, c"cudaErrorStreamCaptureWrongThread"),
    (909, c"cudaErrorTimeout"),
    (910, c"cudaErrorGraphExecUpdateFailure"),
    (911, c"cudaErrorExternalDevice"),
    (912, c"cudaErrorInvalidClusterSize"),
    (913, c"cudaErrorFunctionNotLoaded"),
    (914, c"cudaErrorInvalidResourceType"),
    (915, c"cudaErrorInvalidResourceConfiguration"),
    (999, c"cudaErrorUnknown"),
];

/// Code, text.
const TEXTS: &[(Code, &CStr)] = &[
    (0, c"no error"),
    (1, c"invalid argument"),
    (2, c"out of memory"),
    (3, c"initialization error"),
    (4, c"the driver is shutting down"),
    (9, c"invalid configuration argument"),
    (12, c"invalid pitch"),
    (13, c"invalid device symbol"),
    (21, c"invalid copy direction"),
    (35, c"the driver is older than the runtime needs"),
    (36, c"the driver lacks this function"),
    (52, c"no launch configuration was set"),
    (98, c"invalid device function"),
    (100, c"no device was found"),
    (101, c"invalid device ordinal"),
    (201, c"invalid device context"),
    (217, c"peer access is not possible"),
    (400, c"invalid resource handle"),
    (500, c"named symbol not found"),
    (600, c"not ready"),
    (700, c"an illegal address was touched"),
    (704, c"peer access is already enabled"),
    (705, c"peer access is not enabled"),
    (709, c"the context is destroyed"),
    (712, c"the memory is registered already"),
    (713, c"the memory is not registered"),
    (719, c"a launch failed"),
    (800, c"not permitted"),
    (801, c"not supported"),
    (900, c"not permitted while the stream is capturing"),
    (901, c"an earlier call has invalidated the capture"),
    (906, c"the legacy stream would depend on a capturing stream"),
    (999, c"unknown error"),
];

const UNKNOWN: &CStr = c"unrecognized error code";

fn row(table: &[(Code, &'static CStr)], code: Code) -> Option<&'static CStr> {
    table.iter().find(|(known, _)| *known == code).map(|(_, text)| *text)
}

/// A code's name, as its constant is called.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(code: Code) -> *const c_char {
    row(NAMES, code).unwrap_or(UNKNOWN).as_ptr()
}

/// A text for a code; its name where there is no other.
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(code: Code) -> *const c_char {
    row(TEXTS, code).or_else(|| row(NAMES, code)).unwrap_or(UNKNOWN).as_ptr()
}

/// The thread's last error, which this clears; that of a failed context, which nothing clears
/// (NVIDIA/nvbench#88) and which is told without another call (cudahandbook.com, 2024-12).
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> Code {
    let code = cudaPeekAtLastError();
    state::fail(SUCCESS);
    code
}

/// The thread's last error, which stays.
#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> Code {
    catch_unwind(state::failed).ok().flatten().unwrap_or_else(state::last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_has_a_name_and_no_code_two() {
        for (code, _) in TEXTS {
            assert!(row(NAMES, *code).is_some(), "{code}");
        }
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(row(NAMES, 2), Some(c"cudaErrorMemoryAllocation"));
        assert_eq!(row(NAMES, 5000), None);
    }
}
