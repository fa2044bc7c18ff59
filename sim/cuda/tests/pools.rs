//! Memory pools: allocation and free in stream order.

mod common;
mod queued;

use common::row;
use forebay_simcuda::abi::mempool::PoolProps;
use forebay_simcuda::types::{CUmemAccessDesc, CUmemLocation};
use queued::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const OUT_OF_ORDER: &str = "pool memory out of stream order";
const FAULT: &str = "queued work on memory it may not touch";

fn alloc(bytes: usize, stream: u64) -> u64 {
    let mut at = 0;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut at, bytes, stream)), 0, "cuMemAllocAsync");
    at
}

fn free(at: u64, stream: u64) -> u32 {
    cu!(cuMemFreeAsync(at, stream))
}

fn default_pool() -> u64 {
    let mut pool = 0;
    assert_eq!(cu!(cuDeviceGetDefaultMemPool(&raw mut pool, 0)), 0);
    pool
}

fn get_attribute(pool: u64, attribute: u32) -> u64 {
    let mut value = 0u64;
    let at = (&raw mut value).cast::<c_void>();
    assert_eq!(cu!(cuMemPoolGetAttribute(pool, attribute, at)), 0);
    value
}

fn set_attribute(pool: u64, attribute: u32, mut value: u64) -> u32 {
    cu!(cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast::<c_void>()))
}

fn props(device: i32) -> PoolProps {
    PoolProps {
        alloc_type: 1,
        handle_types: 0,
        location: CUmemLocation { type_: 1, id: device },
        security: std::ptr::null(),
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    }
}

#[test]
fn a_length_beyond_all_memory_is_no_memory() {
    let _sim = world("");
    for bytes in [usize::MAX, usize::MAX - 511, 1 << 50] {
        let mut at = 7;
        assert_eq!(cu!(cuMemAllocAsync(&raw mut at, bytes, 0)), 2, "{bytes:#x}");
        assert_eq!(at, 7);
    }
}

#[test]
fn memory_lives_between_its_alloc_and_its_free_in_stream_order() {
    for seed in 0..20 {
        let sim = world(&format!("seed = {seed}"));
        let s = stream(NON_BLOCKING);
        let out = pinned(8);
        out.fill(0);
        for i in 0..8 {
            let at = alloc(4096, s);
            assert_eq!(fill(at, i, 1024, s), 0);
            let to = (&raw mut out[i as usize]).cast::<c_void>();
            assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to, at, 4, s)), 0);
            assert_eq!(free(at, s), 0);
        }
        assert_eq!(wait(s), 0);
        assert_eq!(*out, [0, 1, 2, 3, 4, 5, 6, 7], "seed {seed}");
        assert_eq!(sim.live("pool_blocks"), 0);
        assert_eq!(sim.live("pool_allocations"), 0, "threshold 0: a wait gives all back");
    }
    row("cuMemAllocAsync, cuMemFreeAsync take effect in stream order", "H: CUDA_MALLOC_ASYNC");
}

#[test]
fn the_same_stream_has_its_memory_back_at_once() {
    let _sim = world("schedule = stepped");
    let s = stream(NON_BLOCKING);
    let first = alloc(3 << 20, s);
    assert_eq!(free(first, s), 0);
    let second = alloc(3 << 20, s);
    assert_eq!(second, first);
    assert_eq!(fill(second, 9, 16, s), 0);
    assert_eq!(get(second, 1), [9]);
    row("a free is reused in the same stream without waiting", "H: CUDA_MALLOC_ASYNC overview");
}

#[test]
fn another_stream_reuses_by_policy() {
    for (flags, reused) in [([0, 0, 0], false), ([0, 0, 1], true), ([1, 0, 0], false)] {
        let _sim = world("schedule = stepped");
        let (a, b) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let pool = default_pool();
        for (attribute, value) in [1, 2, 3].into_iter().zip(flags) {
            assert_eq!(set_attribute(pool, attribute, value), 0);
        }
        let first = alloc(3 << 20, a);
        assert_eq!(free(first, a), 0);
        assert_eq!(alloc(3 << 20, b) == first, reused, "policies {flags:?}");
    }
    let _sim = world("schedule = stepped");
    let (a, b, e) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event());
    let pool = default_pool();
    assert_eq!(set_attribute(pool, 2, 0), 0);
    assert_eq!(set_attribute(pool, 3, 0), 0);
    let first = alloc(3 << 20, a);
    assert_eq!(free(first, a), 0);
    assert_eq!(cu!(cuEventRecord(e, a)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(b, e, 0)), 0);
    assert_eq!(alloc(3 << 20, b), first, "ordered behind the free by an event");
    row("reuse follows event dependencies, or adds its own, if allowed", "H: CU_MEMPOOL_ATTR_*");
    row("a pool adds an order of its own before it takes new memory", "assumption");
}

