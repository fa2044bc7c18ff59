//! Virtual memory, row by row: what each call accepts, refuses, and leaves.

mod common;
mod vm;

use common::{Sim, row};
use forebay_simcuda::types::*;
use std::ptr::{null, null_mut};
use vm::*;

const H: &str = "cuda.h 12.9, section CUDA_VA";
const T: &str = "ROCm hip-tests, virtualMemoryManagement";

#[test]
fn granularity() {
    let mut sim = Sim::start("devices = 2");
    let ask = |prop: &CUmemAllocationProp, option| {
        let mut size = 0;
        let code = cu!(cuMemGetAllocationGranularity(&raw mut size, &raw const *prop, option));
        (code, size)
    };
    assert_eq!(ask(&prop(0), 0), (0, G));
    assert_eq!(ask(&prop(1), 1), (0, G));
    row("cuMemGetAllocationGranularity: minimum and recommended are 2 MiB", "PyTorch, vAttention");
    assert_eq!(ask(&prop(0), 2).0, 1);
    let to: *mut usize = null_mut();
    assert_eq!(cu!(cuMemGetAllocationGranularity(to, &prop(0), 0)), 1);
    row("cuMemGetAllocationGranularity: bad option or no place for the answer is 1", T);
    assert_eq!(ask(&prop(-1), 0), (0, G));
    assert_eq!(ask(&prop(77), 0), (0, G));
    assert_eq!(ask(&CUmemAllocationProp { type_: 9, ..prop(0) }, 0), (0, G));
    let nowhere = CUmemLocation { type_: 99, id: 0 };
    assert_eq!(ask(&CUmemAllocationProp { location: nowhere, ..prop(0) }, 0), (0, G));
    row("cuMemGetAllocationGranularity: bad device, type and location succeed", T);
    let mut size = 0;
    let none: *const CUmemAllocationProp = null();
    assert_eq!(cu!(cuMemGetAllocationGranularity(&raw mut size, none, 0)), 1);
    sim.expect_misuse("null properties");
    row("cuMemGetAllocationGranularity: null properties crash; here 1 and misuse", T);
}

#[test]
fn another_granularity_is_a_setting() {
    let _sim = Sim::start("granularity = 64KiB");
    let mut size = 0;
    assert_eq!(cu!(cuMemGetAllocationGranularity(&raw mut size, &prop(0), 0)), 0);
    assert_eq!(size, 64 << 10);
    let handle = create(64 << 10);
    assert_eq!(try_create(32 << 10, &prop(0)), Err(1));
    assert_eq!(release(handle), 0);
}

#[test]
fn address_reserve() {
    let sim = Sim::start("");
    let ask = |size: usize, align: usize, hint: u64, flags: u64| {
        let mut at = 0;
        let code = cu!(cuMemAddressReserve(&raw mut at, size, align, hint, flags));
        (code, at)
    };
    for (size, align) in [(4096, 0), (G, 0), (G, 2), (G, 4096), (3 * G, 64 << 20)] {
        let (code, at) = ask(size, align, 0, 0);
        assert_eq!(code, 0, "{size} {align}");
        assert_eq!(at % align.max(G) as u64, 0);
        assert_eq!(unreserve(at, size), 0);
    }
    row("cuMemAddressReserve: host pages, alignment 0 or a power of two from 2 on", T);
    assert_eq!(ask(0, 0, 0, 0).0, 2);
    assert_eq!(ask(G + 1, 0, 0, 0).0, 2);
    assert_eq!(ask(G - 1, 0, 0, 0).0, 2);
    assert_eq!(ask(G, 3, 0, 0).0, 2);
    row("cuMemAddressReserve: size 0, no host pages, or alignment 3 is 2", T);
    assert_eq!(ask(G, 0, 0, 1).0, 1);
    assert_eq!(ask(G, 0, 4097, 0).0, 1);
    let to: *mut u64 = null_mut();
    assert_eq!(cu!(cuMemAddressReserve(to, G, 0, 0, 0)), 1);
    row("cuMemAddressReserve: flags, a hint off a host page, no place for the answer are 1", H);

    let hint = 0x1f0_0000_0000u64;
    let (code, at) = ask(4 * G, 0, hint, 0);
    assert_eq!((code, at), (0, hint));
    let (code, other) = ask(4 * G, 0, hint + G as u64, 0);
    assert_eq!(code, 0);
    assert!(other + 4 * G as u64 <= hint || other >= hint + 4 * G as u64);
    row("cuMemAddressReserve: a free hint is taken, another one ignored", H);
    assert_eq!(unreserve(at, 4 * G), 0);
    assert_eq!(unreserve(other, 4 * G), 0);
    assert_eq!(sim.live("reservations"), 0);
    assert_eq!(sim.live("reserved_bytes"), 0);
}

