//! Plain, pitched, managed and host memory, and what is known of pointers, row by row.

mod common;
mod vm;

use common::{Sim, row};
use std::ptr::null_mut;
use vm::*;

const H: &str = "cuda.h 12.9";

fn alloc(size: usize) -> u64 {
    let mut at = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, size)), 0);
    at
}

fn free(at: u64) -> u32 {
    cu!(cuMemFree_v2(at))
}

#[test]
fn plain_memory() {
    let mut sim = Sim::start("memory = 64MiB");
    let mut at = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 100)), 201);
    row("cuMemAlloc: without a context 201", H);
    sim.primary(0);
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 0)), 1);
    assert_eq!(cu!(cuMemAlloc_v2(null_mut(), 100)), 1);
    row("cuMemAlloc: 0 bytes, or no place for the answer, is 1", H);
    let all = free_bytes();
    let a = alloc(100);
    let b = alloc(1000);
    assert_eq!((a % 512, b % 512), (0, 0));
    assert_eq!(free_bytes(), all - G);
    let c = alloc(3 * G + 1);
    assert_eq!(free_bytes(), all - 5 * G);
    row("cuMemAlloc: small ones share 2 MiB, others have whole granules", "assumption");
    for (at, len) in [(a, 100), (b, 1000), (c, 3 * G + 1)] {
        assert!(holds(at, len, 0xA5));
        fill(at, len, 0x33);
    }
    assert_eq!((free(a), free(b), free(c)), (0, 0, 0));
    assert_eq!(free_bytes(), all);
    assert_eq!(peek(c), None);
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut at, 64 << 20)), 0);
    let mut more = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut more, 1)), 2);
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut more, usize::MAX)), 2);
    row("cuMemAlloc: a full device is 2", H);
    assert_eq!(free(at), 0);
    let reused = alloc(100);
    assert!(holds(reused, 100, 0xA5));
    row("memory that comes back is poisoned again", "contents are undefined in cuda.h");
    assert_eq!(free(reused), 0);

    assert_eq!(free(0), 0);
    for (at, kind) in
        [(c, "double free"), (reused, "double free"), (0x1234_5678, "free of a foreign pointer")]
    {
        assert_eq!(free(at), 1);
        sim.expect_misuse(kind);
    }
    let d = alloc(5000);
    assert_eq!(free(d + 512), 1);
    sim.expect_misuse("free of an interior pointer");
    assert_eq!(free(d), 0);
    row("cuMemFree: freed, foreign or interior pointers are 1", H);
    row("cuMemFree: a null pointer frees nothing: 0", "I: lupinemachines/lupine#858");
    assert_eq!(sim.live("allocations") + sim.live("device_bytes"), 0);
}

#[test]
fn small_blocks_are_reused_and_joined() {
    let sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let all = free_bytes();
    let mut blocks: Vec<u64> = (0..4096).map(|_| alloc(512)).collect();
    assert_eq!(free_bytes(), all - G);
    let mut seen = blocks.clone();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 4096);
    for at in blocks.drain(1..4095) {
        assert_eq!(free(at), 0);
    }
    let big = alloc(G / 2);
    assert_eq!(free_bytes(), all - G);
    assert_eq!(free(big), 0);
    for at in blocks {
        assert_eq!(free(at), 0);
    }
    assert_eq!(free_bytes(), all);
}

#[test]
fn pitched_memory() {
    let sim = Sim::start("");
    sim.primary(0);
    let (mut at, mut pitch) = (0, 0);
    let ask = |at: &mut u64, pitch: &mut usize, width, height, element| {
        cu!(cuMemAllocPitch_v2(&raw mut *at, &raw mut *pitch, width, height, element))
    };
    assert_eq!(ask(&mut at, &mut pitch, 1000, 10, 4), 0);
    assert!(pitch >= 1000 && pitch % 512 == 0);
    let (mut base, mut size) = (0, 0);
    assert_eq!(cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at + 77)), 0);
    assert_eq!((base, size), (at, pitch * 10));
    assert_eq!(free(at), 0);
    for (width, height, element) in [(0, 10, 4), (10, 0, 4), (10, 10, 3), (10, 10, 32)] {
        assert_eq!(ask(&mut at, &mut pitch, width, height, element), 1);
    }
    assert_eq!(ask(&mut at, &mut pitch, usize::MAX / 2, 16, 4), 2);
    row("cuMemAllocPitch: elements of 4, 8 or 16 bytes; rows at multiples of 512", H);
}

