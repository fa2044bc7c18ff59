//! Devices: chosen by thread, described, peers, and the driver's functions looked up.

use crate::common::*;
use std::ffi::CStr;

fn number(bytes: &[u8], at: usize) -> i32 {
    i32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[test]
fn the_current_device_is_the_threads_own() {
    let _turn = turn();
    let (mut count, mut device) = (0, -1);
    assert_eq!((cudaGetDeviceCount(&mut count), count), (0, 2));
    assert_eq!(cudaSetDevice(1), 0);
    assert_eq!((cudaGetDevice(&mut device), device), (0, 1));
    std::thread::spawn(|| {
        let mut device = -1;
        assert_eq!((cudaGetDevice(&mut device), device), (0, 0));
    })
    .join()
    .expect("ends well");
    assert_eq!(cudaSetDevice(2), 101);
    assert_eq!(cudaSetDevice(-1), 101);
    assert_eq!((cudaGetDevice(&mut device), device), (0, 1));
}

#[test]
fn contexts_of_the_driver_are_taken_as_they_are() {
    let _turn = turn();
    let (mut device, mut at, mut own) = (-1, 0, 0);
    let mut known = PointerAttributes::default();
    assert_eq!(cudaSetDevice(1), 0);
    assert_eq!(cuCtxSetCurrent(0), 0);
    assert_eq!((cudaGetDevice(&mut device), device), (0, 1), "the one it chose");
    assert_eq!(cudaMalloc(&mut at, 64), 0);
    assert_eq!(cudaPointerGetAttributes(&mut known, at), 0);
    assert_eq!(known.device, 1);
    assert_eq!(cudaFree(at), 0);
    assert_eq!(cuCtxCreate_v2(&mut own, 0, 0), 0);
    assert_eq!((cudaGetDevice(&mut device), device), (0, 0), "that of the current context");
    assert_eq!(cudaMalloc(&mut at, 64), 0);
    assert_eq!(cudaPointerGetAttributes(&mut known, at), 0);
    assert_eq!(known.device, 0);
    assert_eq!(cudaFree(at), 0);
    assert_eq!(cuCtxDestroy_v2(own), 0);
    assert_eq!(cudaSetDevice(0), 0);
}

#[test]
fn a_device_is_described_in_the_layout_of_cuda_12() {
    let _turn = turn();
    let mut bytes = [0xEEu8; 1040];
    assert_eq!(cudaGetDeviceProperties_v2(bytes.as_mut_ptr(), 0), 0);
    assert_eq!(&bytes[1032..], [0xEE; 8], "nothing beyond the structure");
    let name = CStr::from_bytes_until_nul(&bytes).expect("ends").to_str().expect("text");
    assert!(name.contains("simulated"), "{name}");
    let total = u64::from_ne_bytes(bytes[288..296].try_into().expect("eight bytes"));
    assert_eq!(total, DEVICE_BYTES as u64);
    assert_eq!((number(&bytes, 360), number(&bytes, 364)), (9, 0));
    assert_eq!(number(&bytes, 308), 32, "a warp");
    for (attribute, at) in [(16, 388), (33, 584), (38, 616), (97, 696)] {
        let mut value = 0;
        assert_eq!(cudaDeviceGetAttribute(&mut value, attribute, 0), 0);
        assert_eq!(number(&bytes, at), value, "attribute {attribute}");
    }
    assert_eq!(cudaGetDeviceProperties_v2(bytes.as_mut_ptr(), 2), 101);
    assert_eq!(cudaGetDeviceProperties(bytes.as_mut_ptr(), 0), 801, "the form of CUDA 11");
    let mut version = 0;
    assert_eq!((cudaRuntimeGetVersion(&mut version), version), (0, 12_090));
    assert_eq!((cudaDriverGetVersion(&mut version), version), (0, 12_080));
}

#[test]
fn a_bus_address_names_its_device() {
    let _turn = turn();
    let mut id = [0; 32];
    assert_eq!(cudaDeviceGetPCIBusId(id.as_mut_ptr(), 32, 1), 0);
    let mut device = -1;
    assert_eq!((cudaDeviceGetByPCIBusId(&mut device, id.as_ptr()), device), (0, 1));
}

#[test]
fn peers_are_opened_once() {
    let _turn = turn();
    let mut can = -1;
    assert_eq!((cudaDeviceCanAccessPeer(&mut can, 0, 1), can), (0, 1));
    assert_eq!((cudaDeviceCanAccessPeer(&mut can, 0, 0), can), (0, 0));
    assert_eq!(cudaDeviceCanAccessPeer(&mut can, 0, 2), 101);
    assert_eq!(cudaDeviceEnablePeerAccess(1, 0), 0);
    assert_eq!(cudaDeviceEnablePeerAccess(1, 0), 704);
    assert_eq!(cudaDeviceDisablePeerAccess(1), 0);
    assert_eq!(cudaDeviceDisablePeerAccess(1), 705);
    assert_eq!(cudaDeviceEnablePeerAccess(0, 0), 101, "its own memory");
    assert_eq!(cudaDeviceDisablePeerAccess(0), 705);
}

#[test]
fn a_limit_is_kept() {
    let _turn = turn();
    let mut value = 0;
    assert_eq!(cudaDeviceSetLimit(0, 4096), 0);
    assert_eq!((cudaDeviceGetLimit(&mut value, 0), value), (0, 4096));
    let (mut least, mut greatest) = (1, 1);
    assert_eq!(cudaDeviceGetStreamPriorityRange(&mut least, &mut greatest), 0);
    assert!(least == 0 && greatest < 0, "{least} {greatest}");
    assert_eq!(cudaInitDevice(1, 0, 0), 0);
    assert_eq!(cudaInitDevice(2, 0, 0), 101);
}

#[test]
fn driver_functions_are_found_by_version_and_stream() {
    let _turn = turn();
    let of_driver = |name| symbol(driver(), name);
    let (mut at, mut said) = (std::ptr::null_mut(), 9);
    let name = c"cuMemAlloc".as_ptr();
    assert_eq!(cudaGetDriverEntryPoint(name, &mut at, 0, &mut said), 0);
    assert_eq!((at, said), (of_driver("cuMemAlloc_v2"), 0));
    let name = c"cuMemAllocAsync".as_ptr();
    assert_eq!(cudaGetDriverEntryPoint(name, &mut at, 0, &mut said), 0);
    assert_eq!(at, of_driver("cuMemAllocAsync"));
    assert_eq!(cudaGetDriverEntryPoint(name, &mut at, 2, &mut said), 0);
    assert_eq!(at, of_driver("cuMemAllocAsync_ptsz"));
    assert_eq!(cudaGetDriverEntryPoint_ptsz(name, &mut at, 0, &mut said), 0);
    assert_eq!(at, of_driver("cuMemAllocAsync_ptsz"));
    assert_eq!(cudaGetDriverEntryPoint_ptsz(name, &mut at, 1, &mut said), 0);
    assert_eq!(at, of_driver("cuMemAllocAsync"));
    let find = |name: &CStr, version, at: &mut _, said: &mut _| {
        cudaGetDriverEntryPointByVersion(name.as_ptr(), at, version, 0, said)
    };
    assert_eq!(find(c"cuStreamGetCaptureInfo", 11_030, &mut at, &mut said), 0);
    assert_eq!(at, of_driver("cuStreamGetCaptureInfo_v2"));
    assert_eq!(find(c"cuMemAllocAsync", 11_000, &mut at, &mut said), 0);
    assert_eq!((at.is_null(), said), (true, 2), "its version is newer");
    assert_eq!(find(c"cuNoSuchFunction", 12_000, &mut at, &mut said), 0);
    assert_eq!((at.is_null(), said), (true, 1));
    assert_eq!(find(c"cuMemAlloc", 99_000, &mut at, &mut said), 1);
}