#[test]
fn reservations_of_terabytes_cost_no_memory() {
    let sim = Sim::start("");
    let size = 2 << 40;
    let all: Vec<u64> = (0..8).map(|_| reserve(size)).collect();
    assert_eq!(sim.live("reserved_bytes"), 16 << 40);
    for at in all {
        assert_eq!(peek(at), None);
        assert_eq!(unreserve(at, size), 0);
    }
}

#[test]
fn address_free() {
    let mut sim = Sim::start("");
    let at = reserve(2 * G);
    assert_eq!(unreserve(0, 2 * G), 1);
    assert_eq!(unreserve(at, 0), 1);
    assert_eq!(unreserve(at, G), 1);
    assert_eq!(unreserve(at, 3 * G), 1);
    assert_eq!(unreserve(at + G as u64, G), 1);
    row("cuMemAddressFree: null, size 0, a part, or another start is 1", "cuda.h; hip-tests");
    let handle = create(G);
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(unreserve(at, 2 * G), 1);
    row("cuMemAddressFree: still mapped is 1", "assumption: no source names the code");
    assert_eq!(unmap(at, G), 0);
    assert_eq!(unreserve(at, 2 * G), 0);
    assert_eq!(unreserve(at, 2 * G), 1);
    sim.expect_misuse("use of a freed reservation");
    assert_eq!(map(at, G, handle), 1);
    sim.expect_misuse("use of a freed reservation");
    assert_eq!(release(handle), 0);
}

#[test]
fn create_checks_its_arguments() {
    let sim = Sim::start("devices = 2");
    for (size, of, what) in [
        (0, prop(0), "size 0"),
        (G + 1, prop(0), "unaligned"),
        (G / 2, prop(0), "half a granule"),
        (G, prop(-1), "device -1"),
        (G, prop(2), "device too big"),
        (G, CUmemAllocationProp { type_: 0, ..prop(0) }, "type 0"),
        (G, CUmemAllocationProp { type_: 2, ..prop(0) }, "type 2"),
        (G, CUmemAllocationProp { requestedHandleTypes: 16, ..prop(0) }, "handle type 16"),
        (G, CUmemAllocationProp { win32HandleMetaData: 1, ..prop(0) }, "metadata"),
    ] {
        assert_eq!(try_create(size, &of), Err(1), "{what}");
    }
    let mut handle = 0;
    assert_eq!(cu!(cuMemCreate(null_mut(), G, &prop(0), 0)), 1);
    assert_eq!(cu!(cuMemCreate(&raw mut handle, G, null(), 0)), 1);
    assert_eq!(cu!(cuMemCreate(&raw mut handle, G, &prop(0), 1)), 1);
    row("cuMemCreate: nulls, flags, size 0 or unaligned, bad type, device -1 or too big are 1", T);
    for type_ in [0, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 9] {
        let location = CUmemLocation { type_, id: 0 };
        assert_eq!(try_create(G, &CUmemAllocationProp { location, ..prop(0) }), Err(1), "{type_}");
    }
    row("cuMemCreate: HOST (before CUDA 13), HOST_NUMA_CURRENT and unknown locations are 1", H);
    let fabric = CU_MEM_HANDLE_TYPE_FABRIC;
    let of = CUmemAllocationProp { requestedHandleTypes: fabric, ..prop(0) };
    assert_eq!(try_create(G, &of), Err(800));
    row("cuMemCreate: fabric without an IMEX channel is 800", "mscclpp#467");
    for windows in [2, 4] {
        let of = CUmemAllocationProp { requestedHandleTypes: windows, ..prop(0) };
        assert_eq!(try_create(G, &of), Err(801));
    }
    row("cuMemCreate: Windows handle types are 801", "assumption: cuda.h lists the code");
    assert_eq!(sim.live("handles"), 0);
}