#[test]
fn plain_memory_ends_with_its_context() {
    let mut sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let all = free_bytes();
    let mut context = 0;
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0, 0)), 0);
    let (a, _b) = (alloc(100), alloc(3 * G));
    let mut pinned = null_mut();
    assert_eq!(cu!(cuMemHostAlloc(&raw mut pinned, 100, 0)), 0);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
    for _ in 0..3 {
        sim.expect_misuse("leak at context destroy");
    }
    assert_eq!(free_bytes(), all);
    assert_eq!(peek(a), None);
    assert_eq!(sim.live("allocations") + sim.live("host_allocations"), 0);
    row("cuCtxDestroy: plain and host memory of the context ends, told as a leak", H);
}

#[test]
fn host_memory() {
    let mut sim = Sim::start("");
    sim.primary(0);
    let mut p = null_mut();
    assert_eq!(cu!(cuMemAllocHost_v2(&raw mut p, 0)), 1);
    assert_eq!(cu!(cuMemHostAlloc(&raw mut p, 100, 8)), 1);
    assert_eq!(cu!(cuMemHostAlloc(null_mut(), 100, 0)), 1);
    row("cuMemHostAlloc: 0 bytes, unknown flags or no place for the answer are 1", H);
    assert_eq!(cu!(cuMemHostAlloc(&raw mut p, 10_000, 1 | 4)), 0);
    let at = p as u64;
    assert!(holds(at, 10_000, 0xA5));
    fill(at, 10_000, 1);
    let mut device = 0;
    assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&raw mut device, p, 0)), 0);
    assert_eq!(device, at);
    assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&raw mut device, p, 1)), 1);
    assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&raw mut device, 0x10 as *mut _, 0)), 1);
    row("cuMemHostGetDevicePointer: the same address; flags or a foreign pointer are 1", H);
    let mut flags = 0;
    assert_eq!(cu!(cuMemHostGetFlags(&raw mut flags, p)), 0);
    assert_eq!(flags, 1 | 4 | 2);
    assert_eq!(cu!(cuMemHostGetFlags(&raw mut flags, 0x10 as *mut _)), 1);
    row("cuMemHostGetFlags: as allocated, and mapped", "assumption");
    assert_eq!(free(at), 1);
    sim.expect_misuse("free of a foreign pointer");
    assert_eq!(cu!(cuMemFreeHost(p)), 0);
    assert_eq!(peek(at), None);
    assert_eq!(cu!(cuMemFreeHost(null_mut())), 0);
    assert_eq!(cu!(cuMemHostUnregister(null_mut())), 1);
    assert_eq!(cu!(cuMemFreeHost(p)), 1);
    sim.expect_misuse("double free");
    row("cuMemFreeHost: freed is 1; cuMemFree of host memory is 1", H);
    row("cuMemFreeHost: null is 0; cuMemHostUnregister: null is 1", "I: lupinemachines/lupine#858");
    assert_eq!(sim.live("host_allocations"), 0);
}

#[test]
fn managed_memory() {
    let mut sim = Sim::start("cpu_access = 0");
    sim.primary(0);
    let mut at = 0;
    for flags in [0, 3, 4] {
        assert_eq!(cu!(cuMemAllocManaged(&raw mut at, 100, flags)), 1);
    }
    assert_eq!(cu!(cuMemAllocManaged(&raw mut at, 3 * G, 1)), 0);
    assert!(holds(at, 3 * G, 0xA5));
    fill(at, 3 * G, 2);
    let mut kind = [9u8; 8];
    assert_eq!(cu!(cuPointerGetAttribute(kind.as_mut_ptr().cast(), 2, at)), 0);
    assert_eq!(kind, [2, 0, 0, 0, 9, 9, 9, 9]);
    row("pointer attributes: managed memory is of type device", "assumption");
    assert_eq!(cu!(cuPointerGetAttribute(kind.as_mut_ptr().cast(), 8, at)), 0);
    assert_eq!(kind, [1, 0, 0, 0, 9, 9, 9, 9]);
    row("pointer attributes: truth values are written as four bytes", "assumption");
    row("cuMemAllocManaged: one address for host and devices; flags global or host", H);
    assert_eq!(cu!(cuMemFreeHost(at as *mut _)), 1);
    sim.expect_misuse("free of the wrong kind of host memory");
    assert_eq!(free(at), 0);
    assert_eq!(free(at), 1);
    sim.expect_misuse("double free");
}