#[test]
fn use_before_the_allocation_s_turn_is_misuse_and_fails_the_context() {
    let mut faults = 0;
    for seed in 0..20 {
        let mut sim = world(&format!("seed = {seed}"));
        sim.expect_misuse(OUT_OF_ORDER);
        let (a, b) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let at = alloc(4096, a);
        assert_eq!(fill(at, 1, 4, b), 0);
        let code = cu!(cuCtxSynchronize());
        if code != 0 {
            assert_eq!(code, 700);
            sim.expect_misuse(FAULT);
            faults += 1;
        }
    }
    assert!(faults > 0 && faults < 20, "{faults} of 20 ran before the allocation");
    row("pool memory used in no order behind its allocation: misuse, 700 if it shows", "H: same");
}

#[test]
fn use_after_the_free_is_misuse_and_fails_the_context() {
    let mut sim = world("");
    sim.expect_misuse(OUT_OF_ORDER);
    sim.expect_misuse(FAULT);
    let s = stream(NON_BLOCKING);
    let at = alloc(4096, s);
    assert_eq!(free(at, s), 0);
    assert_eq!(fill(at, 1, 4, s), 0);
    assert_eq!(wait(s), 700);
    assert!(misuse_texts()[0].contains("was freed before by cuMemFreeAsync"));
    assert_eq!(cu!(cuStreamQuery(s)), 700);
    row("pool memory used behind its free in stream order: misuse and 700", "H: cuMemFreeAsync");
}

#[test]
fn a_free_that_other_work_is_not_ordered_with_is_misuse() {
    let mut sim = world("schedule = stepped");
    sim.expect_misuse(OUT_OF_ORDER);
    let (a, b) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let at = alloc(4096, a);
    assert_eq!(wait(a), 0);
    assert_eq!(fill(at, 1, 4, b), 0);
    assert_eq!(free(at, a), 0);
    assert!(misuse_texts()[0].contains("freed while item"));
    row("a free beside unordered use on another stream: misuse", "H: CUDA_MALLOC_ASYNC overview");
}

#[test]
fn frees_are_checked() {
    let mut sim = world("schedule = stepped");
    sim.expect_misuse("double free");
    let s = stream(NON_BLOCKING);
    let at = alloc(100, s);
    assert_eq!(free(at, s), 0);
    assert_eq!(free(at, s), 1);
    assert_eq!(free(0, s), 1);
    let mut to = 0;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut to, 0, s)), 1);
    assert_eq!(cu!(cuMemAllocAsync(null_mut(), 16, s)), 1);
    row("cuMemFreeAsync twice: 1, and misuse", "assumption");
    row("cuMemAllocAsync of 0 bytes: 1", "assumption");
}

#[test]
fn attributes_count_and_the_threshold_keeps() {
    let sim = world("");
    let (s, pool) = (stream(NON_BLOCKING), default_pool());
    for attribute in 1..=3 {
        assert_eq!(get_attribute(pool, attribute) as u32, 1, "policies are on by default");
    }
    assert_eq!(set_attribute(pool, 4, 64 << 20), 0);
    let at = alloc(5 << 20, s);
    assert_eq!(get_attribute(pool, 5), 6 << 20);
    assert_eq!(get_attribute(pool, 7), 5 << 20);
    assert_eq!(free(at, s), 0);
    assert_eq!(get_attribute(pool, 7), 0);
    assert_eq!(wait(s), 0);
    assert_eq!(get_attribute(pool, 5), 6 << 20, "below the threshold: kept");
    assert_eq!(cu!(cuMemPoolTrimTo(pool, 0)), 0);
    assert_eq!((get_attribute(pool, 5), get_attribute(pool, 6)), (0, 6 << 20));
    assert_eq!(set_attribute(pool, 6, 1), 1);
    assert_eq!(set_attribute(pool, 6, 0), 0);
    assert_eq!((get_attribute(pool, 6), get_attribute(pool, 8)), (0, 5 << 20));
    assert_eq!(set_attribute(pool, 5, 0), 1);
    assert_eq!(set_attribute(pool, 9, 0), 1);
    assert_eq!(sim.live("pool_allocations"), 0);
    row("a wait gives back what is above the release threshold; trim at once", "H: attributes");
    row("high-water marks can only be reset", "H: cuMemPoolSetAttribute");
    row("memory in use is counted at the calls, not at their turns", "assumption");
}