#[test]
fn create_in_host_memory() {
    let sim = Sim::start("");
    let node = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 0 };
    let of = CUmemAllocationProp { location: node, ..prop(0) };
    let handle = try_create(G, &of).expect("host memory");
    let at = reserve(G);
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(peek(at), None);
    let wish = CUmemAccessDesc { location: node, flags: RW };
    assert_eq!(cu!(cuMemSetAccess(at, G, &raw const wish, 1)), 0);
    assert_eq!(rights(at), Ok(0));
    assert_eq!(peek(at), Some(0xA5));
    assert_eq!(access(at, G, 0, RW), 0);
    assert_eq!(rights(at), Ok(3));
    row("HOST_NUMA memory takes an access call for the device and one for the host", "NCCL");
    assert_eq!(release(handle), 0);
    unmapped(at, G);

    let at = reserve(G);
    let handle = create(G);
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(cu!(cuMemSetAccess(at, G, &raw const wish, 1)), 1);
    row("cuMemSetAccess: host access to a device's memory is 1", H);
    assert_eq!(release(handle), 0);
    unmapped(at, G);
    drop(sim);

    let _sim = Sim::start("refuse = host_numa=800");
    assert_eq!(try_create(G, &of), Err(800));
    row("cuMemCreate: HOST_NUMA refused, as in containers", "mscclpp#467, nccl#2190");
    drop(_sim);
    let _sim = Sim::start("version = 13000");
    let host = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_HOST, id: 0 };
    let of = CUmemAllocationProp { location: host, ..prop(0) };
    let handle = try_create(G, &of).expect("HOST");
    assert_eq!(release(handle), 0);
    let of = CUmemAllocationProp { requestedHandleTypes: 1, ..of };
    assert_eq!(try_create(G, &of), Err(1));
    row("cuMemCreate: HOST from CUDA 13 on, not exportable", "cuda.h 13.5");
}

#[test]
fn release_counts_handles_mappings_and_memory() {
    let mut sim = Sim::start("memory = 64MiB");
    sim.primary(0);
    let all = free_bytes();
    let handle = create(2 * G);
    assert_eq!(free_bytes(), all - 2 * G);
    let at = reserve(2 * G);
    assert_eq!(map(at, 2 * G, handle), 0);
    assert_eq!(release(handle), 0);
    assert_eq!(free_bytes(), all - 2 * G);
    assert_eq!(access(at, 2 * G, 0, RW), 0);
    fill(at, 2 * G, 7);
    assert!(holds(at, 2 * G, 7));
    row("cuMemRelease: right after the map is normal; the mapping keeps the memory", T);
    assert_eq!(unmap(at, 2 * G), 0);
    assert_eq!(free_bytes(), all);
    row("memory is free once all handles are released and all mappings gone", H);
    assert_eq!(release(0), 1);
    row("cuMemRelease: handle 0 is 1", T);
    assert_eq!(release(handle), 1);
    sim.expect_misuse("use of a released handle");
    assert_eq!(release(0xDEAD), 1);
    sim.expect_misuse("use of an unknown handle");
    row("cuMemRelease: an invalid handle is undefined; here 1 and misuse", H);
    assert_eq!(unreserve(at, 2 * G), 0);
    assert_eq!(sim.live("handles") + sim.live("physical") + sim.live("device_bytes"), 0);
}

#[test]
fn map_checks_its_arguments() {
    let mut sim = Sim::start("");
    let (at, handle) = (reserve(4 * G), create(2 * G));
    let g = G as u64;
    assert_eq!(map(0, G, handle), 1);
    assert_eq!(map(at, 0, handle), 1);
    assert_eq!(map(at, G + 1, handle), 1);
    assert_eq!(map(at + 4096, G, handle), 1);
    assert_eq!(cu!(cuMemMap(at, G, 0, handle, 1)), 1);
    assert_eq!(map(at, G, 0), 1);
    row("cuMemMap: null, size 0, unaligned, flags, handle 0 are 1", "cuda.h; hip-tests");
    assert_eq!(cu!(cuMemMap(at, G, G, handle, 0)), 1);
    row("cuMemMap: offset must be 0", H);
    assert_eq!(map(at, 3 * G, handle), 1);
    row("cuMemMap: longer than the memory is 1", H);
    assert_eq!(map(at + 3 * g, 2 * G, handle), 1);
    assert_eq!(map(at + 64 * g, G, handle), 1);
    row("cuMemMap: not reserved, or past the reservation, is 1", H);
    assert_eq!(map(at + g, 2 * G, handle), 0);
    for (start, size) in [(at + g, G), (at, 2 * G), (at + 2 * g, 2 * G), (at + g, 2 * G)] {
        assert_eq!(map(start, size, handle), 1);
    }
    row("cuMemMap: a part that is mapped already is 1", H);
    assert_eq!(map(at, G, 0xBAD0), 1);
    sim.expect_misuse("use of an unknown handle");
    assert_eq!(unmap(at + g, 2 * G), 0);
    assert_eq!(release(handle), 0);
    assert_eq!(unreserve(at, 4 * G), 0);
}

