//! Copies, fills and kernels: what returns when, what is refused, what fails the context.

mod common;
mod queued;

use common::row;
use forebay_simcuda::abi::copy::Copy2D;
use forebay_simcuda::types::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation};
use queued::*;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

const FAULT: &str = "queued work on memory it may not touch";
const BEHAVIOUR: &str = "CUDA driver API: API synchronization behavior";

fn from<T>(values: &[T]) -> *const c_void {
    values.as_ptr().cast()
}

fn to<T>(values: &mut [T]) -> *mut c_void {
    values.as_mut_ptr().cast()
}

fn upload_later(at: u64, values: &[u32], stream: u64) -> u32 {
    cu!(cuMemcpyHtoDAsync_v2(at, from(values), values.len() * 4, stream))
}

#[test]
fn pinned_copies_are_late_and_pageable_ones_are_staged() {
    let _sim = world("schedule = stepped");
    let s = stream(NON_BLOCKING);
    let cells = device(16);
    let source = pinned(1);
    source[0] = 1;
    assert_eq!(upload_later(cells, source, s), 0);
    source[0] = 2;
    assert_eq!(get(cells, 1), [2], "pinned memory is read when the copy runs");
    row("an asynchronous copy reads pinned memory when it runs", BEHAVIOUR);
    let mut pageable = vec![3u32];
    assert_eq!(upload_later(cells, &pageable, s), 0);
    pageable[0] = 4;
    assert_eq!(cu!(cuStreamQuery(s)), 600, "staged, not done");
    assert_eq!(get(cells, 1), [3]);
    row("an asynchronous copy from pageable memory has staged it when it returns", BEHAVIOUR);
    let target = pinned(1);
    target[0] = 0;
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to(target), cells, 4, s)), 0);
    assert_eq!(target[0], 0, "late");
    let mut pageable = vec![0u32];
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to(&mut pageable), cells, 4, s)), 0);
    assert_eq!((pageable[0], target[0]), (3, 3));
    row("an asynchronous copy to pageable memory returns when it is done", BEHAVIOUR);
    let (first, second) = (pinned(1), pinned(1));
    (first[0], second[0]) = (7, 0);
    let (a, b) = (first.as_ptr() as u64, second.as_ptr() as u64);
    assert_eq!(cu!(cuMemcpyAsync(b, a, 4, s)), 0);
    assert_eq!(second[0], 7);
    row("an asynchronous copy from host to host is synchronous", BEHAVIOUR);
}

#[test]
fn synchronous_copies_wait_for_what_they_must() {
    let _sim = world("schedule = stepped");
    let (blocking, free) = (stream(0), stream(NON_BLOCKING));
    let cells = device(64);
    let out = pinned(1);
    assert_eq!(fill(cells, 1, 4, blocking), 0);
    assert_eq!(fill(cells + 16, 1, 4, free), 0);
    let word = [5u32];
    assert_eq!(cu!(cuMemcpyHtoD_v2(cells, from(&word), 4)), 0);
    assert_eq!(cu!(cuStreamQuery(free)), 600, "non-blocking streams are not waited for");
    assert_eq!(cu!(cuStreamQuery(blocking)), 0);
    assert_eq!(cu!(cuStreamQuery(LEGACY)), 600, "staged; the device may still be to get it");
    row("a synchronous copy from pageable memory: staged behind earlier work", BEHAVIOUR);
    assert_eq!(cu!(cuMemcpyDtoD_v2(cells + 32, cells, 4)), 0);
    assert_eq!(cu!(cuStreamQuery(LEGACY)), 600);
    row("a synchronous copy within a device: no wait on the host", BEHAVIOUR);
    assert_eq!(cu!(cuMemcpyDtoH_v2(to(out), cells + 32, 4)), 0);
    assert_eq!(out[0], 5);
    assert_eq!(cu!(cuStreamQuery(LEGACY)), 0);
    row("a synchronous copy to the host returns when it is done", BEHAVIOUR);
    out[0] = 6;
    assert_eq!(cu!(cuMemcpyHtoD_v2(cells, from(out), 4)), 0);
    assert_eq!(cu!(cuStreamQuery(LEGACY)), 0);
    row("a synchronous copy from pinned memory returns when it is done", BEHAVIOUR);
    assert_eq!(cu!(cuMemsetD32_v2(cells, 9, 1)), 0);
    assert_eq!(cu!(cuStreamQuery(LEGACY)), 600);
    row("cuMemsetD32 does not wait on the host", BEHAVIOUR);
    assert_eq!(cu!(cuMemsetD32_v2(out.as_ptr() as u64, 9, 1)), 0);
    assert_eq!(out[0], 9);
    row("cuMemsetD32 of pinned memory does", BEHAVIOUR);
    assert_eq!(cu!(cuMemcpyHtoD_v2_ptds(cells, from(&word), 4)), 0);
    assert_eq!(cu!(cuStreamQuery_ptsz(0)), 600, "on the thread's own stream");
}