#[test]
fn pools_are_made_and_destroyed() {
    let sim = world("devices = 2");
    let s = stream(NON_BLOCKING);
    let (mut pool, mut current, default) = (0, 0, default_pool());
    let mut wish = props(0);
    wish.max_size = 4 << 20;
    assert_eq!(cu!(cuMemPoolCreate(&raw mut pool, &raw const wish)), 0);
    assert_eq!(cu!(cuDeviceSetMemPool(1, pool)), 1);
    assert_eq!(cu!(cuDeviceSetMemPool(0, pool)), 0);
    let mut at = 0;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut at, 8 << 20, s)), 2);
    row("a pool's maximum size: 2 above it", "H: cuMemPoolCreate");
    assert_eq!(cu!(cuMemAllocFromPoolAsync(&raw mut at, 4 << 20, pool, s)), 0);
    assert_eq!(cu!(cuMemPoolDestroy(default)), 1);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), 0);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), 1);
    assert_eq!(cu!(cuDeviceGetMemPool(&raw mut current, 0)), 0);
    assert_eq!(current, default);
    row("destroying the current pool makes the default one current", "H: cuMemPoolDestroy");
    assert_eq!(fill(at, 1, 4, s), 0);
    assert_eq!(free(at, s), 0);
    assert_eq!(wait(s), 0);
    assert_eq!(sim.live("pool_allocations"), 0);
    row("a destroyed pool's memory goes with its last free", "H: cuMemPoolDestroy");
    let mut wrong = props(0);
    wrong.location.type_ = 2;
    assert_eq!(cu!(cuMemPoolCreate(&raw mut pool, &raw const wrong)), 1);
    assert_eq!(cu!(cuMemPoolCreate(null_mut(), &raw const wish)), 1);
    row("cuMemPoolCreate: host location 1, null place 1", "H: cuMemPoolCreate");
}

#[test]
fn a_pool_opens_to_another_device() {
    let sim = world("devices = 2");
    let (pool, s) = (default_pool(), stream(NON_BLOCKING));
    let at = alloc(4096, s);
    assert_eq!(wait(s), 0);
    let open = CUmemAccessDesc { location: CUmemLocation { type_: 1, id: 1 }, flags: 3 };
    let mut flags = 9;
    let there = CUmemLocation { type_: 1, id: 1 };
    assert_eq!(cu!(cuMemPoolGetAccess(&raw mut flags, pool, &raw const there)), 0);
    assert_eq!(flags, 0);
    sim.primary(1);
    let other = stream(NON_BLOCKING);
    assert_eq!(fill(at, 1, 4, other), 1, "no access yet");
    assert_eq!(cu!(cuMemPoolSetAccess(pool, &raw const open, 1)), 0);
    assert_eq!(cu!(cuMemPoolGetAccess(&raw mut flags, pool, &raw const there)), 0);
    assert_eq!(flags, 3);
    assert_eq!(fill(at, 1, 4, other), 0);
    assert_eq!(wait(other), 0);
    let own = CUmemAccessDesc { location: CUmemLocation { type_: 1, id: 0 }, flags: 0 };
    assert_eq!(cu!(cuMemPoolSetAccess(pool, &raw const own, 1)), 1);
    row("cuMemPoolSetAccess opens a pool to other devices", "H: cuMemPoolSetAccess");
}

#[test]
fn pool_memory_of_a_device_that_is_full_is_reused_before_failing() {
    let _sim = world("memory = 32MiB");
    let (a, b) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let pool = default_pool();
    assert_eq!(set_attribute(pool, 4, u64::MAX), 0);
    let first = alloc(20 << 20, a);
    assert_eq!(free(first, a), 0);
    assert_eq!(wait(a), 0);
    let small = alloc(8 << 20, b);
    assert_ne!(small, first, "a block twice as long is not given away");
    let large = alloc(24 << 20, b);
    assert_ne!(large, 0);
    let mut at = 0;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut at, 24 << 20, b)), 2);
    row("a full device: what the pool holds in vain goes back first, then 2", "assumption");
}

#[test]
fn memory_of_a_pool_can_be_freed_at_once() {
    let sim = world("");
    let s = stream(NON_BLOCKING);
    let at = alloc(4096, s);
    assert_eq!(wait(s), 0);
    assert_eq!(cu!(cuMemFree_v2(at)), 0);
    assert_eq!((sim.live("pool_blocks"), sim.live("pool_allocations")), (0, 0));
    assert_eq!(wait(s), 0);
}