#[test]
fn maps_of_prefixes_and_aliases() {
    let sim = Sim::start("devices = 2");
    let g = G as u64;
    let (at, handle) = (reserve(8 * G), create(2 * G));
    assert_eq!(map(at, G, handle), 0);
    row(
        "cuMemMap: a prefix of the memory may be mapped",
        "cuda.h; hip-tests MapPartialPhysicalMem",
    );
    assert_eq!(map(at + 4 * g, 2 * G, handle), 0);
    assert_eq!(access(at, G, 0, RW), 0);
    assert_eq!(access(at + 4 * g, 2 * G, 0, RW), 0);
    fill(at, G, 0x11);
    assert!(holds(at + 4 * g, G, 0x11));
    assert!(holds(at + 5 * g, G, 0xA5));
    fill(at + 4 * g, 2 * G, 0x22);
    assert!(holds(at, G, 0x22));
    assert_eq!(sim.live("aliased_handles"), 1);
    row("cuMemMap: one handle at several addresses, coherent here", "hip-tests Map2MultVMMs");
    assert_eq!(unmap(at, G), 0);
    assert!(holds(at + 4 * g, 2 * G, 0x22));
    assert_eq!(sim.live("aliased_handles"), 0);
    let other = try_create(G, &prop(1)).expect("device 1");
    assert_eq!(map(at + 2 * g, G, other), 0);
    assert_eq!(access(at + 2 * g, G, 1, RW), 0);
    assert_eq!(rights(at + 2 * g), Ok(0));
    row("one reservation holds mappings of several devices, with gaps", "hip-tests MapPhysChks");
    assert_eq!(unmap(at + 2 * g, G), 0);
    assert_eq!(unmap(at + 4 * g, 2 * G), 0);
    for handle in [handle, other] {
        assert_eq!(release(handle), 0);
    }
    assert_eq!(unreserve(at, 8 * G), 0);
    assert_eq!(sim.live("physical"), 0);
}

#[test]
fn a_mapping_starts_without_access() {
    let _sim = Sim::start("");
    let (at, handle) = (reserve(G), create(G));
    assert_eq!(rights(at), Err(1));
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(rights(at), Ok(0));
    assert_eq!(peek(at), None);
    assert!(!poke(at, 1));
    row("after the map and before access nothing may be touched", H);
    assert_eq!(access(at, G, 0, R), 0);
    assert_eq!(peek(at), Some(0xA5));
    assert!(!poke(at, 1));
    assert_eq!(access(at, G, 0, RW), 0);
    assert!(poke(at, 1));
    assert_eq!(access(at, G, 0, 0), 0);
    assert_eq!((peek(at), rights(at)), (None, Ok(0)));
    assert_eq!(access(at, G, 0, RW), 0);
    assert_eq!(peek(at), Some(1));
    row("cuMemSetAccess: flags 0, 1, 3, and later calls change them", "cuda.h; hip-tests");
    assert!(holds(at + 1, G - 1, 0xA5));
    row("fresh memory is poisoned with 0xA5", "contents are undefined in cuda.h");
    assert_eq!(unmap(at, G), 0);
    assert_eq!(peek(at), None);
    assert_eq!(map(at, G, handle), 0);
    assert_eq!((peek(at), rights(at)), (None, Ok(0)));
    row("cuMemUnmap: afterwards a reservation; access must be granted anew", H);
    assert_eq!(access(at, G, 0, RW), 0);
    assert_eq!(peek(at), Some(1));
    assert_eq!(release(handle), 0);
    unmapped(at, G);
}

