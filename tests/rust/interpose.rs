//! What a library between a program and CUDA asks of the pool, through the C ABI, on the host
//! backend: blocks around addresses, pools by address, a device's reset.
//!
//! One test: the default pool and the environment are the process's.

use forebay::abi::PoolT;
use forebay::abi::alloc::{forebay_free, forebay_malloc};
use forebay::abi::interpose::{
    forebay_block_range, forebay_device_reset, forebay_pool_malloc, forebay_pool_malloc_aligned,
    forebay_pool_mem_info, forebay_pool_of,
};
use forebay::abi::pools::{forebay_pool_create, forebay_pool_destroy};
use forebay::error::Status;
use std::ffi::c_void;
use std::ptr::null_mut;

fn range(address: usize) -> Result<(usize, usize), Status> {
    let (mut base, mut bytes) = (null_mut(), 0);
    // SAFETY: locals to fill.
    match unsafe { forebay_block_range(address as *const c_void, &raw mut base, &raw mut bytes) } {
        Status::Ok => Ok((base as usize, bytes)),
        status => Err(status),
    }
}

fn take(pool: PoolT, bytes: usize) -> usize {
    let mut address = null_mut();
    // SAFETY: a local to fill.
    assert_eq!(unsafe { forebay_pool_malloc(pool, &raw mut address, bytes) }, Status::Ok);
    address as usize
}

fn give(address: usize) -> Status {
    // SAFETY: any address is answered with a status.
    unsafe { forebay_free(address as *mut c_void) }
}

fn blocks_are_found_from_every_address() {
    let sizes = [1, 256, 257, 3000, 5000, 70_000, 200_000, 262_144, 262_145, 3 << 20, 33 << 20];
    let live: Vec<(usize, usize)> =
        sizes.iter().cycle().take(44).map(|&bytes| (take(null_mut(), bytes), bytes)).collect();
    for &(address, bytes) in &live {
        let (base, usable) = range(address).expect("live");
        assert!(base == address && usable >= bytes && usable - bytes < 65_536);
        for inside in [bytes / 2, bytes - 1, usable - 1] {
            assert_eq!(range(address + inside), Ok((base, usable)), "{bytes} at {inside}");
        }
    }
    for &(address, bytes) in &live {
        assert_eq!(give(address), Status::Ok);
        assert_eq!(range(address + bytes / 2), Err(Status::DoubleFree), "{bytes}");
    }
    assert_eq!(range(0x10), Err(Status::NotOwned));
}

/// What slots leave over at the ends of slabs is in no block.
fn no_block_is_found_behind_a_slab_s_last_slot() {
    let mut live: Vec<usize> = (0..2000).map(|_| take(null_mut(), 3000)).collect();
    live.sort_unstable();
    let (first, last) = (live[0], live[live.len() - 1]);
    for address in (first..last + 3000).step_by(256) {
        let Ok((base, usable)) = range(address) else { continue };
        assert!(live.binary_search(&base).is_ok(), "{address:#x} is in none of the blocks");
        assert!((base..base + usable).contains(&address));
    }
    live.iter().for_each(|&address| assert_eq!(give(address), Status::Ok));
}

fn aligned_memory_begins_where_asked(pool: PoolT) {
    let aligned = |bytes, alignment| {
        let mut address = null_mut();
        // SAFETY: a local to fill.
        let status =
            unsafe { forebay_pool_malloc_aligned(pool, &raw mut address, bytes, alignment) };
        (status, address as usize)
    };
    let small = take(pool, 300);
    for (bytes, alignment) in [(2 << 20, 2 << 20), (6 << 20, 2 << 20), (1, 4096), (70_000, 1)] {
        let (status, address) = aligned(bytes, alignment);
        assert_eq!((status, address % alignment), (Status::Ok, 0), "{bytes} at {alignment}");
        assert!(range(address).is_ok_and(|(base, usable)| base == address && usable >= bytes));
        assert_eq!(give(address), Status::Ok);
    }
    for alignment in [0, 3, 4 << 20] {
        assert_eq!(aligned(256, alignment).0, Status::InvalidArgument, "{alignment}");
    }
    assert_eq!(give(small), Status::Ok);
}

fn pools_are_found_by_address() -> PoolT {
    let mut other = null_mut();
    // SAFETY: a local to fill.
    assert_eq!(unsafe { forebay_pool_create(&raw mut other, std::ptr::null()) }, Status::Ok);
    for (pool, address) in [(null_mut(), take(null_mut(), 5000)), (other, take(other, 5000))] {
        let mut found = std::ptr::dangling_mut();
        // SAFETY: a local to fill.
        let status = unsafe { forebay_pool_of(address as *const c_void, &raw mut found) };
        assert_eq!((status, found), (Status::Ok, pool));
        let (mut free, mut total) = (0, 0);
        // SAFETY: NULL or locals to fill.
        let told = unsafe { forebay_pool_mem_info(pool, &raw mut free, null_mut()) };
        assert_eq!(told, Status::Ok);
        // SAFETY: as above.
        assert_eq!(unsafe { forebay_pool_mem_info(pool, null_mut(), &raw mut total) }, Status::Ok);
        assert!(0 < free && free < total);
        assert_eq!(give(address), Status::Ok);
    }
    other
}

fn a_reset_ends_all_pools_of_the_device(other: PoolT) {
    let (old, others) = (take(null_mut(), 5000), take(other, 5000));
    assert_eq!(forebay_device_reset(1), Status::Ok, "another device has no pools");
    assert!(range(old).is_ok());
    assert_eq!(forebay_device_reset(0), Status::Ok);
    assert_eq!(give(others), Status::StalePointer);
    assert_eq!(forebay_pool_destroy(other), Status::InvalidPool);
    assert_eq!(give(old), Status::StalePointer);
    // The next use makes a new default pool.
    let mut fresh = null_mut();
    // SAFETY: a local to fill.
    assert_eq!(unsafe { forebay_malloc(&raw mut fresh, 5000) }, Status::Ok);
    assert!(range(fresh as usize).is_ok());
    assert_eq!(give(fresh as usize), Status::Ok);
    assert_eq!(forebay_device_reset(0), Status::Ok);
    assert_eq!(forebay_device_reset(0), Status::Ok, "again is fine");
}

#[test]
fn what_interposers_ask() {
    // SAFETY: the only test of this program, before its first thread.
    unsafe {
        std::env::set_var("FOREBAY_BACKEND", "host");
        std::env::set_var("FOREBAY_LIMIT", "1GiB");
    }
    blocks_are_found_from_every_address();
    no_block_is_found_behind_a_slab_s_last_slot();
    aligned_memory_begins_where_asked(null_mut());
    let other = pools_are_found_by_address();
    a_reset_ends_all_pools_of_the_device(other);
}