#[test]
fn registered_memory() {
    let sim = Sim::start("");
    sim.primary(0);
    let mut own = vec![7u8; 3 * 4096];
    let p = own.as_mut_ptr().cast();
    let register = |p, len, flags| cu!(cuMemHostRegister_v2(p, len, flags));
    assert_eq!(register(null_mut(), 100, 0), 1);
    assert_eq!(register(p, 0, 0), 1);
    assert_eq!(register(p, 100, 16), 1);
    assert_eq!(register(0x1000_0000_0000 as *mut _, 4096, 0), 1);
    row("cuMemHostRegister: null, 0 bytes, unknown flags, foreign memory are 1", H);
    assert_eq!(register(p, own.len(), 2), 0);
    assert_eq!(register(p, 10, 0), 712);
    row("cuMemHostRegister: registered already is 712", H);
    let mut device = 0;
    assert_eq!(cu!(cuMemHostGetDevicePointer_v2(&raw mut device, p, 0)), 0);
    assert_eq!(cu!(cuMemHostUnregister(p.wrapping_add(1))), 713);
    assert_eq!(cu!(cuMemHostUnregister(p)), 0);
    assert_eq!(cu!(cuMemHostUnregister(p)), 713);
    row("cuMemHostUnregister: not registered is 713", H);
    assert_eq!(cu!(cuMemHostRegister(p, own.len(), 0)), 0);
    assert_eq!(cu!(cuMemHostUnregister(p)), 0);
    assert_eq!(own[0], 7);
    assert_eq!(sim.live("host_allocations"), 0);
}

fn attribute<T: Default>(which: u32, at: u64) -> Result<T, u32> {
    let mut value = T::default();
    match cu!(cuPointerGetAttribute((&raw mut value).cast(), which, at)) {
        0 => Ok(value),
        code => Err(code),
    }
}

#[test]
fn attributes_of_virtual_memory() {
    let sim = Sim::start("devices = 2");
    sim.primary(0);
    let g = G as u64;
    let at = reserve(8 * G);
    for which in 1..=21 {
        let known = matches!(which, 11..=13);
        assert_eq!(attribute::<[u64; 2]>(which, at).is_ok(), known, "{which}");
    }
    assert_eq!(attribute::<u32>(13, at), Ok(0));
    assert_eq!(attribute::<u64>(11, at + 3), Ok(at));
    assert_eq!(attribute::<usize>(12, at), Ok(8 * G));
    row("pointer attributes: a reservation has a range and MAPPED = 0", H);
    let mut of = exportable(0);
    of.allocFlags.gpuDirectRDMACapable = 1;
    let handle = try_create(2 * G, &of).expect("memory");
    assert_eq!(map(at + 2 * g, 2 * G, handle), 0);
    assert_eq!(map(at + 4 * g, 2 * G, handle), 0);
    let here = at + 3 * g + 5;
    assert_eq!(attribute::<u32>(2, here), Ok(2));
    assert_eq!(attribute::<u64>(11, here), Ok(at));
    assert_eq!(attribute::<usize>(12, here), Ok(8 * G));
    row("pointer attributes: the range is the reservation", H);
    assert_eq!(attribute::<u32>(13, here), Ok(1));
    assert_eq!(attribute::<usize>(18, here), Ok(2 * G));
    assert_eq!(attribute::<u64>(19, here), Ok(at + 2 * g));
    row("pointer attributes: MAPPING_BASE_ADDR and MAPPING_SIZE are the mapping", H);
    assert_eq!(attribute::<u32>(14, here), Ok(1));
    assert_eq!(attribute::<u32>(15, here), Ok(1));
    assert_eq!(attribute::<u32>(16, here), Ok(0));
    assert_eq!(attribute::<u64>(3, here), Err(1));
    assert_eq!(access(at + 2 * g, 2 * G, 0, R), 0);
    assert_eq!(attribute::<u32>(16, here), Ok(1));
    assert_eq!(attribute::<u64>(3, here), Ok(here));
    assert_eq!(attribute::<u64>(4, here), Err(1));
    assert_eq!(attribute::<u64>(17, here), Ok(0));
    row("pointer attributes: handle types, RDMA, access flags, no pool", H);
    assert_eq!(attribute::<u32>(10, here), Ok(0));
    assert_eq!(attribute::<u32>(8, here), Ok(0));
    assert_eq!(attribute::<i32>(9, here), Ok(0));
    assert_eq!(attribute::<u64>(1, here), Ok(0));
    row("pointer attributes: virtual memory is not for legacy IPC", H);
    row("pointer attributes: virtual memory has context 0", "assumption");
    let other = at + 4 * g;
    assert_eq!(attribute::<u64>(20, here), attribute::<u64>(20, other));
    assert_ne!(attribute::<u64>(7, here), attribute::<u64>(7, other));
    row("pointer attributes: MEMORY_BLOCK_ID is the physical memory's", H);
    assert_eq!(attribute::<u64>(7, 0x1234), Err(1));
    assert_eq!(attribute::<u64>(99, here), Err(1));
    row("cuPointerGetAttribute: unknown pointer or attribute is 1", H);
    assert_eq!(release(handle), 0);
    assert_eq!(unmap(at + 2 * g, 4 * G), 0);
    assert_eq!(unreserve(at, 8 * G), 0);
}