#[test]
fn set_access_checks_its_arguments() {
    let mut sim = Sim::start("devices = 2");
    let (at, handle) = (reserve(4 * G), create(2 * G));
    let g = G as u64;
    assert_eq!(map(at, 2 * G, handle), 0);
    let wish = desc(0, RW);
    assert_eq!(access(0, 2 * G, 0, RW), 1);
    assert_eq!(access(at, 0, 0, RW), 1);
    assert_eq!(cu!(cuMemSetAccess(at, 2 * G, null(), 1)), 1);
    assert_eq!(cu!(cuMemSetAccess(at, 2 * G, &raw const wish, 0)), 1);
    row("cuMemSetAccess: null pointer or descriptions, size 0, count 0 are 1", T);
    assert_eq!(access(at, 2 * G + 1, 0, RW), 1);
    assert_eq!(access(at, 2 * G - 1, 0, RW), 1);
    assert_eq!(access(at, G, 0, RW), 1);
    assert_eq!(access(at + g, G, 0, RW), 1);
    row("cuMemSetAccess: size +-1, or a part of a mapping, is 1", H);
    assert_eq!(access(at, 2 * G, 2, RW), 1);
    assert_eq!(access(at, 2 * G, -1, RW), 1);
    for flags in [2, 4, 7] {
        assert_eq!(access(at, 2 * G, 0, flags), 1);
    }
    for type_ in [0, CU_MEM_LOCATION_TYPE_HOST, 9] {
        let bad = CUmemAccessDesc { location: CUmemLocation { type_, id: 0 }, flags: RW };
        assert_eq!(cu!(cuMemSetAccess(at, 2 * G, &raw const bad, 1)), 1);
    }
    row("cuMemSetAccess: bad location type, device or flag is 1", T);
    assert_eq!(access(at + 2 * g, G, 0, RW), 1);
    assert_eq!(access(at, 3 * G, 0, RW), 1);
    row("cuMemSetAccess: a part that is not mapped is 1", H);
    assert_eq!(rights(at), Ok(0));
    let wishes = [desc(0, R), desc(1, RW)];
    assert_eq!(cu!(cuMemSetAccess(at, 2 * G, wishes.as_ptr(), 2)), 0);
    assert_eq!(rights(at), Ok(1));
    let mut flags = 0;
    assert_eq!(cu!(cuMemGetAccess(&raw mut flags, &on(1), at + g)), 0);
    assert_eq!(flags, 3);
    assert_eq!(access(at, 2 * G, 1, 0), 0);
    assert_eq!(rights(at), Ok(1));
    row("cuMemSetAccess: several locations at once; others keep theirs", T);
    assert_eq!(unmap(at, 2 * G), 0);
    assert_eq!(access(at, 2 * G, 0, RW), 1);
    sim.expect_misuse("use after unmap");
    assert_eq!(release(handle), 0);
    assert_eq!(unreserve(at, 4 * G), 0);
}

#[test]
fn set_access_spans_mappings() {
    let _sim = Sim::start("");
    let g = G as u64;
    let at = reserve(8 * G);
    for i in 0..8 {
        let handle = create(G);
        assert_eq!(map(at + i * g, G, handle), 0);
        assert_eq!(release(handle), 0);
    }
    assert_eq!(access(at, 8 * G, 0, RW), 0);
    fill(at, 8 * G, 9);
    assert!(holds(at, 8 * G, 9));
    row("cuMemSetAccess: one call spans several mappings", "PyTorch expandable segments");
    assert_eq!(access(at + 2 * g, 3 * G, 0, R), 0);
    assert_eq!((rights(at + g), rights(at + 2 * g), rights(at + 5 * g)), (Ok(3), Ok(1), Ok(3)));
    assert!(!poke(at + 4 * g, 1) && poke(at + 5 * g, 9));
    assert_eq!(access(at, 8 * G, 0, RW), 0);
    assert!(poke(at + 4 * g, 9));
    unmapped(at, 8 * G);
}

#[test]
fn ranges_do_not_span_reservations() {
    let _sim = Sim::start("");
    let g = G as u64;
    let hint = 0x2f0_0000_0000u64;
    let mut ats = [0u64; 2];
    for (i, at) in ats.iter_mut().enumerate() {
        let hint = hint + i as u64 * g;
        assert_eq!(cu!(cuMemAddressReserve(&raw mut *at, G, 0, hint, 0)), 0);
        assert_eq!(*at, hint);
        let handle = create(G);
        assert_eq!(map(*at, G, handle), 0);
        assert_eq!(release(handle), 0);
    }
    assert_eq!(access(ats[0], 2 * G, 0, RW), 1);
    assert_eq!(unmap(ats[0], 2 * G), 1);
    row("access and unmap over two adjacent reservations are 1", "assumption: the strict reading");
    for at in ats {
        assert_eq!(access(at, G, 0, RW), 0);
        unmapped(at, G);
    }
}

