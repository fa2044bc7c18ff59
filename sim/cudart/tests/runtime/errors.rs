//! The last error of a thread, and the names of codes.

use crate::child;
use crate::common::*;
use std::ffi::{CStr, c_char, c_void};

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
fn a_failed_contexts_error_is_cleared_by_nothing_but_its_end() {
    let name = "errors::a_failed_contexts_error_is_cleared_by_nothing_but_its_end";
    if let Some(output) = child::run(name, &[]) {
        child::ended(&output, 0);
        return;
    }
    runtime();
    static FILL: u8 = 0;
    let function = register(c"fill_u32", &FILL).1;
    let (mut to, mut value, mut count) = (0x10u64, 1u32, 4u64);
    let mut places =
        [(&raw mut to).cast::<c_void>(), (&raw mut value).cast(), (&raw mut count).cast()];
    let one = Dim3(1, 1, 1);
    assert_eq!(cudaLaunchKernel(function, one, one, places.as_mut_ptr(), 0, 0), 0);
    assert_eq!(cudaGetLastError(), 0, "it has not run yet");
    assert_eq!(cudaDeviceSynchronize(), 700);
    for _ in 0..2 {
        assert_eq!((cudaPeekAtLastError(), cudaGetLastError()), (700, 700));
    }
    // Calls that have nothing to do.
    let (mut at, mut pitch, mut host) = (0, 0, std::ptr::null_mut());
    let word = std::ptr::from_ref(&value) as u64;
    assert_eq!((cudaFree(0), cudaFreeHost(host), cudaFreeAsync(0, 0)), (700, 700, 700));
    assert_eq!((cudaMalloc(&mut at, 0), cudaMallocAsync(&mut at, 0, 0)), (700, 700));
    assert_eq!(cudaMallocPitch(&mut at, &mut pitch, 0, 1), 700);
    assert_eq!(cudaMallocHost(&mut host, 0), 700);
    assert_eq!((cudaMemcpy(word, word, 0, 0), cudaMemsetAsync(0, 0, 0, 0)), (700, 700));
    assert_eq!(cudaMemset2D(0, 0, 0, 0, 0), 700);
    std::thread::spawn(|| {
        assert_eq!(cudaGetLastError(), 0, "no context yet");
        assert_eq!(cudaSetDevice(0), 0);
        assert_eq!(cudaGetLastError(), 700);
        assert_eq!((cudaSetDevice(1), cudaGetLastError()), (0, 0), "another device's");
    })
    .join()
    .expect("ends well");
    assert_eq!(cudaDeviceReset(), 0);
    assert_eq!(cudaGetLastError(), 700, "the thread's last, as any other");
    assert_eq!((cudaGetLastError(), cudaFree(0)), (0, 0));
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