#[test]
fn addresses_that_nobody_may_touch_answer_1() {
    let _sim = world("");
    let s = stream(0);
    let cells = device(64);
    let mut word = [5u32];
    let host = word.as_ptr() as u64;
    assert_eq!(cu!(cuMemcpyHtoD_v2(host, from(&[1u32]), 4)), 1);
    assert_eq!(cu!(cuMemcpyDtoH_v2(to(&mut word), host, 4)), 1);
    assert_eq!(cu!(cuMemcpyHtoD_v2(cells + 62, from(&[1u32]), 4)), 1);
    assert_eq!(cu!(cuMemcpyHtoD_v2(cells, null(), 4)), 1);
    assert_eq!(cu!(cuMemcpyHtoD_v2(cells, null(), 0)), 0);
    assert_eq!(fill(cells + 2, 1, 1, s), 1);
    assert_eq!(cu!(cuMemsetD16Async(cells + 1, 1, 1, s)), 1);
    assert_eq!(fill(cells, 1, 17, s), 1);
    assert_eq!(cu!(cuMemsetD2D32Async(cells, 6, 1, 1, 2, s)), 1);
    assert_eq!(word, [5]);
    row("a copy or fill over the end of an allocation: 1", "T: virtualMemoryManagement; H");
    row("a fill that is not aligned to its unit: 1", "H: cuMemsetD2D16");
}

/// Two granules of address space, the first one mapped.
fn mapped(open: bool) -> (u64, u64) {
    const GRANULE: usize = 2 << 20;
    let location = CUmemLocation { type_: 1, id: 0 };
    let prop = CUmemAllocationProp { type_: 1, location, ..Default::default() };
    let (mut at, mut handle) = (0, 0);
    assert_eq!(cu!(cuMemAddressReserve(&raw mut at, 2 * GRANULE, 0, 0, 0)), 0);
    assert_eq!(cu!(cuMemCreate(&raw mut handle, GRANULE, &raw const prop, 0)), 0);
    assert_eq!(cu!(cuMemMap(at, GRANULE, 0, handle, 0)), 0);
    let access = CUmemAccessDesc { location, flags: 3 };
    if open {
        assert_eq!(cu!(cuMemSetAccess(at, GRANULE, &raw const access, 1)), 0);
    }
    (at, handle)
}

#[test]
fn virtual_memory_without_access_or_mapping() {
    let _sim = world("");
    let s = stream(0);
    let word = [5u32];
    let (closed, _) = mapped(false);
    assert_eq!(cu!(cuMemcpyHtoD_v2(closed, from(&word), 4)), 1);
    row("cuMemcpyHtoD to memory mapped without access: 1", "T: virtualMemoryManagement");
    assert_eq!(fill(closed, 1, 1, s), 1);
    let (open, _) = mapped(true);
    assert_eq!(cu!(cuMemcpyHtoD_v2(open, from(&word), 4)), 0);
    assert_eq!(cu!(cuMemcpyHtoD_v2(open + (2 << 20) - 2, from(&word), 4)), 1);
    row("a synchronous copy that runs into unmapped memory: 1", "T: Vmm2* tests");
    row("an asynchronous call on memory that is inaccessible at the call: 1", "assumption");
}

