//! Memory of every kind: sizes of 0, limits, what is known of its pointers.

use crate::common::*;

#[test]
fn nothing_asked_for_is_nothing_given() {
    let _turn = turn();
    let (mut at, mut pitch, mut host) = (7, 7, std::ptr::dangling_mut());
    assert_eq!((cudaMalloc(&mut at, 0), at), (0, 0));
    assert_eq!((cudaMallocPitch(&mut at, &mut pitch, 0, 4), at, pitch), (0, 0, 0));
    assert_eq!(cudaMallocHost(&mut host, 0), 0);
    assert!(host.is_null());
    assert_eq!((cudaMallocAsync(&mut at, 0, 0), at), (0, 0));
    assert_eq!(cudaFree(0), 0);
    assert_eq!(cudaFreeHost(std::ptr::null_mut()), 0);
    assert_eq!(cudaFreeAsync(0, 0), 0);
}

#[test]
fn memory_is_aligned_counted_and_given_back() {
    let _turn = turn();
    let (mut before, mut after, mut total) = (0, 0, 0);
    assert_eq!(cudaMemGetInfo(&mut before, &mut total), 0);
    assert_eq!(total, DEVICE_BYTES);
    let mut at = 0;
    assert_eq!(cudaMalloc(&mut at, 16 << 20), 0);
    assert_eq!(at % 256, 0);
    assert_eq!(cudaMemGetInfo(&mut after, &mut total), 0);
    assert!(before - after >= 16 << 20, "{before} {after}");
    assert_eq!(cudaFree(at), 0);
    assert_eq!(cudaMemGetInfo(&mut after, &mut total), 0);
    assert_eq!(after, before);
    assert_eq!(cudaMalloc(&mut at, DEVICE_BYTES + 1), 2);
    assert_eq!(cudaGetLastError(), 2);
}

#[test]
fn what_was_not_given_out_is_not_taken_back() {
    let mut turn = turn();
    turn.misuses();
    let mut at = 0;
    assert_eq!(cudaMalloc(&mut at, 4096), 0);
    assert_eq!(cudaFree(at + 256), 1);
    assert_eq!(cudaFree(at), 0);
    assert_eq!(cudaFree(at), 1);
    assert_eq!(cudaFree(0x1234_0000), 1);
}

#[test]
fn rows_are_laid_out_with_a_pitch() {
    let _turn = turn();
    let (mut at, mut pitch) = (0, 0);
    assert_eq!(cudaMallocPitch(&mut at, &mut pitch, 100, 10), 0);
    assert!(pitch >= 100 && pitch % 32 == 0, "{pitch}");
    assert_eq!(cudaFree(at), 0);
    let mut planes = PitchedPtr::default();
    assert_eq!(cudaMalloc3D(&mut planes, Extent(100, 5, 3)), 0);
    assert_eq!((planes.2, planes.3), (100, 5));
    assert_eq!(cudaMemset2D(planes.0, planes.1, 1, 100, 15), 0, "all rows are there");
    assert_eq!(cudaFree(planes.0), 0);
}

#[test]
fn pointers_are_told_apart() {
    let _turn = turn();
    let (mut device, mut managed) = (0, 0);
    let mut host = std::ptr::null_mut();
    assert_eq!(cudaSetDevice(1), 0);
    assert_eq!(cudaMalloc(&mut device, 4096), 0);
    assert_eq!(cudaMallocManaged(&mut managed, 4096, 1), 0);
    assert_eq!(cudaHostAlloc(&mut host, 4096, 3), 0);
    let ask = |at| {
        let mut known = PointerAttributes::default();
        assert_eq!(cudaPointerGetAttributes(&mut known, at), 0);
        known
    };
    let known = |kind, device, device_pointer, host_pointer| PointerAttributes {
        kind,
        device,
        device_pointer,
        host_pointer,
    };
    assert_eq!(ask(device + 8), known(2, 1, device + 8, 0));
    assert_eq!(ask(managed), known(3, 1, managed, managed));
    let at = host as u64;
    assert_eq!(ask(at), known(1, 1, at, at));
    let local = 5u32;
    assert_eq!(ask(std::ptr::from_ref(&local) as u64), known(0, -2, 0, 0));
    let mut flags = 0;
    assert_eq!(cudaHostGetFlags(&mut flags, host), 0);
    assert_eq!(flags & 3, 3);
    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFree(managed), 0);
    assert_eq!(cudaFreeHost(host), 0);
}

#[test]
fn memory_of_the_program_is_registered_once() {
    let _turn = turn();
    let mut memory = vec![0u8; 12_288];
    let at = (memory.as_mut_ptr() as usize).next_multiple_of(4096) as *mut std::ffi::c_void;
    assert_eq!(cudaHostRegister(at, 8192, 2), 0);
    assert_eq!(cudaHostRegister(at, 8192, 2), 712);
    let mut seen = 0;
    assert_eq!((cudaHostGetDevicePointer(&mut seen, at, 0), seen), (0, at as u64));
    assert_eq!(cudaHostUnregister(at), 0);
    assert_eq!(cudaHostUnregister(at), 713);
}
