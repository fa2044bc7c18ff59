//! PyTorch's hooks through the C ABI, on the host backend: sizes, order, counts, private pools,
//! segments, the watcher. PyTorch itself is run by `cargo xtask test torch`.
//!
//! One test: the default pool and the environment are the process's.

use forebay::abi::info::{Stats, forebay_pool_stats};
use forebay::abi::pools::forebay_pool_set_limits;
use forebay::abi::streams::{forebay_stream_create, forebay_stream_destroy};
use forebay::abi::torch::*;
use forebay::error::Status;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

const MIB: usize = 1 << 20;

fn alloc(bytes: usize, stream: *mut c_void) -> usize {
    forebay_torch_alloc(bytes, 0, stream) as usize
}

fn free(address: usize, bytes: usize, stream: *mut c_void) {
    forebay_torch_free(address as *mut c_void, bytes, 0, stream);
}

fn stream() -> *mut c_void {
    let mut made = null_mut();
    // SAFETY: a local to fill.
    assert_eq!(unsafe { forebay_stream_create(null_mut(), &raw mut made) }, Status::Ok);
    made
}

fn counts() -> TorchStats {
    // SAFETY: numbers, all of which may be 0.
    let mut stats: TorchStats = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<TorchStats>();
    // SAFETY: a local to fill.
    assert_eq!(unsafe { forebay_torch_device_stats(0, &raw mut stats) }, Status::Ok);
    stats
}

fn accounts() -> Stats {
    // SAFETY: numbers, all of which may be 0.
    let mut stats: Stats = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<Stats>();
    // SAFETY: a local to fill.
    assert_eq!(unsafe { forebay_pool_stats(null_mut(), &raw mut stats) }, Status::Ok);
    stats
}

fn sizes_and_counts() {
    assert_eq!(alloc(0, null_mut()), 0);
    free(0, 0, null_mut());
    let before = counts();
    let sizes = [1, 400, 513, 1200, 5000, 70_000, 300_000, 3 * MIB + 1];
    let live: Vec<usize> = sizes.iter().map(|&bytes| alloc(bytes, null_mut())).collect();
    assert!(live.iter().all(|address| *address != 0 && address.is_multiple_of(512)), "{live:x?}");
    let now = counts();
    let requested: usize = sizes.iter().sum();
    assert_eq!(now.requested[0].current - before.requested[0].current, requested as u64);
    assert_eq!(now.blocks[0].current - before.blocks[0].current, 8);
    assert_eq!(now.blocks[2].current - before.blocks[2].current, 1, "one above 1 MiB");
    assert_eq!(now.bytes[0].current - before.bytes[0].current, accounts().live_bytes);
    for (&address, &bytes) in live.iter().zip(&sizes) {
        let mut length = 0;
        let inside = (address + bytes - 1) as *mut c_void;
        // SAFETY: a local to fill.
        let base = unsafe { forebay_torch_base_alloc(inside, &raw mut length) } as usize;
        assert!(base == address && length >= bytes);
        free(address, bytes, null_mut());
    }
    let after = counts();
    assert_eq!(after.bytes[0].current, before.bytes[0].current);
    assert!(after.bytes[0].peak >= now.bytes[0].current);
    assert_eq!(forebay_torch_reset_peaks(0), Status::Ok);
    assert_eq!(counts().bytes[0].peak, before.bytes[0].current);
    // Not a block: told in the log, and nothing counted.
    free(live[0], 1, null_mut());
    assert_eq!(counts().blocks[0].freed, after.blocks[0].freed);
    let mut length = 1;
    // SAFETY: a local to fill.
    let base = unsafe { forebay_torch_base_alloc(16 as *mut c_void, &raw mut length) };
    assert_eq!((base as usize, length), (16, 0));
}

fn wrong_devices_and_shares_change_nothing() {
    let mut address = null_mut();
    // SAFETY: a local to fill.
    let told = unsafe { forebay_torch_allocate(&raw mut address, 1, -1, null_mut()) };
    assert_eq!((told, address), (Status::InvalidArgument, null_mut()));
    assert_eq!(forebay_torch_reset_peaks(64), Status::InvalidArgument);
    let limit = accounts().limit_bytes;
    for share in [0.0, 1.5, f64::NAN] {
        forebay_torch_memory_fraction(share, 0);
    }
    assert_eq!(accounts().limit_bytes, limit);
    forebay_torch_memory_fraction(0.5, 0);
    assert!(accounts().limit_bytes < limit);
    assert_eq!(forebay_pool_set_limits(null_mut(), limit, 0), Status::Ok);
}

fn too_much_is_told_and_counted() {
    let before = counts().out_of_memory;
    let mut address = std::ptr::dangling_mut();
    // SAFETY: a local to fill.
    let told = unsafe { forebay_torch_allocate(&raw mut address, 1 << 50, 0, null_mut()) };
    assert_eq!((told, address), (Status::OutOfMemory, null_mut()));
    assert_eq!(forebay_torch_alloc(usize::MAX, 0, null_mut()), null_mut());
    assert_eq!(counts().out_of_memory, before + 1, "what no device has is not asked for");
}