#[test]
fn unmapping_under_queued_work_fails_the_context_for_good() {
    let mut sim = world("schedule = stepped");
    sim.expect_misuse(FAULT);
    sim.expect_misuse("unmap of memory in use by queued work");
    let s = stream(NON_BLOCKING);
    let (other, e) = (device(4), event());
    let (at, handle) = mapped(true);
    assert_eq!(fill(at, 1, 1024, s), 0);
    assert_eq!(cu!(cuEventRecord(e, s)), 0);
    assert_eq!(cu!(cuMemUnmap(at, 2 << 20)), 0);
    assert_eq!(wait(s), 700);
    let texts = misuse_texts().join("\n");
    for part in ["cuMemsetD32Async", "unmapped by call", &format!("{s:#x}"), &format!("{at:#x}")] {
        assert!(texts.contains(part), "{part} is not in: {texts}");
    }
    for code in [
        cu!(cuStreamSynchronize(s)),
        cu!(cuCtxSynchronize()),
        fill(other, 1, 1, s),
        cu!(cuMemcpyHtoD_v2(other, from(&[1u32]), 4)),
        cu!(cuEventQuery(e)),
    ] {
        assert_eq!(code, 700, "the error sticks");
    }
    assert_eq!(cu!(cuMemRelease(handle)), 0, "calls without a context still work");
    row("queued work on memory unmapped before it ran: 700, which sticks", "I: vllm#43020");
    row("the record says range, stream, call, and which call unmapped", "DESIGN 6");
}

#[test]
fn memory_remapped_before_the_work_runs_is_seen_as_it_is_then() {
    let mut sim = world("schedule = stepped");
    sim.expect_misuse("unmap of memory in use by queued work");
    let s = stream(NON_BLOCKING);
    let (at, handle) = mapped(true);
    put(at, &[1]);
    let out = pinned(1);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to(out), at, 4, s)), 0);
    assert_eq!(cu!(cuMemUnmap(at, 2 << 20)), 0);
    let location = CUmemLocation { type_: 1, id: 0 };
    let prop = CUmemAllocationProp { type_: 1, location, ..Default::default() };
    let access = CUmemAccessDesc { location, flags: 3 };
    let mut fresh = 0;
    assert_eq!(cu!(cuMemCreate(&raw mut fresh, 2 << 20, &raw const prop, 0)), 0);
    assert_eq!(cu!(cuMemMap(at, 2 << 20, 0, fresh, 0)), 0);
    assert_eq!(cu!(cuMemSetAccess(at, 2 << 20, &raw const access, 1)), 0);
    assert_eq!(wait(s), 0);
    assert_eq!(out[0], 0xA5A5_A5A5, "the new page's poison, not the old page's contents");
    assert_eq!(cu!(cuMemRelease(handle)), 0);
    row("work that a remap overtakes reads the new page: poison", "I: kvcached PR#465");
}

#[test]
fn rows_are_copied_and_filled() {
    let _sim = world("");
    let s = stream(0);
    let cells = device(64);
    put(cells, &[0; 16]);
    assert_eq!(cu!(cuMemsetD2D32Async(cells, 16, 7, 2, 4, s)), 0);
    assert_eq!(get(cells, 8), [7, 7, 0, 0, 7, 7, 0, 0]);
    let mut host = [0u32; 6];
    let mut copy = Copy2D {
        src_x: 4,
        src_y: 1,
        src_type: 2,
        src_host: null(),
        src_device: cells,
        src_array: 0,
        src_pitch: 16,
        dst_x: 0,
        dst_y: 0,
        dst_type: 1,
        dst_host: to(&mut host),
        dst_device: 0,
        dst_array: 0,
        dst_pitch: 8,
        width: 8,
        height: 3,
    };
    assert_eq!(cu!(cuMemcpy2D_v2(&raw const copy)), 0);
    assert_eq!(host, [7, 0, 7, 0, 7, 0]);
    copy.height = 4;
    assert_eq!(cu!(cuMemcpy2DAsync_v2(&raw const copy, s)), 1, "a row over the end");
    copy.height = 3;
    copy.dst_pitch = 4;
    assert_eq!(cu!(cuMemcpy2D_v2(&raw const copy)), 1);
    copy.dst_pitch = 8;
    copy.src_type = 3;
    assert_eq!(cu!(cuMemcpy2D_v2(&raw const copy)), 1);
    assert_eq!(cu!(cuMemcpy2D_v2(null())), 1);
    row("cuMemcpy2D: a pitch smaller than a row: 1", "H: cuMemcpy2D");
}