#[test]
fn attributes_of_plain_and_host_memory() {
    let sim = Sim::start("");
    let context = sim.primary(0);
    let at = alloc(1000);
    assert_eq!(attribute::<u64>(1, at), Ok(context));
    assert_eq!(attribute::<u32>(2, at), Ok(2));
    assert_eq!(attribute::<u32>(10, at), Ok(1));
    assert_eq!(attribute::<u64>(11, at + 999), Ok(at));
    assert_eq!(attribute::<u64>(11, at + 1000), Err(1));
    assert_eq!(attribute::<usize>(12, at), Ok(1000));
    let mut on = 1u32;
    assert_eq!(attribute::<u32>(6, at), Ok(0));
    assert_eq!(cu!(cuPointerSetAttribute((&raw mut on).cast(), 6, at)), 0);
    assert_eq!(attribute::<u32>(6, at), Ok(1));
    assert_eq!(cu!(cuPointerSetAttribute((&raw mut on).cast(), 7, at)), 1);
    assert_eq!(cu!(cuPointerSetAttribute((&raw mut on).cast(), 6, 0x99)), 1);
    row("cuPointerSetAttribute: SYNC_MEMOPS alone", H);
    let first: u64 = attribute(7, at).expect("an id");
    assert_eq!(free(at), 0);
    let again = alloc(1000);
    assert_ne!(attribute::<u64>(7, again), Ok(first));
    row("pointer attributes: BUFFER_ID is never used twice", H);
    let mut p = null_mut();
    assert_eq!(cu!(cuMemAllocHost_v2(&raw mut p, 64)), 0);
    assert_eq!(attribute::<u32>(2, p as u64), Ok(1));
    assert_eq!(attribute::<u64>(4, p as u64), Ok(p as u64));
    assert_eq!(attribute::<u64>(3, p as u64), Ok(p as u64));

    let which = [2u32, 11, 8, 9];
    let (mut kind, mut start, mut managed, mut device) = (9u32, 9u64, 9u32, 9i32);
    let places = [
        (&raw mut kind).cast(),
        (&raw mut start).cast(),
        (&raw mut managed).cast(),
        (&raw mut device).cast(),
    ];
    let ask = |at| cu!(cuPointerGetAttributes(4, which.as_ptr(), places.as_ptr(), at));
    assert_eq!(ask(again + 1), 0);
    assert_eq!((kind, start, managed, device), (2, again, 0, 0));
    assert_eq!(ask(0x1234), 0);
    assert_eq!((kind, start, managed, device), (0, 0, 0, 0));
    row("cuPointerGetAttributes: an unknown pointer gives zeros and 0", H);
    assert_eq!(cu!(cuMemFreeHost(p)), 0);
    assert_eq!(free(again), 0);
}