#[test]
fn unmap_takes_whole_mappings() {
    let mut sim = Sim::start("");
    let g = G as u64;
    let at = reserve(8 * G);
    let handle = create(2 * G);
    for i in 0..3 {
        assert_eq!(map(at + 2 * i * g, 2 * G, handle), 0);
    }
    assert_eq!(release(handle), 0);
    assert_eq!(unmap(0, 2 * G), 1);
    assert_eq!(unmap(at, 0), 1);
    assert_eq!(unmap(at, G), 1);
    assert_eq!(unmap(at + g, G), 1);
    assert_eq!(unmap(at + g, 2 * G), 1);
    assert_eq!(unmap(at, 3 * G), 1);
    row("cuMemUnmap: null, size 0, a part of a mapping are 1", "cuda.h; hip-tests");
    assert_eq!(unmap(at, 8 * G), 1);
    assert_eq!(unmap(at + 6 * g, 2 * G), 1);
    row("cuMemUnmap: nothing mapped, wholly or in part, is 1", "kvcached#437");
    assert_eq!(sim.live("mappings"), 3);
    assert_eq!(unmap(at, 6 * G), 0);
    assert_eq!(sim.live("mappings") + sim.live("physical"), 0);
    row("cuMemUnmap: several adjacent whole mappings in one call", "ggml, kvcached, vAttention");
    assert_eq!(unmap(at, 2 * G), 1);
    sim.expect_misuse("use after unmap");
    assert_eq!(unreserve(at, 8 * G), 0);
}

#[test]
fn get_access_and_its_refusals() {
    let _sim = Sim::start("devices = 2");
    let at = mapped(G);
    let mut flags = 9;
    assert_eq!(cu!(cuMemGetAccess(null_mut(), &on(0), at)), 1);
    assert_eq!(cu!(cuMemGetAccess(&raw mut flags, null(), at)), 1);
    assert_eq!(cu!(cuMemGetAccess(&raw mut flags, &on(2), at)), 1);
    assert_eq!(rights(at + G as u64), Err(1));
    assert_eq!(rights(0), Err(1));
    assert_eq!(flags, 9);
    row("cuMemGetAccess: null, bad device, an address past the mapping are 1", T);
    assert_eq!(rights(at + G as u64 - 1), Ok(3));
    assert_eq!(cu!(cuMemGetAccess(&raw mut flags, &on(1), at)), 0);
    assert_eq!(flags, 0);
    unmapped(at, G);
}

#[test]
fn retain_gives_the_same_handle() {
    let sim = Sim::start("");
    let (at, handle) = (reserve(2 * G), create(2 * G));
    assert_eq!(map(at, 2 * G, handle), 0);
    let retain = |at: u64| {
        let mut found = 0;
        let code = cu!(cuMemRetainAllocationHandle(&raw mut found, at as *mut _));
        (code, found)
    };
    assert_eq!(retain(at + G as u64 + 17), (0, handle));
    assert_eq!((release(handle), release(handle)), (0, 0));
    assert_eq!(sim.live("handles"), 0);
    assert_eq!(retain(at), (0, handle));
    assert_eq!(sim.live("handles"), 1);
    assert_eq!(release(handle), 0);
    row("cuMemRetainAllocationHandle: any address inside, the same handle, its own release", H);
    assert_eq!(cu!(cuMemRetainAllocationHandle(null_mut(), at as *mut _)), 1);
    let mut found = 0;
    assert_eq!(cu!(cuMemRetainAllocationHandle(&raw mut found, null_mut())), 1);
    assert_eq!(unmap(at, 2 * G), 0);
    assert_eq!(retain(at).0, 1);
    row("cuMemRetainAllocationHandle: nulls, an unmapped or freed address are 1", T);
    assert_eq!(unreserve(at, 2 * G), 0);
    assert_eq!(retain(at).0, 1);
}