#[test]
fn peers_copy_between_contexts() {
    let sim = world("devices = 2");
    let here = sim.primary(0);
    let cells = device(4);
    put(cells, &[9]);
    let there = sim.primary(1);
    let other = device(4);
    let out = pinned(1);
    assert_eq!(fill(cells, 1, 1, LEGACY), 1, "no peer access: no fill");
    assert_eq!(cu!(cuMemcpyPeer(other, there, cells, here, 4)), 0);
    assert_eq!(cu!(cuMemcpyDtoH_v2(to(out), other, 4)), 0);
    assert_eq!(out[0], 9);
    let s = stream(NON_BLOCKING);
    assert_eq!(cu!(cuMemcpyPeerAsync(other, there, cells, here, 4, s)), 0);
    assert_eq!(cu!(cuMemcpyPeer(other, 0x1234, cells, here, 4)), 201);
    assert_eq!(wait(s), 0);
    row("cuMemcpyPeer needs no peer access; a context that is not: 201", "H: cuMemcpyPeer");
}

/// A copy between contexts waits for all that both, and the current one, have been given, and all
/// that they are given later waits for it: in non-blocking streams as well.
#[test]
fn a_peer_copy_is_serialized_with_the_work_of_its_contexts() {
    for seed in 0..20 {
        let sim = world(&format!("devices = 3\nseed = {seed}"));
        let here = sim.primary(0);
        let source = device(4);
        put(source, &[1]);
        let near = stream(NON_BLOCKING);
        let there = sim.primary(1);
        let target = device(4);
        put(target, &[2]);
        let far = stream(NON_BLOCKING);
        let out = pinned(1);
        sim.primary(0);
        assert_eq!(fill(source, 7, 1, near), 0);
        sim.primary(1);
        assert_eq!(fill(target, 8, 1, far), 0);
        // The current context is a third one's.
        sim.primary(2);
        assert_eq!(cu!(cuMemcpyPeer(target, there, source, here, 4)), 0);
        sim.primary(0);
        assert_eq!(fill(source, 9, 1, near), 0);
        sim.primary(1);
        assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to(out), target, 4, far)), 0);
        assert_eq!(wait(far), 0);
        assert_eq!(out[0], 7, "seed {seed}");
    }
    row(
        "cuMemcpyPeer comes behind and before all work of its contexts",
        "H: cuMemcpyPeer; CUDA guide: peer copies",
    );
}

/// The other form follows its stream alone: by some schedule it reads what is not yet written.
#[test]
fn an_asynchronous_peer_copy_follows_its_stream_alone() {
    let mut early = 0;
    for seed in 0..20 {
        let sim = world(&format!("devices = 2\nseed = {seed}"));
        let here = sim.primary(0);
        let source = device(4);
        put(source, &[1]);
        let near = stream(NON_BLOCKING);
        let there = sim.primary(1);
        let target = device(4);
        let far = stream(NON_BLOCKING);
        sim.primary(0);
        assert_eq!(fill(source, 7, 1, near), 0);
        sim.primary(1);
        assert_eq!(cu!(cuMemcpyPeerAsync(target, there, source, here, 4, far)), 0);
        assert_eq!(wait(far), 0);
        early += u32::from(get(target, 1) == [1]);
    }
    assert!(early > 0, "none of 20 came before the other stream's work");
    row("cuMemcpyPeerAsync is ordered by its stream alone", "H: cuMemcpyPeerAsync");
}