fn a_recorded_stream_is_waited_for() {
    let (own, other) = (stream(), stream());
    let block = alloc(MIB, own);
    // SAFETY: a live block; the copy is of its own.
    let queued = unsafe {
        forebay::abi::streams::forebay_stream_fill(null_mut(), block as *mut c_void, 7, MIB, other)
    };
    assert_eq!(queued, Status::Ok);
    forebay_torch_record_stream(block as *mut c_void, other);
    free(block, MIB, own);
    let next = alloc(MIB, own);
    assert!(next.abs_diff(block) >= MIB, "the other stream's work is still queued");
    free(next, MIB, own);
    for made in [own, other] {
        assert_eq!(forebay_stream_destroy(null_mut(), made), Status::Ok);
    }
}

/// A filter that takes the stream of its word.
unsafe extern "C" fn takes(word: *mut c_void, stream: *mut c_void) -> bool {
    word == stream
}

fn a_private_pools_memory_serves_nothing_else() {
    let (captured, other) = (stream(), stream());
    let id = TorchPoolId { first: 1, second: 0 };
    let begin = |filter| {
        // SAFETY: the filter stays callable, its word is only compared.
        unsafe { forebay_torch_begin_allocate_to_pool(0, id, filter, captured) }
    };
    assert_eq!(begin(None), Status::InvalidArgument);
    let fences = accounts().fences_recorded;
    assert_eq!(begin(Some(takes)), Status::Ok);
    let kept = alloc(MIB, captured);
    free(kept, MIB, captured);
    assert_eq!(alloc(MIB, captured), kept, "within its pool memory is used again");
    free(kept, MIB, captured);
    let beside = alloc(MIB, other);
    assert!(beside.abs_diff(kept) >= MIB);
    free(beside, MIB, other);
    assert_eq!(accounts().fences_recorded, fences, "none while a pool is open");
    forebay_torch_end_allocate_to_pool(0, id);
    forebay_torch_end_allocate_to_pool(0, id);
    // Opened a second time, as for a second graph: released once is not enough.
    assert_eq!(begin(Some(takes)), Status::Ok);
    forebay_torch_end_allocate_to_pool(0, id);
    forebay_torch_release_pool(0, id);
    let mut taken: Vec<usize> = (0..8).map(|_| alloc(MIB, captured)).collect();
    let is_used = |taken: &[usize]| taken.iter().any(|&at| at < kept + MIB && kept < at + MIB);
    assert!(!is_used(&taken), "a graph still needs it");
    forebay_torch_release_pool(0, id);
    forebay_torch_release_pool(0, id);
    forebay_torch_reset();
    taken.extend((0..8).map(|_| alloc(MIB, captured)));
    assert!(is_used(&taken), "{kept:#x} in {taken:x?}");
    taken.iter().for_each(|&address| free(address, MIB, captured));
    for made in [captured, other] {
        assert_eq!(forebay_stream_destroy(null_mut(), made), Status::Ok);
    }
}

fn segments_go_back_to_the_device() {
    forebay_torch_reset();
    let before = accounts().mapped_bytes;
    let segment = forebay_torch_segment_alloc(20 * MIB, 0, null_mut());
    assert_eq!(accounts().mapped_bytes - before, 20 << 20);
    forebay_torch_segment_free(segment, 20 * MIB, 0, null_mut());
    assert_eq!(accounts().mapped_bytes, before);
    assert_eq!(forebay_torch_segment_alloc(1 << 50, 0, null_mut()), null_mut());
    assert_eq!(forebay_torch_segment_alloc(0, 0, null_mut()), null_mut());
    forebay_torch_segment_free(null_mut(), 0, 0, null_mut());
}

static SEEN: Mutex<Vec<(i32, usize, usize)>> = Mutex::new(Vec::new());

unsafe extern "C" fn see(
    _word: *mut c_void,
    what: i32,
    address: *mut c_void,
    bytes: usize,
    _device: i32,
    _stream: *mut c_void,
) {
    SEEN.lock().expect("one thread").push((what, address as usize, bytes));
}

fn the_watcher_sees_each_block() {
    // SAFETY: it stays callable.
    unsafe { forebay_torch_watch(Some(see), null_mut()) };
    let block = alloc(5000, null_mut());
    free(block, 5000, null_mut());
    assert_eq!(alloc(1 << 50, null_mut()), 0);
    // SAFETY: none.
    unsafe { forebay_torch_watch(None, null_mut()) };
    free(alloc(5000, null_mut()), 5000, null_mut());
    let seen = SEEN.lock().expect("one thread").clone();
    assert_eq!(seen, [(0, block, 5000), (1, block, 5000), (2, 0, 1 << 50)]);
}

#[test]
fn pytorchs_hooks() {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("FOREBAY_BACKEND", "host") };
    forebay_torch_init(1);
    sizes_and_counts();
    wrong_devices_and_shares_change_nothing();
    too_much_is_told_and_counted();
    a_recorded_stream_is_waited_for();
    a_private_pools_memory_serves_nothing_else();
    segments_go_back_to_the_device();
    the_watcher_sees_each_block();
}
