//! The last error of a thread, and the names of codes.

use crate::common::*;
use std::ffi::{CStr, c_char};

fn text(at: *const c_char) -> &'static str {
    // SAFETY: the library's constant texts.
    unsafe { CStr::from_ptr(at) }.to_str().expect("is text")
}

#[test]
fn the_last_error_stays_with_its_thread_until_it_is_asked_for() {
    let _turn = turn();
    assert_eq!(cudaSetDevice(7), 101);
    std::thread::spawn(|| assert_eq!(cudaPeekAtLastError(), 0)).join().expect("ends well");
    let mut device = 0;
    assert_eq!(cudaGetDevice(&mut device), 0, "a call that succeeds clears nothing");
    assert_eq!(cudaPeekAtLastError(), 101);
    assert_eq!(cudaGetLastError(), 101);
    assert_eq!(cudaGetLastError(), 0);
}

#[test]
fn codes_have_names() {
    for (code, name) in [
        (0, "cudaSuccess"),
        (2, "cudaErrorMemoryAllocation"),
        (4, "cudaErrorCudartUnloading"),
        (400, "cudaErrorInvalidResourceHandle"),
        (801, "cudaErrorNotSupported"),
        (5000, "unrecognized error code"),
    ] {
        assert_eq!(text(cudaGetErrorName(code)), name);
    }
    assert_eq!(text(cudaGetErrorString(2)), "out of memory");
    assert_eq!(text(cudaGetErrorString(5000)), "unrecognized error code");
}

#[test]
fn what_is_not_built_says_so() {
    let _turn = turn();
    assert_eq!(cudaMallocArray(), 801);
    assert_eq!(cudaGetLastError(), 801);
}

#[test]
fn null_places_are_refused() {
    let _turn = turn();
    assert_eq!(cudaMalloc(std::ptr::null_mut(), 1), 1);
    assert_eq!(cudaGetDevice(std::ptr::null_mut()), 1);
    assert_eq!(cudaStreamCreate(std::ptr::null_mut()), 1);
    assert_eq!(cudaEventCreate(std::ptr::null_mut()), 1);
    assert_eq!(cudaLaunchHostFunc(0, None, std::ptr::null_mut()), 1);
}
