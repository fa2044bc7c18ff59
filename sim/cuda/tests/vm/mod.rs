//! What the memory tests share: short forms of the calls, and probes of what the CPU may touch.

#![allow(dead_code, reason = "each test program uses a part")]

use crate::cu;
use forebay_simcuda::types::*;

/// The default granularity.
pub const G: usize = 2 << 20;
/// Read access.
pub const R: u32 = CU_MEM_ACCESS_FLAGS_PROT_READ;
/// Read and write access.
pub const RW: u32 = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// A place in a device.
pub fn on(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Properties of memory in a device.
pub fn prop(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        location: on(device),
        ..Default::default()
    }
}

/// Properties of memory that may be exported as a descriptor.
pub fn exportable(device: i32) -> CUmemAllocationProp {
    let posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemAllocationProp { requestedHandleTypes: posix, ..prop(device) }
}

/// A wish for access.
pub fn desc(device: i32, flags: u32) -> CUmemAccessDesc {
    CUmemAccessDesc { location: on(device), flags }
}

/// Memory with these properties; the code if there is none.
pub fn try_create(size: usize, prop: &CUmemAllocationProp) -> Result<u64, u32> {
    let mut handle = 0;
    match cu!(cuMemCreate(&raw mut handle, size, &raw const *prop, 0)) {
        0 => Ok(handle),
        code => Err(code),
    }
}

/// Memory of device 0.
pub fn create(size: usize) -> u64 {
    try_create(size, &prop(0)).expect("cuMemCreate")
}

/// Reserved addresses; the code if there are none.
pub fn try_reserve(size: usize) -> Result<u64, u32> {
    let mut at = 0;
    match cu!(cuMemAddressReserve(&raw mut at, size, 0, 0, 0)) {
        0 => Ok(at),
        code => Err(code),
    }
}

/// Reserved addresses.
pub fn reserve(size: usize) -> u64 {
    try_reserve(size).expect("cuMemAddressReserve")
}

/// `cuMemMap` at offset 0.
pub fn map(at: u64, size: usize, handle: u64) -> u32 {
    cu!(cuMemMap(at, size, 0, handle, 0))
}

/// `cuMemSetAccess` for one device.
pub fn access(at: u64, size: usize, device: i32, flags: u32) -> u32 {
    let wish = desc(device, flags);
    cu!(cuMemSetAccess(at, size, &raw const wish, 1))
}

/// `cuMemUnmap`.
pub fn unmap(at: u64, size: usize) -> u32 {
    cu!(cuMemUnmap(at, size))
}

/// `cuMemRelease`.
pub fn release(handle: u64) -> u32 {
    cu!(cuMemRelease(handle))
}

/// `cuMemAddressFree`.
pub fn unreserve(at: u64, size: usize) -> u32 {
    cu!(cuMemAddressFree(at, size))
}

/// A reservation of `size` with one mapping of it all, open to device 0; the handle is released.
pub fn mapped(size: usize) -> u64 {
    let (at, handle) = (reserve(size), create(size));
    assert_eq!(map(at, size, handle), 0);
    assert_eq!(release(handle), 0);
    assert_eq!(access(at, size, 0, RW), 0);
    at
}

/// Ends what [`mapped`] made.
pub fn unmapped(at: u64, size: usize) {
    assert_eq!(unmap(at, size), 0);
    assert_eq!(unreserve(at, size), 0);
}

/// Free bytes of the current device.
pub fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total)), 0);
    free
}

/// Device 0's rights at an address, as `cuMemGetAccess` says; the code if it refuses.
pub fn rights(at: u64) -> Result<u64, u32> {
    let (mut flags, location) = (0, on(0));
    match cu!(cuMemGetAccess(&raw mut flags, &raw const location, at)) {
        0 => Ok(flags),
        code => Err(code),
    }
}

/// Reads a byte as the CPU, if it may: the kernel is asked, so nothing faults.
pub fn peek(at: u64) -> Option<u8> {
    let mut byte = 0u8;
    let mine = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: at as *mut _, iov_len: 1 };
    // SAFETY: the kernel checks both ranges and writes into `byte` alone.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &mine, 1, &there, 1, 0) };
    (got == 1).then_some(byte)
}

/// Writes a byte as the CPU; false if it may not.
pub fn poke(at: u64, mut byte: u8) -> bool {
    let mine = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: at as *mut _, iov_len: 1 };
    // SAFETY: the kernel checks both ranges; tests write to simulated device memory alone.
    unsafe { libc::process_vm_writev(libc::getpid(), &mine, 1, &there, 1, 0) == 1 }
}

/// Fills a range with a byte.
pub fn fill(at: u64, len: usize, byte: u8) {
    assert!(poke(at, byte) && poke(at + len as u64 - 1, byte), "the range may not be written");
    // SAFETY: mapped and writable from its first to its last byte, as just seen.
    unsafe { std::ptr::write_bytes(at as *mut u8, byte, len) };
}

/// Whether a range holds nothing but a byte.
pub fn holds(at: u64, len: usize, byte: u8) -> bool {
    assert!(peek(at).is_some() && peek(at + len as u64 - 1).is_some(), "it may not be read");
    // SAFETY: mapped and readable, as just seen; nothing writes it meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
    bytes.iter().all(|b| *b == byte)
}