#[test]
fn properties_come_back() {
    let _sim = Sim::start("");
    let mut of = exportable(0);
    of.allocFlags.gpuDirectRDMACapable = 1;
    let handle = try_create(G, &of).expect("memory");
    let mut found = CUmemAllocationProp::default();
    assert_eq!(cu!(cuMemGetAllocationPropertiesFromHandle(&raw mut found, handle)), 0);
    assert_eq!(found, of);
    assert_eq!(cu!(cuMemGetAllocationPropertiesFromHandle(null_mut(), handle)), 1);
    assert_eq!(cu!(cuMemGetAllocationPropertiesFromHandle(&raw mut found, 0)), 1);
    row("cuMemGetAllocationPropertiesFromHandle: as created; nulls are 1", H);
    assert_eq!(release(handle), 0);
}

#[test]
fn virtual_memory_is_not_plain_memory() {
    let mut sim = Sim::start("");
    sim.primary(0);
    let at = mapped(G);
    assert_eq!(cu!(cuMemFree_v2(at)), 1);
    sim.expect_misuse("free of virtual memory");
    row("cuMemFree: virtual memory is 1", H);
    let mut handle = forebay_simcuda::exports::CUipcMemHandle { reserved: [0; 64] };
    assert_eq!(cu!(cuIpcGetMemHandle(&raw mut handle, at)), 1);
    row("cuIpcGetMemHandle: virtual memory is 1", "cuda.h; reports of \"invalid argument\"");
    let (mut base, mut size) = (0, 0);
    let middle = at + 4321;
    assert_eq!(cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, middle)), 0);
    assert_eq!((base, size), (at, G));
    row("cuMemGetAddressRange: the mapped region", "cuda.h; NCCL walks segments with it");
    unmapped(at, G);
    assert_eq!(cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at)), 500);
    row("cuMemGetAddressRange: not found is 500", "cuda.h");
    drop(sim);
    let sim = Sim::start("address_range = not_found");
    sim.primary(0);
    let at = mapped(G);
    assert_eq!(cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at)), 500);
    row("cuMemGetAddressRange: 500 for virtual memory, by a setting", "nccl#2332");
    unmapped(at, G);
}

#[test]
fn virtual_memory_outlives_contexts() {
    let sim = Sim::start("");
    let mut context = 0;
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut context, 0, 0)), 0);
    let at = mapped(G);
    fill(at, G, 3);
    assert_eq!(cu!(cuCtxDestroy_v2(context)), 0);
    assert_eq!(sim.live("mappings"), 1);
    assert!(holds(at, G, 3));
    row("cuCtxDestroy: what cuMemCreate made stays, and is counted", H);
    let handle = create(G);
    assert_eq!(sim.live("handles"), 1);
    assert_eq!(release(handle), 0);
    unmapped(at, G);
}

#[test]
fn no_context_and_no_init() {
    let sim = Sim::configured("");
    let mut at = 0;
    assert_eq!(cu!(cuMemAddressReserve(&raw mut at, G, 0, 0, 0)), 3);
    assert_eq!(release(1), 3);
    row("before cuInit virtual memory answers 3", "cuda.h");
    drop(sim);
    let _sim = Sim::start("");
    let at = mapped(G);
    unmapped(at, G);
    row("virtual memory needs no context", "cuda.h: no call lists INVALID_CONTEXT");
}

#[test]
fn refusals_by_setting() {
    let sim = Sim::start("refuse = rdma=999, fd=801");
    let mut of = prop(0);
    of.allocFlags.gpuDirectRDMACapable = 1;
    let handle = try_create(G, &of).expect("memory");
    let at = reserve(G);
    assert_eq!(map(at, G, handle), 0);
    assert_eq!(access(at, G, 0, RW), 999);
    assert_eq!((rights(at), peek(at)), (Ok(0), None));
    row("cuMemSetAccess: RDMA-capable memory is 999 on WSL2", "pytorch#192330");
    assert_eq!(release(handle), 0);
    unmapped(at, G);
    assert_eq!(try_create(G, &exportable(0)), Err(801));
    drop(sim);
    let _sim = Sim::start("refuse = vmm=801");
    assert_eq!(try_reserve(G), Err(801));
    assert_eq!(try_create(G, &prop(0)), Err(801));
    row("no virtual memory: every call answers the setting's code", "attribute 102 is 0");
}

#[test]
fn the_cpu_may_be_kept_out() {
    let _sim = Sim::start("cpu_access = 0");
    let at = mapped(G);
    assert_eq!(rights(at), Ok(3));
    assert_eq!(peek(at), None);
    assert!(!poke(at, 1));
    row("device memory is not the CPU's, by a setting", "as on a device");
    unmapped(at, G);
}