#[test]
fn kernels_by_name() {
    let mut sim = world("");
    sim.expect_misuse("a function that is not there");
    let s = stream(0);
    let cells = device(64);
    let ptx =
        CString::new(".version 8.0\n.visible .entry copy_u32(.param .u64 a) { ret; }").unwrap();
    let (mut module, mut function) = (0, 0);
    assert_eq!(cu!(cuModuleLoadData(&raw mut module, ptx.as_ptr().cast::<c_void>())), 0);
    let name = |n: &str| CString::new(n).unwrap();
    let found = |n: &str| {
        let (text, mut f) = (name(n), 0);
        cu!(cuModuleGetFunction(&raw mut f, module, text.as_ptr()))
    };
    assert_eq!((found("copy_u32"), found("fill_u32"), found("unknown")), (0, 500, 500));
    let elf = [0x7Fu8, b'E', b'L', b'F', 2, 1, 1, 0];
    assert_eq!(cu!(cuModuleLoadData(&raw mut module, from(&elf))), 209);
    assert_eq!(cu!(cuModuleLoadData(&raw mut module, null())), 1);
    row("cuModuleGetFunction: 500 for a name that is not there", "H: cuModuleGetFunction");
    let (mut at, mut value, mut count) = (cells, 3u32, 4u64);
    let mut arguments = [argument(&mut at), argument(&mut value), argument(&mut count)];
    assert_eq!(launch(kernel("fill_u32"), s, &mut arguments), 0);
    assert_eq!(launch(kernel("add_u32"), s, &mut arguments), 0);
    let (mut target, mut longs) = (cells + 32, 2u64);
    let mut arguments = [argument(&mut at), argument(&mut longs), argument(&mut target)];
    assert_eq!(launch(kernel("checksum_u64"), s, &mut arguments), 0);
    let double = 6u64 << 32 | 6;
    let sum = double.wrapping_mul(3);
    assert_eq!(get(cells, 4), [6; 4]);
    assert_eq!(get(cells + 32, 2), [sum as u32, (sum >> 32) as u32]);
    let text = name("fill_u32");
    assert_eq!(cu!(cuModuleLoadData(&raw mut module, text.as_ptr().cast::<c_void>())), 0);
    assert_eq!(cu!(cuModuleGetFunction(&raw mut function, module, text.as_ptr())), 0);
    let none: *mut *mut c_void = null_mut();
    let places = arguments.as_mut_ptr();
    let shaped = |x, block| cu!(cuLaunchKernel(function, x, 1, 1, block, 1, 1, 0, s, places, none));
    assert_eq!((shaped(0, 1), shaped(1, 0), shaped(1, 1025)), (1, 1, 1));
    row("a launch of no blocks, no threads, or 1,025 threads a block: 1", "H: cuLaunchKernel");
    assert_eq!(cu!(cuModuleUnload(module)), 0);
    assert_eq!(shaped(1, 1), 400);
}

#[test]
fn a_kernel_over_the_end_of_its_memory_fails_the_context() {
    let mut sim = world("");
    sim.expect_misuse(FAULT);
    let s = stream(0);
    let (mut at, mut value, mut count) = (device(64), 3u32, 17u64);
    let mut arguments = [argument(&mut at), argument(&mut value), argument(&mut count)];
    assert_eq!(launch(kernel("fill_u32"), s, &mut arguments), 0, "a launch checks no memory");
    assert_eq!(wait(s), 700);
    row("a kernel that touches what it may not: 700 at the next wait", "H: ILLEGAL_ADDRESS");
}

/// A random program of copies between cells on 8 streams; every conflict is ordered by events.
fn random_program(seed: u64) -> (Vec<u32>, Vec<u32>) {
    const CELLS: usize = 12;
    let _sim = world(&format!("seed = {seed}"));
    let mut draw = forebay_simcuda::rng::Rng::new(seed ^ 0xD46);
    let streams: Vec<u64> = (0..8).map(|_| stream(NON_BLOCKING)).collect();
    let cells = device(CELLS * 4);
    let mut expected: Vec<u32> = (0..CELLS as u32).collect();
    put(cells, &expected);
    let mut users: Vec<Vec<(usize, bool)>> = vec![Vec::new(); CELLS];
    for step in 0..60u32 {
        let on = draw.below(8) as usize;
        let (source, target) = (draw.below(12) as usize, draw.below(12) as usize);
        let readers = users[target].iter().map(|(s, _)| *s);
        let writers = users[source].iter().filter(|(_, wrote)| *wrote).map(|(s, _)| *s);
        for other in readers.chain(writers).filter(|s| *s != on).collect::<Vec<_>>() {
            let e = event();
            assert_eq!(cu!(cuEventRecord(e, streams[other])), 0);
            assert_eq!(cu!(cuStreamWaitEvent(streams[on], e, 0)), 0);
            assert_eq!(cu!(cuEventDestroy_v2(e)), 0);
        }
        let (s, t) = (cells + source as u64 * 4, cells + target as u64 * 4);
        if step % 3 == 0 {
            assert_eq!(fill(t, step, 1, streams[on]), 0);
            expected[target] = step;
        } else {
            assert_eq!(cu!(cuMemcpyDtoDAsync_v2(t, s, 4, streams[on])), 0);
            expected[target] = expected[source];
            users[source].push((on, false));
        }
        users[target] = vec![(on, true)];
    }
    (get(cells, CELLS), expected)
}

#[test]
fn ordered_programs_give_what_the_program_order_gives() {
    for seed in 0..200 {
        let (found, expected) = random_program(seed);
        assert_eq!(found, expected, "seed {seed}");
    }
    row("200 random programs over 8 streams: as the program's order", "CUDA guide: events");
}
